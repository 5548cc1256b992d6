"""The comparison on MoleculeACE scores every test row and ranks methods as the authors measure."""

import moleculeace
import numpy as np
import pandas as pd
import pytest

from graphxai.learning import training
from graphxai.learning.teachers import choosing, forests

CORES = ["c1ccccc1", "c1ccncc1", "C1CCCCC1", "C1CCNCC1", "c1ccsc1"]
CHAINS = ["", "C", "CC", "OC", "NC", "CCC", "FC", "CO"]


class Fixed:
    """A prediction whose interval is as wide, in all, as twice its level."""

    def __init__(self, value, level=0.9):
        self.value, self.interval = value, (value - level, value + level)

    def at(self, level):
        return Fixed(self.value, level)


@pytest.fixture
def few_models(monkeypatch):
    """Make the teacher and what it teaches small."""
    monkeypatch.setattr(forests, "TREES_OF_VALUES", 20)
    monkeypatch.setattr(choosing, "NOISES", (0.1,))
    monkeypatch.setattr(training, "RECOMBINED", 4)


def test_a_run_scores_the_network_and_its_teacher_on_every_test_row(tmp_path, few_models):
    pytest.importorskip("lightning")
    smiles = [chain + core for core in CORES for chain in CHAINS]
    rows = pd.DataFrame({"smiles": smiles, "y": [float(len(text)) for text in smiles]})
    rows["cliff_mol"] = [k % 2 for k in range(40)]
    rows["split"] = ["test" if k % 4 == 0 else "train" for k in range(40)]
    rows.loc[44] = ["OCc1ccccc1", 30.0, 1, "test"]  # the molecule of row 3 in another spelling
    rows.to_csv(tmp_path / "CHEMBL1_Ki.csv", index=False)
    run = moleculeace.run_table(tmp_path / "CHEMBL1_Ki.csv", 0, tmp_path / "out", epochs=1)
    assert (run["table"], run["train"], run["test"]) == ("CHEMBL1_Ki", 30, 11)
    assert set(run["scores"]) == {"network", "teacher"}
    for scores in run["scores"].values():
        assert scores["cliff_rmse"] > scores["rmse"] > 2  # the last row is far off
    assert list(run["intervals"]) == ["0.5", "0.8", "0.9", "0.95"]
    held = [each["held"] for each in run["intervals"].values()]
    assert held == sorted(held)
    assert held[-1] <= 10 / 11  # no interval reaches as far as the last row
    assert sum(number for number, _ in run["errors_by_distance"].values()) == 11


def test_ranks_and_differences_are_those_of_the_authors_measures(tmp_path):
    names = [f"CHEMBL{k}_Ki" for k in range(6)]
    methods = [("SVM", "ECFP", 0.70), ("CheMeleon", "pre-trained graph", 0.60)]
    published = pd.DataFrame(
        [name, *method[:2], method[2] + 0.01 * k, method[2] + 0.1]
        for k, name in enumerate(names)
        for method in methods
    )
    published.columns = ["dataset", "algorithm", "descriptor", "rmse", "cliff_rmse"]
    published.to_csv(tmp_path / "published.csv", index=False)
    published = moleculeace.published_scores(tmp_path / "published.csv")
    runs = [
        {
            "table": name, "seed": seed, "seconds": 1, "train": 9, "test": 3,
            "scores": {
                "network": {"rmse": 0.65 + 0.01 * k + 0.02 * seed, "cliff_rmse": 0.6},
                "teacher": {"rmse": 0.5, "cliff_rmse": 0.5},
            },
        }
        for k, name in enumerate(names)
        for seed in (0, 1)
    ]  # fmt: skip
    scores = moleculeace.joined_scores(runs, published)
    assert moleculeace.rank(scores, "rmse").tolist() == [2] * 6
    assert moleculeace.rank(scores, "cliff_rmse").tolist() == [1] * 6
    gap, better, n, p_value = moleculeace.comparison(scores, "SVM, ECFP", "rmse")
    assert (gap, better, n) == (pytest.approx(0.66 - 0.70), 6, 6)
    assert p_value == pytest.approx(2 / 2**6)  # all of six differences have one sign
    assert "| mean |  | 0.685 / 0.600 |" in moleculeace.report(runs, published)
    assert moleculeace.measured(np.zeros(2), np.array([3.0, 4.0]), np.array([False, True])) == {
        "rmse": pytest.approx(12.5**0.5), "cliff_rmse": 4.0,
    }  # fmt: skip


def test_intervals_are_compared_with_the_width_that_would_do():
    y = np.array([0.0, 1.0, 2.0, 3.0])
    predictions = [Fixed(value) for value in (0.5, 1.5, 2.0, 5.0)]  # off by .5, .5, 0 and 2
    measured = moleculeace.measured_intervals(predictions, y)
    assert measured["0.5"] == {"held": 0.75, "width": 1.0, "would_do": 1.0}
    assert measured["0.95"]["held"] == 0.75
    assert measured["0.95"]["width"] == pytest.approx(1.9)
    errors = {"good": (3, 0.2), "warning": (1, 2.0)}
    run = {"table": "A", "intervals": measured, "errors_by_distance": errors}
    lines = moleculeace._intervals_and_errors([run, {"table": "B"}])
    assert "| 0.5 | 75.0% | 75% to 75% | 1.00 |" in lines
    assert "| good | 3 | 0.31 |" in lines  # 0.2 over the mean of 0.65
    assert "| warning | 1 | 3.08 |" in lines


def test_a_repeated_run_takes_the_place_of_the_first(tmp_path):
    runs = [{"table": "B", "seed": 0, "test": 1}, {"table": "A", "seed": 1}]
    moleculeace.keep(runs, tmp_path / "results.json")
    kept = moleculeace.keep([{"table": "B", "seed": 0, "test": 2}], tmp_path / "results.json")
    assert kept == [{"table": "A", "seed": 1}, {"table": "B", "seed": 0, "test": 2}]
