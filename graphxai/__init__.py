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
    from graphxai.evaluation.benchmark import evaluate
    from graphxai.evaluation.report import Report
    from graphxai.explanation import Explanation, Ledger, Prediction
    from graphxai.pictures import compare, grid
    from graphxai.propagation import conservative, record
    from graphxai.target import Target

_HOME = {
    "evaluate": "evaluation.benchmark",
    "explain": "api",
    "load": "api",
    "methods": "api",
    "predict": "api",
    "pretrained_models": "api",
    "Explanation": "explanation",
    "Ledger": "explanation",
    "Prediction": "explanation",
    "Report": "evaluation.report",
    "compare": "pictures",
    "grid": "pictures",
    "conservative": "propagation",
    "record": "propagation",
    "Target": "target",
    "wrap": "adapters",
}

__all__ = [
    "Explanation",
    "Ledger",
    "Prediction",
    "Report",
    "Target",
    "compare",
    "conservative",
    "evaluate",
    "explain",
    "grid",
    "load",
    "methods",
    "predict",
    "pretrained_models",
    "record",
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
