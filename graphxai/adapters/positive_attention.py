"""Attention in a pass under the positive rules: a quantity that relevance can be asked of."""

from typing import Any

import torch
from torch import Tensor

from .attending import AttentionWatch
from .handing import HandingDown
from .layout import Layout
from .trace import Curve, Softmax, Trace, Traces, tensors_in


class MadeTraces(Traces):
    """As a custom function made the tensors here, those that are known need no second look."""

    def of(self, value: Any) -> Trace | None:
        """The trace of a tensor; None for constants."""
        found: Trace | None = self._known.get(value) if isinstance(value, Tensor) else None
        return found if found is not None else super().of(value)


class PositiveWatch(AttentionWatch):
    """Attention becomes a quantity that relevance can be asked of."""

    def __init__(self, traces: Traces, layout: Layout | None, state: HandingDown) -> None:
        super().__init__(traces, layout)
        self._state = state
        self._number: dict[Softmax, int] = {}

    def softmax(self, out: Tensor, softmax: Softmax, curves: frozenset[Curve]) -> Tensor:
        """A softmax's result; a leaf where relevance goes no further."""
        if (
            not torch.is_grad_enabled()
        ):  # in a custom function, which has a backward pass of its own
            return self._traces.mark(out, Trace(curves))
        if not self._state.rules.into_queries_and_keys:
            out = out.detach().requires_grad_()
        softmax.attention, out = self._expose(out, softmax.index)
        return self._traces.mark(out, Trace(curves, "probability", softmax))

    def heads(self, value: Tensor, shape: torch.Size) -> Tensor | None:
        """Important heads (B or 1, K, H) of the layer that this attention (...) is of."""
        trace, important = self._traces.of(value), self._state.important
        if important is None or trace is None or trace.softmax not in self._number:
            return None
        return important[:, :, self._number[trace.softmax]]

    def is_attention(self, value: Tensor) -> bool:
        """Whether these are probabilities that mix values."""
        trace = self._traces.of(value)
        return trace is not None and trace.role == "probability"

    def graph_of_rows(self, length: int, size: int | None) -> Tensor | None:
        """The graph of each entry of a first axis: nodes or edges; None: each is one by itself."""
        layout = self._layout
        if layout is not None and self.within_map:
            return layout.graph.new_zeros(length)
        if layout is None or length == size:
            return None
        if length == len(layout.graph):
            return layout.graph
        for index in reversed(self._indices):
            if len(index) == length and (not length or int(index.max()) < len(layout.graph)):
                return layout.graph[index]
        return None

    @property
    def graphs(self) -> int | None:
        """How many graphs there are, where it is known."""
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
        self._note_mapped()
        softmax.used = True
