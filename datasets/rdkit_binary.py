"""OGB's features of a whole molecule at once, from RDKit's binary format.

Reading an atom's attribute from Python costs more than computing it, and OGB reads nine per atom.
``Mol.ToBinary`` writes them all in one call, as a record of a few bytes for each atom and each
bond. 60,000 compounds have fewer than 500 different records, so records are looked up. The first
time a record occurs, its features are read from its atom or bond with `atom_features` and
`bond_features`: this file knows how long records are, not what their bytes mean. An atom's number
of bonds and whether it is in a ring are in no record. They come from the bonds and rings, and are
part of the look-up key.

Anything unusual is left to those two functions: other versions of the binary format, isotopes,
atom maps, labels, queries, residues, more than 255 atoms.
"""

from __future__ import annotations

import struct
from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray
from rdkit import Chem

from .features import atom_features, bond_features

__all__ = ["molecule_features"]

_Arrays = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]

# The layout: header, number of atoms, number of bonds, a flag; then, each after a tag, the atoms,
# the bonds, and the rings: how many, and for each its size and atoms. With up to 255 atoms, an
# index or a size is one byte. A new version may be added if it has this layout and the tests of
# this file pass.
_HEADERS = tuple(struct.pack("<Iiiii", 0xDEADBEEF, 0, 16, minor, 0) for minor in (2, 3, 4))
_COUNTS = struct.Struct("<ii")
_RING_COUNT = struct.Struct("<i")
_COUNTS_AT = len(_HEADERS[0])
_FIRST_ATOM = _COUNTS_AT + _COUNTS.size + 2
_BONDS_TAG, _RINGS_TAG = 0x0B, 0x42
_MAX_ATOMS = 255
IS_KNOWN_VERSION = Chem.Mol().ToBinary().startswith(_HEADERS)  # of RDKit 2024.09 to 2026.09
_WITHOUT_COORDINATES = int(Chem.PropertyPickleOptions.NoConformers)

# An atom: its number, flags, and four bytes that say which values follow; each bit of the first
# one means one more byte. Flags other than aromatic and "no implicit hydrogens", and the other
# three bytes (isotope), mean more data: such an atom is not plain.
_ATOM_LENGTH = bytes(6 + values.bit_count() for values in range(256))
_ATOM_OTHER_FLAGS = 0b1001_1111

# A bond: its ends, flags, and depending on these its type, its direction, and its stereo with the
# number of atoms that it refers to. These atoms follow and are not part of the record. Flags other
# than aromatic and conjugated (queries) mean more data: such a bond is not plain.
_TYPE, _DIRECTION, _STEREO = 0b1000, 0b0100, 0b0010
_BOND_OTHER_FLAGS = 0b1001_0001
_BOND_LENGTH = bytes(
    3 + bool(flags & _TYPE) + bool(flags & _DIRECTION) + 2 * bool(flags & _STEREO)
    for flags in range(256)
)

# The features as bytes of int64, to be joined into the array: one row per atom, and one row per
# direction of a bond.
_Known = dict[Hashable, bytes]
ATOM_ROWS: _Known = {}  # by record, number of bonds, and whether in a ring
BOND_ROWS: _Known = {}  # by record
MAX_ROWS = 4096  # kept; SMILES can be made with any number of charges and hydrogens


class _NotPlainError(Exception):
    """The binary format is not as described above."""


def molecule_features(mols: Sequence[Chem.Mol]) -> list[_Arrays]:
    """Return the features of sanitised molecules, as from `atom_features` and `bond_features`.

    Returns:
        For each molecule: atoms (N, 9), the ends of the bonds in both directions (2, E), and bonds
        (E, 3), in OGB's codes (Hu 2020).
    """
    packed = [_packed(mol) for mol in mols]
    return [_features(*pair) for pair in zip(mols, packed, strict=True)]


def _packed(mol: Chem.Mol) -> bytes:
    """Return the binary form, or nothing if its layout is not the one described above."""
    is_known = IS_KNOWN_VERSION and mol.GetNumAtoms() <= _MAX_ATOMS
    return mol.ToBinary(_WITHOUT_COORDINATES) if is_known else b""


