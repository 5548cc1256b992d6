"""Measure how faithful explanations are: node removal, curves, checks, statistics and reports."""

from typing import TYPE_CHECKING

from graphxai.runtime.lazy import lazily

if TYPE_CHECKING:  # loaded when first used, because PyG takes longer to import than torch
    from graphxai.learning.recipes.masked_atoms import MaskedAtoms as MaskedAtoms
    from graphxai.learning.recipes.masked_atoms import fit_masked_atoms as fit_masked_atoms
    from graphxai.learning.refit import Refit as Refit
    from graphxai.wrapping.removal import OPERATORS as OPERATORS
    from graphxai.wrapping.removal import Operator as Operator
    from graphxai.wrapping.removal import Resampling as Resampling
    from graphxai.wrapping.removal import operators_for as operators_for
    from graphxai.wrapping.removal import outputs_of_parts as outputs_of_parts

    from .benchmark import evaluate as evaluate
    from .by_layer import Conservation as Conservation
    from .by_layer import conservation as conservation
    from .by_layer import layer_sums as layer_sums
    from .curves import Curve as Curve
    from .curves import Series as Series
    from .curves import node_series as node_series
    from .ground_truth import evaluate_truth as evaluate_truth
    from .ground_truth import model_score as model_score
    from .metrics import METRICS as METRICS
    from .metrics import Metric as Metric
    from .report import Report as Report
    from .report import merged as merged
    from .selected_heads import HeadControl as HeadControl
    from .selected_heads import head_control as head_control
    from .statistics import Comparison as Comparison
    from .statistics import Comparisons as Comparisons
    from .statistics import Interval as Interval
    from .statistics import bootstrap as bootstrap
    from .statistics import compare_pairs as compare_pairs
    from .statistics import holm as holm
    from .statistics import kendall_tau as kendall_tau

__getattr__, __dir__, __all__ = lazily(__name__, __file__)
