"""Say how desirable the predicted properties of a molecule are: each of them, and all together.

A profile is read from a text such as "pIC50 > 7.5, log D 1 to 3, BBB: penetrant". Each of its goals
gives a desirability from 0 (of no use) to 1 (as wished), and the geometric mean joins them, so that
a single 0 makes the whole molecule useless (Derringer and Suich 1980, J. Qual. Technol. 12, 214,
after Harrington 1965). Weights are those of Derringer 1994, Qual. Progress 27(6), 51.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

import numpy as np

from graphxai.contract.target import Target
from graphxai.explanation.compute.models import Model, PredictedProperty
from graphxai.explanation.prediction import Prediction
from graphxai.explanation.result import table_html

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class DesirabilityCurve:
    """The desirability of a value, by Derringer and Suich (1980).

    It is 1 from `one_from` to `one_to`, and falls to 0 at `zero_below` and at `zero_above`. If an
    end is infinite, the curve has one side (equation 1). If `one_from` equals `one_to`, that is the
    target of the two-sided curve (equation 2).

    Attributes:
        zero_below: at and below this value the desirability is 0.
        one_from: the first value with desirability 1.
        one_to: the last value with desirability 1.
        zero_above: at and above this value the desirability is 0.
        power: the exponent of both slopes, `r` or `s` and `t` of the paper. 1 makes them straight.
    """

    zero_below: float = -math.inf
    one_from: float = -math.inf
    one_to: float = math.inf
    zero_above: float = math.inf
    power: float = 1.0

    def __call__(self, value: float) -> float:
        """Return the desirability of a value, between 0 and 1."""
        if self.one_from <= value <= self.one_to:
            return 1.0
        if value < self.one_from:
            share = (value - self.zero_below) / (self.one_from - self.zero_below)
        else:
            share = (self.zero_above - value) / (self.zero_above - self.one_to)
        return max(0.0, share) ** self.power

    def __str__(self) -> str:
        """Return the curve as text, such as "1 from 7.5 up, 0 below 6.18"."""
        low, high = self.one_from, self.one_to
        if math.isfinite(low) and math.isfinite(high):
            plateau = f"1 at {low:.4g}" if low == high else f"1 between {low:.4g} and {high:.4g}"
        else:
            plateau = f"1 from {low:.4g} up" if math.isfinite(low) else f"1 up to {high:.4g}"
        zeros = [f"below {self.zero_below:.4g}"] if math.isfinite(self.zero_below) else []
        zeros += [f"above {self.zero_above:.4g}"] if math.isfinite(self.zero_above) else []
        power = "" if self.power == 1 else f", power {self.power:g}"
        return f"{plateau}, 0 {' and '.join(zeros)}{power}"


@dataclass(frozen=True)
class PropertyGoal:
    """What is wished for one property: a class, or values that a curve calls desirable.

    Attributes:
        of: the property.
        wish: the wish as it was written, such as "> 7.5".
        label: the wished class. Its predicted probability is the desirability.
        curve: the desirability of a value, for a property with values.
        weight: how much the property counts in the mean.
    """

    of: PredictedProperty
    wish: str
    label: str | None = None
    curve: DesirabilityCurve = DesirabilityCurve()
    weight: float = 1.0

    @property
    def target(self) -> Target:
        """The output of the property's model whose relevance says what to change."""
        return Target(self.label, self.of.task.name)

    @property
    def aim(self) -> str:
        """The goal in a sentence about a single one: the class alone, or a limit with its name."""
        return self.label or str(self)

    def tasks_of(self, model: Model) -> dict[str, str]:
        """Return the units of the model's tasks by name, the goal's first."""
        tasks = sorted(model.config.tasks, key=lambda task: task.name != self.of.task.name)
        return {task.name: task.unit for task in tasks}

    def value(self, prediction: Prediction) -> float:
        """Return the predicted value, or the probability of the class."""
        if self.label is not None:
            return prediction.probabilities[self.label]
        assert prediction.value is not None
        return prediction.value

    def desirability(self, prediction: Prediction) -> float:
        """Return how desirable a prediction is, between 0 and 1."""
        value = self.value(prediction)
        return value if self.label is not None else self.curve(value)

    def within(self, prediction: Prediction) -> tuple[float, float]:
        """Return the lowest and highest desirability in the interval of a prediction."""
        if self.label is not None or (interval := prediction.interval) is None:
            return (self.desirability(prediction),) * 2
        low, high = sorted(map(self.curve, interval))
        reached = interval[0] <= self.curve.one_to and interval[1] >= self.curve.one_from
        return low, 1.0 if reached else high

    def distance(self, prediction: Prediction) -> float:
        """Return how far beyond the goal a prediction lies, negative on the wrong side.

        For a class, it is the log-odds against the most probable other class. For a value, it is
        the distance from the limit.
        """
        value = self.value(prediction)
        if self.label is None:
            return min(value - self.curve.one_from, self.curve.one_to - value)
        other = max(p for name, p in prediction.probabilities.items() if name != self.label)
        return float(np.log(max(value, 1e-12) / max(other, 1e-12)))

    def met(self, prediction: Prediction) -> bool:
        """Return whether the wished class is predicted, or a value with desirability 1."""
        return self.side(prediction) == 0

    def side(self, prediction: Prediction) -> int:
        """Return +1 if the output should rise to meet the goal, -1 if it should fall, or else 0."""
        if self.label is not None:
            return int(prediction.label != self.label)
        assert prediction.value is not None
        below, above = prediction.value < self.curve.one_from, prediction.value > self.curve.one_to
        return int(below) - int(above)

    def sure(self, prediction: Prediction) -> bool | None:
        """Return whether the model is sure that the goal is met, or None if it cannot tell.

        For a class, see `Prediction.sure`. For a value, its whole interval must be desirable.
        """
        if self.label is not None:
            sure = prediction.sure
            return None if sure is None else sure and prediction.label == self.label
        if (interval := prediction.interval) is None:
            return None
        return self.curve.one_from <= interval[0] and interval[1] <= self.curve.one_to

    def __str__(self) -> str:
        return f"{self.of.name}{'' if self.wish[0] in '<>=' else ':'} {self.wish}"

    @property
    def explanation(self) -> str:
        """The goal as text, with how desirability is counted."""
        counted = f"the probability of {self.label}" if self.label is not None else str(self.curve)
        weight = "" if self.weight == 1 else f", weight {self.weight:g}"
        unit = f" ({self.of.task.unit})" if self.of.task.unit else ""
        return f"{self}{unit}: desirability is {counted}{weight}"


