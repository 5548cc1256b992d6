"""The shares of constants in an output: biases, numbers in the code, other inputs, cut signals.

The share of a constant c that is added to a signal is `sum c df/dc`. There are two ways to it:

* `share_by_derivative` differentiates along all constants of one line of the ledger. It works for
  every network.
* `ConstantShares` is faster and serves most networks. On its way from the outputs to the nodes, the
  gradient passes all constants. It only remains to tell which graph each row of the gradient
  belongs to. In a batch of one graph that is clear. Otherwise the node ids of the recorded pass
  show it, and `GraphAxis` notes where it can be read in other batches.

In other batches nobody compares the ids again, but the sum: with attention, scales and ratios held
constant an affine network returns `J x + c`, and relevance and shares have to add up to it.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor, nn

from ..layout import NodeLayout
from .node_ids import NONE, NodeIds
from .replay import (
    CONSERVATIVE,
    Replay,
    ReplayPlan,
    TensorOf,
    by_rule,
    custom_rule,
    out_of_place,
    replay,
    rule_for,
)
from .trace import WEIGHTS, Op, Ref, Trace, fill_refs, is_real, pair_refs, refs_in
from .vocabulary import (
    ADDITIONS,
    ADDITIVE,
    FILLS,
    LINEAR_IN,
    MATRIX_PRODUCTS,
    PLUS_PRODUCT,
    RATIO,
    SAME,
    SUMMED,
)

BIASES, CONSTANTS, CUT_OFF = "biases", "constants", "cut off"  # lines of the ledger
STRUCTURE = {"edge_index", "batch", "ptr"}  # indices, which choose among parameters
_forward_mode = threading.Lock()  # all threads share one level of forward differentiation

BY_ENTRY = RATIO | {"relu", "leaky_relu"}  # they are x times a factor
LINEAR = (SAME | MATRIX_PRODUCTS | {
    "add", "sub", "rsub", "mul", "div", "neg", "sum", "mean", "scatter_add", "index_add",
}) - {"masked_scatter", "_addmm_activation", "constant_pad_nd", "scatter", "sort"}  # fmt: skip
ZEROS = {"zeros", "new_zeros", "zeros_like", "zero"}
SIGN = {
    ("sub", 1): -1,
    ("rsub", 0): -1,
}  # the constant at this place of the operation is subtracted
ROUNDING = 1e4  # machine epsilons of the terms' size; a larger difference is no rounding


# -- which line a constant belongs to --------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class LedgerLines:
    """Says to which line of the ledger each constant belongs.

    Args:
        names: those of inputs by bit.
    """

    trace: Trace
    names: Mapping[int, str]
    _line_of: dict[int, str] = field(default_factory=dict)

    def of(self, value: int) -> str:
        """Return the line of a value that is added to a signal."""
        if value not in self._line_of:
            self._line_of[value] = self._find_line(value)
        return self._line_of[value]

    def _find_line(self, value: int) -> str:
        depends, live = self.trace.flow.depends[value], self.trace.flow.live[value]
        if depends & 1:
            return BIASES if live & 1 else CUT_OFF
        inputs = [name for bit, name in self.names.items() if depends & bit]
        features = [name for name in inputs if name not in STRUCTURE]
        if features or depends & WEIGHTS:
            return " and ".join(features) or BIASES
        return " and ".join(inputs) or CONSTANTS

    def of_numbers(self) -> str:
        """Return the line of numbers in the model's code."""
        return CONSTANTS if self.trace.first_exit is None else CUT_OFF

    def added_by(self, plan: ReplayPlan, op: Op) -> Iterator[tuple[str, Ref | None]]:
        """Yield the line and the `Ref` of each constant that an operation adds to signals.

        A number among the arguments is a constant, too, and has None in place of a `Ref`.
        """
        for place in _places(plan, op):
            for ref in refs_in(op.args[place : place + 1]):
                if not plan.signal[ref.value] and is_real(self.trace.memory.tensors[ref.slot]):
                    yield self.of(ref.value), ref
        numbers = (a for a in op.args[1:] if isinstance(a, int | float) and not isinstance(a, bool))
        adds_number = op.name in FILLS | ADDITIONS | {"scatter"} and any(numbers)
        if adds_number or (op.name == "_log_softmax" and plan.rules.attention):
            yield self.of_numbers(), None


