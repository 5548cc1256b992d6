"""A chemprop model works wherever a bundled model does: tables, reports, the app, chemistry."""

import csv
import shutil
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import graphxai as gx
from graphxai.evaluation.report import Report

pytest.importorskip("chemprop", reason="chemprop is an extra")

from reports import read_report

from chemprop_models import mpnn
from graphxai.cli.main import app
from graphxai.contract.target import Target
from graphxai.explainers import get_explainer
from graphxai.tables.app.answers import OfferedModels
from graphxai.tables.app.molecules import card, changes_at
from graphxai.tables.files import above_noise
from graphxai.tables.run import explain_table

RUN = Path(__file__).parents[1] / "data" / "chemprop" / "run_2.2.4"
SMILES = ["CCO", "CC(=O)Oc1ccccc1C(=O)O", "Cc1ccccc1O", "Cc1ccccc1N", "C", "not a SMILES"]


@pytest.fixture(scope="module")
def model():
    return gx.load(RUN)


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "molecules.csv"
    path.write_text("smiles,logS\n" + "".join(f"{text},{-k}\n" for k, text in enumerate(SMILES)))
    return path


@pytest.mark.parametrize("workers", [1, 2])
def test_a_table_has_the_relevance_of_single_molecules(model, table, tmp_path, workers):
    out = tmp_path / "explained"
    counts = explain_table(model, table, out, get_explainer("lrp"), workers=workers)
    assert (counts.done, counts.rejected) == (5, 1)
    rows = list(csv.DictReader((out / "explanations.csv").open()))
    for row, explanation in zip(rows, gx.explain(model, SMILES[:5]), strict=True):
        for name, values in (("relevance", explanation.relevance), ("bonds", explanation.bonds)):
            digits = [*map(float, above_noise(values.tolist()))]
            np.testing.assert_allclose([*map(float, row[name].split())], digits, atol=1e-6)
        others = sum(explanation.ledger.others.values())
        assert float(row["other_inputs"]) == pytest.approx(others, abs=1e-5)


def test_a_report_has_every_molecule(model, table, tmp_path):
    page = gx.report(model, table, tmp_path / "report.html").read_text(encoding="utf-8")
    assert all(text in page for text in SMILES[:4])
    explanation = gx.explain(model, SMILES[1])
    bonds = explanation.bonds.tolist()  # coloured on the bond
    shown = read_report(page)["molecules"][1]
    assert shown["bonds"] == pytest.approx(bonds, rel=1e-3, abs=1e-6)
    both = explanation.ledger.nodes + explanation.ledger.others["edge_attr"]
    assert shown["sum"] == pytest.approx(both, abs=1e-5)
    assert sum(part[3] for part in shown["fragments"]) == pytest.approx(both, abs=1e-3)


def test_the_app_shows_a_molecule_and_its_changes(model):
    offered = OfferedModels([RUN, model])
    assert offered.about("")["model"] == RUN.name
    target = Target(None, "logSolubility")
    shown = card(model, "Cc1ccccc1O", "lrp", target)
    np.testing.assert_allclose(
        shown["r"], gx.explain(model, "Cc1ccccc1O").relevance, rtol=1e-2, atol=1e-6
    )
    assert changes_at(model, "Cc1ccccc1O", target, [0], [])["options"]


