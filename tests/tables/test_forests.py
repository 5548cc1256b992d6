"""A forest, and any function of a SMILES, works wherever a network does."""

import csv
from copy import deepcopy
from pickle import loads as rebuilt

import numpy as np
import pytest
from rdkit import Chem
from rdkit.Chem import Crippen, rdFingerprintGenerator
from sklearn.base import BaseEstimator
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor, VotingClassifier
from sklearn.linear_model import RidgeClassifier
from sklearn.svm import SVC, LinearSVC

import graphxai as gx
from graphxai.datasets.samples import example_files
from graphxai.runtime.worker_process import as_bytes
from graphxai.tables.app.answers import ANSWERS, Body, OfferedModels

FLUORO, CHLORO = "O=C(Nc1ccc(F)cc1)c1ccccn1", "O=C(Nc1ccc(Cl)cc1)c1ccccn1"
LEARNED = 40
GENERATOR = rdFingerprintGenerator.GetMorganGenerator(2, fpSize=256)
SEARCH = {"n": 2, "predictions": 12, "steps": 1, "sources": ["transformations"]}


def counts(mol):
    return GENERATOR.GetCountFingerprintAsNumPy(mol)


@pytest.fixture(scope="module")
def rows():
    with example_files()["assay.csv"].open() as file:
        return list(csv.DictReader(file))[:90]


@pytest.fixture(scope="module")
def features(rows):
    return np.stack([counts(Chem.MolFromSmiles(row["smiles"])) for row in rows[:LEARNED]])


@pytest.fixture(scope="module")
def table(rows, tmp_path_factory):
    """The assay with a column that says what the forest learned from."""
    path = tmp_path_factory.mktemp("forest") / "assay.csv"
    parts = ["train" if k < LEARNED else "test" for k in range(len(rows))]
    lines = [f"{r['smiles']},{r['efflux']},{p}" for r, p in zip(rows, parts, strict=True)]
    path.write_text("\n".join(["smiles,efflux,part", *lines]))
    return path


@pytest.fixture(scope="module")
def forest(rows, features, table):
    values = [float(row["efflux"]) for row in rows[:LEARNED]]
    fitted = RandomForestRegressor(12, random_state=0).fit(features, values)
    return gx.learned_from(gx.wrap(fitted, task="efflux", featurize=counts), table, part="part")


def test_seven_calls_on_a_forest_work(forest, tmp_path):
    prediction = gx.predict(forest, FLUORO)["efflux"]
    expected = forest.module.estimator.predict([counts(Chem.MolFromSmiles(FLUORO))])[0]
    assert prediction.value == pytest.approx(expected)
    explanation = gx.explain(forest, FLUORO)
    assert explanation.provenance["method"] == "occlusion"
    contrast = gx.contrast(forest, FLUORO, CHLORO)
    assert contrast.b.prediction.value == gx.predict(forest, CHLORO)["efflux"].value
    parts = gx.fragments(explanation)
    assert len(parts) >= 3
    found = gx.counterfactuals(forest, FLUORO, f">{prediction.value:.3f}", **SEARCH)
    assert found.summary.startswith("12 neighbours predicted")
    assert found.to_frame().predicted_change_low.notna().all()
    page = gx.report(forest, [FLUORO, CHLORO], tmp_path / "report.html", detailed=0)
    assert "Occlusion" in page.read_text()
    models = OfferedModels([forest])
    shown = ANSWERS["card"](models, Body({"smiles": FLUORO, "model": forest.origin.name}))
    assert "Occlusion" in str(shown)
    assert "occlusion" in models.about("")["methods"]
    assert "lrp" not in models.about("")["methods"]


def test_a_table_tells_the_training_set_and_the_errors(forest, rows):
    learned = Chem.MolFromSmiles(rows[0]["smiles"])
    assert gx.training_set_of(forest).part(learned) == "training"
    others = rows[LEARNED:]
    predictions = [p["efflux"] for p in gx.predict(forest, [row["smiles"] for row in others])]
    inside = [
        p.interval[0] <= float(row["efflux"]) <= p.interval[1]
        for p, row in zip(predictions, others, strict=True)
    ]
    assert 0.9 <= np.mean(inside) < 1  # nine in ten of those that the interval is made of
    near = gx.predict(forest, rows[0]["smiles"])["efflux"].nearness
    assert near.word == "training compound"


