"""Parts of graphs that are no molecules: communities, components and the user's own."""

import xml.etree.ElementTree as ET

import networkx as nx
import pytest
import torch
from kinds_of_models import KINDS
from torch_geometric.data import Data
from torch_geometric.utils import from_networkx

import graphxai as gx

KARATE = nx.karate_club_graph()
CLUBS = {
    name: [node for node, club in KARATE.nodes.data("club") if club == name]
    for name in ("Mr. Hi", "Officer")
}


@pytest.fixture(scope="module")
def explanation():
    draw = torch.Generator().manual_seed(0)
    graph = Data(x=torch.randn(34, 4, generator=draw), edge_index=from_networkx(KARATE).edge_index)
    return gx.explain(KINDS["sparse"].model(), graph, "lrp")


def test_the_users_parts_have_the_sums_of_their_nodes(explanation):
    parts = gx.fragments(explanation, CLUBS)
    assert {part.name: [*part.atoms] for part in parts} == CLUBS
    for part in parts:
        assert part.relevance == pytest.approx(explanation.relevance[[*part.atoms]].sum())
    assert parts.total == pytest.approx(explanation.ledger.nodes, abs=1e-5)
    assert "smiles" not in parts.to_frame()


def test_nodes_without_a_part_are_the_rest(explanation):
    parts = gx.fragments(explanation, {"first": [0, 1, 2]})
    (rest,) = (part for part in parts if part.name == "rest")
    assert rest.atoms == tuple(range(3, 34))


def test_communities_are_those_of_networkx(explanation):
    parts = gx.fragments(explanation, "communities")
    plain = nx.Graph(list(KARATE.edges))
    communities = nx.community.greedy_modularity_communities(plain)
    assert {frozenset(part.atoms) for part in parts} == set(communities)


def test_components_of_a_graph_in_two_pieces():
    edges = torch.tensor([[0, 1, 2, 3], [1, 0, 3, 2]])
    graph = Data(x=torch.ones(5, 4), edge_index=edges)
    e = gx.explain(KINDS["messages"].model(), graph)
    assert sorted(part.atoms for part in gx.fragments(e, "components")) == [(0, 1), (2, 3), (4,)]


def test_shapley_values_of_parts_sum_to_what_the_nodes_change(explanation):
    graph = Data(x=torch.as_tensor(explanation.graph["x"]), edge_index=torch.as_tensor(
        explanation.graph["edge_index"]))  # fmt: skip
    model = KINDS["sparse"].model()
    parts = gx.fragments(explanation, CLUBS, "shapley", model=model, graph=graph)
    ledger = explanation.ledger
    assert parts.total == pytest.approx(ledger.output - ledger.without_nodes, abs=1e-5)


def test_the_picture_has_every_node_and_names_every_part(explanation):
    svg = gx.fragments(explanation, {"<b>one</b>": [0, 1], "two": [5, 6]}).svg()
    root = ET.fromstring(svg)
    nodes = [e.get("data-node") for e in root.iter() if e.get("data-node") is not None]
    assert sorted(map(int, nodes)) == list(range(34))
    assert "&lt;b&gt;one&lt;/b&gt;" in svg
    titles = [e.text for e in root.iter() if e.tag.endswith("title")]
    assert any(text and text.startswith("two: ") for text in titles)


def test_parts_that_cannot_be_are_refused(explanation):
    for scheme, message in (
        ("brics", "'brics' divides molecules: a graph is divided by 'communities'"),
        ({"a": [0, 1], "b": [1]}, "part 'b' has a node that is in a part already"),
        ({"a": [40]}, "part 'a' has nodes beyond 0 to 33"),
        ({"a": ["x"]}, "part 'a' needs numbers of nodes"),
    ):
        with pytest.raises(ValueError, match=message):
            gx.fragments(explanation, scheme)
    with pytest.raises(ValueError, match="a part of a graph has no picture of its own"):
        gx.fragments(explanation, CLUBS)[0].svg()


def test_arrows_of_pairs_stay_within_the_picture():
    ring = KINDS["sparse"].value()
    svg = gx.pairs(KINDS["sparse"].model(), ring).svg()
    root = ET.fromstring(svg)
    width, height = float(root.get("width")), float(root.get("height"))
    for group in (e for e in root.iter() if e.get("data-pair")):
        path = next(e.get("d") for e in group if e.get("stroke-width"))
        start, rest = path.removeprefix("M").split("Q")
        numbers = [float(x) for x in (start + " " + rest).split()]
        p, control, q = (numbers[k : k + 2] for k in (0, 2, 4))
        for axis, length in ((0, width), (1, height)):
            middle = (p[axis] + 2 * control[axis] + q[axis]) / 4  # of the curve at t = 1/2
            assert -1 <= middle <= length + 1


def test_rows_of_tokens_have_no_parts():
    kind = KINDS["sequence"]
    with pytest.raises(ValueError, match="parts of a molecule or of a graph with edges, but this"):
        gx.fragments(gx.explain(kind.model(), kind.value()))
