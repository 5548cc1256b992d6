"""Apply `rules.conservative` to a model that does not call it, within a block.

A `TorchFunctionMode` sees every PyTorch function that the model calls, in this thread only, and
routes softmax, attention, normalisation and activations through the formulas of
`rules.conservative`. Forward hooks, which know their thread, show which module is running. They are
global, so that the model's fast paths still work in other threads. Both end with the block.

A softmax counts as attention once its result enters a product. That covers explicit softmax over
dense logits as well as `exp(s) / sum(exp(s))` over the edges of a graph, as in
`torch_geometric.utils.softmax`. In a module whose name says that it is a norm, square roots and
standard deviations that divide or multiply something are its scale. One warning lists whatever
kept its gradient although a rule asked for it to be constant.

In-place operations, and operations with `out`, follow the rules too.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.overrides import TorchFunctionMode

from graphxai.contract.randomness import DRAWING, current_draws, draws_numbers
from graphxai.rules import conservative as propagation

from . import gates, scales
from .additive import as_constant, plus_offset, with_tangents
from .attending import AttentionWatch
from .attention import multi_head, scaled_dot_product
from .compiled import uncompiled
from .engine.switch import left_to_the_other
from .layer_inputs import current_layer_inputs
from .layout import Layout
from .linear_attention import WRITTEN_OUT, in_one_type, is_written_out
from .nesting import Nest, take_off
from .nonlinearities import factors_are_equal, is_norm, nonlinearity_of
from .notices import Notices
from .operations import (
    AFFINE,
    NORMS,
    activation,
    is_activation,
    linear,
    linear_written_out,
    log_softmax,
    uses_batch_statistics,
    vanishes_at_zero,
)
from .softless import mapped
from .trace import Nonlinearity, Softmax, Trace, Traces, custom_function, tensors_in
from .transforms import is_transformed, plain_calls
from .vocabulary import LIKE_ANOTHER, PRODUCTS, RATIO, VALUELESS, by_arguments, name_of

Outputs = dict[nn.Module, Callable[[Tensor], Tensor]]

# what makes the mode of a block, where it is not `Interception` itself
interception_class: ContextVar["Callable[..., Interception] | None"] = ContextVar(
    "graphxai_interception", default=None
)


@contextmanager
def intercepted(
    model: nn.Module,
    *,
    layout: Layout | None = None,
    always: bool = False,
    additive: bool = False,
    outputs: Outputs | None = None,
    reading_only: bool = False,
) -> Iterator["Interception"]:
    """Rules and recordings of this thread act on `model` within the block, and on nothing else.

    layout: the nodes' positions, for recording. always: act in the whole block instead of only
    while `model` or a part of it is called. additive: every constant that enters by addition gets
    itself as tangent (forward mode), which yields its share of the output. outputs: functions
    applied to the outputs of these modules. reading_only: act where attention is read and nowhere
    else. Raises TypeError for anything but a module.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"rules act on a torch.nn.Module, not on {type(model).__name__}.")
    if (draws := current_draws()) is not None:
        draws.begin()
    make = interception_class.get() or Interception
    mode = make(model, layout, always, additive, outputs or {})
    mode.reading_only = reading_only
    with ExitStack() as stack:
        stack.enter_context(uncompiled(model))
        for handle in (
            register_module_forward_pre_hook(mode.before_module),
            register_module_forward_hook(mode.after_module, always_call=True),
        ):
            stack.callback(handle.remove)
        stack.enter_context(plain_calls(mode.mapped, mode.unseen))
        stack.enter_context(mode.nested())
        mode.__enter__()
        stack.callback(take_off, mode)
        stack.callback(mode.end)
        yield mode


