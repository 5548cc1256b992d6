"""The token rows that enter each attention module, for methods that need them."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from .layout import Layout
from .trace import tensors_in


@dataclass(frozen=True, eq=False)
class LayerInput:
    """Rows (n, D), (B, S, D) or (S, B, D) that enter a module: the same tensor, with its graph."""

    rows: Tensor
    layout: Layout
    sequence_first: bool = False

    def per_token(self, values: Tensor) -> Tensor:
        """One value per row, (n,), (B, S) or (S, B), as (B, T); zero where there is no token."""
        layout = self.layout
        if values.dim() == 1:
            placed = values.new_zeros(len(layout.mask), layout.tokens)
            placed[layout.graph, layout.slot + 1] = values
            return placed
        values = values.T if self.sequence_first else values
        if layout.rank is not None:
            placed = values.new_zeros(len(layout.mask), layout.tokens)
            placed[layout.graph, layout.slot + 1] = values[layout.graph, layout.rank]
            return placed
        first = int(not layout.graph_token)
        placed = F.pad(values, (first, layout.tokens - first - values.shape[1]))
        return placed.masked_fill(~F.pad(layout.mask, (1, 0), value=layout.graph_token), 0.0)


@dataclass(eq=False)
class LayerInputs:
    """The inputs of the modules in a pass; `found`: one for each recorded attention.

    The rows are the first tensor passed to the innermost running module that receives one row per
    node: the query of `nn.MultiheadAttention`, x of a convolution. None if there is no such module.
    """

    found: list[Any] = field(default_factory=list)
    _running: list[tuple[nn.Module, tuple[Any, ...]]] = field(default_factory=list)

    def enter(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """A module begins."""
        self._running.append((module, args))

    def leave(self) -> None:
        """The module that began last ends."""
        self._running.pop()

    def note(self, layout: Layout | None) -> None:
        """Attention was recorded in the module that runs."""
        candidates = (_layer_input(m, args, layout) for m, args in reversed(self._running))
        self.found.append(next((found for found in candidates if found is not None), None))


_layer_inputs: ContextVar[LayerInputs | None] = ContextVar("graphxai_layer_inputs", default=None)


def current_layer_inputs() -> LayerInputs | None:
    """The layer inputs of the innermost `layer_inputs` block in this thread."""
    return _layer_inputs.get()


@contextmanager
def layer_inputs() -> Iterator[LayerInputs]:
    """Note the inputs of attention modules in intercepted passes within the block.

    Attention must be recorded as well (`rules.conservative.record`); the two lists correspond.
    """
    noted = LayerInputs()
    token = _layer_inputs.set(noted)
    try:
        yield noted
    finally:
        _layer_inputs.reset(token)


def _layer_input(
    module: nn.Module, args: tuple[Any, ...], layout: Layout | None
) -> LayerInput | None:
    """The first tensor passed to a module, if it has one row per node."""
    rows = next(tensors_in(args), None)
    if rows is None or layout is None or not rows.requires_grad:
        return None
    size, sequence_first = len(layout.mask), False
    if rows.dim() == 3 and isinstance(module, nn.MultiheadAttention):
        sequence_first = not module.batch_first
    of_nodes = rows.dim() == 2 and len(rows) == len(layout.graph) and not layout.graph_token
    batch, sequence = (1, 0) if sequence_first else (0, 1)
    of_tokens = rows.dim() == 3 and rows.shape[batch] == size and layout.fits(rows.shape[sequence])
    return LayerInput(rows, layout, sequence_first) if of_nodes or of_tokens else None
