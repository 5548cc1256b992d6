"""Explainers: one file a family, one base class, one registry."""

from .attention import AttentionLast, Gae, Rollout
from .base import REGISTRY, Attribution, Explainer, get_explainer, register
from .control import Random
from .gradient import GradientInput, Lrp, LrpAh, LrpAhLn, LrpLn

__all__ = [
    "REGISTRY",
    "AttentionLast",
    "Attribution",
    "Explainer",
    "Gae",
    "GradientInput",
    "Lrp",
    "LrpAh",
    "LrpAhLn",
    "LrpLn",
    "Random",
    "Rollout",
    "get_explainer",
    "register",
]
