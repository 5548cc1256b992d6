"""A Graphormer's forward and backward pass in explicit matrix products, without autograd.

`run` computes the outputs and keeps just what the backward pass needs. `PassWithGradient.back`
takes the gradient of f_c from the outputs to the tokens and collects the shares of the ledger on
its way. Both follow `rules.conservative` and equal autograd up to rounding, for the models that
have a `prepared_encoder` and the rules that `follows` accepts.

Work is saved in three places. No gradient is computed for factors that are constant. The constants
of a LayerNorm are multiplied into the weight of the linear map after it. The last layer needs no
keys and values, because only the graph token's row is read. With a head's query q and the tokens x,

    softmax(q (x W_k^T + b_k)^T) = softmax((q W_k) x^T),   A (x W_v^T + b_v) = (A x) W_v^T + b_v.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from graphxai.rules.conservative import ROWS, Rules, pad_graphs
from graphxai.rules.remainders import (
    PassWithGradient,
    RelevanceShares,
    RunningShares,
    share_of_structure,
)
from graphxai.runtime.derived_values import DerivedValues

from .layers import Attention, EncoderLayer, FeedForward, LayerNorm, Linear
from .model import Graphormer, TransformHead

# The rules that `run` follows: each field of `Rules` may have this value or its default. Autograd
# runs under any other rule, such as one that was added later, so that the rule acts.
RULES_FOLLOWED = Rules(attention=True, layernorm=True, activation="ratio", products=True)
_KEPT = 2**24  # a layer with more attention weights computes them again in the backward pass


def follows(rules: Rules) -> bool:
    """Return whether `run` follows all of these rules."""
    default = Rules()
    return type(rules) is Rules and all(
        value in (getattr(default, name), getattr(RULES_FOLLOWED, name))
        for name, value in vars(rules).items()
    )


# A function from the gradient at a step's output to the gradient at its input.
Back: TypeAlias = Callable[[Tensor, RunningShares], Tensor]
# A function from the gradient (B, Q, O) at `y weight^T`, or at y if there is no weight, to the
# gradient at the x that y was computed from. The weight is (O, D) or (B, O, D).
NormBack: TypeAlias = Callable[[Tensor, Tensor | None, RunningShares], Tensor]
Joint: TypeAlias = tuple[Tensor, Tensor]  # a weight (3 D, D) and its bias (3 D,)


@torch.no_grad()
def run(
    model: Graphormer, prepared: DerivedValues, tokens: Tensor, bias: Tensor, rules: Rules,
    structure: bool = False,
) -> PassWithGradient:  # fmt: skip
    """Compute the outputs of tokens (B, T, D), and prepare the backward pass.

    It is only for models with a `prepared_encoder`, under rules that it `follows`.

    Args:
        prepared: the result of `prepared_encoder`.
        tokens: the tokens (B, T, D) that enter the first layer.
        bias: the structural bias (B, H, T, T).
        structure: whether to return the gradient at the structural bias even where attention is
            constant. It then arrives there in each layer, but flows no further.
    """
    inside = structure or not rules.attention
    steps: list[Back] = []
    x, graphs = tokens, len(tokens)
    for layer in model.layers[:-1]:
        assert isinstance(layer, EncoderLayer)
        joint = prepared.once(layer, partial(_joined, layer.attention))
        x, step = _layer(layer, x, bias, rules, inside, joint)
        steps.append(step)

    def drop_padding(gradient: Tensor, ledger: RunningShares) -> Tensor:
        ledger.keep(graphs)
        return gradient[:graphs]

    # From here on a graph is one row, whose last bits must not depend on the number of graphs.
    last, added = model.layers[-1], -graphs % ROWS
    assert isinstance(last, EncoderLayer)
    of_token = pad_graphs(bias[:, :, :1], added)
    x, step = _layer(last, pad_graphs(x, added), of_token, rules, inside, None)
    outputs, read = _read_out(model, x, rules)
    steps += [drop_padding, step, read]

    @torch.no_grad()
    def back(weights: Tensor) -> RelevanceShares:
        to_structure = torch.zeros_like(bias) if inside else None
        weights = pad_graphs(weights, added)
        ledger = RunningShares(rules, prepared, weights.new_zeros(len(weights)), to_structure)
        gradient = weights[:, None]  # (B, 1, num_outputs)
        for step in reversed(steps):
            gradient = step(gradient, ledger)
        if "products" in ledger.remainders and to_structure is not None:
            ledger.add_remainder("products", share_of_structure(bias, to_structure))
        return RelevanceShares(gradient, ledger.biases, to_structure, ledger.remainders)

    return PassWithGradient(outputs[:graphs, 0], back)


def _layer(
    layer: EncoderLayer, x: Tensor, bias: Tensor, rules: Rules, inside: bool, joint: Joint | None
) -> tuple[Tensor, Back]:
    """Compute a layer's tokens (B, T, D), or only the graph token (B, 1, D) without `joint`."""
    attend = partial(_attend, joint) if joint else _attend_from_graph_token
    kept = x if joint else x[:, :1]
    after_attention: NormBack = _directly
    after_ffn: NormBack = _directly
    if layer.pre_layernorm:
        y, norm_back = _norm(layer.attention_norm, x, rules)
        middle, through_attention = attend(layer.attention, y, norm_back, bias, rules, inside)
        y, norm_back = _norm(layer.ffn_norm, middle.add_(kept), rules)
        out, through_ffn = _feed(layer.ffn, y, norm_back, rules)
        out += middle
    else:
        middle, through_attention = attend(layer.attention, x, _directly, bias, rules, inside)
        middle, after_attention = _norm(layer.attention_norm, middle.add_(kept), rules)
        out, through_ffn = _feed(layer.ffn, middle, _directly, rules)
        out, after_ffn = _norm(layer.ffn_norm, out.add_(middle), rules)

    def back(gradient: Tensor, ledger: RunningShares) -> Tensor:
        gradient = after_ffn(gradient, None, ledger)
        gradient = through_ffn(gradient, ledger).add_(gradient)
        gradient = after_attention(gradient, None, ledger)
        to_x = through_attention(gradient, ledger)
        to_x[:, : gradient.shape[1]] += gradient
        return to_x

    return out, back


