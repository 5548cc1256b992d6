"""Explain only one output of a model that has one for each node or pair of nodes.

The choice is an attribute of the graph. If the chosen node, or one of the pair, is hidden, the
output is zero. The same holds for models that read their answer at nodes that the graph names.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from copy import copy
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from graphxai.contract.inputs import ASKED, EXPLAINED_NODE, SCHEMA, NodesAsked, as_list

TYPE = "graphxai_explained_type"  # the name of the type, in a heterogeneous graph
PAIR = "graphxai_explained_pair_index"  # the two nodes (2, 1), which PyG renumbers like edges
NODE_COLUMN = "graphxai_node_column"  # in a call by PyG, the output to explain of a node, or -1
LINKS = "edge_label_index"  # PyG's name for the pairs that a model of links should score
PAIR_IS_IGNORED = (
    f"pair= is for models that read {LINKS!r}, or that return a score for each pair of nodes,"
    f" (N, N): leave it out, or pass a wrap(..., forward=...) that scores the pair batch.{LINKS}."
)


def mark_explained(inputs: Any, node: Any = None, pair: Any = None) -> Any:
    """Note in each input of `explain` which node or pair of nodes is explained.

    Node or pair may be a list, with a choice for each input or several choices for a single graph.
    Such a graph then counts once for each choice.

    Args:
        node: the number of the node. In a heterogeneous graph it is a type and a number, such as
            ("author", 3).
        pair: the numbers of two nodes.

    Raises:
        ValueError: a graph does not have the node.
    """
    if node is not None and pair is not None:
        raise ValueError("give node= or pair=, not both.")
    if node is None and pair is None:
        return inputs
    name, choice = ("node", node) if pair is None else ("pair", pair)
    values, several = as_list(inputs)
    choices = _as_choices(choice, name)
    if choices is None:
        choices = [choice] * len(values)
    else:
        several = True
        values = values * len(choices) if len(values) == 1 else values
    if len(choices) != len(values):
        raise ValueError(f"{name}= names {len(choices)} {name}s for {len(values)} inputs.")
    note = partial(_with_node, windows={}) if name == "node" else _with_pair
    graphs = [note(value, chosen) for value, chosen in zip(values, choices, strict=True)]
    return graphs if several else graphs[0]


def _as_choices(choice: Any, name: str) -> list[Any] | None:
    """Return several choices as a list, or None if there is only one choice."""
    if hasattr(choice, "tolist"):  # tensors and arrays
        choice = choice.tolist()
    if isinstance(choice, range):
        return list(choice)
    if not isinstance(choice, list):
        return None
    return None if name == "pair" and all(type(end) is int for end in choice) else choice


def _with_node(value: Any, node: Any, windows: dict[int, Tensor]) -> Any:
    """Copy a graph and note in it which node is explained.

    The notes of all nodes of a graph are windows of one tensor, which has a 2 between ones.
    """
    if not isinstance(value, Data | HeteroData):
        raise ValueError(f"node= needs PyG graphs as inputs, not {type(value).__name__}.")
    graph = copy(value)
    if isinstance(value, HeteroData):
        if not (isinstance(node, tuple) and len(node) == 2 and node[0] in value.node_types):
            raise ValueError(
                f"node= of a heterogeneous graph is a type and a number, such as"
                f" ({value.node_types[0]!r}, 0), not {node!r}."
            )
        graph[TYPE], node = node
        count = int(value[graph[TYPE]].num_nodes or 0)
    else:
        count = int(value.num_nodes or 0)
    _require_node(node, count)
    if count not in windows:
        windows[count] = torch.ones(2 * count, dtype=torch.long)
        windows[count][count] = 2
    graph[EXPLAINED_NODE] = windows[count][count - node : 2 * count - node]
    return graph


def _with_pair(value: Any, pair: Any) -> Any:
    """Copy a graph and note in it which pair of nodes is explained."""
    if not isinstance(value, Data):
        raise ValueError(
            f"pair= needs PyG graphs with nodes of one type as inputs, not {type(value).__name__}."
        )
    if not isinstance(pair, Sequence) or isinstance(pair, str) or len(pair) != 2:
        raise ValueError(f"pair= is the numbers of two nodes, such as (0, 3), not {pair!r}.")
    for node in pair:
        _require_node(node, int(value.num_nodes or 0))
    graph = copy(value)
    graph[PAIR] = torch.tensor(pair)[:, None]
    graph[LINKS] = graph[PAIR]
    return graph


def _require_node(node: Any, count: int) -> None:
    """Raise ValueError unless a graph of `count` nodes has the node."""
    if type(node) is not int or not 0 <= node < count:
        raise ValueError(f"there is no node {node!r}: the graph has nodes 0 to {count - 1}.")


def is_about_nodes(graph: Data | Mapping[str, Any]) -> bool:
    """Return whether the output is that of a node or pair, so that it is zero without these."""
    return EXPLAINED_NODE in graph or PAIR in graph


def chosen_nodes(graph: Data | Mapping[str, Any]) -> list[int]:
    """Return the numbers of the node or pair that is explained, or [] for the whole graph."""
    if (pair := graph.get(PAIR)) is not None:
        return list(pair.flatten().tolist())
    nodes = graph.get(EXPLAINED_NODE)
    return [] if nodes is None else list((nodes == 2).nonzero()[:, 0].tolist())


def nodes_read(graphs: Any) -> Tensor | None:
    """Return True at the nodes (n,) of a batch whose rows make up the outputs, or None for all."""
    if NODE_COLUMN in graphs:
        return torch.as_tensor(graphs[NODE_COLUMN] >= 0)
    if EXPLAINED_NODE in graphs:
        return torch.as_tensor(graphs[EXPLAINED_NODE] > 1)
    if PAIR in graphs:
        return graphs.batch.new_zeros(len(graphs.batch), dtype=torch.bool).index_fill(
            0, graphs[PAIR].flatten(), True
        )
    return None


def named_nodes(graph: Data, attributes: Collection[str] | None) -> list[int]:
    """Return the nodes that an index with one entry, or a mask with one entry, names.

    A model may read its answer there. The edges of the graph are no such index. `attributes` are
    the names of the attributes that the model reads, or None if it reads all.
    """
    nodes: set[int] = set()
    for key, value in graph.items():
        read = key != "edge_index" and (attributes is None or key in attributes)
        if not read or not isinstance(value, Tensor) or value.is_floating_point():
            continue
        if value.dtype == torch.bool and value.shape == (graph.num_nodes,):
            entries = value.nonzero()[:, 0]
            nodes |= set(entries.tolist()) if len(entries) == 1 else set()
        elif "index" in key and value.dim() and value.shape[-1] == 1:
            nodes |= set(value.flatten().tolist())
    return sorted(node for node in nodes if 0 <= node < int(graph.num_nodes or 0))


def outputs_of_explained_pairs(
    answer: Any, graphs: Any, size: int, attributes: Collection[str] | None
) -> Any:
    """Return the row (B, C) of each graph's pair, or zeros if one of its nodes is hidden.

    Args:
        answer: a row for each pair that the graphs name, or a score for all pairs of nodes.
        attributes: the names of the attributes that the model reads, or None if it reads all.

    Raises:
        ValueError: the answer cannot be about the pair.
    """
    if isinstance(answer, Tensor) and answer.shape[:2] == (graphs.num_nodes,) * 2:
        first, second = graphs[PAIR]
        answer = answer[first, second]
    elif attributes is not None and LINKS not in attributes:
        raise ValueError(PAIR_IS_IGNORED)
    return with_rows_of_hidden_nodes(answer, graphs, size, attributes)


def rows_of_explained_nodes(answer: Any, graphs: Any) -> Tensor | None:
    """Return the row (B, C) of each graph's explained node, or zeros if that node is hidden.

    If a graph asks for k nodes, their rows follow each other, (B, k * C). The answer of the model
    needs one row per node (of the explained type). Otherwise return None.
    """
    codes: Tensor = graphs[EXPLAINED_NODE]
    if isinstance(answer, Mapping):
        answer = answer[graphs[TYPE][0]]
    is_candidate = codes > 0
    candidates = codes[is_candidate]
    if not isinstance(answer, Tensor) or not answer.dim() or len(answer) != len(candidates):
        return None
    (nodes,) = (candidates > 1).nonzero(as_tuple=True)
    asked = torch.tensor(nodes_asked(graphs), device=codes.device) - 2
    size, several = graphs.num_graphs, int(asked.max()) + 1
    place = graphs.batch[is_candidate][nodes] * several + candidates[nodes] - 2
    row = place.new_full((size * several,), len(answer))  # zeros, in place of a hidden node's row
    row[place] = nodes
    if len(nodes) < len(row):
        answer = torch.cat([answer, answer.new_zeros(1, *answer.shape[1:])])
    return answer[row.view(size, several)[:, asked]].flatten(1)


def nodes_asked(graphs: Any) -> tuple[int, ...]:
    """Return the codes of the nodes that a graph, or each graph of a batch, asks for."""
    asked = graphs.get(ASKED, NodesAsked())
    return (asked[0] if isinstance(asked, list) else asked).codes


def with_rows_of_hidden_nodes(
    answer: Any, graphs: Any, size: int, attributes: Collection[str] | None
) -> Any:
    """Add rows of zeros to an answer, for graphs where the explained node or link is hidden.

    The model reads its answer at nodes that each graph names, by an index such as `root_index` or
    `edge_label_index`, or by a mask. If a graph has lost its entry, the answer has no row for it.
    Any other answer is returned unchanged. `attributes` are the names of the attributes that the
    model reads, or None if it reads all.
    """
    if not isinstance(answer, Tensor) or not answer.dim() or len(answer) >= size:
        return answer
    entries = _graphs_with_an_entry(graphs, attributes)
    places = [has for has in entries if int(has.sum()) == len(answer)]
    if not places or any(not torch.equal(places[0], has) for has in places[1:]):
        return answer
    (graph_of_row,) = places[0].to(answer.device).nonzero(as_tuple=True)
    zeros = answer.new_zeros(size, *answer.shape[1:])
    return zeros.index_add(0, graph_of_row, answer)


def _graphs_with_an_entry(graphs: Any, attributes: Collection[str] | None) -> Iterator[Tensor]:
    """For each index and mask with at most one entry per graph, yield which graphs (B,) have one.

    The edges of the graph do not count as such an index.
    """
    slices = getattr(graphs, "_slice_dict", {})
    for key, value in graphs.items():
        read = key == PAIR or attributes is None or key in attributes
        if key not in slices or key == "edge_index" or not (read and isinstance(value, Tensor)):
            continue
        if value.dtype == torch.bool and value.shape == graphs.batch.shape:
            counts = graphs.batch[value].bincount(minlength=graphs.num_graphs)
        elif "index" in key and not value.is_floating_point():
            counts = torch.as_tensor(slices[key]).diff()
        else:
            continue
        if int(counts.max()) <= 1:
            yield counts.cpu() == 1


def advice_for_node_outputs(answer: Any, graphs: Any, size: int) -> str:
    """Say what to do about an answer with one row per node, or "" for any other answer."""
    schema = graphs.get(SCHEMA)
    if schema is not None:
        counts = graphs.node_type.bincount(minlength=len(schema[0].nodes)).tolist()
        example = f"({schema[0].nodes[0][0]!r}, 0)"
    else:
        counts, example = [int(graphs.num_nodes)], "0"
    by_type = schema is not None and isinstance(answer, Mapping)
    rows = len(answer) if isinstance(answer, Tensor) and answer.dim() else -1
    if not by_type and (rows == size or rows not in counts):
        return ""
    return f"choose the node to explain, such as explain(model, graph, node={example})"
