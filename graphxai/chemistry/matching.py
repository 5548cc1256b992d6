"""Find the corresponding atoms of two molecules, their maximum common substructure.

Rings match only whole rings, and bonds match by order. Atoms may differ in element, because one
exchanged ring atom would otherwise lose the whole ring and all that is attached beyond it. If more
than a tenth of the matched atoms differ in element, a second search requires equal elements, and
the mapping with more equal atoms is kept.

The search for a pattern has limited time. RDKit's cannot be interrupted, and a vague pattern in a
cage of rings takes twice as long for each further atom. So it asks at each comparison of atoms
whether its time is over.
"""

import math
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rdkit import Chem, rdBase
from rdkit.Chem import Mol, rdFMCS

from graphxai.runtime.reading import packaged_rows

REPLACED = 0.1  # share of matched atoms that differ, above which a second search is made
SMALLEST = 3  # atoms that must correspond for a meaningful comparison
DIVIDING = 60.0  # seconds that the division into R-groups may take
MAX_MATCHES = 256  # symmetric ways to match a pattern to a molecule

IntArray = NDArray[np.intp]


class NoCommonPartError(ValueError):
    """Raised for two molecules that share too little to be compared atom by atom."""


@dataclass(frozen=True, eq=False)
class CommonPart:
    """Corresponding atoms of two molecules a and b.

    Args:
        same: pairs of atoms of equal element and charge, (M, 2).
        replaced: pairs of atoms at the same position with different element or charge, (K, 2).
        complete: False if the search ran out of time, so that the true common part may be larger.
    """

    same: IntArray
    replaced: IntArray
    complete: bool = True

    @property
    def mapping(self) -> IntArray:
        """All corresponding pairs, (M + K, 2)."""
        return np.concatenate([self.same, self.replaced])


def common_part(
    a: Mol, b: Mol, *, timeout: float = 10.0, cost: NDArray[np.floating] | None = None
) -> CommonPart:
    """Return the maximum common substructure of two molecules as a mapping of atoms.

    If symmetry allows several mappings (a phenyl ring can be flipped), the best mapping has the
    most pairs of equal element and charge, then of equal degree and number of hydrogens, then the
    lowest sum of `cost`. Among several common parts of equal size, RDKit's search decides.

    Args:
        a, b: the molecules, of Na and Nb atoms.
        timeout: seconds per search.
        cost: cost of mapping each atom of a to each atom of b, (Na, Nb).

    Raises:
        NoCommonPartError: if fewer than three atoms of equal element and charge correspond.
    """
    alike = _equal(a, b, "GetAtomicNum", "GetFormalCharge")
    around = _equal(a, b, "GetDegree", "GetTotalNumHs")
    price = np.zeros(alike.shape) if cost is None else np.asarray(cost, dtype=np.float64)
    best, score, complete = None, (0, 0), True
    for atoms in (rdFMCS.AtomCompare.CompareAny, rdFMCS.AtomCompare.CompareElements):
        if best is not None and score[0] >= (1 - REPLACED) * len(best):
            break
        search = _largest_common([a, b], max(1, math.ceil(timeout)), atomCompare=atoms)
        complete = complete and not search.canceled
        mapping, mapping_score = _best_mapping(a, b, search.smartsString, alike, around, price)
        if mapping is not None and mapping_score > score:
            best, score = mapping, mapping_score
    if best is None or score[0] < SMALLEST:
        raise NoCommonPartError(
            f"{_name(a)} and {_name(b)} have fewer than {SMALLEST} connected atoms in common, but"
            " a contrast needs a shared scaffold. Explain them one by one and show them with grid."
        )
    same = alike[best[:, 0], best[:, 1]]
    return CommonPart(best[same], best[~same], complete)


def _largest_common(mols: Sequence[Mol], timeout: int, **options: Any) -> Any:
    """Search what molecules have in common, with whole rings and bonds of the same order."""
    options |= {"ringMatchesRingOnly": True, "completeRingsOnly": True, "timeout": timeout}
    return rdFMCS.FindMCS(mols, bondCompare=rdFMCS.BondCompare.CompareOrder, **options)


def series_core(molecules: Iterable[Any]) -> str:
    """Return the maximum common core of a series as SMARTS, as `Core.of` says."""
    given = [getattr(each, "molecule", each) for each in molecules]
    mols = [Chem.MolFromSmiles(each) if isinstance(each, str) else each for each in given]
    if len(mols) < 2 or None in mols:
        raise ValueError("a common core needs two or more molecules, as SMILES that can be read.")
    search = _largest_common(mols, 30)
    if search.numAtoms < SMALLEST:
        raise ValueError(
            f"the {len(mols)} molecules have fewer than {SMALLEST} connected atoms in common: give"
            " the SMARTS of a core."
        )
    return str(search.smartsString)


def read_pattern(smarts: Any) -> Any:
    """Return the pattern of a SMARTS. Raises ValueError if RDKit cannot read it."""
    with rdBase.BlockLogs():
        pattern = Chem.MolFromSmarts(smarts) if isinstance(smarts, str) else None
    if pattern is None or not pattern.GetNumAtoms():
        raise ValueError(f"RDKit cannot read the SMARTS {repr(smarts)[:80]}.")
    return pattern


def common_part_or_none(a: Mol, b: Mol) -> CommonPart | None:
    """Return the part that two molecules share, or None if a second of search finds none."""
    try:
        return common_part(a, b, timeout=1)
    except NoCommonPartError:
        return None


