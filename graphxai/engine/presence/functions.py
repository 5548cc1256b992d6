"""Sums, means, maxima and softmaxes over nodes of which some are absent.

Each function takes a tensor and the presence of its entries, 1 or 0, in a shape that broadcasts to
it, and returns what the operation gives without the absent entries. The gradient at the presence is
a difference, not a derivative: how much the result would change if this entry alone left, or
joined, times the gradient of the result. So it is exact for one operation, whatever its curvature.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from graphxai.engine.attention.node_ids import NONE, EntryIds
from graphxai.engine.attention.node_tracker import NodeTracker
from graphxai.engine.operations import GATHERED, LISTS, MOVES
from graphxai.engine.presence.gates import Groups
from graphxai.engine.trace import Op, Ref

Factor = Callable[[], Tensor | None]
LEAST = 0.02  # smallest share that is left when an entry leaves, which bounds its marginal
EQUAL = 1e-5  # of the largest row of a group, by which equal entries may differ
ALONE = 1e-6  # less than this is left when the only entry leaves


class _Weighted(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, presence: Tensor, factor: Factor | None) -> Tensor:
        ctx.save_for_backward(x, presence)
        ctx.factor = factor
        return torch.where(presence > 0, x, torch.zeros_like(x))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        x, presence = ctx.saved_tensors
        # the slope of 1 / sqrt(degree) is infinite where no neighbour is present
        gradient = gradients[0].nan_to_num(0.0, 0.0, 0.0)
        terms = gradient * x
        if ctx.factor is not None and (factor := ctx.factor()) is not None:
            terms = terms * factor
        of_x = (gradient * presence).sum_to_size(x.shape)
        return of_x, terms.sum_to_size(presence.shape), None


def weighted(x: Tensor, presence: Tensor, factor: Factor | None = None) -> Tensor:
    """Return x where entries are present, and zero elsewhere, as the terms of a sum.

    Args:
        factor: returns, after the pass, what the marginal of each entry is multiplied by, where
            the sum belongs to a quotient (see `quotient_factors`).
    """
    out: Tensor = _Weighted.apply(x, presence, factor)
    return out


def quotient_factors(
    weights: Tensor, total: Tensor, divisor: Tensor, presence: Tensor
) -> tuple[Tensor, Tensor]:
    """Return what makes the marginals of `sum c x / sum c` exact, above and below the line.

    If an entry of weight c leaves the sums, the quotient q = a / b changes by `(da - q db) / (b -
    c)`, and its derivative is `(da - q db) / b`. Where the only entry leaves, the quotient becomes
    zero, and where the first one joins, it was zero.

    Args:
        weights: c of every entry.
        total: b of every entry's group, the sum over its present entries.
        divisor: what is divided by, which may be b with a small number added or with a least value.
        presence: of the entries, in a shape that broadcasts to that of the weights.
    """
    present = presence.expand(weights.shape) > 0
    share = (weights / total).nan_to_num(0.0, 0.0, 0.0)
    alone = present & (1 - share < ALONE)
    above = torch.where(present, 1 / (1 - share).clamp(min=LEAST), 1 / (1 + share))
    above = torch.where(alone, 1.0, above)
    first = ~present & (total == 0)
    joined = divisor / torch.maximum(divisor, weights)
    return torch.where(first, joined, above), torch.where(alone | first, 0.0, above)


class _Softmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scores: Tensor, presence: Tensor, dim: int) -> Tensor:
        present = presence.expand(scores.shape) > 0
        shown = scores.masked_fill(~present, -torch.inf)
        normaliser = shown.logsumexp(dim, keepdim=True)
        attention = (shown - normaliser).exp().nan_to_num(0.0)  # a row without keys has none
        ctx.save_for_backward(scores, presence, attention, normaliser)
        ctx.dim = dim
        return attention

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        scores, presence, attention, normaliser = ctx.saved_tensors
        gradient = gradients[0]
        average = (attention * gradient).sum(ctx.dim, keepdim=True)
        to_mean = gradient - average
        leaving = attention / (1 - attention).clamp(min=LEAST)
        joining = torch.sigmoid(scores - normaliser)
        present = presence.expand(scores.shape) > 0
        change = torch.where(present, leaving, joining) * to_mean
        return attention * to_mean, change.sum_to_size(presence.shape), None


def softmax(scores: Tensor, presence: Tensor, dim: int) -> Tensor:
    """Return the softmax over the present entries along an axis, and zero at the others."""
    out: Tensor = _Softmax.apply(scores, presence, dim)
    return out


class _LargestPresent(torch.autograd.Function):
    """The present entries of each group, by an index, with the largest key, which share it."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, presence: Tensor, index: Tensor, base: Tensor, keys: Tensor, tie: float
    ) -> Tensor:
        present = presence.expand(x.shape) > 0
        shown = keys.masked_fill(~present, -torch.inf)
        groups = index.view(-1, *[1] * (x.dim() - 1)).expand(x.shape)
        lowest = torch.full_like(base, -torch.inf)
        largest = lowest.scatter_reduce(0, groups, shown, "amax")
        rows = keys.masked_fill(~present, 0.0).abs()[:, None].flatten(1).amax(1)
        sizes = rows.new_zeros(len(base)).scatter_reduce(0, index, rows, "amax")
        near = largest - tie * sizes.view(-1, *[1] * (x.dim() - 1))
        chosen = present & (shown >= near.gather(0, groups))
        count = torch.zeros_like(base).scatter_add(0, groups, chosen.to(x))
        share = chosen / count.gather(0, groups).clamp(min=1)
        others = shown.masked_fill(share == 1, -torch.inf)
        second = lowest.scatter_reduce(0, groups, others, "amax")
        is_second = present & (others == second.gather(0, groups))
        empty = largest == -torch.inf
        out, after = (
            lowest.scatter_reduce(0, groups, x.masked_fill(~of_them, -torch.inf), "amax")
            for of_them in (chosen, is_second)
        )
        out = torch.where(empty, base, out)
        after = torch.where(second == -torch.inf, base, after)
        joins = empty.gather(0, groups) | (keys > largest.gather(0, groups))
        ctx.save_for_backward(x, presence, groups, out, after, share, empty, joins)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, presence, groups, out, after, share, empty, joins = ctx.saved_tensors
        gradient = gradients[0]
        of_entry, before = gradient.gather(0, groups), out.gather(0, groups)
        leaving = torch.where(share > 0, before - after.gather(0, groups), 0.0)
        joining = torch.where(joins, x - before, 0.0)
        change = torch.where(presence.expand(x.shape) > 0, leaving, joining) * of_entry
        of_presence = change.sum_to_size(presence.shape)
        return of_entry * share, of_presence, None, gradient * empty, None, None


