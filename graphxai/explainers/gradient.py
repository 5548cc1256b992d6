"""Gradient x Input, and the LRP rules as Gradient x Input of a network with constants.

`R_t = sum_d x_td * d f_c / d x_td` for every token t (Shrikumar 2017; Ali 2022, eq. 1). The
variants differ in what `propagation.conservative` holds constant and in nothing else.
"""

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from graphxai.capture import ExplainableModel
from graphxai.models.graphormer.encoding import GraphBatch
from graphxai.propagation import Rules, conservative, record
from graphxai.target import Target

from .base import Attribution, Explainer, register


@register
class GradientInput(Explainer):
    """Gradient x Input of the unmodified network."""

    name = "gradient_input"
    title = "Gradient x Input"
    source = "Shrikumar 2017; Ali 2022, eq. 1"
    additive = True
    rules: ClassVar[Rules] = Rules()

    def _attribute(self, model: ExplainableModel, batch: GraphBatch, target: Target) -> Attribution:
        with conservative(**vars(self.rules)), record(biases=True) as tape:
            tokens = model.embed(batch).detach().requires_grad_()  # (B, T, D)
            outputs = model.encode(tokens, batch)
        resolved = target.resolve(model.config, outputs)
        f = resolved(outputs)
        gradient, *bias_gradients = torch.autograd.grad(
            f.sum(), [tokens, *tape.biases], allow_unused=True
        )
        relevance = (tokens * gradient).sum(-1).detach()  # (B, T)
        features = model.split_by_feature(batch, gradient[:, 1:])
        return Attribution(
            relevance=relevance[:, 1:].masked_fill(~batch.mask, 0.0),
            graph_token=relevance[:, 0],
            biases=resolved.offset + _bias_shares(tape.biases, bias_gradients, f),
            output=f.detach(),
            outputs=outputs.detach(),
            labels=resolved.labels,
            mask=batch.mask,
            features=None
            if features is None
            else features.detach().masked_fill(~batch.mask[..., None], 0.0),
        )


def _bias_shares(biases: Sequence[Tensor], gradients: Sequence[Tensor | None], f: Tensor) -> Tensor:
    """`sum b * d f_c / d b` over all additive parameters, (B,)."""
    total = torch.zeros_like(f)
    for bias, gradient in zip(biases, gradients, strict=True):
        if gradient is not None:  # queries and keys have none when attention is constant
            total = total + (bias * gradient).flatten(1).sum(-1)
    return total.detach()


@register
class LrpAh(GradientInput):
    """LRP with constant attention (AH)."""

    name = "lrp_ah"
    title = "LRP (AH)"
    source = "Ali 2022, section 4"
    rules = Rules(attention=True)


@register
class LrpLn(GradientInput):
    """LRP with LayerNorm's scale constant (LN)."""

    name = "lrp_ln"
    title = "LRP (LN)"
    source = "Ali 2022, section 4"
    rules = Rules(layernorm=True)


@register
class LrpAhLn(GradientInput):
    """LRP with constant attention and LayerNorm scale (AH+LN)."""

    name = "lrp_ah_ln"
    title = "LRP (AH+LN)"
    source = "Ali 2022, section 4"
    rules = Rules(attention=True, layernorm=True)


@register
class Lrp(GradientInput):
    """LRP (AH+LN) with constant activation ratios: exactly conservative."""

    name = "lrp"
    title = "LRP"
    source = "Ali 2022, section 4; Achtibat 2024 (activation)"
    rules = Rules(attention=True, layernorm=True, activation="ratio")
