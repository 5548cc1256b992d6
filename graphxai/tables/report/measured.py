"""Find the measured values of a table, and tell how well the predictions agree with them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np

from graphxai.contract.prediction_metrics import r2, rmse, roc_auc
from graphxai.contract.tasks import Task
from graphxai.datasets.cell_numbers import Bound, parsed_numbers
from graphxai.datasets.labels import not_understood, read_measured
from graphxai.datasets.tables.table import Table

PARTS = {  # the parts of the model's data, in the order in which they are shown
    "test": "test part of the model",
    "validation": "validation part of the model",
    "training": "training part of the model (not a test)",
    "": "other molecules",
}


LISTED = 3  # how many tasks a note names


@dataclass(frozen=True)
class MeasuredTable:
    """The measured values of a table.

    Attributes:
        columns: the column of each task.
        values: by task and row number, the value or the number of the class.
        bounds: by task and row number, the bounds of a value that was not measured, such as ">10".
        notes: which cells were not understood, in words.
    """

    columns: Mapping[str, str] = field(default_factory=dict)
    values: Mapping[str, Mapping[int, float]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    bounds: Mapping[str, Mapping[int, Bound]] = field(default_factory=dict)

    def bounds_of(self, row: int) -> dict[str, Bound]:
        """Return the bounds of one row by task."""
        return {task: bounds[row] for task, bounds in self.bounds.items() if row in bounds}

    def of(self, row: int) -> dict[str, float]:
        """Return the values of one row by task."""
        return {task: values[row] for task, values in self.values.items() if row in values}


def measured_columns(
    table: Table, tasks: Sequence[Task], named: Mapping[str, str]
) -> dict[str, str]:
    """Return the column of each task's measured values, by default one named after the task.

    Raises:
        ValueError: a named task or column does not exist.
    """
    names = [task.name for task in tasks]
    for name in named:
        if name not in names:
            raise ValueError(f"the model has no task {name!r}; its tasks: {', '.join(names)}.")
    columns = {name: table.column(column) for name, column in named.items()}
    others = {name: name for name in names if table.columns.count(name) == 1}
    return others | columns


def measured_table(
    table: Table, tasks: Sequence[Task], columns: Mapping[str, str], limit: int
) -> MeasuredTable:
    """Read the measured values in the first `limit` rows by `read_measured`.

    `columns` are those of `measured_columns`.
    """
    if not columns:
        return MeasuredTable()
    rows = list(islice(table.records(list(columns.values())), limit))
    values, bounds, notes = {}, {}, []
    for task in tasks:
        if task.name not in columns:
            continue
        cells = [row.cells[columns[task.name]] for row in rows]
        measured, odd = read_measured(cells, task.classes)
        numbered = zip(rows, measured.tolist(), strict=True)
        values[task.name] = {row.number: v for row, v in numbered if not math.isnan(v)}
        limits = () if task.classes else parsed_numbers(cells).bounds
        bounds[task.name] = {rows[limit.position].number: limit for limit in limits if limit.side}
        sided = {limit.position for limit in limits if limit.side}
        notes.append(not_understood(columns[task.name], cells, [k for k in odd if k not in sided]))
    return MeasuredTable(columns, values, tuple(filter(None, notes)), bounds)


def note_on_other_tasks(table: MeasuredTable, tasks: Sequence[Task], explained: str) -> str:
    """Say which of these tasks were measured and how to compare them, or return "" if none was."""
    others = [task.name for task in tasks if table.values.get(task.name)]
    if not others:
        return ""
    named = [
        task if table.columns[task] == task else f"{task} (column {table.columns[task]!r})"
        for task in others[:LISTED]
    ]
    more = f" and {len(others) - LISTED} more" if len(others) > LISTED else ""
    return (
        f"The table has measured values of {', '.join(named)}{more}, and this report explains"
        f' {explained}: choose the target "{others[0]}" (--target "{others[0]}") to compare them.'
    )


def agreement(
    task: Task, column: str, target: str | None, molecules: Sequence[Mapping[str, Any]]
) -> dict[str, Any] | None:
    """Return what the page says about measured and predicted values, or None if none were measured.

    Args:
        task: the explained task.
        column: the column of its measured values.
        target: the explained class, if it is the same for all molecules.
        molecules: the records of the molecules. Their `measured` is a number and a text, and their
            `value` is the predicted value or probability. Their `bound` is a number, a text and the
            side on which the value lies.
    """
    with_values = [m for m in molecules if m.get("measured") or m.get("bound")]
    if not with_values:
        return None
    groups = []
    for part, words in PARTS.items():
        members = [m for m in with_values if m["part"] == part]
        measured = [m for m in members if m.get("measured")]
        if members:
            scores = [_scores(task, target, measured)] if measured else []
            text = "; ".join([*scores, *_within_bounds(members)])
            groups.append([part, words, len(members), text])
    return {
        "task": task.name,
        "column": column,
        "classes": list(task.classes),
        "target": target,
        "groups": groups,
    }


def _within_bounds(molecules: Sequence[Mapping[str, Any]]) -> list[str]:
    """Say how many molecules with a bound are predicted within it, or return [] without bounds."""
    bounds = [(m["value"], *m["bound"][:3]) for m in molecules if m.get("bound")]
    kept = sum(side * (value - limit) >= 0 for value, limit, _, side in bounds)
    return [f"{kept} of {len(bounds)} within their bounds"] if bounds else []


def _scores(task: Task, target: str | None, molecules: Sequence[Mapping[str, Any]]) -> str:
    """Say how well measured and predicted values of molecules agree."""
    truth = np.array([m["measured"][0] for m in molecules])
    if not task.classes:
        predicted = np.array([m["value"] for m in molecules], dtype=float)
        coefficient = r2(predicted, truth) if len(truth) > 1 else math.nan
        text = "" if math.isnan(coefficient) else f"R2 {coefficient:.2f}, "
        return f"{text}RMSE {rmse(predicted, truth):.3g} {task.unit}".rstrip()
    right = np.mean([m["label"] == m["measured"][1] for m in molecules])
    area = math.nan
    if target in task.classes:
        is_target = (truth == task.classes.index(target)).astype(float)
        area = roc_auc(np.array([m["value"] for m in molecules], dtype=float), is_target)
    text = "" if math.isnan(area) else f"ROC-AUC {area:.2f}, "
    return f"{text}{right:.0%} predicted right"
