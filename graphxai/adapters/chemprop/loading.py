"""Load the models that `chemprop train` and Lightning write."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from graphxai.contract.checkpoint_files import CheckpointError
from graphxai.contract.model import Origin

from .model import ChempropModel, ChempropOptions, chemprop_model
from .molecules import MoleculeFeaturizer
from .rebuilding import rebuilt
from .records import read_file
from .run_settings import run_settings

MOST = 50  # networks of an ensemble, as many as an ensemble of Graphormers may have


def load_chemprop(
    path: str | Path, molecule_features: "MoleculeFeaturizer | Sequence[MoleculeFeaturizer]" = ()
) -> ChempropModel:
    """Load a model of chemprop 2 from its file, or an ensemble from the folder of a run.

    Args:
        path: a file that `chemprop train`, `save_model` or Lightning wrote, or a folder with
            several such files, which are the members of an ensemble.
        molecule_features: as for `graphxai.load`. By default they are those in `config.toml` of
            the run.

    Raises:
        CheckpointError: a file cannot be read, or needs more than chemprop's own classes.
        ValueError: the members do not fit together, or features are missing.
        ImportError: chemprop is not installed.
    """
    path = Path(path)
    if not path.exists():
        raise CheckpointError(f"{path}: no such file.")
    files = [path] if path.is_file() else _files_in(path)
    contents = [read_file(file) for file in files]
    networks = [rebuilt(content) for content in contents]
    name = path.stem if path.is_file() else path.name
    run = run_settings(path)
    options = ChempropOptions(
        task_names=contents[0].output_columns or (),
        molecule_features=molecule_features or run.molecule_featurizers,
        ignore_stereo=run.ignore_stereo,
        name=name,
    )
    try:
        model = chemprop_model(networks, options)
    except ValueError as error:
        raise CheckpointError(f"{path}: {error}") from error
    folder = path.parent if path.is_file() else path
    model.origin = replace(Origin(name), sha256=_digest(files), folder=folder.resolve())
    return model


def _files_in(folder: Path) -> list[Path]:
    """Return the files of an ensemble: all with the suffix `.pt`, as `chemprop predict` does."""
    files = sorted(folder.rglob("*.pt"))
    if len(files) > MOST:
        raise CheckpointError(f"{folder} has {len(files)} files *.pt, more than {MOST} models.")
    return files


def _digest(files: Sequence[Path]) -> str:
    """Return the SHA-256 of a file, or one for those of several."""
    digests = []
    for file in files:
        with file.open("rb") as content:
            digests.append(hashlib.file_digest(content, "sha256").hexdigest())
    return digests[0] if len(files) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest()