def _best_mapping(
    a: Mol,
    b: Mol,
    smarts: str,
    alike: NDArray[np.bool_],
    around: NDArray[np.bool_],
    cost: NDArray[np.float64],
) -> tuple[IntArray | None, tuple[int, int]]:
    """Return the best mapping (M, 2) over all matches of the pattern in both, with its score."""
    pattern = Chem.MolFromSmarts(smarts) if smarts else None
    if pattern is None:
        return None, (0, 0)
    options: dict[str, Any] = {"uniquify": False, "max_matches": MAX_MATCHES}
    try:
        in_a, in_b = (np.array(matches_in_time(m, pattern, **options), dtype=int) for m in (a, b))
    except SearchTimeError:
        return None, (0, 0)
    if not in_a.size or not in_b.size:
        return None, (0, 0)
    first, second = in_a[:, None], in_b[None]  # (P, 1, M), (1, Q, M)
    same, like = (table[first, second].sum(-1) for table in (alike, around))  # (P, Q)
    price = cost[first, second].sum(-1).round(9)
    order = np.lexsort((price.ravel(), -like.ravel(), -same.ravel()))
    p, q = np.unravel_index(order[0], same.shape)
    mapping = np.stack([in_a[p], in_b[q]], axis=1)
    return mapping[mapping[:, 0].argsort()], (int(same[p, q]), int(like[p, q]))


def _equal(a: Mol, b: Mol, *properties: str) -> NDArray[np.bool_]:
    """Return whether each atom of a equals each atom of b in these properties, (Na, Nb)."""
    properties_a, properties_b = (
        np.array([[getattr(atom, name)() for name in properties] for atom in mol.GetAtoms()])
        for mol in (a, b)
    )
    return (properties_a[:, None] == properties_b[None]).all(-1)


def _name(mol: Any) -> str:
    return str(Chem.MolToSmiles(mol))


SECONDS = 1.0  # of one search; patterns of functional groups take less than a millisecond
ASKED = 256  # the clock is read once in this many comparisons


class SearchTimeError(ValueError):
    """The search for a pattern took too long."""


def matches_in_time(
    mol: Mol,
    pattern: Mol,
    *,
    max_matches: int = 1000,
    uniquify: bool = True,
    seconds: float = SECONDS,
) -> tuple[tuple[int, ...], ...]:
    """Return the matches of a pattern, as numbers of atoms.

    Args:
        uniquify: whether matches with the same atoms count once.

    Raises:
        SearchTimeError: it took longer.
    """
    end, comparisons = time.monotonic() + seconds, count()
    is_over = False

    def in_time(query: Any, atom: Any) -> bool:
        """Accept every pair of atoms until the time is over, and none afterwards."""
        nonlocal is_over
        if not next(comparisons) % ASKED and time.monotonic() > end:
            is_over = True
        return not is_over

    parameters: Any = Chem.SubstructMatchParameters()
    parameters.maxMatches = max_matches
    parameters.uniquify = uniquify
    parameters.setExtraAtomCheckFunc(in_time)
    matches: tuple[tuple[int, ...], ...] = mol.GetSubstructMatches(pattern, parameters)
    if is_over:
        raise SearchTimeError(
            f"the search for {Chem.MolToSmarts(pattern)} in {Chem.MolToSmiles(mol)} took more than"
            f" {seconds:g} s: name the elements in the pattern, or leave atoms out of it."
        )
    return matches


def rgroups(core: str, smiles: Sequence[str]) -> dict[str, dict[str, str]]:
    """Divide molecules into a core and its R-groups, as RDKit does.

    Args:
        core: as for `rgroup_table`.

    Returns:
        For each molecule that has the core, the SMILES of its "Core", "R1" and so on.

    Raises:
        ValueError: the core is not understood, or takes too long.
    """
    # RDKit's stub of this module is not valid Python, which type checkers of our users would say
    decomposition: Any = import_module("rdkit.Chem.rdRGroupDecomposition")
    pattern = read_pattern(core)
    options = decomposition.RGroupDecompositionParameters()
    options.removeAllHydrogenRGroups = True
    options.timeout = DIVIDING
    try:
        with rdBase.BlockLogs():
            divided, unmatched = decomposition.RGroupDecompose(
                [pattern], [Chem.MolFromSmiles(s) for s in smiles], asSmiles=True, options=options
            )
    except RuntimeError:  # RDKit's, when the time is over
        raise ValueError(
            f"dividing {len(smiles)} compounds by the core {core[:80]} took more than"
            f" {DIVIDING:g} s: name the places of its R-groups, as in c1cc([*:1])ccc1[*:2]."
        ) from None
    left_out = set(unmatched)
    kept = [text for k, text in enumerate(smiles) if k not in left_out]
    return dict(zip(kept, divided, strict=True))


def unstable_groups(mol: Chem.Mol) -> Counter[str]:
    """Count the groups of `unstable_groups.csv` in a molecule."""
    return +Counter({name: len(mol.GetSubstructMatches(group)) for name, group in _unstable()})


@cache
def _unstable() -> tuple[tuple[str, Chem.Mol], ...]:
    rows = packaged_rows(__package__, "unstable_groups.csv")
    return tuple((row["name"], Chem.MolFromSmarts(row["smarts"])) for row in rows)
