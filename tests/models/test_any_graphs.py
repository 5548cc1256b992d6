"""A Graphormer takes anybody's graphs: features of any type, edges with numbers, any size."""

from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.utils import erdos_renyi_graph

import graphxai as gx
from graphxai.contract.tasks import Task
from graphxai.datasets.features import ATOM_CARDINALITIES, BOND_CARDINALITIES
from graphxai.models.graphormer import (
    Graphormer,
    GraphormerConfig,
    StructureEncoding,
    load_checkpoint,
    save_checkpoint,
)
from graphxai.models.graphormer.config import OGB_ATOMS, OGB_BONDS

CLASSES = Task("class", "multiclass", ("a", "b", "c"))


def small(seed: int = 0, **inputs: Any) -> Graphormer:
    torch.manual_seed(seed)
    sizes = {"num_layers": 2, "hidden_dim": 16, "ffn_dim": 32, "num_heads": 2}
    return Graphormer(GraphormerConfig((CLASSES,), **(sizes | inputs))).eval()


def random_graph(seed: int, n: int = 9, features: int = 4, edge_features: int = 2) -> Data:
    torch.manual_seed(seed)
    edges = erdos_renyi_graph(n, 0.3)
    return Data(
        x=20 * torch.randn(n, features) - 7,
        edge_index=edges,
        edge_attr=torch.randn(edges.shape[1], edge_features),
        num_nodes=n,
    )


def test_the_sizes_of_ogb_are_those_of_its_features() -> None:
    assert (OGB_ATOMS, OGB_BONDS) == (ATOM_CARDINALITIES, BOND_CARDINALITIES)


@pytest.mark.parametrize("method", ["lrp", "gradient_input", "gae", "occlusion"])
def test_a_model_of_numbers_outside_0_to_1_is_explained(method: str) -> None:
    model, graph = small(num_node_features=4, num_edge_features=2), random_graph(1)
    explanation = gx.explain(model, graph, method, target="b")
    logits = model(model.collate([model.prepare(graph).data]))[0].detach()
    assert explanation.output == pytest.approx(float(logits[1]), abs=1e-5)
    if method == "lrp":
        assert explanation.ledger.unexplained == pytest.approx(0.0, abs=1e-5)
    if method == "gradient_input":
        assert "edge" in explanation.ledger.structure
    probability = logits.softmax(0)
    (prediction,) = gx.predict(model, graph).values()
    assert prediction.label == "abc"[int(probability.argmax())]


def test_a_model_of_numbers_is_evaluated() -> None:
    model = small(num_node_features=4)
    report = gx.evaluate(model, [random_graph(seed) for seed in range(3)], ["lrp", "random"])
    assert not report.failures
    assert not report.rejected


def test_numbers_of_edges_are_averaged_over_all_shortest_paths() -> None:
    graph = random_graph(2, n=10)
    encode = StructureEncoding(num_edge_features=2, num_hops=3, max_distance=5)
    encoded = encode(graph)
    directed = nx.DiGraph()
    directed.add_nodes_from(range(10))
    directed.add_edges_from(graph.edge_index.T.tolist())
    value = dict(zip(map(tuple, graph.edge_index.T.tolist()), graph.edge_attr, strict=True))
    start = 0
    for pair, size in enumerate(encoded.bag_sizes.flatten().tolist()):
        i, j = divmod(pair, 10)
        weights = encoded.bag_weights[start + 1 : start + size]
        codes = encoded.bag_codes[start + 1 : start + size]
        start += size
        if i == j or not nx.has_path(directed, i, j):
            assert not len(weights)
            continue
        paths = list(nx.all_shortest_paths(directed, i, j))
        hops = min(len(paths[0]) - 1, 3)
        expected = torch.stack(
            [
                torch.stack([value[path[hop], path[hop + 1]] for path in paths]).mean(0) / hops
                for hop in range(hops)
            ]
        )
        torch.testing.assert_close(weights, expected.flatten())
        assert codes.tolist() == list(range(7, 7 + 2 * hops))


def test_one_hot_numbers_give_what_categories_give() -> None:
    graph = random_graph(3)
    n, edges = graph.num_nodes, graph.edge_index.shape[1]
    kinds, bonds = torch.randint(3, (n, 1)), torch.randint(4, (edges, 1))
    categories = Data(x=kinds, edge_index=graph.edge_index, edge_attr=bonds)
    numbers = Data(
        x=torch.nn.functional.one_hot(kinds[:, 0], 3).float(),
        edge_index=graph.edge_index,
        edge_attr=torch.nn.functional.one_hot(bonds[:, 0], 4).float(),
    )
    a = small(node_cardinalities=(3,), edge_cardinalities=(4,))
    b = small(num_node_features=3, num_edge_features=4)
    weights = a.state_dict()
    table = weights.pop("node_embedding.table")
    b.load_state_dict(weights | {"node_embedding.continuous.weight": table.T})
    outputs = [m(m.collate([m.prepare(g).data])) for m, g in ((a, categories), (b, numbers))]
    torch.testing.assert_close(outputs[0], outputs[1])


