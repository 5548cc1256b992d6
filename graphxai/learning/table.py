"""Train a model on your own table: split, fit, teach, calibrate, score, write."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from graphxai.learning.calibration import Calibration, calibrate_table
from graphxai.learning.card import shares_text
from graphxai.learning.cleaned_table import CleanTable
from graphxai.learning.fit import require_hardware
from graphxai.learning.interruption import resumable_in
from graphxai.learning.splitting import SplitTable, split_table, with_share
from graphxai.learning.table_scores import TableScores, score_table
from graphxai.learning.table_settings import TableSettings
from graphxai.learning.training import TaughtModel, fit_networks, teach_networks
from graphxai.learning.writing import begin_run, write_run
from graphxai.runtime.options import with_options

__all__ = ["train_table"]

LEARNING_CURVE = (0.125, 0.25, 0.5)  # fractions of the training part; the run itself uses all


@dataclass(frozen=True, eq=False)
class TrainedTable:
    """The result of training on a table.

    Attributes:
        taught: the calibrated model, and its teacher.
        calibration: how the model was calibrated.
        scores: the model's scores on the test part.
        point: the model's point on the learning curve, as JSON values.
    """

    taught: TaughtModel
    calibration: Calibration
    scores: TableScores
    point: dict[str, Any]


def train_table(
    table: CleanTable,
    out: str | Path,
    settings: TableSettings | None = None,
    *,
    command: str = "",
    log: Callable[[str], None] = lambda line: None,
    **options: Any,
) -> Path:
    """Train a Graphormer on a table and score it on its test molecules.

    The network is fitted to the labels of the training part. Then it also learns from a teacher, a
    weighted mean of forests and Gaussian processes. It is calibrated on the validation part and
    scored on the test part, beside its teacher, two forests and a dummy.

    Args:
        table: molecules and labels.
        out: folder of the run, with `hygiene.json`, `hygiene.csv`, `test.csv` (predictions);
            the checkpoint is its sub-folder `model`, with `scores.json`, `training.csv` and
            `held_out.csv`.
        settings: settings of the run, by default `TableSettings()`.
        command: how the run was started, for the model card.
        log: called with a line of text at each stage.
        options: fields of `TableSettings` to change, such as `seed=1` or `ensemble=3`.

    Returns:
        The checkpoint folder.

    Raises:
        ImportError: the extra `train` is not installed.
        KeyboardInterrupt: the run was interrupted; the message says how to continue it.
        TypeError: there is no such option.
        ValueError: `out` already contains a run and `resume` is False, or the run has another table
            or other settings; the split leaves too little to train on; or the settings contradict
            each other.
    """
    settings = with_options(settings or TableSettings(), options, "train_table")
    require_hardware(settings.accelerator, settings.devices, settings.precision)
    out = Path(out)
    split = split_table(table, settings)
    for warning in split.warnings:
        log(warning)
    begin_run(out, split, settings)
    with resumable_in(out):
        log(str(split))
        shares = (1.0, *LEARNING_CURVE) if settings.learning_curve else (1.0,)
        # A generator, so that the networks of one share are gone before the next are trained.
        runs = (_train(split, share, settings, out, log) for share in shares)
        whole = next(runs)
        curve = [run.point for run in runs]
        if curve:
            curve.append(whole.point)
        return write_run(
            out, split, whole.taught, whole.calibration, whole.scores, curve, settings, command
        )


def _train(
    split: SplitTable,
    share: float,
    settings: TableSettings,
    out: Path,
    log: Callable[[str], None],
) -> TrainedTable:
    """Run the stages in which a model learns and is judged, on a share of the training part.

    A share below 1 is a point on the learning curve. It has a single network and its own folder.
    """
    if share < 1:
        log(f"learning curve: {share:.1%} of the training part")
        split = with_share(split, share, settings.seed)
        settings, out = replace(settings, ensemble=1), out / "learning-curve" / f"{share:g}"
    networks = fit_networks(split, settings, out, log)
    taught = teach_networks(networks, split, settings, out, log)
    if taught.shares:
        log(f"the teacher's share, the rest is the network's own: {shares_text(taught.shares)}")
    calibration = calibrate_table(taught, split)
    scores = score_table(taught, calibration, split, settings)
    point = {"share": share, "n": len(split.parts.train), "targets": scores.by_target}
    return TrainedTable(taught, calibration, scores, point)
