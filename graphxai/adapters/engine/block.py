"""Rules on any PyTorch module, for the length of a block."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.utils._pytree import tree_flatten

from graphxai.rules import conservative as rules_of
from graphxai.rules.conservative import Rules, current_rules, current_tape
from graphxai.rules.scope import Blocks

from ..isolation import uncompiled
from ..layout import Layout
from .marks import marked
from .passing import reading, warn_of_chance, warn_of_curves
from .replay import plan, replay
from .trace import Recording, is_recording


@contextmanager
def intercepted(model: nn.Module, *, layout: Layout | None = None) -> Iterator[None]:
    """Rules and recordings of this thread act on `model`, or parts of it, within the block.

    A call of the model is recorded as a list of PyTorch's basic operations, and the list runs again
    under the rules in force. layout: the positions of nodes, for recordings of attention; by
    default the first input has the nodes of one graph (n, D), behind an empty graph token, or the
    tokens of several (B, S, D). Raises TypeError for anything but a module.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"rules act on a torch.nn.Module, not on {type(model).__name__}.")
    watch = _Watch(model, layout)
    handles = (
        register_module_forward_pre_hook(watch.before),
        register_module_forward_hook(watch.after, always_call=True),
    )
    try:
        with uncompiled(model), _watching.block(watch):
            yield
    finally:
        for handle in handles:
            handle.remove()
        watch.end()


@contextmanager
def conservative(
    attention: bool = True,
    layernorm: bool = True,
    activation: Literal["ratio"] | None = None,
    products: bool = False,
    *,
    model: nn.Module | None = None,
) -> Iterator[Rules]:
    """Hold attention, LayerNorm's scale and the activation ratio constant within the block.

    The rules act on a bundled Graphormer, and on `model`: any PyTorch module, which needs no
    change (see `intercepted`). For the rules themselves see
    `graphxai.rules.conservative.conservative`.
    """
    with (
        rules_of.conservative(attention, layernorm, activation, products) as in_force,
        nullcontext() if model is None else intercepted(model),
    ):
        yield in_force


_watching: "Blocks[_Watch | None]" = Blocks("graphxai_watching", None)


def _innermost(module: nn.Module) -> "_Watch | None":
    """The innermost block of this thread that acts on a module."""
    watch = _watching.get()
    while watch is not None and not watch.covers(module):
        watch = watch.outer
    return watch


class _Watch:
    """Records each call of the model, or of a part of it, and replays it."""

    def __init__(self, model: nn.Module, layout: Layout | None) -> None:
        self.outer = _watching.get()
        self._model, self._layout = model, layout
        self._parts = {id(module) for module in model.modules()}
        self._thread = threading.get_ident()
        self._outer: nn.Module | None = None
        self._recording: Recording | None = None
        self._lent: list[Tensor] = []  # inputs that require a gradient during the call
        self._warned: set[str] = set()

    def covers(self, module: nn.Module) -> bool:
        """Whether the block is of this module, or of a model that it is a part of."""
        return id(module) in self._parts

    def before(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """Start to record, if this is the outermost call."""
        mine = threading.get_ident() == self._thread
        if not mine or id(module) not in self._parts:
            return
        if self._recording is not None:
            self._recording.enter(module)
            return
        if is_recording() or self is not _innermost(module):
            return
        floats = [t for t in tree_flatten(args)[0] if isinstance(t, Tensor)]
        floats = [t for t in floats if t.is_floating_point() and not isinstance(t, nn.Parameter)]
        if not any(t.requires_grad for t in floats):
            self._lent = [t.requires_grad_() for t in floats]
        self._outer, self._recording = module, Recording(self._model)
        self._recording.enter(module)
        self._recording.begin()

    def after(self, module: nn.Module, args: Any, output: Any) -> Any:
        """Replay the call, if it was the outermost."""
        mine = threading.get_ident() == self._thread
        if not mine or self._recording is None:
            return None
        self._recording.leave(module)
        if module is not self._outer or self._recording.depth:
            return None
        recording, self._recording = self._recording, None
        lent, self._lent = self._lent, []
        try:
            if output is None:  # the call failed
                recording.abandon()
                return None
            trace = recording.end(output)
        finally:
            for tensor in lent:
                tensor.requires_grad_(False)
        name, tape = type(self._model).__name__, current_tape()
        warn_of_chance(name, trace)
        if tape is not None and not tape.with_biases and trace.inputs:
            slot = next(iter(trace.inputs))
            rows = trace.tensors[slot]
            layout = self._layout or _layout(rows)
            again = reading(trace, current_rules(), slot, rows, layout, name, self._warned, True)
            return again.output()
        made = plan(trace, marked(trace), current_rules())
        warn_of_curves(name, made, self._warned)
        return replay(made, {slot: trace.tensors[slot] for slot in trace.inputs}).output()

    def end(self) -> None:
        """Stop, in case a call is still running."""
        if self._recording is not None:
            self._recording.abandon()
            self._recording = None


def _layout(rows: Tensor) -> Layout:
    """Rows (n, D) of one graph, or (B, S, D), of which the first has the graph token's place."""
    if rows.dim() != 3:
        return Layout.of(rows.new_ones(1, rows[..., 0].numel(), dtype=torch.bool))
    return Layout.of(rows.new_ones(len(rows), rows.shape[1] - 1, dtype=torch.bool), True)
