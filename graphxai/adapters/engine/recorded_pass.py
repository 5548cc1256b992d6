"""Explain a pass under the conservative rules by a recording of it: the second tier."""

import math
from collections.abc import Hashable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from graphxai.rules.conservative import Rules, Tape, conservative, record

from .attention_pass import graph_ids
from .constant_additions import ZEROS
from .hooked_ledger import ExplainedPass
from .hooked_pass import locate_failure
from .ledger_lines import BIASES, LedgerLines
from .node_ids import RESHAPES
from .pass_plans import Program, make_program
from .pass_request import PassRequest, record_pass
from .pass_warnings import warn_of_nonlinearities, warn_of_random_numbers
from .program import store_program
from .program_following import follow_program
from .recorded_shares import (
    outputs_of_leaves,
    replayed_with_shares,
    shares_by_derivative,
    shares_from_gradient,
)
from .replay import replay
from .replay_plan import ReplayPlan, make_plan
from .role_finder import find_roles
from .rules_in_force import acting_rules
from .trace import Op, Ref, Trace

FULL = {"full", "new_full", "full_like"}
COPIES = RESHAPES | {"expand", "repeat", "alias", "lift_fresh", "_to_copy", "detach"}


def pass_by_recording(request: PassRequest, rules: Rules, tape: Tape | None) -> Tensor:
    """Return the outputs (B, C) of a recorded pass that ran again under the rules.

    Args:
        tape: gets the shares of constants, unless it is None.
    """
    inputs = {"": request.rows, **request.others}.items()
    kinds = tuple((name, t.dtype, t.dim(), t.device) for name, t in inputs)
    key = (rules, tape is not None, kinds)
    followed = None if request.leaves else follow_program(request, key)
    if followed is None:
        program = _recorded_program(request, rules, key, tape is not None or bool(request.leaves))
        # run the first pass like every later one, so that it has the same last digits
        followed = None if request.leaves or tape is None else follow_program(request, key)
    if followed is None and not request.leaves and tape is not None:
        followed = replayed_with_shares(request, program)
    if followed is None:
        outputs = replay(program.node_plan, {program.slot: request.rows}).output()
    else:
        program, outputs = followed.program, followed.outputs
    if program.has_nonlinearities:
        warn_of_nonlinearities(request.name, program.full_plan)
    outputs = connected_to_nodes(outputs, request)
    if tape is not None:
        tape.acting_rules |= acting_rules(program.full_plan)
    if request.leaves:
        of_leaves = outputs_of_leaves(program, request)
        outputs = outputs + of_leaves - of_leaves.detach()
    if tape is None:
        return outputs
    if followed is None or followed.shares is None:
        tape.deferred_shares = shares_by_derivative(outputs, program, request)
    else:
        tape.deferred_shares = shares_from_gradient(followed, followed.shares, request, rules, key)
    return outputs


def _recorded_program(request: PassRequest, rules: Rules, key: Hashable, biases: bool) -> Program:
    """Record a pass, and make and store its program."""
    trace = record_pass(request)
    locate_failure(request.module, rules, trace)
    program = make_program(trace, rules, request.names, biases)
    warn_of_random_numbers(request.name, trace)
    store_program(request, key, program, lambda: graph_ids(program, request))
    return program


def connected_to_nodes(outputs: Tensor, request: PassRequest) -> Tensor:
    """Give the nodes a gradient of zero if no gradient of the outputs reaches them."""
    return outputs if outputs.requires_grad else outputs + 0 * request.rows.sum()


# -- to compare a pass by hooks with ---------------------------------------------------------------


def explain_recorded(
    request: PassRequest, rules: Rules, weights: Tensor, relevance: Tensor
) -> ExplainedPass:
    """Explain a pass by a recording.

    Args:
        weights: those of the outputs, (B, C).
        relevance: that of the tokens, (B, T), by the pass to compare with.
    """
    again = replace(request, rows=request.rows.detach().requires_grad_())
    with torch.enable_grad(), conservative(**vars(rules)), record(biases=True) as tape:
        outputs = pass_by_recording(again, rules, tape)
        explained = (outputs * weights).sum()
    assert tape.deferred_shares is not None
    wanted = [again.rows, *tape.deferred_shares.leaves]
    gradient, *further = torch.autograd.grad(explained, wanted, materialize_grads=True)
    shares = tape.deferred_shares.shares(list(further), outputs.detach(), weights, relevance)
    trace = record_pass(replace(request, rows=request.rows.detach()))
    plan = make_plan(trace, find_roles(trace), rules)
    return ExplainedPass(gradient, shares, list(_unseen_constants(plan, request)))


def _unseen_constants(plan: ReplayPlan, request: PassRequest) -> Iterator[str]:
    """Yield the constants that a recorded pass adds and autograd does not know, in words.

    Autograd knows the model's parameters and the graph's other attributes. Zeros, and masks of
    zeros and minus infinity, add nothing.
    """
    lines = LedgerLines(plan.trace, request.names)
    floats = (name for name, tensor in request.others.items() if tensor.is_floating_point())
    expected = {BIASES, *floats}
    for op in plan.passing:
        for line, ref in lines.added_by(plan, op):
            adds_nothing = _is_mask(op) if ref is None else _is_zero(plan.trace, ref)
            if line not in expected and not adds_nothing:
                yield f"{line} in {op.path or request.name}"


def _is_mask(op: Op) -> bool:
    """Whether the numbers that an operation puts among entries are zero or minus infinity."""
    numbers = {arg for arg in op.args[1:] if isinstance(arg, float | int)}
    return op.name == "masked_fill" and numbers <= {0, -math.inf}


def _is_zero(trace: Trace, ref: Ref) -> bool:
    """Whether a constant was made of zeros, or has no other entries than these and masked ones."""
    value = trace.origin(ref.value, COPIES)
    maker = trace.op_of(value)
    if maker is not None and (maker.name in ZEROS or _fills_with_zeros(maker)):
        return True
    slot = trace.flow.slot_of_value[value]
    if slot in trace.memory.unstable:
        written = trace.memory.written.get(trace.memory.storage[slot], -1)
        if trace.memory.latest[slot] != value or written > value:
            return False  # the tensor does not hold the value any more
    tensor = trace.tensor(value)
    return bool(((tensor == 0) | (tensor == -math.inf)).all())


def _fills_with_zeros(op: Op) -> bool:
    """Whether an operation makes a tensor full of zeros, as `to_dense_batch` does."""
    return op.name in FULL and op.args[-1] == 0
