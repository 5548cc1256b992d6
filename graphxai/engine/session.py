"""Choose how a pass of a wrapped model is explained: by hooks, a recording, or positive rules."""

from dataclasses import replace

from torch import Tensor

from graphxai.contract.model import NoAttentionError
from graphxai.rules.conservative import Rules, Tape

from .attention import NodeAttention, attention_between_nodes
from .attention_pass import annotated_trace, replay_reading_attention
from .autograd_graph import Opaque
from .hooked_ledger import ExplainedPass
from .hooked_pass import pass_by_hooks
from .node_ids import reads_class_token
from .pass_request import NODES, PassRequest
from .pass_warnings import warn_of_random_numbers
from .positive_pass import make_positive_plan, run_by_positive_rules
from .recorded_pass import connected_to_nodes, explain_recorded, pass_by_recording
from .relevance_pass import RelevancePass


def pass_by_conservative_rules(request: PassRequest, rules: Rules, tape: Tape | None) -> Tensor:
    """Return the outputs (B, C) of node rows under the rules, and record what the tape asks for."""
    memory = request.memory
    if tape is not None and not tape.with_biases:
        memory.note_pass("recording")
        return _pass_with_attention(request, rules, tape)
    hookable = request.reading_leaves() if memory.allows_hooks(rules) else None
    if tape is not None and hookable is not None:

        def explain_by_recording(part: PassRequest, weights: Tensor) -> ExplainedPass:
            whole = replace(request, leaves={})  # relevance of leaves follows from the same plan
            return explain_recorded(whole if part is hookable else part, rules, weights)

        try:
            outputs, tape.deferred_shares = pass_by_hooks(hookable, rules, explain_by_recording)
            memory.note_pass("hooks", unchanged=not request.has_module_rules)
            return connected_to_nodes(outputs, request)
        except Opaque as why:
            memory.note_failure(rules, why)
        except Exception as error:  # the recorded pass raises it again if it is the model's
            memory.note_failure(rules, Opaque(str(error) or type(error).__name__))
    memory.note_pass("recording")
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
        raise NoAttentionError.of(
            request.name,
            " (Attention over more rows than the nodes and a class token is not read, nor are"
            " weights that may be negative.)",
        )
    return connected_to_nodes(replayed.output(), request)


def pass_by_positive_rules(request: PassRequest, state: RelevancePass) -> Tensor:
    """Return the outputs (B, C) of node rows, from which relevance passes by positive rules."""
    request.memory.note_pass("recording")
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