def _places(plan: ReplayPlan, op: Op) -> tuple[int, ...]:
    """Return the places of arguments that are added. A shift of a softmax's argument cancels."""
    return () if op.number in plan.roles.shifts else ADDITIVE.get(op.name, ())


def modules_by_line(plan: ReplayPlan, lines: LedgerLines) -> dict[str, set[str]]:
    """Return the lines whose constants a pass adds, each with the modules that add them."""
    modules: dict[str, set[str]] = {}
    for op in plan.ops:
        for line, _ in lines.added_by(plan, op):
            modules.setdefault(line, set()).add(op.path)
    return modules


# -- in forward mode -------------------------------------------------------------------------------


def share_by_derivative(
    plan: ReplayPlan, inputs: Mapping[int, Tensor], line: str, lines: LedgerLines
) -> Tensor:
    """Return the directional derivative of the output along the constants of one line."""
    with torch.no_grad(), _forward_mode, forward_ad.dual_level():
        signals = {}
        for slot, bit in plan.trace.inputs.items():
            tensor = inputs.get(slot, plan.trace.memory.tensors[slot]).detach()
            if is_real(tensor):
                in_line = bit != 1 and lines.names.get(bit) == line
                tangent = tensor if in_line else torch.zeros_like(tensor)
                signals[slot] = forward_ad.make_dual(tensor, tangent)
        return _tangent(
            replay(plan, signals, run_op=_ConstantDerivative(plan, line, lines)).output()
        ).clone()


