"""A table becomes a Gaussian process, calibrated, scored and described as a network is."""

import csv
import json
import math
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import graphxai as gx
from graphxai.contract.tasks import Task
from graphxai.datasets.fingerprints import similarity, structure_counts
from graphxai.learning import training
from graphxai.learning.cleaning import clean_table
from graphxai.learning.processes.process import (
    Verdict,
    cost_of_marked,
    output_scale,
    squared_errors,
)
from graphxai.learning.run import train_table
from graphxai.learning.table import split_table
from graphxai.learning.teachers import choosing, forests
from graphxai.learning.teachers.choosing import NOISES
from graphxai.learning.teachers.gaussian_process import Process
from graphxai.learning.teachers.stacking import FOLDS
from graphxai.models.process import KernelProcess

ASSAY = Path(__file__).parents[2] / "datasets" / "examples" / "assay.csv"


@pytest.fixture(autouse=True)
def few_trees(monkeypatch):
    monkeypatch.setattr(forests, "TREES", 20)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Train on the bundled table, with few trees."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forests, "TREES", 20)
        out = tmp_path_factory.mktemp("runs") / "assay"
        lines = []
        table = clean_table(ASSAY, "smiles", ["efflux"])
        train_table(table, out, model="process", split="random", log=lines.append)
    return out, lines


