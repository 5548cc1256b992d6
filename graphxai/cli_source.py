"""What the user named on the command line: a SMILES, a table or a picture."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from graphxai.models.graphormer import Graphormer

TABLES = (".csv", ".tsv", ".txt")
IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp")


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
    from graphxai.inputs import reads_molecules

    if reads_molecules(model.config) != (kind in ("smiles", "table")):
        wanted = "a SMILES or a table" if reads_molecules(model.config) else "a picture of a digit"
        raise ValueError(f"model {model.origin.name!r} takes {wanted}; {source!r} is not that.")
