"""Training on anybody's graphs: from a PyG data set to a checkpoint like any other."""

import csv
import gzip
import json

import numpy as np
import pandas as pd
import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.datasets import ExplainerDataset
from torch_geometric.datasets.graph_generator import BAGraph
from torch_geometric.datasets.motif_generator import CycleMotif, HouseMotif
from torch_geometric.seed import seed_everything
from typer.testing import CliRunner

import graphxai as gx
from graphxai.cli.main import app
from graphxai.datasets.features import ATOM_CARDINALITIES
from graphxai.datasets.graph_folders import GraphFolderError, load_graphs, plain, save_graphs
from graphxai.datasets.molecules import molecule_to_data
from graphxai.datasets.splits import Split
from graphxai.evaluation.metrics import DEFAULT_METRICS
from graphxai.learning.graphs.reading import input_fields, mean_features, tasks_of
from graphxai.learning.graphs.source import split_graphs
from graphxai.learning.run import train_replicates
from graphxai.learning.settings import GraphSettings

pytest.importorskip("lightning")

MOTIF = gx.Task("motif", "multiclass", ("house", "cycle"))
QUICK = {"layers": 2, "width": 16, "epochs": 2, "accelerator": "cpu", "progress": False}


def motifs(count=30):
    """Draw BA-2Motifs (Luo 2020), random trees with a house or a cycle that `node_mask` marks."""
    seed_everything(0)
    graphs = []
    for label, motif in enumerate((HouseMotif(), CycleMotif(5))):
        for graph in ExplainerDataset(BAGraph(10, 1), motif, num_motifs=1, num_graphs=count):
            graph.y = torch.tensor([label])
            graphs.append(graph)
    return graphs


def numbers(count=40):
    """Draw graphs that have 100 times the mean of their first feature, and whether it is high."""
    torch.manual_seed(0)
    graphs = []
    for _ in range(count):
        n = int(torch.randint(1, 9, ()))
        ends = torch.combinations(torch.arange(n)).T.reshape(2, -1)
        edges = torch.cat([ends, ends.flip(0)], dim=1)
        x = 5 * torch.randn(n, 3) + torch.tensor([40.0, 0.0, 1.0])
        mean = float(x[:, 0].mean())
        y = torch.tensor([[100 * mean, float(mean > 40)]])
        graphs.append(
            Data(x=x, edge_index=edges, edge_attr=torch.rand(edges.shape[1]), y=y, num_nodes=n)
        )
    return graphs


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("run")
    return gx.train(motifs(), out, task=MOTIF, **QUICK)


def test_a_data_set_becomes_a_checkpoint_like_any_other(run):
    model, graph = gx.load(run), motifs()[0]
    (prediction,) = gx.predict(model, graph).values()
    assert prediction.task == "motif"
    assert prediction.classes  # a conformal set
    explanation = gx.explain(model, graph)
    assert len(explanation) == 15
    assert explanation.ledger.unexplained == pytest.approx(0.0, abs=1e-5)
    assert model.mean_node is not None
    report = gx.evaluate(model, motifs()[:3], ["lrp"])
    assert not report.failures


