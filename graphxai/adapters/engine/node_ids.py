"""Which node every entry of every tensor in a recorded pass belongs to.

Numbers travel along the list beside the values. What only moves entries moves their numbers; a map
of channels keeps them; a product of entries of two nodes is of a pair; a sum over nodes is of their
graph. So each entry of an attention matrix knows its query and its key, whatever its axes are. No
axis is guessed.

A number is `graph * T + token` for a node (token 0 is the graph token), `-2 - graph` for several
nodes of one graph, `NONE` for padding and constants, `MIXED` for nodes of several graphs. Along an
axis with one number for all entries a tensor of numbers has length one.
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
LARGE = 2**61  # more than any number
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
NO_NUMBERS = ("dtype", "memory_format")  # arguments that are about values alone
GATHERED = {"scatter_add", "index_add", "scatter_reduce", "index_reduce"}


@dataclass(frozen=True, eq=False)
class EntryIds:
    """Numbers of a tensor's entries; key: of the second node of each pair, if these are pairs."""

    query: Tensor
    key: Tensor | None = None

    def map(self, f: Callable[[Tensor], Tensor]) -> "EntryIds":
        """The same for the numbers of both nodes."""
        return EntryIds(f(self.query), None if self.key is None else f(self.key))


@dataclass(eq=False)
class NodeIds:
    """Numbers by value; tokens: T."""

    tokens: int
    by_value: dict[int, EntryIds] = field(default_factory=dict)

    def are_pairs(self, value: int) -> bool | None:
        """Whether a value's entries are of two nodes each; None: it has no numbers."""
        numbers = self.by_value.get(value)
        return None if numbers is None else numbers.key is not None

    def graph(self, numbers: Tensor) -> Tensor:
        """The graph of each number; `NONE` and `MIXED` stay."""
        of_node = numbers.div(self.tokens, rounding_mode="floor")
        found = torch.where(numbers >= 0, of_node, -2 - numbers)
        return torch.where((numbers == NONE) | (numbers == MIXED), numbers, found)


def track_nodes(
    trace: Trace,
    slot: int,
    rows: Tensor,
    tokens: int,
    others: Mapping[int, Tensor] | None = None,
) -> NodeIds:
    """The numbers of all values, the input in `slot` having the numbers `rows`.

    rows: of shape (n, 1) or (B, S, 1), as the input's rows. others: numbers of other inputs by
    slot; by default these are constants.
    """
    walk = _NodeTracker(trace, rows, tokens)
    walk.nodes.by_value[trace.slot_of_value.index(slot)] = EntryIds(rows)
    for other, numbers in (others or {}).items():
        walk.nodes.by_value[trace.slot_of_value.index(other)] = EntryIds(numbers)
        walk.bits |= trace.inputs[other]
    for op in trace.ops:
        walk.step(op)
    return walk.nodes


