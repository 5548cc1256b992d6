"""Relevance by the positive rule: Chefer et al., CVPR 2021, and its two baselines.

A relevance of one, given to the output explained, is handed down to the tokens, operation by
operation (see `positive_rules`). LayerNorm, activations and the softmax pass relevance on
unchanged; biases of linear maps take no part. Padding gets no attention, hence no relevance.

Eq. 2 divides by sums that may be close to zero, where the order of summation would show in single
precision: the pass runs on a copy of the model in double precision.
"""

from copy import deepcopy
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from graphxai.capture import ExplainableModel
from graphxai.models.graphormer.encoding import GraphBatch
from graphxai.models.graphormer.layers import Attention, EncoderLayer
from graphxai.models.graphormer.model import Graphormer, TransformHead
from graphxai.propagation import gelu, record
from graphxai.target import ResolvedTarget, Target

from .base import Attribution, Explainer, register, scored
from .positive_rules import CHEFER, PLAIN, Rules, through_important_heads, through_linear


@dataclass(frozen=True, eq=False)
class Forward:
    """What a forward pass saw, in double precision but for `outputs` (B, num_outputs).

    explained (B,): f_c; bias (B, H, T, T): the structural bias; `attention` of every layer
    (B, H, Q, T), Q = 1 in the last; `hidden` (B, T, D) entering each layer and leaving the last.
    """

    model: Graphormer
    bias: Tensor
    attention: list[Tensor]
    hidden: list[Tensor]
    explained: Tensor
    outputs: Tensor
    resolved: ResolvedTarget

    def attention_gradients(self) -> tuple[Tensor, ...]:
        """`d f_c / d A` of every layer, as `attention`."""
        return torch.autograd.grad(self.explained.sum(), self.attention)


def forward(model: ExplainableModel, batch: GraphBatch, target: Target) -> Forward:
    """Run a double-precision copy of the model.

    Raises TypeError for a model whose operations are not those of a Graphormer.
    """
    if not isinstance(model, Graphormer):
        raise TypeError(
            f"the positive rule knows the layers of a Graphormer, not of {type(model).__name__}."
        )
    double = deepcopy(model).double().requires_grad_(False)
    bias = double.bias(batch)
    with record() as tape:
        tokens = double.embed(batch).requires_grad_()
        precise = double.encode(tokens, batch, bias=bias)
    outputs = precise.detach().to(next(model.parameters()).dtype)
    resolved = target.resolve(model.config, outputs)
    return Forward(double, bias, tape.attention, tape.hidden, resolved(precise), outputs, resolved)


@torch.no_grad()
def propagate(
    seen: Forward, rules: Rules, *, important: Tensor | None = None, layers: int | None = None
) -> tuple[Tensor, list[Tensor]]:
    """Hand a relevance of one down from f_c.

    important (B or 1, K, L, H): see `through_important_heads`; None: all heads. layers: how many
    to go through, from the last one; None: all. Returns the relevance of what entered the lowest
    of them (B, T, D), and that of the attention of each, upwards (B, H, Q, T).
    """
    relevance = _head(seen)
    found: list[Tensor] = []
    last = len(seen.attention) - 1
    for index in range(last, last - (layers or last + 1), -1):
        heads = None if important is None else important[:, :, index]
        relevance, of_attention = _layer(seen, index, relevance, rules, heads)
        found.insert(0, of_attention)
    return relevance, found


def _head(seen: Forward) -> Tensor:
    """Relevance (B, 1, D) of the graph token as it leaves the last layer.

    The last linear map and f_c are one map to one number. Relevance begins at that number, so that
    the two classes of a single logit differ.
    """
    model, x = seen.model, seen.hidden[-1][:, :1]
    explained = seen.resolved.weights.to(x)  # (B, num_outputs)
    read = x if model.final_norm is None else model.final_norm(x)
    relevance = read.new_ones(len(x), 1, 1)
    head = model.head
    if not isinstance(head, TransformHead):
        weight = cast(torch.nn.Linear, head).weight
        return through_linear(read, (explained @ weight)[:, None], relevance)
    inner = head.norm(gelu(head.transform(read)))
    relevance = through_linear(inner, (explained @ head.output.weight)[:, None], relevance)
    return through_linear(read, head.transform.weight, relevance)


