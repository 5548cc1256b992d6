"""A suggestion says in how many measured pairs the model had its exchange right."""

import numpy as np
import pytest
from rdkit import Chem

import graphxai as gx
from graphxai.chemistry.table_changes import judged_tables
from graphxai.datasets.training_set import training_set_of
from graphxai.explanation.compute.models import ModelPanel

PAIRS = [(f"c1ccccc1{tail}", f"Clc1ccccc1{tail}") for tail in ("CCN", "CC(N)=O", "COC", "CCCO")]


@pytest.fixture(scope="module")
def model():
    return gx.load("solubility")


def judged(model, values):
    (table,) = judged_tables(
        ModelPanel.of(model), {"solubility": gx.Measurements.of(values.items(), "solubility")}
    ).values()
    return table


def test_pairs_are_counted_by_the_sign_of_the_change_that_the_model_predicts(model):
    """Three pairs fall and one rises; the counts are those of the model's own predictions."""
    values = dict.fromkeys([a for a, _ in PAIRS], -2.0)
    values |= {b: -2.0 + change for (_, b), change in zip(PAIRS, (-1, -1, -1, 1), strict=True)}
    about = judged(model, values).about("c1ccccc1OCC", "Clc1ccccc1OCC")
    predicted = [
        [each["solubility"].value for each in gx.predict(model, list(pair))] for pair in PAIRS
    ]
    learned = {Chem.CanonSmiles(s) for s in training_set_of(model).given}
    changes = [
        (change, b - a)
        for (a, b), pair, change in zip(predicted, PAIRS, (-1, -1, -1, 1), strict=True)
        if not learned.issuperset(map(Chem.CanonSmiles, pair))
    ]
    right = sum(np.sign(a) == np.sign(b) for a, b in changes)
    assert (about.judged, about.right) == (len(changes), right)
    assert about.judged >= 3
    assert f"right in {right} of {len(changes)} measured pairs" in about.sentence
    back = judged(model, values).about("Clc1ccccc1OCC", "c1ccccc1OCC")
    assert (back.judged, back.right) == (about.judged, about.right)
    assert back.columns["measured_pairs_right"] == right


def test_pairs_that_the_model_learned_test_nothing(model):
    pair = ("c1ccccc1", "Cc1ccccc1")
    assert {training_set_of(model).part(Chem.MolFromSmiles(each)) for each in pair} == {"training"}
    about = judged(model, dict(zip(pair, (1.0, 2.0), strict=True))).about(*pair)
    assert (len(about.changes), about.judged) == (1, 0)
    assert about.sentence.endswith("tested by no pair that the model did not learn from")


def test_a_group_that_never_varies_is_marked():
    """Every compound has the amide, so nothing tests what it does; the chlorine varies."""
    table = gx.Measurements.of([("NC(=O)c1ccccc1CC", 5.0), ("NC(=O)c1c(Cl)cccc1CC", 6.0)], "y")
    amide = table.about(*map(Chem.CanonSmiles, ("NC(=O)c1ccccc1CC", "N#Cc1ccccc1CC")))
    assert amide.sentence.endswith("*C(N)=O never varies in the table: tested by no pair")
    bromine = table.about(*map(Chem.CanonSmiles, ("NC(=O)c1c(Cl)cccc1CC", "NC(=O)c1c(Br)cccc1CC")))
    assert bromine.sentence == "exchange never measured"


def test_suggestions_of_a_search_are_judged(model):
    values = dict.fromkeys([a for a, _ in PAIRS], -2.0) | dict.fromkeys([b for _, b in PAIRS], -3.0)
    found = gx.counterfactuals(
        model, "c1ccccc1OCC", "solubility < -4", measured=values, sources=["measured"]
    )
    told = [e.measured_sentence for e in found if e.measured.exchange and e.measured.changes]
    assert told
    assert all("the model had this exchange right in" in sentence for sentence in told)
