"""What the commands share: options, loading a model, and telling what kind of source is given."""

import logging
import multiprocessing
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer

from graphxai.contract.intervals import LEVEL, require_level
from graphxai.runtime.options import as_in, option
from graphxai.runtime.reading import readable_file

from .listing import model_names, require_method
from .options import was_given
from .terminal import tell

if TYPE_CHECKING:
    from graphxai.datasets.tables.table import Table
    from graphxai.explanation.compute.models import Model

IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp")

ALWAYS = None  # an option that applies to every kind of source
MODEL = "Name of a bundled model, or a checkpoint folder"
PROCESSED = (
    *("smiles", "table", "image", "bace", "mnist-superpixels"), *("ogb", "checkpoint", "training")
)  # fmt: skip


@dataclass(frozen=True)
class ModelOptions:
    """A model, and how it reads molecules."""

    model: str | None = option(
        None, f"{MODEL} [default: fits the input].", ALWAYS, complete=model_names
    )
    as_drawn: bool = option(
        False,
        "Read molecules as they are drawn, with counter-ions and charges, instead of their"
        " parents.",
        ("smiles", "table", "ray", "bace", "checkpoint", "training"),
    )
    isomers: Literal["groups", "mean"] = option(
        "groups",
        "Answer by the mean over at most 16 isomers for racemates (groups & and o), or with 'mean'"
        " for undefined stereocentres, too.",
        ("smiles", "table", "ray", "bace", "checkpoint", "training"),
    )
    molecule_features: list[str] | None = option(
        None,
        "Features of whole molecules that a model of chemprop reads, such as morgan_binary; repeat"
        " for several [default: as in its config.toml].",
        ("smiles", "table"),
    )


@dataclass(frozen=True)
class ModelsOptions(ModelOptions):
    """One or several models, and how they read molecules."""

    model: list[str] | None = as_in(  # type: ignore[assignment]
        ModelOptions,
        "model",
        help=f"{MODEL} [default: fits the input]. Repeat it for several properties of molecules.",
    )


@dataclass(frozen=True)
class SharedOptions:
    """What several commands have in common. Each takes what it uses, see `as_in`."""

    model: str = as_in(ModelOptions, "model", "bace", help=f"{MODEL}.")
    smiles_column: str | None = option(
        None, "Column with structures [default: by its name or content].", ALWAYS
    )
    node: list[int] | None = option(
        None,
        "Number of the node, for a model that predicts nodes; repeat for more.",
        ("graphs",),
        minimum=0,
    )
    seed: int = option(0, "Seed of everything that is drawn at random.", ALWAYS)
    device: str | None = option(None, "Where to compute, such as 'cuda' [default: cpu].", PROCESSED)


def share_imports() -> None:
    """Let all processes of this program fork from one that has torch, and share its memory."""
    if "forkserver" in multiprocessing.get_all_start_methods():
        multiprocessing.set_forkserver_preload(["torch", "rdkit.Chem", "graphxai.tables.run"])


def require_sense(
    source: str | Path,
    kind: str,
    models: Sequence[str | None] = (),
    methods: Sequence[str] = (),
    columns: Sequence[str | None] = (None,),
    level: float = LEVEL,
) -> None:
    """Raise ValueError for what was mistyped before PyTorch is imported, which takes long.

    What only a loaded model can tell is left to it, such as what a user's Python file defines.

    Args:
        kind: see `kind_of`.
        models, methods: their names, where None stands for the default.
        columns: the column with the structures of a table, and further ones, where they are named.
        level: how often intervals are to hold.
    """
    from graphxai.models.graphormer import locate
    from graphxai.wrapping.chemprop.paths import is_chemprop_path

    require_level(level)
    named = [name for name in models if name is not None]
    is_known = not any(is_chemprop_path(name) or ".py:" in name for name in named)
    for name in named if is_known else ():
        locate(name)
    for name in methods if is_known else ():
        require_method(name)
    if kind == "table":
        from graphxai.datasets.tables.table import open_table

        table = open_table(source, columns[0])
        table.structures  # noqa: B018 (raises an error that says what is missing)
        for name in filter(None, columns[1:]):
            table.column(table.source_of(name) or name)
    elif kind == "smiles" and is_known:
        from rdkit import rdBase

        from graphxai.datasets.features import MAX_ATOMS
        from graphxai.datasets.molecule_reading import MoleculeError, read_molecules

        with rdBase.BlockLogs():
            (read,) = read_molecules([str(source)], MAX_ATOMS)
        if isinstance(read, MoleculeError):
            raise read


