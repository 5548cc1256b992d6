"""Group the attention that a pass records into layers.

A Graphormer attends once per layer. A wrapped model may compute its heads one after another,
attend twice in parallel (as the convolution and the global attention of a GPS layer do), or attend
where its output does not depend on it (as in a second tower for an auxiliary loss). Layers are
therefore found from dependencies: attention that depends on no other attention is in the first
layer, attention that depends on the first layer is in the second, and so on. All attention within
a layer counts as its heads, but for chunks of queries, which are rows of one matrix.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from graphxai.contract.model import ExplainableModel
from graphxai.models.graphormer import Graphormer
from graphxai.rules.conservative import record

Pass = tuple[Tensor, list[Tensor]]


class Attended(Protocol):
    """What a pass recorded of its attention; see `rules.conservative.Tape`."""

    attention: list[Tensor]
    chunks: list[int]


@dataclass(frozen=True)
class Layers:
    """The layers of a model that attends `count` times.

    indices: for each layer, first layer first, the positions of its attention in the order of a
    pass; None: each attention is a layer. heads_apart: whether some layer has several softmaxes of
    one head each. chunks: see `rules.conservative.Tape`.
    """

    count: int
    indices: tuple[tuple[int, ...], ...] | None = None
    heads_apart: bool = False
    chunks: tuple[int, ...] = ()

    def of(self, found: Sequence[Tensor]) -> list[Tensor]:
        """Merge one tensor per attention into one (B, H, Q, T) per layer, with all its heads."""
        if len(found) != self.count:
            return list(found)
        return [self.merged(layer, [found[k] for k in layer]) for layer in self]

    def merged(self, positions: Sequence[int], found: Sequence[Tensor]) -> Tensor:
        """One tensor for each attention at these positions as one (B, H, Q, T)."""
        chunks = self.chunks or range(self.count)
        return torch.cat(joined([chunks[k] for k in positions], found), dim=1)

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        return iter(self.indices or ((k,) for k in range(self.count)))


def joined(chunks: Sequence[int], found: Sequence[Tensor]) -> list[Tensor]:
    """One tensor (B, H, Q, T) per attention, of those that hold some of its rows.

    chunks: for each tensor a number that those of one attention have in common.
    """
    whole: dict[int, Tensor] = {}
    for chunk, rows in zip(chunks, found, strict=True):
        known = whole.get(chunk)
        if known is not None:
            queries = max(known.shape[2], rows.shape[2])
            known, rows = (F.pad(t, (0, 0, 0, queries - t.shape[2])) for t in (known, rows))
        whole[chunk] = rows if known is None else known + rows
    return list(whole.values())


# by model, or what its copies share, with its form at that time
_known: "WeakKeyDictionary[Any, tuple[tuple[Any, ...], Layers]]" = WeakKeyDictionary()


def layers_of(model: Any, found: Attended, passed: Callable[[], Pass]) -> Layers:
    """The layers of the attention that a pass recorded.

    passed: returns the outputs and the attention of such a pass with gradients. It is called once
    per model, and again when parts of the model have been replaced, or when it attends in another
    number of chunks.
    """
    count, chunks = len(found.attention), tuple(found.chunks)
    if isinstance(model, Graphormer) or count < 2:
        return Layers(count)
    kept_by, form = getattr(model, "padding", model), _form(getattr(model, "module", model))
    form += chunks
    known_of, known = _known.get(kept_by, ((), Layers(0)))
    if known.count != count or known_of != form:
        known = replace(_found_in(*passed(), chunks), chunks=chunks)
        _known[kept_by] = form, known
    return known if known.count == count else Layers(count)


def _form(module: nn.Module) -> tuple[Any, ...]:
    """The parts of a model; the same for its copies."""
    return *map(type, module.modules()), *(p.shape for p in module.parameters())


def pass_with_gradients(model: ExplainableModel, batch: Any) -> Pass:
    """Outputs and attention of a pass, with the autograd graph that shows their dependencies."""
    with torch.enable_grad(), record() as tape:
        outputs = model.encode(model.embed(batch).detach().requires_grad_(), batch)
    return outputs, tape.attention


def _found_in(outputs: Tensor, attention: list[Tensor], chunks: Sequence[int]) -> Layers:
    if outputs.grad_fn is None or any(weights.grad_fn is None for weights in attention):
        return Layers(len(attention))
    depths = _depths(outputs.grad_fn, [weights.grad_fn for weights in attention])
    if not depths:
        return Layers(len(attention))
    layers: dict[tuple[int, torch.Size], list[int]] = {}
    for k in sorted(depths, key=lambda k: depths[k]):
        _, _, queries, keys = attention[k].shape
        layers.setdefault((depths[k], torch.Size((queries, keys))), []).append(k)
    indices = tuple(map(tuple, layers.values()))
    firsts = set(chunks) or set(range(len(attention)))
    heads = [[attention[k].shape[1] for k in layer if k in firsts] for layer in indices]
    heads_apart = any(len(counts) > 1 == max(counts) for counts in heads)
    return Layers(len(attention), indices, heads_apart)


def _depths(output: Any, attention: list[Any]) -> dict[int, int]:
    """Depth of each attention that the output depends on: attentions on its path, itself included.

    output, attention: nodes of autograd's graph.
    """
    depth: dict[Any, int] = {}
    left = [output]
    while left:
        before = [node for node, _ in left[-1].next_functions if node is not None]
        missing = [node for node in before if node not in depth]
        if missing:
            left.extend(missing)
            continue
        node = left.pop()
        depth[node] = max((depth[one] for one in before), default=0) + (node in attention)
    return {k: depth[node] for k, node in enumerate(attention) if node in depth}
