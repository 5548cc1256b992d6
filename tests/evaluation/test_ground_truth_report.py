"""The tables of a benchmark with a known truth show its scores."""

import json

import pandas as pd

from graphxai.evaluation.ground_truth import COLUMNS
from graphxai.evaluation.ground_truth_report import overview, store, tables


def rows_of(metric: str, values: dict[str, list[float]]) -> pd.DataFrame:
    rows = [
        (graph, method, "none", metric, value, "")
        for method, scores in values.items()
        for graph, value in enumerate(scores)
    ]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def test_an_overview_marks_what_is_not_better_than_random():
    good = rows_of("roc_auc", {"lrp": [0.9] * 9, "gae": [0.5] * 9, "random": [0.5] * 9})
    text = overview({"house": good})
    assert "| `lrp` | 0.900 |" in text
    assert "| `gae` | 0.500* |" in text
    few = rows_of("false_positives", {"lrp": [0.1] * 9, "random": [0.0] * 9})
    assert "| `lrp` | 0.100 |" in overview({"house": few}, "false_positives")
    assert overview({"house": good}, "bond_roc_auc") == ""


def test_tables_say_how_good_the_model_is(tmp_path):
    scores = {
        "question": "Is there a house?",
        "model": ("ROC-AUC", 0.999),
        "train": 4800,
        "test": 600,
        "explained": 9,
        "share true": 0.25,
    }
    store(tmp_path / "house", rows_of("roc_auc", {"random": [0.5] * 9}), scores)
    assert json.loads((tmp_path / "house" / "scores.json").read_text())["explained"] == 9
    text = tables(tmp_path, ["house"])
    assert "| 4,800 | ROC-AUC 0.999 (n = 600) | 9 | 25% |" in text
    assert "### house, n = 9" in text
