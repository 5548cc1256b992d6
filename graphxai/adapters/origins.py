"""Where the indices in a pass come from: the batch vector, which numbers graphs, or the edges.

The values of a group index do not show whether it numbers graphs or nodes: in a batch of graphs
with one node each the numbers are the same. Indices are therefore tracked through the pass. So are
sizes and offsets of graphs, from which a model may build its own batch vector.

Rows of nodes that a model has sorted are tracked as well, so that attention between them is
recorded at the nodes' input positions.
"""

from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from .trace import tensors_in
from .vocabulary import GATHERED_SUMS, SAME_VALUES

Origin = Literal["graphs", "edges", "sizes"]

_COUNTS = {"bincount", "unique", "unique_consecutive"}  # of a batch vector: its graphs' sizes
_BY_SIZES = {"repeat_interleave", "bucketize", "searchsorted"}  # turn sizes into a batch vector
_TAKES_ROWS = {"getitem", "index_select", "gather"}
_PUTS_ROWS = {
    "setitem",
    "index_copy",
    "index_copy_",
    "index_put",
    "index_put_",
    "scatter",
    "scatter_",
}
_PUTS_ROWS |= GATHERED_SUMS
_GATHERS = {"getitem", "index_select", "gather", "take", "take_along_dim", "repeat_interleave"}


class Origins:
    """What the integers of a pass refer to, as far as known."""

    def __init__(self, nodes: int | None = None) -> None:
        self._known = WeakTensorKeyDictionary()
        self._nodes = nodes  # number of node rows, if known
        self._orders = WeakTensorKeyDictionary()  # the node in each row, if sorted

    def of(self, index: Tensor) -> Origin | None:
        """Graphs, nodes as ends of edges, or sizes of graphs; None if unknown."""
        found: Origin | None = self._known.get(index)
        return found

    def note(self, index: Any, origin: Origin) -> None:
        """Note where an index comes from; anything but a tensor is ignored."""
        if isinstance(index, Tensor):
            self._known[index] = origin

    def copy(self, index: Tensor, other: Tensor) -> Tensor:
        """Give `other`, which has values of the index, the same origin."""
        origin = self.of(index)
        if origin is not None:
            self._known[other] = origin
        return other

    def order(self, value: Tensor) -> Tensor | None:
        """(n,): the node in each row that this was computed from; None: the order of the input."""
        found: Tensor | None = self._orders.get(value)
        return found

    def order_among(self, values: tuple[Any, ...]) -> Tensor | None:
        """`order` of the first tensor for which it is known."""
        if not self._orders:
            return None
        found = (self.order(tensor) for tensor in tensors_in(values))
        return next((order for order in found if order is not None), None)

    def follow(self, name: str, args: Any, kwargs: Any, out: Any) -> None:
        """After an operation, note where integers come from and how node rows are ordered."""
        self._follow_indices(name, args, kwargs, out)
        if self._orders or name in _TAKES_ROWS:
            self._follow_rows(name, args, kwargs, out)

    def _follow_rows(self, name: str, args: Any, kwargs: Any, out: Any) -> None:
        inputs = list(tensors_in((*args, *kwargs.values())))
        known = [found for t in inputs if (found := self.order(t)) is not None]
        made = [t for t in tensors_in([args[0] if name == "setitem" else out]) if t.dim()]
        made = [t for t in made if t.is_floating_point()]
        order = known[-1] if known else None
        axis = args[1] if len(args) > 1 and isinstance(args[1], int) else kwargs.get("dim", 0)
        of_rows = made and axis == 0 and name in _TAKES_ROWS | _PUTS_ROWS
        moved = self._sorted(inputs) if of_rows else None
        if moved is not None:
            taken = moved.argsort() if name in _PUTS_ROWS else moved
            order = taken if order is None else order[taken]
        if order is None:
            return
        as_before = bool((order[1:] > order[:-1]).all())
        for tensor in made:
            if as_before:
                self._orders.pop(tensor, None)
            else:
                self._orders[tensor] = order

    def _sorted(self, inputs: list[Tensor]) -> Tensor | None:
        """The index (n,), or a column of one (n, D), that permutes the rows of all nodes."""
        if not inputs or inputs[0].dim() == 0 or len(inputs[0]) != self._nodes:
            return None
        for index in inputs[1:]:
            if index.dtype != torch.long or index.dim() not in (1, 2) or len(index) != self._nodes:
                continue
            if self.of(index) == "edges" or not index.numel():
                continue
            index = index.flatten(1)[:, 0] if index.dim() == 2 else index
            rows = torch.arange(len(index), device=index.device)
            if not torch.equal(index, rows) and torch.equal(index.sort().values, rows):
                return index
        return None

    def _follow_indices(self, name: str, args: Any, kwargs: Any, out: Any) -> None:
        """Gathered values refer to the same things as before."""
        made = [t for t in tensors_in([out]) if t.dtype == torch.long]
        if not made or not self._known:
            return
        inputs = list(tensors_in((*args, *kwargs.values())))
        origin = _made_by(name, [self.of(t) for t in inputs])
        if origin is not None:
            for tensor in made:
                self._known[tensor] = origin


def _made_by(name: str, inputs: list[Origin | None]) -> Origin | None:
    """What an operation's integer results refer to, given the origins of its inputs."""
    if name in _BY_SIZES and "sizes" in inputs:
        return "graphs"
    found = set(inputs[:1] if name in _GATHERS else inputs)
    if "edges" in found:
        return "edges"
    if "graphs" in found and name in SAME_VALUES | _GATHERS:
        return "graphs"
    counted = name in _COUNTS | GATHERED_SUMS and "graphs" in found
    return "sizes" if counted or "sizes" in found else None
