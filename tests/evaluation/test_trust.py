"""Signs of trust agree with formulas written out here, and warn of compounds far from BACE."""

import csv
import pickle
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from rdkit import Chem
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv, global_mean_pool

import graphxai as gx
from graphxai.contract.inputs import prepare_for
from graphxai.contract.target import Target
from graphxai.contract.tasks import Task
from graphxai.datasets.fingerprints import ecfp4_bits
from graphxai.datasets.mnist import load_mnist
from graphxai.datasets.molecules import molecule_graph, molecule_to_data
from graphxai.datasets.samples import digit_paths
from graphxai.datasets.superpixels import image_to_data
from graphxai.datasets.training_set import Nearness, TrainingSet, training_set_of
from graphxai.evaluation.statistics import relative_change
from graphxai.evaluation.trust import other_forms
from graphxai.evaluation.trust.errors import confidence_of, distance_of
from graphxai.evaluation.trust.other_forms import WRITINGS, another_form, likely_tautomers
from graphxai.evaluation.trust.signs import (
    Sign,
    residual_sign,
    rewriting_sign,
    score_sign,
)
from graphxai.evaluation.trust.trust import COLOURS, STYLE, Trust, explained_with_trust
from graphxai.explainers import get_explainer
from graphxai.explanation.prediction import Prediction
from graphxai.models.graphormer import load_checkpoint, save_checkpoint, set_standardisation
from graphxai.tables.app.page import STYLE as PAGE_STYLE
from graphxai.tables.report.build import page_parts
from toy import random_graphormer

FAR = {
    "an alkane": "CCCCCCCCCCCC",
    "a peptide": "CC(C)CC(C(=O)O)NC(=O)C(Cc1ccccc1)NC(=O)CNC(=O)CNC(=O)C(N)Cc1ccc(O)cc1",
    "ferrocene": "[CH-]1C=CC=C1.[CH-]1C=CC=C1.[Fe+2]",
}
VERUBECESTAT = "C[C@]1(CS(=O)(=O)N(C(=N1)N)C)c1cc(NC(=O)c2ccc(F)cn2)ccc1F"
CLASS = Prediction("activity", "active", {"inactive": 0.2, "active": 0.8})
VALUE = Prediction("pIC50", value=6.0)


def with_errors(**of_activity):
    metadata = {"coverage": {"activity": of_activity}}
    return SimpleNamespace(origin=SimpleNamespace(metadata=metadata))


@pytest.fixture(scope="module")
def bace():
    return gx.load("bace")


@pytest.fixture(scope="module")
def training(bace):
    return training_set_of(bace)


@pytest.mark.parametrize("name", FAR)
def test_compounds_far_from_the_training_set_are_not_relied_on(bace, name):
    """By the errors far from the training set; an element that it lacks always gives a warning."""
    trust = gx.trust(bace, FAR[name])
    assert trust.level == trust["training set"].level == "warning"
    assert trust.sentence.startswith("Do not rely on this prediction")


def test_an_element_that_was_never_trained_on_is_named(bace):
    assert "no training compound contains Fe" in gx.trust(bace, FAR["ferrocene"]).sentence


def test_a_training_compound_is_called_one_and_not_good(bace, training):
    for position in (0, 400, 800):
        trust = gx.trust(bace, training.smiles[position], target="pIC50")
        assert trust.level == trust["training set"].level == "known"
        assert trust.sentence.startswith("A training compound: ")
        assert trust["training set"].value == 1.0
        assert trust.nearest == training.smiles[position]


def test_training_compounds_are_those_of_the_split(bace, data_folder, training):
    with (data_folder / "bace/raw/bace.csv").open() as file:
        smiles = [row["mol"] for row in csv.DictReader(file)]
    chosen = [smiles[k] for k in bace.origin.metadata["split"]["train"]]
    parents = [
        Chem.CanonSmiles(molecule_graph(s, standardise="parent").smiles) for s in chosen[:200]
    ]
    first = list(dict.fromkeys(parents))
    assert list(training.smiles[: len(first)]) == first
    assert len(chosen) - 20 < len(training.smiles) <= len(chosen)
    for name, part in (("train", "training"), ("valid", "validation"), ("test", "test")):
        for k in bace.origin.metadata["split"][name][:3]:
            parent = molecule_graph(smiles[k], standardise="parent").smiles
            assert training.part(Chem.MolFromSmiles(parent)) == part
    assert training.part(Chem.MolFromSmiles("CCO")) == ""


