"""What is recorded of a forward pass, for its ledger and for methods that read attention."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from .operation_rule import OperationRule


@dataclass(frozen=True, eq=False)
class LossyOperation:
    """An operation that loses or creates relevance.

    The input goes only into this operation and the output comes only from it, so that their
    gradients are exactly what this operation passes on and receives.
    """

    name: str
    input: Tensor
    output: Tensor


class DoesNotAddUp(Exception):
    """Relevance and constants do not sum to the output, so the pass has to run again."""


@dataclass(frozen=True, eq=False)
class DeferredShares:
    """Shares of constants that can be computed once the gradient has passed.

    Args:
        leaves: tensors, or edges to them, whose gradients are needed.
        shares: computes the share (B,) of each line of the ledger. It takes the gradients of the
            leaves, the outputs (B, C), the weights (B, C) of the sum over these outputs, and the
            relevance (B, T) of the tokens. It raises DoesNotAddUp if the pass has to run again.
        differentiable: whether the gradients must be differentiable by the weights, which then
            require a gradient.
        give_up: is told why no such gradients could be computed, before the pass runs again.
    """

    leaves: list[Any]
    shares: Callable[[list[Tensor], Tensor, Tensor, Tensor], dict[str, Tensor]]
    differentiable: bool = False
    give_up: Callable[[str], None] = lambda reason: None


@dataclass
class Tape:
    """What `record` collects during a forward pass, in the order of the layers.

    Args:
        all_queries: whether the model computes every row of its last layer instead of only the
            graph token's.
        with_biases: whether bias terms are recorded.
        attention_gradients: whether gradients of attention are available even where a rule holds
            it constant. They flow no further back than that.
        with_operations: whether operations that lose or create relevance are recorded.
        attention: probabilities (B, H, Q, T) of every layer. The last one has Q = 1, the graph
            token's row, unless `all_queries` is set.
        chunks: a wrapped model may compute one attention matrix in several parts. For each entry of
            `attention`, this is the index of the first part of its matrix.
        acting_rules: of a wrapped model, the custom rules for operations that acted.
        reads_class_token: of a wrapped model, whether its output is read at a token that the model
            adds to the nodes of each graph.
        hidden: token states (B, T, D) that enter the first layer and leave each layer.
        biases: every additive parameter as used. Each graph has its own copy (B, 1, D), so that
            each gets its own share.
        deferred_shares: the shares of a wrapped model's biases and of its other constants, which
            are numbers in its code, inputs beside the nodes' features, and signals cut off from the
            gradient.
        operations: every LayerNorm and activation that no rule makes conservative, without its
            bias, and every softmax with a custom rule; `attention` tells what others lose.
    """

    all_queries: bool
    with_biases: bool
    attention_gradients: bool
    with_operations: bool
    attention: list[Tensor] = field(default_factory=list)
    chunks: list[int] = field(default_factory=list)
    acting_rules: set[OperationRule] = field(default_factory=set)
    reads_class_token: bool = False
    hidden: list[Tensor] = field(default_factory=list)
    biases: list[Tensor] = field(default_factory=list)
    deferred_shares: DeferredShares | None = None
    operations: list[LossyOperation] = field(default_factory=list)

    def __repr__(self) -> str:
        """Return how much was recorded, without the values."""
        return f"Tape({len(self.attention)} attention, {len(self.operations)} operations)"
