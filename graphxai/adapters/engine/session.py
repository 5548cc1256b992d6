"""Record passes and replay them under the rules: of wrapped models, and within a block.

Passes of wrapped models also tell the shares of constants.
"""

from collections.abc import Hashable

from torch import Tensor

from graphxai.rules.conservative import Rules, Tape

from .attention import NodeAttention, attention_between_nodes
from .attention_pass import annotated_trace, graph_ids, replay_reading_attention
from .hooked_pass import may_be_hooked, note_failure, pass_by_hooks
from .pass_plans import Program, make_program
from .pass_request import NODES, PassRequest, record_pass
from .pass_warnings import warn_of_nonlinearities, warn_of_random_numbers
from .positive_pass import make_positive_plan, run_by_positive_rules
from .program import store_program
from .program_following import follow_program
from .recorded_shares import (
    outputs_of_leaves,
    replayed_with_shares,
    shares_by_derivative,
    shares_from_gradient,
)
from .relevance_pass import RelevancePass
from .replay import replay


def pass_by_conservative_rules(request: PassRequest, rules: Rules, tape: Tape | None) -> Tensor:
    """Return the outputs (B, C) of node rows under the rules, and record what the tape asks for."""
    if tape is not None and not tape.with_biases:
        return _pass_with_attention(request, rules)
    if tape is not None and may_be_hooked(request, rules):
        try:
            outputs, tape.deferred_shares = pass_by_hooks(request, rules)
            return _connected_to_nodes(outputs, request)
        except Exception as why:  # the recorded pass raises it again if it is the model's
            note_failure(request.module, str(why) or type(why).__name__)
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
    outputs = _connected_to_nodes(outputs, request)
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


def _pass_with_attention(request: PassRequest, rules: Rules) -> Tensor:
    """Return the outputs of a pass, and put its attention on the tape."""
    annotated = annotated_trace(request)
    warn_of_random_numbers(request.name, annotated.trace)
    slot = annotated.trace.slot_of(NODES)
    replayed = replay_reading_attention(
        annotated, rules, slot, request.rows, request.layout, request.name
    )
    return _connected_to_nodes(replayed.output(), request)


def _recorded_program(request: PassRequest, rules: Rules, key: Hashable, biases: bool) -> Program:
    """Record a pass, and make and store its program."""
    trace = record_pass(request)
    program = make_program(trace, rules, request.names, biases)
    warn_of_random_numbers(request.name, trace)
    store_program(request, key, program, lambda: graph_ids(program, request))
    return program


def pass_by_positive_rules(request: PassRequest, state: RelevancePass) -> Tensor:
    """Return the outputs (B, C) of node rows, from which relevance passes by positive rules."""
    name, size = request.name, len(request.layout.mask)
    trace, nodes, roles = annotated_trace(request)
    inputs = {trace.slot_of(NODES): request.rows}
    plan = make_positive_plan(trace, roles, state.rules, NODES)
    attention: list[NodeAttention] = []
    if state.reads_attention:
        attention = attention_between_nodes(plan, nodes, size, name)
    warn_of_random_numbers(name, trace)
    outputs = run_by_positive_rules(plan, nodes, inputs, size, attention, state, name)
    return _connected_to_nodes(outputs, request)


def _connected_to_nodes(outputs: Tensor, request: PassRequest) -> Tensor:
    """Give the nodes a gradient of zero if no gradient of the outputs reaches them."""
    return outputs if outputs.requires_grad else outputs + 0 * request.rows.sum()
