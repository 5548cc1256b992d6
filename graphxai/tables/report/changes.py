"""Find counterfactuals of a molecule for its card, which say what would change the prediction."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from rdkit import Chem

from graphxai.chemistry.counterfactuals import Counterfactual, Goal, counterfactuals
from graphxai.chemistry.matching import NoCommonPartError, common_part
from graphxai.chemistry.measurements import Measurements, sentence_about
from graphxai.chemistry.profile_results import ProfileCounterfactual
from graphxai.contract.inputs import prepare_all
from graphxai.datasets.training_set import training_set_of
from graphxai.evaluation.trust.trust import trust_prepared
from graphxai.explainers import Explainer
from graphxai.explanation.compute.explaining import explain_prepared
from graphxai.explanation.compute.models import Model
from graphxai.explanation.explanation import Explanation
from graphxai.explanation.prediction import Prediction
from graphxai.tables.cells import prediction_cells
from graphxai.tables.panel_batch import panel_cells
from graphxai.visualization.contrast import aligned
from graphxai.visualization.layout import laid_out
from graphxai.visualization.text import minus_signs

from .drawing import drawing
from .properties import SeveralModels
from .records import bonds_record, rounded

PREDICTIONS = 600  # how many neighbours of a molecule are predicted, as in a search of the app


def changes_card(
    model: Model,
    explainer: Explainer,
    explanation: Explanation,
    towards: str | None,
    n: int,
    level: float,
    measured: Measurements | None = None,
) -> dict[str, Any]:
    """Return what a card shows of up to `n` counterfactuals of an explained molecule.

    Counterfactuals are explained in the same way as the molecule, so that their colours can be
    compared. A sentence sums up what the search returned, or says which error it met.

    Args:
        model: the model.
        explainer: the method.
        explanation: the explanation of the molecule.
        towards: what the model should predict, as in `graphxai.counterfactuals`. By default it is
            the most probable other class, or one unit more.
        n: how many counterfactuals to show.
        level: how often the intervals should hold.
        measured: the measured values of the report's table.
    """
    asked = towards or default_goal(explanation.prediction)
    mol = explanation.atoms()
    try:
        goal = Goal.of(asked, model)
        if any(p.task == goal.task and goal.distance(p) > 0 for p in explanation.predictions):
            return {"summary": f"It is {goal} already.", "found": []}
        options: dict[str, Any] = {"predictions": PREDICTIONS, "measured": measured}
        results = counterfactuals(model, mol, asked, n, progress=False, **options)
        seen = _explained(model, explainer, explanation, [change.smiles for change in results])
        cards = [
            _facts(change, results.goal, level) | part
            for change, part in zip(results, seen, strict=True)
        ]
    except Exception as error:  # RDKit raises errors of any type
        return {"summary": f"None found towards {asked}: {error}", "found": []}
    return {"summary": f"Towards {results.goal}: {results.summary}.", "found": cards}


def joint_changes_card(
    model: Model,
    explainer: Explainer,
    explanation: Explanation,
    several: SeveralModels,
    n: int,
    measured: Mapping[str, Measurements],
) -> dict[str, Any]:
    """Return what a card shows of up to `n` changes that lead to the goal for all properties.

    Args:
        model: the model that explains the cards.
        explainer: the method.
        explanation: the explanation of the molecule.
        several: all models, with a goal.
        n: how many changes to show.
        measured: the measured values of the report's table, by property.
    """
    mol, models = explanation.atoms(), list(several.panel.models)
    options: dict[str, Any] = {"predictions": PREDICTIONS, "measured": measured or None}
    try:
        results = counterfactuals(models, mol, several.goal, n, progress=False, **options)
        seen = _explained(model, explainer, explanation, [change.smiles for change in results])
        cards = [
            _joint_facts(change, several) | part for change, part in zip(results, seen, strict=True)
        ]
    except Exception as error:  # RDKit raises errors of any type
        return {"summary": f"None found towards {several.goal}: {error}", "found": []}
    return {"summary": f"Towards {several.goal}: {results.summary}.", "found": cards}


def _explained(
    model: Model, explainer: Explainer, explanation: Explanation, smiles: Sequence[str]
) -> list[dict[str, Any]]:
    """Explain changed molecules as the molecule was, and return their pictures and trust."""
    prepared = list(enumerate(prepare_all(model, smiles)))
    target, training, mol = explanation.wanted, training_set_of(model), explanation.atoms()
    made = explain_prepared(model, prepared, explainer, target=target, training=training)
    explained = dict(made)
    trusted = trust_prepared(model, prepared, explained, None, target=target)
    return [
        _picture(explained[k], mol)
        | {"trust": {"level": trusted[k].level, "sentence": trusted[k].sentence}}
        for k in range(len(smiles))
    ]


def _joint_facts(change: ProfileCounterfactual, several: SeveralModels) -> dict[str, Any]:
    """Return what is known about a change, with what it does to each property."""
    parts = []
    for name, prediction in change.predictions.items():
        before = change.before.get(name)
        text = f"{name} {prediction.at(several.level)}"
        if prediction.value is not None and before is not None and before.value is not None:
            text += f" ({prediction.value - before.value:+z.2f})"
        parts.append(text)
    leveled = {name: p.at(several.level) for name, p in change.predictions.items()}
    effort = change.accessibility
    return {
        "smiles": change.smiles,
        "name": change.changes,
        "prediction": f"desirability {change.score.overall or 0:.2f}",
        "change": minus_signs("; ".join(parts)),
        "cells": panel_cells(leveled, change.score),
        "reached": change.reached,
        "sure": change.reached and bool(change.sure),
        "similarity": rounded([change.similarity], 2)[0],
        "near": "",
        "accessibility": None if effort is None else rounded([effort], 2)[0],
        "alerts": list(change.alerts),
        "measured": minus_signs(sentence_about(change.measured)),
    }


def default_goal(prediction: Prediction) -> str:
    """Return the most probable class besides the predicted one, or one unit more than the value."""
    if prediction.value is not None:
        return f"{prediction.task}: >{prediction.value + 1:.3g}"
    others = {c: p for c, p in prediction.probabilities.items() if c != prediction.label}
    return f"{prediction.task}: {max(others, key=others.__getitem__)}"


def _facts(counterfactual: Counterfactual, goal: Goal, level: float) -> dict[str, Any]:
    """Return what is known about a counterfactual."""
    after = counterfactual.prediction.at(level)
    if goal.label is None:
        leveled = replace(counterfactual, prediction=after, before=counterfactual.before.at(level))
        change = f"{after.task}: {leveled.change_in_full} {after.unit}".rstrip()
    else:
        change = f"{goal.label}: {100 * counterfactual.predicted_change:+.0f} percentage points"
    near, effort = after.nearness, counterfactual.accessibility
    return {
        "smiles": counterfactual.smiles,
        "name": counterfactual.changes,
        "prediction": minus_signs(f"{after}, {after.range}" if after.range else str(after)),
        "change": minus_signs(change),
        "delta": rounded([counterfactual.predicted_change])[0],
        "cells": prediction_cells([after]),
        "reached": counterfactual.reached,
        "sure": counterfactual.reached and bool(goal.sure(after)),
        "similarity": rounded([counterfactual.similarity], 2)[0],
        "near": near.sentence if near is not None else "",
        "accessibility": None if effort is None else rounded([effort], 2)[0],
        "alerts": list(counterfactual.alerts),
        "measured": minus_signs(counterfactual.measured.sentence)
        if counterfactual.measured
        else "",
    }


def _picture(explanation: Explanation, before: Chem.Mol) -> dict[str, Any]:
    """Draw a counterfactual in the pose of the molecule, and return it with its relevance."""
    mol = explanation.atoms()
    try:
        placed = aligned(mol, laid_out(before), common_part(before, mol, timeout=1).mapping)
    except NoCommonPartError:
        placed = laid_out(mol)
    return {
        "r": rounded(explanation.relevance),
        "equivalent": explanation.equivalent,
        "draw": drawing(placed, keep=True),
        **bonds_record(explanation),
    }
