"""Explain a pass that runs once, as it is: by hooks on PyTorch's own autograd graph.

This is the first of two tiers. Nothing is recorded and nothing runs again, so that it takes little
more than a plain gradient. But hooks see only what autograd knows: nothing that flows past the
gradient, and no numbers in the code. So a pass has to prove that nothing is missing. Passes without
a proof, and those that are `Opaque`, go to the second tier, which records them.

* Under the affine rules of LRP the output is an affine function of the inputs. Relevance and the
  shares of the biases have to sum to it, in every pass.
* Under other rules there is no such sum. One pass of each plan is compared with a recorded pass of
  the same input, which lists everything that is added, on the smallest and the largest graph of the
  batch. Later passes have the same operations on the same values, because their plan fits.

The biases of all graphs together have the share `sum b df/db`. Under the affine rules, what each
graph has of it is what relevance leaves of the graph's output. Otherwise it follows from a second
backward pass: the sum is linear in the weights of the outputs, so that its derivative by the
weights of a graph, times these, is the share of that graph.
"""

import weakref
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.utils.hooks import RemovableHandle

from graphxai.engine.autograd_graph import (
    AutogradGraph,
    LacksValue,
    Opaque,
    ValueKeeper,
    bound_operation,
    requiring_gradients,
    shape_of,
)
from graphxai.engine.fused import ties_as_computed, uncompiled, with_plain_attention
from graphxai.engine.hooked_plan import HookedPlan, install_hooks, plan_for
from graphxai.engine.ledger import BIASES, CONSTANTS
from graphxai.engine.recorded_pass import ExplainedPass, explain_recorded
from graphxai.engine.replay import acting_rules
from graphxai.engine.request import NODES, PassMemory, PassRequest
from graphxai.engine.rules import Node, saved
from graphxai.rules.conservative import Rules, conservative, current_tape, record
from graphxai.rules.remainders import gradients_of
from graphxai.rules.tape import DeferredShares, DoesNotAddUp

AFFINE = Rules(attention=True, layernorm=True, activation="ratio")
OUTPUTS = ""  # in place of an attribute
TOLERANCE = 1e3  # machine epsilons of the size of all terms: more than that is no rounding


class AddedConstants(NamedTuple):
    """What a pass adds to signals, each with the leaf whose gradient it is multiplied by.

    Args:
        biases: the values of biases, for a BatchNorm with its shift by the mean.
        inputs: the values of other constants, each with its line of the ledger first, and last with
            the attribute whose rows it has, `OUTPUTS`, or None if its rows belong to no graph.
    """

    biases: list[tuple[Tensor, Any]]
    inputs: list[tuple[str, Tensor, GradientEdge, str | None]]

    @property
    def leaves(self) -> list[Any]:
        """The leaves whose gradients the shares need: those of the inputs come first."""
        return [*(edge for _, _, edge, _ in self.inputs), *(leaf for _, leaf in self.biases)]

    def shares_of_inputs(
        self, request: PassRequest, gradients: list[Tensor], weights: Tensor
    ) -> dict[str, Tensor]:
        """Return the share (B,) of each input, by line.

        Args:
            weights: those of the outputs, (B, C).
        """
        shares: dict[str, Tensor] = {}
        count = len(request.layout.mask)
        for (line, value, _, rows_of), gradient in zip(self.inputs, gradients, strict=False):
            by_entry = value * gradient
            if rows_of is None:
                share = _divided(by_entry.sum(), weights)
            else:
                by_row = by_entry.detach().flatten(1).sum(1) if value.dim() > 1 else by_entry
                graphs = request.graphs_of(rows_of)
                if rows_of == OUTPUTS:  # a graph without nodes may come last
                    by_row, graphs = by_row[:count], torch.arange(count, device=by_row.device)
                elif graphs is None:
                    graphs = torch.zeros(len(by_row), dtype=torch.long, device=by_row.device)
                share = by_row.new_zeros(count).index_add(0, graphs, by_row.detach())
            shares[line] = shares[line] + share if line in shares else share
        return shares

    def share_of_biases(self, gradients: list[Tensor], like: Tensor) -> Tensor:
        """Return the share of the biases of all graphs together.

        Args:
            like: a tensor of the type that the share has without biases.
        """
        pairs = zip(self.biases, gradients[len(self.inputs) :], strict=True)
        shares = [(constant * gradient).sum() for (constant, _), gradient in pairs]
        return torch.stack(shares).sum() if shares else torch.zeros_like(like).sum()


