"""Compute fingerprints of molecules: environments, atom pairs and torsions, as bits or counts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from rdkit import Chem, DataStructs, rdBase
from rdkit.Chem import rdFingerprintGenerator

from .canonical_form import one_perception, smiles_in_order

if TYPE_CHECKING:
    from rdkit.DataStructs import ExplicitBitVect

FloatArray = NDArray[np.float32]
Kernel = NDArray[np.float32]
Counts = tuple[NDArray[np.uint16], ...]
Molecules = Sequence[str | Chem.Mol]  # SMILES, or what `parsed` made of them
BITS = 2048
COUNTS = 4096  # of environments, of atom pairs or of torsions
STRUCTURES = ("ECFP6", "atom pair", "ECFP4 with chirality", "torsion", "FCFP4")
KINDS = len(STRUCTURES)  # of counts, see `structure_counts`
_SUMS = (np.uint8, np.uint16, np.int64)  # in which counts are added up


def parsed(molecules: Molecules) -> list[Chem.Mol]:
    """Parse SMILES once for several of the functions here, and leave what is parsed as it is."""
    return list(_each(molecules))


@cache
def _ecfp4() -> Any:
    return rdFingerprintGenerator.GetMorganGenerator(radius=2, fpSize=BITS)


def ecfp4_bits(mol: Chem.Mol) -> ExplicitBitVect:
    """Return the ECFP4 of one molecule, 2,048 bits, in the form that RDKit compares."""
    return _ecfp4().GetFingerprint(mol)


def packed_bits(fingerprints: Sequence[ExplicitBitVect]) -> NDArray[np.uint8]:
    """Return fingerprints of n molecules with eight bits a byte, (n, 256), the first bit lowest."""
    packed = b"".join(map(DataStructs.BitVectToBinaryText, fingerprints))
    return np.frombuffer(packed, np.uint8).reshape(-1, BITS // 8)


class BitTable:
    """The ECFP4 of n molecules, with which many others are compared.

    It adds up the rows of the bits that a molecule has, in a third of the time that RDKit takes.

    Args:
        packed: the fingerprints, see `packed_bits`.
    """

    def __init__(self, packed: NDArray[np.uint8]) -> None:
        bits = np.unpackbits(packed, axis=1, bitorder="little")
        self._has_bit = np.ascontiguousarray(bits.T)  # (bits, n)
        self._num_bits = self._has_bit.sum(0, dtype=np.float64)  # (n,)

    def similarities(self, bits: ExplicitBitVect) -> NDArray[np.float64]:
        """Return the Tanimoto similarity (n,) of a fingerprint to that of each molecule."""
        on = np.flatnonzero(np.unpackbits(packed_bits([bits]), bitorder="little"))
        count = np.uint8 if len(on) < 256 else np.uint16
        common = self._has_bit[on].sum(0, dtype=count).astype(np.float64)
        total: NDArray[np.float64] = self._num_bits + len(on)
        np.divide(common, total - common, out=total)
        return total


def ecfp4(molecules: Molecules) -> FloatArray:
    """Return ECFP4 as zeros and ones, (n, 2048)."""
    bits = np.empty((len(molecules), BITS), np.float32)
    for row, mol in zip(bits, _each(molecules), strict=True):
        row[:] = _ecfp4().GetFingerprintAsNumPy(mol)
    return bits


def ecfp6_counts(molecules: Molecules, *, stereo: bool = True) -> NDArray[np.uint16]:
    """Return ECFP6 counts, (n, 4096), with or without chirality."""
    generator = rdFingerprintGenerator.GetMorganGenerator(
        radius=3, fpSize=COUNTS, includeChirality=stereo
    )
    return _counts([generator], molecules)[0]


def atom_pair_counts(molecules: Molecules) -> NDArray[np.uint16]:
    """Return counts of atom pairs with the number of bonds between them, (n, 4096)."""
    return _counts([rdFingerprintGenerator.GetAtomPairGenerator(fpSize=COUNTS)], molecules)[0]


@cache
def _count_generators() -> tuple[Any, ...]:
    """Return the generators of the counts that `structure_counts` returns, in its order."""
    by_role = rdFingerprintGenerator.GetMorganFeatureAtomInvGen()
    morgan = partial(rdFingerprintGenerator.GetMorganGenerator, fpSize=COUNTS)
    return (
        morgan(radius=3),
        rdFingerprintGenerator.GetAtomPairGenerator(fpSize=COUNTS),
        morgan(radius=2, includeChirality=True),
        rdFingerprintGenerator.GetTopologicalTorsionGenerator(fpSize=COUNTS),
        morgan(radius=2, atomInvariantsGenerator=by_role),
    )


def structure_counts(molecules: Molecules) -> Counts:
    """Return five kinds of counts of each molecule, (n, 4096) each.

    They are ECFP6 and ECFP4 (Rogers 2010), the second one with chirality, atom pairs (Carhart 1985)
    and torsions (Nilakantan 1987), and FCFP4: ECFP4 in which an atom is a donor, an acceptor,
    aromatic, a halogen, an acid or a base, whatever its element (Rogers 2010).
    """
    return tuple(_counts(_count_generators(), molecules))


def _order_of_torsions(mol: Chem.Mol) -> list[int]:
    """Return an order of the atoms in which torsions are counted, or [] for any.

    A torsion around a ring of three ends where it begins. RDKit begins at the atom with the lowest
    number, and so counts another one in another order.
    """
    if all(len(ring) > 3 for ring in mol.GetRingInfo().AtomRings()):
        return []
    return smiles_in_order(mol)[1]


def tanimoto(a: NDArray[np.number], b: NDArray[np.number]) -> Kernel:
    """Return the similarity (n, m) of counts a (n, bits) and b (m, bits).

    This is the min-max kernel of Ralaivola 2005, the sum of minima over the sum of maxima. For bits
    it is the Tanimoto coefficient.
    """
    # Eight-bit counts, where they fit, are compared four times as fast as floats.
    kind = np.uint8 if max(a.max(initial=0), b.max(initial=0)) < 256 else np.uint16
    columns, sizes = np.ascontiguousarray(b.T.astype(kind)), b.sum(1, dtype=np.int64)
    kernel = np.empty((len(a), len(b)), dtype=np.float32)
    for row, similarities in zip(a, kernel, strict=True):
        present = np.flatnonzero(row)
        counts = row[present].astype(kind)
        size = int(counts.sum(dtype=np.int64))
        # no sum of minima is larger, and sums of few bits are added up faster
        narrow = next(each for each in _SUMS if size <= np.iinfo(each).max)
        shared = np.minimum(columns[present], counts[:, None]).sum(0, dtype=narrow)
        shared = shared.astype(np.int64)  # (m,)
        similarities[:] = shared / np.maximum(size + sizes - shared, 1)
    return kernel


def similarity(a: Counts, b: Counts) -> Kernel:
    """Return the mean similarity (n, m) of molecules with counts a and b."""
    total = tanimoto(a[0], b[0])
    for counts_a, counts_b in zip(a[1:], b[1:], strict=True):
        total += tanimoto(counts_a, counts_b)
    return total / np.float32(len(a))


@one_perception()  # on which counts with chirality depend
def structure_occurrences(
    mol: Chem.Mol,
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return where a molecule has the structures that `structure_counts` counts.

    Returns:
        For each of O occurrences its column in the five kinds of counts side by side (O,),
        ascending, and the number of atoms that it covers (O,). Then the covered atoms of all
        occurrences, one after another.
    """
    reach = Chem.GetDistanceMatrix(mol)  # (N, N), in bonds
    within = [[np.flatnonzero(row).tolist() for row in reach <= radius] for radius in range(4)]
    columns, sizes, atoms = list[int](), list[int](), list[int]()
    order = _order_of_torsions(mol)
    for kind, generator in enumerate(_count_generators()):
        places = rdFingerprintGenerator.AdditionalOutput()
        if STRUCTURES[kind] == "torsion":
            places.AllocateBitPaths()
        else:
            places.AllocateBitInfoMap()
        in_order = order if STRUCTURES[kind] == "torsion" else []
        counted = Chem.RenumberAtoms(mol, in_order) if in_order else mol
        generator.GetCountFingerprint(counted, additionalOutput=places)
        occurrences = places.GetBitPaths() or places.GetBitInfoMap() or {}
        for bit in sorted(occurrences):
            for place in occurrences[bit]:
                if STRUCTURES[kind] in ("atom pair", "torsion"):
                    covered = [in_order[k] for k in place] if in_order else place
                else:  # an atom and the radius around it
                    covered = within[place[1]][place[0]]
                columns.append(kind * COUNTS + bit)
                sizes.append(len(covered))
                atoms.extend(covered)
    return np.array(columns), np.array(sizes), np.array(atoms)


@one_perception()
def _counts(generators: Sequence[Any], molecules: Molecules) -> NDArray[np.uint16]:
    """Return the counts of each generator for each molecule, (generators, n, 4096)."""
    counts = np.empty((len(generators), len(molecules), COUNTS), dtype=np.uint16)
    torsions = _count_generators()[STRUCTURES.index("torsion")]
    for position, mol in enumerate(_each(molecules)):
        order = _order_of_torsions(mol) if torsions in generators else []
        for kind, generator in enumerate(generators):
            in_order = order and generator is torsions
            counted = Chem.RenumberAtoms(mol, order) if in_order else mol
            counts[kind, position] = generator.GetCountFingerprintAsNumPy(counted)
    return counts


def _each(molecules: Molecules) -> Iterator[Chem.Mol]:
    """Yield molecules, parsed one by one where they are SMILES."""
    with rdBase.BlockLogs():
        for molecule in molecules:
            yield Chem.MolFromSmiles(molecule) if isinstance(molecule, str) else molecule
