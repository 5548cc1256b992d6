"""Score a table's model on its test molecules, beside its teacher, two forests and a dummy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphxai.learning.bounds import kept_bounds
from graphxai.learning.calibration import Calibration
from graphxai.learning.scores import dummy_predictions, measure, teacher_ahead, verdicts
from graphxai.learning.splitting import SplitTable
from graphxai.learning.table_settings import TableSettings
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
    """

    by_target: dict[str, Any]
    notes: list[str]


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
    scores = _test_scores(taught, calibration.test_readings, split)
    ahead = teacher_ahead(
        split.tasks,
        taught.teacher_on_valid,
        calibration.valid_readings,
        split.valid.y,
        stored=settings.keep_teacher,
    )
    notes = [*_ensemble_note(settings), *_bound_notes(scores), *verdicts(scores), *ahead]
    return TableScores(scores, notes)


def _test_scores(
    taught: TaughtModel, readings: Sequence[FloatArray], split: SplitTable
) -> dict[str, Any]:
    """Score a model, its teacher, two forests and a dummy on the test part, by target.

    Args:
        readings: the model's probabilities and values for the test part, by task.
    """
    train, test, teacher = split.train, split.test, taught.teacher
    features = MoleculeFeatures(test.smiles)
    forests = {name: taught.forests[name].predict(features) for name in BASELINES}
    by_teacher = [None] * len(split.tasks) if teacher is None else teacher.predict(features)
    by_target: dict[str, dict[str, Any]] = {}
    for k, task in enumerate(split.tasks):
        tested = ~np.isnan(test.y[:, k])
        learned = train.y[:, k][~np.isnan(train.y[:, k])]
        about = {"kind": task.kind, "unit": task.unit, "trained": len(learned)}
        by_target[task.name] = about | {"n": 0, "scores": {}}
        if len(learned) and task.kind == "regression":
            everything = {"graphormer": readings[k], "teacher": by_teacher[k]}
            everything |= {name: forests[name][k] for name in BASELINES}
            readings_of = {name: v for name, v in everything.items() if v is not None}
            if (kept := kept_bounds(readings_of, test.bounds[:, k])) is not None:
                by_target[task.name]["bounds"] = kept
        if not len(learned) or not tested.any():
            continue
        predictions = {"graphormer": readings[k][tested]}
        if (teacher_readings := by_teacher[k]) is not None:
            predictions["teacher"] = teacher_readings[tested]
        predictions |= {name: forests[name][k][tested] for name in BASELINES}
        predictions["dummy"] = dummy_predictions(task, learned, int(tested.sum()))
        by_target[task.name] |= measure(task.kind, predictions, test.y[:, k][tested])
    return by_target


def _bound_notes(scores: Mapping[str, Any]) -> list[str]:
    """Say how many test molecules with a bound are predicted within it."""
    return [
        f"of {kept['n']:,} test molecules of which only a bound is known, this model predicts"
        f" {kept['kept']['graphormer']:.0%} within it for {name}"
        for name, of_target in scores.items()
        if (kept := of_target.get("bounds"))
    ]


def _ensemble_note(settings: TableSettings) -> list[str]:
    """Say how the networks of an ensemble differ."""
    if settings.ensemble == 1:
        return []
    last = settings.seed + settings.ensemble - 1
    return [
        f"the mean of {settings.ensemble} networks, trained with the seeds {settings.seed}"
        f" to {last}"
    ]
