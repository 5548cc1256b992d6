"""Say how a graph that is no molecule is drawn: its edges and names, or the grid of its patches."""

import math
from collections.abc import Mapping
from itertools import count
from typing import Any

import numpy as np
import torch
from torch import Tensor

from graphxai.contract.inputs import SCHEMA, Input
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
    from graphxai.wrapping.chosen import chosen_nodes  # needs PyG

    explained = tuple(chosen_nodes(graph))
    return PlainGraph(edges.cpu().numpy().astype(np.int64), _labels(graph, item), explained)


def _labels(values: Mapping[str, Any], item: Input) -> tuple[str, ...]:
    """Return what a graph with these attributes calls its nodes, or () if it has no names."""
    schema = values.get(SCHEMA)
    if schema is not None:
        numbers = {kind: count() for kind, _ in schema.nodes}
        kinds = [schema.nodes[code][0] for code in values["node_type"].tolist()]
        return tuple(f"{kind} {next(numbers[kind])}" for kind in kinds)
    for key in [*(name for name in NAMES if name in values), *values]:
        value = values[key]
        listed = isinstance(value, list | tuple | np.ndarray) and len(value) == item.num_nodes
        if listed and all(isinstance(word, str) for word in value):
            return tuple(map(str, value))
    return ()


def grid_of(vectors: Any) -> tuple[int, int] | None:
    """Return the square grid of the patches that were given, or None if they make none."""
    if not isinstance(vectors, Tensor) or not vectors.is_floating_point() or len(vectors) < 4:
        return None
    side = math.isqrt(len(vectors))
    return (side, side) if side * side == len(vectors) else None
