"""Explain a pass that runs once, as it is: by hooks on PyTorch's own autograd graph.

This is the first of two tiers. The autograd graph of a pass is the list of its operations, roles
are found in it as in a recorded pass, and hooks let relevance pass back by the rules. Nothing is
recorded and nothing runs again, so that it takes little more than a plain gradient.

A pass has to prove that its graph had said enough (see `hooked_ledger`), because the graph does not
show everything, such as numbers in the code and signals past the gradient. Passes without a proof,
and those that are `Opaque`, go to the second tier, which records them.
"""

import re
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge

from graphxai.rules.conservative import DeferredShares, Rules, current_tape
from graphxai.runtime.scope import Blocks

from ..eval_replica import uncompiled, with_plain_attention
from ..ties import ties_as_computed
from .autograd_graph import CONSTANT, AutogradGraph, GraphTrace, Opaque, shape_of
from .hooked_ledger import (
    AFFINE,
    AddedConstants,
    Addition,
    Proof,
    RecordedPass,
    shares_by_gradient,
    shares_by_sum,
    shift_of_batch_norm,
)
from .hooks import HookAt, can_be_hooked, hooks_of, install_hooks
from .ledger_lines import STRUCTURE
from .nonlinearities import nonlinearities
from .pass_request import NODES, PassRequest
from .replay_plan import ReplayPlan, make_plan
from .role_finder import find_roles
from .rules_in_force import acting_rules
from .trace import Op, Ref, Trace, refs_in
from .vocabulary import ADDITIVE, GATES

TRIES = 3  # passes of a model that may fail before it is always recorded
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
        alike: groups of nodes on the same values, each with the pattern of equal settings among
            them, on which the roles depend.
    """

    plan: ReplayPlan
    hooks: tuple[HookAt, ...]
    places: tuple[int, ...]
    results: Mapping[int, tuple[int, int]]
    additions: tuple[Addition, ...]
    alike: tuple[tuple[tuple[int, ...], list[int]], ...]

    def fits(self, graph: AutogradGraph) -> bool:
        """Whether a graph of the same structure has the same roles."""
        for test, first, second, answer in self.plan.roles.size_comparisons:
            if test(self._shape(graph, first), self._shape(graph, second)) != answer:
                return False
        return all(_pattern(graph, group) == pattern for group, pattern in self.alike)

    def _shape(self, graph: AutogradGraph, value: int) -> torch.Size:
        """Return the shape of a value in another graph."""
        place, number = self.results[value]
        return shape_of((graph.nodes[place], number))


_agreed: "weakref.WeakSet[HookedPlan]" = weakref.WeakSet()  # each once with a recorded pass
_plans: "weakref.WeakKeyDictionary[nn.Module, dict[object, HookedPlan]]" = (
    weakref.WeakKeyDictionary()
)
_failures: "weakref.WeakKeyDictionary[nn.Module, dict[Rules, list[Opaque]]]" = (
    weakref.WeakKeyDictionary()
)
_hooks_allowed: Blocks[bool] = Blocks("graphxai_hooks", True)


def recorded_only() -> AbstractContextManager[bool]:
    """Record all passes within the block, as for methods that the first tier does not serve."""
    return _hooks_allowed.block(False)


def may_be_hooked(request: PassRequest, rules: Rules) -> bool:
    """Whether a pass under these rules is worth a try."""
    if request.leaves or not _hooks_allowed.get():
        return False
    return len(_failures.get(request.module, {}).get(rules, ())) < TRIES


def why_recorded(module: nn.Module) -> str | None:
    """Say why passes of a module were recorded, under the rules for which they last were."""
    by_rules = _failures.get(module)
    return str(list(by_rules.values())[-1][-1]) if by_rules else None


def note_failure(
    module: nn.Module, rules: Rules, reason: str, times: int = 1, node: str | None = None
) -> None:
    """Remember why a pass under these rules had to be recorded."""
    by_rules = _failures.setdefault(module, {})
    by_rules[rules] = [*by_rules.pop(rules, ()), *[Opaque(reason, node)] * times]


def locate_failure(module: nn.Module, rules: Rules, trace: Trace) -> None:
    """Add to the last reason the modules that run the operation of an unknown node.

    Args:
        trace: the recorded list of the pass.
    """
    failures = _failures.get(module, {}).get(rules)
    if not failures or failures[-1].node is None:
        return
    node = failures[-1].node
    operation = re.sub(r"Backward\d*$", "", node).lower()
    ops = (op for op in trace.ops if op.name.replace("_", "").lower() == operation)
    if paths := sorted({op.path or type(module).__name__ for op in ops}):
        failures[-1] = Opaque(f"{node} in {', '.join(paths)}")


def pass_by_hooks(
    request: PassRequest, rules: Rules, recorded: RecordedPass
) -> tuple[Tensor, DeferredShares]:
    """Return the outputs (B, C) of a pass with hooks, and the shares that come with the gradient.

    Raises Opaque if the pass has to be recorded.

    Args:
        recorded: explains the same pass by a recording, to compare with it.
    """
    inputs = _float_inputs(request)
    rows, before = request.rows, torch.get_rng_state()
    with torch.enable_grad(), _requiring_gradients(inputs.values()):
        leaf = rows.view_as(rows) if rows.requires_grad else rows.detach().requires_grad_()
        with uncompiled(request.module), with_plain_attention(), ties_as_computed():
            outputs = request.call(leaf)
        if not torch.equal(before, torch.get_rng_state()):
            torch.set_rng_state(before)
            raise Opaque("random numbers")
        if not isinstance(outputs, Tensor) or outputs.grad_fn is None:
            raise Opaque("an output without a gradient")
        bits = {name: bit for bit, name in request.names.items()}
        graph = AutogradGraph(outputs, {leaf: NODES} | {t: bits[n] for n, t in inputs.items()})
        edges = {n: get_gradient_edge(t) for n, t in inputs.items() if graph.reaches(t)}
    if not graph.reaches(leaf):
        raise Opaque("an output that does not depend on the nodes")
    plan = _plan_for(request, graph, rules)
    if (tape := current_tape()) is not None:
        tape.acting_rules |= acting_rules(plan.plan)
    install_hooks(plan.hooks, [graph.nodes[place] for place in plan.places])
    parameters = [graph.nodes[a.parameter].variable for a in plan.additions]
    added = AddedConstants(
        [parameter.detach() if a.batch_norm is None
         else shift_of_batch_norm(parameter.detach(), graph.nodes[a.batch_norm])
         for parameter, a in zip(parameters, plan.additions, strict=True)],
        parameters,
        {name: request.others[name].detach() for name in edges},
        list(edges.values()),
    )  # fmt: skip
    give_up = partial(note_failure, request.module, rules)
    if rules == AFFINE:
        return outputs, shares_by_sum(request, added, give_up)
    proof = None if plan in _agreed else Proof(recorded, leaf, partial(_agreed.add, plan))
    return outputs, shares_by_gradient(request, added, proof, give_up)


def _float_inputs(request: PassRequest) -> dict[str, Tensor]:
    """Return the graph's other attributes that gradients can lead to, by name."""
    inputs = {n: t for n, t in request.others.items() if t.is_floating_point()}
    if any(t.requires_grad or not t.is_leaf for t in inputs.values()):
        raise Opaque("an attribute of the graph that requires a gradient")
    if len({id(t) for t in inputs.values()}) < len(inputs):
        raise Opaque("an attribute of the graph under two names")
    if len(request.layout.mask) > 1 and any(request.graphs_of(name) is None for name in inputs):
        raise Opaque("an attribute whose rows are of no graph")
    return inputs


