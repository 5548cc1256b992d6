"""The commands `graphxai counterfactuals` and `graphxai changes`: what changes of molecules do."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from graphxai.chemistry import SearchSettings
from graphxai.runtime.options import as_in, option

from .answers import answer, counts
from .arguments import (
    ALWAYS,
    ModelsOptions,
    SharedOptions,
    kind_of,
    load_several,
    require_out,
    require_sense,
    show_table,
)
from .options import APPLIES_ALWAYS, refuse_inapplicable, settings_as_options
from .terminal import echo, echo_left_out, tell

if TYPE_CHECKING:
    from graphxai.chemistry.desirability import PropertyGoal
    from graphxai.chemistry.measurements import Measurements
    from graphxai.chemistry.search.counterfactual_results import (
        Counterfactuals,
        ProfileCounterfactuals,
    )
    from graphxai.explanation.compute.models import Model
    from graphxai.tables.rows import RowSource, TableRow


@dataclass(frozen=True)
class FileOptions:
    """What changes are compared with, what is read of a table, and where the results go."""

    measured: Path | None = option(
        None,
        "Table with measured values, to compare the changes with [default: the table of"
        " molecules, if it has a column named after a task].",
        ALWAYS,
    )
    measured_column: str | None = option(
        None, "Column of these values [default: named after a task].", ALWAYS
    )
    smiles_column: str | None = option(
        None,
        "Column with structures, of a table of molecules or of measured values [default: by its"
        " name or content].",
        ALWAYS,
    )
    name_column: str | None = option(
        None, "Column with the names of the molecules.", ("table",), names_kind=False
    )
    out: Path = option(
        Path("counterfactuals.csv"),
        "Table (.csv, .tsv, .parquet) or structures (.sdf); of one molecule also a picture"
        " or page.",
        ALWAYS,
    )


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
    files: FileOptions,
) -> None:
    """Find what to change in a molecule so that the model predicts something else.

    Neighbours are made by transformations of medicinal chemistry, exchanged fragments or SELFIES.

    **Examples**

    `graphxai counterfactuals "O=C(Nc1ccc(F)cc1)c1ccccn1" --towards ">6" --keep "C(=O)N"`

    `graphxai counterfactuals examples/molecules.csv --towards inactive -n 5 --out changes.csv`

    `graphxai counterfactuals "CCOc1ccccc1" --towards active --sure --out changes.html`

    `graphxai counterfactuals my.csv --towards ">6" --measured measured.csv --out changes.sdf`

    `graphxai counterfactuals my.csv --towards ">6" --measured-column IC50 --out changes.csv`

    `graphxai counterfactuals CCOc1ccccc1 --towards "pIC50 5 to 6, inactive" --out changes.html`
    """
    kind = kind_of(source)
    if kind == "image":
        raise ValueError("counterfactuals needs molecules: a SMILES or a table.")
    refuse_inapplicable(context, kind)
    if files.measured_column and files.measured is None and kind == "smiles":
        raise typer.BadParameter("--measured-column is a column of a table: give --measured.")
    require_sense(source, kind, reading.model or (), (), (files.smiles_column, files.name_column))
    from graphxai.chemistry.profile_text import profile, single_goal
    from graphxai.explanation.files import FRAMES, PAGES, PICTURES

    pages = () if kind == "table" else PICTURES + PAGES
    require_out(files.out, source, (*FRAMES, ".sdf", *pages))
    models = load_several(reading)
    goal = single_goal(models[0], towards) if len(models) == 1 else None
    if goal is None:
        profile(models, towards)  # raises an error that lists the properties
    if goal is None and files.measured_column:
        raise typer.BadParameter("--measured-column is for a single goal.")
    options: dict[str, Any] = {"settings": settings}
    table = files.measured or (source if kind == "table" else None)
    if table is not None and (values := _measured(models, goal, table, files)) is not None:
        options["measured"] = values
    answer(models=[model.origin.name for model in models])
    from graphxai.chemistry.search.counterfactuals import counterfactuals as search

    loaded: Any = models if goal is None else models[0]
    find = partial(search, loaded, towards=towards, n=n, **options)
    if kind == "table":
        from graphxai.tables.rows import RowSource

        opened = show_table(source, files.smiles_column)
        names = opened.column(files.name_column) if files.name_column else opened.names_column
        _find_for_table(RowSource(opened, names), find, files.out)
        return
    from .printing import print_changes

    results = find(source)
    results.save(files.out)
    print_changes(results)
    rows = results.to_frame().to_dict("records")
    answer(summary=results.summary, counterfactuals=rows, files=[files.out])
    echo(f"{results.summary}.")
    tell(f"written: {files.out}")


def _measured(
    models: "list[Model]", goal: "PropertyGoal | None", table: str | Path, files: FileOptions
) -> "Measurements | dict[str, Measurements] | None":
    """Read the measured values of a table, or return None if it has none and nobody named them.

    They are those of a single goal, or of all properties.
    """
    from graphxai.chemistry.measurements import (
        NoNumbersError,
        measured_properties,
        measurements_for_tasks,
    )
    from graphxai.explanation.compute.models import ModelPanel, standardisation_of

    model = models[0]
    try:
        if goal is None:
            return measured_properties(ModelPanel.of(models), table, files.smiles_column) or None
        units, way = goal.tasks_of(model), standardisation_of(model)
        columns = files.measured_column, files.smiles_column
        values = measurements_for_tasks(table, units, *columns, way)
    except ValueError as error:
        if files.measured is not None or files.measured_column is not None:
            raise
        if goal is not None and isinstance(error, NoNumbersError):
            tell(f"warning: {error}", logging.WARNING)
        return None
    # They may hardly look like those of the task that names their column, or else of the goal's.
    tasks = {task.name: task for task in model.config.tasks}
    if doubt := values.doubt(tasks[values.name if values.name in tasks else goal.of.task.name]):
        tell(f"warning: {doubt}", logging.WARNING)
    return values


def _find_for_table(source: "RowSource", find: Callable[..., Any], out: Path) -> None:
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
                changes = find(row.smiles, progress=False)
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

    from graphxai.explanation.files import write_table
    from graphxai.runtime.writing import write_whole
    from graphxai.tables.files import csv_options, with_items
    from graphxai.tables.rows import other_cells

    if out.suffix.lower() == ".sdf":
        records = (
            with_items(record, other_cells(row, source.others))
            for row, changes in results
            for record in changes.to_sdf(
                row=row.number, **({} if row.name is None else {"name": row.name})
            )
        )
        write_whole(out, "".join(records))
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


@dataclass(frozen=True)
class ChangeOptions:
    """What is compared, and what is written of it."""

    model: list[str] | None = as_in(ModelsOptions, "model")
    as_drawn: bool = as_in(ModelsOptions, "as_drawn")
    isomers: Literal["groups", "mean"] = as_in(ModelsOptions, "isomers")
    measured_column: str | None = option(
        None, "Column of measured values [default: named after a task].", ALWAYS
    )
    smiles_column: str | None = as_in(SharedOptions, "smiles_column")
    core: str | None = option(
        None, "SMARTS of a core: write the R-groups of each molecule that has it.", ALWAYS
    )
    at_least: int = option(2, "In how many pairs an exchange must occur.", ALWAYS, minimum=1)
    pairs: bool = option(False, "Write each pair, instead of the means of each exchange.", ALWAYS)
    out: Path = option(Path("changes.csv"), "Table to write (.csv, .tsv or .parquet).", ALWAYS)


@settings_as_options
def changes(
    context: typer.Context,
    table: Annotated[
        Path, typer.Argument(help="Table of measured molecules: CSV, .smi, .sdf, .xlsx or Parquet.")
    ],
    options: ChangeOptions,
) -> None:
    """Compare what each change did in a table of measured molecules with what models predict.

    Changes are those of matched pairs, which differ in one part at one bond. With --core, each
    molecule that has the core gets a row with its R-groups.

    **Examples**

    `graphxai changes examples/assay.csv --model mdr1-efflux --measured-column efflux`

    `graphxai changes my.csv --model bace --model solubility --pairs --out pairs.csv`

    `graphxai changes my.csv --core "NC(=O)c1ccccc1" --out rgroups.csv`
    """
    refuse_inapplicable(context, "table")
    columns = (options.smiles_column, options.measured_column)
    require_sense(table, "table", options.model or (), (), columns)
    from graphxai.chemistry.table_changes import measured_for, rgroup_table, table_changes
    from graphxai.explanation.compute.models import ModelPanel
    from graphxai.explanation.files import FRAMES, write_table
    from graphxai.tables.files import csv_options

    opened = show_table(table, options.smiles_column)
    require_out(options.out, table, FRAMES)
    models = load_several(options)
    column = options.measured_column or ""
    measured = measured_for(ModelPanel.of(models), table, column, options.smiles_column)
    if options.core is not None:
        frame = rgroup_table(models, options.core, measured)
        summary = f"R-groups of {len(frame):,} of {len(measured.values):,} compounds"
    else:
        exchanges = table_changes(models, measured, at_least=options.at_least)
        frame = exchanges.pairs_frame() if options.pairs else exchanges.to_frame()
        count = sum(len(each.pairs) for each in exchanges)
        summary = (
            f"{len(exchanges):,} exchanges in {count:,} pairs of {exchanges.compounds:,} compounds"
        )
    write_table(frame, options.out, **csv_options(opened.dialect))
    tell(f"{summary}, measured in {measured.name!r}: {options.out}")
