"""Apply the rules of `propagation` to a model that does not call it, for the length of a block.

A `TorchFunctionMode` sees every PyTorch function the model calls, in this thread only, and sends
softmax, attention, normalisation and activation through the formulas of `propagation`. Forward
hooks, which know their own thread, tell which module is running; they belong to no module, so
that the model's fast paths stay open in other threads. Both end with the block.

A softmax counts as attention once its result enters a product. That covers explicit softmax over
dense logits as well as `exp(s) / sum(exp(s))` over the edges of a graph, as in
`torch_geometric.utils.softmax`. What keeps its gradient although a rule asked for it to be
constant is named in one warning.
"""

import re
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
import torch.autograd.forward_ad as forward_ad
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.overrides import TorchFunctionMode

from graphxai import propagation

from .attention import multi_head, probabilities, scaled_dot_product
from .layout import Layout, expose_dense, expose_sparse
from .trace import Curve, Rule, Softmax, Trace, Traces, tensors_in

RATIO = {  # f(0) = 0 and not linear by pieces
    "gelu", "silu", "elu", "elu_", "selu", "selu_", "celu", "celu_", "mish", "hardswish",
    "hardtanh", "hardtanh_", "relu6", "tanh", "tanh_", "softsign", "tanhshrink", "hardshrink",
    "softshrink",
}  # fmt: skip
PRODUCTS = {
    "matmul", "bmm", "mm", "mv", "mul", "mul_", "multiply", "einsum", "baddbmm", "addmm",
    "tensordot", "div", "div_", "divide", "true_divide", "dot", "inner", "bilinear", "addcmul",
}  # fmt: skip
QUOTIENTS = {"div", "div_", "divide", "true_divide"}
MULTIPLICATIONS = {"mul", "mul_", "multiply"}
SUMS = {"add", "add_", "sub", "sub_", "rsub", "subtract", "cat", "concat", "concatenate", "stack",
        "hstack", "vstack", "where"}  # fmt: skip
ROOTS = {"sqrt", "sqrt_", "rsqrt", "rsqrt_", "std", "std_mean", "norm", "vector_norm", "cdist"}
NONLINEAR = {
    "sigmoid", "sigmoid_", "softplus", "exp", "exp_", "expm1", "log", "log1p", "log2", "pow",
    "pow_", "square", "reciprocal", "sin", "cos", "erf", "logsigmoid", "log_softmax", "logsumexp",
    "glu", "var", "var_mean", "prod", "cosine_similarity", "softmin", "normalize",
    "local_response_norm", "hardsigmoid", "_sparse_softmax",
}  # fmt: skip
SAME_VALUES = {  # only the shape, the order or the type changes, or entries are set to zero
    "view", "reshape", "transpose", "permute", "unsqueeze", "squeeze", "expand", "flatten",
    "unflatten", "contiguous", "to", "type", "float", "double", "half", "bfloat16", "type_as",
    "clone", "dropout", "dropout_", "masked_fill", "masked_fill_", "nan_to_num", "index_select",
    "repeat_interleave", "getitem", "expand_as", "view_as", "movedim", "swapaxes", "T", "mT",
    "chunk", "split", "narrow", "select", "gather", "alpha_dropout", "feature_dropout",
}  # fmt: skip
VALUELESS = {  # the result does not depend on the values of the arguments
    "detach", "detach_", "data", "new_zeros", "new_ones", "new_full", "new_empty", "new_tensor",
    "zeros_like", "ones_like", "full_like", "empty_like", "rand_like", "randn_like", "sign",
}  # fmt: skip
LIKE_ANOTHER = {"expand_as", "view_as", "type_as", "reshape_as", "to"}  # in shape or type
GATHERED_SUMS = {"scatter_add_", "scatter_add", "index_add_", "index_add", "scatter_reduce_"}
STILL_A_SUM = SAME_VALUES | {"add", "add_", "clamp", "clamp_", "clamp_min", "clamp_min_"}
ACTIVATION_MODULE = re.compile(r"gelu|silu|swish|mish|selu|celu|elu|softsign|tanh", re.IGNORECASE)

