"""Load a model from a folder of any of the known kinds."""

from pathlib import Path

import torch

from .checkpoint import is_published, load_checkpoint, locate
from .ensemble import LoadedModel, is_ensemble, load_ensemble


def load_model(name_or_folder: str | Path) -> LoadedModel:
    """Return a bundled model by name, or the model in a checkpoint folder.

    A folder holds a Graphormer, an ensemble of several, or a published Graphormer, which is
    converted.

    Raises:
        CheckpointError: the folder holds anything else; the message names the file and the key.
    """
    folder = locate(name_or_folder)
    with torch.inference_mode(False):  # weights made in inference mode could never be explained
        if is_ensemble(folder):
            return load_ensemble(folder)
        if not is_published(folder):
            return load_checkpoint(folder)
        from .convert import load_huggingface  # needs the chemistry

        return load_huggingface(folder)
