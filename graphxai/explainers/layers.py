"""Group the attention that a pass records into layers, and count where its heads look.

A Graphormer attends once per layer. A wrapped model may compute its heads one after another. It may
attend twice in parallel, as the convolution and the global attention of a GPS layer do. It may also
attend where its output does not depend on it, as in a second tower for an auxiliary loss. Layers
therefore follow from dependencies. Attention that depends on no other attention is in the first
layer, attention that depends on the first layer is in the second, and so on. All attention within a
layer counts as its heads, except that chunks of queries are joined into one matrix.

In every row a head looks at its key. A row is one node of one graph as the query, and its key is
the token with the largest attention. Tied keys share the row, so that the counts do not depend on
the order of the nodes.

In a Graphormer distances are its distance codes. The largest code stands for that distance and all
farther ones. In wrapped models distances are the lengths of shortest paths along the graph's edges,
or |i - j| in a sequence of tokens. Keys farther than `FARTHEST` count as unreachable, because they
are not all at one distance.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from graphxai.contract.batch import GraphBatch
from graphxai.contract.model import ExplainableModel
from graphxai.contract.structure import UNREACHABLE
from graphxai.contract.target import ResolvedTarget, Target
from graphxai.engine.autograd_graph import in_order
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
    depth: dict[Any, int] = {None: 0}
    for node, reads in in_order(output, {}).items():
        depth[node] = max((depth[before] for before, _ in reads), default=0) + (node in attention)
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


# -- where heads look ------------------------------------------------------------------------------


POSITIONAL = 0.8  # xi_pos of Song 2024
RELATIONAL = 0.1  # xi_synt of Song 2024
ROUNDING = 1e-6  # shares are sums of floats, and the statistics file keeps six digits
TIE = 1e-5  # attention ties below this relative difference, in single precision
FARTHEST = 100  # the largest distance in edges that is counted in models without a largest distance

Shares = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class HeadCounts:
    """How many rows of each graph have their key at a distance or in a relation.

    Args:
        distances: how many rows have their key at each distance (B, L, H, C).
        related: how many rows have a key in each relation to the query (B, L, H, K).
        chance: how many rows would have a key in each relation if a head always looked at one
            distance and drew its key at random among the nodes there (B, K, C).
        rows: the number of all rows (B,).
    """

    distances: Shares
    related: Shares
    chance: Shares
    rows: Shares

    def __add__(self, other: "HeadCounts") -> "HeadCounts":
        return HeadCounts(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    def summed(self) -> "HeadCounts":
        """Sum over the graphs. The first axis remains, with length one."""
        return HeadCounts(*(value.sum(0, keepdims=True) for value in astuple(self)))

    def shares(self) -> tuple[Shares, Shares, Shares]:
        """Return `distances`, `related` and base rates (B, K) as shares of the rows.

        The base rate is the largest share that a head reaches by always looking at one distance. It
        is max(lambda_k) in Song 2024, eq. 7, with distances in place of relative positions.
        """
        per_head = self.rows[:, None, None, None]
        base_rates = (self.chance / self.rows[:, None, None]).max(-1)
        return self.distances / per_head, self.related / per_head, base_rates

    def important(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Return the positional and the relational heads (B, L, H) of each graph."""
        distances, related, base_rates = self.shares()
        chance = base_rates[:, None, None]
        return positional_heads(distances), relational_heads(related, chance)


