"""A table of measured values says what a change did to them."""

import re

import numpy as np
import pytest
from rdkit import Chem

import graphxai as gx
from graphxai.contract.tasks import Task
from graphxai.datasets.matched_pairs import Exchange, matched_pairs

VALUES = {
    "c1ccccc1C(N)=O": 5.0,
    "Clc1ccccc1C(N)=O": 5.5,
    "c1ccccc1CCN": 6.0,
    "c1cc(Cl)ccc1CCN": 7.1,
    "CCCCN": 4.0,
    "ClCCCCN": 4.4,
    "COc1ccccc1C(N)=O": 6.5,
}
TO_CHLORINE = Exchange("*[H]", "*Cl", "c")


@pytest.fixture(scope="module")
def table():
    return gx.Measurements.of(VALUES.items(), "pIC50")


def about(table, before, after):
    return table.about(Chem.CanonSmiles(before), Chem.CanonSmiles(after))


def test_a_matched_pair_names_what_was_exchanged_and_where():
    mols = [Chem.MolFromSmiles(text) for text in ("c1ccccc1CCN", "Clc1ccccc1CCN", "CCO")]
    ((pair, matched),) = matched_pairs(mols).items()
    assert pair == (0, 1)
    assert matched.exchange == TO_CHLORINE
    assert matched.exchange.reversed == Exchange("*Cl", "*[H]", "c")
    assert Chem.MolFromSmiles(matched.core).GetNumAtoms() == mols[0].GetNumAtoms() + 1


def test_changes_of_the_same_exchange_are_collected_by_the_kind_of_atom(table):
    new = about(table, "c1ccccc1OC", "Clc1ccccc1OC")
    assert (new.before, new.after) == (None, None)
    assert new.exchange == TO_CHLORINE
    assert sorted(new.changes) == pytest.approx([0.5, 1.1])  # the chain's +0.4 is no aromatic pair
    assert new.mean == pytest.approx(0.8)
    assert new.sd == pytest.approx(np.std([0.5, 1.1], ddof=1))
    assert new.sentence == "pIC50 +0.80 (sd 0.42) in 2 pairs"
    assert about(table, "Clc1ccccc1OC", "c1ccccc1OC").mean == pytest.approx(-0.8)


def test_a_measured_product_is_told_and_what_is_unknown_too(table):
    in_table = about(table, "c1ccccc1C(N)=O", "COc1ccccc1C(N)=O")
    assert in_table.sentence == "measured pIC50 6.5 (before 5); pIC50 +1.50 in 1 pair"
    assert about(table, "c1ccccc1OC", "Brc1ccccc1OC").sentence == "exchange never measured"
    assert about(table, "c1ccccc1OC", "c1ccncc1OC").sentence == "no exchange at one bond"


def test_a_table_is_read_with_repeats_averaged_and_useless_rows_counted(tmp_path):
    path = tmp_path / "assay.csv"
    path.write_text("smiles,class,pIC50\nCCO,yes,5\nOCC,no,6\nCCN,no,>4\nnonsense,no,7\nCCC,no,\n")
    unread = "1 row has a value in 'pIC50' but no readable SMILES."
    with pytest.warns(UserWarning, match=re.escape(unread)):
        measurements = gx.Measurements.read(path, ["class", "pIC50"])
    assert (measurements.name, measurements.values) == ("pIC50", {"CCO": 5.5})
    assert measurements.bounds == {"CCN": ">4"}
    assert measurements.about("CCC", "CCN").sentence.startswith("measured pIC50 >4;")
    assert measurements.note == unread
    with pytest.raises(ValueError, match="has no column 'logD'"):
        gx.Measurements.read(path, ["logD"])


def test_values_are_read_as_in_training_and_a_column_of_bounds_says_so(tmp_path):
    path = tmp_path / "assay.csv"
    path.write_text("smiles;pIC50;none\nCCO;5,25;>4\nOCC;6,75;>5\nCCN;1.023;\n")
    assert gx.Measurements.read(path, ["pIC50"]).values == {"CCO": 6.0, "CCN": 1023.0}
    assert gx.Measurements.of({"CCO": np.float32(5.5), "CCN": None}.items()).values == {"CCO": 5.5}
    with pytest.raises(ValueError, match="2 are bounds, such as '>4'"):
        gx.Measurements.read(path, ["none"])


def test_salts_and_ions_of_a_compound_are_measured_as_one():
    forms = [("CCN", 6.0), ("CCN.Cl", 7.0), ("CC[NH3+].[Cl-]", 8.0), ("CCCN.OC(=O)C(F)(F)F", 5.0)]
    table = gx.Measurements.of(forms)
    assert table.values == {"CCN": 7.0, "CCCN": 5.0}
    assert table.about("CC[NH3+]", "CCC[NH3+]").after == 5.0
    drawn = gx.Measurements.of(forms, standardise="as drawn")
    assert drawn.values["CCN.Cl"] == 7.0
    assert len(drawn.values) == 4


def test_values_of_another_kind_than_the_tasks_are_pointed_out():
    task = Task("pIC50", "regression", offset=6.5, scale=1.3)
    alike = gx.Measurements.of([("CCO", 4.0), ("CCN", 9.5), ("CCC", 70.0)], "pIC50")
    assert alike.doubt(task) == ""
    other = gx.Measurements.of([("CCO", 0.7), ("CCN", 55.0), ("CCC", 12000.0)], "IC50")
    assert other.doubt(task).startswith(
        "Column 'IC50' has values from 0.7 to 1.2e+04, but pIC50 was mostly from 2.6 to 10.4"
    )
    assert other.doubt(Task("y", "regression")) == ""


def test_a_molecule_of_which_only_a_bound_is_known_is_no_blank_before_a_change():
    table = gx.Measurements.of({"CCO": ">4", "CCN": 5.0, "CCC": "<3"}, "pIC50")
    about = table.about("CCO", "CCN")
    assert "measured pIC50 5 (before >4)" in about.sentence
    assert (about.columns["measured_before"], about.columns["measured_bound_before"]) == (
        None,
        ">4",
    )
    both = table.about("CCO", "CCC")
    assert "measured pIC50 <3 (before >4)" in both.sentence
    assert both.mean is None
