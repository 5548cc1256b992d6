"""Rules that hand relevance down through one operation: Chefer et al., CVPR 2021, section 3.

Each is a function of what went into the operation and of the relevance R of what came out, and
gives the relevance of what went in. Every sum that normalises is over one graph, never over the
first axis.
"""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, where

NEGLIGIBLE = 1e-200  # a sum that is zero: sharp attention has weights whose reciprocal overflows


def through_linear(x: Tensor, weight: Tensor, relevance: Tensor) -> Tensor:
    """Eq. 5: `R_j = sum_i (x_j w_ij)^+ / sum_j' (x_j' w_ij')^+ R_i`.

    x (..., D_in), weight (D_out, D_in), relevance (..., D_out); returns (..., D_in). Where x is
    not negative this is Eq. 4, the z+ rule.
    """
    up, down = weight.clamp(min=0), weight.clamp(max=0)
    positive, negative = x.clamp(min=0), x.clamp(max=0)
    share = _divide(relevance, positive @ up.mT + negative @ down.mT)
    return positive * (share @ up) + negative * (share @ down)


def through_addition(u: Tensor, v: Tensor, relevance: Tensor) -> tuple[Tensor, Tensor]:
    """Eq. 2 and 10 for u + v: relevance of u and of v, all of one shape (B, ...)."""
    share = _divide(relevance, u + v)
    return normalised(u * share, v * share, relevance)


def through_product(a: Tensor, v: Tensor, relevance: Tensor) -> tuple[Tensor, Tensor]:
    """Eq. 2 and 10 for the matrix product a v: relevance of a (..., Q, T) and of v (..., T, d).

    By Eq. 2 each factor gets as much as came in, so Eq. 10 halves both.
    """
    share = _divide(relevance, a @ v)
    return a * (share @ v.mT) / 2, v * (a.mT @ share) / 2


def normalised(first: Tensor, second: Tensor, incoming: Tensor) -> tuple[Tensor, Tensor]:
    """Eq. 10: both relevances (B, ...) scaled, graph by graph, to sum to what came in.

    `R |sum R| / (|sum R| + |sum R'|) * (sum incoming) / (sum R)`, R' being the other one.
    """
    own, other = _per_graph(first), _per_graph(second)
    scale = _divide(_per_graph(incoming), own.abs() + other.abs())
    return first * _like(own.sign() * scale, first), second * _like(other.sign() * scale, second)


def positive_addition(u: Tensor, v: Tensor, relevance: Tensor) -> tuple[Tensor, Tensor]:
    """Eq. 5 for u + v. Where neither is positive they share in proportion: nothing is lost."""
    up, vp = u.clamp(min=0), v.clamp(min=0)
    none = up + vp <= NEGLIGIBLE
    up, vp = where(none, u, up), where(none, v, vp)
    share = _divide(relevance, up + vp)
    return up * share, vp * share


def positive_product(a: Tensor, v: Tensor, relevance: Tensor) -> tuple[Tensor, Tensor]:
    """Eq. 5 for a v with a not negative: as the weights (all relevance to v), as the input (to a).

    Where no product is positive the negative ones share in proportion: nothing is lost.
    """
    positive, negative = v.clamp(min=0), v.clamp(max=0)
    reached = a @ positive
    share = _divide(relevance, reached)
    rest = _divide(relevance.masked_fill(reached > NEGLIGIBLE, 0.0), a @ negative)
    to_a = a * (share @ positive.mT + rest @ negative.mT)
    return to_a, positive * (a.mT @ share) + negative * (a.mT @ rest)


def through_important_heads(relevance: Tensor, important: Tensor) -> Tensor:
    """Song 2024, section 4.3: only important heads pass relevance (B, H, Q, d) on.

    important (B, K, H): K kinds of heads. Each kind's relevance is scaled as in Eq. 10, so that
    together they sum to what came in. Without an important head nothing passes.
    """
    kinds = relevance[:, None] * important[..., None, None].to(relevance)  # (B, K, H, Q, d)
    sums = kinds.sum((2, 3, 4))
    scale = sums.sign() * _divide(_per_graph(relevance), sums.abs().sum(1))[:, None]
    return (kinds * _like(scale, kinds)).sum(1)


@dataclass(frozen=True)
class Rules:
    """The rules of additions and products, and whether relevance of attention goes further down.

    If so it passes the softmax unchanged, then goes through `q k^T + bias` to queries and keys;
    the structural bias keeps its share.
    """

    addition: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
    product: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
    into_queries_and_keys: bool


CHEFER = Rules(through_addition, through_product, into_queries_and_keys=True)
PLAIN = Rules(positive_addition, positive_product, into_queries_and_keys=False)


def _divide(numerator: Tensor, denominator: Tensor) -> Tensor:
    """The quotient, and zero where the denominator is: what nothing contributed to is dropped."""
    zero = denominator.abs() <= NEGLIGIBLE
    return (numerator / denominator.masked_fill(zero, 1.0)).masked_fill(zero, 0.0)


def _per_graph(x: Tensor) -> Tensor:
    return x.flatten(1).sum(1)


def _like(x: Tensor, other: Tensor) -> Tensor:
    """x with axes of length one added at the end, so that it multiplies `other`."""
    return x.reshape(*x.shape, *(1,) * (other.dim() - x.dim()))
