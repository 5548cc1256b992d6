"""Score a table's model on its test molecules, beside its teacher, two forests and a dummy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphxai.contract.tasks import Task
from graphxai.learning.calibration import Calibration
from graphxai.learning.official import official_note, official_scores
from graphxai.learning.scores import (
    bound_notes,
    dummy_predictions,
    kept_bounds,
    measure,
    teacher_ahead,
    verdicts,
)
from graphxai.learning.settings import TableSettings
from graphxai.learning.splitting import SplitTable
from graphxai.learning.teachers.stacking import MoleculeFeatures
from graphxai.learning.training import TaughtModel

__all__ = ["TableScores", "score_table"]

FloatArray = NDArray[np.float64]
BASELINES = ("forest", "descriptor_forest")


@dataclass(frozen=True, eq=False)
class TableScores:
    """The scores of a model, and what to know about them.

    Attributes:
        by_target: scores on the test part, JSON values.
        notes: what a reader of the scores should know.
        official: the score of OGB's evaluator, see `learning.official`; None for other tables.
    """

    by_target: dict[str, Any]
    notes: list[str]
    official: dict[str, Any] | None = None


def score_table(
    taught: TaughtModel, calibration: Calibration, split: SplitTable, settings: TableSettings
) -> TableScores:
    """Score a calibrated model, its teacher, two forests and a dummy on the test part.

    Args:
        taught: the model and its teacher.
        calibration: what the calibrated model says about the molecules held out.
        split: the table.
        settings: settings of the run.
    """
    predictions = _test_predictions(taught, calibration, split)
    scores = {
        task.name: _task_scores(
            task, predictions[k], split.train.y[:, k], split.test.y[:, k], split.test.bounds[:, k]
        )
        for k, task in enumerate(split.tasks)
    }
    ahead = teacher_ahead(scores, stored=settings.keep_teacher)
    official = official_scores(taught.model, split.table)
    notes = [*_ensemble_note(settings), *bound_notes(scores), *verdicts(scores), *ahead]
    return TableScores(scores, [*official_note(official), *notes], official)


def _test_predictions(
    taught: TaughtModel, calibration: Calibration, split: SplitTable
) -> list[dict[str, FloatArray]]:
    """Return, for each task, what every predictor that knows the task says of the test part."""
    features = MoleculeFeatures(split.test.smiles)
    teacher = [] if taught.teacher is None else taught.teacher.predict(features)
    by_predictor: dict[str, Mapping[int, FloatArray | None]] = {
        "graphormer": dict(enumerate(calibration.test_readings)),
        "teacher": dict(enumerate(teacher)),
        **{name: taught.forests[name].predict(features) for name in BASELINES},
    }
    return [
        {
            name: readings
            for name, by_task in by_predictor.items()
            if (readings := by_task.get(k)) is not None
        }
        for k in range(len(split.tasks))
    ]


def _task_scores(
    task: Task,
    predictions: Mapping[str, FloatArray],
    trained: FloatArray,
    y: FloatArray,
    bounds: FloatArray,
) -> dict[str, Any]:
    """Score predictions of a task on the test part, beside those of a dummy.

    Args:
        task: the task.
        predictions: probabilities or values (n,), (n, classes) for the test part, by predictor.
        trained: the labels of the training part (m,), NaN where one is missing.
        y: the labels of the test part (n,), NaN where one is missing.
        bounds: the lowest and highest possible values (n, 2) where a bound is all that is known.

    Returns:
        JSON values. There are scores only if both parts have labels, see `measure`.
    """
    learned, tested = trained[~np.isnan(trained)], ~np.isnan(y)
    scores = {"kind": task.kind, "unit": task.unit, "trained": len(learned), "n": 0, "scores": {}}
    if not len(learned):
        return scores
    if task.kind == "regression" and (kept := kept_bounds(predictions, bounds)) is not None:
        scores["bounds"] = kept
    if tested.any():
        measured = {name: readings[tested] for name, readings in predictions.items()}
        measured["dummy"] = dummy_predictions(task, learned, int(tested.sum()))
        scores |= measure(task.kind, measured, y[tested])
    return scores


def _ensemble_note(settings: TableSettings) -> list[str]:
    """Say how the networks of an ensemble differ."""
    if settings.ensemble == 1:
        return []
    last = settings.seed + settings.ensemble - 1
    return [
        f"the mean of {settings.ensemble} networks, trained with the seeds {settings.seed}"
        f" to {last}"
    ]