def _added_constants(
    request: PassRequest,
    graph: AutogradGraph,
    plan: HookedPlan,
    edges: dict[str, GradientEdge],
    keeper: ValueKeeper | None,
) -> AddedConstants:
    """Return what a pass adds to signals.

    Args:
        edges: those to the attributes that gradients lead to, by name.
        keeper: kept the results of the pass, if the plan needs them.
    """
    inputs = [(n, request.others[n].detach(), e, n) for n, e in edges.items()]
    added = AddedConstants([], [*inputs])
    for kind, parameter, place, lookups, by_row in plan.additions:
        leaf: Any = None if parameter is None else graph.nodes[parameter].variable
        node: Node = None if place is None else graph.nodes[place]
        edge: Any = None if node is None else GradientEdge(node, 0)
        codes = [graph.nodes[by]._saved_indices for by in lookups]
        named = {request.attribute_of(looked_up) for looked_up in codes}
        names = [name for name in request.others if name in named]
        if kind == "log_softmax":
            constant = saved(node, "result") - saved(node, "self")
            of_node = None if by_row else request.graphs_of("x")
            of_nodes = of_node is not None and len(of_node) == len(constant)
            rows_of = OUTPUTS if by_row else "x" if of_nodes else None
            added.inputs.append((CONSTANTS, constant, edge, rows_of))
        elif kind == "at_zero":
            x = saved(node, "self")
            constant = bound_operation(node)(x.new_zeros(())).expand_as(x)
            added.inputs.append((CONSTANTS, constant, edge, None))
        elif kind == "number" and keeper is not None:
            if number := keeper.number(node):
                like = torch.empty(shape_of((node, 0)), dtype=node._input_metadata[0].dtype)
                added.inputs.append((CONSTANTS, torch.full_like(like, number), edge, None))
        elif kind == "lookup" and names:
            constant = torch.nn.functional.embedding(codes[0], leaf.detach())
            added.inputs.append((names[0], constant, edge, names[0]))
        elif kind == "computed" and keeper is not None:
            constant = keeper.result(node)
            if names:
                graphs = request.graphs_of(names[0])
                apart = by_row and graphs is not None and len(graphs) == len(constant)
                rows_of = names[0] if apart else None
                added.inputs.append((" and ".join(names), constant, edge, rows_of))
            else:
                added.biases.append((constant, edge))
        elif kind == "batch_norm":
            axes = len(node._input_metadata[0].shape) - 2
            scale = (node._saved_running_var + node._saved_eps).rsqrt()
            shift: Tensor = node._saved_running_mean * scale  # that it subtracts, (C,)
            if node._saved_weight is not None:
                shift = shift * node._saved_weight.detach()
            if leaf is None:
                added.biases.append((-shift.view(1, -1, *[1] * axes), edge))
            else:
                added.biases.append((leaf.detach() - shift, leaf))
        elif leaf is not None:
            added.biases.append((leaf.detach(), leaf))
    return added


# -- the pass --------------------------------------------------------------------------------------


def _divided(total: Tensor, weights: Tensor) -> Tensor:
    """Divide a sum over all graphs, which is linear in their weights (B, C), among them: (B,)."""
    if len(weights) == 1:
        return total.detach()[None]
    if not total.requires_grad:  # there are none
        return torch.zeros_like(weights[:, 0]).detach() + total / len(weights)
    (by_weight,) = torch.autograd.grad(total, weights, materialize_grads=True, retain_graph=True)
    return (by_weight * weights).sum(-1).detach()


def difference(
    hooked: ExplainedPass, recorded: ExplainedPass, weighted_outputs: Tensor, exact: bool = True
) -> str | None:
    """Say in what a pass by hooks and a recorded pass differ, or return None if they agree.

    Args:
        weighted_outputs: (B, C).
        exact: whether no operation computed in less than single precision.
    """
    if recorded.unseen:
        return f"a constant that autograd does not know ({recorded.unseen[0]})"
    gradient = recorded.gradient
    limit = TOLERANCE * torch.finfo(gradient.dtype).eps * gradient.abs().max()
    if not bool(((hooked.gradient - gradient).abs() <= limit).all()):
        return "a gradient that differs from that of a recorded pass"
    size = weighted_outputs.sum(-1).abs().sum() + hooked.relevance.abs().sum()
    allowed = _rounding(weighted_outputs, hooked.relevance) * size
    allowed = allowed if exact else max(allowed, 4 * torch.finfo(torch.bfloat16).eps * size)
    for line in {**hooked.shares, **recorded.shares}:
        zero = torch.zeros_like(hooked.shares[BIASES])
        gap = hooked.shares.get(line, zero) - recorded.shares.get(line, zero)
        if not bool((gap.abs() <= allowed).all()):
            return f"a share of {line} that differs from that of a recorded pass"
    return None


def _rounding(*tensors: Tensor) -> float:
    """Return the relative error that counts as rounding."""
    return TOLERANCE * max(torch.finfo(tensor.dtype).eps for tensor in tensors)


