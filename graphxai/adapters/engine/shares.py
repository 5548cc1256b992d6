"""Shares of constants, collected on the way back from the outputs to the nodes.

The share of a constant c that is added to a signal is `sum c df/dc`. The gradient passes by there
anyway; it only has to be known to which graph each of its rows belongs. That was seen in the
recorded pass, by the numbers of the nodes, and is put down as a place where the same can be read in
other batches (`Rows`). Nobody checks the numbers again, but the sum: with attention, scales and
ratios held at what they were, the output is `J x + c` and the parts have to add up to it. If they
do not, or if the network is not affine, `replay.share_along` differentiates instead.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..layout import Layout
from .nodes import NONE, Nodes
from .replay import ADDITIVE, BIASES, Lines, Plan, Value, out_of_place, refs_in
from .trace import Op, Ref, Trace, filled, is_real
from .vocabulary import MATRIX_PRODUCTS, PLUS_PRODUCT, RATIO, SAME

BY_ENTRY = RATIO | {"relu", "leaky_relu"}  # x times a factor
LINEAR = (SAME | MATRIX_PRODUCTS | {
    "add", "sub", "rsub", "mul", "div", "neg", "sum", "mean", "scatter_add", "index_add",
}) - {"masked_scatter", "_addmm_activation", "constant_pad_nd", "scatter", "sort"}  # fmt: skip
FLAG = {"native_layer_norm": "layernorm"} | dict.fromkeys(RATIO, "activation")
ZEROS = {"zeros", "new_zeros", "zeros_like", "zero"}
SIGN = {("sub", 1): -1, ("rsub", 0): -1}  # by operation and place of the constant
FAR = 1e4  # machine epsilons of the terms' size: more is no rounding


class Rows(NamedTuple):
    """Where the graph of each entry can be read: along which axis, and how.

    by: "graphs" or "nodes" in their order, the graphs over and over ("tiled") or each several times
    in a row ("repeated"), or the slot of an index by which rows of nodes were gathered.
    """

    axis: int
    by: str | int


@dataclass(frozen=True, eq=False)
class Affine:
    """A plan whose output is an affine function of the nodes, by operations known here.

    own: by the number of an operation and line, the constants that are added there.
    """

    plan: Plan
    own: dict[int, dict[str, list[Ref]]]


def affine(plan: Plan, lines: Lines) -> Affine | None:
    """What is known of the plan, if it is affine."""
    last = plan.trace.output
    if type(last) is not Ref or last.value in plan.trace.joined or plan.halved:
        return None
    if not all(_is_affine(plan, op) for op in plan.passing):
        return None
    own: dict[int, dict[str, list[Ref]]] = {}
    for op in plan.passing:
        for place in ADDITIVE.get(op.name, ()):
            for ref in refs_in(op.args[place : place + 1]):
                constant = ref.value not in plan.taken[op.number]
                constant = constant and plan.trace.name(ref.value) not in ZEROS
                if constant and is_real(plan.trace.tensors[ref.slot]):
                    here = own.setdefault(op.number, {})
                    here.setdefault(lines.of(ref.value), []).append(ref)
        if op.name in ("add", "sub", "rsub") and type(op.args[1]) is not Ref and op.args[1]:
            own.setdefault(op.number, {}).setdefault(lines.of_numbers(), [])
    return Affine(plan, own)


def _is_affine(plan: Plan, op: Op) -> bool:
    trace, taken, flag = plan.trace, plan.taken[op.number], FLAG.get(op.name)
    if not trace.joined.keys().isdisjoint(taken):
        return False
    if op.name in PLUS_PRODUCT and not any(ref.value in taken for ref in op.reads[1:]):
        return False  # a product of constants is added
    if op.name == "masked_fill" and op.args[2] not in (0, -torch.inf):
        return False
    if op.name == "native_batch_norm":
        return op.args[5] is False
    if flag is not None and not getattr(plan.rules, flag):
        return False
    return op.name in LINEAR | BY_ENTRY | {"native_layer_norm"}


# -- which rows are whose --------------------------------------------------------------------------


def rows_of_graphs(known: Affine, nodes: Nodes, layout: Layout) -> dict[int, Rows | None] | None:
    """By operation that adds constants, whose the rows of its result are; None: that is unclear.

    It need not be clear where nothing but zeros may be added, as in padding.
    """
    trace = known.plan.trace
    for slot in trace.inputs:
        first = trace.slot_of_value.index(slot)
        if known.plan.signal[first] and first not in nodes.by_value:
            return None
    indices = _indices(trace, len(layout.graph))
    found: dict[int, Rows | None] = {}
    for number, lines in known.own.items():
        op = trace.ops[number]
        out = op.makes[0]
        numbers, tensor = nodes.by_value.get(out.value), trace.tensors[out.slot]
        before = {slot: index for slot, (at, index) in indices.items() if at < number}
        found[number] = None
        if numbers is not None and tensor.dtype in (torch.float32, torch.float64):
            graph = nodes.graph(numbers.query)
            found[number] = next(_fitting(graph, tensor.shape, layout, before), None)
        if op.in_place and trace.storage[out.slot] != out.slot:
            found[number] = None  # gradients arrive at what it is a view of
        if found[number] is None and (BIASES in lines or not all(lines.values())):
            return None
    return found


def _indices(trace: Trace, count: int) -> dict[int, tuple[int, Tensor]]:
    """Indices of nodes by which rows are gathered, by slot, and the first operation to do so."""
    found: dict[int, tuple[int, Tensor]] = {}
    for op in trace.ops:
        for ref in op.reads[1:] if op.name in ("index_select", "index") else ():
            index = trace.tensors[ref.slot]
            if index.dim() != 1 or index.dtype != torch.long or not index.numel():
                continue
            if ref.slot not in trace.unstable and 0 <= index.min() <= index.max() < count:
                found.setdefault(ref.slot, (op.number, index))
    return found


def _fitting(
    graph: Tensor, shape: torch.Size, layout: Layout, indices: Mapping[int, Tensor]
) -> Iterator[Rows]:
    """Places where the graphs of a tensor's entries can be read."""
    for axis, length in enumerate(shape):
        ways: tuple[str | int, ...] = ("graphs", "nodes", *indices, "tiled", "repeated")
        for by in ways:
            index = indices.get(by) if isinstance(by, int) else None
            own = graphs_of_rows(by, length, layout, index)
            if own is not None:
                own = own.view(-1, *(1,) * (len(shape) - axis - 1))
                if bool(((graph == own) | (graph == NONE)).all()):
                    yield Rows(axis, by)


