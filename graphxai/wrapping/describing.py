"""Describe the passes of a wrapped model to the engine that explains them.

A pass of a small batch takes hardly longer with one more graph, while a second pass takes a fifth
of the time of an explanation. So the graphs of a batch run beside a graph without nodes, whose
output an explanation names. But a model may count on every graph having nodes, for example because
it pools as many of them as the smallest graph has. So the first such pass has to give two graphs
the outputs that they have by themselves, and the hooks that explain a pass have to prove it as they
prove any other. If either fails, the graph without nodes gets a pass to itself.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial

import torch
from torch import Tensor

from graphxai.contract.inputs import EXPLAINED_NODE
from graphxai.contract.model import wanted_empty_outputs
from graphxai.engine.replay import ways_back_in_python
from graphxai.engine.request import (
    STRUCTURE,
    PassBesideEmpty,
    PassMemory,
    PassRequest,
    record_pass,
)
from graphxai.rules.module_rule import ModuleRule, rule_of_class

from .batches import Wrapped, WrappedBatch, is_real
from .chosen import PAIR
from .heterogeneous import SCHEMA, names_added

LARGE, SEVERAL = 128, 8  # nodes of a graph, graphs of a batch


def described_pass(model: Wrapped, rows: Tensor, batch: WrappedBatch, shown: Tensor) -> PassRequest:
    """Describe the pass of node rows (n, D) or (B, S, D), with the graph's other attributes.

    If the rows are an embedding, `x` is one of these attributes, because the model may use it for
    more than the embedding.

    Args:
        shown (B, N): False at the tokens to hide.
    """
    everything_else_read = (model.settings, shown, *batch.contents())
    call_with_leaves = model.rows_to_outputs(batch, shown) if batch.leaves else None
    leaves, batch = batch.leaves, batch.without_gradients()
    attributes = {} if batch.graphs is None else batch.graphs.to_dict()
    no_inputs = {"num_nodes", "y", *names_added(attributes)}
    no_inputs |= set() if model.settings.embedding else {"x"}
    others = {
        name: value
        for name, value in attributes.items()
        if isinstance(value, Tensor) and value.layout == torch.strided and name not in no_inputs
    }
    request = PassRequest(
        module=model.running,
        call=model.rows_to_outputs(batch, shown),
        rows=rows,
        layout=batch.layout,
        others=others,
        graphs_of=cache(batch.graphs_of),
        leaves=leaves,
        call_with_leaves=call_with_leaves,
        key=everything_else_read,
        memory=model.memory,
        part=partial(_pass_of_two, model, rows, batch, shown),
    )
    beside_empty = partial(pass_beside_empty, model, request, batch, shown)
    return request if leaves else replace(request, beside_empty=beside_empty)


def pass_under_rules(request: PassRequest, rules: Sequence[ModuleRule]) -> PassRequest:
    """Describe a pass whose modules compute by these rules, which may change every output."""
    if not rules:
        return request
    named = request.module.named_modules()

    def part() -> PassRequest | None:
        some = request.part()
        return None if some is None else pass_under_rules(some, rules)

    return replace(
        request,
        call_with_leaves=None,
        key=request.key and (*request.key, *rules),
        under_rules=frozenset(path for path, m in named if rule_of_class(type(m), rules)),
        part=part,
        beside_empty=lambda: None,
    )


def _pass_of_two(
    model: Wrapped, rows: Tensor, batch: WrappedBatch, shown: Tensor
) -> PassRequest | None:
    """Describe the pass of the smallest and the largest graph; None if there are no others.

    They are of different size, if they can be, because the smaller one then has padding.
    """
    if len(batch) <= 2:
        return None
    chosen = [int(batch.num_nodes.argmin()), int(batch.num_nodes.argmax())]
    if chosen[0] == chosen[1]:
        chosen[1] += 1
    two = batch.of_rows(*chosen)
    if batch.graphs is not None:
        rows = torch.cat([rows[batch.layout.graph == graph] for graph in chosen])
    elif rows.shape[1] == batch.mask.shape[1] + batch.has_graph_token:
        rows = rows[chosen, : two.mask.shape[1] + two.has_graph_token]
    else:
        return None
    return described_pass(model, rows, two, shown[chosen, : two.mask.shape[1]])


def pass_beside_empty(
    model: Wrapped, request: PassRequest, batch: WrappedBatch, shown: Tensor
) -> PassBesideEmpty | None:
    """Describe the pass of a batch beside a graph without nodes, or return None.

    Args:
        request: describes the pass of the batch.
        shown (B, N): False at the tokens to hide.
    """
    outputs_wanted = None if model.settings.zeroes_nodes else wanted_empty_outputs()
    if outputs_wanted is None or batch.graphs is None or batch.leaves:
        return None
    if any(name in batch.graphs for name in (EXPLAINED_NODE, PAIR, SCHEMA)):
        return None
    if batch.mask.shape[1] > LARGE and len(batch) < SEVERAL:
        return None  # padding to the size of large graphs costs more than a pass of a few nodes
    if len(batch) == 1 and not model.checks.has_looked_for_mixing:
        # a single graph is not the occasion to warn that the model mixes several
        shares = not model.goes_alone(batch.data_of(0)) and not model.lookups.in_parts
    else:
        shares = not model.why_single_passes(batch)
    if not (shares and bool((shown == batch.mask).all())):
        return None
    if model.checks.changes_beside_empty:
        return None
    wide = batch.beside_empty()
    if wide is None:
        return None
    assert wide.graphs is not None
    others, read = {name: wide.graphs[name] for name in request.others}, batch.read
    inputs = {n: x for n, x in others.items() if is_real(x) or read is None or n in read}
    if any(len(inputs[name]) != len(request.others[name]) for name in inputs.keys() - STRUCTURE):
        return None  # the rows of such an attribute belong to graphs
    run = model.rows_to_outputs(wide, wide.mask)
    passed: list[Tensor] = []

    def call(rows: Tensor) -> Tensor:
        outputs: Tensor = run(rows)
        passed[:] = [outputs.detach()]
        return outputs[1:]

    def is_right() -> bool:
        (outputs,) = passed
        if not model.checks.stays_beside_empty(model, batch, outputs):
            return False
        if bool(torch.isfinite(outputs[0]).all()):
            outputs_wanted.note(model, batch, outputs[:1])
        return True

    return PassBesideEmpty(replace(request, call=call, others=others), is_right)


def changes_gradients(
    outputs: Tensor,
    judged: dict[tuple[str, ...], bool],
    described: Callable[[], PassRequest],
) -> bool:
    """Whether hooks, or backward passes in Python, change the gradient of a plain pass's outputs.

    A pass with others than those that were judged before is recorded once to find out.
    """
    ways = ways_back_in_python([outputs])
    if ways and ways not in judged:
        request, changes = described(), False
        with suppress(Exception):  # a plain pass does not need what a recorded one does
            alone = replace(request.part() or request, memory=PassMemory())
            changes = record_pass(alone).gradient_changes
        judged[ways] = changes
    return bool(ways) and judged[ways]
