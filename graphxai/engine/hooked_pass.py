"""Explain a pass that runs once, as it is: by hooks on PyTorch's own autograd graph.

This is the first of two tiers. Nothing is recorded and nothing runs again, so that it takes little
more than a plain gradient. But hooks see only what autograd knows: nothing that flows past the
gradient, and no numbers in the code. So a pass has to prove that nothing is missing. Passes without
a proof, and those that are `Opaque`, go to the second tier, which records them.

* Under the affine rules of LRP the output is an affine function of the inputs. Relevance and the
  shares of the biases have to sum to it, in every pass.
  But features may choose among parameters, as rounded ones do in a look-up. Their share would
  count as biases, so that a recorded pass has to show that none do.
* Under other rules there is no such sum. One pass of each plan is compared with a recorded pass of
  the same input, which lists everything that is added, on the smallest and the largest graph of the
  batch. Later passes have the same operations on the same values, because their plan fits.

The biases of all graphs together have the share `sum b df/db`. Under the affine rules, what each
graph has of it is what relevance leaves of the graph's output. Otherwise it follows from a second
backward pass: the sum is linear in the weights of the outputs, so that its derivative by the
weights of a graph, times these, is the share of that graph.
"""

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.utils.hooks import RemovableHandle

from graphxai.engine.autograd_graph import AutogradGraph, ValueKeeper, bound_operation, shape_of
from graphxai.engine.fused import ties_as_computed, with_plain_attention
from graphxai.engine.hooked_plan import ROUNDING, HookedPlan, hook_by_plan
from graphxai.engine.ledger import BIASES, CONSTANTS, LedgerLines
from graphxai.engine.plan import make_plans
from graphxai.engine.recorded_pass import run_recorded, unseen_constants
from graphxai.engine.request import PassMemory, PassRequest, record_pass
from graphxai.engine.role_finder import find_roles
from graphxai.engine.rules import Node, saved
from graphxai.engine.trace import NODES, LacksValue, Opaque
from graphxai.rules.conservative import Rules, conservative, record
from graphxai.rules.operation_rule import secant
from graphxai.rules.remainders import gradients_of
from graphxai.rules.tape import DeferredShares, DoesNotAddUp, Tape
from graphxai.runtime.modules import requiring_gradients, uncompiled

AFFINE = Rules(attention=True, layernorm=True, activation="ratio")
OUTPUTS = ""  # in place of an attribute


class AddedConstant(NamedTuple):
    """A constant that a pass adds to a signal.

    Args:
        line: its line of the ledger.
        value: the constant; of a BatchNorm the bias with its shift by the mean.
        leaf: the tensor, or the edge, whose gradient it is multiplied by.
        rows_of: the attribute whose rows it has, `OUTPUTS`, or None if its rows belong to no graph.
    """

    line: str
    value: Tensor
    leaf: Any
    rows_of: str | None = None

    def share_by_graph(self, request: PassRequest, gradient: Tensor) -> Tensor:
        """Return the share (B,) of a constant whose rows belong to graphs."""
        assert self.rows_of is not None
        by_row, count = (self.value * gradient).detach(), len(request.layout.mask)
        by_row = by_row.flatten(1).sum(1) if by_row.dim() > 1 else by_row
        if self.rows_of == OUTPUTS:  # a graph without nodes may come last
            return by_row[:count]
        graphs = request.graphs_of(self.rows_of)
        if graphs is None:
            graphs = torch.zeros(len(by_row), dtype=torch.long, device=by_row.device)
        return by_row.new_zeros(count).index_add(0, graphs, by_row)


