"""Explain a pass that runs once, as it is: by hooks on PyTorch's own autograd graph.

This is the first of two tiers. The autograd graph of a pass is the list of its operations, roles
are found in it as in a recorded pass, and hooks let relevance pass back by the rules. Nothing is
recorded and nothing runs again, so that it takes little more than a plain gradient.

A pass has to prove that its graph had said enough (see `hooked_ledger`), because the graph does not
show everything, such as numbers in the code and signals past the gradient. Passes without a proof,
and those that are `Opaque`, go to the second tier, which records them.

The proof under rules that are not affine is a comparison with a recorded pass. It is made once for
each plan, on the smallest and the largest graph of the batch: their pass has the same operations on
the same values, because it has the same plan.
"""

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge
from torch.utils.hooks import RemovableHandle

from graphxai.rules.conservative import (
    DeferredShares,
    Rules,
    conservative,
    current_tape,
    record,
)
from graphxai.rules.remainders import gradients_of

from .autograd_graph import AutogradGraph, Opaque
from .eval_replica import uncompiled, with_plain_attention
from .hooked_ledger import (
    AFFINE,
    AddedConstants,
    ExplainedPass,
    difference,
    shares_by_gradient,
    shares_by_sum,
    shift_of_batch_norm,
)
from .hooked_plan import HookedPlan, plan_for
from .hooks import install_hooks
from .pass_request import NODES, PassRequest
from .rule_table import acting_rules
from .ties import ties_as_computed

# explains a pass by a recording, for the weights (B, C) of its outputs
ExplainRecorded: TypeAlias = Callable[[PassRequest, Tensor], ExplainedPass]

_proved: "weakref.WeakSet[HookedPlan]" = weakref.WeakSet()  # each agreed with a recorded pass


@dataclass(frozen=True, eq=False)
class _HookedPass:
    """A pass whose autograd graph has hooks.

    Args:
        rows: the rows of the nodes that went into the model.
        outputs: what the model returned, (B, C).
        plan: by which relevance passes back.
        added: what the pass adds to signals.
        beside_empty: whether the pass ran beside a graph without nodes.
    """

    request: PassRequest
    rows: Tensor
    outputs: Tensor
    plan: HookedPlan
    added: AddedConstants
    beside_empty: bool

    def shares(self, rules: Rules) -> DeferredShares:
        """Return the shares that come with the gradient."""
        if rules == AFFINE:
            return shares_by_sum(self.request, self.added, self._note_failure(rules))
        return shares_by_gradient(self.request, self.added, rules)

    def _note_failure(self, rules: Rules) -> Callable[[Opaque], None]:
        """Return what notes that relevance does not add up, so that passes run otherwise."""
        memory = self.request.memory
        return memory.run_alone if self.beside_empty else partial(memory.give_up, rules)


def pass_by_hooks(
    request: PassRequest, rules: Rules, explain_recorded: ExplainRecorded
) -> tuple[Tensor, DeferredShares]:
    """Return the outputs (B, C) of a pass with hooks, and the shares that come with the gradient.

    Raises Opaque if the pass has to be recorded.
    """
    hooked = _run(request, rules)
    if (tape := current_tape()) is not None:
        tape.acting_rules |= acting_rules(hooked.plan.plan)
    if rules != AFFINE and hooked.plan not in _proved:
        # what the passes of the comparison record does not belong on the tape of this one
        with conservative(**vars(rules)), record(biases=True):
            reason = _reason_against(hooked, rules, explain_recorded)
        if reason is not None and hooked.beside_empty:
            request.memory.run_alone(reason)
            return pass_by_hooks(request, rules, explain_recorded)
        if reason is not None:
            request.memory.give_up(rules, reason)
            raise reason
        _proved.add(hooked.plan)
    return hooked.outputs, hooked.shares(rules)


