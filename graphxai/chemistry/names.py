"""Names for parts of molecules: functional groups, rings, small substituents."""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from itertools import groupby
from typing import TYPE_CHECKING

from .condensed import condensed_formula
from .name_tables import RINGS, SUBSTITUENTS

if TYPE_CHECKING:
    from rdkit.Chem import Mol


# Single rings are named after Hantzsch and Widman (IUPAC 2013, P-22.2.2 and P-31.1.4), if they have
# 5 to 7 atoms of carbon, nitrogen, oxygen and sulfur. Hydrogens are those beyond the ring with the
# most double bonds. Their places are left out, as in "dihydro-1,2,4-thiadiazine".
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
OXIDES = {1: " oxide", 2: " dioxide"}  # of the sulfur of a ring, by its number of oxygens


def ring_name(mol: "Mol", atoms: tuple[int, ...]) -> str | None:
    """Return the name of the ring system that these atoms form, or None if it is not listed."""
    return ring_names().get(skeleton(mol, atoms))


def quietly_read(smiles: str) -> "Mol | None":
    """Return the molecule of a SMILES, or None without a word of RDKit's if it cannot read it."""
    from rdkit import Chem, rdBase

    with rdBase.BlockLogs():
        return Chem.MolFromSmiles(smiles)


@lru_cache(maxsize=1 << 16)
def name_in_words(smiles: str) -> str | None:
    """Return the name of a fragment, whose SMILES is canonical with `*` where it was cut.

    There are names for the substituents and linkers listed here, and for single listed ring systems
    with listed substituents ("pyridine ring with fluoro"). For anything else the name is None.
    """
    listed_name = group_names().get(smiles)
    if listed_name is not None:
        return listed_name
    mol = quietly_read(smiles)
    return None if mol is None else _ring_with_groups(mol, ring_name, group_names().get)


def _ring_with_groups(
    mol: "Mol",
    name_of: "Callable[[Mol, tuple[int, ...]], str | None]",
    group_of: Callable[[str], str | None],
) -> str | None:
    """Return "pyridine ring with fluoro" for a single ring system whose parts all have a name.

    Args:
        mol: the fragment.
        name_of: names the atoms of a ring system.
        group_of: names a substituent, by its SMILES with `*` for the ring.
    """
    from rdkit import Chem

    systems = ring_systems(mol)
    if len(systems) != 1 or len(Chem.GetMolFrags(mol)) > 1:
        return None
    name = name_of(mol, systems[0])
    if name is None:
        return None
    counts = Counter(group_of(part) for part in _substituents(mol, systems[0]))
    if None in counts:
        return None
    oxygens = _oxygens_on_sulfur(mol, systems[0])
    counts["oxo"] -= oxygens
    counts = +counts
    listed = [f"{n} {group}" if n > 1 else f"{group}" for group, n in sorted(counts.items())]
    ring = f"{name}{OXIDES.get(oxygens, '')} ring"
    return ring + (f" with {', '.join(listed)}" if listed else "")


@lru_cache(maxsize=1 << 16)
def described(smiles: str) -> str:
    """Put a fragment into words: its name, or its formula and rings ("C12H9 with 2 benzene rings").

    A small fragment without rings has a condensed formula, such as "CH2CH(OH)CH2", and so have the
    substituents of a ring that have no name: "benzene ring with NHCH2CH2OH".

    The SMILES is canonical with `*` where the fragment was cut. It is returned unchanged if RDKit
    cannot read it.
    """
    from rdkit.Chem.rdMolDescriptors import CalcMolFormula

    name = name_in_words(smiles)
    if name is not None:
        return name
    mol = quietly_read(smiles)
    if mol is None:
        return smiles
    if condensed := condensed_formula(mol) or _ring_with_groups(mol, _short_name, _condensed):
        return condensed
    formula = re.sub(r"\*\d*|[+-]\d*$", "", CalcMolFormula(mol))  # without cuts and charge
    rings: Counter[str] = Counter()
    for atoms in ring_systems(mol):
        ring = _short_name(mol, atoms) or _by_size(mol, atoms)
        rings[ring + OXIDES.get(_oxygens_on_sulfur(mol, atoms), "")] += 1
    listed = [f"{n} {name} rings" if n > 1 else f"{name} ring" for name, n in sorted(rings.items())]
    return f"{formula} with {' and '.join(listed)}" if listed else f"{formula} chain"


def _short_name(mol: "Mol", atoms: tuple[int, ...]) -> str | None:
    """Return the name of a ring system, or None if it has no short one."""
    return ring_name(mol, atoms) or single_ring_name(mol, atoms)


def _condensed(smiles: str) -> str | None:
    """Return the name of a group, or its condensed formula, or None if it has neither."""
    mol = quietly_read(smiles)
    return group_names().get(smiles) or (None if mol is None else condensed_formula(mol))


