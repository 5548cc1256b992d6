"""A process, its mean with a network, and an adapted model work wherever a Graphormer does."""

import csv
import json
import re

import numpy as np
import pytest
import torch
from reports import read_report

import graphxai as gx
from graphxai.contract.checkpoint_files import list_digests
from graphxai.contract.target import Target
from graphxai.contract.tasks import Task
from graphxai.datasets.fingerprints import similarity, structure_counts
from graphxai.explainers import get_explainer
from graphxai.explanation.kernel_account import KernelAccount, TrainingShare
from graphxai.learning.teachers.gaussian_process import Process
from graphxai.models.graphormer import save_checkpoint
from graphxai.models.process import (
    CarriedCounts,
    KernelProcess,
    ProcessConfig,
    mean_of,
    save_process,
    save_sum,
)
from graphxai.tables.app.answers import OfferedModels
from graphxai.tables.app.molecules import card, changes_at
from graphxai.tables.report import full_cards
from graphxai.tables.run import explain_table
from toy import random_graphormer

CORES = ("c1ccccc1", "c1ccncc1", "C1CCCCC1", "c1ccc2ccccc2c1", "C1CCNCC1")
TRAINING = tuple(chain + core for core in CORES for chain in ("", "C", "CC", "OC", "NC", "FC"))
VALUES = np.array([[4 + len(smiles) / 10 + ("n" in smiles)] for smiles in TRAINING])
SMILES = ("CCCc1ccncc1", "OCCc1ccccc1", "NCCc1ccc2ccccc2c1", "C")
TASK = Task("pIC50", "regression", offset=5.0, scale=2.0)


def written(path, names, header="smiles,pIC50"):
    rows = zip(names, VALUES[:, 0], strict=False)
    path.write_text("\n".join([header, *(f"{s},{y:.4g}" for s, y in rows)]) + "\n")
    return path


def made(kind, folder):
    """Write a model of one kind to a folder."""
    if kind == "adapted":
        table = written(folder / "own.csv", TRAINING)
        return gx.adapt("lipophilicity", table, folder / "model", target_column="pIC50")
    counts, everyone = structure_counts(TRAINING), np.arange(len(TRAINING))
    fitted = Process.fit(similarity(counts, counts), everyone, (VALUES - 5) / 2, 0.05)
    config = ProcessConfig((TASK,), len(TRAINING), noise=(0.05,))
    numbers = torch.from_numpy(fitted.weights), torch.from_numpy(fitted.means)
    process = KernelProcess(config, CarriedCounts.of(counts), *numbers).eval()
    out, training = folder / "model", written(folder / "training.csv", TRAINING)
    lists = list_digests({training.name: training.read_bytes()})
    metadata = {"carriers": {"rows": everyone.tolist()}, "lists": lists}
    if kind == "process":
        save_process(process, out, metadata=metadata)
    else:
        network = random_graphormer(tasks=(TASK,), num_layers=1)
        stored = gx.load(save_checkpoint(network, out / "network"))
        save_sum(mean_of(stored, process), out, "network", metadata=metadata)
    training.rename(out / training.name)
    return out


