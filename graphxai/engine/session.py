"""Choose how a pass is explained: by hooks or by a recording.

This holds for passes of wrapped models, and for modules that are called within a block of a user's
code.
"""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._pytree import tree_flatten

from graphxai.contract.batch import NodeLayout
from graphxai.contract.model import NoAttentionError
from graphxai.engine.attention.passes import annotate, annotated_trace, replay_reading_attention
from graphxai.engine.hooked_pass import pass_by_hooks
from graphxai.engine.ledger import warn_of_nonlinearities, warn_of_random_numbers
from graphxai.engine.plan import make_plan
from graphxai.engine.recorded_pass import connected_to_nodes, pass_by_recording
from graphxai.engine.recording import Recording, is_recording
from graphxai.engine.replay import Replay
from graphxai.engine.request import PassRequest
from graphxai.engine.role_finder import find_roles
from graphxai.engine.trace import NODES, Opaque
from graphxai.rules import conservative as rules_of
from graphxai.rules.conservative import Rules, current_rules, current_tape
from graphxai.rules.module_rule import CustomRule, computing_by_rules
from graphxai.rules.tape import Tape
from graphxai.runtime.modules import requiring_gradients, uncompiled
from graphxai.runtime.scope import Blocks


def pass_by_conservative_rules(request: PassRequest, rules: Rules, tape: Tape | None) -> Tensor:
    """Return the outputs (B, C) of node rows under the rules, and record what the tape asks for."""
    memory = request.memory
    if tape is not None and not tape.with_biases:
        memory.note_pass("recording")
        return _pass_with_attention(request, rules, tape)
    if tape is not None and (hookable := request.for_hooks(rules)) is not None:
        try:
            outputs = pass_by_hooks(hookable, rules, tape)
            memory.note_pass("hooks", unchanged=not request.under_rules)
            return outputs
        except Opaque as why:
            memory.note_failure(rules, why)
        except Exception as error:  # the recorded pass raises it again if it is not the hooks'
            memory.note_failure(rules, Opaque(str(error) or type(error).__name__))
    memory.note_pass("recording")
    return pass_by_recording(request, rules, tape)


def _pass_with_attention(request: PassRequest, rules: Rules, tape: Tape) -> Tensor:
    """Return a pass's outputs, and put its attention on the tape, or raise NoAttentionError."""
    annotated = annotated_trace(request)
    warn_of_random_numbers(request.name, annotated.trace)
    replayed = replay_reading_attention(
        annotated, rules, request.rows, request.layout, request.name
    )
    if not tape.attention:
        raise NoAttentionError.of(
            request.name,
            " (Attention over more rows than the nodes and a class token is not read, nor are"
            " weights that may be negative.)",
        )
    return connected_to_nodes(replayed.output(), request)


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
    with (
        closing(interceptor),
        register_module_forward_pre_hook(interceptor.before),
        register_module_forward_hook(interceptor.after, always_call=True),
        uncompiled(model),
        _interceptors.block(interceptor),
    ):
        yield


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


class _Interceptor:
    """Records each call of a model, or of a part of it, and replays it under the rules."""

    def __init__(self, model: nn.Module, layout: NodeLayout | None) -> None:
        self.outer = _interceptors.get()
        self._model, self._layout = model, layout
        self._parts = {id(module) for module in model.modules()}
        self._thread = threading.get_ident()
        self._outermost: nn.Module | None = None
        self._recording: Recording | None = None
        self._warned: set[str] = set()
        self._during_call = ExitStack()

    def before(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """Start to record, if this is the outermost call."""
        if threading.get_ident() != self._thread or id(module) not in self._parts:
            return
        if self._recording is not None:
            self._recording.enter(module, args)
            return
        inner = _interceptors.get()
        while inner is not None and id(module) not in inner._parts:
            inner = inner.outer
        if is_recording() or inner is not self:
            return
        floats = [t for t in tree_flatten(args)[0] if isinstance(t, Tensor)]
        floats = [t for t in floats if t.is_floating_point() and not isinstance(t, nn.Parameter)]
        if not any(t.requires_grad for t in floats):
            self._during_call.enter_context(requiring_gradients(floats))
        self._outermost, self._recording = module, Recording(self._model)
        self._recording.enter(module, args)
        rules = current_rules().of_modules
        self._during_call.enter_context(computing_by_rules(self._model, rules))
        self._recording.begin()

    def after(self, module: nn.Module, args: Any, output: Any) -> Any:
        """Replay the call, if it was the outermost."""
        if threading.get_ident() != self._thread or self._recording is None:
            return None
        self._recording.leave(module)
        if module is not self._outermost or self._recording.is_within_module:
            return None
        recording, self._recording = self._recording, None
        with self._during_call:
            if output is None:  # the call failed
                recording.close()
                return None
            trace = recording.end(output)
        name, tape = type(self._model).__name__, current_tape()
        warn_of_random_numbers(name, trace)
        if tape is not None and not tape.with_biases and trace.inputs:
            rows = trace.memory.tensors[trace.slot_of(NODES)]
            layout = self._layout or _layout_of_input(rows)
            annotated = annotate(trace, rows, layout)
            replayed = replay_reading_attention(
                annotated, current_rules(), rows, layout, name, self._warned, True
            )
            return replayed.output()
        plan = make_plan(trace, find_roles(trace), current_rules())
        warn_of_nonlinearities(name, plan, self._warned)
        return Replay(plan, {slot: trace.memory.tensors[slot] for slot in trace.inputs}).output()

    def close(self) -> None:
        """Stop recording, in case a call is still running."""
        if self._recording is not None:
            self._recording.close()
            self._recording = None
        self._during_call.close()


def _layout_of_input(rows: Tensor) -> NodeLayout:
    """Lay out the rows (n, D) of one graph, or rows (B, S, D) that begin with a graph token."""
    if rows.dim() != 3:
        return NodeLayout.of(rows.new_ones(1, rows[..., 0].numel(), dtype=torch.bool))
    return NodeLayout.of(rows.new_ones(len(rows), rows.shape[1] - 1, dtype=torch.bool), True)
