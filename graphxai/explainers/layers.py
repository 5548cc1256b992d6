"""Group the attention that a pass records into layers.

A Graphormer attends once per layer. A wrapped model may compute its heads one after another. It may
attend twice in parallel, as the convolution and the global attention of a GPS layer do. It may also
attend where its output does not depend on it, as in a second tower for an auxiliary loss. Layers
therefore follow from dependencies. Attention that depends on no other attention is in the first
layer, attention that depends on the first layer is in the second, and so on. All attention within a
layer counts as its heads, except that chunks of queries are joined into one matrix.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor

from graphxai.contract.batch import GraphBatch
from graphxai.contract.model import ExplainableModel
from graphxai.contract.target import ResolvedTarget, Target
from graphxai.models.graphormer import Graphormer
from graphxai.rules.conservative import record
from graphxai.runtime.modules import form_of

from .base import gradients

RecordedPass = tuple[Tensor, list[Tensor]]  # the outputs and the attention


class Attended(Protocol):
    """The attention that a pass recorded, as in `rules.conservative.Tape`."""

    attention: list[Tensor]
    chunks: list[int]


@dataclass(frozen=True)
class Layers:
    """The layers of a model.

    Args:
        count: how often the model attends in a pass.
        indices: for each layer, first layer first, which attentions of a pass belong to it. If
            None, each attention is a layer.
        heads_apart: whether some layer computes its heads in several softmaxes of one head each.
        chunks: see `rules.conservative.Tape`.
    """

    count: int
    indices: tuple[tuple[int, ...], ...] | None = None
    heads_apart: bool = False
    chunks: tuple[int, ...] = ()

    def of(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Merge one tensor per attention into one (B, H, Q, T) per layer, with all its heads."""
        if len(tensors) != self.count:
            return list(tensors)
        return [self.merged(layer, [tensors[k] for k in layer]) for layer in self]

    def merged(self, positions: Sequence[int], tensors: Sequence[Tensor]) -> Tensor:
        """Merge the tensors of the attentions at these positions into one (B, H, Q, T)."""
        chunks = self.chunks or range(self.count)
        return torch.cat(joined([chunks[k] for k in positions], tensors), dim=1)

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        return iter(self.indices or ((k,) for k in range(self.count)))


def joined(chunks: Sequence[int], tensors: Sequence[Tensor]) -> list[Tensor]:
    """Join tensors that hold different rows of the same attention into one (B, H, Q, T).

    Tensors belong to the same attention if they have the same number in `chunks`.
    """
    whole: dict[int, Tensor] = {}
    for chunk, rows in zip(chunks, tensors, strict=True):
        before = whole.get(chunk)
        if before is not None:
            queries = max(before.shape[2], rows.shape[2])
            before, rows = (F.pad(t, (0, 0, 0, queries - t.shape[2])) for t in (before, rows))
        whole[chunk] = rows if before is None else before + rows
    return list(whole.values())


# The layers of each model, with the form that the model had at the time. Copies share an entry.
_layers_by_model: "WeakKeyDictionary[Any, tuple[tuple[Any, ...], Layers]]" = WeakKeyDictionary()


def layers_of(model: Any, recorded: Attended, run_pass: Callable[[], RecordedPass]) -> Layers:
    """Return the layers of the attention that a pass recorded.

    Args:
        run_pass: runs such a pass with gradients. It is called once per model, and again after
            parts of the model were replaced or if the number of chunks changes.
    """
    count, chunks = len(recorded.attention), tuple(recorded.chunks)
    if isinstance(model, Graphormer) or count < 2:
        return Layers(count)
    shared, form = getattr(model, "padding", model), form_of(getattr(model, "module", model))
    form += chunks
    last_form, layers = _layers_by_model.get(shared, ((), Layers(0)))
    if layers.count != count or last_form != form:
        layers = replace(_layers_in(*run_pass(), chunks), chunks=chunks)
        _layers_by_model[shared] = form, layers
    return layers if layers.count == count else Layers(count)


def pass_with_gradients(model: ExplainableModel, batch: Any) -> RecordedPass:
    """Run a pass in which the autograd graph shows how attentions depend on each other.

    Returns:
        The outputs and the attention.
    """
    with torch.enable_grad(), record() as tape:
        outputs = model.encode(model.embed(batch).detach().requires_grad_(), batch)
    return outputs, tape.attention


def _layers_in(outputs: Tensor, attention: list[Tensor], chunks: Sequence[int]) -> Layers:
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
    """Count how many attentions lie on the path to each attention that the output depends on.

    Each attention counts itself. The output and the attentions are nodes of autograd's graph.
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
        depth[node] = max((depth[earlier] for earlier in before), default=0) + (node in attention)
    return {k: depth[node] for k, node in enumerate(attention) if node in depth}


@dataclass(frozen=True, eq=False)
class TracedAttention:
    """The attention of a forward pass, and its gradient from the backward pass.

    Args:
        attention: A[l], (B, H, Q, T) of every layer.
        gradients: d f_c / dA[l], (B, H, Q, T) of every layer.
        outputs: the outputs (B, num_outputs).
        target: f_c resolved for these outputs.
    """

    attention: list[Tensor]
    gradients: list[Tensor]
    outputs: Tensor
    target: ResolvedTarget
    layers: Layers


def attention_gradients(
    model: ExplainableModel,
    batch: GraphBatch,
    target: Target,
    copy_of: ExplainableModel | None = None,
) -> TracedAttention:
    """Record the attention of every layer, and the gradient of f_c with respect to it.

    If the model is a copy, `copy_of` is the original, which decides what counts as a layer.
    """
    with record() as tape:
        tokens = model.embed(batch).detach().requires_grad_()
        outputs = model.encode(tokens, batch)
    resolved = target.resolve(model.config, outputs)
    arriving = gradients(resolved(outputs), tape.attention)
    attention = [weights.detach() for weights in tape.attention]
    original = model if copy_of is None else copy_of
    layers = layers_of(original, tape, lambda: (outputs, tape.attention))
    return TracedAttention(layers.of(attention), layers.of(arriving), outputs, resolved, layers)


def by_layer(model: ExplainableModel, batch: GraphBatch, recorded: Attended) -> list[Tensor]:
    """Merge the attention that a pass without gradients recorded into (B, H, Q, T) per layer."""
    layers = layers_of(model, recorded, lambda: pass_with_gradients(model, batch))
    return layers.of(recorded.attention)
