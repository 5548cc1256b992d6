"""A model of your own table is trained, calibrated, compared with a forest, and used."""

import csv
import hashlib
import json
import math
import os
import re
import signal
import warnings

import numpy as np
import pytest
import torch
from rdkit import Chem

import graphxai as gx
from graphxai.contract.prediction_metrics import readings
from graphxai.contract.tasks import Task
from graphxai.learning import scores as training_scores
from graphxai.learning import settings as settings_module
from graphxai.learning import training
from graphxai.learning.calibration import task_temperature
from graphxai.learning.card import score_rows
from graphxai.learning.cleaning import clean_table, matching_columns
from graphxai.learning.fit import molecule_config, start_at_frequencies
from graphxai.learning.reliability import teacher_ahead, useless_tasks, verdicts
from graphxai.learning.run import train_table
from graphxai.learning.scores import METRICS, dummy_predictions, measure
from graphxai.learning.splitting import table_split, table_tasks
from graphxai.learning.teachers import forests
from graphxai.learning.teachers.forests import Forest
from graphxai.learning.teachers.stacking import shares_text
from graphxai.models.graphormer import Graphormer, load_checkpoint, save_checkpoint
from toy import SMALL

pytest.importorskip("lightning")
_lightning = pytest.importorskip("graphxai.learning.lightning")
metrics = pytest.importorskip("sklearn.metrics")

UNTAUGHT = {"epochs": 1, "split": "random", "teacher": False}
CORES = ["c1ccccc1", "c1ccncc1", "C1CCCCC1", "c1ccc2ccccc2c1", "C1CCNCC1", "c1ccsc1", "C1CCOCC1"]
CHAINS = ["", "C", "CC", "OC", "NC", "ClC", "FC"]
MOLECULES = [chain + core for core in CORES for chain in CHAINS]  # 49
RNG = np.random.default_rng(0)


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """Write a class in words, a value, three classes, gaps, and two rows that cannot be used."""
    path = tmp_path_factory.mktemp("data") / "own.csv"
    lines = ["id;SMILES;nitrogen;size;ring"]
    for k, smiles in enumerate(MOLECULES):
        nitrogen = "" if k % 7 == 3 else "yes" if "n" in smiles.lower() else "no"
        size = "" if k % 5 == 4 else len(smiles) + 0.5
        lines.append(f"{k};{smiles};{nitrogen};{size};{'ABC'[k % 3]}")
    lines += ["x;C1CC;yes;1;A", "y;c1ccccc1;no;8.5;A"]
    path.write_text("\r\n".join(lines) + "\r\n", encoding="utf-8-sig", newline="")
    return path


COLUMNS = ("--target-column", "nitrogen", "--target-column", "size", "--target-column", "ring")


@pytest.fixture(autouse=True)
def few_trees(monkeypatch, request, small_networks):
    """Train with few trees and few resamples; the latter change only the ends of intervals."""
    if "run" in request.fixturenames:
        monkeypatch.setattr(training_scores, "RESAMPLES", 50)
    monkeypatch.setattr(forests, "TREES", 20)
    monkeypatch.setattr(training, "RECOMBINED", 20)


