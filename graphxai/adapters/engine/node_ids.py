"""Find out which node every entry of every tensor in a recorded pass belongs to.

Each entry has a node id, and the ids follow the values through the pass. An operation that only
moves entries moves their ids. A map of channels keeps them. A product of entries of two nodes
belongs to the pair of them, and a sum over nodes to their graph. So the ids of an attention matrix
say which node is the query and which the key of each entry, and no axis has to be guessed.

An id is `graph * T + token` for a node (token 0 is the graph token), `-2 - graph` for several nodes
of one graph, `NONE` for padding and constants, and `MIXED` for nodes of several graphs. A tensor of
ids has length one along each axis on which all entries have the same id.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from .trace import Op, Ref, Trace
from .vocabulary import MATRIX_PRODUCTS, PLUS_PRODUCT

NONE = -1
MIXED = -(2**60)
LARGE = 2**61  # larger than any id
VIEWS = {"view", "_unsafe_view", "reshape", "_reshape_alias"}
RESHAPES = VIEWS | {"squeeze", "unsqueeze", "clone"}
MOVES = VIEWS | {
    "expand", "transpose", "permute", "t", "unsqueeze", "squeeze", "select", "slice", "index",
    "index_select", "clone", "split", "split_with_sizes", "unbind", "gather", "_to_copy", "cat",
    "constant_pad_nd", "stack", "index_put", "scatter", "copy", "flip", "repeat", "alias",
    "detach", "diagonal", "unsafe_split", "unsafe_chunk", "roll", "lift_fresh", "slice_scatter",
    "select_scatter", "index_copy", "masked_select", "unfold", "as_strided", "tril", "triu",
    "repeat_interleave",
}  # fmt: skip
TURNS = {"transpose", "permute", "t", "unsqueeze"}
REDUCE = {"sum", "mean", "amax", "amin", "max", "min", "logsumexp", "var", "std", "any", "all",
          "linalg_vector_norm", "norm", "nansum", "prod"}  # fmt: skip
ABOUT_VALUES = ("dtype", "memory_format")  # arguments that have no meaning for ids
GATHERED = {"scatter_add", "index_add", "scatter_reduce", "index_reduce"}


@dataclass(frozen=True, eq=False)
class EntryIds:
    """The node ids of a tensor's entries.

    Args:
        key: if the entries belong to pairs of nodes, the id of the second node of each pair,
            and `query` has that of the first.
    """

    query: Tensor
    key: Tensor | None = None

    def map(self, f: Callable[[Tensor], Tensor]) -> "EntryIds":
        """Apply a function to the ids of both nodes."""
        return EntryIds(f(self.query), None if self.key is None else f(self.key))


@dataclass(eq=False)
class NodeIds:
    """The ids of the values of a pass.

    Args:
        tokens: the number T of tokens of a graph.
    """

    tokens: int
    by_value: dict[int, EntryIds] = field(default_factory=dict)

    def are_pairs(self, value: int) -> bool | None:
        """Whether a value's entries belong to pairs of nodes, or None if it has no ids."""
        ids = self.by_value.get(value)
        return None if ids is None else ids.key is not None

    def graph(self, ids: Tensor) -> Tensor:
        """Return the graph of each id, but `NONE` and `MIXED` as they are."""
        of_node = ids.div(self.tokens, rounding_mode="floor")
        graph = torch.where(ids >= 0, of_node, -2 - ids)
        return torch.where((ids == NONE) | (ids == MIXED), ids, graph)


def track_nodes(
    trace: Trace,
    slot: int,
    rows: Tensor,
    tokens: int,
    others: Mapping[int, Tensor] | None = None,
) -> NodeIds:
    """Follow the ids of the nodes through a pass.

    Args:
        slot: the input that holds the nodes' rows.
        rows: the ids of these rows, (n, 1) or (B, S, 1).
        others: the ids of other inputs by slot; an input without ids counts as a constant.
    """
    tracker = _NodeTracker(trace, rows, tokens)
    tracker.nodes.by_value[trace.flow.slot_of_value.index(slot)] = EntryIds(rows)
    for other_slot, ids in (others or {}).items():
        tracker.nodes.by_value[trace.flow.slot_of_value.index(other_slot)] = EntryIds(ids)
        tracker.bits |= trace.inputs[other_slot]
    for op in trace.ops:
        tracker.step(op)
    return tracker.nodes