def rows_of(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_another_run_in_the_folder_is_not_overwritten(run):
    out, _ = run
    before = (out / "model" / "model.safetensors").read_bytes()
    table = clean_table(ASSAY, "smiles", ["efflux"])
    with pytest.raises(ValueError, match="already contains a run"):
        train_table(table, out, model="process", split="random")
    with pytest.raises(ValueError, match="seed"):
        train_table(table, out, model="process", split="random", seed=1, resume=True)
    assert (out / "model" / "model.safetensors").read_bytes() == before


def test_the_model_is_the_process_that_its_training_rows_give(run):
    out, _ = run
    model, training = gx.load(out), rows_of(out / "model" / "training.csv")
    y = np.array([[float(row["efflux"])] for row in training])
    counts = structure_counts([row["smiles"] for row in training])
    tested = rows_of(out / "test.csv")
    kernel, carriers = similarity(counts, counts), np.arange(len(y))
    test_kernel = similarity(structure_counts([row["smiles"] for row in tested]), counts)
    predicted = [float(row["efflux: predicted"]) for row in tested]
    by_noise = [Process.fit(kernel, carriers, y, noise).predict(test_kernel) for noise in NOISES]
    assert any(np.abs(each[:, 0] - predicted).max() < 1e-4 for each in by_noise)
    again = gx.predict(model, [row["smiles"] for row in tested])
    assert [each["efflux"].value for each in again] == pytest.approx(predicted, abs=1e-4)


def test_scores_intervals_and_card_are_written_as_for_a_network(run):
    out, lines = run
    scores = json.loads((out / "model" / "scores.json").read_text())
    of_model = scores["scores"]["efflux"]["scores"]
    assert set(of_model) == {"graphormer", "forest", "descriptor_forest", "dummy"}
    assert of_model["graphormer"]["R2"][0] > of_model["dummy"]["R2"][0]
    assert 0.75 <= scores["coverage"]["efflux"]["held"] <= 1
    low, high = gx.predict(gx.load(out), "CC(=O)Nc1ccc(O)cc1")["efflux"].interval
    assert low < high
    card = (out / "model" / "README.md").read_text()
    assert "A Gaussian process, carried by 270 molecules, trained with graphxai" in card
    assert "The weights of a process contain counts of all of them." in card
    assert "make a pair if they were held out in one fold" in card
    assert any("Gaussian process" in line for line in lines)
    assert repr(gx.load(out)).startswith("KernelProcess(assay: efflux (regression); efflux: R2")


def test_the_account_names_the_training_molecules_unless_the_list_was_changed(run, tmp_path):
    out, _ = run
    model, training = gx.load(out), rows_of(out / "model" / "training.csv")
    account = gx.kernel_account(model, training[5]["smiles"])
    nearest = max(account.training, key=lambda each: each.similarity)
    assert nearest.smiles == training[5]["smiles"]
    assert nearest.similarity == pytest.approx(1)
    copy = tmp_path / "model"
    copy.mkdir()
    for file in (out / "model").iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    lines = (copy / "training.csv").read_text().splitlines()
    (copy / "training.csv").write_text("\n".join([lines[0], *lines[:0:-1]]) + "\n")
    with pytest.warns(UserWarning, match=r"training\.csv was changed"):
        reversed_list = gx.load(copy)
    changed = gx.kernel_account(reversed_list, training[5]["smiles"])
    assert {each.smiles for each in changed.training} == {""}
    assert changed.output == account.output


def test_what_a_chemist_asks_works_without_a_gradient(run, tmp_path):
    model = gx.load(run[0])
    smiles = "C[C@]1(CS(=O)(=O)N(C(=N1)N)C)c1cc(NC(=O)c2ccc(F)cn2)ccc1F"
    explained = gx.explain(model, smiles)
    assert abs(explained.ledger.unexplained) < 1e-6
    parts = gx.fragments(explained)
    assert sum(part.relevance for part in parts) == pytest.approx(explained.ledger.nodes, abs=1e-5)
    assert len(gx.fragments(explained, method="shapley", model=model)) == len(parts)
    other = smiles.replace("ccc1F", "ccc1Cl")
    contrast = gx.contrast(model, smiles, other)
    values = [gx.predict(model, each)["efflux"].value for each in (smiles, other)]
    assert abs(contrast.account.output) == pytest.approx(abs(values[1] - values[0]), abs=1e-5)
    assert contrast.account.unexplained == pytest.approx(0, abs=1e-5)
    changed = gx.counterfactuals(model, smiles, "efflux < 0")
    assert len(changed)
    for each in changed:
        assert gx.predict(model, each.smiles)["efflux"].value < values[0]
    report = gx.report(model, [smiles, "OCCc1ccccc1.Cl"], tmp_path / "report.html")
    assert "efflux" in Path(report).read_text(encoding="utf-8")
    assert gx.trust(model, smiles).sentence
    assert "</svg>" in gx.compare(model, smiles).svg()


def test_several_processes_explain_a_list_alike(run):
    model, smiles = gx.load(run[0]), ["CCO", "c1ccccc1O"] * 300
    alone, together = (gx.explain(model, smiles, workers=n, progress=False) for n in (1, 2))
    for a, b in zip(alone[:4], together[:4], strict=True):
        assert (a.relevance == b.relevance).all()


@pytest.fixture(scope="module")
def several(tmp_path_factory):
    """Write a class, a value with bounds, three classes, and gaps, all of which rings decide."""
    path = tmp_path_factory.mktemp("data") / "own.csv"
    cores = ("c1ccccc1", "c1ccncc1", "C1CCCCC1", "c1ccc2ccccc2c1", "C1CCNCC1", "c1ccsc1")
    chains = ("", "C", "CC", "OC", "NC", "ClC", "FC", "CCC", "COC", "CNC")
    lines = ["smiles,nitrogen,size,ring"]
    for k, smiles in enumerate(chain + core for core in cores for chain in chains):
        size = "" if k % 9 == 4 else ">12" if len(smiles) > 13 else str(len(smiles) + 0.5)
        ring = "fused" if "2" in smiles else "flat" if "c" in smiles else "chair"
        lines.append(
            f"{smiles},{'' if k % 7 == 3 else 'yes' if 'n' in smiles else 'no'},{size},{ring}"
        )
    path.write_text("\n".join(lines) + "\n")
    return path


def test_classes_gaps_and_bounds_are_learned_together(several, tmp_path):
    table = clean_table(several, "smiles", ["nitrogen", "size", "ring"])
    model = gx.load(train_table(table, tmp_path, model="process", split="random"))
    assert isinstance(model, KernelProcess)
    assert [task.kind for task in model.config.tasks] == ["binary", "regression", "multiclass"]
    pyridine, naphthalene = gx.predict(model, ["CCCc1ccncc1", "CCCCc1ccc2ccccc2c1"])
    assert pyridine["nitrogen"].label == "yes"
    assert naphthalene["nitrogen"].label == "no"
    assert naphthalene["ring"].label == "fused"
    assert sum(naphthalene["ring"].probabilities.values()) == pytest.approx(1)
    assert naphthalene["size"].value > pyridine["size"].value
    for target in ("nitrogen", "size", "ring: fused"):
        explained = gx.explain(model, "CCCc1ccncc1", target=target)
        assert abs(explained.ledger.unexplained) < 1e-6


def test_logits_of_classes_are_those_of_the_largest_likelihood():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4000, 1))
    y = (rng.random(4000) < 1 / (1 + np.exp(-(3 * x[:, 0] - 1)))).astype(float)
    y[::10] = np.nan
    factor, shift = output_scale(Task("t", "binary", ("no", "yes")), x, y)
    assert (factor, shift[0]) == pytest.approx((3, -1), abs=0.3)
    logistic = pytest.importorskip("sklearn.linear_model").LogisticRegression(C=1e6)
    fitted = logistic.fit(x[~np.isnan(y)], y[~np.isnan(y)])
    assert (factor, shift[0]) == pytest.approx((fitted.coef_[0, 0], fitted.intercept_[0]), abs=1e-3)


