"""The token rows that enter each attention module, for methods that need them."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from graphxai.rules.scope import Blocks


class LayerInput(Protocol):
    """Rows (n, D), (B, S, D) or (S, B, D) that enter a module."""

    rows: Tensor

    def per_token(self, values: Tensor) -> Tensor:
        """One value per row as (B, T); zero where there is no token."""


@dataclass(eq=False)
class LayerInputs:
    """The inputs of the modules in a pass; `found`: one for each recorded attention.

    The rows are the first tensor passed to the innermost running module that receives one row per
    node: the query of `nn.MultiheadAttention`, x of a convolution. None if there is no such module.
    """

    found: list[LayerInput | None] = field(default_factory=list)


_layer_inputs: Blocks[LayerInputs | None] = Blocks("graphxai_layer_inputs", None)


def current_layer_inputs() -> LayerInputs | None:
    """The layer inputs of the innermost `layer_inputs` block in this thread."""
    return _layer_inputs.get()


@contextmanager
def layer_inputs() -> Iterator[LayerInputs]:
    """Note the inputs of attention modules in recorded passes within the block.

    Attention must be recorded as well (`rules.conservative.record`); the two lists correspond.
    """
    with _layer_inputs.block(LayerInputs()) as noted:
        assert noted is not None
        yield noted
