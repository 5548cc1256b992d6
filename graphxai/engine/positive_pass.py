"""Pass relevance back along a recorded list by the positive rules of Chefer et al., CVPR 2021.

The operations run again with the values they had. The backward pass of each operation is its rule
in `rule_table`, so that autograd returns relevance as "gradient".
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor

from graphxai.rules.conservative import Rules
from graphxai.rules.positive import PositiveRules

from .attention import NodeAttention, attention_replacements
from .node_ids import NodeIds
from .positive_context import PositiveContext
from .positive_rules import PositiveCall
from .relevance_pass import RelevancePass
from .replay import replay
from .replay_plan import ReplayPlan, make_plan
from .roles import Roles
from .rule_table import positive_rule
from .trace import Op, Trace, kind_of, not_followed, pair_refs

ALL_CONSTANT = Rules(attention=True, layernorm=True, activation="ratio")


def _run(context: PositiveContext, op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Run an operation, so that it passes relevance back by its rule."""
    rule = positive_rule(op.name)
    if rule is None or any(isinstance(arg, str) and arg in ("amax", "amin") for arg in op.args):
        return op.func(*args, **kwargs)
    reads = {ref.value: t for ref, t in pair_refs((op.args, op.kwargs), (args, kwargs))}
    inputs = {
        value: t for value, t in reads.items() if context.plan.signal[value] and t.requires_grad
    }
    if not inputs or not any(context.plan.signal[ref.value] for ref in op.makes):
        return op.func(*args, **kwargs)
    unstable, slot = context.trace.memory.unstable, op.makes[0].slot
    kinds = {*map(kind_of, (*reads.values(), context.trace.memory.tensors[slot]))} - {""}
    signals = [*map(kind_of, inputs.values())]
    rotates = op.name == "mul" and signals == ["complex"]  # as positions in rotary embeddings do
    if kinds and not (rotates and kinds == {"complex"}):
        raise not_followed(f"a {min(kinds)} tensor ({op.name})", op.path)
    tensors = {value: t.detach() for value, t in reads.items()}
    tensors |= {ref.value: tensors[ref.value].clone() for ref in op.reads if ref.slot in unstable}
    result = None if slot in unstable else context.trace.memory.tensors[slot].detach()
    frozen = op.with_tensors(lambda ref: tensors[ref.value])
    out = rule(PositiveCall(op, *frozen, inputs, tensors, result, context))
    if op.in_place:
        return args[0].copy_(out) if out is not args[0] else out
    return [out, *[None] * len(op.result[1:])] if isinstance(op.result, list) else out


def run_by_positive_rules(
    plan: ReplayPlan,
    nodes: NodeIds,
    inputs: Mapping[int, Tensor],
    size: int,
    attention: Sequence[NodeAttention],
    state: RelevancePass,
    name: str,
) -> Tensor:
    """Return the output of a pass, whose "gradient" by inputs and attention is relevance.

    Args:
        inputs: by slot.
        attention: what is read of it.
    """
    context = PositiveContext(plan, nodes, state, size, attention)
    replacements = attention_replacements(attention, context.exposing)
    output: Tensor = replay(
        plan, inputs, replacements=replacements, run_op=partial(_run, context)
    ).output()
    if context.unknown:
        lines = sorted(f"{path or name}: {what}" for path, what in context.unknown)
        warnings.warn(
            f"{name} has parts that no positive rule covers; their inputs got relevance in"
            f" proportion to gradient x input: {'; '.join(lines)}.",
            stacklevel=9,
        )
    return output


def make_positive_plan(trace: Trace, roles: Roles, rules: PositiveRules, bits: int) -> ReplayPlan:
    """Plan a pass by positive rules. Gates, scales and attention are constant.

    Attention is not constant if the rules go into queries and keys.
    """
    held = {number: dict(values) for number, values in roles.held.items()}
    if rules.into_queries_and_keys:
        for product in roles.attention:
            held.get(product.op.number, {}).pop(product.weights, None)
    return make_plan(trace, replace(roles, held=held, products=set()), ALL_CONSTANT, bits)
