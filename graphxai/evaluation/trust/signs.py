"""The signs of trust: each is one measurement, with a level and words.

The limits are defined here, with the reasons for them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from graphxai.datasets.training_set import TrainingSet
from graphxai.evaluation.ground_truth import rank_correlation
from graphxai.evaluation.sanity_checks import relative_change
from graphxai.explanation.explanation import Explanation
from graphxai.explanation.ledger import Ledger
from graphxai.explanation.prediction import Prediction
from graphxai.visualization.text import minus_signs

from .training_images import TrainingImages

if TYPE_CHECKING:
    from rdkit.Chem import Mol

Level = Literal["good", "caution", "warning", "unknown"]


@dataclass(frozen=True)
class Limits:
    """Where a sign stops being good, and where it becomes a warning.

    `good > bad` if large values are good, `good < bad` if small values are.
    """

    good: float
    bad: float

    def level(self, value: float) -> Level:
        """The level of a value; NaN is unknown."""
        if np.isnan(value):
            return "unknown"
        sign = 1 if self.good > self.bad else -1
        if sign * value >= sign * self.good:
            return "good"
        return "caution" if sign * value >= sign * self.bad else "warning"


# On test data, judged by the lower end of the interval if there is one. Chance has a ROC-AUC of
# 0.5, and predicting the mean has an R2 of 0. Accuracy is for several classes, such as ten digits.
ROC_AUC = Limits(0.8, 0.7)
R2 = Limits(0.6, 0.3)
ACCURACY = Limits(0.9, 0.7)
# Tanimoto similarity (ECFP4) to the nearest training compound. Among the BACE training compounds,
# 5 % have no neighbour closer than 0.5, and 1 % none closer than 0.4.
SIMILARITY = Limits(0.5, 0.4)
# Cosine similarity of grey values to the nearest training picture. Of the MNIST test digits, 5 %
# have none closer than 0.76, and 1 % none closer than 0.70.
LIKENESS = Limits(0.76, 0.7)
# Mean Spearman correlation of three methods. They answer different questions: the quartiles are
# 0.38 and 0.56 on BACE test compounds, 0.50 and 0.59 on test digits. So only disagreement is a
# sign, and only a caution.
AGREEMENT = Limits(0.2, -np.inf)
AGREED = 0.4  # below this, they agree only in part
# Probability of the predicted class. Of the 10,000 MNIST test digits, 9,780 have 0.9 or more, and
# 99 % of these are right; 129 have 0.7 to 0.9, 71 % right; of the other 91, half are wrong.
CONFIDENCE = Limits(0.9, 0.7)
CALIBRATION = Limits(0.02, 0.1)  # expected calibration error on test data
RESIDUAL = Limits(1e-3, 0.1)  # unexplained part of the ledger, as a share of its terms
REWRITING = Limits(1e-3, 0.05)  # relative change of relevance, which should be zero
NOISE = Limits(0.2, 0.5)  # relative change of relevance under 5 % noise on the embeddings

UNSIGNED = ("gae", "gae_rollout")  # their scores have no sign


@dataclass(frozen=True)
class Sign:
    """One measurement: name, level, value (None if there is none), words and figures."""

    name: str
    level: Level
    value: float | None
    text: str
    figures: str = ""

    @property
    def sentence(self) -> str:
        """Words and figures."""
        return f"{self.text} ({self.figures})" if self.figures else self.text


def score_sign(metadata: Mapping[str, Any], prediction: Prediction) -> Sign:
    """The model's test score for the explained task, from the checkpoint's metadata."""
    measure, limits = _measure(metadata, prediction)
    value, low = _test_score(metadata, prediction, measure)
    if np.isnan(value):
        summary = str(metadata.get("summary", ""))
        text = "the model's score on test data is unknown"
        return Sign("test score", "unknown", None, text, summary)
    level = limits.level(value if np.isnan(low) else low)
    words = {"good": "well", "caution": "moderately", "warning": "badly"}[level]
    figures = f"{measure} {_plain(value)}"
    if not np.isnan(low):
        figures += f", at least {_plain(low)} at 95 %"
    return Sign("test score", level, value, f"the model does {words} on test data", figures)


def _measure(metadata: Mapping[str, Any], prediction: Prediction) -> tuple[str, Limits]:
    if prediction.label is None:
        return "R2", R2
    if "accuracy" in _mapping(metadata.get("test")):
        return "accuracy", ACCURACY
    return "ROC-AUC", ROC_AUC


def _test_score(
    metadata: Mapping[str, Any], prediction: Prediction, measure: str
) -> tuple[float, float]:
    """A score and the lower end of its interval; NaN for what the metadata lack.

    The metadata have one of three forms. A model trained on a user's table has scores by task,
    predictor and measure. The bundled BACE model has ROC-AUC for its class, and for its value the
    RMSE of the model and of the training mean. The bundled digit model has its accuracy.
    """
    if measure == "accuracy":
        test = _mapping(metadata.get("test"))
        interval = test.get("interval")
        low = interval[0] if isinstance(interval, list | tuple) and interval else None
        return _number(test.get("accuracy")), _number(low)
    scores = _mapping(metadata.get("scores"))
    of_task = _mapping(_mapping(scores.get(prediction.task)).get("scores"))
    found = _mapping(of_task.get("graphormer")).get(measure)
    if isinstance(found, list | tuple) and found:
        return _number(found[0]), _number(found[1] if len(found) > 1 else None)
    if measure == "ROC-AUC":
        own = _mapping(scores.get("graphormer"))
        return _number(own.get("roc_auc")), _number(own.get("roc_auc_low"))
    rmse = _number(scores.get(f"{prediction.task} RMSE"))
    mean = _number(scores.get(f"{prediction.task} RMSE of the training mean"))
    return (1 - (rmse / mean) ** 2 if mean else np.nan), np.nan


def distance_sign(training: TrainingSet | None, mol: "Mol | None") -> tuple[Sign, str | None]:
    """The similarity of the molecule to the training set, and the nearest training compound."""
    name = "training set"
    if mol is None or training is None:
        what = "graphs" if mol is None else "compounds"
        text = f"its distance from the training {what} is unknown"
        return Sign(name, "unknown", None, text), None
    similarity, nearest, known = training.nearest(mol)
    unseen = sorted({atom.GetSymbol() for atom in mol.GetAtoms()} - training.elements)
    level: Level = "warning" if unseen else SIMILARITY.level(similarity)
    figures = f"Tanimoto {similarity:.2f} to the nearest training compound"
    if unseen:
        text = f"no training compound contains {' or '.join(unseen)}"
    elif known:
        text, figures = "it is a training compound, so its prediction does not test the model", ""
    elif level == "good":
        text = "a similar compound was in training"
    elif level == "caution":
        text = "it lies at the edge of what the model has seen"
    else:
        text = "it is unlike anything the model has seen"
    return Sign(name, level, similarity, text, figures), nearest


def likeness_sign(training: TrainingImages | None, image: NDArray[np.floating]) -> Sign:
    """The similarity of a picture (H, W) to the training pictures, if these are available."""
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


def confidence_sign(metadata: Mapping[str, Any], prediction: Prediction) -> Sign:
    """How sure the model is of its class, and whether its probabilities held on test data.

    If the prediction is unsure, explaining one class is only half the story.
    """
    first, second = sorted(prediction.probabilities.items(), key=lambda item: -item[1])[:2]
    value, error = first[1], _number(_mapping(metadata.get("test")).get("ece"))
    level = CONFIDENCE.level(value)
    if level != "good":
        figures = ", ".join(f"{name}: {share:.2f}" for name, share in (first, second))
        text = f"the model is not sure that it is {first[0]}: also explain it against {second[0]}"
        return Sign("confidence", level, value, text, figures)
    level, figures = CALIBRATION.level(error), f"probability {value:.2f}"
    if level == "unknown":
        text = "the model is sure of its class, but its calibration is unknown"
        return Sign("confidence", level, value, text, figures)
    figures += f", calibration error {error:.3f}"
    held = "and its probabilities held" if level == "good" else "but its probabilities did not hold"
    text = f"the model is sure of its class, {held} on test data"
    return Sign("confidence", level, value, text, figures)


def agreement_sign(explanations: Mapping[str, Explanation]) -> Sign:
    """Mean rank correlation over all pairs of methods.

    Signed scores are compared as they are. If one method has unsigned scores, the other's
    magnitudes are taken.
    """
    values = []
    for one, two in combinations(explanations.values(), 2):
        first, second = one.relevance, two.relevance
        if one.method in UNSIGNED or two.method in UNSIGNED:
            first, second = np.abs(first), np.abs(second)
        values.append(rank_correlation(first, second) if len(first) > 2 else np.nan)
    names = ", ".join(explanations)
    if np.isnan(values).all():
        text = "the methods could not be compared"
        return Sign("agreement", "unknown", None, text, names)
    mean = float(np.nanmean(values))
    level = AGREEMENT.level(mean)
    verb = "disagree" if level != "good" else "agree" if mean >= AGREED else "agree in part"
    figures = f"mean rank correlation {_plain(mean)}: {names}"
    count = {2: "two", 3: "three"}.get(len(explanations), str(len(explanations)))
    return Sign("agreement", level, mean, f"{count} unrelated methods {verb}", figures)


def residual_sign(ledger: Ledger) -> Sign:
    """The unexplained part of the ledger, as a share of its terms."""
    terms = (ledger.nodes, ledger.graph_token, ledger.biases, *ledger.structure.values())
    share = abs(ledger.unexplained) / (sum(map(abs, terms)) or 1.0)
    level = RESIDUAL.level(share)
    if level == "good":
        return Sign("ledger", level, share, "relevance adds up to the output")
    text = "relevance does not add up to the output"
    return Sign("ledger", level, share, text, f"off by {100 * share:.1f} % of the sum of its terms")


def rewriting_sign(explanation: Explanation, others: Sequence[NDArray[np.floating]]) -> Sign:
    """The change of relevance (N,) when the same input is rewritten or renumbered."""
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


def noise_sign(explanation: Explanation, others: Sequence[NDArray[np.floating]]) -> Sign:
    """The largest change of relevance (N,) under small noise on the embeddings (Yeh 2019)."""
    change = _largest(explanation.relevance, others)
    if np.isnan(change):
        return Sign("noise", "unknown", None, "all relevance is zero")
    level = NOISE.level(change)
    text = "it is stable" if level == "good" else "it is unstable"
    return Sign(
        "noise",
        level,
        change,
        f"{text} under noise",
        f"5 % noise changes relevance by {100 * change:.0f} %",
    )


def _largest(relevance: NDArray[np.floating], others: Sequence[NDArray[np.floating]]) -> float:
    """The largest relative change; NaN if there is none."""
    changes = np.array([relative_change(relevance, other) for other in others])
    return float("nan") if np.isnan(changes).all() else float(np.nanmax(changes))


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else float("nan")


def _plain(value: float) -> str:
    return minus_signs(f"{value:z.2f}")
