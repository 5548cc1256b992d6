"""The Python interface explains inputs of every kind, writes files, and refuses bad input."""

import copy
import json
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from rdkit import Chem
from torch_geometric.data import Batch, Data

import graphxai as gx
from graphxai.contract import batching
from graphxai.contract.batching import in_batches
from graphxai.contract.tasks import Task
from graphxai.datasets.molecules import molecule_to_data
from graphxai.datasets.samples import MOLECULES, digit_paths
from graphxai.explanation.comparison import side_by_side
from graphxai.explanation.explanation import about_output
from graphxai.models.graphormer import backward
from graphxai.wrapping.removal import outputs_of_parts
from toy import random_graphormer

ASPIRIN = "CC(=O)Oc1ccccc1C(=O)O"


@pytest.fixture(scope="module")
def model():
    return random_graphormer()


@pytest.fixture(scope="module")
def aspirin(model):
    return gx.explain(model, ASPIRIN)


def test_an_explanation_says_what_was_predicted_and_why(aspirin):
    assert len(aspirin) == 13
    assert aspirin.target == "active"
    assert aspirin.prediction.task == "activity"
    assert sum(aspirin.prediction.probabilities.values()) == pytest.approx(1)
    assert [p.task for p in aspirin.predictions] == ["activity", "pIC50"]
    ledger = aspirin.ledger
    assert ledger.total == ledger.nodes + ledger.graph_token + ledger.biases
    assert ledger.total + ledger.unexplained == pytest.approx(ledger.output, abs=1e-12)
    assert ledger.nodes == pytest.approx(float(aspirin.relevance.sum()), abs=1e-4)
    assert abs(ledger.unexplained) < 1e-4
    column = list(aspirin.feature_names).index("centrality")
    assert ledger.centrality == pytest.approx(float(aspirin.features[:, column].sum()), abs=1e-5)
    assert ledger.without_nodes + ledger.change == pytest.approx(ledger.output, abs=1e-12)
    assert set(ledger.to_dict()) == {
        "without_nodes",
        "change",
        "nodes",
        "nodes: centrality",
        "graph_token",
        "biases",
        "unexplained",
        "total",
        "output",
    }


