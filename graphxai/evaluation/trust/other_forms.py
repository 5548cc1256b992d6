"""Other forms of an input: tautomers, other SMILES, renumbered nodes, and what they change."""

import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from rdkit import Chem, rdBase
from rdkit.Chem import Mol
from rdkit.Chem.MolStandardize import rdMolStandardize

from graphxai.contract.batching import Key
from graphxai.contract.inputs import Input, prepare_each
from graphxai.datasets.as_given import IS_MEAN
from graphxai.datasets.canonical_form import smiles_with_groups, with_groups_of
from graphxai.explanation.compute.models import Model, standardisation_of
from graphxai.explanation.compute.predicting import isomer_ranges, predictions_or_errors
from graphxai.explanation.explanation import Explanation
from graphxai.explanation.prediction import Prediction

from .signs import Sign

if TYPE_CHECKING:
    from torch_geometric.data import Data

NAME = "tautomers"
MOST = 3  # how many tautomers of a molecule are predicted
MAX_TRANSFORMS = 30  # of one molecule, so that it takes milliseconds
MAX_ATOMS = 100  # the time of a transformation grows with the size
USUAL = 0.5  # a value beyond the interval of this level, which half of the errors exceed, is noted
_OUTSIDE, _OTHER_VALUE = "a value outside the interval", "another value"
MARGIN = 2  # a carbonyl group raises RDKit's score by this, so both forms of a pyridone are likely

# RDKit scores an imidic acid as it scores a hydroxypyridine, 2 below the form with the carbonyl
# group, and the imine of an aminopyridine 1 below the amine. But there is hardly any imidic acid
# beside an amide, and hardly any imine beside an aminopyridine, unless its nitrogen carries an
# acceptor, as that of sulfapyridine does.
_UNLIKELY = tuple(
    Chem.MolFromSmarts(pattern)
    for pattern in (
        "[CX3](=N)[OX2H1,SX2H1]",
        "c=[NX2;!$(NS(=O)=O);!$(NC#N);!$(N[N+]=O)]",
    )
)

# Enumeration takes milliseconds, and most molecules have only protons that need not be tried: those
# of amides, alcohols and amines, and those beside a single carbonyl group.
_MOBILE = tuple(
    Chem.MolFromSmarts(pattern)
    for pattern in (
        "[nH]",
        # hydroxy, oxo, imino and sulfonamido groups conjugated to a nitrogen in an aromatic ring
        "[OX2H1,SX2H1,OX1,SX1,NX2,$([NX3;H1]-[#16X4,$(C#N),$([N+])]);!R]~c~[n,$(*~n),$(*~*~n)]",
        "[NX2]=[#6]-[#7!H0,#8H1,#16H1,CX4!H0]",  # amidines, imidic acids, imines of C-H
        "[NX2]=[NX2]-[#6;!H0,$(c:c[OH,NH])]",  # azo compounds and hydrazones
        "[OX2H1,SX2H1,NX3!H0]-[CX3]=[CX3]",  # enols and enamines
        "[CX3](=[OX1])[#6;!H0][CX3]=[OX1]",  # carbonyl groups on both sides of a C-H
        "[OX1]=[#6]-[#6]=[#6]-[#7!H0,#8H1,CX4!H0]",  # vinylogous acids and amides, enones
        "[OX2H1]-c~[$(c=[OX1]),$(c:c=[OX1])]",  # hydroxy groups of coumarins and tropolones
        "[CX3]=[NX2]-[OX2H1]",  # oximes
        "[#6]-[NX2]=[OX1]",  # and nitroso compounds
    )
)


def likely_tautomers(mol: Chem.Mol) -> list[str]:
    """Return the SMILES of up to `MOST` other tautomers, the likeliest first.

    They have about the score of the molecule itself, or a better one, by RDKit's rules, and no
    more imidic acids, or imines of aromatic rings, than the molecule. Only molecules with mobile
    protons of the kinds in `_MOBILE` have any.
    """
    if mol.GetNumAtoms() > MAX_ATOMS or not any(map(mol.HasSubstructMatch, _MOBILE)):
        return []
    enumerator = _enumerator()
    plain = Chem.Mol(mol)
    with rdBase.BlockLogs():
        forms = {Chem.MolToSmiles(form): form for form in enumerator.Enumerate(plain)}
    forms.pop(Chem.MolToSmiles(plain), None)
    scores = {
        smiles: enumerator.ScoreTautomer(form)
        for smiles, form in forms.items()
        if all(_count(each, form) <= _count(each, plain) for each in _UNLIKELY)
    }
    least = enumerator.ScoreTautomer(plain) - MARGIN
    likely = sorted((-score, smiles) for smiles, score in scores.items() if score >= least)
    of_atoms = range(mol.GetNumAtoms())
    grouped = (with_groups_of(mol, forms[smiles], of_atoms) for _, smiles in likely[:MOST])
    return list(map(smiles_with_groups, grouped))


def _count(pattern: Chem.Mol, mol: Chem.Mol) -> int:
    return len(mol.GetSubstructMatches(pattern))


