"""Where the indices in a pass come from: the batch vector, which names graphs, or the edges.

By its values alone an index of groups does not tell graphs from nodes: in a batch of graphs of one
node each the two have the same numbers. Sizes of graphs, or where they begin, are followed too: a
model may make a batch vector of them.

Rows of nodes that a model has sorted are followed as well: attention between them is recorded where
the nodes stand in the input.
"""

from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from .trace import tensors_in
from .vocabulary import GATHERED_SUMS, SAME_VALUES

Origin = Literal["graphs", "edges", "sizes"]

_COUNTS = {"bincount", "unique", "unique_consecutive"}  # of a batch vector: its graphs' sizes
_BY_SIZES = {"repeat_interleave", "bucketize", "searchsorted"}  # make a batch vector of sizes
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
    """What the integers of a pass name, as far as it is known."""

    def __init__(self, nodes: int | None = None) -> None:
        self._known = WeakTensorKeyDictionary()
        self._nodes = nodes  # how many rows of nodes there are, where that is known
        self._orders = WeakTensorKeyDictionary()  # which node stands in each row, if sorted

    def of(self, index: Tensor) -> Origin | None:
        """Graphs, nodes as ends of edges, or sizes of graphs; None where none of it is known."""
        found: Origin | None = self._known.get(index)
        return found

    def note(self, index: Any, origin: Origin) -> None:
        """The index comes from there; what is no tensor is passed over."""
        if isinstance(index, Tensor):
            self._known[index] = origin

    def copy(self, index: Tensor, other: Tensor) -> Tensor:
        """`other`, which holds numbers of the index, comes from where that does."""
        origin = self.of(index)
        if origin is not None:
            self._known[other] = origin
        return other

    def order(self, value: Tensor) -> Tensor | None:
        """(n,): the node in each of the rows that this was computed of; None: in the input's."""
        found: Tensor | None = self._orders.get(value)
        return found

    def order_among(self, values: tuple[Any, ...]) -> Tensor | None:
        """`order` of the first of the tensors of which it is known."""
        if not self._orders:
            return None
        found = (self.order(tensor) for tensor in tensors_in(values))
        return next((order for order in found if order is not None), None)

    def follow(self, name: str, args: Any, kwargs: Any, out: Any) -> None:
        """An operation was done: note where integers come from, and how rows of nodes stand."""
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
        """The index (n,), or a column of one (n, D), by which rows of all nodes change places."""
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
        """What is gathered names what it named before."""
        made = [t for t in tensors_in([out]) if t.dtype == torch.long]
        if not made or not self._known:
            return
        inputs = list(tensors_in((*args, *kwargs.values())))
        origin = _made_by(name, [self.of(t) for t in inputs])
        if origin is not None:
            for tensor in made:
                self._known[tensor] = origin


def _made_by(name: str, inputs: list[Origin | None]) -> Origin | None:
    """What the integers name that an operation makes of tensors with these origins."""
    if name in _BY_SIZES and "sizes" in inputs:
        return "graphs"
    found = set(inputs[:1] if name in _GATHERS else inputs)
    if "edges" in found:
        return "edges"
    if "graphs" in found and name in SAME_VALUES | _GATHERS:
        return "graphs"
    counted = name in _COUNTS | GATHERED_SUMS and "graphs" in found
    return "sizes" if counted or "sizes" in found else None
