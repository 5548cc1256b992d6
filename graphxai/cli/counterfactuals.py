"""The command `graphxai counterfactuals`: what to change so that the prediction changes."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from graphxai.chemistry.settings import SearchSettings

from .arguments import (
    ModelsOptions,
    kind_of,
    load_several,
    require_out,
    show_table,
)
from .options import APPLIES_ALWAYS, applies_to, refuse_inapplicable, settings_as_options
from .terminal import echo, echo_left_out, printable

if TYPE_CHECKING:
    from graphxai.chemistry.counterfactuals import Counterfactuals
    from graphxai.chemistry.goal import Goal
    from graphxai.chemistry.measurements import Measurements
    from graphxai.chemistry.profile_results import ProfileCounterfactuals
    from graphxai.explanation.compute.models import Model
    from graphxai.tables.rows import RowSource, TableRow


@settings_as_options
def counterfactuals(
    context: typer.Context,
    source: Annotated[
        str, typer.Argument(help="A SMILES or a table (CSV, .smi, .sdf, .xlsx, Parquet).")
    ],
    *,
    towards: Annotated[
        str,
        typer.Option(
            help="What the model should say: a class, '>6.5' or '<6.5'; or several goals, such as"
            " 'pIC50 > 6.5, log D 1 to 3'."
        ),
        APPLIES_ALWAYS,
    ],
    n: Annotated[
        int, typer.Option("-n", min=1, help="How many to find for a molecule."), APPLIES_ALWAYS
    ] = 12,
    reading: ModelsOptions,
    settings: SearchSettings,
    measured: Annotated[
        Path | None,
        typer.Option(
            help="Table with measured values, to compare the changes with [default: the table of"
            " molecules, if it has a column named after a task]."
        ),
        APPLIES_ALWAYS,
    ] = None,
    measured_column: Annotated[
        str | None,
        typer.Option(help="Column of these values [default: named after a task]."),
        APPLIES_ALWAYS,
    ] = None,
    smiles_column: Annotated[
        str | None,
        typer.Option(
            help="Column with structures, of a table of molecules or of measured values [default:"
            " by its name or content]."
        ),
        APPLIES_ALWAYS,
    ] = None,
    name_column: Annotated[
        str | None,
        typer.Option(help="Column with the names of the molecules."),
        applies_to("table"),
    ] = None,
    out: Annotated[
        Path,
        typer.Option(
            help="Table (.csv, .tsv, .parquet) or structures (.sdf); of one molecule also a picture"
            " or page."
        ),
        APPLIES_ALWAYS,
    ] = Path("counterfactuals.csv"),
) -> None:
    """Find what to change in a molecule so that the model predicts something else.

    Neighbours are made by transformations of medicinal chemistry, exchanged fragments or SELFIES.

    **Examples**

    `graphxai counterfactuals "O=C(Nc1ccc(F)cc1)c1ccccn1" --towards ">6" --keep "C(=O)N"`

    `graphxai counterfactuals molecules.csv --towards inactive -n 5 --out changes.csv`

    `graphxai counterfactuals "CCOc1ccccc1" --towards active --sure --out changes.html`

    `graphxai counterfactuals molecules.csv --towards ">6" --measured assay.csv --out changes.sdf`

    `graphxai counterfactuals assay.csv --towards ">6" --measured-column pIC50 --out changes.csv`

    `graphxai counterfactuals CCOc1ccccc1 --towards "pIC50 5 to 6, inactive" --out changes.html`
    """
    kind = kind_of(source)
    if kind == "image":
        raise ValueError("counterfactuals needs molecules: a SMILES or a table.")
    refuse_inapplicable(context, kind)
    if measured_column and measured is None and kind == "smiles":
        raise typer.BadParameter("--measured-column is a column of a table: give --measured.")
    from graphxai.explanation.files import FRAMES, PAGES, PICTURES

    require_out(out, source, (*FRAMES, ".sdf", *(() if kind == "table" else PICTURES + PAGES)))
    models = load_several(
        reading.model or ["bace"],
        as_drawn=reading.as_drawn,
        molecule_features=reading.molecule_features,
    )
    options: dict[str, Any] = {"settings": settings}
    goal = _single_goal(models, towards)
    if goal is None:
        if measured_column:
            raise typer.BadParameter("--measured-column is for a single goal.")
        if measured is not None or kind == "table":
            given, required = measured or source, measured is not None
            tables = _measured_properties(models, given, smiles_column, required=required)
            options["measured"] = tables or None
    else:
        about = measured, measured_column, smiles_column
        measurements = _measurements_for(models[0], goal, source, kind, *about)
        if doubt := _doubt(models[0], goal.task, measurements):
            echo(f"warning: {doubt}", err=True)
        if measurements is not None:
            options["measured"] = measurements
    loaded = models if goal is None else models[0]
    if kind == "smiles":
        _find_for_molecule(loaded, source, towards, n, options, out)
    else:
        from graphxai.tables.rows import RowSource

        table = show_table(source, smiles_column)
        rows = RowSource(table, None if name_column is None else table.column(name_column))
        _find_for_table(loaded, rows, towards, n, options, out)


def _single_goal(models: "list[Model]", towards: str) -> "Goal | None":
    """Return the goal for a single model, or None for several models or joined goals."""
    from graphxai.chemistry.goal import Goal
    from graphxai.chemistry.profile_text import joins_goals, profile

    if len(models) > 1:
        profile(models, towards)  # raises an error that lists the properties
        return None
    try:
        return Goal.of(towards, models[0])
    except ValueError:
        if not joins_goals(towards):
            raise
        profile(models, towards)
        return None


def _measurements_for(
    model: "Model",
    goal: "Goal",
    source: str,
    kind: str,
    measured: Path | None,
    column: str | None,
    smiles_column: str | None,
) -> "Measurements | None":
    """Read measured values from the table that holds them, or from the molecules' table."""
    columns = [column] if column else goal.columns(model)
    if measured is not None or column:
        return _measurements(model, measured or source, columns, smiles_column)
    if kind == "table":
        return _measurements_if_any(model, source, columns, smiles_column)
    return None


