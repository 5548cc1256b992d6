"""The bundled models that were trained on tables know their targets and come with their data."""

from functools import cache

import pytest

import graphxai as gx
from graphxai.contract.checkpoint_files import PROCESS, stored_format
from graphxai.contract.target import Target
from graphxai.datasets.training_set import training_set_of
from graphxai.explainers.learned import FittedExplainer
from graphxai.explainers.registry import methods_for
from graphxai.models.graphormer import load_checkpoint, locate, pretrained_names

NAMES = [name for name in pretrained_names() if (locate(name) / "scores.json").is_file()]
PROCESSES = [name for name in NAMES if stored_format(locate(name)) == PROCESS]
WITH_CLASSES = [
    name
    for name in sorted({*NAMES} - {*PROCESSES})
    if any(task.classes for task in load_checkpoint(locate(name)).config.tasks)
]
OF_MOLECULENET = ("lipophilicity", "tox21", "hiv")
OESTRADIOL = "C[C@]12CC[C@H]3[C@@H](CCc4cc(O)ccc34)[C@@H]1CC[C@@H]2O"
CAFFEINE = "Cn1cnc2c1c(=O)n(C)c(=O)n2C"
DIAZEPAM = "CN1C(=O)CN=C(c2ccccc2)c2cc(Cl)ccc12"
GLUCOSE = "OCC1OC(O)C(O)C(O)C1O"
IBUPROFEN = "CC(C)Cc1ccc(cc1)C(C)C(=O)O"
TERFENADINE = "CC(C)(C)c1ccc(cc1)C(O)CCCN1CCC(CC1)C(O)(c1ccccc1)c1ccccc1"


@cache
def loaded(name):
    return gx.load(name)


@pytest.mark.parametrize("name", NAMES)
def test_a_model_is_small_and_comes_with_card_scores_and_training_set(name):
    folder, model = locate(name), loaded(name)
    assert sum(path.stat().st_size for path in folder.iterdir()) < 8_000_000
    card = (folder / "README.md").read_text(encoding="utf-8")
    source = "Data: MoleculeNet" if name in OF_MOLECULENET else "Data: "
    assert all(text in card for text in (source, "**Split.**", "**Test scores.**", "90 %"))
    scores = model.origin.metadata["scores"]
    assert set(scores) == {task.name for task in model.config.tasks}
    assert all(
        {"graphormer", "forest"} <= set(task_scores["scores"]) for task_scores in scores.values()
    )
    authors = "authors' split" in card
    assert model.origin.metadata["split"]["kind"] == ("column" if authors else "scaffold")
    assert training_set_of(model) is not None


@pytest.mark.parametrize("name", NAMES)
def test_an_explanation_adds_up_to_the_prediction(name):
    e = gx.explain(loaded(name), CAFFEINE)
    assert abs(e.ledger.unexplained) < 1e-4
    assert len(e.relevance) == 14


@pytest.mark.parametrize("name", ["bace", "mnist-superpixels", *WITH_CLASSES])
def test_a_model_with_classes_comes_with_a_learned_explainer(name):
    fitted = FittedExplainer.load(locate(name))
    assert fitted.tasks == tuple(t.name for t in loaded(name).config.tasks if t.classes)
    scores = fitted.card["held_out"]
    assert scores["auac of learned"] > scores["auac of lrp_path"]


@pytest.mark.parametrize("name", WITH_CLASSES)
def test_best_means_it_for_every_task(name):
    model = loaded(name)
    of_classes = [task.name for task in model.config.tasks if task.classes]
    for task in (of_classes[0], of_classes[-1]):
        e, start = (
            gx.explain(model, CAFFEINE, m, target=Target(task=task)) for m in ("best", "lrp_path")
        )
        assert e.method == "learned"
        assert sorted(e.relevance) == pytest.approx(sorted(start.relevance), abs=1e-5)


def test_a_regression_has_none():
    assert "learned" not in methods_for(loaded("solubility"))


def value(name, smiles):
    prediction = next(iter(gx.predict(loaded(name), [smiles])[0].values()))
    return (
        prediction.value
        if prediction.value is not None
        else list(prediction.probabilities.values())[1]
    )


@pytest.mark.parametrize(
    ("name", "lower", "higher"),
    [
        ("solubility", "CCCCCCCCCC", "CCO"),
        ("solubility", "c1ccc2cc3ccccc3cc2c1", "OCC(O)CO"),
        ("solubility", TERFENADINE, CAFFEINE),
        ("solubility", IBUPROFEN, GLUCOSE),
        ("lipophilicity", "OCC1OC(O)C(O)C(O)C1O", "Clc1ccc(cc1)C(c1ccc(Cl)cc1)N1CCCCC1"),
        ("blood-brain-barrier", "NCC(O)C(O)C(O)C(O)C(=O)O", DIAZEPAM),
        (
            "hiv",
            "CC(=O)Oc1ccccc1C(=O)O",
            "Cc1cn([C@H]2C[C@H](N=[N+]=[N-])[C@@H](CO)O2)c(=O)[nH]c1=O",
        ),
        ("hiv", CAFFEINE, "Cc1ccnc2c1NC(=O)c1cccnc1N2C1CC1"),
    ],
)
def test_a_model_knows_what_any_chemist_knows(name, lower, higher):
    assert value(name, lower) < value(name, higher)


def test_glucose_stays_out_of_the_brain_and_diazepam_enters_it():
    sugar, diazepam = gx.predict(loaded("blood-brain-barrier"), [GLUCOSE, DIAZEPAM])
    assert sugar["blood-brain barrier"].label == "non-penetrant"
    assert diazepam["blood-brain barrier"].label == "penetrant"
    assert sugar["log BB"].value < diazepam["log BB"].value


@pytest.mark.parametrize(
    ("assay", "active"),
    [
        ("NR-ER", OESTRADIOL),
        ("NR-ER", "CC(C)(c1ccc(O)cc1)c1ccc(O)cc1"),  # bisphenol A
        ("NR-AR", "C[C@]12CC[C@H]3[C@@H](CCC4=CC(=O)CC[C@]34C)[C@@H]1CC[C@@H]2O"),  # testosterone
        ("NR-AhR", "O=c1cc(-c2ccccc2)oc2ccc3ccccc3c12"),  # beta-naphthoflavone
    ],
)
def test_tox21_knows_the_classic_ligands_of_a_receptor(assay, active):
    agonist, glycerol = gx.predict(loaded("tox21"), [active, "OCC(O)CO"])
    assert len(agonist) == 12
    assert agonist[assay].label == "active"
    assert all(prediction.label == "inactive" for prediction in glycerol.values())
