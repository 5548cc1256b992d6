"""Calls of a user's module, checks of what it returns, and the row of an explained node."""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from difflib import get_close_matches
from functools import lru_cache
from inspect import Parameter, signature
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule
from torch_geometric.data import Batch, Data, HeteroData

from graphxai.contract.inputs import as_list

from .batches import Tokens

Forward = Callable[[nn.Module, Any], Tensor]

# An attribute (n,): 2 at the node to explain, 1 at other nodes of its type, 0 elsewhere.
CHOSEN = "explained_node"
TYPE = "explained_type"  # the name of the type, in a heterogeneous graph
UNNAMED = {Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD}
WHOLE_BATCH = ("data", "batch", "graph", "graphs", "g", "batch_data", "inputs")
TRUE_AT_PADDING = ("src_key_padding_mask", "key_padding_mask", "padding_mask")
ONE_AT_TOKENS = ("attention_mask",)  # as in Hugging Face's models


def call_with_graphs(model: nn.Module, batch: Batch) -> Any:
    """Call `model.forward` with the batch, or with the attributes of the batch that it names.

    Raises TypeError for an argument that the graphs do not have.
    """
    if attributes_read(model) is None:
        return model(batch)
    sizes = {"batch_size": batch.num_graphs, "num_graphs": batch.num_graphs}
    passes_arguments_on = {p.kind for p in _own_parameters(model)} <= UNNAMED
    by_place = passes_arguments_on or isinstance(model, GraphModule)  # exports take no names
    in_order: list[Any] = []
    by_name: dict[str, Any] = {}
    for parameter in _parameters(model):
        value = _attribute(batch, parameter.name, sizes.get(parameter.name))
        if value is None and parameter.default is Parameter.empty:
            raise TypeError(
                f"{type(model).__name__}.forward needs {parameter.name!r}, which the graph does not"
                " have: pass wrap(..., forward=lambda model, batch: ...)."
            )
        if by_place and parameter.kind != Parameter.KEYWORD_ONLY:
            in_order.append(parameter.default if value is None else value)
        elif value is not None:
            by_name[parameter.name] = value
    return model(*in_order, **by_name)


def _attribute(batch: Any, name: str, default: Any = None) -> Any:
    """Get an attribute of a batch, or of a heterogeneous one all types of it (`x_dict`)."""
    if name.endswith("_dict") and isinstance(batch, HeteroData):
        return batch.collect(name.removesuffix("_dict"), allow_empty=True) or default
    return batch.get(name, default)


def attributes_read(model: nn.Module) -> set[str] | None:
    """Return the attributes that `model.forward` names, or None if it takes the whole batch."""
    names = [p.name for p in _parameters(model)]
    return None if "x" not in names and names and names[0] in WHOLE_BATCH else set(names)


def takes_batch_vector(model: nn.Module) -> bool:
    """Whether `model.forward` has an argument that assigns nodes to the graphs of a batch."""
    names = attributes_read(model)
    return names is None or any(re.search("batch|ptr|graph", name) for name in names)


def takes_padding_mask(model: nn.Module) -> bool:
    """Whether `model.forward` has an argument for the tokens that are padding."""
    return any(p.name in (*TRUE_AT_PADDING, *ONE_AT_TOKENS) for p in _parameters(model))


def call_with_tokens(model: nn.Module, tokens: Tokens) -> Any:
    """Call `model.forward` with x and, where it has an argument for it, the padding mask."""
    options = {}
    for parameter in _parameters(model)[1:]:
        if parameter.name in TRUE_AT_PADDING:
            options[parameter.name] = ~tokens.mask
        elif parameter.name in ONE_AT_TOKENS:
            options[parameter.name] = tokens.mask.long()
    return model(tokens.x, **options)


@contextmanager
def without_fused_attention(model: nn.Module) -> Iterator[None]:
    """Explain what to do if the model uses `flex_attention`, which hides its attention."""
    try:
        yield
    except RuntimeError as error:  # also NotImplementedError and errors of torch.compile
        if re.search("flex_?attention", str(error), re.IGNORECASE) is None:
            raise
        raise ValueError(
            f"{type(model).__name__} calls flex_attention, a fused kernel that hides its attention,"
            " cannot be given rules and has no gradient on a CPU. Let the model call"
            " F.scaled_dot_product_attention instead (attn_implementation='sdpa' in Hugging Face"
            " models)."
        ) from error


def as_outputs(answer: Any, size: int, columns: int, graphs: Batch | None = None) -> Tensor:
    """Turn the model's answer into outputs (B, columns). Raises ValueError if that is impossible.

    graphs: the batch that the answer is about. If it says which nodes are explained, the answer
    must have a row per node.
    """
    answer, advice = getattr(answer, "logits", answer), ""
    if graphs is not None and CHOSEN in graphs:
        if (rows := rows_of_explained_nodes(answer, graphs)) is None:
            raise ValueError("node= is for models that return one row per node: leave it out.")
        answer = rows
    elif graphs is not None:
        answer = with_rows_of_hidden_nodes(answer, graphs, size)
        advice = advice_for_node_outputs(answer, graphs, size)
    if advice:
        form = "a mapping" if isinstance(answer, Mapping) else f"shape {tuple(answer.shape)}"
        raise ValueError(
            f"the model returns {form} for {size} inputs, one row per node: {advice}, or pool rows"
            " with wrap(..., forward=...)."
        )
    if not isinstance(answer, Tensor):
        raise ValueError(
            f"the model returns {type(answer).__name__}, not a tensor: pass a"
            " wrap(..., forward=...) that picks one."
        )
    outputs = answer[:, None] if answer.dim() == 1 and len(answer) == size else answer
    if answer.dim() == 0 and size == 1:
        outputs = answer.reshape(1, 1)
    if outputs.shape != (size, columns):
        raise ValueError(
            f"the model returns shape {tuple(answer.shape)} for {size} inputs; the tasks need"
            f" ({size}, {columns}). If it returns one row per node, choose one with"
            " explain(..., node=...), or pick or pool rows with wrap(..., forward=...)."
        )
    return outputs