def graphs_of_rows(
    by: str | int, length: int, layout: Layout, index: Tensor | None
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


def _fits(by: str | int, length: int, layout: Layout, index: Tensor | None) -> bool:
    size = len(layout.mask)
    if by in ("tiled", "repeated"):
        return length % size == 0
    counts = {"graphs": size, "nodes": len(layout.graph)}
    return length == (counts[by] if isinstance(by, str) else -1 if index is None else len(index))


# -- on the way back -------------------------------------------------------------------------------


class Shares:
    """The share of each line in the outputs of a pass, known once the gradient has passed."""

    def __init__(self, known: Affine, rows: Mapping[int, Rows | None], layout: Layout) -> None:
        self.known, self.layout = known, layout
        self._rows = rows
        self._indices: dict[int, Tensor] = {}
        self._sums: dict[tuple[str, str | int, int], Tensor] = {}  # by line and kind of rows

    def terms(self, op: Op, value: Value, given: tuple[Any, Any]) -> list[tuple[str, Any]]:
        """The constants that an operation adds, as they are now, with the line of each."""
        found = []
        for line, own in self.known.own[op.number].items():
            added = _Added(op, own, self.known.plan.taken[op.number], value)
            # most of the others are zeros, as in padding
            if line == BIASES or not own or any(bool(value(ref).any()) for ref in own):
                found.append((line, added.constant(given)))
        return found

    def watch(self, op: Op, out: Tensor, terms: list[tuple[str, Any]], index: Any) -> bool:
        """Wait for the gradient at a result; False: its rows are not as they were.

        index: of the gathered rows, if these are.
        """
        rows = self._rows[op.number]
        if not terms or rows is None:
            return not terms
        kind = rows.by, out.shape[rows.axis]
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
            (line, found if found.dim() == 1 else found.flatten(1).sum(1), graphs)
            for line, (found, graphs) in inputs.items()
        ]
        for (line, by, length), found in self._sums.items():
            index = self._indices.get(by) if isinstance(by, int) else None
            parts.append((line, found, graphs_of_rows(by, length, self.layout, index)))
        shares: dict[str, Tensor] = {}
        for line, found, graphs in parts:
            assert graphs is not None
            share = found.new_zeros(len(self.layout.mask)).index_add(0, graphs, found)
            shares[line] = shares[line] + share if line in shares else share
        return shares


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


@dataclass(frozen=True, eq=False)
class _Added:
    """What an operation adds to its signals.

    own: the constants that count, none of them if a number does; taken: its signals.
    """

    op: Op
    own: list[Ref]
    taken: frozenset[int]
    value: Value

    def constant(self, given: tuple[Any, Any]) -> Any:
        """What the operation makes of no signal and these constants; one row stands for all."""
        op = self.op
        if op.name == "native_layer_norm" or (op.name in PLUS_PRODUCT and not op.kwargs):
            return self._alone(self.own[0])
        if op.name in ("add", "sub", "rsub") and not op.kwargs:
            if not self.own:
                return -given[0][1] if op.name == "sub" else given[0][1]
            place = next(k for k, ref in op.flat if ref in self.own)
            if len(self.own) == 1:
                return SIGN.get((op.name, place), 1) * self._alone(self.own[0])
        return self._linear(given)

    def _alone(self, ref: Ref) -> Tensor:
        tensor = self.value(ref).detach()
        if isinstance(self.value(ref), nn.Parameter):
            return tensor
        return tensor.nan_to_num(torch.nan, 0.0, 0.0)  # masks of minus infinity add nothing

    def _put(self, ref: Ref) -> Tensor:
        tensor = self.value(ref).detach()
        if ref.value not in self.taken:
            return tensor
        one_row = "norm" in self.op.name
        return tensor.new_zeros(1, *tensor.shape[1:]) if one_row else torch.zeros_like(tensor)

    def _add(self, ref: Ref) -> Tensor:
        if ref in self.own:
            return self._alone(ref)
        tensor = self._put(ref)
        return torch.zeros_like(tensor) if is_real(tensor) else tensor

    def _linear(self, given: tuple[Any, Any]) -> Any:
        op = self.op
        args, kwargs = op.with_tensors(self._put, *given)
        for k in ADDITIVE.get(op.name, ()):
            args[k : k + 1] = [filled(part, args[k], self._add) for part in op.args[k : k + 1]]
        if op.name in ("add", "sub", "rsub") and type(op.args[1]) is not Ref and self.own:
            args[1] = 0
        func: Callable[..., Any] = out_of_place(op.func) if op.in_place else op.func
        made = func(*args, **kwargs)
        return made[0] if isinstance(made, tuple | list) else made