class _ConstantDerivative:
    """Runs operations with a tangent for each constant of one line: the constant itself."""

    def __init__(self, plan: ReplayPlan, line: str, lines: LedgerLines) -> None:
        self.plan, self.line, self.lines = plan, line, lines
        self.counts_numbers = lines.of_numbers() == line
        self.passing = {op.number for op in plan.passing}
        self.with_signal: set[int] = set()  # storages of constants to which signals are written

    def __call__(self, op: Op, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Run an operation."""
        if op.number in self.passing or self._writes_to_signal(op):
            if self._fills(op):
                return self._filled(op, args, kwargs)
            self._put_constants(op, args)
        if op.name in SUMMED:
            _fill_tangents(args, SUMMED[op.name], op.in_place)
        rule = rule_for(self.plan, op, along=True)
        if op.name in LINEAR_IN and not (rule or op.in_place or kwargs):
            return _linear(op, args)
        out = by_rule(op, args, kwargs, rule)
        if op.name == "_log_softmax" and rule and self.counts_numbers:
            constant = (out - args[0]).detach()  # log-probabilities are x and a constant
            out = out + _along_itself(constant) - constant
        return out

    def _fills(self, op: Op) -> bool:
        """Whether an operation puts numbers among a signal's entries, or adds a number to it."""
        if not op.args or type(op.args[0]) is not Ref or not self.plan.signal[op.args[0].value]:
            return False
        if op.name in ADDITIONS:
            return type(op.args[1]) is not Ref
        return op.name in FILLS or (op.name == "scatter" and type(op.args[3]) is not Ref)

    def _filled(self, op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> Tensor:
        """Run an operation that puts numbers, which are constants, among the signal's entries.

        It is affine, `y = J x + c`, and its slope J is known, so that the constant is `y - J x`.
        """
        x, tangent = forward_ad.unpack_dual(args[0])
        rest = x if tangent is None else x - tangent
        func = out_of_place(op.func) if op.in_place else op.func
        plain = [forward_ad.unpack_dual(a).primal if isinstance(a, Tensor) else a for a in args]
        out, slope = forward_ad.unpack_dual(
            func(forward_ad.make_dual(x, rest), *plain[1:], **kwargs)
        )
        share = out if slope is None else out - slope
        if not self.counts_numbers:
            share = torch.zeros_like(out) if slope is None else _tangent(func(*args, **kwargs))
        dual = forward_ad.make_dual(out, _of_finite(out, share))
        return args[0].copy_(dual) if op.in_place else dual

    def _put_constants(self, op: Op, args: list[Any]) -> None:
        """Give the constants among the arguments of an operation their tangents."""
        places = _places(self.plan, op)
        if op.name in PLUS_PRODUCT and self._adds_a_product(op):
            places = (1,)  # the product is the constant
        for k in places:
            if k < len(args):
                target = args[k]
                duals = {
                    ref: self._constant(ref, tensor)
                    for ref, tensor in pair_refs(op.args[k], target)
                }
                args[k] = fill_refs(op.args[k], target, duals.__getitem__)
                if k == 0 and op.in_place and args[0] is not target:
                    args[0] = target
                    self._fill_with_constants(op.args[0], target)

    def _adds_a_product(self, op: Op) -> bool:
        """Whether a product of constants is added to a signal."""
        term, *factors = (self.plan.signal[arg.value] for arg in op.args[:3])
        return bool(term) and not any(factors)

    def _constant(self, ref: Ref, tensor: Tensor) -> Tensor:
        """Return what is added to a signal. A constant of the line is its own tangent."""
        if not is_real(tensor) or self.plan.signal[ref.value]:
            return tensor
        return _along_itself(tensor) if self.lines.of(ref.value) == self.line else tensor

    def _fill_with_constants(self, ref: Ref, target: Tensor) -> None:
        """Add tangents for every view of a storage when a signal is first written to it."""
        storage = self.plan.trace.memory.storage[ref.slot]
        if storage not in self.with_signal:
            self.with_signal.add(storage)
            whole = target if target._base is None else target._base
            whole.copy_(_along_itself(whole.clone()))

    def _writes_to_signal(self, op: Op) -> bool:
        """Whether an operation writes to a tensor that holds a signal already."""
        return op.in_place and self.plan.trace.memory.storage[op.args[0].slot] in self.with_signal


def _fill_tangents(args: list[Any], count: int, in_place: bool) -> None:
    """Give zeros as tangents to the first arguments, if any argument has a tangent.

    Without them PyTorch computes the shape of a sum in Python, which takes ten times as long.
    """
    with_tangent = _with_tangent(args)
    for k in range(count) if with_tangent else ():
        if k not in with_tangent and not (in_place and k == 0) and _is_real_tensor(args[k]):
            value = args[k].contiguous()  # an expanded tensor can have no tangent
            args[k] = forward_ad.make_dual(value, torch.zeros_like(value))


def _linear(op: Op, args: list[Any]) -> Tensor:
    """Run a product or quotient, in two calls if it is linear in its only argument with a tangent.

    That avoids the zeros that PyTorch would make for the other arguments.
    """
    with_tangent = _with_tangent(args)
    if len(with_tangent) != 1 or not with_tangent <= LINEAR_IN[op.name]:
        return op.func(*args)
    (k,) = with_tangent
    value, tangent = forward_ad.unpack_dual(args[k])
    return forward_ad.make_dual(
        *(op.func(*args[:k], part, *args[k + 1 :]) for part in (value, tangent))
    )


def _with_tangent(args: Sequence[Any]) -> set[int]:
    """Return the places of the arguments that have a tangent."""
    return {
        k
        for k, arg in enumerate(args)
        if _is_real_tensor(arg) and forward_ad.unpack_dual(arg).tangent is not None
    }


def _is_real_tensor(arg: Any) -> bool:
    return isinstance(arg, Tensor) and is_real(arg)


def _along_itself(value: Tensor) -> Tensor:
    """Make a constant its own tangent."""
    value = value.detach().contiguous()
    return forward_ad.make_dual(value, _of_finite(value, value))


def _of_finite(value: Tensor, tangent: Tensor) -> Tensor:
    """Set a tangent to zero where a mask is minus infinity."""
    return torch.where(value.isinf(), 0.0, tangent)


def _tangent(value: Tensor) -> Tensor:
    """Return the tangent of a tensor, or zeros if it has none."""
    tangent = forward_ad.unpack_dual(value).tangent
    return torch.zeros_like(value) if tangent is None else tangent


# -- in the backward pass --------------------------------------------------------------------------


class GraphAxis(NamedTuple):
    """The axis along which the graph of each entry can be read.

    Args:
        by: what follows each other along the axis. It is "graphs" or "nodes" in their order,
            "tiled" if all graphs follow each other several times, "repeated" if each graph
            comes several times in a row, or the slot of an index that gathered the rows of
            nodes.
    """

    axis: int
    by: str | int


@dataclass(frozen=True, eq=False)
class ConstantAdditions:
    """Where a plan adds constants, if all operations that do so are understood.

    Args:
        added: for the number of an operation and a line, the constants that the operation adds;
            none of them if it adds a number.
        affine: whether the output is an affine function of the nodes, so that relevance and
            shares add up to it.
    """

    plan: ReplayPlan
    added: dict[int, dict[str, list[Ref]]]
    affine: bool


def find_additions(plan: ReplayPlan, lines: LedgerLines) -> ConstantAdditions | None:
    """Return where a plan adds constants, or None if an operation that does is not understood."""
    last, joined = plan.trace.output, plan.trace.flow.merged.keys()
    if type(last) is not Ref or last.value in joined:
        return None
    affine, constants = not plan.shares, dict[int, dict[str, list[Ref]]]()
    for op in plan.passing:
        taken, linear = plan.taken[op.number], _is_affine(plan, op)
        if not joined.isdisjoint(taken):
            return None
        affine = affine and linear
        added = list(lines.added_by(plan, op))
        if added and not (linear or op.name == "native_layer_norm"):
            return None
        if op.name in PLUS_PRODUCT and taken.isdisjoint(ref.value for ref in op.reads[1:]):
            return None  # a product of constants is added
        for line, ref in added:
            if ref is not None and plan.trace.op_name(ref.value) not in ZEROS:
                constants.setdefault(op.number, {}).setdefault(line, []).append(ref)
            elif ref is None and op.name in ADDITIONS:
                constants.setdefault(op.number, {}).setdefault(line, [])
    return ConstantAdditions(plan, constants, affine)


def _is_affine(plan: ReplayPlan, op: Op) -> bool:
    """Whether an operation is affine in the signals that it takes, under the rules in force."""
    if (custom := custom_rule(plan, op)) is not None:
        return custom.conserves
    if op.name == "masked_fill" and op.args[2] not in (0, -torch.inf):
        return False
    if op.name == "native_batch_norm":
        return op.args[5] is False
    if op.name in CONSERVATIVE and not getattr(plan.rules, CONSERVATIVE[op.name][0]):
        return False
    return op.name in LINEAR | BY_ENTRY | {"native_layer_norm"}


# -- which graph a row is of -----------------------------------------------------------------------


def graph_axes(
    additions: ConstantAdditions, nodes: NodeIds | None, layout: NodeLayout
) -> dict[int, GraphAxis | None] | None:
    """For each operation that adds constants, return where the graph of its rows can be read.

    Args:
        nodes: the node ids of the pass, or None if all rows are of the only graph. An operation
            that may only add zeros, as in padding, may have None. If the graphs of another one
            cannot be told, the result is None.
    """
    trace = additions.plan.trace
    axis_of = _of_the_only_graph if nodes is None else _by_ids(additions, nodes, layout)
    if axis_of is None:
        return None
    axes: dict[int, GraphAxis | None] = {}
    for number, lines in additions.added.items():
        op, out = trace.ops[number], trace.ops[number].makes[0]
        axes[number] = None
        # the gradient of a view that is written to arrives at its base
        written = op.in_place and trace.memory.storage[out.slot] != out.slot
        if trace.memory.tensors[out.slot].dtype in (torch.float32, torch.float64) and not written:
            axes[number] = axis_of(trace, op)
        if axes[number] is None and (BIASES in lines or not all(lines.values())):
            return None
    return axes


def _of_the_only_graph(trace: Trace, op: Op) -> GraphAxis | None:
    return GraphAxis(0, "repeated") if trace.shape(op.out) else None


def _by_ids(
    additions: ConstantAdditions, nodes: NodeIds, layout: NodeLayout
) -> Callable[[Trace, Op], GraphAxis | None] | None:
    """Return a function that reads the axis from the ids of an operation's result.

    Returns None if an input has no ids.
    """
    trace = additions.plan.trace
    for slot in trace.inputs:
        first = trace.flow.slot_of_value.index(slot)
        if additions.plan.signal[first] and first not in nodes.by_value:
            return None
    indices = _indices(trace, len(layout.graph))

    def axis_of(trace: Trace, op: Op) -> GraphAxis | None:
        ids = nodes.by_value.get(op.out)
        if ids is None:
            return None
        earlier = {slot: index for slot, (first, index) in indices.items() if first < op.number}
        graph = nodes.graph(ids.query)
        return next(_fitting(graph, trace.shape(op.out), layout, earlier), None)

    return axis_of


def _indices(trace: Trace, count: int) -> dict[int, tuple[int, Tensor]]:
    """Return the indices that gather rows of nodes, by slot, with the first operation to do so."""
    indices: dict[int, tuple[int, Tensor]] = {}
    for op in trace.ops:
        for ref in op.reads[1:] if op.name in ("index_select", "index") else ():
            index = trace.memory.tensors[ref.slot]
            if index.dim() != 1 or index.dtype != torch.long or not index.numel():
                continue
            if ref.slot not in trace.memory.unstable and 0 <= index.min() <= index.max() < count:
                indices.setdefault(ref.slot, (op.number, index))
    return indices


def _fitting(
    graph: Tensor, shape: torch.Size, layout: NodeLayout, indices: Mapping[int, Tensor]
) -> Iterator[GraphAxis]:
    """Yield the axes along which the graphs of a tensor's entries can be read."""
    for axis, length in enumerate(shape):
        ways: tuple[str | int, ...] = ("graphs", "nodes", *indices, "tiled", "repeated")
        for by in ways:
            index = indices.get(by) if isinstance(by, int) else None
            rows = graphs_of_rows(by, length, layout, index)
            if rows is not None:
                rows = rows.view(-1, *(1,) * (len(shape) - axis - 1))
                if bool(((graph == rows) | (graph == NONE)).all()):
                    yield GraphAxis(axis, by)


def graphs_of_rows(
    by: str | int, length: int, layout: NodeLayout, index: Tensor | None
) -> Tensor | None:
    """Return the graph of each row, or None if the number of rows does not fit."""
    if not _fits(by, length, layout, index):
        return None
    if by == "nodes":
        return layout.graph
    if index is not None:
        return layout.graph[index]
    size = len(layout.mask)
    graphs = torch.arange(size, device=layout.graph.device)
    times = length // size
    return graphs.repeat(times) if by == "tiled" else graphs.repeat_interleave(times)


def _fits(by: str | int, length: int, layout: NodeLayout, index: Tensor | None) -> bool:
    size = len(layout.mask)
    if by in ("tiled", "repeated"):
        return length % size == 0
    counts = {"graphs": size, "nodes": len(layout.graph)}
    return length == (counts[by] if isinstance(by, str) else -1 if index is None else len(index))


# -- in the gradient -------------------------------------------------------------------------------


class ConstantShares:
    """Collects the share of each line in the outputs of a pass, from the gradient of the outputs.

    Args:
        axes: for each operation that adds constants, where the graph of its rows can be read.
    """

    def __init__(
        self,
        additions: ConstantAdditions,
        axes: Mapping[int, GraphAxis | None],
        layout: NodeLayout,
    ) -> None:
        self.additions, self.layout = additions, layout
        self._axes = axes
        self._indices: dict[int, Tensor] = {}
        self._sums: dict[
            tuple[str, str | int, int], Tensor
        ] = {}  # by the line, and by what the rows are

    def terms(
        self, op: Op, tensor_of: TensorOf, arguments: tuple[Any, Any]
    ) -> list[tuple[str, Any]]:
        """Return the constants that an operation adds now, each with its line.

        Args:
            arguments: those of the operation, with the numbers of this pass.
        """
        terms = []
        for line, refs in self.additions.added[op.number].items():
            taken = self.additions.plan.taken[op.number]
            # other than biases, most constants are zeros, as in padding
            if line == BIASES or not refs or any(bool(tensor_of(ref).any()) for ref in refs):
                terms.append((line, _constant(op, refs, taken, tensor_of, arguments)))
        return terms

    def collect_from(
        self, op: Op, out: Tensor, terms: list[tuple[str, Any]], tensor_in: Callable[[int], Any]
    ) -> bool:
        """Collect shares when the gradient reaches a result.

        Returns False if the rows of the result do not fit what is known of them.

        Args:
            tensor_in: returns the present tensor of a slot.
        """
        axis = self._axes[op.number]
        if not terms or axis is None:
            return not terms
        kind = axis.by, out.shape[axis.axis]
        index = tensor_in(axis.by) if isinstance(axis.by, int) else None
        if not _fits(*kind, self.layout, index):
            return False
        if index is not None:
            self._indices[int(axis.by)] = index
        with torch._C.DisableTorchFunction():  # otherwise it would count as a hook of the model
            out.register_hook(lambda gradient: self._add(gradient, terms, axis.axis, kind))
        return True

    def _add(
        self, gradient: Tensor, terms: list[tuple[str, Any]], axis: int, kind: tuple[str | int, int]
    ) -> None:
        """Add the shares of an operation's constants to those of their lines."""
        for line, constant in terms:
            share = _sum_by_rows(gradient, constant, axis)
            before = self._sums.get((line, *kind))
            self._sums[line, *kind] = share if before is None else before + share

    def of_lines(self, inputs: Mapping[str, tuple[Tensor, Tensor | None]]) -> dict[str, Tensor]:
        """Return the share (B,) of each line, after the gradient has passed.

        Args:
            inputs: for the line of each input beside the nodes, its relevance and the graph of
                each of its rows.
        """
        parts: list[tuple[str, Tensor, Tensor | None]] = [
            (line, rows.view(-1) if rows.dim() < 2 else rows.flatten(1).sum(1), graphs)
            for line, (rows, graphs) in inputs.items()
        ]
        for (line, by, length), rows in self._sums.items():
            index = self._indices.get(by) if isinstance(by, int) else None
            parts.append((line, rows, graphs_of_rows(by, length, self.layout, index)))
        shares: dict[str, Tensor] = {}
        for line, rows, graphs in parts:
            if graphs is None:  # the batch has one graph
                graphs = torch.zeros(len(rows), dtype=torch.long, device=rows.device)
            share = rows.new_zeros(len(self.layout.mask)).index_add(0, graphs, rows)
            shares[line] = shares[line] + share if line in shares else share
        return shares


def replay_with_shares(shares: ConstantShares, inputs: Mapping[int, Tensor]) -> Replay | None:
    """Run a recorded pass again from `inputs` by slot, and collect shares from its gradient.

    Returns None if the gradient does not reach all constants, or if rows do not fit what is known
    of them.
    """
    plan = shares.additions.plan
    replayed = Replay(plan, plan.trace.memory.tensors)
    for slot, tensor in inputs.items():
        replayed.begin(slot, tensor)
    for op in plan.ops:
        adds, arguments = op.number in shares.additions.added, (op.args, op.kwargs)
        terms = shares.terms(op, replayed.value, arguments) if adds else []
        out = replayed.run(op, *arguments)
        if not terms:
            continue
        first = out[0] if isinstance(out, tuple | list) else out
        tensor_in = plan.trace.memory.tensors.__getitem__
        if not first.requires_grad or not shares.collect_from(op, first, terms, tensor_in):
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
    arguments: tuple[Any, Any],
) -> Any:
    """Return what an operation makes of these constants alone. One row may stand for all.

    Args:
        constants: the constants that count, none if it is a number that counts.
        taken: the signals of the operation, which count as zero.
        arguments: those of the operation, with the numbers of this pass.
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
            return -arguments[0][1] if op.name == "sub" else arguments[0][1]
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

    args, kwargs = op.with_tensors(counted, *arguments)
    if op.name in ADDITIONS and type(op.args[1]) is not Ref and constants:
        args[1] = 0
    func: Callable[..., Any] = out_of_place(op.func) if op.in_place else op.func
    result = func(*args, **kwargs)
    return result[0] if isinstance(result, tuple | list) else result
