"""The app in a notebook."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from graphxai.explanation.compute.models import LoadedModel

if TYPE_CHECKING:
    from .widget import Explorer


def explore(
    model: LoadedModel | str | Path | Sequence[LoadedModel | str | Path],
    smiles: str | Sequence[str] = (),
) -> "Explorer":
    """Show the app in a notebook (JupyterLab, VS Code, marimo): changes to molecules tried live.

    Returns the widget. Its `smiles` is the molecule shown, which can be set, `basket` the list of
    molecules chosen, and `link` all that is shown, as a text for the first field of another view.
    Raises ImportError without the extra `notebook`, and ValueError for a model that does not read
    molecules or for text that is not a SMILES.

    Args:
        model: from `load`, a name or a folder, or several of them, the first one shown first.
        smiles: the molecule to start with, or several, of up to 100 atoms each.
    """
    from .widget import Explorer  # needs anywidget

    models = [model] if isinstance(model, LoadedModel | str | Path) else list(model)
    return Explorer(models, [smiles] if isinstance(smiles, str) else list(smiles))
