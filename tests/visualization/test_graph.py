"""Pictures of graphs that are no molecules show what they should, as read from the SVG."""

import re
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from rdkit import Chem
from torch import nn
from torch_geometric.data import Data
from torch_geometric.datasets import KarateClub
from torch_geometric.nn import TransformerConv

import graphxai as gx
from graphxai.visualization import PlainGraph, Scale, graph_svg
from graphxai.visualization.graph import _overlap
from graphxai.visualization.layout import laid_out_graph
from graphxai.visualization.pairs import graph_pairs_svg, pairs_svg

SVG = "{http://www.w3.org/2000/svg}"
TRIANGLE = PlainGraph(np.array([[0, 1, 2, 1, 3], [1, 2, 0, 0, 4]]))  # and a separate edge


def circles(svg: str) -> dict[int, ElementTree.Element]:
    elements = ElementTree.fromstring(svg).iter(f"{SVG}circle")
    return {int(c.get("data-node")): c for c in elements if c.get("data-node")}


def edges_in(svg: str) -> list[ElementTree.Element]:
    root = ElementTree.fromstring(svg)
    return [p for p in root.iter(f"{SVG}path") if p.get("stroke") == "#a6a6a6"]


def test_every_node_has_the_colour_of_its_relevance():
    values = np.array([0.5, -1.0, 0.0, 0.25, 2.0])
    drawn = circles(graph_svg(TRIANGLE, values))
    assert [drawn[k].get("fill") for k in range(5)] == list(Scale(2.0).hex(values))


def test_two_directions_of_an_edge_are_one_line():
    assert len(edges_in(graph_svg(TRIANGLE, np.ones(5)))) == 4


def test_an_edge_has_the_sum_of_its_directions_as_colour():
    of_edges = np.array([0.5, 0.0, 0.0, 0.25, -1.0])  # 0-1 in both directions, and 3-4
    svg = graph_svg(TRIANGLE, np.zeros(5), edge_relevance=of_edges, scale=1.0)
    stops = {stop.get("stop-color") for stop in ElementTree.fromstring(svg).iter(f"{SVG}stop")}
    assert set(Scale(1.0).hex(np.array([0.75, -1.0]))) <= stops


def test_the_band_of_an_edge_lies_on_both_sides_of_it_and_is_equally_wide_along_it():
    svg = graph_svg(TRIANGLE, np.zeros(5), edge_relevance=np.ones(5))
    root = ElementTree.fromstring(svg)
    (drawn,) = (group for group in root.iter(f"{SVG}g") if group.get("class") == "edges")
    bands = [path.get("d") for path in drawn.findall(f"{SVG}path")]
    lines = [path.get("d") for path in edges_in(svg)]
    widths = []
    for band, line in zip(bands, lines, strict=True):
        corners, ends = (
            np.array(re.findall(r"[-\d.]+", path), float).reshape(-1, 2) for path in (band, line)
        )
        beside = corners[[0, 1]] - ends
        np.testing.assert_allclose(corners[[3, 2]] - ends, -beside, atol=0.02)
        np.testing.assert_allclose(beside @ (ends[1] - ends[0]), 0, atol=2)
        widths += [*np.linalg.norm(beside, axis=1)]
    np.testing.assert_allclose(widths, widths[0], atol=0.02)


def test_nodes_are_labelled_and_text_is_escaped():
    graph = PlainGraph(np.array([[0], [1]]), labels=("<b>", 'Mr "Hi"'))
    svg = graph_svg(graph, np.array([1.0, 2.0]), title="a < b", note="x & y")
    titles = [circle.find(f"{SVG}title").text for circle in circles(svg).values()]
    assert [title.partition(":")[0] for title in titles] == ["<b>", 'Mr "Hi"']
    assert "<b>" not in svg


def test_the_explained_node_has_a_dark_ring():
    graph = PlainGraph(np.array([[0, 1], [1, 2]]), explained=(1,))
    drawn = circles(graph_svg(graph, np.ones(3)))
    widths = [float(drawn[k].get("stroke-width")) for k in range(3)]
    assert widths[1] > 1.5 * max(widths[0], widths[2])


def test_a_large_graph_shows_its_most_relevant_nodes_and_says_so():
    draw = np.random.default_rng(0)
    values = draw.normal(size=400)
    graph = PlainGraph(draw.integers(0, 400, (2, 600)), explained=(7,))
    values[7] = 0.0
    svg = graph_svg(graph, values)
    drawn = circles(svg)
    assert 7 in drawn
    strongest = np.argsort(-np.abs(values))[:149]
    assert set(drawn) == {7, *strongest.tolist()}
    assert "150 of 400 nodes" in svg


def test_no_two_nodes_lie_on_each_other():
    for count, edges in ((1, ()), (5, ()), (6, ((0, 1), (1, 2), (3, 4))), (4, ((0, 1), (0, 2)))):
        points = laid_out_graph(count, edges, 1.4)
        apart = np.linalg.norm(points[:, None] - points, axis=-1) + 9 * np.eye(count)
        assert points.shape == (count, 2)
        assert apart.min() > 0.3


@pytest.mark.parametrize(("to_the_right", "down"), [(1.0, 0.0), (0.0, 1.0)])
def test_names_side_by_side_touch_and_do_not_overlap(to_the_right, down):
    first = (0.0, 0.0, 1.0, 1.0)
    beside = (to_the_right, down, 1.0 + to_the_right, 1.0 + down)
    nearer = (0.9 * to_the_right, 0.9 * down, 1.0 + to_the_right, 1.0 + down)
    assert not _overlap(first, beside)
    assert not _overlap(beside, first)
    assert _overlap(first, nearer)
    assert _overlap(nearer, first)


