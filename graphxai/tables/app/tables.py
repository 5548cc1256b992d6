"""Read and search tables that are dropped on the page, and write its basket to files."""

import hashlib
import tempfile
import time
import warnings
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from itertools import chain, islice
from pathlib import Path
from typing import Any

from rdkit import Chem, rdBase

from graphxai.chemistry.desirability import PropertyGoal
from graphxai.chemistry.matching import SearchTimeError, matches_in_time
from graphxai.chemistry.measurements import Measurements, NoNumbersError
from graphxai.contract.target import Target
from graphxai.datasets.as_given import Standardisation
from graphxai.datasets.canonical_form import quietly_read
from graphxai.datasets.tables.columns import NAME_IT
from graphxai.datasets.tables.dialect import DEFAULT
from graphxai.datasets.tables.opening import OTHERS, SUFFIXES, TableError
from graphxai.datasets.tables.table import Table, open_table
from graphxai.explanation.compute.models import Model, ModelPanel, standardisation_of
from graphxai.explanation.files import one_line
from graphxai.tables.batches import ExplainBatch
from graphxai.tables.card import bound_text, measured_text, rounded
from graphxai.tables.files import CsvFormat
from graphxai.tables.report import report
from graphxai.tables.report.molecules import MeasuredTable, measured_columns, measured_table
from graphxai.tables.report.structure_activity import StructureActivity
from graphxai.tables.rows import RowSource, other_cells
from graphxai.tables.settings import LARGEST_TABLE

from .page import MAX_CHARACTERS

MAX_BASKET = 60
MAX_COLUMNS = 100  # how many columns a user can choose from
KEPT_FILES = 4  # how many files are kept for later requests
LONGEST_SMARTS = 500  # characters
LARGEST_COMPARED = 2000  # rows among which pairs are looked for, in about 10 s
AT_A_TIME = 1.0  # seconds for which one request searches
FOR_A_ROW = 0.1  # seconds for which one molecule is searched
KINDS = {"csv": "text/csv", "sdf": "chemical/x-mdl-sdfile", "html": "text/html"}


_files: OrderedDict[str, tuple[str, bytes]] = OrderedDict()  # names and contents by key


def rows_of(name: str, content: bytes, column: str = "") -> dict[str, Any]:
    """Read the molecules of a file of any format that `datasets.tables` reads.

    Returns:
        A dict with `rows`, each of which has a name, a SMILES and the reason why it cannot be read,
        or "". `more` says how many rows there are beyond the limit, and `choice` which column was
        chosen and why. Later requests name the file by its `key`. If no column can be chosen, there
        are no rows but `columns` to choose from, and `choice` says why.

    Args:
        name: the name of the file. Its suffix decides the format if the content does not.
        column: the column with the structures, by default found by its name or content.
    """
    key = hashlib.sha256(content).hexdigest()
    _files[key] = name[-200:], content
    _files.move_to_end(key)
    while len(_files) > KEPT_FILES:
        _files.popitem(last=False)
    with opened_file(key, column) as table:
        assert table is not None  # it was kept a moment ago
        try:
            structures = table.structures.name
        except TableError as error:
            if not table.columns:
                raise
            why = str(error).replace(str(table.path), _files[key][0])
            why = why.replace(NAME_IT, "choose it here")
            columns = list(table.columns[:MAX_COLUMNS])
            return {"rows": [], "more": 0, "columns": columns, "key": key, "choice": why}
        named = table.names_column
        read = [structures] if named is None else [structures, named]
        records = table.records(read)
        rows = [
            [
                "" if named is None else one_line(cells[named])[:200],
                cells[structures][: MAX_CHARACTERS + 1],
                problem,
            ]
            for _, cells, problem in islice(records, LARGEST_TABLE)
        ]
        more = sum(1 for _ in records)
        return {"rows": rows, "more": more, "columns": [], "key": key, "choice": table.choice}


def measured_in(
    panel: ModelPanel, key: str, column: str, goal: PropertyGoal | None = None
) -> dict[str, Measurements]:
    """Read what was measured in a file of each property, if the file is still kept.

    If no value of a column was understood, the note of an empty result says so.

    Args:
        goal: a single goal of the only model, which is compared with its own task's column or, if
            there is none, with that of another task.
    """
    tasks = {p.name: {p.task.name: p.task.unit} for p in panel.properties if not p.task.classes}
    if goal is not None:
        tasks = {goal.of.name: goal.tasks_of(panel.models[0])}
    way = standardisation_of(panel.models[0])
    tables = {n: _measurements(key, column, (*units.items(),), way) for n, units in tasks.items()}
    return {name: table for name, table in tables.items() if table is not None}