def test_a_class_of_a_forest_gets_the_set_of_classes_that_cannot_be_excluded(
    rows, features, table, tmp_path
):
    carried = [float(row["efflux"]) > 0.2 for row in rows]
    fitted = RandomForestClassifier(12, random_state=0).fit(features, carried[:LEARNED])
    model = gx.wrap(fitted, task="carried", classes=("no", "yes"), featurize=counts)
    path = tmp_path / "classes.csv"
    lines = [f"{r['smiles']},{'yes' if p else 'no'}" for r, p in zip(rows, carried, strict=True)]
    parts = ["train" if k < LEARNED else "test" for k in range(len(rows))]
    whole = [f"{line},{part}" for line, part in zip(lines, parts, strict=True)]
    path.write_text("\n".join(["smiles,carried,part", *whole]))
    prediction = gx.predict(gx.learned_from(model, path, part="part"), FLUORO)["carried"]
    assert set(prediction.classes) <= {"no", "yes"}
    with pytest.raises(ValueError, match="no row of"):
        gx.learned_from(model, path, part="carried")


def test_several_properties_and_a_goal(forest):
    log_p = gx.wrap(
        lambda s: Crippen.MolLogP(Chem.MolFromSmiles(s)), kind="regression", task="logP"
    )
    goal = "efflux < -2 (0 at 4), logP < 1 (0 at 9)"
    changes = gx.counterfactuals([forest, log_p], FLUORO, goal, **SEARCH)
    scores = [change.score.overall for change in changes]
    assert scores == sorted(scores, reverse=True)
    assert scores
    for change in changes:
        low, high = change.score.interval
        assert low <= change.score.overall <= high
        assert change.columns["desirability_low"] == low
        assert {"efflux_change_low", "efflux_change_high"} <= change.columns.keys()


def test_a_function_of_a_smiles_is_explained_like_any_model():
    """exmol's own example asks for the sign of the charge-like logP of propanol."""

    def is_fat(smiles):
        return 1 / (1 + np.exp(-Crippen.MolLogP(Chem.MolFromSmiles(smiles))))

    model = gx.wrap(is_fat, kind="binary", task="fat", classes=("no", "yes"))
    prediction = gx.predict(model, "CCCO")["fat"]
    assert prediction.probabilities["yes"] == pytest.approx(is_fat("CCCO"), abs=1e-5)
    found = gx.counterfactuals(model, "CCCO", "no", **(SEARCH | {"predictions": 40}))
    assert found[0].prediction.label == "no"
    several = gx.wrap(
        lambda s: [len(s), s.count("C")],
        [gx.Task("length", "regression"), gx.Task("carbons", "regression")],
    )
    assert gx.predict(several, "CCCO")["carbons"].value == 3
    with pytest.raises(ValueError, match="say what the outputs are"):
        gx.wrap(is_fat)


def test_a_model_of_a_python_file_is_loaded_by_its_name(tmp_path):
    path = tmp_path / "length_of_smiles.py"
    path.write_text(
        "import graphxai as gx\n\ndef length(smiles):\n    return len(smiles)\n\n"
        "model = gx.wrap(length, kind='regression', task='length')\n"
    )
    assert gx.predict(f"{path}:model", "CCCO")["length"].value == 4
    assert OfferedModels([f"{path}:model"]).panel.properties[0].name == "length"
    with pytest.raises(ValueError, match="has no model 'length'"):
        gx.load(f"{path}:length")
    with pytest.raises(ValueError, match="no file"):
        gx.load(f"{tmp_path}/other.py:model")


# -- classes of estimators and functions -----------------------------------------------------------

SMILES = ["CCO", "CCN", "CCCCC", "c1ccccc1", "CC(=O)O", "CCCl", "CCS", "CCOC", "CC#N"]
BITS = np.stack([counts(Chem.MolFromSmiles(smiles)) for smiles in SMILES])
THREE = np.array(["low", "mid", "high"] * 3)


