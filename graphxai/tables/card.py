"""The facts of a molecule that pages show, as compact JSON values rounded to what a page shows.

Reports, the app and the notebook show the same facts in their own layouts: what is predicted, how
sure and how near that is, what each atom contributes, what was measured, and what changes do.
"""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike
from rdkit.Chem import Mol

from graphxai.chemistry.desirability import DesirabilityScore
from graphxai.chemistry.fragments import Fragments, fragments, listed_names
from graphxai.chemistry.schemes import SCHEME_TITLES
from graphxai.chemistry.search.changed_molecules import Counterfactual, ProfileCounterfactual
from graphxai.contract.inputs import Input, prepare_each
from graphxai.contract.intervals import LEVEL
from graphxai.contract.tasks import Task
from graphxai.datasets.cell_numbers import Bound
from graphxai.datasets.ionisation import ionisation
from graphxai.datasets.labels import with_unit
from graphxai.datasets.training_set import TrainingSet
from graphxai.evaluation.trust.errors import distance_of
from graphxai.evaluation.trust.trust import Trust, trust_prepared
from graphxai.explainers import Explainer
from graphxai.explanation.compute.explaining import explanations_or_errors
from graphxai.explanation.compute.models import Model, ModelPanel
from graphxai.explanation.explanation import Explanation
from graphxai.explanation.kernel_account import KernelAccount
from graphxai.explanation.prediction import Prediction
from graphxai.visualization.text import minus_signs

from .drawing import drawing

DIGITS = 4  # the significant digits of a relevance
K = TypeVar("K", bound=int)


def rounded(values: ArrayLike, digits: int = DIGITS) -> list[float]:
    """Round floats to `digits` significant digits, and return whole numbers as int."""
    kept = [float(f"{value:.{digits}g}") for value in np.asarray(values, dtype=float).tolist()]
    return [int(value) if value == int(value) else value for value in kept]


