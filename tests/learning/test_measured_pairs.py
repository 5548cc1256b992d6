"""What a card says of measured pairs equals a count by hand."""

import numpy as np
import pytest

from graphxai.contract.held_out_score import held_out_score, pairs_text
from graphxai.contract.tasks import Task
from graphxai.learning import measured_pairs as measured_pairs_module
from graphxai.learning.measured_pairs import change_scores, measured_pairs, pairs_with_test_part

TOLUENES = ["Cc1ccccc1", "Cc1ccc(Cl)cc1", "Cc1ccc(F)cc1", "CCCCCCCCCCCCO"]


def test_a_pair_has_a_molecule_of_the_test_part():
    assert {frozenset(p) for p in pairs_with_test_part(TOLUENES, [2])} == {
        frozenset((0, 2)),
        frozenset((1, 2)),
    }
    every = {frozenset(p) for p in pairs_with_test_part(TOLUENES, [0, 1, 2, 3])}
    assert every == {frozenset((0, 1)), frozenset((0, 2)), frozenset((1, 2))}
    assert pairs_with_test_part(TOLUENES, [3]) == []


def test_figures_equal_a_computation_by_hand():
    """Of 20 changes 15 have the right sign, and one was measured as none."""
    measured = np.array([1.0] * 15 + [-1.0] * 4 + [0.0])
    predicted = np.array([0.5] * 15 + [0.5] * 4 + [1.0])
    scores = change_scores(measured, predicted)
    assert scores["n"] == 20
    assert scores["right"] == pytest.approx(15 / 19)
    assert scores["r"] == pytest.approx((7.5 - 2) / np.sqrt(19 * (19 / 4 + 1)))


def test_pairs_of_which_both_were_tested_are_apart(monkeypatch):
    """A pair of two test molecules is in both counts, one with a learned molecule in the first."""
    predicted = np.array([[0.0], [1.0], [3.0]])
    monkeypatch.setattr(
        measured_pairs_module, "task_readings", lambda model, graphs: [predicted[graphs, 0]]
    )
    tasks, y = [Task("pKi", "regression")], np.array([[1.0], [3.0], [np.nan]])
    scores = measured_pairs(None, tasks, TOLUENES[:3], [0, 1, 2], y, [0, 1])
    assert scores == {"pKi": {"n": 1, "both": {"n": 1}}}
    scores = measured_pairs(None, tasks, TOLUENES[:3], [0, 1, 2], y, [1])
    assert scores == {"pKi": {"n": 1, "both": {"n": 0}}}


def test_figures_do_not_depend_on_the_direction_of_a_pair():
    rng = np.random.default_rng(0)
    measured, predicted = rng.normal(size=(2, 30))
    signs = rng.choice([-1, 1], 30)
    turned = change_scores(signs * measured, signs * predicted)
    assert turned == pytest.approx(change_scores(measured, predicted))


def test_fewer_than_twenty_pairs_have_no_figure_but_a_reason():
    scores = change_scores(np.ones(19), np.ones(19))
    assert scores == {"n": 19}
    assert pairs_text(scores) == "19 measured pairs, too few for a figure (at least 20)"
    assert pairs_text({"n": 1}).startswith("1 measured pair, too few")
    assert pairs_text({}) == ""
    assert pairs_text({"n": 25, "r": 0.7, "right": 0.8, "both": {"n": 3}}) == (
        "changes in 25 measured pairs: r 0.70, 80% of signs right; where both compounds were"
        " tested, 3 measured pairs, too few for a figure (at least 20)"
    )


def test_trust_says_them_beside_r2():
    pairs = {"n": 41, "r": 0.734, "right": 0.89}
    metadata = {"scores": {"pKi": {"scores": {"graphormer": {"R2": [0.7, 0.6, 0.8]}}}}}
    metadata["scores"]["pKi"]["pairs"] = pairs
    assert held_out_score(metadata, "pKi", is_class=False).figures == (
        "R2 0.70, at least 0.60 at 95 %; changes in 41 measured pairs: r 0.73, 89 % of signs right"
    ).replace("89 %", "89%")