def test_a_ledger_reads_as_a_sum_with_the_parts_of_the_rest_below_it():
    parts = {"edge": 0.25}, {"softmax": 0.7, "<b>": -0.2}
    ledger = gx.Ledger(1.0, 0.5, -0.25, 2.0, *parts, centrality=0.125, without_nodes=0.75)
    assert ledger.unexplained == pytest.approx(sum(ledger.remainders.values()))
    assert str(ledger).splitlines() == [
        "without nodes           +0.7500",
        "change                  +1.2500",
        "output                  +2.0000",
        "divided into shares:",
        "  nodes                 +1.0000",
        "    centrality          +0.1250",
        "  graph token           +0.5000",
        "  biases                -0.2500",
        "  structure: edge       +0.2500",
        "  unexplained           +0.5000",
        "    softmax             +0.7000",
        "    <b>                 -0.2000",
    ]
    tiny = gx.Ledger(-1e-6, 0.0, -0.0, 1.0)
    assert "-0.0000" not in str(tiny) + tiny._repr_html_()
    text = ledger.to_dict()
    assert list(text)[7:11] == [
        "unexplained",
        "unexplained: softmax",
        "unexplained: <b>",
        "total",
    ]
    rows = ElementTree.fromstring(ledger._repr_html_()).findall("tr")
    lines = [line.strip().rsplit("  ", 1) for line in str(ledger).splitlines()]
    assert [row[0].text for row in rows] == [line[0].strip() for line in lines]
    assert [row[1].text for row in rows if row[1].text] == [line[1] for line in lines if line[1:]]
    depths = [(len(line) - len(line.lstrip())) // 2 for line in str(ledger).splitlines()]
    styles = [f"text-align: left; padding-left: {0.5 + 1.5 * depth}em" for depth in depths]
    assert [row[0].get("style") for row in rows] == styles


def test_a_ledger_adds_up_every_share_that_there_is():
    others = {"edge_attr": 0.25, "cut off": -0.5}
    ledger = gx.Ledger(1.0, 0.5, -0.25, 2.0, {"edge": 4.0}, average_node=8.0, others=others)
    assert ledger.total == 1.0 + 0.5 - 0.25 + 4.0 + 8.0 + 0.25 - 0.5
    assert ledger.unexplained == 2.0 - ledger.total
    assert ledger.change is None
    assert ledger.to_dict() == {
        "nodes": 1.0,
        "average_node": 8.0,
        "graph_token": 0.5,
        "biases": -0.25,
        "structure: edge": 4.0,
        **others,
        "unexplained": ledger.unexplained,
        "total": ledger.total,
        "output": 2.0,
    }
    assert len({ledger, replace(ledger), replace(ledger, output=3.0)}) == 2  # values can be counted


def test_the_output_without_nodes_is_that_of_the_empty_graph_for_the_class_explained(model):
    molecules = [ASPIRIN, "CCO", "[Na+].[Cl-]"]
    data = [model.prepare(text).data for text in molecules]
    for target in (None, "inactive", ("active", "inactive"), "pIC50"):
        explanations = gx.explain(model, molecules, target=target)
        for e, graph in zip(explanations, data, strict=True):
            keep = torch.zeros(1, len(e), dtype=torch.bool)
            (empty,) = outputs_of_parts(model, graph, keep, "delete")
            expected = e.wanted.resolve(model.config, empty[None])(empty[None])
            assert e.without_nodes == pytest.approx(float(expected), abs=1e-5)
            assert e.ledger.change == pytest.approx(e.output - float(expected), abs=1e-5)
    assert len({round(e.without_nodes, 5) for e in explanations}) == 1
    caption = gx.explain(model, ASPIRIN).caption
    assert "without atoms" in caption.splitlines()[0]
    assert caption.splitlines()[1].startswith("LRP: atoms")


def test_the_output_without_nodes_of_a_graphormer_is_computed_once(model, monkeypatch):
    """It is the same for every graph."""
    passes = []
    run = backward.run
    model = copy.deepcopy(model)
    monkeypatch.setattr(batching, "MAX_GRAPHS", 1)
    monkeypatch.setattr(
        backward,
        "run",
        lambda model, x, tokens, *others: passes.append(tokens) or run(model, x, tokens, *others),
    )
    together = gx.explain(model, ["CCO", "c1ccccc1", "CN"])
    for explanation in together:
        alone = gx.explain(model, explanation.smiles)
        assert explanation.without_nodes == pytest.approx(alone.without_nodes, abs=1e-6)
    assert sum(tokens.shape[1] == 1 for tokens in passes) == 1
    assert len(passes) == 7


def test_a_prediction_shows_every_class_and_escapes_it():
    prediction = gx.Prediction("a & b", "<i>", {"<i>": 0.75, "no": 0.25})
    page = ElementTree.fromstring(f"<div>{prediction._repr_html_()}</div>")
    assert "".join(page[0].itertext()) == "a & b: <i> (75%)"
    assert [[cell.text for cell in row] for row in page.find("table")] == [
        ["<i>", "75.0%"],
        ["no", "25.0%"],
    ]
    value = gx.Prediction("pIC50", value=6.125, unit="<log>")
    assert value._repr_html_() == "<div>pIC50: <b>6.12 &lt;log&gt;</b></div>"


def test_all_ways_to_give_a_molecule_agree(model, aspirin):
    molecule = Chem.MolFromSmiles(ASPIRIN)
    data = molecule_to_data(ASPIRIN)
    for value in (molecule, data, Batch.from_data_list([data]), [ASPIRIN], (ASPIRIN,)):
        explanation = gx.explain(model, value)
        explanation = explanation[0] if isinstance(explanation, list) else explanation
        np.testing.assert_allclose(explanation.relevance, aspirin.relevance, atol=1e-5)
        assert explanation.molecule.GetNumAtoms() == 13


def test_an_rdkit_molecule_keeps_its_atom_order(model, aspirin):
    order = list(range(12, -1, -1))
    turned = Chem.RenumberAtoms(Chem.MolFromSmiles(ASPIRIN), order)
    explanation = gx.explain(model, turned)
    np.testing.assert_allclose(explanation.relevance, aspirin.relevance[::-1], atol=1e-5)
    assert explanation.to_frame().symbol.tolist() == aspirin.to_frame().symbol.tolist()[::-1]


def test_a_list_gives_a_list_in_order_and_bad_ones_are_named(model):
    values = ["CCO", "C1CC", "", "CC(=O)[O-].[Na+]", 5, "C"]
    with pytest.warns(UserWarning, match="left out") as caught:
        explanations = gx.explain(model, values)
    assert [None if e is None else len(e) for e in explanations] == [3, None, None, 5, None, 1]
    messages = [str(w.message) for w in caught]
    assert "input 1 was left out: 'C1CC' cannot be read: ring 1 is opened" in messages[0]
    assert "input 2 was left out: the SMILES is empty" in messages[1]
    assert "input 4 was left out: this model takes SMILES" in messages[2]
    with pytest.raises(ValueError, match="cannot be read"):
        gx.explain(model, values, on_error="raise")
    with pytest.raises(ValueError, match="cannot be read"):
        gx.explain(model, "C1CC")


def test_a_bar_appears_for_long_work_only(model, capsys, monkeypatch):
    gx.explain(model, ["CCO", "CC"], progress=True)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("graphxai.runtime.progress.PATIENCE", 0.0)
    monkeypatch.setenv("FORCE_COLOR", "1")
    gx.explain(model, ["CCO", "CC"], progress=True)
    assert "explaining" in capsys.readouterr().err
    gx.explain(model, ["CCO", "CC"], progress=False)
    assert capsys.readouterr().err == ""


def test_long_lists_are_encoded_piece_by_piece(model, monkeypatch):
    expected = gx.explain(model, ["CCO", "CC", "C", "CN", "O"])
    monkeypatch.setattr("graphxai.contract.batching.CHUNK", 2)
    explanations = gx.explain(model, ["CCO", "CC", "C", "CN", "O"])
    for a, b in zip(explanations, expected, strict=True):
        np.testing.assert_allclose(a.relevance, b.relevance, atol=1e-5)


def test_predictions_equal_the_networks_outputs(model):
    batch_of_one = gx.predict(model, ASPIRIN)
    several = gx.predict(model, ["CCO", ASPIRIN])
    probability = batch_of_one["activity"].probabilities["active"]
    assert several[1]["activity"].probabilities["active"] == pytest.approx(probability, abs=1e-6)
    explained = gx.explain(model, ASPIRIN)
    assert probability == pytest.approx(1 / (1 + np.exp(-explained.output)), abs=1e-5)
    value = gx.explain(model, ASPIRIN, target="pIC50")
    assert value.prediction.value == pytest.approx(value.output, abs=1e-5)
    assert value.prediction.probability is None


def test_batches_stay_within_their_budget(model):
    sizes = [3] * 150 + [400, 450]
    items = [(i, model.prepare("C" * n)) for i, n in enumerate(sizes)]
    parts = list(in_batches(items))
    assert sorted(key for part in parts for key, _ in part) == list(range(len(sizes)))
    assert max(len(part) for part in parts) == 64
    assert [len(part) for part in parts[-2:]] == [1, 1]


def test_a_batch_is_as_large_as_its_budget_allows_and_no_larger(model):
    items = [(i, model.prepare("C" * 111)) for i in range(20)]  # 8 of them have 100,352 pairs
    assert [len(part) for part in in_batches(items)] == [7, 7, 6]


def test_frames_and_json_contain_every_number(aspirin, tmp_path):
    frame = aspirin.to_frame()
    assert frame.index.name == "atom"
    assert frame.symbol.tolist()[:2] == ["C", "C"]
    parts = frame[list(aspirin.feature_names)].sum(axis=1)
    np.testing.assert_allclose(parts, frame.relevance, atol=1e-5)
    read = pd.read_csv(aspirin.save(tmp_path / "a.csv"), index_col="atom")
    np.testing.assert_allclose(read.relevance, aspirin.relevance, atol=1e-6)
    content = json.loads(aspirin.save(tmp_path / "a.json").read_text())
    assert content["ledger"] == aspirin.ledger.to_dict()
    assert content["provenance"]["method"] == "lrp"
    assert content["provenance"]["versions"]["torch"]


def test_files_contain_the_remainders_by_name(model, tmp_path):
    explanation = gx.explain(model, ASPIRIN, "lrp_ah")
    remainders = explanation.ledger.remainders
    assert set(remainders) == {"LayerNorm", "activation"}
    content = json.loads(explanation.save(tmp_path / "a.json").read_text())
    assert content["ledger"]["unexplained: LayerNorm"] == remainders["LayerNorm"]
    (molecule,) = Chem.SDMolSupplier(str(explanation.save(tmp_path / "a.sdf")))
    text = float(molecule.GetProp("Unexplained: activation"))
    assert text == pytest.approx(remainders["activation"])


def test_pictures_draw_themselves_and_save_by_suffix(aspirin, tmp_path):
    root = ElementTree.fromstring(aspirin._repr_svg_())
    assert root.tag.endswith("svg")
    assert aspirin.save(tmp_path / "new" / "a.svg").read_text() == aspirin.svg()
    with Image.open(aspirin.save(tmp_path / "a.PNG")) as picture:
        assert picture.size[0] > 500
    with pytest.raises(ValueError, match=r"cannot write '\.doc'; use \.svg, \.png"):
        aspirin.save(tmp_path / "a.doc")
    assert "aspirin" not in repr(aspirin)
    assert ASPIRIN in repr(aspirin)


def test_pictures_fill_the_axes_of_a_figure_in_its_own_size(aspirin):
    from matplotlib.figure import Figure

    left, right = Figure(figsize=(8, 3)).subplots(1, 2)
    right.set_title("mine")
    for axes in (left, right):
        aspirin.plot(ax=axes)
        box, (rows, columns, _) = axes.get_window_extent(), axes.images[0].get_array().shape
        assert columns / rows == pytest.approx(box.width / box.height, rel=0.01)
        assert columns >= 2 * box.width  # sharp in print
    assert (left.get_title(), right.get_title()) == (aspirin.headline, "mine")
    whole = aspirin.plot(width=480, height=384)
    assert whole.get_size_inches().tolist() == pytest.approx([5, 4])
    assert gx.explain("mnist-superpixels", digit_paths()[3]).plot(ax=left) is left.figure


def test_methods_side_by_side_and_molecules_in_a_grid(model, aspirin):
    ElementTree.fromstring(gx.compare(model, ASPIRIN, ("lrp", "gae")))
    explained = gx.explain(model, list(MOLECULES.values())[:3])
    ElementTree.fromstring(gx.grid(explained, titles=list(MOLECULES)[:3]))
    with pytest.raises(ValueError, match="no explanation"):
        gx.grid([])


def test_an_input_without_a_picture_says_so():
    class Mean(torch.nn.Linear):
        def forward(self, x):
            return super().forward(x).mean(1)

    rows = gx.wrap(Mean(4, 1).eval(), kind="regression", inputs="tokens")
    explanation = gx.explain(rows, torch.randn(3, 4))
    assert len(explanation) == 3
    assert explanation._repr_svg_() is None
    with pytest.raises(ValueError, match="cannot be drawn"):
        explanation.svg()


def test_a_graph_that_is_no_molecule_has_a_picture(model):
    data = molecule_to_data("CCO")
    del data.smiles
    explanation = gx.explain(model, data)
    assert len(ElementTree.fromstring(explanation.svg()).findall(".//*[@data-node]")) == 3
    assert explanation._repr_svg_().startswith("<svg")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": torch.zeros(3, 4, dtype=torch.long)}, r"x has shape \(3, 4\).* 9 features"),
        ({"x": torch.full((3, 9), 500)}, r"x\[:, 0\] must lie in 0\.\.118"),
        ({"edge_index": torch.tensor([[0, 7], [7, 0]])}, "edge_index refers to node 7"),
        ({"edge_attr": None}, "edge_attr must have shape"),
        ({"x": None}, "needs node features"),
    ],
)
def test_a_graph_that_does_not_fit_is_named(model, change, message):
    data = molecule_to_data("CCO")
    data = Data(**({k: data[k] for k in ("x", "edge_index", "edge_attr")} | change))
    with pytest.raises(ValueError, match=message):
        gx.explain(model, data)


