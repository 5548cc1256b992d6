"""Load a model from a folder of any of the known kinds."""

from pathlib import Path

import torch

from graphxai.datasets.as_given import AS_DRAWN

from .checkpoint import is_published, load_checkpoint, locate
from .ensemble import LoadedModel, is_ensemble, load_ensemble, set_standardisation


def load_model(name_or_folder: str | Path, *, as_drawn: bool = False) -> LoadedModel:
    """Return a bundled model by name, or the model in a checkpoint folder.

    A folder holds a Graphormer, an ensemble of several, or a published Graphormer, which is
    converted.

    Args:
        name_or_folder: the model.
        as_drawn: whether it reads molecules as they are drawn, and not their parents, whatever it
            learned from.

    Raises:
        CheckpointError: the folder holds anything else; the message names the file and the key.
    """
    model = _load(locate(name_or_folder))
    if as_drawn:
        set_standardisation(model, AS_DRAWN)
    return model


def _load(folder: Path) -> LoadedModel:
    with torch.inference_mode(False):  # weights made in inference mode could never be explained
        if is_ensemble(folder):
            return load_ensemble(folder)
        if not is_published(folder):
            return load_checkpoint(folder)
        from .convert import load_huggingface  # needs the chemistry

        return load_huggingface(folder)
