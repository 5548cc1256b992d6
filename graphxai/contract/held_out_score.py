"""Read a model's score on test data from the metadata of its checkpoint."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from graphxai.visualization.text import minus_signs

FEWEST_PAIRS = 20  # matched pairs, below which no figure is given
KINDS = {  # of pairs beside those with a compound that was tested
    "both": "where both compounds were tested",
    "of_folds": "of training pairs within one held-out fold",
}


@dataclass(frozen=True)
class HeldOutScore:
    """A model's score for one task on test data, with NaN for what is unknown.

    Args:
        low: the lower end of its interval at 95 %.
        pairs: how well it predicts what a measured exchange changes, as text; "" if unknown.
    """

    measure: Literal["R2", "accuracy", "ROC-AUC"]
    value: float
    low: float
    calibration_error: float
    pairs: str = ""

    @property
    def figures(self) -> str:
        """The score with its interval and the calibration error, as text."""
        figures = f"{self.measure} {_as_text(self.value)}"
        if not math.isnan(self.low):
            figures += f", at least {_as_text(self.low)} at 95 %"
        if not math.isnan(self.calibration_error):
            figures += f", calibration error {self.calibration_error:.3f}"
        return f"{figures}; {self.pairs}" if self.pairs else figures


def held_out_score(metadata: Mapping[str, Any], task: str, *, is_class: bool) -> HeldOutScore:
    """Return the score for a task, given the metadata of a checkpoint.

    The metadata have one of three forms. A model trained on a user's table has scores by task,
    predictor and measure. The bundled BACE model has ROC-AUC for its class, and for its value the
    RMSE of the model and of the training mean. The bundled digit model has its accuracy.
    """
    test = _mapping(metadata.get("test"))
    error = _as_number(test.get("ece"))
    if is_class and "accuracy" in test:
        interval = test.get("interval")
        low = interval[0] if isinstance(interval, list | tuple) and interval else None
        return HeldOutScore("accuracy", _as_number(test.get("accuracy")), _as_number(low), error)
    measure: Literal["R2", "ROC-AUC"] = "ROC-AUC" if is_class else "R2"
    value, low = _in_tables(_mapping(metadata.get("scores")), task, measure)
    pairs = _mapping(_mapping(_mapping(metadata.get("scores")).get(task)).get("pairs"))
    of_test = {name: each for name, each in pairs.items() if name not in KINDS}  # one line of trust
    return HeldOutScore(measure, value, low, error, "" if is_class else pairs_text(of_test))


def pairs_text(pairs: Mapping[str, Any]) -> str:
    """Say how well measured changes are predicted, or why there is no figure, or "" if unknown.

    Args:
        pairs: as in the scores of a trained model: `n`, maybe `r` and `right`; the same for the
            pairs of which `both` compounds were tested, and for training pairs `of_folds` that were
            held out together; and of either kind, by method, for the `relevance` at the change.
    """
    if any(map(pairs.get, KINDS)):
        alone = pairs_text({n: v for n, v in pairs.items() if n not in KINDS})
        more = [f"{KINDS[n]}, {pairs_text(_mapping(pairs[n]))}" for n in KINDS if pairs.get(n)]
        return "; ".join([alone, *more])
    if relevance := _mapping(pairs.get("relevance")):
        alone = pairs_text({name: v for name, v in pairs.items() if name != "relevance"})
        each = [f"by {name} {_figures_of_pairs(_mapping(v))}" for name, v in relevance.items()]
        return f"{alone} (relevance at the change: {'; '.join(each)})"
    n, r, right = (_as_number(pairs.get(name)) for name in ("n", "r", "right"))
    if math.isnan(n):
        return ""
    counted = "1 measured pair" if n == 1 else f"{n:,.0f} measured pairs"
    if n < FEWEST_PAIRS:
        return f"{counted}, too few for a figure (at least {FEWEST_PAIRS})"
    if math.isnan(r):
        return f"{counted} without a change, of which there is no figure"
    return f"changes in {counted}: r {_as_text(r)}, {right:.0%} of signs right"


def _figures_of_pairs(pairs: Mapping[str, Any]) -> str:
    """Return r and the share of right signs of `n` pairs, or why there are none."""
    n, r, right = (_as_number(pairs.get(name)) for name in ("n", "r", "right"))
    if n < FEWEST_PAIRS or math.isnan(r):
        return f"no figure of {n:.0f}"
    return f"r {_as_text(r)}, {right:.0%} right of {n:.0f}"


def _in_tables(scores: Mapping[str, Any], task: str, measure: str) -> tuple[float, float]:
    """Return a score and the lower end of its interval."""
    of_task = _mapping(_mapping(scores.get(task)).get("scores"))
    score = _mapping(of_task.get("graphormer")).get(measure)
    if isinstance(score, list | tuple) and score:
        return _as_number(score[0]), _as_number(score[1] if len(score) > 1 else None)
    if measure == "ROC-AUC":
        model_scores = _mapping(scores.get("graphormer"))
        return _as_number(model_scores.get("roc_auc")), _as_number(model_scores.get("roc_auc_low"))
    rmse = _as_number(scores.get(f"{task} RMSE"))
    mean = _as_number(scores.get(f"{task} RMSE of the training mean"))
    return 1 - (rmse / mean) ** 2 if mean else math.nan, math.nan


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _as_number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else math.nan


def _as_text(value: float) -> str:
    return minus_signs(f"{value:z.2f}")
