"""Run the graphs of a batch beside a graph without nodes, whose output an explanation names.

A pass of a small batch takes hardly longer with one more graph, while a second pass takes a fifth
of the time of an explanation. But a model may count on every graph having nodes, for example
because it pools as many of them as the smallest graph has. So the first such pass has to give two
graphs the outputs that they have by themselves, and the hooks that explain a pass have to prove it
as they prove any other. If either fails, the graph without nodes gets a pass to itself.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from graphxai.contract.inputs import EXPLAINED_NODE
from graphxai.contract.model import wanted_empty_outputs

from .batches import WrappedBatch, is_real
from .chosen import PAIR
from .engine.pass_request import PassBesideEmpty, PassRequest
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
    if model.checks.changes_beside_empty:
        return None
    wide = batch.beside_empty(model.attributes_read())
    if wide is None:
        return None
    assert wide.graphs is not None
    others = {name: wide.graphs[name] for name in request.others}
    if any(is_real(x) and len(x) != len(request.others[name]) for name, x in others.items()):
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
