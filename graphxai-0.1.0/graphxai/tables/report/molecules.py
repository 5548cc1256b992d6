"""Read the molecules of a report from a file or a list, with what was measured of them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

from graphxai.contract.inputs import as_list
from graphxai.contract.tasks import Task
from graphxai.datasets.cell_numbers import Bound
from graphxai.datasets.molecule_reading import MoleculeError
from graphxai.datasets.tables.dialect import DEFAULT, Dialect
from graphxai.datasets.tables.opening import OTHERS, SUFFIXES
from graphxai.tables.rows import RowSource, other_cells
from graphxai.tables.settings import LARGEST_TABLE, ReportSettings

from .measured import MeasuredTable, measured_columns, measured_table


@dataclass(frozen=True)
class ReportRow:
    """A molecule to report.

    Attributes:
        number: the number of its row.
        name: the name of the compound, or "".
        value: the model's input.
        measured: the measured values by task.
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
        name: the name of the file, or the number of molecules in words.
        is_file: whether they come from a file.
        measured: the measured values of the file.
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

    Raises:
        ValueError: there are too many molecules, or the settings do not fit a file or a list.
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
    headings = {name: name for name in source.others}
    rows = (
        ReportRow(
            row.number,
            row.name or "",
            MoleculeError(row.problem) if row.problem else row.smiles,
            measured.of(row.number),
            other_cells(row, headings),
            measured.bounds_of(row.number),
        )
        for row in chain.from_iterable(source.chunks())
    )
    return ReportSource(rows, table.count(), path.name, True, measured, table.dialect)


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
