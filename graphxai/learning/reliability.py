"""Say how far to rely on a model: by its scores and intervals on data that it has not seen.

They are read from its metadata. The last functions find out whether weights have seen the labels of
a table.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from graphxai.contract.prediction_metrics import FloatArray, roc_auc
from graphxai.contract.tasks import Task, TaskSet

if TYPE_CHECKING:
    from graphxai.learning.cleaned_table import TargetColumn

FEW_SINGLE = 0.1  # a share of sets with a single class; with fewer they are little use
MIN_LABELS = 50  # to recognise labels that the starting weights have seen
# The limits were measured with the bundled weights `molecules`. On 500 molecules that they learned
# from, r2 is 0.94 and 0.97 (two tasks) and the ROC-AUC 0.982 to 1.000 (five tasks). On the same
# columns, the best read-out of another task reaches 0.51 and 0.923, and on BACE, which they have
# not seen, 0.05 and 0.60.
SEEN_ROC_AUC, SEEN_R2 = 0.97, 0.9
RIVALS = {  # simple models that a network should not be worse than
    "forest": "a random forest",
    "descriptor_forest": "a random forest with descriptors",
    "gin": "a GIN of the same budget",
    "feature_forest": "a random forest on mean features",
    "neighbour_forest": "a random forest on the features of a node and its neighbours",
}


def bound_notes(scores: Mapping[str, Any]) -> list[str]:
    """Say how many test molecules with a bound are predicted within it, from `kept_bounds`."""
    return [
        f"of {kept['n']:,} test molecules of which only a bound is known, this model predicts"
        f" {kept['kept']['graphormer']:.0%} within it for {name}"
        for name, target_scores in scores.items()
        if (kept := target_scores.get("bounds"))
    ]


def reachable(
    targets: Sequence[TargetColumn], y: FloatArray, counts: FloatArray | None
) -> dict[str, float]:
    """Return the R2 of a model that knows all true values, by target with replicates.

    Where a model does better, the replicates were worse than the other values, and it is not said.

    It is 1 - s2 m / v: s is the standard deviation of replicates, m the mean of 1 / n over the
    labels (N, tasks), each the median of n values (counts), and v their variance.
    """
    reached = {}
    for k, target in enumerate(targets):
        known = ~np.isnan(y[:, k])
        if not target.noise or counts is None or len(set(y[known, k])) < 2:
            continue
        noise = target.noise**2 * np.mean(1 / counts[known, k])
        reached[target.name] = max(0.0, 1 - float(noise / np.var(y[known, k])))
    return reached


def verdicts(scores: Mapping[str, Any]) -> list[str]:
    """Warn of targets that a dummy, or else the best rival, predicts better on the test part.

    Of classes that the test part does not tell apart, nothing is known, and that is said, too.

    Args:
        scores: by target, as from `measure`. The first metric decides: ROC-AUC, or R2.
    """
    warnings = [f"this model is {text}: do not use it" for text in useless_tasks(scores)]
    for name, target_scores in scores.items():
        model, dummy = (_leading(target_scores, key) for key in ("graphormer", "dummy"))
        best = max(RIVALS, key=lambda key: _leading(target_scores, key, -math.inf))
        rival = _leading(target_scores, best)
        tested = target_scores.get("tested", "molecules")
        if math.isnan(model) and target_scores.get("n") and target_scores["kind"] != "regression":
            warnings.append(
                f"the test {tested} with a label of {name} are all of one class: the scores do not"
                " say whether this model tells the classes apart"
            )
        if model < dummy or not model < rival:
            continue
        metric, difference = next(iter(target_scores["differences"][best].items()))
        high = difference[2]
        chance = "" if high is not None and high < 0 else "; the difference may be due to chance"
        warnings.append(
            f"this model is worse than {RIVALS[best]} for {name}"
            f" ({metric} {model:z.2f} against {rival:z.2f} on test {tested}{chance})"
        )
    return warnings


def teacher_ahead(scores: Mapping[str, Any]) -> list[str]:
    """Name the targets that the teacher predicts better than the model, by more than the error.

    Args:
        scores: by target, as from `measure`. The first metric decides: ROC-AUC, or R2.
    """
    notes = []
    for name, target_scores in scores.items():
        difference = target_scores.get("differences", {}).get("teacher")
        if not difference:
            continue
        metric, (_, _, high) = next(iter(difference.items()))
        if high is not None and high < 0:
            teacher, network = (_leading(target_scores, key) for key in ("teacher", "graphormer"))
            notes.append(
                f"the teacher predicts {name} better than this model on the test molecules"
                f" ({metric} {teacher:.3f} against {network:.3f}): --model process makes a part"
                " of it a model of its own"
            )
    return notes


def useless_tasks(scores: Any) -> list[str]:
    """Name the tasks for which a model is worse than a dummy, from the scores in its metadata.

    The list is empty if the scores do not have the form that `measure` returns.
    """
    useless = []
    for name, target_scores in scores.items() if isinstance(scores, Mapping) else ():
        model, dummy = (_leading(target_scores, key) for key in ("graphormer", "dummy"))
        if model < dummy:
            regression = target_scores.get("kind") == "regression"
            metric = "R2" if regression else "ROC-AUC"
            dummy_name = "the training mean" if regression else "the class frequencies"
            tested = target_scores.get("tested", "molecules")
            figures = f"{metric} {model:z.2f} against {dummy:z.2f} on test {tested}"
            useless.append(f"worse than predicting {dummy_name} of {name} ({figures})")
    return useless


def _leading(target_scores: Any, predictor: str, undefined: float = math.nan) -> float:
    """Return a predictor's first score for a target. An undefined NaN fails every comparison."""
    try:
        value = next(iter(target_scores["scores"][predictor].values()))[0]
    except (AttributeError, IndexError, KeyError, StopIteration, TypeError):
        return undefined
    return float(value) if isinstance(value, int | float) else undefined