def test_values_keep_the_scale_of_their_task():
    task = Task("t", "regression", offset=5.0, scale=2.0)
    factor, shift = output_scale(task, np.zeros((3, 1)), np.zeros(3))
    assert task.offset + task.scale * (7.0 * factor + shift[0]) == pytest.approx(7.0)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"ensemble": 2}, "--ensemble"),
        ({"teacher": False}, "--no-teacher"),
        ({"epochs": 3}, "--epochs"),
    ],
)
def test_options_of_networks_are_refused(options, name):
    with pytest.raises(ValueError, match=f"leave out {name}"):
        gx.TableSettings(model="process", **options)


def test_a_process_is_trained_without_lightning_and_pyg_from_the_command_line(several, tmp_path):
    code = (
        "import sys\nfor hidden in ('lightning', 'pytorch_lightning', 'torch_geometric'):\n"
        "    sys.modules[hidden] = None\n"
        "from graphxai.cli.main import program; program()"
    )
    command = ["train", several, "--target-column", "size", "--model", "process"]
    command += ["--split", "random", "--out", tmp_path / "run"]
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, command)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "this model" in done.stdout
    assert isinstance(gx.load(tmp_path / "run"), KernelProcess)


def test_a_learning_curve_has_smaller_processes(several, tmp_path):
    table = clean_table(several, "smiles", ["size"])
    folder = train_table(table, tmp_path, model="process", split="random", learning_curve=True)
    curve = json.loads((folder / "scores.json").read_text())["learning_curve"]
    assert [point["share"] for point in curve] == [0.125, 0.25, 0.5, 1.0]
    assert all(math.isfinite(p["targets"]["size"]["scores"]["graphormer"]["MAE"][0]) for p in curve)


def test_dividing_outputs_by_a_temperature_divides_the_logits(run):
    model = gx.load(run[0])
    batch = model.collate([model.prepare("CCO").graph])
    with torch.no_grad():
        before = model(batch)
        model.divide_outputs(slice(0, 1), 2.0)
        assert torch.allclose(model(batch), before / 2)


@pytest.mark.parametrize(
    ("network", "gain", "choice"),
    [
        (0.41, 0.0, "network"),
        (0.30, 0.01, "network"),
        (0.43, 0.0, "process"),
        (0.60, -0.02, "process"),
        (0.60, 0.03, "mean"),
        (0.30, 0.03, "mean"),
    ],
)
def test_one_fold_decides_whether_a_network_is_worth_its_time(network, gain, choice):
    spread = np.array([-0.02, 0.02])  # of two molecules, whose mean has this standard error
    of_process, of_network = np.array([0.40, 0.40]), network + spread
    better = of_network if network < 0.40 else of_process
    verdict = Verdict(of_process, of_network, better - (gain + spread), 40.0)
    assert verdict.choice == choice
    assert f"difference {network - 0.4:+.3f} +- 0.020" in str(verdict)
    assert ("saves about 40 s" in str(verdict)) == (choice == "process")
    assert (f"is better by {gain:.3f} +- 0.020" in str(verdict)) == (choice == "mean")


def test_errors_of_all_kinds_of_tasks_are_those_of_the_formulas():
    y = np.array([1.0, 0.0, np.nan])
    value = squared_errors(Task("v", "regression", scale=2.0), np.array([3.0, 0.0, 1.0]), y)
    np.testing.assert_allclose(value, [1.0, 0.0, np.nan])
    binary = squared_errors(Task("b", "binary", ("n", "y")), np.array([0.25, 0.5, 0.5]), y)
    np.testing.assert_allclose(binary, [0.5625, 0.25, np.nan])
    readings = np.array([[0.2, 0.5, 0.3], [1.0, 0.0, 0.0], [0.1, 0.1, 0.8]])
    brier = squared_errors(Task("m", "multiclass", ("a", "b", "c")), readings, y)
    np.testing.assert_allclose(brier, [0.04 + 0.25 + 0.09, 0.0, np.nan])


