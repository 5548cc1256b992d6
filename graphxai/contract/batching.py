"""Group inputs into passes: encode them in chunks, then batch them by size."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import torch

from .inputs import Input, prepare_each

if TYPE_CHECKING:
    from torch_geometric.data import Data

# A batch may hold this many graphs and token pairs (B * T * T), which is 64 molecules of 39 atoms.
# A larger graph goes alone. With 250,000 pairs LRP was up to 7 % slower, because they no longer fit
# into the cache. With 50,000 it was no faster.
MAX_GRAPHS = 64
MAX_PAIRS = 100_000
# A process encodes this many inputs of a list at a time and then batches them by size. With 4096
# inputs, LRP was 4 % faster, because the sizes within a batch were closer to each other.
CHUNK = 512
CHUNK_PAIRS = 8_000_000  # how many node pairs are encoded before they are batched: some 300 MB

Refused: TypeAlias = type[Exception] | tuple[type[Exception], ...]
Key = TypeVar("Key")  # the caller's name for an input


def in_pieces(values: Sequence[Any]) -> Iterator[list[tuple[int, Any]]]:
    """Number the inputs, and yield them CHUNK at a time."""
    numbered = enumerate(values)
    while piece := list(islice(numbered, CHUNK)):
        yield piece


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
        codes = item.graph.get("bag_codes")  # the nodes of one graph share it
        pairs += 0 if codes is not None and codes is last else item.num_nodes**2
        last = codes
        if pairs > CHUNK_PAIRS:
            yield chunk
            chunk, pairs = [], 0
    yield chunk


def batches_for(
    model: Any, prepared: Sequence[tuple[Key, Input]]
) -> Iterator[list[tuple[Key, Input]]]:
    """Group encoded inputs into batches that the model accepts.

    If a model has a `batch_group`, inputs of different groups never share a batch.
    """
    same_size: bool = getattr(model, "same_size_only", False)
    if (group_of := getattr(model, "batch_group", None)) is not None:
        groups: dict[Any, int] = {}
        numbers = [groups.setdefault(group_of(item.data), len(groups)) for _, item in prepared]
        parts = [
            [item for item, number in zip(prepared, numbers, strict=True) if number == group]
            for group in groups.values()
        ]
    else:
        parts = [list(prepared)]
    goes_alone = getattr(model, "goes_alone", None)
    return (batch for part in parts for batch in in_batches(part, same_size, goes_alone))


def in_batches(
    prepared: Iterable[tuple[Key, Input]],
    same_size: bool = False,
    goes_alone: "Callable[[Data], bool] | None" = None,
) -> Iterator[list[tuple[Key, Input]]]:
    """Group inputs of similar size into batches within MAX_GRAPHS and MAX_PAIRS.

    Args:
        prepared: the encoded inputs, each with the caller's name for it.
        same_size: whether all inputs of a batch must have the same number of nodes.
        goes_alone: tells whether an input needs a pass to itself, for example because it has
            matrices over node pairs.
    """
    batch: list[tuple[Key, Input]] = []
    for item in sorted(prepared, key=lambda pair: pair[1].num_nodes):
        tokens = item[1].num_nodes + 1
        full = len(batch) >= MAX_GRAPHS or (len(batch) + 1) * tokens**2 > MAX_PAIRS
        differs = bool(batch) and same_size and batch[0][1].num_nodes + 1 != tokens
        differs = differs or (bool(batch) and goes_alone is not None and goes_alone(item[1].data))
        if batch and (full or differs):
            yield batch
            batch = []
        batch.append(item)
    if batch:
        yield batch


def collated(model: Any, batch: Sequence[tuple[object, Input]]) -> Any:
    """Collate encoded inputs into a batch that can carry gradients, on the model's device."""
    with torch.inference_mode(False):
        plain = getattr(model, "collates_plain_graphs", False)  # others are promised PyG's `Data`
        graphs = [item.graph if plain else item.data for _, item in batch]
        graphs = [graph.clone() if graph.x.is_inference() else graph for graph in graphs]
        return model.collate(graphs).to(next(model.parameters()).device)
