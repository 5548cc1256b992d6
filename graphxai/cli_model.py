"""What commands over a model share: loading it with a warning, the option of names."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from graphxai.models.graphormer import Graphormer

NameOption = Annotated[
    str | None, typer.Option(help="Column of the compounds' names in a table [default: none].")
]


def load_with_warning(name_or_folder: str | Path) -> "Graphormer":
    """Load a model; one line on standard error if its own test says that it should not be used."""
    import graphxai
    from graphxai.models.graphormer.table_scores import useless_tasks

    model = graphxai.load(name_or_folder)
    found = useless_tasks(model.origin.metadata.get("scores"))
    if found:
        told = "; ".join(found)
        typer.echo(f"warning: model {model.origin.name!r} is {told}: do not use it", err=True)
    return model
