"""Predict a batch of molecules by several models: SMILES in, one row with all properties out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from graphxai.chemistry.desirability import DesirabilityScore, PropertyProfile
from graphxai.chemistry.profile_text import read_profile
from graphxai.contract.intervals import LEVEL
from graphxai.datasets.molecules import RejectedRow
from graphxai.datasets.training_set import UNKNOWN
from graphxai.explanation.compute.models import Model
from graphxai.explanation.compute.panel import ModelPanel
from graphxai.explanation.files import one_line
from graphxai.explanation.prediction import Prediction, nearness_columns

from .batches import (
    NamedRejectedRow,
    Names,
    PredictedRows,
    given_smiles,
    loaded,
    predicted_rows,
    rejected_cells,
    with_names,
)
from .cells import PARENT, parent_cells, property_columns


@dataclass(frozen=True)
class PredictPanelBatch:
    """Predict batches of molecules by several models, and make the rows of a table.

    A row has each property with its interval and how near the molecule is to the training set of
    that model, and for a goal how desirable it is. A molecule that some models leave out has the
    cells of the others, and the reasons in its note.

    Attributes:
        models: names, folders or loaded models.
        goal: what is wished, as `gx.profile` reads it, or "".
        level: how often the predictions' intervals and sets of classes should hold.
    """

    models: "tuple[Model | str | Path, ...]"
    goal: str = ""
    level: float = LEVEL

    @property
    def panel(self) -> ModelPanel:
        """The loaded models."""
        return ModelPanel.of([loaded(model) for model in self.models])

    def columns(self, named: bool = False) -> dict[str, type]:
        """Return the columns of a row with their types."""
        profile = read_profile(self.panel, self.goal) if self.goal else None
        columns: dict[str, type] = {"row": int, **({"name": str} if named else {}), "smiles": str}
        return columns | panel_columns(self.panel, profile) | dict.fromkeys(PARENT, str)

    def __call__(
        self, smiles: Sequence[str], numbers: Sequence[int], names: Names = None
    ) -> list[dict[str, Any]]:
        """Predict molecules, and return a row for each of them in the order of the numbers."""
        panel = self.panel
        profile = read_profile(panel, self.goal) if self.goal else None
        of_models = [predicted_rows(model, smiles, numbers) for model in panel.models]
        cells: dict[int, dict[str, Any]] = {}
        for row in numbers:
            by_task = [
                {p.task: p.at(self.level) for p in each.predictions[row]}
                if row in each.predictions
                else None
                for each in of_models
            ]
            predictions = panel.merged(by_task)
            if predictions is None:
                rejected = NamedRejectedRow(**vars(of_models[0].rejected[row]))
                cells[row] = rejected_cells(rejected, False)
                continue
            score = None if profile is None else profile.score(predictions)
            cells[row] = {"row": row, **_identity(row, panel, of_models)}
            cells[row] |= panel_cells(predictions, score)
        return with_names(cells, numbers, names)


def panel_columns(panel: ModelPanel, profile: PropertyProfile | None) -> dict[str, type]:
    """Return the columns of desirabilities, then those of all properties, with their types."""
    columns: dict[str, type] = {}
    if profile is not None:
        columns |= dict.fromkeys(profile.score({}).columns, float)
    for each in panel.properties:
        columns |= property_columns(panel.models[each.place], each.task, each.name)
        columns |= dict(zip(nearness_columns(each.name), (float, str), strict=True))
    return columns


def panel_cells(
    predictions: Mapping[str, Prediction], score: DesirabilityScore | None
) -> dict[str, str]:
    """Return the cells of these columns for one molecule, with numbers as text."""
    wished = {} if score is None else _texts(score.columns)
    return wished | _texts(chain.from_iterable(map(_cells, predictions.values())))


def _cells(prediction: Prediction) -> list[tuple[str, Any]]:
    """Return the cells of one property, by column."""
    near = prediction.nearness or UNKNOWN
    values = zip(nearness_columns(prediction.task), (near.similarity, near.word), strict=True)
    return [*prediction.columns.items(), *values]


def _texts(cells: Any) -> dict[str, str]:
    """Write the numbers of cells as text, and unknown ones as ""."""
    return {
        name: "" if value is None else value if isinstance(value, str) else f"{value:z.6g}"
        for name, value in (cells.items() if isinstance(cells, Mapping) else cells)
    }


def _identity(row: int, panel: ModelPanel, of_models: Sequence[PredictedRows]) -> dict[str, str]:
    """Return the SMILES of a row, its parent, and what was done to it or who left it out."""
    item = next(each.items[row] for each in of_models if row in each.predictions)
    read = [each.items[row] for each in of_models if row in each.items]
    changed = next((other for other in read if other.as_given is not None), item)
    parent = parent_cells(changed.smiles, changed.as_given)
    refused: list[tuple[str, RejectedRow]] = [
        (name, each.rejected[row])
        for name, each in zip(panel.names, of_models, strict=True)
        if row in each.rejected
    ]
    notes = [parent["note"], *(f"left out by {name}: {lost.reason}" for name, lost in refused)]
    note = one_line("; ".join(filter(None, notes)))
    return {"smiles": one_line(given_smiles(item)), **parent, "note": note}
