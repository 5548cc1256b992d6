"""Choose the molecules of a report that get a full card: those a chemist would open first."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, zip_longest
from typing import Any

import numpy as np

from graphxai.chemistry.cliffs import activity_cliffs
from graphxai.tables.settings import SMOOTH

STRONGEST, UNTRUSTED = "one of the strongest atoms", "little trust"
CLIFF, OUTLIER = "an activity cliff", "an outlier"
DOUBTS = ("warning", "caution", "unknown")  # levels of trust, with the worst first


def in_full(molecules: Sequence[Mapping[str, Any]], count: int) -> dict[int, str]:
    """Choose the positions of at most `count` records, each with the reason why it is chosen.

    Molecules are taken in turn from four lists. The first has the strongest atoms, and the second
    the least trust. The third has activity cliffs, which are pairs of similar molecules with values
    more than a standard deviation apart. The last has outliers, which are the largest errors.
    Without measured values, cliffs are those of the prediction, and outliers are the molecules
    farthest from the median.
    """
    if count >= len(molecules):
        return dict.fromkeys(range(len(molecules)), "")
    lists = {
        STRONGEST: _descending(max(map(abs, m["r"]), default=0.0) for m in molecules),
        UNTRUSTED: _least_trusted(molecules),
        CLIFF: _cliffs(molecules),
        OUTLIER: _descending(_strangeness(molecules)),
    }
    turns = zip_longest(*([(place, why) for place in places] for why, places in lists.items()))
    chosen: dict[int, str] = {}
    for place, why in filter(None, chain.from_iterable(turns)):
        if len(chosen) >= count:
            break
        chosen.setdefault(place, why)
    return chosen


def sentence_about(molecules: Sequence[Mapping[str, Any]], chosen: Mapping[int, str]) -> str:
    """Say in one sentence which cards are full, or return "" if every card is full."""
    if len(chosen) == len(molecules):
        return ""
    which = (
        "those with the strongest atoms, the least trust, activity cliffs and outliers"
        if chosen
        else "none were requested"
    )
    return (
        f"{len(chosen):,} of the {len(molecules):,} molecules have a full card, with other methods"
        f" and every sign of trust: {which}."
    )


def _least_trusted(molecules: Sequence[Mapping[str, Any]]) -> list[int]:
    doubtful = [k for k, m in enumerate(molecules) if m["trust"]["level"] in DOUBTS]
    return sorted(doubtful, key=lambda k: DOUBTS.index(molecules[k]["trust"]["level"]))


def _cliffs(molecules: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return both ends of each cliff among the first `SMOOTH` molecules, the highest cliff first.

    The search compares all pairs, so its time grows with the square of their number.
    """
    molecules = molecules[:SMOOTH]
    values = _measured(molecules)
    if np.isnan(values).all():
        values = np.array([m["value"] for m in molecules], dtype=float)
    spread = float(np.nanstd(values))
    if not spread:
        return []
    smiles = [m["smiles"] for m in molecules]
    cliffs = activity_cliffs(smiles, values, difference=spread, matched=False)
    return list(dict.fromkeys(end for cliff in cliffs for end in (cliff.a, cliff.b)))


def _strangeness(molecules: Sequence[Mapping[str, Any]]) -> Iterable[float]:
    """Return how far each prediction is from what was measured, or else from the median."""
    measured = _measured(molecules)
    predicted = np.array([m["value"] for m in molecules], dtype=float)
    if np.isnan(measured).all():
        return np.abs(predicted - np.median(predicted))
    if any(m["label"] is not None for m in molecules):  # a class that is wrong with much certainty
        wrong = [m["measured"] is not None and m["label"] != m["measured"][1] for m in molecules]
        return np.abs(predicted - 0.5) * wrong
    return np.nan_to_num(np.abs(predicted - measured))


def _measured(molecules: Sequence[Mapping[str, Any]]) -> np.ndarray:
    return np.array([m["measured"][0] if m["measured"] else np.nan for m in molecules], dtype=float)


def _descending(values: Iterable[float]) -> list[int]:
    return np.argsort(-np.fromiter(values, dtype=float), kind="stable").tolist()
