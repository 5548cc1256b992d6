"""Run the graphs of a batch beside a graph without nodes, whose output an explanation names.

A pass of a small batch takes hardly longer with one more graph, while a second pass takes a fifth
of the time of an explanation. But a model may count on every graph having nodes, for example
because it pools as many of them as the smallest graph has. So a pass of two graphs has to show
first that their outputs stay the same, and the hooks that explain a pass have to prove it as they
prove any other. If either fails, the graph without nodes gets a pass to itself.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from graphxai.contract.inputs import EXPLAINED_NODE
from graphxai.contract.output_without_nodes import wanted_empty_outputs

from .batches import WrappedBatch, as_rows, is_real
from .chosen import PAIR
from .engine.pass_request import PassBesideEmpty, PassRequest
from .eval_replica import restoring_attributes, uncompiled
from .heterogeneous import SCHEMA

Wrapped = Any  # a WrappedModel, whose file imports this one


def pass_beside_empty(
    model: Wrapped, request: PassRequest, batch: WrappedBatch, shown: Tensor
) -> PassBesideEmpty | None:
    """Describe the pass of a batch beside a graph without nodes, or return None.

    Args:
        model: the wrapped model.
        request: describes the pass of the batch.
        batch: the batch.
        shown (B, N): False at the tokens to hide.
    """
    outputs_wanted = wanted_empty_outputs()
    if outputs_wanted is None or batch.graphs is None or batch.leaves or model.settings.embedding:
        return None
    if any(name in batch.graphs for name in (EXPLAINED_NODE, PAIR, SCHEMA)):
        return None
    if len(batch) == 1 and not model.checks.has_looked_for_mixing:
        return None  # a single graph is not the occasion to warn that the model mixes several
    if not (model.shares_passes(batch) and bool((shown == batch.mask).all())):
        return None
    wide = batch.beside_empty(model.attributes_read())
    if wide is None or not model.checks.stands_beside_empty(model, batch):
        return None
    assert wide.graphs is not None
    others = {name: wide.graphs[name] for name in request.others}
    if any(is_real(x) and len(x) != len(request.others[name]) for name, x in others.items()):
        return None  # the rows of such an attribute belong to graphs
    run = model.rows_to_outputs(wide, wide.mask)
    of_empty: list[Tensor] = []

    def call(rows: Tensor) -> Tensor:
        outputs: Tensor = run(rows)
        of_empty[:] = [outputs[:1].detach()]
        return outputs[1:]

    def note() -> None:
        if bool(torch.isfinite(of_empty[0]).all()):
            outputs_wanted.note(batch, of_empty[0])

    return PassBesideEmpty(replace(request, call=call, others=others), note)


def outputs_beside_empty(model: Wrapped, batch: WrappedBatch) -> tuple[Tensor, Tensor] | None:
    """Return the outputs (2, C) of two graphs, and (3, C) with those of a graph without nodes.

    The graph without nodes comes first. Returns None if there is no such graph.
    """
    two = batch.of_rows(*{0, len(batch) - 1})
    wide = two.beside_empty(model.attributes_read())
    if wide is None:
        return None
    with (
        model.evaluating(),
        restoring_attributes(model.running),
        uncompiled(model.running),
        torch.no_grad(),
    ):
        rows = as_rows(model.embed(two), two)
        alone, beside = (model.rows_to_outputs(b, b.mask)(rows) for b in (two, wide))
    return alone, beside