@lru_cache(maxsize=16)  # finding the matched pairs takes seconds
def _measurements(
    key: str, column: str, tasks: tuple[tuple[str, str], ...], standardise: Standardisation
) -> Measurements | None:
    """Read what was measured from the first task, with its unit, that names a column, or None."""
    with opened_file(key, column) as table, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the page shows the note
        if table is None:
            return None
        sources = {name: table.source_of(name, unit) for name, unit in tasks}
        columns = [
            n for n, source in sources.items() if source not in (None, table.structures.name)
        ]
        try:
            known = columns and Measurements.in_table(
                table, columns, standardise, LARGEST_TABLE, units=dict(tasks)
            )
        except NoNumbersError as error:
            return Measurements(columns[0], {}, str(error))
        except ValueError:
            return None
    return known or None


def exported(
    kind: str,
    model: Model,
    method: str,
    target: Target,
    basket: Sequence[dict[str, str]],
    key: str = "",
    column: str = "",
) -> str:
    """Write the basket as the text of a file: "csv", "sdf" or "html" (a report).

    A CSV file has the other columns of the open table and its dialect. Cells that a spreadsheet
    would read as a formula get an apostrophe.

    `basket` has the `smiles`, `name` and `changes` of each molecule.

    Raises ValueError if the basket is empty or too large, or no molecule can be written.
    """
    if kind not in KINDS:
        raise ValueError(f"unknown kind of file {kind!r}; choose from {', '.join(KINDS)}.")
    if not 1 <= len(basket) <= MAX_BASKET:
        raise ValueError(f"a basket has 1 to {MAX_BASKET} molecules; this one has {len(basket)}.")
    smiles = [molecule["smiles"] for molecule in basket]
    names = [one_line(molecule["name"]) for molecule in basket]
    if kind == "html":
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "basket.html"
            options: dict[str, Any] = {"names": names, "target": target, "progress": False}
            report(model, smiles, out, method, title="Chosen molecules", **options)
            return out.read_text(encoding="utf-8")
    numbers = range(1, len(basket) + 1)
    batch = ExplainBatch(model, method, target, sdf=True)
    rows = batch(smiles, numbers, names)
    if kind == "sdf":
        return "".join(row.get("record", "") for row in rows)
    hidden = ("record", "picture", "row")
    cells = [
        {"name": row["name"], "smiles": row["smiles"], "changes": one_line(molecule["changes"])}
        | {name: cell for name, cell in row.items() if name not in hidden}
        for row, molecule in zip(rows, basket, strict=True)
    ]
    kinds = batch.columns(named=True)
    columns = {name: kinds.get(name, str) for row in cells for name in row}
    dialect = DEFAULT
    with opened_file(key, column) as table:
        if table is not None:  # its other columns follow, by structure
            source, dialect = RowSource(table), table.dialect
            headings = source.headings(columns, source.others).values()
            rows_of_table = islice(chain.from_iterable(source.chunks()), LARGEST_TABLE)
            wanted = set(smiles)
            others = {
                row.smiles: other_cells(row, headings)
                for row in rows_of_table
                if row.smiles in wanted
            }
            cells = [row | others.get(text, {}) for row, text in zip(cells, smiles, strict=True)]
            columns |= dict.fromkeys(chain.from_iterable(others.values()), str)
    format = CsvFormat(columns, dialect, excel_safe=True)
    return format.header + format.lines(cells)


@contextmanager
def opened_file(key: str, column: str) -> Iterator[Table | None]:
    """Open a file of the page as a table, or yield None if it is no longer kept.

    Errors call the file by the name that the page shows.
    """
    if key not in _files:
        yield None
        return
    name, content = _files[key]
    known = (*SUFFIXES, *OTHERS, ".gz")
    suffixes = [part for part in Path(name.lower()).suffixes if part in known]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"table{''.join(suffixes[-2:])}"
        path.write_bytes(content)
        try:
            yield open_table(path, column or None)
        except (TableError, ImportError) as error:
            raise type(error)(str(error).replace(str(path), name)) from None