def _added_constants(
    request: PassRequest,
    graph: AutogradGraph,
    plan: HookedPlan,
    edges: dict[str, GradientEdge],
    keeper: ValueKeeper | None,
) -> Iterator[AddedConstant]:
    """Yield what a pass adds to signals. `edges` lead to the attributes that have gradients."""
    for name, edge_of_input in edges.items():
        yield AddedConstant(name, request.others[name].detach(), edge_of_input, name)
    for kind, parameter, place, lookups, converted, by_row in plan.additions:
        leaf: Any = None if parameter is None else graph.nodes[parameter].variable
        node: Node = None if place is None else graph.nodes[place]
        edge: Any = None if node is None else GradientEdge(node, 0)
        codes = [graph.nodes[by]._saved_indices for by in lookups]
        named = {request.attribute_of(looked_up) for looked_up in codes}
        if keeper is not None:
            named |= {keeper.attribute_of(graph.nodes[by], name) for by, name in converted}
        names = [name for name in request.others if name in named]
        if kind == "log_softmax":
            constant = saved(node, "result") - saved(node, "self")
            of_node = None if by_row else request.graphs_of("x")
            of_nodes = of_node is not None and len(of_node) == len(constant)
            rows_of = OUTPUTS if by_row else "x" if of_nodes else None
            yield AddedConstant(CONSTANTS, constant, edge, rows_of)
        elif kind == "at_zero":
            _, constant = secant(bound_operation(node), saved(node, "self"))
            yield AddedConstant(CONSTANTS, constant, edge)
        elif kind == "number" and keeper is not None:
            if number := keeper.number(node):
                like = torch.empty(shape_of((node, 0)), dtype=node._input_metadata[0].dtype)
                yield AddedConstant(CONSTANTS, torch.full_like(like, number), edge)
        elif kind == "lookup" and names:
            constant = torch.nn.functional.embedding(codes[0], leaf.detach())
            yield AddedConstant(names[0], constant, edge, names[0])
        elif kind == "computed" and keeper is not None:
            constant = keeper.result(node)
            graphs = request.graphs_of(names[0]) if names else None
            apart = by_row and graphs is not None and len(graphs) == len(constant)
            line = " and ".join(names) or BIASES
            yield AddedConstant(line, constant, edge, names[0] if apart else None)
        elif kind == "batch_norm":
            axes = len(node._input_metadata[0].shape) - 2
            scale = (node._saved_running_var + node._saved_eps).rsqrt()
            shift: Tensor = node._saved_running_mean * scale  # that it subtracts, (C,)
            if node._saved_weight is not None:
                shift = shift * node._saved_weight.detach()
            if leaf is None:
                yield AddedConstant(BIASES, -shift.view(1, -1, *[1] * axes), edge)
            else:
                yield AddedConstant(BIASES, leaf.detach() - shift, leaf)
        elif leaf is not None:
            yield AddedConstant(BIASES, leaf.detach(), leaf)


def _divided(total: Tensor, weights: Tensor) -> Tensor:
    """Divide a sum over all graphs, which is linear in their weights (B, C), among them: (B,)."""
    if len(weights) == 1:
        return total.detach()[None]
    if not total.requires_grad:  # there are none
        return torch.zeros_like(weights[:, 0]).detach() + total / len(weights)
    (by_weight,) = torch.autograd.grad(total, weights, materialize_grads=True, retain_graph=True)
    return (by_weight * weights).sum(-1).detach()


def _rounding(*tensors: Tensor) -> float:
    """Return the relative error that counts as rounding."""
    return ROUNDING * max(torch.finfo(tensor.dtype).eps for tensor in tensors)