@torch.no_grad()
def count(
    model: ExplainableModel, batch: Any, relations: Sequence[Any] | None = None
) -> HeadCounts:
    """Count where the rows of each graph have their key.

    Args:
        relations: the relations (K, n, n) of each graph. If None, the only relation is an edge.
    """
    with record(all_queries=True) as tape:
        model.encode(model.embed(batch), batch)
    distance, categories = _distances(model, batch)  # (B, N, N)
    both = batch.mask[:, :, None] & batch.mask[:, None, :]
    if relations is None:
        pairs = (both & (distance == 1))[:, None]
    else:
        pairs = both.new_zeros(len(batch), len(relations[0]), *both.shape[1:])
        for b, related_here in enumerate(relations):
            n = related_here.shape[-1]
            pairs[b, :, :n, :n] = torch.from_numpy(related_here)
    pairs = pairs.double()  # (B, K, N, N)
    layers = joined(tape.chunks or range(len(tape.attention)), tape.attention)
    heads = max(attention.shape[1] for attention in layers)
    distances, related = [], []
    for attention in layers:
        missing = heads - attention.shape[1]
        token, nodes = _largest(F.pad(attention, (0, 0, 0, 0, 0, missing)), batch)
        by_distance = token.new_zeros(*token.shape[:2], categories)
        at = distance.flatten(1)[:, None].expand(-1, heads, -1)
        by_distance.scatter_add_(2, at, nodes.flatten(2))
        of_tokens = token.sum(-1)
        no_key = batch.num_nodes[:, None] - by_distance.sum(-1) - of_tokens
        by_distance[..., -1] += no_key.clamp(min=0)
        distances.append(torch.cat([by_distance, of_tokens[..., None]], dim=-1))
        related.append(torch.einsum("bhij,bkij->bhk", nodes, pairs))
    # rows with a related key if a key is drawn at each distance
    nodes_at = both.to(pairs).new_zeros(*both.shape[:2], categories)
    nodes_at.scatter_add_(2, distance, both.to(pairs))  # (B, N, C)
    related_at = pairs.new_zeros(*pairs.shape[:3], categories)  # (B, K, N, C)
    related_at.scatter_add_(3, distance[:, None].expand_as(pairs), pairs * both[:, None])
    chance = (related_at / nodes_at.clamp(min=1)[:, None]).sum(2)  # (B, K, C)
    counted = torch.stack(distances, 1), torch.stack(related, 1), chance, batch.num_nodes.double()
    return HeadCounts(*(value.cpu().numpy() for value in counted))


def _largest(attention: Tensor, batch: Any) -> tuple[Tensor, Tensor]:
    """Mark the key with the largest attention in every node's row.

    Returns:
        The marks at the graph token (B, H, N) and at the nodes (B, H, N, N). The key is marked with
        one, and tied keys share it equally. All other entries are zero, and so are padding and rows
        without attention.
    """
    of_nodes = attention[:, :, 1:].double()  # (B, H, N, T)
    top = (of_nodes >= of_nodes.amax(-1, keepdim=True) * (1 - TIE)) & (of_nodes > 0)
    shared = top.double() / top.sum(-1, keepdim=True).clamp(min=1)
    shared = shared * batch.mask[:, None, :, None]
    return shared[..., 0], shared[..., 1:]


def _distances(model: ExplainableModel, batch: Any) -> tuple[Tensor, int]:
    """Return distance codes (B, N, N), arbitrary at padding, and how many codes there are.

    The last code is for unreachable nodes.
    """
    b, n = batch.mask.shape
    if isinstance(batch, GraphBatch):
        categories = int(getattr(model.config, "max_distance", FARTHEST)) + 2
        return batch.distance_codes.long().clamp(0, categories - 1), categories
    if not hasattr(batch, "distances"):
        raise TypeError(f"{type(model).__name__} provides no distances: use graphxai.wrap.")
    padded = np.full((b, n, n), UNREACHABLE)
    for rows, distances in zip(padded, batch.distances(), strict=True):
        rows[: len(distances), : len(distances)] = distances
    padded[(padded == UNREACHABLE) | (padded > FARTHEST)] = FARTHEST + 1
    return torch.from_numpy(padded).to(batch.mask.device), FARTHEST + 2


def positional_heads(distances: Shares) -> NDArray[np.bool_]:
    """Find positional heads by Eq. 8, from shares (..., C) as in `HeadStatistics`.

    Unreachable nodes and the graph token, the last two columns, do not count.
    """
    return np.any(distances[..., :-2] > POSITIONAL + ROUNDING, axis=-1)


def relational_heads(related: Shares, base_rates: Shares) -> NDArray[np.bool_]:
    """Find relational heads by Eq. 7, from shares (..., K) and base rates of this shape.

    Base rates may also broadcast to the shares. If one distance fully determines a relation, as
    distance 1 determines bonds, its base rate is near 1. Heads that follow it can then only be
    found by `positional_heads`. A head that fits several relations counts once, because relations
    overlap.
    """
    return np.any(related > base_rates + RELATIONAL + ROUNDING, axis=-1)
