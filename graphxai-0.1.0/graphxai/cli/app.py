"""The command `graphxai app`: a page on this machine where changes to molecules are tried live."""

from typing import Annotated

import typer

from .completion import model_names
from .terminal import echo


def app(
    model: Annotated[
        list[str] | None,
        typer.Option(
            help="Name of a bundled model, or a checkpoint folder; repeat to compare several"
            " [default: bace].",
            autocompletion=model_names,
        ),
    ] = None,
    as_drawn: Annotated[
        bool,
        typer.Option(
            "--as-drawn",
            help="Read molecules as they are drawn, with counter-ions and charges, instead of their"
            " parents.",
        ),
    ] = False,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port on 127.0.0.1; 0 takes a free one.")
    ] = 0,
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Open the page in the browser.")
    ] = True,
) -> None:
    """Try changes to a molecule in the browser, and see prediction and explanation follow.

    The page is served to this machine alone and needs no network. Ctrl-C ends it.

    **Examples**

    `graphxai app`

    `graphxai app --model runs/mine/model --model bace`

    `graphxai app --port 8765 --no-browser`
    """
    from contextlib import suppress

    from graphxai.api import load
    from graphxai.tables.app.server import serve

    with suppress(KeyboardInterrupt):
        names = model or ["bace"]
        models = [load(name, as_drawn=True) for name in names] if as_drawn else names
        serve(models, port, open_browser=browser, log=_print_address)


def _print_address(address: str) -> None:
    echo(f"the page: {address}")
    echo("Ctrl-C ends it. Keep the address to yourself, as it holds the key.")
