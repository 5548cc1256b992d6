"""The shares of constants in a pass by hooks, and the proof that the pass had said enough.

Hooks see what autograd knows. They do not see what flows past the gradient, and no numbers in the
code. So a pass has to prove that nothing is missing.

* Under the affine rules of LRP the output is an affine function of the inputs. Relevance and the
  shares of the biases have to sum to it, in every pass.
* Under other rules there is no such sum. One pass of each plan is compared with a recorded pass of
  the same input, which lists everything that is added (`hooked_pass`). Later passes have the same
  operations on the same values, because their plan fits.

The biases of all graphs together have the share `sum b df/db`. Under the affine rules, what each
graph has of it is what relevance leaves of the graph's output. Otherwise it follows from a second
backward pass: the sum is linear in the weights of the outputs, so that its derivative by the
weights of a graph, times these, is the share of that graph.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from graphxai.rules.conservative import DeferredShares, DoesNotAddUp, Rules

from .autograd_graph import Node, Opaque
from .ledger_lines import BIASES
from .pass_request import PassRequest

AFFINE = Rules(attention=True, layernorm=True, activation="ratio")
TOLERANCE = 1e3  # machine epsilons of the size of all terms: more than that is no rounding


class Addition(NamedTuple):
    """A parameter that is added to a signal: the places of its node and of a BatchNorm's."""

    parameter: int
    batch_norm: int | None = None


class AddedConstants(NamedTuple):
    """What a pass adds to signals.

    Args:
        constants: the values of biases, for a BatchNorm with its shift by the mean.
        parameters: the parameters whose gradients they are multiplied by.
        inputs: the values of the graph's other attributes, by name.
        edges: the edges to these attributes.
    """

    constants: list[Tensor]
    parameters: list[Tensor]
    inputs: dict[str, Tensor]
    edges: list[GradientEdge]

    @property
    def leaves(self) -> list[Any]:
        """The leaves whose gradients the shares need: those of the inputs come first."""
        return [*self.edges, *self.parameters]

    def shares_of_inputs(self, request: PassRequest, gradients: list[Tensor]) -> dict[str, Tensor]:
        """Return the share (B,) of each input, by name."""
        shares: dict[str, Tensor] = {}
        for (name, value), gradient in zip(self.inputs.items(), gradients, strict=False):
            by_entry = value * gradient.detach()
            by_row = by_entry.flatten(1).sum(1) if by_entry.dim() > 1 else by_entry
            graphs = request.graphs_of(name)
            if graphs is None:
                graphs = torch.zeros(len(by_row), dtype=torch.long, device=by_row.device)
            shares[name] = by_row.new_zeros(len(request.layout.mask)).index_add(0, graphs, by_row)
        return shares

    def share_of_biases(self, gradients: list[Tensor], like: Tensor) -> Tensor:
        """Return the share of the biases of all graphs together.

        Args:
            like: a tensor of the type that the share has without biases.
        """
        of_biases = [
            (constant * gradient).sum()
            for constant, gradient in zip(
                self.constants, gradients[len(self.edges) :], strict=False
            )
        ]
        return torch.stack(of_biases).sum() if of_biases else torch.zeros_like(like).sum()


def shift_of_batch_norm(bias: Tensor, node: Node) -> Tensor:
    """Return what a BatchNorm with running statistics adds to its scaled input, (C,)."""
    mean, variance = node._saved_running_mean, node._saved_running_var
    shift: Tensor = mean * node._saved_weight.detach() * (variance + node._saved_eps).rsqrt()
    return bias - shift


# -- under the affine rules ------------------------------------------------------------------------