def load_with_warning(
    name_or_folder: str | Path,
    device: str | None = None,
    *,
    reading: Any = None,
    reads_features: bool = True,
) -> "Model":
    """Load a model to a device, and say on standard error if its scores or intervals are no use.

    Args:
        reading: options that say how it reads molecules, as `ModelOptions` does.
        reads_features: whether it gets the features of whole molecules that the options name.
    """
    require_sense("", "", [str(name_or_folder)])
    from graphxai.explanation.api import load
    from graphxai.learning.reliability import uninformative, useless_tasks
    from graphxai.models.graphormer import require_purpose
    from graphxai.runtime.device import on_device

    features = tuple(getattr(reading, "molecule_features", None) or ()) if reads_features else ()
    ways = {} if reading is None else {n: getattr(reading, n) for n in ("as_drawn", "isomers")}
    model = load(name_or_folder, **ways, molecule_features=features)
    model = on_device(require_purpose(model), device)
    useless = useless_tasks(model.origin.metadata.get("scores"))
    if useless:
        text = "; ".join(useless)
        tell(f"warning: model {model.origin.name!r} is {text}: do not use it", logging.WARNING)
    for text in uninformative(model.origin.metadata.get("coverage")):
        tell(f"note: model {model.origin.name!r}: {text}")
    return model


def load_several(reading: Any, default: str = "bace") -> "list[Model]":
    """Load models of molecules as `load_with_warning` does, by options such as `ModelsOptions`.

    Features of whole molecules are given to the models of chemprop among them. Raises ValueError if
    there are features but no such model, or several models of which one does not read molecules.
    """
    from graphxai.tables.batches import require_molecules
    from graphxai.wrapping.chemprop.paths import is_chemprop_path

    names = reading.model or [default]
    readers = [name for name in names if is_chemprop_path(name)] or names[:1]
    models = [
        load_with_warning(name, reading=reading, reads_features=name in readers) for name in names
    ]
    for model in models if len(models) > 1 else ():
        require_molecules(model)
    return models


def model_line(context: typer.Context, *models: "Model") -> str:
    """Say which models a command uses, and whether one is only the default."""
    names = ", ".join(model.origin.name for model in models)
    is_default = "" if was_given(context, "model") else " (the default; --model chooses another)"
    return f"model: {names}{is_default}"


def check_level(context: typer.Context, model: "Model") -> None:
    """Say on standard error if a level was given, but the model has no intervals."""
    from graphxai.explanation.compute.models import tasks_with_range

    if was_given(context, "level") and not tasks_with_range(model):
        tell(
            f"model {model.origin.name!r} has no intervals: they are made from its errors on"
            " molecules held out in training, which are not stored with it (`graphxai train` stores"
            " them)"
        )


@contextmanager
def naming_data_option() -> Iterator[None]:
    """Let errors about missing data name the option --data, not the argument of Python."""
    from graphxai.runtime.download import ROOT_ARGUMENT, DownloadError

    try:
        yield
    except (DownloadError, FileNotFoundError) as error:
        if ROOT_ARGUMENT not in (text := str(error)):
            raise
        raise type(error)(text.replace(ROOT_ARGUMENT, "--data FOLDER")) from error


