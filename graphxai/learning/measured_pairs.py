"""Compare what a model predicts for a change with what was measured, in matched pairs of a table.

R2 mostly says whether a model tells series apart. A chemist asks about one exchange.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from rdkit import Chem

from graphxai.contract.prediction_metrics import FEWEST_PAIRS, FloatArray
from graphxai.contract.tasks import Task
from graphxai.datasets.matched_pairs import HYDROGEN, MatchedPair, matched_pairs, single_bond_cuts
from graphxai.datasets.molecules import read_once
from graphxai.explainers.registry import default_method
from graphxai.explanation.api import explain
from graphxai.learning.predicting import task_readings

Pairs = dict[tuple[int, int], MatchedPair]
MOST_COMPARED = 10_000  # molecules among which pairs are looked for, the test part first
MOST_EXPLAINED = 60  # pairs of either kind whose compounds are explained, drawn at random


class Fold(NamedTuple):
    """Training molecules that were held out together.

    Args:
        positions: which molecules of the table they are (k,).
        model: returns the model that learned from none of them.
        readings: by task, what that model predicts for them (k,).
    """

    positions: Sequence[int]
    model: Callable[[], Any]
    readings: Sequence[FloatArray]


def pairs_to_judge(
    smiles: Sequence[str], test: Collection[int], folds: Sequence[Collection[int]] = ()
) -> tuple[Pairs, list[Pairs]]:
    """Return the matched pairs with a molecule of the test part, and those within each fold.

    Args:
        smiles: n molecules.
        folds: positions of the training molecules that were held out together.
    """
    tested, fold_of = set(test), dict[int, int]()
    for number, fold in enumerate(folds):
        fold_of |= dict.fromkeys(fold, number)
    order = sorted(range(len(smiles)), key=lambda k: k not in tested)[:MOST_COMPARED]
    held = [fold_of.get(k, -1) for k in order]
    count = len(tested)  # pairs have i < j, and the test part comes first
    matched = matched_pairs(
        [Chem.MolFromSmiles(smiles[k]) for k in order],
        lambda i, j: i < count or held[i] == held[j] >= 0,
    )
    with_test: Pairs = {}
    within: list[Pairs] = [{} for _ in folds]
    for (i, j), pair in matched.items():
        (with_test if i < count else within[held[i]])[order[i], order[j]] = pair
    return with_test, within


def change_scores(measured: FloatArray, predicted: FloatArray) -> dict[str, Any]:
    """Compare measured with predicted changes (n,), which may be those of either direction.

    Returns:
        JSON values: `n`; and from `FEWEST_PAIRS` on, `r`, the correlation around no change, which
        does not depend on the direction of any pair, and `right`, the share of right signs among
        the pairs with a measured change. They are left out where they are not defined.
    """
    scores: dict[str, Any] = {"n": len(measured)}
    size = np.sqrt((measured @ measured) * (predicted @ predicted))
    if len(measured) >= FEWEST_PAIRS and size:
        changed = measured != 0
        right = np.sign(measured[changed]) == np.sign(predicted[changed])
        scores |= {"r": float(measured @ predicted / size), "right": float(right.mean())}
    return scores


def measured_pairs(
    model: Any,
    tasks: Sequence[Task],
    smiles: Sequence[str],
    graphs: Sequence[Any],
    y: FloatArray,
    test: Collection[int],
    folds: Sequence[Fold] = (),
) -> dict[str, dict[str, Any]]:
    """Return `change_scores` of each regression for matched pairs that were not learned from.

    Pairs with a molecule of the test part are those of `model`. The value of a training molecule is
    half known, which helps, so `both` has the scores of the pairs of which both molecules were
    tested. `of_folds` has those of training pairs within a fold, as the fold's model predicts them.

    Both kinds have `relevance`, by method: the relevance at the exchanged part, of the second
    molecule minus the first, compared with the measured change in at most `MOST_EXPLAINED` pairs.

    Args:
        smiles: n molecules.
        y: the labels (n, tasks), NaN where one is missing.
        folds: the folds of the training part, if the model has any.
    """
    if all(task.kind != "regression" for task in tasks):
        return {}
    with_test, within = pairs_to_judge(smiles, test, [fold.positions for fold in folds])
    scores, tested = {}, set(test)
    paired = sorted({row for pair in with_test for row in pair})
    tested_part = Fold(paired, lambda: model, task_readings(model, [graphs[k] for k in paired]))
    by_model, of_folds = (defaultdict[str, _Changes](_Changes) for _ in range(2))
    _add_changes(by_model, tested_part, with_test, MOST_EXPLAINED, tasks, smiles, y)
    for fold, pairs in zip(folds, within, strict=True):
        share = -(-MOST_EXPLAINED * len(pairs) // max(sum(map(len, within)), 1))
        if pairs:
            _add_changes(of_folds, fold, pairs, share, tasks, smiles, y)
    for name, changes in by_model.items():
        scores[name] = changes.scores()
        both = [k for k, pair in enumerate(changes.pairs) if tested.issuperset(pair)]
        scores[name]["both"] = change_scores(
            np.array(changes.measured)[both], np.array(changes.predicted)[both]
        )
        if folds:
            scores[name]["of_folds"] = of_folds[name].scores()
    return scores


@dataclass(eq=False)
class _Changes:
    """Measured and predicted changes of pairs, and for some of them the relevance at the change.

    Attributes:
        measured, predicted: the changes from the first to the second molecule.
        at_change: by method, the measured change of a pair and its relevance at the change.
    """

    pairs: list[tuple[int, int]] = field(default_factory=list)
    measured: list[float] = field(default_factory=list)
    predicted: list[float] = field(default_factory=list)
    at_change: dict[str, list[tuple[float, float]]] = field(default_factory=dict)

    def scores(self) -> dict[str, Any]:
        """Return the scores of the predictions, and of the relevance by method."""
        by_method = {
            method: change_scores(*np.array(values).reshape(-1, 2).T)
            for method, values in self.at_change.items()
        }
        scores = change_scores(np.array(self.measured), np.array(self.predicted))
        return scores | ({"relevance": by_method} if by_method else {})


def _add_changes(
    changes: defaultdict[str, _Changes], fold: Fold, pairs: Pairs, explained: int,
    tasks: Sequence[Task], smiles: Sequence[str], y: FloatArray,
) -> None:  # fmt: skip
    """Add the changes of each regression in a fold, with the relevance of some pairs."""
    model, rows = fold.model(), np.array(list(pairs), dtype=int).reshape(-1, 2)
    place = {position: k for k, position in enumerate(fold.positions)}
    first, second = (np.array([place[k] for k in side], dtype=int) for side in rows.T.tolist())
    for task, predicted, labels in zip(tasks, fold.readings, y.T, strict=True):
        if task.kind != "regression":
            continue
        measured = labels[rows[:, 1]] - labels[rows[:, 0]]
        known = np.flatnonzero(np.isfinite(measured))
        chosen = [tuple(pair) for pair in rows[known].tolist()]
        change = (predicted[second] - predicted[first])[known]
        of_task, values = changes[task.name], measured[known].tolist()
        of_task.pairs += chosen
        of_task.measured += values
        of_task.predicted += change.tolist()
        if min(len(chosen), explained) and MOST_EXPLAINED:
            drawn = np.random.default_rng(0).permutation(len(chosen))[:explained]
            shown = {chosen[k]: values[k] for k in drawn}
            _add_relevance(of_task.at_change, model, smiles, task.name, pairs, shown)


def _add_relevance(
    at_change: dict[str, list[tuple[float, float]]],
    model: Any,
    smiles: Sequence[str],
    task: str,
    pairs: Pairs,
    shown: Mapping[tuple[int, int], float],
) -> None:
    """Add measured changes and relevance at the exchanged part, by method."""
    rows = sorted({row for pair in shown for row in pair})
    options: Any = {"target": task, "progress": False}
    methods: dict[Any, None] = dict.fromkeys((default_method(model), "occlusion"))
    with read_once():
        of_methods = [
            explain(model, [smiles[k] for k in rows], name, **options) for name in methods
        ]
    for method, explanations in zip(methods, of_methods, strict=True):
        of_row = dict(zip(rows, explanations, strict=True))
        values = at_change.setdefault(method, [])
        for (a, b), measured in shown.items():
            core, exchange = pairs[a, b].core, pairs[a, b].exchange
            before = relevance_of_part(of_row[a], core, exchange.old)
            after = relevance_of_part(of_row[b], core, exchange.new)
            if np.isfinite(after - before):
                values.append((measured, after - before))


def relevance_of_part(explanation: Any, core: str, part: str) -> float:
    """Return the summed relevance of a part at one bond of a core, both as SMILES with `*`.

    Hydrogen has none. It is NaN if the molecule was not explained, or is read as another one, whose
    part cannot be found.
    """
    if part == HYDROGEN:
        return 0.0
    if explanation is None or (molecule := explanation.molecule) is None:
        return float("nan")
    for cut in single_bond_cuts(molecule):
        # parts are smaller than cores, and so written faster
        if cut.part_smiles(molecule) == part and cut.core_smiles(molecule) == core:
            return float(explanation.relevance[list(cut.part)].sum(dtype=np.float64))
    return float("nan")