def test_unusual_molecules_are_explained(model):
    unusual = ["[H][H]", "[Na+].[Cl-]", "[2H]C", "C[N+](C)(C)C", "[CH3]", "[Fe]", "*CC", "C" * 200]
    for text in unusual:
        explanation = gx.explain(model, text)
        assert np.isfinite(explanation.relevance).all()
        assert abs(explanation.ledger.unexplained) < 1e-3
        explanation.svg()
    with pytest.raises(ValueError, match=r"501 atoms.*limit of 500"):
        gx.explain(model, "C" * 501)


def test_results_are_equal_across_runs(model):
    first = gx.explain(model, list(MOLECULES.values()))
    again = gx.explain(model, list(MOLECULES.values()))
    for a, b in zip(first, again, strict=True):
        assert np.array_equal(a.relevance, b.relevance)
        assert a.ledger == b.ledger


def test_bundled_molecule_model_explains_known_inhibitors():
    model = gx.load("bace")
    explanations = gx.explain(model, list(MOLECULES.values()))
    probabilities = [e.prediction.probabilities["active"] for e in explanations]
    chance = dict(zip(MOLECULES, probabilities, strict=True))
    inhibitors = probabilities[:5]
    others = [chance[name] for name in ("ibuprofen", "caffeine", "sodium valproate")]
    assert min(inhibitors) > max(others)
    assert max(others) < 0.5
    for explanation in explanations:
        size = np.abs(explanation.relevance).sum() + abs(explanation.ledger.biases)
        assert abs(explanation.ledger.unexplained) <= 1e-4 * size