def uninformative(coverage: Any, units: Mapping[str, str] | None = None) -> list[str]:
    """Say for which tasks intervals, or sets of classes, are no better than a guess.

    The list is empty if the coverage does not have the form that `calibrate_readings` returns.

    Args:
        coverage: by task, from the metadata of a model.
    """
    lines = []
    for name, of_task in coverage.items() if isinstance(coverage, Mapping) else ():
        try:
            text = _uninformative(of_task, (units or {}).get(name, ""))
        except (AttributeError, KeyError, TypeError, ValueError):
            continue
        lines += [f"for {name}, {text}"] if text else []
    return lines


def _uninformative(of_task: Mapping[str, Any], unit: str) -> str:
    """Return why a task's intervals or sets are no better than a guess, or ""."""
    level = f"{100 * of_task['level']:.0f} %"
    if "single" in of_task:
        if of_task["single"] > FEW_SINGLE:
            return ""
        return (
            f"{1 - of_task['single']:.0%} of the {level} sets name more than one class: they are"
            " little better than a guess"
        )
    width, guess = of_task["width"], of_task["guess"]
    if guess is None or (width is not None and width < guess):
        return ""
    shown = "infinite" if width is None else f"{f'{width:.3g} {unit}'.strip()} wide or more"
    return (
        f"the {level} intervals are no better than a guess: half of them are {shown}, and"
        f" {f'{guess:.3g} {unit}'.strip()} around the median of all labels would do"
    )


def labels_met(
    targets: Sequence[TargetColumn], y: FloatArray, tasks: Sequence[Task], outputs: FloatArray
) -> list[str]:
    """Give reasons to suspect that a model was trained on labels y (n, targets), NaN where missing.

    There is one reason for each suspicious column. Columns with fewer than 50 labels or more than
    two classes are recognised only by name.

    Args:
        tasks: the tasks of the model.
        outputs: what it predicts for the molecules (n, columns), all tasks side by side.
    """
    names = {task.name for task in tasks}
    reasons = []
    for k, target in enumerate(targets):
        if target.name in names:
            reasons.append(f"{target.name!r} (a label of that name)")
            continue
        labelled = ~np.isnan(y[:, k])
        if labelled.sum() < MIN_LABELS or len(target.classes) > 2:
            continue
        labels = y[labelled, k]
        reason = _suspicious_output(tasks, outputs[labelled], labels, target)
        if reason:
            reasons.append(f"{target.name!r} ({reason})")
    return reasons


def _suspicious_output(
    tasks: Sequence[Task], outputs: FloatArray, y: FloatArray, target: TargetColumn
) -> str:
    """Describe the task whose output predicts labels y (n,) too well for unseen ones, or return "".

    Args:
        outputs: (n, columns) of all tasks side by side.
    """
    reason, best = "", 0.0
    for task, columns in zip(tasks, TaskSet(tuple(tasks)).columns, strict=True):
        column = outputs[:, columns.start]
        if task.num_outputs > 1 or column.std() == 0 or y.std() == 0:
            continue
        if target.classes:
            score = roc_auc(column, y)
            score, limit, metric = max(score, 1 - score), SEEN_ROC_AUC, "ROC-AUC"
        else:
            score, limit, metric = np.corrcoef(column, y)[0, 1] ** 2, SEEN_R2, "r2"
        if score >= max(limit, best):
            reason = f"its read-out {task.name!r} predicts it with {metric} {score:.3f}"
            best = score
    return reason