class _NodeTracker:
    """Gives ids to the results of one operation after the other."""

    def __init__(self, trace: Trace, rows: Tensor, tokens: int) -> None:
        self.trace, self.rows = trace, rows.flatten()
        self.nodes = NodeIds(tokens)
        self.bits = 1  # of the inputs that have ids

    def step(self, op: Op) -> None:
        """Give ids to the results of an operation, unless they cannot be told."""
        ids_of_reads: dict[int, EntryIds] = {}
        for ref in op.reads:
            if (ids := self._ids_of(ref.value)) is not None:
                ids_of_reads[ref.value] = ids
        if not ids_of_reads:
            return
        results = [ref for ref in op.makes if self.trace.flow.depends[ref.value] & self.bits]
        results = [ref for ref in results if _has_values(self.trace.memory.tensors[ref.slot])]
        if not results:
            return
        with suppress(RuntimeError, IndexError, TypeError, ValueError):
            ids_of_results = self._result(op, results, ids_of_reads)
            for ref, result in zip(results, ids_of_results, strict=False):
                if result is not None:
                    unchanged = any(result is ids for ids in ids_of_reads.values())
                    is_short = op.name in TURNS or unchanged
                    self.nodes.by_value[ref.value] = result if is_short else result.map(compressed)

    def _ids_of(self, value: int) -> EntryIds | None:
        """Return the ids of a value. After a write to another view they are those before it."""
        while value not in self.nodes.by_value and value in self.trace.flow.merged:
            value, _ = self.trace.flow.merged[value]
        return self.nodes.by_value.get(value)

    def _result(
        self, op: Op, results: list[Ref], ids_of_reads: dict[int, EntryIds]
    ) -> list[EntryIds | None]:
        """Return the ids of the results of an operation, None where they cannot be told."""
        shape = self.trace.shape(results[0].value)
        if op.name in MOVES:
            return self._moved(op, ids_of_reads, len(results))
        if op.name in MATRIX_PRODUCTS - {"convolution"}:
            return [self._multiplied(op, ids_of_reads)]
        if op.name in REDUCE:
            return [self._reduced(op, shape, ids_of_reads)] * len(results)
        if op.name in GATHERED:
            return [self._gathered(op, shape, ids_of_reads)]
        if op.name in ("topk", "sort", "kthvalue"):
            (ids,) = ids_of_reads.values()
            index = self.trace.memory.tensors[op.makes[1].slot]
            dim = op.args[2] if op.name == "topk" and len(op.args) > 2 else op.args[1:2] or -1
            dim = dim[0] if isinstance(dim, tuple) else dim
            full = self.trace.shape(op.reads[0].value)
            return [ids.map(lambda t: t.expand(full).gather(dim, index))]
        if op.name == "_cdist_forward":  # between rows (..., P, D) and (..., R, D)
            both = (ids_of_reads.get(ref.value) for ref in op.reads[:2])
            a, b = (None if n is None or n.key is not None else n.query for n in both)
            return [None if a is None or b is None else EntryIds(a, b.mT)]
        if op.name in ("view_as_real", "view_as_complex"):
            (ids,) = ids_of_reads.values()
            part = op.name == "view_as_complex"
            return [ids.map(lambda t: t[..., 0] if part else t[..., None])]
        if op.name.startswith("_fft"):
            (ids,) = ids_of_reads.values()
            return [self._transformed(ids, op.args[1], len(shape))]
        if op.name == "convolution":
            (ids,) = ids_of_reads.values()
            ones = set(self.trace.shape(op.reads[1].value)[2:]) == {1}
            return [ids if ones and ids.query.shape[1] == 1 else None]
        return [self._entrywise(shape, ids_of_reads)]

    # -- moves ---------------------------------------------------------------------------------

    def _moved(
        self, op: Op, ids_of_reads: dict[int, EntryIds], count: int
    ) -> list[EntryIds | None]:
        parts = [self._move(op, {v: n.query for v, n in ids_of_reads.items()})]
        if any(ids.key is not None for ids in ids_of_reads.values()):
            keys = {v: n.query if n.key is None else n.key for v, n in ids_of_reads.items()}
            parts.append(self._move(op, keys))
        per_result = (part if isinstance(part, tuple | list) else [part] * count for part in parts)
        return [EntryIds(*both) for both in zip(*per_result, strict=False)]

    def _move(self, op: Op, ids: dict[int, Tensor]) -> Any:
        """Run an operation on the ids in place of the values, with `NONE` for constants."""
        if op.name in VIEWS:
            (moved,) = ids.values()
            return _viewed(moved, *map(self.trace.shape, (op.reads[0].value, op.out)))
        if op.name in ("clone", "_to_copy", "alias", "detach", "lift_fresh"):
            return next(iter(ids.values()))
        if op.name in TURNS:  # axes of length one turn like those of the values
            (turned,) = ids.values()
            return op.func(_aligned(turned, len(self.trace.shape(op.reads[0].value))), *op.args[1:])

        def ids_in_place_of(ref: Ref) -> Tensor:
            tensor = self.trace.memory.tensors[ref.slot]
            of_ref = ids.get(ref.value)
            if of_ref is None and not tensor.is_floating_point():
                return tensor  # it is an index
            of_ref = torch.tensor(NONE, device=tensor.device) if of_ref is None else of_ref
            wide = of_ref.expand(tensor.shape)
            return wide.clone() if op.in_place else wide

        args, kwargs = op.with_tensors(ids_in_place_of, op.args, op.kwargs)
        return op.func(*args, **{k: v for k, v in kwargs.items() if k not in ABOUT_VALUES})

    # -- sums ----------------------------------------------------------------------------------

    def _reduced(self, op: Op, shape: torch.Size, ids_of_reads: dict[int, EntryIds]) -> EntryIds:
        """Return the ids of a sum, or another statistic, over some axes."""
        (ids,) = ids_of_reads.values()
        full = self.trace.shape(op.reads[0].value)
        dims = next((a for a in op.args[1:] if isinstance(a, list | tuple)), None)
        if dims is None:
            dims = [a for a in op.args[1:2] if isinstance(a, int) and not isinstance(a, bool)]
        if op.name in ("linalg_vector_norm", "norm"):
            dims = op.args[2] if len(op.args) > 2 else None
        axes = sorted({d % len(full) for d in (dims or range(len(full)))})
        keep = len(shape) == len(full)

        def reduced(values: Tensor) -> Tensor:
            values = values.expand((*[1] * (len(full) - values.dim()), *values.shape))
            values = self._sum(values, axes)
            return values if keep else values.squeeze(tuple(axes))

        return self._after_sum(ids, reduced)

    def _transformed(self, ids: EntryIds, dims: Sequence[int], count: int) -> EntryIds | None:
        """Return the ids after a transform that mixes the entries along some of `count` axes."""
        if ids.key is not None:
            return None
        wide = _aligned(ids.query, count)
        return EntryIds(self._settled(self._sum(wide, [dim % count for dim in dims])))

    def _after_sum(self, ids: EntryIds, reduced: Callable[[Tensor], Tensor]) -> EntryIds:
        """Return the ids after a sum. Of pairs that share a node, the sum belongs to that node."""
        query = reduced(ids.query)
        if ids.key is None:
            return EntryIds(self._settled(query))
        key = reduced(ids.key)
        if query.numel() and bool((query == NONE).all()) and bool((key == NONE).all()):
            return EntryIds(query)  # the graphs have no edges
        stays = [bool((ids >= NONE).all()) for ids in (query, key)]
        if all(stays):
            return EntryIds(query, key)
        return EntryIds(self._settled(key if stays[1] else query))

    def _sum(self, values: Tensor, axes: list[int]) -> Tensor:
        """Return the ids of sums over axes."""
        axes = [a for a in axes if values.shape[a] > 1]
        if not axes:
            return values
        return self._of_groups(values, lambda part, way: getattr(part, way)(axes, keepdim=True))

    def _of_groups(self, values: Tensor, reduced: Callable[[Tensor, str], Tensor]) -> Tensor:
        """Return the ids of groups of entries: their only node, else their graph, else `MIXED`.

        Args:
            reduced: returns the least or largest id of each group, for "amin" or "amax".
        """
        absent = values == NONE

        def extremes(ids: Tensor) -> tuple[Tensor, Tensor]:
            low = reduced(torch.where(absent, LARGE, ids), "amin")
            return low, reduced(torch.where(absent, -LARGE, ids), "amax")

        low, high = extremes(values)
        least, most = extremes(self.nodes.graph(values))
        of_group = torch.where(low == high, low, torch.where(least == most, -2 - least, MIXED))
        return torch.where(high < low, NONE, of_group)  # a group without entries has none

    def _settled(self, ids: Tensor) -> Tensor:
        """Let the ids of sums be all of nodes, or all of graphs.

        If there are as many rows as nodes, and each is a sum within the graph of its node, the rows
        belong to the nodes.
        """
        wide = ids < NONE
        if not bool(wide.any()):
            return ids
        if ids.dim() and ids.shape[0] == len(self.rows):
            of_rows = self.rows.view(-1, *(1,) * (ids.dim() - 1)).expand(ids.shape)
            alike = (self.nodes.graph(of_rows) == self.nodes.graph(ids)) | (ids == NONE)
            if bool(alike.all()):
                return of_rows
        return torch.where(ids >= 0, -2 - self.nodes.graph(ids), ids)

    def _gathered(
        self, op: Op, shape: torch.Size, ids_of_reads: dict[int, EntryIds]
    ) -> EntryIds | None:
        """Return the ids after entries are summed into groups by an index along one axis."""
        dim, index, src = op.args[1] % len(shape), op.args[2], op.args[3]
        ids = ids_of_reads.get(src.value)
        if ids is None:
            return ids_of_reads.get(op.args[0].value)
        by, size = self.trace.memory.tensors[index.slot], self.trace.shape(src.value)
        by = by.transpose(0, dim)[(slice(None), *[0] * (by.dim() - 1))]  # alike for all channels

        def summed(values: Tensor) -> Tensor:
            lengths = (*(1,) * (len(size) - values.dim()), *values.shape)
            values = values.expand([size[a] if a == dim else n for a, n in enumerate(lengths)])
            group = by.view([-1 if a == dim else 1 for a in range(len(lengths))])
            group = group.expand(values.shape)
            groups = [shape[a] if a == dim else n for a, n in enumerate(lengths)]

            def reduced(part: Tensor, way: str) -> Tensor:
                start = part.new_full(groups, LARGE if way == "amin" else -LARGE)
                return start.scatter_reduce(dim, group, part, way)

            return self._of_groups(values, reduced)

        sums = self._after_sum(ids, summed)
        if dim or shape[0] != len(self.rows):
            return sums
        of_rows = self.rows.view(-1, *(1,) * (sums.query.dim() - 1))
        if sums.key is None:  # a sum over neighbours, even if a node has only one
            of_neighbour = (sums.query >= 0) & (sums.query != of_rows)
            return EntryIds(
                torch.where(of_neighbour, -2 - self.nodes.graph(sums.query), sums.query)
            )
        if agree(sums.query, of_rows) or agree(sums.key, of_rows):
            return EntryIds(of_rows)  # each node has at most one edge
        return sums

    # -- products ------------------------------------------------------------------------------

    def _multiplied(self, op: Op, ids_of_reads: dict[int, EntryIds]) -> EntryIds | None:
        """Return the ids of a product of matrices (..., Q, K) and (..., K, D), or with a vector."""
        if op.name in ("_trilinear", "addr"):
            return None
        first, second = op.args[1:3] if op.name in PLUS_PRODUCT else op.args[:2]
        a, b = ids_of_reads.get(first.value), ids_of_reads.get(second.value)
        left, right = (self.trace.memory.tensors[ref.slot] for ref in (first, second))
        if right.dim() == 1:  # a vector, so the sum is over the last axis
            b = None if b is None else b.map(lambda t: t[:, None])
            product = self._matrices(a, b, left, right[:, None])
            return None if product is None else product.map(lambda t: t.squeeze(-1))
        return self._matrices(a, b, left, right)

    def _matrices(
        self, a: EntryIds | None, b: EntryIds | None, left: Tensor, right: Tensor
    ) -> EntryIds | None:
        if a is None:
            return None if b is None else self._mixed_by_constants(b, left)
        if b is None:
            channels = a.query.shape[-1] == 1 and (a.key is None or a.key.shape[-1] == 1)
            return a if channels else self._of_channels(a, right)
        if a.key is None and b.key is None:
            return self._of_two(a.query, b.query)
        if a.key is None or b.key is not None:
            return None
        for query, key in ((a.query, a.key), (a.key, a.query)):
            if query.shape[-1] == 1 and agree(key, b.query.mT):
                return EntryIds(query)
        return None

    def _of_two(self, a: Tensor, b: Tensor) -> EntryIds | None:
        """Return the ids of a product of single nodes' values: of pairs, or of a sum over nodes."""
        if a.shape[-1] == 1 and b.shape[-2] == 1:
            of_graphs = [bool((ids <= NONE).all()) for ids in (a, b)]
            return EntryIds(a, b) if not any(of_graphs) else EntryIds(b if of_graphs[0] else a)
        if a.shape[-1] > 1 and b.shape[-2] > 1 and not agree(a, b.mT):
            return None
        summed = self._sum(a, [a.dim() - 1]) if a.shape[-1] > 1 else self._sum(b, [b.dim() - 2])
        return EntryIds(self._settled(summed[..., :1, :1]))

    def _mixed_by_constants(self, nodes: EntryIds, matrix: Tensor) -> EntryIds | None:
        """Return the ids of rows that a constant matrix (..., Q, K), such as a Laplacian, mixes.

        Args:
            nodes: the ids of the rows (..., K, D), which must be the same for all D. A row of
                the result is a sum over the nonzero entries of the matrix.
        """
        if nodes.query.shape[-2] == 1 and (nodes.key is None or nodes.key.shape[-2] == 1):
            return nodes
        if nodes.key is not None or nodes.query.shape[-1] != 1:
            return None
        mixed = torch.where(matrix != 0, nodes.query.mT, NONE)  # (..., Q, K)
        return EntryIds(self._settled(self._sum(mixed, [mixed.dim() - 1])))

    def _of_channels(self, rows: EntryIds, matrix: Tensor) -> EntryIds | None:
        """Return the ids of channels (..., Q, K) that a constant matrix (..., K, D) mixes.

        A sum of channels of a node, its graph and constants belongs to the node. A single row may
        have a column for each node.
        """
        if rows.key is not None:
            return None
        if rows.query.shape[-2] == 1:
            turned = self._mixed_by_constants(rows.map(_transposed), matrix.mT)
            return None if turned is None else turned.map(_transposed)
        last = [rows.query.dim() - 1]
        whole = self._sum(rows.query, last)
        single = self._sum(torch.where(rows.query >= 0, rows.query, NONE), last)
        of_node = (single >= 0) & (self.nodes.graph(single) == self.nodes.graph(whole))
        return EntryIds(torch.where(of_node, single, whole))

    # -- entry by entry ------------------------------------------------------------------------

    def _entrywise(self, shape: torch.Size, ids_of_reads: dict[int, EntryIds]) -> EntryIds | None:
        if len(ids_of_reads) == 1:
            (value,) = ids_of_reads
            before = self.trace.shape(value)
            if len(before) > len(shape) or any(
                m not in (1, n) for m, n in zip(reversed(before), reversed(shape), strict=False)
            ):
                return None
            return ids_of_reads[value]
        if len(set(map(id, ids_of_reads.values()))) == 1:
            return next(iter(ids_of_reads.values()))
        if len(ids_of_reads) == 2 and self._are_two_ends(ids_of_reads):
            first, second = ids_of_reads.values()
            if first.key is None and second.key is None:
                return EntryIds(first.query, second.query)
        combined: EntryIds | None = None
        for ids in ids_of_reads.values():
            combined = ids if combined is None else self._combined(combined, ids)
            if combined is None:
                return None
        return combined

    def _are_two_ends(self, ids_of_reads: dict[int, EntryIds]) -> bool:
        """Whether two indices gathered the rows, as for the two ends of edges.

        The ids alone do not tell if all edges are self-loops. The index of the edges' graphs is
        made of the index of their ends and of the batch, so that it depends on more inputs. Rows of
        whole graphs, and rows that a mask selects, are not ends.
        """
        if any(bool((ids.query < NONE).any()) for ids in ids_of_reads.values()):
            return False
        first, second = map(self._index_of, ids_of_reads)
        if first is None or second is None or first == second:
            return False
        a, b = self.trace.flow.depends[first], self.trace.flow.depends[second]
        return a == b or a | b not in (a, b)

    def _index_of(self, value: int) -> int | None:
        """Return the index that gathered the rows of a value, or None."""
        while (op := self.trace.op_of(value)) is not None:
            if op.name in ("index_select", "index"):
                index = op.args[2] if op.name == "index_select" else op.args[1][0]
                mask = (
                    index is not None and self.trace.memory.tensors[index.slot].dtype == torch.bool
                )
                return None if index is None or mask else index.value
            reads = [ref.value for ref in op.reads if self.nodes.by_value.get(ref.value)]
            if len(reads) != 1 or op.name in GATHERED | REDUCE:
                return None
            (value,) = reads
        return None

    def _combined(self, a: EntryIds, b: EntryIds) -> EntryIds | None:
        """Return the ids of an entrywise operation on values of single nodes, or of pairs."""
        if a.key is None and b.key is None:
            equal = a.query.shape == b.query.shape and torch.equal(a.query, b.query)
            return a if equal else self._combined_singles(a.query, b.query)
        pair, other = (a, b) if a.key is not None else (b, a)
        assert pair.key is not None
        if other.key is not None:
            alike = agree(pair.query, other.query) and agree(pair.key, other.key)
            swapped = agree(pair.query, other.key) and agree(pair.key, other.query)
            if alike or swapped:
                return pair
            if agree(pair.query, other.query):  # one entry for each query, such as a threshold
                orders = ((other, pair), (pair, other))
                return next((wide for narrow, wide in orders if _is_wider(wide, narrow)), None)
            return None
        if agree(pair.key, other.query) or self._is_graph_of(other.query, pair.query):
            return pair
        if agree(pair.query, other.query):  # the second node of the pair is the query
            return EntryIds(pair.key, pair.query)
        return None

    def _is_graph_of(self, several: Tensor, nodes: Tensor) -> bool:
        """Whether ids are of whole graphs, which are the graphs of these nodes."""
        several, nodes = torch.broadcast_tensors(several, nodes)
        graph = self.nodes.graph(several)
        fits = (several < NONE) & (graph == self.nodes.graph(nodes))
        return bool((fits | (several == NONE) | (nodes == NONE)).all())

    def _combined_singles(self, a: Tensor, b: Tensor) -> EntryIds | None:
        """Return the ids of an entrywise operation on values of single nodes."""
        wide_a, wide_b = torch.broadcast_tensors(a, b)
        if torch.equal(wide_a, wide_b):
            return EntryIds(wide_a)
        absent = (wide_a == NONE) | (wide_b == NONE)
        either = torch.maximum(wide_a, wide_b)  # a node and its graph make the node
        same_graph = self.nodes.graph(wide_a) == self.nodes.graph(wide_b)
        graph_wide = (wide_a < NONE) | (wide_b < NONE)
        fits = (wide_a == wide_b) | absent | (graph_wide & same_graph)
        if bool(fits.all()):
            return EntryIds(either)
        if bool((graph_wide & ~same_graph & ~absent).any()):
            return EntryIds(torch.where(wide_a >= 0, wide_a, either))
        return EntryIds(a, b)


