"""Pass relevance back through any PyTorch model by the positive rules of Chefer et al., CVPR 2021.

Within `relevance_pass` every operation of an intercepted pass computes its usual result, but its
backward pass is the operation's rule in `rules.positive`: what autograd then returns as "gradient"
is relevance.

* affine maps and products with a constant: Eq. 5; their biases take no part;
* sums and means over nodes, entries or channels: Eq. 5;
* `u + v`: the addition rule, per graph. A constant of the size of a whole input, such as a
  structural bias or a position, takes its share where relevance goes into queries and keys;
* attention times values, and queries times keys: the product rule;
* normalisations, activations, softmax and quotients: passed on unchanged (for a quotient to the
  numerator);
* operations that only move values: the ordinary backward pass.

A gate passes all relevance to what it lets through (see `gates`); any other product of two
quantities that depend on the input gives each factor half. All other operations use Eq. 2 and are
listed in one warning.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from graphxai.rules.positive import (
    Rules,
    in_proportion,
    through_important_heads,
    through_linear,
    through_product,
    through_sum,
    through_weights,
)

from . import gates
from .arguments import in_terms_of, mapped
from .attention import multi_head, scaled_dot_product
from .interception import Interception, interception_class
from .layout import Layout
from .operations import AFFINE
from .positive_attention import MadeTraces, PositiveWatch, through_heads_at
from .relevance_pass import RelevancePass, handed, made_here
from .trace import OUT_OF_SIGHT, Softmax, custom_function, tensors_in
from .transforms import is_transformed
from .vocabulary import (
    GATHERED_SUMS,
    KNOWN,
    MULTIPLICATIONS,
    PLUS_PRODUCT,
    PRODUCTS,
    QUOTIENTS,
    ROOTS,
    SAME_VALUES,
    VALUELESS,
)

ADDITIONS = {"add", "sub", "subtract", "rsub"}
SUMMING = GATHERED_SUMS | {
    "sum", "mean", "nansum", "nanmean", "cumsum", "avg_pool1d", "avg_pool2d", "interpolate",
    "adaptive_avg_pool1d", "adaptive_avg_pool2d", "segment_reduce", "fold", "embedding_bag",
}  # fmt: skip
BY_ENTRY = ROOTS | {"relu", "leaky_relu", "prelu", "rrelu", "abs", "neg", "diff"}
MOVING = (
    KNOWN - SUMMING - PRODUCTS - ADDITIONS - BY_ENTRY - {"add_", "sub_", "clamp", "lerp", "addcdiv"}
)
KEPT_IN_PLACE = {name for name in MOVING if name.endswith("_")} | {"setitem"}


@contextmanager
def relevance_pass(
    rules: Rules, important: Tensor | None = None, reads_attention: bool = True
) -> Iterator[RelevancePass]:
    """Intercepted passes in the block pass relevance back by `rules`; the first is recorded."""
    state = RelevancePass(rules, important, reads_attention)

    def make(*args: Any) -> Interception:
        return _PositiveInterception(state, *args)

    token = interception_class.set(make)
    try:
        yield state
    finally:
        interception_class.reset(token)


@dataclass(eq=False)
class _Kept:
    """An operation's input, unmodified."""

    tensor: Tensor


