"""Find the matches of a pattern in a molecule, within a limited time.

RDKit's search cannot be interrupted, and a vague pattern in a cage of rings takes twice as long for
each further atom. So the search asks at each comparison of atoms whether its time is over.
"""

import time
from itertools import count
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rdkit.Chem import Mol

SECONDS = 1.0  # of one search; patterns of functional groups take less than a millisecond
ASKED = 256  # the clock is read once in this many comparisons


class SearchTimeError(ValueError):
    """The search for a pattern took too long."""


def matches_in_time(
    mol: "Mol",
    pattern: "Mol",
    *,
    max_matches: int = 1000,
    uniquify: bool = True,
    seconds: float = SECONDS,
) -> tuple[tuple[int, ...], ...]:
    """Return the matches of a pattern, as numbers of atoms.

    Args:
        mol: the molecule.
        pattern: the pattern, from a SMARTS.
        max_matches: how many matches are returned at most.
        uniquify: whether matches with the same atoms count once.
        seconds: how long the search may take.

    Raises:
        SearchTimeError: it took longer.
    """
    from rdkit import Chem

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
