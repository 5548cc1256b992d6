"""Pass relevance back along a recorded list by the positive rules of Chefer et al., CVPR 2021.

The list runs again with the values it had. The backward pass of each operation is its rule in
`rules.positive`, so that what autograd then returns as "gradient" is relevance. `POSITIVE` says
which rule an operation has:

* affine maps and products with a constant matrix: Eq. 5; their biases take no part;
* sums and means over nodes, entries or channels: Eq. 5;
* `u + v`: the addition rule, per graph. A constant of the size of a whole input, such as a
  structural bias or a position, takes its share where relevance goes into queries and keys;
* attention times values, and queries times keys: the product rule;
* norms, activations, softmax and quotients: passed on unchanged (for a quotient to the numerator),
  as with anything else that acts entry by entry;
* operations that only move values: the ordinary backward pass.

A gate, or the scale of a norm, passes all relevance to what it multiplies (see `marks`); any other
product of two signals gives each factor half. What is left uses Eq. 2 and is listed in a warning.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from graphxai.rules import positive as rules_of
from graphxai.rules.conservative import Rules as ConservativeRules
from graphxai.rules.positive import Rules
from graphxai.runtime.scope import Blocks

from .attention import (
    NodeAttention,
    NodePairEntries,
    Read,
    attention_replacements,
    entries,
    exposed_attention,
    shares_of_parallel,
)
from .node_ids import NONE, RESHAPES, EntryIds, NodeIds, agree, compressed
from .replay import ReplayPlan, make_plan, out_of_place, replay
from .roles import Roles
from .trace import WEIGHTS, Op, Ref, Trace, pair_refs, refs_in
from .vocabulary import ADDITIONS, LINEAR, MATRIX_PRODUCTS, PLUS_PRODUCT, SAME, SUMS

Hand = Callable[[Tensor], tuple[Tensor, ...]]
Heads = tuple[Tensor, Tensor, Tensor]  # graph and head of each entry, important heads (B, K, H)
ALL_CONSTANT = ConservativeRules(attention=True, layernorm=True, activation="ratio")
STATISTICS = SUMS | {"amax", "amin", "max", "min", "logsumexp", "std_mean", "var_mean"}
ON_THE_WAY = STATISTICS | SAME | {"mul", "div", "neg", "add", "exp", "log", "sub"}


@dataclass(eq=False)
class RelevancePass:
    """One pass under the positive rules.

    important (B or 1, K, L, H): the heads that relevance passes through (see
    `rules.positive.through_important_entries`); None: all. reads_attention: whether the relevance
    of attention is needed. attention: probabilities (B, H, T, T) of every layer, whose "gradient"
    is their relevance; with rules that do not go into queries and keys they are leaves. chunks: as
    on `rules.conservative.Tape`. head: the input (B, D) and the weights (C, D) of the linear map
    that makes the outputs, if there is one.
    """

    rules: Rules
    important: Tensor | None = None
    reads_attention: bool = True
    attention: list[Tensor] = field(default_factory=list)
    chunks: list[int] = field(default_factory=list)
    head: tuple[Tensor, Tensor] | None = None

    def explained(self, outputs: Tensor, weights: Tensor) -> Tensor:
        """f_c = sum_c weights_c outputs_c, (B,), which starts with a relevance of one.

        outputs, weights (B, C). If the outputs come from a linear map, it is merged with f_c into
        one map to one number, so that the two classes of a single logit differ.
        """
        f = (outputs * weights.to(outputs)).sum(-1)
        if self.head is None:
            return f
        x, weight = self.head
        row = (weights.to(weight) @ weight)[:, None]  # (B, 1, D)

        def hand(relevance: Tensor) -> tuple[Tensor, ...]:
            below = rules_of.through_linear(x.detach()[:, None], row, relevance[:, None, None])
            return (below[:, 0],)

        return with_backward_rule(f, hand, x)


_passes: Blocks[RelevancePass | None] = Blocks("graphxai_relevance", None)


@contextmanager
def relevance_pass(
    rules: Rules, important: Tensor | None = None, reads_attention: bool = True
) -> Iterator[RelevancePass]:
    """Within the block passes of models send relevance back by `rules`."""
    state = RelevancePass(rules, important, reads_attention)
    with _passes.block(state):
        yield state


def current_relevance() -> RelevancePass | None:
    """The relevance pass of this block, or None."""
    return _passes.get()


def with_backward_rule(value: Tensor, hand: Hand, *inputs: Tensor) -> Tensor:
    """`value` with a backward pass that gives the inputs the relevance computed by `hand`."""
    out: Tensor = _BackwardByRule.apply([value.detach()], hand, *inputs)
    return out


class _BackwardByRule(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: list[Tensor], hand: Hand, *inputs: Tensor) -> Tensor:
        ctx.hand = hand
        return value[0]  # inside a list, so that autograd does not turn it into a view

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, relevance: Tensor) -> tuple[Tensor | None, ...]:
        return (None, None, *ctx.hand(relevance))


# -- one operation ---------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class PositiveCall:
    """An operation that runs again.

    args, kwargs: its arguments, as they were at the time, without gradients; inputs: the signals
    among them that relevance goes to, by value; made: the result, if it was kept.
    """

    op: Op
    args: Sequence[Any]
    kwargs: dict[str, Any]
    inputs: dict[int, Tensor]
    kept: dict[int, Tensor]  # all of `args` and `kwargs` by value
    made: Tensor | None
    over: "PositiveInterpreter"

    @cached_property
    def value(self) -> Tensor:
        """The result, or the first of several."""
        if self.made is not None:
            return self.made
        with torch.no_grad():
            return self.of()()

    def of(self, *values: int) -> Callable[..., Tensor]:
        """The operation as a function of these values.

        It outlives the pass, in the way back. So it must hold no tensor that has a way back itself:
        Python would never see that circle, and the pass would stay in memory for good.
        """
        op, kept, given = self.op, self.kept, (self.args, self.kwargs)
        func = out_of_place(op.func) if op.in_place else op.func

        def f(*tensors: Tensor) -> Tensor:
            new = dict(zip(values, tensors, strict=True))
            args, kwargs = op.with_tensors(lambda ref: new.get(ref.value, kept[ref.value]), *given)
            out = func(*args, **kwargs)
            first: Tensor = out[0] if isinstance(out, tuple | list) else out
            return first

        return f

    def signal(self, place: int) -> int | None:
        """The value of an argument, if it is a signal."""
        given = self.op.args[place] if place < len(self.op.args) else None
        return given.value if type(given) is Ref and given.value in self.inputs else None

    def only(self, value: int) -> "PositiveCall":
        """The same, with all relevance to one of its signals."""
        return replace(self, inputs={value: self.inputs[value]})


# -- the rules -------------------------------------------------------------------------------------


def unchanged(call: PositiveCall) -> Tensor:
    """All relevance to the first signal, summed where that was broadcast."""
    x, shape = next(iter(call.inputs.values())), call.value.shape
    x = x if x.shape == shape else x.expand(shape)
    return with_backward_rule(call.value, lambda relevance: (relevance,), x)


def by_entry(call: PositiveCall) -> Tensor:
    """Functions of one signal, entry by entry: unchanged. Eq. 2 for others, which are named."""
    (x, *others) = call.inputs.values()
    return in_proportion(call) if others or x.shape != call.value.shape else unchanged(call)


def in_proportion(call: PositiveCall) -> Tensor:
    """Eq. 2, for operations without a rule of their own."""
    if call.op.number not in call.over.made.marks.softmax:  # whose relevance is that of its scores
        call.over.unknown.add((call.op.path, call.op.name.strip("_").removesuffix("_forward")))
    f, kept, value = call.of(*call.inputs), [call.kept[v] for v in call.inputs], call.value

    def hand(relevance: Tensor) -> tuple[Tensor, ...]:
        share = torch.where(value == 0, 0.0, relevance / value)
        with torch.enable_grad():
            points = [t.detach().requires_grad_() for t in kept]
            gradients = torch.autograd.grad(f(*points), points, share)
        pairs = zip(points, gradients, strict=True)
        return tuple(t.detach() * gradient / len(kept) for t, gradient in pairs)

    return with_backward_rule(value, hand, *call.inputs.values())


def quotient(call: PositiveCall) -> Tensor:
    """All relevance to the numerator."""
    above = call.signal(0)
    return call.value if above is None else unchanged(call.only(above))


def summed(call: PositiveCall) -> Tensor:
    """Eq. 5 for sums, linear but for an offset; terms of a product of matrices share by Eq. 2."""
    if len(call.inputs) > 1:  # sums into a tensor that holds a signal
        return _plus(call, summed)
    ((value, x),) = call.inputs.items()
    rule = rules_of.through_sum
    if call.over.is_of_products(value):
        call.over.products.add(call.op.out)
        rule = rules_of.in_proportion
    f, kept = call.of(value), call.kept[value]
    offset = f(torch.zeros_like(kept))
    return with_backward_rule(call.value, lambda r: (rule(lambda z: f(z) - offset, kept, r),), x)


def added(call: PositiveCall) -> Tensor:
    """u + v or u - v, broadcast to one shape."""
    if (own := call.over.centred(call)) is not None:
        return unchanged(call.only(own))
    alpha = call.kwargs.get("alpha", 1)
    scales = {"add": (1, alpha), "sub": (1, -alpha), "rsub": (-alpha, 1)}[call.op.name]
    u, v = call.op.args[:2]
    if type(u) is type(v) and u != v and len(call.inputs) == 2:
        kept = [call.kept[ref.value] * scale for ref, scale in zip((u, v), scales, strict=True)]
        return _added(call, [call.inputs[u.value], call.inputs[v.value]], kept)
    ((value, x),) = call.inputs.items()
    constant = next((a for a, g in zip(call.args, (u, v), strict=False)
                     if isinstance(a, Tensor) and g.value != value), None)  # fmt: skip
    if call.op.name == "add" and constant is not None and call.over.gives_share(constant):
        return _added(call, [x], [call.kept[value], constant])
    return unchanged(call)


def _added(call: PositiveCall, inputs: list[Tensor], kept: list[Tensor]) -> Tensor:
    """The addition rule for two terms, of which the last may be a constant."""
    shape, rule = call.value.shape, call.over.rules.addition
    inputs = [x.expand(shape) for x in inputs]
    kept = [_finite(x.to(call.value)).expand(shape) for x in kept]
    graph = call.over.graphs_of(call)

    def hand(relevance: Tensor) -> tuple[Tensor, ...]:
        u, v, r = (x.reshape(len(graph), -1) for x in (*kept, relevance))
        return tuple(x.view(shape) for x in rule(u, v, r, graph)[: len(inputs)])

    return with_backward_rule(call.value, hand, *inputs)


def _finite(term: Tensor) -> Tensor:
    """A term of a sum with zeros at the keys that it excludes, whose probability is zero."""
    return term.masked_fill(term.isinf(), 0.0)


def _plus(call: PositiveCall, rule: Callable[[PositiveCall], Tensor]) -> Tensor:
    """A first argument plus the result of an operation without it, in two steps."""
    own, term, beta = call.signal(0), call.args[0], call.kwargs.get("beta", 1)
    nothing = torch.zeros_like(term)
    op = replace(call.op, args=(nothing, *call.op.args[1:]))
    inputs = {
        ref.value: call.inputs[ref.value] for ref in refs_in(op.args) if ref.value in call.inputs
    }
    rest = rule(replace(call, op=op, args=(nothing, *call.args[1:]), inputs=inputs, made=None))
    if beta == 0:
        return rest
    if own is not None:
        return _added(call, [rest, call.inputs[own]], [rest.detach(), term * beta])
    if call.over.gives_share(term):
        return _added(call, [rest], [rest.detach(), term * beta])
    return rest + term * beta


def multiplied(call: PositiveCall) -> Tensor:
    """Products: Eq. 5 with a constant matrix, unchanged with a constant, or the product rule."""
    first = int(call.op.name in PLUS_PRODUCT)
    factors = [call.signal(first), call.signal(first + 1)]
    signals = [value for value in factors if value is not None]
    both = len(set(signals)) == 2
    plus = first and (both or call.signal(0) is not None or call.over.gives_share(call.args[0]))
    if plus and bool(call.args[0].any()):
        return _plus(call, multiplied)
    if both or (signals and call.over.weights.get(call.op.number) not in (None, signals[0])):
        return _product(call, first)
    if call.op.name == "mul":
        return unchanged(call)
    return _weighted(call, first, factors[0] is not None) if len(signals) == 1 else by_entry(call)


def _weighted(call: PositiveCall, first: int, in_front: bool) -> Tensor:
    """Eq. 5 for a map that is linear in a signal and in a weight, but for an offset.

    With a matrix that is none of the model's weights, such as an adjacency matrix, it is a sum.
    """
    ((value, x),) = call.inputs.items()
    kept, other = call.kept[value], call.op.args[first + in_front].value
    weight = call.kept[other]
    if not (call.over.trace.flow.depends[other] & WEIGHTS or bool((weight < 0).any())):
        return summed(call)
    if call.op.name in ("mm", "bmm", "addmm", "baddbmm"):
        if not in_front:
            return with_backward_rule(
                call.value, lambda r: (rules_of.through_linear(kept.mT, weight, r.mT).mT,), x
            )
        if call.op.number == call.over.last:
            call.over.state.head = (x, weight.mT)
        return with_backward_rule(
            call.value, lambda r: (rules_of.through_linear(kept, weight.mT, r),), x
        )
    # a bias that is added, and taken away again, would leave rounding where hardly anything arrives
    biases = {r.value: torch.zeros_like(call.kept[r.value]) for r in refs_in(call.op.args[2:3])}
    plain = replace(call, kept=call.kept | biases) if call.op.name == "convolution" else call
    f = plain.of(value, other)
    offset = f(torch.zeros_like(kept), weight)

    def hand(relevance: Tensor) -> tuple[Tensor, ...]:
        return (rules_of.through_weights(lambda z, w: f(z, w) - offset, kept, weight, relevance),)

    return with_backward_rule(call.value, hand, x)


def _product(call: PositiveCall, first: int) -> Tensor:
    """A product of two signals; of attention, the weights come first."""
    left, right = (call.op.args[place].value for place in (first, first + 1))
    weights, over = call.over.weights.get(call.op.number), call.over
    a, v = (right, left) if weights == right else (left, right)
    rule = rules_of.through_product if weights is None else over.rules.product
    if rule is rules_of.through_product:
        over.products.add(call.op.out)
    plain = call.op.name in ("mm", "bmm") and a == left
    f = torch.matmul if plain else call.of(a, v)
    heads = over.heads_of(call.op, call.kept[a], call.kept[v], f)
    kept = call.kept[a], call.kept[v]
    wanted = [k for k, value in enumerate((a, v)) if value in call.inputs]

    def hand(relevance: Tensor) -> tuple[Tensor, ...]:
        if heads is not None:
            relevance = rules_of.through_important_entries(relevance, *heads)
        found = rule(*kept, relevance, f)
        return tuple(found[k] for k in wanted)

    return with_backward_rule(call.value, hand, *(call.inputs[(a, v)[k]] for k in wanted))


BY_ENTRY = {
    "neg", "relu", "leaky_relu", "_prelu_kernel", "prelu", "clamp", "clamp_min",
    "clamp_max", "abs", "threshold", "hardtanh_relu", "diff",
}  # fmt: skip
AVERAGES = {
    "_adaptive_avg_pool2d", "adaptive_avg_pool1d", "_adaptive_avg_pool3d", "avg_pool2d",
    "avg_pool3d", "upsample_nearest2d", "upsample_bilinear2d", "col2im", "_embedding_bag",
}  # fmt: skip
# operation: its rule; None: the ordinary backward pass; any other acts by entry, or is named
POSITIVE: dict[str, Callable[[PositiveCall], Tensor] | None] = {
    **dict.fromkeys(LINEAR - BY_ENTRY),
    **dict.fromkeys(SAME),
    **dict.fromkeys(SUMS | AVERAGES, summed),
    **dict.fromkeys(ADDITIONS, added),
    **dict.fromkeys(MATRIX_PRODUCTS | {"mul"}, multiplied),
    "div": quotient,
}


# -- the whole list --------------------------------------------------------------------------------


class PositiveInterpreter:
    """What runs in place of each operation of a pass.

    unknown: operations without a rule, with the path of their module. products: values that are
    products of two signals, whose sum is a product of matrices, or such sums.
    """

    def __init__(
        self,
        made: ReplayPlan,
        nodes: NodeIds,
        state: RelevancePass,
        size: int,
        placed: Sequence[NodeAttention],
    ) -> None:
        self.made, self.nodes, self.state, self.size = made, nodes, state, size
        self.rules, self.trace = state.rules, made.trace
        self.unknown: set[tuple[str, str]] = set()
        self.products: set[int] = set()
        self.last = _last_map(made)
        self.weights = {met.product.number: met.weights for met in made.marks.attention}
        state.chunks = [seen.chunk_of for seen in placed]
        firsts = sorted(set(state.chunks))  # chunks of a matrix are one layer
        self._placed = {
            n: (firsts.index(seen.chunk_of), seen.place) for seen in placed for n in seen.products
        }

    def __call__(self, op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """The result of an operation, which passes relevance back by its rule."""
        rule = POSITIVE.get(op.name, by_entry)
        if rule is None or any(isinstance(arg, str) and arg in ("amax", "amin") for arg in op.args):
            return op.func(*args, **kwargs)
        given = pair_refs((op.args, op.kwargs), (args, kwargs))
        reads = {ref.value: tensor for ref, tensor in given}
        inputs = {
            value: t for value, t in reads.items() if self.made.signal[value] and t.requires_grad
        }
        if not inputs or not any(self.made.signal[ref.value] for ref in op.makes):
            return op.func(*args, **kwargs)
        unstable, slot = self.trace.memory.unstable, op.makes[0].slot
        kept = {value: t.detach() for value, t in reads.items()}
        kept |= {ref.value: kept[ref.value].clone() for ref in op.reads if ref.slot in unstable}
        made = None if slot in unstable else self.trace.memory.tensors[slot].detach()
        frozen = op.with_tensors(lambda ref: kept[ref.value], args, kwargs)
        out = rule(PositiveCall(op, *frozen, inputs, kept, made, self))
        if op.in_place:
            return args[0].copy_(out) if out is not args[0] else out
        return [out, *[None] * len(op.result[1:])] if isinstance(op.result, list) else out

    # -- queries -------------------------------------------------------------------------------

    def gives_share(self, constant: Tensor) -> bool:
        """Whether a constant in a sum takes its share: it is as large as a whole input."""
        return self.rules.into_queries_and_keys and constant.dim() > 1

    def is_of_products(self, value: int) -> bool:
        """Whether a value consists of products whose sum is one of matrices.

        They may have been moved, scaled or put beside one another on the way, or, as those of
        attention, divided by the sum of their weights.
        """

        def further(value: int, op: Op) -> set[int]:
            if value in self.products:
                return set()
            reads = self.trace.flow.merged.get(value) or self.made.taken[op.number]
            return {read for read in reads if self.made.signal[read]}

        def fits(value: int) -> bool:
            op = self.trace.op_of(value)
            if value in self.products or op is None:
                return value in self.products
            moved = value in self.trace.flow.merged or op.name in SAME
            return moved or (op.name in {"mul", "div", "neg"} and self._scales(op))

        return all(map(fits, self.trace.ancestors(value, further)))

    def _scales(self, op: Op) -> bool:
        """Whether an operation multiplies or divides by constants, or by a sum of weights."""
        if op.number in self.made.marks.shares:
            return True
        signals = [ref for ref in op.reads if self.made.signal[ref.value]]
        return len(signals) == 1 and (op.name != "div" or op.args[0] == signals[0])

    def centred(self, call: PositiveCall) -> int | None:
        """The value x of `x - m`, where m is a mean, or other statistic, of the entries of x.

        So a norm passes relevance on unchanged. A mean of other nodes, as in a Laplacian, is not
        meant: all between x and m is of the same node as x, or of its whole graph.
        """
        if call.op.name != "sub" or len(call.inputs) != 2:
            return None
        x, mean = (ref.value for ref in call.op.reads)
        if call.op.number in self.made.marks.shifts:
            return x
        numbers = self.nodes.by_value.get(x)
        if numbers is None:
            return None

        def fits(value: int) -> bool:
            return self.trace.op_name(value) in ON_THE_WAY and self._is_of(value, numbers)

        def further(value: int, op: Op) -> set[int]:
            reads = {ref.value for ref in op.reads if self.made.signal[ref.value]}
            return reads - {x} if fits(value) else set()

        between = list(self.trace.ancestors(mean, further))
        summed_up = any(self.trace.op_name(value) in STATISTICS for value in between)
        return x if summed_up and all(map(fits, between)) else None

    def _is_of(self, value: int, nodes: EntryIds) -> bool:
        """Whether a value is of whole graphs, or row by row of the same nodes or pairs."""
        own = self.nodes.by_value.get(value)
        if own is None:
            return False
        if own.key is not None:
            pairs = nodes.key is not None and agree(own.key, nodes.key)
            return pairs and agree(own.query, nodes.query)
        if bool((own.query <= NONE).all()) or agree(own.query, nodes.query):
            return True
        return nodes.key is not None and agree(own.query, nodes.key)

    def graphs_of(self, call: PositiveCall) -> Tensor:
        """The graph (R,) of each row of a result, or as many of its first axes as have several."""
        shape, numbers = call.value.shape, self.nodes.by_value.get(call.op.out)
        if numbers is None or not call.value.numel():
            return torch.zeros(1, dtype=torch.long, device=call.value.device)
        graph = compressed(self.nodes.graph(numbers.query))
        graph = graph.reshape((*(1,) * (len(shape) - graph.dim()), *graph.shape))
        several = [axis + 1 for axis, length in enumerate(graph.shape) if length > 1]
        axes = max(several, default=0)
        wide = graph.reshape(graph.shape[:axes]).expand(shape[:axes])
        return wide.flatten().unique(return_inverse=True)[1]

    # -- attention -----------------------------------------------------------------------------

    def exposing(self, place: NodePairEntries) -> Read:
        """Attention as (B, H, T, T), in the way of the relevance."""

        def read(weights: Tensor) -> Tensor:
            leaf = not self.rules.into_queries_and_keys
            attention, _ = exposed_attention(
                weights.detach(), place, self.size, self.nodes.tokens, leaf
            )
            share = shares_of_parallel(place.inside(weights.detach()), attention, place)
            nothing = torch.zeros_like(weights)

            def to_weights(relevance: Tensor) -> tuple[Tensor, ...]:
                each = relevance.permute(0, 2, 3, 1)[place.positions]
                return (nothing.put(place.index, each if share is None else each * share),)

            def to_attention(relevance: Tensor) -> tuple[Tensor, ...]:
                each = relevance.take(place.index)
                found = place.summed(each, len(attention), *attention.shape[2:])
                return found, relevance.put(place.index, torch.zeros_like(each))

            if not leaf:
                attention = with_backward_rule(attention, to_weights, weights)
            self.state.attention.append(attention)
            return with_backward_rule(weights, to_attention, attention, weights)

        return read

    def heads_of(
        self, op: Op, weights: Tensor, values: Tensor, f: Callable[[Tensor, Tensor], Tensor]
    ) -> Heads | None:
        """Graph and head of every entry of f(weights, values), and the layer's important heads."""
        important = self.state.important
        if important is None or op.number not in self._placed:
            return None
        layer, place = self._placed[op.number]
        chosen = important[:, :, layer, : place.index.shape[1]].expand(self.size, -1, -1)
        ones = torch.ones_like(values)
        graph, head, inside = (f(part.to(ones), ones) for part in entries(weights, place))
        inside = inside.clamp(min=1)
        return (graph / inside).round().long(), (head / inside).round().long(), chosen


