"""Explain graph transformers: conservative relevance propagation, from SMILES to a picture.

    import graphxai as gx
    model = gx.load("bace")
    gx.explain(model, "CC(C)Cc1ccc(cc1)C(C)C(=O)O").save("ibuprofen.svg")

Everything below is loaded when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from graphxai.adapters import wrap
    from graphxai.api import explain, load, methods, predict, pretrained_models
    from graphxai.cliffs import Cliff, activity_cliffs
    from graphxai.contrasts import Contrast, contrast
    from graphxai.datasets.hygiene import CleanTable, clean_table
    from graphxai.evaluation.benchmark import evaluate
    from graphxai.evaluation.report import Report
    from graphxai.explanation import Explanation, Ledger, Prediction
    from graphxai.explanations import Explanations
    from graphxai.fragment_statistics import fragment_table
    from graphxai.fragmentation import Fragment, Fragments, fragments
    from graphxai.models.graphormer.recipes_table import train_table
    from graphxai.pairwise import Pairs, pairs
    from graphxai.pictures import Picture, compare, grid
    from graphxai.propagation import conservative, record
    from graphxai.reporting import report
    from graphxai.target import Target
    from graphxai.training_set import TrainingSet, training_set_of
    from graphxai.trustworthiness import Trust, trust

_HOME = {
    "evaluate": "evaluation.benchmark",
    "explain": "api",
    "load": "api",
    "methods": "api",
    "predict": "api",
    "pretrained_models": "api",
    "Explanation": "explanation",
    "Explanations": "explanations",
    "Fragment": "fragmentation",
    "Fragments": "fragmentation",
    "Ledger": "explanation",
    "Prediction": "explanation",
    "Report": "evaluation.report",
    "Cliff": "cliffs",
    "activity_cliffs": "cliffs",
    "Contrast": "contrasts",
    "contrast": "contrasts",
    "Pairs": "pairwise",
    "pairs": "pairwise",
    "Picture": "pictures",
    "compare": "pictures",
    "fragment_table": "fragment_statistics",
    "fragments": "fragmentation",
    "grid": "pictures",
    "conservative": "propagation",
    "record": "propagation",
    "Target": "target",
    "CleanTable": "datasets.hygiene",
    "clean_table": "datasets.hygiene",
    "train_table": "models.graphormer.recipes_table",
    "TrainingSet": "training_set",
    "training_set_of": "training_set",
    "Trust": "trustworthiness",
    "report": "reporting",
    "trust": "trustworthiness",
    "wrap": "adapters",
}

__all__ = [
    "CleanTable",
    "Cliff",
    "Contrast",
    "Explanation",
    "Explanations",
    "Fragment",
    "Fragments",
    "Ledger",
    "Pairs",
    "Picture",
    "Prediction",
    "Report",
    "Target",
    "TrainingSet",
    "Trust",
    "activity_cliffs",
    "clean_table",
    "compare",
    "conservative",
    "contrast",
    "evaluate",
    "explain",
    "fragment_table",
    "fragments",
    "grid",
    "load",
    "methods",
    "pairs",
    "predict",
    "pretrained_models",
    "record",
    "report",
    "train_table",
    "training_set_of",
    "trust",
    "wrap",
]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Load a public name when it is first asked for, so that `import graphxai` is quick."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"graphxai.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """All public names, those not loaded yet too, so that a console completes them."""
    return sorted({*globals(), *__all__})
