"""Attention in a pass under the positive rules: a quantity whose relevance can be read."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .attending import AttentionWatch
from .layout import Layout
from .reading import Reading
from .relevance_pass import RelevancePass
from .trace import Nonlinearity, Softmax, Trace, Traces, tensors_in

Bilinear = Callable[[Tensor, Tensor], Tensor]


def through_heads_at(relevance: Tensor, important: Tensor, graphs: Tensor, heads: Tensor) -> Tensor:
    """`rules.positive.through_important_heads` for relevance with entries in any order.

    important (B or 1, K, H); graphs, heads: of every entry, in the shape of relevance.
    """
    count = int(graphs.max()) + 1
    chosen = important.expand(count, -1, -1).to(relevance)
    kinds = [relevance * chosen[graphs, kind, heads] for kind in range(chosen.shape[1])]

    def per_graph(x: Tensor) -> Tensor:
        return x.new_zeros(count).index_add(0, graphs.flatten(), x.flatten())

    sums = [per_graph(kind) for kind in kinds]
    total, size = per_graph(relevance), torch.stack(sums).abs().sum(0)
    share = torch.where(size == 0, 0.0, total / size)  # (B,)
    scaled = [kind * (own.sign() * share)[graphs] for kind, own in zip(kinds, sums, strict=True)]
    return torch.stack(scaled).sum(0)


class MadeTraces(Traces):
    """Traces here: custom functions made all tensors, so known ones need no second look."""

    def of(self, value: Any) -> Trace | None:
        """The trace of a tensor; None for constants."""
        found: Trace | None = self._known.get(value) if isinstance(value, Tensor) else None
        return found if found is not None else super().of(value)


class PositiveWatch(AttentionWatch):
    """Makes attention a quantity whose relevance can be read."""

    def __init__(self, traces: Traces, layout: Layout | None, state: RelevancePass) -> None:
        super().__init__(traces, layout)
        self._state = state
        self._number: dict[Softmax, int] = {}

    def softmax(self, out: Tensor, softmax: Softmax, curves: frozenset[Nonlinearity]) -> Tensor:
        """A softmax's result; a leaf where relevance goes no further."""
        if (
            not torch.is_grad_enabled()
        ):  # in a custom function, which has a backward pass of its own
            return self._traces.mark(out, Trace(curves))
        if not self._state.rules.into_queries_and_keys:
            out = out.detach().requires_grad_()
        out = self.exposure.expose(out, softmax)
        return self._traces.mark(out, Trace(curves, "probability", softmax))

    def _recordable(self, out: Tensor, softmax: Softmax) -> Tensor:
        return self.exposure.expose(out, softmax)

    def heads(self, value: Tensor, shape: torch.Size) -> Tensor | None:
        """Important heads (B or 1, K, H) of the layer that this attention (...) belongs to."""
        trace, important = self._traces.of(value), self._state.important
        if important is None or trace is None or trace.softmax not in self._number:
            return None
        attention, chosen = trace.softmax.attention, important[:, :, self._number[trace.softmax]]
        return chosen if attention is None else chosen[..., : attention.shape[1]]  # layers differ

    def heads_of_mixed(self, name: str, weights: Tensor, values: Tensor, f: Bilinear) -> Any:
        """Graph and head, from 0, of every entry of f(weights, values).

        None where the mixed values are (B, H, Q, d), or (B * H, Q, d), or of edges.
        """
        trace = self._traces.of(weights)
        known = self.exposure.laid_out.get(trace.softmax) if trace and trace.softmax else None
        layout, reading, made = known or (None, None, weights)
        shape = made.shape
        if layout is None or reading is None or not _are_same(weights, made):
            return None
        axes = len(shape)
        usual = reading == Reading(axes - 2, axes - 1, 0) and name in ("matmul", "bmm")
        if usual:
            return None
        parts = torch.zeros_like(reading.apart(weights.detach(), len(layout.mask)))
        graphs, heads = parts.clone(), parts
        heads[..., 0] = torch.arange(parts.shape[-3], device=parts.device)[:, None].to(parts)
        if reading.graphs is None:
            graphs[..., 0] = layout.graph.to(parts)
        else:
            graphs[..., 0] = torch.arange(len(parts), device=parts.device)[:, None, None].to(parts)
        ones = torch.ones_like(values)
        return tuple(f(reading.together(z, shape), ones).round().long() for z in (graphs, heads))

    def graph_of_entries(self, weights: Tensor) -> Tensor | None:
        """The graph of each edge with these probabilities (E, ...); None: unknown."""
        trace, layout = self._traces.of(weights), self._layout
        index = None if trace is None or trace.softmax is None else trace.softmax.index
        if (
            layout is None
            or index is None
            or self.exposure.within_map
            or len(index) != len(weights)
        ):
            return self.graph_of_rows(len(weights), None)
        return layout.graph[index]

    def is_attention(self, value: Tensor) -> bool:
        """Whether these are probabilities that mix values."""
        trace = self._traces.of(value)
        return trace is not None and trace.role == "probability"

    def graph_of_rows(self, length: int, size: int | None) -> Tensor | None:
        """The graph of each entry of a first axis: nodes or edges; None: each is a graph."""
        layout = self._layout
        if layout is not None and self.exposure.within_map:
            return layout.graph.new_zeros(length)
        if layout is None or length == size:
            return None
        if length == len(layout.graph):
            return layout.graph
        for index in reversed(self.exposure.gathered_by(length)):
            if not length or int(index.max()) < len(layout.graph):
                return layout.graph[index]
        return None

    @property
    def graphs(self) -> int | None:
        """The number of graphs, if known."""
        return None if self._layout is None else len(self._layout.mask)

    def _held(self, value: Any) -> Any:
        for tensor in tensors_in([value]):
            trace = self._traces.of(tensor)
            if trace is not None and trace.role == "probability" and trace.softmax is not None:
                self._record(trace.softmax)
        return value

    def _record(self, softmax: Softmax) -> None:
        if not softmax.used and softmax.attention is not None:
            self._number[softmax] = len(self._state.attention)
            self._state.attention.append(softmax.attention)
        self._note_left_out(softmax)
        self._note_mapped()
        softmax.used = True


def _are_same(weights: Tensor, made: Tensor) -> bool:
    """Whether weights are exactly those of a softmax, not, for example, transposed since."""
    same_axes = weights.shape == made.shape
    return same_axes and torch.allclose(weights.double(), made.double(), rtol=1e-2, atol=1e-8)
