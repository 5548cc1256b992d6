"""The shares of constants in an output: biases, numbers in the code, other inputs, cut signals.

The share of a constant c that is added to a signal is `sum c df/dc`. `share_by_derivative` differentiates
along all constants of one line of the ledger, whatever the network is.

Mostly there is a faster way (`ConstantShares`): the gradient passes by all constants on its way from the
outputs to the nodes; it only has to be known to which graph each of its rows belongs. In a batch of
one that is no question. Otherwise it is seen in the recorded pass, by the numbers of the nodes. If
the network is affine, it is put down as a place where the same can be read in other batches
(`GraphAxis`). Nobody checks the numbers again, but the sum: with attention, scales and ratios held at
what they were, the output is `J x + c` and the parts have to add up to it.
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
from .replay import Replay, ReplayPlan, Value, by_rule, has_rule, out_of_place, replay
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
STRUCTURE = {"edge_index", "batch", "ptr"}  # which choose among parameters
_forward_mode = threading.Lock()  # PyTorch has one level of forward differentiation for all threads

BY_ENTRY = RATIO | {"relu", "leaky_relu"}  # x times a factor
LINEAR = (SAME | MATRIX_PRODUCTS | {
    "add", "sub", "rsub", "mul", "div", "neg", "sum", "mean", "scatter_add", "index_add",
}) - {"masked_scatter", "_addmm_activation", "constant_pad_nd", "scatter", "sort"}  # fmt: skip
FLAG = {"native_layer_norm": "layernorm"} | dict.fromkeys(RATIO, "activation")
ZEROS = {"zeros", "new_zeros", "zeros_like", "zero"}
SIGN = {("sub", 1): -1, ("rsub", 0): -1}  # by operation and place of the constant
FAR = 1e4  # machine epsilons of the terms' size: more is no rounding


# -- which line a constant belongs to --------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class LedgerLines:
    """To which line of the ledger each constant belongs; names: of the inputs by bit."""

    trace: Trace
    names: Mapping[int, str]
    _known: dict[int, str] = field(default_factory=dict)

    def of(self, value: int) -> str:
        """The line of a value that is added to a signal."""
        if value not in self._known:
            self._known[value] = self._of(value)
        return self._known[value]

    def _of(self, value: int) -> str:
        depends, live = self.trace.flow.depends[value], self.trace.flow.live[value]
        if depends & 1:
            return BIASES if live & 1 else CUT_OFF
        found = [name for bit, name in self.names.items() if depends & bit]
        named = [name for name in found if name not in STRUCTURE]
        if named or depends & WEIGHTS:
            return " and ".join(named) or BIASES
        return " and ".join(found) or CONSTANTS

    def of_numbers(self) -> str:
        """The line of numbers in the model's code."""
        return CONSTANTS if self.trace.first_exit is None else CUT_OFF

    def added_by(self, plan: ReplayPlan, op: Op) -> Iterator[tuple[str, Ref | None]]:
        """The constants that an operation adds to signals, with their lines; None: a number."""
        for place in _places(plan, op):
            for ref in refs_in(op.args[place : place + 1]):
                if not plan.signal[ref.value] and is_real(self.trace.memory.tensors[ref.slot]):
                    yield self.of(ref.value), ref
        numbers = (a for a in op.args[1:] if isinstance(a, int | float) and not isinstance(a, bool))
        filled_in = op.name in FILLS | ADDITIONS | {"scatter"} and any(numbers)
        if filled_in or (op.name == "_log_softmax" and plan.rules.attention):
            yield self.of_numbers(), None


def _places(plan: ReplayPlan, op: Op) -> tuple[int, ...]:
    """The places of arguments that are added; what shifts a softmax's argument cancels."""
    return () if op.number in plan.marks.shifts else ADDITIVE.get(op.name, ())


