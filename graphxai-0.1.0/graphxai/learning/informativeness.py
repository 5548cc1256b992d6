"""Say where intervals, or sets of classes, tell no more than a guess without a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphxai.contract.intervals import LEVEL
from graphxai.contract.tasks import Task

__all__ = ["guess_width", "uninformative"]

FloatArray = NDArray[np.float64]
FEW_SINGLE = 0.1  # a share of sets with a single class; with fewer they are little use


def guess_width(task: Task, y: FloatArray, level: float = LEVEL) -> float | None:
    """Return the width of the interval around the median that holds a share `level` of labels y.

    A guess without any model would need it. It is None for classes, and without labels.
    """
    labels = y[~np.isnan(y)]
    if task.kind != "regression" or not len(labels):
        return None
    return float(2 * np.quantile(np.abs(labels - np.median(labels)), level))


def uninformative(coverage: Any, units: Mapping[str, str] | None = None) -> list[str]:
    """Say for which tasks intervals, or sets of classes, are no better than a guess.

    The list is empty if the coverage does not have the form that `calibrate_readings` returns.

    Args:
        coverage: by task, from the metadata of a model.
        units: the unit of each task.
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
    shown = "infinite" if width is None else f"{f'{width:.3g} {unit}'.strip()} wide"
    return (
        f"the {level} intervals are no better than a guess: half of them are {shown} or more, and"
        f" {f'{guess:.3g} {unit}'.strip()} around the median of all labels would do"
    )
