"""The table of kinds of models by methods says what methods say."""

import re
from pathlib import Path

import pytest
from kinds_of_models import KINDS, QUESTIONS, answer_of_method, answer_to

from graphxai.explainers import REGISTRY

PAGE = Path(__file__).resolve().parents[2] / "benchmarks" / "results" / "kinds.md"
SENTENCES = dict(re.findall(r"^(\d+)\. (.*)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE))


def cells():
    """Return the columns of each method and question. Methods with the same answers share a row."""
    rows = re.findall(r"^\| (`.*) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    split = (row.split(" | ") for row in rows)
    return {
        name: dict(zip(KINDS, answers, strict=True))
        for names, *answers in split
        for name in names.split(", ")
    }


def sentence(cell):
    return "" if cell == "yes" else SENTENCES[cell]


def test_rows_are_of_registered_methods_and_of_questions():
    names = [name for name in cells() if name not in QUESTIONS]
    assert len(names) >= 28
    assert {name.strip("`") for name in names} <= REGISTRY.keys()
    assert QUESTIONS.keys() <= cells().keys()
    assert {cell for row in cells().values() for cell in row.values()} == {"yes", *SENTENCES}


@pytest.mark.parametrize("method", ["lrp", "rollout", "occlusion", "learned", "att_cat"])
@pytest.mark.parametrize("kind", KINDS)
def test_methods_explain_or_refuse_as_the_table_says(kind, method):
    assert answer_of_method(KINDS[kind], method) == sentence(cells()[f"`{method}`"][kind])


@pytest.mark.parametrize("question", ["`pairs`", "`counterfactual_set` of edges", "`edge_shapley`"])
@pytest.mark.parametrize("kind", ["messages", "link", "hetero", "sequence"])
def test_questions_are_answered_or_refused_as_the_table_says(kind, question):
    assert answer_to(KINDS[kind], question) == sentence(cells()[question][kind])
