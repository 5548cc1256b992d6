"""Pairs say what they are of, and a model without a graph token has no pairs of it."""

from dataclasses import replace

import pytest

import graphxai as gx
from toy import random_graphormer


@pytest.fixture(scope="module")
def pairs():
    return gx.pairs(random_graphormer(), "CCO")


@pytest.fixture(scope="module")
def walks():
    return gx.pairs(random_graphormer(), "CCO", num_layers=2)


def test_a_line_names_the_molecule_or_counts_the_nodes_of_a_graph(pairs, walks):
    layers = len(pairs.by_layer)
    assert repr(pairs).startswith(f"Pairs(CCO: {layers} layers; LRP")
    assert repr(walks).startswith("Pairs(CCO: along walks of 2 layers; LRP")
    graph = replace(pairs, explanation=replace(pairs.explanation, smiles=None))
    assert repr(graph).startswith(f"Pairs(3 nodes: {layers} layers")


def test_without_a_graph_token_nothing_is_said_of_it(pairs):
    alone = replace(pairs, graph_token=False)
    of_token = {"graph token reads", "graph token read", "graph token, self"}
    assert set(pairs.profile()) == {0, 1, 2} | of_token
    assert set(alone.profile()) == {0, 1, 2}
    assert "rings: read by the graph token; arrows: from the atom read" in pairs.svg()
    assert "ring" not in alone.svg()


def test_the_key_of_pairs_has_the_ends_of_the_explanation(pairs):
    against, towards = pairs.explanation.legend
    assert f'aria-label="{against}"' in pairs.svg()
    assert f'aria-label="{towards}"' in pairs.svg()
    assert 'aria-label="less"' in pairs.svg(legend=("less", "more"))
