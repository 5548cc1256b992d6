"""Score a table's model on its test molecules, beside its teacher, two forests and a dummy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphxai.learning.calibration import Calibration, fit_temperatures
from graphxai.learning.predicting import task_readings
from graphxai.learning.scores import dummy_predictions, measure, verdicts
from graphxai.learning.splitting import SplitTable, with_share
from graphxai.learning.table_settings import TableSettings
from graphxai.learning.teachers.stacking import MoleculeFeatures
from graphxai.learning.training import TaughtModel, fit_networks, teach_networks

__all__ = ["TableScores", "score_table", "teacher_ahead"]

FloatArray = NDArray[np.float64]
BASELINES = ("forest", "descriptor_forest")
LEARNING_CURVE = (0.125, 0.25, 0.5)  # fractions of the training part; the run itself uses all


@dataclass(frozen=True, eq=False)
class TableScores:
    """How good a model is.

    Attributes:
        by_target: scores on the test part, JSON values.
        learning_curve: scores with smaller training parts; empty if they were not wanted.
        notes: what a reader of the scores should know.
    """

    by_target: dict[str, Any]
    learning_curve: list[dict[str, Any]]
    notes: list[str]


def score_table(
    taught: TaughtModel,
    calibration: Calibration,
    split: SplitTable,
    settings: TableSettings,
    out: Path,
    log: Callable[[str], None],
) -> TableScores:
    """Score a calibrated model on the test part, and train on less if a learning curve is wanted.

    Args:
        taught: the model and its teacher.
        calibration: what the calibrated model says about the molecules held out.
        split: the table.
        settings: settings of the run.
        out: folder of the run, for the networks of a learning curve.
        log: called with a line of text at each step.
    """
    curve = _learning_curve(split, settings, out, log) if settings.learning_curve else []
    scores = _test_scores(taught, calibration.test_readings, split)
    ahead = teacher_ahead(
        taught.teacher_on_valid, calibration.valid_readings, split, stored=settings.keep_teacher
    )
    notes = [*_ensemble_note(settings), *verdicts(scores), *ahead]
    if curve:
        curve.append({"share": 1.0, "n": len(split.parts.train), "targets": scores})
    return TableScores(scores, curve, notes)


def _test_scores(
    taught: TaughtModel, readings: Sequence[FloatArray], split: SplitTable
) -> dict[str, Any]:
    """Score a model, its teacher, two forests and a dummy on the test part, by target.

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
        if not len(learned) or not tested.any():
            continue
        predictions = {"graphormer": readings[k][tested]}
        if (of_teacher := by_teacher[k]) is not None:
            predictions["teacher"] = of_teacher[tested]
        predictions |= {name: forests[name][k][tested] for name in BASELINES}
        predictions["dummy"] = dummy_predictions(task, learned, int(tested.sum()))
        by_target[task.name] |= measure(task.kind, predictions, test.y[:, k][tested])
    return by_target


def teacher_ahead(
    by_teacher: Sequence[FloatArray | None],
    by_network: Sequence[FloatArray],
    split: SplitTable,
    *,
    stored: bool,
) -> list[str]:
    """Name the targets that the teacher predicts better than the model on the validation part.

    Args:
        by_teacher: the teacher's probabilities and values for the validation part, by task, None
            for a task that it does not have; empty without a teacher.
        by_network: the model's, by task.
        split: the table.
        stored: whether the teacher's predictions will be shown beside the model's.
    """
    notes = []
    for k, (task, of_teacher) in enumerate(zip(split.tasks, by_teacher, strict=False)):
        labels = split.valid.y[:, k]
        labelled = ~np.isnan(labels)
        if of_teacher is None or not labelled.any():
            continue
        predictions = {"network": by_network[k][labelled], "teacher": of_teacher[labelled]}
        scores = measure(task.kind, predictions, labels[labelled])
        metric, (middle, _, high) = next(iter(scores["differences"]["teacher"].items()))
        if high is not None and high < 0:
            notes.append(
                f"the teacher predicts {task.name} better than this model on the calibration"
                f" molecules ({metric} {middle:+.3f}): "
                + (
                    "its predictions are shown beside the model's"
                    if stored
                    else "--resume --keep-teacher stores its predictions beside the model's"
                )
            )
    return notes


def _ensemble_note(settings: TableSettings) -> list[str]:
    """Say how the networks of an ensemble differ."""
    if settings.ensemble == 1:
        return []
    last = settings.seed + settings.ensemble - 1
    return [
        f"the mean of {settings.ensemble} networks, trained with the seeds {settings.seed}"
        f" to {last}"
    ]


def _learning_curve(
    split: SplitTable, settings: TableSettings, out: Path, log: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Train a single network, with its own teacher, on each of several shares of the training part.

    Returns:
        The share, the number of training molecules, and the scores on the same test part, by share.
    """
    settings = replace(settings, ensemble=1)
    curve = []
    for share in LEARNING_CURVE:
        log(f"learning curve: {share:.1%} of the training part")
        folder = out / "learning-curve" / f"{share:g}"
        fewer = with_share(split, share, settings.seed)
        networks = fit_networks(fewer, settings, folder, log)
        taught = teach_networks(networks, fewer, settings, folder, log)
        fit_temperatures(taught.model, fewer.valid.graphs, fewer.valid.y)
        readings = task_readings(taught.model, fewer.test.graphs)
        scores = _test_scores(taught, readings, fewer)
        curve.append({"share": share, "n": len(fewer.parts.train), "targets": scores})
    return curve