def _directly(gradient: Tensor, weight: Tensor | None, ledger: RunningShares) -> Tensor:
    """Pass the gradient back where x enters unchanged, without a LayerNorm."""
    return gradient if weight is None else gradient @ weight


def _norm(norm: LayerNorm, x: Tensor, rules: Rules) -> tuple[Tensor, NormBack]:
    """Compute LayerNorm of x (B, Q, D), and prepare the backward pass to x."""
    shape = x.shape[-1:]
    y, mean, scale = torch.native_layer_norm(x, shape, norm.weight, norm.bias, norm.eps)
    if rules.layernorm:

        def with_constant_scale(
            gradient: Tensor, weight: Tensor | None, ledger: RunningShares
        ) -> Tensor:
            if (
                weight is not None
                and weight.dim() == 2
                and gradient.shape[:-1].numel() < len(weight)  # few tokens
                and not ledger.prepared.watched
            ):
                gradient, weight = gradient @ weight, None
            if weight is None:
                ledger.add_bias(norm.bias, gradient)
                gradient = gradient * norm.weight
                return gradient.sub_(gradient.mean(-1, keepdim=True)).mul_(scale)
            centre = partial(_with_constants_of, norm, weight)
            centred, shift = (
                ledger.prepared.once((norm, id(weight)), centre) if weight.dim() == 2 else centre()
            )
            ledger.add_bias(shift, gradient)
            return (gradient @ centred).mul_(scale)

        return y, with_constant_scale

    def back(gradient: Tensor, weight: Tensor | None, ledger: RunningShares) -> Tensor:
        gradient = _directly(gradient, weight, ledger).contiguous()
        ledger.add_bias(norm.bias, gradient)
        to_x, _, _ = torch.ops.aten.native_layer_norm_backward(
            gradient, x, shape, mean, scale, norm.weight, norm.bias, [True, False, False]
        )
        arriving = _dot(y - norm.bias, gradient)
        ledger.add_remainder("LayerNorm", arriving - _dot(x, to_x))
        return to_x

    return y, back


