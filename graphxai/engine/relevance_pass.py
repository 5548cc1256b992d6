"""The pass under the positive rules that is in force, and values whose backward pass is a rule."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from graphxai.rules import positive as rules_of
from graphxai.rules.positive import PositiveRules
from graphxai.runtime.scope import Blocks

BackwardRule = Callable[[Tensor], tuple[Tensor, ...]]


@dataclass(eq=False)
class RelevancePass:
    """One pass under the positive rules.

    Args:
        important (B or 1, K, L, H): the heads that relevance passes through (see
            `rules.positive.through_important_entries`), or None for all.
        reads_attention: whether the relevance of attention is needed.
        attention: the probabilities (B, H, T, T) of every layer, whose "gradient" is their
            relevance. They are leaves if the rules do not go into queries and keys.
        chunks, reads_class_token: as on `rules.conservative.Tape`.
        head: the input (B, D) and the weights (C, D) of the linear map that makes the outputs,
            if there is one.
    """

    rules: PositiveRules
    important: Tensor | None = None
    reads_attention: bool = True
    attention: list[Tensor] = field(default_factory=list)
    chunks: list[int] = field(default_factory=list)
    reads_class_token: bool = False
    head: tuple[Tensor, Tensor] | None = None

    def explained(self, outputs: Tensor, weights: Tensor) -> Tensor:
        """Return f_c = sum_c weights_c outputs_c, (B,), where a relevance of one begins.

        outputs, weights (B, C). If a linear map makes the outputs, it is merged with this sum into
        a map to one number, so that the two classes of a single logit differ.
        """
        f = (outputs * weights.to(outputs)).sum(-1)
        if self.head is None:
            return f
        x, weight = self.head
        row = (weights.to(weight) @ weight)[:, None]  # (B, 1, D)

        def backward(relevance: Tensor) -> tuple[Tensor, ...]:
            below = rules_of.through_linear(x.detach()[:, None], row, relevance[:, None, None])
            return (below[:, 0],)

        return with_backward_rule(f, backward, x)


_passes: Blocks[RelevancePass | None] = Blocks("graphxai_relevance", None)


@contextmanager
def relevance_pass(
    rules: PositiveRules, important: Tensor | None = None, reads_attention: bool = True
) -> Iterator[RelevancePass]:
    """Let models pass relevance back by these rules within the block."""
    state = RelevancePass(rules, important, reads_attention)
    with _passes.block(state):
        yield state


def current_relevance() -> RelevancePass | None:
    """Return the relevance pass of the innermost block in this thread, or None."""
    return _passes.get()


def with_backward_rule(value: Tensor, backward: BackwardRule, *inputs: Tensor) -> Tensor:
    """Return a value whose backward pass gives the inputs relevance, computed by a rule."""
    out: Tensor = _BackwardByRule.apply([value.detach()], backward, *inputs)
    return out


class _BackwardByRule(torch.autograd.Function):
    """Returns a value as it is, and calls a rule in the backward pass."""

    @staticmethod
    def forward(ctx: Any, value: list[Tensor], rule: BackwardRule, *inputs: Tensor) -> Tensor:
        ctx.rule = rule
        return value[0]  # inside a list, so that autograd does not turn it into a view

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, relevance: Tensor) -> tuple[Tensor | None, ...]:
        return (None, None, *ctx.rule(relevance))
