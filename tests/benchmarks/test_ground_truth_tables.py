"""The ground-truth benchmark knows which answers are right, and what its files and page say."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from graphxai.evaluation.ground_truth import COLUMNS
from graphxai.evaluation.ground_truth_report import store
from ground_truth_tables import FOLDER, main_table, task_measures, task_row, write_group
from ground_truth_tasks import model_outputs, right_answers
from toy import random_graphormer

SCORES = {
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


def rows_of(metric: str, values: dict[str, list[float]]) -> pd.DataFrame:
    rows = [
        (graph, method, "none", metric, value, "")
        for method, scores in values.items()
        for graph, value in enumerate(scores)
    ]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def test_right_answers_are_those_on_the_side_of_the_label():
    model = random_graphormer()
    outputs = torch.zeros(4, model.config.num_outputs)
    _, columns = model.config.task_columns("activity")
    outputs[:, columns] = torch.tensor([[2.0], [-1.0], [0.5], [-3.0]])
    right, scores = right_answers(model, outputs, np.float32([1, 0, 0, 0]), "activity")
    assert right.tolist() == [True, True, False, True]
    assert scores["accuracy"] == 0.75
    assert scores["balanced accuracy"] == pytest.approx((1 + 2 / 3) / 2)
    assert scores["model"] == ("ROC-AUC", 1.0)
    right, scores = right_answers(model, outputs, np.float32([1, 2, 3, 4]), "pIC50")
    assert right.all()
    assert scores["model"][0] == "R2"


def test_answers_are_the_models_outputs():
    model = random_graphormer()
    assert model_outputs(model, ["CCO", "C"]).shape == (2, model.config.num_outputs)


def test_a_measure_says_whether_it_is_better_than_random():
    good = rows_of("roc_auc", {"lrp": [0.9] * 9, "gae": [0.5] * 9, "random": [0.5] * 9})
    few = rows_of("false_positives", {"lrp": [0.1] * 9, "random": [0.0] * 9})
    measures = task_measures(pd.concat([good, few])).set_index(["metric", "method"])
    assert measures.loc[("roc_auc", "lrp"), "mean"] == "0.900"
    assert measures.above_random["roc_auc"].to_dict() == {"lrp": "yes", "gae": "no", "random": "no"}
    assert set(measures.above_random["false_positives"]) == {""}


def test_a_measure_that_is_not_defined_is_left_out():
    rows = rows_of("pearson", {"lrp": [0.5, np.nan], "cam": [np.nan, np.nan]})
    measures = task_measures(rows)
    assert measures.method.tolist() == ["lrp"]
    assert measures["mean"].tolist() == ["0.500"]


def test_a_task_says_how_good_its_model_is(tmp_path):
    row = task_row("house", SCORES)
    assert (row["score"], row["value"]) == ("ROC-AUC", "0.999")
    assert (row["accuracy"], row["balanced_accuracy"], row["share_yes"]) == (
        "0.990",
        "0.980",
        "0.300",
    )
    assert (row["explained"], row["nothing"], row["share_true"]) == (9, 5, "0.25")
    signed = {"question": "", "model": ("R2", 0.5), "train": 1, "test": 1, "explained": 1}
    assert task_row("logp", signed | {"share true": None})["share_true"] == ""


def test_the_files_of_a_run_make_the_columns_that_they_have(tmp_path):
    rows = rows_of("roc_auc", {"lrp": [0.5, 0.75], "random": [0.5, 0.5]})
    store(tmp_path / "indole", rows, SCORES)
    assert write_group(tmp_path, ["indole"], tmp_path / "rules.csv")[0]["task"] == "indole"
    assert "| `lrp` |  |  | 0.625 |  |  |  |  |  |  |" in main_table(tmp_path).splitlines()


def test_the_page_shows_the_means_of_its_files():
    page = Path(FOLDER).with_suffix(".md").read_text(encoding="utf-8")
    assert main_table() in page
    for path in FOLDER.glob("*.csv"):
        assert f"(ground_truth/{path.name})" in page
