"""What a card says of measured pairs equals a count by hand."""

from itertools import combinations

import numpy as np
import pytest
from rdkit import Chem

import graphxai as gx
from graphxai.contract.prediction_metrics import held_out_score, pairs_text
from graphxai.contract.tasks import Task
from graphxai.datasets.matched_pairs import matched_pairs as pairs_of
from graphxai.learning import measured_pairs as measured_pairs_module
from graphxai.learning.cleaning import clean_table
from graphxai.learning.measured_pairs import (
    Fold,
    change_scores,
    measured_pairs,
    pairs_to_judge,
    relevance_of_part,
)
from graphxai.learning.processes.process import learn_process
from graphxai.learning.table import split_table
from graphxai.learning.teachers import forests

TOLUENES = ["Cc1ccccc1", "Cc1ccc(Cl)cc1", "Cc1ccc(F)cc1", "CCCCCCCCCCCCO"]


def test_a_pair_has_a_molecule_of_the_test_part_or_lies_in_one_fold():
    with_test, within = pairs_to_judge(TOLUENES, [2], [[0, 1], [3]])
    assert {frozenset(p) for p in with_test} == {frozenset((0, 2)), frozenset((1, 2))}
    assert [{frozenset(p) for p in each} for each in within] == [{frozenset((0, 1))}, set()]
    every, _ = pairs_to_judge(TOLUENES, [0, 1, 2, 3])
    assert {frozenset(p) for p in every} == {
        frozenset((0, 1)),
        frozenset((0, 2)),
        frozenset((1, 2)),
    }
    assert pairs_to_judge(TOLUENES, [3], [[0], [1, 2]])[1][0] == {}


def test_figures_equal_a_computation_by_hand():
    """Of 20 changes 15 have the right sign, and one was measured as none."""
    measured = np.array([1.0] * 15 + [-1.0] * 4 + [0.0])
    predicted = np.array([0.5] * 15 + [0.5] * 4 + [1.0])
    scores = change_scores(measured, predicted)
    assert scores["n"] == 20
    assert scores["right"] == pytest.approx(15 / 19)
    assert scores["r"] == pytest.approx((7.5 - 2) / np.sqrt(19 * (19 / 4 + 1)))


def substituents(mol):
    """Return the atoms outside the ring by element."""
    return {atom.GetSymbol(): atom.GetIdx() for atom in mol.GetAtoms() if not atom.IsInRing()}


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    """A process of 56 benzenes with two substituents of an atom, which roughly make the value."""
    parts = {"C": 0.5, "Cl": 0.7, "F": 0.1, "N": -1.2, "O": -0.7, "Br": 0.9, "I": 1.1, "S": 0.3}
    noise = np.random.default_rng(0)
    rows = [
        (smiles, value + noise.normal() / 5)
        for (a, x), (b, y) in combinations(parts.items(), 2)
        for smiles, value in ((f"{a}c1ccc({b})cc1", x + y), (f"{a}c1cccc({b})c1", x + y))
    ]
    path = tmp_path_factory.mktemp("benzenes") / "table.csv"
    path.write_text("smiles,y\n" + "".join(f"{s},{v:.4f}\n" for s, v in rows))
    settings = gx.TableSettings(model="process", split="random", progress=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forests, "TREES", 5)
        source = split_table(clean_table(path, "smiles", ["y"]), settings)
        return source, learn_process(source, source.table.standardise, lambda line: None)


