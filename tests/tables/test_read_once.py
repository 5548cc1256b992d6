"""A panel of models reads each molecule once, and predicts what each model predicts alone."""

import pytest

from graphxai.datasets import molecules
from graphxai.tables.batches import PredictBatch

MODELS = ("bace", "solubility", "lipophilicity", "tox21")
SMILES = [
    *("CCO", "C[C@H](N)C(=O)O", "CC(=O)[O-].[Na+]", "C1CC", "[2H]OC", "CCO"),
    "CC(C)(C)NC[C@H](O)c1ccc(O)c(CO)c1",
]
NUMBERS = list(range(len(SMILES)))


@pytest.fixture
def featurised(monkeypatch) -> list[str]:
    """Return a list that gets every molecule whose features are computed."""
    given: list[str] = []
    featurise = molecules.featurise

    def counted(smiles, **reading):
        given.extend(smiles := list(smiles))
        return featurise(smiles, **reading)

    monkeypatch.setattr(molecules, "featurise", counted)
    return given


def test_each_molecule_is_read_once_for_all_models(featurised):
    PredictBatch(MODELS)(SMILES, NUMBERS)
    assert sorted(featurised) == sorted(set(SMILES))


def test_models_that_read_in_different_ways_read_for_themselves(featurised):
    import graphxai as gx

    PredictBatch((gx.load("bace"), gx.load("solubility", as_drawn=True)))(SMILES, NUMBERS)
    assert sorted(featurised) == sorted([*set(SMILES)] * 2)


def test_a_panel_predicts_what_each_model_predicts_alone():
    panel = PredictBatch(MODELS)(SMILES, NUMBERS)
    for name in MODELS:
        for together, alone in zip(panel, PredictBatch(name)(SMILES, NUMBERS), strict=True):
            assert together["smiles"] == alone["smiles"]
            predicted = alone.keys() & together.keys() - {"note"}
            assert {key: together[key] for key in predicted} == {
                key: alone[key] for key in predicted
            }
