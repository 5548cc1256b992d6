"""The bundled processes come through every door, and know what a chemist knows."""

import csv
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import r2_score
from typer.testing import CliRunner

import graphxai as gx
from graphxai.cli.main import app
from graphxai.datasets.training_set import training_set_of
from graphxai.models.process import KernelProcess

MEASURED = Path(__file__).parents[1] / "data" / "rat_binding.csv"
BIOGEN = (
    "hlm-clearance",
    "rlm-clearance",
    "mdr1-efflux",
    "solubility-ph68",
    "human-binding",
    "rat-binding",
)
CAFFEINE = "Cn1cnc2c1c(=O)n(C)c(=O)n2C"
LOPERAMIDE = "CN(C)C(=O)C(CCN1CCC(O)(c2ccc(Cl)cc2)CC1)(c1ccccc1)c1ccccc1"
IBUPROFEN = "CC(C)Cc1ccc(cc1)C(C)C(=O)O"
METOPROLOL = "COCCc1ccc(OCC(O)CNC(C)C)cc1"
VERAPAMIL = "COc1ccc(CCN(C)CCCC(C#N)(C(C)C)c2ccc(OC)c(OC)c2)cc1OC"
TERFENADINE = "CC(C)(C)c1ccc(cc1)C(O)CCCN1CCC(CC1)C(O)(c1ccccc1)c1ccccc1"


@cache
def loaded(name):
    return gx.load(name)


def predicted(name, smiles):
    (prediction,) = gx.predict(loaded(name), smiles).values()
    return prediction


@pytest.mark.parametrize("name", BIOGEN)
def test_a_process_explains_itself_by_atoms_and_by_training_molecules(name):
    model = loaded(name)
    assert isinstance(model, KernelProcess)
    explained, account = gx.explain(model, LOPERAMIDE), gx.kernel_account(model, LOPERAMIDE)
    assert abs(explained.ledger.unexplained) < 1e-6
    shares = sum(each.share for each in account.training)
    assert account.mean + shares == pytest.approx(explained.output, abs=1e-6)
    known = set(training_set_of(model).given)
    assert {each.smiles for each in account.training} <= known


@pytest.mark.parametrize(
    ("name", "lower", "higher"),
    [
        ("hlm-clearance", CAFFEINE, VERAPAMIL),
        ("rlm-clearance", CAFFEINE, VERAPAMIL),
        ("mdr1-efflux", CAFFEINE, LOPERAMIDE),
        ("solubility-ph68", TERFENADINE, CAFFEINE),
        ("human-binding", IBUPROFEN, METOPROLOL),
        ("human-binding", TERFENADINE, CAFFEINE),
        ("rat-binding", IBUPROFEN, METOPROLOL),
    ],
)
def test_a_process_knows_what_any_chemist_knows(name, lower, higher):
    assert predicted(name, lower).value < predicted(name, higher).value


def test_the_score_of_the_card_is_that_of_the_measured_test_part():
    """The authors' 177 compounds, whose values no process has seen."""
    with MEASURED.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    model = loaded("rat-binding")
    y = np.array([float(row["y"]) for row in rows])
    answers = [p["unbound in rat plasma"] for p in gx.predict(model, [r["smiles"] for r in rows])]
    values = np.array([answer.value for answer in answers])
    scores = model.origin.metadata["scores"]["unbound in rat plasma"]["scores"]
    assert r2_score(y, values) == pytest.approx(scores["graphormer"]["R2"][0], abs=1e-3)
    assert scores["graphormer"]["R2"][0] > scores["descriptor_forest"]["R2"][0]
    said = f"Pearson R on the authors' test part is {np.corrcoef(y, values)[0, 1]:.3f}"
    assert said in (model.origin.folder / "README.md").read_text(encoding="utf-8")
    inside = [a.interval[0] <= v <= a.interval[1] for a, v in zip(answers, y, strict=True)]
    assert 0.85 <= np.mean(inside) <= 0.97


def test_a_panel_of_a_lead_shows_every_property_in_report_and_table(tmp_path):
    models = ["lipophilicity", *BIOGEN]
    page = gx.report(models, [METOPROLOL], tmp_path / "page.html", detailed=1)
    text = page.read_text(encoding="utf-8")
    names = [task.name for name in models for task in loaded(name).config.tasks]
    assert len(names) == 7
    assert all(name in text for name in names)
    options = [word for name in models for word in ("--model", name)]
    result = CliRunner().invoke(app, ["predict", METOPROLOL, *options])
    assert result.exit_code == 0, result.output
    assert all(name in result.output for name in names)