Handler = Callable[..., Any]


@contextmanager
def intercepted(
    model: nn.Module,
    *,
    layout: Layout | None = None,
    always: bool = False,
    additive: bool = False,
    outputs: dict[nn.Module, Callable[[Tensor], Tensor]] | None = None,
) -> Iterator["Interception"]:
    """Rules and recordings of this thread act on `model` within the block, and on nothing else.

    layout: where nodes stand, for recording. always: act in the whole block instead of only while
    `model` or a part of it is called. additive: every constant that enters by addition gets
    itself as tangent (forward mode), which is how its share of the output is found. outputs:
    functions applied to what these modules give back.
    """
    mode = Interception(model, layout, always, additive, outputs or {})
    with ExitStack() as stack:
        for handle in (
            register_module_forward_pre_hook(mode.before_module),
            register_module_forward_hook(mode.after_module, always_call=True),
        ):
            stack.callback(handle.remove)
        stack.enter_context(mode)
        yield mode


class Interception(TorchFunctionMode):
    """The mode of one `intercepted` block; `curves` collects what keeps its gradient."""

    def __init__(
        self,
        model: nn.Module,
        layout: Layout | None,
        always: bool,
        additive: bool,
        outputs: dict[nn.Module, Callable[[Tensor], Tensor]],
    ) -> None:
        super().__init__()
        self._paths = {id(module): path for path, module in model.named_modules()}
        self._root = type(model).__name__
        self._layout, self._always, self._additive = layout, always, additive
        self._outputs = outputs
        self._thread = threading.get_ident()
        self._traces = Traces()
        self._running: list[nn.Module] = []
        self._indices: list[Tensor] = []  # by which node rows were gathered, the latest last
        self._warned: set[Curve] = set()
        self._handlers: dict[str, Handler] = {
            "softmax": self._softmax,
            "scaled_dot_product_attention": self._scaled_dot_product,
            "multi_head_attention_forward": self._multi_head,
            "linear": self._linear,
            "layer_norm": self._layer_norm,
            "rms_norm": self._rms_norm,
            "batch_norm": self._batch_norm,
            "instance_norm": self._instance_norm,
            "group_norm": self._group_norm,
            "normalize": self._normalize,
        }
        self._handlers |= dict.fromkeys(("conv1d", "conv2d", "conv3d"), self._convolution)

    # -- which module is running ---------------------------------------------------------------

    def before_module(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """Note that a part of the model begins; its inputs begin to be traced at the outermost."""
        if threading.get_ident() != self._thread or id(module) not in self._paths:
            return
        if not self._running and not self._always:
            self.trace_inputs(args)
        self._running.append(module)

    def after_module(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        """Note that it ends; replace the output of modules that are treated as a whole."""
        if threading.get_ident() != self._thread or id(module) not in self._paths:
            return None
        if self._running and self._running[-1] is module:
            replaced = self._replace_output(module, args, output)
            self._running.pop()
            if not self._running and not self._always:
                self.warn_of(output)
            return replaced
        return None

    def trace_inputs(self, values: Any) -> None:
        """From here on these tensors are what the explanation is about."""
        floats = [t for t in tensors_in(values) if t.is_floating_point()]
        wanted = [t for t in floats if t.requires_grad and not isinstance(t, nn.Parameter)]
        for tensor in wanted or floats:
            self._traces.mark(tensor, Trace())

    def warn_of(self, output: Any) -> None:
        """One warning that names what kept its gradient on the way to the output."""
        rules = propagation.current_rules()
        on: set[Rule] = set()
        if rules.attention:
            on.add("attention")
        if rules.layernorm:
            on.add("layernorm")
        if rules.activation:
            on.add("activation")
        found: set[Curve] = set()
        for tensor in tensors_in([output]):
            trace = self._traces.of(tensor)
            found |= trace.curves if trace else set()
        new = {curve for curve in found if curve.rule in on} - self._warned
        if not new:
            return
        self._warned |= new
        lines = sorted({f"{c.place or self._root}: {c.what}" for c in new})
        warnings.warn(
            f"{self._root} has parts that the rules do not know; there the ordinary gradient was"
            f" taken, and relevance need not sum to the output: {'; '.join(lines)}.",
            stacklevel=6,
        )

    def _place(self) -> str:
        return self._paths[id(self._running[-1])] if self._running else ""

    def _in_norm(self) -> bool:
        return bool(self._running) and "norm" in type(self._running[-1]).__name__.lower()

    def _replace_output(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        """The output of a module that is treated as a whole, or None to keep it."""
        if module in self._outputs:
            return self._outputs[module](output)
        kind = type(module).__name__
        if kind == "PerformerProjection" and len(args) == 3:
            return self._performer(module, *args)
        own = type(module).__module__.startswith("torch.nn.")
        if own or not ACTIVATION_MODULE.search(kind) or any(True for _ in module.parameters()):
            return None
        if propagation.current_rules().activation is None or len(args) != 1:
            return None
        x = args[0]
        with torch._C.DisableTorchFunction():
            if not isinstance(output, Tensor) or output.shape != x.shape:
                return None
            if module.forward(x.detach().new_zeros(1)).any():
                return None
            return self._like(x, propagation.by_ratio(x, module.forward))

    # -- the mode ------------------------------------------------------------------------------

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not (self._always or self._running) or threading.get_ident() != self._thread:
            return func(*args, **kwargs)
        name = _name_of(func)
        if name in PRODUCTS:
            args = self._hold_attention(name, args)
            kwargs = dict(zip(kwargs, self._hold_attention(name, kwargs.values()), strict=True))
        handler = self._handlers.get(name)
        if handler is not None:
            return handler(func, *args, **kwargs)
        if name in RATIO:
            return self._activation(func, *args, **kwargs)
        if self._additive and name in SUMS:
            args = self._constants_as_tangents(args)
        out = func(*args, **kwargs)
        if name in VALUELESS or not (name == "setitem" or isinstance(out, Tensor | tuple | list)):
            return out
        if name in ROOTS and self._holds_scale(args):
            return _detached(out)
        return self._carry(name, args, kwargs, out)

    def _carry(self, name: str, args: Any, kwargs: Any, out: Any) -> Any:
        """Give the result the trace of what it was made of."""
        inputs = list(tensors_in((*args, *kwargs.values())))
        if name in LIKE_ANOTHER:
            inputs = inputs[:1]
        if name in ("index_select", "getitem"):
            self._note_index(inputs)
        found = [trace for trace in map(self._traces.of, inputs) if trace is not None]
        if not found:
            return out
        curves: frozenset[Curve] = frozenset().union(*(trace.curves for trace in found))
        if name == "div" and (softmax := _explicit_softmax(self._traces, inputs)) is not None:
            return self._probabilities(out, softmax, curves)
        if (curve := self._curve(name, found)) is not None:
            curves |= {curve}
        trace = Trace(curves, *_role(self._traces, name, inputs, self._place()))
        if trace.role == "sum" and trace.softmax and name in GATHERED_SUMS:
            trace.softmax.index = _group_index(inputs)
        into = args[0] if name == "setitem" else out
        for tensor in tensors_in([into]):
            if tensor.is_floating_point():
                self._traces.mark(tensor, trace)
        return out

    def _curve(self, name: str, traces: list[Trace]) -> Curve | None:
        if name in PRODUCTS and len(traces) > 1:
            what = f"a product ({name}) of two quantities that depend on the input"
            return Curve(self._rule_here(), what, self._place())
        if name in ROOTS:
            return Curve("layernorm", f"{name} outside of a normalisation layer", self._place())
        if name in NONLINEAR:
            return Curve("activation", name, self._place())
        return None

    def _rule_here(self) -> Rule:
        """The rule that a product in the running module would be a matter of."""
        if self._in_norm():
            return "layernorm"
        kind = type(self._running[-1]).__name__ if self._running else ""
        return "activation" if ACTIVATION_MODULE.search(kind) else "attention"

    def _like(self, x: Tensor, out: Tensor) -> Tensor:
        trace = self._traces.of(x)
        return out if trace is None else self._traces.mark(out, Trace(trace.curves))

    # -- attention -----------------------------------------------------------------------------

    def _softmax(self, func: Any, *args: Any, **kwargs: Any) -> Any:
        out = func(*args, **kwargs)
        trace = self._traces.of(args[0] if args else kwargs["input"])
        if trace is None:
            return out
        return self._probabilities(out, Softmax(self._place()), trace.curves)

    def _probabilities(self, out: Tensor, softmax: Softmax, curves: frozenset[Curve]) -> Tensor:
        """A softmax's result, of which nobody knows yet whether it is attention."""
        if propagation.current_tape() is not None:
            softmax.attention, out = self._expose(out, softmax.index)
        curves -= {Curve("activation", "exp", softmax.place)}  # its own, if it is written out
        curve = Curve("attention", "a softmax whose result enters no product", self._place())
        return self._traces.mark(out, Trace(curves | {curve}, "probability", softmax))

    def _expose(self, weights: Tensor, target: Tensor | None) -> tuple[Tensor | None, Tensor]:
        if target is None:
            return expose_dense(weights, self._layout)
        source = self._source_of(target)
        if source is None:
            return None, weights
        return expose_sparse(weights, target, source, self._layout)

    def _note_index(self, inputs: list[Tensor]) -> None:
        for index in inputs[1:]:
            if index.dtype == torch.long and index.dim() == 1:
                self._indices = [*self._indices[-15:], index]

    def _source_of(self, target: Tensor) -> Tensor | None:
        """The other end of the edges: the latest other index by which rows were gathered."""
        fitting = [index for index in self._indices if len(index) == len(target)]
        others = [index for index in fitting if not torch.equal(index, target)]
        found = others or fitting
        return found[-1] if found else None

    def _hold_attention(self, name: str, values: Any) -> Any:
        """Probabilities that enter a product are attention: record them, and hold them (AH)."""
        values = tuple(values)
        traced = sum(self._traces.of(t) is not None for t in tensors_in(values))
        if name in MULTIPLICATIONS and traced < 2:
            return values  # a mask or a weight on the way
        held = tuple(self._held(value) for value in values)
        traced = sum(self._traces.of(t) is not None for t in tensors_in(held))
        halve = propagation.current_rules().products and name not in QUOTIENTS
        if traced < 2 or not halve or self._in_norm():
            return held
        return tuple(self._halved(value) for value in held)

    def _halved(self, value: Any) -> Any:
        if isinstance(value, tuple | list):
            return type(value)(self._halved(v) for v in value)
        trace = self._traces.of(value)
        return value if trace is None else self._traces.mark(propagation.halved(value), trace)

    def _held(self, value: Any) -> Any:
        if isinstance(value, tuple | list):
            return type(value)(self._held(v) for v in value)
        trace = self._traces.of(value)
        if trace is None or trace.role != "probability" or trace.softmax is None:
            return value
        self._record(trace.softmax)
        if propagation.current_rules().attention:
            return value.detach()
        return self._traces.mark(value.view_as(value), replace(trace, role=None))

    def _record(self, softmax: Softmax) -> None:
        tape = propagation.current_tape()
        if tape is not None and not softmax.used and softmax.attention is not None:
            tape.attention.append(softmax.attention)
        softmax.used = True

    def _attend(
        self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, dropout: float
    ) -> tuple[Tensor, Tensor]:
        """`softmax(q k^T + bias) v`, with the probabilities recorded and held as asked."""
        with propagation.unrecorded():
            weights = probabilities(query, key, bias)
        weights = self._mixing(weights)
        return propagation.mix_values(F.dropout(weights, dropout), value), weights

    def _mixing(self, weights: Tensor) -> Tensor:
        """Probabilities (B, H, Q, T) that mix values."""
        tape = propagation.current_tape()
        if tape is not None:
            attention, weights = expose_dense(weights, self._layout)
            if attention is not None:
                tape.attention.append(attention)
        return weights.detach() if propagation.current_rules().attention else weights

    def _scaled_dot_product(self, func: Any, *args: Any, **kwargs: Any) -> Any:
        out = scaled_dot_product(self._attend, *args, **kwargs)
        return self._carry_attention(args, kwargs, out)

    def _multi_head(self, func: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("static_k") is not None or kwargs.get("static_v") is not None:
            out = func(*args, **kwargs)
            return self._carry_unknown("static_k or static_v", args, kwargs, out)
        out = multi_head(self._attend, self._affine, self._constant, *args, **kwargs)
        return self._carry_attention(args, kwargs, out)

    def _carry_attention(self, args: Any, kwargs: Any, out: Any) -> Any:
        """Under AH the result is linear in the values; otherwise it is a product."""
        return self._carry("attention", args, kwargs, out)

    def _carry_unknown(self, what: str, args: Any, kwargs: Any, out: Any) -> Any:
        curve = Curve("attention", what, self._place())
        for tensor in tensors_in([self._carry("unknown", args, kwargs, out)]):
            trace = self._traces.of(tensor)
            if trace is not None:
                self._traces.mark(tensor, replace(trace, curves=trace.curves | {curve}))
        return out

    def _performer(self, module: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Linear attention with its matrix written out: `A = phi(q) phi(k)^T` over its row sums.

        q, k, v (B, H, N, d). Choromanski 2021, eq. 4. Padded keys have no weight, as if each
        graph were alone; PyG's own sum over a padded batch counts them.
        """
        from torch_geometric.nn.attention.performer import generalized_kernel

        with torch._C.DisableTorchFunction():
            q, k = (
                generalized_kernel(t, module.projection_matrix, module.kernel) for t in (query, key)
            )
            weights = q @ k.transpose(-2, -1)  # (B, H, N, N)
            length = weights.shape[-1]
            if self._layout is not None and self._layout.fits(length):
                weights = weights * self._layout.key_mask[:, None, None, :length]
            total = weights.sum(-1, keepdim=True)
            weights = self._mixing(weights / total.masked_fill(total == 0, 1.0))
            return self._like(value, propagation.mix_values(weights, value))

    # -- normalisation and activation ----------------------------------------------------------

    def _holds_scale(self, args: Any) -> bool:
        return propagation.current_rules().layernorm and self._in_norm()

    def _layer_norm(
        self,
        func: Any,
        input: Tensor,
        normalized_shape: Any,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float = 1e-5,
        *_: Any,
    ) -> Tensor:
        last = len(normalized_shape)
        flat = input.flatten(-last)
        ones = flat.new_ones(flat.shape[-1])
        scale = ones if weight is None else weight.flatten()
        shift = torch.zeros_like(ones) if bias is None else self._constant(bias.flatten())
        with propagation.unrecorded():
            out = propagation.layer_norm(flat, scale, shift, eps)
        return self._like(input, out.unflatten(-1, tuple(normalized_shape)))

    def _rms_norm(
        self,
        func: Any,
        input: Tensor,
        normalized_shape: Any,
        weight: Tensor | None = None,
        eps: float | None = None,
    ) -> Tensor:
        axes = tuple(range(-len(normalized_shape), 0))
        eps = torch.finfo(input.dtype).eps if eps is None else eps
        return self._like(input, propagation.rms_norm(input, weight, eps, axes))

    def _batch_norm(self, func: Any, *args: Any, **kwargs: Any) -> Tensor:
        x = args[0] if args else kwargs["input"]
        if func is not F.batch_norm:
            names = ("input", "weight", "bias", "running_mean", "running_var", "training")
        else:
            names = ("input", "running_mean", "running_var", "weight", "bias", "training")
        given = dict(zip(names, args, strict=False)) | kwargs
        if given.get("training") or given.get("running_mean") is None:
            out = func(*args, **kwargs)
            return self._carry_unknown("statistics of the batch", (x,), {}, out)
        if not self._additive:
            return self._like(x, func(*args, **kwargs))
        eps = given.get("eps", args[7] if len(args) > 7 else 1e-5)
        shape = (1, -1) + (1,) * (x.dim() - 2)
        scale = (given["running_var"] + eps).rsqrt()
        if given.get("weight") is not None:
            scale = scale * given["weight"]
        out = (x - self._constant(given["running_mean"]).view(shape)) * scale.view(shape)
        return self._like(x, self._shifted(out, given.get("bias"), shape))

    def _instance_norm(self, func: Any, *args: Any, **kwargs: Any) -> Tensor:
        names = ("input", "running_mean", "running_var", "weight", "bias", "use_input_stats")
        given = dict(zip(names, args, strict=False)) | kwargs
        x = given["input"]
        if not given.get("use_input_stats", True):
            swapped = {"training": False, "eps": given.get("eps", 1e-5)}
            moments = (given["running_mean"], given["running_var"])
            pair = (given.get("weight"), given.get("bias"))
            return self._batch_norm(F.batch_norm, x, *moments, *pair, **swapped)
        eps = given.get("eps", args[7] if len(args) > 7 else 1e-5)
        flat = x.flatten(2)
        ones = flat.new_ones(flat.shape[-1])
        with propagation.unrecorded():
            out = propagation.layer_norm(flat, ones, torch.zeros_like(ones), eps).view_as(x)
        return self._like(x, self._channels(out, given.get("weight"), given.get("bias")))

    def _group_norm(
        self,
        func: Any,
        input: Tensor,
        num_groups: int,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float = 1e-5,
        *_: Any,
    ) -> Tensor:
        flat = input.reshape(len(input), num_groups, -1)
        ones = flat.new_ones(flat.shape[-1])
        with propagation.unrecorded():
            out = propagation.layer_norm(flat, ones, torch.zeros_like(ones), eps).view_as(input)
        return self._like(input, self._channels(out, weight, bias))

    def _channels(self, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        shape = (1, -1) + (1,) * (x.dim() - 2)
        return self._shifted(x if weight is None else x * weight.view(shape), bias, shape)

    def _shifted(self, x: Tensor, bias: Tensor | None, shape: tuple[int, ...]) -> Tensor:
        return x if bias is None else x + self._constant(bias).view(shape)

    def _normalize(
        self, func: Any, input: Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12, **_: Any
    ) -> Tensor:
        if not propagation.current_rules().layernorm:
            return self._like(input, func(input, p, dim, eps))
        length = input.detach().norm(p, dim, keepdim=True).clamp_min(eps)
        return self._like(input, input / length)

    def _activation(self, func: Any, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if propagation.current_rules().activation is None:
            return self._like(input, func(input, *args, **kwargs))
        if _name_of(func) == "gelu" and (args or tuple(kwargs.values()) or ("none",)) == ("none",):
            return self._like(input, propagation.gelu(input))
        ratio = propagation.by_ratio(input, lambda x: func(x.clone(), *args, **kwargs))
        return self._like(input, ratio)

    # -- affine maps and additive constants ----------------------------------------------------

    def _linear(
        self, func: Any, input: Tensor, weight: Tensor, bias: Tensor | None = None
    ) -> Tensor:
        if self._traces.of(weight) is not None:
            return self._carry("matmul", (input, weight), {}, func(input, weight, bias))
        if self._traces.of(input) is None:
            return func(input, weight, bias)
        return self._like(input, self._affine(input, weight, bias))

    def _affine(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if bias is None or not self._additive:
            return F.linear(x, weight, bias)
        return F.linear(x, weight) + self._constant(bias)

    def _convolution(
        self,
        func: Any,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> Tensor:
        if bias is None or not self._additive or self._traces.of(input) is None:
            return self._like(input, func(input, weight, bias, *args, **kwargs))
        out = func(input, weight, None, *args, **kwargs)
        shape = (-1,) + (1,) * (weight.dim() - 2)
        return self._like(input, out + self._constant(bias).view(shape))

    def _constants_as_tangents(self, values: Any) -> Any:
        """In a sum with something that depends on nodes, constants are shares of the output."""
        if all(self._traces.of(t) is None for t in tensors_in(values)):
            return values
        return tuple(self._as_constant(value) for value in values)

    def _as_constant(self, value: Any) -> Any:
        if isinstance(value, tuple | list):
            return type(value)(self._as_constant(v) for v in value)
        if (
            isinstance(value, Tensor)
            and self._traces.of(value) is None
            and value.is_floating_point()
        ):
            return self._constant(value)
        return value

    def _constant(self, value: Tensor) -> Tensor:
        """The constant with itself as tangent, where additive shares are asked for."""
        if not self._additive:
            return value
        plain = value.detach()
        finite = plain.masked_fill(~plain.isfinite(), 0.0)  # -inf masks are no share
        return forward_ad.make_dual(plain, finite)


@lru_cache(maxsize=4096)
def _name_of(func: Any) -> str:
    """One name for the variants of an operation: function, method, operator, property."""
    name = getattr(func, "__name__", "")
    if name == "__get__":
        name = getattr(getattr(func, "__self__", None), "__name__", "")
    name = name.strip("_") + ("_" if name.endswith("_") and not name.endswith("__") else "")
    if name in ("iadd", "isub", "imul", "itruediv"):
        name = {"iadd": "add_", "isub": "sub_", "imul": "mul_", "itruediv": "div_"}[name]
    aliases = {"radd": "add", "rmul": "mul", "truediv": "div", "rmatmul": "matmul",
               "rtruediv": "div", "linalg_vector_norm": "vector_norm", "linalg_norm": "norm",
               "special_expm1": "expm1", "sparse_softmax": "_sparse_softmax"}  # fmt: skip
    return aliases.get(name, name)


def _detached(out: Any) -> Any:
    return tuple(t.detach() for t in out) if isinstance(out, tuple) else out.detach()


def _explicit_softmax(traces: Traces, inputs: list[Tensor]) -> Softmax | None:
    """The softmax that `exp(s) / sum(exp(s))` is, if the two tensors are these."""
    if len(inputs) != 2:
        return None
    above, below = map(traces.of, inputs)
    if above is None or below is None or above.softmax is None:
        return None
    same = above.softmax is below.softmax
    return above.softmax if same and (above.role, below.role) == ("exponential", "sum") else None


def _role(
    traces: Traces, name: str, inputs: list[Tensor], place: str
) -> tuple[Any, Softmax | None]:
    """Role and softmax of a result."""
    if name in ("exp", "exp_"):
        return "exponential", Softmax(place)
    traced = [trace for trace in map(traces.of, inputs) if trace is not None]
    if len(traced) != 1 or traced[0].role is None:
        return None, None
    trace = traced[0]
    if trace.role == "exponential" and (name == "sum" or name in GATHERED_SUMS):
        return "sum", trace.softmax
    kept = STILL_A_SUM if trace.role == "sum" else SAME_VALUES | MULTIPLICATIONS
    return (trace.role, trace.softmax) if name in kept else (None, None)


def _group_index(inputs: list[Tensor]) -> Tensor | None:
    """The index (E,) by which entries were summed into groups."""
    for tensor in inputs:
        if tensor.dtype == torch.long:
            return tensor if tensor.dim() == 1 else tensor.flatten(1)[:, 0]
    return None
