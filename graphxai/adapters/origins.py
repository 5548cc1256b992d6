"""Where the indices in a pass come from: the batch vector, which names graphs, or the edges.

By its values alone an index of groups does not tell graphs from nodes: in a batch of graphs of one
node each the two have the same numbers. Sizes of graphs, or where they begin, are followed too: a
model may make a batch vector of them.
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
_GATHERS = {"getitem", "index_select", "gather", "take", "take_along_dim", "repeat_interleave"}


class Origins:
    """What the integers of a pass name, as far as it is known."""

    def __init__(self) -> None:
        self._known = WeakTensorKeyDictionary()

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

    def follow(self, name: str, args: Any, kwargs: Any, out: Any) -> None:
        """An operation made integers. What is gathered names what it named before."""
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
