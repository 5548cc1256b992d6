"""Read the molecules of a report from a file or a list, with what was measured of them.

Their explanations are kept in a file without a name, so that a long report needs no more memory.
The values are written as JSON, which can run nothing, and are read back exactly.
"""

import json
import math
import tempfile
from array import array
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any
from weakref import finalize

import numpy as np
from rdkit.Chem import Mol, PropertyPickleOptions

from graphxai.contract.inputs import as_list
from graphxai.contract.prediction_metrics import r2, rmse, roc_auc
from graphxai.contract.target import Target
from graphxai.contract.tasks import Task
from graphxai.datasets.as_given import AsGiven
from graphxai.datasets.cell_numbers import Bound
from graphxai.datasets.labels import not_understood, read_measured
from graphxai.datasets.molecule_reading import MoleculeError
from graphxai.datasets.tables.dialect import DEFAULT, Dialect
from graphxai.datasets.tables.opening import OTHERS, SUFFIXES
from graphxai.datasets.tables.table import Table
from graphxai.datasets.training_set import Nearness
from graphxai.explanation.explanation import Explanation
from graphxai.explanation.ledger import Ledger
from graphxai.explanation.prediction import Prediction
from graphxai.tables.rows import RowSource, other_cells
from graphxai.tables.settings import LARGEST_TABLE, ReportSettings

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
        values: by task and row number, the value or the number of the class.
        bounds: by task and row number, the bounds of a value that was not measured, such as ">10".
        notes: which cells were not understood, as text.
    """

    columns: Mapping[str, str] = field(default_factory=dict)
    values: Mapping[str, Mapping[int, float]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    bounds: Mapping[str, Mapping[int, Bound]] = field(default_factory=dict)

    def known(self, task: str) -> Mapping[int, float | Bound]:
        """Return the value or bound of each row that has one."""
        return {**self.bounds.get(task, {}), **self.values.get(task, {})}


def measured_columns(
    table: Table, tasks: Sequence[Task], named: Mapping[str, str]
) -> dict[str, str]:
    """Return the column of each task's measured values, by default as `Table.source_of` says.

    Raises ValueError if a named task or column does not exist.
    """
    units = {task.name: task.unit for task in tasks}
    for name in named:
        if name not in units:
            raise ValueError(f"the model has no task {name!r}; its tasks: {', '.join(units)}.")
    columns = {name: table.column(column) for name, column in named.items()}
    sources = {n: table.source_of(n, unit) for n, unit in units.items() if n not in columns}
    return {name: source for name, source in sources.items() if source} | columns


def measured_table(
    table: Table, tasks: Sequence[Task], columns: Mapping[str, str], limit: int
) -> MeasuredTable:
    """Read the measured values in the first `limit` rows by `read_measured`.

    `columns` are those of `measured_columns`.
    """
    values, bounds, notes = {}, {}, []
    for task in tasks:
        if task.name not in columns:
            continue
        rows, plain = table.measured(columns[task.name], [task.name], limit)
        measured = read_measured(plain.cells, task.classes)
        numbered = zip(rows, measured.values.tolist(), strict=True)
        values[task.name] = {row.number: v for row, v in numbered if not math.isnan(v)}
        bounds[task.name] = {rows[limit.position].number: limit for limit in measured.bounds}
        notes.append(not_understood(columns[task.name], plain.cells, measured.strange))
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
        if not members:
            continue
        said = [_scores(task, target, measured)] if measured else []
        if bounds := [(m["value"], *m["bound"][:3]) for m in members if m.get("bound")]:
            kept = sum(side * (value - limit) >= 0 for value, limit, _, side in bounds)
            said.append(f"{kept} of {len(bounds)} within their bounds")
        groups.append([part, words, len(members), "; ".join(said)])
    return {
        "task": task.name,
        "column": column,
        "classes": list(task.classes),
        "target": target,
        "groups": groups,
    }


def _scores(task: Task, target: str | None, molecules: Sequence[Mapping[str, Any]]) -> str:
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


@dataclass(frozen=True)
class ReportRow:
    """A molecule to report.

    Attributes:
        name: the name of the compound, or "".
        value: the model's input.
        others: the cells of the other columns of a file, by column.
        bounds: the bounds of values that were not measured, by task.
    """

    number: int
    name: str
    value: Any
    measured: Mapping[str, float] = field(default_factory=dict)
    others: Mapping[str, str] = field(default_factory=dict)
    bounds: Mapping[str, Bound] = field(default_factory=dict)


@dataclass(frozen=True)
class ReportSource:
    """The molecules to report.

    Attributes:
        rows: the molecules, which are read as they are needed.
        total: roughly how many there are.
        name: the name of the file, or the number of molecules as text.
        dialect: how to write a table that is made from the report.
    """

    rows: Iterable[ReportRow]
    total: int
    name: str
    is_file: bool
    measured: MeasuredTable
    dialect: Dialect = DEFAULT


def report_source(inputs: Any, tasks: Sequence[Task], settings: ReportSettings) -> ReportSource:
    """Return the molecules to report, as many as the settings allow.

    Raises ValueError if there are too many molecules, or the settings do not fit a file or a list.
    """
    if is_file(inputs):
        source = _source_of_file(Path(inputs), tasks, settings)
    elif settings.measured:
        raise ValueError("measured values are columns of a file.")
    else:
        source = _source_of_list(inputs, settings.names)
    limit = settings.limit
    if limit is not None:
        rows, total = islice(source.rows, limit), min(limit, source.total)
        return replace(source, rows=rows, total=total)
    if source.total > LARGEST_TABLE:
        raise ValueError(
            f"{source.name}: about {source.total:,} rows, and a page shows up to {LARGEST_TABLE:,}."
            f" Set a limit, such as {LARGEST_TABLE}; `graphxai explain` and `graphxai fragments`"
            " take tables of any length."
        )
    return source


def is_file(inputs: Any) -> bool:
    """Return whether the input is a file. A text is a SMILES unless it has a file's suffix."""
    if isinstance(inputs, str):
        return Path(inputs).suffix.lower() in (*SUFFIXES, *OTHERS, ".gz")
    return isinstance(inputs, Path)


