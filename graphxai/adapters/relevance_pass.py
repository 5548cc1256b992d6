"""What a pass under the positive rules records, and how a rule becomes a backward pass."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from graphxai.rules.positive import Rules, through_linear

Hand = Callable[[Tensor], tuple[Tensor, ...]]


@dataclass(eq=False)
class RelevancePass:
    """One pass under the positive rules.

    important (B or 1, K, L, H): the heads that relevance passes through (see
    `rules.positive.through_important_heads`); None: all. reads_attention: whether the relevance of
    attention is needed. attention: probabilities (B, H, Q, T) of every layer, whose "gradient" is
    their relevance; with rules that do not go into queries and keys they are leaves. unknown:
    operations without a rule, with the path of their module.
    """

    rules: Rules
    important: Tensor | None = None
    reads_attention: bool = True
    attention: list[Tensor] = field(default_factory=list)
    unknown: set[tuple[str, str]] = field(default_factory=set)
    affine: WeakTensorKeyDictionary = field(default_factory=WeakTensorKeyDictionary)

    def explained(self, outputs: Tensor, weights: Tensor) -> Tensor:
        """f_c = sum_c weights_c outputs_c, (B,), which starts with a relevance of one.

        outputs, weights (B, C). If the outputs come from a linear map, it is merged with f_c into
        one map to one number, so that the two classes of a single logit differ.
        """
        weights = weights.to(outputs)
        f = (outputs * weights).sum(-1)
        made = self.affine.get(outputs)
        if made is None or made[0].shape[:-1] != outputs.shape[:-1]:
            return f
        x, weight = made
        row = (weights.to(weight) @ weight)[:, None]  # (B, 1, D)

        def hand(relevance: Tensor) -> tuple[Tensor, ...]:
            return (through_linear(x.detach()[:, None], row, relevance[:, None, None])[:, 0],)

        return handed(f, hand, x)

    def warn(self, name: str) -> None:
        """Warn once about operations without a rule."""
        if self.unknown:
            lines = sorted(f"{place or name}: {what}" for place, what in self.unknown)
            warnings.warn(
                f"{name} has parts that no positive rule covers; their inputs got relevance in"
                f" proportion to gradient x input: {'; '.join(lines)}.",
                stacklevel=3,
            )


def handed(value: Tensor, hand: Hand, *inputs: Tensor) -> Tensor:
    """`value` with a backward pass that gives the inputs the relevance computed by `hand`."""
    out: Tensor = _Handed.apply([value.detach()], hand, *inputs)
    return out


def made_here(value: Tensor) -> bool:
    """Whether `handed` made the tensor."""
    return getattr(value.grad_fn, "_forward_cls", None) is _Handed


class _Handed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: list[Tensor], hand: Hand, *inputs: Tensor) -> Tensor:
        ctx.hand = hand
        return value[0]  # inside a list, so that autograd does not turn it into a view

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, relevance: Tensor) -> tuple[Tensor | None, ...]:
        return (None, None, *ctx.hand(relevance))