def test_relevance_must_fit_the_graph():
    with pytest.raises(ValueError, match="one per edge"):
        graph_svg(TRIANGLE, np.ones(5), edge_relevance=np.ones(3))
    with pytest.raises(ValueError, match="too few"):
        graph_svg(TRIANGLE, np.ones(5), width=60, height=60)


@pytest.mark.parametrize("draw", [graph_svg, lambda *of: graph_pairs_svg(*of, [])])
def test_a_graph_without_nodes_has_no_picture(draw):
    with pytest.raises(ValueError, match="the graph has no nodes that could be drawn"):
        draw(PlainGraph(np.zeros((2, 0), int)), [])


class Club(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = TransformerConv(34, 8), TransformerConv(8, 4)

    def forward(self, x, edge_index):
        return self.second(self.first(x, edge_index).relu(), edge_index)


@pytest.fixture(scope="module")
def club():
    graph = KarateClub()[0]
    graph.name = [f"member {k}" for k in range(34)]
    return gx.wrap(Club().eval(), kind="multiclass", classes=4), graph


def test_a_node_of_the_karate_club_has_a_picture_with_the_captions_of_molecules(club, tmp_path):
    model, graph = club
    explanation = gx.explain(model, graph, node=9)
    assert explanation.save(tmp_path / "karate.png").read_bytes().startswith(b"\x89PNG")
    svg = explanation.svg()
    drawn = circles(svg)
    assert len(drawn) == 34
    assert len(edges_in(svg)) == graph.num_edges // 2
    assert drawn[9].find(f"{SVG}title").text.startswith("member 9: ")
    assert drawn[9].get("stroke") == "#333333"
    words = ElementTree.fromstring(svg).find(f"{SVG}desc").text
    assert explanation.legend[1] in words
    assert explanation._repr_svg_().startswith("<svg")


def test_methods_and_counterfactuals_are_drawn_on_the_graph(club):
    model, graph = club
    compared = gx.compare(model, graph, ["lrp", "occlusion"], node=9)
    assert len(ElementTree.fromstring(compared).findall(".//*[@data-node]")) == 68
    smallest = gx.counterfactual_set(model, graph, node=9, of="edges", exhaustive=100)
    bands = [p for p in ElementTree.fromstring(smallest.svg()).iter() if p.tag.endswith("Gradient")]
    assert len(bands) == len(smallest)


def test_a_molecule_keeps_its_picture():
    graph = Data(x=torch.randn(3, 34), edge_index=torch.tensor([[0, 1], [1, 2]]), smiles="CCO")
    model = gx.wrap(Club().eval(), kind="multiclass", classes=4)
    assert "data-atom" in gx.explain(model, graph, node=1).svg()


def test_pairs_of_a_graph_are_arrows_between_its_nodes(club, tmp_path):
    model, graph = club
    read = gx.pairs(model, graph, node=9)
    root = ElementTree.fromstring(read.svg(count=5))
    arrows = [g.get("data-pair") for g in root.iter(f"{SVG}g") if g.get("data-pair")]
    strongest = read.strongest(5, directed=True)
    assert sorted(arrows) == sorted(f"{i} {j}" for i, j, _ in strongest)
    assert len(circles(read.svg())) == 34
    assert len(edges_in(read.svg())) == graph.num_edges // 2
    assert "arrows: from the node read to its reader" in "".join(root.itertext())
    assert read.save(tmp_path / "pairs.png").read_bytes().startswith(b"\x89PNG")
    assert read._repr_svg_().startswith("<svg")


def test_pairs_of_a_large_graph_show_the_nodes_of_the_strongest():
    edges = np.random.default_rng(0).integers(0, 400, (2, 600))
    svg = graph_pairs_svg(PlainGraph(edges, explained=(7,)), np.zeros(400), [(395, 398, 1.0)])
    assert {7, 395, 398} <= set(circles(svg))
    assert 'data-pair="395 398"' in svg
    assert "150 of 400 nodes" in svg
    with pytest.raises(ValueError, match="pairs may only name nodes 0 to 399"):
        graph_pairs_svg(PlainGraph(edges), np.zeros(400), [(400, 1, 1.0)])


@pytest.mark.parametrize("outside", [-1, 3])
def test_pairs_of_a_molecule_have_its_own_atoms(outside):
    with pytest.raises(ValueError, match="pairs may only name nodes 0 to 2"):
        pairs_svg(Chem.MolFromSmiles("CCO"), np.zeros(3), [(outside, 1, 1.0)])


def test_the_head_of_an_arrow_is_wider_than_its_line():
    graph = PlainGraph(np.array([[0, 1, 2], [1, 2, 0]]))
    svg = graph_pairs_svg(graph, np.zeros(3), [(0, 1, 1.0), (2, 1, -0.3)])
    arrows = [g for g in ElementTree.fromstring(svg).iter(f"{SVG}g") if g.get("data-pair")]
    assert len(arrows) == 2
    for arrow in arrows:
        line, head = arrow.findall(f"{SVG}path")
        _, left, right = (
            np.array(p.split(), float) for p in re.split("[MLZ]+", head.get("d"))[1:4]
        )
        assert np.linalg.norm(left - right) > 1.5 * float(line.get("stroke-width"))