def test_every_result_says_how_near_the_molecule_is(bace, training):
    molecules = {"CCO": "far", training.smiles[5]: "training compound"}
    explanations = gx.explain(bace, list(molecules))
    predictions = gx.predict(bace, list(molecules))
    for word, explanation, prediction in zip(
        molecules.values(), explanations, predictions, strict=True
    ):
        near = training.nearness(explanation.molecule)
        assert near.word == word
        assert explanation.nearness == explanation.predictions[1].nearness == near
        assert prediction["pIC50"].nearness == near
        assert explanation.to_dict()["training_set"]["word"] == word
        assert re.search(f"<Training set>.*\n{word}\n", explanation.to_sdf())
    assert "far from the training set (nearest similarity 0.1" in repr(explanations[0])
    assert "far from the training set (nearest similarity 0.1" in repr(predictions[0]["pIC50"])
    assert "training set" not in repr(explanations[1])


def test_without_training_compounds_nearness_is_unknown_and_of_no_molecule_it_is_none(bace):
    toy = random_graphormer()
    assert gx.explain(toy, "CCO").nearness.word == "unknown"
    assert gx.predict(toy, "CCO")["activity"].nearness.similarity is None
    data = molecule_to_data("CCO")
    del data.smiles
    assert gx.explain(bace, data).nearness is None
    assert gx.explain("mnist-superpixels", digit_paths()[3]).nearness is None


def test_similarity_is_the_largest_tanimoto_coefficient(training):
    mol = Chem.MolFromSmiles("CN1C(=N)N[C@](C)(CS1(=O)=O)c1cc(NC(=O)c2ccc(F)cn2)ccc1F")
    bits = np.array([list(print_) for print_ in training.fingerprints], dtype=int)  # (n, 2048)
    molecule_bits = np.array(list(ecfp4_bits(mol)), dtype=int)
    both = bits @ molecule_bits
    tanimoto = both / (bits.sum(1) + molecule_bits.sum() - both)
    near = training.nearness(mol)
    assert near.similarity == pytest.approx(tanimoto.max())
    assert near.nearest == training.smiles[int(tanimoto.argmax())]
    assert near.word == "far"


def test_the_training_set_is_searched_when_nearness_is_read(bace, monkeypatch):
    searched = []
    search = TrainingSet.nearness
    monkeypatch.setattr(
        TrainingSet,
        "nearness",
        lambda self, mol, **options: searched.append(mol) or search(self, mol, **options),
    )
    explained = gx.explain(bace, ["CCO", "c1ccccc1"])
    assert not searched
    assert [prediction.nearness.word for prediction in explained[0].predictions] == ["far", "far"]
    assert len(searched) == 1  # for all tasks, once
    again = pickle.loads(pickle.dumps(explained[1]))
    assert len(searched) == 2
    assert again.predictions == explained[1].predictions


@pytest.mark.parametrize(
    ("levels", "expected"),
    [
        (["good", "good"], "good"),
        (["good", "caution"], "caution"),
        (["good", "unknown"], "unknown"),
        (["known", "good"], "known"),
        (["caution", "known", "unknown"], "known"),
        (["caution", "unknown"], "caution"),
        (["unknown", "warning", "good"], "warning"),
    ],
)
def test_the_worst_sign_decides(levels, expected):
    signs = [Sign(f"sign {k}", level, None, f"words {k}") for k, level in enumerate(levels)]
    trust = Trust(tuple(signs))
    assert trust.level == expected
    assert trust.warns == (expected == "warning")
    for sign in signs:
        assert (sign.text in trust.sentence) == (sign.level == expected)


def test_the_form_that_changes_relevance_most_is_judged(bace):
    """One form that changes nothing does not excuse another one."""
    explanation = gx.explain(bace, "CCO", "lrp")
    relevance = explanation.relevance
    same, other = relevance.copy(), relevance + np.array([0.0, 0.0, 1.0]) * np.abs(relevance).sum()
    for forms in ([same, other], [other, same], [other]):
        sign = rewriting_sign(explanation, forms)
        assert (sign.level, sign.value) == (
            "warning",
            pytest.approx(relative_change(relevance, other)),
        )
    assert rewriting_sign(explanation, [same, same]).level == "good"