def test_the_model_standardises_numbers_itself() -> None:
    graph = random_graph(4)
    plain = small(num_node_features=4, num_edge_features=2)
    standardising = small(
        num_node_features=4,
        num_edge_features=2,
        node_offsets=(1.0, -2.0, 0.0, 5.0),
        node_scales=(2.0, 3.0, 1.0, 0.5),
        edge_offsets=(0.5, 0.0),
        edge_scales=(4.0, 0.1),
    )
    standardised = graph.clone()
    standardised.x = (graph.x - torch.tensor([1.0, -2.0, 0, 5])) / torch.tensor([2.0, 3, 1, 0.5])
    standardised.edge_attr = (graph.edge_attr - torch.tensor([0.5, 0])) / torch.tensor([4.0, 0.1])
    expected = plain(plain.collate([plain.prepare(standardised).data]))
    outputs = standardising(standardising.collate([standardising.prepare(graph).data]))
    torch.testing.assert_close(outputs, expected)


def test_a_checkpoint_with_numbers_gives_the_same_output(tmp_path: Path) -> None:
    model = small(num_node_features=4, num_edge_features=2, edge_scales=(2.0, 3.0))
    loaded = load_checkpoint(save_checkpoint(model, tmp_path))
    graph = random_graph(5)
    before, after = (gx.explain(m, graph).relevance for m in (model, loaded))
    np.testing.assert_array_equal(before, after)


def test_graphs_without_features_and_with_one_node_are_explained() -> None:
    model = small(node_cardinalities=(1,))
    triangle = Data(edge_index=torch.tensor([[0, 1, 2, 1, 2, 0], [1, 2, 0, 0, 1, 2]]), num_nodes=3)
    relevance = gx.explain(model, triangle).relevance
    assert relevance == pytest.approx([relevance[0]] * 3, rel=1e-4)
    alone = Data(edge_index=torch.empty(2, 0, dtype=torch.long), num_nodes=1)
    assert gx.explain(model, alone).ledger.unexplained == pytest.approx(0.0, abs=1e-5)


@pytest.mark.parametrize(
    ("inputs", "changes", "message"),
    [
        ({"num_node_features": 4}, {"x": torch.full((9, 4), torch.nan)}, "x contains values"),
        ({"num_node_features": 3}, {}, r"x has shape \(9, 4\); the model reads 3 features"),
        (
            {"num_node_features": 4, "num_edge_features": 3},
            {},
            r"edge_attr must have shape \(E, 3\)",
        ),
        ({"num_node_features": 4, "num_edge_features": 2}, {"edge_attr": None}, "it has None"),
        (
            {"num_node_features": 4, "edge_cardinalities": (4, 4)},
            {},
            "edge_attr must hold integers, which are codes, not torch.float32",
        ),
        ({"node_cardinalities": (5,) * 4}, {}, r"x must hold whole numbers \(codes\)"),
        (
            {"node_cardinalities": (5,)},
            {"x": torch.full((9, 1), 7)},
            r"x\[:, 0\] must lie in 0..4; it ranges from 7 to 7.$",
        ),
    ],
)
def test_what_is_wrong_with_a_graph_is_said(
    inputs: dict[str, Any], changes: dict[str, Any], message: str
) -> None:
    graph = random_graph(6)
    for name, value in changes.items():
        graph[name] = value
    with pytest.raises(ValueError, match=message):
        gx.explain(small(**inputs), graph)


def test_models_of_graphs_take_no_smiles_and_models_of_digits_only_grey_levels() -> None:
    with pytest.raises(ValueError, match="takes graphs, PyG's Data, not str"):
        gx.explain(small(num_node_features=4), "CCO")
    digits = small(num_node_features=1, node_feature_names=("intensity",))
    with pytest.raises(ValueError, match=r"x must lie in \[0, 1\]"):
        gx.explain(digits, random_graph(7, features=1))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"num_edge_features": 1, "edge_cardinalities": (2,)}, "not both"),
        ({"node_scales": (1.0,)}, "node_scales has 1 numbers for 4 features"),
        ({"node_offsets": (float("nan"),) * 4}, "must hold finite numbers"),
        ({"node_scales": (1.0, 1.0, 0.0, 1.0)}, "node_scales must be positive"),
        ({"num_edge_features": 1, "ties": "floyd"}, "need ties='average'"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(
    values: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        small(num_node_features=4, **values)


def test_any_graph_travels_to_pyg_with_its_features_and_edges() -> None:
    graph = random_graph(8)
    explanation = gx.explain(small(num_node_features=4, num_edge_features=2), graph).to_pyg()
    assert explanation.validate(raise_on_error=True)
    for name in ("x", "edge_index", "edge_attr"):
        assert torch.equal(explanation[name], graph[name]), name


def test_only_methods_with_a_ledger_show_what_they_leave_unexplained() -> None:
    model, graph = small(num_node_features=4), random_graph(9)
    assert "unexplained" in repr(gx.explain(model, graph, "lrp"))
    assert "unexplained" not in repr(gx.explain(model, graph, "gae"))


def test_random_scores_differ_between_graphs_whose_nodes_look_alike() -> None:
    model = small(node_cardinalities=(1,))
    trees = [nx.random_labeled_tree(12, seed=seed) for seed in range(4)]
    graphs = [
        Data(edge_index=torch.tensor(list(tree.to_directed().edges)).T, num_nodes=12)
        for tree in trees
    ]
    scores = [gx.explain(model, graph, "random").relevance for graph in graphs]
    assert len({tuple(each) for each in scores}) == 4
    together = gx.explain(model, graphs, "random")
    np.testing.assert_array_equal(scores, [each.relevance for each in together])