@dataclass(frozen=True)
class JudgedProperty:
    """A goal with the prediction for a molecule.

    Attributes:
        goal: the goal.
        prediction: the prediction, or None if the model left the molecule out.
    """

    goal: PropertyGoal
    prediction: Prediction | None

    @property
    def desirability(self) -> float | None:
        """How desirable the prediction is, between 0 and 1, or None without a prediction."""
        return None if self.prediction is None else self.goal.desirability(self.prediction)

    @property
    def outcome(self) -> str:
        """How near the goal is: "met", "near" with a desirability of a half, or else "missed"."""
        return "met" if self.met else "near" if (self.desirability or 0) >= 0.5 else "missed"

    @property
    def met(self) -> bool:
        """Whether the goal is met."""
        return self.prediction is not None and self.goal.met(self.prediction)


@dataclass(frozen=True)
class DesirabilityScore:
    """How desirable a molecule is, with the part of each property.

    Attributes:
        parts: each goal with its prediction.
    """

    parts: tuple[JudgedProperty, ...]

    @property
    def overall(self) -> float | None:
        """The weighted geometric mean of the desirabilities, or None if a prediction is missing."""
        return geometric_mean(
            [part.desirability for part in self.parts], [part.goal.weight for part in self.parts]
        )

    @property
    def interval(self) -> tuple[float, float] | None:
        """The overall desirability with all properties at the worst, and the best, ends of their
        intervals, or None if a prediction is missing.
        """
        if any(part.prediction is None for part in self.parts):
            return None
        weights = [part.goal.weight for part in self.parts]
        ends = zip(*(p.goal.within(p.prediction) for p in self.parts if p.prediction), strict=True)
        worst, best = (geometric_mean(each, weights) or 0.0 for each in ends)
        return worst, best

    @property
    def desirabilities(self) -> tuple[float, ...]:
        """The desirability of each property, 0 where it is unknown."""
        return tuple(part.desirability or 0.0 for part in self.parts)

    @property
    def met(self) -> int:
        """How many goals are met."""
        return sum(part.met for part in self.parts)

    @property
    def columns(self) -> dict[str, float | None]:
        """The cells of a table: `desirability`, then `pIC50_desirability` and so on."""
        parts = {f"{part.goal.of.name}_desirability": part.desirability for part in self.parts}
        return {"desirability": self.overall, **parts}

    def __repr__(self) -> str:
        return f"DesirabilityScore({self})"

    def __str__(self) -> str:
        overall = "unknown" if self.overall is None else f"{self.overall:.2f}"
        parts = ", ".join(
            f"{part.goal} {'unknown' if part.desirability is None else f'{part.desirability:.2f}'}"
            for part in self.parts
        )
        return f"desirability {overall} ({parts})"

    def _repr_html_(self) -> str:
        rows = [
            (
                part.goal.explanation,
                "" if part.prediction is None else part.prediction.in_full,
                "" if part.desirability is None else f"{part.desirability:.2f}",
            )
            for part in self.parts
        ]
        return (
            f"<p>{escape(str(self))}</p>{table_html(('goal', 'prediction', 'desirability'), rows)}"
        )


