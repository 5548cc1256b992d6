"""The positive rules of Chefer et al., CVPR 2021, operation by operation.

`operations` says by its name which rule an operation has:

* affine maps and products with a constant matrix: Eq. 5; their biases take no part;
* sums and means over nodes, entries or channels: Eq. 5;
* `u + v`: the addition rule, per graph. If relevance goes into queries and keys, a constant as
  large as a whole input, such as a structural bias or a position, gets a share, too;
* attention times values, and queries times keys: the product rule;
* norms, activations, softmax and all else that acts entry by entry: relevance is passed on
  unchanged. A quotient passes it to the numerator;
* operations that only move values: the ordinary backward pass.

A gate, or the scale of a norm, passes all relevance to what it multiplies (see `plan`). Any other
product of two signals gives each factor half. All other operations use Eq. 2, and a warning lists
them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from graphxai.engine.attention.node_ids import reads_class_token
from graphxai.engine.attention.passes import annotated_trace
from graphxai.engine.attention.reading import (
    NodeAttention,
    attention_between_nodes,
    attention_replacements,
)
from graphxai.engine.hooked_pass import AFFINE
from graphxai.engine.ledger import warn_of_random_numbers
from graphxai.engine.operations import ADDS, OF_ROWS, OPERATIONS, PLUS_PRODUCT, TIMES
from graphxai.engine.plan import ReplayPlan, Roles, make_plan
from graphxai.engine.positive.context import PositiveContext, RelevancePass, with_backward_rule
from graphxai.engine.recorded_pass import connected_to_nodes
from graphxai.engine.replay import Replay, out_of_place
from graphxai.engine.request import PassRequest
from graphxai.engine.trace import NODES, WEIGHTS, Op, Ref, Trace, not_followed, pair_refs, refs_in
from graphxai.rules import positive as rules_of
from graphxai.rules.positive import PositiveRules
from graphxai.runtime.notices import warn


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
    context: PositiveContext

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
        op, recorded = self.op, self.tensors
        func = out_of_place(op.func) if op.in_place else op.func

        def f(*tensors: Tensor) -> Tensor:
            new = dict(zip(values, tensors, strict=True))
            args, kwargs = op.with_tensors(lambda ref: new.get(ref.value, recorded[ref.value]))
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
    if call.op.number not in call.context.plan.roles.softmax:  # its scores get the relevance
        call.context.unknown.add((call.op.path, call.op.name.strip("_").removesuffix("_forward")))
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
    if call.context.is_of_products(value):
        call.context.products.add(call.op.out)
        rule = rules_of.in_proportion
    f, recorded = call.of(value), call.tensors[value]
    offset = f(torch.zeros_like(recorded))
    return with_backward_rule(
        call.value, lambda r: (rule(lambda z: f(z) - offset, recorded, r),), x
    )


def added(call: PositiveCall) -> Tensor:
    """Pass relevance through `u + v` or `u - v`, broadcast to one shape, by the addition rule."""
    if (centred := call.context.centred(call.op, call.inputs)) is not None:
        return unchanged(call.only(centred))
    scales = OPERATIONS[call.op.name].scales(call.kwargs.get("alpha", 1))
    u, v = call.op.args[:2]
    if type(u) is type(v) and u != v and len(call.inputs) == 2:
        terms = [call.tensors[ref.value] * scale for ref, scale in zip((u, v), scales, strict=True)]
        return _added(call, [call.inputs[u.value], call.inputs[v.value]], terms)
    ((value, x),) = call.inputs.items()
    constant = next((a for a, g in zip(call.args, (u, v), strict=False)
                     if isinstance(a, Tensor) and g.value != value), None)  # fmt: skip
    if call.op.name in ADDS and constant is not None and call.context.gives_share(constant):
        return _added(call, [x], [call.tensors[value], constant])
    return unchanged(call)


def _added(call: PositiveCall, inputs: list[Tensor], terms: list[Tensor]) -> Tensor:
    """Apply the addition rule to inputs with values `terms`; the last may be a constant."""
    shape, rule = call.value.shape, call.context.rules.addition
    inputs = [x.expand(shape) for x in inputs]
    terms = [x.to(call.value) for x in terms]
    # keys that infinite entries exclude have no probability
    terms = [x.masked_fill(x.isinf(), 0.0).expand(shape) for x in terms]
    graph = call.context.graphs_of(call.op, call.value)

    def backward(relevance: Tensor) -> tuple[Tensor, ...]:
        u, v, r = (x.reshape(len(graph), -1) for x in (*terms, relevance))
        return tuple(x.view(shape) for x in rule(u, v, r, graph)[: len(inputs)])

    return with_backward_rule(call.value, backward, *inputs)


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
    if call.context.gives_share(term):
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
    plus = first and (both or call.signal(0) is not None or call.context.gives_share(call.args[0]))
    if plus and bool(call.args[0].any()):
        return _plus(call, multiplied)
    if both or (signals and call.context.weights.get(call.op.number) not in (None, signals[0])):
        return _product(call, first)
    if call.op.name in TIMES:
        return unchanged(call)
    return _weighted(call, first, factors[0] is not None) if len(signals) == 1 else by_entry(call)


def _weighted(call: PositiveCall, first: int, in_front: bool) -> Tensor:
    """Pass relevance by Eq. 5 through a map that is affine in a signal, and in a weight.

    A matrix that is none of the model's weights, such as an adjacency matrix, makes it a sum.
    """
    ((value, x),) = call.inputs.items()
    recorded, other = call.tensors[value], call.op.args[first + in_front].value
    weight = call.tensors[other]
    if not (call.context.trace.flow.depends[other] & WEIGHTS or bool((weight < 0).any())):
        return summed(call)
    if call.op.name in OF_ROWS:
        if not in_front:
            return with_backward_rule(
                call.value, lambda r: (rules_of.through_linear(recorded.mT, weight, r.mT).mT,), x
            )
        if call.op.number == call.context.last:
            call.context.state.head = (x, weight.mT)
        return with_backward_rule(
            call.value, lambda r: (rules_of.through_linear(recorded, weight.mT, r),), x
        )
    # to add a bias and subtract it again would leave rounding where results are small
    biases = refs_in([call.op.args[k : k + 1] for k in OPERATIONS[call.op.name].adds])
    zeros = {ref.value: torch.zeros_like(call.tensors[ref.value]) for ref in biases}
    f = replace(call, tensors=call.tensors | zeros).of(value, other)
    offset = f(torch.zeros_like(recorded), weight)

    def backward(relevance: Tensor) -> tuple[Tensor, ...]:
        passed = rules_of.through_weights(
            lambda z, w: f(z, w) - offset, recorded, weight, relevance
        )
        return (passed,)

    return with_backward_rule(call.value, backward, x)


def _product(call: PositiveCall, first: int) -> Tensor:
    """Pass relevance through a product of two signals by its rule, which gets attention first."""
    left, right = (call.op.args[place].value for place in (first, first + 1))
    weights, context = call.context.weights.get(call.op.number), call.context
    a, v = (right, left) if weights == right else (left, right)
    rule = rules_of.through_product if weights is None else context.rules.product
    if rule is rules_of.through_product:
        context.products.add(call.op.out)
    plain = call.op.name in OF_ROWS - PLUS_PRODUCT and a == left
    f = torch.matmul if plain else call.of(a, v)
    factors = call.tensors[a], call.tensors[v]
    heads = context.heads_of(call.op, *factors, f)
    wanted = [k for k, value in enumerate((a, v)) if value in call.inputs]

    def backward(relevance: Tensor) -> tuple[Tensor, ...]:
        if heads is not None:
            relevance = rules_of.through_important_entries(relevance, *heads)
        of_factors = rule(*factors, relevance, f)
        return tuple(of_factors[k] for k in wanted)

    return with_backward_rule(call.value, backward, *(call.inputs[(a, v)[k]] for k in wanted))


RULES: dict[str | None, Callable[[PositiveCall], Tensor]] = {
    rule.__name__: rule for rule in (by_entry, quotient, summed, added, multiplied)
}


def _kind_of(tensor: Tensor) -> str:
    """Return "nested", "sparse" or "complex", or "" for a dense tensor of other numbers."""
    if tensor.is_nested:
        return "nested"
    if tensor.layout != torch.strided:
        return "sparse"
    return "complex" if tensor.is_complex() else ""


def _run(context: PositiveContext, op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Run an operation, so that it passes relevance back by its rule."""
    rule = RULES.get(OPERATIONS[op.name].positive)
    signals_read = [ref for ref in op.reads if context.plan.signal[ref.value]]
    if any(_kind_of(context.trace.memory.tensors[ref.slot]) == "sparse" for ref in signals_read):
        raise not_followed(f"a sparse tensor ({op.name})", op.path)
    if rule is None or "amax" in op.args or "amin" in op.args:
        return op.func(*args, **kwargs)
    reads = {ref.value: t for ref, t in pair_refs((op.args, op.kwargs), (args, kwargs))}
    inputs = {
        value: t for value, t in reads.items() if context.plan.signal[value] and t.requires_grad
    }
    if not inputs or not any(context.plan.signal[ref.value] for ref in op.makes):
        return op.func(*args, **kwargs)
    unstable, slot = context.trace.memory.unstable, op.makes[0].slot
    kinds = {*map(_kind_of, (*reads.values(), context.trace.memory.tensors[slot]))} - {""}
    signals = [*map(_kind_of, inputs.values())]
    rotates = op.name in TIMES and signals == ["complex"]  # as positions in rotary embeddings do
    if kinds and not (rotates and kinds == {"complex"}):
        raise not_followed(f"a {min(kinds)} tensor ({op.name})", op.path)
    tensors = {value: t.detach() for value, t in reads.items()}
    tensors |= {ref.value: tensors[ref.value].clone() for ref in op.reads if ref.slot in unstable}
    result = None if slot in unstable else context.trace.memory.tensors[slot].detach()
    frozen = op.with_tensors(lambda ref: tensors[ref.value])
    out = rule(PositiveCall(op, *frozen, inputs, tensors, result, context))
    if op.in_place:
        return args[0].copy_(out) if out is not args[0] else out
    return [out, *[None] * len(op.result[1:])] if isinstance(op.result, list) else out


