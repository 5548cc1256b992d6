"""Where a pass adds constants, and the graph of each row to which it adds them."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ..layout import NodeLayout
from .ledger_lines import BIASES, LedgerLines
from .node_ids import NONE, NodeIds
from .replay_plan import ReplayPlan
from .rule_table import conservative_rule
from .rules_in_force import custom_rule, has_rule
from .trace import Op, Ref
from .vocabulary import ADDITIONS, MATRIX_PRODUCTS, PLUS_PRODUCT, RATIO, SAME, THROUGH_ZERO

BY_ENTRY = RATIO | THROUGH_ZERO | {"relu", "leaky_relu"}  # they are x times a factor
LINEAR = (SAME | MATRIX_PRODUCTS | {
    "add", "sub", "rsub", "mul", "div", "neg", "sum", "mean", "scatter_add", "index_add",
}) - {"masked_scatter", "_addmm_activation", "constant_pad_nd", "scatter", "sort"}  # fmt: skip
ZEROS = {"zeros", "new_zeros", "zeros_like", "zero"}


class GraphsAlongAxis(NamedTuple):
    """The graph of each row of a tensor, along one of its axes; None if the batch has one graph."""

    axis: int
    graphs: Tensor | None


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
    rule = conservative_rule(op.name)
    if rule is not None and not getattr(plan.rules, rule.asked_by):
        return False
    return op.name in LINEAR | BY_ENTRY | {"native_layer_norm"}


# -- which graph a row is of -----------------------------------------------------------------------


def graphs_of_additions(
    additions: ConstantAdditions, nodes: NodeIds | None, layout: NodeLayout
) -> dict[int, GraphsAlongAxis | None] | None:
    """For each operation that adds constants, return the graphs of the rows of its result.

    Args:
        nodes: the node ids of the pass, or None if all rows are of the only graph. An operation
            that may only add zeros, as in padding, may have None. If the graphs of another one
            cannot be told, the result is None.
    """
    trace = additions.plan.trace
    if nodes is not None and not _inputs_have_ids(additions.plan, nodes):
        return None
    graphs: dict[int, GraphsAlongAxis | None] = {}
    for number, lines in additions.added.items():
        op, out = trace.ops[number], trace.ops[number].makes[0]
        graphs[number] = None
        # the gradient of a view that is written to arrives at its base
        written = op.in_place and trace.memory.storage[out.slot] != out.slot
        shape, dtype = trace.shape(out.value), trace.memory.tensors[out.slot].dtype
        if shape and dtype in (torch.float32, torch.float64) and not written:
            graphs[number] = _graphs_of_rows(nodes, out.value, shape, layout)
        if graphs[number] is None and (BIASES in lines or not all(lines.values())):
            return None
    return graphs


def _inputs_have_ids(plan: ReplayPlan, nodes: NodeIds) -> bool:
    """Whether the ids of all inputs from which signals come are known."""
    values = map(plan.trace.flow.slot_of_value.index, plan.trace.inputs)
    return all(value in nodes.by_value for value in values if plan.signal[value])


def _graphs_of_rows(
    nodes: NodeIds | None, value: int, shape: torch.Size, layout: NodeLayout
) -> GraphsAlongAxis | None:
    """Return the graphs of a value's rows, along the first axis where all entries agree."""
    if nodes is None:
        return GraphsAlongAxis(0, None)
    if (ids := nodes.by_value.get(value)) is None:
        return None
    graph = nodes.graph(ids.query)
    for axis, length in enumerate(shape):
        behind = (1,) * (len(shape) - axis - 1)
        for graphs in _candidates(graph, axis, length, len(shape), layout):
            rows = graphs.view(-1, *behind)
            if bool(((graph == rows) | (graph == NONE)).all()):
                return GraphsAlongAxis(axis, graphs)
    return None


def _candidates(
    graph: Tensor, axis: int, length: int, dim: int, layout: NodeLayout
) -> Iterator[Tensor]:
    """Yield what the graphs (length,) of the rows along an axis may be.

    Padding has no graph. So if some rows are padding alone, all are tried that may follow each
    other in a batch: the graphs or their nodes, once or several times.
    """
    if graph.dim() == dim:
        rows = graph.movedim(axis, 0).flatten(1).amax(1).expand(length)
        if bool((rows >= 0).all()):
            yield rows
    graphs = torch.arange(len(layout.mask), device=layout.graph.device)
    if length == len(layout.graph):
        yield layout.graph
    if length % len(graphs) == 0:
        yield graphs.repeat(length // len(graphs))
        yield graphs.repeat_interleave(length // len(graphs))
