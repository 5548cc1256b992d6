"""Turn molecules into arrays of features, and pack many of them to send between processes.

Neither this file nor what it imports needs torch, so a worker process starts in a fraction of a
second and stays small.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from rdkit import Chem, rdBase

from .features import ATOM_FEATURE_NAMES, atom_features, bond_features, canonical_chirality
from .molecule_reading import MoleculeError, ReadMolecule, read_molecules, shortened

__all__ = ["TURN", "Featurised", "Packed", "featurise", "featurise_packed", "unpack"]

# The steps from SMILES to graph evict each other from the processor's caches. Doing each step for
# this many molecules before the next one saves a tenth of the time.
TURN = 32

_CHIRALITY = ATOM_FEATURE_NAMES.index("chirality")


class Featurised(NamedTuple):
    """A molecule's SMILES, its features in OGB's codes, and the RDKit molecule if one was given."""

    text: str
    mol: Chem.Mol | None
    atoms: NDArray[np.int64]  # (N, 9)
    ends: NDArray[np.int64]  # (2, E), both directions of every bond
    bonds: NDArray[np.int64]  # (E, 3)


class Packed(NamedTuple):
    """The features of M molecules, concatenated, in the smallest integer types that fit.

    What can be derived is left out: the SMILES, and the second direction of every bond.
    """

    num_atoms: NDArray[np.unsignedinteger]  # (M,)
    num_bonds: NDArray[np.unsignedinteger]  # (M,)
    atoms: NDArray[np.unsignedinteger]  # (all atoms, 9)
    ends: NDArray[np.unsignedinteger]  # (all bonds, 2)
    bonds: NDArray[np.unsignedinteger]  # (all bonds, 3)
    refused: dict[int, str]  # reasons, by position among all molecules; not counted in M


def featurise(
    molecules: Sequence[str | Chem.Mol], max_atoms: int, canonical: bool
) -> list[Featurised | MoleculeError]:
    """Return each molecule's features, or the error if it cannot become a graph."""
    try:
        return _featurised(molecules, max_atoms, canonical)
    except Exception as error:  # RDKit raises errors of any type; one molecule must not stop others
        if len(molecules) > 1:
            return [found for one in molecules for found in featurise([one], max_atoms, canonical)]
        reason = " ".join(str(error).split()) or type(error).__name__
        return [MoleculeError(f"RDKit cannot read this molecule: {shortened(reason, 300)}")]


def _featurised(
    molecules: Sequence[str | Chem.Mol], max_atoms: int, canonical: bool
) -> list[Featurised | MoleculeError]:
    with rdBase.BlockLogs():
        found = read_molecules(molecules, max_atoms)
        readable = [one for one in found if isinstance(one, ReadMolecule)]
        arrays = [(atom_features(one.mol), *bond_features(one.mol)) for one in readable]
        if canonical:
            for one, (features, _, _) in zip(readable, arrays, strict=True):
                chirality = canonical_chirality(one.mol)
                if chirality is not None:
                    features[:, _CHIRALITY] = chirality
    featurised = iter(
        [
            Featurised(one.text, one.mol if one.is_given else None, *features)
            for one, features in zip(readable, arrays, strict=True)
        ]
    )
    return [one if isinstance(one, MoleculeError) else next(featurised) for one in found]


def featurise_packed(smiles: Sequence[str], max_atoms: int, canonical: bool) -> Packed:
    """Featurise SMILES into a few small arrays: the job and the answer of a worker process."""
    found = [
        one
        for first in range(0, len(smiles), TURN)
        for one in featurise(smiles[first : first + TURN], max_atoms, canonical)
    ]
    done = [one for one in found if isinstance(one, Featurised)]
    none = np.zeros((0, 9), np.int64)
    return Packed(
        _narrow(np.array([len(one.atoms) for one in done], np.int64)),
        _narrow(np.array([len(one.bonds) // 2 for one in done], np.int64)),
        _narrow(np.concatenate([none, *(one.atoms for one in done)])),
        # i->j is followed by j->i: the first row holds i j of every bond, the second j i
        _narrow(np.concatenate([none[:, :2], *(one.ends[0].reshape(-1, 2) for one in done)])),
        _narrow(np.concatenate([none[:, :3], *(one.bonds[::2] for one in done)])),
        {k: str(one) for k, one in enumerate(found) if isinstance(one, MoleculeError)},
    )


def unpack(smiles: Sequence[str], packed: Packed) -> list[Featurised | MoleculeError]:
    """Undo `featurise_packed`: what `featurise` returns, with no memory shared by molecules."""
    atoms, ends = packed.atoms, packed.ends
    both = np.stack([ends, ends[:, ::-1]]).reshape(2, -1)  # (2, 2 * all bonds)
    bonds = packed.bonds.repeat(2, axis=0)
    atom_stops = np.cumsum(packed.num_atoms, dtype=np.int64).tolist()
    edge_stops = (2 * np.cumsum(packed.num_bonds, dtype=np.int64)).tolist()
    stops = iter(zip(atom_stops, edge_stops, strict=True))
    found: list[Featurised | MoleculeError] = []
    atom = edge = 0
    for k, text in enumerate(smiles):
        if k in packed.refused:
            found.append(MoleculeError(packed.refused[k]))
            continue
        atom_stop, edge_stop = next(stops)
        found.append(
            Featurised(
                text.strip(),
                None,
                atoms[atom:atom_stop].astype(np.int64),
                both[:, edge:edge_stop].astype(np.int64),
                bonds[edge:edge_stop].astype(np.int64),
            )
        )
        atom, edge = atom_stop, edge_stop
    return found


def _narrow(array: NDArray[np.int64]) -> NDArray[np.unsignedinteger]:
    return array.astype(np.min_scalar_type(int(array.max(initial=0))))
