"""The rules as hooks on PyTorch's autograd graph: what a node passes back instead of its gradient.

A hook gets the gradients that a node passes back, and those that arrived at its results. It must
hold neither the node nor a tensor with a gradient: Python would never see that circle, and the pass
would stay in memory.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor

from graphxai.engine import operations as kinds
from graphxai.engine.autograd_graph import (
    CONSTANT,
    AutogradGraph,
    GraphTrace,
    bound_operation,
    shape_of,
)
from graphxai.engine.flow_queries import ancestors, factors_of
from graphxai.engine.ledger import Addition, nonlinearities
from graphxai.engine.plan import ReplayPlan, Roles, make_plans
from graphxai.engine.replay import rule_for
from graphxai.engine.request import PassRequest
from graphxai.engine.role_finder import find_roles
from graphxai.engine.rules import Node, ToInput, saved
from graphxai.engine.trace import NODES, LacksValue, Op, Opaque, Ref, refs_in
from graphxai.rules.conservative import Rules, conservative
from graphxai.rules.operation_rule import BoundOperation

ROUNDING = 1e3  # machine epsilons of the size of all terms: more than that is no rounding
Gradients: TypeAlias = tuple[Tensor | None, ...]
Hook: TypeAlias = Callable[[Gradients, Gradients], Gradients | None]
HookAt: TypeAlias = tuple[int, Callable[[Node], Hook]]  # what makes an operation's hook


def hooks_of(plan: ReplayPlan, cut: Mapping[int, set[int]]) -> Iterator[HookAt]:
    """Yield the hooks by which the nodes of a pass pass back relevance by the rules of a plan.

    Args:
        cut: by operation, the constants among its arguments that get no gradient.
    """
    for op in plan.passing:
        rule = plan.built_in.get(op.number)
        if rule is not None and rule.backward is not None:
            yield op.number, partial(_by_way_back, rule.backward)
        elif rule is not None or op.number in plan.custom:
            yield op.number, partial(_by_function, plan, op)
        elif (scales := _scales(plan, op)) is not None:
            yield op.number, partial(_scaling, scales)
    for number, values in cut.items():
        scales = tuple(
            float(r.value not in values) for r in _differentiable(plan.trace.ops[number])
        )
        yield number, partial(_scaling, scales)


def _multiplying(
    trace: GraphTrace, plan: ReplayPlan, additions: Sequence[Addition]
) -> dict[int, set[int]]:
    """Return, by operation, the added constants that it reads without adding them to a signal.

    No gradient must reach them there: they multiply, or are parts of another constant with a share.
    """
    ends = {a.node if a.kind in ("lookup", "computed") else a.parameter for a in additions}
    computed = {a.node for a in additions if a.kind == "computed"}
    passing = {op.number for op in plan.passing}
    of_ends = {value for value, (place, _) in trace.results.items() if place in ends}
    cut = {}
    for op in trace.ops:
        read = {ref.value for ref in op.reads} & of_ends
        if read and not trace.flow.live[op.out]:
            of_ends.update(ref.value for ref in op.makes)
        if op.number in passing:
            added = refs_in([op.args[k : k + 1] for k in kinds.OPERATIONS[op.name].adds])
            read -= {ref.value for ref in added if not plan.signal[ref.value]}
        if read and (op.number in passing or trace.places[op.number] in computed):
            cut[op.number] = read
    return cut


def can_be_hooked(plan: ReplayPlan, op: Op, node: Node) -> bool:
    """Whether a hook can follow the rule that is in force for an operation, if there is one."""
    custom, rule = op.number in plan.custom, plan.built_in.get(op.number)
    of_node = rule is not None and rule.backward is not None and op.name not in kinds.SAVE_RESULTS
    if not custom and (rule is None or of_node):
        return True
    has_input = hasattr(node, "_saved_self") or "self" in node.metadata  # as `ValueKeeper` gives it
    return has_input and (custom or len(node._input_metadata) == 1 == len(node.next_functions))


def _by_rule(to_input: ToInput) -> Hook:
    """Return a hook that passes back what a rule makes of the gradient at the result."""

    def hook(gradients: Gradients, arriving: Gradients) -> Gradients | None:
        if arriving[0] is None or gradients[0] is None:
            return None
        return (to_input(arriving[0]), *gradients[1:])

    return hook


def _by_way_back(backward: Callable[[Node, BoundOperation], ToInput], node: Node) -> Hook:
    return _by_rule(backward(node, bound_operation(node)))


def _by_function(plan: ReplayPlan, op: Op, node: Node) -> Hook:
    """Return a hook that passes back the gradient of what a rule's function computes.

    Raises Opaque if a custom rule computes other values, which hooks cannot replace.
    """
    x, operation, function = saved(node, "self"), bound_operation(node), rule_for(plan, op)
    assert function is not None

    def forward(x: Tensor) -> Tensor:
        with conservative(**vars(plan.rules)):
            result = function(operation.function, x, *operation.settings, **operation.options)
        first: Tensor = result[0] if isinstance(result, tuple) else result
        return first

    def to_input(gradient: Tensor) -> Tensor:
        with torch.enable_grad():
            leaf = x.detach().requires_grad_()
            y = forward(leaf)
        (passed,) = torch.autograd.grad(y, leaf, gradient, create_graph=gradient.requires_grad)
        return passed

    if (custom := plan.custom.get(op.number)) is not None:
        allowed = ROUNDING * torch.finfo(x.dtype).eps
        with torch.no_grad():
            alike = torch.allclose(forward(x), operation(x), allowed, allowed)
        if not alike:
            raise Opaque(f"a rule for {custom.operation} that computes something else")
    return _by_rule(to_input)


def _scales(plan: ReplayPlan, op: Op) -> tuple[float, ...] | None:
    """Return what each gradient of an operation is multiplied by; None if all stay as they are."""
    taken, shares = plan.taken[op.number], plan.shares.get(op.number, {})
    live = plan.trace.flow.live
    scales = tuple(
        1.0 if not live[ref.value] else shares.get(ref.value, 1.0) if ref.value in taken else 0.0
        for ref in _differentiable(op)
    )
    return None if all(scale == 1 for scale in scales) else scales


def _differentiable(op: Op) -> list[Ref]:
    """Return the arguments that the node of an operation may have gradients for, in its order."""
    kind = kinds.NODES_OF_GRAPH[op.func]
    args = op.args[:1] if type(op.args[0]) is list else [op.args[place] for place in kind.places]
    return refs_in(args)


def _scaling(scales: tuple[float, ...], node: Node) -> Hook:
    """Return a hook that multiplies each gradient by a number."""

    def hook(gradients: Gradients, arriving: Gradients) -> Gradients:
        return tuple(
            None if gradient is None or scale == 0 else gradient if scale == 1 else gradient * scale
            for gradient, scale in zip(gradients, scales, strict=True)
        )

    return hook


KEPT = 8  # plans of a model
_TIES, _SHIFTS, _SLICES = kinds.that("ties"), kinds.that("shifts"), kinds.that("slices")
_OF_ALL = kinds.VIEWS | _SLICES
_OF_SOME = _OF_ALL | kinds.that("indexes")
_MOVES = kinds.SAME - kinds.LOOKUPS
_BY_ROW = kinds.ENTRYWISE | kinds.that("by_row")  # each row of the first axis alone


@dataclass(frozen=True, eq=False)
class HookedPlan:
    """How relevance passes through all graphs of one structure.

    Args:
        trace: the list of the pass for which the plan was made.
        plan: what relevance passes through, and the roles that decide it.
        hooks: what is done at the nodes.
        additions: the parameters that are added to signals.
        exact: whether no operation computed in less than single precision.
        patterns: for each group of `roles.alike`, which of its operations have equal settings.
        proved: for passes of one graph, or of several, whether a recorded pass agreed.
        chooses: whether the pass chooses among parameters, maybe by features.
    """

    trace: GraphTrace
    plan: ReplayPlan
    hooks: tuple[HookAt, ...]
    additions: tuple[Addition, ...]
    exact: bool
    patterns: list[list[int]]
    chooses: bool
    proved: set[bool] = field(default_factory=set)

    def fits(self, graph: AutogradGraph) -> bool:
        """Whether a graph of the same structure has the same roles."""
        trace, roles = self.trace, self.plan.roles
        for test, first, second, answer in roles.size_comparisons:
            results = (trace.results[value] for value in (first, second))
            if test(*(shape_of((graph.nodes[place], k)) for place, k in results)) != answer:
                return False
        nodes = ((graph.nodes[trace.places[op]], name) for op, name in trace.numbers.items())
        if any(getattr(node, f"_saved_{name}").dim() for node, name in nodes):
            return False
        return _patterns(graph, trace, roles) == self.patterns


def hook_by_plan(
    request: PassRequest, graph: AutogradGraph, rules: Rules, own_hooks: int
) -> HookedPlan:
    """Install the hooks on a graph, and return their plan: one that was made before, if it fits.

    Args:
        own_hooks: the number of hooks that the model itself has put on the pass. They do not show
            in the graph, and may change gradients.
    """
    plans = request.memory.plans
    key = (graph.structure, rules, own_hooks, request.memory.keeps)
    plan: HookedPlan | None = plans.get(key)
    if plan is None or not plan.fits(graph):
        plan = _make_plan(request, graph, rules)
        while len(plans) >= KEPT:
            del plans[next(iter(plans))]
        plans[key] = plan
    for number, hook_of in plan.hooks:
        node = graph.nodes[plan.trace.places[number]]
        node.register_hook(hook_of(node))
    return plan


def _make_plan(request: PassRequest, graph: AutogradGraph, rules: Rules) -> HookedPlan:
    """Make a plan."""
    trace = graph.trace()
    roles = find_roles(trace)
    has_gates = any(op.name in kinds.GATES for op in trace.ops)
    for op in trace.ops if has_gates else ():  # which may scale constants that the pass has made
        constants = any(type(arg) is Ref and arg.slot == CONSTANT for arg in op.args[:2])
        several = op.number not in trace.numbers
        if op.name in kinds.TIMES and constants and several and trace.flow.live[op.out]:
            raise Opaque("a gate, and a product with a constant")
    of_nodes, plan = make_plans(trace, roles, rules)
    if plan is not of_nodes and any(
        of_nodes.taken[op.number] != {v for v in plan.taken[op.number] if of_nodes.signal[v]}
        for op in of_nodes.passing
    ):
        raise Opaque("other inputs that change how relevance of the nodes passes")
    for step in nonlinearities(plan):
        raise Opaque(f"{step.what}, for which there is no rule", step.op.name)
    for op in plan.passing:
        if not can_be_hooked(plan, op, graph.nodes[trace.places[op.number]]):
            kind = LacksValue if op.name in kinds.SAVE_RESULTS else Opaque
            raise kind(f"the rule of {op.name}", op.name)
        if op.name in _TIES:
            raise Opaque("a maximum along an axis, in which ties share relevance", op.name)
    additions = tuple(dict.fromkeys(_additions(request, trace, plan)))
    hooks = tuple(hooks_of(plan, _multiplying(trace, plan, additions)))
    types = {node._input_metadata[0].dtype for node in graph.nodes}
    exact = types.isdisjoint((torch.bfloat16, torch.half))
    chooses = any(
        trace.flow.depends[op.out] and CONSTANT in {ref.slot for ref in op.reads}
        for op in trace.ops
        if op.name in kinds.SAME | kinds.LOOKUPS and not trace.flow.live[op.out] & NODES
        if op.name not in kinds.EMBEDS or not request.codes  # which are looked for
    )
    patterns = _patterns(graph, trace, roles)
    return HookedPlan(trace, plan, hooks, additions, exact, patterns, chooses)


def _patterns(graph: AutogradGraph, trace: GraphTrace, roles: Roles) -> list[list[int]]:
    """Return for each group of operations on the same values which of them have equal settings."""
    groups = ([graph.settings(trace.places[number]) for number in group] for group in roles.alike)
    return [[settings.index(setting) for setting in settings] for settings in groups]


def _additions(request: PassRequest, trace: GraphTrace, plan: ReplayPlan) -> Iterator[Addition]:
    """Yield the parameters that are added to signals."""
    for op in plan.passing:
        if op.name in _SHIFTS:  # of a BatchNorm, whose bias stands for the shift by its mean, too
            _, _, bias, mean, _, training = op.args
            of_batch = training is not False or mean is None  # nothing constant is subtracted
            has_bias = type(bias) is Ref and bias.value in trace.parameters
            parameter = trace.results[bias.value][0] if has_bias else None
            shift = None if of_batch else trace.places[op.number]
            yield Addition("parameter" if of_batch else "batch_norm", parameter, shift)
            continue
        if op.name in kinds.LOGARITHMS and op.number in plan.built_in:
            ends = (trace.origin(trace.output.value, through) for through in (_OF_ALL, _OF_SOME))
            of_all, of_some = (end == op.out for end in ends)
            if not of_some:
                raise Opaque("log-probabilities that are not the output", op.name)
            yield Addition("log_softmax", node=trace.places[op.number], by_row=of_all)
        elif op.number in plan.adding:
            yield Addition("at_zero", node=trace.places[op.number])
        terms = [ref for ref in op.reads if ref.slot != CONSTANT]
        if op.name in kinds.ADDITIONS and len(terms) == 1 and request.memory.keeps:
            yield Addition("number", node=trace.places[op.number])
        for place in kinds.OPERATIONS[op.name].adds:
            for ref in refs_in(op.args[place : place + 1]):
                if not plan.signal[ref.value] and ref.slot != CONSTANT:
                    yield from _parameters_behind(request, trace, ref.value)


def _parameters_behind(request: PassRequest, trace: GraphTrace, value: int) -> Iterator[Addition]:
    """Yield the parameters that a constant was moved from, looked up from, or is a sum of."""
    todo = [value]
    while todo:
        value = todo.pop()
        op = trace.op_of(value)
        if op is None:
            if value in trace.parameters:
                yield Addition("parameter", trace.results[value][0])
        elif op.name in kinds.LOOKUPS and not request.codes:
            todo.append(op.reads[0].value)
        elif op.name in kinds.EMBEDS and op.reads[0].value in trace.parameters:
            place = trace.places[op.number]
            yield Addition("lookup", trace.results[op.reads[0].value][0], place, (place,))
        elif op.name in _MOVES | kinds.ADDITIONS:
            todo += [ref.value for ref in op.reads if trace.flow.depends[ref.value]]
        else:
            yield _computed(request, trace, op, value)


def _computed(request: PassRequest, trace: GraphTrace, op: Op, value: int) -> Addition:
    """Return a constant that an operation computes from parameters, and what looked these up.

    Raises Opaque if it may be computed from other tensors than these and the graph's attributes.
    """
    depends = trace.flow.depends
    of_parameters = ancestors(
        trace, value, lambda _, by: [ref.value for ref in by.reads if depends[ref.value]]
    )
    numbers = {trace.flow.maker[before] for before in of_parameters}
    ops = [trace.ops[number] for number in sorted(numbers - {-1})]
    lookups = [by for by in ops if by.name in kinds.LOOKUPS]
    codes = tuple(trace.places[by.number] for by in lookups if by.name in kinds.EMBEDS)
    by_codes = bool(request.codes)
    of_rows = [(by, name) for by in ops if by not in lookups for name in _saved_constants(by)]
    unseen = any(not name or by.number in trace.numbers for by, name in of_rows)
    if unseen or op.out != value or (by_codes and len(codes) < len(lookups)):
        raise Opaque(f"a constant that is computed by {op.name}", op.name)
    if not request.memory.keeps:
        raise LacksValue(f"a constant that is computed by {op.name}", op.name)
    by_row, place = _keep_rows(trace, ops), trace.places[op.number]
    converted = tuple((trace.places[by.number], name) for by, name in of_rows)
    return Addition("computed", None, place, codes if by_codes else (), converted, by_row)


def _saved_constants(op: Op) -> Iterator[str]:
    """Yield for each constant that an operation reads the name it is saved by, "" if it is not."""
    for place, arg in enumerate(op.args):
        for ref in refs_in([arg]):
            if ref.slot == CONSTANT:
                yield kinds.NODES_OF_GRAPH[op.func].constants.get(place, "")


def _keep_rows(trace: GraphTrace, ops: list[Op]) -> bool:
    """Whether operations compute each row from one row of codes, and from parameters."""
    of_codes: set[int] = set()
    for op in ops:
        if op.name in kinds.LOOKUPS:
            of_codes.add(op.out)
        elif rows := [r.value for r in op.reads if r.value in of_codes or r.slot == CONSTANT]:
            of_matrices = op.name in kinds.MATRIX_PRODUCTS and rows != factors_of(op)[:1]
            dims = op.args[1] if op.name in kinds.SUMS else [-1]
            counts = {shape[:1] for v in (*rows, op.out) if (shape := trace.shapes[v]) is not None}
            if op.name not in _BY_ROW or of_matrices or len(counts) > 1 or 0 in dims:
                return False
            of_codes.add(op.out)
    return True
