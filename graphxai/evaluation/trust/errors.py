"""The signs that judge a prediction by how wrong its model was, if this is known.

These are how near a molecule is to the training set, and how sure the model is of its class. How
wrong the model was for groups of molecules that it had not learned from is in its metadata, see
`learning.conformal`. Here these groups are read and compared.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from graphxai.contract.intervals import SURENESS
from graphxai.datasets.training_set import Nearness
from graphxai.explanation.compute.models import Model
from graphxai.explanation.prediction import Prediction

from .signs import Level, Limits, Sign

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
        groups = {word: tuple(map(float, errors[word])) for word in words if word in errors}
        return {word: (mean, sd, number) for word, (mean, sd, number) in groups.items()}
    except (TypeError, ValueError):
        return {}


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


def error_as_text(
    group: Group, unit: str, short: bool = False, what: str = "such molecules"
) -> str:
    """Say how wrong predictions of a group were, which is called `what`."""
    if unit == "class":
        share = f"{group[0]:.0%}"
        return share if short else f"of {group[2]:.0f} {what}, {share} wrong"
    value = f"{group[0]:.2g} {unit}".strip()
    return f"by {value}" if short else f"{group[2]:.0f} {what} were off by {value} on average"


# -- how near a molecule is to the training set --------------------------------------------------

# Limits for models whose own errors are unknown, see benchmarks/results/trust.md. Of other models'
# predictions, those at the edge were not wrong more often than near ones beyond the error.
NEARNESS: dict[str, Level] = {
    "training compound": "known",
    "near": "good",
    "edge": "unknown",
    "far": "warning",
}
PREDICTED = {"good": "as well as nearer ones", "caution": "worse", "warning": "much worse"}


def distance_of(model: Model, prediction: Prediction, nearness: Nearness | None = None) -> Sign:
    """Judge how near a predicted molecule is to the training set, by this model's own errors.

    `nearness` is how near the molecule is, by default what the prediction says; graphs other than
    molecules have none. How wrong the model was for unseen molecules near, at the edge and far
    decides the level, where its metadata know enough of them. Otherwise limits apply that were
    fitted to other models.
    """
    nearness = nearness or prediction.nearness
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
    elif (measured := _error_sign(model, prediction, nearness)) is not None:
        return measured
    else:
        text = {
            "good": "a similar compound was in training",
            "unknown": "the nearest training compound is only moderately similar, and how wrong"
            " this model is so far away was not measured",
            "warning": "no similar compound was in training",
        }[level]
    return Sign("training set", level, nearness.similarity, text, figures)


def _error_sign(model: Model, prediction: Prediction, nearness: Nearness) -> Sign | None:
    """Judge how near a molecule is by how wrong this model was for unseen molecules as far away.

    It is a caution if they were predicted worse than near ones, and a warning if the errors were
    more than half as large again, both beyond the error of the comparison; for a class, a quarter
    of them also has to be wrong. If too few molecules were measured far away, those at the edge
    count with them: what was predicted worse there will hardly be better farther away. If it was
    not, the level is unknown. The result is None without any such errors.
    """
    words = ("near", "edge", "far")
    unit = prediction.unit if prediction.label is None else "class"
    groups = read_groups(errors_of(model, prediction.task, "errors"), words)
    if not groups or nearness.similarity is None or nearness.word not in words:
        return None
    place = words.index(nearness.word)
    at_this_distance = pooled(groups, words[place : place + 1])
    nearer = pooled(groups, words[: min(place, 1)])  # the near ones
    too_few = at_this_distance[2] < FEW
    if too_few and nearness.word == "far":
        at_this_distance = pooled(groups, words[1:])
    elif nearer[2] < FEW:
        nearer = pooled(groups, words[:place])
    compared = min(at_this_distance[2], nearer[2]) >= FEW
    level = level_of(at_this_distance, nearer, unit) if compared else "good"
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
    if at_this_distance[2] >= FEW and level != "unknown":
        figures += f"; {error_as_text(at_this_distance, unit)}"
        if compared:
            figures += f", and nearer ones {error_as_text(nearer, unit, short=True)}"
    return Sign("training set", level, nearness.similarity, text, figures)


# -- how sure the model is of its class ----------------------------------------------------------

RARELY_WRONG = 0.1  # of the classes; fewer are no reason for a caution
# These limits apply to models whose own errors are unknown.
# The probability of the predicted class, by the number of classes. For two classes the limits were
# fitted (benchmarks/results/trust.md). For more classes they come from the 10,000 MNIST test
# digits. Of these, 9,780 have 0.9 or more, and 99 % of them are right. Another 129 have 0.7 to 0.9,
# and 71 % of them are right. Of the other 91, half are wrong.
CONFIDENCE = {2: Limits(0.89, 0.73), 3: Limits(0.9, 0.7)}


def confidence_of(model: Model, prediction: Prediction) -> Sign:
    """Judge how sure the model is of the predicted class, by its own errors.

    If the prediction is unsure, explaining one class is only half the story. The metadata may say
    how wrong the model was for unseen molecules, by the probability of the predicted class, see
    `SURENESS`. Then the sign is a warning where a quarter of the classes predicted about as surely
    were wrong, and a caution where a tenth were, if these are more than of surer ones, beyond the
    error of the comparison. Where a quarter were wrong although surer ones are no better, it is a
    caution. What is so of surer ones is so of this one, unless fewer than a tenth were wrong.
    Without such errors, limits apply that were fitted to other models.
    """
    errors = errors_of(model, prediction.task, "errors_by_probability")
    first, second = sorted(prediction.probabilities.items(), key=lambda item: -item[1])[:2]
    level = CONFIDENCE[min(len(prediction.probabilities), 3)].level(first[1])
    measured = ""
    if (groups := _alike_and_surer(first[1], errors)) is not None:
        alike, surer = groups
        level = _level_of(first[1], errors)
        what = "graphs" if prediction.nearness is None else "molecules"
        measured = (
            f"; {error_as_text(alike, 'class', what=f'unseen {what} predicted about as surely')}"
        )
        if surer[2] >= FEW:
            measured += f", and surer ones {error_as_text(surer, 'class', short=True)}"
    if level == "good":
        text, figures = "the model is sure of its class", f"probability {first[1]:.2f}"
    else:
        figures = ", ".join(f"{name}: {share:.2f}" for name, share in (first, second))
        text = f"the model is not sure that it is {first[0]}: also explain it against {second[0]}"
    return Sign("confidence", level, first[1], text, figures + measured)


def _level_of(probability: float, errors: Groups) -> Level:
    """Judge a class, no better than those predicted more surely, unless it is rarely wrong."""
    above = [float(least) for least in SURENESS if float(least) > probability]
    groups = [_alike_and_surer(each, errors) for each in (probability, *above)]
    levels = [_level(*pair) for pair in groups if pair is not None]
    if groups[0] is not None and groups[0][0][0] < RARELY_WRONG:
        return "good"
    return max(levels, key=("good", "caution", "warning").index)


def _level(alike: Group, surer: Group) -> Level:
    """Judge a class by the errors of predictions about as sure, and of enough surer ones."""
    is_worse = surer[2] >= FEW and exceeds(alike, surer, 1, "class")
    if alike[0] >= OFTEN_WRONG:
        return "warning" if is_worse else "caution"
    return "caution" if is_worse and alike[0] >= RARELY_WRONG else "good"


def _alike_and_surer(probability: float, errors: Groups) -> tuple[Group, Group] | None:
    """Return the errors of unseen molecules that were predicted as surely, and of surer ones.

    Too small a group is joined by those that are less sure, and then by surer ones. The result is
    None if all together are too few.
    """
    groups = read_groups(errors, SURENESS)
    if not probability >= 0:  # NaN
        return None
    first = next(k for k, least in enumerate(SURENESS) if probability >= float(least))
    last = first + 1
    while last < len(SURENESS) and pooled(groups, SURENESS[first:last])[2] < FEW:
        last += 1
    while first > 0 and pooled(groups, SURENESS[first:last])[2] < FEW:
        first -= 1
    alike = pooled(groups, SURENESS[first:last])
    return (alike, pooled(groups, SURENESS[:first])) if alike[2] >= FEW else None
