"""Name a single ring after Hantzsch and Widman (IUPAC 2013, P-22.2.2 and P-31.1.4).

A ring of 5 to 7 atoms of carbon, nitrogen, oxygen and sulfur is named by its heteroatoms with
their places, its size, and how many hydrogens it has beyond the ring with the most double bonds,
without the places of these hydrogens, as in "dihydro-1,2,4-thiadiazine". Rings with a name of their
own are in `name_tables`.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rdkit.Chem import Mol

__all__ = ["single_ring_name"]

PREFIXES = {"O": "oxa", "S": "thia", "N": "aza"}  # in the order in which they are numbered
STEMS = {  # with the most double bonds and with none; a ring without nitrogen differs
    (5, True): ("ole", "olidine"),
    (6, True): ("ine", "inane"),
    (7, True): ("epine", "epane"),
    (5, False): ("ole", "olane"),
    (6, False): ("ine", "ane"),
    (7, False): ("epine", "epane"),
}
HYDROGENS = {2: "dihydro-", 4: "tetrahydro-", 6: "hexahydro-"}
TIMES = {1: "", 2: "di", 3: "tri", 4: "tetra"}


def single_ring_name(mol: "Mol", atoms: Sequence[int]) -> str | None:
    """Return the name of a ring, or None if it is no single ring of this kind.

    Args:
        mol: the molecule.
        atoms: the atoms of a ring system.
    """
    ring = next((r for r in mol.GetRingInfo().AtomRings() if set(r) == set(atoms)), None)
    if ring is None or not 5 <= len(ring) <= 7:
        return None
    symbols = [mol.GetAtomWithIdx(atom).GetSymbol() for atom in ring]
    if set(symbols) <= {"C"} or not set(symbols) <= {"C", *PREFIXES}:
        return None
    bonds = [mol.GetBondBetweenAtoms(a, b) for a, b in zip(ring, ring[1:] + ring[:1], strict=True)]
    if any(bond.GetIsAromatic() for bond in bonds):
        return None
    most, none = STEMS[len(ring), "N" in symbols]
    missing = _most_double_bonds(symbols) - sum(bond.GetBondTypeAsDouble() == 2 for bond in bonds)
    heteroatoms, places = _numbered(symbols)
    if missing and not any(bond.GetBondTypeAsDouble() == 2 for bond in bonds):
        return _joined(heteroatoms, places, none, "")
    return _joined(heteroatoms, places, most, HYDROGENS.get(2 * missing, ""))


def _most_double_bonds(symbols: Sequence[str]) -> int:
    """Return the largest number of double bonds, which oxygen and sulfur take no part in."""
    divalent = [k for k, symbol in enumerate(symbols) if symbol in "OS"]
    if not divalent:
        return len(symbols) // 2
    turned = [*symbols[divalent[0] :], *symbols[: divalent[0]]]
    runs = groupby(turned, lambda symbol: symbol in "OS")
    return sum(len(list(run)) // 2 for is_divalent, run in runs if not is_divalent)


def _numbered(symbols: Sequence[str]) -> tuple[list[str], list[int]]:
    """Return the heteroatoms in order of rank and their places, which are as low as they can be."""
    n, best = len(symbols), None
    for start in range(n):
        for step in (1, -1):
            order = [symbols[(start + step * k) % n] for k in range(n)]
            ranked = sorted(
                (list(PREFIXES).index(symbol), place)
                for place, symbol in enumerate(order, start=1)
                if symbol in PREFIXES
            )
            key = (ranked[0][1], sorted(place for _, place in ranked), ranked)
            if best is None or key < best:
                best = key
    assert best is not None
    return [list(PREFIXES)[rank] for rank, _ in best[2]], [place for _, place in best[2]]


def _joined(heteroatoms: list[str], places: list[int], stem: str, hydrogens: str) -> str:
    """Return a name such as "dihydro-1,2,4-thiadiazine"; a single heteroatom needs no place."""
    parts = [
        f"{TIMES.get(len(list(run)), '')}{PREFIXES[symbol]}" for symbol, run in groupby(heteroatoms)
    ]
    name = ""
    for part in [*parts, stem]:  # a vowel is left out before another
        name = (name[:-1] if name.endswith("a") and part[0] in "aeio" else name) + part
    where = f"{','.join(map(str, places))}-" if len(places) > 1 else ""
    return f"{hydrogens}{where}{name}" if where else f"{hydrogens.rstrip('-')}{name}"
