"""Replicates say how exact values are, and so what any model can reach."""

import csv
import json
import math
from itertools import pairwise

import numpy as np
import pytest

from graphxai.learning.cleaning import clean_table
from graphxai.learning.run import REPLICATES, replicate_rows, train_table

SD = 0.3


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """Write 40 alcohols and amines, of which every second one was measured twice."""
    path = tmp_path_factory.mktemp("noise") / "assay.csv"
    rng = np.random.default_rng(0)
    rows = []
    for n in range(1, 21):
        for k, smiles in enumerate((f"{'C' * n}O", f"{'C' * n}N")):
            for _ in range(2 - k):
                rows.append((smiles, 5 + 0.1 * n + k + rng.normal(0, SD)))
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("smiles", "pIC50"), *rows])
    return path, rows


def test_the_noise_is_the_pooled_standard_deviation_of_replicates(table):
    path, rows = table
    (target,) = clean_table(path, None, ["pIC50"]).targets
    pairs = [(a, b) for (s, a), (t, b) in pairwise(rows) if s == t]
    assert len(pairs) == 20
    expected = math.sqrt(sum((a - b) ** 2 / 2 for a, b in pairs) / len(pairs))
    assert target.noise == pytest.approx(expected)
    assert f"sd of replicates {expected:.2g}" in str(target)


def test_the_card_says_what_replicates_let_a_model_reach(table, tmp_path):
    path, _ = table
    clean = clean_table(path, None, ["pIC50"])
    folder = train_table(clean, tmp_path / "run", split="random", model="process", progress=False)
    stored = json.loads((folder / "scores.json").read_text())
    reached = stored["scores"]["pIC50"]["reachable"]
    test = [clean.rows.index(row) for row in stored["split"]["test_rows"]]
    written = [smiles for smiles, _ in table[1]]
    y, counts = clean.y[test, 0], np.array([written.count(clean.graphs[k].smiles) for k in test])
    noise = clean.targets[0].noise ** 2 * np.mean(1 / counts)
    assert reached == pytest.approx(1 - noise / np.var(y))
    card = (folder / "README.md").read_text()
    assert f"| reachable, by replicates | {reached:.3f} |" in card
    assert "**Noise.**" in card


def test_replicates_that_are_worse_than_other_values_bound_nothing(tmp_path):
    path = tmp_path / "t.csv"
    exact = [f"{'C' * n}O,{n}" for n in range(1, 61)]
    path.write_text("\n".join(["smiles,y", *exact, "CCO,90", "CCO,-80", ""]), encoding="utf-8")
    clean = clean_table(path, "smiles", ["y"])
    folder = train_table(clean, tmp_path / "run", split="random", model="process", progress=False)
    scores = json.loads((folder / "scores.json").read_text())["scores"]["y"]
    assert scores["scores"]["graphormer"]["R2"][0] > 0.5
    assert "reachable" not in scores
    assert "**Noise.**" not in (folder / "README.md").read_text()


def test_every_conflict_has_its_own_difference(tmp_path):
    path = tmp_path / "t.csv"
    rows = [(f"{'C' * n}O", n) for n in range(1, 25)]
    rows += [("OC", 1.5), ("OCC", 9.0), ("C[C@H](F)Cl", 1), ("C[C@@H](F)Cl", 4)]
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("smiles", "y"), *rows])
    table = clean_table(path, None, ["y"])
    table.save(tmp_path)
    with (tmp_path / "hygiene.csv").open() as file:
        said = {int(r["row"]): r for r in csv.DictReader(file) if "different" in r["check"]}
    assert said[1]["reason"] == "values 1, 1.5; they differ by 0.5"
    assert said[2]["reason"] == "values 2, 9; they differ by 7"
    assert {row["done"] for row in said.values()} == {"median taken"}
    isomers = next(f for f in table.findings if f.check == "stereoisomers of another row")
    assert isomers.rows[0].reason.endswith("only in stereochemistry; y differs by 3")


def rows_of(folder, targets):
    (folder / REPLICATES).write_text(json.dumps({"seeds": [0, 1], "targets": targets}))
    ((header, *table),) = replicate_rows(folder)
    assert {len(row) for row in table} == {len(header)}
    return [(name, cells[0]) for name, _, *cells in table]


def test_a_mean_of_replicates_is_of_one_metric_and_of_the_targets_that_all_of_them_score(tmp_path):
    """A random split may leave a target without a label, or with one class, in one test part."""
    nothing, undefined = {"metric": "", "values": {}}, {"graphormer": None}
    r2 = [nothing, {"metric": "R2", "values": {"graphormer": 0.2}}]
    auc = [{"metric": "ROC-AUC", "values": {"graphormer": value}} for value in (0.7, 0.9)]
    one_class = [auc[0], {"metric": "ROC-AUC", "values": undefined}]
    spread = "0.800 ± 0.141"
    assert rows_of(tmp_path, {"y": r2, "a": auc, "b": one_class, "c": [nothing] * 2}) == [
        ("mean of 1 target", spread),
        *[("y", "–"), ("a", spread), ("b", "–"), ("c", "–")],
    ]
    (header, *_) = replicate_rows(tmp_path)[0]
    assert header == ["mean and spread of 2 replicates", "score", "this model"]  # no empty column


def test_trainings_of_several_targets_have_a_mean_over_them_and_those_of_one_have_not(tmp_path):
    def rows(targets):
        by_seed = [{"metric": "R2", "values": {"graphormer": value}} for value in (0.4, 0.6)]
        return rows_of(tmp_path, dict.fromkeys("ab"[:targets], by_seed))

    spread = "0.500 ± 0.141"  # of 0.4 and 0.6
    assert rows(1) == [("a", spread)]
    assert rows(2) == [("mean of 2 targets", spread), ("a", spread), ("b", spread)]
