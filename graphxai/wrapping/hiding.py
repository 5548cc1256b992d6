"""Outputs of graphs from which a wrapped model hides some or all nodes.

A graph that loses some nodes is run as its induced subgraph. A graph that loses all of them is run
as an empty graph, beside another one where the model needs it. If that has no finite output, the
nodes are set to zero instead.
"""

from contextlib import suppress

import torch
from torch import Tensor
from torch_geometric.data import Data

from graphxai.contract.batch import OneGraphAtATime
from graphxai.runtime.notices import warn
from graphxai.wrapping.eval_replica import restoring_attributes

from .batches import Wrapped, WrappedBatch
from .chosen import chosen_nodes, is_about_nodes, named_nodes, nodes_asked
from .heterogeneous import numbers_of_types

FEW = 8  # nodes beside which a model shows its output without nodes
# What follows where a model has no finite output for a graph without nodes.
ZEROED = ". Where all nodes were to be hidden, they were set to zero instead."
UNDEFINED = ", so the results for such graphs are NaN."


def outputs_of_kept(model: Wrapped, tokens: Tensor, batch: WrappedBatch, keep: Tensor) -> Tensor:
    """Return the outputs (B, C) of the subgraphs with only the nodes to keep (B, N)."""
    types = numbers_of_types(batch, batch.mask)
    last = int((types * (int(batch.num_nodes.max()) + 1) + batch.num_nodes).argmax())
    if not int(batch.num_nodes[last]):
        raise ValueError("none of these graphs has any nodes.")
    shown = batch.mask & keep
    if bool(shown.any(-1).all()) and torch.equal(numbers_of_types(batch, shown), types):
        subgraphs = batch.without(shown)
        return model.run_pass(tokens[:, 1:][shown], subgraphs, subgraphs.mask)
    subgraphs = batch.without(shown, last)
    rows = torch.cat([tokens[:, 1:][shown], tokens[last, 1:][batch.mask[last]]])
    hidden, empty = batch.mask.any(-1) & ~shown.any(-1), ~batch.mask.any(-1)
    if not (model.settings.zeroes_nodes and bool(hidden.any())):
        outputs = _outputs_beside_empty(model, rows, subgraphs)
        if not bool(torch.isfinite(outputs[empty]).all()):
            warn_of_empty(model, UNDEFINED)
        if bool(torch.isfinite(outputs[hidden]).all()):
            return outputs
        warn_of_empty(model, ZEROED)
    zeros = tokens.masked_fill(hidden[:, None, None], 0.0)
    return outputs_of_kept(model, zeros, batch, keep | (hidden[:, None] & batch.mask))


def _outputs_beside_empty(model: Wrapped, rows: Tensor, batch: WrappedBatch) -> Tensor:
    """Return the outputs (B, C) of the batch without its last graph.

    If the model fails, its graphs without nodes have NaN, and the others run by themselves.
    """
    try:
        with restoring_attributes(model.running):
            return model.run_pass(rows, batch, batch.mask)[:-1]
    except OneGraphAtATime:
        raise
    except Exception:  # a model may raise anything that its code divides by or looks up
        columns = model.config.num_outputs * batch.nodes_asked
        outputs = rows.new_full((len(batch) - 1, columns), torch.nan)
        kept = batch.mask[:-1].any(-1).nonzero()[:, 0]
        if len(kept):
            part = batch.of_rows(*kept.tolist())
            rows = rows[torch.isin(batch.layout.graph, kept)]
            outputs = outputs.index_copy(0, kept, model.run_pass(rows, part, part.mask))
        return outputs


def outputs_without_nodes(model: Wrapped, batch: WrappedBatch) -> Tensor | None:
    """Return what `WrappedModel.outputs_without_nodes` does."""
    if batch.graphs is not None and is_about_nodes(batch.graphs):
        return batch.x.new_zeros(len(batch) * batch.nodes_asked, model.config.num_outputs)
    if model.settings.zeroes_nodes:
        return None
    number = batch.num_nodes.masked_fill(batch.num_nodes == 0, batch.mask.shape[1] + 1)
    smallest = int(number.argmin())
    whole = int(batch.num_nodes[smallest])
    for count in sorted({min(whole, FEW), whole}):
        with suppress(Exception), restoring_attributes(model.running):
            if batch.graphs is None:
                hides = model.settings.graph_token and model.masks_padding
                no_nodes = torch.zeros_like(batch.mask)
                return model.encode(model.embed(batch), batch, no_nodes) if hides else None
            beside = batch.first_nodes(smallest, count)
            single = model.collate([beside]).to(model.device)
            if model.why_single_passes(batch if len(batch) > 1 else single):
                return _outputs_without_any_nodes(model, batch, beside)
            emptied = batch.emptied(beside)
            rows = model.embed(batch)[smallest, 1:][batch.mask[smallest]][:count]
            return model.run_pass(rows, emptied, emptied.mask)[:-1].expand(len(batch), -1)
    return None


