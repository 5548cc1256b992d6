"""What the commands share: loading a model, reading the source, the option for names."""

import multiprocessing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .terminal import echo

if TYPE_CHECKING:
    from graphxai.explanation.compute.models import LoadedModel

TABLES = (".csv", ".tsv", ".txt")
IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp")

NameOption = Annotated[
    str | None, typer.Option(help="Column with compound names, for a table [default: none].")
]
ModelOption = Annotated[
    str | None,
    typer.Option(help="Name of a bundled model, or a checkpoint folder [default: fits the input]."),
]
DeviceOption = Annotated[
    str | None, typer.Option(help="Where to compute, such as 'cuda' [default: cpu].")
]
ExcelOption = Annotated[
    bool,
    typer.Option(
        "--excel-safe", help="Put ' before text that spreadsheets would read as formulas."
    ),
]


def _with_common_imports(workers: int | None) -> int | None:
    """Let all processes of this program fork from one that has torch, and share its memory."""
    if "forkserver" in multiprocessing.get_all_start_methods():
        multiprocessing.set_forkserver_preload(["torch", "rdkit.Chem", "graphxai.tables.run"])
    return workers


WorkersOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        callback=_with_common_imports,
        help="Processes for a table; the results are the same for any number [default: all free"
        " cores, if that is faster than one].",
    ),
]
LevelOption = Annotated[
    float | None,
    typer.Option(
        help="Share of molecules whose interval or set of classes should hold [default: 0.9]."
    ),
]
ColumnOption = Annotated[str, typer.Option(help="Column with SMILES, for a table.")]


def load_with_warning(name_or_folder: str | Path, device: str | None = None) -> "LoadedModel":
    """Load a model to a device; warn on standard error if its test scores say it is of no use."""
    from graphxai.api import load
    from graphxai.learning.scores import useless_tasks
    from graphxai.models.graphormer import require_purpose
    from graphxai.runtime.device import on_device

    model = on_device(require_purpose(load(name_or_folder)), device)
    found = useless_tasks(model.origin.metadata.get("scores"))
    if found:
        text = "; ".join(found)
        echo(f"warning: model {model.origin.name!r} is {text}: do not use it", err=True)
    return model


def level_for(model: "LoadedModel", level: float | None) -> float:
    """The level given, or 0.9; say so on standard error if the model has no intervals.

    Raises ValueError unless it lies between 0 and 1.
    """
    from graphxai.contract.intervals import LEVEL, require_level

    if level is not None and not model.conformal:
        echo(
            f"model {model.origin.name!r} has no intervals: its weights come without its errors on"
            " molecules it did not learn from (`graphxai train` stores them)",
            err=True,
        )
    return LEVEL if level is None else require_level(level)


def kind_of(source: str) -> str:
    """What the source is, judged by its suffix: 'table', 'image' or 'smiles'.

    Raises FileNotFoundError for a missing table or picture, ValueError for another type of file.
    """
    if "://" in source:
        raise ValueError(f"{source}: a table at an address needs --engine ray.")
    suffix = Path(source).suffix.lower() if len(source) < 4096 else ""
    if suffix in TABLES or suffix in IMAGES:
        if not Path(source).is_file():
            raise FileNotFoundError(f"{source}: no such file.")
        return "table" if suffix in TABLES else "image"
    if _exists(source) and not _is_smiles(source):
        from graphxai.datasets.csv_files import conversion

        if how := conversion(source):
            raise ValueError(f"{source} is not a CSV table with a column of SMILES: {how}.")
        known = ", ".join(TABLES + IMAGES)
        raise ValueError(
            f"{source}: cannot read this type of file; use {known}, or --engine ray for Parquet."
        )
    return "smiles"


def _exists(source: str) -> bool:
    """Whether this is a file or folder; an empty string, which names the current folder, is not."""
    try:
        return bool(source.strip()) and Path(source).exists()
    except OSError:  # a SMILES too long for a file name
        return False


def _is_smiles(source: str) -> bool:
    """Whether RDKit can read it; a SMILES wins over a file with the same name."""
    from rdkit import Chem, rdBase

    with rdBase.BlockLogs():
        return Chem.MolFromSmiles(source) is not None


def require_out(out: Path, source: str | Path) -> None:
    """Make the folder of a file to write; OSError if it cannot be written, or is the source."""
    from graphxai.runtime.writing import place_of

    out.parent.mkdir(parents=True, exist_ok=True)
    real = place_of(out)
    if real.exists() and Path(source).is_file() and real.samefile(source):
        raise FileExistsError(f"{out} is the input: choose another name.")


def value_of(source: str, kind: str) -> str | Path:
    """The input as `graphxai.explain` takes it."""
    return Path(source) if kind == "image" else source


def require_kind(model: "LoadedModel", source: str, kind: str) -> None:
    """Raise ValueError if the model does not take this kind of input."""

    if model.config.reads_molecules != (kind in ("smiles", "table")):
        wanted = "a SMILES or a table" if model.config.reads_molecules else "a picture of a digit"
        raise ValueError(f"model {model.origin.name!r} takes {wanted}, not {source!r}.")


def require_no_table_options(name_column: str | None, workers: int | None) -> None:
    """Raise an error if names or processes are asked for where there is no table."""
    for option, value in {"--name-column": name_column, "--workers": workers}.items():
        if value is not None:
            raise typer.BadParameter(f"{option} is for tables.")
