"""Find the folder of a checkpoint by its name or path, without importing PyTorch."""

import os
from pathlib import Path

from graphxai.runtime.options import did_you_mean
from graphxai.runtime.reading import CONFIG as CONFIG
from graphxai.runtime.reading import CheckpointError as CheckpointError

PRETRAINED = Path(__file__).parent / "pretrained"


def pretrained_names() -> tuple[str, ...]:
    """Return the names of the bundled checkpoints."""
    return tuple(sorted(p.parent.name for p in PRETRAINED.glob(f"*/{CONFIG}")))


def locate(name_or_folder: str | Path) -> Path:
    """Return the folder of a bundled checkpoint, a given folder, or its `model` if it is a run."""
    text = str(name_or_folder)
    if text in pretrained_names():
        return PRETRAINED / text
    path = Path(name_or_folder)
    if text and os.path.isdir(path):  # text that cannot be a path is no folder
        in_run = path / "model"
        return in_run if not (path / CONFIG).exists() and (in_run / CONFIG).exists() else path
    names = ", ".join(pretrained_names()) or "none"
    raise CheckpointError(
        f"{text[:200]!r} is neither a folder nor the name of a bundled model (these are: {names})."
        f"{did_you_mean(text, pretrained_names())}"
    )
