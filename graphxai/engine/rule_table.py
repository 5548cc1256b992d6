"""The table of rules: how each operation passes relevance back, in both tiers.

A row belongs to an ATen operation, or to several that act alike. It has the operation's rule under
LRP and its relatives, and its rule under the positive rules of Chefer et al. The first tier reads
names of operations from the nodes of autograd's graph (`node_kinds`), the second from a recording.
Both look them up here, so that a rule is added once and acts in both.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from torch import Tensor

from graphxai.rules.operation_rule import BoundOperation, OperationRule

from .built_in_rules import (
    BuiltInRule,
    Function,
    affine,
    batch_norm,
    batch_norm_running,
    group_norm,
    group_norm_backward,
    layer_norm,
    layer_norm_backward,
    log_softmax,
    per_channel,
    ratio,
    ratio_above_zero,
    ratio_backward,
    rms_norm,
    rms_norm_backward,
    variance,
)
from .positive_rules import PositiveCall, added, by_entry, multiplied, quotient, summed
from .replay_plan import ReplayPlan
from .trace import Op, Ref
from .vocabulary import (
    ABOVE_ZERO,
    ADDITIONS,
    LINEAR,
    MATRIX_PRODUCTS,
    RATIO,
    SAME,
    SUMS,
    THROUGH_ZERO,
)

PositiveRule: TypeAlias = Callable[[PositiveCall], Tensor]


class OperationRules(NamedTuple):
    """How an operation passes relevance back.

    Args:
        conservative: its rule under LRP and its relatives, or None for its ordinary gradient.
        positive: its rule under the positive rules, or None for its ordinary gradient. By default
            it acts entry by entry, or a warning names it.
    """

    conservative: BuiltInRule | None = None
    positive: PositiveRule | None = by_entry


_LINEAR_BY_ENTRY = {
    "neg", "relu", "leaky_relu", "_prelu_kernel", "prelu", "clamp", "clamp_min", "clamp_max", "abs",
    "threshold", "hardtanh_relu", "diff",
}  # fmt: skip
_AVERAGES = {
    "_adaptive_avg_pool2d", "adaptive_avg_pool1d", "_adaptive_avg_pool3d", "avg_pool2d",
    "avg_pool3d", "upsample_nearest2d", "upsample_bilinear2d", "col2im", "_embedding_bag",
}  # fmt: skip
_ROWS: tuple[tuple[Iterable[str], OperationRules], ...] = (
    # linear and piecewise linear operations
    (SAME, OperationRules(positive=None)),
    (LINEAR - _LINEAR_BY_ENTRY - _AVERAGES, OperationRules(positive=None)),
    (SUMS | _AVERAGES, OperationRules(positive=summed)),
    (ADDITIONS, OperationRules(positive=added)),
    # products
    (MATRIX_PRODUCTS | {"mul"}, OperationRules(positive=multiplied)),
    (["div"], OperationRules(positive=quotient)),
    # norms
    (["native_layer_norm"],
     OperationRules(BuiltInRule("layernorm", layer_norm, layer_norm_backward))),
    (["native_group_norm"],
     OperationRules(BuiltInRule("layernorm", group_norm, group_norm_backward))),
    (["_fused_rms_norm"], OperationRules(BuiltInRule("layernorm", rms_norm, rms_norm_backward))),
    (["native_batch_norm", "cudnn_batch_norm"],
     OperationRules(BuiltInRule("layernorm", batch_norm))),
    (["_native_batch_norm_legit_no_training"],
     OperationRules(BuiltInRule("layernorm", batch_norm_running))),
    # functions of single entries, and other functions of one signal
    (RATIO, OperationRules(BuiltInRule("activation", ratio, ratio_backward))),
    (THROUGH_ZERO, OperationRules(BuiltInRule("activation", ratio))),
    (ABOVE_ZERO, OperationRules(BuiltInRule("activation", ratio_above_zero))),
    (["var", "var_mean"], OperationRules(BuiltInRule("activation", variance))),
    (["_log_softmax"], OperationRules(BuiltInRule("attention", log_softmax))),
)  # fmt: skip
RULES: dict[str, OperationRules] = {name: rules for names, rules in _ROWS for name in names}
_NO_RULES = OperationRules()


def conservative_rule(operation: str) -> BuiltInRule | None:
    """Return the rule of an operation under LRP and its relatives, or None for its gradient."""
    return RULES.get(operation, _NO_RULES).conservative


def positive_rule(operation: str) -> PositiveRule | None:
    """Return the rule of an operation under the positive rules, or None for its gradient."""
    return RULES.get(operation, _NO_RULES).positive


# -- where a rule is in force: one of `Rules.custom` precedes those built in -----------------------


def rule_for(plan: ReplayPlan, op: Op, along: bool = False) -> Function | None:
    """Return the function that takes an operation's place, or None if no rule is in force for it.

    A norm with running statistics is affine and needs no rule.

    Args:
        along: whether it gets one all the same, so that its statistics count as constants that
            are added.
    """
    custom = custom_rule(plan, op)
    if custom is not None:
        return partial(apply_custom_rule, custom)
    rule = built_in_rule(plan, op, along)
    return None if rule is None else rule.forward


def custom_rule(plan: ReplayPlan, op: Op) -> OperationRule | None:
    """Return the custom rule that is in force for an operation, if there is one.

    Raises ValueError unless the only signal is the first argument, for which rules are written.
    """
    rule = plan.rules.custom_rule(op.name) if plan.rules.custom else None
    signals = {ref.value for ref in op.reads if plan.signal[ref.value]} if rule else set()
    if rule is None or not signals:
        return None
    if not isinstance(op.args[0], Ref) or signals != {op.args[0].value}:
        raise ValueError(
            f"a custom rule acts on {rule.operation!r} of one signal, its first argument; in"
            f" {op.path or 'the model'} other arguments depend on the input."
        )
    return rule


def acting_rules(plan: ReplayPlan) -> set[OperationRule]:
    """Return the custom rules for operations that act on signals in a pass."""
    rules = (custom_rule(plan, op) for op in plan.passing if plan.rules.custom)
    return {rule for rule in rules if rule is not None}


def apply_custom_rule(
    rule: OperationRule, func: Function, x: Tensor, *args: Any, **kwargs: Any
) -> Tensor:
    """Compute an operation by a custom rule, and add the bias of a norm behind it."""
    settings, bias = list(args), None
    place = {"layer_norm": 2, "group_norm": 1}.get(rule.operation)
    if place is not None and len(settings) > place:
        bias, settings[place] = settings[place], None
    y = rule.compute(x, BoundOperation(func, tuple(settings), kwargs))
    if bias is None:
        return y
    return affine(y, None, bias) if rule.operation == "layer_norm" else per_channel(y, None, bias)


def has_rule(plan: ReplayPlan, op: Op) -> bool:
    """Whether one of the rules that come with the package is in force for an operation."""
    return built_in_rule(plan, op) is not None


def built_in_rule(plan: ReplayPlan, op: Op, along: bool = False) -> BuiltInRule | None:
    """Return the rule of the package that is in force for an operation, if there is one.

    Args:
        along: as for `rule_for`.
    """
    rule = conservative_rule(op.name)
    if rule is None or not vanishes_at_zero(op) or op.number in plan.roles.softmax:
        return None
    if not any(plan.signal[ref.value] for ref in op.reads):
        return None
    without_rule = "batch_norm" in op.name and op.args[3] is not None
    if without_rule and op.name != "_native_batch_norm_legit_no_training":
        without_rule = op.args[5] is False
    in_force = along if without_rule else bool(getattr(plan.rules, rule.asked_by))
    return rule if in_force else None


def vanishes_at_zero(op: Op) -> bool:
    """Whether f(0) = 0, which depends on the bounds of `hardtanh` and on an exponent."""
    if op.name == "pow":
        exponent = op.args[1]
        return type(op.args[0]) is Ref and isinstance(exponent, int | float) and exponent > 0
    if op.name != "hardtanh":
        return True
    low, high = (*op.args[1:], -1, 1)[:2] if len(op.args) < 3 else op.args[1:3]
    return bool(low <= 0 <= high)
