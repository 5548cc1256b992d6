"""The table of rules: how each operation passes relevance back, in both tiers.

A row belongs to an ATen operation, or to several that act alike. It has the operation's rule under
LRP and its relatives, and its rule under the positive rules of Chefer et al. The first tier reads
names of operations from the nodes of autograd's graph (`node_kinds`), the second from a recording.
Both look them up here, so that a rule is added once and acts in both.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeAlias

from torch import Tensor

from .built_in_rules import (
    BuiltInRule,
    batch_norm,
    batch_norm_running,
    group_norm,
    group_norm_backward,
    layer_norm,
    layer_norm_backward,
    log_softmax,
    ratio,
    ratio_above_zero,
    ratio_backward,
    rms_norm,
    rms_norm_backward,
    variance,
)
from .positive_rules import PositiveCall, added, by_entry, multiplied, quotient, summed
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
