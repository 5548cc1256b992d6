"""Graphormer (Ying et al., NeurIPS 2021) with detachable attention and LayerNorm."""

from .checkpoint import CheckpointError, load_checkpoint, locate, pretrained_names, save_checkpoint
from .config import GraphormerConfig, Task
from .encoding import GraphBatch, StructureEncoding, collate
from .ensemble import Ensemble, Trained
from .mean_node import measure_mean_node
from .model import Graphormer, Origin

__all__ = [
    "CheckpointError",
    "Ensemble",
    "GraphBatch",
    "Graphormer",
    "GraphormerConfig",
    "Origin",
    "StructureEncoding",
    "Task",
    "Trained",
    "collate",
    "load_checkpoint",
    "load_huggingface",
    "locate",
    "measure_mean_node",
    "pretrained_names",
    "save_checkpoint",
]


def __getattr__(name: str) -> object:
    """Import `load_huggingface` on demand: it needs RDKit and OGB, the model does not."""
    if name == "load_huggingface":
        from .convert import load_huggingface

        return load_huggingface
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
