"""Faithfulness of explanations: removal of nodes, curves, statistics."""

from .curves import Curve, activation_and_pruning
from .removal import OPERATORS, Operator, outputs_of_parts
from .report import METRICS, Report, evaluate
from .statistics import Comparison, Interval, bootstrap, compare_pairs, holm

__all__ = [
    "METRICS",
    "OPERATORS",
    "Comparison",
    "Curve",
    "Interval",
    "Operator",
    "Report",
    "activation_and_pruning",
    "bootstrap",
    "compare_pairs",
    "evaluate",
    "holm",
    "outputs_of_parts",
]
