"""How much relevance each operation of a Graphormer creates or loses.

Let y = g(x) be an operation, and dy = d f_c / d y. The relevance `sum y dy` arrives at it, and the
gradient passes `sum x dx` on. The difference is its remainder. From the output back to the tokens
these differences telescope, so what a ledger leaves unexplained is the sum of the remainders,

    f_c - (nodes + graph token + biases + structure) = sum over operations of (y dy - x dx).

Linear maps, additions, and whatever a rule of `conservative` holds constant have none. With the
logits `s = q k^T + b`, attention `A = softmax(s)` and `ds = A (dA - sum_k A_k dA_k)`:

| operation | arrives | is passed on | remainder |
|---|---|---|---|
| softmax | A dA | s ds = ds log A, because ds sums to zero in each row | A dA - ds log A |
| product A v | A dA | A dA to each factor | -A dA |
| product q k^T | (s - b) ds | (s - b) ds to each factor | b ds - ds log A |
| LayerNorm, activation | y dy | x dx | y dy - x dx |

The rule `products` gives each factor half, which leaves no remainder. A softmax under a custom rule
is on the tape with its logits, so that `s ds` is computed as it stands.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from graphxai.runtime.derived_values import DerivedValues

from .conservative import Rules
from .tape import LossyOperation, Tape

Gradients: TypeAlias = Mapping[Tensor | GradientEdge, Tensor]  # of f_c, by tensor or edge


def gradients_of(
    f: Tensor,
    leaves: Sequence[Tensor | GradientEdge],
    differentiable: bool = False,
    again: bool = False,
) -> Gradients:
    """Return the gradients of f (B,) at tensors, or at the tensors that graph edges lead to.

    A gradient is zero if f does not depend on the tensor.

    Args:
        differentiable: whether the gradients have gradients in turn.
        again: whether other gradients of f are computed afterwards.
    """
    wrt: Any = leaves  # PyTorch accepts tensors and edges in one list
    gradients = torch.autograd.grad(
        f.sum(),
        wrt,
        allow_unused=True,
        create_graph=differentiable,
        retain_graph=again or differentiable,
    )

    def zeros_at(leaf: Any) -> Tensor:
        return torch.zeros_like(leaf if isinstance(leaf, Tensor) else leaf.node.variable)

    each = zip(leaves, gradients, strict=True)
    return {leaf: zeros_at(leaf) if gradient is None else gradient for leaf, gradient in each}


def tensors_passed(tape: Tape, rules: Rules) -> list[Tensor]:
    """List the tensors of a pass for which `remainders` needs the gradients."""
    ends = [end for operation in tape.operations for end in (operation.input, operation.output)]
    return ends if rules.attention else [*tape.attention, *ends]


def remainders(
    tape: Tape, rules: Rules, gradients: Gradients, structure: Tensor | None
) -> dict[str, Tensor]:
    """Compute the remainders (B,) by operation, summed over layers.

    They follow from the table at the top of this file. The result is empty if no operation leaves
    a remainder.

    Args:
        tape: recorded with `operations=True` under `rules`.
        gradients: the gradients of the tensors that `tensors_passed` lists.
        structure: the share (B,) of the structural bias, `b ds`. It is None if attention is
            constant, where the share is not needed.
    """
    left: dict[str, Tensor] = {}
    if structure is not None and not rules.attention:
        left = _of_attention(tape, rules, gradients, structure)
    for operation in tape.operations:
        if operation.name != "softmax":
            arriving, passed_on = _flow_through(operation, gradients)
            before = left.get(operation.name)
            remainder = arriving - passed_on
            left[operation.name] = remainder if before is None else before + remainder
    return left


def _of_attention(
    tape: Tape, rules: Rules, gradients: Gradients, structure: Tensor
) -> dict[str, Tensor]:
    """Compute the remainders (B,) of the softmax and the products, over all layers and heads."""
    flows = [
        _flow_through(operation, gradients)
        for operation in tape.operations
        if operation.name == "softmax"
    ]
    for attention in () if flows else tape.attention:
        to_logits, arriving = through_softmax(attention.detach(), gradients[attention])
        flows.append((arriving, passed_to_logits(attention.detach(), to_logits)))
    arriving, passed_on = torch.stack([torch.stack(flow) for flow in flows]).sum(0)  # (B,) each
    left = {"softmax": arriving - passed_on}
    if not rules.products:
        left["products"] = structure - arriving - passed_on
    return left


def _flow_through(operation: LossyOperation, gradients: Gradients) -> tuple[Tensor, Tensor]:
    """Compute the relevance (B,) that arrives at an operation, and what the operation passes on."""
    x, y = operation.input, operation.output
    passed_on = x.detach() * gradients[x]
    if operation.name == "softmax":
        passed_on = passed_on.masked_fill(x.isinf(), 0.0)  # the keys of padding
    return _total(y.detach() * gradients[y]), _total(passed_on)


def through_softmax(attention: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """Pass the gradient dA at attention A back through the softmax.

    Returns:
        The gradient `ds` (B, H, Q, T) at the logits, which is zero where A is zero, and `sum A dA`
        (B,).
    """
    share = attention * gradient
    to_logits = torch.addcmul(share, attention, share.sum(-1, keepdim=True), value=-1)
    return to_logits, _total(share)


def passed_to_logits(attention: Tensor, to_logits: Tensor) -> Tensor:
    """Compute `sum ds log A` (B,) from attention A and the gradient ds at its logits."""
    logs = attention.clamp(min=torch.finfo(attention.dtype).tiny).log_()
    return _total(logs.mul_(to_logits))


def _total(x: Tensor) -> Tensor:
    """Sum over all axes except the first, which gives (B,)."""
    return x.flatten(1).sum(-1)


# -- what a forward and a backward pass yield ------------------------------------------------------


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


@dataclass(eq=False)
class RunningShares:
    """What an explicit backward pass has collected so far, see `models.graphormer.backward`.

    Args:
        prepared: the weights in the form that the pass needs.
        biases: the share (B,) of the additive parameters.
        structure: the gradient (B, H, T, T) at the structural bias, or None if it is not requested.
        remainders: the relevance that each operation creates or loses, (B,) by name.
    """

    rules: Rules
    prepared: DerivedValues
    biases: Tensor  # (B,)
    structure: Tensor | None  # (B, H, T, T)
    remainders: dict[str, Tensor] = field(default_factory=dict)

    def add_bias(self, bias: Tensor, gradient: Tensor) -> None:
        """Add `sum b df/db` of bias (D,) or (B, D), at which the gradient is (B, Q, D)."""
        summed = gradient.sum(1) if gradient.shape[1] > 1 else gradient[:, 0]  # (B, D)
        self.biases += torch.linalg.vecdot(summed, bias)  # a row's bits do not depend on others

    def keep(self, graphs: int) -> None:
        """Forget the shares of graphs beyond the first few, which were added as padding."""
        self.biases = self.biases[:graphs]
        self.remainders = {name: shares[:graphs] for name, shares in self.remainders.items()}

    def add_remainder(self, name: str, remainder: Tensor) -> None:
        """Add the remainder (B,) of one operation."""
        before = self.remainders.get(name)
        self.remainders[name] = remainder if before is None else before + remainder

    def shared(self, gradient: Tensor) -> Tensor:
        """Return the gradient at one factor of a product: half of it under the rule `products`."""
        return gradient.div_(2) if self.rules.products else gradient

    def to_logits(self, attention: Tensor, gradient: Tensor) -> Tensor:
        """Pass the gradient at attention (B, H, T, T) back to its logits."""
        to_logits, arriving = through_softmax(attention, gradient)
        if self.structure is not None:
            self.structure[:, :, : attention.shape[2]] += to_logits[: len(self.structure)]
        if not self.rules.attention:
            passed_on = passed_to_logits(attention, to_logits)
            self.add_remainder("softmax", arriving - passed_on)
            if not self.rules.products:  # the share of the structure is added at the end
                self.add_remainder("products", -arriving - passed_on)
        return to_logits