@pytest.fixture(scope="module", params=["process", "mean", "adapted"])
def folder(request, tmp_path_factory):
    return made(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def model(folder):
    return gx.load(folder)


@pytest.fixture(scope="module")
def task(model):
    return model.config.tasks[0].name


def test_predictions_and_explanations_add_up(model, task):
    for smiles, e in zip(SMILES, gx.explain(model, list(SMILES), progress=False), strict=True):
        value = gx.predict(model, smiles)[task].value
        assert e.output == pytest.approx(value, abs=1e-5)
        assert abs(e.ledger.unexplained) < 1e-5
        parts = gx.fragments(e)
        assert sum(part.relevance for part in parts) == pytest.approx(e.ledger.nodes, abs=1e-5)
        assert abs(gx.explain(model, smiles, "occlusion").relevance).sum() > 0
    assert len(gx.fragments(e, method="shapley", model=model)) == len(parts)


def test_a_mean_is_half_of_each_and_so_is_its_ledger(tmp_path):
    mean = gx.load(made("mean", tmp_path))
    (tmp_path / "alone").mkdir()
    process = gx.load(made("process", tmp_path / "alone"))
    network = gx.load(tmp_path / "model" / "network")
    for smiles in SMILES:
        values = [gx.predict(each, smiles)["pIC50"].value for each in (network, process, mean)]
        assert values[2] == pytest.approx((values[0] + values[1]) / 2, abs=1e-5)
        e, *both = (gx.explain(each, smiles) for each in (mean, network, process))
        halves = [each.relevance / 2 for each in both]
        np.testing.assert_allclose(e.features, np.stack(halves, 1), atol=1e-5)
        assert list(e.ledger.node_parts) == ["model", "process"]


def test_an_account_names_measured_molecules_and_can_be_looked_at(model, task):
    account = gx.kernel_account(model, SMILES[0])
    assert account.output == pytest.approx(gx.predict(model, SMILES[0])[task].value, abs=1e-5)
    of_molecules = account.by_training_molecule()
    total = account.mean + account.beside + of_molecules.share.sum()
    assert total == pytest.approx(account.output, abs=1e-5)
    value = dict(zip(TRAINING, VALUES[:, 0], strict=True))
    for row in of_molecules.itertuples():
        assert float(row.measured) == pytest.approx(value[row.smiles], abs=1e-3)
    speaking, against = account.strongest(3)
    assert speaking + against
    assert all(account.training[place].share > 0 for place in speaking)
    for place in (*speaking, *against):
        mol, shared = account.shared_atoms(place)
        assert len(shared) == mol.GetNumAtoms()
        assert shared.sum() == pytest.approx(account.training[place].share, abs=1e-6)
    picture = account.svg(count=3)
    assert "speak most for it" in re.sub("<[^>]+>", "", picture)
    assert account.parts(2)
    assert account.to_frame().equals(of_molecules)


def test_an_account_without_the_list_of_its_training_molecules_names_none():
    unnamed = TrainingShare("", "", 0.5, 0.25)
    account = KernelAccount(output=1.25, mean=1.0, training=(unnamed,), structures=())
    assert repr(account).endswith("from 0 structures)")


def test_an_account_takes_the_folder_of_a_model_as_other_functions_do(model, folder):
    loaded, by_folder = (gx.kernel_account(of, SMILES[0]) for of in (model, folder))
    assert by_folder.training == loaded.training
    assert by_folder.structures == loaded.structures


def test_two_molecules_are_contrasted_and_cliffs_are_judged(model):
    contrast = gx.contrast(model, SMILES[0], "CCCc1ccccc1")
    assert contrast.account.unexplained == pytest.approx(0, abs=1e-5)
    pair = ["Nc1ccc(CCC(C)C)cc1", "Oc1ccc(CCC(C)C)cc1"]
    judged = gx.evaluate_cliffs(model, pair, [5.0, 8.0], ["lrp"], similarity=0.3, progress=False)
    assert len(judged)


def test_counterfactuals_reach_a_value(model, task):
    now = gx.predict(model, SMILES[0])[task].value
    changes = gx.counterfactuals(model, SMILES[0], f"{task} > {now + 0.01:.4f}", 2, progress=False)
    assert len(changes)
    assert all(change.prediction.value > now for change in changes)


def test_a_report_has_the_account_in_full_cards(model, folder, tmp_path):
    table = written(tmp_path / "new.csv", SMILES)
    shown = read_report(gx.report(model, table, tmp_path / "report.html"))["molecules"]
    account = gx.kernel_account(model, SMILES[0])
    said = {each["smiles"]: each for each in shown[0]["account"]["speaking"]}
    place = account.strongest(1)[0][0]
    first = account.training[place]
    assert said[first.smiles]["measured"] == first.measured
    assert sum(said[first.smiles]["r"]) == pytest.approx(first.share, rel=1e-2)


def test_a_report_says_why_a_large_process_has_no_account(model, tmp_path, monkeypatch):
    monkeypatch.setattr(full_cards, "MOST_ACCOUNTED", 3)
    table = written(tmp_path / "new.csv", SMILES)
    data = read_report(gx.report(model, table, tmp_path / "report.html"))
    assert "account" not in data["molecules"][0]
    why = data["refused"]["an account by training molecule"]
    assert f"rests on {model.config.carriers} molecules, and a report makes it for at most 3" in why


def test_the_app_shows_a_molecule_and_its_changes(model, folder):
    offered = OfferedModels([str(folder)])
    assert offered.about("")["model"]
    method = model.default_method
    shown = card(model, SMILES[0], method, Target(None))
    relevance = gx.explain(model, SMILES[0]).relevance
    np.testing.assert_allclose(shown["r"], relevance, rtol=1e-2, atol=1e-6)
    assert changes_at(model, SMILES[0], Target(None), [0], [])["options"]


def test_workers_explain_a_table_as_one_process_does(model, tmp_path):
    table = written(tmp_path / "new.csv", SMILES)
    counts = explain_table(model, table, tmp_path / "out", get_explainer("lrp"), workers=2)
    assert counts.done == len(SMILES)
    rows = csv.DictReader((tmp_path / "out" / "explanations.csv").open())
    for row, smiles in zip(rows, SMILES, strict=True):
        relevance = [float(number) for number in row["relevance"].split()]
        np.testing.assert_allclose(relevance, gx.explain(model, smiles).relevance, atol=1e-5)


def test_it_is_one_of_several_properties_and_is_evaluated(model, task):
    together = gx.predict([model, "bace"], SMILES[0])
    assert len(together) == 3
    assert any(name.startswith(task) for name in together)
    measured = gx.evaluate(model, list(SMILES[:2]), ["lrp", "occlusion"])
    assert {"lrp", "occlusion"} <= {unit.method for unit in measured.units}
    assert gx.trust(model, SMILES[0]).sentence


@pytest.mark.parametrize("kind", ["process", "mean"])
def test_a_process_and_a_mean_are_adapted_updated_and_explained(kind, tmp_path):
    """A mean is itself a sum: its ledger is the model's line, and the new process's the other."""
    base = made(kind, tmp_path)
    names = TRAINING[:20]
    own = written(tmp_path / "own.csv", names, "smiles,own")
    out = gx.adapt(base, own, tmp_path / "adapted", target_column="own")
    model, alone = gx.load(out), gx.load(base)
    for smiles in SMILES[:3]:
        e, of_base = gx.explain(model, smiles), gx.explain(alone, smiles)
        assert e.output == pytest.approx(gx.predict(model, smiles)["pIC50"].value, abs=1e-5)
        assert abs(e.ledger.unexplained) < 1e-5
        of_model = model.factor * of_base.relevance
        np.testing.assert_allclose(e.features[:, 0], of_model, atol=1e-5)
    more = written(tmp_path / "more.csv", TRAINING[25:26], "smiles,own")
    again = gx.load(gx.adapt(out, more, tmp_path / "again", target_column="own"))
    assert again.process.config.carriers == len(names) + 1
    assert json.loads((out / "config.json").read_text())["base"]["path"] == str(base)


def test_shares_say_in_one_sentence_why_they_are_shapley_values(model):
    with pytest.warns(UserWarning, match=r"\(gx\.wrap\); shares are Shapley values from"):
        gx.explain(model, SMILES[0], "shares")
