"""Follow the ids of nodes through a recorded pass, from operation to operation."""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from graphxai.engine import operations as kinds
from graphxai.engine.attention.node_ids import (
    LARGE,
    NONE,
    EntryIds,
    IdArithmetic,
    NodeIds,
    agree,
    aligned,
    compressed,
    with_class_token,
)
from graphxai.engine.flow_queries import index_of
from graphxai.engine.trace import Op, Ref, Trace, is_real

ABOUT_VALUES = ("dtype", "memory_format")  # arguments that have no meaning for ids
BESIDE = kinds.VIEWS | kinds.JOINS  # after these operations rows may stand beside other rows


def reduced_axes(op: Op, count: int) -> tuple[int, ...]:
    """Return the axes over which an operation such as a sum reduces a tensor of `count` axes."""
    dims = next((arg for arg in op.args[1:] if isinstance(arg, list | tuple)), None)
    if "norms" in kinds.OPERATIONS[op.name].does:
        dims = op.args[2] if len(op.args) > 2 else None
    elif dims is None:
        dims = [a for a in op.args[1:2] if isinstance(a, int) and not isinstance(a, bool)]
    return tuple(sorted({dim % count for dim in (dims or range(count))}))


def by_entry(index: Tensor, dim: int) -> Tensor:
    """Return the group of each entry (n,) along an axis. An index may repeat it for channels."""
    return index if index.dim() < 2 else index.transpose(0, dim).flatten(1)[:, 0]