def test_the_scores_are_those_of_the_predictions_in_test_csv(run):
    stored = json.loads((run / "scores.json").read_text())
    with (run.parent / "test.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["graph"]) for row in rows] == stored["split"]["test"]
    right = [
        (float(row["motif: probability of cycle"]) > 0.5) == (row["motif"] == "cycle")
        for row in rows
    ]
    accuracy = stored["scores"]["motif"]["scores"]["graphormer"]["accuracy"][0]
    assert accuracy == pytest.approx(np.mean(right))
    graphs = motifs()
    assert all(row["motif"] == ("house", "cycle")[int(graphs[int(row["graph"])].y)] for row in rows)


def test_the_card_compares_with_a_gin_of_at_most_the_same_size(run):
    from graphxai.learning.graphs.baselines import same_budget

    card = (run / "README.md").read_text()
    assert "| GIN, same budget |" in card
    assert "| forest, mean features |" in card
    assert "Nodes all look alike. Edges have no features." in card
    model = gx.load(run)
    size = sum(p.numel() for p in model.parameters())
    assert 0.5 * size < sum(p.numel() for p in same_budget(model).parameters()) <= size


@pytest.mark.parametrize(("epochs", "patience", "stops"), [(40, 1, True), (2, 20, False)])
def test_a_card_tells_of_no_training_that_did_not_happen(tmp_path, epochs, patience, stops):
    """Labels drawn at random are not learned, so the validation loss soon rises."""
    graphs = [g.clone() for g in motifs()]
    for k, graph in enumerate(graphs):
        graph.y = torch.tensor([k * 7 % 3 % 2])
    quick = QUICK | {"epochs": epochs, "patience": patience, "learning_rate": 0.05}
    folder = gx.train(graphs, tmp_path, baselines=False, **quick)
    card = (folder / "README.md").read_text()
    with (tmp_path / "metrics.csv").open() as file:
        trained = len(list(csv.DictReader(file)))
    assert (trained < epochs) == stops
    assert (f"At most {epochs} epochs" in card) == stops
    assert ("stopped after 1 epoch without a lower validation loss" in card) == stops
    assert "GIN" not in card
    assert "Forest" not in card


def test_a_training_is_not_resumed_under_other_versions(run, monkeypatch):
    stored = json.loads((run.parent / "run.json").read_text())["versions"]
    assert stored["torch"] == torch.__version__
    later = stored | {"torch": "99.1"}
    monkeypatch.setattr("graphxai.learning.fit.versions", lambda: later)
    with pytest.raises(ValueError, match=r"different settings \(versions\)"):
        gx.train(motifs(), run.parent, task=MOTIF, resume=True, **QUICK)


def test_a_run_is_resumed_but_not_with_other_graphs_or_settings(run, tmp_path):
    out = run.parent
    with pytest.raises(ValueError, match="already contains a run"):
        gx.train(motifs(), out, task=MOTIF, **QUICK)
    others = motifs()
    others[0].edge_index = others[0].edge_index[:, :-2]
    with pytest.raises(ValueError, match=r"different settings \(sha256\)"):
        gx.train(others, out, task=MOTIF, resume=True, **QUICK)
    again = gx.train(motifs(), out, task=MOTIF, resume=True, baselines=False, **QUICK)
    fresh = gx.train(motifs(), tmp_path, task=MOTIF, baselines=False, **QUICK)
    a, b = (gx.load(folder).state_dict() for folder in (again, fresh))
    assert all(torch.equal(a[name], b[name]) for name in a)
    with pytest.raises(TypeError, match="did you mean 'layers'"):
        gx.train(motifs(), tmp_path, layer=3)


def test_numbers_of_nodes_and_edges_are_standardised_on_the_training_graphs(tmp_path):
    graphs, parts = numbers(), (range(30), range(30, 35), range(35, 40))
    tasks = [gx.Task("mean", "regression", unit="m"), gx.Task("high", "binary", ("no", "yes"))]
    folder = gx.train(graphs, tmp_path, task=tasks, split=parts, **QUICK)
    config = gx.load(folder).config
    rows = torch.cat([g.x for g in graphs[:30]]).double()
    np.testing.assert_allclose(config.node_offsets, rows.mean(0))
    np.testing.assert_allclose(config.node_scales, rows.std(0, correction=0))
    edges = torch.cat([g.edge_attr for g in graphs[:30]]).double()
    assert config.edge_offsets == pytest.approx([float(edges.mean())])
    card = (folder / "README.md").read_text()
    assert "Nodes have 3 numbers, standardised on the training graphs." in card
    assert "Edges have 1 number, standardised on the training graphs." in card
    labels = torch.cat([g.y for g in graphs[:30]])[:, 0].double()
    assert config.tasks[0].offset == pytest.approx(float(labels.mean()))
    assert config.tasks[0].unit == "m"
    explanation = gx.explain(folder, graphs[36], target="mean")
    assert explanation.ledger.unexplained == pytest.approx(0.0, abs=1e-3)


def test_features_say_by_their_type_how_they_are_read():
    molecule = molecule_to_data("CCO")
    assert input_fields([plain(molecule)], [0])["node_cardinalities"] == ATOM_CARDINALITIES
    other = molecule.clone()
    other.x = other.x[:, :3]
    assert input_fields([plain(other)], [0])["node_cardinalities"] == (8, 1, 5)
    other.edge_attr = torch.zeros(4)
    fields = input_fields([plain(other)], [0])
    assert fields["edge_scales"] == (1.0,)  # it does not vary
    assert input_fields([plain(motifs(1)[0])], [0]) == {"node_cardinalities": (1,)}
    ethanol = mean_features([plain(other)], fields)[0]
    assert ethanol[:3].tolist() == [3, 4, pytest.approx(4 / 3)]
    carbon, oxygen = 5, 7  # their codes
    assert ethanol[3 + carbon] == pytest.approx(2 / 3)
    assert ethanol[3 + oxygen] == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("labels", "whole", "kind", "classes"),
    [
        ([0, 1, 1], True, "binary", ("0", "1")),
        ([0, 2, 1], True, "multiclass", ("0", "1", "2")),
        ([0.0, 1.0, np.nan], False, "binary", ("0", "1")),
        ([0.0, 2.0, 1.0], False, "regression", ()),
        ([0.5, 2.0, 1.0], False, "regression", ()),
    ],
)
def test_the_kind_of_a_task_follows_from_its_labels(labels, whole, kind, classes):
    (task,) = tasks_of(None, np.array(labels)[:, None], whole=whole)
    assert (task.kind, task.classes) == (kind, classes)


