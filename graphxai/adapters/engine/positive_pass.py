"""Pass relevance back along a recorded list by the positive rules of Chefer et al., CVPR 2021.

The operations run again with the values they had. The backward pass of each operation is its rule
in `rules.positive`, so that autograd returns relevance as "gradient". `POSITIVE` says which rule an
operation has:

* affine maps and products with a constant matrix: Eq. 5; their biases take no part;
* sums and means over nodes, entries or channels: Eq. 5;
* `u + v`: the addition rule, per graph. If relevance goes into queries and keys, a constant as
  large as a whole input, such as a structural bias or a position, gets a share, too;
* attention times values, and queries times keys: the product rule;
* norms, activations, softmax and all else that acts entry by entry: relevance is passed on
  unchanged. A quotient passes it to the numerator;
* operations that only move values: the ordinary backward pass.

A gate, or the scale of a norm, passes all relevance to what it multiplies (see `roles`). Any other
product of two signals gives each factor half. All other operations use Eq. 2, and a warning lists
them.
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
from graphxai.rules.conservative import Rules
from graphxai.rules.positive import PositiveRules
from graphxai.runtime.scope import Blocks

from .attention import (
    NodeAttention,
    NodePairEntries,
    TensorFunction,
    attention_replacements,
    exposed_attention,
    graphs_and_heads,
    shares_of_parallel,
)
from .node_ids import NONE, RESHAPES, EntryIds, NodeIds, agree, compressed
from .replay import ReplayPlan, make_plan, out_of_place, replay
from .roles import Roles
from .trace import WEIGHTS, Op, Ref, Trace, pair_refs, refs_in
from .vocabulary import ADDITIONS, LINEAR, MATRIX_PRODUCTS, PLUS_PRODUCT, SAME, SUMS

BackwardRule = Callable[[Tensor], tuple[Tensor, ...]]
# the graph and the head of each entry, and the important heads (B, K, H)
ImportantHeads = tuple[Tensor, Tensor, Tensor]
ALL_CONSTANT = Rules(attention=True, layernorm=True, activation="ratio")
STATISTICS = SUMS | {"amax", "amin", "max", "min", "logsumexp", "std_mean", "var_mean"}
ON_THE_WAY = STATISTICS | SAME | {"mul", "div", "neg", "add", "exp", "log", "sub"}


@dataclass(eq=False)
class RelevancePass:
    """One pass under the positive rules.

    Args:
        important (B or 1, K, L, H): the heads that relevance passes through (see
            `rules.positive.through_important_entries`), or None for all.
        reads_attention: whether the relevance of attention is needed.
        attention: the probabilities (B, H, T, T) of every layer, whose "gradient" is their
            relevance. They are leaves if the rules do not go into queries and keys.
        chunks: as on `rules.conservative.Tape`.
        head: the input (B, D) and the weights (C, D) of the linear map that makes the outputs,
            if there is one.
    """

    rules: PositiveRules
    important: Tensor | None = None
    reads_attention: bool = True
    attention: list[Tensor] = field(default_factory=list)
    chunks: list[int] = field(default_factory=list)
    head: tuple[Tensor, Tensor] | None = None

    def explained(self, outputs: Tensor, weights: Tensor) -> Tensor:
        """Return f_c = sum_c weights_c outputs_c, (B,), where a relevance of one begins.

        outputs, weights (B, C). If a linear map makes the outputs, it is merged with this sum into
        a map to one number, so that the two classes of a single logit differ.
        """
        f = (outputs * weights.to(outputs)).sum(-1)
        if self.head is None:
            return f
        x, weight = self.head
        row = (weights.to(weight) @ weight)[:, None]  # (B, 1, D)

        def backward(relevance: Tensor) -> tuple[Tensor, ...]:
            below = rules_of.through_linear(x.detach()[:, None], row, relevance[:, None, None])
            return (below[:, 0],)

        return with_backward_rule(f, backward, x)


_passes: Blocks[RelevancePass | None] = Blocks("graphxai_relevance", None)


@contextmanager
def relevance_pass(
    rules: PositiveRules, important: Tensor | None = None, reads_attention: bool = True
) -> Iterator[RelevancePass]:
    """Let models pass relevance back by these rules within the block."""
    state = RelevancePass(rules, important, reads_attention)
    with _passes.block(state):
        yield state


def current_relevance() -> RelevancePass | None:
    """Return the relevance pass of the innermost block in this thread, or None."""
    return _passes.get()


def with_backward_rule(value: Tensor, backward: BackwardRule, *inputs: Tensor) -> Tensor:
    """Return a value whose backward pass gives the inputs relevance, computed by a rule."""
    out: Tensor = _BackwardByRule.apply([value.detach()], backward, *inputs)
    return out


class _BackwardByRule(torch.autograd.Function):
    """Returns a value as it is, and calls a rule in the backward pass."""

    @staticmethod
    def forward(ctx: Any, value: list[Tensor], rule: BackwardRule, *inputs: Tensor) -> Tensor:
        ctx.rule = rule
        return value[0]  # inside a list, so that autograd does not turn it into a view

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, relevance: Tensor) -> tuple[Tensor | None, ...]:
        return (None, None, *ctx.rule(relevance))


# -- one operation ---------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class PositiveCall:
    """An operation that runs again.

    Args:
        args, kwargs: its arguments as they were at the time, without gradients.
        inputs: by value, the signals among them that relevance goes to.
        tensors: by value, all tensors among the arguments, without gradients.
        result: the recorded result, if nothing wrote to it.
    """

    op: Op
    args: Sequence[Any]
    kwargs: dict[str, Any]
    inputs: dict[int, Tensor]
    tensors: dict[int, Tensor]
    result: Tensor | None
    interpreter: "PositiveInterpreter"

    @cached_property
    def value(self) -> Tensor:
        """The result, or the first of several."""
        if self.result is not None:
            return self.result
        with torch.no_grad():
            return self.of()()

    def of(self, *values: int) -> Callable[..., Tensor]:
        """Return the operation as a function of these values.

        The function is part of the backward pass. So it must hold no tensor that has a backward
        pass itself: Python would not see the circle, and the pass would stay in memory for good.
        """
        op, recorded, arguments = self.op, self.tensors, (self.args, self.kwargs)
        func = out_of_place(op.func) if op.in_place else op.func

        def f(*tensors: Tensor) -> Tensor:
            new = dict(zip(values, tensors, strict=True))
            args, kwargs = op.with_tensors(
                lambda ref: new.get(ref.value, recorded[ref.value]), *arguments
            )
            out = func(*args, **kwargs)
            first: Tensor = out[0] if isinstance(out, tuple | list) else out
            return first

        return f

    def signal(self, place: int) -> int | None:
        """Return the value of the argument at a place if it is a signal, else None."""
        ref = self.op.args[place] if place < len(self.op.args) else None
        return ref.value if type(ref) is Ref and ref.value in self.inputs else None

    def only(self, value: int) -> "PositiveCall":
        """Let all relevance go to one of the signals."""
        return replace(self, inputs={value: self.inputs[value]})


# -- the rules -------------------------------------------------------------------------------------


def unchanged(call: PositiveCall) -> Tensor:
    """Pass all relevance to the first signal, summed where that was broadcast."""
    x, shape = next(iter(call.inputs.values())), call.value.shape
    x = x if x.shape == shape else x.expand(shape)
    return with_backward_rule(call.value, lambda relevance: (relevance,), x)


def by_entry(call: PositiveCall) -> Tensor:
    """Pass relevance through a function of one signal, entry by entry, unchanged; else by Eq. 2."""
    (x, *others) = call.inputs.values()
    return in_proportion(call) if others or x.shape != call.value.shape else unchanged(call)


def in_proportion(call: PositiveCall) -> Tensor:
    """Pass relevance by Eq. 2, for operations without a rule of their own, and name them."""
    if call.op.number not in call.interpreter.plan.roles.softmax:  # its scores get the relevance
        call.interpreter.unknown.add(
            (call.op.path, call.op.name.strip("_").removesuffix("_forward"))
        )
    f, inputs, value = call.of(*call.inputs), [call.tensors[v] for v in call.inputs], call.value

    def backward(relevance: Tensor) -> tuple[Tensor, ...]:
        share = torch.where(value == 0, 0.0, relevance / value)
        with torch.enable_grad():
            points = [t.detach().requires_grad_() for t in inputs]
            gradients = torch.autograd.grad(f(*points), points, share)
        pairs = zip(points, gradients, strict=True)
        return tuple(t.detach() * gradient / len(inputs) for t, gradient in pairs)

    return with_backward_rule(value, backward, *call.inputs.values())


def quotient(call: PositiveCall) -> Tensor:
    """Pass all relevance to the numerator."""
    above = call.signal(0)
    return call.value if above is None else unchanged(call.only(above))


def summed(call: PositiveCall) -> Tensor:
    """Pass relevance through a sum by Eq. 5, or by Eq. 2 if it completes a product of matrices."""
    if len(call.inputs) > 1:  # the sum is added to a tensor that holds a signal
        return _plus(call, summed)
    ((value, x),) = call.inputs.items()
    rule = rules_of.through_sum
    if call.interpreter.is_of_products(value):
        call.interpreter.products.add(call.op.out)
        rule = rules_of.in_proportion
    f, recorded = call.of(value), call.tensors[value]
    offset = f(torch.zeros_like(recorded))
    return with_backward_rule(
        call.value, lambda r: (rule(lambda z: f(z) - offset, recorded, r),), x
    )


def added(call: PositiveCall) -> Tensor:
    """Pass relevance through `u + v` or `u - v`, broadcast to one shape, by the addition rule."""
    if (centred := call.interpreter.centred(call)) is not None:
        return unchanged(call.only(centred))
    alpha = call.kwargs.get("alpha", 1)
    scales = {"add": (1, alpha), "sub": (1, -alpha), "rsub": (-alpha, 1)}[call.op.name]
    u, v = call.op.args[:2]
    if type(u) is type(v) and u != v and len(call.inputs) == 2:
        terms = [call.tensors[ref.value] * scale for ref, scale in zip((u, v), scales, strict=True)]
        return _added(call, [call.inputs[u.value], call.inputs[v.value]], terms)
    ((value, x),) = call.inputs.items()
    constant = next((a for a, g in zip(call.args, (u, v), strict=False)
                     if isinstance(a, Tensor) and g.value != value), None)  # fmt: skip
    if call.op.name == "add" and constant is not None and call.interpreter.gives_share(constant):
        return _added(call, [x], [call.tensors[value], constant])
    return unchanged(call)


def _added(call: PositiveCall, inputs: list[Tensor], terms: list[Tensor]) -> Tensor:
    """Apply the addition rule to two terms, of which the last may be a constant.

    Args:
        inputs: the terms that relevance goes to.
        terms: their values, and that of a constant.
    """
    shape, rule = call.value.shape, call.interpreter.rules.addition
    inputs = [x.expand(shape) for x in inputs]
    terms = [_finite(x.to(call.value)).expand(shape) for x in terms]
    graph = call.interpreter.graphs_of(call)

    def backward(relevance: Tensor) -> tuple[Tensor, ...]:
        u, v, r = (x.reshape(len(graph), -1) for x in (*terms, relevance))
        return tuple(x.view(shape) for x in rule(u, v, r, graph)[: len(inputs)])

    return with_backward_rule(call.value, backward, *inputs)


def _finite(term: Tensor) -> Tensor:
    """Replace infinite entries of a term by zeros. The keys they exclude have no probability."""
    return term.masked_fill(term.isinf(), 0.0)


def _plus(call: PositiveCall, rule: Callable[[PositiveCall], Tensor]) -> Tensor:
    """Run an operation that adds to its first argument in two steps, of which `rule` is one."""
    first, term, beta = call.signal(0), call.args[0], call.kwargs.get("beta", 1)
    zeros = torch.zeros_like(term)
    op = replace(call.op, args=(zeros, *call.op.args[1:]))
    inputs = {
        ref.value: call.inputs[ref.value] for ref in refs_in(op.args) if ref.value in call.inputs
    }
    rest = rule(replace(call, op=op, args=(zeros, *call.args[1:]), inputs=inputs, result=None))
    if beta == 0:
        return rest
    if call.kwargs.get("include_self") is False:  # entries that something is summed into are lost
        dim, index = call.args[1:3]
        term = term.masked_fill(torch.zeros_like(term).scatter(dim, index, 1.0) > 0, 0.0)
    if first is not None:
        return _added(call, [rest, call.inputs[first]], [rest.detach(), term * beta])
    if call.interpreter.gives_share(term):
        return _added(call, [rest], [rest.detach(), term * beta])
    return rest + term * beta


def multiplied(call: PositiveCall) -> Tensor:
    """Pass relevance through a product.

    The rule is Eq. 5 for a constant matrix, and the product rule for two signals. Another constant
    lets relevance pass unchanged.
    """
    first = int(call.op.name in PLUS_PRODUCT)
    factors = [call.signal(first), call.signal(first + 1)]
    signals = [value for value in factors if value is not None]
    both = len(set(signals)) == 2
    plus = first and (
        both or call.signal(0) is not None or call.interpreter.gives_share(call.args[0])
    )
    if plus and bool(call.args[0].any()):
        return _plus(call, multiplied)
    if both or (signals and call.interpreter.weights.get(call.op.number) not in (None, signals[0])):
        return _product(call, first)
    if call.op.name == "mul":
        return unchanged(call)
    return _weighted(call, first, factors[0] is not None) if len(signals) == 1 else by_entry(call)


def _weighted(call: PositiveCall, first: int, in_front: bool) -> Tensor:
    """Pass relevance by Eq. 5 through a map that is affine in a signal, and in a weight.

    A matrix that is none of the model's weights, such as an adjacency matrix, makes it a sum.
    """
    ((value, x),) = call.inputs.items()
    recorded, other = call.tensors[value], call.op.args[first + in_front].value
    weight = call.tensors[other]
    if not (call.interpreter.trace.flow.depends[other] & WEIGHTS or bool((weight < 0).any())):
        return summed(call)
    if call.op.name in ("mm", "bmm", "addmm", "baddbmm"):
        if not in_front:
            return with_backward_rule(
                call.value, lambda r: (rules_of.through_linear(recorded.mT, weight, r.mT).mT,), x
            )
        if call.op.number == call.interpreter.last:
            call.interpreter.state.head = (x, weight.mT)
        return with_backward_rule(
            call.value, lambda r: (rules_of.through_linear(recorded, weight.mT, r),), x
        )
    # to add a bias and subtract it again would leave rounding where results are small
    biases = {r.value: torch.zeros_like(call.tensors[r.value]) for r in refs_in(call.op.args[2:3])}
    plain = replace(call, tensors=call.tensors | biases) if call.op.name == "convolution" else call
    f = plain.of(value, other)
    offset = f(torch.zeros_like(recorded), weight)

    def backward(relevance: Tensor) -> tuple[Tensor, ...]:
        passed = rules_of.through_weights(
            lambda z, w: f(z, w) - offset, recorded, weight, relevance
        )
        return (passed,)

    return with_backward_rule(call.value, backward, x)


def _product(call: PositiveCall, first: int) -> Tensor:
    """Pass relevance through a product of two signals by the product rule.

    The rule gets the weights of attention first.
    """
    left, right = (call.op.args[place].value for place in (first, first + 1))
    weights, interpreter = call.interpreter.weights.get(call.op.number), call.interpreter
    a, v = (right, left) if weights == right else (left, right)
    rule = rules_of.through_product if weights is None else interpreter.rules.product
    if rule is rules_of.through_product:
        interpreter.products.add(call.op.out)
    plain = call.op.name in ("mm", "bmm") and a == left
    f = torch.matmul if plain else call.of(a, v)
    factors = call.tensors[a], call.tensors[v]
    heads = interpreter.heads_of(call.op, *factors, f)
    wanted = [k for k, value in enumerate((a, v)) if value in call.inputs]

    def backward(relevance: Tensor) -> tuple[Tensor, ...]:
        if heads is not None:
            relevance = rules_of.through_important_entries(relevance, *heads)
        of_factors = rule(*factors, relevance, f)
        return tuple(of_factors[k] for k in wanted)

    return with_backward_rule(call.value, backward, *(call.inputs[(a, v)[k]] for k in wanted))


BY_ENTRY = {
    "neg", "relu", "leaky_relu", "_prelu_kernel", "prelu", "clamp", "clamp_min",
    "clamp_max", "abs", "threshold", "hardtanh_relu", "diff",
}  # fmt: skip
AVERAGES = {
    "_adaptive_avg_pool2d", "adaptive_avg_pool1d", "_adaptive_avg_pool3d", "avg_pool2d",
    "avg_pool3d", "upsample_nearest2d", "upsample_bilinear2d", "col2im", "_embedding_bag",
}  # fmt: skip
# For each operation its rule, or None for the ordinary backward pass. An operation that is not
# listed acts entry by entry, or it is named in a warning.
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
    """Runs the operations of a pass, so that each passes relevance back by its rule.

    Args:
        unknown: the path and the name of each operation without a rule.
        products: the values that are products of two signals, or sums of such products, which
            are products of matrices.
    """

    def __init__(
        self,
        plan: ReplayPlan,
        nodes: NodeIds,
        state: RelevancePass,
        size: int,
        attention: Sequence[NodeAttention],
    ) -> None:
        self.plan, self.nodes, self.state, self.size = plan, nodes, state, size
        self.rules, self.trace = state.rules, plan.trace
        self.unknown: set[tuple[str, str]] = set()
        self.products: set[int] = set()
        self.last = _last_map(plan)
        self.weights = {product.op.number: product.weights for product in plan.roles.attention}
        state.chunks = [layer.chunk_of for layer in attention]
        firsts = sorted(set(state.chunks))  # the chunks of a matrix are one layer
        self._entries = {
            number: (firsts.index(layer.chunk_of), layer.entries)
            for layer in attention
            for number in layer.weights
        }

    def __call__(self, op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Run an operation, so that it passes relevance back by its rule."""
        rule = POSITIVE.get(op.name, by_entry)
        if rule is None or any(isinstance(arg, str) and arg in ("amax", "amin") for arg in op.args):
            return op.func(*args, **kwargs)
        reads = {ref.value: t for ref, t in pair_refs((op.args, op.kwargs), (args, kwargs))}
        inputs = {
            value: t for value, t in reads.items() if self.plan.signal[value] and t.requires_grad
        }
        if not inputs or not any(self.plan.signal[ref.value] for ref in op.makes):
            return op.func(*args, **kwargs)
        unstable, slot = self.trace.memory.unstable, op.makes[0].slot
        tensors = {value: t.detach() for value, t in reads.items()}
        tensors |= {
            ref.value: tensors[ref.value].clone() for ref in op.reads if ref.slot in unstable
        }
        result = None if slot in unstable else self.trace.memory.tensors[slot].detach()
        frozen = op.with_tensors(lambda ref: tensors[ref.value], args, kwargs)
        out = rule(PositiveCall(op, *frozen, inputs, tensors, result, self))
        if op.in_place:
            return args[0].copy_(out) if out is not args[0] else out
        return [out, *[None] * len(op.result[1:])] if isinstance(op.result, list) else out

    # -- queries -------------------------------------------------------------------------------

    def gives_share(self, constant: Tensor) -> bool:
        """Whether a constant in a sum gets a share, because it is as large as a whole input."""
        return self.rules.into_queries_and_keys and constant.dim() > 1

    def is_of_products(self, value: int) -> bool:
        """Whether a value consists of products, so that their sum is a product of matrices.

        The products may have been moved, scaled, joined or, like those of attention, divided by the
        sum of their weights.
        """

        def further(value: int, op: Op) -> set[int]:
            if value in self.products:
                return set()
            reads = self.trace.flow.merged.get(value) or self.plan.taken[op.number]
            return {read for read in reads if self.plan.signal[read]}

        def fits(value: int) -> bool:
            op = self.trace.op_of(value)
            if value in self.products or op is None:
                return value in self.products
            moved = value in self.trace.flow.merged or op.name in SAME
            return moved or (op.name in {"mul", "div", "neg"} and self._scales(op))

        return all(map(fits, self.trace.ancestors(value, further)))

    def _scales(self, op: Op) -> bool:
        """Whether an operation multiplies or divides by constants, or by a sum of weights."""
        if op.number in self.plan.roles.shares:
            return True
        signals = [ref for ref in op.reads if self.plan.signal[ref.value]]
        return len(signals) == 1 and (op.name != "div" or op.args[0] == signals[0])

    def centred(self, call: PositiveCall) -> int | None:
        """Return x if the operation is `x - m` with a mean, or another statistic, of x.

        So a norm passes relevance on unchanged. A mean of other nodes, as in a Laplacian, is no
        such statistic: all values between x and m belong to the node of x, or to its whole graph.
        """
        if call.op.name != "sub" or len(call.inputs) != 2:
            return None
        x, mean = (ref.value for ref in call.op.reads)
        if call.op.number in self.plan.roles.shifts:
            return x
        ids = self.nodes.by_value.get(x)
        if ids is None:
            return None

        def fits(value: int) -> bool:
            return self.trace.op_name(value) in ON_THE_WAY and self._is_of(value, ids)

        def further(value: int, op: Op) -> set[int]:
            reads = {ref.value for ref in op.reads if self.plan.signal[ref.value]}
            return reads - {x} if fits(value) else set()

        between = list(self.trace.ancestors(mean, further))
        summed_up = any(self.trace.op_name(value) in STATISTICS for value in between)
        return x if summed_up and all(map(fits, between)) else None

    def _is_of(self, value: int, nodes: EntryIds) -> bool:
        """Whether a value is of whole graphs, or row by row of the same nodes or pairs."""
        ids = self.nodes.by_value.get(value)
        if ids is None:
            return False
        if ids.key is not None:
            pairs = nodes.key is not None and agree(ids.key, nodes.key)
            return pairs and agree(ids.query, nodes.query)
        if bool((ids.query <= NONE).all()) or agree(ids.query, nodes.query):
            return True
        return nodes.key is not None and agree(ids.query, nodes.key)

    def graphs_of(self, call: PositiveCall) -> Tensor:
        """Return the graph (R,) of each row of a result.

        A row is an entry of its first axes, as many of them as have several graphs.
        """
        shape, ids = call.value.shape, self.nodes.by_value.get(call.op.out)
        if ids is None or not call.value.numel():
            return torch.zeros(1, dtype=torch.long, device=call.value.device)
        graph = compressed(self.nodes.graph(ids.query))
        graph = graph.reshape((*(1,) * (len(shape) - graph.dim()), *graph.shape))
        several = [axis + 1 for axis, length in enumerate(graph.shape) if length > 1]
        axes = max(several, default=0)
        wide = graph.reshape(graph.shape[:axes]).expand(shape[:axes])
        return wide.flatten().unique(return_inverse=True)[1]

    # -- attention -----------------------------------------------------------------------------

    def exposing(self, entries: NodePairEntries) -> TensorFunction:
        """Return a function that puts attention (B, H, T, T) where relevance passes through it."""

        def expose(weights: Tensor) -> Tensor:
            leaf = not self.rules.into_queries_and_keys
            attention, _ = exposed_attention(
                weights.detach(), entries, self.size, self.nodes.tokens, leaf
            )
            share = shares_of_parallel(entries.inside(weights.detach()), attention, entries)
            zeros = torch.zeros_like(weights)

            def to_weights(relevance: Tensor) -> tuple[Tensor, ...]:
                of_entries = relevance.permute(0, 2, 3, 1)[entries.positions]
                of_entries = of_entries if share is None else of_entries * share
                return (zeros.put(entries.index, of_entries),)

            def to_attention(relevance: Tensor) -> tuple[Tensor, ...]:
                of_entries = relevance.take(entries.index)
                of_attention = entries.summed(of_entries, len(attention), *attention.shape[2:])
                return of_attention, relevance.put(entries.index, torch.zeros_like(of_entries))

            if not leaf:
                attention = with_backward_rule(attention, to_weights, weights)
            self.state.attention.append(attention)
            return with_backward_rule(weights, to_attention, attention, weights)

        return expose

    def heads_of(
        self, op: Op, weights: Tensor, values: Tensor, f: Callable[[Tensor, Tensor], Tensor]
    ) -> ImportantHeads | None:
        """Return the graph and the head of every entry of f(weights, values).

        With them comes which heads of the layer are important. Returns None if all are.
        """
        important = self.state.important
        if important is None or op.number not in self._entries:
            return None
        layer, entries = self._entries[op.number]
        chosen = important[:, :, layer, : entries.index.shape[1]].expand(self.size, -1, -1)
        ones = torch.ones_like(values)
        graph, head, inside = (
            f(part.to(ones), ones) for part in graphs_and_heads(weights, entries)
        )
        inside = inside.clamp(min=1)
        return (graph / inside).round().long(), (head / inside).round().long(), chosen