def shares_by_sum(
    request: PassRequest, added: AddedConstants, note_failure: Callable[[Opaque], None]
) -> DeferredShares:
    """Return the shares of an affine pass: what relevance leaves of each output is the biases'."""

    def shares(
        gradients: list[Tensor], outputs: Tensor, weights: Tensor, relevance: Tensor
    ) -> dict[str, Tensor]:
        explained = (outputs * weights).sum(-1)  # (B,)
        lines = added.shares_of_inputs(request, gradients)
        left = explained - relevance.sum(-1) - sum(lines.values(), torch.zeros_like(explained))
        total = added.share_of_biases(gradients, left)
        size = explained.abs().sum() + relevance.abs().sum() + left.abs().sum()
        unexplained = left.sum() - total
        if not bool(unexplained.abs() <= _rounding(outputs, relevance) * size):
            why = Opaque("relevance and biases do not sum to the output", lacks_constants=True)
            note_failure(why)
            raise DoesNotAddUp
        return {BIASES: left - unexplained / len(left)} | _nonzero(lines)

    return DeferredShares(added.leaves, shares)


# -- under all other rules -------------------------------------------------------------------------


class ExplainedPass(NamedTuple):
    """What a pass says by hooks, or by a recording, to be compared with the other.

    Args:
        gradient: that of the explained outputs by the rows of the nodes, (n, D) or (B, S, D).
        relevance: that of the tokens, (B, T).
        shares: the share (B,) of each line of the ledger.
        unseen: the constants that the pass adds and autograd does not know, each in words.
    """

    gradient: Tensor
    relevance: Tensor
    shares: dict[str, Tensor]
    unseen: tuple[str, ...] = ()


def shares_by_gradient(request: PassRequest, added: AddedConstants, rules: Rules) -> DeferredShares:
    """Return the shares of a pass under any rules, divided among the graphs by their gradient."""
    several = len(request.layout.mask) > 1

    def shares(
        gradients: list[Tensor], outputs: Tensor, weights: Tensor, relevance: Tensor
    ) -> dict[str, Tensor]:
        explained = (outputs * weights.detach()).sum(-1)  # (B,)
        lines = added.shares_of_inputs(request, gradients)
        total = added.share_of_biases(gradients, explained)
        of_biases = _divided(total, weights) if several else total.detach()[None]
        return {BIASES: of_biases} | _nonzero(lines)

    def give_up(reason: str) -> None:
        request.memory.give_up(rules, Opaque(reason))

    return DeferredShares(added.leaves, shares, several, give_up)


def _divided(total: Tensor, weights: Tensor) -> Tensor:
    """Divide a sum over all graphs, which is linear in their weights (B, C), among them: (B,)."""
    if not total.requires_grad:  # there are no biases
        return torch.zeros_like(weights[:, 0]).detach() + total / len(weights)
    (by_weight,) = torch.autograd.grad(total, weights, materialize_grads=True)
    return (by_weight * weights).sum(-1).detach()


def difference(
    hooked: ExplainedPass, recorded: ExplainedPass, weighted_outputs: Tensor
) -> str | None:
    """Say in what a pass by hooks and a recorded pass differ, or return None if they agree.

    Args:
        weighted_outputs: (B, C).
    """
    if recorded.unseen:
        return f"a constant that autograd does not know ({recorded.unseen[0]})"
    gradient = recorded.gradient
    limit = TOLERANCE * torch.finfo(gradient.dtype).eps * gradient.abs().max()
    if not bool(((hooked.gradient - gradient).abs() <= limit).all()):
        return "a gradient that differs from that of a recorded pass"
    size = weighted_outputs.sum(-1).abs().sum() + hooked.relevance.abs().sum()
    allowed = _rounding(weighted_outputs, hooked.relevance) * size
    for line in {**hooked.shares, **recorded.shares}:
        zero = torch.zeros_like(hooked.shares[BIASES])
        gap = hooked.shares.get(line, zero) - recorded.shares.get(line, zero)
        if not bool((gap.abs() <= allowed).all()):
            return f"a share of {line} that differs from that of a recorded pass"
    return None


def _rounding(*tensors: Tensor) -> float:
    """Return the relative error that counts as rounding."""
    return TOLERANCE * max(torch.finfo(tensor.dtype).eps for tensor in tensors)


def _nonzero(lines: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: line for name, line in lines.items() if bool(line.any())}
