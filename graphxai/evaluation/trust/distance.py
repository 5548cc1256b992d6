"""The sign of how near a molecule is to the training set, by the model's own errors if known."""

from collections.abc import Mapping
from typing import Any

from graphxai.datasets.training_set import Nearness
from graphxai.explanation.compute.models import Model
from graphxai.explanation.prediction import Prediction

from .errors_by_group import FEW, error_in_words, errors_of, level_of, pooled, read_groups
from .signs import Level, Sign

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

    Args:
        model: the model that made the prediction.
        prediction: the prediction of one task.
        nearness: how near the molecule is; by default what the prediction says.
    """
    unit = prediction.unit if prediction.label is None else "class"
    errors = errors_of(model, prediction.task, "errors")
    return distance_sign(nearness or prediction.nearness, errors, unit)


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
    groups = read_groups(errors, words)
    if not groups or nearness.similarity is None or nearness.word not in words:
        return None
    place = words.index(nearness.word)
    here = pooled(groups, words[place : place + 1])
    nearer = pooled(groups, words[: min(place, 1)])  # the near ones
    too_few = here[2] < FEW
    if too_few and nearness.word == "far":
        here = pooled(groups, words[1:])
    elif nearer[2] < FEW:
        nearer = pooled(groups, words[:place])
    compared = min(here[2], nearer[2]) >= FEW
    level = level_of(here, nearer, unit) if compared else "good"
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
        figures += f"; {error_in_words(here, unit)}"
        if compared:
            figures += f", and nearer ones {error_in_words(nearer, unit, short=True)}"
    return Sign("training set", level, nearness.similarity, text, figures)
