"""Predict compounds once each, and say in how many measured pairs a model has an exchange right."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TypeAlias

import numpy as np
from rdkit import Chem

from graphxai.datasets.training_set import TrainingSet, training_set_of
from graphxai.explanation.api import predict
from graphxai.explanation.compute.models import ModelPanel
from graphxai.explanation.prediction import Prediction

from .measurements import Measured, Measurements


class PredictionsOf:
    """The predictions of several models for compounds, which are made when they are asked for."""

    def __init__(self, panel: ModelPanel) -> None:
        self.panel = panel
        self._predictions: dict[str, Mapping[str, Prediction] | None] = {}

    def __call__(self, smiles: Iterable[str]) -> list[Mapping[str, Prediction] | None]:
        """Return the predictions for each SMILES, or None for what a model cannot read."""
        wanted = list(smiles)
        new = [text for text in dict.fromkeys(wanted) if text not in self._predictions]
        if new:
            predicted = predict(list(self.panel.models), new, progress=False)
            self._predictions.update(zip(new, predicted, strict=True))
        return [self._predictions[text] for text in wanted]


@dataclass(frozen=True, eq=False)
class JudgedTable:
    """Measured values, with the model whose changes they judge.

    Args:
        training: the training set of the model, if that is known.
    """

    table: Measurements
    predicted: PredictionsOf
    task: str
    training: TrainingSet | None
    _learned: dict[str, bool] = field(default_factory=dict)

    def about(self, before: str, after: str) -> Measured:
        """Return what was measured for a change, and in how many pairs the model had it right.

        Pairs of which the model learned both compounds do not count, nor those without a change.
        """
        measured = self.table.about(before, after)
        if measured.exchange is None or not measured.changes:
            return measured
        known = self.table.values
        pairs = [
            (a, b) if pair.exchange == measured.exchange else (b, a)
            for a, b, pair in self.table.pairs
            if measured.exchange in (pair.exchange, pair.exchange.reversed)
            and known[a] != known[b]
            and not (self._is_learned(a) and self._is_learned(b))
        ]
        compounds = list(dict.fromkeys(chain.from_iterable(pairs)))
        values = {
            smiles: None if prediction is None else prediction[self.task].value
            for smiles, prediction in zip(compounds, self.predicted(compounds), strict=True)
        }
        changes = [
            (known[b] - known[a], end - start)
            for a, b in pairs
            if (start := values[a]) is not None and (end := values[b]) is not None
        ]
        right = sum(bool(np.sign(true) == np.sign(said)) for true, said in changes)
        return replace(measured, judged=len(changes), right=right)

    def _is_learned(self, smiles: str) -> bool:
        if self.training is None:
            return False
        if smiles not in self._learned:
            part = self.training.part(Chem.MolFromSmiles(smiles))
            self._learned[smiles] = part == "training"
        return self._learned[smiles]


MeasuredTable: TypeAlias = Measurements | JudgedTable


def judged_tables(
    panel: ModelPanel, tables: Mapping[str, Measurements]
) -> dict[str, MeasuredTable]:
    """Return measured values by property, judging the models that predict a value of them."""
    judged: dict[str, MeasuredTable] = dict(tables)
    for each in panel.properties:
        if each.name in tables and each.task.kind == "regression":
            model = panel.models[each.place]
            predicted, training = PredictionsOf(ModelPanel.of(model)), training_set_of(model)
            judged[each.name] = JudgedTable(tables[each.name], predicted, each.task.name, training)
    return judged
