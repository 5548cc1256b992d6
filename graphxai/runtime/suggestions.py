"""Suggest the right name for a misspelt one."""

from collections.abc import Iterable
from difflib import get_close_matches

__all__ = ["did_you_mean"]


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return a sentence with the name most like a misspelt one, to put behind an error, or ""."""
    by_lower_case = {candidate.lower(): candidate for candidate in names}
    close = get_close_matches(name.lower(), by_lower_case, 1)
    return f" Did you mean {by_lower_case[close[0]]!r}?" if close else ""
