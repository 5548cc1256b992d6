"""A learned explainer: its network and files, its training, and the method."""

from .network import FittedExplainer, Learned
from .train import fit_explainer

__all__ = ["FittedExplainer", "Learned", "fit_explainer"]
