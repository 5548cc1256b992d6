"""The command `graphxai changes`: what each change did in a table, measured and predicted."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from graphxai.runtime.options import as_in, option

from .arguments import ALWAYS, ModelsOptions, SharedOptions, load_several, require_out, show_table
from .options import refuse_inapplicable, settings_as_options
from .terminal import echo


@dataclass(frozen=True)
class ChangeOptions:
    """What is compared, and what is written of it."""

    model: list[str] | None = as_in(ModelsOptions, "model")
    as_drawn: bool = as_in(ModelsOptions, "as_drawn")
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
        Path,
        typer.Argument(help="Table of measured molecules: CSV, .smi, .sdf, .xlsx or Parquet."),
    ],
    options: ChangeOptions,
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
    opened = show_table(table, options.smiles_column)
    require_out(options.out, table, FRAMES)
    models = load_several(options.model or ["bace"], as_drawn=options.as_drawn)
    tasks = [task.name for each in models for task in each.config.tasks]
    columns = [options.measured_column] if options.measured_column else tasks
    way = standardisation_of(models[0])
    measured = Measurements.read(table, columns, options.smiles_column, way)
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
    echo(f"{summary}, measured in {measured.name!r}: {options.out}")