def _last_map(made: ReplayPlan) -> int | None:
    """The number of the affine map with constant weights that makes the output (B, C)."""
    trace, value = made.trace, made.trace.output.value
    op = trace.op_of(value)
    while op is not None and op.name in RESHAPES | {"add", "_to_copy", "alias"}:
        signals = [ref.value for ref in op.reads if made.signal[ref.value]]
        if len(signals) != 1 or trace.shape(op.out).numel() != trace.shape(signals[0]).numel():
            return None
        op = trace.op_of(signals[0])
    if op is None or op.name not in ("mm", "addmm"):
        return None
    return op.number if trace.shape(op.out) == trace.shape(value) else None


def run_by_positive_rules(
    made: ReplayPlan,
    nodes: NodeIds,
    inputs: Mapping[int, Tensor],
    size: int,
    placed: Sequence[NodeAttention],
    state: RelevancePass,
    name: str,
) -> Tensor:
    """The output of a pass, whose "gradient" by inputs and attention is relevance.

    inputs: by slot; placed: attention to read.
    """
    positive = PositiveInterpreter(made, nodes, state, size, placed)
    read = attention_replacements(placed, positive.exposing)
    output: Tensor = replay(made, inputs, replacements=read, apply=positive).output()
    if positive.unknown:
        lines = sorted(f"{place or name}: {what}" for place, what in positive.unknown)
        warnings.warn(
            f"{name} has parts that no positive rule covers; their inputs got relevance in"
            f" proportion to gradient x input: {'; '.join(lines)}.",
            stacklevel=9,
        )
    return output


def make_positive_plan(trace: Trace, marks: Roles, rules: Rules, bits: int) -> ReplayPlan:
    """What runs again: gates and scales are constant, and attention where relevance ends there."""
    held = {number: dict(values) for number, values in marks.held.items()}
    if rules.into_queries_and_keys:
        for met in marks.attention:
            held[met.product.number].pop(met.weights, None)
    return make_plan(trace, replace(marks, held=held, products=set()), ALL_CONSTANT, bits)
