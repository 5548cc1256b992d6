"""The command `graphxai report`: a table of explained molecules in one HTML file."""

from pathlib import Path
from typing import Annotated

import typer

from .arguments import (
    LevelOption,
    NameOption,
    WorkersOption,
    level_for,
    load_with_warning,
    require_out,
)
from .terminal import echo


def report(
    table: Annotated[Path, typer.Argument(help="CSV table of molecules.")],
    smiles_column: Annotated[str, typer.Option(help="Column with SMILES.")] = "smiles",
    name_column: NameOption = None,
    measured: Annotated[
        list[str] | None,
        typer.Option(
            help="TASK=COLUMN with measured values [default: columns named after a task]."
        ),
    ] = None,
    model: Annotated[
        str, typer.Option(help="Name of a bundled model, or a checkpoint folder.")
    ] = "bace",
    out: Annotated[Path, typer.Option(help="HTML file to write.")] = Path("report.html"),
    method: Annotated[
        str, typer.Option(help="Explanation method; see `graphxai methods`.")
    ] = "lrp",
    target: Annotated[
        str | None,
        typer.Option(
            help="Class or task to explain [default: the predicted class, or the second of two]."
        ),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(min=1, help="Read at most this many rows [default: all, up to 5,000]."),
    ] = None,
    detailed: Annotated[
        int,
        typer.Option(
            help="Full cards (other methods, every sign of trust) for this many molecules: those"
            " with the strongest atoms, the least trust, activity cliffs and outliers."
        ),
    ] = 50,
    counterfactuals: Annotated[
        int,
        typer.Option(
            min=0,
            help="Find this many changes that alter the prediction for each full card, which takes"
            " about 5 s a molecule.",
        ),
    ] = 0,
    towards: Annotated[
        str | None,
        typer.Option(
            help="What these changes should lead to: a class, '>6.5' or '<6.5' [default: the most"
            " probable other class, or one unit more]."
        ),
    ] = None,
    level: LevelOption = None,
    title: Annotated[str, typer.Option(help="Title of the report.")] = "",
    workers: WorkersOption = None,
) -> None:
    """Explain every molecule of a table in one HTML file, which opens without a network.

    **Examples**

    `graphxai report molecules.csv --out report.html`

    `graphxai report molecules.csv --workers 4 --out report.html`

    `graphxai report assay.csv --detailed 10 --counterfactuals 3 --towards active`

    `graphxai report assay.csv --smiles-column SMILES --name-column ID --model runs/mine/model`
    """
    from graphxai.runtime.writing import exclusive_lock
    from graphxai.tables.report import report as write

    if not table.is_file():
        raise FileNotFoundError(f"{table}: no such file.")
    columns = dict(text.partition("=")[::2] for text in measured or [])
    if not all(columns.values()):
        raise typer.BadParameter("--measured is TASK=COLUMN.")
    require_out(out, table)
    with exclusive_lock(out):
        loaded = load_with_warning(model)
        path = write(
            loaded,
            table,
            out,
            method,
            smiles_column=smiles_column,
            name_column=name_column,
            measured=columns,
            target=target,
            limit=limit,
            detailed=detailed,
            counterfactuals=counterfactuals,
            towards=towards,
            level=level_for(loaded, level),
            title=title,
            workers=workers,
        )
    echo(f"written: {path}")
