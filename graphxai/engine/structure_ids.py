"""Node ids also for what a pass computes from the structure of a graph.

Counts of neighbours and of the nodes of a graph depend on no features. To say which node each of
their terms belongs to, the ids are followed through integers, too: an entry of `edge_index`, and
whatever has a row for each edge, belongs to the two ends of the edge.
"""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from .node_ids import NONE, EntryIds, NodeIds
from .node_tracker import GATHERED, MOVES, NodeTracker
from .trace import Op, Ref, Trace

JOINS = {"cat", "stack"}


def track_structure(
    trace: Trace, slot: int, rows: Tensor, tokens: int, others: Mapping[int, EntryIds]
) -> NodeIds:
    """Follow node ids through a pass, as `track_nodes` does, and through its integers.

    Args:
        slot: the input that holds the nodes' rows.
        rows: the ids of these rows.
        tokens: the number of tokens of a graph.
        others: the ids of other inputs by slot.
    """
    tracker = _StructureTracker(trace, rows, tokens)
    tracker.nodes.by_value[trace.flow.slot_of_value.index(slot)] = EntryIds(rows)
    for other_slot, ids in others.items():
        tracker.nodes.by_value[trace.flow.slot_of_value.index(other_slot)] = ids
        tracker.bits |= trace.inputs[other_slot]
    for op in trace.ops:
        tracker.step(op)
    return tracker.nodes


class _StructureTracker(NodeTracker):
    """Follows integers that are moved, and sums of constants by an index with ids."""

    def step(self, op: Op) -> None:
        """Give ids to the results of an operation, unless they cannot be told."""
        tensors = self.trace.memory.tensors
        if op.makes and not tensors[op.makes[0].slot].dtype.is_floating_point:
            if op.name in MOVES:
                self._move_integers(op)
            return
        if op.name in GATHERED and self._is_of_constants(op):
            self._sum_constants(op)
            return
        super().step(op)

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

    def _is_of_constants(self, op: Op) -> bool:
        source, index = op.args[3], op.args[2]
        return self._ids_of(source.value) is None and self._ids_of(index.value) is not None

    def _sum_constants(self, op: Op) -> None:
        """Give the results of a sum of constants the ids that their index says."""
        ids = self._ids_of(op.args[2].value)
        assert ids is not None
        dims = len(self.trace.shape(op.args[3].value))
        with suppress(RuntimeError, IndexError, TypeError, ValueError):
            aligned = ids.map(lambda t: t if t.dim() <= dims else t.flatten())
            result = self._gathered(op, self.trace.shape(op.out), {op.args[3].value: aligned})
            if result is not None:
                self.nodes.by_value[op.out] = result

    def _move_integers(self, op: Op) -> None:
        ids = {ref.value: entries for ref in op.reads if (entries := self._ids_of(ref.value))}
        if not ids or (op.reads[0].value not in ids and op.name not in JOINS):
            return
        with suppress(RuntimeError, IndexError, TypeError, ValueError):
            results = self._moved(op, ids, len(op.makes))
            for ref, result in zip(op.makes, results, strict=False):
                if result is not None:
                    self.nodes.by_value[ref.value] = result

    def _move(self, op: Op, ids: dict[int, Tensor]) -> Any:
        """Run an operation on the ids in place of the values. Indices stay as they are."""
        first = op.reads[0].value
        if op.name not in JOINS:
            integers = {
                ref.value
                for ref in op.reads
                if ref.value != first
                and not self.trace.memory.tensors[ref.slot].dtype.is_floating_point
            }
            ids = {value: entries for value, entries in ids.items() if value not in integers}
            return super()._move(op, ids)

        def ids_in_place_of(ref: Ref) -> Tensor:
            tensor = self.trace.memory.tensors[ref.slot]
            missing = torch.tensor(NONE, device=tensor.device)
            return ids.get(ref.value, missing).expand(tensor.shape)

        args, kwargs = op.with_tensors(ids_in_place_of)
        return op.func(*args, **kwargs)
