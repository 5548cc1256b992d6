"""Label molecules by a rule, so that the atoms behind every label are known.

The tasks follow B-XAIC (Proszewska et al. 2025): the presence of a substructure or an element, an
alert, the size of rings and their number. One further task is additive: Wildman and Crippen's logP
(1999), to which every atom contributes a signed share.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from rdkit import Chem
from rdkit.Chem import rdMolDescriptors
from rdkit.Chem.FilterCatalog import FilterCatalog, FilterCatalogParams

Truth = NDArray[Any]  # bool (N,), float64 (N,) or int8 (N,)
Groups = list[tuple[int, ...]]  # atoms that make the answer yes together: a match, a ring, an atom

HALOGENS = frozenset({9, 17, 35, 53, 85})
INDOLE = "c1ccc2nccc2c1"  # n with or without hydrogen; carbazoles contain it too
LARGE_RING = 6
MANY_RINGS = 4


@dataclass(frozen=True)
class RuleTask:
    """A question about a molecule for which the true atoms are known.

    `mark(mol)` returns the truth, one entry per atom in the molecule's order. For a "presence" task
    it is bool (N,): the atoms that make the answer yes, and none if the answer is no. Explanations
    can then be scored only on molecules with the answer yes, since a no has no true atoms. For an
    "additive" task it is float64 (N,): every atom's signed share, in `unit`. For a "signed" task it
    is int8 (N,), +1 for atoms that speak for yes and -1 for those against; `case(mol)` then returns
    which of its `cases` a molecule is, or "" if the rule does not apply. `groups(mol)` returns
    the true atoms as matches, rings or single atoms, which tell the true bonds. A rule that says
    nothing about bonds has None in its place.
    """

    name: str
    question: str
    mark: Callable[[Chem.Mol], Truth]
    kind: Literal["presence", "additive", "signed"] = "presence"
    unit: str = ""
    groups: Callable[[Chem.Mol], Groups] | None = None
    cases: tuple[str, ...] = ()
    case: Callable[[Chem.Mol], str] | None = None

    def true_bonds(self, mol: Chem.Mol | str) -> NDArray[np.bool_]:
        """Return the true bonds (M,) in the molecule's order: both ends are in one match or ring.

        A bond between two rings joins true atoms, but is not true. An answer that lies in single
        atoms has no true bond. Raises ValueError if the rule does not know the groups of its atoms.
        """
        if self.groups is None:
            raise ValueError(f"rule {self.name!r} says nothing about bonds.")
        mol = _molecule(mol)
        groups = [set(group) for group in self.groups(mol)]
        ends = [{bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()} for bond in mol.GetBonds()]
        return np.array([any(pair <= group for group in groups) for pair in ends], dtype=np.bool_)

    def truth(self, mol: Chem.Mol | str) -> Truth:
        """Return the true atoms (N,), bool, or the shares (N,), float64; see the class.

        Raises:
            ValueError: a SMILES cannot be read.
        """
        return self.mark(_molecule(mol))

    def label(self, mol: Chem.Mol | str) -> bool | float:
        """Return the answer: whether atoms speak for yes and none against, or the sum of shares."""
        return self.label_of(self.truth(mol))

    def label_of(self, truth: Truth) -> bool | float:
        """Return the answer that follows from a truth (N,)."""
        if self.kind == "additive":
            return float(truth.sum())
        return bool(truth.any() and not (truth < 0).any())


def pattern_rule(name: str, question: str, *smarts: str) -> RuleTask:
    """Define your own task: the presence of any of the SMARTS patterns.

    The true atoms are those of all matches. Raises ValueError if a pattern cannot be read.
    """
    patterns = [_pattern(text) for text in smarts]
    if not patterns:
        raise ValueError(f"rule {name!r} needs at least one SMARTS pattern.")
    return _presence(name, question, lambda mol: _matches(mol, patterns))


def crippen_shares(mol: Chem.Mol) -> NDArray[np.float64]:
    """Return each atom's contribution (N,) to Crippen's logP.

    The contributions sum to `Crippen.MolLogP(mol)`. That of an implicit hydrogen is added to its
    heavy atom. Source: Wildman and Crippen 1999, as in RDKit.
    """
    whole = Chem.AddHs(mol)
    contributions = rdMolDescriptors._CalcCrippenContribs(whole)
    shares = np.array([logp for logp, _ in contributions], dtype=np.float64)
    n = mol.GetNumAtoms()
    holders = [
        whole.GetAtomWithIdx(k).GetNeighbors()[0].GetIdx() for k in range(n, whole.GetNumAtoms())
    ]
    np.add.at(shares, holders, shares[n:])
    return shares[:n]


def get_rule(rule: str | RuleTask) -> RuleTask:
    """Return a rule by its name in `RULES` or `COMBINED_RULES`, or the rule itself.

    Raises:
        ValueError: there is no rule of this name.
    """
    if isinstance(rule, RuleTask):
        return rule
    every = RULES | COMBINED_RULES
    if rule not in every:
        raise ValueError(f"unknown rule {rule!r}; the rules are {', '.join(every)}.")
    return every[rule]


def _molecule(mol: Chem.Mol | str) -> Chem.Mol:
    if not isinstance(mol, str):
        return mol
    read = Chem.MolFromSmiles(mol)
    if read is None:
        raise ValueError(f"{mol!r} cannot be read as SMILES.")
    return read


def _pattern(smarts: str) -> Chem.Mol:
    pattern = Chem.MolFromSmarts(smarts)
    if pattern is None:
        raise ValueError(f"{smarts!r} cannot be read as SMARTS.")
    return pattern


def _presence(name: str, question: str, groups: Callable[[Chem.Mol], Groups]) -> RuleTask:
    """Return a task whose true atoms are those of all groups."""

    def mark(mol: Chem.Mol) -> NDArray[np.bool_]:
        marked = np.zeros(mol.GetNumAtoms(), dtype=np.bool_)
        marked[[atom for group in groups(mol) for atom in group]] = True
        return marked

    return RuleTask(name, question, mark, groups=groups)


def _matches(mol: Chem.Mol, patterns: list[Chem.Mol]) -> Groups:
    return [match for pattern in patterns for match in mol.GetSubstructMatches(pattern)]


def _of_elements(*numbers: int) -> Callable[[Chem.Mol], Groups]:
    """Return a function that gives the atoms with these atomic numbers, each as its own group."""
    return lambda mol: [(a.GetIdx(),) for a in mol.GetAtoms() if a.GetAtomicNum() in numbers]


@cache
def alert_filters(*names: str) -> FilterCatalog:
    """Return RDKit's filters for substructure alerts, such as "PAINS"."""
    parameters = FilterCatalogParams()
    for name in names:
        parameters.AddCatalog(FilterCatalogParams.FilterCatalogs.names[name])
    return FilterCatalog(parameters)


