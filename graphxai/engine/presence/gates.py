"""Find where a recorded pass combines the entries of several nodes, so that some can be left out.

What a node gives to its own row is never left out, so that the rows of absent nodes stay defined.
"""

from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

from graphxai.engine import operations as kinds
from graphxai.engine.attention.node_ids import NONE, EntryIds, NodeIds, aligned
from graphxai.engine.attention.node_tracker import by_entry, reduced_axes
from graphxai.engine.flow_queries import index_of, users
from graphxai.engine.trace import Op, Ref, Trace

OVER_AXES = kinds.that("gated")
CLOSED = kinds.that("closed")  # they combine entries along an axis, and cannot leave some out
BY_GROUP = kinds.that("by_group")
KEEPS_ZERO = kinds.SAME - kinds.that("puts") | kinds.that("keeps_zero")


@dataclass(frozen=True)
class Groups:
    """Says how an operation sends entries to groups by an index along one axis.

    Args:
        place: that of the entries among the arguments.
        way: "sum", "mean", "amax", "amin", "prod", or "last" of assignments.
        with_base: whether the entries of the tensor that is written to count.
    """

    dim: int
    index: Ref
    place: int
    way: str = "sum"
    with_base: bool = True

    @classmethod
    def of(cls, op: Op) -> "Groups | None":
        """Return the groups of an operation, or None if it does not combine entries by an index."""
        row = kinds.OPERATIONS[op.name]
        if row.source is None or type(op.args[row.source]) is not Ref:
            return None
        dim, index = op.args[1], index_of(op)
        if type(index) is not Ref:
            places = [k for k, of_axis in enumerate(index) if type(of_axis) is Ref]
            way = "sum" if any(arg is True for arg in op.args[3:4]) else "last"
            return cls(places[0], index[places[0]], row.source, way) if len(places) == 1 else None
        if row.nodes != "grouped":
            return cls(dim, index, row.source, "last")
        way = next((arg for arg in op.args[4:] if isinstance(arg, str)), "sum")
        flags = [op.kwargs.get("include_self"), *op.args[5:]]
        return cls(dim, index, row.source, way, not any(flag is False for flag in flags))


@dataclass(eq=False)
class Gate:
    """An operation that leaves out the entries of absent nodes.

    Args:
        nodes: for each entry the places of one or two nodes among all presences. The last place
            stands for none. The shapes broadcast to that of the entries.
        place: that of the tensor with these entries among the arguments.
        divisor: the number of the gated sum by which its result, or each term, is divided.
        quotient: if its own result is such a sum, where it divides: the number of the operation,
            the place of the divisor, and whether that is a reciprocal.
    """

    op: Op
    nodes: tuple[Tensor, ...]
    place: int = 0
    divisor: int | None = None
    quotient: tuple[int, int, bool] | None = None

    def of_entries(self, presence: Tensor) -> Tensor:
        """Return the presence of the entries, for the presences (P,) of all nodes and a one."""
        return reduce(torch.mul, (presence[places] for places in self.nodes))

    def axes(self, count: int) -> tuple[int, ...]:
        """Return the axes over which `count` axes of entries are summed; none if by an index."""
        if self.op.name in kinds.MATRIX_PRODUCTS:
            return (count - 1 - self.place + (self.op.name in kinds.PLUS_PRODUCT),)
        return reduced_axes(self.op, count) if self.op.name in OVER_AXES else ()