def test_bundled_digit_model_reads_the_sample_digits():
    model = gx.load("mnist-superpixels")
    explanations = gx.explain(model, list(digit_paths()))
    right = [e.prediction.label == str(d) for d, e in enumerate(explanations)]
    assert sum(right) >= 9
    for explanation in explanations:
        assert len(explanation) == explanation.segments.max() + 1
        assert abs(explanation.ledger.unexplained) < 1e-2
        ElementTree.fromstring(explanation.svg())
    ElementTree.fromstring(gx.compare(model, digit_paths()[0], ("lrp", "gae")))


def test_models_and_inputs_of_different_kinds_are_distinguished(tmp_path):
    with pytest.raises(ValueError, match="takes a picture"):
        gx.explain("mnist-superpixels", 5)
    with pytest.raises(ValueError, match="takes SMILES"):
        gx.explain("bace", np.zeros((28, 28)))
    with pytest.raises(ValueError, match="neither a folder nor the name of a bundled model"):
        gx.load("no-such-model")


def test_attributes_are_listed_and_unknown_ones_raise():
    assert {"explain", "load", "methods"} <= set(gx.__all__)
    with pytest.raises(AttributeError, match="no attribute 'explane'"):
        _ = gx.explane


def test_every_way_to_write_a_molecule_gives_one_explanation(model):
    """This includes stereocentres, whose tags depend on the order of the bonds."""
    for text in (MOLECULES["verubecestat"], MOLECULES["elenbecestat"], "C[C@H]1CC[C@@H](O)CC1"):
        outputs, sums = [], []
        for seed in range(6):
            written = Chem.MolToRandomSmilesVect(Chem.MolFromSmiles(text), 1, randomSeed=seed + 1)
            explanation = gx.explain(model, written[0])
            outputs.append(explanation.output)
            sums.append(np.sort(explanation.relevance))
        assert np.ptp(outputs) < 1e-4
        np.testing.assert_allclose(sums, np.broadcast_to(sums[0], np.shape(sums)), atol=1e-4)


