"""A goal's outcome is told apart from trust, and the app names what is wrong with a SMILES."""

import pytest

import graphxai as gx
from graphxai.chemistry.profile_text import read_profile
from graphxai.datasets.molecule_reading import MoleculeError, read_molecules
from graphxai.explanation.compute.models import ModelPanel
from graphxai.tables.app.page import MAX_ATOMS, read
from graphxai.tables.card import property_facts


@pytest.mark.parametrize(
    ("wish", "outcome"), [("solubility > -9", "met"), ("solubility > 9", "missed")]
)
def test_each_property_says_whether_its_goal_is_met(wish, outcome):
    panel = ModelPanel.of("solubility")
    prediction = gx.predict("solubility", "CC(=O)Nc1ccc(O)cc1")["solubility"]
    predictions = {panel.properties[0].name: prediction}
    (facts,) = property_facts(panel, predictions, read_profile(panel, wish).score(predictions))
    assert facts is not None
    assert facts["outcome"] == outcome


def test_a_goal_is_near_from_a_desirability_of_a_half():
    panel = ModelPanel.of("solubility")
    prediction = gx.predict("solubility", "CC(=O)Nc1ccc(O)cc1")["solubility"]
    predictions = {panel.properties[0].name: prediction}
    seen = set()
    for distance in (0.0, 0.2, 0.5, 1.0, 3.0, 6.0):
        profile = read_profile(panel, f"solubility > {prediction.value + distance:.3f}")
        (part,) = profile.score(predictions).parts
        expected = "near" if part.desirability >= 0.5 else "missed"
        assert part.outcome == ("met" if part.met else expected)
        seen.add(part.outcome)
    assert {"near", "missed"} <= seen


@pytest.mark.parametrize("text", ["c1ccccc", "CC(C", "C[N](C)(C)(C)C", "InChI=1S/CH4/h1H4", ""])
def test_the_app_says_what_tables_say_of_a_smiles(text):
    (expected,) = read_molecules([text], MAX_ATOMS)
    assert isinstance(expected, MoleculeError)
    with pytest.raises(ValueError, match=r".") as error:
        read(text)
    assert str(error.value) == str(expected)


def test_the_app_names_the_length_of_a_text_that_is_too_long():
    with pytest.raises(ValueError, match="5,000 characters; the page reads up to 1,000"):
        read("C" * 5000)
