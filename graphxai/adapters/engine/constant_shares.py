"""The shares of constants in an output: biases, numbers in the code, other inputs, cut signals.

The share of a constant c that is added to a signal is `sum c df/dc`. There are two ways to it:

* `constant_derivatives` differentiates along all constants of one line of the ledger. It works for
  every network.
* `ConstantShares` is faster and serves most networks. On its way from the outputs to the nodes, the
  gradient passes all constants. It only remains to tell which graph each row of the gradient
  belongs to. In a batch of one graph that is clear. Otherwise the node ids of the recorded pass
  show it.

With attention, scales and ratios held constant an affine network returns `J x + c`, and relevance
and shares have to add up to it. That sum is compared in every batch.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..layout import NodeLayout
from .constant_additions import ConstantAdditions, GraphsAlongAxis
from .ledger_lines import BIASES
from .operation_kind import out_of_place
from .replay import Replay, TensorOf
from .trace import Op, Ref, is_real, refs_in
from .vocabulary import ADDITIONS, ADDITIVE, PLUS_PRODUCT

SIGN = {
    ("sub", 1): -1,
    ("rsub", 0): -1,
}  # the constant at this place of the operation is subtracted
ROUNDING = 1e4  # machine epsilons of the terms' size; a larger difference is no rounding


class ConstantShares:
    """Collects the share of each line in the outputs of a pass, from the gradient of the outputs.

    Args:
        graphs: for each operation that adds constants, the graphs of the rows of its result.
    """

    def __init__(
        self,
        additions: ConstantAdditions,
        graphs: Mapping[int, GraphsAlongAxis | None],
        layout: NodeLayout,
    ) -> None:
        self.additions, self.layout = additions, layout
        self._graphs = graphs
        self._shares: dict[str, Tensor] = {}  # (B,) by line

    def terms(self, op: Op, tensor_of: TensorOf) -> list[tuple[str, Any]]:
        """Return the constants that an operation adds, each with its line."""
        terms = []
        for line, refs in self.additions.added[op.number].items():
            taken = self.additions.plan.taken[op.number]
            # other than biases, most constants are zeros, as in padding
            if line == BIASES or not refs or any(bool(tensor_of(ref).any()) for ref in refs):
                terms.append((line, _constant(op, refs, taken, tensor_of)))
        return terms

    def collect_from(self, op: Op, out: Tensor, terms: list[tuple[str, Any]]) -> bool:
        """Collect shares when the gradient reaches a result.

        Returns False if the graphs of the result's rows are not known.
        """
        if (rows := self._graphs[op.number]) is None:
            return False

        def collect(gradient: Tensor) -> None:
            for line, constant in terms:
                self._add(line, _sum_by_rows(gradient, constant, rows.axis), rows.graphs)

        out.register_hook(collect)
        return True

    def _add(self, line: str, rows: Tensor, graphs: Tensor | None) -> None:
        """Add the shares (n,) of rows to those of a line."""
        if graphs is None:
            share = rows.sum()[None]
        else:
            share = rows.new_zeros(len(self.layout.mask)).index_add(0, graphs, rows)
        self._shares[line] = self._shares[line] + share if line in self._shares else share

    def of_lines(self, inputs: Mapping[str, tuple[Tensor, Tensor | None]]) -> dict[str, Tensor]:
        """Return the share (B,) of each line, after the gradient has passed.

        Args:
            inputs: for the line of each input beside the nodes, its relevance and the graph of
                each of its rows.
        """
        for line, (relevance, graphs) in inputs.items():
            rows = relevance.view(-1) if relevance.dim() < 2 else relevance.flatten(1).sum(1)
            self._add(line, rows, graphs)
        return self._shares


def replay_with_shares(shares: ConstantShares, inputs: Mapping[int, Tensor]) -> Replay | None:
    """Run a recorded pass again from `inputs` by slot, and collect shares from its gradient.

    Returns None if the gradient does not reach all constants, or if the graphs of some rows are
    not known.
    """
    plan = shares.additions.plan
    replayed = Replay(plan)
    for slot, tensor in inputs.items():
        replayed.begin(slot, tensor)
    for op in plan.ops:
        adds = op.number in shares.additions.added
        terms = shares.terms(op, replayed.value) if adds else []
        out = replayed.run(op)
        if not terms:
            continue
        first = out[0] if isinstance(out, tuple | list) else out
        if not first.requires_grad or not shares.collect_from(op, first, terms):
            return None
    return replayed


def adds_up(
    outputs: Tensor, weights: Tensor, relevance: Tensor, shares: Mapping[str, Tensor]
) -> bool:
    """Whether relevance (B, T) and shares (B,) sum to the weighted outputs (B, C)."""
    total = (outputs * weights).sum(-1)
    rest, size = total - relevance.sum(-1), total.abs() + relevance.abs().sum(-1)
    for share in shares.values():
        rest, size = rest - share, size + share.abs()
    eps = max(torch.finfo(tensor.dtype).eps for tensor in (outputs, relevance))
    return not bool((rest.abs() > ROUNDING * eps * size).any())


def _sum_by_rows(gradient: Tensor, constant: Any, axis: int) -> Tensor:
    """Sum `constant gradient` over all axes but one."""
    channels = isinstance(constant, Tensor) and constant.dim() == 1 and gradient.dim() > 1
    if channels and axis < gradient.dim() - 1 and gradient.shape[-1:] == constant.shape:
        product = gradient @ constant.to(gradient)
    else:
        product = gradient * constant
    return product if product.dim() < 2 else product.movedim(axis, 0).flatten(1).sum(1)


def _constant(
    op: Op,
    constants: list[Ref],
    taken: frozenset[int],
    tensor_of: TensorOf,
) -> Any:
    """Return what an operation makes of these constants alone. One row may stand for all.

    Args:
        constants: the constants that count, none if it is a number that counts.
        taken: the signals of the operation, which count as zero.
    """

    def plain(ref: Ref) -> Tensor:
        tensor = tensor_of(ref)
        if isinstance(tensor, nn.Parameter):
            return tensor.detach()
        # masks of minus infinity add nothing
        return tensor.detach().nan_to_num(torch.nan, 0.0, 0.0)

    if op.name == "native_layer_norm" or (op.name in PLUS_PRODUCT and not op.kwargs):
        return plain(constants[0])
    if op.name in ADDITIONS and not op.kwargs:
        if not constants:
            return -op.args[1] if op.name == "sub" else op.args[1]
        if len(constants) == 1:
            sign = SIGN.get((op.name, op.args.index(constants[0])), 1)
            return sign * plain(constants[0])
    added = [ref for k in ADDITIVE.get(op.name, ()) for ref in refs_in(op.args[k : k + 1])]

    def counted(ref: Ref) -> Tensor:
        """Return a constant that counts as it is, and zeros for others that are added."""
        if ref in constants:
            return plain(ref)
        tensor = tensor_of(ref).detach()
        if ref.value in taken and "norm" in op.name:
            return tensor.new_zeros(1, *tensor.shape[1:])
        is_zero = ref.value in taken or (ref in added and is_real(tensor))
        return torch.zeros_like(tensor) if is_zero else tensor

    args, kwargs = op.with_tensors(counted)
    if op.name in ADDITIONS and type(op.args[1]) is not Ref and constants:
        args[1] = 0
    func: Callable[..., Any] = out_of_place(op.func) if op.in_place else op.func
    result = func(*args, **kwargs)
    return result[0] if isinstance(result, tuple | list) else result
