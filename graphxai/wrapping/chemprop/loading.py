"""Load the models that `chemprop train` and Lightning write.

The file of a model does not say how `chemprop train` turned molecules into graphs: `config.toml` in
the run's folder does. chemprop writes its settings as lines `name = value`, with lists in brackets
and names without quotes, so this is not quite TOML.
"""

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from graphxai.contract.checkpoint_files import CheckpointError
from graphxai.contract.model import Origin

from .model import ChempropModel, ChempropOptions, chemprop_model
from .molecules import MoleculeFeaturizer
from .rebuilding import rebuilt
from .records import read_file

MOST = 50  # networks of an ensemble, as many as an ensemble of Graphormers may have


def load_chemprop(
    path: str | Path,
    molecule_features: "MoleculeFeaturizer | Sequence[MoleculeFeaturizer]" = (),
    extra_features: Any = None,
) -> ChempropModel:
    """Load a model of chemprop 2 from its file, or an ensemble from the folder of a run.

    Args:
        path: a file that `chemprop train`, `save_model` or Lightning wrote, or a folder with
            several such files, which are the members of an ensemble.
        molecule_features: as for `graphxai.load`. By default they are those in `config.toml` of
            the run.
        extra_features: as for `graphxai.load`.

    Raises:
        CheckpointError: a file cannot be read, or needs more than chemprop's own classes.
        ValueError: the members do not fit together, or features are missing.
        ImportError: chemprop is not installed.
    """
    path = Path(path)
    if not os.path.exists(path):  # text that cannot be a path is no file
        raise CheckpointError(f"{str(path)[:200]}: no such file.")
    files = [path] if path.is_file() else _files_in(path)
    contents = [read_file(file) for file in files]
    networks = [rebuilt(content) for content in contents]
    name = path.stem if path.is_file() else path.name
    run = run_settings(path)
    options = ChempropOptions(
        task_names=contents[0].output_columns or (),
        molecule_features=molecule_features or run.molecule_featurizers,
        extra_features=extra_features or {},
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


# -- how a run turned molecules into graphs --------------------------------------------------------


FILE = "config.toml"
# Options that change the atoms, for which relevance would belong to other atoms than those given.
HYDROGENS = ("add-h", "keep-h")
LONGEST = 1_000_000  # characters; a usual file has a thousand


@dataclass(frozen=True)
class ChempropRunSettings:
    """How molecules became graphs in a run.

    Args:
        molecule_featurizers: chemprop's names of the features of whole molecules.
        ignore_stereo: whether the network sees no stereochemistry.
    """

    molecule_featurizers: tuple[str, ...] = ()
    ignore_stereo: bool = False


def run_settings(path: Path) -> ChempropRunSettings:
    """Return the settings of the run that a file or folder belongs to, or the usual ones.

    Raises:
        CheckpointError: the run made atoms of hydrogens.
    """
    folders = (path, *path.parents[:2]) if path.is_dir() else path.parents[:3]
    file = next((folder / FILE for folder in folders if (folder / FILE).is_file()), None)
    if file is None:
        return ChempropRunSettings()
    lines = file.read_text(encoding="utf-8", errors="replace")[:LONGEST].splitlines()
    pairs = (line.partition("=") for line in lines)
    values = {name.strip(): value.strip() for name, _, value in pairs}
    for option in HYDROGENS:
        if values.get(option) == "true":
            raise CheckpointError(
                f"{path} was trained with --{option} (see {file}), so hydrogens are atoms of its"
                " graphs. Relevance of the atoms of a SMILES needs a model without them."
            )
    names = values.get("molecule-featurizers", "").strip("[]").split(",")
    return ChempropRunSettings(
        tuple(name.strip(" '\"") for name in names if name.strip()),
        values.get("ignore-stereo") == "true",
    )