def _run(request: PassRequest, rules: Rules) -> _HookedPass:
    """Run a pass, beside a graph without nodes if that can be, and install the hooks."""
    if request.memory.beside_empty and (beside := request.beside_empty()) is not None:
        try:
            hooked = _run_once(request, beside.request, rules)
        except Exception as error:  # the pass by itself raises it again if it is the model's
            request.memory.run_alone(error)
        else:
            if beside.is_right():
                return hooked
    return _run_once(request, request, rules)


def _run_once(of: PassRequest, request: PassRequest, rules: Rules) -> _HookedPass:
    """Run a pass, and install the hooks on its graph.

    Args:
        of: the pass that is explained.
        request: the pass that runs.
        rules: those in force.
    """
    inputs = _float_inputs(request)
    rows, before = request.rows, torch.get_rng_state()
    with torch.enable_grad(), _requiring_gradients(inputs.values()):
        leaf = rows.view_as(rows) if rows.requires_grad else rows.detach().requires_grad_()
        hooks = RemovableHandle.next_id
        with uncompiled(request.module), with_plain_attention(), ties_as_computed():
            outputs = request.call(leaf)
        hooks = RemovableHandle.next_id - hooks
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
    plan = plan_for(request, graph, rules, hooks)
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
    return _HookedPass(of, leaf, outputs, plan, added, request is not of)


def _float_inputs(request: PassRequest) -> dict[str, Tensor]:
    """Return the graph's other attributes that gradients can lead to, by name."""
    inputs = {n: t for n, t in request.others.items() if t.is_floating_point()}
    if any(not t.is_leaf or t.requires_grad != (n in request.leaves) for n, t in inputs.items()):
        raise Opaque("an attribute of the graph that requires a gradient")
    if len({id(t) for t in inputs.values()}) < len(inputs):
        raise Opaque("an attribute of the graph under two names")
    if len(request.layout.mask) > 1 and any(request.graphs_of(name) is None for name in inputs):
        raise Opaque("an attribute whose rows are of no graph")
    return inputs


@contextmanager
def _requiring_gradients(tensors: Iterable[Tensor]) -> Iterator[None]:
    """Let tensors require a gradient within the block; the edges to them stay valid.

    Leaves whose relevance is wanted do so anyway.
    """
    tensors = [tensor for tensor in tensors if not tensor.requires_grad]
    for tensor in tensors:
        tensor.requires_grad_()
    try:
        yield
    finally:
        for tensor in tensors:
            tensor.requires_grad_(False)


# -- the comparison with a recorded pass -----------------------------------------------------------


def _reason_against(
    hooked: _HookedPass, rules: Rules, explain_recorded: ExplainRecorded
) -> Opaque | None:
    """Compare a pass with a recorded one, and say in what they differ, or return None.

    A few of the graphs are enough if their pass has the same plan.
    """
    part = hooked.request.part()
    if part is not None and (smaller := _run(part, rules)).plan is hooked.plan:
        hooked = smaller
    outputs = hooked.outputs.detach()
    count = outputs.numel()
    weights = 1 + torch.arange(count).to(outputs).view_as(outputs) / count  # all of them differ
    try:
        of_hooks = _explained(hooked, rules, weights)
    except RuntimeError as error:  # an operation may have no second derivative
        reason: str | None = str(error)
    else:
        reason = difference(of_hooks, explain_recorded(hooked.request, weights), outputs * weights)
    return None if reason is None else Opaque(reason)


def _explained(hooked: _HookedPass, rules: Rules, weights: Tensor) -> ExplainedPass:
    """Explain a pass by its hooks, for the weights (B, C) of its outputs."""
    deferred = hooked.shares(rules)
    leaves = [hooked.rows, *deferred.leaves]
    with torch.enable_grad():
        weights = weights.detach().requires_grad_(deferred.differentiable)
        explained = (hooked.outputs * weights).sum()
        gradients = gradients_of(explained, leaves, deferred.differentiable, again=True)
    gradient, *at_leaves = [gradients[leaf] for leaf in leaves]
    gradient = gradient.detach()
    relevance = hooked.request.relevance_of_tokens(gradient)
    shares = deferred.shares(at_leaves, hooked.outputs.detach(), weights, relevance)
    return ExplainedPass(gradient, relevance, shares)