def test_inference_mode_and_threads_do_not_change_a_result():
    from concurrent.futures import ThreadPoolExecutor

    with torch.inference_mode():
        model = gx.load("bace")
        inside = gx.explain(model, ASPIRIN)
    expected = gx.explain("bace", ASPIRIN).relevance
    np.testing.assert_allclose(inside.relevance, expected, atol=1e-6)
    model.train()
    with ThreadPoolExecutor(4) as pool:
        relevances = list(pool.map(lambda _: gx.explain(model, ASPIRIN).relevance, range(16)))
    assert model.training
    for relevance in relevances:
        np.testing.assert_allclose(relevance, expected, atol=1e-6)


def test_series_and_pillow_images_are_taken(model):
    explanations = gx.explain(model, pd.Series(["CCO", "CC"]))
    assert [len(e) for e in explanations] == [3, 2]
    digit = Image.open(digit_paths()[3])
    from_path = gx.explain("mnist-superpixels", digit_paths()[3])
    np.testing.assert_allclose(
        gx.explain("mnist-superpixels", digit).relevance, from_path.relevance, atol=1e-5
    )
    with pytest.raises(TypeError, match="is a mapping"):
        gx.explain(model, {"a": "CCO"})


def test_graphs_in_other_codes_are_refused(model):
    from torch_geometric.utils import from_smiles

    for text in MOLECULES.values():
        with pytest.raises(ValueError, match=r"OGB|cardinalities"):
            gx.explain(model, from_smiles(text))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": torch.full((4, 1), torch.nan)}, "x contains values that are not finite"),
        ({"x": torch.full((4, 1), 255.0)}, r"x must lie in \[0, 1\]"),
        ({"pos": torch.full((4, 2), 14.0)}, "from_mnist_superpixels"),
    ],
)
def test_superpixels_out_of_range_are_named(change, message):
    data = {"x": torch.rand(4, 1), "pos": torch.rand(4, 2), "edge_index": torch.tensor([[0], [1]])}
    with pytest.raises(ValueError, match=message):
        gx.explain("mnist-superpixels", Data(**(data | change)))