def module_named(model: nn.Module, name: str) -> nn.Module:
    """Find a part of the model by name. Raises ValueError with similar names if there is none."""
    modules = dict(model.named_modules())
    if name and name in modules:
        return modules[name]
    names = [path for path in modules if path]
    similar = get_close_matches(name, names, n=3, cutoff=0.4) or names[:10]
    raise ValueError(
        f"{type(model).__name__} has no module {name!r}; similar: {', '.join(similar) or 'none'}."
    )


def _parameters(model: nn.Module) -> list[Parameter]:
    """Return the named parameters of `forward`.

    If `forward` takes nothing but `*args` or `**kwargs`, they are those of the module's only child.
    """
    kinds = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    parameters = _own_parameters(model)
    named = [p for p in parameters if p.kind in kinds]
    children = list(model.children())
    return _parameters(children[0]) if parameters and not named and len(children) == 1 else named


def _own_parameters(model: nn.Module) -> list[Parameter]:
    """Return the parameters of `forward` without `self`."""
    forward = model.forward
    if type(forward) is not MethodType:
        return list(signature(forward).parameters.values())
    first, *others = _parameters_of(forward.__func__)
    return [first, *others] if first.kind == Parameter.VAR_POSITIONAL else others


@lru_cache(maxsize=64)
def _parameters_of(function: Callable[..., Any]) -> tuple[Parameter, ...]:
    """Return the parameters of a function, from a cache because reading them takes a while."""
    return tuple(signature(function).parameters.values())


# -- models with one output per node ---------------------------------------------------------------


def at_node(inputs: Any, node: Any) -> Any:
    """Note in each input of `explain` which node is explained.

    node: its number; in a heterogeneous graph its type and number, such as ("author", 3); or a list
    of these, one for each input.
    Raises ValueError for a node that a graph does not have.
    """
    values, several = as_list(inputs)
    nodes = node if isinstance(node, list) else [node] * len(values)
    if len(nodes) != len(values):
        raise ValueError(f"node= names {len(nodes)} nodes for {len(values)} inputs.")
    graphs = [_with_chosen(value, chosen) for value, chosen in zip(values, nodes, strict=True)]
    return graphs if several else graphs[0]


def _with_chosen(value: Any, node: Any) -> Any:
    """Copy a graph and note in it which node is explained."""
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
    if not isinstance(node, int) or not 0 <= node < count:
        raise ValueError(f"there is no node {node!r}: the graph has nodes 0 to {count - 1}.")
    graph[CHOSEN] = torch.ones(count, dtype=torch.long)
    graph[CHOSEN][node] = 2
    return graph


def rows_of_explained_nodes(answer: Any, graphs: Any) -> Tensor | None:
    """Return the row (B, C) of each graph's explained node, or zeros if that is hidden.

    answer: what the model returned, one row per node (of the explained type). Returns None if the
    answer has other rows.
    """
    codes: Tensor = graphs[CHOSEN]
    if isinstance(answer, Mapping):
        answer = answer[graphs[TYPE][0]]
    candidates = codes[codes > 0] == 2
    if not isinstance(answer, Tensor) or not answer.dim() or len(answer) != len(candidates):
        return None
    rows = answer[candidates].flatten(1) if answer.dim() > 1 else answer[candidates, None]
    if len(rows) == graphs.num_graphs:
        return rows
    graph = graphs.batch[codes == 2]
    return rows.new_zeros(graphs.num_graphs, rows.shape[1]).index_add(0, graph, rows)


def with_rows_of_hidden_nodes(answer: Any, graphs: Any, size: int) -> Any:
    """Add rows of zeros to an answer for the graphs whose explained node or link is hidden.

    Such a model reads its answer at nodes that each graph names, by an index such as `root_index`
    or `edge_label_index`, or by a mask. A graph that has lost its entry of the index has no row.
    Any other answer is returned as it is.
    """
    if not isinstance(answer, Tensor) or not answer.dim() or len(answer) >= size:
        return answer
    places = [has for has in _graphs_with_an_entry(graphs) if int(has.sum()) == len(answer)]
    if not places or any(not torch.equal(places[0], has) for has in places[1:]):
        return answer
    (graph_of_row,) = places[0].to(answer.device).nonzero(as_tuple=True)
    zeros = answer.new_zeros(size, *answer.shape[1:])
    return zeros.index_add(0, graph_of_row, answer)


def _graphs_with_an_entry(graphs: Any) -> Iterator[Tensor]:
    """For each index and mask with at most one entry in a graph, yield which graphs (B,) have it.

    The edges of the graph itself are no such index.
    """
    slices = getattr(graphs, "_slice_dict", {})
    for key, value in graphs.items():
        if key not in slices or key == "edge_index" or not isinstance(value, Tensor):
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
