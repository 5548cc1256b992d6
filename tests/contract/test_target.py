"""A target is the log-odds of the class explained, or its probability."""

import re
from functools import partial

import pytest
import torch
from sklearn.linear_model import LinearRegression
from torch import nn

import graphxai as gx
from graphxai.contract.target import Target
from graphxai.contract.tasks import Task, TaskSet

TASKS = TaskSet(
    (
        Task("value", "regression", offset=2.0, scale=3.0),
        Task("odour", "multiclass", ("sweet", "sour", "none")),
        Task("active", "binary", ("no", "yes")),
    )
)
OUTPUTS = torch.tensor([[0.5, 1.0, -2.0, 0.3, 0.7], [0.1, -1.0, 3.0, 0.0, -4.0]])


@pytest.mark.parametrize("target", [Target("sour"), Target(None, "odour")])
def test_log_odds_of_a_class_among_several(target):
    resolved = target.resolve(TASKS, OUTPUTS)
    p = OUTPUTS[:, 1:4].softmax(-1)
    p = p[:, 1] if target.choice else p.max(-1).values
    torch.testing.assert_close(resolved.log_odds(OUTPUTS), (p / (1 - p)).log())


def test_log_odds_stay_finite_where_the_probability_is_one():
    sure = torch.tensor([[0.0, 90.0, -90.0, 0.0, 0.0]])
    assert Target("sweet").resolve(TASKS, sure).log_odds(sure).item() == 90.0


@pytest.mark.parametrize("target", [Target("no"), Target("yes"), Target("value")])
def test_a_single_logit_is_the_log_odds_and_a_value_stays_a_value(target):
    resolved = target.resolve(TASKS, OUTPUTS)
    assert torch.equal(resolved.log_odds(OUTPUTS), resolved(OUTPUTS))


def test_a_name_that_several_tasks_have_is_asked_for_with_its_task():
    tasks = TaskSet(tuple(Task(f"NR-{k}", "binary", ("inactive", "active")) for k in range(3)))
    outputs = torch.tensor([[0.5, -1.0, 2.0]])
    with pytest.raises(ValueError, match=r"3 tasks have a class 'active': .* 'NR-0: active'"):
        Target("active").resolve(tasks, outputs)
    assert Target("NR-2: active").resolve(tasks, outputs).labels == ("NR-2: active",)
    assert Target("active", "NR-2").resolve(tasks, outputs)(outputs).item() == 2.0


@pytest.mark.parametrize("pair", [("odour", "sour"), ("active", "yes"), ("active", "no")])
def test_a_task_and_its_class_are_no_difference(pair):
    with pytest.raises(ValueError, match=f"write '{pair[0]}: {pair[1]}'"):
        Target.of(pair).resolve(TASKS, OUTPUTS)


def test_an_unknown_name_lists_tasks_and_classes():
    message = "no class 'foo' and no task of that name; its tasks are 'value', 'odour' (sweet, sour"
    with pytest.raises(ValueError, match=re.escape(message)):
        Target("foo").resolve(TASKS, OUTPUTS)


def test_a_difference_of_two_classes_stays_a_difference():
    resolved = Target(("sweet", "sour")).resolve(TASKS, OUTPUTS)
    assert torch.equal(resolved.log_odds(OUTPUTS), OUTPUTS[:, 1] - OUTPUTS[:, 2])


@pytest.mark.parametrize(
    "door",
    [
        partial(Task, "t"),
        partial(gx.wrap, nn.Linear(3, 1)),
        partial(gx.wrap, lambda smiles: 1.0, task="t"),
    ],
)
def test_a_regression_has_no_classes(door):
    with pytest.raises(ValueError, match="a regression has no classes: leave them out"):
        door(kind="regression", classes=("inactive", "active"))


def test_an_estimator_of_values_has_no_classes():
    line = LinearRegression().fit([[1.0], [2.0]], [1.0, 2.0])
    with pytest.raises(ValueError, match="a regression has no classes: leave them out"):
        gx.wrap(line, classes=("inactive", "active"), featurize=lambda mol: [1.0])


@pytest.mark.parametrize("door", [TaskSet, lambda tasks: gx.wrap(nn.Linear(3, 3), tasks)])
def test_tasks_have_different_names(door):
    with pytest.raises(ValueError, match="two tasks have the same name, 't'"):
        door([Task("t", "regression")] * 3)
    with pytest.raises(ValueError, match="two tasks have the same name, 'solubility'"):
        door((Task("solubility", "regression"), Task("solubility", "binary", ("no", "yes"))))
