"""Group inputs into passes: encode them in chunks, then batch them by size."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import torch

from graphxai.datasets.graph import is_data, is_heterogeneous

from .inputs import ASKED, EXPLAINED_NODE, Input, NodesAsked, prepare_each

if TYPE_CHECKING:
    from torch_geometric.data import Data

# A batch may hold this many graphs and token pairs (B * T * T), which is 64 molecules of 39 atoms.
# A larger graph goes alone. With 250,000 pairs LRP was up to 7 % slower, because they no longer fit
# into the cache. With 50,000 it was no faster.
MAX_GRAPHS = 64
MAX_PAIRS = 100_000
CACHED_PAIRS = 50_000  # of a pass without gradients: 2 MB for 8 heads, which fit into the cache
FEW = 8  # of larger graphs, k backward passes take less time than one of k copies
# A process encodes this many inputs of a list at a time and then batches them by size. With half as
# many, LRP took 6 to 12 % longer, because fewer graphs of one size share a pass, and with twice as
# many as long. Where an input takes long, pieces are smaller, so that every process has some.
CHUNK, SLOW_CHUNK = 1024, 512
CHUNK_PAIRS = 8_000_000  # how many node pairs are encoded before they are batched: some 300 MB

# Sums over the tokens of a graph have other last bits with other padding. So where these count, a
# batch holds graphs of as many tokens, up to a multiple of this, as if each were alone.
TOKENS = 4

Refused: TypeAlias = type[Exception] | tuple[type[Exception], ...]
Key = TypeVar("Key")  # the caller's name for an input


def graph_of_node(graph: Any) -> tuple[Any, ...] | None:
    """Return what the graphs share that are one graph with different nodes to explain.

    For any other value, return None.
    """
    if not (is_data(graph) or is_heterogeneous(graph)) or EXPLAINED_NODE not in graph:
        return None
    values = graph.to_dict().items()
    return tuple((name, id(value)) for name, value in values if name != EXPLAINED_NODE)


def in_pieces(values: Sequence[Any], quick: bool) -> Iterator[list[tuple[int, Any]]]:
    """Number the inputs, and yield them CHUNK at a time. Nodes of one graph stay together."""
    start, size = 0, CHUNK if quick else min(CHUNK, SLOW_CHUNK)
    while start < len(values):
        stop = min(start + size, len(values))
        graph = graph_of_node(values[stop - 1])
        while graph is not None and stop < len(values) and graph_of_node(values[stop]) == graph:
            stop += 1
        yield [(number, values[number]) for number in range(start, stop)]
        start = stop


def in_chunks(
    model: Any, piece: Sequence[tuple[int, Any]], refused: Refused = (ValueError, OSError)
) -> Iterator[list[tuple[int, Input | Exception]]]:
    """Encode numbered inputs, and yield them in lists within CHUNK_PAIRS.

    An input that cannot be used gives its error in its place, if that is one of `refused`.
    """
    chunk: list[tuple[int, Input | Exception]] = []
    pairs, last = 0, None
    encoded = prepare_each(model, [value for _, value in piece], refused)
    for (number, _), item in zip(piece, encoded, strict=True):
        chunk.append((number, item))
        if isinstance(item, Exception):
            continue
        graph = graph_of_node(item.graph)
        pairs += 0 if graph is not None and graph == last else item.num_nodes**2
        last = graph
        if pairs > CHUNK_PAIRS:
            yield chunk
            chunk, pairs = [], 0
    yield chunk


def fitting(tokens: Sequence[int]) -> Iterator[slice]:
    """Cut parts of graphs, which grow in tokens, into passes with as many as fit."""
    begin = 0
    for end in range(1, len(tokens) + 1):
        if end == len(tokens) or end + 1 - begin > num_fitting(tokens[end] ** 2):
            yield slice(begin, end)
            begin = end


def num_fitting(pairs: int) -> int:
    """Return how many parts with so many token pairs fit into a pass, at least one."""
    return max(1, CACHED_PAIRS // pairs)


def is_large(item: Input) -> bool:
    """Return whether a batch has room for only a few graphs of this size."""
    return FEW * (item.num_nodes + 1) ** 2 > MAX_PAIRS


def joins_others(model: Any, needs_gradients: bool, item: Input) -> bool:
    """Return whether nodes of one graph are explained by one forward pass.

    Gradients of small graphs take less time in a batch with a copy of the graph for each node.
    """
    if not getattr(model, "joins_nodes", False):
        return False
    return not needs_gradients or is_large(item) or bool(model.goes_alone(item.data))


def joined_nodes(
    prepared: Iterable[tuple[Key, Input]], joins: Callable[[Input], bool], most: int
) -> list[tuple[list[tuple[Key, Input]], Input]]:
    """Join the nodes of one graph into inputs for which one pass answers.

    Args:
        prepared: the encoded inputs, each with the caller's key.
        joins: whether an input may be joined with others.

    Returns:
        The inputs of passes, each with those that it answers for. The model returns their outputs
        side by side, (1, nodes * num_outputs).
    """
    groups: list[list[tuple[Key, Input]]] = []
    of_graph: dict[Any, list[tuple[Key, Input]]] = {}  # the group that has room
    for pair in prepared:
        graph = graph_of_node(pair[1].graph)
        group = None if graph is None or not joins(pair[1]) else of_graph.get(graph)
        if group is None or len(group) == most:
            group = []
            groups.append(group)
            of_graph[graph] = group
        group.append(pair)
    return [(group, _asking_for([item for _, item in group])) for group in groups]


def _asking_for(items: list[Input]) -> Input:
    """Return an input that asks for the nodes of these, which are of one graph."""
    if len(items) == 1:
        return items[0]
    graph = copy(items[0].data)
    codes = graph[EXPLAINED_NODE].clamp(max=1)
    nodes = [int(item.data[EXPLAINED_NODE].argmax()) for item in items]
    codes[nodes] = torch.arange(2, len(nodes) + 2)
    graph[EXPLAINED_NODE], graph[ASKED] = codes, NodesAsked(tuple(codes[nodes].tolist()))
    return Input(graph)


def tokens_alone(fewest: int, item: Input) -> int:
    """Return how many tokens a graph has with its own padding, to at least `fewest` nodes."""
    return -(-(max(fewest, item.num_nodes) + 1) // TOKENS) * TOKENS


def batches_for(
    model: Any, prepared: Sequence[tuple[Key, Input]], alike: bool = False
) -> Iterator[list[tuple[Key, Input]]]:
    """Group encoded inputs into batches that the model accepts.

    If a model has a `batch_group`, inputs of different groups never share a batch.

    Args:
        prepared: the encoded inputs, each with the caller's key.
        alike: whether the graphs of a batch must have the padding that they have alone.
    """
    same_size: bool = getattr(model, "same_size_only", False)
    group_of = getattr(model, "batch_group", None)
    by_group: dict[Any, list[tuple[Key, Input]]] = {}
    for pair in prepared:
        group = None if group_of is None else group_of(pair[1].data)
        by_group.setdefault(group, []).append(pair)
    parts = list(by_group.values())
    goes_alone = getattr(model, "goes_alone", None)
    if goes_alone is not None:
        for part in parts:
            alone = [pair for pair in part if goes_alone(pair[1].data)]
            if len(alone) > 1:  # which costs more than passes that they would share
                together, why = sum(1 for _ in in_batches(alone)), model.why_alone(alone[0][1].data)
                model.warn_of_single_passes(why, len(alone), together)
    fewest = getattr(model, "fewest_nodes", None)
    padded = partial(tokens_alone, fewest) if alike and fewest else None
    return (batch for part in parts for batch in in_batches(part, same_size, goes_alone, padded))


def in_batches(
    prepared: Iterable[tuple[Key, Input]],
    same_size: bool = False,
    goes_alone: "Callable[[Data], bool] | None" = None,
    padded: Callable[[Input], int] | None = None,
) -> Iterator[list[tuple[Key, Input]]]:
    """Group inputs of similar size into batches within MAX_GRAPHS and MAX_PAIRS.

    Args:
        prepared: the encoded inputs, each with the caller's name for it.
        same_size: whether all inputs of a batch must have the same number of nodes.
        goes_alone: tells whether an input needs a pass to itself, for example because it has
            matrices over node pairs.
        padded: tells how many tokens an input has with padding, if a batch needs inputs of as many.
    """

    def alone(item: Input) -> bool:
        return item.explains_several or (goes_alone is not None and goes_alone(item.data))

    batch: list[tuple[Key, Input]] = []
    for item in sorted(prepared, key=lambda pair: pair[1].num_nodes):
        tokens = item[1].num_nodes + 1 if padded is None else padded(item[1])
        if batch:
            first = batch[0][1]
            full = len(batch) >= MAX_GRAPHS or (len(batch) + 1) * tokens**2 > MAX_PAIRS
            differs = same_size and first.num_nodes != item[1].num_nodes
            differs = differs or (padded is not None and padded(first) != tokens)
            if full or differs or any(map(alone, (first, item[1]))):
                yield batch
                batch = []
        batch.append(item)
    if batch:
        yield batch


def collated(model: Any, batch: Sequence[tuple[object, Input]], alike: bool = False) -> Any:
    """Collate encoded inputs into a batch that can carry gradients, on the model's device.

    Args:
        batch: the encoded inputs, each with the caller's key.
        alike: whether they have the padding that they have alone, as `batches_for` grouped them.
    """
    with torch.inference_mode(False):
        plain = getattr(model, "collates_plain_graphs", False)  # others are promised PyG's `Data`
        graphs = [item.graph if plain else item.data for _, item in batch]
        graphs = [graph.clone() if graph.x.is_inference() else graph for graph in graphs]
        fewest = getattr(model, "fewest_nodes", None)
        if fewest and alike:
            fewest = tokens_alone(fewest, batch[-1][1]) - 1  # of the largest
        size = {"pad_to": fewest} if fewest else {}
        return model.collate(graphs, **size).to(next(model.parameters()).device)
