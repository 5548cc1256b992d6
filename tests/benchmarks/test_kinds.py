"""The table of kinds of models by methods says what methods say."""

import re
from pathlib import Path

import pytest
from kinds_of_models import KINDS, QUESTIONS, answer_of_method, answer_to

from graphxai.explainers import REGISTRY

PAGE = Path(__file__).resolve().parents[2] / "benchmarks" / "results" / "kinds.md"
TEXT = PAGE.read_text(encoding="utf-8")
REFUSALS = {
    number: (set(asked.split(", ")), sentence)
    for number, asked, sentence in re.findall(r"^(\d+)\. (.*?): (.*)$", TEXT, re.MULTILINE)
}
NUMBERS = {
    kind: re.findall(r"\d+", numbers)
    for kind, numbers in re.findall(r"^\* (.*?): .*: (.*?)$", TEXT, re.MULTILINE)
}
OF_ALL = re.search(r"save (.*) and (.*), which every kind refuses", TEXT).groups()


def is_as_said(answer, kind, asked):
    """Return whether a question is answered or refused as the page says."""
    if asked in OF_ALL:
        return answer != ""
    refusals = [REFUSALS[number] for number in NUMBERS[kind]]
    sentence = next((sentence for names, sentence in refusals if asked in names), "")
    return answer.startswith(sentence) and bool(answer) == bool(sentence)


def test_rows_are_of_kinds_and_refusals_of_registered_methods_and_questions():
    asked = {f"`{method}`" for method in REGISTRY} | QUESTIONS.keys()
    assert list(NUMBERS) == list(KINDS)
    assert len(KINDS) == 20
    assert all(names <= asked for names, _ in REFUSALS.values())
    assert {number for numbers in NUMBERS.values() for number in numbers} == {*REFUSALS}
    assert {"`learned`", "`kernel`"} == {*OF_ALL}


@pytest.mark.parametrize("method", ["lrp", "rollout", "occlusion", "learned", "att_cat"])
@pytest.mark.parametrize("kind", KINDS)
def test_methods_explain_or_refuse_as_the_table_says(kind, method):
    assert is_as_said(answer_of_method(KINDS[kind], method), kind, f"`{method}`")


@pytest.mark.parametrize(
    "question",
    [
        *("`pairs`", "`counterfactual_set` of nodes", "`counterfactual_set` of edges"),
        "`edge_shapley`",
        '`evaluate` with `operator="delete"`',
    ],
)
@pytest.mark.parametrize("kind", ["messages", "link", "hetero", "sequence", "linear", "biases"])
def test_questions_are_answered_or_refused_as_the_table_says(kind, question):
    assert is_as_said(answer_to(KINDS[kind], question), kind, question)
