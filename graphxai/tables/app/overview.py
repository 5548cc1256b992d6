"""Return what the page shows of several properties, and of changes towards one or several goals."""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any

from graphxai.chemistry.desirability import PropertyProfile
from graphxai.chemistry.measurements import Measurements
from graphxai.chemistry.profile_text import read_profile
from graphxai.chemistry.search.changed_molecules import Counterfactual, ProfileCounterfactual
from graphxai.chemistry.search.counterfactual_results import Counterfactuals, ProfileCounterfactuals
from graphxai.chemistry.search.counterfactuals import search
from graphxai.chemistry.table_changes import judged_tables
from graphxai.contract.target import Target
from graphxai.explanation.api import predict
from graphxai.explanation.compute.models import ModelPanel
from graphxai.explanation.prediction import Prediction
from graphxai.tables.card import change_facts, prediction_facts, property_facts
from graphxai.tables.drawing import drawing
from graphxai.tables.settings import PREDICTIONS
from graphxai.visualization.text import minus_signs

from .page import read


def overview(
    panel: ModelPanel, smiles: Sequence[str], goal: str, *, drawn: bool = True
) -> dict[str, Any]:
    """Predict all properties of molecules, and say how desirable each is.

    Returns:
        A dict with the `properties` (their name, model, task and class of the goal), the `goals` in
        words, and for each of the `molecules` its drawing, a cell for each property and the overall
        desirability, or None for a molecule that no model can read.

    Args:
        goal: the goals, as `gx.profile` reads them, or "".
        drawn: whether to draw the molecules. One that is too large for the page is not drawn.

    Raises ValueError if the goal is not understood.
    """
    profile = read_profile(panel, goal) if goal else PropertyProfile(())
    labels = {each.of.name: each.label or "" for each in profile.goals}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the warnings only say which were left out
        predictions = predict(list(panel.models), list(smiles), progress=False) if smiles else []
    molecules: list[dict[str, Any] | None] = []
    for text, each in zip(smiles, predictions, strict=True):
        if each is None:
            molecules.append(None)
            continue
        score = profile.score(each)
        facts: dict[str, Any] = {"cells": property_facts(panel, each, score)}
        facts["desirability"] = score.overall if score.parts else None
        if drawn:
            facts["draw"] = None
            with suppress(ValueError):  # it is too large
                facts["draw"] = picture(text)
        molecules.append(facts)
    return {
        "properties": [
            [each.name, each.model, each.task.name, labels.get(each.name, "")]
            for each in panel.properties
        ],
        "goals": [*profile.explanation.split("\n")] if goal else [],
        "molecules": molecules,
    }


@lru_cache(maxsize=512)  # a search shows most of its molecules again after every batch
def picture(smiles: str) -> dict[str, Any]:
    """Return the drawing of a molecule without relevance."""
    return drawing(read(smiles))


def suggestions(
    models: Any,
    smiles: str,
    towards: str,
    target: Target,
    locked: Sequence[int],
    n: int,
    sure: bool = False,
    measured: Callable[[], Mapping[str, Measurements]] = dict,
) -> Iterator[dict[str, Any]]:
    """After each batch of predictions, yield the best changes of a molecule so far.

    Args:
        models: a model, or several for a goal over several properties.
        towards: what to predict, as in `graphxai.counterfactuals`.
        target: a class or value of a single goal's task. If it is a class, the value of each
            prediction is the probability of that class.
        sure: whether the models must be sure that the goals are met.
        measured: reads what was measured of each property. This takes seconds for a long table. So
            it is called after the search, and the last step says what it read.
    """
    read(smiles)
    options: dict[str, Any] = {"keep": list(locked), "predictions": PREDICTIONS, "sure": sure}
    for _, best in search(models, smiles, towards, n, **options):
        results = best()
        yield _suggested(results, label_of(target))
    if tables := measured():
        compared = {name: table for name, table in tables.items() if table.values}
        judged = judged_tables(ModelPanel.of(models), compared)
        last = _suggested(results.compared(judged) if compared else results, label_of(target))
        # the page adds the final full stop
        notes = " ".join(table.note for table in tables.values() if table.note).rstrip(".")
        yield last | {"summary": f"{last['summary']}. {notes}" if notes else last["summary"]}


def _suggested(
    results: Counterfactuals | ProfileCounterfactuals, label: str | None
) -> dict[str, Any]:
    if isinstance(results, Counterfactuals):
        label = label or results.explanation.prediction.label
    suggested = []
    for change in results:
        facts = change_facts(change) | {"draw": picture(change.smiles)}
        if isinstance(change, Counterfactual):  # a single goal is told in brief
            facts |= {
                "near": prediction_facts(change.prediction)["near"],
                "isomers": change.isomers_text,
                "within": minus_signs(change.change_range or change.prediction.range),
                **brief(change.prediction, label),
            }
        else:
            facts |= {
                "desirability": change.score.overall,
                "front": change.front,
                "properties": _before_and_after(change),
            }
        suggested.append(facts)
    about = {"summary": results.summary, "predicted": results.predicted, "most": PREDICTIONS}
    return about | {"found": suggested}


def brief(prediction: Prediction, label: str | None) -> dict[str, Any]:
    """Return a prediction as text, with its value or the probability of the class `label`."""
    facts = prediction_facts(prediction, label or prediction.label)
    return {name: facts[name] for name in ("text", "range", "value")}


def label_of(target: Target) -> str | None:
    """Return the class that is explained, or None if the target names none."""
    return target.choice if isinstance(target.choice, str) else None


def _before_and_after(change: ProfileCounterfactual) -> list[list[Any]]:
    """Return each property's name, and what is predicted after the change and before."""
    wished = {part.goal.of.name: part.goal for part in change.score.parts}
    rows = []
    for name, after in change.predictions.items():
        goal = wished.get(name)
        facts: list[dict[str, Any] | None] = []
        for prediction in (after, change.before.get(name)):
            if prediction is None:
                facts.append(None)
                continue
            of_property = prediction_facts(prediction, None if goal is None else goal.label)
            if goal is not None:
                of_property["desirability"] = goal.desirability(prediction)
            facts.append(of_property)
        rows.append([name, *facts])
    return rows
