"""Explain a pass under the conservative rules by a recording of it: the second tier."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from graphxai.engine import operations as kinds
from graphxai.engine.ledger import (
    BIASES,
    CONSTANTS,
    CUT_OFF,
    LedgerLines,
    modules_by_line,
    share_by_derivative,
    warn_of_cuts,
    warn_of_nonlinearities,
    warn_of_random_numbers,
)
from graphxai.engine.plan import ReplayPlan, ValueReplacement, make_plan
from graphxai.engine.replay import Replay, acting_rules
from graphxai.engine.request import NODES, PassRequest, record_pass
from graphxai.engine.role_finder import find_roles
from graphxai.engine.trace import WEIGHTS, Op, Ref, Trace, is_real
from graphxai.rules.conservative import Rules
from graphxai.rules.tape import DeferredShares, Tape
from graphxai.runtime.notices import warn

_ZEROS, _FULL, _MASKS = kinds.that("of_zeros"), kinds.that("of_number"), kinds.that("masks")


@dataclass(frozen=True, eq=False)
class PassPlans:
    """The plans of a recorded pass, and where it adds constants.

    Args:
        of_nodes: what relevance of the nodes passes through.
        of_all: what relevance of all inputs passes through.
        names: those of the inputs by bit.
        modules: the lines of the ledger that have constants, each with the modules that add
            them.
    """

    of_nodes: ReplayPlan
    of_all: ReplayPlan
    names: Mapping[int, str]
    modules: dict[str, set[str]] = field(default_factory=dict)

    @property
    def trace(self) -> Trace:
        """The list of operations."""
        return self.of_nodes.trace

    @property
    def slot(self) -> int:
        """The slot of the nodes' rows."""
        return self.trace.slot_of(NODES)

    @cached_property
    def lines(self) -> LedgerLines:
        """The lines of the ledger to which constants belong."""
        return LedgerLines(self.trace, self.names)

    @cached_property
    def line_of_output(self) -> str | None:
        """The line that the whole output belongs to, if the output is no signal."""
        last = self.trace.output
        value = last.value if type(last) is Ref else -1
        return None if value < 0 or self.of_all.signal[value] else self.lines.of(value)


def make_plans(trace: Trace, rules: Rules, names: Mapping[int, str], biases: bool) -> PassPlans:
    """Make the plans of a recorded pass.

    Args:
        names: those of the inputs by bit.
        biases: whether the shares of constants are wanted.
    """
    roles = find_roles(trace)
    of_nodes = make_plan(trace, roles, rules, NODES)
    if not biases:
        return PassPlans(of_nodes, of_nodes, names)
    of_all = make_plan(trace, roles, rules) if trace.live_inputs & ~NODES else of_nodes
    plans = PassPlans(of_nodes, of_all, names)
    plans.modules.update(modules_by_line(of_all, plans.lines))
    read = {ref.value for op in of_all.ops for ref in op.reads}
    for bit, name in names.items():
        if any(trace.flow.live[value] & bit for value in read):
            plans.modules.setdefault(name, set())
    return plans


def pass_by_recording(request: PassRequest, rules: Rules, tape: Tape | None) -> Tensor:
    """Return the outputs (B, C) of a recorded pass that ran again under the rules.

    Args:
        tape: gets the shares of constants, unless it is None.
    """
    outputs, plans, shares = _run_recorded(request, rules, tape is not None)
    if tape is not None:
        tape.acting_rules |= acting_rules(plans.of_all)
        tape.deferred_shares = shares
        unseen = _unseen_constants(plans.of_all, request)
        request.memory.explain_failure(request.name, rules, plans.trace, unseen)
    return outputs


def _run_recorded(
    request: PassRequest, rules: Rules, with_shares: bool
) -> tuple[Tensor, PassPlans, DeferredShares | None]:
    """Return the outputs (B, C), the plans, and the shares of constants if they are wanted."""
    trace = record_pass(request)
    warn_of_random_numbers(request.name, trace)
    plans = make_plans(trace, rules, request.names, with_shares or bool(request.leaves))
    warn_of_nonlinearities(request.name, plans.of_all)
    outputs = Replay(plans.of_nodes, {plans.slot: request.rows}).output()
    outputs = connected_to_nodes(outputs, request)
    if request.leaves:
        of_leaves = outputs_of_leaves(plans, request)
        outputs = outputs + of_leaves - of_leaves.detach()
    shares = shares_by_derivative(outputs, plans, request) if with_shares else None
    return outputs, plans, shares


