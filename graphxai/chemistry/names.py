"""Names for parts of molecules: functional groups, rings, small substituents."""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cache, lru_cache
from itertools import product

from rdkit import Chem
from rdkit.Chem import Atom, Mol
from rdkit.Chem.rdMolDescriptors import CalcMolFormula

from graphxai.datasets.canonical_form import quietly_read
from graphxai.runtime.reading import packaged_rows

from .ring_system_names import ring_name, ring_system_name

OXIDES = {1: " oxide", 2: " dioxide"}  # of the sulfur of a ring, by its number of oxygens


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
    mol: Mol,
    name_of: "Callable[[Mol, tuple[int, ...]], str | None]",
    group_of: Callable[[str], str | None],
) -> str | None:
    """Return "pyridine ring with fluoro" for a single ring system whose parts all have a name."""
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
    name = name_in_words(smiles)
    if name is not None:
        return name
    mol = quietly_read(smiles)
    if mol is None:
        return smiles
    if condensed := condensed_formula(mol) or _ring_with_groups(mol, ring_system_name, _condensed):
        return condensed
    formula = re.sub(r"\*\d*|[+-]\d*$", "", CalcMolFormula(mol))  # without cuts and charge
    rings: Counter[str] = Counter()
    for atoms in ring_systems(mol):
        ring = ring_system_name(mol, atoms) or f"{len(atoms)}-membered"
        rings[ring + OXIDES.get(_oxygens_on_sulfur(mol, atoms), "")] += 1
    listed = [f"{n} {name} rings" if n > 1 else f"{name} ring" for name, n in sorted(rings.items())]
    return f"{formula} with {' and '.join(listed)}" if listed else f"{formula} chain"


def _condensed(smiles: str) -> str | None:
    """Return the name of a group, or its condensed formula, or None if it has neither."""
    mol = quietly_read(smiles)
    return group_names().get(smiles) or (None if mol is None else condensed_formula(mol))


def _oxygens_on_sulfur(mol: Mol, atoms: Sequence[int]) -> int:
    """Return how many oxygens are doubly bonded to the sulfur of a ring system, if it has one."""
    sulfur = [a for a in map(mol.GetAtomWithIdx, atoms) if a.GetSymbol() == "S"]
    bonds = sulfur[0].GetBonds() if len(sulfur) == 1 else ()
    doubled = [b.GetOtherAtom(sulfur[0]) for b in bonds if b.GetBondTypeAsDouble() == 2]
    return sum(atom.GetSymbol() == "O" for atom in doubled)


def ring_systems(mol: Mol) -> list[tuple[int, ...]]:
    """Return the atoms of each ring system.

    Rings that share atoms (fused, bridged, spiro) form one system.
    """
    bonds = (bond for bond in mol.GetBonds() if not bond.IsInRing())
    apart = pieces(mol, ((bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()) for bond in bonds))
    return sorted(atoms for atoms in apart if mol.GetAtomWithIdx(atoms[0]).IsInRing())


def pieces(mol: Mol, ends: Iterable[tuple[int, int]]) -> list[tuple[int, ...]]:
    """Return the atoms of each connected piece after removing the bonds between these atoms."""
    bonds = sorted({mol.GetBondBetweenAtoms(*pair).GetIdx() for pair in ends})
    cut = Chem.FragmentOnBonds(mol, bonds, addDummies=False) if bonds else mol
    return [tuple(sorted(atoms)) for atoms in Chem.GetMolFrags(cut)]


def cut_smiles(
    mol: Mol, bonds: Sequence[int], *, stereo: bool = False
) -> list[tuple[tuple[int, ...], str]]:
    """Return the atoms and the canonical SMILES of each piece after cutting bonds.

    The SMILES have `*` at the cuts. Without stereochemistry, a fragment always has the same one.
    """
    cut = mol
    if bonds:
        cut = Chem.FragmentOnBonds(mol, list(bonds), dummyLabels=[(0, 0)] * len(bonds))
    atoms: list[tuple[int, ...]] = []
    parts = Chem.GetMolFrags(cut, asMols=True, sanitizeFrags=False, fragsMolAtomMapping=atoms)
    n = mol.GetNumAtoms()  # atoms after these are the attachment points
    return [
        (
            tuple(i for i in indices if i < n),
            _canonical(Chem.MolToSmiles(part, isomericSmiles=stereo)),
        )
        for indices, part in zip(atoms, parts, strict=True)
    ]


@lru_cache(maxsize=1 << 16)
def _canonical(smiles: str) -> str:
    """Return the SMILES after sanitising, or unchanged if a cut went through an aromatic ring."""
    mol = quietly_read(smiles)
    return smiles if mol is None else str(Chem.MolToSmiles(mol))


def _substituents(mol: Mol, ring: tuple[int, ...]) -> list[str]:
    """Return the SMILES of a ring's substituents with `*` for the ring, no attachment points."""
    inside = set(ring)
    cut = []
    for bond in mol.GetBonds():
        ends = {bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()}
        outside = ends - inside
        if len(outside) == 1 and mol.GetAtomWithIdx(*outside).GetAtomicNum():
            cut.append(bond.GetIdx())
    return [smiles for atoms, smiles in cut_smiles(mol, cut) if not inside.intersection(atoms)]