def _pains_matches(mol: Chem.Mol) -> Groups:
    """Return all matches of all PAINS filters. The catalog reports only one match per filter."""
    matched = alert_filters("PAINS").GetFilterMatches(mol)
    return _matches(mol, [match.filterMatch.GetPattern() for match in matched])


def _large_rings(mol: Chem.Mol) -> Groups:
    """Return the largest ring, or all of that size, if it is large."""
    rings = mol.GetRingInfo().AtomRings()
    largest = max(map(len, rings), default=0)
    return [ring for ring in rings if len(ring) == largest > LARGE_RING]


def _many_rings(mol: Chem.Mol) -> Groups:
    rings = mol.GetRingInfo().AtomRings()
    return list(rings) if len(rings) > MANY_RINGS else []


RULES: dict[str, RuleTask] = {
    rule.name: rule
    for rule in (
        pattern_rule("indole", "Is there an indole?", INDOLE),
        _presence("halogen", "Is there a halogen atom?", _of_elements(*HALOGENS)),
        _presence("phosphorus", "Is there a phosphorus atom?", _of_elements(15)),
        _presence("boron", "Is there a boron atom?", _of_elements(5)),
        _presence("pains", "Does a PAINS filter match (Baell and Holloway 2010)?", _pains_matches),
        _presence("large-ring", f"Is there a ring of more than {LARGE_RING} atoms?", _large_rings),
        _presence("rings", f"Are there more than {MANY_RINGS} rings?", _many_rings),
        RuleTask("logp", "What is Crippen's logP?", crippen_shares, kind="additive"),
    )
}