def _measured_properties(
    models: "list[Model]", table: str | Path, smiles_column: str | None, *, required: bool
) -> "dict[str, Measurements]":
    """Read the measured values of all properties, or return {} if none is there or required."""
    from graphxai.chemistry.measurements import measured_properties
    from graphxai.explanation.compute.panel import ModelPanel

    try:
        return measured_properties(ModelPanel.of(models), table, smiles_column)
    except ValueError:
        if required:
            raise
        return {}


def _measurements(
    model: "Model", path: str | Path, columns: list[str], smiles_column: str | None
) -> "Measurements":
    from graphxai.chemistry.measurements import Measurements
    from graphxai.explanation.compute.models import standardisation_of

    return Measurements.read(path, columns, smiles_column, standardisation_of(model))


def _measurements_if_any(
    model: "Model", path: str | Path, columns: list[str], smiles_column: str | None
) -> "Measurements | None":
    """Read the measured values in the table of molecules, or return None if it has none."""
    from graphxai.chemistry.measurements import NoNumbersError

    try:
        return _measurements(model, path, columns, smiles_column)
    except NoNumbersError as error:
        echo(f"warning: {error}", err=True)
    except ValueError:
        pass  # nothing was measured
    return None


def _find_for_molecule(
    model: "Model | list[Model]",
    smiles: str,
    towards: str,
    n: int,
    options: dict[str, Any],
    out: Path,
) -> None:
    from graphxai.chemistry.counterfactuals import counterfactuals as find
    from graphxai.chemistry.profile_results import ProfileCounterfactuals

    results: Counterfactuals | ProfileCounterfactuals = find(model, smiles, towards, n, **options)
    results.save(out)
    if isinstance(results, ProfileCounterfactuals):
        print_profile_changes(results)
    else:
        print_changes(results)
    echo(f"{results.summary}.")
    echo(f"written: {out}")


def _find_for_table(
    model: "Model | list[Model]",
    source: "RowSource",
    towards: str,
    n: int,
    options: dict[str, Any],
    out: Path,
) -> None:
    from graphxai.chemistry.counterfactuals import counterfactuals as find
    from graphxai.runtime.progress import progress_bar
    from graphxai.runtime.writing import exclusive_lock

    path = source.table.path
    rows = [row for chunk in source.chunks() for row in chunk]
    if not rows:
        raise ValueError(f"{path} has no rows.")
    results, left_out = [], []
    with exclusive_lock(out), progress_bar("finding counterfactuals", len(rows)) as advance:
        for row in rows:
            try:
                if row.problem:
                    raise ValueError(row.problem)
                changes = find(model, row.smiles, towards, n, progress=False, **options)
            except ValueError as error:
                left_out.append(f"row {row.number}: {error}")
            else:
                results.append((row, changes))
            advance(1)
        if not results:
            raise ValueError(f"no molecule in {path} has counterfactuals: {left_out[0]}")
        _save(source, results, out)
    echo_left_out(left_out, len(left_out))
    done = f"counterfactuals of {len(results):,} molecules, {len(left_out):,} left out"
    echo(f"{done}: {out}")


