"""What a pass under the positive rules leaves behind, and how a rule becomes a backward pass."""

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

    important (B or 1, K, L, H): through which heads relevance passes (see
    `positive_rules.through_important_heads`); None: all. reads_attention: whether anybody asks for
    its relevance. attention: probabilities (B, H, Q, T) of every layer, whose "gradient" is their
    relevance; with rules that do not go into queries and keys they are leaves. unknown: operations
    without a rule, with the path of their module.
    """

    rules: Rules
    important: Tensor | None = None
    reads_attention: bool = True
    attention: list[Tensor] = field(default_factory=list)
    unknown: set[tuple[str, str]] = field(default_factory=set)
    affine: WeakTensorKeyDictionary = field(default_factory=WeakTensorKeyDictionary)

    def explained(self, outputs: Tensor, weights: Tensor) -> Tensor:
        """f_c = sum_c weights_c outputs_c, (B,), where a relevance of one begins.

        outputs, weights (B, C). If a linear map made the outputs, it and f_c are one map to one
        number, so that the two classes of a single logit differ.
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
        """One warning that names the operations without a rule."""
        if self.unknown:
            lines = sorted(f"{place or name}: {what}" for place, what in self.unknown)
            warnings.warn(
                f"{name} has parts that the positive rules do not know; there every input got"
                f" relevance in proportion to gradient x input: {'; '.join(lines)}.",
                stacklevel=3,
            )


def handed(value: Tensor, hand: Hand, *inputs: Tensor) -> Tensor:
    """value, whose backward pass gives the inputs the relevance that `hand` makes of its own."""
    out: Tensor = _Handed.apply([value.detach()], hand, *inputs)
    return out


def made_here(value: Tensor) -> bool:
    """Whether `handed` made the tensor."""
    return getattr(value.grad_fn, "_forward_cls", None) is _Handed


class _Handed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: list[Tensor], hand: Hand, *inputs: Tensor) -> Tensor:
        ctx.hand = hand
        return value[0]  # in a list it is no input, of which autograd would make a view

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, relevance: Tensor) -> tuple[Tensor | None, ...]:
        return (None, None, *ctx.hand(relevance))