def test_results_can_be_compared_hashed_copied_and_kept(model):
    import copy

    first, second = gx.explain(model, ["CCO", "CCN"])
    assert first == first
    assert first != second
    assert len({first, second}) == 2
    assert np.array_equal(copy.deepcopy(first).relevance, first.relevance)
    assert first.relevance.base is None


def test_values_of_an_rdkit_molecule_name_their_atoms(model):
    turned = Chem.RenumberAtoms(Chem.MolFromSmiles("CCO"), [2, 1, 0])
    content = gx.explain(model, turned).to_dict()
    block = Chem.MolFromMolBlock(content["molblock"])
    assert [atom.GetSymbol() for atom in block.GetAtoms()] == ["O", "C", "C"]


def test_pictures_side_by_side_name_what_differs(model):
    classes = [gx.explain(model, "CCO", target=t) for t in ("active", "pIC50")]
    assert 'aria-label="LRP: pIC50"' in side_by_side(classes)
    with pytest.raises(ValueError, match="one input under several methods"):
        side_by_side(gx.explain(model, ["CCO", "CCN"]))
    with pytest.warns(UserWarning, match="left out"):
        explanations = gx.explain(model, ["CCO", "C1CC"])
    ElementTree.fromstring(gx.grid(explanations, titles=["a", "b"]))


