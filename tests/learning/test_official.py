"""A model learns a data set of OGB in its official split, and OGB's evaluator scores it."""

import csv
import json

import numpy as np
import pytest

import graphxai as gx
from graphxai.datasets.open_graph_benchmark import load_ogb
from graphxai.evaluation.sources import source
from graphxai.learning.official import official_note, official_scores, official_table
from graphxai.learning.run import train_table
from graphxai.models.graphormer import load_checkpoint
from ogb_folders import bace_rows, part, write_molbace, write_ogb_folder

metrics = pytest.importorskip("sklearn.metrics")
pytest.importorskip("lightning")

COUNT = 100
QUICK = {"epochs": 1, "teacher": False, "accelerator": "cpu", "progress": False}


@pytest.fixture(autouse=True)
def few_trees(monkeypatch, small_networks):
    monkeypatch.setattr("graphxai.learning.scores.RESAMPLES", 20)
    monkeypatch.setattr("graphxai.learning.teachers.forests.TREES", 20)


@pytest.fixture
def root(tmp_path):
    """Return a data folder with an `ogbg-molbace` of a hundred molecules."""
    write_molbace(tmp_path / "data", COUNT)
    return tmp_path / "data"


def test_the_score_is_that_of_the_stored_model_on_the_official_test_molecules(root, tmp_path):
    table = official_table("ogbg-molbace", tmp_path / "run", root=root, progress=False)
    folder = train_table(table, tmp_path / "run", **QUICK)
    rows = bace_rows(COUNT)
    test = [rows[k] for k in range(COUNT) if part(k) == "test"]
    predictions = gx.predict(folder, [row["mol"] for row in test], progress=False)
    active = [each["Class"].probabilities["1"] for each in predictions]
    expected = metrics.roc_auc_score([int(row["Class"]) for row in test], active)
    stored = json.loads((folder / "scores.json").read_text("utf-8"))
    assert stored["official"] == {
        "data": "ogbg-molbace",
        "metric": "ROC-AUC",
        "value": pytest.approx(expected),
        "n": 10,
        "unread": 0,
    }
    note = f"OGB's evaluator gives ROC-AUC {expected:.4f} on the 10 test molecules of ogbg-molbace"
    assert note in stored["notes"]
    assert note in (folder / "README.md").read_text("utf-8")
    split = load_checkpoint(folder).origin.metadata["split"]
    for name in ("train", "valid", "test"):  # rows are counted from 1
        assert split[f"{name}_rows"] == [k + 1 for k in range(COUNT) if part(k) == name]


def test_the_predicted_value_of_a_regression_is_scored_in_its_unit(tmp_path):
    rows = bace_rows(COUNT)
    labels = [[float(row["pIC50"])] for row in rows]
    split = [[k for k in range(COUNT) if part(k) == name] for name in ("train", "valid", "test")]
    folder = tmp_path / "ogbg_mollipo"
    write_ogb_folder(folder, [row["mol"] for row in rows], labels, ["exp"], split)
    table = official_table("ogbg-mollipo", tmp_path / "run", root=tmp_path, progress=False)
    model = train_table(table, tmp_path / "run", **QUICK)
    predictions = gx.predict(model, [rows[k]["mol"] for k in split[2]], progress=False)
    values = [each["exp"].value for each in predictions]
    expected = metrics.root_mean_squared_error([labels[k] for k in split[2]], values)
    official = json.loads((model / "scores.json").read_text("utf-8"))["official"]
    assert (official["metric"], official["value"]) == ("RMSE", pytest.approx(expected, rel=1e-5))


def test_a_molecule_in_two_parts_keeps_the_label_of_each(tmp_path):
    """A test molecule that is drawn as a salt of a training molecule has another label there."""
    acids = [f"{'C' * n}(=O)O" for n in range(1, 31)]
    smiles = [*acids, f"{acids[0].removesuffix('O')}[O-].[Na+]", "CC#N"]
    labels = [[k % 2] for k in range(30)] + [[1], [0]]
    split = (range(25), range(25, 30), [30, 31])
    write_ogb_folder(tmp_path / "ogbg_molhiv", smiles, labels, ["HIV_active"], split)
    table = official_table("ogbg-molhiv", tmp_path / "run", root=tmp_path, progress=False)
    assert len(table.graphs) == 32
    assert table.canonical[0] == table.canonical[30]
    assert table.y[[0, 30], 0].tolist() == [0, 1]
    (finding,) = [each for each in table.findings if "several parts" in each.check]
    assert (finding.count, [row.row for row in finding.rows]) == (2, [1, 31])


