"""Graphormer (Ying et al., NeurIPS 2021) with detachable attention and LayerNorm."""

from typing import TYPE_CHECKING

from graphxai.runtime.lazy import lazily

if TYPE_CHECKING:  # the list of public names
    from .checkpoint import TO_START as TO_START
    from .checkpoint import fill as fill
    from .checkpoint import is_published as is_published
    from .checkpoint import load_checkpoint as load_checkpoint
    from .checkpoint import measure_mean_node as measure_mean_node
    from .checkpoint import only_starts as only_starts
    from .checkpoint import read_weights as read_weights
    from .checkpoint import require_purpose as require_purpose
    from .checkpoint import save_checkpoint as save_checkpoint
    from .config import GraphormerConfig as GraphormerConfig
    from .convert import load_huggingface as load_huggingface
    from .encoding import NODE_LABELS as NODE_LABELS
    from .encoding import StructureEncoding as StructureEncoding
    from .encoding import collate as collate
    from .ensemble import Ensemble as Ensemble
    from .ensemble import LoadedModel as LoadedModel
    from .ensemble import checkpoint_digest as checkpoint_digest
    from .ensemble import is_ensemble as is_ensemble
    from .ensemble import load_ensemble as load_ensemble
    from .ensemble import load_model as load_model
    from .ensemble import members_of as members_of
    from .ensemble import save_ensemble as save_ensemble
    from .ensemble import set_standardisation as set_standardisation
    from .inputs import prepare as prepare
    from .inputs import reading_of as reading_of
    from .locating import CONFIG as CONFIG
    from .locating import PRETRAINED as PRETRAINED
    from .locating import CheckpointError as CheckpointError
    from .locating import locate as locate
    from .locating import pretrained_names as pretrained_names
    from .model import Graphormer as Graphormer
    from .model import NodeGraphormer as NodeGraphormer
    from .model import graphormer as graphormer
    from .names import ModelName as ModelName
    from .names import TargetName as TargetName

__getattr__, __dir__, __all__ = lazily(__name__, __file__)
