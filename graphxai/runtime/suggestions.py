"""Suggest the right name for a misspelt one."""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches

__all__ = ["did_you_mean", "require_options"]


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return a sentence with the name most like a misspelt one, to put behind an error, or ""."""
    by_lower_case = {candidate.lower(): candidate for candidate in names}
    close = get_close_matches(name.lower(), by_lower_case, 1)
    return f" Did you mean {by_lower_case[close[0]]!r}?" if close else ""


def require_options(given: Iterable[str], known: Sequence[str], function: str) -> None:
    """Raise TypeError if an option is none of those that a function knows, with the closest one."""
    for name in given:
        if name not in known:
            close = get_close_matches(name, known, 1)
            hint = f"did you mean {close[0]!r}?" if close else f"they are {', '.join(known)}."
            raise TypeError(f"{function} has no option {name!r}: {hint}")