class _PositiveInterception(Interception):
    """The mode of one pass under the positive rules."""

    def __init__(self, state: RelevancePass, model: nn.Module, layout: Layout | None, *rest: Any):
        super().__init__(model, layout, *rest)
        self._state, self._rules = state, state.rules
        self._traces = MadeTraces(self._place)
        self._attention: PositiveWatch = PositiveWatch(self._traces, layout, state)
        self._terms = WeakTensorKeyDictionary()  # products whose sum is one matrix product
        self._kept: dict[int, list[_Kept]] = {}  # by memory address

    def _records_attention(self) -> bool:
        return self._state.reads_attention

    def warn_of(self, output: Any) -> None:
        """Warn about operations without a rule."""
        self._state.unknown |= {(place, OUT_OF_SIGHT) for place in self._traces.hidden}
        self._warn_of_unseen()
        self._state.unknown |= {(curve.place, curve.what) for curve in self._transformed}
        self._state.warn(self._root)

    def _replace_output(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        if module in self._outputs:
            return self._outputs[module](output)
        if not isinstance(output, Tensor) or not args:
            return None
        if self._kind() == "PerformerProjection" and len(args) == 3:
            with self:
                return self._performer(module, *args)
        x = args[0]
        whole = self._in_norm() and isinstance(x, Tensor) and x.shape == output.shape
        if not whole or self._traces.of(x) is None:
            return None
        return self._like(x, handed(output, lambda relevance: (relevance,), x))

    # -- attention -----------------------------------------------------------------------------

    def _performer(self, module: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        weights = self._attention.performer_weights(module, query, key)
        softmax = Softmax(self._place())
        return self._attention.softmax(weights, softmax, frozenset()) @ value

    def _attend(
        self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, dropout: float
    ) -> tuple[Tensor, Tensor]:
        """`softmax(q k^T + bias) v` in operations that this mode sees."""
        logits = query @ key.transpose(-2, -1)
        nothing = None
        if bias is not None:
            nothing = (bias == -torch.inf).all(-1, keepdim=True)
            logits = logits + bias.masked_fill(nothing, 0.0)
        weights = logits.softmax(dim=-1)
        if nothing is not None:
            weights = weights.masked_fill(nothing, 0.0)
        return weights @ value, weights

    def _multi_head(self, func: Any, args: Any, kwargs: Any) -> Any:
        if kwargs.get("static_k") is not None or kwargs.get("static_v") is not None:
            raise ValueError("the positive rules do not support static_k or static_v.")
        with self:
            return multi_head(self._attend, F.linear, lambda bias: bias, *args, **kwargs)

    # -- one operation -------------------------------------------------------------------------

    def _apply(self, name: str, func: Any, args: Any, kwargs: Any) -> Any:
        if is_transformed():  # the user's code differentiates here: keep its gradient
            return func(*args, **kwargs)
        if name == "scaled_dot_product_attention":
            with self:
                return scaled_dot_product(self._attend, *args, **kwargs)
        if name == "multi_head_attention_forward":
            return self._multi_head(func, args, kwargs)
        if name in gates.WRITTEN_OUT:
            with self:
                return gates.WRITTEN_OUT[name](*args, **kwargs)
        if name in PLUS_PRODUCT and self._depends(args[0]):
            with self:
                return _plus_product(name, *args, **kwargs)
        if name in PRODUCTS:
            self._attention.factors(name, (*args, *kwargs.values()), halve=False)
        inputs = [t for t in tensors_in((*args, *kwargs.values())) if self._depends(t)]
        if not inputs or name in VALUELESS:
            if name in KEPT_IN_PLACE or name.endswith("_"):
                self._before_writing(args[0])
                self._traces.mark_if_new(args[0])
            return func(*args, **kwargs)
        if kwargs.get("inplace"):
            return self._in_place(name, func, args, kwargs | {"inplace": False})
        if name.endswith("_") and name not in KEPT_IN_PLACE:
            plain = getattr(Tensor, name[:-1], None) or getattr(F, name[:-1])
            return self._in_place(name[:-1], plain, args, kwargs)
        if self._moves(name, args, kwargs):
            return self._moved(name, func, args, kwargs, inputs)
        self._name_customs(inputs)
        distinct = list({id(t): t for t in inputs}.values())
        with torch.no_grad():
            plain = mapped((args, kwargs), Tensor.detach)
            value = func(*plain[0], **plain[1])
        if not isinstance(value, Tensor) or not value.is_floating_point():
            return value
        out = self._by_rule(name, func, args, kwargs, distinct, value)
        if name == "softmax":
            return self._attention.softmax(out, self._softmax_along(args, kwargs), frozenset())
        return self._carry(name, args, kwargs, out)

    def _name_customs(self, inputs: list[Tensor]) -> None:
        for tensor in inputs:
            what = custom_function(tensor)
            if what is not None and not made_here(tensor):
                place = self._traces.maker_of(tensor)
                self._state.unknown.add((place, f"{what}, which has its own backward pass"))

    def _keep(self, value: Tensor) -> _Kept:
        """Keep the tensor for the backward pass, unless it is overwritten meanwhile."""
        kept = _Kept(value.detach())
        self._kept.setdefault(value.untyped_storage().data_ptr(), []).append(kept)
        return kept

    def _before_writing(self, to: Tensor) -> None:
        for kept in self._kept.pop(to.untyped_storage().data_ptr(), ()):
            kept.tensor = kept.tensor.clone()

    def _depends(self, value: Tensor) -> bool:
        return value.is_floating_point() and self._traces.of(value) is not None

    def _moves(self, name: str, args: Any, kwargs: Any) -> bool:
        extreme = {"amax", "amin", "max", "min"} & {kwargs.get("reduce"), *filter(_is_text, args)}
        return name in MOVING - SAME_VALUES or name in SAME_VALUES or bool(extreme)

    def _moved(self, name: str, func: Any, args: Any, kwargs: Any, inputs: list[Tensor]) -> Any:
        if name in KEPT_IN_PLACE:
            self._before_writing(args[0])
            if not args[0].requires_grad:
                self._traces.mark_if_new(args[0])
        out = self._carry(name, args, kwargs, func(*args, **kwargs))
        if isinstance(out, Tensor):
            if inputs[0] in self._terms and name in SAME_VALUES:
                self._terms[out] = True
            made = self._state.affine.get(inputs[0])
            if made is not None and out.numel() == inputs[0].numel() and len(inputs) == 1:
                self._state.affine[out] = made
        return out

    def _in_place(self, name: str, func: Any, args: Any, kwargs: Any) -> Tensor:
        """Put the result of an out-of-place operation into the old tensor."""
        old: Tensor = args[0]
        before = old.clone()
        trace = self._traces.of(old)
        self._traces.mark(before, trace) if trace is not None else self._traces.mark_if_new(before)
        out = self._apply(name, func, (before, *args[1:]), kwargs)
        found = self._traces.of(out)
        self._before_writing(old)
        result = old.copy_(out)
        return result if found is None else self._traces.mark(result, found)

    def _by_rule(
        self, name: str, func: Any, args: Any, kwargs: Any, inputs: list[Tensor], value: Tensor
    ) -> Tensor:
        """The value of an operation, which passes relevance back by its rule."""
        if name in ADDITIONS:
            return self._added(name, args, kwargs, inputs, value)
        if name in QUOTIENTS:
            above = args[0]
            return self._unchanged(above, value) if self._depends(above) else value
        if len(inputs) == 1:
            return self._of_one(name, func, args, kwargs, inputs[0], value)
        if name in PRODUCTS and len(inputs) == 2:
            return self._multiplied(name, func, args, kwargs, inputs, value)
        return self._in_proportion(name, func, args, kwargs, inputs, value)

    def _of_one(
        self, name: str, func: Any, args: Any, kwargs: Any, x: Tensor, value: Tensor
    ) -> Tensor:
        """Operations on one quantity that depends on the input, and constants."""
        kept = self._keep(x)
        if name == "linear" and x is args[0]:
            weight = (args[1] if len(args) > 1 else kwargs["weight"]).detach()
            out = handed(value, lambda r: (through_linear(kept.tensor, weight, r),), x)
            self._state.affine[out] = (x, weight)
            return out
        f = in_terms_of([x], func, args, kwargs)
        operands = sum(isinstance(t, Tensor) for t in tensors_in((*args, *kwargs.values())))
        if name in SUMMING or (name == "einsum" and operands == 1):
            rule = in_proportion if x in self._terms else through_sum
            offset = f(torch.zeros_like(x))
            return handed(value, lambda r: (rule(lambda z: f(z) - offset, kept.tensor, r),), x)
        constants = [
            t for t in tensors_in((*args, *kwargs.values())) if t is not x and t.is_floating_point()
        ]
        if (name in PRODUCTS - MULTIPLICATIONS or name in AFFINE) and name != "batch_norm":
            if not constants:  # x with itself
                return self._in_proportion(name, func, args, kwargs, [x], value)
            weight = constants[-1 if name in PLUS_PRODUCT else 0]
            return self._weighted(func, args, kwargs, x, value, weight)
        if value.shape == x.shape or name in MULTIPLICATIONS:
            return self._unchanged(x, value)
        return self._in_proportion(name, func, args, kwargs, [x], value)

    def _weighted(
        self, func: Any, args: Any, kwargs: Any, x: Tensor, value: Tensor, weight: Tensor
    ) -> Tensor:
        """A map that is linear in x and in a weight, except for an offset."""
        f = in_terms_of([x, weight], func, args, kwargs)
        kept, held = self._keep(x), weight.detach()
        offset = f(torch.zeros_like(x), held)

        def hand(relevance: Tensor) -> tuple[Tensor, ...]:
            return (through_weights(lambda z, w: f(z, w) - offset, kept.tensor, held, relevance),)

        return handed(value, hand, x)

    def _added(
        self, name: str, args: Any, kwargs: Any, inputs: list[Tensor], value: Tensor
    ) -> Tensor:
        """u + v or u - v, broadcast to one shape."""
        u, v = args[0], args[1] if len(args) > 1 else kwargs["other"]
        if name == "rsub":
            u, v = v, u
        if len(inputs) == 1:
            x, other = inputs[0], v if inputs[0] is u else u
            sizeable = isinstance(other, Tensor) and other.dim() > 1
            if name == "add" and sizeable and other is not x and self._rules.into_queries_and_keys:
                return self._share_with_constant(x, other, value)
            out = self._unchanged(x, value)
            if (made := self._state.affine.get(x)) is not None and x.shape == value.shape:
                self._state.affine[out] = made
            return out
        u, v = (self._like(t, t.expand(value.shape)) for t in (u, v))
        addition = self._addition_of(value)
        minus = kwargs.get("alpha", 1) * (1 if name == "add" else -1)
        left, right = self._keep(u), self._keep(v)

        def hand(relevance: Tensor) -> tuple[Tensor, ...]:
            return addition(_finite(left.tensor), _finite(right.tensor) * minus, relevance)

        return handed(value, hand, u, v)

    def _share_with_constant(self, x: Tensor, constant: Tensor, value: Tensor) -> Tensor:
        x = x.expand(value.shape)
        kept, added = self._keep(x), _finite(constant.detach().to(value).expand(value.shape))
        addition = self._addition_of(value)
        return handed(value, lambda r: addition(kept.tensor, added, r)[:1], x)

    def _addition_of(self, value: Tensor) -> Callable[..., tuple[Tensor, ...]]:
        """The addition rule for terms of this shape, each graph by itself."""
        size = self._attention.graphs
        graph = self._attention.graph_of_rows(len(value), size)
        in_rows = value.dim() == 3 and len(value) != size and value.shape[1] == size
        if graph is not None or not in_rows:
            return lambda u, v, r: self._rules.addition(u, v, r, graph)

        def by_column(u: Tensor, v: Tensor, r: Tensor) -> tuple[Tensor, ...]:
            u, v, r = (t.transpose(0, 1) for t in (u, v, r))  # tokens were before graphs
            return tuple(t.transpose(0, 1) for t in self._rules.addition(u, v, r, None))

        return by_column

    def _multiplied(
        self, name: str, func: Any, args: Any, kwargs: Any, inputs: list[Tensor], value: Tensor
    ) -> Tensor:
        """A product of two quantities that depend on the input, attention first if it is one."""
        if name in MULTIPLICATIONS and gates.rule_of_product(self._traces, inputs) is not None:
            signal = next(t for t in inputs if not self._is_gate(t))
            return self._unchanged(signal, value)
        a, v = sorted(inputs, key=self._attention.is_attention, reverse=True)
        in_order = not kwargs and len(args) == 2 and args[0] is a
        plain = in_order and func.__name__ in ("matmul", "__matmul__", "bmm", "mm")
        f = torch.matmul if plain else in_terms_of([a, v], func, args, kwargs)
        mixing = self._attention.is_attention(a)
        rule = self._rules.product if mixing else through_product
        left, right = self._keep(a), self._keep(v)
        heads = self._attention.heads(a, value.shape) if mixing else None
        along_edges = heads is not None and name in MULTIPLICATIONS
        graph = self._attention.graph_of_entries(a) if along_edges else None
        mixed = None
        if heads is not None and not along_edges:
            mixed = self._attention.heads_of_mixed(func.__name__.strip("_"), a, v, f)

        def hand(relevance: Tensor) -> tuple[Tensor, ...]:
            if mixed is not None and heads is not None:
                relevance = through_heads_at(relevance, heads, *mixed)
            elif heads is not None:
                relevance = self._through(heads, relevance, name, graph)
            return rule(left.tensor, right.tensor, relevance, f)

        out = handed(value, hand, a, v)
        if rule is through_product:
            self._terms[out] = True
        return out

    def _is_gate(self, value: Tensor) -> bool:
        trace = self._traces.of(value)
        return trace is not None and trace.role == "gate"

    def _through(self, heads: Tensor, relevance: Tensor, name: str, graph: Tensor | None) -> Tensor:
        """Relevance of mixed values that important heads (B or 1, K, H) pass on.

        graph (E,): the graph of each edge, if values are mixed along edges.
        """
        count, size = heads.shape[-1], self._attention.graphs or len(relevance)
        if name in MULTIPLICATIONS:  # along edges: (E, H, d)
            width = math.prod(relevance.shape[1:]) // count
            chosen = heads if graph is None or len(heads) == 1 else heads[graph]
            return through_important_heads(
                relevance.reshape(len(relevance), count, width), chosen, graph
            ).view_as(relevance)
        by_head = relevance.reshape(size, count, *relevance.shape[-2:])
        return through_important_heads(by_head, heads).reshape(relevance.shape)

    def _in_proportion(
        self, name: str, func: Any, args: Any, kwargs: Any, inputs: list[Tensor], value: Tensor
    ) -> Tensor:
        """Eq. 2 for operations without a rule."""
        if not self._in_norm():  # a norm as a whole passes relevance on unchanged
            self._state.unknown.add((self._place(), name))
        f = in_terms_of(inputs, func, args, kwargs)
        kept = [self._keep(t) for t in inputs]

        def hand(relevance: Tensor) -> tuple[Tensor, ...]:
            share = torch.where(value == 0, 0.0, relevance / value)
            with torch.enable_grad():
                points = [k.tensor.detach().requires_grad_() for k in kept]
                gradients = torch.autograd.grad(f(*points), points, share)
            pairs = zip(points, gradients, strict=True)
            return tuple(t.detach() * gradient / len(kept) for t, gradient in pairs)

        return handed(value, hand, *inputs)

    def _unchanged(self, x: Tensor, value: Tensor) -> Tensor:
        """Unchanged relevance, summed where x was broadcast."""
        alive = value.detach() != 0
        x = x if x.shape == value.shape else x.expand(value.shape)
        return handed(value, lambda relevance: (relevance * alive,), x)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _plus_product(
    name: str, term: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, **scale: float
) -> Tensor:
    """`term + a b` in two operations; `scale` is alpha, or addcmul's value."""
    product = a * b if name == "addcmul" else a @ b
    for factor in scale.values():
        product = product * factor
    return term * beta + product


def _finite(term: Tensor) -> Tensor:
    """A term of a sum with zeros at the keys that it excludes, whose probability is zero."""
    return term.masked_fill(term.isinf(), 0.0)
