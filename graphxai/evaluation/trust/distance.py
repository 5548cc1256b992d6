"""The sign of how near a molecule is to the training set, by the model's own errors if known."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from graphxai.datasets.training_set import Nearness
from graphxai.explanation.compute.models import Model
from graphxai.explanation.prediction import Prediction

from .signs import Level, Sign

FEW = 20  # molecules, below which their errors decide nothing
MUCH_WORSE = 1.5  # times the errors of nearer molecules
OFTEN_WRONG = 0.25  # of the classes; fewer are no reason not to rely on a prediction
# Limits for models whose own errors are unknown, see benchmarks/results/trust.md. Of other models'
# predictions, those at the edge were not wrong more often than near ones beyond the error.
NEARNESS: dict[str, Level] = {
    "training compound": "known",
    "near": "good",
    "edge": "unknown",
    "far": "warning",
}
PREDICTED = {"good": "as well as nearer ones", "caution": "worse", "warning": "much worse"}
Group = tuple[float, float, float]  # mean error, its standard error, number of molecules


def distance_of(model: Model, prediction: Prediction, nearness: Nearness | None = None) -> Sign:
    """Judge how near a predicted molecule is to the training set, by this model's own errors.

    Args:
        model: the model that made the prediction.
        prediction: the prediction of one task.
        nearness: how near the molecule is; by default what the prediction says.
    """
    unit = prediction.unit if prediction.label is None else "class"
    errors = _errors_of(model, prediction.task)
    return distance_sign(nearness or prediction.nearness, errors, unit)


def _errors_of(model: Model, task: str) -> Mapping[str, Any]:
    """Return how wrong the model was for unseen molecules, by nearness; empty if unknown."""
    entry = model.origin.metadata.get("coverage")
    for key in (task, "errors"):
        entry = entry.get(key) if isinstance(entry, Mapping) else None
    return entry if isinstance(entry, Mapping) else {}


def distance_sign(
    nearness: Nearness | None, errors: Mapping[str, Any] | None = None, unit: str = ""
) -> Sign:
    """Judge how near a molecule is to the training set. None stands for other graphs.

    Args:
        nearness: how near it is.
        errors: how wrong this model was for unseen molecules near, at the edge and far, from its
            metadata. They decide the level, where there are enough of them. Without them, limits
            apply that were fitted to other models.
        unit: the unit of the errors of a value; "class" if they are shares of wrong classes.
    """
    if nearness is None or nearness.word == "unknown":
        what = "graphs" if nearness is None else "compounds"
        text = f"its distance from the training {what} is unknown"
        return Sign("training set", "unknown", None, text)
    level: Level = NEARNESS[nearness.word]
    figures = f"Tanimoto {nearness.similarity:.2f} to the nearest training compound"
    if nearness.unseen:
        text = f"no training compound contains {' or '.join(nearness.unseen)}"
    elif level == "known":
        text, figures = "it is a training compound, so its prediction does not test the model", ""
    elif (measured := _error_sign(nearness, errors or {}, unit)) is not None:
        return measured
    else:
        text = {
            "good": "a similar compound was in training",
            "unknown": "the nearest training compound is only moderately similar, and how wrong"
            " this model is so far away was not measured",
            "warning": "no similar compound was in training",
        }[level]
    return Sign("training set", level, nearness.similarity, text, figures)


def _error_sign(nearness: Nearness, errors: Mapping[str, Any], unit: str) -> Sign | None:
    """Judge how near a molecule is by how wrong this model was for unseen molecules as far away.

    It is a caution if they were predicted worse than near ones, and a warning if the errors were
    more than half as large again, both beyond the error of the comparison; for a class, a quarter
    of them also has to be wrong. If too few molecules were measured far away, those at the edge
    count with them: what was predicted worse there will hardly be better farther away. If it was
    not, the level is unknown. The result is None without any such errors.
    """
    words = ("near", "edge", "far")
    try:
        groups = {w: _group(*errors[w]) for w in words if w in errors}
    except (TypeError, ValueError):
        return None
    if not groups or nearness.similarity is None or nearness.word not in words:
        return None
    place = words.index(nearness.word)
    here = _pooled(groups, words[place : place + 1])
    nearer = _pooled(groups, words[: min(place, 1)])  # the near ones
    too_few = here[2] < FEW
    if too_few and nearness.word == "far":
        here = _pooled(groups, words[1:])
    elif nearer[2] < FEW:
        nearer = _pooled(groups, words[:place])
    compared = min(here[2], nearer[2]) >= FEW
    level = _level(here, nearer, unit) if compared else "good"
    this_far = "unseen molecules were this far from the training set"
    if nearness.word == "near":
        text = "a similar compound was in training"
    elif too_few and level == "good":
        level, text = "unknown", f"too few {this_far}"
    elif too_few:
        text = f"few {this_far}; with those at its edge, they were predicted {PREDICTED[level]}"
    elif compared:
        text = f"unseen molecules this far from the training set were predicted {PREDICTED[level]}"
    else:
        text = "unseen molecules were about as far from the training set"
    figures = f"Tanimoto {nearness.similarity:.2f} to the nearest training compound"
    if here[2] >= FEW and level != "unknown":
        figures += f"; {_error(here, unit)}"
        if compared:
            figures += f", and nearer ones {_error(nearer, unit, short=True)}"
    return Sign("training set", level, nearness.similarity, text, figures)


def _group(mean: float, deviation: float, number: float) -> Group:
    """Return a group's figures, or raise TypeError or ValueError if they are not three numbers."""
    return float(mean), float(deviation), float(number)


def _pooled(groups: Mapping[str, Group], words: Sequence[str]) -> Group:
    """Return the mean of some groups' errors, its standard error, and their number together."""
    each = [groups[word] for word in words if word in groups]
    number = sum(n for _, _, n in each)
    if not number:
        return 0.0, 0.0, 0.0
    mean = sum(m * n for m, _, n in each) / number
    return mean, sum((s * n) ** 2 for _, s, n in each) ** 0.5 / number, number


def _level(here: Group, nearer: Group, unit: str) -> Level:
    """Judge whether molecules were predicted worse than nearer ones, beyond the error of this."""
    if not _exceeds(here, nearer, 1, unit):
        return "good"
    serious = unit != "class" or here[0] >= OFTEN_WRONG
    return "warning" if serious and _exceeds(here, nearer, MUCH_WORSE, unit) else "caution"


def _exceeds(here: Group, nearer: Group, times: float, unit: str) -> bool:
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


def _error(group: Group, unit: str, short: bool = False) -> str:
    """Say how wrong predictions of a group were."""
    if unit == "class":
        return (
            f"{group[0]:.0%}"
            if short
            else f"of {group[2]:.0f} such molecules, {group[0]:.0%} wrong"
        )
    value = f"{group[0]:.2g} {unit}".strip()
    return (
        f"by {value}" if short else f"{group[2]:.0f} such molecules were off by {value} on average"
    )
