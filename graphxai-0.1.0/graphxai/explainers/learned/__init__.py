"""A learned explainer: its network and files, its training, and the method."""

from .method import Learned
from .network import FittedExplainer
from .train import fit_explainer

__all__ = ["FittedExplainer", "Learned", "fit_explainer"]
