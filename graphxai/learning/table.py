"""Train a model on your own table: split, fit, teach, calibrate, score, write."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from graphxai.learning.calibration import calibrate_table
from graphxai.learning.card import shares_text
from graphxai.learning.cleaned_table import CleanTable
from graphxai.learning.fit import require_hardware
from graphxai.learning.splitting import split_table
from graphxai.learning.table_scores import score_table
from graphxai.learning.table_settings import TableSettings
from graphxai.learning.training import fit_networks, teach_networks
from graphxai.learning.writing import begin_run, write_run
from graphxai.runtime.options import with_options

__all__ = ["train_table"]


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
    networks = fit_networks(split, settings, out, log)
    taught = teach_networks(networks, split, settings, out, log)
    if taught.shares:
        log(f"the teacher's share, the rest is the network's own: {shares_text(taught.shares)}")
    calibration = calibrate_table(taught, split)
    scores = score_table(taught, calibration, split, settings, out, log)
    return write_run(out, split, taught, calibration, scores, settings, command)
