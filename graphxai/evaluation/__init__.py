"""Measure how faithful explanations are: node removal, curves, checks, statistics and reports."""

from typing import TYPE_CHECKING

from graphxai.runtime.lazy import lazily

if TYPE_CHECKING:  # loaded when first used, because PyG takes longer to import than torch
    from graphxai.learning.masked_atoms import MaskedAtoms, fit_masked_atoms
    from graphxai.learning.refit import Refit
    from graphxai.wrapping.removal import (
        OPERATORS,
        Operator,
        Resampling,
        operators_for,
        outputs_of_parts,
    )

    from .benchmark import evaluate
    from .curves import Curve, Series, node_series
    from .ground_truth import evaluate_truth, model_score
    from .method_values import Conservation, conservation
    from .metrics import METRICS, Metric
    from .report import Report, merged
    from .statistics import (
        Comparison,
        Comparisons,
        Interval,
        bootstrap,
        compare_pairs,
        holm,
        kendall_tau,
    )

__all__ = [
    "METRICS",
    "OPERATORS",
    "Comparison",
    "Comparisons",
    "Conservation",
    "Curve",
    "Interval",
    "MaskedAtoms",
    "Metric",
    "Operator",
    "Refit",
    "Report",
    "Resampling",
    "Series",
    "bootstrap",
    "compare_pairs",
    "conservation",
    "evaluate",
    "evaluate_truth",
    "fit_masked_atoms",
    "holm",
    "kendall_tau",
    "merged",
    "model_score",
    "node_series",
    "operators_for",
    "outputs_of_parts",
]

__getattr__, __dir__, _ = lazily(__name__, __file__)
