"""Changes in a table of measured compounds: pairs, R-groups, and what a model predicts for them."""

import csv

import numpy as np
import pytest
from rdkit import Chem
from typer.testing import CliRunner

import graphxai as gx
from graphxai.cli.main import app
from toy import random_graphormer

ANILIDES = {  # N-aryl acetamides: the parts at the ring, and what was "measured"
    "CC(=O)Nc1ccccc1": 5.0,
    "CC(=O)Nc1ccc(F)cc1": 5.5,
    "COc1ccc(NC(C)=O)cc1": 6.0,
    "CC(=O)Nc1cccc(F)c1": 5.25,
    "CC(=O)Nc1ccc(Cl)cc1": 6.5,
    "CCCCCCCC": 1.0,
}


@pytest.fixture(scope="module")
def model():
    return random_graphormer(num_layers=1)


def test_each_exchange_has_the_changes_of_its_pairs_measured_and_predicted(model):
    changes = gx.table_changes(model, ANILIDES, "pIC50", at_least=1)
    by_name = {str(each.exchange): each for each in changes}
    fluorine = by_name["*[H] to *F at c"]
    assert sorted(pair.measured for pair in fluorine.pairs) == pytest.approx([0.25, 0.5])
    assert fluorine.columns["measured_mean_change"] == pytest.approx(0.375)
    assert fluorine.columns["measured_sd"] == pytest.approx(np.std([0.25, 0.5], ddof=1))
    for each in changes:
        for pair in each.pairs:
            assert pair.measured == pytest.approx(ANILIDES[pair.after] - ANILIDES[pair.before])
            before, after = gx.predict(model, pair.before), gx.predict(model, pair.after)
            assert pair.predicted["pIC50"] == pytest.approx(
                after["pIC50"].value - before["pIC50"].value, abs=1e-4
            )
            assert pair.predicted["activity"] == pytest.approx(
                after["activity"].probabilities["active"]
                - before["activity"].probabilities["active"],
                abs=1e-5,
            )
    twice = gx.table_changes([model], ANILIDES, "pIC50")
    assert [str(each.exchange) for each in twice] == ["*[H] to *F at c"]
    assert len(twice.pairs_frame()) == 2
    assert "*F" in twice._repr_html_()


def test_compounds_are_divided_into_a_core_and_its_groups(model):
    table = gx.rgroup_table(model, "CC(=O)Nc1ccccc1", ANILIDES, "pIC50")
    assert len(table) == 5  # all but octane
    core = Chem.MolFromSmarts("CC(=O)Nc1ccccc1")
    for row in table.to_dict("records"):
        assert Chem.MolFromSmiles(row["smiles"]).HasSubstructMatch(core)
        assert row["measured pIC50"] == ANILIDES[row["smiles"]]
        value = gx.predict(model, row["smiles"])["pIC50"].value
        assert row["predicted pIC50"] == pytest.approx(value, abs=1e-4)
        activity = gx.predict(model, row["smiles"])["activity"]
        assert row["predicted activity"] == activity.label
        assert row["predicted activity: active"] == pytest.approx(
            activity.probabilities["active"], abs=1e-5
        )
    with pytest.raises(ValueError, match="RDKit cannot read the SMARTS"):
        gx.rgroup_table(model, "C(", ANILIDES, "pIC50")
    with pytest.raises(ValueError, match="no compound"):
        gx.rgroup_table(model, "[Xe]", ANILIDES, "pIC50")


def test_a_compound_of_which_only_a_bound_is_known_has_its_row(model):
    measured = ANILIDES | {"CC(=O)Nc1ccc(C#N)cc1": ">7"}
    table = gx.rgroup_table(model, "CC(=O)Nc1ccccc1", measured, "pIC50")
    (row,) = [row for row in table.to_dict("records") if "C#N" in row["smiles"]]
    assert np.isnan(row["measured pIC50"])
    assert row["measured bound of pIC50"] == ">7"
    assert set(table["measured bound of pIC50"]) == {"", ">7"}
    changes = gx.table_changes(model, measured, "pIC50", at_least=1)
    assert len(changes) == len(gx.table_changes(model, ANILIDES, "pIC50", at_least=1))
    assert "among 6 compounds, not 1 only with bounds" in repr(changes)


def test_racemates_have_the_predictions_of_their_isomers():
    written = {f"C[C@H](N)c1ccc({part})cc1 |&1:1|": k for k, part in enumerate(["F", "Cl", "OC"])}
    alone = {
        Chem.CanonSmiles(smiles.replace("@", "").partition(" ")[0]): gx.predict("bace", smiles)
        for smiles in written
    }
    table = gx.rgroup_table("bace", "CC(N)c1ccccc1", written, "pIC50")
    for row in table.to_dict("records"):
        value = alone[row["smiles"]]["pIC50"].value
        assert row["predicted pIC50"] == pytest.approx(value, abs=1e-5)
    (exchange, *_) = gx.table_changes("bace", written, "pIC50", at_least=1)
    for pair in exchange.pairs:
        change = alone[pair.after]["pIC50"].value - alone[pair.before]["pIC50"].value
        assert pair.predicted["pIC50"] == pytest.approx(change, abs=1e-5)


def test_the_command_writes_means_pairs_or_groups(tmp_path):
    table, out = tmp_path / "assay.csv", tmp_path / "changes.csv"
    rows = "".join(f"{smiles};{value}\n" for smiles, value in ANILIDES.items())
    table.write_text("smiles;pIC50\n" + rows)
    given = ["changes", str(table), "--model", "bace", "--out", str(out)]
    for more, count in (([], 1), (["--pairs"], 2), (["--core", "CC(=O)Nc1ccccc1"], 5)):
        result = CliRunner().invoke(app, [*given, *more], catch_exceptions=False)
        assert "measured in 'pIC50'" in result.output
        assert len(list(csv.DictReader(out.open(), delimiter=";"))) == count


def test_the_command_reads_a_column_named_with_its_unit_as_python_does(tmp_path):
    table, out = tmp_path / "assay.csv", tmp_path / "changes.csv"
    rows = "".join(f"{smiles},{-value}\n" for smiles, value in ANILIDES.items())
    table.write_text("smiles,solubility (log mol/L)\n" + rows)
    given = ["changes", str(table), "--model", "solubility", "--out", str(out)]
    result = CliRunner().invoke(app, given, catch_exceptions=False)
    assert "measured in 'solubility'" in result.output
    (written,) = csv.DictReader(out.open())
    (exchange,) = gx.table_changes("solubility", table)
    assert float(written["measured_mean_change"]) == exchange.columns["measured_mean_change"]