class _NodeTracker:
    def __init__(self, trace: Trace, rows: Tensor, tokens: int) -> None:
        self.trace, self.rows = trace, rows.flatten()
        self.nodes = NodeIds(tokens)
        self.bits = 1  # of the inputs that have numbers

    def step(self, op: Op) -> None:
        """Number the results of an operation, if it is foreseen."""
        known: dict[int, EntryIds] = {}
        for ref in op.reads:
            if (of := self._of(ref.value)) is not None:
                known[ref.value] = of
        if not known:
            return
        made = [ref for ref in op.makes if self.trace.depends[ref.value] & self.bits]
        made = [ref for ref in made if _has_values(self.trace.tensors[ref.slot])]
        if not made:
            return
        with suppress(RuntimeError, IndexError, TypeError, ValueError):
            for ref, numbers in zip(made, self._result(op, made, known), strict=False):
                if numbers is not None:
                    short = op.name in TURNS or any(numbers is one for one in known.values())
                    self.nodes.by_value[ref.value] = numbers if short else numbers.map(compressed)

    def _of(self, value: int) -> EntryIds | None:
        """Numbers of a value; after a write to another view of it, of both together."""
        while value not in self.nodes.by_value and value in self.trace.joined:
            value, _ = self.trace.joined[value]
        return self.nodes.by_value.get(value)

    def _result(self, op: Op, made: list[Ref], known: dict[int, EntryIds]) -> list[EntryIds | None]:
        shape = self.trace.shape(made[0].value)
        if op.name in MOVES:
            return self._moved(op, known, len(made))
        if op.name in MATRIX_PRODUCTS - {"convolution"}:
            return [self._multiplied(op, known)]
        if op.name in REDUCE:
            return [self._reduced(op, shape, known)] * len(made)
        if op.name in GATHERED:
            return [self._gathered(op, shape, known)]
        if op.name in ("topk", "sort", "kthvalue"):
            (numbers,) = known.values()
            index = self.trace.tensors[op.makes[1].slot]
            dim = op.args[2] if op.name == "topk" and len(op.args) > 2 else op.args[1:2] or -1
            dim = dim[0] if isinstance(dim, tuple) else dim
            full = self.trace.shape(op.reads[0].value)
            return [numbers.map(lambda t: t.expand(full).gather(dim, index))]
        if op.name == "_cdist_forward":  # between rows (..., P, D) and (..., R, D)
            both = (known.get(ref.value) for ref in op.reads[:2])
            a, b = (None if n is None or n.key is not None else n.query for n in both)
            return [None if a is None or b is None else EntryIds(a, b.mT)]
        if op.name in ("view_as_real", "view_as_complex"):
            (numbers,) = known.values()
            part = op.name == "view_as_complex"
            return [numbers.map(lambda t: t[..., 0] if part else t[..., None])]
        if op.name.startswith("_fft"):
            (numbers,) = known.values()
            return [self._transformed(numbers, op.args[1], len(shape))]
        if op.name == "convolution":
            (numbers,) = known.values()
            ones = set(self.trace.shape(op.reads[1].value)[2:]) == {1}
            return [numbers if ones and numbers.query.shape[1] == 1 else None]
        return [self._entrywise(shape, known)]

    # -- moves ---------------------------------------------------------------------------------

    def _moved(self, op: Op, known: dict[int, EntryIds], count: int) -> list[EntryIds | None]:
        parts = [self._move(op, {v: n.query for v, n in known.items()})]
        if any(numbers.key is not None for numbers in known.values()):
            keys = {v: n.query if n.key is None else n.key for v, n in known.items()}
            parts.append(self._move(op, keys))
        several = (part if isinstance(part, tuple | list) else [part] * count for part in parts)
        return [EntryIds(*both) for both in zip(*several, strict=False)]

    def _move(self, op: Op, numbers: dict[int, Tensor]) -> Any:
        """The operation on numbers in place of the values, with `NONE` for constants."""
        if op.name in VIEWS:
            (one,) = numbers.values()
            return _viewed(one, *map(self.trace.shape, (op.reads[0].value, op.out)))
        if op.name in ("clone", "_to_copy", "alias", "detach", "lift_fresh"):
            return next(iter(numbers.values()))
        if op.name in TURNS:  # axes of length one turn like those of the values
            (one,) = numbers.values()
            return op.func(_aligned(one, len(self.trace.shape(op.reads[0].value))), *op.args[1:])

        def put(given: Ref) -> Tensor:
            tensor = self.trace.tensors[given.slot]
            own = numbers.get(given.value)
            if own is None and not tensor.is_floating_point():
                return tensor  # an index
            own = torch.tensor(NONE, device=tensor.device) if own is None else own
            return own.expand(tensor.shape).clone() if op.in_place else own.expand(tensor.shape)

        args, kwargs = op.with_tensors(put, op.args, op.kwargs)
        return op.func(*args, **{k: v for k, v in kwargs.items() if k not in NO_NUMBERS})

    # -- sums ----------------------------------------------------------------------------------

    def _reduced(self, op: Op, shape: torch.Size, known: dict[int, EntryIds]) -> EntryIds:
        (numbers,) = known.values()
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

        return self._of_one(numbers, reduced)

    def _transformed(self, numbers: EntryIds, dims: Sequence[int], count: int) -> EntryIds | None:
        """Numbers after a transform along some of `count` axes, which mixes their entries."""
        if numbers.key is not None:
            return None
        own = _aligned(numbers.query, count)
        return EntryIds(self._settled(self._sum(own, [dim % count for dim in dims])))

    def _of_one(self, numbers: EntryIds, reduced: Callable[[Tensor], Tensor]) -> EntryIds:
        """Numbers after a sum: of pairs, the node that stays the same."""
        query = reduced(numbers.query)
        if numbers.key is None:
            return EntryIds(self._settled(query))
        key = reduced(numbers.key)
        if query.numel() and bool((query == NONE).all()) and bool((key == NONE).all()):
            return EntryIds(query)  # as of a graph without edges
        stays = [bool((numbers >= NONE).all()) for numbers in (query, key)]
        if all(stays):
            return EntryIds(query, key)
        return EntryIds(self._settled(key if stays[1] else query))

    def _sum(self, values: Tensor, axes: list[int]) -> Tensor:
        """Numbers of sums over axes: one node, one graph, or mixed."""
        axes = [a for a in axes if values.shape[a] > 1]
        if not axes:
            return values
        return self._of_groups(values, lambda part, way: getattr(part, way)(axes, keepdim=True))

    def _of_groups(self, values: Tensor, reduced: Callable[[Tensor, str], Tensor]) -> Tensor:
        """Numbers of groups of entries, which `reduced` finds the extremes ("amin", "amax") of."""
        absent = values == NONE

        def extremes(numbers: Tensor) -> tuple[Tensor, Tensor]:
            low = reduced(torch.where(absent, LARGE, numbers), "amin")
            return low, reduced(torch.where(absent, -LARGE, numbers), "amax")

        low, high = extremes(values)
        least, most = extremes(self.nodes.graph(values))
        found = torch.where(low == high, low, torch.where(least == most, -2 - least, MIXED))
        return torch.where(high < low, NONE, found)

    def _settled(self, numbers: Tensor) -> Tensor:
        """Numbers of sums: all of nodes, or all of graphs.

        Rows as many as the nodes, each a sum within the graph of its node, are the nodes'.
        """
        wide = numbers < NONE
        if not bool(wide.any()):
            return numbers
        if numbers.dim() and numbers.shape[0] == len(self.rows):
            own = self.rows.view(-1, *(1,) * (numbers.dim() - 1)).expand(numbers.shape)
            alike = (self.nodes.graph(own) == self.nodes.graph(numbers)) | (numbers == NONE)
            if bool(alike.all()):
                return own
        return torch.where(numbers >= 0, -2 - self.nodes.graph(numbers), numbers)

    def _gathered(self, op: Op, shape: torch.Size, known: dict[int, EntryIds]) -> EntryIds | None:
        """Entries summed into groups by an index along one axis."""
        dim, index, src = op.args[1] % len(shape), op.args[2], op.args[3]
        numbers = known.get(src.value)
        if numbers is None:
            return known.get(op.args[0].value)
        by, size = self.trace.tensors[index.slot], self.trace.shape(src.value)
        by = by.transpose(0, dim)[(slice(None), *[0] * (by.dim() - 1))]  # alike for all channels

        def summed(values: Tensor) -> Tensor:
            own = (*(1,) * (len(size) - values.dim()), *values.shape)
            values = values.expand([size[a] if a == dim else n for a, n in enumerate(own)])
            place = by.view([-1 if a == dim else 1 for a in range(len(own))]).expand(values.shape)
            groups = [shape[a] if a == dim else n for a, n in enumerate(own)]

            def reduced(part: Tensor, way: str) -> Tensor:
                start = part.new_full(groups, LARGE if way == "amin" else -LARGE)
                return start.scatter_reduce(dim, place, part, way)

            return self._of_groups(values, reduced)

        found = self._of_one(numbers, summed)
        if dim or shape[0] != len(self.rows):
            return found
        own = self.rows.view(-1, *(1,) * (found.query.dim() - 1))
        if found.key is None:  # what a node gets from its only neighbour is a sum over neighbours
            lone = (found.query >= 0) & (found.query != own)
            return EntryIds(torch.where(lone, -2 - self.nodes.graph(found.query), found.query))
        if agree(found.query, own) or agree(found.key, own):
            return EntryIds(own)  # each node has one edge at most
        return found

    # -- products ------------------------------------------------------------------------------

    def _multiplied(self, op: Op, known: dict[int, EntryIds]) -> EntryIds | None:
        """A product of matrices (..., Q, K) and (..., K, D), or of a matrix and a vector."""
        if op.name in ("_trilinear", "addr"):
            return None
        first, second = op.args[1:3] if op.name in PLUS_PRODUCT else op.args[:2]
        a, b = known.get(first.value), known.get(second.value)
        left, right = (self.trace.tensors[ref.slot] for ref in (first, second))
        if right.dim() == 1:  # the sum over the last axis
            b = None if b is None else b.map(lambda t: t[:, None])
            found = self._matrices(a, b, left, right[:, None])
            return None if found is None else found.map(lambda t: t.squeeze(-1))
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
        """A product of signals of single nodes: of pairs, or summed over the nodes."""
        if a.shape[-1] == 1 and b.shape[-2] == 1:
            of_graph = [bool((numbers <= NONE).all()) for numbers in (a, b)]
            return EntryIds(a, b) if not any(of_graph) else EntryIds(b if of_graph[0] else a)
        if a.shape[-1] > 1 and b.shape[-2] > 1 and not agree(a, b.mT):
            return None
        summed = self._sum(a, [a.dim() - 1]) if a.shape[-1] > 1 else self._sum(b, [b.dim() - 2])
        return EntryIds(self._settled(summed[..., :1, :1]))

    def _mixed_by_constants(self, nodes: EntryIds, matrix: Tensor) -> EntryIds | None:
        """Rows of nodes mixed by a constant matrix, such as a Laplacian: by its nonzero entries.

        nodes: of (..., K, D), alike for all D; matrix (..., Q, K).
        """
        if nodes.query.shape[-2] == 1 and (nodes.key is None or nodes.key.shape[-2] == 1):
            return nodes
        if nodes.key is not None or nodes.query.shape[-1] != 1:
            return None
        mixed = torch.where(matrix != 0, nodes.query.mT, NONE)  # (..., Q, K)
        return EntryIds(self._settled(self._sum(mixed, [mixed.dim() - 1])))

    def _of_channels(self, rows: EntryIds, matrix: Tensor) -> EntryIds | None:
        """Channels mixed by a constant matrix; of a node, its graph and constants, the node.

        rows: of (..., Q, K); matrix (..., K, D). A single row may have a column for each node.
        """
        if rows.key is not None:
            return None
        if rows.query.shape[-2] == 1:
            turned = self._mixed_by_constants(rows.map(_transposed), matrix.mT)
            return None if turned is None else turned.map(_transposed)
        last = [rows.query.dim() - 1]
        whole = self._sum(rows.query, last)
        single = self._sum(torch.where(rows.query >= 0, rows.query, NONE), last)
        own = (single >= 0) & (self.nodes.graph(single) == self.nodes.graph(whole))
        return EntryIds(torch.where(own, single, whole))

    # -- entry by entry ------------------------------------------------------------------------

    def _entrywise(self, shape: torch.Size, known: dict[int, EntryIds]) -> EntryIds | None:
        if len(known) == 1:
            (value,) = known
            before = self.trace.shape(value)
            if len(before) > len(shape) or any(
                m not in (1, n) for m, n in zip(reversed(before), reversed(shape), strict=False)
            ):
                return None
            return known[value]
        if len(set(map(id, known.values()))) == 1:
            return next(iter(known.values()))
        if len(known) == 2 and self._are_two_ends(known):
            first, second = known.values()
            if first.key is None and second.key is None:
                return EntryIds(first.query, second.query)
        found: EntryIds | None = None
        for numbers in known.values():
            found = numbers if found is None else self._combined(found, numbers)
            if found is None:
                return None
        return found

    def _are_two_ends(self, known: dict[int, EntryIds]) -> bool:
        """Whether rows were gathered by two indices, as for the two ends of edges.

        In a graph with nothing but self-loops the numbers alone do not tell. An index of the graphs
        of edges is made of that of their ends and of the batch. Rows of whole graphs, and rows that
        a mask selects, are not ends.
        """
        if any(bool((numbers.query < NONE).any()) for numbers in known.values()):
            return False
        one, other = map(self._index_of, known)
        if one is None or other is None or one == other:
            return False
        a, b = self.trace.depends[one], self.trace.depends[other]
        return a == b or a | b not in (a, b)

    def _index_of(self, value: int) -> int | None:
        """The index by which the rows of a value were gathered."""
        while (op := self.trace.made(value)) is not None:
            if op.name in ("index_select", "index"):
                index = op.args[2] if op.name == "index_select" else op.args[1][0]
                mask = index is not None and self.trace.tensors[index.slot].dtype == torch.bool
                return None if index is None or mask else index.value
            reads = [ref.value for ref in op.reads if self.nodes.by_value.get(ref.value)]
            if len(reads) != 1 or op.name in GATHERED | REDUCE:
                return None
            (value,) = reads
        return None

    def _combined(self, a: EntryIds, b: EntryIds) -> EntryIds | None:
        """Numbers of an entrywise operation on signals of one or two nodes each."""
        if a.key is None and b.key is None:
            equal = a.query.shape == b.query.shape and torch.equal(a.query, b.query)
            return a if equal else self._combined_singles(a.query, b.query)
        pair, one = (a, b) if a.key is not None else (b, a)
        assert pair.key is not None
        if one.key is not None:
            alike = agree(pair.query, one.query) and agree(pair.key, one.key)
            swapped = agree(pair.query, one.key) and agree(pair.key, one.query)
            if alike or swapped:
                return pair
            if agree(pair.query, one.query):  # a number for each query, such as a threshold
                return next((b for a, b in ((one, pair), (pair, one)) if _is_wider(b, a)), None)
            return None
        if agree(pair.key, one.query) or self._is_graph_of(one.query, pair.query):
            return pair
        if agree(pair.query, one.query):  # the key is the other one
            return EntryIds(pair.key, pair.query)
        return None

    def _is_graph_of(self, several: Tensor, nodes: Tensor) -> bool:
        """Whether numbers are of whole graphs, those of the nodes."""
        several, nodes = torch.broadcast_tensors(several, nodes)
        graph = self.nodes.graph(several)
        fits = (several < NONE) & (graph == self.nodes.graph(nodes))
        return bool((fits | (several == NONE) | (nodes == NONE)).all())

    def _combined_singles(self, a: Tensor, b: Tensor) -> EntryIds | None:
        wide_a, wide_b = torch.broadcast_tensors(a, b)
        if torch.equal(wide_a, wide_b):
            return EntryIds(wide_a)
        absent = (wide_a == NONE) | (wide_b == NONE)
        either = torch.maximum(wide_a, wide_b)  # of a node and its graph, the node
        same_graph = self.nodes.graph(wide_a) == self.nodes.graph(wide_b)
        graph_wide = (wide_a < NONE) | (wide_b < NONE)
        fits = (wide_a == wide_b) | absent | (graph_wide & same_graph)
        if bool(fits.all()):
            return EntryIds(either)
        if bool((graph_wide & ~same_graph & ~absent).any()):
            return EntryIds(torch.where(wide_a >= 0, wide_a, either))
        return EntryIds(a, b)


