"""Say for a card what the models predict of the molecule, and what each of several sees."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from graphxai.chemistry.desirability import PropertyProfile
from graphxai.chemistry.measurements import Measurements
from graphxai.chemistry.profile_text import read_profile
from graphxai.contract.inputs import Input, prepare_each
from graphxai.contract.tasks import Task
from graphxai.datasets.training_set import TrainingSet, training_set_of
from graphxai.explainers import Explainer
from graphxai.explanation.compute.explaining import explanations_or_errors
from graphxai.explanation.compute.models import Model, ModelPanel
from graphxai.explanation.compute.predicting import predictions_or_errors
from graphxai.explanation.explanation import Explanation
from graphxai.explanation.prediction import Prediction
from graphxai.tables.card import (
    bound_cell,
    measured_cell,
    prediction_facts,
    property_facts,
    view_facts,
)
from graphxai.tables.drawing import drawing
from graphxai.tables.files import predicted_columns, prediction_cells

from .molecules import ReportRow, agreement


@dataclass(frozen=True)
class CardSettings:
    """How molecules are predicted and explained for their cards.

    Attributes:
        panel: the models, the first of which explains the molecules.
        training: its training set, or None if it is unknown.
        target: the output to explain, see `Target`.
        level: how often the predictions' intervals and sets of classes should hold.
        several: whether the page shows the properties of all models.
        goal: what is wished for them, as it was written, or "".
        compared: the methods that a full card shows beside the report's method.
        counterfactuals: how many changes a full card shows.
        towards: what the model should predict for these, or None for a default.
        measured: the table's measured values, or None; for changes that lead to the goal of several
            models, those of each property.
    """

    panel: ModelPanel
    training: TrainingSet | None
    explainer: Explainer
    target: Any
    level: float
    several: bool = False
    goal: str = ""
    compared: tuple[str, ...] = ()
    counterfactuals: int = 0
    towards: str | None = None
    measured: Measurements | Mapping[str, Measurements] | None = None

    @property
    def model(self) -> Model:
        """The model that explains the molecules."""
        return self.panel.models[0]

    @property
    def profile(self) -> PropertyProfile | None:
        """What is wished, or None."""
        return read_profile(self.panel, self.goal) if self.goal else None

    @property
    def columns(self) -> list[str]:
        """The columns of the predictions in the table that the page exports."""
        return list(predicted_columns(self.panel, self.profile, several_models=self.several))

    @property
    def about(self) -> dict[str, Any] | None:
        """What the page says about several models and the goals, or None for one model."""
        if not self.several:
            return None
        profile = self.profile
        goals = [] if profile is None else profile.explanation.split("\n")
        panel = self.panel
        others = [
            [name, str(model.origin.metadata.get("summary", "")), model.origin.sha256]
            for name, model in list(zip(panel.names, panel.models, strict=True))[1:]
        ]
        return {
            "names": [each.name for each in panel.properties],
            "models": list(panel.names),
            "others": others,
            "goals": goals,
        }


def predictions_of_cards(
    settings: CardSettings, rows: Sequence[ReportRow], explained: Mapping[int, Explanation]
) -> dict[int, dict[str, Any]]:
    """Return, by row number, the cells of predictions, and for several models all properties.

    `explained` has the explanations by the first model.
    """
    panel, profile, several = settings.panel, settings.profile, settings.several
    columns = settings.columns
    wanted = [row for row in rows if row.number in explained]
    outcomes: list[dict[int, _Outcome]] = [{k: (e.predictions, e) for k, e in explained.items()}]
    outcomes += [_outcomes(model, settings.explainer, wanted) for model in panel.models[1:]]
    contents: dict[int, dict[str, Any]] = {}
    for row in wanted:
        of_molecule = [each.get(row.number) for each in outcomes]
        predictions = panel.merged(
            [each and {p.task: p.at(settings.level) for p in each[0]} for each in of_molecule]
        )
        assert predictions is not None  # the first model has explained it
        score = None if profile is None else profile.score(predictions)
        cells = prediction_cells([*predictions.values()], score, several_models=several)
        content: dict[str, Any] = {"cells": [cells.get(name, "") for name in columns]}
        contents[row.number] = content
        if several:
            facts = zip(panel.properties, property_facts(panel, predictions, score), strict=True)
            views = [
                _view(name, each[1], explained[row.number])
                for name, each in zip(panel.names[1:], of_molecule[1:], strict=True)
                if each is not None and each[1] is not None
            ]
            contents[row.number] = {
                "properties": [
                    None if of is None else _shown(each.task, row, of, predictions[each.name])
                    for each, of in facts
                ],
                "desirability": None if score is None else score.overall,
                "views": views,
                **content,
            }
    return contents


# what one model says of a molecule; the explanation is None if the method does not fit
_Outcome: TypeAlias = "tuple[Sequence[Prediction], Explanation | None]"


def _outcomes(model: Model, explainer: Explainer, rows: Sequence[ReportRow]) -> dict[int, _Outcome]:
    """Predict and explain molecules by one model, without those that it cannot use."""
    items = prepare_each(model, [row.value for row in rows], Exception)
    pairs = zip(rows, items, strict=True)
    prepared = [(row.number, item) for row, item in pairs if isinstance(item, Input)]
    training = training_set_of(model)
    try:
        computed = explanations_or_errors(model, prepared, explainer, training=training)
        return {k: (e.predictions, e) for k, e in computed if not isinstance(e, Exception)}
    except Exception:  # the method does not fit this model, whose predictions are still of use
        predicted = predictions_or_errors(model, prepared, training=training)
        return {k: (made, None) for k, made in predicted if not isinstance(made, Exception)}


def _shown(
    task: Task, row: ReportRow, facts: Mapping[str, Any], prediction: Prediction
) -> list[Any]:
    """Return prediction, interval, nearness (word, sentence), desirability, value and class.

    The value, by which a table is sorted, is that of the second class, or of the predicted one.
    What was measured follows, a bound (see `measured_cell` and `bound_cell`), how far the molecule
    may be from the training set, and whether the goal is met.
    """
    return [
        *(facts["text"], facts["range"], facts.get("word", ""), facts["near"]),
        facts.get("desirability"),
        prediction_facts(prediction)["value"],
        prediction.label or "",
        measured_cell(task, row.measured, prediction),
        bound_cell(task, row.bounds, prediction),
        facts.get("level", "unknown"),
        facts.get("outcome", ""),
    ]


def agreements(
    panel: ModelPanel,
    columns: Mapping[str, str],
    explained: str,
    molecules: Sequence[Mapping[str, Any]],
) -> list[dict[str, Any]]:
    """Compare measured and predicted values of the properties that the cards do not explain.

    Args:
        explained: the task that the first model explains.

    Returns:
        What `agreement` says, with the position of the property.
    """
    compared = []
    for k, each in enumerate(panel.properties):
        if each.task.name not in columns or (each.place, each.task.name) == (0, explained):
            continue
        of_first = each.place == 0
        known = []
        for molecule in molecules:
            if not (cells := molecule["known"][k]):
                continue
            value, label, measured, bound, near = cells
            part = molecule["part"] if of_first else ""
            part = part or ("training" if near == "training compound" else "")
            about = {"value": value, "label": label, "part": part}
            known.append(about | {"measured": measured, "bound": bound})
        target = each.task.classes[1] if len(each.task.classes) == 2 else None
        agreed = agreement(each.task, columns[each.task.name], target, known)
        if agreed is not None:
            compared.append(agreed | {"task": each.name, "property": k, "of_first": of_first})
    return compared


def _view(name: str, explanation: Explanation, first: Explanation) -> dict[str, Any]:
    """Return what one model sees: the relevance of its target at each atom."""
    content = {
        "model": name,
        "target": explanation.subject,
        "legend": list(explanation.legend),
        **view_facts(explanation),
    }
    same = first.smiles == explanation.smiles
    return content if same else content | {"draw": drawing(explanation.atoms())}
