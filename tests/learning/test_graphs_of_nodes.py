"""Training on the labels of nodes: one graph with masks, or many graphs."""

import csv
import json

import numpy as np
import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.utils import erdos_renyi_graph
from typer.testing import CliRunner

import graphxai as gx
from graphxai.cli.main import app
from graphxai.datasets.graph_folders import load_graphs, save_graphs
from graphxai.learning.graphs.reading import labels_of, node_features
from graphxai.learning.graphs.source import split_graphs
from graphxai.learning.settings import GraphSettings

pytest.importorskip("lightning")

QUICK = {"layers": 1, "width": 16, "accelerator": "cpu", "progress": False}


def graph_of_nodes(n=60, seed=0):
    """A graph whose nodes' classes are the sign of their only feature."""
    torch.manual_seed(seed)
    x = torch.randn(n, 1)
    return Data(x=x, edge_index=erdos_renyi_graph(n, 0.1), y=(x[:, 0] > 0).long())


def masked_graph():
    graph = graph_of_nodes()
    numbers = torch.arange(60)
    graph.train_mask, graph.val_mask = numbers < 30, (numbers >= 30) & (numbers < 45)
    graph.test_mask = numbers >= 50
    return graph


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("nodes")
    return gx.train(masked_graph(), out, epochs=60, **QUICK)


def test_a_graph_with_masks_becomes_a_model_of_nodes(run):
    model, graph = gx.load(run), masked_graph()
    stored = json.loads((run / "scores.json").read_text())
    assert stored["split"]["train"] == list(range(30))
    with (run.parent / "test.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["graph"], int(row["node"])) for row in rows] == [("0", k) for k in range(50, 60)]
    predictions = gx.predict(model, graph, node=list(range(50, 60)))
    for row, prediction in zip(rows, predictions, strict=True):
        expected = prediction["label"].probabilities["1"]
        assert float(row["label: probability of 1"]) == pytest.approx(expected, abs=1e-5)
        assert int(row["label"]) == int(graph.y[int(row["node"])])
        assert prediction["label"].classes  # a conformal set
    assert stored["scores"]["label"]["scores"]["graphormer"]["ROC-AUC"][0] == 1.0
    card = (run / "README.md").read_text()
    assert "30 / 15 / 10 nodes to train, validate and test, by the masks of the graphs" in card
    assert "| GIN, same budget |" in card
    assert "| forest, node and neighbours |" in card


def test_only_the_training_nodes_are_learned_from(run):
    split = split_graphs(masked_graph(), None, GraphSettings())
    assert " split of nodes: train " in str(split)
    (data,) = split.train.graphs
    present = ~data.node_y[:, 0].isnan()
    assert present.nonzero()[:, 0].tolist() == list(range(30))
    torch.testing.assert_close(data.node_y[present, 0].long(), masked_graph().y[:30])
    settings = GraphSettings().training(1, 60, of_nodes=True)
    assert settings.epochs == 300
    assert settings.patience == 100
    assert GraphSettings().training(1, 60).epochs == 60


def test_the_class_is_explained_by_the_node_itself(run):
    explanation = gx.explain(run, masked_graph(), node=52)
    ledger = explanation.ledger
    assert ledger.unexplained == pytest.approx(0.0, abs=1e-5)
    assert abs(ledger.without_nodes) > abs(ledger.change)
    report = gx.evaluate(run, masked_graph(), ["lrp"], node=[52, 53])
    assert not report.failures


def test_many_graphs_are_split_as_a_whole_and_missing_labels_left_out(tmp_path):
    graphs = [graph_of_nodes(n, seed=n) for n in range(5, 17)]
    for graph in graphs:
        graph.y = graph.y.float()
        graph.y[0] = np.nan
    split = split_graphs(graphs, None, GraphSettings())
    assert split.tasks[0].kind == "binary"
    places = [split.node_of(k) for k in (*split.parts.train, *split.parts.valid, *split.parts.test)]
    assert len(places) == sum(n - 1 for n in range(5, 17))
    assert not [node for _, node in places if node == 0]
    owners = [{split.node_of(k)[0] for k in part} for part in (split.parts.train, split.parts.test)]
    assert not owners[0] & owners[1]
    values = [graphs[k].y[node] for k, node in map(split.node_of, split.parts.test)]
    np.testing.assert_array_equal(split.test.y[:, 0], values)
    folder = gx.train(graphs, tmp_path, epochs=1, baselines=False, **QUICK)
    assert gx.load(folder).config.level == "node"


def test_masks_and_labels_that_do_not_fit_get_a_sentence():
    graph = masked_graph()
    graph.train_mask = torch.stack([graph.train_mask] * 2, dim=1)
    with pytest.raises(ValueError, match=r"choose one, such as train_mask\[:, 0\]"):
        split_graphs(graph, None, GraphSettings())
    graph = masked_graph()
    graph.y = graph.y[:20]
    with pytest.raises(ValueError, match="y needs a row for each of 60 nodes"):
        split_graphs(graph, None, GraphSettings())


def test_the_forest_reads_a_node_and_its_neighbours():
    edges = torch.tensor([[0, 1, 2], [1, 2, 1]])
    graph = Data(x=torch.tensor([[1.0], [2.0], [4.0]]), edge_index=edges)
    features = node_features(graph, {"num_node_features": 1})
    assert features.tolist() == [[1, 0, 0], [2, 2, 2.5], [4, 1, 2]]


def test_a_folder_keeps_labels_and_masks_and_is_benchmarked(run, tmp_path):
    folder = save_graphs([masked_graph()], tmp_path / "graph")
    (graph,) = load_graphs(folder).graphs
    assert torch.equal(graph.y, masked_graph().y)
    assert torch.equal(graph.test_mask, masked_graph().test_mask)
    bench = ["benchmark", str(run), str(folder), "--methods", "lrp", "--limit", "3"]
    result = CliRunner().invoke(app, [*bench, "--out", str(tmp_path / "bench")])
    assert result.exit_code == 0, result.output
    assert "3 graphs, nodes removed by mask" in (tmp_path / "bench" / "table.tex").read_text()
    command = ["explain", str(folder), "--model", str(run), "--out", str(tmp_path / "explained")]
    result = CliRunner().invoke(app, [*command, "--node", "52", "--node", "53"])
    assert result.exit_code == 0, result.output
    assert {p.name for p in (tmp_path / "explained" / "pictures").iterdir()} == {
        "0-52.svg", "0-53.svg"
    }  # fmt: skip


def test_the_first_graph_with_another_number_of_labels_for_its_nodes_is_named():
    graphs = [Data(y=torch.zeros(3, labels), num_nodes=3) for labels in (1, 2)]
    with pytest.raises(ValueError, match="graph 1 has 2 labels, the first graph 1"):
        labels_of(graphs, "node")
