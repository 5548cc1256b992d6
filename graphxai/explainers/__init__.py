"""Methods that give relevance to nodes and pairs of nodes. Each family has a file."""

from importlib import import_module
from pkgutil import iter_modules

from .activation import AttCat, Cam, GradCam
from .activation_path import LrpPath
from .attention import AttentionFlow, AttentionLast, Gae, GaeRollout, Rollout
from .base import Attribution, Explainer
from .control import Random
from .gnn_explainer import GnnExplainer
from .gradient import (
    AttnLrp,
    GradientInput,
    IntegratedGradients,
    Lrp,
    LrpAh,
    LrpAhLn,
    LrpLn,
    Saliency,
)
from .heads import HeadStatistics, head_statistics
from .learned import FittedExplainer, Learned, fit_explainer
from .path_marginals import PathMarginals
from .perturbation import Occlusion, OrderMarginals, ShapleySampling
from .positive import LrpZPlus, MaskedLrp, PartialLrp, TransformerAttribution
from .registry import REGISTRY, get_explainer, register
from .traits import Traits

__all__ = [
    "REGISTRY",
    "AttCat",
    "AttentionFlow",
    "AttentionLast",
    "AttnLrp",
    "Attribution",
    "Cam",
    "Explainer",
    "FittedExplainer",
    "Gae",
    "GaeRollout",
    "GnnExplainer",
    "GradCam",
    "GradientInput",
    "HeadStatistics",
    "IntegratedGradients",
    "Learned",
    "Lrp",
    "LrpAh",
    "LrpAhLn",
    "LrpLn",
    "LrpPath",
    "LrpZPlus",
    "MaskedLrp",
    "Occlusion",
    "OrderMarginals",
    "PartialLrp",
    "PathMarginals",
    "Random",
    "Rollout",
    "Saliency",
    "ShapleySampling",
    "Traits",
    "TransformerAttribution",
    "fit_explainer",
    "get_explainer",
    "head_statistics",
    "register",
]

# Every file in this folder that registers a method is imported. The bridges to PyG's explainers are
# imported when they are first used.
for _file in iter_modules(__path__):
    if not _file.name.startswith("pyg"):
        import_module(f"{__name__}.{_file.name}")

# The order in which methods are listed: propagation, gradients, removal, attention, controls.
_ORDER = (
    ("lrp", "lrp_ah_ln", "lrp_ah", "lrp_ln", "lrp_path", "path_marginals", "learned", "attn_lrp"),
    ("gradient_input", "integrated_gradients", "saliency"),
    ("occlusion", "shapley_sampling", "order_marginals", "gnn_explainer"),
    ("gae", "gae_rollout", "transformer_attribution", "masked_lrp", "lrp_zplus", "partial_lrp"),
    ("rollout", "attention_flow", "attention_last", "cam", "grad_cam", "att_cat"),
    ("random",),
)
_listed = [name for family in _ORDER for name in family]
for _name in [*_listed, *(name for name in REGISTRY if name not in _listed)]:
    REGISTRY[_name] = REGISTRY.pop(_name)
