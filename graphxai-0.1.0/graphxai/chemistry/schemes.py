"""Divide a molecule into parts: by BRICS bonds, scaffold, rings, groups or SMARTS."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from .name_tables import NAMED_GROUPS
from .names import ring_name, ring_systems
from .substructures import matches_in_time

if TYPE_CHECKING:
    from rdkit.Chem import Mol

MAX_MATCHES = 100_000  # per pattern and molecule

Scheme: TypeAlias = "str | Sequence[str] | Mapping[str, Any]"  # see `fragments`
Part: TypeAlias = "tuple[str | None, tuple[int, ...]]"  # name, if it has one; atoms


def named_scheme(scheme: Scheme) -> tuple[str, Callable[["Mol"], list[Part]]]:
    """Return the scheme's name and the function that divides a molecule."""
    if isinstance(scheme, str):
        if scheme not in SCHEMES:
            listed = ", ".join(map(repr, SCHEMES))
            raise ValueError(
                f"unknown scheme {scheme!r}; choose one of {listed}, or give a list of SMARTS."
            )
        return scheme, SCHEMES[scheme]
    named = dict(scheme) if isinstance(scheme, Mapping) else {smarts: smarts for smarts in scheme}
    if not named:
        raise ValueError("the list of SMARTS is empty.")
    patterns = [(name, _pattern(smarts)) for name, smarts in named.items()]
    return "SMARTS", lambda mol: _matches(mol, patterns, largest_first=False)


def _brics(mol: "Mol") -> list[Part]:
    from rdkit.Chem import BRICS

    bonds = {mol.GetBondBetweenAtoms(*ends).GetIdx() for ends, _ in BRICS.FindBRICSBonds(mol)}
    return [(None, atoms) for atoms in _pieces(mol, bonds)]


def _scaffold(mol: "Mol") -> list[Part]:
    """Divide a molecule into its scaffold and side chains.

    The scaffold is the rings with their linkers, and the atoms double bonded to either.
    """
    from rdkit import Chem
    from rdkit.Chem.Scaffolds import MurckoScaffold

    marked = Chem.Mol(mol)
    for atom in marked.GetAtoms():
        atom.SetIntProp("origin", atom.GetIdx())
    kept = {
        atom.GetIntProp("origin") for atom in MurckoScaffold.GetScaffoldForMol(marked).GetAtoms()
    }
    border = {
        bond.GetIdx()
        for bond in mol.GetBonds()
        if (bond.GetBeginAtomIdx() in kept) != (bond.GetEndAtomIdx() in kept)
    }
    outside = "side chain" if kept else None  # no ring, no scaffold
    return [
        ("scaffold" if kept.issuperset(atoms) else outside, atoms) for atoms in _pieces(mol, border)
    ]


def _rings(mol: "Mol") -> list[Part]:
    from rdkit import Chem

    parts: list[Part] = []
    for atoms in ring_systems(mol):
        words = ring_name(mol, atoms)
        written = Chem.MolFragmentToSmiles(mol, atoms, isomericSmiles=False)
        parts.append((f"{words} ring" if words else f"ring {written}", atoms))
    return parts


def _groups(mol: "Mol") -> list[Part]:
    patterns = [(name, _pattern(smarts)) for name, smarts in NAMED_GROUPS]
    return _matches(mol, patterns, largest_first=True)


def _matches(mol: "Mol", patterns: list[tuple[str, Any]], *, largest_first: bool) -> list[Part]:
    """Return the matches that share no atom. `fragments` says which take precedence."""
    from rdkit import Chem

    ranks = list(Chem.CanonicalRankAtoms(mol))
    matches = []
    for place, (name, pattern) in enumerate(patterns):
        for match in matches_in_time(mol, pattern, max_matches=MAX_MATCHES):
            size = len(match) if largest_first else 0
            matches.append(
                (-size, place, sorted(ranks[i] for i in match), name, tuple(sorted(match)))
            )
    taken: set[int] = set()
    parts: list[Part] = []
    for *_, name, atoms in sorted(matches):
        if taken.isdisjoint(atoms):
            taken.update(atoms)
            parts.append((name, atoms))
    return parts


def _pattern(smarts: str) -> Any:
    from rdkit import Chem, rdBase

    with rdBase.BlockLogs():
        pattern = Chem.MolFromSmarts(smarts) if isinstance(smarts, str) else None
    if pattern is None or not pattern.GetNumAtoms():
        raise ValueError(f"RDKit cannot read the SMARTS {smarts!r}.")
    return pattern


def _pieces(mol: "Mol", without: set[int]) -> list[tuple[int, ...]]:
    """Return the atoms of each connected piece after removing some bonds."""
    from rdkit import Chem

    cut = Chem.FragmentOnBonds(mol, sorted(without), addDummies=False) if without else mol
    return [tuple(sorted(atoms)) for atoms in Chem.GetMolFrags(cut)]


SCHEMES: dict[str, Callable[["Mol"], list[Part]]] = {
    "brics": _brics,
    "scaffold": _scaffold,
    "rings": _rings,
    "groups": _groups,
}
SCHEME_TITLES = {
    "brics": "BRICS fragments",
    "scaffold": "the Murcko scaffold and side chains",
    "rings": "ring systems",
    "groups": "functional groups",
}
