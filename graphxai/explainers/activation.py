"""Class activation maps of tokens, from gradients at attention or at the tokens of every layer.

Song 2024 compares with these methods (section 5.2). `A[l]` are the attention probabilities of layer
l, `dA[l]` is the gradient of f_c with respect to them, and `h[l]` are the tokens that enter layer
l.
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from graphxai.contract.batch import GraphBatch
from graphxai.contract.model import ExplainableModel
from graphxai.contract.target import Target
from graphxai.engine.attention.passes import layer_inputs
from graphxai.rules.conservative import record

from .attention import GRADIENT_WEIGHTED, attention_gradients, first_row
from .base import Attribution, Explainer, gradients, scored
from .layers import Layers, layers_of
from .registry import register
from .traits import Traits


@register
class Cam(Explainer):
    """The gradient at the graph token's row of the last attention, averaged over heads.

    As a formula, it is `mean_h dA[L]`.
    """

    name = "cam"
    title = "CAM of attention"
    source = "Zhou 2016, as in Song 2024"

    def _attribute(self, model: ExplainableModel, batch: GraphBatch, target: Target) -> Attribution:
        traced = attention_gradients(model, batch, target)
        gradient = _at_readout(model, traced.gradients[-1], batch)  # (B, H, T)
        return scored(gradient.mean(1), batch, traced.outputs, traced.target)


@register
class GradCam(Explainer):
    """The graph token's row of the last attention, weighted by its gradient: `mean_h dA[L] * A[L]`.

    Args:
        pooled: whether to weight each head by its mean gradient, and to keep positive scores only:
            `relu(mean_h mean_j(dA[L]_j) A[L])`, as in the code of Chefer 2021b and Song 2024.
    """

    name = "grad_cam"
    title = "Grad-CAM of attention"
    source = "Selvaraju 2017, as in Song 2024"
    traits = Traits(needs_gradients=True)

    def __init__(self, pooled: bool = False) -> None:
        self.pooled = pooled
        meaning = GRADIENT_WEIGHTED if pooled else ""
        self.traits = replace(self.traits, large_score_means=meaning)

    def _attribute(self, model: ExplainableModel, batch: GraphBatch, target: Target) -> Attribution:
        traced = attention_gradients(model, batch, target)
        gradient = _at_readout(model, traced.gradients[-1], batch)  # (B, H, T)
        attention = _at_readout(model, traced.attention[-1], batch)
        if self.pooled:
            real = first_row(model, batch, attention, "sum")[:, None]  # (B, 1, T)
            weight = (gradient * real).sum(-1, keepdim=True) / real.sum(-1, keepdim=True)
            scores = (weight * attention).mean(1).relu()
        else:
            scores = (gradient * attention).mean(1)
        return scored(scores, batch, traced.outputs, traced.target)


@register
class AttCat(Explainer):
    """Gradient x Input at every layer, weighted by the attention that a token receives there.

    `R_t = sum_l mean_hq(A[l]_qt) * sum_d h[l]_td * d f_c / d h[l]_td`, where the queries q are the
    graph's tokens. In wrapped models h[l] are the rows that enter the module with the attention
    (see `wrapping.engine.attention_pass`). In a pre-LN layer these rows have passed its LayerNorm.
    """

    name = "att_cat"
    title = "AttCAT"
    source = "Qiang 2022"
    traits = Traits(needs_gradients=True)

    def _attribute(self, model: ExplainableModel, batch: GraphBatch, target: Target) -> Attribution:
        with record(all_queries=True) as tape, layer_inputs() as entered:
            tokens = model.embed(batch).detach().requires_grad_()
            outputs = model.encode(tokens, batch)
        resolved = target.resolve(model.config, outputs)
        entering = tape.hidden[: len(tape.attention)]  # (B, T, D) each
        others = [layer_input for layer_input in entered if layer_input is not None]
        entering = entering or [layer_input.rows for layer_input in others]
        if not entering or len(entering) < len(tape.attention):
            raise ValueError(
                "att_cat needs the token rows that enter each attention module; in this model no"
                " module with attention receives one row per node."
            )
        pairs = zip(entering, gradients(resolved(outputs), entering), strict=True)
        shares = [(h * gradient).sum(-1) for h, gradient in pairs]
        if others:
            shares = [e.per_token(share) for e, share in zip(others, shares, strict=True)]
        layers = layers_of(model, tape, lambda: (outputs, tape.attention))
        real = first_row(model, batch, outputs, "sum")  # (B, T)
        scores = torch.zeros_like(real)
        for heads in _with_one_input(layers, entering):
            mean = layers.merged(heads, [tape.attention[k] for k in heads]).mean(1).to(real)
            received = (real[:, None] @ mean)[:, 0] / real.sum(-1, keepdim=True)
            scores = scores + received * shares[heads[0]]
        return scored(scores, batch, outputs, resolved)


def _with_one_input(layers: Layers, entering: list[Tensor]) -> Iterator[list[int]]:
    """Group each layer's attentions by their input, so that grouped heads weigh the same tokens."""
    for layer in layers:
        by_rows: dict[int, list[int]] = {}
        for k in layer:
            by_rows.setdefault(id(entering[k]), []).append(k)
        yield from by_rows.values()


def _at_readout(model: ExplainableModel, matrix: Tensor, batch: GraphBatch) -> Tensor:
    """Return the graph token's row (B, H, T) of matrices (B, H, Q, T).

    Without a graph token, return the weighted mean of the nodes' rows.
    """
    row = first_row(model, batch, matrix, "token")[:, : matrix.shape[2]]
    return torch.einsum("bq,bhqt->bht", row, matrix)
