"""Read tables dropped on the page, and write the basket of the page to files."""

import csv
import io
import tempfile
import warnings
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from rdkit import Chem, rdBase

from graphxai.chemistry.measurements import Measurements, NoNumbersError
from graphxai.contract.target import Target
from graphxai.datasets.csv_files import iter_records
from graphxai.explanation.compute.models import LoadedModel
from graphxai.explanation.files import one_line
from graphxai.tables.batches import ExplainBatch
from graphxai.tables.files import guarded
from graphxai.tables.report import report

from .molecules import MAX_CHARACTERS

MAX_ROWS = 2000
MAX_BASKET = 60
SMILES = ("smiles", "canonical_smiles", "canonical smiles", "mol", "structure")
NAMES = ("name", "id", "compound", "compound_id", "compound id", "molecule", "cid", "title")
STRUCTURES = (".sdf", ".sd", ".mol")
KINDS = {"csv": "text/csv", "sdf": "chemical/x-mdl-sdfile", "html": "text/html"}


def rows_of(name: str, text: str, column: str = "") -> dict[str, Any]:
    """Read the molecules of a file, up to 2,000, and count how many more there are.

    The result has `rows` of name and SMILES, the number of `more`, and `columns`. If there is no
    column of SMILES, there are no rows, and the user can choose one of the columns.

    Args:
        name: the name of the file. If it ends in .sdf, the file is an SD file. Otherwise it is a
            table, or a list of SMILES without a header.
        text: the content of the file.
        column: the column with the SMILES. By default it is a column with a usual name.
    """
    if name.lower().endswith(STRUCTURES):
        return _limited([[title, smiles] for title, smiles, _ in _records(text)])
    header = _header(text)
    columns = _columns(header)
    by_name = {cell.lower(): cell for cell in reversed(columns)}
    column = column or _smiles_column(columns)
    if not column and header and _is_smiles(header.split()[0]):
        lines = (line.split(None, 1) for line in text.splitlines() if line.strip())
        return _limited([[one_line("".join(rest)), smiles] for smiles, *rest in lines])
    if not column:
        return {"rows": [], "more": 0, "columns": columns[:100]}
    named = next((by_name[usual] for usual in NAMES if usual in by_name), column)
    records = _cells(name, text, (column, named))
    titles = [one_line(record[named]) if named != column else "" for record in records]
    pairs = zip(titles, records, strict=True)
    return _limited([[title, record[column]] for title, record in pairs])


@lru_cache(maxsize=4)  # finding the matched pairs takes seconds
def measured_in(name: str, text: str, column: str, tasks: tuple[str, ...]) -> Measurements | None:
    """Read what was measured in a file, for the first task that names a column with numbers.

    Returns None if nothing was measured. If no value was understood, the result is empty and has a
    note that says so.

    Args:
        name, text, column: as for `rows_of`. A property of an SD file counts as a column.
        tasks: the names of the tasks.
    """
    structures = name.lower().endswith(STRUCTURES)
    columns = _columns(_header(text))
    column = column or _smiles_column(columns)
    unread: Measurements | None = None
    for task in tasks:
        if structures:
            cells_of_rows = [(smiles, cells.get(task, "")) for _, smiles, cells in _records(text)]
        elif column and task in columns and task != column:
            cells_of_rows = [(row[column], row[task]) for row in _cells(name, text, (column, task))]
        else:
            continue
        with suppress(ValueError), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the page shows the note
            try:
                return Measurements.of(cells_of_rows[:MAX_ROWS], task)
            except NoNumbersError as error:
                unread = unread or Measurements(task, {}, str(error))
    return unread


def exported(
    kind: str, model: LoadedModel, method: str, target: Target, basket: Sequence[dict[str, str]]
) -> str:
    """Write the basket as the text of a file: "csv", "sdf" or "html" (a report).

    Cells that a spreadsheet would read as a formula get an apostrophe.

    Args:
        kind: the format of the file.
        model: the model.
        method: the name of the method.
        target: the output to explain.
        basket: the `smiles`, `name` and `changes` of each molecule.

    Raises:
        ValueError: the basket is empty or too large, or no molecule can be written.
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
    rows = ExplainBatch(model, method, target, sdf=True)(smiles, numbers, names)
    if kind == "sdf":
        return "".join(row.get("record", "") for row in rows)
    hidden = ("record", "picture", "row")
    cells = [
        {"name": row["name"], "smiles": row["smiles"], "changes": one_line(molecule["changes"])}
        | {name: cell for name, cell in row.items() if name not in hidden}
        for row, molecule in zip(rows, basket, strict=True)
    ]
    columns = dict.fromkeys(name for row in cells for name in row)
    with io.StringIO() as text:
        writer = csv.DictWriter(text, list(columns), lineterminator="\n")
        writer.writeheader()
        writer.writerows(map(guarded, cells))
        return text.getvalue()


def _header(text: str) -> str:
    return text.lstrip("\ufeff").partition("\n")[0].strip()


def _columns(header: str) -> list[str]:
    cells: list[str] = next(csv.reader([header], delimiter=max(",;\t", key=header.count)), [])
    return [cell.strip() for cell in cells]


def _smiles_column(columns: Sequence[str]) -> str:
    """Return the name of the column with the SMILES, or "" if there is none."""
    by_name = {cell.lower(): cell for cell in reversed(columns)}
    return next((by_name[usual] for usual in SMILES if usual in by_name), "")


def _cells(name: str, text: str, columns: Sequence[str]) -> list[dict[str, str]]:
    """Read the cells of these columns of a table, row by row."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.csv"
        path.write_text(text, encoding="utf-8", errors="replace", newline="")
        try:
            return [record for _, record in iter_records(path, tuple(dict.fromkeys(columns)))]
        except ValueError as error:
            raise ValueError(str(error).replace(str(path), name)) from None


def _records(text: str) -> list[tuple[str, str, dict[str, str]]]:
    """Read name, SMILES and properties of each record of an SD file, empty if it is unreadable."""
    with rdBase.BlockLogs():
        molecules = Chem.ForwardSDMolSupplier(io.BytesIO(text.encode("utf-8", "replace")))
        return [
            ("", "", {})
            if mol is None
            else (
                one_line(mol.GetProp("_Name")),
                Chem.MolToSmiles(mol),
                {key: mol.GetProp(key) for key in mol.GetPropNames()},
            )
            for mol in molecules
        ]


def _limited(rows: list[list[str]]) -> dict[str, Any]:
    shown = [[name[:200], smiles[: MAX_CHARACTERS + 1]] for name, smiles in rows[:MAX_ROWS]]
    return {"rows": shown, "more": max(0, len(rows) - MAX_ROWS), "columns": []}


def _is_smiles(text: str) -> bool:
    with rdBase.BlockLogs():
        return len(text) <= MAX_CHARACTERS and Chem.MolFromSmiles(text) is not None
