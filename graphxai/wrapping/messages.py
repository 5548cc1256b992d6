"""Follow the edges of a graph to the messages of PyG's layers, so that edges get relevance.

Every edge has a gate on its messages, a weight of 1. In all `L` layers that messages pass one
after another, it is the same gate. The relevance of the edge is its gate times the derivative of
the output along it, divided by `L`. So a walk through the layers, along which relevance goes from a
node to the output, gives an `L`-th of its share to each of its steps, and steps that stay at a node
belong to no edge. Under rules the derivative is theirs: it is the sum over the entries of a message
of the entry times the gradient that the rules lead to it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.nn import MessagePassing

from graphxai.contract.inputs import InputError
from graphxai.engine.autograd_graph import in_order
from graphxai.runtime.scope import Blocks

from .code_look_ups import MOVES, FollowedEntries

EDGE_SHARES = (
    " For shares of edges by leaving them out, use graphxai.explainers.edge_shapley.edge_shapley("
    "model, graphs), whose by_type() names those of a heterogeneous graph by type."
)
_layers: "Blocks[list[int] | None]" = Blocks("graphxai_message_layers", None)


@contextmanager
def gated_messages(module: nn.Module, edge_index: Tensor, gates: Tensor) -> Iterator[None]:
    """Within a pass of a module, add the gates' derivative to the messages of edges.

    Args:
        edge_index: the edges of the batch (2, E).
        gates: zeros (E,), which add to the gates of 1.

    Raises:
        InputError: a layer's messages cannot be followed to the edges, or there are none.
    """
    mode, handles = _EdgeNumbers(type(module).__name__, edge_index, gates), []
    for layer in module.modules():
        if isinstance(layer, MessagePassing):
            handles.append(layer.register_propagate_forward_pre_hook(mode.before))
            handles.append(layer.register_message_forward_hook(mode.gated))
            handles.append(layer.register_message_and_aggregate_forward_pre_hook(mode.refuse))
    try:
        with mode:
            yield
    finally:
        for handle in handles:
            handle.remove()
    if not mode.gated_at:
        mode.refuse()
    if (layers := _layers.get()) is not None:
        layers.append(max(mode.gated_at.values()))


@contextmanager
def counting_layers() -> Iterator[list[int]]:
    """Yield a list that gets the number of message layers `L` of each pass within the block."""
    with _layers.block([]) as layers:
        assert layers is not None
        yield layers


class _EdgeNumbers(FollowedEntries):
    """A mode that knows which edge each entry of the tensors made from `edge_index` is of.

    The number of an edge is the cell of its entries. A layer may add self loops, which have none.

    Args:
        edge_index: the edges (2, E).
        gates: the gates (E,).
    """

    def __init__(self, name: str, edge_index: Tensor, gates: Tensor) -> None:
        numbers = torch.arange(edge_index.shape[1], device=edge_index.device)
        super().__init__(edge_index, numbers.expand(2, -1))
        self.name, self.gates = name, gates
        self._of_call = numbers  # the edges (M,) of the messages of the running layer
        self.gated_at: dict[Any, int] = {}  # where gradients reach messages, and in which layer

    def _cells_after(self, name: str, func: Any, args: Any, kwargs: Any, out: Any) -> Any:
        cells = super()._cells_after(name, func, args, kwargs, out)
        if cells is None:  # ends may be looked up in a table of nodes, or changed where they are
            known = map(self.cells_of, args if name in MOVES else (out,))
            fits = (c for c in known if c is not None and c.shape == getattr(out, "shape", None))
            cells = next(fits, None)
        return cells

    def before(self, layer: nn.Module, args: tuple[Any, ...]) -> None:
        """Note the edges of a call of `propagate`."""
        if (numbers := self.cells_of(args[0])) is None:
            self.refuse(layer)
        else:
            self._of_call = numbers[0]

    def gated(self, layer: Any, args: tuple[Any, ...], messages: Any) -> Tensor:
        """Return the messages, with the derivative along the gates of their edges."""
        axis = layer.node_dim
        if not isinstance(messages, Tensor) or messages.shape[axis] != len(self._of_call):
            self.refuse(layer)
        shape = [1] * messages.dim()
        shape[axis] = len(self._of_call)
        gates = F.pad(self.gates, (0, 1))[self._of_call]  # the last, at -1, is of no edge
        gated = messages + messages.detach() * gates.view(shape)
        counted = _layers.get() is not None and messages.grad_fn is not None
        before = in_order(messages.grad_fn, self.gated_at) if counted else ()
        self.gated_at[gated.grad_fn] = 1 + max((self.gated_at.get(n, 0) for n in before), default=0)
        return gated

    def refuse(self, layer: nn.Module | None = None, *_: Any) -> None:
        """Raise InputError, since edges get relevance only through messages that are known."""
        why = f"no layer of {self.name} passes messages along it by PyG's MessagePassing"
        if layer is not None:
            why = (
                f"messages of {type(layer).__name__} in {self.name} cannot be followed to its edges"
            )
        raise InputError(f"edge_index gets no relevance: {why}.{EDGE_SHARES}")
