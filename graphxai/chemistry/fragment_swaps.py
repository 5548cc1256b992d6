"""Make molecules by swapping a BRICS fragment (Degen 2008), or by changing their SELFIES."""

import csv
import random
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache, lru_cache
from importlib import resources
from typing import NamedTuple

import numpy as np
from rdkit import Chem, rdBase
from rdkit.Chem import BRICS

from graphxai.datasets.training_set import TrainingSet
from graphxai.runtime.extras import missing_extra

from .substituents import exchange_name
from .transformations import Change, NewMolecules

LARGEST = 13  # heavy atoms of an exchanged fragment (Hu 2012)
MOST = 24  # fragments of one kind that are tried at a bond, the most common first
NEAREST = 50  # training compounds whose fragments are tried
COMMON = "common_fragments.csv"  # kind of bond, SMILES, number of compounds
JOINT = 1  # isotope of the dummy atoms that are joined
ORIGIN = "graphxai_origin"

# For each kind of bond, the SMILES of fragments with [1*], the most common first.
FragmentsByBond = Mapping[str, Collection[str]]
_Pieces = frozenset[tuple[str, str]]  # kinds of bond and fragments
_BY_ISOTOPE = Chem.MolzipParams()
_BY_ISOTOPE.label = Chem.MolzipLabel.Isotope


def exchanged(
    mol: Chem.Mol, fragments: FragmentsByBond, keep: Collection[int] = ()
) -> Iterator[Change]:
    """Yield the molecules in which a fragment at one BRICS bond is exchanged for one of its kind.

    Each molecule is yielded once.

    Args:
        mol: the molecule to change.
        fragments: what to put in place of its fragments.
        keep: as for `transformed`.
    """
    products = NewMolecules(mol, keep)
    with rdBase.BlockLogs():
        for cut in _cuts(mol):
            if products.keep & cut.part:
                continue
            old, core = cut.fragment(mol), _piece(mol, cut.part, cut.inner)
            for new in list(fragments.get(cut.kind, ()))[:MOST]:
                if new != old:
                    product = Chem.molzip(core, Chem.MolFromSmiles(new), _BY_ISOTOPE)
                    name = exchange_name(old, new)
                    yield from products.of(product, name, "BRICS exchange", ORIGIN)


