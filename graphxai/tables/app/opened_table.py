"""Look into the table that is open on the page: measured values, and rows with a substructure."""

import time
from collections.abc import Sequence
from functools import lru_cache
from itertools import islice
from typing import Any

from rdkit import Chem, rdBase

from graphxai.chemistry.measurements import Measurements, compounds_of
from graphxai.chemistry.substructures import SearchTimeError, matches_in_time
from graphxai.datasets.tables.table import Table
from graphxai.explanation.compute.models import standardisation_of
from graphxai.explanation.compute.panel import ModelPanel
from graphxai.tables.report.measured import MeasuredTable, measured_table, shown
from graphxai.tables.report.records import rounded
from graphxai.tables.report.structure_activity import StructureActivity
from graphxai.tables.settings import LARGEST_TABLE

from .reading import MAX_CHARACTERS
from .tables import opened_file

LONGEST_SMARTS = 500  # characters
LARGEST_COMPARED = 2000  # rows among which pairs are looked for, in about 10 s
AT_A_TIME = 1.0  # seconds for which one request searches
FOR_A_ROW = 0.1  # seconds for which one molecule is searched


def measured_of_rows(panel: ModelPanel, key: str, column: str) -> dict[str, list[Any]]:
    """Return what was measured for each property that names a column of the table.

    A row has a number and a text, or None. A bound such as ">10" has the text alone.

    Args:
        panel: the models.
        key: the key of the open table.
        column: its column of structures, as for `rows_of`.
    """
    with opened_file(key, column) as table:
        if table is None:
            return {}
        numbers = [record.number for record in _records(table)]
        measured: dict[str, list[Any]] = {}
        for each in panel.properties:
            name = each.task.name
            if table.columns.count(name) != 1 or name == table.structures.name:
                continue
            values = measured_table(table, (each.task,), {name: name}, LARGEST_TABLE)
            measured[each.name] = [_cell(values, each.task, number) for number in numbers]
        return {name: cells for name, cells in measured.items() if any(cells)}


def _cell(table: MeasuredTable, task: Any, number: int) -> list[Any] | None:
    """Return the measured value of a row with its text, or a bound with no value."""
    value = table.of(number).get(task.name)
    if value is not None:
        return [rounded([value])[0], shown(task, value)]
    bound = table.bounds_of(number).get(task.name)
    if bound is None:
        return None
    return [None, f"{'>' if bound.side > 0 else '<'} {shown(task, bound.value)}"]


def matching_rows(key: str, column: str, smarts: str, first: int) -> dict[str, Any]:
    """Search rows for a substructure, for about a second.

    Returns:
        A dict with the `matches` (positions of rows), how many rows were too `slow` to search, and
        the position of the `next` row to search.

    Raises:
        ValueError: this is no SMARTS, or the table is no longer open.
    """
    pattern = None
    if smarts.isprintable() and len(smarts) <= LONGEST_SMARTS:
        with rdBase.BlockLogs():
            pattern = Chem.MolFromSmarts(smarts)
    if pattern is None or not pattern.GetNumAtoms():
        raise ValueError(f"{smarts[:80]!r} is not a SMARTS pattern that RDKit can read.")
    structures = _structures(key, column)
    matches, slow, end = [], 0, time.monotonic() + AT_A_TIME
    place = first
    for place in range(max(0, first), len(structures)):
        if time.monotonic() > end:
            break
        with rdBase.BlockLogs():
            mol = Chem.MolFromSmiles(structures[place][: MAX_CHARACTERS + 1])
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

    Args:
        panel: the models.
        key: the key of the open table.
        column: its column of structures, as for `rows_of`.
        core: the core of a table of R-groups, as SMARTS, or "" for pairs and the common cores.

    Returns:
        What the page shows, or None if there is neither a pair nor a series.

    Raises:
        ValueError: nothing was measured, the core is not understood, or no compound has it.
    """
    among = _structure_activity(panel, key, column)
    return among.series(core) if core else among.page()


@lru_cache(maxsize=2)  # its predictions are used again for another core
def _structure_activity(panel: ModelPanel, key: str, column: str) -> StructureActivity:
    rows = measured_of_rows(panel, key, column)
    compounds = compounds_of(
        _structures(key, column)[:LARGEST_COMPARED], standardisation_of(panel.models[0])
    )
    places: dict[str, int] = {}
    for place, compound in enumerate(compounds):
        if compound:
            places.setdefault(compound, place)
    measured = {}
    for each in panel.properties:
        cells = rows.get(each.name, [])
        values: dict[str, list[float]] = {}
        for compound, cell in zip(compounds, cells, strict=False):
            if compound and cell is not None and cell[0] is not None and not each.task.classes:
                values.setdefault(compound, []).append(cell[0])
        if values:
            means = {smiles: sum(of) / len(of) for smiles, of in values.items()}
            measured[each.name] = Measurements(each.name, means)
    if not measured:
        raise ValueError("the table has no measured values of a property that a model predicts.")
    return StructureActivity(panel, measured, places)


@lru_cache(maxsize=2)
def _structures(key: str, column: str) -> Sequence[str]:
    """Return the SMILES of the rows of the open table."""
    with opened_file(key, column) as table:
        if table is None:
            raise ValueError("the table is no longer open: open it again.")
        name = table.structures.name
        return tuple(record.cells[name] for record in _records(table))


def _records(table: Table) -> list[Any]:
    return list(islice(table.records([table.structures.name]), LARGEST_TABLE))
