"""Write the files of a run on your own table: first what the run is, then its results."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphxai.contract.tasks import Task
from graphxai.datasets.labels import with_unit
from graphxai.datasets.training_set import HELD_OUT
from graphxai.learning.card import summary, table_card
from graphxai.learning.cleaned_table import TargetColumn
from graphxai.learning.informativeness import uninformative
from graphxai.learning.settings import TableSettings
from graphxai.learning.splitting import SplitTable
from graphxai.learning.teachers.saved_teacher import TEACHER, teacher_file
from graphxai.learning.trained_table import TrainedTable
from graphxai.learning.training import training_settings
from graphxai.models.graphormer import (
    Ensemble,
    checkpoint_digest,
    save_checkpoint,
    save_ensemble,
)
from graphxai.runtime.writing import json_text, write_whole

__all__ = [
    "begin_run",
    "bound_text",
    "csv_text",
    "held_out_csv",
    "prediction_columns",
    "record_run",
    "write_run",
]

FloatArray = NDArray[np.float64]
SCORES = (  # the parts of the metadata that go into `scores.json`
    "file",
    "sha256",
    "seed",
    "split",
    "teacher_share",
    "teacher",
    "temperature",
    "scores",
    "official",
    "coverage",
    "learning_curve",
    "notes",
)


def begin_run(out: Path, split: SplitTable, settings: TableSettings) -> None:
    """Create a run's folder with what is known before training, or check that it has this run.

    The files are `run.json`, `hygiene.json` and `hygiene.csv`.

    Raises:
        ValueError: the folder has a run that is not to be continued, or one of another table or
            with other settings.
    """
    record_run(out, _identity(split, settings), resume=settings.resume)
    split.table.save(out)


def record_run(out: Path, identity: dict[str, Any], *, resume: bool) -> None:
    """Create a run's folder with `run.json`, or check that it has this run.

    Args:
        out: folder of the run.
        identity: what must be the same when the run is resumed, as JSON values.
        resume: whether to continue a run.

    Raises:
        ValueError: the folder has a run that is not to be continued, or one with another identity.
    """
    stored = out / "run.json"
    text = json.dumps(identity, indent=1) + "\n"
    if stored.exists() and (out / "state").exists():
        if not resume:
            raise ValueError(
                f"{out} already contains a run: continue it with --resume, or choose another"
                " folder."
            )
        before = json.loads(stored.read_text(encoding="utf-8"))
        differing = [name for name, value in json.loads(text).items() if before.get(name) != value]
        if differing:
            raise ValueError(
                f"{out} contains a run with different settings ({', '.join(differing)}): choose"
                " another folder."
            )
    out.mkdir(parents=True, exist_ok=True)
    write_whole(stored, text)


def write_run(
    out: Path,
    trained: TrainedTable,
    learning_curve: Sequence[Mapping[str, Any]],
    settings: TableSettings,
    command: str,
) -> Path:
    """Write the checkpoint with its card, scores and molecules, and the test predictions.

    Args:
        out: folder of the run.
        trained: the table in its parts, the model, its calibration and its scores.
        learning_curve: scores with smaller training parts; empty if they were not wanted.
        settings: settings of the run.
        command: how the run was started, for the card; "" if that is not known.

    Returns:
        The checkpoint folder, `out / "model"`.
    """
    split, model, teacher = trained.split, trained.taught.model, trained.taught.teacher
    metadata = _metadata(trained, learning_curve, settings)
    files: dict[str, str | bytes] = {
        "test.csv": _test_csv(split, trained.calibration.test_readings),
        "model/training.csv": _training_csv(split),
        f"model/{HELD_OUT}": _held_out_csv(split),
        "model/scores.json": json_text(
            {name: metadata[name] for name in SCORES if name in metadata}
        ),
    }
    card = table_card(split.table, split.parts, metadata, command)
    if isinstance(model, Ensemble):
        folder = save_ensemble(model, out / "model", card=card, metadata=metadata)
    else:
        folder = save_checkpoint(model, out / "model", card=card, metadata=metadata)
    if settings.keep_teacher and teacher is not None and any(teacher.weights):
        files[f"model/{TEACHER}"] = teacher_file(teacher, checkpoint_digest(folder))
    for name, content in files.items():
        write_whole(out / name, content)
    return folder


def _identity(split: SplitTable, settings: TableSettings) -> dict[str, Any]:
    """Return what must be the same when a run is resumed, as JSON values."""
    table, weights = split.table, settings.init_weights
    return {
        "file": table.path.name,
        "sha256": table.sha256,
        "smiles_column": table.smiles_column,
        "targets": [asdict(target) for target in table.targets],
        "split": settings.split_kind,
        "split_column": settings.named_column,
        "standardise": table.standardise,
        "seed": settings.seed,
        "epochs": training_settings(settings).epochs,
        "teacher": settings.teacher,
        "ensemble": settings.ensemble,
        "init_weights": None if weights is None else str(weights),
    }


def _metadata(
    trained: TrainedTable, learning_curve: Sequence[Mapping[str, Any]], settings: TableSettings
) -> dict[str, Any]:
    """Return what is stored with the model, as JSON values."""
    split, taught, scores = trained.split, trained.taught, trained.scores
    table, calibration = split.table, trained.calibration
    units = {target.name: target.unit for target in table.targets}
    return _identity(split, settings) | {
        "data": table.path.name,
        "split": _split_rows(split),
        "rows": table.read,
        "molecules": len(table.graphs),
        "teacher_share": taught.shares,
        "teacher": None if taught.teacher is None else taught.teacher.to_dict(),
        "recombined": taught.recombined,
        "temperature": calibration.temperatures,
        "scores": scores.by_target,
        "coverage": calibration.coverage,
        "learning_curve": learning_curve,
        "notes": [*split.warnings, *scores.notes, *uninformative(calibration.coverage, units)],
        "summary": summary(scores.by_target),
        **({} if scores.official is None else {"official": scores.official}),
    }


def _split_rows(split: SplitTable) -> dict[str, Any]:
    """Return the split as row numbers of the file (the first after the header is 1).

    The keys are `train_rows` and so on, to tell row numbers from positions.
    """
    parts, rows = split.parts, split.table.rows
    by_part = {
        f"{name}_rows": [rows[k] for k in getattr(parts, name)]
        for name in ("train", "valid", "test")
    }
    return {"kind": parts.kind, "seed": parts.seed, **by_part}


def _training_csv(split: SplitTable) -> str:
    """Return row, canonical SMILES and labels of the training molecules, to find neighbours."""
    table, numbers = split.table, split.table.rows
    header = ["row", "smiles", *(target.heading for target in table.targets)]
    rows = (
        [numbers[k], table.canonical[k], *_label_cells(table.targets, split, k)]
        for k in split.parts.train
    )
    return csv_text(header, rows)


def _held_out_csv(split: SplitTable) -> str:
    """Return the canonical SMILES of the validation and test molecules, to recognise them."""
    canonical, parts = split.table.canonical, split.parts
    held_out = {"validation": parts.valid, "test": parts.test}
    return held_out_csv({name: [canonical[k] for k in part] for name, part in held_out.items()})


def held_out_csv(parts: Mapping[str, Iterable[str]]) -> str:
    """Return the file `HELD_OUT` of a checkpoint as text, from canonical SMILES by part."""
    rows = ([smiles, part] for part, chosen in parts.items() for smiles in chosen)
    return csv_text(["smiles", "part"], rows)


def _test_csv(split: SplitTable, readings: Sequence[FloatArray]) -> str:
    """Return the test molecules as in the file, with their labels and predictions.

    Args:
        readings: one array per task, for the test part; see `predicting.readings`.
    """
    table, numbers = split.table, split.table.rows
    predicted = [
        column
        for task, values in zip(split.tasks, readings, strict=True)
        for column in prediction_columns(task, values)
    ]
    header = ["row", "smiles", *(target.heading for target in table.targets)]
    rows = (
        [numbers[k], table.graphs[k].smiles, *_label_cells(table.targets, split, k)]
        + [f"{values[position]:.6g}" for _, values in predicted]
        for position, k in enumerate(split.parts.test)
    )
    return csv_text([*header, *(name for name, _ in predicted)], rows)


def prediction_columns(task: Task, values: FloatArray) -> list[tuple[str, FloatArray]]:
    """Return the named columns of a task's readings."""
    if task.kind == "regression":
        return [(with_unit(f"{task.name}: predicted", task.unit), values)]
    if task.kind == "binary":
        return [(f"{task.name}: probability of {task.classes[1]}", values)]
    return [
        (f"{task.name}: probability of {name}", values[:, c]) for c, name in enumerate(task.classes)
    ]


def _label_cells(targets: Sequence[TargetColumn], split: SplitTable, k: int) -> list[str]:
    """Format the labels of a molecule as cells of a table.

    A cell has the name of a class, a value, a bound such as ">10", or nothing.
    """
    cells = []
    for target, label, bounds in zip(targets, split.y[k], split.bounds[k], strict=True):
        if np.isnan(label):
            cells.append(bound_text(bounds))
        else:
            cells.append(target.classes[int(label)] if target.classes else f"{label:.7g}")
    return cells


def bound_text(bounds: Sequence[float]) -> str:
    """Return the bounds of a value (2,) as a cell, such as ">10", or "" without any."""
    low, high = bounds
    parts = [f">{low:.7g}"] if np.isfinite(low) else []
    return " ".join([*parts, f"<{high:.7g}"] if np.isfinite(high) else parts)


def csv_text(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return a CSV file as text."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return text.getvalue()
