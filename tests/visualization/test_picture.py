"""The options that pictures share, given as keywords."""

import inspect
from dataclasses import fields
from typing import get_type_hints
from xml.etree import ElementTree

import numpy as np
import pytest
from rdkit import Chem

from graphxai import visualization
from graphxai.visualization import PictureOptions, PlainGraph, fragments, pairs
from graphxai.visualization.color import PictureKeywords
from graphxai.visualization.text import text_width

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
PARTS = {
    fragments.fragments_svg: (ETHANOL, [("ethyl", (0, 1), 0.5), ("hydroxyl", (2,), 0.25)]),
    fragments.graph_parts_svg: (PATH, [("end", (0,), 1.0), ("rest", (1, 2), -0.25)]),
}
ALL = DRAWING | PARTS


def test_type_checkers_know_the_keywords_of_every_option():
    hints = get_type_hints(PictureKeywords)
    assert hints == get_type_hints(PictureOptions)


@pytest.mark.parametrize("draw", PARTS, ids=lambda draw: draw.__name__)
def test_parts_have_the_words_of_other_pictures(draw):
    svg = draw(*PARTS[draw], title="A title", note="a note", legend=("loss", "gain"), width=600)
    assert "a note" in svg
    assert "colour-bar" not in draw(*PARTS[draw], color_bar=False)


def test_a_note_in_the_list_is_cut_only_where_it_would_pass_the_values():
    """It begins below the name, 204 pixels before the right end of the values, in 8 px or more."""
    texts = ["n" * narrow + "w" * wide for narrow in range(50) for wide in range(10)]
    widths = {text_width(text, 8): text for text in texts}
    longest = widths[max(width for width in widths if width <= 204)]
    too_long = widths[min(width for width in widths if width > 204)]
    assert text_width(longest, 8) > 203
    molecule, parts = PARTS[fragments.fragments_svg]
    svg = fragments.fragments_svg(molecule, parts, notes=[longest, too_long])
    assert f'aria-label="{longest}"' in svg
    assert f'aria-label="{too_long}"' not in svg


@pytest.mark.parametrize("draw", ALL, ids=lambda draw: draw.__name__)
def test_every_option_is_a_keyword_that_help_describes(draw):
    parameters = inspect.signature(draw).parameters
    assert set(OPTIONS) <= set(parameters)
    assert "picture" not in parameters
    arguments = inspect.getdoc(draw).partition("Args:")[2].partition("Raises:")[0]
    described = [name for line in arguments.splitlines() for name in line.split(":")[0].split(", ")]
    assert {name.strip() for name in described} >= set(parameters)


@pytest.mark.parametrize("draw", ALL, ids=lambda draw: draw.__name__)
def test_a_misspelt_option_is_named_with_the_right_one(draw):
    message = rf"{draw.__name__}\(\) has no option 'titel': did you mean 'title'"
    with pytest.raises(TypeError, match=message):
        draw(*ALL[draw], titel="A title")


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


@pytest.mark.parametrize("draw", ALL, ids=lambda draw: draw.__name__)
def test_an_unknown_option_is_refused_by_name(draw):
    with pytest.raises(TypeError, match="colour_bar"):
        draw(*ALL[draw], colour_bar=False)