def substituent_table() -> tuple[dict[str, str], ...]:
    """Return the listed substituents and linkers: name, smiles and prefix."""
    return packaged_rows(__package__, "substituents.csv")


@cache
def group_names() -> dict[str, str]:
    """Return the names of groups by canonical SMILES."""
    named = (row for row in substituent_table() if row["name"])
    return {Chem.CanonSmiles(row["smiles"]): row["name"] for row in named}


LARGEST = 10  # heavy atoms; a longer formula says less than the numbers of its atoms
_HALOGENS = ("F", "Cl", "Br", "I")
_BONDS = {1.0: "", 2.0: "=", 3.0: "#"}


def condensed_formula(mol: Mol) -> str | None:
    """Return the condensed formula of a fragment, or None if it has rings or is too large.

    The chain runs from one place where the fragment was cut to the farthest other one, or to its
    end. Branches are in parentheses.

    Args:
        mol: the fragment, with a dummy atom (`*`) wherever it was cut.
    """
    heavy = [atom for atom in mol.GetAtoms() if atom.GetAtomicNum()]
    if mol.GetRingInfo().NumRings() or not 0 < len(heavy) <= LARGEST:
        return None
    if len(Chem.GetMolFrags(mol)) > 1 or any(a.GetNumRadicalElectrons() for a in heavy):
        return None
    return _written(mol, _chain(mol), set())


def _chain(mol: Mol) -> list[int]:
    """Return the heavy atoms from one cut to the farthest other one, or else to the chain's end."""
    ranks = list(Chem.CanonicalRankAtoms(mol))
    cut = [a.GetIdx() for a in mol.GetAtoms() if not a.GetAtomicNum()]
    ends = cut if len(cut) > 1 else [a.GetIdx() for a in mol.GetAtoms() if a.GetAtomicNum()]
    paths = []
    for first, last in product(cut or ends, ends):
        way = [first] if first == last else Chem.GetShortestPath(mol, first, last)
        paths.append([i for i in way if mol.GetAtomWithIdx(i).GetAtomicNum()])
    chain = max(filter(None, paths), key=lambda path: (len(path), [-ranks[i] for i in path]))
    return chain if len(cut) > 1 else _longest(mol, chain[0], set())


def _written(mol: Mol, chain: list[int], before: Collection[int]) -> str:
    """Write a chain with its branches; atoms in `before` have been written already."""
    text = ""
    for place, index in enumerate(chain):
        if place:
            text += _bond(mol, chain[place - 1], index)
        atom, done = mol.GetAtomWithIdx(index), {*before, *chain}
        cut = [a.GetIdx() for a in atom.GetNeighbors() if not a.GetAtomicNum()]
        after = "".join(_bond(mol, index, end) for end in cut)  # of multiple bonds that were cut
        if not place and not before and len(cut) == 1:  # they are before the formula's first atom
            text, after = text + after, ""
        text += _symbol(atom)
        ends = [a.GetIdx() for a in atom.GetNeighbors() if a.GetAtomicNum()]
        longest = [_longest(mol, end, {*done}) for end in ends if end not in done]
        branches = Counter(_bond(mol, index, b[0]) + _written(mol, b, done) for b in longest)
        for branch, count in sorted(branches.items()):
            text += branch if branch in _HALOGENS else f"({branch})"
            text += f"{count}" if count > 1 else ""
        text += after if index == chain[-1] or not after else f"({after})"
    return text


def _longest(mol: Mol, first: int, done: set[int]) -> list[int]:
    """Return the longest chain from an atom that leaves `done` alone.

    It ends before a double-bonded oxygen, and before several equal atoms, as in CH(CH3)2.
    """
    onward = [
        _longest(mol, atom.GetIdx(), {*done, first})
        for atom in mol.GetAtomWithIdx(first).GetNeighbors()
        if atom.GetIdx() not in done and atom.GetAtomicNum()
    ]
    onward = [
        branch for branch in onward if _bond(mol, first, branch[0]) + _text(mol, branch) != "=O"
    ]
    equal = {_text(mol, branch) for branch in onward if len(branch) == 1}
    if len(onward) > 1 and len(equal) == 1 and max(map(len, onward)) == 1:
        return [first]
    return [first, *max(onward, key=len, default=[])]


def _text(mol: Mol, chain: list[int]) -> str:
    return "".join(_symbol(mol.GetAtomWithIdx(index)) for index in chain)


def _symbol(atom: Atom) -> str:
    hydrogens, charge = atom.GetTotalNumHs(), atom.GetFormalCharge()
    counted = "" if not hydrogens else "H" if hydrogens == 1 else f"H{hydrogens}"
    return atom.GetSymbol() + counted + ("+" * charge if charge > 0 else "-" * -charge)


def _bond(mol: Mol, first: int, second: int) -> str:
    order = mol.GetBondBetweenAtoms(first, second).GetBondTypeAsDouble()
    return _BONDS.get(order, "~")
