"""Make what only full cards show: other methods, every sign of trust, and counterfactuals."""

import warnings
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

from graphxai.chemistry.desirability import PropertyGoal
from graphxai.chemistry.matching import common_part_or_none
from graphxai.chemistry.measurements import Measurements
from graphxai.chemistry.profile_text import read_goal
from graphxai.chemistry.search.changed_molecules import Counterfactual, ProfileCounterfactual
from graphxai.chemistry.search.counterfactuals import counterfactuals
from graphxai.contract.inputs import prepare_all
from graphxai.evaluation.trust.trust import explained_by_each, trust_prepared
from graphxai.explanation.compute.models import ModelPanel, standardisation_of
from graphxai.explanation.explanation import Explanation
from graphxai.explanation.kernel_account import kernel_account
from graphxai.explanation.prediction import Prediction
from graphxai.models.process import KernelProcess
from graphxai.runtime.device import one_thread
from graphxai.runtime.interrupts import Interrupted
from graphxai.runtime.workers import LostItem
from graphxai.tables.card import (
    account_facts,
    change_facts,
    explained_rows,
    full_card,
    prediction_facts,
    rounded,
    view_facts,
)
from graphxai.tables.drawing import drawing, drawing_of
from graphxai.tables.files import prediction_cells
from graphxai.tables.settings import PREDICTIONS
from graphxai.visualization.grid import aligned
from graphxai.visualization.layout import laid_out
from graphxai.visualization.text import minus_signs

from .cards import Cards, results_of
from .molecules import MeasuredTable, ReportRow
from .properties import CardSettings

MOST_ACCOUNTED = 3_000  # carriers of a process, whose kernel then takes a few seconds
MOLECULES_AT_A_TIME = 16  # how many full cards a process makes at a time


class FullCards(NamedTuple):
    """What the full cards add to the page.

    Attributes:
        contents: by the molecule's place, what its full card adds.
        neighbours: by SMILES, drawings of the nearest training compounds and of tautomers.
        refused: what does not work for the model, with the reason: methods, or the account.
    """

    contents: dict[int, dict[str, Any]]
    neighbours: dict[str, Any]
    refused: dict[str, str]


class _Chosen(NamedTuple):
    """A molecule that gets a full card, with its place on the page and why it was chosen."""

    place: int
    why: str
    row: ReportRow
    explanation: Explanation


def make_full_cards(
    settings: CardSettings,
    cards: Cards,
    chosen: Mapping[int, str],
    workers: int | None,
    progress: bool | None,
) -> FullCards:
    """Make the full cards of the chosen molecules.

    A molecule that makes its process end gets no full card, and a warning says so.

    Args:
        chosen: by place, why the molecule gets a full card.

    Raises:
        Interrupted: Ctrl-C was pressed. Its `results` are the explanations of all molecules.
    """
    items = (_Chosen(place, chosen[place], *cards.explained(place)) for place in sorted(chosen))
    full = FullCards({}, {}, {})
    work = partial(_full_cards_of, settings)
    about = len(chosen), "comparing methods", progress
    try:
        with closing(results_of(work, items, MOLECULES_AT_A_TIME, workers, *about)) as done:
            for part in done:
                if isinstance(part.result, LostItem):
                    row = part.items[0].row.number
                    message = f"row {row} has no full card: {part.result.reason}"
                    warnings.warn(message, stacklevel=4)
                else:
                    full.contents.update(part.result.contents)
                    full.neighbours.update(part.result.neighbours)
                    full.refused.update(part.result.refused)
    except KeyboardInterrupt:
        how_far = f"after {len(full.contents)} of {len(chosen)} full cards"
        raise Interrupted(how_far, cards.explanations) from None
    return full


def _full_cards_of(settings: CardSettings, chosen: Sequence[_Chosen]) -> FullCards:
    """Compare methods and measure every sign of trust, here or in another process."""
    model, target, explainer = settings.model, settings.target, settings.explainer
    explanations = {item.place: item.explanation for item in chosen}
    with one_thread():
        values = prepare_all(model, [item.row.value for item in chosen])
        prepared = list(zip(explanations, values, strict=True))
        compared, refused = explained_by_each(model, prepared, settings.compared, target)
        trusted = trust_prepared(model, prepared, explanations, explainer, target=target)
    contents: dict[int, dict[str, Any]] = {}
    neighbours: dict[str, Any] = {}
    for place, why, _, explanation in chosen:
        others = {name: made[place] for name, made in compared.items() if place in made}
        contents[place] = full_card(others, trusted[place], why)
        process = getattr(model, "process", model)
        if not isinstance(process, KernelProcess):
            pass
        elif process.config.carriers > MOST_ACCOUNTED:
            refused["an account by training molecule"] = (
                f"the model rests on {process.config.carriers:,} molecules, and a report makes it"
                f" for at most {MOST_ACCOUNTED:,}: ask graphxai.kernel_account for one molecule"
            )
        else:
            account = kernel_account(model, explanation.atoms(), target=explanation.wanted)
            contents[place]["account"] = account_facts(account)
        if settings.counterfactuals:
            contents[place]["changes"] = _changes(settings, explanation)
        trust = trusted[place]  # its nearest training compound and tautomers are drawn beside it
        drawn = chain.from_iterable(sign.structures for sign in trust.of_molecule)
        for smiles in filter(None, (trust.nearest, *drawn)):
            if smiles not in neighbours:
                neighbours[smiles] = drawing_of(smiles)
    return FullCards(contents, neighbours, refused)


