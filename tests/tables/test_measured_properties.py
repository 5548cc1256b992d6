"""Measured and predicted values of a report's other properties, apart by what the models know."""

from types import SimpleNamespace

from graphxai.contract.tasks import Task
from graphxai.tables.report.properties import agreements

NEARNESS = ("training compound", "inside", "at its edge", "far", "unknown")


def record(near, measured, part=""):
    """Return what a report knows of a molecule with one property, predicted at 1."""
    return {"part": part, "known": [[1.0, "", (measured, str(measured)), None, near]]}


def groups_of(place, molecules):
    solubility = Task("solubility", "regression")
    panel = SimpleNamespace(
        properties=[SimpleNamespace(place=place, task=solubility, name="logS")],
    )
    (agreed,) = agreements(panel, {"solubility": "measured"}, "activity", molecules)
    return {part: count for part, _, count, _ in agreed["groups"]}


def test_only_training_compounds_are_counted_as_training_whatever_else_is_near():
    molecules = [record(near, 1.5) for near in NEARNESS]
    assert groups_of(1, molecules) == {"training": 1, "": 4}


def test_the_part_of_a_split_is_that_of_the_first_model_alone():
    """Another model was trained on another table, whose split the first one's does not say."""
    molecules = [record("inside", 1.5, part="test"), record("inside", 1.5)]
    assert groups_of(0, molecules) == {"test": 1, "": 1}
    assert groups_of(1, molecules) == {"": 2}