def _nonzero(lines: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: line for name, line in lines.items() if bool(line.any())}


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
        """Return the shares that come with the gradient.

        If they add up, what relevance leaves of each output is the biases'. Otherwise the gradient
        divides the share of all biases among the graphs.
        """
        request, added, adds_up = self.request, self.added, self.adds_up(rules)
        note_failure = partial(_note_failure, request.memory, self.beside_empty, rules)
        divides = not adds_up or any(rows_of is None for *_, rows_of in added.inputs)

        def shares(
            gradients: list[Tensor], outputs: Tensor, weights: Tensor, relevance: Tensor
        ) -> dict[str, Tensor]:
            explained = (outputs * weights.detach()).sum(-1)  # (B,)
            lines = added.shares_of_inputs(request, gradients, weights)
            total = added.share_of_biases(gradients, explained)
            if not adds_up:
                return {BIASES: _divided(total, weights)} | _nonzero(lines)
            left = explained - relevance.sum(-1) - sum(lines.values(), torch.zeros_like(explained))
            size = explained.abs().sum() + relevance.abs().sum() + left.abs().sum()
            unexplained = left.sum() - total.detach()
            if not bool(unexplained.abs() <= _rounding(outputs, relevance) * size):
                what = "relevance and biases do not sum to the output"
                note_failure(Opaque(what, lacks_constants=True))
                raise DoesNotAddUp
            return {BIASES: left - unexplained / len(left)} | _nonzero(lines)

        several = divides and len(request.layout.mask) > 1
        give_up = request.memory.give_up
        return DeferredShares(
            added.leaves, shares, several, lambda reason: give_up(rules, Opaque(reason))
        )

    def adds_up(self, rules: Rules) -> bool:
        """Whether relevance and shares sum to the output, so precisely that this is a proof."""
        return rules == AFFINE and self.plan.exact


def _note_failure(memory: PassMemory, beside_empty: bool, rules: Rules, why: Opaque) -> bool:
    """Let passes run otherwise from now on, and return whether hooks are worth another try."""
    if not memory.keeps and (why.lacks_constants or CONSTANTS in str(why)):
        memory.keeps = True
    elif beside_empty:
        memory.beside_empty = False
    else:
        memory.give_up(rules, why)
        return False
    return True


def pass_by_hooks(request: PassRequest, rules: Rules) -> tuple[Tensor, DeferredShares]:
    """Return the outputs (B, C) of a pass with hooks, and the shares that come with the gradient.

    Raises Opaque if the pass has to be recorded.
    """
    hooked = _run(request, rules)
    if (tape := current_tape()) is not None:
        tape.acting_rules |= acting_rules(hooked.plan.plan)
    if not hooked.adds_up(rules) and hooked.plan not in _proved:
        # what the passes of the comparison record does not belong on the tape of this one
        with conservative(**vars(rules)), record(biases=True):
            reason = _reason_against(hooked, rules)
        if reason is not None:
            if _note_failure(request.memory, hooked.beside_empty, rules, reason):
                return pass_by_hooks(request, rules)
            raise reason
        _proved.add(hooked.plan)
    return hooked.outputs, hooked.shares(rules)


def _run(request: PassRequest, rules: Rules) -> _HookedPass:
    """Run a pass, beside a graph without nodes if that can be, and install the hooks."""
    if request.memory.beside_empty and (beside := request.beside_empty()) is not None:
        try:
            hooked = _run_once(request, beside.request, rules)
        except Exception:  # the pass by itself raises it again if it is the model's
            request.memory.beside_empty = False
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
    keeper = ValueKeeper() if request.memory.keeps else None
    with torch.enable_grad(), requiring_gradients(inputs.values()):
        leaf = rows.view_as(rows) if rows.requires_grad else rows.detach().requires_grad_()
        hooks = RemovableHandle.next_id
        plain_attention = with_plain_attention(request.memory.views_attention)
        kept = keeper or nullcontext()
        try:
            with uncompiled(request.module), plain_attention, ties_as_computed.block(True), kept:
                outputs = request.call(leaf)
        except RuntimeError as error:
            if "view size" not in str(error) or request.memory.views_attention:
                raise
            request.memory.views_attention = True
            return _run_once(of, request, rules)
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
    if keeper is not None:
        keeper.give_to(graph.nodes)
    try:
        plan = plan_for(request, graph, rules, hooks)
    except LacksValue:
        if request.memory.keeps:
            raise
        request.memory.keeps = True
        return _run_once(of, request, rules)
    install_hooks(plan.hooks, [graph.nodes[place] for place in plan.places])
    added = _added_constants(request, graph, plan, edges, keeper)
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


# -- the comparison with a recorded pass -----------------------------------------------------------


def _reason_against(hooked: _HookedPass, rules: Rules) -> Opaque | None:
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
        recorded = explain_recorded(hooked.request, rules, weights)
        reason = difference(of_hooks, recorded, outputs * weights, hooked.plan.exact)
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
