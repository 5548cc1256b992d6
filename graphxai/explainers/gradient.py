"""Gradient x Input, LRP as Gradient x Input with constant factors, and other gradients.

`R_t = sum_d x_td * d f_c / d x_td` for every token t (Shrikumar 2017; Ali 2022, eq. 1). The
variants differ only in what `rules.conservative` holds constant. Where attention is not constant,
relevance also reaches the structural bias inside it, and each term of the bias gets its share. For
the relevance that operations create or lose along the way, see `rules.remainders`.

With `baseline="mean"` the relevance of a node is `sum_d (x_td - m_d) * d f_c / d x_td`, where m is
the mean node embedding of the training set. The difference to the usual relevance,
`n m . mean gradient`, is listed separately. It is what n average nodes would get.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from graphxai.contract.batch import GraphBatch
from graphxai.contract.inputs import EDGE_GATES
from graphxai.contract.model import ExplainableModel
from graphxai.contract.target import Target
from graphxai.engine.request import recorded_only
from graphxai.models.graphormer import Graphormer
from graphxai.rules.conservative import Rules, conservative
from graphxai.rules.remainders import PassWithGradient

from .base import Attribution, Explainer, gradients, scored
from .control import generator_of_graph
from .passes import Embedded, in_passes, nan_unless_finite, run_pass, structural_bias
from .registry import register
from .traits import Traits
from .wrapped import (
    by_graph,
    leaves_of,
    once_for_all_nodes,
    scaled_leaves,
    share_of,
    times_leaves,
    warn_if_outputs_differ,
)


@register
class GradientInput(Explainer):
    """Gradient x Input of the unmodified network.

    Args:
        baseline: "zero", or "mean" to measure a node's embedding from the mean over the training
            set. The mean is stored in the checkpoints of bundled Graphormers and in those that
            `graphxai train` writes.
    """

    name = "gradient_input"
    title = "Gradient x Input"
    source = "Shrikumar 2017; Ali 2022, eq. 1"
    traits = Traits(
        adds_up=True,
        needs_gradients=True,
        reports_cut_gradients=True,
        explains_other_inputs=True,
        explains_integer_inputs=True,
        nodes_share_passes=True,
    )
    rules: ClassVar[Rules] = Rules()

    def __init__(self, baseline: Literal["zero", "mean"] = "zero") -> None:
        if baseline not in ("zero", "mean"):
            raise ValueError(f"baseline must be 'zero' or 'mean', not {baseline!r}.")
        self.baseline = baseline

    def _attribute(self, model: ExplainableModel, batch: GraphBatch, target: Target) -> Attribution:
        is_graphormer = isinstance(model, Graphormer)  # others have no structure or remainders

        def forward() -> tuple[Embedded, PassWithGradient]:
            with conservative(**vars(self.rules)), torch.set_grad_enabled(not is_graphormer):
                tokens = model.embed(batch).detach()  # (B, T, D)
            start = Embedded(model, batch, tokens, structural_bias(model, batch))
            # what gates add has no gradient of its own, which hooks cannot tell from a lost one
            with recorded_only() if EDGE_GATES in leaves_of(batch) else nullcontext():
                return start, run_pass(start, self.rules)

        start, run = once_for_all_nodes(forward)
        tokens, bias = start.tokens, start.bias
        outputs = run.outputs.detach()
        if is_graphormer and self.rules.custom:  # a custom rule may change the outputs
            warn_if_outputs_differ(model, batch, outputs, self.name)
        resolved = target.resolve(model.config, outputs)
        shares = run.back(resolved.weights)
        structure = None
        if isinstance(model, Graphormer) and bias is not None and shares.structure is not None:
            with torch.no_grad():  # of each term b of the bias, sum_ij b_ij * d f_c / d b_ij
                structure = model.bias.shares(batch, bias.detach(), shares.structure)
        relevance = (tokens * shares.tokens).sum(-1)  # (B, T)
        of_nodes = shares.tokens[:, 1:]  # (B, N, D)
        features = model.split_by_feature(batch, of_nodes)
        average = None
        if self.baseline == "mean":
            of_mean = of_nodes @ _mean_node(model).T  # (B, N, F)
            relevance[:, 1:] -= of_mean.sum(-1)
            average = of_mean.sum(-1).masked_fill(~batch.mask, 0.0).sum(-1)
            features = None if features is None else features - of_mean
        return scored(
            relevance,
            batch,
            outputs,
            resolved,
            features=features,
            biases=resolved.offset + shares.biases,
            average_node=average,
            structure=structure,
            others=shares.others,
            remainders=shares.remainders if is_graphormer else None,
            inputs=by_graph(batch, times_leaves(batch, shares.inputs)),
        )


def _mean_node(model: ExplainableModel) -> Tensor:
    """Return the mean node embedding (F, D), split by feature, that a Graphormer stores."""
    mean = model.mean_node if isinstance(model, Graphormer) else None
    if mean is None:
        raise ValueError(
            'baseline="mean" needs the mean node of the training set, and this model has none:'
            " call graphxai.models.graphormer.measure_mean_node(model, graphs) on encoded training"
            " graphs of a Graphormer, or use baseline='zero'."
        )
    return mean


@register
class LrpAh(GradientInput):
    """LRP with constant attention (AH)."""

    name = "lrp_ah"
    title = "LRP (AH)"
    source = "Ali 2022, section 4"
    rules = Rules(attention=True)


@register
class LrpLn(GradientInput):
    """LRP with a constant LayerNorm scale (LN)."""

    name = "lrp_ln"
    title = "LRP (LN)"
    source = "Ali 2022, section 4"
    rules = Rules(layernorm=True)


@register
class LrpAhLn(GradientInput):
    """LRP with constant attention and a constant LayerNorm scale (AH+LN)."""

    name = "lrp_ah_ln"
    title = "LRP (AH+LN)"
    source = "Ali 2022, section 4"
    rules = Rules(attention=True, layernorm=True)


@register
class Lrp(GradientInput):
    """LRP (AH+LN) with constant activation ratios, which makes it exactly conservative."""

    name = "lrp"
    title = "LRP"
    source = "Ali 2022, section 4; Achtibat 2024 (activation)"
    rules = Rules(attention=True, layernorm=True, activation="ratio")


@register
class AttnLrp(GradientInput):
    """LRP that also passes relevance through the softmax.

    The softmax keeps its gradient. Each factor of `A v` and `q k^T` gets half of the relevance, and
    LayerNorm's scale and the activation ratio are constant. So the values get 1/2, and the queries
    and the keys 1/4 each. The structural bias, which is added to `q k^T`, takes its share from the
    logits' 1/2. The softmax is not conservative, so what it creates or loses is the ledger's only
    remainder.
    """

    name = "attn_lrp"
    title = "AttnLRP"
    source = "Achtibat 2024"
    rules = Rules(layernorm=True, activation="ratio", products=True)


@register
class Saliency(Explainer):
    """The length of the gradient, `R_t = ||d f_c / d x_t||`, over the D embedding dimensions."""

    name = "saliency"
    title = "Saliency"
    source = "Simonyan 2014"
    traits = Traits(
        large_score_means="sensitive to", needs_gradients=True, explains_other_inputs=True
    )

    def _attribute(self, model: ExplainableModel, batch: GraphBatch, target: Target) -> Attribution:
        tokens = model.embed(batch).detach().requires_grad_()  # (B, T, D)
        outputs = model.encode(tokens, batch)
        resolved = target.resolve(model.config, outputs)
        leaves = leaves_of(batch)
        gradient, *further = gradients(resolved(outputs), [tokens, *leaves.values()])
        lengths = {
            name: g.flatten(1).norm(dim=-1) if g.dim() > 1 else g.abs()  # of each row (rows, ...)
            for name, g in zip(leaves, further, strict=True)
        }
        inputs = by_graph(batch, lengths)
        return scored(gradient.norm(dim=-1), batch, outputs, resolved, inputs=inputs)


@register
class SmoothGrad(Explainer):
    """The length of the mean gradient near the input, `||mean_k d f_c / d x_t (x + e_k)||`.

    The noise e_k is normal, and on the embeddings of the nodes alone. A point near the embedding of
    an atom or a word is the embedding of none, so gradients are taken at inputs that do not exist.

    Args:
        samples: the number of noisy copies.
        noise: the standard deviation of the noise, as a share of that of all the numbers in the
            embeddings of a graph's nodes. The paper takes 0.1 to 0.2 of their range, and 0.5 is
            0.14 of the range of numbers that are spread evenly.
        seed: determines the noise of each graph together with its node features.
    """

    name = "smoothgrad"
    title = "SmoothGrad"
    source = "Smilkov 2017"
    traits = Traits(
        large_score_means="sensitive to",
        cost="51 forward, 50 backward",
        draws_random_numbers=True,
        needs_gradients=True,
    )

    def __init__(self, samples: int = 50, noise: float = 0.5, seed: int = 0) -> None:
        if samples < 1:
            raise ValueError(f"samples must be at least 1, not {samples}.")
        if not noise >= 0:
            raise ValueError(f"noise must not be negative, not {noise}.")
        self.samples = samples
        self.noise = noise
        self.seed = seed

    def _attribute(self, model: ExplainableModel, batch: GraphBatch, target: Target) -> Attribution:
        start = Embedded.of(model, batch)
        tokens = start.tokens  # (B, T, D)
        with torch.no_grad():
            outputs = start.encode(tokens)
        resolved = target.resolve(model.config, outputs)
        generators = [generator_of_graph(self.seed, batch, row) for row in range(len(batch))]
        gradient = torch.zeros_like(tokens, dtype=torch.double)  # however the samples are divided
        for part in in_passes(batch, self.samples):
            copies = [self._noisy(tokens, batch, generators) for _ in range(part.start, part.stop)]
            noisy = torch.stack(copies).requires_grad_()  # (K, B, T, D)
            f = resolved(start.encode_variants(noisy))
            (of_copies,) = gradients(f, [noisy])
            gradient += of_copies.sum(0, dtype=torch.double) / self.samples
            gradient += nan_unless_finite(f)[:, None, None]
        return scored(gradient.norm(dim=-1).to(tokens), batch, outputs, resolved)

    def _noisy(
        self, tokens: Tensor, batch: GraphBatch, generators: Sequence[torch.Generator]
    ) -> Tensor:
        """Return a copy of the tokens (B, T, D) with noise on the nodes of each graph."""
        noisy = tokens.clone()
        for row, generator in enumerate(generators):
            nodes = noisy[row, 1 : int(batch.num_nodes[row]) + 1]  # (n, D)
            drawn = torch.randn(nodes.shape, generator=generator, dtype=torch.float).to(nodes)
            if len(nodes):
                nodes += self.noise * nodes.std(correction=0) * drawn
        return noisy


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
        start = Embedded.of(model, batch)
        tokens = start.tokens  # (B, T, D)
        with torch.no_grad():
            both = torch.stack([tokens, torch.zeros_like(tokens)])
            whole, _ = scaled_leaves(batch, tokens.new_tensor([1.0, 0.0]))
            ends = replace(start, batch=whole).encode_variants(both)
        resolved = target.resolve(model.config, ends[0])
        points, weights = quadrature(self.steps, self.power, like=tokens)
        leaves = leaves_of(batch)
        gradient = torch.zeros_like(tokens, dtype=torch.double)  # the mean, however the path is cut
        further = {name: torch.zeros_like(x) for name, x in leaves.items()}
        for part in in_passes(batch, self.steps):
            on_path = (points[part, None, None, None] * tokens).requires_grad_()  # (K, B, T, D)
            at, scaled = scaled_leaves(batch, points[part])
            f = resolved(replace(start, batch=at).encode_variants(on_path))
            at_points, *others = gradients(f, [on_path, *scaled.values()])
            gradient += (weights[part, None, None, None].double() * at_points).sum(0)
            gradient += nan_unless_finite(f)[:, None, None]
            for name, g in zip(scaled, others, strict=True):
                further[name] += torch.einsum("k...,k->...", g, weights[part].to(g))
        gradient = gradient.to(tokens)
        relevance = (tokens * gradient).sum(-1)
        inputs = {name: x.detach() * further[name] for name, x in leaves.items()}
        return scored(
            relevance,
            batch,
            ends[0],
            resolved,
            features=model.split_by_feature(batch, gradient[:, 1:]),
            biases=resolved(ends[1]),
            others={name: share_of(batch, name, values) for name, values in inputs.items()},
            inputs=by_graph(batch, inputs),
        )


def quadrature(steps: int, power: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Compute points a and weights (steps,) for `integral_0^1 g(a) da`, where `a = u ** power`."""
    u, weight = np.polynomial.legendre.leggauss(steps)
    u, weight = (u + 1) / 2, weight / 2
    points, weights = u**power, weight * power * u ** (power - 1)
    return torch.as_tensor(points).to(like), torch.as_tensor(weights).to(like)


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
