"""Methods that give relevance to nodes and pairs of nodes. Each family has a file."""

from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING

from graphxai.runtime.lazy import lazily

from .registry import REGISTRY as _METHODS

if TYPE_CHECKING:
    from graphxai.explainers.perturbation import GnnExplainer as GnnExplainer

    from .activation_path import LrpPath as LrpPath
    from .attention import AttCat as AttCat
    from .attention import AttentionFlow as AttentionFlow
    from .attention import AttentionLast as AttentionLast
    from .attention import Cam as Cam
    from .attention import Gae as Gae
    from .attention import GaeRollout as GaeRollout
    from .attention import GradCam as GradCam
    from .attention import Rollout as Rollout
    from .base import Attribution as Attribution
    from .base import Explainer as Explainer
    from .control import Ones as Ones
    from .control import Random as Random
    from .control import Reverse as Reverse
    from .gradient import AttnLrp as AttnLrp
    from .gradient import GradientInput as GradientInput
    from .gradient import IntegratedGradients as IntegratedGradients
    from .gradient import Lrp as Lrp
    from .gradient import LrpAh as LrpAh
    from .gradient import LrpAhLn as LrpAhLn
    from .gradient import LrpLn as LrpLn
    from .gradient import Saliency as Saliency
    from .gradient import SmoothGrad as SmoothGrad
    from .heads import HeadStatistics as HeadStatistics
    from .heads import head_statistics as head_statistics
    from .learned import FittedExplainer as FittedExplainer
    from .learned import Learned as Learned
    from .learned import fit_explainer as fit_explainer
    from .path_marginals import PathMarginals as PathMarginals
    from .perturbation import Occlusion as Occlusion
    from .perturbation import OrderMarginals as OrderMarginals
    from .perturbation import Partnered as Partnered
    from .positive import LrpZPlus as LrpZPlus
    from .positive import MaskedLrp as MaskedLrp
    from .positive import PartialLrp as PartialLrp
    from .positive import TransformerAttribution as TransformerAttribution
    from .registry import REGISTRY as REGISTRY
    from .registry import get_explainer as get_explainer
    from .registry import register as register
    from .shapley import ShapleySampling as ShapleySampling
    from .shares import Shares as Shares
    from .traits import Traits as Traits

__getattr__, __dir__, __all__ = lazily(__name__, __file__)

# Every file in this folder that registers a method is imported. The bridges to PyG's explainers are
# imported when they are first used.
for _file in iter_modules(__path__):
    if not _file.name.startswith("pyg"):
        import_module(f"{__name__}.{_file.name}")

# The order in which methods are listed: propagation, gradients, removal, attention, controls, and
# what explains a process alone.
_ORDER = (
    ("lrp", "lrp_ah_ln", "lrp_ah", "lrp_ln", "lrp_path", "path_marginals", "learned", "attn_lrp"),
    ("gradient_input", "integrated_gradients", "saliency", "smoothgrad"),
    ("occlusion", "partnered", "shapley_sampling", "shares", "order_marginals", "gnn_explainer"),
    ("gae", "gae_rollout", "transformer_attribution", "masked_lrp", "lrp_zplus", "partial_lrp"),
    ("rollout", "attention_flow", "attention_last", "cam", "grad_cam", "att_cat"),
    ("random", "ones", "reverse"),
    ("kernel",),
)
_listed = [name for family in _ORDER for name in family]
for _name in [*_listed, *(name for name in _METHODS if name not in _listed)]:
    _METHODS[_name] = _METHODS.pop(_name)
