"""Tell models of chemprop from checkpoint folders by their path, without importing PyG."""

import os
from pathlib import Path

from graphxai.models.graphormer import CONFIG, pretrained_names

SUFFIXES = (".pt", ".pth", ".ckpt")


def is_chemprop_path(path: str | Path) -> bool:
    """Return whether a path is a file of PyTorch, or a folder with such files and no checkpoint.

    `chemprop train` writes `model_0/best.pt`, `model_1/best.pt` and so on into its folder.
    """
    if not str(path) or str(path) in pretrained_names():
        return False
    path = Path(path)
    if path.suffix in SUFFIXES:
        return not os.path.isdir(path)
    is_run = os.path.isdir(path) and not (path / CONFIG).exists() and not (path / "model").exists()
    return is_run and next(path.rglob("*.pt"), None) is not None