@dataclass(frozen=True)
class PropertyProfile:
    """What is wished for several properties, which `gx.profile` reads from a text.

    Attributes:
        goals: the goal for each property.
    """

    goals: tuple[PropertyGoal, ...]

    def score(self, predictions: Mapping[str, Prediction]) -> DesirabilityScore:
        """Return how desirable a molecule is, from its predictions by property."""
        return DesirabilityScore(
            tuple(JudgedProperty(goal, predictions.get(goal.of.name)) for goal in self.goals)
        )

    def to_frame(self, predictions: Sequence[Mapping[str, Prediction] | None]) -> "pd.DataFrame":
        """Return a table of desirabilities, with a row for each molecule, as `gx.predict` gives it.

        The row of a molecule that was left out is empty. A frame's index is kept.
        """
        import pandas as pd

        rows = [{} if each is None else self.score(each).columns for each in predictions]
        labels = getattr(predictions, "labels", None)
        return pd.DataFrame(rows, index=labels, columns=list(self.score({}).columns))

    @property
    def explanation(self) -> str:
        """The goals as text, a line for each, and how they are joined."""
        weights = "" if all(goal.weight == 1 for goal in self.goals) else "weighted "
        joined = f"Together: the {weights}geometric mean, in which a single 0 makes all 0."
        return "\n".join([*(f"{goal.explanation}." for goal in self.goals), joined])

    def __str__(self) -> str:
        return ", ".join(map(str, self.goals))

    def __repr__(self) -> str:
        return f"PropertyProfile({self})"

    def _repr_html_(self) -> str:
        return "".join(f"<p>{escape(line)}</p>" for line in self.explanation.split("\n"))


def geometric_mean(
    desirabilities: Sequence[float | None], weights: Sequence[float]
) -> float | None:
    """Return the weighted geometric mean of desirabilities, or None if one is unknown."""
    total = 0.0
    for desirability, weight in zip(desirabilities, weights, strict=True):
        if desirability is None:
            return None
        total += weight * (math.log(desirability) if desirability > 0 else -math.inf)
    return math.exp(total / sum(weights))
