"""The command `graphxai app`: a page on this machine where changes to molecules are tried live."""

from collections.abc import Sequence
from typing import Annotated, Any

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
    molecule_features: Annotated[
        list[str] | None,
        typer.Option(
            "--molecule-features",
            help="Features of whole molecules that a model of chemprop reads, such as"
            " morgan_binary; repeat for several [default: as in its config.toml].",
        ),
    ] = None,
    behind_proxy: Annotated[
        str | None,
        typer.Option(
            help="Address at which a proxy serves the page, such as"
            " https://hub.example/user/ann/proxy/8765/. Needs --port."
        ),
    ] = None,
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

    `graphxai app --model bace --model solubility`

    `graphxai app --port 8765 --no-browser`

    `graphxai app --port 8765 --behind-proxy https://hub.example/user/ann/proxy/8765/`
    """
    from contextlib import suppress

    from graphxai.tables.app.server import serve

    from .arguments import load_several

    if behind_proxy is not None and not port:
        raise typer.BadParameter("--behind-proxy: name the port that the proxy asks, by --port.")
    with suppress(KeyboardInterrupt):
        names: Sequence[Any] = model or ["bace"]
        if as_drawn or molecule_features:
            reading: dict[str, Any] = {"as_drawn": as_drawn, "molecule_features": molecule_features}
            names = load_several(names, **reading)
        opened = browser and behind_proxy is None
        serve(names, port, open_browser=opened, public=behind_proxy, log=_print_address)


def _print_address(address: str) -> None:
    echo(f"the page: {address}")
    echo("Ctrl-C ends it. Keep the address to yourself, as it holds the key.")
