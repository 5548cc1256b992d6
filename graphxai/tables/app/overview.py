"""Return what the page shows of several properties: predictions of all models, and desirability."""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from rdkit import Chem

from graphxai.api import predict
from graphxai.chemistry.counterfactuals import search
from graphxai.chemistry.desirability import PropertyProfile
from graphxai.chemistry.measurements import Measurements, measured_change, sentence_about
from graphxai.chemistry.profile_results import ProfileCounterfactual, ProfileCounterfactuals
from graphxai.chemistry.profile_text import read_profile
from graphxai.evaluation.trust.distance import distance_of
from graphxai.explanation.compute.panel import ModelPanel
from graphxai.explanation.prediction import Prediction
from graphxai.tables.report.drawing import drawing
from graphxai.tables.report.records import rounded
from graphxai.visualization.text import minus_signs

from .reading import PREDICTIONS, read


def overview(
    panel: ModelPanel, smiles: Sequence[str], goal: str, *, drawn: bool = True
) -> dict[str, Any]:
    """Predict all properties of molecules, and say how desirable each is.

    Returns:
        A dict with the `properties` (their name, model, task and class of the goal), the `goals` in
        words, and for each of the `molecules` its drawing, a cell for each property and the overall
        desirability, or None for a molecule that no model can read.

    Args:
        panel: the models.
        smiles: the molecules.
        goal: the goals, as `gx.profile` reads them, or "".
        drawn: whether to draw the molecules. One that is too large for the page is not drawn.

    Raises:
        ValueError: the goal is not understood.
    """
    profile = read_profile(panel, goal) if goal else PropertyProfile(())
    labels = {each.of.name: each.label or "" for each in profile.goals}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the warnings only say which were left out
        predictions = predict(list(panel.models), list(smiles), progress=False) if smiles else []
    return {
        "properties": [
            [each.name, each.model, each.task.name, labels.get(each.name, "")]
            for each in panel.properties
        ],
        "goals": [*profile.explanation.split("\n")] if goal else [],
        "molecules": [
            None if each is None else _molecule(panel, profile, each) | _drawn(text, drawn)
            for text, each in zip(smiles, predictions, strict=True)
        ],
    }


def _drawn(smiles: str, wanted: bool) -> dict[str, Any]:
    """Return the drawing of a molecule for its overview, or nothing if it is not wanted."""
    if not wanted:
        return {}
    try:
        return {"draw": picture(smiles)}
    except ValueError:  # it is too large
        return {"draw": None}


def _molecule(
    panel: ModelPanel, profile: PropertyProfile, predictions: Mapping[str, Prediction]
) -> dict[str, Any]:
    """Return the properties of a molecule and its desirability."""
    score = profile.score(predictions)
    wished = {part.goal.of.name: part for part in score.parts}
    cells: list[dict[str, Any] | None] = []
    for each in panel.properties:
        prediction = predictions.get(each.name)
        if prediction is None:
            cells.append(None)
            continue
        part = wished.get(each.name)
        cell = property_cell(prediction, None if part is None else part.goal.label)
        if prediction.nearness is not None:
            sign = distance_of(panel.models[each.place], prediction)
            cell |= {"word": prediction.nearness.word, "near": sign.sentence, "level": sign.level}
        if part is not None:
            cell |= {"desirability": part.desirability, "goal": str(part.goal)}
        cells.append(cell)
    overall = score.overall if score.parts else None
    return {"cells": cells, "desirability": overall}


def property_cell(prediction: Prediction, label: str | None = None) -> dict[str, Any]:
    """Return a prediction with its interval and how near its training set the molecule is.

    The value of a class is its probability: that of the wished class `label`, or else of the second
    of two classes, or else of the predicted one.
    """
    if prediction.value is None:
        names = list(prediction.probabilities)
        label = label or (names[1] if len(names) == 2 else prediction.label)
        value = prediction.probabilities[str(label)]
    else:
        label, value = "", prediction.value
    near = prediction.nearness
    return {
        "text": minus_signs(str(prediction)),
        "range": minus_signs(prediction.range),
        "value": rounded([value])[0],
        "class": label,
        "near": "" if near is None else near.sentence,
    }


@lru_cache(maxsize=512)  # a search shows most of its molecules again after every batch
def picture(smiles: str) -> dict[str, Any]:
    """Return the drawing of a molecule without relevance."""
    return drawing(read(smiles))


def joint_suggestions(
    panel: ModelPanel,
    smiles: str,
    goal: str,
    locked: Sequence[int],
    n: int,
    sure: bool,
    measured: Callable[[], Mapping[str, Measurements]] = dict,
) -> Iterator[dict[str, Any]]:
    """After each batch of predictions, yield the best changes of a molecule for several goals.

    Args:
        panel: the models.
        smiles: the molecule.
        goal: the goals, as `gx.profile` reads them.
        locked: the atoms that must stay.
        n: how many changes to show.
        sure: whether the models must be sure that all goals are met.
        measured: reads what was measured of each property. It is called after the search, and the
            last step says what it read.
    """
    start = Chem.MolToSmiles(read(smiles))
    options: dict[str, Any] = {"keep": list(locked), "predictions": PREDICTIONS, "sure": sure}
    for results in search(list(panel.models), smiles, goal, n, **options):
        yield _suggested(results)
    if tables := measured():
        told = [
            replace(change, measured=measured_change(tables, start, change.smiles))
            for change in results
        ]
        notes = " ".join(table.note for table in tables.values() if table.note).rstrip(".")
        last = _suggested(replace(results, ranked=tuple(told)))
        yield last | {"summary": f"{last['summary']}. {notes}" if notes else last["summary"]}


def _suggested(results: ProfileCounterfactuals) -> dict[str, Any]:
    return {
        "summary": results.summary,
        "predicted": results.predicted,
        "most": PREDICTIONS,
        "found": [_suggestion(change) for change in results],
    }


def _suggestion(change: ProfileCounterfactual) -> dict[str, Any]:
    """Return what the page shows of a change: its desirability, and all properties."""
    wished = {part.goal.of.name: part.goal for part in change.score.parts}
    rows = []
    for name, prediction in change.predictions.items():
        before, goal = change.before.get(name), wished.get(name)
        label = None if goal is None else goal.label
        cells = [None if p is None else property_cell(p, label) for p in (prediction, before)]
        if goal is not None:
            for cell, p in zip(cells, (prediction, before), strict=True):
                if cell is not None and p is not None:
                    cell["desirability"] = goal.desirability(p)
        rows.append([name, *cells])
    return {
        "smiles": change.smiles,
        "name": change.changes,
        "source": change.source,
        "reached": change.reached,
        "sure": change.sure,
        "similarity": rounded([change.similarity], 2)[0],
        "accessibility": change.accessibility and rounded([change.accessibility], 2)[0],
        "alerts": list(change.alerts),
        "desirability": change.score.overall,
        "front": change.front,
        "properties": rows,
        "measured": minus_signs(sentence_about(change.measured)),
        "draw": picture(change.smiles),
    }