def read(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_scores_are_those_of_scikit_learn():
    truth = RNG.integers(2, size=200).astype(float)
    p = np.round(np.clip(truth * 0.3 + RNG.random(200) * 0.7, 0, 1), 2)  # with ties
    by_metric = METRICS["binary"]
    assert by_metric["ROC-AUC"](p, truth) == pytest.approx(metrics.roc_auc_score(truth, p))
    assert by_metric["PR-AUC"](p, truth) == pytest.approx(metrics.average_precision_score(truth, p))
    assert by_metric["Brier"](p, truth) == pytest.approx(metrics.brier_score_loss(truth, p))
    classes = RNG.integers(3, size=200).astype(float)
    three = RNG.dirichlet([1, 1, 1], size=200)
    expected = metrics.roc_auc_score(classes, three, multi_class="ovr")
    assert METRICS["multiclass"]["ROC-AUC"](three, classes) == pytest.approx(expected)
    expected = metrics.accuracy_score(classes, three.argmax(1))
    assert METRICS["multiclass"]["accuracy"](three, classes) == expected
    values = RNG.normal(size=200)
    guess = values + RNG.normal(size=200)
    by_metric = METRICS["regression"]
    assert by_metric["R2"](guess, values) == pytest.approx(metrics.r2_score(values, guess))
    rmse = metrics.root_mean_squared_error(values, guess)
    assert by_metric["RMSE"](guess, values) == pytest.approx(rmse)
    assert by_metric["MAE"](guess, values) == pytest.approx(
        metrics.mean_absolute_error(values, guess)
    )


def test_calibration_error_counts_the_gap_in_each_bin():
    p, truth = np.array([0.05, 0.05, 0.95, 1.0]), np.array([0.0, 1.0, 1.0, 1.0])
    expected = (2 * abs(0.05 - 0.5) + 2 * abs(0.975 - 1)) / 4
    assert METRICS["binary"]["ECE"](p, truth) == pytest.approx(expected)
    three = np.array([[0.8, 0.2, 0.0], [0.1, 0.2, 0.7]])
    expected = (abs(0.8 - 1) + abs(0.7 - 0)) / 2
    assert METRICS["multiclass"]["ECE"](three, np.array([0.0, 1.0])) == pytest.approx(expected)


def test_the_interval_of_a_mean_error_is_the_theoretical_one():
    """MAE is a mean, so its bootstrap interval is the value plus or minus 1.96 standard errors."""
    truth = np.zeros(400)
    error = RNG.exponential(size=400)
    report = measure("regression", {"model": error, "other": error + 1.0}, truth, resamples=4000)
    value, low, high = report["scores"]["model"]["MAE"]
    standard_error = error.std() / 20
    assert value == pytest.approx(error.mean())
    assert low == pytest.approx(value - 1.96 * standard_error, abs=0.15 * standard_error)
    assert high == pytest.approx(value + 1.96 * standard_error, abs=0.15 * standard_error)
    # The same resamples for both: a constant difference has no width.
    assert report["differences"]["other"]["MAE"] == pytest.approx([-1.0, -1.0, -1.0])
    assert report["n"] == 400


def test_what_one_class_leaves_undefined_is_none():
    report = measure("binary", {"model": np.full(5, 0.5), "dummy": np.full(5, 0.2)}, np.zeros(5))
    assert report["scores"]["model"]["ROC-AUC"] == [None, None, None]
    assert report["scores"]["model"]["Brier"][0] == 0.25
    assert (report["n"], report["positives"]) == (5, 0)
    json.dumps(report, allow_nan=False)
    assert verdicts({"toxic": report | {"kind": "binary"}}) == [
        "the test molecules with a label of toxic are all of one class: the scores do not say"
        " whether this model tells the classes apart"
    ]


@pytest.mark.parametrize("n", [2, 4])
def test_the_interval_of_a_handful_of_labels_is_not_said(n):
    """Two labels have one resample with an R2, whose interval would look certain."""
    truth = np.arange(float(n))
    worse = {"graphormer": truth[::-1] / 4, "forest": truth, "dummy": np.full(n, -1.0)}
    report = measure("regression", worse, truth)
    value, *interval = report["differences"]["forest"]["R2"]
    assert value < 0
    assert interval == [None, None]
    (note,) = verdicts({"logS": report | {"kind": "regression"}})
    assert note.endswith("the difference may be due to chance)")
    five = measure("regression", {"model": np.ones(5)}, np.arange(5.0))
    assert None not in five["scores"]["model"]["R2"]


def test_a_temperature_undoes_overconfidence():
    """Labels drawn from softmax(logits) are fitted best by dividing 3 x logits by 3."""
    torch.manual_seed(0)
    logits = torch.randn(4000, 3)
    y = torch.distributions.Categorical(logits=logits).sample().double()
    y[:100] = math.nan
    task = Task("y", "multiclass", ("a", "b", "c"))
    assert task_temperature(task, 3 * logits, y) == pytest.approx(3, rel=0.1)
    assert task_temperature(task, logits[:110], y[:110]) is None  # ten labels are too few
    assert task_temperature(Task("y", "regression"), logits[:, :1], y) is None


def test_the_dummy_knows_only_the_training_labels():
    y = np.array([0.0, 0.0, 1.0, 2.0])
    three = dummy_predictions(Task("y", "multiclass", ("a", "b", "c")), y, 2)
    np.testing.assert_allclose(three, [[0.5, 0.25, 0.25]] * 2)
    np.testing.assert_allclose(dummy_predictions(Task("y", "regression"), y, 3), [0.75] * 3)


def test_a_forest_gives_every_class_a_column_even_one_it_never_saw():
    x = np.eye(4, dtype=np.float32).repeat(5, 0)
    y = np.array([0.0, 2.0, 0.0, 2.0]).repeat(5)
    probabilities = Forest.fit(Task("y", "multiclass", ("a", "b", "c")), x, y).predict(np.eye(4))
    assert probabilities.argmax(1).tolist() == [0, 2, 0, 2]
    assert not probabilities[:, 1].any()
    np.testing.assert_allclose(probabilities.sum(1), 1)
    one_class = Forest.fit(Task("y", "binary", ("a", "b")), x, np.ones(20)).predict(np.eye(4))
    assert one_class.tolist() == [1.0] * 4


def test_a_model_worse_than_another_predictor_is_reported():
    truth = np.arange(40.0)
    forest, mean = truth + RNG.normal(0, 1, 40), np.full(40, 5.0)
    far = measure("regression", {"graphormer": -truth, "forest": forest, "dummy": mean}, truth)
    (printed_text,) = verdicts({"logS": far | {"kind": "regression"}})
    squares = np.sum((truth - truth.mean()) ** 2)
    model_r2, dummy_r2 = (
        1 - np.sum((2 * truth) ** 2) / squares,
        1 - np.sum((truth - 5) ** 2) / squares,
    )
    assert printed_text == (
        "this model is worse than predicting the training mean of logS"
        f" (R2 {model_r2:.2f} against {dummy_r2:.2f} on test molecules): do not use it"
    )
    noisy = truth + RNG.normal(0, 6, 40)
    near = measure("regression", {"graphormer": noisy, "forest": forest, "dummy": mean}, truth)
    (printed_text,) = verdicts({"logS": near | {"kind": "regression"}})
    assert "worse than a random forest for logS" in printed_text
    assert "chance" not in printed_text
    best = measure("regression", {"graphormer": truth, "forest": forest, "dummy": mean}, truth)
    assert verdicts({"logS": best | {"kind": "regression"}}) == []


def test_the_better_of_two_forests_is_the_opponent():
    truth = np.arange(40.0)
    predictions = {
        "graphormer": truth + RNG.normal(0, 6, 40),
        "forest": truth + RNG.normal(0, 9, 40),
        "descriptor_forest": truth + RNG.normal(0, 1, 40),
        "dummy": np.full(40, 5.0),
    }
    scores = {"logS": measure("regression", predictions, truth) | {"kind": "regression"}}
    (printed_text,) = verdicts(scores)
    assert "worse than a random forest with descriptors for logS" in printed_text
    assert [row[0] for row in score_rows("logS", scores["logS"])[1:]] == [
        "this model",
        "forest, ECFP4",
        "forest, + descriptors",
        "dummy",
        "minus forest, ECFP4",
        "minus forest, + descriptors",
    ]


def test_a_share_of_zero_is_stated():
    assert shares_text({"logS": 0.0, "a": 0.25, "rare": None}) == (
        "logS 0.00, a 0.25, rare none (too few labels)"
    )


def test_a_small_lead_of_the_forest_may_be_chance():
    truth = np.array([0.0, 1.0] * 10)
    model_scores = np.linspace(0.0, 0.9, 20)
    forest = model_scores.copy()
    forest[1] = 1.0  # one molecule, which every third resample lacks, makes all the difference
    dummy = np.full(20, 0.5)
    report = measure(
        "binary", {"graphormer": model_scores, "forest": forest, "dummy": dummy}, truth
    )
    (printed_text,) = verdicts({"toxic": report | {"kind": "binary"}})
    low, high = report["differences"]["forest"]["ROC-AUC"][1:]
    assert low <= 0 <= high
    assert printed_text.endswith("the difference may be due to chance)")
    swapped = measure(
        "binary", {"graphormer": 1 - model_scores, "forest": forest, "dummy": dummy}, truth
    )
    (printed_text,) = useless_tasks({"toxic": swapped | {"kind": "binary"}})
    assert "the class frequencies of toxic (ROC-AUC 0.45 against 0.50" in printed_text


@pytest.mark.parametrize(
    "scores", [None, 3, {"graphormer": {"roc_auc": 0.8}}, {"a": {"n": 0, "scores": {}}}, {"a": 1}]
)
def test_metadata_of_another_shape_are_ignored(scores):
    assert useless_tasks(scores) == []


def test_tasks_are_standardised_on_the_training_part_only(table):
    clean = clean_table(table, "SMILES", ["nitrogen", "size", "ring"])
    split = table_split(clean, "random", 1)
    y = clean.y[list(split.train)]
    tasks = table_tasks(clean.targets, y)
    assert [task.kind for task in tasks] == ["binary", "regression", "multiclass"]
    measured = y[~np.isnan(y[:, 1]), 1]
    assert tasks[1].offset == pytest.approx(measured.mean())
    assert tasks[1].scale == pytest.approx(measured.std())
    outputs = torch.tensor([[2.0]])
    expected = measured.mean() + 2 * measured.std()
    assert readings(tasks[1], outputs)[0] == pytest.approx(expected)


def test_a_table_becomes_a_model_that_predicts_and_explains(run, table, tmp_path):
    out = tmp_path / "run"
    arguments = ("train", table, "--smiles-column", "SMILES", *COLUMNS, "--out", out)
    arguments += ("--units", "size=characters")
    options = ("--split", "random", "--epochs", 1, "--seed", 3)
    code, answer, error = run(*arguments, *options)
    assert code == 0, error
    text = answer + error
    assert "size (characters), n = " in text
    assert "nitrogen: classification (inferred from words): 'no'" in text
    assert "size: regression" in text
    assert "ring: classification" in text
    assert "duplicate molecules" in text
    assert "written:" in text

    metadata = load_checkpoint(out / "model").origin.metadata
    assert metadata["sha256"] == hashlib.sha256(table.read_bytes()).hexdigest()
    assert metadata["smiles_column"] == "SMILES"
    assert metadata["seed"] == 3
    split = metadata["split"]
    parts = [set(split[f"{name}_rows"]) for name in ("train", "valid", "test")]
    assert sum(map(len, parts)) == len(set.union(*parts)) == 49
    assert 50 not in set.union(*parts)  # the row that cannot be read

    training = read(out / "model" / "training.csv")
    assert {int(row["row"]) for row in training} == parts[0]
    for row in training:
        written = MOLECULES[int(row["row"]) - 1]
        assert row["smiles"] == Chem.CanonSmiles(written)
        assert row["ring"] == "ABC"[(int(row["row"]) - 1) % 3]

    scores = json.loads((out / "model" / "scores.json").read_text())["scores"]
    test = read(out / "test.csv")
    assert {int(row["row"]) for row in test} == parts[2]
    judged = [row for row in test if row["size (characters)"]]
    errors = [
        float(row["size (characters)"]) - float(row["size: predicted (characters)"])
        for row in judged
    ]
    expected = math.sqrt(np.mean(np.square(errors)))
    assert scores["size"]["n"] == len(judged)
    assert scores["size"]["scores"]["graphormer"]["RMSE"][0] == pytest.approx(expected, rel=1e-3)
    opponents = ("forest", "descriptor_forest")
    beside = {"teacher", "process", *opponents, "dummy"}
    assert set(scores["size"]["scores"]) == {"graphormer", *beside}
    for name in opponents:  # both are printed, with their differences
        score = scores["size"]["scores"][name]["R2"][0]
        words = {"forest": "forest, ECFP4", "descriptor_forest": "forest, + descriptors"}[name]
        assert re.search(rf"^[│ ]*{re.escape(words)}[│ ]+{score:.3f}\b", text, re.MULTILINE)
        assert f"minus {words}" in text
    shares = metadata["teacher_share"]
    assert set(shares) == {"nitrogen", "size", "ring"}
    assert all(0 <= share <= 1 for share in shares.values())
    card = (out / "model" / "README.md").read_text()
    stated = ", ".join(f"{name} {share:.2f}" for name, share in shares.items())
    assert f"the teacher's share, the rest is the networks' own: {stated}" in text
    assert f"without having learned from it: {stated}." in " ".join(card.split())
    held_out = read(out / "model" / "held_out.csv")
    names = {"validation": parts[1], "test": parts[2]}
    for part, rows in names.items():
        expected = {Chem.CanonSmiles(MOLECULES[row - 1]) for row in rows}
        assert {row["smiles"] for row in held_out if row["part"] == part} == expected
    assert f"{metadata['recombined']} molecules recombined from the training molecules" in card

    code, text, error = run("predict", table, "--smiles-column", "SMILES", "--model", out)
    assert code == 0, error
    lines = csv.DictReader(text.splitlines(), delimiter=";")  # as in the table
    predicted = {row["row"]: row for row in lines}
    for row in test:
        value = float(predicted[row["row"]]["size (characters)"])
        assert value == pytest.approx(float(row["size: predicted (characters)"]), abs=1e-3)
        probability = float(predicted[row["row"]]["nitrogen: yes"])
        printed_text = float(row["nitrogen: probability of yes"])
        assert probability == pytest.approx(printed_text, abs=1e-3)
    ends = [
        [predicted[row["row"]][f"size_{e} (characters)"] for e in ("low", "high")] for row in judged
    ]
    held = [
        float(low) <= float(row["size (characters)"]) <= float(high)
        for (low, high), row in zip(ends, judged, strict=True)
    ]
    coverage = metadata["coverage"]["size"]
    assert (coverage["held"], coverage["n"]) == (np.mean(held), len(held))
    assert f"size: 90 % intervals held {100 * np.mean(held):.0f} % of {len(held)}" in card
    assert coverage["made_from"] == [sum(bool(row["size (characters)"]) for row in training)]
    assert all(row["nitrogen"] in row["nitrogen_set"] for row in predicted.values())
    picture = tmp_path / "a.svg"
    code, text, error = run(
        "explain", "NCc1ccccc1", "--model", out, "--target", "size", "--out", picture
    )
    assert code == 0, error
    assert picture.read_text().startswith("<")

    code, _, error = run(*arguments, *options)
    assert code == 1
    assert "already contains a run: continue it with --resume" in error
    before = scores
    code, _, error = run(*arguments, *options, "--resume")
    assert code == 0, error
    assert json.loads((out / "model" / "scores.json").read_text())["scores"] == before
    code, _, error = run(*arguments, "--split", "random", "--epochs", 1, "--resume")
    assert code == 1
    assert "different settings (seed)" in error


def test_many_targets_have_one_table_replicates_and_a_spread(run, tmp_path):
    """One run of two covers a pattern, a time column, rare classes and salts."""
    path, out = tmp_path / "many.csv", tmp_path / "run"
    lines = ["name,smiles,year,a-1,a-2,a-3,a-4,b"]
    for k, smiles in enumerate(MOLECULES):
        salt = smiles + ".Cl" if k % 2 and "N" in smiles else smiles
        odd, rare = k % 2, int(k in (5, 17, 29, 48))
        lines.append(f"m{k},{salt},{1990 + k},{len(smiles)},{odd},{rare},{k / 7:.3f},{k % 3}")
    path.write_text("\n".join(lines) + "\n")
    code, text, error = run(
        "train", path, "--target-column", "a-*", "--time-column", "year", "--epochs", 1,
        "--replicates", 2, "--out", out,
    )  # fmt: skip
    assert code == 0, error
    text += error
    assert "a-3: only 6.8% of the training molecules (3) are '1'" in text
    assert "mean of 2 targets" in text
    assert "mean and spread of 2 replicates" in text
    assert "±" in text
    metadata = load_checkpoint(out / "model").origin.metadata
    names = ["a-1", "a-2", "a-3", "a-4"]
    assert [target["name"] for target in metadata["targets"]] == names
    assert metadata["summary"].startswith("mean of 2 targets: R2")
    assert metadata["split"]["test_rows"] == [45, 46, 47, 48, 49]  # the newest years
    assert (out / "replicates" / "1" / "model" / "config.json").exists()

    scores = metadata["scores"]
    values = [scores[name]["scores"]["graphormer"]["R2"][0] for name in ("a-1", "a-4")]
    card = (out / "model" / "README.md").read_text()
    assert f"| mean of 2 targets |  | R2 | {np.mean(values):.3f} |" in card
    assert "brought to its parent, in training and in predictions" in card
    for name in names:
        weights = metadata["teacher"][name]["weights"]
        assert sum(weights.values()) == pytest.approx(1)
        assert f"teacher of {name}: " in text
    assert metadata["coverage"]
    conformal = load_checkpoint(out / "model").conformal
    for name, each in (("a-2", lambda k: k % 2), ("a-3", lambda k: k in (5, 17, 29, 48))):
        rows = metadata["split"]["train_rows"]  # each predicted without its fold
        counts = {c: sum(each(row - 1) == int(c) for row in rows) for c in "01"}
        assert {c: len(scores) for c, scores in conformal[name].scores.items()} == counts
    assert "made from the training molecules, as they were predicted without their fold" in card

    code, text, error = run("predict", path, "--model", out)
    assert code == 0, error
    predicted = list(csv.DictReader(text.splitlines()))
    salted = next(k for k, smiles in enumerate(MOLECULES) if k % 2 and "N" in smiles)
    assert predicted[salted]["smiles"] == f"{MOLECULES[salted]}.Cl"
    assert predicted[salted]["parent"] == Chem.CanonSmiles(MOLECULES[salted])
    assert predicted[salted]["note"] == "salt removed: hydrochloride"


def test_an_ensemble_shares_its_teacher_and_predicts_the_mean(run, table, tmp_path, monkeypatch):
    chosen, choose = [], training.choose_teacher
    monkeypatch.setattr(
        training, "choose_teacher", lambda *a, **o: chosen.append(1) or choose(*a, **o)
    )
    out = tmp_path / "run"
    code, text, error = run(
        "train", table, "--smiles-column", "SMILES", "--target-column", "size", "--epochs", 1,
        "--split", "random", "--ensemble", 2, "--out", out,
    )  # fmt: skip
    assert code == 0, error
    assert len(chosen) == 1
    assert "network 2 of 2, seed 1" in error
    model = gx.load(out)
    assert len(model.members) == 2
    assert "mean of 2 networks, trained with the seeds 0 to 1" in (
        (out / "model" / "README.md").read_text()
    )
    first, second = (p["size"].value for p in (gx.predict(m, "CCO") for m in model.members))
    assert first != second
    prediction = gx.predict(model, "CCO")["size"]
    assert prediction.value == pytest.approx((first + second) / 2, rel=1e-5)
    assert prediction.interval is not None
    for row in read(out / "test.csv"):
        value = gx.predict(model, row["smiles"])["size"].value
        assert float(row["size: predicted"]) == pytest.approx(value, abs=1e-3)
    code, text, error = run("explain", "CCO", "--model", out)
    assert code == 0, error
    assert "standard deviation over 2 models" in text


def test_a_network_behind_its_teacher_says_so_and_offers_a_process():
    truth, rng = np.arange(30.0), np.random.default_rng(0)
    predicted = truth + rng.normal(scale=5, size=30)
    scores = {"size": measure("regression", {"graphormer": predicted, "teacher": truth}, truth)}
    (line,) = teacher_ahead(scores)
    assert line.startswith("the teacher predicts size better than this model on the test molecules")
    assert "--model process" in line
    network = metrics.r2_score(truth, predicted)
    assert f"(R2 1.000 against {network:.3f})" in line  # scores, and no difference of two
    level = {"graphormer": predicted, "teacher": truth + rng.normal(scale=5, size=30)}
    assert teacher_ahead({"size": measure("regression", level, truth)}) == []


def test_a_rare_class_is_where_a_new_head_starts():
    model = Graphormer(
        molecule_config([Task("y", "binary", ("no", "yes")), Task("v", "regression")])
    )
    y = torch.tensor([[1.0, 2.0]] + [[0.0, 2.0]] * 97 + [[math.nan, 2.0]] * 5)
    before = model.head.bias[1].item()
    start_at_frequencies(model, y)
    assert model.head.bias[0].sigmoid().item() == pytest.approx(2 / 100)
    assert model.head.bias[1].item() == before


def test_a_pattern_names_the_columns_with_labels(table):
    assert matching_columns(table, "SMILES", ["all"]) == ["nitrogen", "size", "ring"]  # not ids
    assert matching_columns(table, "SMILES", ["ring", "*i*e"]) == ["ring", "size"]
    with pytest.raises(ValueError, match=r"'x\*' matches no column with labels; .*'nitrogen'"):
        matching_columns(table, "SMILES", ["x*"])


def test_a_pattern_passes_over_a_column_with_one_value_for_all(tmp_path):
    """From such a column nothing can be learned."""
    path = tmp_path / "t.csv"
    path.write_text("smiles,same,few,empty\nC,1,,\nCC,1,2.5,\nCCC,,3.5,\n")
    assert matching_columns(path, "smiles", ["all"]) == ["few"]


def test_a_pattern_says_which_column_of_numbers_it_cannot_read(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("smiles,name,logD,inactivation\nC,a,1.5,35%\nCC,b,2.5,50%\nCCC,c,3,60%\n")
    with pytest.warns(UserWarning, match="not learned: column 'inactivation' .* remove '%'"):
        assert matching_columns(path, "smiles", ["all"]) == ["logD"]


def test_parts_and_times_come_from_columns(tmp_path):
    path = tmp_path / "t.csv"
    rows = [
        f"{m},{k},{('Train', 'val', 'test')[min(k % 5, 2)]},2024-01-{k % 28 + 1:02d}"
        for k, m in enumerate(MOLECULES)
    ]
    path.write_text("smiles,y,fold,day\n" + "\n".join(rows) + "\n")
    clean = clean_table(path, "smiles", ["y"])
    split = table_split(clean, "column", column="fold")
    assert set(split.train) == {k for k in range(49) if k % 5 == 0}
    assert set(split.valid) == {k for k in range(49) if k % 5 == 1}
    split = table_split(clean, "time", column="day")
    assert max(k % 28 for k in split.train) <= min(k % 28 for k in split.test)
    with pytest.raises(ValueError, match="'2024-01-01' is not a part of a split"):
        table_split(clean, "column", column="day")
    with pytest.raises(ValueError, match="no column 'when'"):
        table_split(clean, "time", column="when")
    with pytest.raises(ValueError, match="a column is needed"):
        table_split(clean, "time")


def test_an_interrupted_training_says_how_to_continue(run, table, tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt  # as Ctrl-C in the middle of an epoch

    with monkeypatch.context() as patched:
        patched.setattr(_lightning.GraphormerModule, "training_step", interrupted)
        arguments = ("--smiles-column", "SMILES", "--target-column", "size", "--epochs", 1)
        arguments += ("--split", "random", "--no-teacher", "--out", tmp_path / "out")
        arguments = ("train", table, *arguments)
        before = signal.getsignal(signal.SIGINT)
        code, _, error = run(*arguments)
        assert signal.getsignal(signal.SIGINT) == before  # Lightning would ignore further ones
        with pytest.raises(KeyboardInterrupt, match="call it again with resume=True to continue"):
            gx.train_table(clean_table(table, "SMILES", ["size"]), tmp_path / "a", **UNTAUGHT)
    assert code == 130
    assert "continue a table, benchmark or training run with --resume" in error
    assert run(*arguments, "--resume")[0] == 0


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_a_training_ended_by_a_scheduler_resumes_to_the_same_model(
    run, table, tmp_path, monkeypatch
):
    step = _lightning.GraphormerModule.training_step

    def terminated(self, batch, index):
        if self.current_epoch == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return step(self, batch, index)

    arguments = ("train", table, "--smiles-column", "SMILES", "--target-column", "size")
    arguments += ("--epochs", 3, "--split", "random", "--no-teacher", "--out")
    out, whole = tmp_path / "out", tmp_path / "whole"
    with monkeypatch.context() as patched:
        patched.setattr(_lightning.GraphormerModule, "training_step", terminated)
        ctrl_c = signal.getsignal(signal.SIGINT)
        code, _, error = run(*arguments, out)
        signal.signal(signal.SIGINT, ctrl_c)  # Lightning ignores further ones
    assert code == 143
    assert error.endswith(
        "terminated; continue a table, benchmark or training run with --resume.\n"
    )
    assert not (out / "model").exists()
    assert run(*arguments, out, "--resume")[0] == 0
    assert run(*arguments, whole)[0] == 0
    for name in ("model.safetensors", "config.json", "conformal.json"):
        stored = [(folder / "model" / name).read_bytes() for folder in (out, whole)]
        assert stored[0] == stored[1], name


def test_the_learning_curve_keeps_the_test_molecules(table, tmp_path):
    clean = clean_table(table, "SMILES", ["size"])
    folder = train_table(
        clean, tmp_path, split="random", epochs=1, init_weights=None, teacher=False,
        learning_curve=True, progress=False,
    )  # fmt: skip
    assert not list(tmp_path.rglob("distilled"))
    assert "recombined" not in (folder / "README.md").read_text()
    points = json.loads((folder / "scores.json").read_text())["learning_curve"]
    assert [point["share"] for point in points] == [0.125, 0.25, 0.5, 1.0]
    trained = [point["targets"]["size"]["trained"] for point in points]
    assert trained == sorted(trained)
    assert len({point["targets"]["size"]["n"] for point in points}) == 1
    dummies = [point["targets"]["size"]["scores"]["dummy"]["RMSE"][0] for point in points]
    assert len(set(dummies)) == len(dummies)  # each knows its own training molecules alone


def test_options_are_fields_of_the_settings_and_a_wrong_name_is_corrected(table, tmp_path):
    settings = gx.TableSettings(seed=3, time_column="day")
    assert settings.split_kind == "time"
    with pytest.raises(ValueError, match="--split and --time-column cannot be combined"):
        gx.TableSettings(split="random", time_column="day")
    settings_module.warn_once.cache_clear()
    with pytest.warns(UserWarning, match="keep_teacher does nothing any more: a teacher is not"):
        gx.TableSettings(keep_teacher=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gx.TableSettings(keep_teacher=True)  # said once
    with pytest.raises(ValueError, match="1 to 50 networks, not 51"):
        gx.TableSettings(ensemble=51)
    clean = clean_table(table, "SMILES", ["size"])
    with pytest.raises(
        TypeError, match=r"train_table has no option 'epoch': did you mean 'epochs'"
    ):
        gx.train_table(clean, tmp_path / "out", epoch=3)
    with pytest.raises(TypeError, match=r"no option 'fast': they are seed, .*learning_curve"):
        gx.train_table(clean, tmp_path / "out", settings, fast=True)
    assert not (tmp_path / "out").exists()
    assert "    ensemble: Number of networks to average" in gx.TableSettings.__doc__
    assert "    teacher: if False: do not learn" in gx.TableSettings.__doc__


def test_weights_trained_on_a_column_of_that_name_are_reported(table, tmp_path):
    weights = save_checkpoint(
        Graphormer(molecule_config([Task("size", "regression")], **SMALL)), tmp_path / "weights"
    )
    clean = clean_table(table, "SMILES", ["size"])
    lines = []
    folder = train_table(
        clean, tmp_path / "out", split="random", epochs=1, init_weights=weights, teacher=False,
        progress=False, log=lines.append,
    )  # fmt: skip
    assert "trained on these labels: 'size' (a label of that name)" in lines[0]
    assert "too good" in (folder / "README.md").read_text()


def test_a_scaffold_is_never_in_both_training_and_test(table):
    from rdkit.Chem.Scaffolds.MurckoScaffold import MurckoScaffoldSmiles

    clean = clean_table(table, "SMILES", ["size"])
    split = table_split(clean)
    scaffolds = [
        {MurckoScaffoldSmiles(clean.canonical[k]) for k in part}
        for part in (split.train, split.valid, split.test)
    ]
    assert not scaffolds[0] & (scaffolds[1] | scaffolds[2])


@pytest.mark.parametrize("others", [0, 6])
def test_a_congeneric_series_is_not_split_by_scaffold(others, tmp_path):
    series = [f"c1ccccc1{'C' * k}O" for k in range(1, 48)] + MOLECULES[:others]
    path = tmp_path / "series.csv"
    rows = [f"{smiles},{k}.5" for k, smiles in enumerate(series)]
    path.write_text("smiles,pIC50\n" + "\n".join(rows) + "\n")
    clean = clean_table(path, "smiles", ["pIC50"])
    with pytest.raises(ValueError, match=r"most share one scaffold.*Try --split random"):
        table_split(clean)
    assert table_split(clean, "random").test


def test_a_class_that_no_training_molecule_has_is_an_error(tmp_path):
    """All positives share the rarest scaffold, which goes to the test part."""
    path = tmp_path / "t.csv"
    rows = [f"{m},{int(m.endswith('C1CCOCC1'))}" for m in MOLECULES if m != "C1CCOCC1"]
    path.write_text("smiles,y\n" + "\n".join(rows) + "\n")
    clean = clean_table(path, "smiles", ["y"])
    with pytest.raises(ValueError, match="try --split random"):
        table_split(clean)
    assert table_split(clean, "random").kind == "random"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("missing.csv", "--target-column", "y"),
            "no such file; give a table, a folder of graphs, a data set of OGB or one of bace",
        ),
        ((None,), "--target-column NAME; the columns are 'id', 'SMILES', 'nitrogen'"),
        ((None, "--target-column", "activity"), "its columns: 'id', 'SMILES', 'nitrogen'"),
        ((None, "--target-column", "size", "--kind", "size=value"), "write COLUMN=classification"),
        (
            (None, "--target-column", "size", "--kind", "x=regression"),
            "'x' is not a --target-column",
        ),
        ((None, "--target-column", "size", "--units", "x=nM"), "write COLUMN=UNIT"),
        ((None, *COLUMNS, "--units", "nM"), "write COLUMN=UNIT"),
        (("bace", "--units", "nM"), "--units is for a table, not for bace"),
        (("bace", "--replicates", "1"), "--replicates is for a table"),  # even if it is the default
        (
            (None, "--target-column", "size", "--init-weights", "nothing"),
            "neither a folder nor the name",
        ),
        ((None, "--target-column", "size", "--epochs", "0"), "greater than or equal to 1"),
        ((None, "--target-column", "SMILES"), "cannot be both"),
        (("bace", "--target-column", "y"), "--target-column is for a table"),
        (("bace", "--smiles-column", "s"), "--smiles-column is for a table"),
        (
            ("bace", "--no-teacher", "--ensemble", "2"),
            "--ensemble is for a table, a data set of OGB or a folder of graphs; --no-teacher is"
            " for a table",
        ),
        (
            (None, "--target-column", "size", "--data", "d"),
            "for bace, mnist-superpixels or a data set of OGB, not for a",
        ),
        (("bace", "--split", "clusters"), "split by scaffold or at random"),
        (
            (None, "--target-column", "size", "--split", "random", "--time-column", "id"),
            "cannot be combined",
        ),
        (("mnist-superpixels", "--split", "random"), "--split is for a table or bace, not for"),
    ],
)
def test_a_mistake_is_one_readable_line(run, table, tmp_path, arguments, message):
    source, *rest = (table if value is None else value for value in arguments)
    extra = ("--smiles-column", "SMILES") if source == table else ()
    code, _, error = run("train", source, *rest, *extra, "--out", tmp_path / "out")
    assert code != 0
    assert message in " ".join(error.replace("│", " ").split())
    assert "Traceback" not in error