def tautomer_signs(
    model: Model, prepared: Sequence[tuple[Key, Input]], explanations: Mapping[Key, Explanation]
) -> dict[Key, Sign]:
    """Return a sign for each molecule that has likely tautomers, by key.

    A model that reads canonical tautomers needs no such sign.
    """
    molecules = {key: explanations[key].molecule for key, _ in prepared}
    predicted = _of_tautomers(model, molecules)
    return {
        key: _sign(before := explanations[key].prediction, [(s, p[before.task]) for s, p in each])
        for key, each in predicted.items()
    }


def _of_tautomers(
    model: Model, molecules: "Mapping[Key, Mol | None]"
) -> dict[Key, list[tuple[str, dict[str, Prediction]]]]:
    """Return the likely tautomers of molecules, each with its predictions by task."""
    if standardisation_of(model) == "tautomers":
        return {}
    forms: list[tuple[Key, str]] = []
    for key, mol in molecules.items():
        forms += [(key, smiles) for smiles in likely_tautomers(mol)] if mol is not None else []
    items = prepare_each(model, [smiles for _, smiles in forms], Exception)
    readable = [(place, item) for place, item in enumerate(items) if isinstance(item, Input)]
    predicted: dict[Key, list[tuple[str, dict[str, Prediction]]]] = {}
    for place, predictions in predictions_or_errors(model, readable):
        key, smiles = forms[int(place)]
        if not isinstance(predictions, Exception):
            predicted.setdefault(key, []).append((smiles, {p.task: p for p in predictions}))
    return predicted


def form_notes(
    model: Model, molecules: "Mapping[Key, Mol]", predictions: Mapping[Key, Sequence[Prediction]]
) -> dict[Key, list[str]]:
    """Say what molecules get in other forms: ranges over isomers, tautomers with another answer.

    That is another class, or a value that differs by more than half of the model's errors do.
    `molecules` are the molecules in the form in which they were read.
    """
    notes: dict[Key, list[str]] = {
        key: [] if IS_MEAN in predictions[key][0].note else isomer_ranges(model, mol)
        for key, mol in molecules.items()
    }
    for key, tautomers in _of_tautomers(model, molecules).items():
        for before in predictions[key]:
            answers = [(smiles, each[before.task]) for smiles, each in tautomers]
            for level, what in ((before.level, _OUTSIDE), (USUAL, _OTHER_VALUE)):
                sign = _sign(before.at(level), answers, what)
                if sign.level == "caution":
                    notes[key].append(f"{sign.text} ({before.task}): {sign.structures[0]}")
                    break
    return notes


def _sign(
    prediction: Prediction, tautomers: Sequence[tuple[str, Prediction]], outside: str = _OUTSIDE
) -> Sign:
    """Compare the predictions of tautomers with that of the molecule."""
    low, high = prediction.interval or (-math.inf, math.inf)
    for smiles, other in tautomers:
        if prediction.label is not None and other.label != prediction.label:
            what = "another class"
        elif other.value is not None and not low <= other.value <= high:
            what = outside
        else:
            continue
        text = f"a likely tautomer gets {what}, {other}"
        return Sign(NAME, "caution", None, text, structures=(smiles,))
    tried = "a likely tautomer gets" if len(tautomers) == 1 else "likely tautomers get"
    result = "the same class" if prediction.label is not None else "a value in the interval"
    structures = tuple(smiles for smiles, _ in tautomers)
    return Sign(NAME, "good", None, f"{tried} {result}", structures=structures)


@cache
def _enumerator() -> Any:
    enumerator = rdMolStandardize.TautomerEnumerator()
    enumerator.SetMaxTransforms(MAX_TRANSFORMS)
    enumerator.SetRemoveSp3Stereo(False)
    enumerator.SetRemoveBondStereo(False)
    return enumerator


WRITINGS = 2  # how many other forms of each input are explained


def another_form(item: Input, draw: int) -> "tuple[Mol | Data | str, list[int]] | None":
    """Return another form of the input, with the original number of each of its nodes.

    An RDKit molecule or a graph of the bundled models is renumbered. A SMILES is written from
    another atom on, which may lose explicit hydrogens. Returns None for a graph of a wrapped model,
    because its nodes may have any attributes.
    """
    if item.molecule is not None or item.isomers:
        # the groups of a racemate are in its SMILES, and not in the form that was read
        mol = item.molecule or Chem.MolFromSmiles(item.smiles or "")
        order = np.random.default_rng(draw).permutation(mol.GetNumAtoms()).tolist()
        return Chem.RenumberAtoms(mol, order), order
    if item.smiles is None:
        if "structure" not in item.data:  # the graph is one of a wrapped model
            return None
        order = np.random.default_rng(draw).permutation(item.data.num_nodes).tolist()
        from graphxai.evaluation.testing import renumbered

        return renumbered(item.data, torch.tensor(order)), order
    with rdBase.BlockLogs():
        mol = Chem.MolFromSmiles(item.smiles) if item.read is None else item.read
        start = (draw + 1) * mol.GetNumAtoms() // (WRITINGS + 1)
        text = Chem.MolToSmiles(mol, canonical=False, rootedAtAtom=start)
    return text, list(mol.GetPropsAsDict(True, True)["_smilesAtomOutputOrder"])
