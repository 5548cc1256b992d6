"""Store a table's teacher beside its network, and read it back: arrays and JSON, no pickles."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from graphxai.contract.tasks import Task
from graphxai.datasets.fingerprints import BITS, COUNTS
from graphxai.learning.teachers.forests import Forest, StoredTrees, forest_inputs
from graphxai.learning.teachers.gaussian_process import Process
from graphxai.learning.teachers.stacking import SIZE, ForestSource, ProcessSource, Teacher

TEACHER = "teacher.safetensors"  # the file beside a checkpoint
Arrays = dict[str, NDArray[Any]]
FORESTS = ("forest", "descriptor_forest")
CARRIERS = {"process": (COUNTS,) * 5, "minimol": (SIZE,)}  # widths of their fingerprints


def teacher_file(teacher: Teacher, digest: str) -> bytes:
    """Return the content of the file `TEACHER` beside a checkpoint.

    It has the sources with a weight: the trees, and the training fingerprints of processes.

    Args:
        teacher: the teacher.
        digest: SHA-256 of the weights of the network that learned from it.
    """
    arrays: Arrays = {}
    tasks: dict[str, list[int]] = {}
    for name in sorted({name for weights in teacher.weights for name in weights or ()}):
        source = teacher.sources[name]
        positions = [k for k, weights in enumerate(teacher.weights) if name in (weights or {})]
        if isinstance(source, ForestSource):
            for k in positions:
                arrays |= StoredTrees.of(source.forests[k].trees).arrays(f"{name}/{k}")
        else:
            positions = list(source.tasks)
            arrays[f"{name}/weights"] = source.process.weights
            arrays[f"{name}/means"] = source.process.means
            arrays[f"{name}/width"] = np.array([source.width])
            for i, part in enumerate(source.carriers):
                arrays[f"{name}/carriers/{i}"] = part
        tasks[name] = positions
    about: dict[str, Any] = {"tasks": [asdict(task) for task in teacher.tasks], "sources": tasks}
    about |= {"weights": teacher.weights, "metrics": teacher.metrics, "sha256": digest}
    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    # safetensors would write several entries in a random order.
    return save(contiguous, metadata={"teacher": json.dumps(about)})


def saved_teacher(folder: Path | None, digest: str) -> Teacher | None:
    """Read the teacher beside a checkpoint, or return None if there is none.

    Args:
        folder: the checkpoint's folder; None for a model that was not loaded from a folder.
        digest: SHA-256 of the checkpoint's weights.

    Raises:
        ValueError: the file is damaged, or belongs to other weights.
    """
    path = None if folder is None else folder / TEACHER
    if path is None or not path.is_file():
        return None
    teacher, weights_digest = _read(path, path.stat().st_mtime_ns)
    if weights_digest != digest:
        raise ValueError(
            f"{path} belongs to other weights: delete it, or repeat the training command with"
            " --resume --keep-teacher."
        )
    return teacher


@lru_cache(maxsize=2)
def _read(path: Path, modified: int) -> tuple[Teacher, str]:
    """Read a teacher, and the SHA-256 of its network's weights.

    A file is read again only if it was modified since.
    """
    try:
        with safe_open(path, framework="numpy") as file:
            about = json.loads(file.metadata()["teacher"])
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        return _teacher_from(about, arrays), str(about.get("sha256", ""))
    except (
        AttributeError, IndexError, KeyError, OSError, RecursionError, SafetensorError, TypeError,
        ValueError,
    ) as error:  # fmt: skip
        reason = str(error) if type(error) is ValueError else repr(error)
        raise ValueError(f"{path} is damaged ({reason}): delete it, or train again.") from error


def _teacher_from(about: dict[str, Any], arrays: Arrays) -> Teacher:
    """Make a teacher from what a file holds, or raise a ValueError that says what is wrong."""
    tasks = tuple(Task(**task) for task in about["tasks"])
    sources: dict[str, ForestSource | ProcessSource] = {}
    for name, positions in about["sources"].items():
        if not all(type(k) is int and 0 <= k < len(tasks) for k in positions):
            raise ValueError(f"source {name!r} predicts a task that is not there")
        source_tasks = {k: tasks[k] for k in positions}
        if name in FORESTS:
            sources[name] = _forests(name, source_tasks, arrays)
        elif name in CARRIERS:
            sources[name] = _processes(name, source_tasks, arrays)
        else:
            raise ValueError(f"{name!r} is no source of a teacher")
    weights, metrics = tuple(about["weights"]), tuple(about["metrics"])
    if len(weights) != len(tasks) or len(metrics) != len(tasks):
        raise ValueError("there must be weights and a metric for each task")
    for k, task_weights in enumerate(weights):
        _check_weights(k, task_weights, about["sources"])
    return Teacher(tasks, sources, weights, (), metrics)


def _check_weights(
    task: int, weights: dict[str, float] | None, tasks: Mapping[str, Sequence[int]]
) -> None:
    """Check the weights of a task's sources, given the tasks that each source predicts."""
    if weights is None:
        return
    if any(name not in tasks or task not in tasks[name] for name in weights):
        raise ValueError(f"a source with a weight does not predict task {task}")
    values = list(weights.values())
    numbers = all(type(value) in (int, float) and value >= 0 for value in values)  # NaN is not
    if not numbers or not math.isclose(sum(values), 1, abs_tol=1e-6):
        raise ValueError(f"the weights of task {task} are {values}, not shares that add up to 1")


def _forests(name: str, tasks: Mapping[int, Task], arrays: Arrays) -> ForestSource:
    """Make a source of forests from stored arrays."""
    num_features = BITS if name == "forest" else forest_inputs(["C"]).shape[1]
    forests = {
        k: Forest.from_arrays(task, arrays, f"{name}/{k}", num_features)
        for k, task in tasks.items()
    }
    return ForestSource(name, forests, {})


def _processes(name: str, tasks: Mapping[int, Task], arrays: Arrays) -> ProcessSource:
    """Make a source of processes from stored arrays."""
    weights, means = arrays[f"{name}/weights"], arrays[f"{name}/means"]
    columns = sum(task.num_outputs for task in tasks.values())
    if weights.shape != (len(weights), columns) or means.shape != (columns,):
        raise ValueError(f"the process {name!r} does not have {columns} columns")
    widths = CARRIERS[name]
    carriers = tuple(arrays[f"{name}/carriers/{i}"] for i in range(len(widths)))
    shapes = [(len(weights), width) for width in widths]
    if [part.shape for part in carriers] != shapes:
        raise ValueError(f"the fingerprints of {name!r} do not have shapes {shapes}")
    width = float(arrays[f"{name}/width"][0])
    numbers = all(np.isfinite(array).all() for array in (weights, means, *carriers))
    if not numbers or not 0 < width < math.inf:
        raise ValueError(f"the process {name!r} holds values that are not finite numbers")
    if name == "process" and any(part.dtype != np.uint16 for part in carriers):
        raise ValueError(f"the fingerprints of {name!r} are not counts")
    process = Process(weights, means, np.empty((0, columns)))
    return ProcessSource(name, tasks, process, carriers, width)
