"""The sign of how sure a model is of its class, by its own errors if these are known."""

from graphxai.contract.intervals import SURENESS
from graphxai.explanation.compute.models import Model
from graphxai.explanation.prediction import Prediction

from .errors_by_group import (
    FEW,
    OFTEN_WRONG,
    Group,
    Groups,
    error_in_words,
    errors_of,
    exceeds,
    pooled,
    read_groups,
)
from .signs import Level, Limits, Sign

RARELY_WRONG = 0.1  # of the classes; fewer are no reason for a caution
# These limits apply to models whose own errors are unknown.
# The probability of the predicted class, by the number of classes. For two classes the limits were
# fitted (benchmarks/results/trust.md). For more classes they come from the 10,000 MNIST test
# digits. Of these, 9,780 have 0.9 or more, and 99 % of them are right. Another 129 have 0.7 to 0.9,
# and 71 % of them are right. Of the other 91, half are wrong.
CONFIDENCE = {2: Limits(0.89, 0.73), 3: Limits(0.9, 0.7)}


def confidence_of(model: Model, prediction: Prediction) -> Sign:
    """Judge how sure the model is of the predicted class, by its own errors."""
    return confidence_sign(prediction, errors_of(model, prediction.task, "errors_by_probability"))


def confidence_sign(prediction: Prediction, errors: Groups | None = None) -> Sign:
    """Judge how sure the model is of its class.

    If the prediction is unsure, explaining one class is only half the story.

    Args:
        prediction: the prediction of a class.
        errors: how wrong this model was for unseen molecules, by the probability of the predicted
            class, see `SURENESS`. With such errors, the sign is a warning where a quarter of the
            classes predicted about as surely were wrong, and a caution where a tenth were, if these
            are more than of surer ones, beyond the error of the comparison. Where a quarter were
            wrong although surer ones are no better, it is a caution. Without such errors, limits
            apply that were fitted to other models.
    """
    first, second = sorted(prediction.probabilities.items(), key=lambda item: -item[1])[:2]
    level = CONFIDENCE[min(len(prediction.probabilities), 3)].level(first[1])
    measured = ""
    if (groups := _alike_and_surer(first[1], errors or {})) is not None:
        alike, surer = groups
        level = _level(alike, surer)
        what = "graphs" if prediction.nearness is None else "molecules"
        measured = (
            f"; {error_in_words(alike, 'class', what=f'unseen {what} predicted about as surely')}"
        )
        if surer[2] >= FEW:
            measured += f", and surer ones {error_in_words(surer, 'class', short=True)}"
    if level == "good":
        text, figures = "the model is sure of its class", f"probability {first[1]:.2f}"
    else:
        figures = ", ".join(f"{name}: {share:.2f}" for name, share in (first, second))
        text = f"the model is not sure that it is {first[0]}: also explain it against {second[0]}"
    return Sign("confidence", level, first[1], text, figures + measured)


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