@pytest.mark.parametrize("as_task", [False, True])
def test_each_class_keeps_its_probability_in_whatever_order_it_is_named(as_task):
    labels = np.where(np.arange(9) < 4, "inactive", "active")
    fitted = RandomForestClassifier(9, random_state=0).fit(BITS, labels)
    expected = dict(zip(fitted.classes_, fitted.predict_proba(BITS[:1])[0], strict=True))
    for names in (("inactive", "active"), ("active", "inactive")):
        options = {"tasks": gx.Task("t", "binary", names)} if as_task else {"classes": names}
        model = gx.wrap(fitted, featurize=counts, **options)
        (prediction,) = gx.predict(model, "CCO").values()
        assert prediction.probabilities == pytest.approx(expected, abs=1e-5)
    renamed = gx.predict(gx.wrap(fitted, featurize=counts, classes=("yes", "no")), "CCO")["output"]
    assert renamed.probabilities["yes"] == pytest.approx(expected["active"], abs=1e-5)
    with pytest.raises(ValueError, match="'inactive' cannot be the name of another"):
        gx.wrap(fitted, featurize=counts, classes=("inactive", "unknown"))
    with pytest.raises(ValueError, match="the estimator predicts classes"):
        gx.wrap(fitted, gx.Task("t", "regression"), featurize=counts)


@pytest.mark.parametrize("labels", [THREE, THREE == "mid", np.arange(9) % 3])
@pytest.mark.parametrize("kind", [RidgeClassifier, LinearSVC, SVC])
def test_a_classifier_without_probabilities_is_explained_by_its_scores(kind, labels):
    fitted = kind().fit(BITS, labels)
    model = gx.wrap(fitted, featurize=counts, task="t")
    for smiles, bits in zip(SMILES, BITS, strict=True):
        prediction = gx.predict(model, smiles)["t"]
        scores = np.atleast_1d(fitted.decision_function([bits])[0])
        logits = np.append(0.0, scores) if len(scores) == 1 else scores
        shares = np.exp(logits) / np.exp(logits).sum()
        assert list(prediction.probabilities) == list(map(str, fitted.classes_))
        assert [*prediction.probabilities.values()] == pytest.approx(shares, abs=1e-5)


def test_a_classifier_without_a_score_for_each_class_is_refused():
    class Labels(BaseEstimator):
        def fit(self, rows):
            return self

        def predict(self, rows):
            return [len(row) > 2 for row in rows]

    of_pairs = SVC(decision_function_shape="ovo").fit(BITS, THREE)  # three pairs, three classes
    by_vote = VotingClassifier([("ridge", RidgeClassifier())]).fit(BITS, THREE)
    for estimator in (of_pairs, by_vote, Labels()):
        with pytest.raises(ValueError, match="CalibratedClassifierCV"):
            gx.wrap(estimator, featurize=counts)
    both = RandomForestClassifier(2).fit(BITS, np.stack([THREE, THREE], 1))
    with pytest.raises(ValueError, match="wrap an estimator for each"):
        gx.wrap(both, featurize=counts)


def length(smiles):
    return len(smiles)


@pytest.mark.parametrize("featurize", [None, Chem.MolToSmiles])
def test_a_function_of_a_smiles_goes_to_other_processes(featurize):
    model = gx.wrap(length, kind="regression", task="length", featurize=featurize)
    for sent in (rebuilt(as_bytes(model)), deepcopy(model)):
        assert gx.predict(sent, "CCCO")["length"].value == 4


def test_a_function_is_explained_without_a_word_about_what_graphxai_added(recwarn):
    model = gx.wrap(length, kind="regression")
    for smiles in ("CC", "C", "C1CC1"):  # with as many atoms as directed bonds, or one atom
        gx.explain(model, smiles)
    assert not [str(w.message) for w in recwarn if "uncertain" in str(w.message)]


def test_a_function_must_return_probabilities_for_classes():
    for given in (lambda s: 30.0, lambda s: [-0.5, 1.5]):
        with pytest.raises(ValueError, match="probabilities from 0 to 1, not"):
            gx.wrap(given, kind="binary")
    tasks = [gx.Task("mass", "regression"), gx.Task("fat", "binary", ("no", "yes"))]
    both = gx.predict(gx.wrap(lambda s: [46.0, 0.25], tasks), "CCO")
    assert both["mass"].value == 46
    assert both["fat"].probabilities["yes"] == pytest.approx(0.25)
