"""Errors on unseen molecules are sorted by nearness, and intervals counted where few are near."""

import numpy as np
import pytest

from graphxai.contract.intervals import Conformal
from graphxai.contract.tasks import Task
from graphxai.datasets.training_set import EDGE, FAR
from graphxai.learning import conformal
from graphxai.learning.conformal import Unseen

VALUE = Task("pIC50", "regression")
BINARY = Task("active", "binary", ("inactive", "active"))
THREE = Task("colour", "multiclass", ("red", "green", "blue"))
SIMILARITY = np.array([EDGE, 1.0, EDGE - 0.01, FAR, FAR - 0.01, 0.0, 0.1])


def test_errors_are_sorted_by_the_words_for_nearness():
    """What lies on a boundary belongs to the nearer group, as in `Nearness`."""
    y = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, np.nan])
    read = y + np.array([0.1, -0.3, 0.5, 0.5, 1.0, -2.0, 9.0])
    errors = conformal.errors_by_nearness(VALUE, Unseen(read, y, SIMILARITY))
    assert errors["near"] == pytest.approx([0.2, 0.1, 2])  # sd / sqrt(2) of 0.1 and 0.3
    assert errors["edge"] == pytest.approx([0.5, 0.0, 2])
    assert errors["far"] == pytest.approx([1.5, 0.5, 2])
    fewer = Unseen(read[1:], y[1:], SIMILARITY[1:])
    assert list(conformal.errors_by_nearness(VALUE, fewer)) == ["edge", "far"]  # one is no group
    assert conformal.errors_by_nearness(VALUE, Unseen(read, y, None)) == {}


def test_the_error_of_a_class_is_that_another_is_likelier():
    probabilities = np.array([0.9, 0.2, 0.4, 0.6, 0.3, 0.3, 0.5])  # of "active"
    y = np.array([1.0, 0.0, 1.0, 1.0, 1.0, 0.0, 0.0])
    errors = conformal.errors_by_nearness(BINARY, Unseen(probabilities, y, SIMILARITY))
    assert [errors[word][0] for word in ("near", "edge")] == [0.0, 0.5]
    assert errors["far"][0] == pytest.approx(1 / 3)  # a tie is for the first class


@pytest.mark.parametrize("num_far", [19, 20])
def test_far_molecules_are_counted_where_there_are_twenty(num_far):
    similarity = np.array([FAR - 0.01] * num_far + [FAR] * 30)
    read = np.zeros(len(similarity))
    y = np.where(np.arange(len(read)) < 5, 3.0, 0.5)  # five far ones are outside
    report = conformal.coverage(VALUE, Conformal({"": [1.0] * 99}), Unseen(read, y, similarity))
    assert report["held"] == pytest.approx(1 - 5 / len(y))
    assert report.get("far") == (None if num_far < 20 else [0.75, 20])


def test_the_score_of_a_class_is_the_logit_by_which_the_best_other_leads():
    p = np.array([[0.5, 0.3, 0.2], [0.1, 0.2, 0.7], [0.2, 0.6, 0.2]])
    made = conformal.conformal_scores(THREE, Unseen(p, np.array([0.0, 1.0, 1.0]), None))
    assert made.scores["red"] == pytest.approx([np.log(0.3 / 0.5)])
    assert made.scores["green"] == pytest.approx(sorted([np.log(0.7 / 0.2), np.log(0.2 / 0.6)]))
    assert made.scores["blue"] == []


def test_a_molecule_is_compared_with_those_of_other_folds():
    smiles = ["CCO", "CCO", "c1ccccc1O", "CCO"]
    folds = [np.array([0, 1]), np.array([2]), np.array([3])]
    nearest = conformal.nearest_of_other_folds(smiles, folds)
    assert nearest[[0, 1, 3]].tolist() == [1.0, 1.0, 1.0]
    assert nearest[2] == conformal.nearest_similarities(smiles[2:3], ["CCO"])[0] < 1
    assert conformal.nearest_of_other_folds(smiles, [np.arange(4)]).tolist() == [0.0] * 4
    assert conformal.nearest_similarities([], smiles).shape == (0,)


def test_errors_by_probability_count_wrong_classes_among_predictions_as_sure():
    p = np.array([0.97, 0.03, 0.96, 0.85, 0.15, 0.85, 0.55, 0.55, 0.45, np.nan, 0.99])
    y = np.array([1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0, 1.0, 1.0, np.nan])
    groups = conformal.errors_by_probability(BINARY, Unseen(p, y, None))
    assert list(groups) == ["0.95", "0.8", "0"]
    assert [share for share, _, _ in groups.values()] == pytest.approx([1 / 3, 1 / 3, 2 / 3])
    assert [number for _, _, number in groups.values()] == [3, 3, 3]  # one without label or reading
    deviation = np.std([0, 0, 1], ddof=1) / 3**0.5
    assert groups["0.95"][1] == pytest.approx(deviation)
    empty = Unseen(np.array([np.nan]), np.array([1.0]), None)
    assert conformal.errors_by_probability(BINARY, empty) == {}