@pytest.mark.parametrize("scheme", ["brics", "rings", "groups"])
def test_a_fragment_has_its_own_bonds_and_half_of_each_that_was_cut(model, scheme):
    explanation = gx.explain(model, "Cc1ccc(-c2ccccc2C(=O)O)cc1")
    parts, bonds = gx.fragments(explanation, scheme), explanation.bonds
    assert len(parts) > 1
    for part in parts:
        inside = [  # how many of its two ends are in the part
            (bond.GetBeginAtomIdx() in part.atoms) + (bond.GetEndAtomIdx() in part.atoms)
            for bond in explanation.molecule.GetBonds()
        ]
        expected = explanation.relevance[list(part.atoms)].sum() + np.dot(inside, bonds) / 2
        assert part.relevance == pytest.approx(expected, abs=1e-6)
    both = explanation.ledger.nodes + explanation.ledger.others["edge_attr"]
    assert parts.total == pytest.approx(both, abs=1e-5)
    assert f"{both:+.2f} in all".replace("-", "\N{MINUS SIGN}") in parts.svg()
    frame = gx.fragment_table([explanation], scheme)
    assert (frame["mean"] * frame["count"]).sum() == pytest.approx(both, abs=1e-5)


def test_a_contrast_adds_up(model):
    contrast = gx.contrast(model, "Cc1ccccc1O", "Cc1ccccc1N")
    outputs = [gx.explain(model, text).output for text in ("Cc1ccccc1O", "Cc1ccccc1N")]
    assert contrast.account.output == pytest.approx(outputs[0] - outputs[1], abs=1e-6)
    assert abs(contrast.account.unexplained) < 1e-5
    others = [
        sum(e.ledger.others.values()) - e.ledger.others["edge_attr"]
        for e in (contrast.a, contrast.b)
    ]
    assert contrast.account.other_inputs == pytest.approx(others[0] - others[1], abs=1e-5)
    assert contrast.to_frame().relevance_a.sum() == pytest.approx(
        contrast.a.ledger.nodes + contrast.a.ledger.others["edge_attr"], abs=1e-5
    )


def test_counterfactuals_reach_a_value(model):
    now = gx.predict(model, "Cc1ccccc1O")["logSolubility"].value
    reached = gx.counterfactuals(model, "Cc1ccccc1O", f"> {now + 1e-4:.5f}", n=2)
    assert all(change.prediction.value > now for change in reached)
    assert len(reached)


def test_methods_are_measured_and_an_explanation_is_trusted_or_not(model):
    report = gx.evaluate(model, SMILES[:4], ["lrp", "occlusion"])
    assert isinstance(report, Report)
    assert {unit.method for unit in report.units} == {
        "lrp",
        "occlusion",
        "ones",
        "random",
        "reverse",
    }
    assert "ledger" in str(gx.trust(model, SMILES[1]))


def test_a_set_of_atoms_changes_the_class():
    model = gx.wrap(mpnn(head="BinaryClassificationFFN"))
    result = gx.counterfactual_set(model, "CCO")
    assert result.before.label != result.after.label or not result.members


def test_attention_is_missed_in_plain_words(model):
    with pytest.raises(ValueError, match="has no attention between nodes"):
        gx.explain(model, "CCO", "rollout")


def test_training_compounds_beside_a_model_say_how_near_a_molecule_is(tmp_path):
    run = tmp_path / "run"
    shutil.copytree(RUN, run)
    (run / "training.csv").write_text("smiles\nCCO\nCCCO\n")
    prediction = gx.predict(gx.load(run), "CCO")["logSolubility"]
    assert prediction.nearness.word == "training compound"


def test_the_command_line_names_the_features_of_whole_molecules(monkeypatch, tmp_path):
    asked = []

    def load(path, *, as_drawn=False, isomers="groups", molecule_features=()):
        asked.append((Path(path).name, molecule_features))
        return gx.load(RUN)

    monkeypatch.setattr("graphxai.explanation.api.load", load)
    features = ["--molecule-features", "charge", "--molecule-features", "rdkit_2d"]
    two = ["--model", "solubility", "--model", str(RUN)]
    CliRunner().invoke(app, ["predict", "CCO", *two, *features], catch_exceptions=False)
    assert asked == [("solubility", ()), (RUN.name, ("charge", "rdkit_2d"))]
    monkeypatch.undo()
    refused = CliRunner().invoke(app, ["predict", "CCO", "--model", "solubility", *features])
    assert "are for models of chemprop" in str(refused.exception)
