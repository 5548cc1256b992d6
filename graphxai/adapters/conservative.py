"""The rules of `rules.conservative` on any model, for the length of a block."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Literal

from torch import nn

from graphxai.rules import conservative as rules

from .engine.block import intercepted


@contextmanager
def conservative(
    attention: bool = True,
    layernorm: bool = True,
    activation: Literal["ratio"] | None = None,
    products: bool = False,
    *,
    model: nn.Module | None = None,
) -> Iterator[rules.Rules]:
    """Hold attention, LayerNorm's scale and the activation ratio constant within the block.

    The rules act on a bundled Graphormer, and on `model`: any PyTorch module, which needs no
    change (see `adapters.engine.block`). For the rules themselves see
    `graphxai.rules.conservative.conservative`.
    """
    with (
        rules.conservative(attention, layernorm, activation, products) as in_force,
        nullcontext() if model is None else intercepted(model),
    ):
        yield in_force
