"""Plan how relevance passes through all autograd graphs of one structure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

from graphxai.rules.conservative import Rules

from .autograd_graph import CONSTANT, AutogradGraph, GraphTrace, Opaque, shape_of
from .hooked_ledger import Addition
from .hooks import HookAt, can_be_hooked, hooks_of
from .ledger_lines import STRUCTURE
from .pass_request import NODES, PassRequest
from .pass_warnings import nonlinearities
from .replay_plan import ReplayPlan, make_plan
from .role_finder import find_roles
from .trace import Op, Ref, refs_in
from .vocabulary import ADDITIVE, GATES

KEPT = 8  # plans of a model
_MOVES = {
    "view", "_unsafe_view", "_reshape_alias", "t", "transpose", "permute", "expand", "unsqueeze",
    "squeeze", "slice", "select", "split", "split_with_sizes", "unbind", "clone", "alias", "repeat",
    "cat", "stack",
}  # fmt: skip
_LOOKUPS = {"embedding", "index", "index_select", "gather"}


@dataclass(frozen=True, eq=False)
class HookedPlan:
    """How relevance passes through all graphs of one structure.

    Args:
        plan: what relevance passes through, and the roles that decide it.
        hooks: what is done at the nodes.
        places: for each operation, the place of its node in the graph.
        results: for each value, the place of its node and the number of the result.
        additions: the parameters that are added to signals.
        numbers: the places of nodes that have saved a single number, with the attribute's name.
        alike: groups of nodes on the same values, each with the pattern of equal settings among
            them, on which the roles depend.
    """

    plan: ReplayPlan
    hooks: tuple[HookAt, ...]
    places: tuple[int, ...]
    results: Mapping[int, tuple[int, int]]
    additions: tuple[Addition, ...]
    numbers: tuple[tuple[int, str], ...]
    alike: tuple[tuple[tuple[int, ...], list[int]], ...]

    def fits(self, graph: AutogradGraph) -> bool:
        """Whether a graph of the same structure has the same roles."""
        for test, first, second, answer in self.plan.roles.size_comparisons:
            if test(self._shape(graph, first), self._shape(graph, second)) != answer:
                return False
        if any(getattr(graph.nodes[place], f"_saved_{name}").dim() for place, name in self.numbers):
            return False
        return all(_pattern(graph, group) == pattern for group, pattern in self.alike)

    def _shape(self, graph: AutogradGraph, value: int) -> torch.Size:
        """Return the shape of a value in another graph."""
        place, number = self.results[value]
        return shape_of((graph.nodes[place], number))


def plan_for(
    request: PassRequest, graph: AutogradGraph, rules: Rules, own_hooks: int
) -> HookedPlan:
    """Return the plan for a graph: one that was made before, if it fits.

    Args:
        own_hooks: the number of hooks that the model itself has put on the pass. They do not show
            in the graph, and may change gradients.
    """
    plans = request.memory.plans
    key = (graph.structure, rules, own_hooks)
    plan: HookedPlan | None = plans.get(key)
    if plan is None or not plan.fits(graph):
        plan = _make_plan(request, graph, rules)
        while len(plans) >= KEPT:
            del plans[next(iter(plans))]
        plans[key] = plan
    return plan


def _make_plan(request: PassRequest, graph: AutogradGraph, rules: Rules) -> HookedPlan:
    """Make a plan."""
    trace = graph.trace()
    roles = find_roles(trace)
    if any(op.name in GATES for op in trace.ops):
        _refuse_constant_rows(trace)
    of_nodes = make_plan(trace, roles, rules, NODES)
    plan = make_plan(trace, roles, rules) if trace.live_inputs & ~NODES else of_nodes
    if plan is not of_nodes and any(
        of_nodes.taken[op.number] != {v for v in plan.taken[op.number] if of_nodes.signal[v]}
        for op in of_nodes.passing
    ):
        raise Opaque("other inputs that change how relevance of the nodes passes")
    for step in nonlinearities(plan):
        raise Opaque(f"{step.what}, for which there is no rule", step.op.name)
    for op in plan.passing:
        if not can_be_hooked(plan, op, graph.nodes[trace.places[op.number]]):
            raise Opaque(f"the rule of {op.name}", op.name)
        if op.name in ("max", "min"):
            raise Opaque("a maximum along an axis, in which ties share relevance", op.name)
    additions = tuple(dict.fromkeys(_additions(request, trace, plan)))
    alike = tuple(
        (group, _pattern(graph, group))
        for numbers in roles.alike
        for group in [tuple(trace.places[number] for number in numbers)]
    )
    hooks = tuple(hooks_of(plan))
    places = tuple(trace.places)
    numbers = tuple((places[number], name) for number, name in trace.numbers.items())
    return HookedPlan(plan, hooks, places, trace.results, additions, numbers, alike)


def _pattern(graph: AutogradGraph, group: tuple[int, ...]) -> list[int]:
    """Return which of some nodes have equal settings."""
    settings = [graph.settings(place) for place in group]
    return [settings.index(setting) for setting in settings]


def _refuse_constant_rows(trace: GraphTrace) -> None:
    """Raise Opaque for a gate that may scale constants which the pass has made."""
    for op in trace.ops:
        constants = [arg for arg in op.args[:2] if type(arg) is Ref and arg.slot == CONSTANT]
        several = op.number not in trace.numbers
        if op.name == "mul" and constants and several and trace.flow.live[op.out]:
            raise Opaque("a gate, and a product with a constant")


def _additions(request: PassRequest, trace: GraphTrace, plan: ReplayPlan) -> Iterator[Addition]:
    """Yield the parameters that are added to signals."""
    for op in plan.passing:
        if op.name == "native_batch_norm":
            yield _addition_of_batch_norm(trace, op)
            continue
        for place in ADDITIVE.get(op.name, ()):
            for ref in refs_in(op.args[place : place + 1]):
                if not plan.signal[ref.value] and ref.slot != CONSTANT:
                    for value in _parameters_behind(request, trace, ref.value):
                        yield Addition(trace.results[value][0])


def _addition_of_batch_norm(trace: GraphTrace, op: Op) -> Addition:
    """Return the bias of a BatchNorm, which stands for the shift by its mean, too."""
    _, weight, bias, mean, _, training = op.args
    if training is not False or mean is None:
        raise Opaque("a BatchNorm with the statistics of the batch", op.name)
    if type(bias) is not Ref or type(weight) is not Ref or bias.value not in trace.parameters:
        raise Opaque("a BatchNorm without a bias", op.name)
    return Addition(trace.results[bias.value][0], trace.places[op.number])


def _parameters_behind(request: PassRequest, trace: GraphTrace, value: int) -> list[int]:
    """Return the parameters that a constant was moved from."""
    todo, parameters = [value], []
    while todo:
        value = todo.pop()
        op = trace.op_of(value)
        if op is None:
            if value in trace.parameters:
                parameters.append(value)
        elif op.name in _LOOKUPS and not _has_codes(request):
            todo.append(op.reads[0].value)
        elif op.name in _MOVES:
            todo += [ref.value for ref in op.reads if trace.flow.depends[ref.value]]
        else:
            raise Opaque(f"a constant that is computed by {op.name}", op.name)
    return parameters


def _has_codes(request: PassRequest) -> bool:
    """Whether integers among the graph's attributes may choose among parameters."""
    return any(
        not tensor.is_floating_point() and name not in STRUCTURE
        for name, tensor in request.others.items()
    )
