"""Where a pass adds constants, and which graph each row is of to which it adds them."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ..layout import NodeLayout
from .built_in_rules import BUILT_IN
from .ledger_lines import BIASES, LedgerLines
from .node_ids import NONE, NodeIds
from .replay_plan import ReplayPlan
from .rules_in_force import custom_rule, has_rule
from .trace import Op, Ref, Trace
from .vocabulary import ADDITIONS, MATRIX_PRODUCTS, PLUS_PRODUCT, RATIO, SAME, THROUGH_ZERO

BY_ENTRY = RATIO | THROUGH_ZERO | {"relu", "leaky_relu"}  # they are x times a factor
LINEAR = (SAME | MATRIX_PRODUCTS | {
    "add", "sub", "rsub", "mul", "div", "neg", "sum", "mean", "scatter_add", "index_add",
}) - {"masked_scatter", "_addmm_activation", "constant_pad_nd", "scatter", "sort"}  # fmt: skip
ZEROS = {"zeros", "new_zeros", "zeros_like", "zero"}


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
    if op.name in THROUGH_ZERO and not has_rule(plan, op):
        return False
    if op.name == "native_batch_norm":
        return op.args[5] is False
    if op.name in BUILT_IN and not getattr(plan.rules, BUILT_IN[op.name].asked_by):
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
    if not fits_layout(by, length, layout, index):
        return None
    if by == "nodes":
        return layout.graph
    if index is not None:
        return layout.graph[index]
    size = len(layout.mask)
    graphs = torch.arange(size, device=layout.graph.device)
    times = length // size
    return graphs.repeat(times) if by == "tiled" else graphs.repeat_interleave(times)


def fits_layout(by: str | int, length: int, layout: NodeLayout, index: Tensor | None) -> bool:
    """Whether the graphs of so many rows can be read in this way (see `GraphAxis`)."""
    size = len(layout.mask)
    if by in ("tiled", "repeated"):
        return length % size == 0
    counts = {"graphs": size, "nodes": len(layout.graph)}
    return length == (counts[by] if isinstance(by, str) else -1 if index is None else len(index))