def measured_of_rows(panel: ModelPanel, key: str, column: str) -> dict[str, list[Any]]:
    """Return what was measured for each property that names a column of the table.

    A row has a number and a text, or None. A bound such as ">10" has the text alone.
    """
    table, numbers = _measured(panel, key, column)
    measured: dict[str, list[Any]] = {}
    for each in panel.properties:
        task = each.task
        values, bounds = table.values.get(task.name, {}), table.bounds.get(task.name, {})
        known: dict[int, list[Any]] = {n: [None, bound_text(task, b)] for n, b in bounds.items()}
        known |= {n: [rounded([v])[0], measured_text(task, v)] for n, v in values.items()}
        if known:
            measured[each.name] = [known.get(number) for number in numbers]
    return measured


def _measured(panel: ModelPanel, key: str, column: str) -> tuple[MeasuredTable, list[int]]:
    """Read what was measured in the open table, and the numbers of its rows."""
    tasks = {each.task.name: each.task for each in panel.properties}
    with opened_file(key, column) as table:
        if table is None:
            return MeasuredTable(), []
        columns = measured_columns(table, [*tasks.values()], {})
        columns.pop(table.structures.name, None)
        values = measured_table(table, [*tasks.values()], columns, LARGEST_TABLE)
        return values, [number for number, _ in _rows(key, column)]


def matching_rows(key: str, column: str, smarts: str, first: int) -> dict[str, Any]:
    """Search rows for a substructure, for about a second.

    Returns:
        A dict with the `matches` (positions of rows), how many rows were too `slow` to search, and
        the position of the `next` row to search.

    Raises ValueError if this is no SMARTS, or the table is no longer open.
    """
    pattern = None
    if smarts.isprintable() and len(smarts) <= LONGEST_SMARTS:
        with rdBase.BlockLogs():
            pattern = Chem.MolFromSmarts(smarts)
    if pattern is None or not pattern.GetNumAtoms():
        raise ValueError(f"{smarts[:80]!r} is not a SMARTS pattern that RDKit can read.")
    structures = [smiles for _, smiles in _rows(key, column)]
    matches, slow, end = [], 0, time.monotonic() + AT_A_TIME
    place = first
    for place in range(max(0, first), len(structures)):
        if time.monotonic() > end:
            break
        mol = quietly_read(structures[place][: MAX_CHARACTERS + 1])
        if mol is None:
            continue
        try:
            if matches_in_time(mol, pattern, max_matches=1, seconds=FOR_A_ROW):
                matches.append(place)
        except SearchTimeError:
            slow += 1
    else:
        place = len(structures)
    return {"matches": matches, "slow": slow, "next": place}


def series_of(panel: ModelPanel, key: str, column: str, core: str) -> dict[str, Any] | None:
    """Return matched pairs and R-groups among the measured compounds of the table.

    `core` is the core of a table of R-groups, as SMARTS, or "" for pairs and the common cores.

    Returns:
        What the page shows, or None if there is neither a pair nor a series.

    Raises ValueError if nothing was measured, the core is not understood, or no compound has it.
    """
    among = _structure_activity(panel, key, column)
    return among.series(core) if core else among.page()


@lru_cache(maxsize=2)  # its predictions are used again for another core
def _structure_activity(panel: ModelPanel, key: str, column: str) -> StructureActivity:
    table, numbers = _measured(panel, key, column)
    compared = numbers[:LARGEST_COMPARED]
    measured = {
        each.name: list(map(table.known(each.task.name).get, compared))
        for each in panel.properties
        if not each.task.classes
    }
    structures = [smiles for _, smiles in _rows(key, column)[:LARGEST_COMPARED]]
    among = StructureActivity(panel, structures, measured)
    if not among.measured:
        raise ValueError("the table has no measured values of a property that a model predicts.")
    return among


@lru_cache(maxsize=2)
def _rows(key: str, column: str) -> tuple[tuple[int, str], ...]:
    with opened_file(key, column) as table:
        if table is None:
            raise ValueError("the table is no longer open: open it again.")
        name = table.structures.name
        records = islice(table.records([name]), LARGEST_TABLE)
        return tuple((record.number, record.cells[name]) for record in records)