def pass_by_positive_rules(request: PassRequest, state: RelevancePass) -> Tensor:
    """Return the outputs (B, C) of node rows, from which relevance passes by positive rules."""
    request.memory.note_pass("recording")
    name, size = request.name, len(request.layout.mask)
    trace, nodes, roles = annotated_trace(request)
    plan = make_positive_plan(trace, roles, state.rules)
    attention: list[NodeAttention] = []
    if state.reads_attention:
        attention = attention_between_nodes(plan, nodes, size, name)
        state.reads_class_token = reads_class_token(trace, nodes)
    warn_of_random_numbers(name, trace)
    context = PositiveContext(plan, nodes, state, size, attention)
    replacements = attention_replacements(attention, context.exposing)
    inputs = {trace.slot_of(NODES): request.rows}
    outputs = Replay(plan, inputs, replacements, partial(_run, context)).output()
    if context.unknown:
        lines = sorted(f"{path or name}: {what}" for path, what in context.unknown)
        warn(
            f"{name} has parts that no positive rule covers; their inputs got relevance in"
            f" proportion to gradient x input: {'; '.join(lines)}.",
            stacklevel=8,
        )
    return connected_to_nodes(outputs, request)


def make_positive_plan(trace: Trace, roles: Roles, rules: PositiveRules) -> ReplayPlan:
    """Plan a pass by positive rules. Gates, scales and attention are constant.

    Attention is not constant if the rules go into queries and keys.
    """
    held = {number: dict(values) for number, values in roles.held.items()}
    if rules.into_queries_and_keys:
        for product in roles.attention:
            held.get(product.op.number, {}).pop(product.weights, None)
    return make_plan(trace, replace(roles, held=held, products=set()), AFFINE, NODES)