def _with_constants_of(norm: LayerNorm, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return a weight W (..., O, D) with the constants of the norm before it, and its W b."""
    scaled = weight * norm.weight
    return scaled.sub_(scaled.mean(-1, keepdim=True)), weight @ norm.bias


def _joined(part: Attention) -> Joint:
    """Join the maps to queries, keys and values: their weights (3 D, D) and biases (3 D,)."""
    maps = part.query, part.key, part.value
    return torch.cat([m.weight for m in maps]), torch.cat([m.bias for m in maps])


def _attend(
    joint: Joint, part: Attention, x: Tensor, norm_back: NormBack, bias: Tensor, rules: Rules,
    inside: bool,
) -> tuple[Tensor, Back]:  # fmt: skip
    """Attend from all tokens to all (B, T, D), and prepare the backward pass beyond x."""
    weight, shift = joint
    split = F.linear(x, weight, shift).unflatten(-1, (3, part.heads, -1))
    q, k, v = split.permute(2, 0, 3, 1, 4).contiguous()  # (B, H, T, d) each
    q.mul_(part.scale)

    def weights() -> Tensor:
        logits = (q @ k.mT).add_(bias)  # (B, H, T, T)
        return torch.softmax(logits, dim=-1, out=logits)

    attention = weights()
    out = _linear(part.output, _join(attention @ v))
    kept = attention if attention.numel() <= _KEPT else None
    del attention

    def back(gradient: Tensor, ledger: RunningShares) -> Tensor:
        attention = weights() if kept is None else kept
        ledger.add_bias(part.output.bias, gradient)
        mixed = (gradient @ part.output.weight).unflatten(-1, (part.heads, -1))
        mixed = mixed.transpose(1, 2).contiguous()  # at `A v`, (B, H, T, d)
        values = ledger.shared(attention.mT @ mixed)
        if inside:
            to_logits = ledger.to_logits(attention, ledger.shared(mixed @ v.mT))
        if rules.attention:
            joined = _join(values)
            ledger.add_bias(part.value.bias, joined)
            return norm_back(joined, part.value.weight, ledger)
        queries = ledger.shared(to_logits @ k).mul_(part.scale)
        keys = ledger.shared(to_logits.mT @ q)
        joined = torch.cat([_join(queries), _join(keys), _join(values)], dim=-1)
        ledger.add_bias(shift, joined)
        return norm_back(joined, weight, ledger)

    return out, back


def _join(x: Tensor) -> Tensor:
    """Put the heads of x (B, H, T, d) side by side, (B, T, D)."""
    return x.transpose(1, 2).flatten(2)


def _attend_from_graph_token(
    part: Attention, x: Tensor, norm_back: NormBack, bias: Tensor, rules: Rules, inside: bool
) -> tuple[Tensor, Back]:
    """Attend from the graph token (B, 1, D), and prepare the backward pass beyond x."""
    heads = part.heads
    key, value = (m.weight.unflatten(0, (heads, -1)) for m in (part.key, part.value))  # (H, d, D)
    q = (
        _linear(part.query, x[:, 0]).mul_(part.scale).unflatten(-1, (heads, -1)).transpose(0, 1)
    )  # (H, B, d)
    asked = (q @ key).transpose(0, 1)  # (B, H, D): the direction that each head looks for
    attention = torch.softmax(asked @ x.mT + bias[:, :, 0], dim=-1)  # (B, H, T)
    mixed = (attention @ x).transpose(0, 1) @ value.mT  # (H, B, d)
    out = _linear(part.output, mixed.transpose(0, 1).flatten(1) + part.value.bias)[:, None]

    def back(gradient: Tensor, ledger: RunningShares) -> Tensor:
        ledger.add_bias(part.output.bias, gradient)
        mixed = ledger.shared(gradient @ part.output.weight)  # (B, 1, D)
        ledger.add_bias(part.value.bias, mixed)
        mixed = mixed.unflatten(-1, (heads, -1)).transpose(1, 2)  # (B, H, 1, d)
        read = (mixed[:, :, 0].transpose(0, 1) @ value).transpose(0, 1)  # (B, H, D)
        if inside:
            from_bias = mixed @ part.value.bias.unflatten(0, (heads, -1))[:, :, None]
            to_attention = (read @ x.mT)[:, :, None] + from_bias  # (B, H, 1, T)
            to_logits = ledger.to_logits(attention[:, :, None], to_attention)[:, :, 0]
        if rules.attention:
            return norm_back(attention.mT, read, ledger)
        # The key's bias adds the same to all logits of a row, whose gradients sum to zero.
        to_q = ledger.shared((to_logits @ x).transpose(0, 1) @ key.mT).mul_(part.scale)
        to_q = to_q.transpose(0, 1).flatten(1)[:, None]  # (B, 1, D)
        ledger.add_bias(part.query.bias, to_q)
        token = torch.zeros_like(attention[:, :1])  # as a column it selects the graph token's row
        token[..., 0] = 1.0
        columns = torch.cat([attention, ledger.shared(to_logits), token], dim=1).mT
        rows = torch.cat([read, asked, to_q @ part.query.weight], dim=1)  # (B, 2 H + 1, D)
        return norm_back(columns, rows, ledger)

    return out, back


def _feed(part: FeedForward, x: Tensor, norm_back: NormBack, rules: Rules) -> tuple[Tensor, Back]:
    """Apply the feed-forward map to x (B, Q, D), and prepare the backward pass beyond x."""
    active, through = _activate(_linear(part.expand, x), rules)

    def back(gradient: Tensor, ledger: RunningShares) -> Tensor:
        ledger.add_bias(part.contract.bias, gradient)
        inner = through(gradient @ part.contract.weight, ledger)
        ledger.add_bias(part.expand.bias, inner)
        return norm_back(inner, part.expand.weight, ledger)

    return _linear(part.contract, active), back


def _activate(x: Tensor, rules: Rules) -> tuple[Tensor, Back]:
    """Compute GELU of x (B, Q, D), and prepare the backward pass to x."""
    if rules.activation == "ratio":
        ratio = (x * math.sqrt(0.5)).erf_().add_(1.0).mul_(0.5)
        return x * ratio, lambda gradient, _: gradient * ratio
    y = F.gelu(x)

    def back(gradient: Tensor, ledger: RunningShares) -> Tensor:
        to_x = torch.ops.aten.gelu_backward(gradient, x)
        ledger.add_remainder("activation", _dot(y, gradient) - _dot(x, to_x))
        return to_x

    return y, back


def _read_out(model: Graphormer, x: Tensor, rules: Rules) -> tuple[Tensor, Back]:
    """Compute the outputs (B, 1, num_outputs) of the graph token x (B, 1, D), and the way back."""
    head = model.head
    norm_back: NormBack = _directly
    if model.final_norm is not None:
        x, norm_back = _norm(model.final_norm, x, rules)
    if isinstance(head, Linear):

        def back_through_linear(weights: Tensor, ledger: RunningShares) -> Tensor:
            ledger.add_bias(head.bias, weights)
            return norm_back(weights, head.weight, ledger)

        return _linear(head, x), back_through_linear
    assert isinstance(head, TransformHead)
    active, through = _activate(_linear(head.transform, x), rules)
    y, head_norm_back = _norm(head.norm, active, rules)

    def back(weights: Tensor, ledger: RunningShares) -> Tensor:
        ledger.add_bias(head.bias.expand(weights.shape[-1]), weights)
        inner = through(head_norm_back(weights, head.output.weight, ledger), ledger)
        ledger.add_bias(head.transform.bias, inner)
        return norm_back(inner, head.transform.weight, ledger)

    return _linear(head.output, y) + head.bias, back


def _linear(part: nn.Linear, x: Tensor) -> Tensor:
    """Apply the map itself, because a caller could record a call of the module."""
    return F.linear(x, part.weight, part.bias)


def _dot(x: Tensor, y: Tensor) -> Tensor:
    """Compute `sum x y` (B,) of each graph, for x and y (B, Q, D)."""
    return torch.linalg.vecdot(x, y).sum(1)
