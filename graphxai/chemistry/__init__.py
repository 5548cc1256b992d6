"""Explanations in chemists' terms: fragments, pairs of molecules, activity cliffs.

The settings of a search for counterfactuals are declared here, once for Python and the command
line, which is not to wait for RDKit before it parses its options.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import TypedDict

from graphxai.runtime.options import documented, names_in, option

SOURCES = ("measured", "transformations", "fragments", "selfies")


@documented
@dataclass(frozen=True)
class SearchSettings:
    """How a search for counterfactuals proceeds."""

    keep: str | Collection[int] = option(
        (), "SMARTS pattern to leave unchanged.", applies_to=None, parse=lambda text: text or ()
    )
    sources: Sequence[str] = option(
        SOURCES[:3],
        "Any of measured, transformations, fragments, selfies, separated by commas.",
        applies_to=None,
        parse=names_in,
        repeat=True,
    )
    predictions: int = option(
        1000, "Predict at most this many neighbours of a molecule.", applies_to=None, minimum=1
    )
    steps: int = option(2, "At most this many changes in a row.", applies_to=None, minimum=1)
    sure: bool = option(False, "Keep only those that the model is sure of.", applies_to=None)
    guided: bool = field(default=True, metadata={"help": "Try neighbours in random order."})
    seed: int = option(0, "Seed of everything that is drawn at random.", applies_to=None)


class SearchKeywords(TypedDict, total=False):
    """The fields of `SearchSettings` as keywords, for type checkers."""

    keep: str | Collection[int]
    sources: Sequence[str]
    predictions: int
    steps: int
    sure: bool
    guided: bool
    seed: int
    settings: SearchSettings | None
    progress: bool | None