def _transposed(ids: Tensor) -> Tensor:
    return ids.mT


def agree(a: Tensor, b: Tensor) -> bool:
    """Whether ids are the same wherever neither is `NONE`."""
    try:
        a, b = torch.broadcast_tensors(a, b)
    except RuntimeError:
        return False
    return bool(((a == b) | (a == NONE) | (b == NONE)).all())


def _is_wider(wide: EntryIds, narrow: EntryIds) -> bool:
    """Whether one has axes with several entries where the other has one, and not vice versa."""
    shapes = [
        torch.broadcast_shapes(n.query.shape, n.key.shape)
        for n in (wide, narrow)
        if n.key is not None
    ]
    pairs = list(zip(*shapes, strict=False))
    return any(a > 1 == b for a, b in pairs) and not any(b > 1 == a for a, b in pairs)


def compressed(ids: Tensor) -> Tensor:
    """Shorten to length one the axes on which all entries have the same id."""
    for axis in reversed(range(ids.dim())):
        if ids.shape[axis] > 1 and ids.numel() and _are_alike(ids, axis):
            ids = ids.narrow(axis, 0, 1)
    return ids


def _are_alike(ids: Tensor, axis: int) -> bool:
    """Whether all entries along an axis have the same id."""
    if ids.stride(axis) == 0:
        return True
    if ids.device.type == "cpu":  # to compare two entries first is much quicker than all
        array = ids.numpy()
        last = [0] * array.ndim
        last[axis] = -1
        if array.item(0) != array[tuple(last)]:
            return False
    return bool((ids == ids.narrow(axis, 0, 1)).all())


