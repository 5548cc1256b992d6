"""Models with one output per node: the node to explain, as an attribute of its graph."""

from collections.abc import Mapping
from copy import copy
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from graphxai.contract.inputs import as_list

# Attribute (n,): 2 at the node to explain, 1 at the others of its type, otherwise 0.
CHOSEN = "explained_node"
TYPE = "explained_type"  # the name of the type, in a heterogeneous graph


def at_node(inputs: Any, node: Any) -> Any:
    """The inputs of `explain`, with the node to explain of each.

    node: its number, in a heterogeneous graph with its type, ("author", 3); or a list of these.
    Raises ValueError for a node that a graph does not have.
    """
    values, several = as_list(inputs)
    nodes = node if isinstance(node, list) else [node] * len(values)
    if len(nodes) != len(values):
        raise ValueError(f"node= names {len(nodes)} nodes for {len(values)} inputs.")
    made = [_marked(value, chosen) for value, chosen in zip(values, nodes, strict=True)]
    return made if several else made[0]


def _marked(value: Any, node: Any) -> Any:
    if not isinstance(value, Data | HeteroData):
        raise ValueError(f"node= needs PyG graphs as inputs, not {type(value).__name__}.")
    made = copy(value)
    if isinstance(value, HeteroData):
        if not (isinstance(node, tuple) and len(node) == 2 and node[0] in value.node_types):
            raise ValueError(
                f"node= of a heterogeneous graph is a type and a number, such as"
                f" ({value.node_types[0]!r}, 0), not {node!r}."
            )
        made[TYPE], node = node
        count = int(value[made[TYPE]].num_nodes or 0)
    else:
        count = int(value.num_nodes or 0)
    if not isinstance(node, int) or not 0 <= node < count:
        raise ValueError(f"there is no node {node!r}: the graph has nodes 0 to {count - 1}.")
    made[CHOSEN] = torch.ones(count, dtype=torch.long)
    made[CHOSEN][node] = 2
    return made


def chosen_rows(answer: Any, graphs: Any) -> Tensor | None:
    """The row of each graph's chosen node, (B, C); zeros if that is hidden.

    answer: what the model returned, one row per node (of the chosen type). None: it did not.
    """
    marks: Tensor = graphs[CHOSEN]
    if isinstance(answer, Mapping):
        answer = answer[graphs[TYPE][0]]
    candidates = marks[marks > 0] == 2
    if not isinstance(answer, Tensor) or not answer.dim() or len(answer) != len(candidates):
        return None
    rows = answer[candidates].reshape(int(candidates.sum()), -1)
    if len(rows) == graphs.num_graphs:
        return rows
    group = graphs.batch[marks == 2]
    return rows.new_zeros(graphs.num_graphs, rows.shape[1]).index_add(0, group, rows)


def needs_node(answer: Any, graphs: Any, size: int) -> str:
    """What to do about an answer with one row per node; empty for any other."""
    schema = graphs.get("schema")
    if schema is not None:
        counts = graphs.node_type.bincount(minlength=len(schema[0].nodes)).tolist()
        example = f"({schema[0].nodes[0][0]!r}, 0)"
    else:
        counts, example = [int(graphs.num_nodes)], "0"
    rows = len(answer) if isinstance(answer, Tensor) and answer.dim() else -1
    if not isinstance(answer, Mapping) and (rows == size or rows not in counts):
        return ""
    return f"choose the node to explain, such as explain(model, graph, node={example})"
