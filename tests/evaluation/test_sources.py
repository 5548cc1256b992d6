"""A benchmark's graphs are those that a model, a data set or a table says they are."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from graphxai.contract.tasks import Task
from graphxai.evaluation import sources
from graphxai.evaluation.sources import BenchmarkSource, bace_part, ogb_part
from toy import random_graphormer

SERIES = BenchmarkSource("alkanes", {n: "C" * n for n in range(1, 9)}, {2: 0, 5: 1, 9: 1})


def test_a_sample_keeps_the_order_and_draws_by_its_seed():
    drawn = [SERIES.sample(5, seed) for seed in range(20)]
    for sample in drawn:
        assert list(sample.inputs) == sorted(sample.inputs)
        assert len(sample.inputs) == 5
    assert len({tuple(sample.inputs) for sample in drawn}) > 10
    assert set().union(*(sample.inputs for sample in drawn)) == set(SERIES.inputs)
    assert SERIES.sample(5, 3) == SERIES.sample(5, 3)


def test_a_sample_of_all_or_without_a_limit_is_the_whole_and_one_graph_is_the_least():
    for limit in (None, 8, 9):
        assert SERIES.sample(limit) is SERIES
    assert len(SERIES.sample(7).inputs) == 7
    assert len(SERIES.sample(1).inputs) == 1
    with pytest.raises(ValueError, match="at least one graph, not 0"):
        SERIES.sample(0)


def test_graphs_with_a_label_are_those_whose_key_has_one():
    assert list(SERIES.labelled().inputs) == [2, 5]


@pytest.mark.parametrize("chosen", [None, [0, 5], [-1], ["0"], 3])
def test_a_split_that_names_no_compounds_of_bace_is_refused(monkeypatch, chosen):
    graph = SimpleNamespace(smiles="CCO", y=np.array([[1.0, 6.0]]))
    monkeypatch.setattr("graphxai.evaluation.sources.load_bace", lambda root: [graph] * 5)
    model = random_graphormer()
    model.origin = replace(model.origin, metadata={"split": {"test": [4, 0]}})
    assert list(bace_part(model).labels.items()) == [(4, 1), (0, 1)]
    model.origin = replace(model.origin, metadata={"split": {"test": chosen}})
    with pytest.raises(ValueError, match="does not record which BACE compounds are its test set"):
        bace_part(model)


def test_the_only_task_of_a_data_set_may_have_another_name(monkeypatch):
    labels = np.array([[1.0], [np.nan], [0.0]])
    data = SimpleNamespace(
        tasks=("HIV_active",), kind="classification", labels=labels, smiles=("C", "CC", "CCC"),
        positions=lambda part: [2, 1, 0],
    )  # fmt: skip
    monkeypatch.setattr(sources, "load_ogb", lambda name, root: data)
    model = random_graphormer(tasks=(Task("activity", "binary", ("no", "yes")),))
    part = ogb_part(model, "ogbg-molhiv")
    assert part.inputs == {2: "CCC", 1: "CC", 0: "C"}
    assert part.labels == {2: 0, 0: 1}  # one was not measured
    data.kind = "regression"  # its numbers are no classes
    assert ogb_part(model, "ogbg-molhiv").labels == {}
    data.tasks = ("HIV_active", "toxic")
    with pytest.raises(ValueError, match="has no task 'activity'"):
        ogb_part(model, "ogbg-molhiv")


def test_the_true_atoms_of_a_row_are_numbers_of_its_atoms(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text('smiles,true\nCCO,"0, 2"\nCC,\nC1CC,0\n')
    truths = sources.table(path, truths="true").truths
    assert truths[1].tolist() == [True, False, True]
    assert 2 not in truths
    assert not truths[3].any()  # the SMILES cannot be read, and the row is rejected later
    for cell in ("3", "-1", "x", "0 1.5"):
        path.write_text(f"smiles,true\nCC,1\nCCO,{cell}\n")
        with pytest.raises(ValueError, match=f"row 2: '{cell}' .* numbers from 0 to 2"):
            sources.table(path, truths="true")