def _aligned(ids: Tensor, count: int) -> Tensor:
    """Add leading axes, as broadcasting does, up to this number of axes."""
    return ids[(None,) * (count - ids.dim())]


def _viewed(ids: Tensor, before: torch.Size, after: torch.Size) -> Tensor:
    """View the ids of a tensor of shape `before` in another shape."""
    ids, wide, viewed = _aligned(ids, len(before)), list[int](), list[int]()
    for old, new in _split(before, after):
        alike = all(ids.shape[axis] == 1 for axis in old)
        wide += [1 if alike else before[axis] for axis in old]
        viewed += [1 if alike else after[axis] for axis in new]
    return ids.expand(wide).reshape(viewed)


@lru_cache(4096)
def _split(before: torch.Size, after: torch.Size) -> list[tuple[range, range]]:
    """Match the axes of two shapes, in the smallest groups that have as many entries in both.

    Raises ValueError if the shapes have different numbers of entries.
    """
    if math.prod(before) != math.prod(after):
        raise ValueError("the number of entries changes")  # as in a view as another type
    if 0 in before:
        return [(range(len(before)), range(len(after)))]
    groups, start, end = [], 0, 0
    while start < len(before) or end < len(after):
        old, new = start + 1, end + 1
        while math.prod(before[start:old]) != math.prod(after[end:new]):
            if math.prod(before[start:old]) < math.prod(after[end:new]):
                old += 1
            else:
                new += 1
        groups.append((range(start, min(old, len(before))), range(end, min(new, len(after)))))
        start, end = old, new
    return groups


def _has_values(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()
