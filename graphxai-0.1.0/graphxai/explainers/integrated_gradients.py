"""Integrated Gradients: Gradient x Input averaged on the path from zero tokens to the graph's."""

import numpy as np
import torch
from torch import Tensor

from graphxai.contract.batch import GraphBatch
from graphxai.contract.model import ExplainableModel
from graphxai.contract.target import Target

from .base import Attribution, Explainer
from .registry import register
from .traits import Traits
from .variants import encode_variants, in_passes, structural_bias
from .wrapped import by_graph, leaves_of, scaled_leaves, share_of


@register
class IntegratedGradients(Explainer):
    """`R_t = sum_d x_td * integral_0^1 d f_c(a x) / d x_td da`, from the zero embedding to x.

    All tokens start from zero, including the graph token. The ledger's `biases` are f_c at zero,
    which is what parameters and structure give without any tokens. So `unexplained` is only the
    error of the quadrature. If further inputs are explained (`wrt`), they start from zero together
    with the tokens.

    LayerNorm removes the length of tokens, so the output changes most close to zero. With too few
    points `unexplained` is large.

    Args:
        steps: the number of points of the Gauss-Legendre quadrature.
        power: spaces the points evenly in u, where `a = u ** power`. With 1 the spacing is the
            usual one. A larger power moves the points close to zero, where the gradient is largest.
    """

    name = "integrated_gradients"
    title = "Integrated Gradients"
    source = "Sundararajan 2017"
    traits = Traits(
        adds_up=True,
        cost="102 forward, 100 backward",
        needs_gradients=True,
        explains_other_inputs=True,
    )

    def __init__(self, steps: int = 100, power: int = 4) -> None:
        if steps < 1 or power < 1:
            raise ValueError(f"steps ({steps}) and power ({power}) must be at least 1.")
        self.steps = steps
        self.power = power

    def _attribute(self, model: ExplainableModel, batch: GraphBatch, target: Target) -> Attribution:
        tokens = model.embed(batch).detach()  # (B, T, D)
        bias = structural_bias(model, batch)
        with torch.no_grad():
            both = torch.stack([tokens, torch.zeros_like(tokens)])
            whole, _ = scaled_leaves(batch, tokens.new_tensor([1.0, 0.0]))
            ends = encode_variants(model, both, whole, bias=bias)
        resolved = target.resolve(model.config, ends[0])
        points, weights = quadrature(self.steps, self.power, like=tokens)
        leaves = leaves_of(batch)
        gradient = torch.zeros_like(tokens)  # its mean over the path
        further = {name: torch.zeros_like(x) for name, x in leaves.items()}
        for part in in_passes(batch, self.steps):
            on_path = (points[part, None, None, None] * tokens).requires_grad_()  # (K, B, T, D)
            at, scaled = scaled_leaves(batch, points[part])
            f = resolved(encode_variants(model, on_path, at, bias=bias))
            gradients, *others = torch.autograd.grad(
                f.sum(), [on_path, *scaled.values()], materialize_grads=True
            )
            gradient += (weights[part, None, None, None] * gradients).sum(0)
            for name, g in zip(scaled, others, strict=True):
                further[name] += torch.einsum("k...,k->...", g, weights[part].to(g))
        relevance = (tokens * gradient).sum(-1)
        inputs = {name: x.detach() * further[name] for name, x in leaves.items()}
        features = model.split_by_feature(batch, gradient[:, 1:])
        if features is not None:
            features = features.detach().masked_fill(~batch.mask[..., None], 0.0)
        return Attribution(
            relevance=relevance[:, 1:].masked_fill(~batch.mask, 0.0),
            graph_token=relevance[:, 0],
            biases=resolved(ends[1]),
            output=resolved(ends[0]),
            outputs=ends[0],
            labels=resolved.labels,
            mask=batch.mask,
            features=features,
            others={name: share_of(batch, name, values) for name, values in inputs.items()},
            inputs=by_graph(batch, inputs),
        )


def quadrature(steps: int, power: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Compute points a and weights (steps,) for `integral_0^1 g(a) da`, where `a = u ** power`."""
    u, weight = np.polynomial.legendre.leggauss(steps)
    u, weight = (u + 1) / 2, weight / 2
    points, weights = u**power, weight * power * u ** (power - 1)
    return torch.as_tensor(points).to(like), torch.as_tensor(weights).to(like)
