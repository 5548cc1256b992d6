"""Let rules and recordings act on modules that are called within a block of a user's code."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
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
from graphxai.rules.module_rule import CustomRule
from graphxai.runtime.scope import Blocks

from .attention_pass import annotate, replay_reading_attention
from .eval_replica import uncompiled
from .layout import NodeLayout
from .module_rules import computing_by_rules
from .pass_warnings import warn_of_nonlinearities, warn_of_random_numbers
from .recording import Recording, is_recording
from .replay import replay
from .replay_plan import make_plan
from .role_finder import find_roles


@contextmanager
def intercepted(model: nn.Module, *, layout: NodeLayout | None = None) -> Iterator[None]:
    """Let rules and recordings of this thread act on `model`, or parts of it, within the block.

    Each call of the model is recorded as a list of PyTorch's basic operations, which run again
    under the rules in force. Raises TypeError for anything but a module.

    Args:
        layout: the positions of nodes, for recordings of attention. By default the first input
            has the nodes of one graph (n, D), after an empty graph token, or the tokens of
            several graphs (B, S, D).
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"rules act on a torch.nn.Module, not on {type(model).__name__}.")
    interceptor = _Interceptor(model, layout)
    handles = (
        register_module_forward_pre_hook(interceptor.before),
        register_module_forward_hook(interceptor.after, always_call=True),
    )
    try:
        with uncompiled(model), _interceptors.block(interceptor):
            yield
    finally:
        for handle in handles:
            handle.remove()
        interceptor.end()


@contextmanager
def conservative(
    attention: bool = True,
    layernorm: bool = True,
    activation: Literal["ratio"] | None = None,
    products: bool = False,
    custom: tuple[CustomRule, ...] = (),
    *,
    model: nn.Module | None = None,
) -> Iterator[Rules]:
    """Hold attention, LayerNorm's scale and the activation ratio constant within the block.

    The rules act on a bundled Graphormer, and on `model`, which needs no change: see `intercepted`.
    The forward pass must run inside the block. The backward pass may run outside.

    Args:
        attention: hold attention constant (Ali 2022, section 4).
        layernorm: hold LayerNorm's scale constant (Ali 2022, section 4).
        activation: "ratio" to hold `f(x) / x` constant (Achtibat 2024), or None.
        products: halve the gradient to both factors of `A v` and `q k^T` (Achtibat 2024). It is
            meant for attention that is not held constant.
        custom: rules for single operations and for classes of modules.
        model: any PyTorch module.

    Raises:
        ValueError: `activation` is anything else, or an operation or class has two custom rules.
    """
    with (
        rules_of.conservative(attention, layernorm, activation, products, custom) as in_force,
        nullcontext() if model is None else intercepted(model),
    ):
        yield in_force


_interceptors: "Blocks[_Interceptor | None]" = Blocks("graphxai_interceptors", None)


def _innermost_interceptor(module: nn.Module) -> "_Interceptor | None":
    """Return the interceptor of the innermost block of this thread that acts on a module."""
    interceptor = _interceptors.get()
    while interceptor is not None and not interceptor.covers(module):
        interceptor = interceptor.outer
    return interceptor


class _Interceptor:
    """Records each call of a model, or of a part of it, and replays it under the rules."""

    def __init__(self, model: nn.Module, layout: NodeLayout | None) -> None:
        self.outer = _interceptors.get()
        self._model, self._layout = model, layout
        self._parts = {id(module) for module in model.modules()}
        self._thread = threading.get_ident()
        self._outermost: nn.Module | None = None
        self._recording: Recording | None = None
        self._leaves: list[Tensor] = []  # inputs that require a gradient during the call
        self._warned: set[str] = set()
        self._module_rules = ExitStack()

    def covers(self, module: nn.Module) -> bool:
        """Whether the block acts on this module, or on a model that it is a part of."""
        return id(module) in self._parts

    def before(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """Start to record, if this is the outermost call."""
        in_this_thread = threading.get_ident() == self._thread
        if not in_this_thread or id(module) not in self._parts:
            return
        if self._recording is not None:
            self._recording.enter(module)
            return
        if is_recording() or self is not _innermost_interceptor(module):
            return
        floats = [t for t in tree_flatten(args)[0] if isinstance(t, Tensor)]
        floats = [t for t in floats if t.is_floating_point() and not isinstance(t, nn.Parameter)]
        if not any(t.requires_grad for t in floats):
            self._leaves = [t.requires_grad_() for t in floats]
        self._outermost, self._recording = module, Recording(self._model)
        self._recording.enter(module)
        rules = current_rules().of_modules
        self._module_rules.enter_context(computing_by_rules(self._model, rules))
        self._recording.begin()

    def after(self, module: nn.Module, args: Any, output: Any) -> Any:
        """Replay the call, if it was the outermost."""
        in_this_thread = threading.get_ident() == self._thread
        if not in_this_thread or self._recording is None:
            return None
        self._recording.leave(module)
        if module is not self._outermost or self._recording.depth:
            return None
        recording, self._recording = self._recording, None
        self._module_rules.close()
        leaves, self._leaves = self._leaves, []
        try:
            if output is None:  # the call failed
                recording.abandon()
                return None
            trace = recording.end(output)
        finally:
            for tensor in leaves:
                tensor.requires_grad_(False)
        name, tape = type(self._model).__name__, current_tape()
        warn_of_random_numbers(name, trace)
        if tape is not None and not tape.with_biases and trace.inputs:
            slot = next(iter(trace.inputs))
            rows = trace.memory.tensors[slot]
            layout = self._layout or _layout_of_input(rows)
            annotated = annotate(trace, slot, rows, layout)
            replayed = replay_reading_attention(
                annotated, current_rules(), slot, rows, layout, name, self._warned, True
            )
            return replayed.output()
        plan = make_plan(trace, find_roles(trace), current_rules())
        warn_of_nonlinearities(name, plan, self._warned)
        return replay(plan, {slot: trace.memory.tensors[slot] for slot in trace.inputs}).output()

    def end(self) -> None:
        """Stop recording, in case a call is still running."""
        if self._recording is not None:
            self._recording.abandon()
            self._recording = None
        self._module_rules.close()


def _layout_of_input(rows: Tensor) -> NodeLayout:
    """Lay out the rows (n, D) of one graph, or rows (B, S, D) that begin with a graph token."""
    if rows.dim() != 3:
        return NodeLayout.of(rows.new_ones(1, rows[..., 0].numel(), dtype=torch.bool))
    return NodeLayout.of(rows.new_ones(len(rows), rows.shape[1] - 1, dtype=torch.bool), True)