def test_a_ledger_that_does_not_close_is_a_warning(bace):
    smiles = "CC(=O)Oc1ccccc1C(=O)O"
    assert residual_sign(gx.explain(bace, smiles, "lrp").ledger).level == "good"
    ledger = gx.explain(bace, smiles, "gradient_input").ledger
    shares = (ledger.nodes, ledger.graph_token, ledger.biases, *ledger.structure.values())
    terms = sum(abs(share) for share in shares)
    sign = residual_sign(ledger)
    assert sign.value == pytest.approx(abs(ledger.output - ledger.total) / terms)
    assert sign.level == "warning"


def test_scores_that_depend_on_the_numbering_are_detected(bace):
    smiles = "CC(=O)Oc1ccccc1C(=O)O"
    by_structure, by_number = (
        gx.trust(bace, gx.explain(bace, smiles, method))["equivalent inputs"]
        for method in ("lrp", "random")
    )
    assert by_structure.level == "good"
    assert by_structure.value < 1e-5
    assert by_number.level == "warning"


@pytest.mark.parametrize(
    ("metadata", "prediction", "value", "level"),
    [
        ({}, CLASS, None, "unknown"),
        (
            {"scores": {"activity": {"scores": {"graphormer": {"ROC-AUC": [0.9]}}}}},
            CLASS,
            0.9,
            "good",
        ),
        (
            {"scores": {"activity": {"scores": {"graphormer": {"ROC-AUC": [0.9, 0.75, 1.0]}}}}},
            CLASS,
            0.9,
            "caution",
        ),
        (
            {"scores": {"pIC50": {"scores": {"graphormer": {"R2": [0.75, None, None]}}}}},
            VALUE,
            0.75,
            "good",
        ),
        (
            {"scores": {"activity": {"scores": {"graphormer": {"ROC-AUC": [0.7, 0.6, 0.8]}}}}},
            CLASS,
            0.7,
            "warning",
        ),
        (
            {"scores": {"pIC50": {"scores": {"graphormer": {"R2": [0.7, 0.5, 0.8]}}}}},
            VALUE,
            0.7,
            "caution",
        ),
        ({"scores": {"pIC50": {"scores": {}}}}, VALUE, None, "unknown"),
    ],
)
def test_the_score_is_judged_by_the_lower_end_of_its_interval(metadata, prediction, value, level):
    sign = score_sign(metadata, prediction)
    assert sign.level == level
    assert sign.value == (None if value is None else pytest.approx(value))


def test_without_training_compounds_nothing_is_called_good(tmp_path):
    folder = save_checkpoint(random_graphormer(), tmp_path / "model")
    model = load_checkpoint(folder)
    trust = gx.trust(model, "CCOc1ccccc1")
    assert trust["training set"].level == trust["test score"].level == "unknown"
    assert trust.level != "good"
    (folder / "training.csv").write_text("row,smiles\n1,CCOc1ccccc1\n2,not a molecule\n")
    assert gx.trust(model, "c1ccccc1OCC")["training set"].value == 1.0


