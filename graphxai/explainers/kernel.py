"""The exact account of a Gaussian process: what each counted structure adds, on its atoms."""

from dataclasses import replace

from graphxai.contract.batch import GraphBatch
from graphxai.contract.model import ExplainableModel
from graphxai.contract.target import Target

from .base import Attribution
from .gradient import GradientInput, Lrp
from .registry import register


@register
class Kernel(GradientInput):
    """Shares of counted structures in a Gaussian process, on the atoms that they cover.

    The kernel of a molecule and a training molecule is what they share over what either has. What
    they share is a sum over structures, and each gets its part of it. What either has is a constant
    scale, as LayerNorm's is in LRP. So nodes and the mean sum to the output; LRP gives the same.
    """

    name = "kernel"
    title = "Kernel shares"
    source = "Balfer 2015; Ralaivola 2005"
    traits = replace(GradientInput.traits, needs_process=True, explains_other_inputs=False)
    rules = Lrp.rules

    def __init__(self) -> None:
        super().__init__()

    def applies_to(self, model: object) -> bool:
        """Return whether the model is a Gaussian process."""
        return getattr(model, "default_method", None) == self.name

    def _attribute(self, model: ExplainableModel, batch: GraphBatch, target: Target) -> Attribution:
        if not self.applies_to(model):
            raise ValueError("'kernel' explains a Gaussian process: use 'lrp' for other models.")
        return super()._attribute(model, batch, target)
