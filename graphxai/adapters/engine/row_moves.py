"""How the graphs of entries move between an argument of an operation and its result.

See `row_graphs` for what the graphs of a value are. Each function takes a move, in one direction or
the other, and returns the graphs of its target. It returns None if they do not follow.
"""

from collections.abc import Callable, Sequence
from math import prod
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from .autograd_graph import Node, saved
from .vocabulary import ENTRYWISE, NORMS, SOFTMAX

NONE = -1


class Move(NamedTuple):
    """A step in one pass.

    Args:
        node: the node of the operation.
        graphs: those of the source.
        source, target: the shapes of both values.
        place: where the argument stands.
        forward: whether the argument is the source; else it is the target.
    """

    node: Node
    graphs: Tensor
    source: torch.Size
    target: torch.Size
    place: int
    forward: bool


MoveGraphs: TypeAlias = Callable[[Move], Tensor | None]


def moved(operation: str, move: Move) -> Tensor | None:
    """Return the graphs of the target of a move through an operation, or None if unclear."""
    function = _MOVES.get(operation)
    return None if function is None else function(move)


def _aligned(move: Move) -> Tensor | None:
    """Move through an operation entry by entry, whose arguments may be broadcast."""
    graphs, source, target = move.graphs, move.source, move.target
    if source == target:
        return graphs
    while len(source) < len(target):
        graphs, source = graphs[None], torch.Size((1, *source))
    while len(source) > len(target):
        if graphs.shape[0] > 1:
            return None
        graphs, source = graphs[0], source[1:]
    uneven = (k for k, (a, b) in enumerate(zip(source, target, strict=True)) if a != b)
    return graphs if all(graphs.shape[k] == 1 for k in uneven) else None


def _viewed(move: Move) -> Tensor | None:
    """Move through an operation that keeps the order of all entries."""
    lengths = move.graphs.shape
    least = max((k + 1 for k, length in enumerate(lengths) if length > 1), default=0)
    for several in range(least, len(lengths) + 1):  # the first axes, which must stay together
        entries = prod(move.source[:several])
        for axes in range(len(move.target) + 1):
            if prod(move.target[:axes]) == entries:
                behind = len(lengths) - several
                wide = move.graphs.expand(*move.source[:several], *(1,) * behind)
                return wide.reshape(*move.target[:axes], *(1,) * (len(move.target) - axes))
    return None


def _transposed(move: Move) -> Tensor | None:
    dims = saved(move.node, "dim0"), saved(move.node, "dim1")
    return move.graphs.transpose(*dims)


def _turned(move: Move) -> Tensor | None:
    return move.graphs.t()


def _permuted(move: Move) -> Tensor | None:
    dims = [dim % len(move.source) for dim in saved(move.node, "dims")]
    return move.graphs.permute(dims if move.forward else [dims.index(k) for k in range(len(dims))])


def _rows_times_matrix(first: int) -> MoveGraphs:
    """Return the move through a product whose factor at the place `first` has the rows."""

    def through(move: Move) -> Tensor | None:
        if move.place < first:  # this argument is added
            return _aligned(move)
        return move.graphs if move.place == first and move.graphs.shape[1] == 1 else None

    return through


def _batch_of_products(first: int) -> MoveGraphs:
    """Return the move through products of matrices, one for each entry of the first axis."""

    def through(move: Move) -> Tensor | None:
        if move.place < first:
            return _aligned(move)
        rows = move.place == first and move.graphs.shape[2] == 1
        return move.graphs if rows or move.graphs.shape[1:] == (1, 1) else None

    return through


def _reduced(move: Move) -> Tensor | None:
    """Move through a sum or a choice along axes, all of whose terms belong to one graph."""
    if not hasattr(move.node, "_saved_dim"):
        return None
    dim = saved(move.node, "dim")
    whole = move.source if move.forward else move.target
    dims = sorted(d % len(whole) for d in (dim if isinstance(dim, tuple) else (dim,)))
    graphs = move.graphs
    if move.forward and any(graphs.shape[d] > 1 for d in dims):  # some may be padding
        most = graphs.amax(dims, keepdim=True)
        if not bool(((graphs == most) | (graphs == NONE)).all()):
            return None
        graphs = most
    if saved(move.node, "keepdim"):
        return graphs
    for d in dims if not move.forward else reversed(dims):
        graphs = graphs.squeeze(d) if move.forward else graphs.unsqueeze(d)
    return graphs


def _along_one_axis(move: Move) -> Tensor | None:
    """Move through an operation that joins or divides values along an axis of one graph each."""
    dim = saved(move.node, "dim") % len(move.target)
    if len(move.source) != len(move.target) or move.graphs.shape[dim] > 1:
        return None
    return _aligned(move)


def _sliced(move: Move) -> Tensor | None:
    dim = saved(move.node, "dim") % len(move.source)
    start, end, step = (saved(move.node, name) for name in ("start", "end", "step"))
    taken = [slice(None)] * dim + [slice(start, end, step)]
    if move.forward:
        return move.graphs if move.graphs.shape[dim] == 1 else move.graphs[tuple(taken)]
    whole = _nowhere(move, [dim])
    whole[tuple(taken)] = move.graphs
    return whole


