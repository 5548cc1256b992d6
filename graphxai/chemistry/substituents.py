"""Names of substituents as chemists write them: "4-chlorophenyl", "pyridin-3-yl", "tert-butoxy".

The names are close to IUPAC's substitutive names, with common names for small groups.
Stereochemistry is left out, and so is the hydrogen that "1H-" indicates.
"""

import re
from collections.abc import Sequence
from functools import cache, lru_cache

from rdkit import Chem
from rdkit.Chem import Atom, Mol

from graphxai.datasets.canonical_form import quietly_read

from .names import cut_smiles, described, group_names, ring_systems, substituent_table
from .ring_system_names import ring_table, skeleton

LONGEST = 60  # characters; a longer name says less than a formula
_ALKYL = ("methyl", "ethyl", "propyl", "butyl", "pentyl", "hexyl", "heptyl", "octyl", "nonyl")
# Names that need no brackets in a longer one.
_PLAIN_NAMES = """
methyl ethyl propyl butyl isopropyl isobutyl sec-butyl tert-butyl vinyl ethynyl fluoro chloro bromo
iodo hydroxy amino nitro cyano oxo methoxy ethoxy propoxy butoxy isopropoxy tert-butoxy phenoxy
acetyl formyl carboxy carbamoyl sulfamoyl azido phenyl benzyl benzoyl cyclopropyl cyclobutyl
cyclopentyl cyclohexyl acetamido acetoxy benzyloxy anilino
"""
_PLAIN = frozenset(_PLAIN_NAMES.split())
_SHORT_OXY = ("methyl", "ethyl", "propyl", "butyl", "phenyl")  # "methoxy", not "methyloxy"
_TIMES = {2: "di", 3: "tri", 4: "tetra", 5: "penta"}


@lru_cache(maxsize=1 << 14)
def substituent_name(smiles: str) -> str | None:
    """Return the name of a substituent, whose SMILES has one `*` where it is attached.

    There are names for listed groups, rings and chains, and for those joined by common atoms
    ("(pyridin-2-yl)methyl"). For anything else the name is None.
    """
    mol = quietly_read(smiles)
    if mol is None:
        return None
    for atom in mol.GetAtoms():
        atom.SetIsotope(0)
    Chem.RemoveStereochemistry(mol)
    open_ends = [atom for atom in mol.GetAtoms() if not atom.GetAtomicNum()]
    if len(open_ends) != 1 or open_ends[0].GetDegree() != 1:
        return None
    (bond,) = open_ends[0].GetBonds()
    if bond.GetBondTypeAsDouble() != 1:
        return None
    name = _named(mol, open_ends[0].GetIdx(), bond.GetOtherAtom(open_ends[0]).GetIdx())
    return name if name is not None and len(name) <= LONGEST else None


def fragment_name(smiles: str) -> str:
    """Return what chemists call a fragment, whose SMILES is canonical with `*` where it was cut.

    It is the name of a listed group or of a substituent ("4-fluorophenyl"), or else what
    `described` says.
    """
    return group_names().get(smiles) or substituent_name(smiles) or described(smiles)


def exchange_name(old: str, new: str) -> str:
    """Put an exchange into words: "pyridin-3-yl to thiazol-2-yl".

    A substituent without a name is described by its formula.
    """
    names = [substituent_name(s) or described(_flat(s)) for s in (old, new)]
    if names[0] != names[1]:
        return f"{names[0]} to {names[1]}"
    same = _flat(old) == _flat(new)
    return f"{names[0]} to its {'stereoisomer' if same else 'isomer'}"


def _flat(smiles: str) -> str:
    """Return the canonical SMILES with bare `*`, without stereochemistry and isotopes."""
    return str(Chem.MolToSmiles(Chem.MolFromSmiles(smiles), isomericSmiles=False))


def _named(mol: Mol, anchor: int, first: int) -> str | None:
    """Return the name of the substituent that begins at atom `first`, bonded to atom `anchor`."""
    bond, atom = mol.GetBondBetweenAtoms(anchor, first), mol.GetAtomWithIdx(first)
    if not bond.IsInRing():
        (branch,) = (part for atoms, part in cut_smiles(mol, [bond.GetIdx()]) if first in atoms)
        if (name := _listed().get(branch)) is not None:
            return name
    if atom.IsInRing():
        return _ring(mol, anchor, first)
    if atom.GetFormalCharge() or atom.GetNumRadicalElectrons():
        return None
    return _joined(mol, anchor, atom)


def _joined(mol: Mol, anchor: int, atom: Atom) -> str | None:
    """Name a group whose first atom joins it to others: an ether, amine, carbonyl or chain."""
    first = atom.GetIdx()
    orders = {bond.GetOtherAtomIdx(first): bond.GetBondTypeAsDouble() for bond in atom.GetBonds()}
    del orders[anchor]
    doubled = [other for other, order in orders.items() if order == 2]
    oxo = [other for other in doubled if mol.GetAtomWithIdx(other).GetAtomicNum() == 8]
    others = [other for other in orders if other not in oxo]
    if any(orders[other] != 1 for other in others):
        return None
    kind = (atom.GetSymbol(), len(oxo), len(others))
    if kind == ("C", 0, 1):
        return _chain(mol, anchor, first)
    suffix = {
        ("O", 0, 1): "oxy",
        ("S", 0, 1): "thio",
        ("S", 1, 1): "sulfinyl",
        ("S", 2, 1): "sulfonyl",
        ("C", 1, 1): "carbonyl",
        ("N", 0, 1): "amino",
        ("N", 0, 2): "amino",
    }.get(kind)
    parts = [_named(mol, first, other) for other in others]
    named = [part for part in parts if part is not None]
    if suffix is None or len(named) < len(parts):
        return None
    if len(named) == 2:
        first_name, second_name = sorted(named, key=_alphabetical)
        return (
            f"di{_bracketed(first_name)}amino"
            if first_name == second_name
            else f"{_bracketed(first_name)}({second_name})amino"
        )
    if suffix == "oxy" and named[0].endswith(_SHORT_OXY) and named[0] in _PLAIN:
        return f"{named[0].removesuffix('yl')}oxy"
    return f"{_bracketed(named[0])}{suffix}"