@contextmanager
def _requiring_gradients(tensors: Iterable[Tensor]) -> Iterator[None]:
    """Let tensors require a gradient within the block; the edges to them stay valid."""
    tensors = list(tensors)
    for tensor in tensors:
        tensor.requires_grad_()
    try:
        yield
    finally:
        for tensor in tensors:
            tensor.requires_grad_(False)


# -- plans -----------------------------------------------------------------------------------------


def _plan_for(request: PassRequest, graph: AutogradGraph, rules: Rules) -> HookedPlan:
    """Return the plan for a graph: one that was made before, if it fits."""
    plans = _plans.setdefault(request.module, {})
    key = (graph.structure, rules)
    plan = plans.get(key)
    if plan is None or not plan.fits(graph):
        plan = _make_plan(request, graph, rules)
        while len(plans) >= KEPT:
            del plans[next(iter(plans))]
        plans[key] = plan
    return plan


def _make_plan(request: PassRequest, graph: AutogradGraph, rules: Rules) -> HookedPlan:
    trace = graph.trace()
    roles = find_roles(trace)
    if any(op.name in GATES for op in trace.ops):
        _refuse_constant_rows(trace)
    of_nodes = make_plan(trace, roles, rules, NODES)
    plan = make_plan(trace, roles, rules)
    if any(
        of_nodes.taken[op.number] != {v for v in plan.taken[op.number] if of_nodes.signal[v]}
        for op in of_nodes.passing
    ):
        raise Opaque("other inputs that change how relevance of the nodes passes")
    for step in nonlinearities(plan):
        raise Opaque(f"{step.what}, for which there is no rule")
    for op in plan.passing:
        if not can_be_hooked(plan, op, graph.nodes[trace.places[op.number]]):
            raise Opaque(f"the rule of {op.name}")
        if op.name in ("max", "min"):
            raise Opaque("a maximum along an axis, in which ties share relevance")
    additions = tuple(dict.fromkeys(_additions(request, trace, plan)))
    alike = tuple(
        (group, _pattern(graph, group))
        for numbers in roles.alike
        for group in [tuple(trace.places[number] for number in numbers)]
    )
    hooks = tuple(hooks_of(plan))
    return HookedPlan(plan, hooks, tuple(trace.places), trace.results, additions, alike)


def _pattern(graph: AutogradGraph, group: tuple[int, ...]) -> list[int]:
    """Return which of some nodes have equal settings."""
    settings = [graph.settings(place) for place in group]
    return [settings.index(setting) for setting in settings]


def _refuse_constant_rows(trace: GraphTrace) -> None:
    """Raise Opaque for a gate that may scale constants which the pass has made."""
    for op in trace.ops:
        constants = [arg for arg in op.args[:2] if type(arg) is Ref and arg.slot == CONSTANT]
        if op.name == "mul" and constants and trace.flow.live[op.out]:
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
        raise Opaque("a BatchNorm with the statistics of the batch")
    if type(bias) is not Ref or type(weight) is not Ref or bias.value not in trace.parameters:
        raise Opaque("a BatchNorm without a bias")
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
            raise Opaque(f"a constant that is computed ({op.name})")
    return parameters


def _has_codes(request: PassRequest) -> bool:
    """Whether integers among the graph's attributes may choose among parameters."""
    return any(
        not tensor.is_floating_point() and name not in STRUCTURE
        for name, tensor in request.others.items()
    )
