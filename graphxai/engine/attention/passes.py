"""Record a pass, find out which node each of its rows is of, and read its attention."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from graphxai.contract.batch import NodeLayout
from graphxai.engine.attention.matrices import insert_attention_matrices
from graphxai.engine.attention.node_ids import NONE, NodeIds, reads_class_token
from graphxai.engine.attention.node_tracker import NodeTracker
from graphxai.engine.attention.reading import (
    attention_between_nodes,
    attention_replacements,
    exposing,
)
from graphxai.engine.ledger import warn_of_nonlinearities
from graphxai.engine.plan import AttentionProduct, Roles, make_plan
from graphxai.engine.replay import Replay
from graphxai.engine.request import PassRequest, record_pass
from graphxai.engine.role_finder import find_roles
from graphxai.engine.trace import NODES, RunningModule, Trace
from graphxai.rules.conservative import Rules, current_tape
from graphxai.runtime.derived_values import cached, weight_versions
from graphxai.runtime.scope import Blocks


class AnnotatedTrace(NamedTuple):
    """A trace in which linear attention has its matrix, with its node ids and roles."""

    trace: Trace
    nodes: NodeIds
    roles: Roles

    def __repr__(self) -> str:
        return self.trace.listing(self.roles.notes())


def annotated_trace(request: PassRequest) -> AnnotatedTrace:
    """Record and annotate a pass, for methods that read attention."""
    rows, versions = request.rows.detach(), weight_versions(request.module)

    def record() -> AnnotatedTrace:
        return annotate(record_pass(request), request.rows, request.layout)

    def may_serve(new: AnnotatedTrace) -> bool:  # every pass draws its own random numbers
        return bool(request.key) and not (new.trace.random_calls or new.trace.random_results)

    return cached((request.module, versions, rows, *request.key), record, may_serve)


def annotate(trace: Trace, rows: Tensor, layout: NodeLayout) -> AnnotatedTrace:
    """Annotate a recorded pass, and write the matrices of linear attention into it."""
    ids = ids_of_rows(layout, rows)
    nodes = NodeTracker(trace, ids, layout.tokens).nodes
    if insert_attention_matrices(trace, nodes):
        nodes = NodeTracker(trace, ids, layout.tokens).nodes
    return AnnotatedTrace(trace, nodes, find_roles(trace))


def ids_of_rows(layout: NodeLayout, rows: Tensor) -> Tensor:
    """Return the ids (n, 1) or (B, S, 1) of the rows (n, D) or (B, S, D) of the model's input."""
    of_nodes = layout.graph * layout.tokens + layout.slot + 1
    if rows.dim() == 2:
        return of_nodes[:, None]
    first = int(not layout.graph_token)
    size = len(layout.mask)
    ids = torch.full((size, layout.tokens), NONE, device=rows.device)
    ids[layout.graph, layout.slot + 1] = of_nodes
    ids[:, 0] = torch.arange(size, device=rows.device) * layout.tokens
    return ids[:, first : first + rows.shape[1], None]


def replay_reading_attention(
    annotated: AnnotatedTrace,
    rules: Rules,
    rows: Tensor,
    layout: NodeLayout,
    name: str,
    warned: set[str] | None = None,
    together: bool = False,
) -> Replay:
    """Replay a pass, and put its attention between nodes on the tape in force.

    Args:
        rows: those of the nodes.
        warned: what has been warned of.
        together: whether the graphs cannot have a pass each.
    """
    trace, nodes, roles = annotated
    plan = make_plan(trace, roles, rules, NODES)
    warn_of_nonlinearities(name, plan, warned)
    attention = attention_between_nodes(plan, nodes, len(layout.mask), name, together)
    replacements = attention_replacements(
        attention, lambda entries: exposing(entries, layout, plan.rules)
    )
    replayed = Replay(plan, {trace.slot_of(NODES): rows}, replacements=replacements)
    if (tape := current_tape()) is not None:
        tape.reads_class_token = reads_class_token(trace, nodes)
        first = len(tape.attention) - len(attention)  # what the model recorded itself comes first
        tape.chunks += range(len(tape.chunks), first)
        tape.chunks += [first + layer.chunk_of for layer in attention]
    if (layer_inputs := _layer_inputs.get()) is not None:
        layer_inputs += [
            layer_input_of(trace, nodes, layer.product, replayed, layout) for layer in attention
        ]
    return replayed


# -- what enters the modules that have attention ---------------------------------------------------


class LayerInput:
    """The rows that enter a module with attention: the same tensor, with its history."""

    def __init__(self, rows: Tensor, ids: Tensor, layout: NodeLayout) -> None:
        self.rows = rows
        self._ids, self._layout = ids.squeeze(-1), layout

    def per_token(self, values: Tensor) -> Tensor:
        """Arrange one value per row as (B, T), with zeros where there is no token."""
        ids = self._ids.expand(values.shape)
        real = ids > NONE
        by_token = values.new_zeros(len(self._layout.mask) * self._layout.tokens)
        by_token[ids[real]] = values[real]
        return by_token.view(len(self._layout.mask), self._layout.tokens)


_layer_inputs: Blocks[list[LayerInput | None] | None] = Blocks("graphxai_layer_inputs", None)


@contextmanager
def layer_inputs() -> Iterator[list[LayerInput | None]]:
    """List what enters the modules with attention in recorded passes within the block.

    Attention must be recorded as well (`rules.conservative.record`), and the two lists correspond.
    The rows are the first tensor that is passed to the innermost running module with one row per
    node: the query of `nn.MultiheadAttention`, or x of a convolution. An entry of the list is None
    if there is no such module.
    """
    with _layer_inputs.block([]) as inputs:
        assert inputs is not None
        yield inputs


def layer_input_of(
    trace: Trace, nodes: NodeIds, product: AttentionProduct, replayed: Replay, layout: NodeLayout
) -> LayerInput | None:
    """Return the first tensor given to the innermost running module that gets one row per node."""
    count = int(layout.mask.sum())
    outer: RunningModule | None = product.op.running
    while outer is not None:
        running, outer = outer, outer.outer
        slot = None if running.rows is None else trace.memory.slots.get(id(running.rows))
        rows = None if slot is None else replayed.now[slot]
        if slot is None or rows is None or not rows.requires_grad or rows.dim() not in (2, 3):
            continue
        ids = nodes.by_value.get(trace.memory.latest[slot])
        if ids is None or ids.key is not None or ids.query.shape[-1] != 1:
            continue
        single = ids.query.expand((*rows.shape[:-1], 1))
        of_nodes = single[single >= 0]
        of_nodes = of_nodes[of_nodes % layout.tokens > 0]
        if len(of_nodes) == count == len(of_nodes.unique()):
            return LayerInput(rows, single, layout)
    return None