@pytest.mark.parametrize("choice", ["process", "network", "mean"])
def test_auto_writes_a_process_first_and_keeps_what_one_fold_chooses(
    several, tmp_path, monkeypatch, choice
):
    pytest.importorskip("lightning")
    monkeypatch.setattr(Verdict, "choice", choice)
    quick = training.FINETUNING.__class__(epochs=2, progress=False)
    monkeypatch.setattr("graphxai.learning.table.FINETUNING", quick)
    monkeypatch.setattr("graphxai.learning.training.RECOMBINED", 20)
    fitted, fit_forests = [], choosing._SourceFitter.fit_forests
    monkeypatch.setattr(
        choosing._SourceFitter,
        "fit_forests",
        lambda self, name: fitted.append(name) or fit_forests(self, name),
    )
    processes, fit = [], Process.fit
    monkeypatch.setattr(
        Process, "fit", lambda *given, **more: processes.append(given) or fit(*given, **more)
    )
    lines = []
    table = clean_table(several, "smiles", ["size"])
    folder = train_table(table, tmp_path, split="random", log=lines.append, progress=False)
    assert len(processes) == len(NOISES) * FOLDS + 1  # no fold and no model a second time
    assert folder == tmp_path / "model"
    assert fitted == ["forest", "descriptor_forest"]  # once for the process and the network
    assert isinstance(gx.load(folder), KernelProcess) == (choice == "process")
    written = lines.index(f"written: {folder}, a Gaussian process")
    (said,) = (line for line in lines if line.startswith("mean squared errors on one fold"))
    assert written < lines.index(said)
    assert (tmp_path / "process" / "model").is_dir() == (choice != "process")
    kept = folder if choice == "process" else tmp_path / "process" / "model"
    assert isinstance(gx.load(kept), KernelProcess)
    model, tested = gx.load(folder), rows_of(tmp_path / "test.csv")[:3]
    for row in tested:
        value = gx.predict(model, row["smiles"])["size"].value
        assert float(row["size: predicted"]) == pytest.approx(value, abs=1e-3)
    if choice == "mean":
        parts = [gx.load(tmp_path / "process" / "model"), gx.load(folder / "network")]
        values = [gx.predict(each, tested[0]["smiles"])["size"].value for each in (*parts, model)]
        assert values[2] == pytest.approx((values[0] + values[1]) / 2, abs=1e-4)
        assert math.isfinite(gx.predict(model, "CCO")["size"].interval[0])
        assert "The mean of two models (A Graphormer (" in (folder / "README.md").read_text()
        assert gx.kernel_account(model, tested[0]["smiles"]).strongest()[0]


def test_a_teacher_with_next_to_no_share_teaches_no_student(several, tmp_path, monkeypatch):
    """The networks of the folds are the model, and their errors on them make its intervals."""
    pytest.importorskip("lightning")
    quick = training.FINETUNING.__class__(epochs=2, progress=False)
    monkeypatch.setattr("graphxai.learning.table.FINETUNING", quick)
    monkeypatch.setattr(training, "stacking_share", lambda *readings: 0.01)
    monkeypatch.setattr(training, "teach_network", lambda *given, **more: pytest.fail("taught"))
    lines, table = [], clean_table(several, "smiles", ["size"])
    options = {"model": "network", "split": "random", "progress": False}
    model = gx.load(train_table(table, tmp_path, log=lines.append, **options))
    assert "the teacher's share is below 2%: the networks stay as they are" in lines
    assert len(model.members) == 4
    assert math.isfinite(gx.predict(model, "CCO")["size"].interval[0])


@pytest.mark.parametrize("options", [{"epochs": 3}, {"teacher": False}, {"init_weights": None}])
def test_options_of_networks_choose_a_network(options):
    assert gx.TableSettings(**options).chosen_model == "network"
    assert gx.TableSettings().chosen_model == "auto"


def test_without_structures_no_molecule_is_listed_and_none_accounts(several, tmp_path):
    table = clean_table(several, "smiles", ["size"])
    options = {"model": "process", "split": "random"}
    folder = train_table(table, tmp_path / "without", without_structures=True, **options)
    plain = train_table(table, tmp_path / "with", **options)
    smiles = {row["smiles"] for row in rows_of(plain / "training.csv")}
    for file in folder.iterdir():
        assert not any(each.encode() in file.read_bytes() for each in smiles if len(each) > 8)
    model, smiles = gx.load(folder), "CCCc1ccncc1"
    account = gx.kernel_account(model, smiles)
    with pytest.raises(ValueError, match="its training structures were not stored"):
        account.by_training_molecule()
    assert len(account.by_structure())
    assert gx.predict(model, smiles)["size"].value == gx.predict(plain, smiles)["size"].value
    assert "No structures are stored" in (folder / "README.md").read_text()


def test_rows_marked_valid_are_counted_with_what_it_costs_not_to_learn_from_them(several, tmp_path):
    rows = several.read_text().splitlines()
    named = {4: "valid", 5: "test"}
    parts = ["part", *(named.get(k % 6, "train") for k in range(60))]
    marked = tmp_path / "marked.csv"
    marked.write_text("\n".join(f"{row},{part}" for row, part in zip(rows, parts, strict=True)))
    table = clean_table(marked, "smiles", ["size"], split_column="part")
    source = split_table(table, gx.TableSettings(split_column="part", model="process"))
    said = cost_of_marked(source)
    count, learned = len(source.parts.valid), len(source.parts.train)
    share = f"{count / (count + learned):.0%}"
    assert said.startswith(f"{count} molecules are marked valid and never learned from ({share} of")
    without, together = map(float, re.findall(r"by (\d\.\d+)", said))
    assert 0 < together < without  # more molecules of the same series
    assert cost_of_marked(split_table(table, gx.TableSettings(split="random"))) == ""