def modules_by_line(plan: ReplayPlan, lines: LedgerLines) -> dict[str, set[str]]:
    """The lines that a pass has constants of, each with the modules where they are added."""
    found: dict[str, set[str]] = {}
    for op in plan.ops:
        for line, _ in lines.added_by(plan, op):
            found.setdefault(line, set()).add(op.path)
    return found


# -- in forward mode -------------------------------------------------------------------------------


def share_by_derivative(
    plan: ReplayPlan, inputs: Mapping[int, Tensor], line: str, lines: LedgerLines
) -> Tensor:
    """The directional derivative of the output along the constants of one line."""
    with torch.no_grad(), _forward_mode, forward_ad.dual_level():
        signals = {}
        for slot, bit in plan.trace.inputs.items():
            tensor = inputs.get(slot, plan.trace.memory.tensors[slot]).detach()
            if is_real(tensor):
                own = bit != 1 and lines.names.get(bit) == line
                tangent = tensor if own else torch.zeros_like(tensor)
                signals[slot] = forward_ad.make_dual(tensor, tangent)
        return _tangent(
            replay(plan, signals, apply=_ConstantDerivative(plan, line, lines)).output()
        ).clone()


class _ConstantDerivative:
    """Runs operations so that the constants of one line have themselves as tangents."""

    def __init__(self, plan: ReplayPlan, line: str, lines: LedgerLines) -> None:
        self.plan, self.line, self.lines = plan, line, lines
        self.counts_numbers = lines.of_numbers() == line
        self.passing = {op.number for op in plan.passing}
        self.with_signal: set[int] = set()  # storages that were filled with constants first

    def __call__(self, op: Op, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """The result of an operation."""
        if op.number in self.passing or self._writes_to_signal(op):
            if self._fills(op):
                return self._filled(op, args, kwargs)
            self._put_constants(op, args)
        if op.name in SUMMED:
            _fill_tangents(args, SUMMED[op.name], op.in_place)
        by_its_rule = has_rule(self.plan, op, along=True)
        if op.name in LINEAR_IN and not (by_its_rule or op.in_place or kwargs):
            return _linear(op, args)
        out = by_rule(op, args, kwargs, by_its_rule)
        if op.name == "_log_softmax" and by_its_rule and self.counts_numbers:
            constant = (out - args[0]).detach()  # log-probabilities are x and a constant
            out = out + _along_itself(constant) - constant
        return out

    def _fills(self, op: Op) -> bool:
        """Whether an operation puts numbers among the entries of a signal, or adds one to it."""
        if not op.args or type(op.args[0]) is not Ref or not self.plan.signal[op.args[0].value]:
            return False
        if op.name in ADDITIONS:
            return type(op.args[1]) is not Ref
        return op.name in FILLS or (op.name == "scatter" and type(op.args[3]) is not Ref)

    def _filled(self, op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> Tensor:
        """An operation that puts numbers among the signal's entries, which are constants too.

        It is affine: `y = J x + c` with a known slope, so that the constant is `y - J x`.
        """
        x, known = forward_ad.unpack_dual(args[0])
        rest = x if known is None else x - known
        func = out_of_place(op.func) if op.in_place else op.func
        plain = [forward_ad.unpack_dual(a).primal if isinstance(a, Tensor) else a for a in args]
        out, slope = forward_ad.unpack_dual(
            func(forward_ad.make_dual(x, rest), *plain[1:], **kwargs)
        )
        share = out if slope is None else out - slope
        if not self.counts_numbers:
            share = torch.zeros_like(out) if slope is None else _tangent(func(*args, **kwargs))
        found = forward_ad.make_dual(out, _of_finite(out, share))
        return args[0].copy_(found) if op.in_place else found

    def _put_constants(self, op: Op, args: list[Any]) -> None:
        places = _places(self.plan, op)
        if op.name in PLUS_PRODUCT and self._adds_a_product(op):
            places = (1,)  # its constant is the product
        for k in places:
            if k < len(args):
                target, now = args[k], dict(pair_refs(op.args[k], args[k]))
                now = {ref: self._constant(ref, tensor) for ref, tensor in now.items()}
                args[k] = fill_refs(op.args[k], target, now.__getitem__)
                if k == 0 and op.in_place and args[0] is not target:
                    args[0] = target
                    self._fill_with_constants(op.args[0], target)

    def _adds_a_product(self, op: Op) -> bool:
        """Whether a product of constants is added to a signal."""
        term, *factors = (self.plan.signal[arg.value] for arg in op.args[:3])
        return bool(term) and not any(factors)

    def _constant(self, ref: Ref, tensor: Tensor) -> Tensor:
        """What is added to a signal, with itself as tangent if it is a constant of the line."""
        if not is_real(tensor) or self.plan.signal[ref.value]:
            return tensor
        return _along_itself(tensor) if self.lines.of(ref.value) == self.line else tensor

    def _fill_with_constants(self, ref: Ref, target: Tensor) -> None:
        """Give a tangent to all that is in a storage to which a signal is written first now."""
        storage = self.plan.trace.memory.storage[ref.slot]
        if storage not in self.with_signal:
            self.with_signal.add(storage)
            whole = target if target._base is None else target._base
            whole.copy_(_along_itself(whole.clone()))

    def _writes_to_signal(self, op: Op) -> bool:
        """Whether an operation writes constants to a tensor that holds a signal already."""
        return op.in_place and self.plan.trace.memory.storage[op.args[0].slot] in self.with_signal


def _fill_tangents(args: list[Any], count: int, in_place: bool) -> None:
    """Give zeros to those of the first arguments without a tangent, where any argument has one.

    Otherwise PyTorch finds the shape of a sum in Python, which takes ten times as long.
    """
    known = _with_tangent(args)
    for k in range(count) if known else ():
        if k not in known and not (in_place and k == 0) and _is_signal(args[k]):
            own = args[k].contiguous()  # what is expanded can have no tangent
            args[k] = forward_ad.make_dual(own, torch.zeros_like(own))


def _linear(op: Op, args: list[Any]) -> Tensor:
    """A product or quotient; where it is linear in the only tangent, without PyTorch's zeros."""
    known = _with_tangent(args)
    if len(known) != 1 or not known <= LINEAR_IN[op.name]:
        return op.func(*args)
    (k,) = known
    value, tangent = forward_ad.unpack_dual(args[k])
    return forward_ad.make_dual(
        *(op.func(*args[:k], one, *args[k + 1 :]) for one in (value, tangent))
    )


def _with_tangent(args: Sequence[Any]) -> set[int]:
    """The places of arguments that have a tangent."""
    return {
        k
        for k, arg in enumerate(args)
        if _is_signal(arg) and forward_ad.unpack_dual(arg).tangent is not None
    }


def _is_signal(arg: Any) -> bool:
    return isinstance(arg, Tensor) and is_real(arg)


def _along_itself(value: Tensor) -> Tensor:
    """A constant with itself as tangent."""
    value = value.detach().contiguous()
    return forward_ad.make_dual(value, _of_finite(value, value))


def _of_finite(value: Tensor, tangent: Tensor) -> Tensor:
    """A tangent that is zero where a mask of minus infinity is."""
    return torch.where(value.isinf(), 0.0, tangent)


def _tangent(value: Tensor) -> Tensor:
    """A tensor's tangent; zeros if it has none."""
    found = forward_ad.unpack_dual(value).tangent
    return torch.zeros_like(value) if found is None else found


# -- in the backward pass --------------------------------------------------------------------------


class GraphAxis(NamedTuple):
    """Where the graph of each entry can be read: along which axis, and how.

    by: "graphs" or "nodes" in their order, the graphs over and over ("tiled") or each several times
    in a row ("repeated"), or the slot of an index by which rows of nodes were gathered.
    """

    axis: int
    by: str | int


@dataclass(frozen=True, eq=False)
class ConstantAdditions:
    """A plan in which constants are added by operations known here.

    own: by the number of an operation and line, the constants that are added there. affine: whether
    the output is an affine function of the nodes, so that relevance and shares add up to it.
    """

    plan: ReplayPlan
    own: dict[int, dict[str, list[Ref]]]
    affine: bool


def find_additions(plan: ReplayPlan, lines: LedgerLines) -> ConstantAdditions | None:
    """What is known of the plan, if every operation that adds constants is."""
    last, joined = plan.trace.output, plan.trace.flow.merged.keys()
    if type(last) is not Ref or last.value in joined:
        return None
    affine, own = not plan.shares, dict[int, dict[str, list[Ref]]]()
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
                own.setdefault(op.number, {}).setdefault(line, []).append(ref)
            elif ref is None and op.name in ADDITIONS:
                own.setdefault(op.number, {}).setdefault(line, [])
    return ConstantAdditions(plan, own, affine)


def _is_affine(plan: ReplayPlan, op: Op) -> bool:
    flag = FLAG.get(op.name)
    if op.name == "masked_fill" and op.args[2] not in (0, -torch.inf):
        return False
    if op.name == "native_batch_norm":
        return op.args[5] is False
    if flag is not None and not getattr(plan.rules, flag):
        return False
    return op.name in LINEAR | BY_ENTRY | {"native_layer_norm"}


# -- which rows are whose --------------------------------------------------------------------------


def graph_axes(
    known: ConstantAdditions, nodes: NodeIds | None, layout: NodeLayout
) -> dict[int, GraphAxis | None] | None:
    """By operation that adds constants, whose the rows of its result are; None: that is unclear.

    It need not be clear where nothing but zeros may be added, as in padding. nodes: the numbers of
    the pass; None: all rows are of the only graph.
    """
    trace = known.plan.trace
    rows_of = _of_the_only_graph if nodes is None else _by_numbers(known, nodes, layout)
    if rows_of is None:
        return None
    found: dict[int, GraphAxis | None] = {}
    for number, lines in known.own.items():
        op, out = trace.ops[number], trace.ops[number].makes[0]
        found[number] = None
        # gradients arrive at what a tensor that is written to is a view of
        written = op.in_place and trace.memory.storage[out.slot] != out.slot
        if trace.memory.tensors[out.slot].dtype in (torch.float32, torch.float64) and not written:
            found[number] = rows_of(trace, op)
        if found[number] is None and (BIASES in lines or not all(lines.values())):
            return None
    return found


def _of_the_only_graph(trace: Trace, op: Op) -> GraphAxis | None:
    return GraphAxis(0, "repeated") if trace.shape(op.out) else None


def _by_numbers(
    known: ConstantAdditions, nodes: NodeIds, layout: NodeLayout
) -> Callable[[Trace, Op], GraphAxis | None] | None:
    """A look at the numbers of a result; None: those of an input are not known."""
    trace = known.plan.trace
    for slot in trace.inputs:
        first = trace.flow.slot_of_value.index(slot)
        if known.plan.signal[first] and first not in nodes.by_value:
            return None
    indices = _indices(trace, len(layout.graph))

    def rows_of(trace: Trace, op: Op) -> GraphAxis | None:
        numbers = nodes.by_value.get(op.out)
        if numbers is None:
            return None
        before = {slot: index for slot, (at, index) in indices.items() if at < op.number}
        graph = nodes.graph(numbers.query)
        return next(_fitting(graph, trace.shape(op.out), layout, before), None)

    return rows_of


def _indices(trace: Trace, count: int) -> dict[int, tuple[int, Tensor]]:
    """Indices of nodes by which rows are gathered, by slot, and the first operation to do so."""
    found: dict[int, tuple[int, Tensor]] = {}
    for op in trace.ops:
        for ref in op.reads[1:] if op.name in ("index_select", "index") else ():
            index = trace.memory.tensors[ref.slot]
            if index.dim() != 1 or index.dtype != torch.long or not index.numel():
                continue
            if ref.slot not in trace.memory.unstable and 0 <= index.min() <= index.max() < count:
                found.setdefault(ref.slot, (op.number, index))
    return found


def _fitting(
    graph: Tensor, shape: torch.Size, layout: NodeLayout, indices: Mapping[int, Tensor]
) -> Iterator[GraphAxis]:
    """Places where the graphs of a tensor's entries can be read."""
    for axis, length in enumerate(shape):
        ways: tuple[str | int, ...] = ("graphs", "nodes", *indices, "tiled", "repeated")
        for by in ways:
            index = indices.get(by) if isinstance(by, int) else None
            own = graphs_of_rows(by, length, layout, index)
            if own is not None:
                own = own.view(-1, *(1,) * (len(shape) - axis - 1))
                if bool(((graph == own) | (graph == NONE)).all()):
                    yield GraphAxis(axis, by)


def graphs_of_rows(
    by: str | int, length: int, layout: NodeLayout, index: Tensor | None
) -> Tensor | None:
    """The graph of each row; None if there are more or fewer of them."""
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


# -- on the way back -------------------------------------------------------------------------------


class ConstantShares:
    """The share of each line in the outputs of a pass, known once the gradient has passed."""

    def __init__(
        self, known: ConstantAdditions, rows: Mapping[int, GraphAxis | None], layout: NodeLayout
    ) -> None:
        self.known, self.layout = known, layout
        self._rows = rows
        self._indices: dict[int, Tensor] = {}
        self._sums: dict[tuple[str, str | int, int], Tensor] = {}  # by line and kind of rows

    def terms(self, op: Op, value: Value, given: tuple[Any, Any]) -> list[tuple[str, Any]]:
        """The constants that an operation adds, as they are now, with the line of each."""
        found = []
        for line, own in self.known.own[op.number].items():
            taken = self.known.plan.taken[op.number]
            # most of the others are zeros, as in padding
            if line == BIASES or not own or any(bool(value(ref).any()) for ref in own):
                found.append((line, _constant(op, own, taken, value, given)))
        return found

    def watch(
        self, op: Op, out: Tensor, terms: list[tuple[str, Any]], now: Callable[[int], Any]
    ) -> bool:
        """Wait for the gradient at a result; False: its rows are not as they were.

        now: the present tensor of a slot.
        """
        rows = self._rows[op.number]
        if not terms or rows is None:
            return not terms
        kind = rows.by, out.shape[rows.axis]
        index = now(rows.by) if isinstance(rows.by, int) else None
        if not _fits(*kind, self.layout, index):
            return False
        if index is not None:
            self._indices[int(rows.by)] = index
        with torch._C.DisableTorchFunction():  # or it would be taken for a hook of the model's
            out.register_hook(lambda gradient: self._take(gradient, terms, rows.axis, kind))
        return True

    def _take(
        self, gradient: Tensor, terms: list[tuple[str, Any]], axis: int, kind: tuple[str | int, int]
    ) -> None:
        for line, constant in terms:
            found = _by_rows(gradient, constant, axis)
            before = self._sums.get((line, *kind))
            self._sums[line, *kind] = found if before is None else before + found

    def of_lines(self, inputs: Mapping[str, tuple[Tensor, Tensor | None]]) -> dict[str, Tensor]:
        """The share (B,) of each line.

        inputs: by line, the relevance of an input beside the nodes, and the graph of each row.
        """
        parts: list[tuple[str, Tensor, Tensor | None]] = [
            (line, found.view(-1) if found.dim() < 2 else found.flatten(1).sum(1), graphs)
            for line, (found, graphs) in inputs.items()
        ]
        for (line, by, length), found in self._sums.items():
            index = self._indices.get(by) if isinstance(by, int) else None
            parts.append((line, found, graphs_of_rows(by, length, self.layout, index)))
        shares: dict[str, Tensor] = {}
        for line, found, graphs in parts:
            if graphs is None:  # of a batch of one
                graphs = torch.zeros(len(found), dtype=torch.long, device=found.device)
            share = found.new_zeros(len(self.layout.mask)).index_add(0, graphs, found)
            shares[line] = shares[line] + share if line in shares else share
        return shares


def replay_with_shares(shares: ConstantShares, inputs: Mapping[int, Tensor]) -> Replay | None:
    """A recorded pass again from `inputs` by slot, whose gradient brings the shares with it.

    None: it does not reach all constants, or their rows are not what they were.
    """
    plan = shares.known.plan
    again = Replay(plan, plan.trace.memory.tensors)
    for slot, tensor in inputs.items():
        again.begin(slot, tensor)
    for op in plan.ops:
        owns, given = op.number in shares.known.own, (op.args, op.kwargs)
        terms = shares.terms(op, again.value, given) if owns else []
        out = again.run(op, *given)
        if not terms:
            continue
        first = out[0] if isinstance(out, tuple | list) else out
        now = plan.trace.memory.tensors.__getitem__
        if not first.requires_grad or not shares.watch(op, first, terms, now):
            return None
    return again


def adds_up(
    outputs: Tensor, weights: Tensor, relevance: Tensor, shares: Mapping[str, Tensor]
) -> bool:
    """Whether relevance (B, T) and shares (B,) sum to the weighted outputs (B, C)."""
    total = (outputs * weights).sum(-1)
    rest, size = total - relevance.sum(-1), total.abs() + relevance.abs().sum(-1)
    for share in shares.values():
        rest, size = rest - share, size + share.abs()
    eps = max(torch.finfo(tensor.dtype).eps for tensor in (outputs, relevance))
    return not bool((rest.abs() > FAR * eps * size).any())


def _by_rows(gradient: Tensor, constant: Any, axis: int) -> Tensor:
    """The sums of `constant gradient` over all axes but one."""
    channels = isinstance(constant, Tensor) and constant.dim() == 1 and gradient.dim() > 1
    if channels and axis < gradient.dim() - 1 and gradient.shape[-1:] == constant.shape:
        found = gradient @ constant.to(gradient)
    else:
        found = gradient * constant
    return found if found.dim() < 2 else found.movedim(axis, 0).flatten(1).sum(1)


def _constant(
    op: Op, own: list[Ref], taken: frozenset[int], value: Value, given: tuple[Any, Any]
) -> Any:
    """What an operation makes of no signal and these constants; one row stands for all.

    own: the constants that count, none of them if a number does; taken: its signals; given: its
    arguments as they are now.
    """

    def alone(ref: Ref) -> Tensor:
        tensor = value(ref)
        if isinstance(tensor, nn.Parameter):
            return tensor.detach()
        # masks of minus infinity add nothing
        return tensor.detach().nan_to_num(torch.nan, 0.0, 0.0)

    if op.name == "native_layer_norm" or (op.name in PLUS_PRODUCT and not op.kwargs):
        return alone(own[0])
    if op.name in ADDITIONS and not op.kwargs:
        if not own:
            return -given[0][1] if op.name == "sub" else given[0][1]
        if len(own) == 1:
            return SIGN.get((op.name, op.args.index(own[0])), 1) * alone(own[0])
    added = [ref for k in ADDITIVE.get(op.name, ()) for ref in refs_in(op.args[k : k + 1])]

    def put(ref: Ref) -> Tensor:
        if ref in own:
            return alone(ref)
        tensor = value(ref).detach()
        if ref.value in taken and "norm" in op.name:
            return tensor.new_zeros(1, *tensor.shape[1:])
        nothing = ref.value in taken or (ref in added and is_real(tensor))
        return torch.zeros_like(tensor) if nothing else tensor

    args, kwargs = op.with_tensors(put, *given)
    if op.name in ADDITIONS and type(op.args[1]) is not Ref and own:
        args[1] = 0
    func: Callable[..., Any] = out_of_place(op.func) if op.in_place else op.func
    made = func(*args, **kwargs)
    return made[0] if isinstance(made, tuple | list) else made