class NodeTracker:
    """Follows ids through a pass, and gives them to the results of one operation after the other.

    Args:
        rows: the ids of the nodes' rows, (n, 1) or (B, S, 1).
        tokens: the number of tokens of a graph.
        others: the ids of other inputs by slot.
    """

    def __init__(
        self, trace: Trace, rows: Tensor, tokens: int, others: Mapping[int, EntryIds] | None = None
    ) -> None:
        self.trace, self.rows = trace, rows.flatten()
        of_nodes = self.rows[self.rows >= 0]
        sizes = (of_nodes // tokens).bincount()
        self.nodes = NodeIds(tokens, int(sizes.max()) if len(sizes) else 0)
        self.compute = IdArithmetic(self.nodes, rows)
        self.bits = 1  # of the inputs that have ids
        for slot, ids in {trace.slot_of(1): EntryIds(rows), **(others or {})}.items():
            self.nodes.by_value[trace.flow.slot_of_value.index(slot)] = ids
            self.bits |= trace.inputs[slot]
        for op in trace.ops:
            self.step(op)

    def step(self, op: Op) -> None:
        """Give ids to the results of an operation, unless they cannot be told."""
        ids_of_reads: dict[int, EntryIds] = {}
        for ref in op.reads:
            if (ids := self._ids_of(ref.value)) is not None:
                ids_of_reads[ref.value] = ids
        if not ids_of_reads:
            return
        results = [ref for ref in op.makes if self.trace.flow.depends[ref.value] & self.bits]
        results = [ref for ref in results if is_real(self.trace.memory.tensors[ref.slot])]
        if not results:
            return
        with suppress(RuntimeError, IndexError, TypeError, ValueError):
            ids_of_results = self._result(op, results, ids_of_reads)
            for ref, result in zip(results, ids_of_results, strict=False):
                if result is not None:
                    unchanged = any(result is ids for ids in ids_of_reads.values())
                    is_short = op.name in kinds.TURNS or unchanged
                    ids = result if is_short else result.map(compressed)
                    if op.name in BESIDE:
                        values = self.trace.memory.tensors[ref.slot]
                        ids = with_class_token(ids, values, self.nodes)
                    self.nodes.by_value[ref.value] = ids

    def _ids_of(self, value: int) -> EntryIds | None:
        """Return the ids of a value. After a write to another view they come from both."""
        if value not in self.nodes.by_value and value in self.trace.flow.merged:
            before, written = self.trace.flow.merged[value]
            merged = self._merged(value, self._ids_of(before), written)
            if merged is not None:
                merged = with_class_token(merged, self.trace.tensor(value), self.nodes)
                self.nodes.by_value[value] = merged
        return self.nodes.by_value.get(value)

    def _merged(self, value: int, before: EntryIds | None, written: int) -> EntryIds | None:
        """Return the ids of a tensor after a write to another view of its memory."""
        whole, part = self.trace.tensor(value), self.trace.tensor(written)
        ids_of_part = self._ids_of(written)
        if ids_of_part is None or whole.dtype != part.dtype or whole.layout != torch.strided:
            return before
        before = EntryIds(torch.tensor(NONE, device=whole.device)) if before is None else before
        pairs = before.key is not None or ids_of_part.key is not None
        size = whole.untyped_storage().nbytes() // whole.element_size()

        def merged(ids: Tensor, new: Tensor) -> Tensor:
            memory = ids.new_full((size,), NONE)
            after = memory.as_strided(whole.shape, whole.stride(), whole.storage_offset())
            after.copy_(ids)
            memory.as_strided(part.shape, part.stride(), part.storage_offset()).copy_(new)
            return compressed(after.contiguous())

        query = merged(before.query, ids_of_part.query)
        return EntryIds(query, merged(_key(before), _key(ids_of_part)) if pairs else None)

    def _result(
        self, op: Op, results: list[Ref], ids_of_reads: dict[int, EntryIds]
    ) -> list[EntryIds | None]:
        """Return the ids of the results of an operation, None where they cannot be told."""
        shape = self.trace.shape(results[0].value)
        joins = op.name in kinds.CONCATENATES
        if joins and (of_ends := self._joined_ends(op, shape, ids_of_reads)) is not None:
            return [of_ends]
        if op.name in kinds.MOVES:
            return self._moved(op, ids_of_reads, len(results))
        if (kind := kinds.OPERATIONS[op.name].nodes) == "product":
            return [self._multiplied(op, ids_of_reads)]
        if op.name in kinds.REDUCE:
            return [self._reduced(op, shape, ids_of_reads)] * len(results)
        if op.name in kinds.GATHERED:
            return [self._gathered(op, shape, ids_of_reads)]
        if kind == "entry":
            return [self._entrywise(shape, ids_of_reads)]
        if kind == "cdist":  # between rows (..., P, D) and (..., R, D)
            both = (ids_of_reads.get(ref.value) for ref in op.reads[:2])
            a, b = (None if n is None or n.key is not None else n.query for n in both)
            return [None if a is None or b is None else EntryIds(a, b.mT)]
        (ids,) = ids_of_reads.values()
        if kind == "ordered":
            index = self.trace.memory.tensors[op.makes[1].slot]
            place = kinds.OPERATIONS[op.name].axis
            dim = op.args[place] if len(op.args) > place else op.kwargs.get("dim", -1)
            full = self.trace.shape(op.reads[0].value)
            return [ids.map(lambda t: t.expand(full).gather(dim, index))]
        if kind in ("to_complex", "from_complex"):
            return [ids.map(lambda t: t[..., 0] if kind == "to_complex" else t[..., None])]
        if kind == "fft":
            return [self._transformed(ids, op.args[1], len(shape))]
        ones = kind == "convolved" and set(self.trace.shape(op.reads[1].value)[2:]) == {1}
        return [ids if ones and ids.query.shape[1] == 1 else None]

    def _joined_ends(
        self, op: Op, shape: torch.Size, ids_of_reads: dict[int, EntryIds]
    ) -> EntryIds | None:
        """Return the pairs of nodes whose channels `cat([h_i, h_j], -1)` joins, else None."""
        dim = op.args[1] if len(op.args) > 1 else op.kwargs.get("dim", 0)
        ids = ids_of_reads.values()
        of_channels = dim % len(shape) == len(shape) - 1 > 0
        if not of_channels or any(n.query.dim() and n.query.shape[-1] > 1 for n in ids):
            return None
        of_ends = self._entrywise(shape, ids_of_reads) if len(ids) > 1 else None
        return None if of_ends is None or of_ends.key is None else of_ends

    # -- moves ---------------------------------------------------------------------------------

    def _moved(
        self, op: Op, ids_of_reads: dict[int, EntryIds], count: int
    ) -> list[EntryIds | None]:
        parts = [self._move(op, {v: n.query for v, n in ids_of_reads.items()})]
        if any(ids.key is not None for ids in ids_of_reads.values()):
            parts.append(self._move(op, {v: _key(n) for v, n in ids_of_reads.items()}))
        per_result = (part if isinstance(part, tuple | list) else [part] * count for part in parts)
        return [EntryIds(*both) for both in zip(*per_result, strict=False)]

    def _move(self, op: Op, ids: dict[int, Tensor]) -> Any:
        """Run an operation on the ids in place of the values, with `NONE` for constants."""
        if op.name in kinds.VIEWS:
            (moved,) = ids.values()
            return _viewed(moved, *map(self.trace.shape, (op.reads[0].value, op.out)))
        if kinds.OPERATIONS[op.name].nodes == "copied":
            return next(iter(ids.values()))
        if op.name in kinds.TURNS:  # axes of length one turn like those of the values
            (turned,) = ids.values()
            return op.func(aligned(turned, len(self.trace.shape(op.reads[0].value))), *op.args[1:])

        def ids_in_place_of(ref: Ref) -> Tensor:
            tensor = self.trace.memory.tensors[ref.slot]
            of_ref = ids.get(ref.value)
            if of_ref is None and not tensor.is_floating_point() and op.name not in kinds.LISTS:
                return tensor  # it is an index
            of_ref = torch.tensor(NONE, device=tensor.device) if of_ref is None else of_ref
            wide = of_ref.expand(tensor.shape)
            return wide.clone() if op.in_place else wide

        args, kwargs = op.with_tensors(ids_in_place_of)
        if op.name in kinds.PADS:
            args[2:] = [NONE]  # whatever number it pads with
        return op.func(*args, **{k: v for k, v in kwargs.items() if k not in ABOUT_VALUES})

    # -- sums ----------------------------------------------------------------------------------

    def _reduced(self, op: Op, shape: torch.Size, ids_of_reads: dict[int, EntryIds]) -> EntryIds:
        """Return the ids of a sum, or another statistic, over some axes."""
        (ids,) = ids_of_reads.values()
        full = self.trace.shape(op.reads[0].value)
        axes = list(reduced_axes(op, len(full)))
        keep = len(shape) == len(full)

        def reduced(values: Tensor) -> Tensor:
            values = self.compute.summed(aligned(values, len(full)), axes)
            return values if keep else values.squeeze(tuple(axes))

        return self.compute.after_sum(ids, reduced)

    def _transformed(self, ids: EntryIds, dims: Sequence[int], count: int) -> EntryIds | None:
        """Return the ids after a transform that mixes the entries along some of `count` axes."""
        if ids.key is not None:
            return None
        mixed = self.compute.summed(aligned(ids.query, count), [dim % count for dim in dims])
        return EntryIds(self.compute.settled(mixed))

    def _gathered(
        self, op: Op, shape: torch.Size, ids_of_reads: dict[int, EntryIds]
    ) -> EntryIds | None:
        """Return the ids after entries are summed into groups by an index along one axis."""
        dim, index, src = op.args[1] % len(shape), op.args[2], op.args[3]
        ids = ids_of_reads.get(src.value)
        if ids is None:
            return ids_of_reads.get(op.args[0].value)
        by = by_entry(self.trace.memory.tensors[index.slot], dim)
        size = self.trace.shape(src.value)

        def summed(values: Tensor) -> Tensor:
            lengths = (*(1,) * (len(size) - values.dim()), *values.shape)
            values = values.expand([size[a] if a == dim else n for a, n in enumerate(lengths)])
            group = by.view([-1 if a == dim else 1 for a in range(len(lengths))])
            group = group.expand(values.shape)
            groups = [shape[a] if a == dim else n for a, n in enumerate(lengths)]

            def reduced(part: Tensor, way: str) -> Tensor:
                start = part.new_full(groups, LARGE if way == "amin" else -LARGE)
                return start.scatter_reduce(dim, group, part, way)

            return self.compute.of_groups(values, reduced)

        sums = self.compute.after_sum(ids, summed)
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
        first, second = op.args[1:3] if op.name in kinds.PLUS_PRODUCT else op.args[:2]
        a, b = ids_of_reads.get(first.value), ids_of_reads.get(second.value)
        left, right = (self.trace.memory.tensors[ref.slot] for ref in (first, second))
        if right.dim() == 1:  # a vector, so the sum is over the last axis
            b = None if b is None else b.map(lambda t: t[:, None])
            product = self.compute.of_matrices(a, b, left, right[:, None])
            return None if product is None else product.map(lambda t: t.squeeze(-1))
        return self.compute.of_matrices(a, b, left, right)

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
            combined = ids if combined is None else self.compute.combined(combined, ids)
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
            if op.name in kinds.INDEXES:
                index = index_of(op)
                index = index if type(index) is Ref else index[0]
                tensors = self.trace.memory.tensors
                mask = index is not None and tensors[index.slot].dtype == torch.bool
                return None if index is None or mask else index.value
            reads = [ref.value for ref in op.reads if self.nodes.by_value.get(ref.value)]
            if len(reads) != 1 or op.name in kinds.GATHERED | kinds.REDUCE:
                return None
            (value,) = reads
        return None


def _viewed(ids: Tensor, before: torch.Size, after: torch.Size) -> Tensor:
    """View the ids of a tensor of shape `before` in another shape."""
    ids, wide, viewed = aligned(ids, len(before)), list[int](), list[int]()
    for old, new in _split(before, after):
        alike = all(ids.shape[axis] == 1 for axis in old)
        wide += [1 if alike else before[axis] for axis in old]
        viewed += [1 if alike else after[axis] for axis in new]
    return ids.expand(wide).reshape(viewed)


@lru_cache(4096)
def _split(before: torch.Size, after: torch.Size) -> list[tuple[range, range]]:
    """Match the axes of two shapes, in the smallest groups that have as many entries in both."""
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


def _key(ids: EntryIds) -> Tensor:
    """Return the second node of each pair; of entries of single nodes, that node again."""
    return ids.query if ids.key is None else ids.key