class GateFinder:
    """Finds the operations of a pass that combine the entries of several nodes.

    Args:
        nodes: the ids of its values, from `StructureTracker`.
        places: the number of presences, one for each token of each graph.

    Attributes:
        gates: by the numbers of their operations.
        without: the operations that have none, as text.
    """

    def __init__(self, trace: Trace, nodes: NodeIds, places: int) -> None:
        self.trace, self.nodes, self.places = trace, nodes, places
        self.gates: dict[int, Gate] = {}
        self.without: list[str] = []
        self._vanishing: set[int] = set()  # values that are zero where a sender is absent
        for op in trace.ops:
            self._visit(op)

    def _visit(self, op: Op) -> None:
        """Add a gate for an operation if it combines nodes, or note that it has none."""
        if not op.makes or not (self._is_real(op.makes[0]) or self._only_divides(op)):
            return
        if op.name in kinds.SOFTMAX | kinds.LOG_SOFTMAX:
            dim = op.args[1] % max(len(self.trace.shape(op.args[0].value)), 1)
            self._gate(op, self._along(op, op.args[0], (dim,)))
            if op.name in kinds.SOFTMAX and op.number in self.gates:
                self._vanishing.add(op.out)
        elif op.name in OVER_AXES:
            self._over_axes(op)
        elif (groups := Groups.of(op)) is not None:
            self._into_groups(op, groups)
        elif kinds.OPERATIONS[op.name].nodes == "product":
            self._product(op)
        elif op.name in KEEPS_ZERO:
            reads = [ref.value for ref in op.reads if self._is_real(ref)]
            some = any if op.name in kinds.TIMES else all
            if reads and some(value in self._vanishing for value in reads):
                self._vanishing.update(ref.value for ref in op.makes)
        elif op.name in kinds.QUOTIENTS:
            if op.reads[0].value in self._vanishing:
                self._vanishing.add(op.out)
        elif op.name in CLOSED and self._combines(op):
            self._refuse(op)

    def _is_real(self, ref: Ref) -> bool:
        return self.trace.memory.tensors[ref.slot].dtype.is_floating_point

    def _only_divides(self, op: Op) -> bool:
        """Whether an operation counts entries, as of a mask, and its results only divide others."""
        by = [op.name for op, _ in users(self.trace, op.out, kinds.WHOLE | kinds.CLAMPS)]
        return op.name in kinds.SUMS & OVER_AXES and {*by} <= kinds.SCALINGS

    def _ids(self, value: int) -> EntryIds | None:
        while value not in self.nodes.by_value and value in self.trace.flow.merged:
            value, _ = self.trace.flow.merged[value]
        return self.nodes.by_value.get(value)

    def suspects(self) -> list[str]:
        """Say where nodes may not be left out as the model does it, if nowhere for certain.

        That is where their ids are lost first, or else where rows of nodes are pooled.
        """
        ids = {op: self._ids(op.out) for op in self.trace.ops if op.makes}
        lost = [op for op in ids if self.trace.flow.live[op.out] & 1 and not ids[op]]
        gated = [(gate.op, ids[gate.op]) for gate in self.gates.values()]
        pools = [op for op, of_op in gated if of_op and not self._is_node(of_op.query).any()]
        where = [f"{op.path or 'the model'}: {op.name}" for op in lost[:1] or pools]
        return where or ["the model"]

    def _refuse(self, op: Op) -> None:
        self.without.append(f"{op.path or 'the model'}: {op.name}")

    def _gate(self, op: Op, nodes: list[Tensor] | None, place: int = 0) -> None:
        """Add a gate, if any entry needs the presence of a node."""
        if not nodes:
            return
        places = tuple(torch.where(self._is_node(ids), ids, self.places) for ids in nodes)
        if any(bool((place < self.places).any()) for place in places):
            self.gates[op.number] = Gate(op, places, place)

    def _is_node(self, ids: Tensor) -> Tensor:
        return (ids >= 0) & (ids % self.nodes.tokens > 0)

    def _senders(self, parts: list[Tensor], receiver: Tensor | None) -> list[Tensor]:
        """Return the ids of the nodes of entries, NONE where a node is the receiver."""
        if receiver is None:
            return parts
        return [torch.where(part == receiver, NONE, part) for part in parts]

    def _parts(self, value: int, dims: int) -> list[Tensor]:
        """Return the ids of one or two nodes of the entries of a value, with this many axes."""
        ids = self._ids(value)
        if ids is None:
            return []
        parts = [ids.query] if ids.key is None else [ids.query, ids.key]
        return [aligned(part, dims) for part in parts]

    def _along(self, op: Op, ref: Ref, dims: tuple[int, ...]) -> list[Tensor] | None:
        """Return the ids of senders that an operation combines along some axes."""
        if ref.value in self._vanishing and op.name not in kinds.SOFTMAX:
            return None
        parts = self._parts(ref.value, len(self.trace.shape(ref.value)))
        vary = [part for part in parts if any(part.shape[dim] > 1 for dim in dims)]
        fixed = [part for part in parts if all(part.shape[dim] == 1 for dim in dims)]
        for receiver in fixed:
            vary = self._senders(vary, receiver)
        return vary

    def _combines(self, op: Op) -> bool:
        """Whether an operation that cannot be gated may combine nodes."""
        ref = op.reads[0]
        parts = self._parts(ref.value, len(self.trace.shape(ref.value)))
        out = self._parts(op.out, len(self.trace.shape(op.out)))
        if not parts or ref.value in self._vanishing:
            return False
        if not out:
            return True
        if op.name in kinds.NORMS:
            normed = range(len(self.trace.shape(ref.value)) - len(op.args[1]), 0)
            return op.name in BY_GROUP or any(
                part.shape[dim] > 1 for part in parts for dim in normed
            )
        return any(bool(self._is_node(part).any()) for part in parts) and not all(
            torch.equal(a, b) for a, b in zip(parts, out, strict=False)
        )

    # -- kinds of operations -------------------------------------------------------------------

    def _over_axes(self, op: Op) -> None:
        ref = op.reads[0]
        dims = reduced_axes(op, len(self.trace.shape(ref.value)))
        nodes = self._along(op, ref, dims)
        if nodes and op.name in kinds.LARGEST and len(dims) != 1:
            self._refuse(op)
        else:
            self._gate(op, nodes)

    def _into_groups(self, op: Op, groups: Groups) -> None:
        """Gate the sum, mean or maximum of entries that an index sends to groups."""
        source = op.args[groups.place].value
        shape = self.trace.shape(source)
        if not shape:
            return
        dim = groups.dim % len(shape)
        of_index_ids = self._ids(groups.index.value)
        of_edges = of_index_ids is not None and of_index_ids.key is not None
        index = self.trace.memory.tensors[groups.index.slot]
        if index.dtype == torch.bool or not (of_edges or op.name in kinds.GATHERED):
            return  # entries are put somewhere else, but do not pass from node to node
        ids = self._parts(source, len(shape))
        of_index = self.trace.shape(groups.index.value)
        if not ids:
            ids = self._parts(groups.index.value, len(of_index))
            if len(of_index) < len(shape):
                after = len(shape) - dim - 1
                ids = [aligned(part.reshape(-1, *[1] * after), len(shape)) for part in ids]
        if not ids or source in self._vanishing:
            return
        by_channel = index.transpose(0, dim).flatten(1) if index.dim() > 1 else index[:, None]
        if groups.way == "prod" or not bool((by_channel == by_channel[:, :1]).all()):
            self._refuse(op)
            return
        receivers = self._parts(op.out, len(shape))
        receiver = receivers[0] if len(receivers) == 1 else None
        if receiver is not None and receiver.shape[dim] > 1:
            receiver = receiver.index_select(dim, by_entry(index, dim))
        self._gate(op, self._senders(ids, receiver), groups.place)

    def _product(self, op: Op) -> None:
        """Gate a product of matrices that sums over nodes."""
        first = int(op.name in kinds.PLUS_PRODUCT)
        left, right = op.args[first : first + 2]
        if {left.value, right.value} & self._vanishing:
            return
        shapes = [self.trace.shape(ref.value) for ref in (left, right)]
        if len(shapes[1]) == 1 and len(shapes[0]) == 1:
            parts = self._parts(left.value, 1) or self._parts(right.value, 1)
            self._gate(op, [part for part in parts if part.shape[-1] > 1], first)
            return
        parts = self._parts(left.value, len(shapes[0]))
        inner = parts if any(part.shape[-1] > 1 for part in parts) else []
        if not inner:  # the nodes are in the rows of the second factor
            rows = self._parts(right.value, max(len(shapes[1]), 2))
            if len(shapes[1]) == 1:
                rows = [part.mT for part in rows]
            inner = [part.mT[..., :1, :] for part in rows if part.shape[-2] > 1]
            if len(rows) == 2 and any(part.shape[-1] > 1 for part in rows) and inner:
                self._refuse(op)
                return
        if not inner:
            return
        out = self._parts(op.out, len(self.trace.shape(op.out)))
        receiver = None
        if len(out) == 1 and len(shapes[1]) > 1 and out[0].shape[-1] > 1 == out[0].shape[-2]:
            # the receivers are columns, so that entries of the second factor have a sender each
            senders = self._senders([part[..., :1, :].mT for part in inner], out[0])
            self._gate(op, senders, first + 1)
            return
        if out:
            receiver = out[0][..., None] if len(shapes[1]) == 1 else out[0][..., :1]
        self._gate(op, self._senders(inner, receiver), first)