@pytest.mark.parametrize(
    ("change", "task", "message"),
    [
        (lambda g: g[3].pop("y"), None, "graph 3 has no label y"),
        (
            lambda g: setattr(g[3], "y", torch.zeros(8)),
            None,
            "graph 3 has 8 labels, .* for each node",
        ),
        (lambda g: g.clear(), None, "0 graphs are too few"),
        (lambda g: g.__setitem__(2, "CCO"), None, "graph 2 is a str, not PyG's Data"),
        (lambda g: setattr(g[4], "x", g[4].x[:, :2]), None, "graph 4: x has 2 columns"),
        (lambda g: setattr(g[4], "x", None), None, "graph 4: x must be numbers in rows"),
        (lambda g: g[5].x.fill_(torch.nan), None, "graph 5: x contains values"),
        (
            lambda g: setattr(g[0], "edge_index", torch.tensor([[0, 0], [0, 0]])),
            None,
            "graph 0: edge_attr has .* rows for the 2 edges",
        ),
        (lambda g: None, "multi", "task must be a Task, or one of binary"),
        (lambda g: None, "binary", "classes must be whole numbers"),
        (lambda g: None, MOTIF, "1 tasks, but 2 labels"),
        (
            lambda g: [graph.update({"y": torch.tensor([k % 3])}) for k, graph in enumerate(g)],
            "binary",
            "label: the labels are 0 to 2, so the task is 'multiclass'",
        ),
    ],
)
def test_what_cannot_be_trained_on_is_said(change, task, message):
    graphs = numbers(12)
    change(graphs)
    with pytest.raises(ValueError, match=message):
        split_graphs(graphs, task, GraphSettings(progress=False))


@pytest.mark.parametrize(
    ("split", "message"),
    [
        ("scaffold", "split must be 'random', a Split, or three lists"),
        (([0, 1], [1], [2]), "in two parts"),
        (([0, 1], [2], [99]), "positions from 0 to 11"),
    ],
)
def test_a_split_must_fit_the_data_set(split, message):
    with pytest.raises(ValueError, match=message):
        split_graphs(numbers(12), None, GraphSettings(split=split, progress=False))


def test_a_split_of_graphs_says_how_many_of_them_each_part_has():
    split = split_graphs(numbers(12), None, GraphSettings(split=([0, 1, 2], [3, 4], [5])))
    assert str(split).endswith("given split: train 3, validate 2, test 1")


def test_graphs_are_the_same_after_writing_and_reading(tmp_path):
    split = Split((0, 2), (1,), (3,))
    named = [graph.clone().update({"read": graph.x, "shared": graph.x + 1}) for graph in numbers(5)]
    for graphs in (numbers(5), motifs(3), named):
        stored = load_graphs(save_graphs(graphs, tmp_path, split))
        assert stored.split == split
        for before, after in zip(graphs, stored.graphs, strict=True):
            assert after.num_nodes == before.num_nodes
            for name, value in before.to_dict().items():
                if isinstance(value, torch.Tensor):
                    assert torch.equal(after[name].reshape(value.shape), value), name


def test_a_folder_that_does_not_fit_itself_is_refused(tmp_path):
    from safetensors.torch import load_file, save_file

    with pytest.raises(GraphFolderError, match=r"y has another shape .*: give it the same number"):
        save_graphs([Data(num_nodes=5, y=torch.zeros(k)) for k in (2, 3)], tmp_path)
    with pytest.raises(GraphFolderError, match=r"has neither graphs.safetensors"):
        load_graphs(tmp_path)
    path = save_graphs(numbers(5), tmp_path) / "graphs.safetensors"
    tensors = load_file(path)
    for change, message in (
        ({"num_nodes": tensors["num_nodes"] + 1}, "'node:x' has .* rows"),
        ({"num_nodes": torch.tensor([0.5])}, "must hold whole numbers"),
        ({"num_nodes": -tensors["num_nodes"]}, "no tensor of nodes"),
        ({"strange": torch.zeros(5)}, "'strange' is no tensor"),
        ({"graph:num_nodes": torch.zeros(5)}, "'graph:num_nodes' is no tensor"),
        ({"split": torch.tensor([7] * 5)}, "split must hold"),
    ):
        save_file(tensors | change, path)
        with pytest.raises(GraphFolderError, match=message):
            load_graphs(tmp_path)
    path.write_bytes(b"pickle")
    with pytest.raises(GraphFolderError, match="cannot be read"):
        load_graphs(tmp_path)


