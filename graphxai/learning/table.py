"""Train a model on your own table: split, fit, teach, calibrate, score, write."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from graphxai.learning.calibration import Calibration, calibrate_table
from graphxai.learning.card import shares_text
from graphxai.learning.cleaned_table import CleanTable
from graphxai.learning.fit import require_hardware
from graphxai.learning.splitting import SplitTable, split_table, with_share
from graphxai.learning.table_scores import TableScores, score_table
from graphxai.learning.table_settings import TableSettings
from graphxai.learning.training import TaughtModel, fit_networks, teach_networks
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
    log(str(split))
    taught, calibration, scores = _train(split, settings, out, log)
    curve = []
    if settings.learning_curve:
        for share in LEARNING_CURVE:
            log(f"learning curve: {share:.1%} of the training part")
            fewer, folder = with_share(split, share, settings.seed), out / "learning-curve"
            *_, of_share = _train(fewer, replace(settings, ensemble=1), folder / f"{share:g}", log)
            curve.append(_point(share, fewer, of_share))
        curve.append(_point(1.0, split, scores))
    return write_run(out, split, taught, calibration, scores, curve, settings, command)


def _train(
    split: SplitTable, settings: TableSettings, out: Path, log: Callable[[str], None]
) -> tuple[TaughtModel, Calibration, TableScores]:
    """Run the stages in which a model learns and is judged, on a table that is split."""
    networks = fit_networks(split, settings, out, log)
    taught = teach_networks(networks, split, settings, out, log)
    if taught.shares:
        log(f"the teacher's share, the rest is the network's own: {shares_text(taught.shares)}")
    calibration = calibrate_table(taught, split)
    return taught, calibration, score_table(taught, calibration, split, settings)


def _point(share: float, split: SplitTable, scores: TableScores) -> dict[str, Any]:
    """Return a point of the learning curve, as JSON values."""
    return {"share": share, "n": len(split.parts.train), "targets": scores.by_target}