def _chain(mol: Mol, anchor: int, first: int) -> str | None:
    """Name a chain of CH2 with something else at its end: "2-hydroxyethyl"."""
    length, last, before = 0, first, anchor
    while True:
        atom = mol.GetAtomWithIdx(last)
        onward = [a.GetIdx() for a in atom.GetNeighbors() if a.GetIdx() != before]
        plain = atom.GetSymbol() == "C" and atom.GetTotalNumHs() == 2 and not atom.IsInRing()
        if not plain or len(onward) != 1 or atom.GetFormalCharge():
            break
        length, before, last = length + 1, last, onward[0]
    if not 0 < length <= len(_ALKYL):
        return None
    end = mol.GetAtomWithIdx(last)
    if end.GetSymbol() == "C" and end.GetTotalNumHs() == 3:
        return _ALKYL[length] if length < len(_ALKYL) else None
    name = _named(mol, before, last)
    if name is None:
        return None
    alkyl = _ALKYL[length - 1]
    return f"{_bracketed(name)}{alkyl}" if length == 1 else f"{length}-{_bracketed(name)}{alkyl}"


def _ring(mol: Mol, anchor: int, first: int) -> str | None:
    """Name a ring attached at `first`, with its substituents at the lowest possible locants."""
    (system,) = [atoms for atoms in ring_systems(mol) if first in atoms]
    parent = _parents().get(skeleton(mol, system))
    if parent is None:
        return None
    stem, pattern, locants = parent
    branches: list[tuple[int, str]] = []
    for index in system:
        for bond in mol.GetAtomWithIdx(index).GetBonds():
            other = bond.GetOtherAtomIdx(index)
            if other in system or (index, other) == (first, anchor):
                continue
            order, end = bond.GetBondTypeAsDouble(), mol.GetAtomWithIdx(other)
            is_oxo = order == 2 and end.GetAtomicNum() == 8 and end.GetDegree() == 1
            name = _named(mol, index, other) if order == 1 else "oxo" if is_oxo else None
            if name is None:
                return None
            branches.append((index, name))
    numberings = []
    for match in mol.GetSubstructMatches(pattern, uniquify=False):
        if set(match) == set(system):
            locant_of = dict(zip(match, locants, strict=True))
            rows = sorted((locant_of[at], _text(locant_of[at]), name) for at, name in branches)
            by_name = sorted(rows, key=lambda row: (_alphabetical(row[2]), row[0]))
            numberings.append((locant_of[first], [locant for locant, _, _ in rows], by_name))
    free, _, named = min(numberings)
    prefixes = _prefixes([(text, name) for _, text, name in named])
    if stem.endswith("yl"):
        return f"{prefixes}{stem}"
    joint = "-" if prefixes and stem[0].isdigit() else ""
    return f"{prefixes}{joint}{stem}-{_text(free)}-yl"


_Locant = tuple[int, str]


def _text(locant: _Locant) -> str:
    return f"{locant[0]}{locant[1]}"


def _prefixes(branches: Sequence[tuple[str, str]]) -> str:
    """Write locants and names of substituents: "3,4-dichloro", "2-fluoro-5-methyl"."""
    places: dict[str, list[str]] = {}
    for locant, name in branches:
        places.setdefault(name, []).append(locant)
    return "-".join(
        f"{','.join(locants)}-{_TIMES.get(len(locants), '')}{_bracketed(name)}"
        for name, locants in places.items()
    )


def _bracketed(name: str) -> str:
    return name if name in _PLAIN else f"({name})"


def _alphabetical(name: str) -> str:
    """Return the letters by which prefixes are sorted."""
    return re.sub(r"^(tert-|sec-|[^a-z]+)", "", name)


@cache
def _listed() -> dict[str, str]:
    """Return the names of small groups with one open end by canonical SMILES."""
    single = [row for row in substituent_table() if row["smiles"].count("*") == 1]
    named = [(row["prefix"] or row["name"], row["smiles"]) for row in single]
    return {Chem.CanonSmiles(smiles): name for name, smiles in named if "*=" not in smiles}


@cache
def _parents() -> "dict[str, tuple[str, Mol, tuple[_Locant, ...]]]":
    """Return stem, pattern and the locants of its atoms for the named rings, by their skeleton."""
    parents = {}
    for _, mol, stem, letters in ring_table():
        places = tuple(range(mol.GetNumAtoms()))
        if stem:
            locants = letters.split() or [str(k + 1) for k in places]
            pairs = ((int(text.rstrip("ab")), text.strip("0123456789")) for text in locants)
            parents[skeleton(mol, places)] = stem, mol, tuple(pairs)
    return parents
