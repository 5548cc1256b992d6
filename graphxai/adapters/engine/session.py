"""Choose how a pass of a wrapped model is explained: by hooks, a recording, or positive rules."""

from functools import partial

from torch import Tensor

from graphxai.contract.model import NoAttentionError
from graphxai.rules.conservative import Rules, Tape

from .attention import NodeAttention, attention_between_nodes
from .attention_pass import annotated_trace, replay_reading_attention
from .class_token import reads_class_token
from .hooked_pass import may_be_hooked, note_failure, pass_by_hooks
from .pass_request import NODES, PassRequest
from .pass_warnings import warn_of_random_numbers
from .positive_pass import make_positive_plan, run_by_positive_rules
from .recorded_pass import connected_to_nodes, explain_recorded, pass_by_recording
from .relevance_pass import RelevancePass


def pass_by_conservative_rules(request: PassRequest, rules: Rules, tape: Tape | None) -> Tensor:
    """Return the outputs (B, C) of node rows under the rules, and record what the tape asks for."""
    if tape is not None and not tape.with_biases:
        return _pass_with_attention(request, rules, tape)
    if tape is not None and may_be_hooked(request, rules):
        try:
            explained_again = partial(explain_recorded, request, rules)
            outputs, tape.deferred_shares = pass_by_hooks(request, rules, explained_again)
            return connected_to_nodes(outputs, request)
        except Exception as why:  # the recorded pass raises it again if it is the model's
            reason, node = str(why) or type(why).__name__, getattr(why, "node", None)
            note_failure(request.module, rules, reason, node=node)
    return pass_by_recording(request, rules, tape)


def _pass_with_attention(request: PassRequest, rules: Rules, tape: Tape) -> Tensor:
    """Return the outputs of a pass, and put its attention on the tape.

    Raises NoAttentionError if there is none.
    """
    annotated = annotated_trace(request)
    warn_of_random_numbers(request.name, annotated.trace)
    slot = annotated.trace.slot_of(NODES)
    replayed = replay_reading_attention(
        annotated, rules, slot, request.rows, request.layout, request.name
    )
    if not tape.attention:
        raise NoAttentionError(
            f"{request.name} has no attention between nodes that graphxai can see: methods that"
            " read attention cannot explain it. (Attention over more rows than the nodes and a"
            " class token is not read, nor are weights that may be negative.)"
        )
    return connected_to_nodes(replayed.output(), request)


def pass_by_positive_rules(request: PassRequest, state: RelevancePass) -> Tensor:
    """Return the outputs (B, C) of node rows, from which relevance passes by positive rules."""
    name, size = request.name, len(request.layout.mask)
    trace, nodes, roles = annotated_trace(request)
    inputs = {trace.slot_of(NODES): request.rows}
    plan = make_positive_plan(trace, roles, state.rules, NODES)
    attention: list[NodeAttention] = []
    if state.reads_attention:
        attention = attention_between_nodes(plan, nodes, size, name)
        state.reads_class_token = reads_class_token(trace, nodes)
    warn_of_random_numbers(name, trace)
    outputs = run_by_positive_rules(plan, nodes, inputs, size, attention, state, name)
    return connected_to_nodes(outputs, request)
