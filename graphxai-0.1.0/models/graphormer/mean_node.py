"""The mean node embedding over a data set: the baseline of relevance with `baseline="mean"`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .encoding import collate
from .model import Graphormer

if TYPE_CHECKING:
    from torch_geometric.data import Data

BATCH = 64  # graphs at a time


@torch.no_grad()
def measure_mean_node(model: Graphormer, graphs: "Sequence[Data]") -> Tensor:
    """Set `model.mean_node` to the mean over all nodes of encoded graphs, and return it, (F, D).

    Row f is the mean embedding of feature f (`model.feature_names`), so the rows sum to the mean
    token. With `embedding_layernorm` there is a single row, the mean token itself.
    `save_checkpoint` stores the mean node.

    Raises:
        ValueError: there are no nodes.
    """
    total, nodes = None, 0
    for start in range(0, len(graphs), BATCH):
        batch = collate(list(graphs[start : start + BATCH]))
        summed = model.sum_by_feature(batch.to(next(model.parameters()).device)).double()
        total = summed if total is None else total + summed
        nodes += int(batch.num_nodes.sum())
    if total is None or not nodes:
        raise ValueError("the mean node needs at least one graph with nodes.")
    model.mean_node = (total / nodes).to(model.node_embedding.in_degree)
    return model.mean_node