def kind_of(source: str, *, graphs: bool = False) -> str:
    """Tell the kind of a source by its suffix: 'table', 'image' or 'smiles'.

    With `graphs`, a folder of graphs is a source as well, of the kind 'graphs'.

    Raises FileNotFoundError for a missing table or picture, OSError for a picture that is a folder,
    a device or a pipe, and ValueError for such a table, or for another type of file.
    """
    if "://" in source:
        raise ValueError(f"{source}: a table at an address needs --engine ray.")
    if graphs and _exists(source) and Path(source).is_dir():
        from graphxai.datasets.graph_folders import holds_graphs  # brings torch

        if holds_graphs(source):
            return "graphs"
    suffix = Path(source).suffix.lower() if len(source) < 4096 else ""
    if suffix in IMAGES:
        readable_file(Path(source))
        return "image"
    from graphxai.datasets.tables.opening import OTHERS, SUFFIXES, format_of

    if suffix in (*SUFFIXES, *OTHERS, ".gz"):
        format_of(Path(source))
        return "table"
    if not _exists(source):
        return "smiles"
    from graphxai.datasets.canonical_form import quietly_read

    if quietly_read(source) is None:  # a SMILES takes precedence over a file of the same name
        if not Path(source).is_file():
            format_of(Path(source))  # which says why it cannot be read
        readable = ", ".join((*SUFFIXES, ".gz", *IMAGES))
        raise ValueError(f"{source}: cannot read this type of file; use {readable}.")
    return "smiles"


def show_table(
    path: str | Path, smiles_column: str | None, models: "Sequence[Model]" = ()
) -> "Table":
    """Open a table, and say on standard error what a user should know of it before a run.

    That is which column was chosen if the user named none, and how many rows take more than one
    pass of these models: chiral ones of a value that mirror images share, groups & and o, and if
    it is wanted undefined centres.
    """
    from graphxai.datasets.tables.table import open_table
    from graphxai.explanation.compute.models import takes_several_passes

    table = open_table(path, smiles_column)
    if table.choice:
        tell(f"{table.path.name}: {table.choice}")
    if models:
        structures = table.structures.name
        cells = (record.cells[structures] for record in table.records((structures,)))
        if several := takes_several_passes(models, cells):
            rows = (
                "1 row has stereocentres and takes"
                if several == 1
                else (f"{several:,} rows have stereocentres and take")
            )
            tell(f"{table.path.name}: {rows} several passes")
    return table


def _exists(source: str) -> bool:
    """Return whether this is a file or folder. An empty string, the current folder, is neither."""
    try:
        return bool(source.strip()) and Path(source).exists()
    except OSError:  # a SMILES too long for a file name
        return False


def require_out(out: Path, source: str | Path, suffixes: Sequence[str]) -> None:
    """Make the folder of a file to write.

    Raises:
        typer.BadParameter: the file has another suffix.
        ImportError: the suffix is that of Parquet, but pyarrow is not installed.
        OSError: the file cannot be written, or is the source.
    """
    from graphxai.explanation.files import writable

    if out.suffix.lower() not in suffixes:
        raise typer.BadParameter(f"--out {out}: use one of {', '.join(suffixes)}.")
    writable(out, suffixes)
    if out.exists() and _exists(str(source)) and out.samefile(source):
        raise FileExistsError(f"{out} is the input: choose another name.")


def value_of(source: str, kind: str) -> str | Path:
    """Return the input as `graphxai.explain` takes it."""
    return Path(source) if kind == "image" else source


def require_nodes(model: "Model", nodes: Sequence[int]) -> None:
    """Raise ValueError if a model of nodes is given none, or a model of graphs is given some."""
    level = getattr(model.config, "level", "graph")  # wrapped models have none
    if level == "node" and not nodes:
        raise ValueError("this model answers for nodes: name them, such as --node 0 --node 5.")
    if level == "graph" and nodes:
        raise ValueError("this model has one output per graph: leave out --node.")


def require_kind(model: "Model", source: str, kind: str) -> None:
    """Raise ValueError if the model does not take this kind of input."""
    taken = model.config.reads
    if kind == "graphs" and taken in ("graphs", "molecules"):
        return
    if taken == "graphs":
        raise ValueError(
            f"model {model.origin.name!r} takes graphs: give a folder of them to `graphxai explain`"
            " or `graphxai predict` (graphxai.datasets.graph_folders.save_graphs writes one), or"
            " use Python."
        )
    if (taken == "molecules") != (kind in ("smiles", "table")):
        inputs = "a SMILES or a table" if taken == "molecules" else "a picture of a digit"
        raise ValueError(f"model {model.origin.name!r} takes {inputs}, not {source!r}.")