def _selected(move: Move) -> Tensor | None:
    index = saved(move.node, "index")
    dim = saved(move.node, "dim") % max(len(move.source), len(move.target))
    if move.forward:
        return move.graphs.select(dim, index if move.graphs.shape[dim] > 1 else 0)
    whole = _nowhere(move, [dim], move.graphs.unsqueeze(dim))
    whole.select(dim, index).copy_(move.graphs)
    return whole


def _nowhere(move: Move, dims: Sequence[int], like: Tensor | None = None) -> Tensor:
    """Return graphs of the target that are `NONE`, with several entries along some axes."""
    lengths = list((move.graphs if like is None else like).shape)
    for dim in dims:
        lengths[dim] = move.target[dim]
    return move.graphs.new_full(lengths, NONE)


def _rows_chosen(move: Move) -> Tensor | None:
    """Move through a choice of rows by an index of one axis: `index_select` and `gather`."""
    return _by_index(move, to_index=move.forward)


def _rows_summed(move: Move) -> Tensor | None:
    """Move through a sum of rows into those that an index names: `scatter_add` and the like."""
    return _aligned(move) if move.place == 0 else _by_index(move, to_index=not move.forward)


def _by_index(move: Move, to_index: bool) -> Tensor | None:
    """Move to the rows that an index lists, or from them to the rows that it names."""
    dim, index = saved(move.node, "dim"), saved(move.node, "index")
    if index is None or dim is None:
        return None
    dim %= len(move.source)
    for axis in reversed(range(index.dim()) if index.dim() > 1 else ()):
        if axis != dim:  # an index that was expanded from a column
            if index.shape[axis] > 1 and index.stride(axis) != 0:
                return None
            index = index.select(axis, 0)
    if any(a != b for k, (a, b) in enumerate(zip(move.source, move.target, strict=True))
           if k != dim and max(move.graphs.shape[k], 1) > 1):  # fmt: skip
        return None
    lengths = [-1] * len(move.source)
    lengths[dim] = move.source[dim]
    wide = move.graphs.expand(lengths)
    if to_index:
        return wide.index_select(dim, index)
    return _nowhere(move, [dim]).index_copy_(dim, index, wide)


def _indexed(move: Move) -> Tensor | None:
    """Move through `x[indices]`, or through its inverse."""
    return _by_indices(move, to_indices=move.forward)


def _put(move: Move) -> Tensor | None:
    """Move through `x[indices] = values`."""
    return _aligned(move) if move.place == 0 else _by_indices(move, to_indices=not move.forward)


def _by_indices(move: Move, to_indices: bool) -> Tensor | None:
    """Move to the entries that indices of the first axes list, or from them to those they name."""
    indices = [index for index in saved(move.node, "indices") if index is not None]
    if any(index is None for index in saved(move.node, "indices")[: len(indices)]):
        return None
    named = sum(index.dim() if index.dtype == torch.bool else 1 for index in indices)
    whole, listed = (move.source, move.target) if to_indices else (move.target, move.source)
    lists = len(listed) - len(whole) + named  # the axes of what the indices list
    if lists < 0 or listed[lists:] != whole[named:]:
        return None
    wide_axes = named if to_indices else lists
    lengths = [*move.source[:wide_axes], *move.graphs.shape[wide_axes:]]
    wide = move.graphs.expand(lengths)
    if to_indices:
        return wide[tuple(indices)]
    target = wide.new_full((*whole[:named], *wide.shape[lists:]), NONE)
    return target.index_put_(tuple(indices), wide)


CHOICES = {"index_select", "gather", "index", "slice", "select"}  # they may leave entries out
SUMS_BY_INDEX = {"scatter_add", "scatter_reduce", "index_add", "index_put"}
_VIEWS = {"view", "_unsafe_view", "_reshape_alias", "unsqueeze", "squeeze"}
ENTRY_BY_ENTRY = (ENTRYWISE - _VIEWS) | NORMS | SOFTMAX | {
    "clone", "alias", "expand", "_prelu_kernel", "tril", "triu", "_log_softmax",
}  # fmt: skip
_MOVES: dict[str, MoveGraphs] = {
    **dict.fromkeys(ENTRY_BY_ENTRY, _aligned),
    **dict.fromkeys(_VIEWS, _viewed),
    **dict.fromkeys(("sum", "mean", "amax", "amin"), _reduced),
    **dict.fromkeys(("cat", "split", "split_with_sizes"), _along_one_axis),
    **dict.fromkeys(("index_select", "gather"), _rows_chosen),
    **dict.fromkeys(SUMS_BY_INDEX, _rows_summed),
    "transpose": _transposed,
    "t": _turned,
    "permute": _permuted,
    "mm": _rows_times_matrix(0),
    "addmm": _rows_times_matrix(1),
    "bmm": _batch_of_products(0),
    "baddbmm": _batch_of_products(1),
    "slice": _sliced,
    "select": _selected,
    "index": _indexed,
    "index_put": _put,
}
