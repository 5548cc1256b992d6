"""What each graph of a batch has of the biases, summed row by row where they are added.

A bias that is added to the rows of a batch has the share `sum_r b . g_r`, where `g_r` is the
gradient at row r. Hooks see these gradients when they pass, and `row_graphs` says which graph a row
belongs to.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from .autograd_graph import CONSTANT, AutogradGraph, GraphTrace, Node
from .pass_request import NODES, PassRequest
from .replay_plan import ReplayPlan
from .row_graphs import RowGraphs, find_row_graphs
from .trace import refs_in
from .vocabulary import ADDITIVE

_BY_CHANNEL = {"native_batch_norm", "native_group_norm"}  # the second axis has the channels


class RowAddition(NamedTuple):
    """A parameter that an operation adds to each row of its result.

    Args:
        operation, result: the number of the operation, and the value that it makes.
        parameter: the place of the parameter's node in the graph.
        of_batch_norm: whether the shift by a mean is added, too.
        by_channel: whether its entries belong to the second axis of the result, not to the last.
    """

    operation: int
    result: int
    parameter: int
    of_batch_norm: bool
    by_channel: bool


class RowSumPlan(NamedTuple):
    """Where parameters are added, and how the graphs of the rows there follow.

    Args:
        roots: the values of the inputs by bit.
        output: the value of the output.
    """

    additions: tuple[RowAddition, ...]
    graphs: RowGraphs
    roots: Mapping[int, int]
    output: int


def plan_row_sums(
    request: PassRequest, graph: AutogradGraph, trace: GraphTrace, plan: ReplayPlan
) -> RowSumPlan | None:
    """Plan the sums, or return None if the graph of a row is unclear or a parameter is moved."""
    additions: list[RowAddition] = []
    for addition in _additions(trace, plan):
        if addition is None:
            return None
        additions.append(addition)
    roots = {
        graph.bits[graph.nodes[place]]: value
        for value, (place, _) in trace.results.items()
        if graph.nodes[place] in graph.bits
    }
    (output,) = (ref.value for ref in refs_in(trace.output))
    at_ends = graphs_at_the_ends(request, roots, output)
    wanted = {addition.result for addition in additions}
    if at_ends is None:
        return None
    places = trace.places
    graphs = find_row_graphs(trace, wanted, at_ends, lambda number: graph.nodes[places[number]])
    return None if graphs is None else RowSumPlan(tuple(additions), graphs, roots, output)


def _additions(trace: GraphTrace, plan: ReplayPlan) -> Iterator[RowAddition | None]:
    """Yield where parameters are added to signals as they are, and None where they are not."""
    for op in plan.passing:
        of_batch_norm = op.name == "native_batch_norm"
        for place in (2,) if of_batch_norm else ADDITIVE.get(op.name, ()):
            for ref in refs_in(op.args[place : place + 1]):
                if plan.signal[ref.value] or ref.slot == CONSTANT:
                    continue
                scale = op.kwargs.get("beta" if op.name == "addmm" else "alpha", 1)
                if op.name not in _ADDING or ref.value not in trace.parameters or scale != 1:
                    yield None
                    continue
                yield RowAddition(
                    op.number,
                    op.out,
                    trace.results[ref.value][0],
                    of_batch_norm,
                    op.name in _BY_CHANNEL,
                )


_ADDING = {"add", "addmm", "native_layer_norm"} | _BY_CHANNEL


def graphs_at_the_ends(
    request: PassRequest, roots: Mapping[int, int], output: int
) -> dict[int, Tensor] | None:
    """Return the graphs of inputs and of the output, by value, or None if an input has none."""
    count = torch.arange(len(request.layout.mask), device=request.layout.graph.device)
    at_ends = {output: count[:, None]}
    for bit, value in roots.items():
        tensor = request.rows if bit == NODES else request.others[request.names[bit]]
        if bit == NODES:
            graphs = request.layout.graph if tensor.dim() == 2 else count
        else:
            of_input = request.graphs_of(request.names[bit])
            if of_input is None:
                return None
            graphs = of_input
        if len(graphs) != len(tensor):
            return None
        at_ends[value] = graphs.view(-1, *(1,) * (tensor.dim() - 1))
    return at_ends


class RowSums:
    """Sums `b . g_r` for all rows of a pass, by the graphs of the rows.

    Hooks on the nodes hold it. It must hold neither a node nor a tensor with a gradient.
    """

    def __init__(self) -> None:
        self._graphs: dict[int, Tensor] = {}
        self._sums: dict[int, Tensor] = {}

    def watch(self, node: Node, constant: Tensor, graphs: Tensor) -> None:
        """Let the gradient at the result of a node be summed.

        Args:
            constant: what the node adds, with the last axes of its result.
            graphs: those of the result.
        """
        self._graphs[id(graphs)] = graphs
        lengths, sums = graphs.shape, self._sums
        key, flat = id(graphs), constant.dim() == 1 and lengths[-1:] == (1,)

        def hook(arriving: tuple[Tensor | None, ...]) -> None:
            if arriving[0] is None:
                return
            gradient = arriving[0].detach()
            added = constant.to(gradient)
            if flat and gradient.shape[-1:] == added.shape:
                of_rows = (gradient @ added)[..., None]
            else:
                of_rows = gradient * added
            along = [k for k, length in enumerate(lengths) if length < of_rows.shape[k]]
            of_rows = of_rows.sum(along, keepdim=True) if along else of_rows
            before = sums.get(key)
            sums[key] = of_rows if before is None else before + of_rows

        node.register_prehook(hook)

    def by_graph(self, count: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sums of each graph (B,) and that of entries of no graph, and forget them.

        Args:
            count: the number of graphs B.
            like: a tensor of the type that sums have if there are none.
        """
        totals = like.new_zeros(count + 1)
        for key, of_rows in self._sums.items():
            graphs = self._graphs[key].expand(of_rows.shape).flatten()
            totals = totals.index_add(0, graphs.remainder(count + 1), of_rows.flatten().to(totals))
        self._sums.clear()
        return totals[:count], totals[count]
