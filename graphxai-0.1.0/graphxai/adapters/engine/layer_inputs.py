"""List what enters the modules that have attention, for methods that explain a layer."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

from graphxai.runtime.scope import Blocks

from ..layout import NodeLayout
from .node_ids import NONE, NodeIds
from .replay import Replay
from .roles import AttentionProduct
from .trace import Trace


class LayerInput:
    """The rows that enter a module with attention: the same tensor, with its history."""

    def __init__(self, rows: Tensor, ids: Tensor, layout: NodeLayout) -> None:
        self.rows = rows
        self._ids, self._layout = ids.squeeze(-1), layout

    def per_token(self, values: Tensor) -> Tensor:
        """Arrange one value per row as (B, T), with zeros where there is no token."""
        ids = self._ids.expand(values.shape)
        real = ids > NONE
        by_token = values.new_zeros(len(self._layout.mask) * self._layout.tokens)
        by_token[ids[real]] = values[real]
        return by_token.view(len(self._layout.mask), self._layout.tokens)


_layer_inputs: Blocks[list[LayerInput | None] | None] = Blocks("graphxai_layer_inputs", None)


def current_layer_inputs() -> list[LayerInput | None] | None:
    """Return the list of the innermost `layer_inputs` block in this thread, or None."""
    return _layer_inputs.get()


@contextmanager
def layer_inputs() -> Iterator[list[LayerInput | None]]:
    """List what enters the modules with attention in recorded passes within the block.

    Attention must be recorded as well (`rules.conservative.record`), and the two lists correspond.
    The rows are the first tensor that is passed to the innermost running module with one row per
    node: the query of `nn.MultiheadAttention`, or x of a convolution. An entry of the list is None
    if there is no such module.
    """
    with _layer_inputs.block([]) as inputs:
        assert inputs is not None
        yield inputs


def layer_input_of(
    trace: Trace, nodes: NodeIds, product: AttentionProduct, replayed: Replay, layout: NodeLayout
) -> LayerInput | None:
    """Return the first tensor given to the innermost running module that gets one row per node."""
    count = int(layout.mask.sum())
    for running in product.op.running.outward():
        slot = None if running.rows is None else trace.memory.slots.get(id(running.rows))
        rows = None if slot is None else replayed.now[slot]
        if slot is None or rows is None or not rows.requires_grad or rows.dim() not in (2, 3):
            continue
        ids = nodes.by_value.get(trace.memory.latest[slot])
        if ids is None or ids.key is not None or ids.query.shape[-1] != 1:
            continue
        single = ids.query.expand((*rows.shape[:-1], 1))
        of_nodes = single[single >= 0]
        of_nodes = of_nodes[of_nodes % layout.tokens > 0]
        if len(of_nodes) == count == len(of_nodes.unique()):
            return LayerInput(rows, single, layout)
    return None
