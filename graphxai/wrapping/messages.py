"""Follow the edges of a graph to the messages of PyG's layers, so that edges get relevance.

Every edge has a gate on its messages, a weight of 1. In all `L` layers that messages pass one
after another, it is the same gate. The relevance of the edge is its gate times the derivative of
the output along it, divided by `L`. So a walk through the layers, along which relevance goes from a
node to the output, gives an `L`-th of its share to each of its steps, and steps that stay at a node
belong to no edge. Under rules the derivative is theirs: it is the sum over the entries of a message
of the entry times the gradient that the rules lead to it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes
from torch_geometric.nn import MessagePassing

from graphxai.contract.inputs import InputError
from graphxai.engine.recording import name_of
from graphxai.runtime.scope import Blocks

SHIFTS = {"add", "add_", "iadd", "radd", "sub", "sub_", "isub", "to", "long", "int", "cpu", "cuda"}
# Functions that put the entries of tensors in other places.
MOVES = {
    *("cat", "chunk", "clone", "concat", "contiguous", "detach", "expand", "expand_as", "flatten"),
    *("flip", "gather", "getitem", "hstack", "index_select", "masked_select", "narrow", "permute"),
    *("repeat", "reshape", "roll", "select", "split", "squeeze", "stack", "t", "unbind"),
    *("swapaxes", "tensor_split", "transpose", "unsqueeze", "view", "vstack"),
}  # fmt: skip
EDGE_SHARES = (
    " For shares of edges by leaving them out, use graphxai.explainers.edge_shapley.edge_shapley("
    "model, graphs), whose by_type() names those of a heterogeneous graph by type."
)
_layers: "Blocks[list[int] | None]" = Blocks("graphxai_message_layers", None)


@contextmanager
def gated_messages(module: nn.Module, edge_index: Tensor, gates: Tensor) -> Iterator[None]:
    """Within a pass of a module, add the gates' derivative to the messages of edges.

    Args:
        module: the module.
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


class _EdgeNumbers(TorchFunctionMode):
    """A mode that knows which edge each entry of the tensors made from `edge_index` is of.

    Args:
        name: the name of the model.
        edge_index: the edges (2, E).
        gates: the gates (E,).
    """

    def __init__(self, name: str, edge_index: Tensor, gates: Tensor) -> None:
        super().__init__()
        self.name, self.gates = name, gates
        numbers = torch.arange(edge_index.shape[1], device=edge_index.device)
        # by `id`, a tensor and the number of the edge at each entry, or -1; a layer adds self loops
        self._numbers = {id(edge_index): (edge_index, numbers.expand(2, -1))}
        self._of_call = numbers  # the edges (M,) of the messages of the running layer
        self.gated_at: dict[Any, int] = {}  # where gradients reach messages, and in which layer

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call a function, and follow the numbers of edges to its result."""
        options = kwargs or {}
        result = func(*args, **options)
        name = name_of(func)
        if name in MOVES or name in SHIFTS:
            with _disable_current_modes(), torch.no_grad():
                self._follow(func, name, result, args, options)
        return result

    def _follow(self, func: Any, name: str, result: Any, args: Any, options: Any) -> None:
        known = [self._numbers[id(arg)][1] for arg in args if id(arg) in self._numbers]
        parts = args[0] if args and isinstance(args[0], tuple | list) else args[:1]
        if name in MOVES and any(id(part) in self._numbers for part in parts):
            numbers = func(self._replaced(args[0]), *args[1:], **options)
        elif known and isinstance(result, Tensor) and result.shape == known[0].shape:
            numbers = known[0]  # of nodes that are counted from elsewhere, or looked up in a table
        else:
            return
        results = result if isinstance(result, tuple | list) else [result]
        several = numbers if isinstance(numbers, tuple | list) else [numbers]
        for tensor, of_edges in zip(results, several, strict=True):
            self._numbers[id(tensor)] = tensor, of_edges

    def _replaced(self, value: Any) -> Any:
        """Return the numbers of the edges in place of tensors, and -1 where there are no edges."""
        if isinstance(value, tuple | list):
            return [self._replaced(part) for part in value]
        return self._numbers.get(id(value), (None, torch.full_like(value, -1)))[1]

    def before(self, layer: nn.Module, args: tuple[Any, ...]) -> None:
        """Note the edges of a call of `propagate`."""
        if id(args[0]) not in self._numbers:
            self.refuse(layer)
        self._of_call = self._numbers[id(args[0])][1][0]

    def gated(self, layer: Any, args: tuple[Any, ...], messages: Any) -> Tensor:
        """Return the messages, with the derivative along the gates of their edges."""
        axis = layer.node_dim
        if not isinstance(messages, Tensor) or messages.shape[axis] != len(self._of_call):
            self.refuse(layer)
        shape = [1] * messages.dim()
        shape[axis] = len(self._of_call)
        gates = F.pad(self.gates, (0, 1))[self._of_call]  # the last, at -1, is of no edge
        gated = messages + messages.detach() * gates.view(shape)
        counted = _layers.get() is not None
        before = self._layers_before(messages.grad_fn) if counted else 0
        self.gated_at[gated.grad_fn] = 1 + before
        return gated

    def _layers_before(self, place: Any) -> int:
        """Return how many message layers autograd's graph passes up to a place."""
        waiting, seen, most = [place], {None}, 0
        while waiting:
            if (place := waiting.pop()) in seen:
                continue
            seen.add(place)
            if place in self.gated_at:
                most = max(most, self.gated_at[place])
            else:
                waiting += [before for before, _ in place.next_functions]
        return most

    def refuse(self, layer: nn.Module | None = None, *_: Any) -> None:
        """Raise InputError, since edges get relevance only through messages that are known."""
        why = f"no layer of {self.name} passes messages along it by PyG's MessagePassing"
        if layer is not None:
            why = (
                f"messages of {type(layer).__name__} in {self.name} cannot be followed to its edges"
            )
        raise InputError(f"edge_index gets no relevance: {why}.{EDGE_SHARES}")