def test_unknown_options_of_a_method_are_named(model):
    with pytest.raises(ValueError, match="'saliency' has no option 'foo'; it has none"):
        gx.explain(model, "CCO", "saliency", foo=1)
    with pytest.raises(ValueError, match="has no option 'foo'; it has readout"):
        gx.explain(model, "CCO", "rollout", foo=1)


def test_legends_say_what_a_sign_means():
    model = random_graphormer(
        tasks=(Task("odour", "multiclass", ("sweet", "sour")), Task("logS", "regression"))
    )
    legends = [
        gx.explain(model, "CCO", target=target).legend
        for target in ("sour", ("sour", "sweet"), "logS")
    ]
    assert legends[0] == ("against sour", "for sour")
    assert legends[1] == ("for sweet", "for sour")
    assert legends[2] == ("lowers logS", "raises logS")


CLINTOX = (
    Task("FDA_APPROVED", "binary", ("0", "1")),
    Task("CT_TOX", "binary", ("0", "1")),
    Task("solvation", "regression", unit="kcal/mol"),
)


def test_classes_that_several_tasks_have_are_named_with_their_task():
    model = random_graphormer(tasks=CLINTOX)
    e = gx.explain(model, "CCO", target="CT_TOX: 0")
    again = gx.explain(model, "CCO", target=gx.Target("0", "CT_TOX"))
    assert e.target == again.target == "CT_TOX: 0"
    np.testing.assert_array_equal(e.relevance, again.relevance)
    assert e.legend == ("against CT_TOX: 0", "for CT_TOX: 0")
    assert e.headline.startswith("CT_TOX: ")
    pair = gx.explain(model, "CCO", target=("CT_TOX: 0", "CT_TOX: 1"))
    assert pair.legend == ("for CT_TOX: 1", "for CT_TOX: 0")
    np.testing.assert_allclose(pair.relevance, e.relevance, atol=1e-6)
    assert about_output(pair).endswith("+0.7 doubles the odds of CT_TOX: 0 against CT_TOX: 1.")
    three = random_graphormer(tasks=(Task("taste", "multiclass", ("sour", "sweet", "bitter")),))
    two_of_them = about_output(gx.explain(three, "CCO", target=("sour", "sweet")))
    assert two_of_them.endswith("+0.7 doubles the odds of sour against sweet.")
    default = gx.explain(model, "CCO")
    assert default.target == "FDA_APPROVED: 1"
    titles = [gx.contrast(model, "CCCCO", "CCCCN", target="CT_TOX: 0").headline]
    titles += [gx.compare(model, "CCO", ["lrp", "saliency"], target="CT_TOX: 0")]
    titles += [gx.grid([e, gx.explain(model, "CCO", "saliency", target="CT_TOX: 0")])]
    assert all("CT_TOX: 0" in title for title in titles)
    assert gx.explain("bace", "CCO").target == "active"  # says by itself what is meant
    single = random_graphormer(tasks=(Task("toxic", "binary", ("0", "1")),))
    assert gx.explain(single, "CCO").target == "1"


def test_a_class_with_its_task_can_be_evaluated():
    model = random_graphormer(tasks=CLINTOX)
    report = gx.evaluate(model, ["CCO", "CCN", "CCC"], ["lrp"], target="CT_TOX: 1", progress=False)
    assert {unit.target for unit in report.units} == {"CT_TOX: 1"}


def test_units_are_shown_wherever_a_value_is():
    model = random_graphormer(tasks=CLINTOX)
    e = gx.explain(model, "CCO", target="solvation")
    assert str(e.prediction).endswith(" kcal/mol")
    assert " kcal/mol = " in e.caption.splitlines()[0]
    assert e.legend == ("lowers solvation (kcal/mol)", "raises solvation (kcal/mol)")
    assert gx.contrast(model, "CCCCO", "CCCCN", target="solvation").headline.endswith(" kcal/mol")
    parts = gx.fragments(e).svg()
    assert "kcal/mol in all" in parts
    scores = gx.explain(model, "CCO", "cam", target="solvation")
    assert scores.legend == ("lowers solvation", "raises solvation")
