"""Planted shapes lie where the labels say, and no shape arises by chance."""

import networkx as nx
import numpy as np
import pytest

from graphxai.datasets.shapes import DECOYS, SHAPES, shape_dataset, shape_graph

KNOWN = SHAPES | DECOYS


def blocks(edges: np.ndarray) -> list[nx.Graph]:
    """Return the biconnected components of more than one edge."""
    graph = nx.Graph(edges.tolist())
    parts = nx.biconnected_component_edges(graph)
    return [nx.Graph(part) for part in map(list, parts) if len(part) > 1]


@pytest.mark.parametrize("seed", range(5))
def test_every_shape_is_a_block_of_its_own_and_nothing_else_is(seed):
    made = shape_graph(list(KNOWN), seed)
    all_blocks = blocks(made.edges)
    assert len(all_blocks) == len(KNOWN)
    for name, edges in KNOWN.items():
        (block,) = (b for b in all_blocks if set(b) == set(np.flatnonzero(made.true_nodes(name))))
        assert nx.is_isomorphic(block, nx.Graph(list(edges)))
        marked = {frozenset(edge) for edge in made.edges[made.true_edges(name)].tolist()}
        assert marked == {frozenset(edge) for edge in block.edges}


def test_a_graph_without_shapes_is_a_tree():
    made = shape_graph([], 0, tree=9)
    assert nx.is_tree(nx.Graph(made.edges.tolist()))
    assert made.shapes == frozenset()
    assert not any(made.true_nodes(name).any() for name in KNOWN)


def test_labels_say_which_shapes_are_there_and_nodes_look_alike():
    made = shape_graph(["square", "wheel"], 1)
    data = made.to_data()
    assert data.y.tolist() == [[float(name == "wheel") for name in SHAPES]]
    assert not data.x.any()
    assert data.num_nodes == 12 + 4 + 6
    assert data.is_undirected()
    assert nx.is_connected(nx.Graph(made.edges.tolist()))


def test_a_data_set_has_every_shape_and_a_null_set():
    dataset = shape_dataset(120)
    again = shape_dataset(120)
    both = zip(dataset.graphs, again.graphs, strict=True)
    assert all(np.array_equal(a.edges, b.edges) for a, b in both)
    assert [len(part) for part in (dataset.split.train, dataset.split.valid)] == [96, 12]
    bare = [graph for graph in dataset.graphs if not graph.shapes]
    assert len(bare) >= 12
    assert all(graph.shapes == frozenset() for graph in dataset.null())
    assert all("house" in graph.shapes for graph in dataset.with_shape("house", 2))


def test_what_cannot_be_planted_is_refused():
    with pytest.raises(ValueError, match="unknown shape 'star'"):
        shape_graph(["star"], 0)
    with pytest.raises(ValueError, match="at least one node"):
        shape_graph([], 0, tree=0)
    with pytest.raises(ValueError, match="between 0 and 1"):
        shape_dataset(20, planted=1.0)
