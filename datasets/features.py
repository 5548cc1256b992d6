"""Turn molecules into arrays of the features of the Open Graph Benchmark, here or in workers.

Every value is a position in OGB's vocabulary (``ogb.utils.features``, Hu 2020), the input that
Graphormer was published with. The tables lead from RDKit's values to these positions.

RDKit's parsing, the slowest step, is single-threaded, so several processes featurise SMILES. Chunks
go out, and arrays come back. Neither this file nor what it imports needs torch, so a worker process
starts in a fraction of a second and stays small.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing, nullcontext
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rdkit import Chem, rdBase
from rdkit.Chem import rdqueries

from graphxai.runtime.extras import import_ogb
from graphxai.runtime.workers import LostItem, in_workers

from .as_given import AS_DRAWN, AsGiven, Isomers, Standardisation
from .canonical_form import one_perception
from .isomers import isomers_in_order, undrawn_centres
from .molecule_reading import AS_WRITTEN, MoleculeError, ReadMolecule, read_molecules, shortened

MAX_ATOMS = 500  # of a molecule; time and memory of attention grow with the square
# The steps from SMILES to graph evict each other from the processor's caches. Doing each step for
# this many molecules before the next one saves a tenth of the time.
TURN = 32
_CHUNK = 4 * TURN  # a worker takes about 30 ms for them, and its answer is some 700 kB
ATOM_FEATURE_NAMES = (
    "atomic number",
    "chirality",
    "degree",
    "formal charge",
    "hydrogens",
    "radical electrons",
    "hybridization",
    "aromatic",
    "in ring",
)
BOND_FEATURE_NAMES = ("bond type", "bond stereo", "conjugated")


class _Vocabulary(dict[Any, int]):
    """The position of each value. Any other value has the position after them (OGB's "misc")."""

    def __init__(self, values: Iterable[Any]) -> None:
        super().__init__((value, position) for position, value in enumerate(values))

    def __missing__(self, value: Any) -> int:
        return len(self)


_ALLOWED = import_ogb("ogb.utils.features").allowable_features


def _vocabulary(name: str, enumeration: Any = None) -> _Vocabulary:
    """Return one of OGB's vocabularies, whose values may be names in an enumeration of RDKit."""
    *values, _ = _ALLOWED[f"possible_{name}_list"]
    return _Vocabulary(
        values if enumeration is None else map(enumeration.names.__getitem__, values)
    )


_ATOMIC_NUMBER = _vocabulary("atomic_num")
_CHIRALITY = _vocabulary("chirality", Chem.ChiralType)
_DEGREE = _vocabulary("degree")
_CHARGE = _vocabulary("formal_charge")
_HYDROGENS = _vocabulary("numH")
_RADICALS = _vocabulary("number_radical_e")
_HYBRIDIZATION = _vocabulary("hybridization", Chem.HybridizationType)
_BOND_TYPE = _vocabulary("bond_type", Chem.BondType)
# OGB has no position for another stereo.
_BOND_STEREO = {
    Chem.BondStereo.names[name]: position
    for position, name in enumerate(_ALLOWED["possible_bond_stereo_list"])
}
_ATOM_VOCABULARIES = (
    _ATOMIC_NUMBER, _CHIRALITY, _DEGREE, _CHARGE, _HYDROGENS, _RADICALS, _HYBRIDIZATION
)  # fmt: skip
# Aromatic, in ring and conjugated are yes or no.
ATOM_CARDINALITIES = (*(len(each) + 1 for each in _ATOM_VOCABULARIES), 2, 2)
BOND_CARDINALITIES = (len(_BOND_TYPE) + 1, len(_BOND_STEREO), 2)
_NO_STEREO = _BOND_STEREO[Chem.BondStereo.STEREONONE]
_DOUBLE = _BOND_TYPE[Chem.BondType.DOUBLE]


# Reading one of RDKit's enumerations from Python takes four times as long as reading a number.
# So compiled queries find the common values, and only the rest are read.
_TAGGED = Chem.RWMol()
_TAGGED.AddAtom(rdqueries.HasChiralTagQueryAtom())
_SP2 = Chem.MolFromSmarts("[^2]")
_NEITHER_SP2_NOR_SP3 = Chem.MolFromSmarts("[!^2!^3]")


def atom_features(mol: Chem.Mol) -> NDArray[np.int64]:
    """Return the atoms of a molecule as positions in OGB's vocabularies, (N, 9).

    Column ``j`` is `ATOM_FEATURE_NAMES` ``[j]``, below `ATOM_CARDINALITIES` ``[j]``. An element,
    charge or count outside a vocabulary gets its "misc" position, as in OGB.
    """
    n = mol.GetNumAtoms()
    atoms = list(map(mol.GetAtomWithIdx, range(n)))
    chirality = [_CHIRALITY[Chem.ChiralType.CHI_UNSPECIFIED]] * n
    for (i,) in mol.GetSubstructMatches(_TAGGED, maxMatches=n):
        chirality[i] = _CHIRALITY[atoms[i].GetChiralTag()]
    hybridization = [_HYBRIDIZATION[Chem.HybridizationType.SP3]] * n
    for (i,) in mol.GetSubstructMatches(_SP2, maxMatches=n):
        hybridization[i] = _HYBRIDIZATION[Chem.HybridizationType.SP2]
    for (i,) in mol.GetSubstructMatches(_NEITHER_SP2_NOR_SP3, maxMatches=n):
        hybridization[i] = _HYBRIDIZATION[atoms[i].GetHybridization()]
    columns = [
        list(map(_ATOMIC_NUMBER.__getitem__, map(Chem.Atom.GetAtomicNum, atoms))),
        chirality,
        list(map(_DEGREE.__getitem__, map(Chem.Atom.GetTotalDegree, atoms))),
        list(map(_CHARGE.__getitem__, map(Chem.Atom.GetFormalCharge, atoms))),
        list(map(_HYDROGENS.__getitem__, map(Chem.Atom.GetTotalNumHs, atoms))),
        list(map(_RADICALS.__getitem__, map(Chem.Atom.GetNumRadicalElectrons, atoms))),
        hybridization,
        list(map(Chem.Atom.GetIsAromatic, atoms)),
        list(map(Chem.Atom.IsInRing, atoms)),
    ]
    return np.ascontiguousarray(np.array(columns, dtype=np.int64).T)


def canonical_chirality(mol: Chem.Mol) -> NDArray[np.int64] | None:
    """Return chirality codes (N,) that do not depend on how the molecule is written.

    RDKit's tag, and so OGB's feature, is relative to the order of an atom's bonds: two SMILES of
    the same molecule can have opposite tags. These codes are those of the canonical SMILES, mapped
    back to the molecule's atom order. A molecule without tags has None.

    Args:
        mol: in its canonical form.
    """
    if not mol.HasSubstructMatch(_TAGGED):
        return None
    smiles = Chem.MolToSmiles(mol)
    order = list(mol.GetPropsAsDict(True, True, False)["_smilesAtomOutputOrder"])
    # the canonical SMILES of a sanitised molecule has tags at stereocentres only
    canonical = Chem.MolFromSmiles(smiles, AS_WRITTEN)
    if canonical is None or canonical.GetNumAtoms() != len(order):
        return None  # RDKit cannot read back what it wrote: keep the molecule's tags
    codes = np.full(len(order), _CHIRALITY[Chem.ChiralType.CHI_UNSPECIFIED])
    for (i,) in canonical.GetSubstructMatches(_TAGGED, maxMatches=len(order)):
        codes[order[i]] = _CHIRALITY[canonical.GetAtomWithIdx(i).GetChiralTag()]
    return codes


def bond_features(mol: Chem.Mol) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return both directions of every bond: ends (2, 2 * bonds) and features (2 * bonds, 3).

    Each bond from ``i`` to ``j`` is followed by the same bond from ``j`` to ``i``, as in OGB. The
    axis of an atropisomer, which OGB rejects, counts as a bond without stereo.
    """
    bonds = list(map(mol.GetBondWithIdx, range(mol.GetNumBonds())))
    kinds = list(map(_BOND_TYPE.__getitem__, map(Chem.Bond.GetBondType, bonds)))
    features = [
        kinds,
        # only a double bond has a stereo in OGB's vocabulary, and reading it is slow
        [
            _BOND_STEREO.get(bond.GetStereo(), _NO_STEREO) if kind == _DOUBLE else _NO_STEREO
            for bond, kind in zip(bonds, kinds, strict=True)
        ],
        list(map(Chem.Bond.GetIsConjugated, bonds)),
    ]
    starts = list(map(Chem.Bond.GetBeginAtomIdx, bonds))
    stops = list(map(Chem.Bond.GetEndAtomIdx, bonds))
    ends = np.array([[starts, stops], [stops, starts]], dtype=np.int64)  # i->j, then j->i
    both = np.repeat(np.array(features, dtype=np.int64), 2, axis=1)
    return ends.transpose(0, 2, 1).reshape(2, -1), np.ascontiguousarray(both.T)


class Featurised(NamedTuple):
    """A molecule's SMILES and its features in OGB's codes.

    There is the RDKit molecule if one was given, the molecule as given if this is its parent, and
    the form in which the molecule was read, unless another process read it. If results are the mean
    over several isomers, `isomers` has the features of each.
    """

    text: str
    mol: Chem.Mol | None
    atoms: NDArray[np.int64]  # (N, 9)
    ends: NDArray[np.int64]  # (2, E), both directions of every bond
    bonds: NDArray[np.int64]  # (E, 3)
    as_given: AsGiven | None = None
    read: Chem.Mol | None = None
    isomers: tuple[Featurised, ...] = ()


def featurise(
    molecules: Iterable[str | Chem.Mol],
    max_atoms: int = MAX_ATOMS,
    canonical: bool = False,
    standardise: Standardisation = AS_DRAWN,
    isomers: Isomers = "one",
) -> Iterator[Featurised | MoleculeError]:
    """Yield the features of each molecule, or an error if it cannot become a graph."""
    remaining = iter(molecules)
    while turn := list(islice(remaining, TURN)):
        try:
            featurised = _featurised(turn, max_atoms, canonical, standardise, isomers)
        except Exception as error:  # RDKit raises any type; one molecule must not stop others
            if len(turn) > 1:
                for molecule in turn:
                    yield from featurise([molecule], max_atoms, canonical, standardise, isomers)
                continue
            reason = " ".join(str(error).split()) or type(error).__name__
            text = f"RDKit cannot read this molecule: {shortened(reason, 300)}"
            featurised = [MoleculeError(text)]
        yield from featurised


def _featurised(
    molecules: Sequence[str | Chem.Mol],
    max_atoms: int,
    canonical: bool,
    standardise: Standardisation,
    isomers: Isomers,
) -> list[Featurised | MoleculeError]:
    with rdBase.BlockLogs(), one_perception() if canonical else nullcontext():
        read = read_molecules(molecules, max_atoms, standardise, canonical)
        featurised = [
            each if isinstance(each, MoleculeError) else _features(each, each.form) for each in read
        ]
        if canonical:
            return [
                item
                if isinstance(item, MoleculeError) or isinstance(molecule, MoleculeError)
                else _canonical(item, molecule, isomers)
                for item, molecule in zip(featurised, read, strict=True)
            ]
    return featurised


def _features(molecule: ReadMolecule, form: Chem.Mol) -> Featurised:
    of_form = atom_features(form), *bond_features(form)
    return Featurised(molecule.text, molecule.shown, *of_form, molecule.as_given, form)


def _canonical(item: Featurised, molecule: ReadMolecule, isomers: Isomers) -> Featurised:
    """Return the features with canonical chirality, and those of each isomer that is meant."""
    mols: list[Chem.Mol] = []
    if isomers != "one":
        undrawn = undrawn_centres(molecule.form) if isomers == "mean" else None
        mols, of = isomers_in_order(molecule.form, molecule.mol, undrawn)
    if len(mols) == 1:
        return _canonical(_features(molecule, mols[0]), molecule, "one")
    if mols:
        given = molecule.as_given or AsGiven.of(molecule.text, molecule.mol.GetNumAtoms())
        molecule = molecule._replace(as_given=given.as_mean(of))
        each = tuple(_canonical(_features(molecule, mol), molecule, "one") for mol in mols)
        return each[0]._replace(read=item.read, isomers=each)
    if item.read is not None and (chirality := canonical_chirality(item.read)) is not None:
        item.atoms[:, ATOM_FEATURE_NAMES.index("chirality")] = chirality
    return item


def _featurise_to_send(smiles: Sequence[str], **reading: Any) -> list[Featurised | MoleculeError]:
    """Featurise SMILES in a worker process, without the molecules that were read."""
    results = featurise(smiles, **reading)
    return [r._replace(read=None) if isinstance(r, Featurised) else r for r in results]


def featurise_in_workers(
    molecules: Iterable[str | Chem.Mol], workers: int, **reading: Any
) -> Generator[Featurised | MoleculeError, None, None]:
    """Yield features or errors in the order of the source, using `workers` processes for SMILES.

    RDKit molecules are featurised in this process. The workers end with the generator. `reading`
    is as for `featurise`.
    """
    # The results of each chunk; None stands for a SMILES, whose result is still to come.
    waiting: deque[list[Featurised | MoleculeError | None]] = deque()

    def pieces() -> Iterator[list[str]]:
        for chunk in _chunks(molecules):
            rdkit_molecules = [m for m in chunk if not isinstance(m, str)]
            made_here = featurise(rdkit_molecules, **reading)
            waiting.append([None if isinstance(m, str) else next(made_here) for m in chunk])
            yield [m for m in chunk if isinstance(m, str)]

    work = partial(_featurise_to_send, **reading)
    with closing(in_workers(work, pieces(), workers)) as results_by_piece:
        for piece_results in results_by_piece:
            by_position: dict[int, Featurised | MoleculeError] = {}
            for _, positions, answer in piece_results:
                lost = isinstance(answer, LostItem)
                results = [MoleculeError(answer.reason)] if lost else answer
                by_position |= dict(zip(positions, results, strict=True))
            smiles_results = iter(by_position[position] for position in sorted(by_position))
            for result in waiting.popleft():
                yield next(smiles_results) if result is None else result


def _chunks(molecules: Iterable[str | Chem.Mol]) -> Iterator[list[str | Chem.Mol]]:
    """Yield the molecules, `_CHUNK` at a time. An error of the source comes after all of them."""
    chunk: list[str | Chem.Mol] = []
    try:
        for molecule in molecules:
            chunk.append(molecule)
            if len(chunk) == _CHUNK:
                yield chunk
                chunk = []
    except Exception:
        yield chunk
        raise
    yield chunk
