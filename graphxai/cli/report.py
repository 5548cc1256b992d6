"""The command `graphxai report`: a table of explained molecules in one HTML file."""

from pathlib import Path
from typing import Annotated

import typer

from graphxai.tables.settings import ReportSettings

from .arguments import (
    AsDrawnOption,
    ModelsOption,
    MoleculeFeaturesOption,
    check_level,
    load_several,
    model_line,
    require_out,
    share_imports,
    show_table,
)
from .completion import method_names
from .options import APPLIES_ALWAYS, options_from, refuse_inapplicable
from .terminal import echo


@options_from(ReportSettings)
def report(
    context: typer.Context,
    table: Annotated[
        Path,
        typer.Argument(help="Table of molecules: CSV, .smi, .sdf, .xlsx or Parquet, also .gz."),
    ],
    *,
    model: ModelsOption = None,
    as_drawn: AsDrawnOption = False,
    molecule_features: MoleculeFeaturesOption = None,
    out: Annotated[Path, typer.Option(help="HTML file to write."), APPLIES_ALWAYS] = Path(
        "report.html"
    ),
    method: Annotated[
        str,
        typer.Option(
            help="Explanation method; see `graphxai methods`.", autocompletion=method_names
        ),
        APPLIES_ALWAYS,
    ] = "lrp",
    settings: ReportSettings,
) -> None:
    """Explain every molecule of a table in one HTML file, which opens without a network.

    **Examples**

    `graphxai report molecules.csv --out report.html`

    `graphxai report molecules.csv --workers 4 --out report.html`

    `graphxai report assay.csv --detailed 10 --counterfactuals 3 --towards active`

    `graphxai report assay.csv --smiles-column SMILES --name-column ID --model runs/mine/model`

    `graphxai report assay.csv --model bace --model solubility --goal "pIC50 > 7, solubility > -4"`
    """
    from graphxai.runtime.writing import exclusive_lock
    from graphxai.tables.report import report as write_report

    refuse_inapplicable(context, "table")
    show_table(table, settings.smiles_column)
    require_out(out, table, (".html", ".htm"))
    share_imports()
    with exclusive_lock(out):
        models = load_several(
            model or ["bace"], as_drawn=as_drawn, molecule_features=molecule_features
        )
        for each in models:
            check_level(context, each, settings.level)
        loaded = models if len(models) > 1 else models[0]
        path = write_report(loaded, table, out, method, settings=settings)
    echo(model_line(context, *models))
    if path.left_out:
        echo(f"{path.left_out} left out, with reasons in the report", err=True)
    echo(f"written: {path}")