def connected_to_nodes(outputs: Tensor, request: PassRequest) -> Tensor:
    """Give the nodes a gradient of zero if no gradient of the outputs reaches them."""
    return outputs if outputs.requires_grad else outputs + 0 * request.rows.sum()


# -- to compare a pass by hooks with ---------------------------------------------------------------


class ExplainedPass(NamedTuple):
    """What a pass says by hooks, or by a recording, to be compared with the other.

    Args:
        gradient: that of the explained outputs by the rows of the nodes, (n, D) or (B, S, D).
        relevance: that of the tokens, (B, T).
        shares: the share (B,) of each line of the ledger.
        unseen: the constants that the pass adds and autograd does not know, each as text.
    """

    gradient: Tensor
    relevance: Tensor
    shares: dict[str, Tensor]
    unseen: tuple[str, ...] = ()


def explain_recorded(request: PassRequest, rules: Rules, weights: Tensor) -> ExplainedPass:
    """Explain a pass by a recording.

    Args:
        weights: those of the outputs, (B, C).
    """
    rows = request.rows.detach().requires_grad_()
    again = replace(request, rows=rows, leaves={})  # their relevance follows from the same plan
    with torch.enable_grad():
        outputs, plans, deferred = _run_recorded(again, rules, with_shares=True)
        explained = (outputs * weights).sum()
    assert deferred is not None
    wanted = [again.rows, *deferred.leaves]
    gradient, *further = torch.autograd.grad(explained, wanted, materialize_grads=True)
    relevance = request.relevance_of_tokens(gradient)
    shares = deferred.shares(further, outputs.detach(), weights, relevance)
    unseen = tuple(_unseen_constants(plans.of_all, request))
    return ExplainedPass(gradient, relevance, shares, unseen)


def _unseen_constants(plan: ReplayPlan, request: PassRequest) -> Iterator[str]:
    """Yield the constants that a recorded pass adds and autograd does not know, as text.

    Autograd knows the model's parameters and the graph's other attributes. Zeros, and masks of
    zeros and minus infinity, add nothing. But buffers may change, also those of zeros.
    """
    lines = LedgerLines(plan.trace, request.names)
    expected = {BIASES, *request.others}
    for op in plan.passing:
        for line, ref in lines.added_by(plan, op):
            if line == BIASES and ref is not None and op.name not in kinds.NORMS:
                if _comes_from_a_buffer(plan.trace, ref):
                    yield f"a buffer in {op.path or request.name}"
                continue
            if ref is None:  # a number
                kept = kinds.ADDITIONS if request.memory.keeps else frozenset()
                is_known = (
                    line == CONSTANTS and op.name in kept | kinds.ABOVE_ZERO | kinds.LOGARITHMS
                )
                numbers = {arg for arg in op.args[1:] if isinstance(arg, float | int)}
                is_known |= op.name in _MASKS and numbers <= {0, -math.inf}
            else:
                is_known = _is_zero(plan.trace, ref)
            if line not in expected and not is_known:
                yield f"{line} in {op.path or request.name}"


def _comes_from_a_buffer(trace: Trace, ref: Ref) -> bool:
    """Whether a constant is made of floats that the model keeps, but not as parameters."""
    depends = trace.flow.depends

    def made_of_weights(_: int, op: Op) -> list[int]:
        return [read.value for read in op.reads if depends[read.value] & WEIGHTS]

    for value in trace.ancestors(ref.value, made_of_weights):
        from_model = trace.op_of(value) is None and depends[value] & WEIGHTS
        tensor = trace.tensor(value)
        if from_model and is_real(tensor) and not isinstance(tensor, nn.Parameter):
            return True
    return False


