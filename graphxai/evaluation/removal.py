"""Three ways to take nodes away from a graph.

* `mask`: the node's key is excluded from every attention, as padding is; the structure of the rest
  stays as it was.
* `zero`: the node's embedding becomes zero; its token stays.
* `delete`: the induced subgraph is encoded afresh, with its own degrees and shortest paths.
"""

from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.utils import subgraph

from graphxai.models.graphormer import Graphormer, StructureEncoding

Operator = Literal["mask", "zero", "delete"]
OPERATORS: tuple[Operator, ...] = get_args(Operator)
MAX_PAIRS = 500_000  # token pairs in one pass: bounds memory at about 16 MB a head and layer


@torch.inference_mode()
def outputs_of_parts(
    model: Graphormer, data: Data, keep: Tensor, operator: Operator = "mask"
) -> Tensor:
    """Outputs (K, num_outputs) of one encoded graph under K choices of its nodes.

    keep (K, N) is True at the nodes that stay. Under `mask` and `zero` embeddings and structural
    bias are computed once and shared by all choices.
    """
    if operator not in OPERATORS:
        raise ValueError(f"unknown operator {operator!r}; there are {', '.join(OPERATORS)}.")
    n = int(data.num_nodes or 0)
    if keep.dim() != 2 or keep.shape[1] != n:
        raise ValueError(f"keep has shape {tuple(keep.shape)}; the graph has {n} nodes.")
    device = next(model.parameters()).device
    rows = max(1, MAX_PAIRS // (n + 1) ** 2)
    if operator == "delete":
        parts = [
            model.collate([_induced(model, data, choice) for choice in some], pad_to=1).to(device)
            for some in keep.cpu().split(rows)
        ]
        return torch.cat([model(part) for part in parts])
    batch = model.collate([data]).to(device)
    tokens, bias = model.embed(batch), _structural_bias(model, batch)
    outputs = []
    for some in keep.to(device).split(rows):
        if operator == "mask":
            outputs.append(model.encode(tokens.expand(len(some), -1, -1), batch, some, bias))
        else:
            kept = torch.cat([some.new_ones(len(some), 1), some], dim=1)  # the graph token stays
            outputs.append(model.encode(tokens * kept[..., None], batch, bias=bias))
    return torch.cat(outputs)


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


def _structural_bias(model: Any, batch: Any) -> Tensor | None:
    """What all choices of nodes share; a wrapped model has nothing of the kind."""
    return model.bias(batch) if hasattr(model, "bias") else None
