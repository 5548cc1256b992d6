"""Train a model on your own table: split, fit, teach, calibrate, score, write."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from graphxai.learning.calibration import calibrate_table
from graphxai.learning.cleaned_table import CleanTable
from graphxai.learning.fit import require_hardware
from graphxai.learning.interruption import resumable_in
from graphxai.learning.official import with_official_split
from graphxai.learning.settings import TableSettings
from graphxai.learning.splitting import SplitTable, split_table, with_share
from graphxai.learning.suspicions import require_plain_values
from graphxai.learning.table_scores import score_table
from graphxai.learning.trained_table import TrainedTable
from graphxai.learning.training import fit_networks, teach_networks
from graphxai.learning.writing import begin_run, write_run
from graphxai.runtime.options import with_options

__all__ = ["train_table"]

LEARNING_CURVE = (0.125, 0.25, 0.5)  # fractions of the training part; the run itself uses all


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
        ValueError: a column beside the values has relations or several units and `values_alone` is
            False; `out` already contains a run and `resume` is False, or the run has another table
            or other settings; the split leaves too little to train on; or the settings contradict
            each other.
    """
    settings = with_options(settings or TableSettings(), options, "train_table")
    settings = with_official_split(settings, table)
    if not settings.values_alone:
        require_plain_values(table)
    require_hardware(settings)
    out = Path(out)
    split = split_table(table, settings)
    shares = LEARNING_CURVE if settings.learning_curve else ()
    smaller = [with_share(split, share, settings.seed) for share in shares]
    for warning in split.warnings:
        log(warning)
    begin_run(out, split, settings)
    with resumable_in(out):
        log(str(split))
        trained = _train(split, settings, out, log)
        curve = _learning_curve(smaller, trained, settings, out, log) if smaller else []
        return write_run(out, trained, curve, settings, command)


def _train(
    split: SplitTable, settings: TableSettings, out: Path, log: Callable[[str], None]
) -> TrainedTable:
    """Run the stages in which a model learns and is judged."""
    networks = fit_networks(split, settings, out, log)
    taught = teach_networks(networks, split, settings, out, log)
    calibration = calibrate_table(taught, split)
    scores = score_table(taught, calibration, split, settings)
    return TrainedTable(split, taught, calibration, scores)


def _learning_curve(
    smaller: Sequence[SplitTable],
    whole: TrainedTable,
    settings: TableSettings,
    out: Path,
    log: Callable[[str], None],
) -> list[dict[str, Any]]:
    """Train a single network on each share of the training part, and score it.

    Args:
        smaller: the table with smaller training parts.
        whole: the result of training on the whole part.
        settings: settings of the run.
        out: folder of the run, in which each share has its own.
        log: called with a line of text at each stage.

    Returns:
        The points of the curve as JSON values. The last one is the whole part.
    """
    points = []
    for split in smaller:
        log(f"learning curve: {split.share:.1%} of the training part")
        folder = out / "learning-curve" / f"{split.share:g}"
        points.append(_train(split, replace(settings, ensemble=1), folder, log).point)
    return [*points, whole.point]
