"""Run passes of graphs, or of rows of tokens, through a model one at a time."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.data import Data

from graphxai.runtime.notices import warn

from .attribute_roles import attribute_roles
from .batches import WrappedBatch
from .chosen import is_about_nodes, nodes_asked
from .lookups import IN_PARTS
from .subgraphs import restricted

Wrapped = Any  # a WrappedModel, whose file imports this one
# Why the graphs of a list take a pass each, and what to do.
AS_ASKED = "takes one graph at a time, as wrap was told"
HAS_MATRICES = "gets graphs with dense matrices of pairs of nodes, which PyG cannot batch"
NO_BATCH_VECTOR = "has a forward without a batch vector"
FAILS_TOGETHER = "raises an error for several graphs together"
COUNTS_PADDING = "counts padding, as PyG's linear attention does"
ATTENTION_IN_PARTS = "computes attention in one graph after another"
OF_MIXING = (
    "What it returns for one graph depends on the others. To run them together, let that module"
    " keep the graphs apart (give it the batch vector, or a mask)."
)
ADVICE = {
    AS_ASKED: "",
    HAS_MATRICES: "There is no way to run them together.",
    NO_BATCH_VECTOR: "To run them together, let forward take `batch`, or give wrap a forward=.",
    IN_PARTS: "To run them together, look all codes up in one call, as in h = embedding(x).",
    FAILS_TOGETHER: "To run them together, let forward tell them apart by `batch`.",
    COUNTS_PADDING: "To run them together, mask the padding.",
    ATTENTION_IN_PARTS: "Methods that do not read attention run them together.",
}
# What follows where a model has no finite output for a graph without nodes.
ZEROED = ". Where all nodes were to be hidden, they were set to zero instead."
UNDEFINED = ", so the results for such graphs are NaN."


def advice_on(why: str) -> str:
    """Say what to do about a reason for which graphs take a pass each."""
    return ADVICE.get(why, OF_MIXING)


def one_by_one(
    model: Wrapped,
    tokens: Tensor,
    batch: WrappedBatch,
    keep: Tensor | None,
    output_without_nodes: Tensor | None = None,
) -> Tensor:
    """Return the outputs (K * B, C) of K copies of a batch of B graphs, one graph at a time.

    Args:
        model: the wrapped model.
        tokens (K * B, T, D): the tokens of all copies.
        batch: the batch.
        keep (K * B, N): False at the nodes to hide.
        output_without_nodes (1, C): the output if no node is left. By default it is the model's
            output for an empty graph. If that is not finite, the nodes are set to zero instead,
            with a warning.
    """
    graphs, times = batch.examples(), len(tokens) // len(batch)
    shown = batch.mask.repeat(times, 1) if keep is None else batch.mask.repeat(times, 1) & keep
    roles = None if keep is None else attribute_roles(graphs, batch.read)
    outputs = []
    for row, (node_tokens, stays) in enumerate(zip(tokens[:, 1:], shown, strict=True)):
        graph = graphs[row % len(graphs)]
        kept = stays[: int(graph.num_nodes or 0)]
        subgraph = graph if keep is None else restricted(graph, kept, roles)
        if bool(kept.any()):
            rows = F.pad(node_tokens[stays], (0, 0, 1, 0))[None]
            outputs.append(model.encode(rows, model.collate([subgraph])))
        elif output_without_nodes is not None:
            outputs.append(output_without_nodes)
        elif graph.num_nodes:
            outputs.append(output_of_hidden(model, graph, subgraph, node_tokens))
        else:
            outputs.append(output_of_empty(model, graph))
    return torch.cat(outputs)


def tokens_one_by_one(
    model: Wrapped, tokens: Tensor, batch: WrappedBatch, keep: Tensor | None
) -> Tensor:
    """Return the outputs (K * B, C) of K copies of B rows of tokens, one row at a time.

    Tokens are (K * B, T, D), and `keep` (K * B, N) is False at those to hide.
    """
    outputs = []
    for row, row_tokens in enumerate(tokens):
        single = batch.of_rows(row % len(batch))
        nodes = single.mask.shape[1]
        shown = None if keep is None else keep[row : row + 1, :nodes]
        outputs.append(model.encode(row_tokens[None, : nodes + 1], single, shown))
    return torch.cat(outputs)


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


def outputs_without_any_nodes(model: Wrapped, batch: WrappedBatch, beside: Data) -> Tensor | None:
    """Return the outputs (B, C) of graphs with all nodes hidden, or None if they are not finite.

    They run beside another graph if they cannot run alone. Graphs of which nothing is left that
    the model reads have one output.
    """
    graphs, read = batch.examples(), batch.read
    roles = attribute_roles(graphs, read)
    outputs: list[Tensor] = []
    of_nothing: Tensor | None = None
    for graph in graphs:
        no_nodes = torch.zeros(int(graph.num_nodes or 0), dtype=torch.bool, device=graph.x.device)
        empty = restricted(graph, no_nodes, roles)
        left = (x for name, x in empty.to_dict().items() if read is not None and name in read)
        is_nothing = read is not None and not any(
            not isinstance(x, Tensor) or x.numel() for x in left
        )
        output = of_nothing if is_nothing else None
        output = _finite_output(model, empty, beside=beside) if output is None else output
        if output is None:
            return None
        of_nothing = output if is_nothing else of_nothing
        outputs.append(output)
    return torch.cat(outputs)


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
        batch = model.collate(graphs)
        rows = model.embed(batch)[:, 1:][batch.mask] if rows is None else rows
        output: Tensor = model._run_pass(rows, batch, batch.mask)[:1]
    except Exception:  # a model may raise anything that its code divides by, asserts or looks up
        return None
    return output if bool(torch.isfinite(output).all()) else None


def warn_of_empty(model: Wrapped, consequence: str) -> None:
    """Warn that the output of graphs without nodes is not finite, and what follows of it."""
    name = type(model.module).__name__
    warn(f"{name} has no finite output for a graph without nodes{consequence}", stacklevel=5)
