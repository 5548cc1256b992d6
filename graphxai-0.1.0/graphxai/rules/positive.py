"""Rules that pass relevance back through one operation: Chefer et al., CVPR 2021, section 3.

Each function takes the operation's inputs and the relevance R of its output, and returns the
relevance of the inputs. Normalising sums run over one graph, never over the batch. If the first
axis holds nodes or edges, `graph` gives the graph of each of them. If `graph` is None, each entry
of the first axis is a graph.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, where

NEGLIGIBLE = 1e-200  # smaller numbers count as zero, because their reciprocal may overflow

Linear = Callable[[Tensor], Tensor]
Bilinear = Callable[[Tensor, Tensor], Tensor]


def through_linear(x: Tensor, weight: Tensor, relevance: Tensor) -> Tensor:
    """Pass relevance through a linear map by Eq. 5.

    `R_j = sum_i (x_j w_ij)^+ / sum_j' (x_j' w_ij')^+ R_i`. For nonnegative x this is Eq. 4, the z+
    rule.

    Args:
        x: the input (..., D_in).
        weight: the matrix (D_out, D_in).
        relevance: the relevance of the output (..., D_out).

    Returns:
        Relevance (..., D_in) of the input.
    """
    up, down = weight.clamp(min=0), weight.clamp(max=0)
    positive, negative = x.clamp(min=0), x.clamp(max=0)
    share = _divide(relevance, positive @ up.mT + negative @ down.mT)
    return positive * (share @ up) + negative * (share @ down)


def through_weights(f: Bilinear, x: Tensor, weight: Tensor, relevance: Tensor) -> Tensor:
    """Pass relevance by Eq. 5 through f(x, weight), which is linear in each argument.

    Examples are a product and a convolution.
    """
    up, down = weight.clamp(min=0), weight.clamp(max=0)
    positive, negative = x.clamp(min=0), x.clamp(max=0)
    share = _divide(relevance, f(positive, up) + f(negative, down))
    from_up = _pulled_back(lambda z: f(z, up), positive, share)
    return positive * from_up + negative * _pulled_back(lambda z: f(z, down), negative, share)


def through_sum(f: Linear, x: Tensor, relevance: Tensor) -> Tensor:
    """Pass relevance by Eq. 5 through a map with nonnegative weights, such as a mean over nodes.

    Where no term is positive, the negative terms share in proportion, so that no relevance is lost.
    """
    positive, negative = x.clamp(min=0), x.clamp(max=0)
    reached = f(positive)
    share = _divide(relevance, reached)
    rest = _divide(relevance.masked_fill(reached > NEGLIGIBLE, 0.0), f(negative))
    return positive * _pulled_back(f, x, share) + negative * _pulled_back(f, x, rest)


def in_proportion(f: Linear, x: Tensor, relevance: Tensor) -> Tensor:
    """Give every term of a linear map f, such as a sum, its share of the relevance by Eq. 2."""
    return x * _pulled_back(f, x, _divide(relevance, f(x)))


def through_addition(
    u: Tensor, v: Tensor, relevance: Tensor, graph: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Pass relevance through u + v by Eq. 2 and 10.

    Returns:
        Relevance of u and of v, each in their shape (B, ...).
    """
    share = _divide(relevance, u + v)
    return normalised(u * share, v * share, relevance, graph)


def through_product(
    a: Tensor, v: Tensor, relevance: Tensor, f: Bilinear = torch.matmul
) -> tuple[Tensor, Tensor]:
    """Pass relevance by Eq. 2 and 10 through f(a, v), which is linear in each argument.

    By default f multiplies matrices (..., Q, T) and (..., T, d). By Eq. 2 each factor gets all of
    the incoming relevance, so Eq. 10 halves both.
    """
    share = _divide(relevance, f(a, v))
    return a * _to_left(f, a, v, share) / 2, v * _to_right(f, a, v, share) / 2


