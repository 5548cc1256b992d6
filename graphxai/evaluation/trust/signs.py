"""The signs of trust. Each is one measurement with a level and words.

The limits are defined here, with the reasons for them. Training pictures are not bundled. They are
available if the data folder holds the files that the checkpoint's metadata name, with the same
digests.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from graphxai.contract.prediction_metrics import held_out_score
from graphxai.evaluation.statistics import relative_change
from graphxai.explanation.explanation import Explanation
from graphxai.explanation.ledger import Ledger
from graphxai.explanation.prediction import Prediction
from graphxai.runtime.download import data_root

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
CALIBRATION = Limits(0.02, 0.1)  # the expected calibration error on test data
RESIDUAL = Limits(1e-3, 0.1)  # the unexplained part of the ledger, as a share of its terms
REWRITING = Limits(1e-3, 0.05)  # the relative change of relevance, which should be zero


@dataclass(frozen=True)
class Sign:
    """One measurement that speaks for or against an explanation.

    Args:
        name: what was measured.
        level: how good the value is.
        value: the measured value, or None if there is none.
        text: the finding as text.
        figures: the figures on which the finding rests.
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
        """The finding as text, with the figures or structures in parentheses."""
        evidence = self.figures or "; ".join(self.structures)
        return f"{self.text} ({evidence})" if evidence else self.text


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


def likeness_sign(training: "TrainingImages | None", image: NDArray[np.floating]) -> Sign:
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
    changes = np.array([relative_change(explanation.relevance, other) for other in others])
    change = float("nan") if np.isnan(changes).all() else float(np.nanmax(changes))
    if np.isnan(change):
        return Sign(name, "unknown", None, f"whether it depends on {how} could not be tested")
    level = REWRITING.level(change)
    if level == "good":
        return Sign(name, level, change, f"it does not depend on {how}")
    return Sign(
        name, level, change, f"it depends on {how}", f"relevance changes by {100 * change:.1f} %"
    )


@dataclass(frozen=True, eq=False)
class TrainingImages:
    """Training pictures of one `shape` (H, W), as rows of unit length, `directions` (n, H * W)."""

    directions: NDArray[np.float32]
    shape: tuple[int, int]

    def nearest(self, image: NDArray[np.floating]) -> float:
        """Return the largest cosine similarity of grey values (H, W) to a training picture.

        It is NaN for a picture of another size, and for an all-black picture.
        """
        length = float(np.linalg.norm(image))
        if image.shape != self.shape or not length:
            return float("nan")
        return float((self.directions @ (image.ravel() / length).astype(np.float32)).max())


def training_images_of(model: Any) -> TrainingImages | None:
    """Return the training pictures of a model, or None if they are not available."""
    metadata = getattr(model.origin, "metadata", None) or {}
    files, count = metadata.get("files"), metadata.get("train_images")
    if not isinstance(files, dict) or not isinstance(count, int):
        return None
    for name, digest in files.items():
        for folder in (data_root() / "mnist", data_root()):
            path = folder / name
            if "train" in name and "images" in name and path.is_file():
                return _read(path, str(digest), count, path.stat().st_mtime_ns)
    return None


@lru_cache(maxsize=1)
def _read(path: Path, digest: str, count: int, modified: int) -> TrainingImages | None:
    """Read the first `count` pictures of a file, or return None if it was not used in training."""
    from graphxai.datasets.mnist import read_idx

    if hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest() != digest:
        return None
    images = read_idx(path)[:count]  # (n, H, W)
    rows = images.reshape(len(images), -1).astype(np.float32)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return TrainingImages(rows / np.maximum(lengths, 1.0), images.shape[1:])
