"""The estimators train on lists of SMILES and follow scikit-learn's conventions."""

import csv
import pickle

import numpy as np
import pytest
from rdkit import Chem
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import cross_val_score
from sklearn.utils import estimator_checks

import graphxai as gx
from graphxai.datasets.samples import example_files

FAST = {"epochs": 1, "teacher": False, "init_weights": None}


@pytest.fixture(scope="module")
def assay():
    with example_files()["assay.csv"].open() as file:
        rows = list(csv.DictReader(file))[:48]
    return [row["smiles"] for row in rows], np.array([float(row["efflux"]) for row in rows])


@pytest.fixture(scope="module")
def regressor(assay):
    return gx.GraphormerRegressor(**FAST).fit(*assay)


@pytest.fixture(scope="module")
def classifier(assay):
    smiles, values = assay
    return gx.GraphormerClassifier(**FAST).fit(smiles, np.where(values > 0.2, "carried out", "not"))


def test_values_are_those_of_the_model_that_it_trained(regressor, assay):
    smiles, _ = assay
    predicted = regressor.predict(smiles[:5])
    assert predicted.shape == (5,)
    expected = [p["y"].value for p in gx.predict(regressor.model_, smiles[:5])]
    np.testing.assert_allclose(predicted, expected, rtol=1e-6)
    as_column = regressor.predict(np.array(smiles[:5])[:, None])
    as_molecules = regressor.predict([Chem.MolFromSmiles(text) for text in smiles[:5]])
    np.testing.assert_allclose(as_column, predicted, rtol=1e-6)
    np.testing.assert_allclose(as_molecules, predicted, rtol=1e-4)


def test_a_folder_takes_one_fit_and_says_what_others_need(assay, tmp_path):
    (tmp_path / "model").mkdir()  # as a fit leaves it
    fitted = gx.GraphormerRegressor(**FAST, folder=tmp_path)
    with pytest.raises(ValueError, match=r"cross_val_score or a search .* folder=None"):
        fitted.fit(*assay)


def test_values_may_be_bounds_as_for_the_command(monkeypatch):
    """The command reads ">7" as a bound, and so the table that `fit` trains on has it."""
    written = {}
    monkeypatch.setattr(
        gx.GraphormerRegressor, "_train", lambda self, X, columns: written.update(columns)
    )
    gx.GraphormerRegressor().fit(["C", "CC", "CCC", "CCCC"], [5.5, ">7", np.nan, "<= 4"])
    assert written == {"y": ["5.5", ">7", "", "<= 4"]}
    gx.GraphormerRegressor().fit(["C", "CC"], [np.float64(0.5), ">7"])
    assert written == {"y": ["0.5", ">7"]}
    gx.GraphormerRegressor().fit(["C", "CC"], [[1.0, 2.0], [3.0, np.nan]])
    assert written["y1"] == ["1", "3"]
    assert written["y2"] == ["2", ""]


def test_probabilities_are_in_the_order_of_the_classes(classifier, assay):
    smiles, _ = assay
    assert list(classifier.classes_) == ["carried out", "not"]
    probabilities = classifier.predict_proba(smiles[:5])
    np.testing.assert_allclose(probabilities.sum(1), 1, atol=1e-6)
    chosen = classifier.classes_[probabilities.argmax(1)]
    assert classifier.predict(smiles[:5]).tolist() == chosen.tolist()
    assert 0 <= classifier.score(smiles, classifier.predict(smiles)) <= 1


def test_no_molecules_have_no_predictions(regressor, classifier):
    assert regressor.predict([]).shape == (0,)
    assert classifier.predict_proba([]).shape == (0, 2)
    assert classifier.predict([]).shape == (0,)


def test_classes_are_one_column():
    with pytest.raises(ValueError, match="1d array"):
        gx.GraphormerClassifier().fit(["C", "CC"], [["a", "b"], ["b", "a"]])


def test_a_class_that_could_not_be_read_has_no_probability(monkeypatch, classifier, assay):
    smiles, _ = assay
    first = gx.predict(classifier.model_, smiles[:1])
    shares = dict(list(first[0]["y"].probabilities.items())[:1])
    fake = [{"y": type("Shares", (), {"probabilities": shares})()}]
    monkeypatch.setattr(type(classifier), "_predictions", lambda self, X: fake)
    assert classifier.predict_proba(smiles[:1])[0, 1] == 0


def test_explanations_add_up_to_what_is_predicted(regressor, assay):
    (smiles, *_), _ = assay
    explanation = regressor.explain(smiles)
    assert abs(explanation.ledger.unexplained) < 1e-4
    several = regressor.explain(assay[0][:2], "occlusion")
    assert len(several) == 2


def test_an_estimator_is_scored_by_cross_validation(assay):
    scores = cross_val_score(gx.GraphormerRegressor(**FAST), *assay, cv=2)
    assert scores.shape == (2,)
    assert np.isfinite(scores).all()


def test_an_estimator_is_cloned_with_its_settings_and_pickled_with_its_model(regressor, assay):
    copy = clone(regressor)
    assert copy.get_params() == regressor.get_params()
    with pytest.raises(NotFittedError):
        copy.predict(assay[0][:1])
    again = pickle.loads(pickle.dumps(regressor))
    np.testing.assert_array_equal(again.predict(assay[0][:3]), regressor.predict(assay[0][:3]))


def test_what_is_no_column_of_molecules_is_refused(regressor, assay):
    with pytest.raises(ValueError, match="cannot be read"):
        regressor.predict(["CC("])
    with pytest.raises(ValueError, match="single text"):
        regressor.predict("CCO")
    with pytest.raises(ValueError, match="2 columns"):
        regressor.predict(np.array([["CCO", "CC"]]))
    with pytest.raises(ValueError, match="X holds float"):
        regressor.fit([1.0] * 30, range(30))
    with pytest.raises(ValueError, match="inconsistent numbers"):
        regressor.fit(assay[0], [1.0])


# `check_estimator` itself leaves out all checks that fit numbers, as X holds molecules.
CHECKS = [
    estimator_checks.check_estimator_cloneable,
    estimator_checks.check_estimator_repr,
    estimator_checks.check_get_params_invariance,
    estimator_checks.check_no_attributes_set_in_init,
    estimator_checks.check_parameters_default_constructible,
    estimator_checks.check_set_params,
]


@pytest.mark.parametrize("kind", [gx.GraphormerRegressor, gx.GraphormerClassifier])
@pytest.mark.filterwarnings("ignore:Can't test estimator")
def test_scikit_learns_own_checks_pass(kind):
    estimator_checks.check_estimator(kind(**FAST))
    for check in CHECKS:
        check(kind.__name__, kind(**FAST))