def normalised(
    first: Tensor, second: Tensor, incoming: Tensor, graph: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Scale two relevances (B, ...) by Eq. 10, so that they sum to the incoming relevance.

    R becomes `R |sum R| / (|sum R| + |sum R'|) * (sum incoming) / (sum R)`, where R' is the other
    relevance. The sums run over each graph.
    """
    of_first, of_second = per_graph(first, graph), per_graph(second, graph)
    scale = _divide(per_graph(incoming, graph), of_first.abs() + of_second.abs())
    to_first, to_second = of_first.sign() * scale, of_second.sign() * scale
    return first * _like(to_first, first), second * _like(to_second, second)


def positive_addition(
    u: Tensor, v: Tensor, relevance: Tensor, graph: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Pass relevance through u + v by Eq. 5.

    Where neither u nor v is positive, they share in proportion, so that no relevance is lost.
    """
    up, vp = u.clamp(min=0), v.clamp(min=0)
    none = up + vp <= NEGLIGIBLE
    up, vp = where(none, u, up), where(none, v, vp)
    share = _divide(relevance, up + vp)
    return up * share, vp * share


def positive_product(
    a: Tensor, v: Tensor, relevance: Tensor, f: Bilinear = torch.matmul
) -> tuple[Tensor, Tensor]:
    """Pass relevance through attention f(a, v) by Eq. 5.

    The values get all of it with a as the weights, and a gets all of it with v as the weights.
    Where no product is positive, the negative products share in proportion, so that no relevance is
    lost. Linear attention can have negative entries. Then relevance is lost where no product is
    positive.
    """
    if (a < 0).any():
        to_v = through_weights(lambda z, weight: f(weight, z), v, a, relevance)
        return through_weights(f, a, v, relevance), to_v
    positive, negative = v.clamp(min=0), v.clamp(max=0)
    reached = f(a, positive)
    share = _divide(relevance, reached)
    rest = _divide(relevance.masked_fill(reached > NEGLIGIBLE, 0.0), f(a, negative))
    to_a = _to_left(f, a, positive, share) + _to_left(f, a, negative, rest)
    to_v = positive * _to_right(f, a, v, share) + negative * _to_right(f, a, v, rest)
    return a * to_a, to_v


def through_important_entries(
    relevance: Tensor, graph: Tensor, head: Tensor, important: Tensor
) -> Tensor:
    """Let only important heads pass relevance on (Song 2024, section 4.3).

    The relevance of each kind of heads is scaled as in Eq. 10, so that all kinds together sum to
    the incoming relevance. Without an important head, no relevance passes.

    Args:
        relevance: the relevance of the output.
        graph: the graph of every entry of the relevance.
        head: the head of every entry of the relevance.
        important: which heads are important, (B, K, H), for K kinds of heads.
    """
    chosen = important.to(relevance)
    kinds = [relevance * chosen[graph, kind, head] for kind in range(chosen.shape[1])]

    def per_graph(x: Tensor) -> Tensor:
        return x.new_zeros(len(chosen)).index_add(0, graph.flatten(), x.flatten())

    sums = [per_graph(kind) for kind in kinds]
    share = _divide(per_graph(relevance), torch.stack(sums).abs().sum(0))  # (B,)
    scaled = [kind * (total.sign() * share)[graph] for kind, total in zip(kinds, sums, strict=True)]
    return torch.stack(scaled).sum(0)


@dataclass(frozen=True)
class PositiveRules:
    """The rules for additions and products.

    Args:
        addition: passes relevance through u + v.
        product: passes relevance through attention times values.
        into_queries_and_keys: whether the relevance of attention goes further back. If so, it goes
            through the softmax unchanged, and from `q k^T + bias` to the queries, the keys and the
            structural bias, which keeps its share.
    """

    addition: Callable[[Tensor, Tensor, Tensor, Tensor | None], tuple[Tensor, Tensor]]
    product: Callable[[Tensor, Tensor, Tensor, Bilinear], tuple[Tensor, Tensor]]
    into_queries_and_keys: bool


CHEFER = PositiveRules(through_addition, through_product, into_queries_and_keys=True)
PLAIN = PositiveRules(positive_addition, positive_product, into_queries_and_keys=False)


def per_graph(x: Tensor, graph: Tensor | None = None) -> Tensor:
    """Sum x over each graph, and return each graph's sum at every entry of the first axis."""
    sums = x.flatten(1).sum(1) if x.dim() > 1 else x
    if graph is None or not len(graph):
        return sums
    return sums.new_zeros(int(graph.max()) + 1).index_add(0, graph, sums)[graph]


def _to_left(f: Bilinear, a: Tensor, v: Tensor, share: Tensor) -> Tensor:
    """Apply the transpose of a -> f(a, v) to `share`."""
    if _is_product_of_matrices(f, a, v):
        return share @ v.mT
    return _pulled_back(lambda z: f(z, v), a, share)


def _to_right(f: Bilinear, a: Tensor, v: Tensor, share: Tensor) -> Tensor:
    """Apply the transpose of v -> f(a, v) to `share`."""
    if _is_product_of_matrices(f, a, v):
        return a.mT @ share
    return _pulled_back(lambda z: f(a, z), v, share)


def _is_product_of_matrices(f: Bilinear, a: Tensor, v: Tensor) -> bool:
    """Return whether f(a, v) is `a v` without broadcasting, which transposes into products."""
    return f is torch.matmul and min(a.dim(), v.dim()) > 1 and a.shape[:-2] == v.shape[:-2]


def _pulled_back(f: Linear, x: Tensor, share: Tensor) -> Tensor:
    """Apply the transpose of the linear map f to `share`. The result is shaped like x."""
    with torch.enable_grad():
        point = x.detach().requires_grad_()
        (pulled,) = torch.autograd.grad(f(point), point, share)
    return pulled


def _divide(numerator: Tensor, denominator: Tensor) -> Tensor:
    """Divide, but return zero where the denominator is zero because nothing contributed."""
    return (numerator / denominator).masked_fill_(denominator.abs() <= NEGLIGIBLE, 0.0)


def _like(x: Tensor, other: Tensor) -> Tensor:
    """Add axes of length one at the end of x, so that it multiplies `other`."""
    return x.reshape(*x.shape, *(1,) * (other.dim() - x.dim()))
