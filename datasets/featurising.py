"""Turn molecules into arrays of features, and pack many of them to send between processes.

RDKit's parsing, the slowest step, is single-threaded, so several processes featurise SMILES. Chunks
go out, and a few small arrays per chunk come back. Neither this file nor what it imports needs
torch, so a worker process starts in a fraction of a second and stays small.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing, nullcontext
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from rdkit import Chem, rdBase

from graphxai.runtime.workers import LostItem, in_workers

from .as_given import AS_DRAWN, AsGiven, Standardisation
from .canonical_form import one_perception
from .features import ATOM_FEATURE_NAMES, atom_features, bond_features, canonical_chirality
from .molecule_reading import MoleculeError, ReadMolecule, read_molecules, shortened

__all__ = [
    "TURN",
    "Featurised",
    "Packed",
    "featurise",
    "featurise_in_workers",
    "featurise_packed",
    "unpack",
]

# The steps from SMILES to graph evict each other from the processor's caches. Doing each step for
# this many molecules before the next one saves a tenth of the time.
TURN = 32

_CHIRALITY = ATOM_FEATURE_NAMES.index("chirality")
_CHUNK = 4 * TURN  # a worker takes about 30 ms for them, and its answer is some 50 kB


class Featurised(NamedTuple):
    """A molecule's SMILES and its features in OGB's codes.

    There is the RDKit molecule if one was given, the molecule as given if this is its parent, and
    the form in which the molecule was read, unless another process read it.
    """

    text: str
    mol: Chem.Mol | None
    atoms: NDArray[np.int64]  # (N, 9)
    ends: NDArray[np.int64]  # (2, E), both directions of every bond
    bonds: NDArray[np.int64]  # (E, 3)
    as_given: AsGiven | None = None
    read: Chem.Mol | None = None


class Packed(NamedTuple):
    """The features of M molecules, concatenated, in the smallest integer types that fit.

    What can be derived is left out: the SMILES, and the second direction of every bond.
    """

    num_atoms: NDArray[np.unsignedinteger]  # (M,)
    num_bonds: NDArray[np.unsignedinteger]  # (M,)
    atoms: NDArray[np.unsignedinteger]  # (all atoms, 9)
    ends: NDArray[np.unsignedinteger]  # (all bonds, 2)
    bonds: NDArray[np.unsignedinteger]  # (all bonds, 3)
    refused: dict[int, str]  # reasons by position among all molecules, which do not count in M
    parents: dict[int, tuple[str, AsGiven]]  # SMILES of those that were changed, by position


def featurise(
    molecules: Sequence[str | Chem.Mol],
    max_atoms: int,
    canonical: bool,
    standardise: Standardisation = AS_DRAWN,
) -> list[Featurised | MoleculeError]:
    """Return the features of each molecule, or an error if it cannot become a graph."""
    try:
        return _featurised(molecules, max_atoms, canonical, standardise)
    except Exception as error:  # RDKit raises errors of any type; one molecule must not stop others
        if len(molecules) > 1:
            alone = ([mol] for mol in molecules)
            return [featurise(mol, max_atoms, canonical, standardise)[0] for mol in alone]
        reason = " ".join(str(error).split()) or type(error).__name__
        return [MoleculeError(f"RDKit cannot read this molecule: {shortened(reason, 300)}")]


def _featurised(
    molecules: Sequence[str | Chem.Mol],
    max_atoms: int,
    canonical: bool,
    standardise: Standardisation,
) -> list[Featurised | MoleculeError]:
    with rdBase.BlockLogs(), one_perception() if canonical else nullcontext():
        read = read_molecules(molecules, max_atoms, standardise, canonical)
        readable = [molecule for molecule in read if isinstance(molecule, ReadMolecule)]
        arrays = [
            (atom_features(molecule.form), *bond_features(molecule.form)) for molecule in readable
        ]
        if canonical:
            for molecule, (features, _, _) in zip(readable, arrays, strict=True):
                chirality = canonical_chirality(molecule.form)
                if chirality is not None:
                    features[:, _CHIRALITY] = chirality
    featurised = iter(
        [
            Featurised(
                molecule.text,
                molecule.mol if molecule.is_given else None,
                *features,
                molecule.as_given,
                molecule.form,
            )
            for molecule, features in zip(readable, arrays, strict=True)
        ]
    )
    return [item if isinstance(item, MoleculeError) else next(featurised) for item in read]


def featurise_packed(
    smiles: Sequence[str],
    max_atoms: int,
    canonical: bool,
    standardise: Standardisation = AS_DRAWN,
) -> Packed:
    """Featurise SMILES into a few small arrays, which a worker process sends back."""
    results = [
        result
        for first in range(0, len(smiles), TURN)
        for result in featurise(smiles[first : first + TURN], max_atoms, canonical, standardise)
    ]
    usable = [result for result in results if isinstance(result, Featurised)]
    empty = np.zeros((0, 9), np.int64)
    return Packed(
        _narrow(np.array([len(item.atoms) for item in usable], np.int64)),
        _narrow(np.array([len(item.bonds) // 2 for item in usable], np.int64)),
        _narrow(np.concatenate([empty, *(item.atoms for item in usable)])),
        # i->j is followed by j->i: the first row holds i j of every bond, the second j i
        _narrow(np.concatenate([empty[:, :2], *(item.ends[0].reshape(-1, 2) for item in usable)])),
        _narrow(np.concatenate([empty[:, :3], *(item.bonds[::2] for item in usable)])),
        {k: str(item) for k, item in enumerate(results) if isinstance(item, MoleculeError)},
        {
            k: (item.text, item.as_given)
            for k, item in enumerate(results)
            if isinstance(item, Featurised) and item.as_given is not None
        },
    )


def unpack(smiles: Sequence[str], packed: Packed) -> list[Featurised | MoleculeError]:
    """Return the results of `featurise` before packing. Molecules share no memory."""
    atoms, ends = packed.atoms, packed.ends
    both = np.stack([ends, ends[:, ::-1]]).reshape(2, -1)  # (2, 2 * all bonds)
    bonds = packed.bonds.repeat(2, axis=0)
    atom_stops = np.cumsum(packed.num_atoms, dtype=np.int64).tolist()
    edge_stops = (2 * np.cumsum(packed.num_bonds, dtype=np.int64)).tolist()
    stops = iter(zip(atom_stops, edge_stops, strict=True))
    results: list[Featurised | MoleculeError] = []
    atom = edge = 0
    for k, text in enumerate(smiles):
        if k in packed.refused:
            results.append(MoleculeError(packed.refused[k]))
            continue
        atom_stop, edge_stop = next(stops)
        parent, as_given = packed.parents.get(k, (text.strip(), None))
        results.append(
            Featurised(
                parent,
                None,
                atoms[atom:atom_stop].astype(np.int64),
                both[:, edge:edge_stop].astype(np.int64),
                bonds[edge:edge_stop].astype(np.int64),
                as_given,
            )
        )
        atom, edge = atom_stop, edge_stop
    return results


def _narrow(array: NDArray[np.int64]) -> NDArray[np.unsignedinteger]:
    """Return the array in the smallest unsigned type that holds its values."""
    return array.astype(np.min_scalar_type(int(array.max(initial=0))))


def featurise_in_workers(
    molecules: Iterable[str | Chem.Mol],
    max_atoms: int,
    canonical: bool,
    workers: int,
    standardise: Standardisation = AS_DRAWN,
) -> Generator[Featurised | MoleculeError, None, None]:
    """Yield features or errors in the order of the source, using `workers` processes for SMILES.

    RDKit molecules are featurised in this process. The workers end with the generator.
    """
    # The results of each chunk; None stands for a SMILES, whose result is still to come.
    waiting: deque[list[Featurised | MoleculeError | None]] = deque()

    def pieces() -> Iterator[list[str]]:
        for chunk in _chunks(molecules):
            rdkit_molecules = [m for m in chunk if not isinstance(m, str)]
            made_here = iter(featurise(rdkit_molecules, max_atoms, canonical, standardise))
            waiting.append([None if isinstance(m, str) else next(made_here) for m in chunk])
            yield [m for m in chunk if isinstance(m, str)]

    work = partial(
        featurise_packed,
        max_atoms=max_atoms,
        canonical=canonical,
        standardise=standardise,
    )
    with closing(in_workers(work, pieces(), workers)) as results_by_piece:
        for piece_results in results_by_piece:
            by_position: dict[int, Featurised | MoleculeError] = {}
            for smiles, positions, answer in piece_results:
                lost = isinstance(answer, LostItem)
                results = [MoleculeError(answer.reason)] if lost else unpack(smiles, answer)
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