@dataclass(frozen=True, eq=False)
class _HookedPass:
    """A pass with hooks: its rows, its outputs (B, C), its plan, and the constants that it adds."""

    request: PassRequest
    rows: Tensor
    outputs: Tensor
    plan: HookedPlan
    added: tuple[AddedConstant, ...]
    beside_empty: bool

    def shares(self, rules: Rules) -> DeferredShares:
        """Return the shares that come with the gradient."""
        request, added, adds_up = self.request, self.added, self.adds_up(rules)
        divides = not adds_up or any(c.rows_of is None and c.line != BIASES for c in added)

        def shares(
            gradients: list[Tensor], outputs: Tensor, weights: Tensor, relevance: Tensor
        ) -> dict[str, Tensor]:
            of_outputs = (outputs * weights.detach()).sum(-1)  # (B,)
            zero, lines = torch.zeros_like(of_outputs), dict[str, Tensor]()
            totals = {BIASES: zero.sum()}  # of all graphs together
            for constant, gradient in zip(added, gradients, strict=True):
                line = constant.line
                if constant.rows_of is None:
                    share = (constant.value * gradient).sum()
                    totals[line] = totals.get(line, zero.sum()) + share
                else:
                    share = constant.share_by_graph(request, gradient)
                    lines[line] = lines.get(line, zero) + share
            total = totals.pop(BIASES)
            for line, share in totals.items():
                lines[line] = lines.get(line, zero) + _divided(share, weights)
            if adds_up:
                left = of_outputs - relevance.sum(-1) - sum(lines.values(), zero)
                size = of_outputs.abs().sum() + relevance.abs().sum() + left.abs().sum()
                unexplained = left.sum() - total.detach()
                if not bool(unexplained.abs() <= _rounding(outputs, relevance) * size):
                    what = "relevance and biases do not sum to the output"
                    why = Opaque(what, lacks_constants=True)
                    _note_failure(request.memory, self.beside_empty, rules, why)
                    raise DoesNotAddUp
            biases = left - unexplained / len(left) if adds_up else _divided(total, weights)
            return {BIASES: biases} | {name: line for name, line in lines.items() if line.any()}

        def give_up(reason: str) -> None:
            request.memory.note_failure(rules, Opaque(reason), for_good=True)

        several = divides and len(request.layout.mask) > 1
        return DeferredShares([c.leaf for c in added], shares, several, give_up)

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
        memory.note_failure(rules, why, for_good=True)
        return False
    return True


def pass_by_hooks(request: PassRequest, rules: Rules, tape: Tape) -> Tensor:
    """Return the outputs (B, C) of a pass with hooks.

    The tape gets the shares, which come with the gradient. Raises Opaque if the pass has to be
    recorded.
    """
    hooked = _run(request, rules)
    tape.acting_rules.update(hooked.plan.plan.custom.values())
    plan, several = hooked.plan, len(request.layout.mask) > 1
    if several not in plan.proved and (plan.chooses or not hooked.adds_up(rules)):
        # what the passes of the comparison record does not belong on the tape of this one
        with conservative(**vars(rules)), record(biases=True):
            reason = _reason_against(hooked, rules)
        if reason is not None:
            if _note_failure(request.memory, hooked.beside_empty, rules, reason):
                return pass_by_hooks(request, rules, tape)
            raise reason
        plan.proved.add(several)
    tape.deferred_shares = hooked.shares(rules)
    return hooked.outputs


def _run(request: PassRequest, rules: Rules) -> _HookedPass:
    """Run a pass, beside a graph without nodes if that can be, and install the hooks."""
    if request.memory.beside_empty and (beside := request.beside_empty()) is not None:
        try:
            hooked = _run_once(request, beside.request, rules)
            if beside.is_right():
                return hooked
        except Exception:  # the pass by itself raises it again if it is the model's
            request.memory.beside_empty = False
    return _run_once(request, request, rules)


def _run_once(of: PassRequest, request: PassRequest, rules: Rules) -> _HookedPass:
    """Run the pass of `request`, which explains that of `of`, and install the hooks."""
    inputs = _float_inputs(request)
    rows, before = request.rows, torch.get_rng_state()
    keeper = ValueKeeper(request.codes) if request.memory.keeps else None
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
        edges = {name: get_gradient_edge(tensor) for name, tensor in inputs.items()}
        of_rows = get_gradient_edge(leaf).node
        bits = {edge.node: NODES << k for k, edge in enumerate(edges.values(), start=1)}
        graph = AutogradGraph(outputs, {of_rows: NODES} | bits)
    if of_rows not in graph.place:
        raise Opaque("an output that does not depend on the nodes")
    edges = {name: edge for name, edge in edges.items() if edge.node in graph.place}
    if keeper is not None:
        keeper.give_to(graph.nodes)
    try:
        plan = hook_by_plan(request, graph, rules, hooks)
    except LacksValue:
        if request.memory.keeps:
            raise
        request.memory.keeps = True
        return _run_once(of, request, rules)
    added = tuple(_added_constants(request, graph, plan, edges, keeper))
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


