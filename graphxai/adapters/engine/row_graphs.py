"""Which graph of a batch the entries of a value belong to, as the autograd graph of a pass shows.

The rows of the nodes, of other inputs and of the outputs have known graphs. No graph of a batch
depends on another one, so that what an operation reads and makes belongs to the same graph. The
graphs of entries can therefore be followed through operations in both directions: a row that is
selected has the graph of its source, and what rows are summed into has that of its terms.

The graphs of a value are integers in a tensor with the axes of the value. An axis has the length 1
if all entries along it belong to the same graph. Entries that may belong to none, such as padding,
are `NONE`. The steps are found once for a plan (`find_row_graphs`). Later passes repeat those that
lead to the values in question.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from .autograd_graph import GraphTrace, Node
from .row_moves import CHOICES, ENTRY_BY_ENTRY, SUMS_BY_INDEX, Move, moved
from .trace import WEIGHTS, Op, Ref, refs_in

NodeOf: TypeAlias = Callable[[int], Node]  # the node of an operation, by its number
ShapeOf: TypeAlias = Callable[[int], torch.Size]  # the shape of a value


class Step(NamedTuple):
    """How the graphs of a value follow from those of another value of the same operation.

    Args:
        source, target: the values.
        operation, name: the number of the operation, and its name.
        place: where the argument stands that is the source if `forward` is True, else the target.
    """

    source: int
    target: int
    operation: int
    name: str
    place: int
    forward: bool

    @property
    def may_leave_entries(self) -> bool:
        """Whether the target may have entries that the source has not, so that they get `NONE`."""
        if self.name in CHOICES:
            return not self.forward
        return self.name in SUMS_BY_INDEX and self.forward and self.place > 0

    def follow(self, graphs: Tensor, node_of: NodeOf, shape_of: ShapeOf) -> Tensor | None:
        """Return the graphs of the target, given those of the source, or None if unclear."""
        source, target = shape_of(self.source), shape_of(self.target)
        if source == target and self.name in ENTRY_BY_ENTRY:  # most steps are of this kind
            return graphs
        node = node_of(self.operation)
        move = Move(node, graphs, source, target, self.place, self.forward)
        return moved(self.name, move)


class RowGraphs(NamedTuple):
    """How the graphs of some values follow from those of inputs and outputs.

    Args:
        steps: each after those that it needs.
        values: the values in question.
    """

    steps: tuple[Step, ...]
    values: frozenset[int]

    def of_pass(
        self, graphs_at_ends: Mapping[int, Tensor], node_of: NodeOf, shape_of: ShapeOf
    ) -> dict[int, Tensor] | None:
        """Return the graphs of the values in a pass, or None if they are unclear.

        Args:
            graphs_at_ends: the graphs of inputs and outputs, by value.
        """
        graphs = dict(graphs_at_ends)
        for step in self.steps:
            target = step.follow(graphs[step.source], node_of, shape_of)
            if target is None:
                return None
            graphs[step.target] = target
        return {value: graphs[value] for value in self.values}


def find_row_graphs(
    trace: GraphTrace,
    wanted: Collection[int],
    graphs_at_ends: Mapping[int, Tensor],
    node_of: NodeOf,
) -> RowGraphs | None:
    """Find out how the graphs of some values follow from those of inputs and outputs.

    Returns None if the graphs of a value are unclear, or if two ways to it do not agree.

    Args:
        graphs_at_ends: the graphs of inputs and outputs, by value.
    """
    graphs, ways, todo = dict(graphs_at_ends), dict[int, Step](), deque(graphs_at_ends)
    incomplete, tried = deque[Step](), set[Step]()  # taken only where no other step leads
    while todo or incomplete:
        possible = _steps_from(trace, todo.popleft()) if todo else iter([incomplete.popleft()])
        for step in possible:
            is_new = step.target not in graphs
            if is_new and step.may_leave_entries and step not in tried:
                tried.add(step)
                incomplete.append(step)
                continue
            target = step.follow(graphs[step.source], node_of, trace.shape)
            if target is None:
                continue
            if is_new:
                graphs[step.target], ways[step.target] = target, step
                todo.append(step.target)
            elif target is not graphs[step.target] and not _agree(target, graphs[step.target]):
                return None
    if not graphs.keys() >= set(wanted):
        return None
    steps: dict[int, Step] = {}
    for value in wanted:
        _collect(value, ways, steps)
    return RowGraphs(tuple(steps.values()), frozenset(wanted))


def _agree(first: Tensor, second: Tensor) -> bool:
    """Whether entries that both say belong to a graph belong to the same one."""
    return bool(((first == second) | (first < 0) | (second < 0)).all())


def _collect(value: int, ways: Mapping[int, Step], steps: dict[int, Step]) -> None:
    """Add the steps that lead to a value, in their order."""
    path: list[Step] = []
    while value in ways and value not in steps:
        path.append(ways[value])
        value = ways[value].source
    steps |= {step.target: step for step in reversed(path)}


def _steps_from(trace: GraphTrace, value: int) -> Iterator[Step]:
    """Yield the steps from a value to the others of the operations that make it or read it."""
    if (maker := trace.op_of(value)) is not None:
        for place, ref in _arguments(maker):
            if ref.value != value and trace.flow.live[ref.value] & ~WEIGHTS:
                yield Step(value, ref.value, maker.number, maker.name, place, forward=False)
    for number in trace.flow.uses[value]:
        op = trace.ops[number]
        for place in {place for place, ref in _arguments(op) if ref.value == value}:
            for ref in op.makes:
                if trace.flow.live[ref.value] & ~WEIGHTS:
                    yield Step(value, ref.value, number, op.name, place, forward=True)


def _arguments(op: Op) -> Iterator[tuple[int, Ref]]:
    """Yield the tensors among the arguments of an operation, each with its place."""
    for place, arg in enumerate(op.args):
        for ref in refs_in(arg):
            yield place, ref
