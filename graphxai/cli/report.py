"""The command `graphxai report`: explained molecules in one HTML file."""

from pathlib import Path
from typing import Annotated

import typer

from .arguments import NameOption, load_with_warning


def report(
    table: Annotated[Path, typer.Argument(help="CSV table of molecules.")],
    smiles_column: Annotated[str, typer.Option(help="Column of the SMILES.")] = "smiles",
    name_column: NameOption = None,
    model: Annotated[
        str, typer.Option(help="A bundled model's name or a checkpoint folder.")
    ] = "bace",
    out: Annotated[Path, typer.Option(help="HTML file to write.")] = Path("report.html"),
    method: Annotated[str, typer.Option(help="Method, see `graphxai methods`.")] = "lrp",
    target: Annotated[
        str | None,
        typer.Option(
            help="Class or task to explain [default: the predicted class; of two, the second]."
        ),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            min=1, help="At most so many rows [default: all; more than 5,000 are refused]."
        ),
    ] = None,
    detailed: Annotated[
        int, typer.Option(help="Compare methods and check trust for the first so many molecules.")
    ] = 1000,
    title: Annotated[str, typer.Option(help="Title of the report.")] = "",
) -> None:
    """Write one HTML file with every molecule of a table explained; it needs no network.

    **Examples**

    `graphxai report molecules.csv --out report.html`

    `graphxai report assay.csv --smiles-column SMILES --name-column ID --model runs/mine/model`
    """
    from graphxai.tables.report import report as write

    if not table.is_file():
        raise FileNotFoundError(f"{table}: no such file.")
    path = write(
        load_with_warning(model),
        table,
        out,
        method,
        smiles_column=smiles_column,
        name_column=name_column,
        target=target,
        limit=limit,
        detailed=detailed,
        title=title,
    )
    typer.echo(f"written: {path}")
