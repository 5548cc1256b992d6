"""Explain a pass under the conservative rules by a recording of it: the second tier."""

import math
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor, nn

from graphxai.engine import operations as kinds
from graphxai.engine.flow_queries import ancestors
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
from graphxai.engine.plan import ReplayPlan, ValueReplacement, make_plans
from graphxai.engine.replay import Replay
from graphxai.engine.request import PassRequest, record_pass
from graphxai.engine.role_finder import find_roles
from graphxai.engine.trace import NODES, WEIGHTS, Op, Ref, Trace, is_real
from graphxai.rules.conservative import Rules
from graphxai.rules.tape import DeferredShares, Tape
from graphxai.runtime.notices import warn

_ZEROS, _FULL, _MASKS = kinds.that("of_zeros"), kinds.that("of_number"), kinds.that("masks")


def pass_by_recording(request: PassRequest, rules: Rules, tape: Tape | None) -> Tensor:
    """Return the outputs (B, C) of a recorded pass that ran again under the rules.

    Args:
        tape: gets the shares of constants, unless it is None.
    """
    outputs, plan, shares = run_recorded(request, rules, tape is not None)
    if tape is not None:
        tape.acting_rules.update(plan.custom.values())
        tape.deferred_shares = shares
        unseen = unseen_constants(plan, request)
        request.memory.explain_failure(request.name, rules, plan.trace, unseen)
    return outputs


def run_recorded(
    request: PassRequest, rules: Rules, with_shares: bool = True
) -> tuple[Tensor, ReplayPlan, DeferredShares | None]:
    """Return the outputs (B, C), the plan, and the shares of constants if they are wanted.

    The plan is that of what relevance of all inputs passes through, if that of others than the
    nodes is wanted.
    """
    trace = record_pass(request)
    warn_of_random_numbers(request.name, trace)
    roles = find_roles(trace)
    of_nodes, plan = make_plans(trace, roles, rules)
    plan = plan if with_shares or request.leaves else of_nodes
    warn_of_nonlinearities(request.name, plan)
    outputs = Replay(of_nodes, {trace.slot_of(NODES): request.rows}).output()
    outputs = connected_to_nodes(outputs, request)
    if request.leaves:
        of_leaves = outputs_of_leaves(plan, request)
        outputs = outputs + of_leaves - of_leaves.detach()
    return outputs, plan, shares_by_derivative(outputs, plan, request) if with_shares else None


def connected_to_nodes(outputs: Tensor, request: PassRequest) -> Tensor:
    """Give the nodes a gradient of zero if no gradient of the outputs reaches them."""
    return outputs if outputs.requires_grad else outputs + 0 * request.rows.sum()


def unseen_constants(plan: ReplayPlan, request: PassRequest) -> Iterator[str]:
    """Yield the constants that a recorded pass adds and autograd does not know, as text.

    Autograd knows the model's parameters and the graph's other attributes. Zeros, and masks of
    zeros and minus infinity, add nothing. But buffers may change, also those of zeros.
    """
    lines = LedgerLines(plan.trace, request.names)
    expected = {BIASES, *request.others}
    known = kinds.ADDITIONS if request.memory.keeps else frozenset[str]()
    for op in plan.passing:
        for line, ref in lines.added_by(plan, op):
            if line == BIASES and ref is not None and op.name not in kinds.NORMS:
                if _comes_from_a_buffer(plan.trace, ref):
                    yield f"a buffer in {op.path or request.name}"
                continue
            if ref is None:  # a number
                is_known = line == CONSTANTS and (op.name in known or op.number in plan.adding)
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

    for value in ancestors(trace, ref.value, made_of_weights):
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


def shares_by_derivative(outputs: Tensor, plan: ReplayPlan, request: PassRequest) -> DeferredShares:
    """Return the shares of a recorded pass, computed before the gradient passes."""
    lines, last = LedgerLines(plan.trace, request.names), plan.trace.output
    if type(last) is Ref and last.value >= 0 and not plan.signal[last.value]:
        shares, cuts = {lines.of(last.value): outputs.detach()}, {""}  # the output is no signal
    else:
        shares, modules = _shares_in_outputs(plan, lines, request)
        cuts = modules.get(CUT_OFF, set()) - request.under_rules
    shares = {line: share for line, share in shares.items() if line == BIASES or bool(share.any())}
    if CUT_OFF in shares:
        warn_of_cuts(request.name, cuts)

    def weighted(_: Any, outputs: Any, weights: Tensor, relevance: Any) -> dict[str, Tensor]:
        return {line: (share * weights).sum(-1) for line, share in shares.items()}

    return DeferredShares([], weighted)


def _shares_in_outputs(
    plan: ReplayPlan, lines: LedgerLines, request: PassRequest
) -> tuple[dict[str, Tensor], dict[str, set[str]]]:
    """Compute the share of each line in the outputs (B, C), and name the modules that add to it."""
    modules, flow = modules_by_line(plan, lines), plan.trace.flow
    read = {ref.value for op in plan.ops for ref in op.reads}
    for bit, name in request.names.items():
        if any(flow.live[value] & bit for value in read):
            modules.setdefault(name, set())
    shares, slot = {}, plan.trace.slot_of(NODES)
    for line in sorted(modules):
        try:
            shares[line] = share_by_derivative(plan, {slot: request.rows}, line, lines)
        except (NotImplementedError, RuntimeError) as error:  # no forward differentiation
            if line in request.leaves:  # its relevance has the share
                continue
            warn(
                f"the share of {line} in {request.name} is unknown; the ledger lists it as"
                f" unexplained: {str(error).splitlines()[0]}",
                stacklevel=2,
            )
    return shares, modules


def outputs_of_leaves(plan: ReplayPlan, request: PassRequest) -> Tensor:
    """Return outputs whose gradient leads to the leaves instead of the nodes.

    The leaf of an input of integers is a one for each row. It multiplies what the model makes of
    the row and adds to the nodes.
    """
    trace, names, leaves = plan.trace, request.names, request.leaves
    lines = LedgerLines(trace, names)
    slots = {names.get(bit): slot for slot, bit in trace.inputs.items()}
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
        {slots[name]: leaf for name, leaf in real.items()} | {slots[None]: request.rows.detach()},
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