# Rules whose parts need each other, see RuleTask. Where both parts of an exclusive or are there,
# each speaks against.
FAR = 5  # bonds between two marks
CHLORINE = 17
_CARBOXYL = Chem.MolFromSmarts("C(=O)[OX2,OX1-]")
_HYDROXYL = Chem.MolFromSmarts("[OX2H]")

Atoms = set[int]
Reading = tuple[str, dict[int, Atoms]]  # the case, and the atoms of each sign


def _halogens(mol: Chem.Mol) -> list[Chem.Atom]:
    return [atom for atom in mol.GetAtoms() if atom.GetAtomicNum() in HALOGENS]


def _parts(mol: Chem.Mol, second: Chem.Mol) -> tuple[Atoms, Atoms, str]:
    """Return the halogen atoms, the atoms of a second motif, and which of the two are there."""
    a = {atom.GetIdx() for atom in _halogens(mol)}
    b = {atom for match in mol.GetSubstructMatches(second) for atom in match}
    return a, b, {(1, 1): "both", (1, 0): "A", (0, 1): "B"}.get((bool(a), bool(b)), "neither")


def _xor(mol: Chem.Mol) -> Reading:
    a, b, case = _parts(mol, _CARBOXYL)
    return case, {-1 if case == "both" else 1: a | b}


def _a_not_b(mol: Chem.Mol) -> Reading:
    a, b, case = _parts(mol, _HYDROXYL)
    return case, {1: a, -1: b if a else set()}


def _alike(mol: Chem.Mol) -> Reading:
    marks = _halogens(mol)
    if len(marks) != 2:
        return "", {}
    first, second = marks
    if Chem.GetDistanceMatrix(mol)[first.GetIdx(), second.GetIdx()] < FAR:
        return "", {}
    alike = first.GetAtomicNum() == second.GetAtomicNum()
    return "alike" if alike else "different", {1 if alike else -1: {m.GetIdx() for m in marks}}


def _two_chlorines(mol: Chem.Mol) -> Reading:
    halogens = _halogens(mol)
    if len(halogens) < 2:
        return "", {}
    counted = {atom.GetIdx() for atom in halogens if atom.GetAtomicNum() == CHLORINE}
    case = ("none", "one", "two")[min(len(counted), 2)]
    return case, {1: counted if case == "two" else set()}


def _combined(
    name: str, question: str, cases: tuple[str, ...], read: Callable[[Chem.Mol], Reading]
) -> RuleTask:
    def mark(mol: Chem.Mol) -> NDArray[np.int8]:
        marked = np.zeros(mol.GetNumAtoms(), dtype=np.int8)
        for sign, atoms in read(mol)[1].items():
            marked[list(atoms)] = sign
        return marked

    return RuleTask(name, question, mark, kind="signed", cases=cases, case=lambda m: read(m)[0])


FOUR = ("both", "A", "B", "neither")
COMBINED_RULES: dict[str, RuleTask] = {
    rule.name: rule
    for rule in (
        _combined("xor", "Is there a halogen or a carboxyl group, but not both?", FOUR, _xor),
        _combined("a-not-b", "Is there a halogen, but no hydroxyl group?", FOUR, _a_not_b),
        _combined("alike", "Are the two far halogens alike?", ("alike", "different"), _alike),
        _combined(
            "two-chlorines",
            "Are two of the halogens chlorine?",
            ("two", "one", "none"),
            _two_chlorines,
        ),
    )
}
