"""Metrics of predictions equal their definitions, worked out graph by graph."""

import math

import numpy as np
import pytest
from sklearn.metrics import r2_score

from graphxai.contract.prediction_metrics import accuracy, calibration_error, mae, r2, rmse


def by_bins(confidence, right):
    """Naeini 2015: the gap between confidence and frequency in ten bins, weighted by their size."""
    total = 0.0
    for low in range(10):
        members = [
            (c, r)
            for c, r in zip(confidence, right, strict=True)
            if low / 10 <= c < (low + 1) / 10 or (low == 9 and c == 1)
        ]
        if members:
            mean = np.mean(members, axis=0)
            total += len(members) / len(confidence) * abs(mean[0] - mean[1])
    return total


def test_the_calibration_error_of_two_classes_is_that_of_ten_bins():
    probability = np.array([0.03, 0.07, 0.31, 0.38, 0.55, 0.82, 0.88, 0.93, 0.97, 1.0])
    truth = np.array([0.0, 1, 0, 1, 1, 1, 0, 1, 0, 1])
    assert calibration_error(probability, truth) == pytest.approx(by_bins(probability, truth))
    # .85 and .95 lie in two bins: together they would cancel to .1 less
    apart = calibration_error(np.array([0.85, 0.95]), np.array([1.0, 0.0]))
    assert apart == pytest.approx((0.15 + 0.95) / 2)


def test_of_several_classes_the_likeliest_one_is_judged():
    draw = np.random.default_rng(0)
    probability = draw.dirichlet(np.ones(4), size=300)
    truth = draw.integers(0, 4, 300)
    likeliest = probability.argmax(1)
    right = (likeliest == truth).astype(float)
    expected = by_bins(probability[np.arange(300), likeliest], right)
    assert calibration_error(probability, truth) == pytest.approx(expected)
    assert accuracy(probability, truth) == right.mean()


def test_r2_is_that_of_scikit_learn_and_undefined_where_all_labels_are_equal():
    truth, value = np.array([1.0, 2.0, 4.0]), np.array([1.5, 2.0, 3.0])
    assert r2(value, truth) == pytest.approx(r2_score(truth, value))
    assert math.isnan(r2(value, np.full(3, 2.0)))
    assert (rmse(value, truth), mae(value, truth)) == pytest.approx(((1.25 / 3) ** 0.5, 0.5))
