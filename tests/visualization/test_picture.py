"""The options that pictures share, given as keywords."""

import inspect
from dataclasses import fields
from xml.etree import ElementTree

import numpy as np
import pytest
from rdkit import Chem

from graphxai import visualization
from graphxai.visualization import PictureOptions, PlainGraph, pairs

OPTIONS = [each.name for each in fields(PictureOptions)]
RELEVANCE = np.array([1.0, -0.5, 0.25])
ETHANOL = Chem.MolFromSmiles("CCO")
PATH = PlainGraph(np.array([[0, 1], [1, 2]]))
DRAWING = {
    visualization.molecule_svg: (ETHANOL, RELEVANCE),
    visualization.graph_svg: (PATH, RELEVANCE),
    visualization.tokens_svg: (RELEVANCE,),
    pairs.pairs_svg: (ETHANOL, RELEVANCE, [(0, 2, 1.0)]),
    pairs.graph_pairs_svg: (PATH, RELEVANCE, [(0, 2, 1.0)]),
}


@pytest.mark.parametrize("draw", DRAWING, ids=lambda draw: draw.__name__)
def test_every_option_is_a_keyword_that_help_describes(draw):
    parameters = inspect.signature(draw).parameters
    assert set(OPTIONS) <= set(parameters)
    assert "picture" not in parameters
    arguments = inspect.getdoc(draw).partition("Args:")[2].partition("Raises:")[0]
    described = [name for line in arguments.splitlines() for name in line.split(":")[0].split(", ")]
    assert {name.strip() for name in described} >= set(parameters)


@pytest.mark.parametrize("draw", DRAWING, ids=lambda draw: draw.__name__)
def test_words_size_and_colours_are_those_that_were_given(draw):
    svg = draw(
        *DRAWING[draw], title="A title", subtitle="below it", note="a note", width=500, height=400,
        legend=("loss", "gain"), scale=0.125, palette="orange-purple",
    )  # fmt: skip
    root = ElementTree.fromstring(svg)
    assert (root.get("width"), root.get("height")) == ("500", "400")
    title, description = root[0].text, root[1].text
    assert title == "A title"
    assert all(text in description for text in ("below it", "a note", "gain", "at 0.125"))
    assert svg != draw(
        *DRAWING[draw], title="A title", subtitle="below it", note="a note", width=500, height=400,
        legend=("loss", "gain"), scale=0.125,
    )  # fmt: skip
    assert "colour-bar" in svg
    assert "colour-bar" not in draw(*DRAWING[draw], color_bar=False)


@pytest.mark.parametrize("draw", DRAWING, ids=lambda draw: draw.__name__)
def test_an_unknown_option_is_refused_by_name(draw):
    with pytest.raises(TypeError, match="colour_bar"):
        draw(*DRAWING[draw], colour_bar=False)
