"""Apply the rules of `propagation` to a model that does not call it, for the length of a block.

A `TorchFunctionMode` sees every PyTorch function the model calls, in this thread only, and sends
softmax, attention, normalisation and activation through the formulas of `propagation`. Forward
hooks, which know their own thread, tell which module is running; they belong to no module, so
that the model's fast paths stay open in other threads. Both end with the block.

A softmax counts as attention once its result enters a product. That covers explicit softmax over
dense logits as well as `exp(s) / sum(exp(s))` over the edges of a graph, as in
`torch_geometric.utils.softmax`. In a module whose name says that it is a norm, square roots and
standard deviations are its scale. What keeps its gradient although a rule asked for it to be
constant is named in one warning.
"""

import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from typing import Any

import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.overrides import TorchFunctionMode

from graphxai import propagation

from . import gates
from .attending import AttentionWatch
from .attention import multi_head, scaled_dot_product
from .compiled import uncompiled
from .entrances import current_entrances
from .layout import Layout
from .linear_attention import WRITTEN_OUT, in_one_type, is_written_out
from .operations import AFFINE, NORMS, activation, linear, log_softmax, uses_batch_statistics
from .trace import Curve, Rule, Softmax, Trace, Traces, custom_function, tensors_in
from .transforms import is_transformed, plain_calls
from .vocabulary import (
    ACTIVATION_MODULE,
    EQUAL_FACTORS,
    KNOWN,
    LIKE_ANOTHER,
    MULTIPLICATIONS,
    PLUS_PRODUCT,
    PRODUCTS,
    RATIO,
    ROOTS,
    SUMS,
    VALUELESS,
    WITH_NUMBERS,
    name_of,
)

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
) -> Iterator["Interception"]:
    """Rules and recordings of this thread act on `model` within the block, and on nothing else.

    layout: where nodes stand, for recording. always: act in the whole block instead of only while
    `model` or a part of it is called. additive: every constant that enters by addition gets
    itself as tangent (forward mode), which is how its share of the output is found. outputs:
    functions applied to what these modules give back. Raises TypeError for what is no module.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"rules act on a torch.nn.Module, not on {type(model).__name__}.")
    make = interception_class.get() or Interception
    mode = make(model, layout, always, additive, outputs or {})
    with ExitStack() as stack:
        stack.enter_context(uncompiled(model))
        for handle in (
            register_module_forward_pre_hook(mode.before_module),
            register_module_forward_hook(mode.after_module, always_call=True),
        ):
            stack.callback(handle.remove)
        stack.enter_context(plain_calls(mode.mapped))
        stack.enter_context(mode)
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
        self._skipped: nn.Module | None = None  # what its forward does is written out afterwards
        self._warned: set[Curve] = set()
        self._transformed: set[Curve] = set()  # where no trace leads in or out

    # -- which module is running ---------------------------------------------------------------

    def before_module(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """Note that a part of the model begins; at the outermost its inputs begin to be traced."""
        if threading.get_ident() != self._thread or id(module) not in self._paths:
            return
        if not self._running and not self._always:
            self.trace_inputs(args)
        self._running.append(module)
        if self._skipped is None and is_written_out(module):
            self._skipped = module
        if (entrances := current_entrances()) is not None:
            entrances.enter(module, args)

    def after_module(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        """Note that it ends; replace the output of modules that are treated as a whole."""
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
        self._running.pop()
        if (entrances := current_entrances()) is not None:
            entrances.leave()
        if not self._running and not self._always:
            self.warn_of(output if replaced is None else replaced)
        return replaced

    def trace_inputs(self, values: Any) -> None:
        """From here on these tensors are what the explanation is about."""
        floats = [t for t in tensors_in(values) if t.is_floating_point()]
        wanted = [t for t in floats if t.requires_grad and not isinstance(t, nn.Parameter)]
        for tensor in wanted or floats:
            self._traces.mark(tensor, Trace())

    def trace_indices(self, graphs: Any) -> None:
        """Of these PyG graphs' indices, one names graphs and one the ends of edges."""
        self._attention.origins.note(graphs.get("batch"), "graphs")
        self._attention.origins.note(graphs.get("ptr"), "sizes")
        self._attention.origins.note(graphs.get("edge_index"), "edges")

    def warn_of(self, output: Any) -> None:
        """One warning that names what kept its gradient on the way to the output."""
        self._warn_of_unseen()
        rules = propagation.current_rules()
        traces = filter(None, map(self._traces.of, tensors_in([output])))
        curves = self._transformed.union(*(trace.curves for trace in traces))
        found = {curve for curve in curves if getattr(rules, curve.rule)}
        new = found - self._warned
        if not new:
            return
        self._warned |= new
        lines = sorted({f"{curve.place or self._root}: {curve.what}" for curve in new})
        warnings.warn(
            f"{self._root} has parts that the rules do not know; there the ordinary gradient was"
            f" taken, and relevance need not sum to the output: {'; '.join(lines)}.",
            stacklevel=6,
        )

    @contextmanager
    def mapped(self) -> Iterator[None]:
        """Within the block one graph, or a part of one, comes after the other (`torch.vmap`)."""
        watch = self._attention
        before, watch.within_map = watch.within_map, True
        try:
            yield
        finally:
            watch.within_map = before

    def _warn_of_unseen(self) -> None:
        """Warnings that name attention of which methods that read attention may not learn."""
        watch = self._attention
        unseen, watch.unseen = watch.unseen, set()
        undecided, watch.undecided = watch.undecided, set()
        if undecided and self._records_attention():
            warnings.warn(
                f"{self._root} makes an index of its own, and in a batch of nothing but single"
                " nodes nothing tells whether it names nodes or graphs: the softmax in"
                f" {', '.join(sorted(undecided))} was taken for attention between nodes. If it"
                " pools nodes, let it use the batch vector, or explain single nodes together with"
                " a larger graph.",
                stacklevel=7,
            )
        if unseen and self._records_attention():
            warnings.warn(
                f"{self._root} has attention that cannot be recorded; methods that read attention"
                f" leave it out: {'; '.join(sorted(unseen))}. Call the function on the whole batch"
                " instead, or let it be made of PyTorch's operations.",
                stacklevel=7,
            )

    def _records_attention(self) -> bool:
        tape = propagation.current_tape()
        return tape is not None and not tape.with_biases

    def _place(self) -> str:
        return self._paths[id(self._running[-1])] if self._running else ""

    def _kind(self) -> str:
        """The class of the running module."""
        return type(self._running[-1]).__name__ if self._running else ""

    def _in_norm(self) -> bool:
        return "norm" in self._kind().lower()

    def _replace_output(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        """The output of a module that is treated as a whole, or None to keep it."""
        if module in self._outputs:
            return self._outputs[module](output)
        if not isinstance(output, Tensor) or not args:
            return None
        with torch._C.DisableTorchFunction():
            if self._kind() == "PerformerProjection" and len(args) == 3:
                return self._like(args[2], self._attention.performer(module, *args))
            if propagation.current_rules().activation and _is_activation(module, args, output):
                return self._like(args[0], propagation.by_ratio(args[0], module.forward))
        return None

    def _written_out(self, module: nn.Module, args: tuple[Any, ...]) -> Tensor:
        """The output of linear attention whose matrix is made, in operations that the mode sees."""
        x, mask = args[0], args[1] if len(args) > 1 else None
        forward = WRITTEN_OUT[type(module).__name__]
        return forward(module, self._as_attention, self._attention.keys(x, mask), x)

    def _as_attention(self, weights: Tensor) -> Tensor:
        """Weights (B, H, N, N), made in any way, as the probabilities of a softmax."""
        trace = self._traces.of(weights)
        if trace is None:
            return weights
        return self._attention.softmax(weights, Softmax(self._place()), trace.curves)

    # -- the mode ------------------------------------------------------------------------------

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not (self._always or self._running) or threading.get_ident() != self._thread:
            return func(*args, **kwargs)
        if self._skipped is not None:
            return func(*in_one_type(args), **kwargs)
        name = name_of(func)
        if name in ("sort", "argsort") and len(args) == 1 and not args[0].is_floating_point():
            kwargs = kwargs | {"stable": True}  # nodes sorted by graph keep the layout's order
        if not self._transformed and is_transformed():
            self._transformed.add(Curve("attention", "a transform of torch.func", self._place()))
        out = self._apply(name, func, args, kwargs)
        self._attention.origins.follow(name, args, kwargs, out)
        for tensor in tensors_in([out]):
            if tensor.requires_grad:
                self._traces.mark_if_new(tensor)
        return out

    def _apply(self, name: str, func: Any, args: Any, kwargs: Any) -> Any:
        if name in PRODUCTS:
            values = gates.held(self._traces, name, (*args, *kwargs.values()))
            halve, equal = not self._in_norm(), self._factors_are_equal(name)
            values = self._attention.factors(name, values, halve, equal)
            args, named = values[: len(args)], values[len(args) :]
            kwargs = dict(zip(kwargs, named, strict=True))
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
        written_to = args[0] if self._additive and name in SUMS and name.endswith("_") else None
        if self._additive and name in SUMS:
            args = self._constants_as_tangents(name, args)
        if (name.endswith("_") or name == "setitem") and not args[0].requires_grad:
            self._traces.mark_if_new(args[0])  # it is about to, and does not come from outside
        out = func(*args, **kwargs)
        if written_to is not None and written_to is not args[0]:
            out = written_to.copy_(out)  # a constant got a tangent beside itself
        if name in VALUELESS or not (name == "setitem" or isinstance(out, Tensor | tuple | list)):
            return out
        if name in ROOTS and self._in_norm() and propagation.current_rules().layernorm:
            return tuple(t.detach() for t in out) if isinstance(out, tuple) else out.detach()
        return self._carry(name, args, kwargs, out)

    def _softmax(self, func: Any, args: Any, kwargs: Any) -> Any:
        out = func(*args, **kwargs)
        trace = self._traces.of(args[0] if args else kwargs["input"])
        if trace is None:
            return out
        return self._attention.softmax(out, Softmax(self._place()), trace.curves)

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
            return self._carry("matmul", args, kwargs, func(*args, **kwargs))
        if name == "batch_norm" and uses_batch_statistics(func, *args, **kwargs):
            return self._carry("statistics of the batch", args, kwargs, func(*args, **kwargs))
        if name in AFFINE and not self._additive:
            return self._like(x, func(*args, **kwargs))
        operation: Callable[..., Tensor] = (AFFINE | NORMS).get(name, activation)
        return self._like(x, operation(func, self._constant, *args, **kwargs))

    # -- traces --------------------------------------------------------------------------------

    def _carry(self, name: str, args: Any, kwargs: Any, out: Any) -> Any:
        """Give the result the trace of what it was made of."""
        inputs = list(tensors_in((*args, *kwargs.values())))
        if name in LIKE_ANOTHER:
            inputs = inputs[:1]
        if name in ("index_select", "getitem"):
            self._attention.note_index(inputs)
        found = [trace for trace in map(self._traces.of, inputs) if trace is not None]
        if not found:
            return out
        curves: frozenset[Curve] = frozenset().union(*(trace.curves for trace in found))
        if name == "div" and (softmax := self._attention.explicit_softmax(inputs)) is not None:
            return self._attention.softmax(out, softmax, curves)
        if (curve := self._curve(name, inputs)) is not None:
            curves |= {curve}
        trace = Trace(curves, *self._attention.role(name, inputs, self._place()))
        trace = gates.described(self._traces, name, inputs, trace)
        into = args[0] if name == "setitem" else out
        for tensor in tensors_in([into]):
            if tensor.is_floating_point() or tensor.is_complex():
                self._traces.mark(tensor, trace)
                if tensor._base is not None and (name == "setitem" or name.endswith("_")):
                    self._traces.mark(tensor._base, trace)  # written to through a view
        return out

    def _curve(self, name: str, inputs: list[Tensor]) -> Curve | None:
        """What an operation does that is not linear in what depends on the nodes."""
        if name in PRODUCTS:
            factors = inputs[1:] if name in PLUS_PRODUCT else inputs
            several = sum(self._traces.of(factor) is not None for factor in factors) > 1
            if not several or self._factors_are_equal(name):
                return None
            what = f"a product ({name}) of two quantities that depend on the input"
            rule = gates.rule_of_product(self._traces, factors) or self._rule_here()
            return Curve(rule, what, self._place())
        if name in ROOTS:
            return Curve("layernorm", f"{name} outside of a normalisation layer", self._place())
        if name == "statistics of the batch":
            return Curve("layernorm", name, self._place())
        if name == "static_k or static_v":
            return Curve("attention", name, self._place())
        return None if name in KNOWN else Curve("activation", name, self._place())

    def _factors_are_equal(self, name: str) -> bool:
        """Whether a product is of two signals, each of which gets half of its relevance."""
        if name not in MULTIPLICATIONS or not propagation.current_rules().attention:
            return False
        kinds = type(self._running[-1]).__mro__ if self._running else ()
        return any(kind.__name__ in EQUAL_FACTORS for kind in kinds)

    def _rule_here(self) -> Rule:
        """The rule that a product in the running module would be a matter of."""
        if self._in_norm():
            return "layernorm"
        return "activation" if ACTIVATION_MODULE.search(self._kind()) else "attention"

    def _like(self, x: Tensor, out: Tensor) -> Tensor:
        trace = self._traces.of(x)
        if trace is not None:
            return self._traces.mark(out, Trace(trace.curves))
        self._traces.mark_if_new(out)  # made outside of the mode by a hook, of constants
        return out

    # -- additive constants --------------------------------------------------------------------

    def _constants_as_tangents(self, name: str, values: Any) -> Any:
        """In a sum with something that depends on nodes, constants are shares of the output."""
        of_nodes = next((t for t in tensors_in(values) if self._traces.of(t) is not None), None)
        if of_nodes is None:
            return values
        if name in WITH_NUMBERS:
            values = (of_nodes.new_tensor(v) if type(v) in (int, float) else v for v in values)
        return tuple(self._as_constant(value) for value in values)

    def _as_constant(self, value: Any) -> Any:
        if isinstance(value, tuple | list):
            return type(value)(self._as_constant(v) for v in value)
        if isinstance(value, Tensor) and self._traces.of(value) is None:
            return self._constant(value) if value.is_floating_point() else value
        return value

    def _constant(self, value: Tensor) -> Tensor:
        """The constant with itself as tangent, where additive shares are asked for."""
        if not self._additive:
            return value
        plain = value.detach().contiguous()  # an expanded tensor takes no tangent
        finite = plain.masked_fill(~plain.isfinite(), 0.0)  # -inf masks are no share
        return forward_ad.make_dual(plain, finite)


def _is_activation(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> bool:
    """Whether a module of the user's is an activation: by its name, its shape and f(0) = 0."""
    kind = type(module)
    if kind.__module__.startswith("torch.nn.") or not ACTIVATION_MODULE.search(kind.__name__):
        return False
    alone = len(args) == 1 and isinstance(args[0], Tensor) and args[0].shape == output.shape
    if not alone or next(module.parameters(), None) is not None:
        return False
    return not module.forward(args[0].detach().new_zeros(1)).any()