def of_groups(
    way: str, x: Tensor, presence: Tensor, index: Tensor, base: Tensor, with_base: bool
) -> Tensor:
    """Return the largest, the smallest, the last or the mean present entry of each group.

    Args:
        way: "amax", "amin", "last" or "mean".
        x: entries (n, ...).
        presence: that of each entry, of the same shape.
        index: the group (n,) of each entry.
        base: what groups without entries have, (groups, ...).
        with_base: whether the base counts as one more entry of each group, which is present.
    """
    if with_base:
        # the base comes first, so that it is the last entry only if no other is present
        x, presence = torch.cat([base, x]), torch.cat([torch.ones_like(base), presence])
        index = torch.cat([torch.arange(len(base), device=index.device), index])
    if way == "amin":
        return -of_groups("amax", -x, presence, index, -base, False)
    if way in ("amax", "last"):
        places = torch.arange(len(x), device=x.device).to(x).view(-1, *[1] * (x.dim() - 1))
        keys = x.detach() if way == "amax" else places.expand(x.shape)
        tie = EQUAL if way == "amax" else 0.0
        out: Tensor = _LargestPresent.apply(x, presence, index, base, keys, tie)
        return out
    wide, nothing = presence.expand(x.shape), torch.zeros_like(base)
    count = nothing.index_add(0, index, wide.detach())
    above, below = quotient_factors(
        torch.ones_like(x), count[index], count[index].clamp(min=1), wide.detach()
    )
    total = nothing.index_add(0, index, weighted(x, wide, lambda: above))
    number = nothing.index_add(0, index, weighted(torch.ones_like(x), wide, lambda: below))
    return total / number.clamp(min=1) + base * (count == 0)