def _source_of_file(path: Path, tasks: Sequence[Task], settings: ReportSettings) -> ReportSource:
    if settings.names is not None:
        raise ValueError("names belong to a list; for a file, give name_column.")
    source = RowSource.of(path, settings.smiles_column, settings.name_column)
    table = source.table
    columns = measured_columns(table, tasks, settings.measured or {})
    most = LARGEST_TABLE if settings.limit is None else settings.limit
    measured = measured_table(table, tasks, columns, most)
    rows = (
        ReportRow(
            row.number,
            row.name or "",
            MoleculeError(row.problem) if row.problem else row.smiles,
            _of_row(measured.values, row.number),
            other_cells(row, source.others),
            _of_row(measured.bounds, row.number),
        )
        for row in chain.from_iterable(source.chunks())
    )
    return ReportSource(rows, table.count(), path.name, True, measured, table.dialect)


def _of_row(measured: Mapping[str, Mapping[int, Any]], row: int) -> dict[str, Any]:
    return {task: by_row[row] for task, by_row in measured.items() if row in by_row}


def _source_of_list(inputs: Any, names: Sequence[str] | None) -> ReportSource:
    values, _ = as_list(inputs)
    if names is not None and len(names) != len(values):
        raise ValueError(f"there are {len(names)} names for {len(values)} molecules.")
    titles = [str(name) for name in names] if names is not None else [""] * len(values)
    rows: Iterator[ReportRow] = (
        ReportRow(number, name, value)
        for number, (name, value) in enumerate(zip(titles, values, strict=True), start=1)
    )
    count = f"{len(values)} molecule{'s' if len(values) != 1 else ''}"
    return ReportSource(rows, len(values), count, False, MeasuredTable())


PLAIN = (type(None), bool, int, float, str)
RECORDS = (Explanation, Prediction, Nearness, Ledger, Target, ReportRow, Bound)  # by their fields


class Spool(Sequence[Any]):
    """Values in the order in which they were added, in a file that ends with this object.

    Whatever is neither plain, nor an array, a molecule or one of `RECORDS` stays in memory. That is
    once for all values that share it, such as a model's measured errors.
    """

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115  # it is open as long as this object
        finalize(self, self._file.close)
        self._ends = array("q", [0])
        self._shared: list[Any] = []
        self._places: dict[int, int] = {}  # the place of a shared value, by its id

    def __len__(self) -> int:
        """Return how many values there are."""
        return len(self._ends) - 1

    def append(self, value: Any) -> None:
        """Add a value."""
        packed = json.dumps(self._packed(value)).encode()
        self._file.seek(self._ends[-1])
        self._file.write(packed)
        self._ends.append(self._ends[-1] + len(packed))

    def __getitem__(self, place: Any) -> Any:
        """Return the value at a place, made anew."""
        start, end = self._ends[place], self._ends[place + 1]
        self._file.seek(start)
        return self._unpacked(json.loads(self._file.read(end - start)))

    def _packed(self, value: Any) -> Any:
        """Return a plain value as it is, and others as a sequence of their kind and their parts."""
        kind = type(value)
        if kind in PLAIN:
            return value
        if kind in (list, tuple, dict):
            parts = value.items() if kind is dict else value
            return kind.__name__, [self._packed(part) for part in parts]
        if kind in RECORDS:
            parts = [self._packed(getattr(value, each.name)) for each in fields(value)]
            return "record", RECORDS.index(kind), parts
        if kind is AsGiven:
            return "as given", [self._packed(part) for part in value]
        if kind is np.ndarray and not value.dtype.hasobject:
            return "array", value.dtype.str, value.shape, _text(value.tobytes())
        if kind is Mol:
            return "molecule", _text(value.ToBinary(int(PropertyPickleOptions.AllProps)))
        if id(value) not in self._places:
            self._places[id(value)] = len(self._shared)
            self._shared.append(value)
        return "shared", self._places[id(value)]

    def _unpacked(self, packed: Any) -> Any:
        if not isinstance(packed, list):
            return packed
        match packed:
            case "shared", place:
                return self._shared[place]
            case "molecule", text:
                binary: Any = b64decode(text)
                return Mol(binary)
            case "array", dtype, shape, text:
                return np.frombuffer(bytearray(b64decode(text)), dtype).reshape(shape)
            case "record", place, parts:
                made: Any = object.__new__(RECORDS[place])  # without checking its fields again
                for each, part in zip(fields(made), parts, strict=True):
                    object.__setattr__(made, each.name, self._unpacked(part))
                return made
        kind, parts = packed
        values = [self._unpacked(part) for part in parts]
        if kind == "as given":
            return AsGiven(*values)
        return {"list": list, "tuple": tuple, "dict": dict}[kind](values)


def _text(binary: bytes) -> str:
    return b64encode(binary).decode()