def _transposed(numbers: Tensor) -> Tensor:
    return numbers.mT


def agree(a: Tensor, b: Tensor) -> bool:
    """Whether numbers are the same wherever both are of nodes."""
    try:
        a, b = torch.broadcast_tensors(a, b)
    except RuntimeError:
        return False
    return bool(((a == b) | (a == NONE) | (b == NONE)).all())


def _is_wider(wide: EntryIds, narrow: EntryIds) -> bool:
    """Whether some axis has several entries in one, while the other has none of its own."""
    shapes = [
        torch.broadcast_shapes(n.query.shape, n.key.shape)
        for n in (wide, narrow)
        if n.key is not None
    ]
    pairs = list(zip(*shapes, strict=False))
    return any(a > 1 == b for a, b in pairs) and not any(b > 1 == a for a, b in pairs)


def compressed(numbers: Tensor) -> Tensor:
    """Length one along axes on which the numbers are the same for all entries."""
    for axis in reversed(range(numbers.dim())):
        if numbers.shape[axis] > 1 and numbers.numel() and _are_alike(numbers, axis):
            numbers = numbers.narrow(axis, 0, 1)
    return numbers


def _are_alike(numbers: Tensor, axis: int) -> bool:
    """Whether the numbers are the same for all entries along an axis."""
    if numbers.stride(axis) == 0:
        return True
    if numbers.device.type == "cpu":  # a look at two of them is much quicker than at all
        seen = numbers.numpy()
        last = [0] * seen.ndim
        last[axis] = -1
        if seen.item(0) != seen[tuple(last)]:
            return False
    return bool((numbers == numbers.narrow(axis, 0, 1)).all())