def _features(mol: Chem.Mol, packed: bytes) -> _Arrays:
    if packed:
        try:
            return _read(mol, packed)
        except (_NotPlainError, IndexError, struct.error):
            pass
    return atom_features(mol), *bond_features(mol)


def _read(mol: Chem.Mol, packed: bytes) -> _Arrays:
    num_atoms, num_bonds = _COUNTS.unpack_from(packed, _COUNTS_AT)
    atoms, position = _split_atoms(packed, _FIRST_ATOM, num_atoms)
    _expect(packed[position] == _BONDS_TAG)
    bonds, ends, position = _split_bonds(packed, position + 1, num_bonds)
    _expect(packed[position] == _RINGS_TAG)
    in_rings = _split_rings(packed, position + 1)

    degree = map(ends.count, range(num_atoms))
    in_ring = map(in_rings.__contains__, range(num_atoms))
    atom_keys = list(zip(atoms, degree, in_ring, strict=True))
    atom_rows, bond_rows = _join(ATOM_ROWS, atom_keys), _join(BOND_ROWS, bonds)
    if atom_rows is None or bond_rows is None:
        # An atom or bond that is not plain is never stored, so what follows it is never trusted.
        _expect(all(_is_plain_atom(record) for record in atoms))
        _expect(not any(record[0] & _BOND_OTHER_FLAGS for record in bonds))
        atom_rows = _learn(ATOM_ROWS, atom_keys, atom_features(mol))
        bond_rows = _learn(BOND_ROWS, bonds, bond_features(mol)[1].reshape(-1, 6))
    return (
        np.frombuffer(atom_rows, dtype=np.int64).reshape(num_atoms, 9),
        np.frombuffer(ends + _swapped(ends), dtype=np.uint8).astype(np.int64).reshape(2, -1),
        np.frombuffer(bond_rows, dtype=np.int64).reshape(2 * num_bonds, 3),
    )


def _split_atoms(packed: bytes, start: int, count: int) -> tuple[list[bytes], int]:
    """Return the records of all atoms, and where they end, if all of them are plain."""
    records = []
    for _ in range(count):
        stop = start + _ATOM_LENGTH[packed[start + 2]]
        records.append(packed[start:stop])
        start = stop
    return records, start


def _is_plain_atom(record: bytes) -> bool:
    return not record[1] & _ATOM_OTHER_FLAGS and not any(record[3:6])


def _split_bonds(packed: bytes, start: int, count: int) -> tuple[list[bytes], bytearray, int]:
    """Return the records and ends of all bonds, and where the bonds end, if all are plain."""
    records, ends = [], bytearray()
    for _ in range(count):
        flags = packed[start + 2]
        stop = start + _BOND_LENGTH[flags]
        ends += packed[start : start + 2]
        records.append(packed[start + 2 : stop])
        start = stop + packed[stop - 1] if flags & _STEREO else stop
    return records, ends, start


def _split_rings(packed: bytes, start: int) -> bytearray:
    """Return the atoms of all rings, concatenated."""
    (count,) = _RING_COUNT.unpack_from(packed, start)
    atoms = bytearray()
    start += _RING_COUNT.size
    for _ in range(count):
        stop = start + 1 + packed[start]
        atoms += packed[start + 1 : stop]
        start = stop
    return atoms


def _swapped(ends: bytearray) -> bytearray:
    """Return j i for each i j."""
    swapped = bytearray(len(ends))
    swapped[0::2], swapped[1::2] = ends[1::2], ends[0::2]
    return swapped


def _join(known: _Known, keys: Sequence[Hashable]) -> bytearray | None:
    try:
        return bytearray().join(map(known.__getitem__, keys))
    except KeyError:
        return None


def _learn(known: _Known, keys: Sequence[Hashable], table: NDArray[np.int64]) -> bytearray:
    """Return the rows of the table, and store them under their keys while there is room."""
    rows = [row.tobytes() for row in table]
    for key, row in zip(keys, rows, strict=True):
        if len(known) < MAX_ROWS:
            known[key] = row
    return bytearray().join(rows)


def _expect(condition: bool) -> None:
    if not condition:
        raise _NotPlainError
