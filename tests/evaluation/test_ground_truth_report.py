"""Benchmarks with a known truth: which answers are right, and the tables that are written."""

import json

import numpy as np
import pandas as pd
import pytest
import torch

from graphxai.evaluation.ground_truth import COLUMNS
from graphxai.evaluation.ground_truth_report import answers_of, judged, overview, store, tables
from toy import random_graphormer


def test_right_answers_are_those_on_the_side_of_the_label():
    model = random_graphormer()
    outputs = torch.zeros(4, model.config.num_outputs)
    _, columns = model.config.task_columns("activity")
    outputs[:, columns] = torch.tensor([[2.0], [-1.0], [0.5], [-3.0]])
    right, scores = judged(model, outputs, np.float32([1, 0, 0, 0]), "activity")
    assert right.tolist() == [True, True, False, True]
    assert scores["accuracy"] == 0.75
    assert scores["balanced accuracy"] == pytest.approx((1 + 2 / 3) / 2)
    assert scores["model"] == ("ROC-AUC", 1.0)
    right, scores = judged(model, outputs, np.float32([1, 2, 3, 4]), "pIC50")
    assert right.all()
    assert scores["model"][0] == "R2"


def test_answers_are_the_models_outputs():
    model = random_graphormer()
    assert answers_of(model, ["CCO", "C"]).shape == (2, model.config.num_outputs)


def rows_of(metric: str, values: dict[str, list[float]]) -> pd.DataFrame:
    rows = [
        (graph, method, "none", metric, value, "")
        for method, own in values.items()
        for graph, value in enumerate(own)
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
        "accuracy": 0.99,
        "balanced accuracy": 0.98,
        "yes": 0.3,
        "train": 4800,
        "test": 600,
        "explained": 9,
        "nothing": 5,
        "share true": 0.25,
    }
    store(tmp_path / "house", rows_of("roc_auc", {"random": [0.5] * 9}), scores)
    assert json.loads((tmp_path / "house" / "scores.json").read_text())["accuracy"] == 0.99
    text = tables(tmp_path, ["house"])
    assert "accuracy 0.990, balanced 0.980, ROC-AUC 0.999; 30.0% yes (n = 600)" in text
    assert "9 and 5 null" in text
    assert "### house, n = 9" in text