def prediction_facts(prediction: Prediction, label: str | None = None) -> dict[str, Any]:
    """Return a prediction with its interval and how near its training set the molecule is.

    The value of a class is its probability: that of the class `label`, or else of the second of two
    classes, or else of the predicted one.
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
        "range": minus_signs(prediction.range),  # empty if the model has no intervals
        "value": rounded([value])[0],
        "class": label,
        "near": "" if near is None else near.sentence,
    }


def property_facts(
    panel: ModelPanel, predictions: Mapping[str, Prediction], score: DesirabilityScore | None
) -> list[dict[str, Any] | None]:
    """Return what several models predict, or None for a property that none of them predicts.

    Besides `prediction_facts`, there is how near the molecule is to each training set, judged by
    the errors of that model, and how desirable the prediction is.

    Args:
        score: how desirable the molecule is, or None without a goal.
    """
    wished = {} if score is None else {part.goal.of.name: part for part in score.parts}
    facts: list[dict[str, Any] | None] = []
    for each in panel.properties:
        prediction, part = predictions.get(each.name), wished.get(each.name)
        if prediction is None:
            facts.append(None)
            continue
        of_property = prediction_facts(prediction, None if part is None else part.goal.label)
        if (near := prediction.nearness) is not None:
            sign = distance_of(panel.models[each.place], prediction)
            of_property |= {"word": near.word, "near": sign.sentence, "level": sign.level}
        if part is not None:
            of_property |= {"desirability": part.desirability, "goal": str(part.goal)}
            of_property["outcome"] = part.outcome
        facts.append(of_property)
    return facts


def change_facts(change: Counterfactual | ProfileCounterfactual) -> dict[str, Any]:
    """Return what is known about a change of a molecule, besides what is predicted of it."""
    effort = change.accessibility
    return {
        "smiles": change.smiles,
        "name": change.changes,
        "source": change.source,
        "reached": change.reached,
        "sure": change.sure,
        "similarity": rounded([change.similarity], 2)[0],
        "accessibility": None if effort is None else rounded([effort], 2)[0],
        "alerts": list(change.alerts),
        "measured": minus_signs(change.measured_sentence),
    }


def measured_text(task: Task, value: float) -> str:
    """Return a measured value or class as text."""
    if task.classes:
        return task.classes[int(value)]
    return minus_signs(f"{value:.4g} {task.unit}".rstrip())


def bound_text(task: Task, bound: Bound) -> str:
    """Return the bound of a value that was not measured as text, such as ">10 µM"."""
    return f"{'>' if bound.side > 0 else '<'} {measured_text(task, bound.value)}"


def measured_cell(
    task: Task, values: Mapping[str, float], prediction: Prediction
) -> list[Any] | None:
    """Return the measured value of a molecule, its text and words if it surprises, or None.

    The words say that the value lies outside the range of its prediction, and are "" otherwise.
    """
    value = values.get(task.name)
    if value is None:
        return None
    fits = True
    if task.classes and prediction.classes is not None:
        fits = task.classes[int(value)] in prediction.classes
    elif prediction.interval is not None:
        fits = prediction.interval[0] <= value <= prediction.interval[1]
    text = measured_text(task, value)
    return [rounded([value])[0], text, "" if fits else _surprise(prediction)]


def bound_cell(task: Task, bounds: Mapping[str, Bound], prediction: Prediction) -> list[Any] | None:
    """Return the bound of a value that was not measured, its text, its side and words, or None.

    The words say that the whole range of the prediction lies on the wrong side of the bound.
    """
    bound = bounds.get(task.name)
    if bound is None:
        return None
    ends = prediction.interval
    surprise = "" if ends is None or not all(map(bound.excludes, ends)) else _surprise(prediction)
    return [rounded([bound.value])[0], bound_text(task, bound), bound.side, surprise]


def _surprise(prediction: Prediction) -> str:
    """Say that what was measured lies outside the interval, or is none of the likely classes."""
    where = "outside the {} interval" if prediction.label is None else "not in the {} set"
    return where.format(f"{100 * prediction.level:g} %")


def explained_rows(
    model: Model,
    inputs: Mapping[K, Any],
    explainer: Explainer,
    *,
    target: Any,
    training: TrainingSet | None,
    level: float = LEVEL,
) -> dict[K, tuple[Explanation, Trust] | Exception]:
    """Explain molecules, each with the signs of trust that need no further explanation.

    Returns:
        By number, the explanation with its trust, or the error of the molecule. Those that cannot
        be read come first.
    """
    unread: dict[K, Any] = {}
    prepared: list[tuple[K, Input]] = []
    encoded = prepare_each(model, list(inputs.values()), Exception)  # RDKit may raise any
    for k, item in zip(inputs, encoded, strict=True):
        if isinstance(item, Exception):
            unread[k] = item
        elif item.smiles is None and item.molecule is None:
            unread[k] = ValueError("this is not a molecule.")
        else:
            prepared.append((k, item))
    made = explanations_or_errors(model, prepared, explainer, target=target, training=training)
    rows: dict[K, Any] = {k: e if isinstance(e, Exception) else e.at(level) for k, e in made}
    explained = {k: each for k, each in rows.items() if not isinstance(each, Exception)}
    items = [(k, item) for k, item in prepared if k in explained]
    trusted = trust_prepared(model, items, explained, None, target=target)
    return unread | {
        k: (explained[k], trusted[k]) if k in explained else rows[k] for k, _ in prepared
    }


def fragments_shown(explanation: Explanation, model: Model) -> Fragments:
    """Return the fragments of a molecule. With `shares`, each has the output without it."""
    if explanation.ledger is not None and explanation.ledger.group_error is not None:
        with suppress(ValueError):  # the mean over mirror images is not the output of one pass
            return fragments(explanation, method="shares", model=model)
    return fragments(explanation)


def molecule_card(
    name: str,
    row: int,
    explanation: Explanation,
    parts: Fragments,
    trust: Trust,
    drawn: Mol | None = None,
) -> dict[str, Any]:
    """Return the card of one explained molecule, to which `full_card` may add.

    `drawn` is the molecule with the coordinates at which it is drawn. Without it, it is laid out.

    Raises ValueError if the explanation has no molecule.
    """
    mol = explanation.molecule
    if mol is None:
        raise ValueError("a page shows molecules, but this explanation has none.")
    # molecules are sorted and filtered by a value
    prediction = explanation.prediction
    value, value_name = prediction.value, prediction.heading
    if value is None:
        choice, subject = explanation.wanted.choice, explanation.subject
        if not isinstance(choice, str):  # the difference of two classes
            choice, subject = str(prediction.label), f"{prediction.task}: {prediction.label}"
        value, value_name = prediction.probabilities[choice], f"Probability of {subject}"
    # The explained task comes first, so that its value is beside the measured value.
    predictions = sorted(explanation.predictions, key=lambda p: p.task != prediction.task)
    content: dict[str, Any] = {
        "name": name,
        "row": row,
        "smiles": explanation.smiles or "",
        "predictions": [[p.task, minus_signs(str(p))] for p in predictions],
        "ranges": [minus_signs(p.range) for p in predictions],
        "value": rounded([value])[0],
        "value_name": value_name,
        "label": prediction.label,
        "target": with_unit(explanation.subject, explanation.unit),
        "legend": list(explanation.legend),
        "output": rounded([explanation.output], 6)[0],
        "sum": rounded([explanation.relevance_with_edges.sum(dtype=np.float64)], 6)[0],
        "ledger": explanation.ledger
        and {k: rounded([v], 6)[0] for k, v in explanation.ledger.to_dict().items()},
        **view_facts(explanation),
        "others": {},
        "fragments": [
            [name, part.smiles, list(part.atoms), *rounded([part.relevance, *(part.without or ())])]
            for name, part in zip(listed_names(parts), parts, strict=True)
        ],
        "divided": SCHEME_TITLES[parts.scheme],
        "ionisation": str(ionisation(mol)),
        "trust": trust_facts(trust),
        "draw": drawing(mol if drawn is None else drawn),
    }
    if explanation.note:
        content["note"] = explanation.note
    if explanation.as_given is not None:
        content["numbers"] = list(explanation.as_given.atoms)
    if explanation.nearness is not None:
        content["near"] = explanation.nearness.sentence
    if explanation.features is not None:
        flat = rounded(explanation.features.ravel(), 3)
        width = explanation.features.shape[1]
        content["features"] = [flat[k : k + width] for k in range(0, len(flat), width)]
    return content


def full_card(others: Mapping[str, Explanation], trust: Trust, why: str) -> dict[str, Any]:
    """Return what a full card adds: other methods, all signs of trust, and why it is full."""
    return {
        "others": {
            method: view_facts(other) | {"output": rounded([other.output])[0]}
            for method, other in others.items()
        },
        "trust": trust_facts(trust),
        "nearest": trust.nearest,
        "full": why,
    }


def account_facts(account: KernelAccount) -> dict[str, Any]:
    """Return the training molecules that speak most for a process's value and against it."""
    both = account.strongest(3)
    drawn = {place: account.shared_atoms(place) for place in (*both[0], *both[1])}
    return {
        "sentence": minus_signs(account.sentence),
        "limit": max((abs(of).max() for _, of in drawn.values()), default=1.0) or 1.0,
        "speaking": [
            {
                "smiles": (of := account.training[place]).smiles,
                "measured": minus_signs(of.measured_text),
                "similarity": rounded([of.similarity], 2)[0],
                "share": minus_signs(f"{of.share:+.3f}"),
                "draw": drawing(drawn[place][0]),
                "r": rounded(drawn[place][1]),
            }
            for place in (*both[0], *both[1])
        ],
    }


def view_facts(explanation: Explanation) -> dict[str, Any]:
    """Return what the picture of an explained molecule shows: the relevance of atoms and bonds.

    Atoms on whose sign the models of an ensemble disagree are `pale`.
    """
    facts: dict[str, Any] = {"r": rounded(explanation.relevance)}
    if explanation.contested.any():
        facts["pale"] = explanation.contested.nonzero()[0].tolist()
    if explanation.bonds is not None:
        facts["bonds"] = rounded(explanation.bonds)
    return facts | {"equivalent": explanation.equivalent}


def trust_facts(trust: Trust) -> dict[str, Any]:
    """Return how far an explanation can be trusted, with its signs."""
    return {
        "level": trust.level,
        "sentence": trust.sentence,
        "signs": [  # with the structures to be drawn beside them, if any
            [s.name, s.level, s.text, list(s.structures)]
            if s.structures
            else [s.name, s.level, s.sentence]
            for s in trust.of_molecule
        ],
    }
