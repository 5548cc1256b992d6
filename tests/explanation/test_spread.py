"""The standard error of a score is shown wherever scores are listed."""

import json

import numpy as np
import pytest

import graphxai as gx
from toy import random_graphormer

MOLECULES = ["CC(=O)NO", "CCO"]


@pytest.fixture(scope="module")
def explanations():
    options = {"rounds": 4, "target": "active"}
    return gx.explain(random_graphormer(), MOLECULES, "path_marginals", **options)


def test_every_node_has_one(explanations):
    for e in explanations:
        assert e.spread.shape == e.relevance.shape
        assert np.isfinite(e.spread).all()
        assert (e.spread >= 0).all()
    assert explanations[0].spread.max() > 0


def test_it_stands_behind_each_score_of_a_list(explanations):
    e = explanations[0]
    strongest = int(np.abs(e.relevance).argmax())
    text = f"{e.relevance[strongest]:+.4f} ± {e.spread[strongest]:.4f}"
    page = e.section()
    assert f"<td>{text}</td>" in page
    assert "relevance ± standard error" in page


def test_files_have_it_beside_the_relevance(explanations, tmp_path):
    frame = explanations[0].to_frame()
    assert list(frame.columns[:3]) == ["symbol", "relevance", "spread"]
    explanations[0].save(tmp_path / "one.json")
    content = json.loads((tmp_path / "one.json").read_text())
    assert content["spread"] == explanations[0].spread.tolist()


def test_the_command_prints_it(run):
    code, printed, _ = run("explain", MOLECULES[1], "--method", "shapley_sampling")
    assert code == 0
    assert "most relevant atoms ± standard error:" in printed
    assert printed.count(" ± ") > 3


def test_methods_that_do_not_average_have_none():
    e = gx.explain(random_graphormer(), MOLECULES[1])
    assert e.spread is None
    assert "±" not in e.section()
    assert "spread" not in e.to_frame()
