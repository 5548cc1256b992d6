"""The signs of trust. Each is one measurement with a level and words.

The limits are defined here, with the reasons for them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from graphxai.datasets.training_set import Nearness
from graphxai.evaluation.sanity_checks import relative_change
from graphxai.explanation.explanation import Explanation
from graphxai.explanation.ledger import Ledger
from graphxai.explanation.prediction import Prediction
from graphxai.learning.held_out_score import held_out_score

from .training_images import TrainingImages

Level = Literal["good", "caution", "warning", "unknown", "known"]


@dataclass(frozen=True)
class Limits:
    """The values at which a sign stops being good and at which it becomes a warning.

    If large values are good, `good > bad`. If small values are good, `good < bad`.
    """

    good: float
    bad: float

    def level(self, value: float) -> Level:
        """Return the level of a value, which is "unknown" for NaN."""
        if np.isnan(value):
            return "unknown"
        sign = 1 if self.good > self.bad else -1
        if sign * value >= sign * self.good:
            return "good"
        return "caution" if sign * value >= sign * self.bad else "warning"


# These limits are for scores on test data, or for the lower end of the interval if there is one.
# Chance has a ROC-AUC of 0.5, and predicting the mean has an R2 of 0. Accuracy is for several
# classes, such as ten digits.
HELD_OUT = {"ROC-AUC": Limits(0.8, 0.7), "R2": Limits(0.6, 0.3), "accuracy": Limits(0.9, 0.7)}
# The cosine similarity of grey values to the nearest training picture. Of the MNIST test digits,
# 5 % have no training picture closer than 0.76, and 1 % have none closer than 0.70.
LIKENESS = Limits(0.76, 0.7)
# The probability of the predicted class, by the number of classes. For two classes the limits were
# fitted (benchmarks/results/trust.md). For more classes they come from the 10,000 MNIST test
# digits. Of these, 9,780 have 0.9 or more, and 99 % of them are right. Another 129 have 0.7 to 0.9,
# and 71 % of them are right. Of the other 91, half are wrong.
CONFIDENCE = {2: Limits(0.89, 0.73), 3: Limits(0.9, 0.7)}
CALIBRATION = Limits(0.02, 0.1)  # the expected calibration error on test data
RESIDUAL = Limits(1e-3, 0.1)  # the unexplained part of the ledger, as a share of its terms
REWRITING = Limits(1e-3, 0.05)  # the relative change of relevance, which should be zero


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


@dataclass(frozen=True)
class Sign:
    """One measurement that speaks for or against an explanation.

    Args:
        name: what was measured.
        level: how good the value is.
        value: the measured value, or None if there is none.
        text: the finding in words.
        figures: the figures behind the finding.
        structures: the SMILES of the molecules that the finding is about.
    """

    name: str
    level: Level
    value: float | None
    text: str
    figures: str = ""
    structures: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        """The finding in words, with the figures or structures in parentheses."""
        behind = self.figures or "; ".join(self.structures)
        return f"{self.text} ({behind})" if behind else self.text


def score_sign(metadata: Mapping[str, Any], prediction: Prediction) -> Sign:
    """Judge the model's test score for the explained task, given the checkpoint's metadata.

    If there is a calibration error too, the worse of the two decides.
    """
    score = held_out_score(metadata, prediction.task, is_class=prediction.label is not None)
    value, low, error = score.value, score.low, score.calibration_error
    if np.isnan(value):
        summary = str(metadata.get("summary", ""))
        text = "the model's score on test data is unknown"
        return Sign("test score", "unknown", None, text, summary)
    level = HELD_OUT[score.measure].level(value if np.isnan(low) else low)
    words = {"good": "well", "caution": "moderately", "warning": "badly"}[level]
    text = f"the model does {words} on test data"
    if not np.isnan(error):
        held = CALIBRATION.level(error)
        text += ", and" if held == "good" else ", but"
        text += f" its probabilities {'held' if held == 'good' else 'did not hold'}"
        level = max(level, held, key=("good", "caution", "warning").index)
    return Sign("test score", level, value, text, score.figures)


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


PREDICTED = {"good": "as well as nearer ones", "caution": "worse", "warning": "much worse"}
Group = tuple[float, float, float]  # mean error, its standard error, number of molecules


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


def likeness_sign(training: TrainingImages | None, image: NDArray[np.floating]) -> Sign:
    """Judge how similar a picture (H, W) is to the training pictures, if these are available."""
    similarity = float("nan") if training is None else training.nearest(image)
    level = LIKENESS.level(similarity)
    if level == "unknown":
        why = "they are not available" if training is None else "it cannot be compared with them"
        text = f"its distance from the training pictures is unknown: {why}"
        return Sign("training set", level, None, text)
    text = {
        "good": "a similar picture was in training",
        "caution": "it lies at the edge of what the model has seen",
        "warning": "it is unlike anything the model has seen",
    }[level]
    figures = f"cosine similarity {similarity:.2f} to the nearest training picture"
    return Sign("training set", level, similarity, text, figures)


def confidence_sign(prediction: Prediction) -> Sign:
    """Judge how sure the model is of its class.

    If the prediction is unsure, explaining one class is only half the story.
    """
    first, second = sorted(prediction.probabilities.items(), key=lambda item: -item[1])[:2]
    level = CONFIDENCE[min(len(prediction.probabilities), 3)].level(first[1])
    if level == "good":
        text, figures = "the model is sure of its class", f"probability {first[1]:.2f}"
    else:
        figures = ", ".join(f"{name}: {share:.2f}" for name, share in (first, second))
        text = f"the model is not sure that it is {first[0]}: also explain it against {second[0]}"
    return Sign("confidence", level, first[1], text, figures)


def residual_sign(ledger: Ledger) -> Sign:
    """Judge the unexplained part of the ledger, as a share of its terms."""
    shares = (ledger.nodes, ledger.graph_token, ledger.biases)
    terms = (*shares, *ledger.structure.values(), *ledger.others.values())
    share = abs(ledger.unexplained) / (sum(map(abs, terms)) or 1.0)
    level = RESIDUAL.level(share)
    if level == "good":
        return Sign("ledger", level, share, "relevance adds up to the output")
    text = "relevance does not add up to the output"
    return Sign("ledger", level, share, text, f"off by {100 * share:.1f} % of the sum of its terms")


def rewriting_sign(explanation: Explanation, others: Sequence[NDArray[np.floating]]) -> Sign:
    """Judge how much relevance (N,) changes when the same input is rewritten or renumbered."""
    name = "equivalent inputs"
    how = "how the structure is written"
    if explanation.molecule is None:
        nodes = "nodes" if explanation.segments is None else "superpixels"
        how = f"how the {nodes} are numbered"
    change = _largest(explanation.relevance, others)
    if np.isnan(change):
        return Sign(name, "unknown", None, f"whether it depends on {how} could not be tested")
    level = REWRITING.level(change)
    if level == "good":
        return Sign(name, level, change, f"it does not depend on {how}")
    return Sign(
        name, level, change, f"it depends on {how}", f"relevance changes by {100 * change:.1f} %"
    )


def _largest(relevance: NDArray[np.floating], others: Sequence[NDArray[np.floating]]) -> float:
    """Return the largest relative change, or NaN if there is none."""
    changes = np.array([relative_change(relevance, other) for other in others])
    return float("nan") if np.isnan(changes).all() else float(np.nanmax(changes))