def _doubt(model: "Model", goal_task: str, measured: "Measurements | None") -> str:
    """Return a warning if measured values hardly look like those of their task, or else "".

    The task is the one that names their column, or else the goal's.
    """
    if measured is None:
        return ""
    tasks = {task.name: task for task in model.config.tasks}
    return measured.doubt(tasks[measured.name if measured.name in tasks else goal_task])


def _save(
    source: "RowSource",
    results: "list[tuple[TableRow, Counterfactuals | ProfileCounterfactuals]]",
    out: Path,
) -> None:
    """Write the counterfactuals of several molecules, with their row of the table, to one file."""
    import pandas as pd

    from graphxai.explanation.files import write_table, write_text
    from graphxai.tables.files import csv_options, with_items
    from graphxai.tables.rows import other_cells

    if out.suffix.lower() == ".sdf":
        records = (
            with_items(record, other_cells(row, {name: name for name in source.others}))
            for row, changes in results
            for record in changes.to_sdf(**_named(row))
        )
        write_text(records, out)
        return
    tables = []
    for row, changes in results:
        frame = changes.to_frame()
        first = {**_named(row), "molecule": row.smiles}
        headings = source.headings({*first, *frame.columns})
        cells = first | other_cells(row, headings)
        for place, (name, cell) in enumerate(cells.items()):
            frame.insert(place, name, cell)
        tables.append(frame)
    write_table(pd.concat(tables), out, **csv_options(source.table.dialect))


def _named(row: "TableRow") -> dict[str, Any]:
    """Return the number of a row and, if the table has names, the name of its molecule."""
    return {"row": row.number} | ({} if row.name is None else {"name": row.name})


def print_changes(results: "Counterfactuals") -> None:
    """Print a table with a row for each counterfactual."""
    from rich.console import Console  # typer brings it
    from rich.markup import escape
    from rich.table import Column, Table

    from graphxai.chemistry.counterfactual_results import AT_CHANGE, percent

    title = f"{results.explanation.prediction.in_full}, towards {results.goal}"
    shown = Table(
        Column("change", overflow="fold"),
        Column("SMILES", overflow="fold"),
        "prediction",
        "predicted change",
        AT_CHANGE,
        "similarity",
        *(["measured"] if any(change.measured for change in results) else []),
        title=escape(printable(title)),
        title_justify="left",
    )
    for change, share in zip(results, results.at_change, strict=True):
        predicted = f"{change.prediction}, sure" if change.sure else str(change.prediction)
        if change.isomers:
            values = ", ".join(str(prediction) for _, prediction in change.isomers)
            predicted += f", worst of its isomers ({values})"
        cells = [change.changes, change.smiles, predicted, change.change_in_full, percent(share)]
        cells += [
            f"{change.similarity:.2f}",
            *([change.measured.sentence] if change.measured else []),
        ]
        shown.add_row(*(escape(printable(cell)) for cell in cells))
    Console().print(shown)


def print_profile_changes(results: "ProfileCounterfactuals") -> None:
    """Print a table with the molecule and each change, and what it does to all properties."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Column, Table

    from graphxai.chemistry.measurements import sentence_about

    goals = [part.goal for part in results.score.parts]
    measured = any(change.measured for change in results)
    shown = Table(
        Column("change", overflow="fold"),
        Column("SMILES", overflow="fold"),
        "desirability",
        *(escape(printable(str(goal))) for goal in goals),
        *(["measured"] if measured else []),
        title=escape(printable(f"towards {results.profile}")),
        title_justify="left",
    )
    rows = [("the molecule", results.smiles, results.score, "")]
    rows += [(c.changes, c.smiles, c.score, sentence_about(c.measured)) for c in results]
    for name, smiles, score, sentence in rows:
        parts = [f"{part.prediction}: {part.desirability or 0:.2f}" for part in score.parts]
        cells = [
            name,
            smiles,
            f"{score.overall or 0:.2f}",
            *parts,
            *([sentence] if measured else []),
        ]
        shown.add_row(*(escape(printable(cell)) for cell in cells))
    Console().print(shown)