class StructureTracker(NodeTracker):
    """Follows masks and moved integers, too, and sums of constants by an index with ids."""

    def step(self, op: Op) -> None:
        """Give ids to the results of an operation, unless they cannot be told."""
        tensors = self.trace.memory.tensors
        if op.makes and not tensors[op.makes[0].slot].dtype.is_floating_point:
            if op.name in MOVES or tensors[op.makes[0].slot].dtype == torch.bool:
                self._move_integers(op)
            return
        groups = None if op.name in GATHERED else Groups.of(op)
        ids = None if groups is None else self._ids_of(groups.index.value)
        if groups is not None and ids is not None and ids.key is not None:
            self._assign(op, groups)
            return
        of_index = self._ids_of(op.args[2].value) if op.name in GATHERED else None
        if of_index is not None and self._ids_of(op.args[3].value) is None:
            self._sum_constants(op, of_index)
            return
        super().step(op)
        if op.name in GATHERED and (ids := self.nodes.by_value.get(op.out)) is not None:
            self.nodes.by_value[op.out] = self._of_own_rows(op, ids)

    def _result(
        self, op: Op, results: list[Ref], ids_of_reads: dict[int, EntryIds]
    ) -> list[EntryIds | None]:
        """Return the ids of the results. Integers choose entries, and give them no ids."""
        tensors = self.trace.memory.tensors
        of_values = {
            ref.value: ids_of_reads[ref.value]
            for place, ref in enumerate(op.reads)
            if ref.value in ids_of_reads
            and (tensors[ref.slot].dtype.is_floating_point or not place)
        }
        return super()._result(op, results, of_values) if of_values else [None]

    def _assign(self, op: Op, groups: Groups) -> None:
        """Give what is written to rows of nodes their ids, or those of what was there before."""
        shape = self.trace.shape(op.out)
        before = self._ids_of(op.args[0].value)
        if before is None and shape[groups.dim] == len(self.rows):
            lengths = [-1 if a == groups.dim % len(shape) else 1 for a in range(len(shape))]
            before = EntryIds(self.rows.view(lengths))
        if before is not None:
            self.nodes.by_value[op.out] = before

    def _sum_constants(self, op: Op, ids: EntryIds) -> None:
        """Give the results of a sum of constants the ids that their index says."""
        dims = len(self.trace.shape(op.args[3].value))
        with suppress(RuntimeError, IndexError, TypeError, ValueError):
            along = op.args[1] % dims  # the axis of the source that the index runs along

            def aligned_with_source(t: Tensor) -> Tensor:
                flat = t if t.dim() <= dims else t.flatten()
                return flat.view(-1, *[1] * (dims - 1 - along)) if flat.dim() == 1 else flat

            aligned = ids.map(aligned_with_source)
            result = self._gathered(op, self.trace.shape(op.out), {op.args[3].value: aligned})
            if result is not None:
                self.nodes.by_value[op.out] = self._of_own_rows(op, result)

    def _of_own_rows(self, op: Op, ids: EntryIds) -> EntryIds:
        """Give groups to which nothing is sent the ids of their rows, if the groups are nodes."""
        query = ids.query
        if ids.key is not None or op.args[1] or query.shape[:1] != self.rows.shape[:1]:
            return ids
        of_rows = self.rows.view(-1, *[1] * (query.dim() - 1))
        is_row = bool(((query == of_rows) | (query <= NONE)).all())
        return EntryIds(torch.where(query == NONE, of_rows, query)) if is_row else ids

    def _move_integers(self, op: Op) -> None:
        ids = {ref.value: entries for ref in op.reads if (entries := self._ids_of(ref.value))}
        if not ids or (op.reads[0].value not in ids and op.name not in LISTS):
            return
        with suppress(RuntimeError, IndexError, TypeError, ValueError):
            if op.name in MOVES:
                results = self._moved(op, ids, len(op.makes))
            else:
                results = [self._entrywise(self.trace.shape(op.out), ids)]
            for ref, result in zip(op.makes, results, strict=False):
                if result is not None:
                    self.nodes.by_value[ref.value] = result

    def _move(self, op: Op, ids: dict[int, Tensor]) -> Any:
        """Run an operation on the ids in place of the values. Indices stay as they are."""
        first, tensors = op.reads[0].value, self.trace.memory.tensors
        for ref in op.reads if op.name not in LISTS else ():
            if ref.value != first and not tensors[ref.slot].dtype.is_floating_point:
                ids = {value: entries for value, entries in ids.items() if value != ref.value}
        return super()._move(op, ids)