def _oxygens_on_sulfur(mol: "Mol", atoms: Sequence[int]) -> int:
    """Return how many oxygens are doubly bonded to the sulfur of a ring system, if it has one."""
    sulfur = [a for a in map(mol.GetAtomWithIdx, atoms) if a.GetSymbol() == "S"]
    bonds = sulfur[0].GetBonds() if len(sulfur) == 1 else ()
    doubled = [b.GetOtherAtom(sulfur[0]) for b in bonds if b.GetBondTypeAsDouble() == 2]
    return sum(atom.GetSymbol() == "O" for atom in doubled)


def _by_size(mol: "Mol", atoms: Sequence[int]) -> str:
    """Describe a ring system by its size ("6-membered") or number of rings ("bicyclic")."""
    inside = [ring for ring in mol.GetRingInfo().AtomRings() if set(ring) <= {*atoms}]
    if len(inside) == 1:
        return f"{len(atoms)}-membered"
    return {2: "bicyclic", 3: "tricyclic"}.get(len(inside), "polycyclic")


def ring_systems(mol: "Mol") -> list[tuple[int, ...]]:
    """Return the atoms of each ring system.

    Rings that share atoms (fused, bridged, spiro) form one system.
    """
    systems: list[set[int]] = []
    for ring in mol.GetRingInfo().AtomRings():
        touching = [system for system in systems if system.intersection(ring)]
        merged = set(ring).union(*touching)
        systems = [system for system in systems if system not in touching] + [merged]
    return sorted(tuple(sorted(system)) for system in systems)


def cut_smiles(mol: "Mol", bonds: Sequence[int]) -> list[tuple[tuple[int, ...], str]]:
    """Return the atoms and the canonical SMILES of each piece after cutting bonds.

    The SMILES have `*` at the cuts, and no stereochemistry, so that a fragment always has the same
    SMILES.
    """
    from rdkit import Chem

    pieces = mol
    if bonds:
        pieces = Chem.FragmentOnBonds(mol, list(bonds), dummyLabels=[(0, 0)] * len(bonds))
    atoms: list[tuple[int, ...]] = []
    parts = Chem.GetMolFrags(pieces, asMols=True, sanitizeFrags=False, fragsMolAtomMapping=atoms)
    n = mol.GetNumAtoms()  # atoms after these are the attachment points
    return [
        (
            tuple(i for i in indices if i < n),
            _canonical(Chem.MolToSmiles(part, isomericSmiles=False)),
        )
        for indices, part in zip(atoms, parts, strict=True)
    ]


@lru_cache(maxsize=1 << 16)
def _canonical(smiles: str) -> str:
    """Return the SMILES after sanitising, or unchanged if a cut went through an aromatic ring."""
    from rdkit import Chem

    mol = quietly_read(smiles)
    return smiles if mol is None else str(Chem.MolToSmiles(mol))


def _substituents(mol: "Mol", ring: tuple[int, ...]) -> list[str]:
    """Return the SMILES of a ring's substituents, with `*` for the ring.

    Attachment points are left out.
    """
    inside = set(ring)
    cut = []
    for bond in mol.GetBonds():
        ends = {bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()}
        outside = ends - inside
        if len(outside) == 1 and mol.GetAtomWithIdx(*outside).GetAtomicNum():
            cut.append(bond.GetIdx())
    return [smiles for atoms, smiles in cut_smiles(mol, cut) if not inside.intersection(atoms)]


def skeleton(mol: "Mol", atoms: tuple[int, ...]) -> str:
    """Return elements and bonds of some atoms as canonical SMILES without hydrogens or charges."""
    from rdkit import Chem

    bare = Chem.RWMol()
    place = {}
    for index in atoms:
        original = mol.GetAtomWithIdx(index)
        atom = Chem.Atom(original.GetAtomicNum())
        atom.SetIsAromatic(original.GetIsAromatic())
        atom.SetNoImplicit(True)
        place[index] = bare.AddAtom(atom)
    for bond in mol.GetBonds():
        start, end = bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()
        if start in place and end in place:
            bare.AddBond(place[start], place[end], bond.GetBondType())
    return Chem.MolToSmiles(bare)


@cache
def ring_names() -> dict[str, str]:
    """Return the names of ring systems by canonical SMILES."""
    from rdkit import Chem

    named = ((name, Chem.MolFromSmiles(smiles)) for name, smiles, *_ in RINGS)
    return {skeleton(mol, tuple(range(mol.GetNumAtoms()))): name for name, mol in named}


@cache
def group_names() -> dict[str, str]:
    """Return the names of groups by canonical SMILES."""
    from rdkit import Chem

    return {Chem.CanonSmiles(smiles): name for name, smiles in SUBSTITUENTS}


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