class _Explained(NamedTuple):
    """The gradient by the rows, the relevance (B, T) of tokens, and the shares (B,) of lines."""

    gradient: Tensor
    relevance: Tensor
    shares: dict[str, Tensor]


def _explained(
    request: PassRequest, rows: Tensor, outputs: Tensor, deferred: DeferredShares, weights: Tensor
) -> _Explained:
    """Return what a pass of either tier says for the weights (B, C) of its outputs."""
    leaves = [rows, *deferred.leaves]
    with torch.enable_grad():
        weights = weights.detach().requires_grad_(deferred.differentiable)
        total = (outputs * weights).sum()
        gradients = gradients_of(total, leaves, deferred.differentiable, again=True)
    gradient, *at_leaves = [gradients[leaf] for leaf in leaves]
    gradient = gradient.detach()
    relevance = request.relevance_of_tokens(gradient)
    shares = deferred.shares(at_leaves, outputs.detach(), weights, relevance)
    return _Explained(gradient, relevance, shares)


def _difference(
    hooked: _Explained, recorded: _Explained, weighted_outputs: Tensor, exact: bool
) -> str | None:
    """Say in what a pass by hooks and a recorded pass differ, or return None if they agree."""
    gradient = recorded.gradient
    limit = _rounding(gradient) * gradient.abs().max()
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


def _floats_choose(request: PassRequest, rules: Rules) -> bool:
    """Whether constants that a pass adds depend on inputs of floats, but not by a gradient."""
    try:
        trace = record_pass(request)
    except Exception:  # only hooks can follow the pass
        return False
    _, plan = make_plans(trace, find_roles(trace), rules)
    flow, lines, others = trace.flow, LedgerLines(trace, {}), request.others
    real = [bit for bit, name in request.names.items() if others[name].is_floating_point()]
    added = (ref for op in plan.passing for _, ref in lines.added_by(plan, op) if ref is not None)
    inputs = sum(real, NODES)
    return any(flow.depends[ref.value] & ~flow.live[ref.value] & inputs for ref in added)


def _reason_against(hooked: _HookedPass, rules: Rules) -> Opaque | None:
    """Compare a pass with a recorded one, and say in what they differ, or return None.

    A few of the graphs are enough if their pass has the same plan.
    """
    part = hooked.request.part()
    if part is not None and (smaller := _run(part, rules)).plan is hooked.plan:
        hooked = smaller
    request = hooked.request
    if hooked.plan.chooses and _floats_choose(request, rules):
        return Opaque("parameters that are chosen by floats")
    if hooked.adds_up(rules):
        return None
    outputs = hooked.outputs.detach()
    count = outputs.numel()
    weights = 1 + torch.arange(count).to(outputs).view_as(outputs) / count  # all of them differ
    try:
        of_hooks = _explained(request, hooked.rows, hooked.outputs, hooked.shares(rules), weights)
    except RuntimeError as error:  # an operation may have no second derivative
        return Opaque(str(error))
    rows = request.rows.detach().requires_grad_()
    with torch.enable_grad():  # relevance of leaves follows from the same plan
        again, plan, shares = run_recorded(replace(request, rows=rows, leaves={}), rules)
    assert shares is not None
    if unseen := next(unseen_constants(plan, request), None):
        return Opaque(f"a constant that autograd does not know ({unseen})")
    of_recording = _explained(request, rows, again, shares, weights)
    reason = _difference(of_hooks, of_recording, outputs * weights, hooked.plan.exact)
    return None if reason is None else Opaque(reason)
