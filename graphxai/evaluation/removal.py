"""Three ways to take nodes away from a graph.

* `mask`: the node's key is excluded from every attention, as padding is; the structure of the rest
  stays as it was.
* `zero`: the node's embedding becomes zero; its token stays.
* `delete`: the induced subgraph is encoded afresh, with its own degrees and shortest paths.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.utils import subgraph

from graphxai.explainers.passes import encode, structural_bias
from graphxai.models.graphormer import GraphBatch, Graphormer, StructureEncoding

Operator = Literal["mask", "zero", "delete"]
OPERATORS: tuple[Operator, ...] = get_args(Operator)
MAX_PAIRS = 60_000  # token pairs in one pass: with 8 heads a tensor has 2 MB and stays in cache


@torch.inference_mode()
def outputs_of_parts(
    model: Graphormer, data: Data, keep: Tensor, operator: Operator = "mask"
) -> Tensor:
    """Outputs (K, num_outputs) of one encoded graph under K choices of its nodes.

    keep (K, N) is True at the nodes that stay. Under `mask` and `zero` embeddings and structural
    bias are computed once for all choices.
    """
    if operator not in OPERATORS:
        raise ValueError(f"unknown operator {operator!r}; there are {', '.join(OPERATORS)}.")
    n = int(data.num_nodes or 0)
    if keep.dim() != 2 or keep.shape[1] != n:
        raise ValueError(f"keep has shape {tuple(keep.shape)}; the graph has {n} nodes.")
    tokens = torch.full((len(keep),), n + 1) if operator == "zero" else keep.sum(1).cpu() + 1
    order = tokens.argsort(stable=True)  # parts of like size share a pass
    run = _runner(model, data, operator)
    found = torch.cat([run(keep[rows]) for rows in _passes(order, tokens[order])])
    return found[order.argsort().to(found.device)]


def _passes(order: Tensor, tokens: Tensor) -> Iterator[Tensor]:
    """Cut `order` so that no pass has more than MAX_PAIRS token pairs; tokens (K,) ascend."""
    begin = 0
    for end in range(1, len(order) + 1):
        if end == len(order) or (end + 1 - begin) * int(tokens[end]) ** 2 > MAX_PAIRS:
            yield order[begin:end]
            begin = end


def _runner(model: Graphormer, data: Data, operator: Operator) -> Callable[[Tensor], Tensor]:
    """A function from choices (K, N) to outputs; what all choices share is computed here."""
    device = next(model.parameters()).device
    if operator == "delete":

        def deleted(keep: Tensor) -> Tensor:
            parts = [_induced(model, data, choice) for choice in keep.cpu()]
            outputs: Tensor = model(model.collate(parts, pad_to=1).to(device))
            return outputs

        return deleted
    batch = model.collate([data]).to(device)
    tokens, bias = model.embed(batch), structural_bias(model, batch)

    def zeroed(keep: Tensor) -> Tensor:
        kept = _with_graph_token(keep.to(device))
        return encode(model, tokens * kept[..., None], batch, bias=bias)

    def masked(keep: Tensor) -> Tensor:
        if bias is None:  # a wrapped model leaves the hidden nodes out itself
            return model.encode(tokens.expand(len(keep), -1, -1), batch, keep.to(device))
        return _encode_kept(model, batch, tokens[0], bias[0], keep.to(device))

    return zeroed if operator == "zero" else masked


def _encode_kept(
    model: Graphormer, batch: GraphBatch, tokens: Tensor, bias: Tensor, keep: Tensor
) -> Tensor:
    """Outputs (K, num_outputs) of tokens (T, D) with bias (H, T, T), masked tokens left out.

    A key that no query sees need not be there, so the tokens that stay are gathered; what is
    short of the longest choice is filled with masked ones.
    """
    kept = _with_graph_token(keep)  # (K, T)
    width = int(kept.sum(1).max())
    places = (~kept).to(torch.uint8).argsort(dim=1, stable=True)[:, :width]  # (K, W)
    pairs = places[:, :, None] * len(tokens) + places[:, None, :]  # (K, W, W)
    gathered = bias.flatten(1)[:, pairs.flatten()].view(len(bias), *pairs.shape)  # (H, K, W, W)
    hidden = ~kept.gather(1, places)  # (K, W)
    if bool(hidden.any()):
        gathered.masked_fill_(hidden[None, :, None, :], -math.inf)
    return model.encode(tokens[places], batch, bias=gathered.transpose(0, 1))


def _with_graph_token(keep: Tensor) -> Tensor:
    """Choices of tokens (K, T) from choices of nodes (K, N): the graph token stays."""
    return torch.cat([keep.new_ones(len(keep), 1), keep], dim=1)


def _induced(model: Any, data: Data, choice: Tensor) -> Data:
    """The subgraph on the chosen nodes (N,), encoded; a wrapped model makes its own."""
    if hasattr(model, "induced"):
        own: Data = model.induced(data, choice)
        return own
    edges, attributes = subgraph(
        choice, data.edge_index, data.edge_attr, relabel_nodes=True, num_nodes=data.num_nodes
    )
    part = Data(x=data.x[choice], edge_index=edges, edge_attr=attributes)
    if data.get("pos") is not None:
        part.pos = data.pos[choice]
    part.num_nodes = int(choice.sum())
    return StructureEncoding.from_config(model.config)(part)