class Interception(TorchFunctionMode):
    """The mode of one `intercepted` block."""

    def __init__(
        self,
        model: nn.Module,
        layout: Layout | None,
        always: bool,
        additive: bool,
        outputs: Outputs,
    ) -> None:
        super().__init__()
        self._paths = {id(module): path for path, module in model.named_modules()}
        self._root = type(model).__name__
        self._always, self._additive = always, additive
        self._outputs = outputs
        self._thread = threading.get_ident()
        self._traces = Traces(self._place)
        self._attention = AttentionWatch(self._traces, layout)
        self._running: list[nn.Module] = []
        self._skipped: nn.Module | None = None  # its forward is written out afterwards
        self._notices = Notices(self._root)
        self._transformed: set[Nonlinearity] = set()  # where no trace leads in or out
        self._out_of_sight = False
        self._nest = Nest()
        self.reading_only = False

    # -- blocks in blocks ----------------------------------------------------------------------

    def end(self) -> None:
        """Disable the mode, in case it is still on its thread's stack."""
        self._always = False
        self._running.clear()

    def nested(self) -> AbstractContextManager[None]:
        """Within the block the modes of enclosing blocks are inactive where this one acts."""
        return self._nest.within(self)

    def acts(self) -> bool:
        """Whether this mode handles what is running now."""
        return self._always or bool(self._running)

    def _stands_aside(self, module: nn.Module | None = None) -> bool:
        """Whether an inner block acts, or would act on the module."""
        return any(m.acts() or id(module) in m._paths for m in self._nest.inner)

    # -- which module is running ---------------------------------------------------------------

    def before_module(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """Note that a part of the model begins; the inputs of the outermost part are traced."""
        if id(module) not in self._paths or (self._nest.inner and self._stands_aside(module)):
            return
        if threading.get_ident() != self._thread:
            self._traces.note_out_of_sight(args, self._paths[id(module)])
            return
        if not self._running and not self._always:
            if self.reading_only and not left_to_the_other():
                return
            self.trace_inputs(args)
        self._running.append(module)
        if self._skipped is None and is_written_out(module):
            self._skipped = module
        if (layer_inputs := current_layer_inputs()) is not None:
            layer_inputs.enter(module, args)

    def after_module(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        """Note that a part ends; replace the output of modules that are treated as a whole."""
        mine = threading.get_ident() == self._thread
        if not mine or not self._running or self._running[-1] is not module:
            return None
        for tensor in tensors_in([output]):
            if custom_function(tensor) is not None:
                self._traces.maker_of(tensor)  # it was here
        replaced = None
        if module is self._skipped:
            self._skipped = None
            replaced = None if output is None else self._written_out(module, args)
        elif self._skipped is None and output is not None:
            replaced = self._replace_output(module, args, output)
            if isinstance(module, torch.jit.ScriptModule) and replaced is None:
                self._traces.note_out_of_sight(args, self._place(), tensors_in([output]))
        self._running.pop()
        if (layer_inputs := current_layer_inputs()) is not None:
            layer_inputs.leave()
        if not self._running and not self._always:
            self.warn_of(output if replaced is None else replaced)
        return replaced

    def trace_inputs(self, values: Any) -> None:
        """Trace these tensors from here on: they are what is explained."""
        floats = [t for t in tensors_in(values) if t.is_floating_point()]
        wanted = [t for t in floats if t.requires_grad and not isinstance(t, nn.Parameter)]
        self._traces.begin(wanted or floats, all_seen=self._always)

    def trace_indices(self, graphs: Any) -> None:
        """Trace the indices of these PyG graphs: of nodes to graphs, and of edges to nodes."""
        self._attention.exposure.origins.note(graphs.get("batch"), "graphs")
        self._attention.exposure.origins.note(graphs.get("ptr"), "sizes")
        self._attention.exposure.origins.note(graphs.get("edge_index"), "edges")

    def warn_of(self, output: Any) -> None:
        """Warn once about whatever kept its gradient on the way to the output."""
        traces = list(filter(None, map(self._traces.of, tensors_in([output]))))
        self._attention.note_results(traces)
        self._warn_of_unseen()
        self._notices.of_curves(self._transformed.union(*(trace.curves for trace in traces)))

    def warn_of_chance(self) -> None:
        """Warn once about random numbers that affect the output."""
        self._notices.of_chance()

    @contextmanager
    def mapped(self) -> Iterator[None]:
        """Within the block graphs, or parts of them, run one after another (`torch.vmap`)."""
        watch = self._attention.exposure
        before, watch.within_map = watch.within_map, True
        try:
            yield
        finally:
            watch.within_map = before

    @contextmanager
    def unseen(self) -> Iterator[None]:
        """Within the block TorchScript runs; visible operations are not the user's."""
        before, self._out_of_sight = self._out_of_sight, True
        try:
            yield
        finally:
            self._out_of_sight = before

    def _warn_of_unseen(self) -> None:
        self._notices.of_chance()
        hidden, self._traces.hidden = self._traces.hidden, set()
        self._notices.of_attention(self._attention, hidden, self._records_attention())

    def _records_attention(self) -> bool:
        tape = propagation.current_tape()
        return tape is not None and not tape.with_biases

    def _place(self) -> str:
        return self._paths[id(self._running[-1])] if self._running else ""

    def _module(self) -> nn.Module | None:
        """The running module."""
        return self._running[-1] if self._running else None

    def _kind(self) -> str:
        """The class of the running module."""
        return type(self._module()).__name__

    def _in_norm(self) -> bool:
        return is_norm(self._module())

    def _replace_output(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        """The output of a module that is treated as a whole, or None to keep it."""
        if module in self._outputs:
            return self._outputs[module](output)
        if not isinstance(output, Tensor) or not args:
            return None
        with torch._C.DisableTorchFunction():
            if self._kind() == "PerformerProjection" and len(args) == 3:
                self._attention.left_out.discard(self._place())  # products in its own code
                return self._like(args[2], self._attention.performer(module, *args))
            if propagation.current_rules().activation and is_activation(module, args, output):
                by_ratio = propagation.by_ratio(args[0], module.forward)
                if torch.allclose(by_ratio, output, rtol=1e-2, atol=1e-3):  # else not elementwise
                    return self._like(args[0], by_ratio, by_entry=True)
        return None

    def _written_out(self, module: nn.Module, args: tuple[Any, ...]) -> Tensor:
        """The output of linear attention, in operations that the mode sees, with its matrix."""
        x, mask = args[0], args[1] if len(args) > 1 else None
        forward, watch = WRITTEN_OUT[type(module).__name__], self._attention
        before = set(watch.left_out)
        out = forward(module, self._as_attention, watch.keys(x, mask), x)
        watch.left_out &= before  # all of its attention was recorded
        return out

    def _as_attention(self, weights: Tensor) -> Tensor:
        """Treat weights (B, H, N, N), however computed, as the probabilities of a softmax."""
        trace = self._traces.of(weights)
        if trace is None:
            return weights
        return self._attention.softmax(weights, Softmax(self._place()), trace.curves)

    # -- the mode ------------------------------------------------------------------------------

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not (self._always or self._running) or threading.get_ident() != self._thread:
            return func(*args, **kwargs)
        if self._out_of_sight or (self._nest.inner and self._stands_aside()):
            return func(*args, **kwargs)
        if self._skipped is not None:
            return func(*in_one_type(args), **kwargs)
        if kwargs and kwargs.get("out") is not None:
            written = kwargs["out"]
            rest = {key: value for key, value in kwargs.items() if key != "out"}
            return self._put_into(written, self.__torch_function__(func, types, args, rest))
        name = name_of(func)
        if name in DRAWING and draws_numbers(name, args, kwargs):
            self._note_chance(name)
        if name in ("sort", "argsort") and len(args) == 1 and not args[0].is_floating_point():
            kwargs = kwargs | {"stable": True}  # nodes sorted by graph keep the layout's order
        if not self._transformed and is_transformed():
            self._transformed.add(
                Nonlinearity("attention", "a transform of torch.func", self._place())
            )
        self._attention.exposure.operands = args
        out = self._apply(name, func, args, kwargs)
        self._attention.exposure.origins.follow(name, args, kwargs, out)
        for tensor in tensors_in([out]):
            if tensor.requires_grad:
                self._traces.mark_if_new(tensor)
        return out

    def _note_chance(self, name: str) -> None:
        self._notices.chance.add(f"{self._place() or self._root}: {name}")
        if (draws := current_draws()) is not None:
            draws.seen = True

    def _put_into(self, written: Any, result: Any) -> Any:
        """Put a result into the tensor, or tensors, passed as `out`."""
        if not isinstance(written, Tensor):
            for one, other in zip(written, result, strict=True):
                self._put_into(one, other)
            return written
        if written.shape != result.shape:
            written.resize_(result.shape)
        if not written.requires_grad:
            self._traces.mark_if_new(written)
        trace = self._traces.of(result)
        out = written.copy_(result)
        if trace is not None:
            self._mark_written(out, trace)
        return out

    def _mark_written(self, tensor: Tensor, trace: Trace) -> None:
        """Note what was written to a tensor, and thus to its base."""
        self._traces.mark(tensor, trace)
        if tensor._base is not None:
            self._traces.mark(tensor._base, trace)

    def _apply(self, name: str, func: Any, args: Any, kwargs: Any) -> Any:
        if name in PRODUCTS:
            values = gates.held(self._traces, name, (*args, *kwargs.values()))
            values = scales.held(self._traces, name, values)
            halve, equal = not self._in_norm(), factors_are_equal(name, self._module())
            values = self._attention.factors(name, values, halve, equal)
            kwargs = dict(zip(kwargs, values[len(args) :], strict=True))
            written_to, args = args[:1], values[: len(args)]
            if name.endswith("_") and args[0] is not written_to[0]:  # a held-constant copy
                plain = getattr(Tensor, name[:-1])(*args, **kwargs)
                out = self._carry(name[:-1], args, kwargs, plain)
                return self._put_into(written_to[0], out)
        if name == "softmax":
            return self._softmax(func, args, kwargs)
        if name == "scaled_dot_product_attention":
            out = scaled_dot_product(self._attention.attend, *args, **kwargs)
            return self._carry("attention", args, kwargs, out)
        if name == "multi_head_attention_forward":
            return self._multi_head(func, args, kwargs)
        if name in gates.WRITTEN_OUT:
            with self:
                return gates.WRITTEN_OUT[name](*args, **kwargs)
        if name == "log_softmax" and propagation.current_rules().attention:
            return self._log_softmax(func, args, kwargs)
        if name in AFFINE or name in NORMS or name in RATIO:
            return self._operation(name, func, args, kwargs)
        if (name.endswith("_") or name == "setitem") and not args[0].requires_grad:
            self._traces.mark_if_new(args[0])  # it is about to, and does not come from outside
        if self._additive:
            what = by_arguments(name, args, kwargs)
            args, kwargs = with_tangents(self._traces, what, args, kwargs)
        out = func(*args, **kwargs)
        if name in VALUELESS or not (name == "setitem" or isinstance(out, Tensor | tuple | list)):
            return out
        if self._additive:
            out = plus_offset(name, func, args, kwargs, out)
        return self._carry(name, args, kwargs, out)

    def _softmax(self, func: Any, args: Any, kwargs: Any) -> Any:
        out = func(*args, **kwargs)
        trace = self._traces.of(args[0] if args else kwargs["input"])
        if trace is None:
            return out
        return self._attention.softmax(out, self._softmax_along(args, kwargs), trace.curves)

    def _softmax_along(self, args: Any, kwargs: Any) -> Softmax:
        return Softmax(self._place(), axis=args[1] if len(args) > 1 else kwargs.get("dim"))

    def _log_softmax(self, func: Any, args: Any, kwargs: Any) -> Any:
        dim = args[1] if len(args) > 1 else kwargs.get("dim")
        x = args[0] if args else kwargs["input"]
        if dim is None or self._traces.of(x) is None:
            return self._carry("log_softmax", args, kwargs, func(*args, **kwargs))
        return self._like(x, log_softmax(func, self._constant, x, dim))

    def _multi_head(self, func: Any, args: Any, kwargs: Any) -> Any:
        if kwargs.get("static_k") is not None or kwargs.get("static_v") is not None:
            return self._carry("static_k or static_v", args, kwargs, func(*args, **kwargs))

        def affine(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
            return linear(func, self._constant, x, weight, bias)

        out = multi_head(self._attention.attend, affine, self._constant, *args, **kwargs)
        return self._carry("attention", args, kwargs, out)

    def _operation(self, name: str, func: Any, args: Any, kwargs: Any) -> Any:
        """A norm, an activation or an affine map."""
        x = args[0] if args else kwargs["input"]
        weight = args[1] if name in AFFINE and len(args) > 1 else None
        if self._traces.of(x) is None or self._traces.of(weight) is not None:
            if name == "linear" and self._additive:
                with self:
                    return linear_written_out(*args, **kwargs)
            return self._carry("matmul", args, kwargs, func(*args, **kwargs))
        if name in RATIO and not vanishes_at_zero(func, *args, **kwargs):
            return self._carry(f"{name} without zero", args, kwargs, func(*args, **kwargs))
        if name == "batch_norm" and uses_batch_statistics(func, *args, **kwargs):
            return self._carry("statistics of the batch", args, kwargs, func(*args, **kwargs))
        if name in AFFINE and not self._additive:
            return self._like(x, func(*args, **kwargs))
        operation: Callable[..., Tensor] = (AFFINE | NORMS).get(name, activation)
        out = operation(func, self._constant, *args, **kwargs)
        if out is x and (trace := self._traces.of(x)) is not None:
            self._mark_written(out, trace)
        return self._like(x, out, by_entry=name in RATIO)

    # -- traces --------------------------------------------------------------------------------

    def _carry(self, name: str, args: Any, kwargs: Any, out: Any) -> Any:
        """Give the result the trace of its inputs."""
        name = by_arguments(name, args, kwargs)
        inputs = list(tensors_in((*args, *kwargs.values())))
        if name in LIKE_ANOTHER:
            inputs = inputs[:1]
        if name in ("index_select", "getitem"):
            self._attention.exposure.note_index(inputs)
        signals = [(t, trace) for t in inputs if (trace := self._traces.of(t)) is not None]
        if not signals:
            return out
        curves: frozenset[Nonlinearity] = frozenset().union(*(trace.curves for _, trace in signals))
        if name == "div" and (softmax := self._attention.explicit_softmax(inputs)) is not None:
            return self._attention.softmax(out, softmax, curves)
        curve = nonlinearity_of(self._traces, name, inputs, self._module())
        if curve is not None and not self._attention.is_renormalised(name, inputs):
            curves |= {curve}
        trace = Trace(curves, *self._attention.role(name, inputs, self._place()))
        trace, out = self._attention.rescaled(name, inputs, trace, out)
        trace = self._attention.softless.described(name, args, signals, trace, out)
        trace = gates.described(self._traces, name, inputs, trace)
        trace = scales.described(self._traces, name, inputs, trace, self._in_norm())
        into = args[0] if name == "setitem" else out
        in_place = into is not out or name.endswith("_") or (bool(args) and out is args[0])
        for tensor in tensors_in([into]):
            if tensor.is_floating_point() or tensor.is_complex():
                self._mark_written(tensor, trace) if in_place else self._traces.mark(tensor, trace)
        if name == "std_mean":
            self._traces.mark(out[1], Trace(trace.curves - {curve}))
        return out

    def _like(self, x: Tensor, out: Tensor, by_entry: bool = False) -> Tensor:
        trace = self._traces.of(x)
        if trace is not None:
            product = trace.product if by_entry else mapped(trace.product, x, out)
            return self._traces.mark(out, Trace(trace.curves, product=product))
        self._traces.mark_if_new(out)  # made by a hook outside of the mode, from constants
        return out

    # -- additive constants --------------------------------------------------------------------

    def _constant(self, value: Tensor) -> Tensor:
        """The constant, with itself as tangent if additive shares are needed."""
        return as_constant(value) if self._additive else value
