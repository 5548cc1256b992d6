"""Write the files of a run: first what the run is, then its results."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from graphxai.contract.prediction_metrics import FloatArray
from graphxai.contract.tasks import Task
from graphxai.datasets.labels import with_unit
from graphxai.explanation.compute.models import versions
from graphxai.learning.card import run_card
from graphxai.learning.fit import require_new, require_same
from graphxai.learning.training import LearnedModel, RunSource
from graphxai.models.graphormer import Ensemble, save_checkpoint, save_ensemble
from graphxai.models.process import KernelProcess, SummedModel, save_process, save_sum
from graphxai.runtime.writing import csv_text, folder_at, json_text, write_whole


def record_run(out: Path, identity: dict[str, Any], *, resume: bool) -> None:
    """Create a run's folder with `run.json`, or check that it has this run.

    Args:
        identity: what must be the same when the run is resumed, as JSON values.

    Raises:
        ValueError: the folder has a run that is not to be continued, or one with another identity
            or under other versions of what decides numbers.
    """
    stored = out / "run.json"
    text = json.dumps(identity | {"versions": versions()}, indent=1) + "\n"
    if stored.exists() and (out / "state").exists():
        require_new(out, resume=resume)
        before = json.loads(stored.read_text(encoding="utf-8"))
        now = json.loads(text)
        require_same(out, [name for name, value in now.items() if before.get(name) != value])
    folder_at(out)
    write_whole(stored, text)


def write_run(
    out: Path,
    source: RunSource,
    learned: LearnedModel,
    results: dict[str, Any],
    readings: Sequence[FloatArray],
    command: str,
) -> Path:
    """Write the checkpoint with its card and scores, and the predictions for the test part.

    Args:
        results: the scores of the model and the like, see `RunSource.facts`.
        readings: the model's probabilities and values for the test part, by task.
        command: how the run was started, for the card; "" if that is not known.

    Returns:
        The checkpoint folder, `out / "model"`.
    """
    model, facts = learned.model, source.facts(learned, results) | {"removal": results["removal"]}
    others: dict[type, Any] = {Ensemble: save_ensemble, KernelProcess: save_process}
    others[SummedModel] = partial(save_sum, base="network")
    save = others.get(type(model), save_checkpoint)
    card = run_card(source, learned, facts, command)
    folder: Path = save(model, out / "model", card=card, metadata=facts)
    scores = {name: facts[name] for name in source.stored if name in facts}
    files = {"scores.json": json_text(scores), **source.files(learned, folder)}
    for name, content in files.items():
        write_whole(folder / name, content)
    predicted = [
        column
        for task, values in zip(source.tasks, readings, strict=True)
        for column in _prediction_columns(task, values)
    ]
    header = [*source.columns, *(name for name, _ in predicted)]
    rows = (
        [*source.cells(k), *(f"{values[position]:.6g}" for _, values in predicted)]
        for position, k in enumerate(source.parts.test)
    )
    write_whole(out / "test.csv", csv_text(header, rows))
    return folder


def _prediction_columns(task: Task, values: FloatArray) -> list[tuple[str, FloatArray]]:
    """Return the named columns of a task's readings."""
    if task.kind == "regression":
        return [(with_unit(f"{task.name}: predicted", task.unit), values)]
    if task.kind == "binary":
        return [(f"{task.name}: probability of {task.classes[1]}", values)]
    return [
        (f"{task.name}: probability of {name}", values[:, c]) for c, name in enumerate(task.classes)
    ]


def label_text(task: Task, label: float, bounds: Sequence[float]) -> str:
    """Return a label as a cell: the name of a class, a value, a bound such as ">10", or nothing."""
    if np.isnan(label):
        return bound_text(bounds)
    return task.classes[int(label)] if task.classes else f"{label:.7g}"


def bound_text(bounds: Sequence[float]) -> str:
    """Return the bounds of a value (2,) as a cell, such as ">10", or "" without any."""
    low, high = bounds
    parts = [f">{low:.7g}"] if np.isfinite(low) else []
    return " ".join([*parts, f"<{high:.7g}"] if np.isfinite(high) else parts)


def held_out_csv(parts: Mapping[str, Iterable[str]]) -> str:
    """Return the file `HELD_OUT` of a checkpoint as text, from canonical SMILES by part."""
    rows = ([smiles, part] for part, chosen in parts.items() for smiles in chosen)
    return csv_text(["smiles", "part"], rows)
