"""Graphormer (Ying et al., NeurIPS 2021) with detachable attention and LayerNorm."""

from .checkpoint import (
    CONFIG,
    PRETRAINED,
    TO_START,
    CheckpointError,
    fill,
    is_published,
    load_checkpoint,
    locate,
    only_starts,
    pretrained_names,
    read_weights,
    require_purpose,
    save_checkpoint,
)
from .config import GraphormerConfig
from .encoding import StructureEncoding, collate
from .ensemble import (
    Ensemble,
    LoadedModel,
    checkpoint_digest,
    is_ensemble,
    load_ensemble,
    members_of,
    save_ensemble,
)
from .inputs import prepare, reading_of
from .loading import load_model
from .mean_node import measure_mean_node
from .model import Graphormer

__all__ = [
    "CONFIG",
    "PRETRAINED",
    "TO_START",
    "CheckpointError",
    "Ensemble",
    "Graphormer",
    "GraphormerConfig",
    "LoadedModel",
    "StructureEncoding",
    "checkpoint_digest",
    "collate",
    "fill",
    "is_ensemble",
    "is_published",
    "load_checkpoint",
    "load_ensemble",
    "load_huggingface",
    "load_model",
    "locate",
    "measure_mean_node",
    "members_of",
    "only_starts",
    "prepare",
    "pretrained_names",
    "read_weights",
    "reading_of",
    "require_purpose",
    "save_checkpoint",
    "save_ensemble",
]


def __getattr__(name: str) -> object:
    """Import `load_huggingface` on demand: it needs RDKit and OGB, the model does not."""
    if name == "load_huggingface":
        from .convert import load_huggingface

        return load_huggingface
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