def fragments_for(mol: Chem.Mol, training: TrainingSet | None) -> FragmentsByBond:
    """Return fragments of the training compounds most similar to a molecule, then common ones."""
    near = () if training is None else training.most_similar(mol, NEAREST)
    similar, common = _counted(map(_pieces_of, near)), _common()
    return {
        kind: tuple(
            dict.fromkeys((*list(similar.get(kind, ()))[: MOST // 2], *common.get(kind, ())))
        )
        for kind in {*similar, *common}
    }


@lru_cache(maxsize=1 << 14)  # searches from similar molecules ask for the same compounds
def _pieces_of(smiles: str) -> _Pieces:
    mol = Chem.MolFromSmiles(smiles)
    with rdBase.BlockLogs():
        return frozenset((cut.kind, cut.fragment(mol)) for cut in _cuts(mol))


def _counted(pieces_by_molecule: Iterable[_Pieces]) -> dict[str, dict[str, int]]:
    """Count in how many molecules each fragment occurs, by kind of bond, the most common first."""
    counts: dict[str, dict[str, int]] = {}
    for pieces in pieces_by_molecule:
        for kind, smiles in pieces:
            kind_counts = counts.setdefault(kind, {})
            kind_counts[smiles] = kind_counts.get(smiles, 0) + 1
    return {
        kind: dict(sorted(kind_counts.items(), key=lambda pair: (-pair[1], pair[0])))
        for kind, kind_counts in sorted(counts.items())
    }


def mutated(mol: Chem.Mol, count: int, seed: int, keep: Collection[int] = ()) -> Iterator[Change]:
    """Yield the molecules whose SELFIES differ in one symbol (STONED, Nigam 2021), each once.

    Args:
        mol: the molecule to change.
        count: how many changes are tried.
        seed: seed of the random changes.
        keep: numbers of atoms whose substructure every molecule must still contain.

    Raises:
        ImportError: without the package selfies.
        ValueError: if SELFIES cannot write the molecule.
    """
    try:
        import selfies
    except ImportError:
        raise missing_extra("changes of SELFIES need", "selfies", "counterfactuals") from None
    try:
        symbols = list(selfies.split_selfies(selfies.encoder(Chem.MolToSmiles(mol))))
    except selfies.EncoderError as error:
        raise ValueError(f"SELFIES cannot write {Chem.MolToSmiles(mol)}: {error}") from None
    alphabet = sorted(selfies.get_semantic_robust_alphabet())
    kept = Chem.MolFromSmarts(Chem.MolFragmentToSmarts(mol, list(keep))) if keep else None
    rng, seen = random.Random(seed), {Chem.MolToSmiles(mol)}
    for _ in range(count):
        place, action = rng.randrange(len(symbols)), rng.choice(("replace", "insert", "delete"))
        inserted = [] if action == "delete" else [rng.choice(alphabet)]
        parts = symbols[:place] + inserted + symbols[place + (action != "insert") :]
        with rdBase.BlockLogs():
            new = Chem.MolFromSmiles(selfies.decoder("".join(parts)))
        smiles = "" if new is None else Chem.MolToSmiles(new)
        if smiles and smiles not in seen and (kept is None or new.HasSubstructMatch(kept)):
            seen.add(smiles)
            yield Change(smiles, f"{action} one symbol", "SELFIES", frozenset())


class _BricsCut(NamedTuple):
    """A BRICS bond between the atoms `inner` and `outer`.

    `part` holds the atoms on the smaller side of the bond, and `inner` is one of them.
    """

    kind: str
    inner: int
    outer: int
    part: frozenset[int]

    def fragment(self, mol: Chem.Mol) -> str:
        """Return the smaller side as SMILES, with [1*] in place of the other side."""
        rest = frozenset(range(mol.GetNumAtoms())) - self.part
        return str(Chem.MolToSmiles(_piece(mol, rest, self.outer)))


def _cuts(mol: Chem.Mol) -> Iterator[_BricsCut]:
    """Yield every BRICS bond that has a side small enough to be exchanged."""
    distance = Chem.GetDistanceMatrix(mol)
    for (begin, end), (begin_kind, end_kind) in BRICS.FindBRICSBonds(mol):
        for kind, inner, outer in ((begin_kind, begin, end), (end_kind, end, begin)):
            # no ring runs through the bond, so each atom is nearer to one of its ends
            part = frozenset(np.flatnonzero(distance[inner] < distance[outer]).tolist())
            if len(part) <= min(LARGEST, mol.GetNumAtoms() // 2):
                yield _BricsCut(kind, inner, outer, part)


def _piece(mol: Chem.Mol, without: frozenset[int], joint: int) -> Chem.Mol:
    """Return the molecule without these atoms, but with a dummy atom in place of `joint`."""
    piece = Chem.RWMol(mol)
    for atom in piece.GetAtoms():
        if atom.GetIdx() not in without:
            atom.SetIntProp(ORIGIN, atom.GetIdx())
    dummy = Chem.Atom(0)
    dummy.SetIsotope(JOINT)
    piece.ReplaceAtom(joint, dummy)
    piece.BeginBatchEdit()
    for index in without - {joint}:
        piece.RemoveAtom(index)
    piece.CommitBatchEdit()
    return piece.GetMol()


@cache
def _common() -> dict[str, tuple[str, ...]]:
    """Read common fragments by kind of bond. The file's first line says where they are from."""
    with resources.files(__package__).joinpath(COMMON).open(encoding="utf-8") as file:
        rows = csv.DictReader(line for line in file if not line.startswith("#"))
        by_kind: dict[str, list[str]] = {}
        for row in rows:
            by_kind.setdefault(row["kind"], []).append(row["smiles"])
    return {kind: tuple(smiles) for kind, smiles in by_kind.items()}
