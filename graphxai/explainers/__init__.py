"""Explainers: one file a family, one base class, one registry."""

from .activation import AttCat, Cam, GradCam
from .attention import AttentionLast, Gae, GaeRollout, Rollout
from .base import REGISTRY, Attribution, Explainer, get_explainer, register
from .control import Random
from .flow import AttentionFlow
from .gradient import AttnLrp, GradientInput, Lrp, LrpAh, LrpAhLn, LrpLn, Saliency
from .heads import HeadStatistics, head_statistics
from .mask import GnnExplainer
from .masked import MaskedLrp
from .path import IntegratedGradients
from .perturbation import Occlusion, ShapleySampling
from .positive import LrpZPlus, PartialLrp, TransformerAttribution

__all__ = [
    "REGISTRY",
    "AttCat",
    "AttentionFlow",
    "AttentionLast",
    "AttnLrp",
    "Attribution",
    "Cam",
    "Explainer",
    "Gae",
    "GaeRollout",
    "GnnExplainer",
    "GradCam",
    "GradientInput",
    "HeadStatistics",
    "IntegratedGradients",
    "Lrp",
    "LrpAh",
    "LrpAhLn",
    "LrpLn",
    "LrpZPlus",
    "MaskedLrp",
    "Occlusion",
    "PartialLrp",
    "Random",
    "Rollout",
    "Saliency",
    "ShapleySampling",
    "TransformerAttribution",
    "get_explainer",
    "head_statistics",
    "register",
]