def measurements_of(
    panel: ModelPanel, records: Sequence[Mapping[str, Any]], measured: MeasuredTable
) -> dict[str, Measurements]:
    """Return what was measured, for each property with a value of any explained molecule."""
    tables, way = {}, standardisation_of(panel.models[0])
    for each in panel.properties:
        values = measured.values.get(each.task.name, {})
        known = [m for m in records if m["smiles"] and m["row"] in values]
        pairs = [(m["smiles"], values[m["row"]]) for m in known]
        if pairs and not each.task.classes:
            tables[each.name] = Measurements.of(pairs, each.task.name, way)
    return tables


def _changes(settings: CardSettings, explanation: Explanation) -> dict[str, Any]:
    """Return what a card shows of counterfactuals, for one goal or for the goal of all models.

    Counterfactuals are explained in the same way as the molecule, so that their colours can be
    compared. A sentence sums up what the search returned, or says which error it met.
    """
    models: Any = list(settings.panel.models) if settings.goal else settings.model
    asked = settings.goal or settings.towards or default_goal(explanation.prediction)
    options: dict[str, Any] = {"predictions": PREDICTIONS, "measured": settings.measured or None}
    try:
        if not settings.goal:
            goal = read_goal(settings.model, asked)
            name = goal.of.task.name
            if any(p.task == name and goal.distance(p) > 0 for p in explanation.predictions):
                return {"summary": f"It is {goal.aim} already.", "found": []}
        n, mol = settings.counterfactuals, explanation.atoms()
        results = counterfactuals(models, mol, asked, n, progress=False, **options)
        pictures = _explained(settings, explanation, [change.smiles for change in results])
        cards = [
            (
                _facts(change, results.goal, settings.level)
                if isinstance(change, Counterfactual)
                else _joint_facts(change, settings.level)
            )
            | picture
            for change, picture in zip(results, pictures, strict=True)
        ]
    except Exception as error:  # RDKit raises errors of any type
        return {"summary": f"None found towards {asked}: {error}", "found": []}
    towards = asked if settings.goal else results.goal.aim
    return {"summary": f"Towards {towards}: {results.summary}.", "found": cards}


def _explained(
    card: CardSettings, explanation: Explanation, smiles: Sequence[str]
) -> list[dict[str, Any]]:
    """Explain changed molecules as the molecule was, and return their pictures and trust."""
    about: dict[str, Any] = {"target": explanation.wanted, "training": card.training}
    changes = dict(enumerate(smiles))
    shown = []
    for result in explained_rows(card.model, changes, card.explainer, **about).values():
        if isinstance(result, Exception):
            raise result
        changed, trust = result
        mol = changed.atoms()
        placed = laid_out(mol)
        if part := common_part_or_none(explanation.atoms(), mol):  # in the pose of the molecule
            placed = aligned(mol, laid_out(explanation.atoms(), keep=True), part.mapping)
        judged = {"level": trust.level, "sentence": trust.sentence}
        drawn = view_facts(changed) | {"draw": drawing(placed)}
        shown.append(drawn | {"trust": judged})
    return shown


def _joint_facts(change: ProfileCounterfactual, level: float) -> dict[str, Any]:
    """Return what is known about a change, with what it does to each property."""
    parts = []
    for name, prediction in change.predictions.items():
        before = change.before.get(name)
        text = f"{name} {prediction.at(level)}"
        if prediction.value is not None and before is not None and before.value is not None:
            text += f" ({prediction.value - before.value:+z.2f})"
        parts.append(text)
    leveled = [p.at(level) for p in change.predictions.values()]
    return change_facts(change) | {
        "prediction": f"desirability {change.score.overall or 0:.2f}",
        "change": minus_signs("; ".join(parts)),
        "cells": prediction_cells(leveled, change.score, several_models=True),
        "sure": change.reached and bool(change.sure),
        "near": "",
    }


def default_goal(prediction: Prediction) -> str:
    """Return the most probable class besides the predicted one, or one unit more than the value."""
    if prediction.value is not None:
        return f"{prediction.task}: >{prediction.value + 1:.3g}"
    others = {c: p for c, p in prediction.probabilities.items() if c != prediction.label}
    return f"{prediction.task}: {max(others, key=others.__getitem__)}"


def _facts(counterfactual: Counterfactual, goal: PropertyGoal, level: float) -> dict[str, Any]:
    after = counterfactual.prediction.at(level)
    if goal.label is None:
        leveled = replace(counterfactual, prediction=after, before=counterfactual.before.at(level))
        change = f"{after.task}: {leveled.change_in_full} {after.unit}".rstrip()
    else:
        change = f"{goal.label}: {100 * counterfactual.predicted_change:+.0f} percentage points"
    facts = prediction_facts(after)
    shown = (facts["text"], facts["range"])
    return change_facts(counterfactual) | {
        "prediction": ", ".join(filter(None, shown)),
        "change": minus_signs(change),
        "delta": rounded([counterfactual.predicted_change])[0],
        "cells": prediction_cells([after]),
        "sure": counterfactual.reached and bool(goal.sure(after)),
        "near": facts["near"],
    }
