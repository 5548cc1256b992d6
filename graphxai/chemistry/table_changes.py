"""Say what each change did in a table of measured compounds: matched pairs, and tables of R-groups.

A matched pair differs in one part at one bond (Hussain 2010). What was measured for each exchange
stands beside what a model predicts for the same molecules, so that both can be compared, with the
number of pairs of which the model has the sign right.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from html import escape
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from rdkit import Chem

from graphxai.datasets.canonical_form import quietly_read
from graphxai.datasets.matched_pairs import Exchange
from graphxai.datasets.training_set import TrainingSet, training_set_of
from graphxai.explanation.api import OneOrMoreModels, predict
from graphxai.explanation.compute.models import ModelPanel, standardisation_of
from graphxai.explanation.labelled import short_text
from graphxai.explanation.prediction import Prediction
from graphxai.explanation.result import fields_html, table_html

from .matched_pairs import Measured
from .matching import rgroups
from .measurements import MOST_COMPARED, Measurements, measurements_for_tasks

if TYPE_CHECKING:
    import pandas as pd

MeasuredSource: TypeAlias = "Measurements | Mapping[str, float] | str | Path"
ENDS = ("from", "to", "at")  # of an exchange, in tables
MEASURED = ("pairs", "measured_mean_change", "measured_sd", "before", "after")
SHOWN = 20  # how many exchanges a notebook shows


class PredictionsOf:
    """The predictions of several models for compounds, which are made when they are asked for.

    `racemates` has the SMILES to predict for some of the compounds, see `Measurements`.
    """

    def __init__(self, panel: ModelPanel, racemates: Mapping[str, str] | None = None) -> None:
        self.panel, self.racemates = panel, racemates or {}
        self._predictions: dict[str, Mapping[str, Prediction] | None] = {}

    def __call__(self, smiles: Iterable[str]) -> list[Mapping[str, Prediction] | None]:
        """Return the predictions for each SMILES, or None for what a model cannot read."""
        wanted = list(smiles)
        new = [text for text in dict.fromkeys(wanted) if text not in self._predictions]
        if new:
            read = [self.racemates.get(text, text) for text in new]
            predicted = predict(list(self.panel.models), read, progress=False)
            self._predictions.update(zip(new, predicted, strict=True))
        return [self._predictions[text] for text in wanted]


@dataclass(frozen=True)
class ChangedPair:
    """Two compounds of a table that differ in one part.

    Attributes:
        before: SMILES of the compound with the old part.
        after: SMILES of the compound with the new part.
        measured: the change of the measured value.
        predicted: the change of each predicted property, see `TableChanges`.
    """

    before: str
    after: str
    measured: float
    predicted: Mapping[str, float] = field(hash=False)


@dataclass(frozen=True)
class MeasuredExchange:
    """An exchange of one part for another, with all pairs of a table that differ by it.

    Attributes:
        exchange: the exchange, from the smaller part to the larger one.
        pairs: the pairs.
    """

    exchange: Exchange
    pairs: tuple[ChangedPair, ...]

    def __repr__(self) -> str:
        mean = self.columns["measured_mean_change"]
        return f"MeasuredExchange({self.exchange}: {mean:+.2f} in {len(self.pairs)} pairs)"

    def _repr_html_(self) -> str:
        return fields_html(self.columns)

    @property
    def columns(self) -> dict[str, Any]:
        """The cells of its row in a table: how many pairs, and means with standard deviations."""
        cells: dict[str, Any] = {**_ends(self.exchange), "pairs": len(self.pairs)}
        cells |= _mean_and_sd("measured", [pair.measured for pair in self.pairs])
        for name in self.pairs[0].predicted:
            cells |= _mean_and_sd(f"predicted {name}", [p.predicted[name] for p in self.pairs])
        return cells | {"before": self.pairs[0].before, "after": self.pairs[0].after}


@dataclass(frozen=True, eq=False)
class TableChanges(Sequence[MeasuredExchange]):
    """The exchanges in a table of measured compounds, those with most pairs first.

    The predicted change of a class is that of its probability: of the second of two classes, or of
    the class predicted before the change.

    Attributes:
        name: the name of the measured value.
        exchanges: the exchanges.
        compounds: how many compounds were compared.
        bounded: how many were not, of which only a bound such as ">10" is known.
    """

    name: str
    exchanges: tuple[MeasuredExchange, ...]
    compounds: int
    bounded: int = 0

    def __len__(self) -> int:
        return len(self.exchanges)

    def __getitem__(self, index: Any) -> Any:
        chosen = self.exchanges[index]
        return replace(self, exchanges=chosen) if isinstance(index, slice) else chosen

    def __repr__(self) -> str:
        lines = [
            f"{each.exchange}: {self.name} {each.columns['measured_mean_change']:+.2f} in"
            f" {len(each.pairs)} pairs"
            for each in self.exchanges
        ]
        about = f"{len(self.exchanges):,} exchanges among {self.compounds:,} compounds"
        about += f", not {self.bounded:,} only with bounds" if self.bounded else ""
        return short_text([f"TableChanges({about})", *lines])

    def to_frame(self) -> "pd.DataFrame":
        """Return a table with a row for each exchange."""
        import pandas as pd

        rows = [each.columns for each in self.exchanges]
        return pd.DataFrame(rows, columns=None if rows else [*ENDS, *MEASURED])

    def pairs_frame(self) -> "pd.DataFrame":
        """Return a table with a row for each pair of compounds."""
        import pandas as pd

        rows = [
            {
                **_ends(each.exchange),
                "before": pair.before,
                "after": pair.after,
                "measured_change": pair.measured,
                **{f"predicted {n}_change": change for n, change in pair.predicted.items()},
            }
            for each in self.exchanges
            for pair in each.pairs
        ]
        columns = [*ENDS, "before", "after", "measured_change"]
        return pd.DataFrame(rows, columns=None if rows else columns)

    def _repr_html_(self) -> str:
        rows = [each.columns for each in self.exchanges[:SHOWN]]
        cells = [
            [f"{c:.3g}" if isinstance(c, float) else "" if c is None else c for c in row.values()]
            for row in rows
        ]
        return f"<p>{escape(repr(self).splitlines()[0])}</p>" + (
            table_html(rows[0], cells) if rows else ""
        )


def table_changes(
    model: OneOrMoreModels, measured: MeasuredSource, column: str = "", *, at_least: int = 2
) -> TableChanges:
    """Find what each exchange of a part did in a table, measured and predicted.

    Args:
        model: a model from `load` or `wrap`, or its name, or a list of these.
        measured: the table's file, measured values by SMILES, or `Measurements`. Salts of a
            compound are one compound, and its values are averaged.
        column: the column of the measured values, by default one named after a task of the model.
        at_least: in how many pairs an exchange must occur.

    Raises:
        ValueError: the table has no measured values.
    """
    panel = ModelPanel.of(model)
    table = measured_for(panel, measured, column)
    return changes_among(table, PredictionsOf(panel, table.racemates), at_least)


def changes_among(
    measured: Measurements, predicted: PredictionsOf, at_least: int = 2
) -> TableChanges:
    """Find what each exchange of a part did among measured compounds, as `table_changes` does."""
    pairs_of: dict[Exchange, list[tuple[str, str]]] = defaultdict(list)
    for before, after, pair in measured.pairs:
        exchange = pair.exchange
        if _size(exchange.old) > _size(exchange.new):
            exchange, before, after = exchange.reversed, after, before
        pairs_of[exchange].append((before, after))
    often = {exchange: pairs for exchange, pairs in pairs_of.items() if len(pairs) >= at_least}
    ends = dict.fromkeys(chain.from_iterable(chain.from_iterable(often.values())))
    predictions = dict(zip(ends, predicted(ends), strict=True))
    kept = []
    for exchange, pairs in often.items():
        made = []
        for a, b in pairs:
            was, then = predictions[a], predictions[b]
            if was is not None and then is not None and was.keys() == then.keys():
                change = {name: _change(before, then[name]) for name, before in was.items()}
                made.append(ChangedPair(a, b, measured.values[b] - measured.values[a], change))
        if len(made) >= at_least:
            kept.append(MeasuredExchange(exchange, tuple(made)))
    kept.sort(key=lambda each: (-len(each.pairs), str(each.exchange)))
    compared = min(len(measured.values), MOST_COMPARED)
    return TableChanges(measured.name, tuple(kept), compared, len(measured.bounds))


def rgroup_table(
    model: OneOrMoreModels, core: str, measured: MeasuredSource, column: str = ""
) -> "pd.DataFrame":
    """Divide the compounds of a table into a core and its R-groups, measured and predicted.

    RDKit finds the R-groups. Compounds without the core are left out.

    Args:
        model, measured, column: as for `table_changes`.
        core: SMARTS or SMILES of the core. It may name the places of its R-groups, as in
            "c1cc([*:1])ccc1[*:2]"; otherwise every place where compounds differ is one.

    Returns:
        A table with a row for each compound: `smiles`, the `core`, `R1` and so on as SMILES, the
        `measured` value, its bound such as ">10" if some have only that, and what the model
        predicts.

    Raises:
        ValueError: the core is not understood, or no compound has it.
    """
    import pandas as pd

    panel = ModelPanel.of(model)
    table = measured_for(panel, measured, column)
    parts = rgroups(core, [*table.values, *table.bounds])
    if not parts:
        raise ValueError(f"no compound of the table has the core {core}.")
    rows = []
    predictions = PredictionsOf(panel, table.racemates)(parts)
    for (text, of_core), predicted in zip(parts.items(), predictions, strict=True):
        cells: dict[str, Any] = {"smiles": text, "core": of_core["Core"]}
        cells |= {name: part for name, part in of_core.items() if name != "Core"}
        cells[f"measured {table.name}"] = table.values.get(text)
        if table.bounds:
            cells[f"measured bound of {table.name}"] = table.bounds.get(text, "")
        for name, prediction in (predicted or {}).items():
            cells |= {
                f"predicted {name if column == prediction.heading else column}": cell
                for column, cell in prediction.columns.items()
            }
        rows.append(cells)
    groups = [name for name in rows[0] if name.startswith("R") and name[1:].isdigit()]
    frame = pd.DataFrame(rows)  # the most common groups together
    return frame.sort_values(groups, ignore_index=True) if groups else frame


def measured_for(
    panel: ModelPanel, measured: MeasuredSource, column: str = "", smiles_column: str | None = None
) -> Measurements:
    """Read the measured values of a table, brought to the parents that the first model reads."""
    if isinstance(measured, Measurements):
        return measured
    way = standardisation_of(panel.models[0])
    units = {each.task.name: each.task.unit for each in panel.properties}
    if isinstance(measured, Mapping):
        return Measurements.of(measured, column or "value", way)
    return measurements_for_tasks(measured, units, column, smiles_column, way)


def _change(was: Prediction, then: Prediction) -> float:
    """Return the change of a value, or that of a probability as `TableChanges` says."""
    if was.value is not None and then.value is not None:
        return then.value - was.value
    classes = list(was.probabilities)
    label = classes[1] if len(classes) == 2 else str(was.label)
    return then.probabilities[label] - was.probabilities[label]


def _ends(exchange: Exchange) -> dict[str, str]:
    return dict(zip(ENDS, (exchange.old, exchange.new, exchange.at), strict=True))


def _mean_and_sd(name: str, changes: Sequence[float]) -> dict[str, float | None]:
    """Return the mean of changes and their standard deviation, which is None for a single one."""
    sd = float(np.std(changes, ddof=1)) if len(changes) > 1 else None
    return {f"{name}_mean_change": float(np.mean(changes)), f"{name}_sd": sd}


@lru_cache(maxsize=4096)
def _size(part: str) -> tuple[int, str]:
    """Return what parts are ordered by: the number of heavy atoms, then the SMILES."""
    mol = quietly_read(part)  # which may be hydrogen
    return (0 if mol is None else mol.GetNumHeavyAtoms()), part


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
            table, model = tables[each.name], panel.models[each.place]
            predicted = PredictionsOf(ModelPanel.of(model), table.racemates)
            judged[each.name] = JudgedTable(
                table, predicted, each.task.name, training_set_of(model)
            )
    return judged
