"""Serve a page on this machine where changes to molecules can be tried live."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from graphxai.explanation.compute.models import Model

if TYPE_CHECKING:
    from .widget import Explorer


def explore(
    model: "Model | str | Path | Sequence[Model | str | Path]",
    smiles: str | Sequence[str] = (),
) -> "Explorer":
    """Show the app in a notebook (JupyterLab, VS Code, marimo), to try changes to molecules live.

    Args:
        model: a model from `load`, a name or a folder, or several of them. The first is shown
            first.
        smiles: the molecule to start with, or several, of up to 100 atoms each.

    Returns:
        The widget. Its `smiles` is the molecule on view, which can be set. Its `basket` is the list
        of chosen molecules. Its `link` is everything on view as a text, for the first field of
        another view.

    Raises:
        ImportError: the extra `notebook` is not installed.
        ValueError: a model does not read molecules, or a text is not a SMILES.
    """
    from .widget import Explorer  # needs anywidget

    models = list(model) if isinstance(model, Sequence) and not isinstance(model, str) else [model]
    return Explorer(models, [smiles] if isinstance(smiles, str) else list(smiles))