def test_the_layout_of_ogb_is_read_without_ogb(tmp_path):
    """As in OGB's reader for graph properties, each edge is stored once and is undirected."""
    files = {
        "raw/num-node-list": "3\n1\n1\n",
        "raw/num-edge-list": "2\n0\n0\n",
        "raw/edge": "0,1\n1,2\n",
        "raw/node-feat": "5,0\n7,1\n5,0\n6,0\n6,0\n",
        "raw/edge-feat": "1\n2\n",
        "raw/graph-label": "1\nnan\n0\n",
        "split/scaffold/train": "0\n",
        "split/scaffold/valid": "1\n",
        "split/scaffold/test": "2\n",
    }
    for name, text in files.items():
        path = tmp_path / f"{name}.csv.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(text.encode()))
    stored = load_graphs(tmp_path)
    first, second, _ = stored.graphs
    assert first.edge_index.tolist() == [[0, 1, 1, 2], [1, 0, 2, 1]]
    assert first.edge_attr[:, 0].tolist() == [1, 1, 2, 2]
    assert first.x.tolist() == [[5, 0], [7, 1], [5, 0]]
    assert second.num_edges == 0
    assert second.y.isnan().all()
    assert stored.split == Split((0,), (1,), (2,))
    path = tmp_path / "raw/edge.csv.gz"
    path.write_bytes(gzip.compress(b"0,1\n1,0\n"))
    assert load_graphs(tmp_path).graphs[0].edge_index.tolist() == [[0, 1], [1, 0]]
    path.write_bytes(gzip.compress(b"0,1\n"))
    with pytest.raises(GraphFolderError, match=r"raw/edge.csv.gz has 1 rows, not 2"):
        load_graphs(tmp_path)


def test_the_command_trains_on_a_folder_and_refuses_options_of_tables(tmp_path):
    folder = save_graphs(motifs(10), tmp_path / "motifs")
    options = ["--layers", "1", "--width", "8", "--epochs", "1", "--no-baselines"]
    result = CliRunner().invoke(
        app,
        ["train", str(folder), "--out", str(tmp_path / "run"), "--accelerator", "cpu", *options],
    )
    assert result.exit_code == 0, result.output
    assert gx.load(tmp_path / "run").config.num_layers == 1
    result = CliRunner().invoke(
        app, ["train", str(folder), "--out", str(tmp_path / "b"), "--keep-teacher"]
    )
    assert (
        "--keep-teacher is for a table or a data set of OGB, not for a folder of graphs"
        in " ".join(result.output.replace("│", " ").split())
    )