def _last_map(plan: ReplayPlan) -> int | None:
    """Return the number of the affine map with constant weights that makes the output (B, C)."""
    trace, value = plan.trace, plan.trace.output.value
    op = trace.op_of(value)
    while op is not None and op.name in RESHAPES | {"add", "_to_copy", "alias"}:
        signals = [ref.value for ref in op.reads if plan.signal[ref.value]]
        if len(signals) != 1 or trace.shape(op.out).numel() != trace.shape(signals[0]).numel():
            return None
        op = trace.op_of(signals[0])
    if op is None or op.name not in ("mm", "addmm"):
        return None
    return op.number if trace.shape(op.out) == trace.shape(value) else None


def run_by_positive_rules(
    plan: ReplayPlan,
    nodes: NodeIds,
    inputs: Mapping[int, Tensor],
    size: int,
    attention: Sequence[NodeAttention],
    state: RelevancePass,
    name: str,
) -> Tensor:
    """Return the output of a pass, whose "gradient" by inputs and attention is relevance.

    Args:
        inputs: by slot.
        attention: what is read of it.
    """
    interpreter = PositiveInterpreter(plan, nodes, state, size, attention)
    replacements = attention_replacements(attention, interpreter.exposing)
    output: Tensor = replay(plan, inputs, replacements=replacements, run_op=interpreter).output()
    if interpreter.unknown:
        lines = sorted(f"{path or name}: {what}" for path, what in interpreter.unknown)
        warnings.warn(
            f"{name} has parts that no positive rule covers; their inputs got relevance in"
            f" proportion to gradient x input: {'; '.join(lines)}.",
            stacklevel=9,
        )
    return output


def make_positive_plan(trace: Trace, roles: Roles, rules: PositiveRules, bits: int) -> ReplayPlan:
    """Plan a pass by positive rules. Gates, scales and attention are constant.

    Attention is not constant if the rules go into queries and keys.
    """
    held = {number: dict(values) for number, values in roles.held.items()}
    if rules.into_queries_and_keys:
        for product in roles.attention:
            held[product.op.number].pop(product.weights, None)
    return make_plan(trace, replace(roles, held=held, products=set()), ALL_CONSTANT, bits)
