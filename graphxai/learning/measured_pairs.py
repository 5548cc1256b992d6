"""Compare what a model predicts for a change with what was measured, in matched pairs of a table.

R2 mostly says whether a model tells series apart. A chemist asks about one exchange.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rdkit import Chem

from graphxai.contract.held_out_score import FEWEST_PAIRS
from graphxai.contract.tasks import Task
from graphxai.datasets.matched_pairs import matched_pairs
from graphxai.learning.predicting import task_readings

MOST_COMPARED = 10_000  # molecules among which pairs are looked for, the test part first


def pairs_with_test_part(smiles: Sequence[str], test: Collection[int]) -> list[tuple[int, int]]:
    """Return the matched pairs of molecules of which at least one is in the test part."""
    tested = set(test)
    order = sorted(range(len(smiles)), key=lambda k: k not in tested)[:MOST_COMPARED]
    molecules = [Chem.MolFromSmiles(smiles[k]) for k in order]
    count = len(tested)  # pairs have i < j, and the test part comes first
    return [(order[i], order[j]) for i, j in matched_pairs(molecules, lambda i, j: i < count)]


def change_scores(measured: NDArray[np.float64], predicted: NDArray[np.float64]) -> dict[str, Any]:
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
    y: NDArray[np.float64],
    test: Collection[int],
) -> dict[str, dict[str, Any]]:
    """Return `change_scores` of each regression, for the pairs with a molecule of the test part.

    The value of a training molecule is half known, which helps. So `both` has the scores of the
    pairs of which both molecules were tested.

    Args:
        model: the model.
        tasks: what it predicts.
        smiles: n molecules.
        graphs: their graphs.
        y: their labels (n, tasks), NaN where one is missing.
        test: positions of the test part.
    """
    if all(task.kind != "regression" for task in tasks):
        return {}
    pairs = np.array(pairs_with_test_part(smiles, test), dtype=int).reshape(-1, 2)
    used, places = np.unique(pairs, return_inverse=True)
    readings = task_readings(model, [graphs[k] for k in used.tolist()])
    scores = {}
    for task, predicted, labels in zip(tasks, readings, y.T, strict=True):
        if task.kind == "regression":
            measured = labels[pairs[:, 1]] - labels[pairs[:, 0]]
            first, second = places.reshape(-1, 2).T
            known = np.isfinite(measured)
            change = predicted[second] - predicted[first]
            both = known & np.isin(pairs, list(test)).all(axis=1)
            scores[task.name] = change_scores(measured[known], change[known])
            scores[task.name]["both"] = change_scores(measured[both], change[both])
    return scores
