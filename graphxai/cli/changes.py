"""The command `graphxai changes`: what each change did in a table, measured and predicted."""

from pathlib import Path
from typing import Annotated

import typer

from .arguments import AsDrawnOption, ModelsOption, load_several, require_out, show_table
from .options import APPLIES_ALWAYS, refuse_inapplicable
from .terminal import echo


def changes(
    context: typer.Context,
    table: Annotated[
        Path,
        typer.Argument(help="Table of measured molecules: CSV, .smi, .sdf, .xlsx or Parquet."),
    ],
    model: ModelsOption = None,
    as_drawn: AsDrawnOption = False,
    measured_column: Annotated[
        str | None,
        typer.Option(help="Column of measured values [default: named after a task]."),
        APPLIES_ALWAYS,
    ] = None,
    smiles_column: Annotated[
        str | None,
        typer.Option(help="Column with structures [default: by its name or content]."),
        APPLIES_ALWAYS,
    ] = None,
    core: Annotated[
        str | None,
        typer.Option(help="SMARTS of a core: write the R-groups of each molecule that has it."),
        APPLIES_ALWAYS,
    ] = None,
    at_least: Annotated[
        int, typer.Option(min=1, help="In how many pairs an exchange must occur."), APPLIES_ALWAYS
    ] = 2,
    pairs: Annotated[
        bool,
        typer.Option("--pairs", help="Write each pair, instead of the means of each exchange."),
        APPLIES_ALWAYS,
    ] = False,
    out: Annotated[
        Path, typer.Option(help="Table to write (.csv, .tsv or .parquet)."), APPLIES_ALWAYS
    ] = Path("changes.csv"),
) -> None:
    """Say what each change did in a table of measured molecules, measured and predicted.

    Changes are those of matched pairs, which differ in one part at one bond. With --core, each
    molecule that has the core gets a row with its R-groups.

    **Examples**

    `graphxai changes assay.csv --out changes.csv`

    `graphxai changes assay.csv --model bace --model solubility --pairs --out pairs.csv`

    `graphxai changes assay.csv --core "NC(=O)c1ccccc1" --out rgroups.csv`
    """
    from graphxai.chemistry.measurements import Measurements
    from graphxai.chemistry.table_changes import rgroup_table, table_changes
    from graphxai.explanation.compute.models import standardisation_of
    from graphxai.explanation.files import FRAMES, write_table
    from graphxai.tables.files import csv_options

    refuse_inapplicable(context, "table")
    opened = show_table(table, smiles_column)
    require_out(out, table, FRAMES)
    models = load_several(model or ["bace"], as_drawn=as_drawn)
    tasks = [task.name for each in models for task in each.config.tasks]
    columns = [measured_column] if measured_column else tasks
    way = standardisation_of(models[0])
    measured = Measurements.read(table, columns, smiles_column, way)
    if core is not None:
        frame = rgroup_table(models, core, measured)
        summary = f"R-groups of {len(frame):,} of {len(measured.values):,} compounds"
    else:
        exchanges = table_changes(models, measured, at_least=at_least)
        frame = exchanges.pairs_frame() if pairs else exchanges.to_frame()
        count = sum(len(each.pairs) for each in exchanges)
        summary = (
            f"{len(exchanges):,} exchanges in {count:,} pairs of {exchanges.compounds:,} compounds"
        )
    write_table(frame, out, **csv_options(opened.dialect))
    echo(f"{summary}, measured in {measured.name!r}: {out}")