class MessagePassing(nn.Module):
    """A model without attention."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = GCNConv(9, 8), nn.Linear(8, 1)

    def forward(self, data):
        nodes = self.conv(data.x, data.edge_index).relu()
        return self.head(global_mean_pool(nodes, data.batch))


def read(smiles: str) -> Data:
    data = molecule_to_data(smiles)
    return Data(x=data.x.float(), edge_index=data.edge_index)


def test_wrapped_models_have_signs_too():
    torch.manual_seed(0)
    model = gx.wrap(MessagePassing().eval(), kind="binary", featurize=read)
    trust = gx.trust(model, "CC(=O)Oc1ccccc1C(=O)O")
    assert trust["equivalent inputs"].level == "good"
    assert trust["training set"].level == "unknown"


def test_an_explanation_of_another_model_or_target_is_refused(bace):
    explanation = gx.explain(bace, "CCO", target="pIC50")
    with pytest.raises(ValueError, match="another model"):
        gx.trust(random_graphormer(), explanation)
    with pytest.raises(ValueError, match="pIC50"):
        gx.trust(bace, explanation, target="active")
    assert gx.trust(bace, explanation, target="pIC50")["test score"].value > 0.7


def test_an_explanation_is_judged_for_its_own_target(bace):
    explanation = gx.explain(bace, "CCO", target="pIC50")
    assert gx.trust(bace, explanation) == gx.trust(bace, explanation, target="pIC50")


@pytest.mark.parametrize("method", ["lrp", "random"])
def test_explaining_beside_other_forms_changes_nothing(bace, method):
    """A molecule has the relevance and the signs that it has if it is explained first, alone."""
    item, explainer = prepare_for(bace, VERUBECESTAT), get_explainer(method)
    torch.manual_seed(0)
    beside, trusted = explained_with_trust(bace, item, explainer)
    torch.manual_seed(0)
    alone = gx.explain(bace, VERUBECESTAT, method)
    assert np.allclose(beside.relevance, alone.relevance, atol=1e-5)
    assert beside.wanted == alone.wanted
    expected = gx.trust(bace, alone)
    assert [sign.level for sign in trusted.signs] == [sign.level for sign in expected.signs]


@pytest.mark.parametrize(
    "target",
    [
        None,
        "first: no",
        Target("yes", "second"),
        Target("b", "several"),
        Target(("b", "c"), "several"),
        ("logS", "pIC50"),
        (("several", "c"), "logS"),
        (("first", "no"), ("second", "yes")),
    ],
)
def test_an_explanation_holds_the_target_that_explains_it_again(target):
    tasks = (
        Task("first", "binary", ("no", "yes")),
        Task("second", "binary", ("no", "yes")),
        Task("several", "multiclass", ("a", "b", "c")),
        Task("pIC50", "regression", offset=6.0, scale=1.5, unit="log"),
        Task("logS", "regression", offset=-3.0, scale=2.0, unit="log"),
    )
    model = random_graphormer(num_layers=1, tasks=tasks)
    explanation = gx.explain(model, "CCO", target=target)
    again = gx.explain(model, "CCO", target=explanation.wanted)
    np.testing.assert_array_equal(again.relevance, explanation.relevance)
    assert (again.target, again.prediction.task) == (
        explanation.target,
        explanation.prediction.task,
    )


@pytest.mark.parametrize("smiles", ["C", "[2H]O[2H]", "[Na+].[Cl-]", "[H][H]"])
def test_the_smallest_molecules_have_signs_too(bace, smiles):
    trust = gx.trust(bace, smiles)
    assert trust.level in ("caution", "warning")
    assert all(sign.value is None or np.isfinite(sign.value) for sign in trust.signs)


def test_signs_do_not_depend_on_the_numbering(bace):
    mol = Chem.MolFromSmiles("CC(=O)Oc1ccccc1C(=O)O")
    other = Chem.RenumberAtoms(mol, list(range(mol.GetNumAtoms()))[::-1])
    first, second = gx.trust(bace, mol), gx.trust(bace, other)
    for name in ("training set", "confidence"):
        assert first[name].value == pytest.approx(second[name].value, abs=1e-6)
    assert first.sentence == second.sentence


@pytest.fixture(scope="module")
def digits():
    return gx.load("mnist-superpixels")


@pytest.fixture
def training_images(mnist_folder, monkeypatch):
    monkeypatch.setenv("GRAPHXAI_DATA", str(mnist_folder))


@pytest.fixture
def no_training_images(tmp_path, monkeypatch):
    monkeypatch.setenv("GRAPHXAI_DATA", str(tmp_path))


def test_a_digit_like_the_training_digits_gives_no_warning(digits, training_images):
    trust = gx.trust(digits, digit_paths()[3])
    assert {sign.level for sign in trust.signs} == {"good"} == {trust.model.level}
    assert trust.sentence.startswith("Nothing measured speaks against it")


def test_a_picture_of_noise_gives_a_warning(digits, training_images):
    trust = gx.trust(digits, np.random.default_rng(0).random((28, 28)))
    assert trust["training set"].level == "warning"
    assert trust.warns


def test_without_the_training_pictures_the_panel_says_so(digits, no_training_images):
    trust = gx.trust(digits, digit_paths()[3])
    assert trust["training set"].value is None
    assert trust.sentence == (
        "Not everything can be checked: its distance from the training pictures is unknown: they"
        " are not available."
    )


def test_similarity_is_the_largest_cosine_similarity(digits, training_images, mnist_folder):
    images, _ = load_mnist(mnist_folder, "train")
    image = load_mnist(mnist_folder, "test", 1)[0][0]
    count = digits.origin.metadata["train_images"]
    rows, pixels = images[:count].reshape(count, -1).astype(float), image.ravel().astype(float)
    cosines = rows @ pixels / np.linalg.norm(rows, axis=1) / np.linalg.norm(pixels)
    assert gx.trust(digits, image)["training set"].value == pytest.approx(cosines.max(), abs=1e-5)
    assert gx.trust(digits, images[7])["training set"].value == pytest.approx(1, abs=1e-5)


def test_files_other_than_the_training_files_are_not_compared_with(digits, tmp_path, monkeypatch):
    name = next(n for n in digits.origin.metadata["files"] if "train" in n and "images" in n)
    (tmp_path / name).write_bytes(b"other pictures")
    monkeypatch.setenv("GRAPHXAI_DATA", str(tmp_path))
    assert gx.trust(digits, digit_paths()[3])["training set"].level == "unknown"


def test_a_digits_score_is_its_accuracy_with_the_interval(digits, no_training_images):
    sign = gx.trust(digits, digit_paths()[0])["test score"]
    assert sign.value == digits.origin.metadata["test"]["accuracy"]
    assert "accuracy 0.98" in sign.figures


def test_a_molecule_is_written_from_other_atoms_on_than_its_first(bace):
    item = prepare_for(bace, "CCOC(=O)NCCO")
    written = [another_form(item, draw) for draw in range(WRITINGS)]
    starts = {order[0] for _, order in written}
    assert len(starts | {0}) == WRITINGS + 1
    for text, order in written:
        mol = Chem.MolFromSmiles(text)
        assert Chem.MolToSmiles(mol) == Chem.CanonSmiles(item.smiles)
        elements = [atom.GetSymbol() for atom in Chem.MolFromSmiles(item.smiles).GetAtoms()]
        assert [atom.GetSymbol() for atom in mol.GetAtoms()] == [elements[k] for k in order]


def test_renumbered_superpixels_are_the_same_graph(digits):
    item = prepare_for(digits, digit_paths()[3])
    data, order = another_form(item, 0)
    assert order != sorted(order)
    edges = {(order[i], order[j]) for i, j in data.edge_index.T.tolist()}
    assert edges == set(map(tuple, item.data.edge_index.T.tolist()))
    assert torch.equal(data.x, item.data.x[order])
    assert torch.equal(data.pos, item.data.pos[order])


def test_scores_that_depend_on_the_numbering_of_superpixels_are_detected(digits):
    by_structure, by_number = (
        gx.trust(digits, gx.explain(digits, digit_paths()[5], method))["equivalent inputs"]
        for method in ("lrp", "random")
    )
    assert by_structure.value < 1e-5
    assert by_number.level == "warning"
    assert "superpixels are numbered" in by_number.text


@pytest.mark.parametrize(
    ("probability", "level", "words"),
    [
        (0.95, "good", "the model is sure of its class"),
        (0.8, "caution", "not sure that it is 3: also explain it against 8"),
        (0.6, "warning", "not sure"),
    ],
)
def test_an_unsure_prediction_is_explained_against_the_next_class(probability, level, words):
    shares = {"8": 0.9 * (1 - probability), "3": probability, "5": 0.1 * (1 - probability)}
    sign = confidence_of(with_errors(), Prediction("digit", "3", shares))
    assert sign.level == level
    assert sign.value == probability
    assert words in sign.text


def test_of_two_classes_an_even_prediction_is_a_warning_and_a_value_has_no_confidence(bace):
    levels = [
        confidence_of(with_errors(), Prediction("activity", "yes", {"no": 1 - p, "yes": p})).level
        for p in (0.51, 0.8, 0.99)
    ]
    assert levels == ["warning", "caution", "good"]
    with pytest.raises(KeyError):
        gx.trust(bace, "CCO", target="pIC50")["confidence"]


def test_how_sure_of_a_class_a_model_must_be_is_decided_by_its_own_errors():
    def sign(p, **errors):
        named = {name.replace("at_", "0.").replace("0.0", "0"): e for name, e in errors.items()}
        model = with_errors(errors_by_probability=named)
        return confidence_of(model, Prediction("activity", "yes", {"no": 1 - p, "yes": p}))

    usual = {"at_95": [0.02, 0.01, 400], "at_8": [0.15, 0.02, 300], "at_6": [0.4, 0.04, 100]}
    assert [sign(p, **usual).level for p in (0.97, 0.85, 0.65)] == ["good", "caution", "warning"]
    figures = sign(0.65, **usual).figures
    assert figures.startswith(
        "yes: 0.65, no: 0.35; of 100 unseen graphs predicted about as surely, 40% wrong"
    )
    assert figures.endswith("and surer ones 8%")  # of 700
    assert sign(0.97, **usual).figures.endswith("predicted about as surely, 2% wrong")
    # Probabilities between those measured belong to less sure ones, as do groups that are small.
    assert sign(0.92, **usual).value == 0.92
    assert "of 300" in sign(0.92, **usual).figures
    assert "of 110" in sign(0.75, **usual, at_7=[0.0, 0.0, 10]).figures
    assert sign(0.55, **usual).figures == figures.replace("0.65", "0.55").replace("0.35", "0.45")
    rarely = {"at_95": [0.01, 0.001, 9000], "at_8": [0.05, 0.005, 2000]}
    assert sign(0.85, **rarely).level == "good"  # worse, but hardly ever wrong
    never = {"at_95": [0.3, 0.02, 400], "at_8": [0.31, 0.02, 400]}
    assert sign(0.85, **never).level == sign(0.97, **never).level == "caution"
    noisy = {"at_95": [0.1, 0.06, 25], "at_8": [0.2, 0.08, 25]}
    assert sign(0.85, **noisy).level == "good"  # a difference within its error
    # A group that is no better than a surer one is trusted no more, whatever the error of both.
    uneven = {"at_95": [0.0, 0.0, 30], "at_9": [5 / 37, 0.06, 37], "at_8": [5 / 33, 0.06, 33]}
    assert [sign(p, **uneven).level for p in (0.97, 0.92, 0.85)] == ["good", "caution", "caution"]
    better = uneven | {"at_8": [0.08, 0.05, 33]}
    assert sign(0.85, **better).level == "good"
    unsure = {"at_6": [0.21, 0.02, 276], "at_0": [0.43, 0.06, 75]}
    assert sign(0.55, **unsure).level == "warning"
    assert sign(float("nan"), **unsure).level == "unknown"
    for odd in ({}, {"at_95": [0.1, 0.1, 5]}, {"at_8": "x"}, {"at_8": [None] * 3}):
        assert sign(0.85, **odd).level == "caution"  # limits of other models


def test_a_bundled_model_says_how_often_it_was_wrong_when_as_sure():
    model = gx.load("hiv")
    prediction = gx.predict(model, "C1CC2CC1C3C2C4CC3C5C4C6CC5C7C6CCC7")["HIV inhibition"]
    sign = confidence_of(model, prediction)
    assert "unseen molecules predicted about as surely" in sign.figures
    of_all = model.origin.metadata["coverage"]["HIV inhibition"]
    shares = [
        sum(share * n for share, _, n in groups.values()) / sum(n for *_, n in groups.values())
        for groups in (of_all["errors"], of_all["errors_by_probability"])
    ]
    assert shares[0] == pytest.approx(shares[1], abs=0.001)


@pytest.mark.parametrize(
    ("error", "level", "words"),
    [
        (0.01, "good", "its probabilities held"),
        (0.05, "caution", "did not hold"),
        (0.2, "warning", "did not hold"),
        (None, "good", "does well on test data"),
    ],
)
def test_probabilities_that_did_not_hold_count_against_the_model(error, level, words):
    test = {"accuracy": 0.98} | ({} if error is None else {"ece": error})
    sign = score_sign({"test": test}, CLASS)
    assert sign.level == level
    assert words in sign.text


def test_a_bad_model_is_said_once_and_condemns_no_molecule(tmp_path):
    folder = save_checkpoint(
        random_graphormer(),
        tmp_path / "model",
        metadata={"scores": {"activity": {"scores": {"graphormer": {"ROC-AUC": [0.5, 0.4, 0.6]}}}}},
    )
    (folder / "training.csv").write_text("smiles\nCCOc1ccccc1\nCCOc1ccccc1C\n")
    model = load_checkpoint(folder)
    trust = gx.trust(model, "CCOc1ccccc1", target="pIC50")
    assert trust.model.level == "unknown"
    trust = gx.trust(model, "CCOc1ccccc1CC")
    assert trust.model.level == "warning"
    assert trust.model not in trust.signs
    assert "does badly on test data" in str(trust)
    assert "test data" not in trust.sentence


def test_an_explanation_without_its_graph_needs_the_graph(digits):
    coarse = image_to_data(gx.explain(digits, digit_paths()[3]).image, segments=40)
    without_picture = coarse.clone()
    del without_picture.image, without_picture.segments
    for graph in (coarse, without_picture):
        with pytest.raises(ValueError, match="pass the graph itself"):
            gx.trust(digits, gx.explain(digits, graph))
        assert gx.trust(digits, graph)["equivalent inputs"].level == "good"


def test_the_panel_names_every_sign_and_escapes_its_words(bace):
    trust = gx.trust(bace, "CC(=O)Oc1ccccc1C(=O)O")
    for sign in trust.signs:
        assert f"{sign.name}:" in str(trust)
        assert sign.sentence in str(trust)
    assert str(trust).splitlines()[0] == trust.sentence
    attack = '<script>alert(1)</script>"&'
    hostile = Trust((Sign(attack, "good", 1.0, attack, attack),), nearest=attack)
    html = hostile._repr_html_()
    assert "<script" not in html
    assert html.count("&lt;script&gt;alert(1)&lt;/script&gt;&quot;&amp;") >= 4


def test_both_forms_of_a_pyridone_are_likely_and_an_enol_of_acetone_is_not():
    pyridone, pyridinol = "O=c1cccc[nH]1", "Oc1ccccn1"
    assert likely_tautomers(Chem.MolFromSmiles(pyridone)) == [pyridinol]
    assert likely_tautomers(Chem.MolFromSmiles(pyridinol)) == [pyridone]
    assert likely_tautomers(Chem.MolFromSmiles("CC(C)=O")) == []
    assert likely_tautomers(Chem.MolFromSmiles("C" * 101)) == []


def test_tautomers_are_enumerated_only_where_a_proton_is_mobile(monkeypatch):
    """Enumeration takes milliseconds, and most molecules have no such proton."""
    tried, enumerator = [], other_forms._enumerator()
    asked = SimpleNamespace(
        Enumerate=lambda mol: tried.append(Chem.MolToSmiles(mol)) or enumerator.Enumerate(mol),
        ScoreTautomer=enumerator.ScoreTautomer,
    )
    monkeypatch.setattr(other_forms, "_enumerator", lambda: asked)
    still = ["CC(=O)Nc1ccccc1", "Nc1ccccn1", "CC(C)=O", "CC(O)C(=O)OC", "CNC(=O)c1ccncc1", "CCO"]
    for smiles in still:
        assert likely_tautomers(Chem.MolFromSmiles(smiles)) == []
    assert not tried
    mobile = [
        *("Oc1ccncc1", "CC(=O)CC(C)=O", "CC1=NC(=O)CN1", "CC(C)=NO", "Oc1ccccc1N=NC"),
        *("O=c1oc2ccccc2c(O)c1C", "CC1=CC(=O)CCC1", "c1c[nH]cn1", "O=c1cccccc1O"),
    ]
    for smiles in mobile:
        likely_tautomers(Chem.MolFromSmiles(smiles))
    assert tried == [Chem.CanonSmiles(smiles) for smiles in mobile]


def test_an_amide_has_no_likely_imidic_acid_and_an_aminopyridine_no_likely_imine():
    for rare_beside in ("CC(=O)Nc1ccccc1", "NC(=S)c1ccccc1", "Nc1ccccn1", "CC(=O)Nc1ccccn1"):
        assert likely_tautomers(Chem.MolFromSmiles(rare_beside)) == []
    assert likely_tautomers(Chem.MolFromSmiles("CC(O)=Nc1ccccc1")) == ["CC(=O)Nc1ccccc1"]
    assert likely_tautomers(Chem.MolFromSmiles("N=c1cccc[nH]1")) == ["Nc1ccccn1"]
    sulfapyridine = Chem.MolFromSmiles("Nc1ccc(cc1)S(=O)(=O)Nc1ccccn1")
    (imide,) = likely_tautomers(sulfapyridine)
    assert imide == "Nc1ccc(S(=O)(=O)N=c2cccc[nH]2)cc1"


def test_a_tautomer_of_another_class_is_named_and_does_not_change_the_verdict(bace):
    """The class of every likely tautomer is predicted on its own, and compared with the sign."""
    drawn = [VERUBECESTAT, "Oc1ccccn1", "CC(=O)Nc1ccc(O)cc1", "Nc1nc2ccccc2[nH]1"]
    other = {"inactive": "active", "active": "inactive"}
    signs = set()
    for smiles in drawn:
        trust = gx.trust(bace, smiles, target="active")
        label = gx.predict(bace, smiles)["BACE-1 inhibition"].label
        forms = likely_tautomers(Chem.MolFromSmiles(smiles))
        labels = {gx.predict(bace, form)["BACE-1 inhibition"].label for form in forms}
        differs = other[label] in labels
        assert (trust.tautomers is None) == (not forms)
        assert (trust.tautomers is not None and trust.tautomers.level == "caution") == differs
        assert ("likely tautomer gets another class" in trust.sentence) == differs
        assert trust.level == Trust(trust.signs).level
        signs.add(differs)
    assert False in signs
    set_standardisation(bace, "tautomers")
    try:
        assert gx.trust(bace, VERUBECESTAT, target="active").tautomers is None
    finally:
        set_standardisation(bace, "parent")


def nearness_sign(word, errors, unit="class"):
    label = "yes" if unit == "class" else None
    prediction = Prediction("activity", label, {}, unit=unit)
    return distance_of(with_errors(errors=errors), prediction, Nearness(word, 0.5, "C"))


def test_distance_counts_as_much_as_this_models_own_errors_say():
    """Whether far molecules were predicted worse than nearer ones is asked of the model itself."""
    wrong = {"near": [0.1, 0.03, 100], "edge": [0.12, 0.03, 100], "far": [0.11, 0.03, 100]}
    assert [nearness_sign(word, wrong).level for word in wrong] == ["good"] * 3
    assert "as well as nearer ones" in nearness_sign("far", wrong).text
    figures = nearness_sign("far", wrong).figures
    assert "of 100 such molecules, 11% wrong, and nearer ones 10%" in figures
    worse = wrong | {"far": [0.4, 0.05, 100]}
    assert nearness_sign("far", worse).level == "warning"  # 0.4 is more than 1.5 times 0.1
    little = {"near": [1.0, 0.02, 400], "far": [1.2, 0.03, 400]}
    sign = nearness_sign("far", little, unit="kJ/mol")
    assert sign.level == "caution"
    assert "off by 1.2 kJ/mol on average, and nearer ones by 1 kJ/mol" in sign.figures
    noisy = {"near": [1.0, 0.2, 400], "far": [1.2, 0.2, 400]}
    assert nearness_sign("far", noisy, "kJ/mol").level == "good"  # a difference within its error
    assert nearness_sign("far", {"far": [1.0, 0.1, 60]}).level == "good"  # nothing to compare
    assert nearness_sign("far", {"far": [1.0, 0.1, 5]}).level == "unknown"
    few = {"near": [0.1, 0.03, 100], "edge": [0.3, 0.05, 90], "far": [0.2, 0.2, 10]}
    sign = nearness_sign("far", few)  # the edge counts with what is far: 0.29 of 100
    assert sign.level == "warning"
    assert "of 100 such molecules, 29% wrong, and nearer ones 10%" in sign.figures
    assert nearness_sign("far", few | {"edge": wrong["edge"]}).level == "unknown"
    rare = {"near": [0.0, 0.0, 30], "edge": [0.05, 0.01, 400], "far": [0.12, 0.02, 400]}
    # None of 30 is hardly less than 5 %, and with 12 % wrong one may still rely on the others.
    assert [nearness_sign(word, rare).level for word in rare] == ["good", "good", "caution"]
    for odd in ({}, {"far": "x"}, {"far": [None] * 3}, {"far": [1]}, {"edge": 3}):
        levels = [nearness_sign(word, odd).level for word in ("near", "edge", "far")]
        assert levels == ["good", "unknown", "warning"]  # limits of other models


@pytest.mark.parametrize("colours", COLOURS.values(), ids=COLOURS)
def test_the_words_of_a_level_can_be_read_on_its_colour(colours):
    """The contrast is that of WCAG 2.2, which asks for 4.5."""

    def luminance(colour):
        parts = np.array([int(colour[k : k + 2], 16) for k in (1, 3, 5)]) / 255
        linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
        return linear @ [0.2126, 0.7152, 0.0722]

    text, ground, dark_text, dark_ground = map(luminance, colours)
    assert (ground + 0.05) / (text + 0.05) > 4.5
    assert (dark_text + 0.05) / (dark_ground + 0.05) > 4.5


def test_a_level_has_the_same_colours_on_a_card_in_the_app_and_in_a_report():
    report = "".join(page_parts({"limit": 1.0}, [], "title", "card"))
    for level, colours in COLOURS.items():
        text, ground, dark_text, dark_ground = colours
        assert f"--{level}: light-dark({ground}, {dark_ground});" in PAGE_STYLE
        assert f"--{level}: {ground}; --{level}-ink: {text};" in report
        assert f"--{level}: {dark_ground}; --{level}-ink: {dark_text};" in report
        assert f"color: {text}; background: {ground}" == STYLE[level]
