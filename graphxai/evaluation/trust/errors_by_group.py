"""How wrong a model was for groups of molecules that it had not learned from.

The groups are in its metadata, see `learning.conformal`. Here they are read and compared.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from graphxai.explanation.compute.models import Model

from .signs import Level

FEW = 20  # molecules, below which their errors decide nothing
MUCH_WORSE = 1.5  # times the errors of nearer molecules
OFTEN_WRONG = 0.25  # of the classes; fewer are no reason not to rely on a prediction
Groups = Mapping[str, Any]
Group = tuple[float, float, float]  # mean error, its standard error, number of molecules


def errors_of(model: Model, task: str, by: Literal["errors", "errors_by_probability"]) -> Groups:
    """Return how wrong the model was for groups of unseen molecules; empty if unknown."""
    entry = model.origin.metadata.get("coverage")
    for key in (task, by):
        entry = entry.get(key) if isinstance(entry, Mapping) else None
    return entry if isinstance(entry, Mapping) else {}


def read_groups(errors: Groups, words: Sequence[str]) -> dict[str, Group]:
    """Return the figures of the groups with these names; empty if any of them cannot be read."""
    try:
        return {word: _group(*errors[word]) for word in words if word in errors}
    except (TypeError, ValueError):
        return {}


def _group(mean: float, deviation: float, number: float) -> Group:
    """Return a group's figures, or raise TypeError or ValueError if they are not three numbers."""
    return float(mean), float(deviation), float(number)


def pooled(groups: Mapping[str, Group], words: Sequence[str]) -> Group:
    """Return the mean of some groups' errors, its standard error, and their number together."""
    each = [groups[word] for word in words if word in groups]
    number = sum(n for _, _, n in each)
    if not number:
        return 0.0, 0.0, 0.0
    mean = sum(m * n for m, _, n in each) / number
    return mean, sum((s * n) ** 2 for _, s, n in each) ** 0.5 / number, number


def level_of(here: Group, nearer: Group, unit: str) -> Level:
    """Judge whether molecules were predicted worse than nearer ones, beyond the error of this."""
    if not exceeds(here, nearer, 1, unit):
        return "good"
    serious = unit != "class" or here[0] >= OFTEN_WRONG
    return "warning" if serious and exceeds(here, nearer, MUCH_WORSE, unit) else "caution"


def exceeds(here: Group, nearer: Group, times: float, unit: str) -> bool:
    """Return whether an error is above some times another, by twice the error of the difference."""
    first, second = (_deviation(group, unit) for group in (here, nearer))
    return here[0] - times * nearer[0] > 2 * float(np.hypot(first, times * second))


def _deviation(group: Group, unit: str) -> float:
    """Return the standard error of a group's error.

    A share of wrong classes gets that of a group with one more right and one more wrong, because a
    group in which nothing is wrong is not without error (Agresti 1998).
    """
    mean, deviation, number = group
    if unit != "class":
        return deviation
    share = min(max((mean * number + 1) / (number + 2), 0.0), 1.0)  # whatever a file says
    return float((share * (1 - share) / number) ** 0.5)


def error_in_words(
    group: Group, unit: str, short: bool = False, what: str = "such molecules"
) -> str:
    """Say how wrong predictions of a group were, which is called `what`."""
    if unit == "class":
        share = f"{group[0]:.0%}"
        return share if short else f"of {group[2]:.0f} {what}, {share} wrong"
    value = f"{group[0]:.2g} {unit}".strip()
    return f"by {value}" if short else f"{group[2]:.0f} {what} were off by {value} on average"