def test_the_command_benchmarks_a_checkpoint_on_its_held_out_graphs(run, tmp_path):
    folder, out = save_graphs(motifs(), tmp_path / "motifs"), tmp_path / "bench"
    arguments = ["benchmark", str(run), str(folder), "--methods", "lrp,gae", "--out", str(out)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    rows = pd.read_csv(out / "results.csv")
    held_out = json.loads((run / "scores.json").read_text())["split"]["test"]
    assert sorted(rows.graph.unique()) == held_out
    table = pd.read_csv(out / "table.csv")
    auac = table[(table.metric == "auac") & (table.method == "lrp")]
    mean = rows[(rows.metric == "auac") & (rows.method == "lrp")].value.mean()
    assert auac["mean"].item() == pytest.approx(mean)
    assert 0 < auac.ms.item() < 60_000
    latex = (out / "table.tex").read_text()
    (line,) = (line for line in latex.splitlines() if line.startswith("lrp &"))
    assert f"{mean:.3f}" in line
    assert line.endswith(r" \\")
    assert r"au\_mse $\downarrow$" in latex
    assert latex.count(r"\textbf") == len(DEFAULT_METRICS)  # the best of each
    assert "<svg" in (out / "examples.svg").read_text()


def test_several_networks_become_an_ensemble(tmp_path):
    folder = gx.train(motifs(), tmp_path, task=MOTIF, ensemble=2, baselines=False, **QUICK)
    model = gx.load(folder)
    first, second = model.members
    assert not torch.equal(first.graph_token, second.graph_token)
    explanation = gx.explain(model, motifs()[0])
    assert explanation.spread is not None
    assert "The mean of 2 Graphormers" in (folder / "README.md").read_text()
    assert model.origin.metadata["ensemble"] == 2
    assert len(model.origin.metadata["best_epochs"]) == 2
    with pytest.raises(ValueError, match=r"different settings \(ensemble\)"):
        gx.train(motifs(), tmp_path, task=MOTIF, resume=True, **QUICK)


def test_replicates_give_a_mean_and_a_spread(tmp_path):
    quick = QUICK | {"epochs": 1, "baselines": False}
    folder = train_replicates(motifs(), tmp_path, 2, task=MOTIF, **quick)
    stored = json.loads((tmp_path / "replicates.json").read_text())
    assert stored["seeds"] == [0, 1]
    each = [folder, tmp_path / "replicates" / "1" / "model"]
    scores = [json.loads((f / "scores.json").read_text())["scores"]["motif"] for f in each]
    values = [run["values"]["graphormer"] for run in stored["targets"]["motif"]]
    assert values == [next(iter(s["scores"]["graphormer"].values()))[0] for s in scores]


def test_the_command_explains_a_folder_of_graphs(run, tmp_path):
    graphs = motifs()[:2]
    folder, out = save_graphs(graphs, tmp_path / "graphs"), tmp_path / "out"
    command = ["explain", str(folder), "--model", str(run), "--out", str(out)]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    relevance = pd.read_csv(out / "relevance.csv")
    expected = [gx.explain(run, graph) for graph in graphs]
    for k, explanation in enumerate(expected):
        of_graph = relevance[relevance["graph"] == k]["relevance"]
        np.testing.assert_allclose(of_graph, explanation.relevance, rtol=1e-4, atol=1e-6)
    predictions = pd.read_csv(out / "predictions.csv")
    assert predictions["target"].tolist() == [e.target for e in expected]
    assert {path.name for path in (out / "pictures").iterdir()} == {"0.svg", "1.svg"}
    result = CliRunner().invoke(app, [*command, "--node", "0"])
    assert result.exit_code != 0
    assert "leave out --node" in str(result.exception)


def test_the_command_predicts_a_folder_of_graphs(run, tmp_path):
    graphs = motifs()[:2]
    folder, out = save_graphs(graphs, tmp_path / "graphs"), tmp_path / "predictions.csv"
    command = ["predict", str(folder), "--model", str(run)]
    result = CliRunner().invoke(app, [*command, "--out", str(out)])
    assert result.exit_code == 0, result.output
    table = pd.read_csv(out)
    expected = [gx.predict(run, graph)["motif"].columns for graph in graphs]
    assert table["graph"].tolist() == [0, 1]
    for column, value in expected[0].items():
        assert table[column][0] == pytest.approx(value), column
    assert out.read_text() in CliRunner().invoke(app, command).output


def test_several_models_predict_a_folder_of_molecules_together(tmp_path):
    graphs = [molecule_to_data(smiles) for smiles in ("CCO", "CC(=O)Nc1ccccc1")]
    folder, out = save_graphs(graphs, tmp_path / "graphs"), tmp_path / "predictions.csv"
    command = ["predict", str(folder), "--model", "solubility", "--model", "lipophilicity"]
    result = CliRunner().invoke(app, [*command, "--out", str(out)])
    assert result.exit_code == 0, result.output
    table = pd.read_csv(out)
    stored = list(load_graphs(folder).graphs)  # which no longer say their SMILES
    expected = gx.predict(["solubility", "lipophilicity"], stored).to_frame()
    for column in expected.columns:
        assert table[column].tolist() == pytest.approx(expected[column].tolist()), column


@pytest.mark.parametrize("command", ["explain", "predict"])
def test_a_folder_of_which_no_graph_fits_the_model_ends_with_an_error(run, command, tmp_path):
    graphs = [graph.clone().update({"x": torch.rand(graph.num_nodes, 3)}) for graph in motifs()[:2]]
    folder = save_graphs(graphs, tmp_path / "graphs")
    out = tmp_path / ("out.csv" if command == "predict" else "out")
    line = [command, str(folder), "--model", str(run), "--out", str(out)]
    result = CliRunner().invoke(app, line)
    assert result.exit_code == 1, result.output
    assert "2 left out" in result.output