def test_pairs_within_a_fold_are_judged_by_the_model_that_saw_neither(learned, monkeypatch):
    """The predictions are those kept for intervals, and the atoms those without a partner."""
    monkeypatch.setattr(measured_pairs_module, "MOST_EXPLAINED", 10**6)
    asked, read = [], measured_pairs_module.task_readings
    monkeypatch.setattr(
        measured_pairs_module, "task_readings", lambda *of: asked.append(of[0]) or read(*of)
    )
    source, model = learned
    train, table, y = source.parts.train, source.table, source.y
    folds = [
        Fold([train[k] for k in fold], of_fold, [each[fold] for each in model.by_folds])
        for fold, of_fold in zip(source.folds, model.of_folds, strict=True)
    ]
    scores = measured_pairs(
        model.model, source.tasks, table.canonical, table.graphs, y, source.parts.test, folds
    )["y"]["of_folds"]
    assert asked == [model.model]  # what the folds' models say is known
    unseen = dict(zip(train, model.unseen[0].readings, strict=True))
    measured, predicted, at_change = [], [], []
    for fold in folds:
        chosen = sorted(fold.positions)
        molecules = [Chem.MolFromSmiles(table.canonical[k]) for k in chosen]
        kept = fold.model()
        for i, j in pairs_of(molecules):
            a, b = chosen[i], chosen[j]
            measured.append(y[b, 0] - y[a, 0])
            predicted.append(unseen[b] - unseen[a])
            before, after = (substituents(molecules[k]) for k in (i, j))
            (old,), (new,) = before.keys() - after.keys(), after.keys() - before.keys()
            at_change.append(
                gx.explain(kept, table.canonical[b], "occlusion").relevance[after[new]]
                - gx.explain(kept, table.canonical[a], "occlusion").relevance[before[old]]
            )
    measured, predicted, at_change = map(np.array, (measured, predicted, at_change))
    assert scores["n"] == len(measured) >= 20
    assert scores["r"] == pytest.approx(
        (measured * predicted).sum() / np.sqrt((measured**2).sum() * (predicted**2).sum()), abs=1e-4
    )
    assert scores["right"] == pytest.approx((measured * predicted > 0).mean(), abs=1e-9)
    relevance = scores["relevance"]["occlusion"]
    assert relevance["n"] == len(measured)
    assert relevance["r"] == pytest.approx(
        (measured * at_change).sum() / np.sqrt((measured**2).sum() * (at_change**2).sum()), abs=1e-3
    )


def test_hydrogen_and_molecules_that_are_read_otherwise_have_no_part():
    e = gx.explain("bace", "Cc1ccc(Cl)cc1", "occlusion")
    chlorine = next(a.GetIdx() for a in e.molecule.GetAtoms() if a.GetSymbol() == "Cl")
    assert relevance_of_part(e, "*c1ccc(C)cc1", "*Cl") == pytest.approx(e.relevance[chlorine])
    assert relevance_of_part(e, "*c1ccc(C)cc1", "*[H]") == 0
    assert np.isnan(relevance_of_part(e, "*c1ccc(C)cc1", "*F"))
    assert np.isnan(relevance_of_part(None, "*c1ccc(C)cc1", "*F"))


def test_pairs_of_which_both_were_tested_are_apart(monkeypatch):
    """A pair of two test molecules is in both counts, one with a learned molecule in the first."""
    monkeypatch.setattr(measured_pairs_module, "MOST_EXPLAINED", 0)
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
    relevance = {"kernel": {"n": 22, "r": 0.5, "right": 0.75}, "occlusion": {"n": 19}}
    first = {"n": 25, "r": 0.7, "right": 0.8, "relevance": relevance}
    assert pairs_text(first | {"both": {"n": 3}, "of_folds": {"n": 0}}) == (
        "changes in 25 measured pairs: r 0.70, 80% of signs right (relevance at the change: by"
        " kernel r 0.50, 75% right of 22; by occlusion no figure of 19); where both compounds were"
        " tested, 3 measured pairs, too few for a figure (at least 20); of training pairs within"
        " one held-out fold, 0 measured pairs, too few for a figure (at least 20)"
    )


def test_trust_says_them_beside_r2():
    pairs = {"n": 41, "r": 0.734, "right": 0.89}
    metadata = {"scores": {"pKi": {"scores": {"graphormer": {"R2": [0.7, 0.6, 0.8]}}}}}
    metadata["scores"]["pKi"]["pairs"] = pairs
    assert held_out_score(metadata, "pKi", is_class=False).figures == (
        "R2 0.70, at least 0.60 at 95 %; changes in 41 measured pairs: r 0.73, 89 % of signs right"
    ).replace("89 %", "89%")
