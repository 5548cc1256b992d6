"""What commands share: the model with a warning, the source, the option of names."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from graphxai.models.graphormer import Graphormer

TABLES = (".csv", ".tsv", ".txt")
IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp")

NameOption = Annotated[
    str | None, typer.Option(help="Column of the compounds' names in a table [default: none].")
]


def load_with_warning(name_or_folder: str | Path) -> "Graphormer":
    """Load a model; one line on standard error if its own test says that it should not be used."""
    from graphxai.api import load
    from graphxai.models.graphormer.training.scores import useless_tasks

    model = load(name_or_folder)
    found = useless_tasks(model.origin.metadata.get("scores"))
    if found:
        text = "; ".join(found)
        typer.echo(f"warning: model {model.origin.name!r} is {text}: do not use it", err=True)
    return model


def kind_of(source: str) -> str:
    """'table', 'image' or 'smiles', from the suffix."""
    suffix = Path(source).suffix.lower() if len(source) < 4096 else ""
    if suffix in TABLES or suffix in IMAGES:
        if not Path(source).is_file():
            raise FileNotFoundError(f"{source}: no such file.")
        return "table" if suffix in TABLES else "image"
    if _exists(source) and not _is_smiles(source):
        known = ", ".join(TABLES + IMAGES)
        raise ValueError(f"{source}: files of this type are not read; use {known}.")
    return "smiles"


def _exists(source: str) -> bool:
    """Whether there is such a file or folder; the empty text would name the current one."""
    try:
        return bool(source.strip()) and Path(source).exists()
    except OSError:  # a SMILES longer than a file name may be
        return False


def _is_smiles(source: str) -> bool:
    """Whether RDKit reads a molecule, which a file of the same name does not hide."""
    from rdkit import Chem, rdBase

    with rdBase.BlockLogs():
        return Chem.MolFromSmiles(source) is not None


def value_of(source: str, kind: str) -> str | Path:
    """What `graphxai.explain` takes for it."""
    return Path(source) if kind == "image" else source


def require_kind(model: "Graphormer", source: str, kind: str) -> None:
    """Raise a ValueError if the model does not take what was named."""
    from graphxai.contract.inputs import reads_molecules

    if reads_molecules(model.config) != (kind in ("smiles", "table")):
        wanted = "a SMILES or a table" if reads_molecules(model.config) else "a picture of a digit"
        raise ValueError(f"model {model.origin.name!r} takes {wanted}; {source!r} is not that.")