def output_of_hidden(model: Wrapped, graph: Data, empty: Data, tokens: Tensor) -> Tensor:
    """Return the output (1, C) of a graph with tokens (N, D) if all its nodes are hidden.

    `empty` is the graph without its nodes. If one of the nodes is explained, the output is zero.
    """
    if is_about_nodes(graph):
        return tokens.new_zeros(1, model.config.num_outputs * len(nodes_asked(graph)))
    if not model.settings.zeroes_nodes:
        if (output := _finite_output(model, empty, tokens[:0], graph)) is not None:
            return output
        warn_of_empty(model, ZEROED)
    zeros = tokens.new_zeros(1, int(graph.num_nodes or 0) + 1, tokens.shape[1])
    return model.encode(zeros, model.collate([graph]))


def output_of_empty(model: Wrapped, empty: Data) -> Tensor:
    """Return the output (1, C) of a graph without nodes.

    If one of its nodes was to be explained, the output is zero. If the model has no finite output
    for an empty graph, warn and return NaN.
    """
    if is_about_nodes(empty):
        return torch.zeros(1, model.config.num_outputs, device=empty.x.device)
    if (output := _finite_output(model, empty)) is not None:
        return output
    warn_of_empty(model, UNDEFINED)
    return torch.full((1, model.config.num_outputs), torch.nan, device=empty.x.device)


def _outputs_without_any_nodes(model: Wrapped, batch: WrappedBatch, beside: Data) -> Tensor | None:
    """Return the outputs (B, C) of graphs with all nodes hidden, or None if they are not finite.

    They run beside another graph if they cannot run alone. Graphs that are then equal have one
    output.
    """
    outputs: list[Tensor] = []
    for empty in batch.without_any_nodes():
        if (output := _finite_output(model, empty, beside=beside)) is None:
            return None
        outputs.append(output)
    return torch.cat(outputs).expand(len(batch), -1)


def _finite_output(
    model: Wrapped, empty: Data, rows: Tensor | None = None, beside: Data | None = None
) -> Tensor | None:
    """Return the model's output (1, C) for an empty graph, or None if it is not finite.

    The graph has tokens `rows` (0, D). If it cannot run alone and the model does not mix graphs, it
    runs together with the graph `beside`.
    """
    if (output := _first_output(model, [empty], rows)) is not None or beside is None:
        return output
    return None if model.checks.mixing is not None else _first_output(model, [empty, beside])


def _first_output(model: Wrapped, graphs: list[Data], rows: Tensor | None = None) -> Tensor | None:
    """Run all graphs in one pass, and return the first output (1, C), or None if not finite."""
    try:
        with restoring_attributes(model.running):
            batch = model.collate(graphs)
            rows = model.embed(batch)[:, 1:][batch.mask] if rows is None else rows
            output: Tensor = model.run_pass(rows, batch, batch.mask)[:1]
    except Exception:  # a model may raise anything that its code divides by, asserts or looks up
        return None
    return output if bool(torch.isfinite(output).all()) else None


def warn_of_empty(model: Wrapped, consequence: str) -> None:
    """Warn that the output of graphs without nodes is not finite, and what follows of it."""
    name = type(model.module).__name__
    warn(f"{name} has no finite output for a graph without nodes{consequence}", stacklevel=5)


def nodes_of_answer(model: Wrapped, batch: WrappedBatch, tokens: Tensor) -> Tensor:
    """Return where the nodes are at which a model reads its answer, (B, N).

    These are the chosen node or pair, or else those that an index or a mask of the graph names, if
    the output is zero without one of them.
    """
    of_answer = torch.zeros_like(batch.mask)
    if batch.graphs is None:
        return of_answer
    for place, graph in enumerate(batch.examples()):
        chosen = chosen_nodes(graph)
        of_answer[place, chosen or named_nodes(graph, model.attributes_read())] = True
    if not is_about_nodes(batch.graphs):
        for node in of_answer.any(0).nonzero()[:, 0]:
            keep = batch.mask.index_fill(1, node, False)
            with torch.no_grad():
                of_answer[:, node] &= ~model.encode(tokens, batch, keep).any(-1)
    return of_answer