def _layer(
    seen: Forward, index: int, relevance: Tensor, rules: Rules, important: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Relevance of what entered a layer (B, T, D) and of its attention (B, H, Q, T).

    relevance (B, Q, D), of what left it. The layer's inner values are computed anew.
    """
    layer = cast(EncoderLayer, seen.model.layers[index])
    attention, ffn, pre = layer.attention, layer.ffn, layer.pre_layernorm
    x, weights = seen.hidden[index], seen.attention[index]
    kept = x[:, : weights.shape[2]]  # the last layer has the graph token's row alone

    attended = layer.attention_norm(x) if pre else x
    values = _split(attention, attention.value(attended))  # (B, H, T, d)
    mixed = _merge(weights @ values)  # (B, Q, D)
    branch = attention.output(mixed)
    middle = kept + branch if pre else layer.attention_norm(kept + branch)
    fed = layer.ffn_norm(middle) if pre else middle
    expanded = gelu(ffn.expand(fed))  # (B, Q, F)

    to_middle, to_ffn = rules.addition(middle, ffn.contract(expanded), relevance)
    to_expanded = through_linear(expanded, ffn.contract.weight, to_ffn)
    to_middle = to_middle + through_linear(fed, ffn.expand.weight, to_expanded)

    to_kept, to_branch = rules.addition(kept, branch, to_middle)
    to_mixed = _split(attention, through_linear(mixed, attention.output.weight, to_branch))
    if important is not None:
        to_mixed = through_important_heads(to_mixed, important)
    to_weights, to_values = rules.product(weights, values, to_mixed)
    to_x = through_linear(attended, attention.value.weight, _merge(to_values))
    if rules.into_queries_and_keys:
        structure = seen.bias[:, :, : kept.shape[1]]
        structure = structure.masked_fill(weights == 0, 0.0)  # it is -inf at excluded keys
        to_x = to_x + _queries_and_keys(attention, attended, structure, to_weights, rules)
    to_x[:, : kept.shape[1]] += to_kept
    return to_x, to_weights


def _queries_and_keys(
    attention: Attention, attended: Tensor, structure: Tensor, relevance: Tensor, rules: Rules
) -> Tensor:
    """Relevance of attended (B, T, D) through `q k^T + structure`, of that sum's (B, H, Q, T)."""
    asking = attended[:, : structure.shape[2]]
    q = _split(attention, attention.query(asking)) * attention.scale  # (B, H, Q, d)
    k = _split(attention, attention.key(attended)).mT  # (B, H, d, T)
    to_product, _ = rules.addition(q @ k, structure, relevance)
    to_q, to_k = rules.product(q, k, to_product)
    to_attended = through_linear(attended, attention.key.weight, _merge(to_k.mT))
    to_attended[:, : asking.shape[1]] += through_linear(
        asking, attention.query.weight, _merge(to_q)
    )
    return to_attended


def _split(attention: Attention, x: Tensor) -> Tensor:
    """(B, T, D) to heads (B, H, T, d)."""
    return x.unflatten(-1, (attention.heads, -1)).transpose(1, 2)


def _merge(x: Tensor) -> Tensor:
    """Heads (B, H, T, d) to (B, T, D)."""
    return x.transpose(1, 2).flatten(2)


def attention_rollout(seen: Forward, batch: GraphBatch, relevance: list[Tensor]) -> Attribution:
    """Eq. 13, 14: the graph token's row of `prod_l (I + mean_h relu(dA[l] * R_A[l]))`."""
    row = torch.zeros_like(seen.hidden[0][:, None, :, 0])  # (B, 1, T)
    row[..., 0] = 1.0
    gradients = seen.attention_gradients()
    for gradient, of_attention in zip(reversed(gradients), reversed(relevance), strict=True):
        weighted = (gradient * of_attention).relu().mean(1)  # (B, Q, T)
        row = row + row[..., : weighted.shape[1]] @ weighted
    return in_model_precision(row[:, 0], batch, seen)


def in_model_precision(scores: Tensor, batch: GraphBatch, seen: Forward) -> Attribution:
    """An Attribution from token scores (B, T) in double precision."""
    return scored(scores.to(seen.outputs.dtype), batch, seen.outputs, seen.resolved)


@register
class TransformerAttribution(Explainer):
    """Relevance of attention times its gradient, rolled out over the layers."""

    name = "transformer_attribution"
    title = "Transformer attribution"
    source = "Chefer 2021b, eq. 5, 10, 13, 14"
    cost = "2 forward, 1 backward, 1 relevance pass"
    needs_graphormer = True

    def _attribute(self, model: ExplainableModel, batch: GraphBatch, target: Target) -> Attribution:
        seen = forward(model, batch, target)
        _, relevance = propagate(seen, CHEFER)
        return attention_rollout(seen, batch, relevance)


@register
class LrpZPlus(Explainer):
    """The plain positive rule down to the tokens; over nodes and graph token it sums to one.

    A sum shares by the positive parts of its terms, and attention counts as a matrix of weights:
    all relevance goes through the values.
    """

    name = "lrp_zplus"
    title = "LRP (z+)"
    source = "Chefer 2021b, eq. 4, 5; Montavon 2017"
    cost = "2 forward, 1 relevance pass"
    needs_graphormer = True

    def _attribute(self, model: ExplainableModel, batch: GraphBatch, target: Target) -> Attribution:
        seen = forward(model, batch, target)
        tokens, _ = propagate(seen, PLAIN)
        return in_model_precision(tokens.sum(-1), batch, seen)


@register
class PartialLrp(Explainer):
    """The plain positive rule, stopped at the last layer's attention: the mean over its heads."""

    name = "partial_lrp"
    title = "Partial LRP"
    source = "Voita 2019; Chefer 2021b"
    cost = "1 forward, 1 relevance pass of one layer"
    needs_graphormer = True

    def _attribute(self, model: ExplainableModel, batch: GraphBatch, target: Target) -> Attribution:
        seen = forward(model, batch, target)
        _, (last,) = propagate(seen, PLAIN, layers=1)
        return in_model_precision(last.mean(1)[:, 0], batch, seen)