def test_molecules_that_cannot_be_read_count_as_the_mean_training_label(tmp_path):
    """An official score is one of all test molecules, so that none may be left out."""
    smiles = [f"{'C' * n}O" for n in range(1, 31)]
    values = np.arange(30.0)
    smiles[28] = "C1CC"  # a ring that is not closed
    split = (range(20), range(20, 25), range(25, 30))
    write_ogb_folder(tmp_path / "ogbg_molesol", smiles, values[:, None].tolist(), ["log S"], split)
    table = official_table("ogbg-molesol", tmp_path / "run", root=tmp_path, progress=False)
    folder = train_table(table, tmp_path / "run", **QUICK)
    read = [25, 26, 27, 29]
    predictions = gx.predict(folder, [smiles[k] for k in read], progress=False)
    expected = np.full(5, values[:20].mean())
    expected[[0, 1, 2, 4]] = [each["log S"].value for each in predictions]
    scores = official_scores(load_checkpoint(folder), table)
    assert (scores["n"], scores["unread"]) == (5, 1)
    rmse = metrics.root_mean_squared_error(values[25:], expected)
    assert scores["value"] == pytest.approx(rmse, rel=1e-5)
    (note,) = official_note(scores)
    assert note.endswith("; 1 could not be read and count as the mean training label")


def test_another_split_than_the_official_one_is_refused(root, tmp_path):
    table = official_table("ogbg-molbace", tmp_path / "run", root=root, progress=False)
    with pytest.raises(ValueError, match="ogbg-molbace has an official split"):
        train_table(table, tmp_path / "run", split="random", **QUICK)


def test_the_commands_train_and_benchmark_in_the_official_split(root, tmp_path, run, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = ["--epochs", 1, "--no-teacher", "--accelerator", "cpu", "--data", root]
    code, printed, error = run("train", "ogbg-molbace", "--out", "mine", *options)
    assert code == 0, error
    assert "OGB's evaluator gives ROC-AUC" in " ".join((printed + error).split())
    with (tmp_path / "mine" / "ogbg-molbace.csv").open(newline="") as file:
        assert [row["split"] for row in csv.DictReader(file)] == [part(k) for k in range(COUNT)]
    chosen = ["--model", "mine/model", "--methods", "gradient_input", "--steps", 3]
    code, printed, error = run("benchmark", "ogbg-molbace", *chosen, "--data", root)
    assert code == 0, error
    assert "graphs: 10" in error
    code, _, error = run("benchmark", "ogbg-molbace", "--data", root)
    assert code == 2
    assert "name the model to measure on ogbg-molbace: --model CHECKPOINT" in error


def test_the_graphs_of_a_benchmark_are_those_of_the_part_with_the_labels_of_the_task(tmp_path):
    labels = [[k % 2, "" if k == 4 else 1] for k in range(6)]
    smiles = ["C", "CC", "CCO", "CCN", "CO", "CS"]
    folder = tmp_path / "ogbg_molclintox"
    split = ([0, 1, 2], [3], [4, 5])
    write_ogb_folder(folder, smiles, labels, ["BACE-1 inhibition", "other"], split)
    bace = gx.load("bace")
    test = source(bace, "ogbg-molclintox", data=tmp_path)
    assert test.inputs == {4: "CO", 5: "CS"}
    assert test.labels == {4: 0, 5: 1}
    assert test.title == "ogbg-molclintox, test part of the official split"
    assert source(bace, "ogbg-molclintox", "train", data=tmp_path).inputs.keys() == {0, 1, 2}
    with pytest.raises(ValueError, match=r"no task 'pIC50' of model 'bace'; its tasks are BACE-1"):
        source(bace, "ogbg-molclintox", data=tmp_path, task="pIC50")
    with pytest.raises(ValueError, match="reads digits, but 'ogbg-molclintox' has none"):
        source(gx.load("mnist-superpixels"), "ogbg-molclintox", data=tmp_path)


def test_a_data_set_with_one_task_gives_its_labels_to_any_model_with_classes(root):
    labels = source(gx.load("bace"), "ogbg-molbace", data=root).labels
    dataset = load_ogb("ogbg-molbace", root)
    assert labels == {k: int(dataset.labels[k, 0]) for k in dataset.positions("test")}
    assert source(gx.load("solubility"), "ogbg-molbace", data=root).labels == {}
