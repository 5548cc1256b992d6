"""Find the edges and labels that are needed to draw a graph without a molecule or an image."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from graphxai.contract.inputs import Input
from graphxai.visualization import PlainGraph

# Attributes that may name the nodes. If there are none, any list of N words may.
NAMES = ("name", "names", "label", "labels", "node_name", "node_names", "symbol", "symbols")


def plain_graph(item: Input) -> PlainGraph | None:
    """Return the graph to draw, or None for molecules, images and inputs without edges."""
    if any(drawn is not None for drawn in (item.smiles, item.molecule, item.segments)):
        return None
    graph = item.data.to_dict()  # PyG takes several times as long for each attribute
    edges = graph.get("edge_index")
    if not isinstance(edges, torch.Tensor) or edges.dim() != 2:
        return None
    from graphxai.adapters.chosen import chosen_nodes  # needs PyG

    explained = tuple(chosen_nodes(graph))
    return PlainGraph(edges.cpu().numpy().astype(np.int64), _labels(graph, item), explained)


def _labels(values: Mapping[str, Any], item: Input) -> tuple[str, ...]:
    """Return what a graph with these attributes calls its nodes, or () if it has no names."""
    schema = values.get("schema")
    if schema is not None:
        kinds = [kind for kind, _ in schema.nodes]
        numbers = dict.fromkeys(kinds, 0)
        labels = []
        for code in values["node_type"].tolist():
            labels.append(f"{kinds[code]} {numbers[kinds[code]]}")
            numbers[kinds[code]] += 1
        return tuple(labels)
    for key in [*(name for name in NAMES if name in values), *values]:
        value = values[key]
        listed = isinstance(value, list | tuple | np.ndarray) and len(value) == item.num_nodes
        if listed and all(isinstance(word, str) for word in value):
            return tuple(map(str, value))
    return ()
