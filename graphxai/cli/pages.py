"""The commands `graphxai report` and `graphxai app`: molecules on a page in the browser."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from graphxai.contract.method_names import DEFAULT_METHOD
from graphxai.runtime.options import as_in, option
from graphxai.tables.settings import ReportSettings

from .answers import INVOCATION
from .arguments import (
    ALWAYS,
    MODEL,
    ModelsOptions,
    check_level,
    load_several,
    model_line,
    require_out,
    require_sense,
    share_imports,
    show_table,
)
from .listing import method_names
from .options import refuse_inapplicable, settings_as_options
from .terminal import echo, tell


@dataclass(frozen=True)
class ReportOptions(ModelsOptions):
    """What explains the molecules of a report, and where it goes."""

    out: Path = option(Path("report.html"), "HTML file to write.", ALWAYS)
    method: str = option(
        DEFAULT_METHOD, "Explanation method; see `graphxai methods`.", ALWAYS, complete=method_names
    )


@settings_as_options
def report(
    context: typer.Context,
    table: Annotated[
        Path,
        typer.Argument(help="Table of molecules: CSV, .smi, .sdf, .xlsx or Parquet, also .gz."),
    ],
    *,
    options: ReportOptions,
    settings: ReportSettings,
) -> None:
    """Explain every molecule of a table in one HTML file, which opens without a network.

    **Examples**

    `graphxai report examples/molecules.csv --name-column name --out report.html`

    `graphxai report my.csv --workers 4 --out report.html`

    `graphxai report my.csv --detailed 10 --counterfactuals 3 --towards active`

    `graphxai report my.csv --smiles-column SMILES --name-column ID --model runs/mine/model`

    `graphxai report my.csv --model bace --model solubility --goal "pIC50 > 7, solubility > -4"`
    """
    refuse_inapplicable(context, "table")
    columns = (settings.smiles_column, settings.name_column)
    require_sense(table, "table", options.model or (), [options.method], columns, settings.level)
    require_out(options.out, table, (".html", ".htm"))
    from graphxai.runtime.writing import exclusive_lock
    from graphxai.tables.report import report as write_report

    show_table(table, settings.smiles_column)
    share_imports()
    with exclusive_lock(options.out):
        models = load_several(options)
        for each in models:
            check_level(context, each)
        loaded = models if len(models) > 1 else models[0]
        path = write_report(loaded, table, options.out, options.method, settings=settings)
    tell(model_line(context, *models))
    INVOCATION.rejected += path.left_out
    if path.left_out:
        tell(f"{path.left_out} left out, with reasons in the report")
    tell(f"written: {path}")


@dataclass(frozen=True)
class AppOptions(ModelsOptions):
    """What the page shows, and where it is served."""

    model: list[str] | None = as_in(
        ModelsOptions, "model", help=f"{MODEL}; repeat to compare several [default: bace]."
    )
    behind_proxy: str | None = option(
        None,
        "Address at which a proxy serves the page, such as"
        " https://hub.example/user/ann/proxy/8765/. Needs --port.",
        ALWAYS,
    )
    port: int = option(
        0, "Port on 127.0.0.1; 0 takes a free one.", ALWAYS, minimum=0, maximum=65535
    )
    browser: bool = option(
        True, "Open the page in the browser.", ALWAYS, name="--browser/--no-browser"
    )


@settings_as_options
def app(options: AppOptions) -> None:
    """Try changes to a molecule in the browser, and see prediction and explanation follow.

    The page is served to this machine alone and needs no network. Ctrl-C ends it.

    **Examples**

    `graphxai app`

    `graphxai app --model runs/mine/model --model bace`

    `graphxai app --model bace --model solubility`

    `graphxai app --port 8765 --no-browser`

    `graphxai app --port 8765 --behind-proxy https://hub.example/user/ann/proxy/8765/`
    """
    if options.behind_proxy is not None and not options.port:
        raise typer.BadParameter("--behind-proxy: name the port that the proxy asks, by --port.")
    require_sense("", "", options.model or ())
    from graphxai.tables.app.server import serve

    with suppress(KeyboardInterrupt):
        names: Sequence[Any] = options.model or ["bace"]
        if options.as_drawn or options.molecule_features:
            names = load_several(options)
        serve(
            names,
            options.port,
            open_browser=options.browser and options.behind_proxy is None,
            public=options.behind_proxy,
            log=lambda address: echo(
                f"the page: {address}\nCtrl-C ends it. Keep the address to yourself, as it holds"
                " the key."
            ),
        )