def _aligned(numbers: Tensor, count: int) -> Tensor:
    """Numbers with so many axes, as broadcasting has it."""
    return numbers[(None,) * (count - numbers.dim())]


def _viewed(numbers: Tensor, before: torch.Size, after: torch.Size) -> Tensor:
    """Numbers of a tensor of shape `before` in another shape."""
    numbers, wide, made = _aligned(numbers, len(before)), list[int](), list[int]()
    for old, new in _split(before, after):
        alike = all(numbers.shape[axis] == 1 for axis in old)
        wide += [1 if alike else before[axis] for axis in old]
        made += [1 if alike else after[axis] for axis in new]
    return numbers.expand(wide).reshape(made)


@lru_cache(4096)
def _split(before: torch.Size, after: torch.Size) -> list[tuple[range, range]]:
    """The axes of two shapes with as many entries, in the smallest parts that have as many.

    Raises ValueError if the shapes have not.
    """
    if math.prod(before) != math.prod(after):
        raise ValueError("entries of another size")  # such as those of another type
    if 0 in before:
        return [(range(len(before)), range(len(after)))]
    found, start, end = [], 0, 0
    while start < len(before) or end < len(after):
        old, new = start + 1, end + 1
        while math.prod(before[start:old]) != math.prod(after[end:new]):
            if math.prod(before[start:old]) < math.prod(after[end:new]):
                old += 1
            else:
                new += 1
        found.append((range(start, min(old, len(before))), range(end, min(new, len(after)))))
        start, end = old, new
    return found


def _has_values(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()