def _is_zero(trace: Trace, ref: Ref) -> bool:
    """Whether a constant was made of zeros, or has no other entries than these and masked ones."""
    value = trace.origin(ref.value, kinds.WHOLE)
    maker = trace.op_of(value)
    if maker is not None and (
        maker.name in _ZEROS or (maker.name in _FULL and maker.args[-1] == 0)
    ):
        return True
    slot = trace.flow.slot_of_value[value]
    if slot in trace.memory.unstable:
        written = trace.memory.written.get(trace.memory.storage[slot], -1)
        if trace.memory.latest[slot] != value or written > value:
            return False  # the tensor does not hold the value any more
    tensor = trace.tensor(value)
    return bool(((tensor == 0) | (tensor == -math.inf)).all())


# -- the shares of constants, and the relevance of inputs beside the nodes -------------------------


def shares_by_derivative(outputs: Tensor, plans: PassPlans, request: PassRequest) -> DeferredShares:
    """Return the shares of a recorded pass, computed before the gradient passes."""
    line_of_output = plans.line_of_output
    if line_of_output is None:
        shares = _shares_in_outputs(plans, request)
    else:
        shares = {line_of_output: outputs.detach()}
    shares = {line: share for line, share in shares.items() if line == BIASES or bool(share.any())}
    if CUT_OFF in shares:
        cuts = {""} if line_of_output is not None else plans.modules[CUT_OFF] - request.under_rules
        warn_of_cuts(request.name, cuts)

    def weighted(_: Any, outputs: Any, weights: Tensor, relevance: Any) -> dict[str, Tensor]:
        return {line: (share * weights).sum(-1) for line, share in shares.items()}

    return DeferredShares([], weighted)


def _shares_in_outputs(plans: PassPlans, request: PassRequest) -> dict[str, Tensor]:
    """Compute the share of each line in the outputs (B, C) of a recorded pass.

    The share of every constant c that is added is `sum c * df/dc`. The sum over the constants of a
    line is the directional derivative of f along them, for all graphs and outputs at once.
    """
    shares = {}
    for line in sorted(plans.modules):
        try:
            shares[line] = share_by_derivative(
                plans.of_all, {plans.slot: request.rows}, line, plans.lines
            )
        except (NotImplementedError, RuntimeError) as error:  # no forward differentiation
            if line in request.leaves:  # its relevance has the share
                continue
            warn(
                f"the share of {line} in {request.name} is unknown; the ledger lists it as"
                f" unexplained: {str(error).splitlines()[0]}",
                stacklevel=2,
            )
    return shares


def outputs_of_leaves(plans: PassPlans, request: PassRequest) -> Tensor:
    """Return outputs whose gradient leads to the leaves instead of the nodes.

    The leaf of an input of integers is a one for each row. It multiplies what the model makes of
    the row and adds to the nodes.
    """
    plan, trace, lines, leaves = plans.of_all, plans.trace, plans.lines, request.leaves
    slots = {plans.names.get(bit): slot for slot, bit in trace.inputs.items()}
    real = {
        name: leaf for name, leaf in leaves.items() if is_real(trace.memory.tensors[slots[name]])
    }
    codes = {name: leaf for name, leaf in leaves.items() if name not in real}
    replacements: dict[int, ValueReplacement] = {}
    for op in plan.passing if codes else ():
        for name, ref in lines.added_by(plan, op):
            if ref is not None and name in codes:
                if op.number in replacements:
                    raise _not_by_row(name)
                scaled = _scaled_by_row(name, codes[name])
                replacements[op.number] = ValueReplacement(ref.value, scaled)
    outputs: Tensor = Replay(
        plan,
        {slots[name]: leaf for name, leaf in real.items()} | {plans.slot: request.rows.detach()},
        replacements=replacements,
    ).output()
    return outputs


def _not_by_row(name: str) -> ValueError:
    return ValueError(
        f"the model does not keep the rows of {name} apart, so that they have no relevance of their"
        " own: the ledger has their share as a whole."
    )


def _scaled_by_row(name: str, leaf: Tensor) -> Callable[[Tensor], Tensor]:
    """Return a function that multiplies the rows of a constant by the leaf of their input."""

    def scaled(constant: Tensor) -> Tensor:
        if constant.shape[:1] != leaf.shape:
            raise _not_by_row(name)
        return constant * leaf.to(constant).view(-1, *[1] * (constant.dim() - 1))

    return scaled
