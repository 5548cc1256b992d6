"""The command `graphxai counterfactuals`: what to change so that the prediction changes."""

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from graphxai.chemistry.settings import SearchSettings

from .answers import answer, counts
from .arguments import (
    ModelsOptions,
    kind_of,
    load_several,
    require_out,
    show_table,
)
from .options import APPLIES_ALWAYS, applies_to, refuse_inapplicable, settings_as_options
from .terminal import echo, echo_left_out, tell

if TYPE_CHECKING:
    from graphxai.chemistry.counterfactual_results import Counterfactuals, ProfileCounterfactuals
    from graphxai.chemistry.desirability import PropertyGoal
    from graphxai.chemistry.measurements import Measurements
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

    `graphxai counterfactuals examples/molecules.csv --towards inactive -n 5 --out changes.csv`

    `graphxai counterfactuals "CCOc1ccccc1" --towards active --sure --out changes.html`

    `graphxai counterfactuals my.csv --towards ">6" --measured examples/assay.csv --out changes.sdf`

    `graphxai counterfactuals my.csv --towards ">6" --measured-column IC50 --out changes.csv`

    `graphxai counterfactuals CCOc1ccccc1 --towards "pIC50 5 to 6, inactive" --out changes.html`
    """
    kind = kind_of(source)
    if kind == "image":
        raise ValueError("counterfactuals needs molecules: a SMILES or a table.")
    refuse_inapplicable(context, kind)
    if measured_column and measured is None and kind == "smiles":
        raise typer.BadParameter("--measured-column is a column of a table: give --measured.")
    from graphxai.chemistry.profile_text import profile, single_goal
    from graphxai.explanation.files import FRAMES, PAGES, PICTURES

    require_out(out, source, (*FRAMES, ".sdf", *(() if kind == "table" else PICTURES + PAGES)))
    models = load_several(reading)
    goal = single_goal(models[0], towards) if len(models) == 1 else None
    if goal is None:
        profile(models, towards)  # raises an error that lists the properties
    if goal is None and measured_column:
        raise typer.BadParameter("--measured-column is for a single goal.")
    options: dict[str, Any] = {"settings": settings}
    table = measured or (source if kind == "table" else None)
    if table is not None:
        about = table, measured_column, smiles_column
        required = measured is not None or measured_column is not None
        if (values := _measured(models, goal, *about, required=required)) is not None:
            options["measured"] = values
    answer(models=[model.origin.name for model in models])
    loaded = models if goal is None else models[0]
    if kind == "smiles":
        _find_for_molecule(loaded, source, towards, n, options, out)
    else:
        from graphxai.tables.rows import RowSource

        opened = show_table(source, smiles_column)
        names = opened.column(name_column) if name_column else opened.names_column
        rows = RowSource(opened, names)
        _find_for_table(loaded, rows, towards, n, options, out)


def _measured(
    models: "list[Model]",
    goal: "PropertyGoal | None",
    table: str | Path,
    column: str | None,
    smiles_column: str | None,
    *,
    required: bool,
) -> "Measurements | dict[str, Measurements] | None":
    """Read the measured values of a table, or return None if it has none and need not.

    They are those of a single goal, or of all properties.
    """
    from graphxai.chemistry.measurements import Measurements, NoNumbersError, measured_properties
    from graphxai.explanation.compute.models import standardisation_of
    from graphxai.explanation.compute.panel import ModelPanel

    model = models[0]
    try:
        if goal is None:
            return measured_properties(ModelPanel.of(models), table, smiles_column) or None
        names, way = goal.tasks_of(model), standardisation_of(model)
        columns = [column] if column else names
        values = Measurements.read(table, columns, smiles_column, way, names)
    except ValueError as error:
        if required:
            raise
        if goal is not None and isinstance(error, NoNumbersError):
            tell(f"warning: {error}", logging.WARNING)
        return None
    # They may hardly look like those of the task that names their column, or else of the goal's.
    tasks = {task.name: task for task in model.config.tasks}
    if doubt := values.doubt(tasks[values.name if values.name in tasks else goal.of.task.name]):
        tell(f"warning: {doubt}", logging.WARNING)
    return values


def _find_for_molecule(
    model: "Model | list[Model]",
    smiles: str,
    towards: str,
    n: int,
    options: dict[str, Any],
    out: Path,
) -> None:
    from graphxai.chemistry.counterfactuals import counterfactuals as find

    from .printing import print_changes

    results: Counterfactuals | ProfileCounterfactuals = find(model, smiles, towards, n, **options)
    results.save(out)
    print_changes(results)
    answer(
        summary=results.summary,
        counterfactuals=results.to_frame().to_dict("records"),
        files=[out],
    )
    echo(f"{results.summary}.")
    tell(f"written: {out}")


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
    tell(f"{done}: {out}")
    answer(counts=counts(len(results), len(left_out)), rejected=left_out, files=[out])


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
            with_items(record, other_cells(row, source.others))
            for row, changes in results
            for record in changes.to_sdf(**_named(row))
        )
        write_text(records, out)
        return
    tables = []
    for row, changes in results:
        frame = changes.to_frame()
        headings = source.headings({"row", *frame.columns}, source.repeated)
        cells: dict[str, str | None] = {**other_cells(row, source.others)}
        cells |= {source.table.structures.name: row.smiles, source.name_column or "": row.name}
        frame.insert(0, "row", row.number)
        for place, name in enumerate(source.repeated, 1):
            frame.insert(place, headings[name], cells[name])
        tables.append(frame)
    write_table(pd.concat(tables), out, **csv_options(source.table.dialect))


def _named(row: "TableRow") -> dict[str, Any]:
    """Return the number of a row and, if the table has names, the name of its molecule."""
    return {"row": row.number} | ({} if row.name is None else {"name": row.name})
