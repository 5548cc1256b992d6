"""What a forward and a backward pass yield: outputs, gradients and the shares of a ledger."""

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor


@dataclass(frozen=True, eq=False)
class RelevanceShares:
    """The gradients and shares that a backward pass from f_c gives, for each graph.

    Args:
        tokens: the gradient at the tokens, (B, T, D).
        biases: the share `sum b df/db` (B,) of all additive parameters.
        structure: the gradient at the structural bias, (B, H, T, T), summed over the layers. It is
            None if attention is constant and the gradient was not requested.
        remainders: by the name of each operation, what it creates or loses (B,), see
            `rules.remainders`.
        others: by name, the shares (B,) of further constants, see `rules.conservative.Tape`.
        inputs: by name, the gradient at each leaf of a wrapped batch.
    """

    tokens: Tensor
    biases: Tensor
    structure: Tensor | None
    remainders: dict[str, Tensor]
    others: dict[str, Tensor] = field(default_factory=dict)
    inputs: dict[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class PassWithGradient:
    """A forward pass, and the backward pass that belongs to it.

    Args:
        outputs: the outputs (B, num_outputs).
        back: computes the shares of f_c, given its weights (B, num_outputs) for the outputs.
    """

    outputs: Tensor
    back: Callable[[Tensor], RelevanceShares]


def share_of_structure(bias: Tensor, gradient: Tensor) -> Tensor:
    """Compute the share `sum b df/db` (B,) of the structural bias b from its gradient.

    Bias and gradient are both (B, H, T, T).
    """
    return (bias * gradient).masked_fill_(bias.isinf(), 0.0).flatten(1).sum(1)
