"""Look up what a table of measured values says about a change of a molecule.

The table may hold the product itself, and pairs of molecules with the same change.
"""

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from rdkit import Chem, rdBase

from graphxai.contract.tasks import Task
from graphxai.datasets.as_given import Standardisation
from graphxai.datasets.labels import not_understood, read_measured
from graphxai.datasets.matched_pairs import Exchange, MatchedPair, matched_pairs
from graphxai.datasets.molecule_reading import ReadMolecule, read_molecules
from graphxai.datasets.molecules import MAX_ATOMS
from graphxai.datasets.tables.table import Table, open_table
from graphxai.explanation.compute.models import ModelPanel, standardisation_of
from graphxai.runtime.notices import warn

from .matched_pairs import Measured as Measured
from .matched_pairs import ShrunkenMean, both_ways, variances

MOST_COMPARED = 10_000  # compounds among which pairs are looked for, in half a minute
SPREAD = 3.0  # standard deviations around the mean within which a task's values are expected


class NoNumbersError(ValueError):
    """Raised where there are measured values but none of them is a number."""


@dataclass(frozen=True, eq=False)
class Measurements:
    """Measured values by the canonical SMILES of each compound.

    Salts, hydrates and protonated forms of a molecule are one compound, as in a model.

    Args:
        name: name of the measured value.
        values: the value of each compound, or the mean if it was measured repeatedly.
        note: the values or SMILES that were not understood, as text; empty if all were.
        bounds: what is known of compounds that have only bounds, such as ">10". Changes are
            not counted from them.
        standardise: how molecules are brought to their compounds, as by the model compared with.
        racemates: see `racemates_among`.
    """

    name: str
    values: Mapping[str, float]
    note: str = ""
    bounds: Mapping[str, str] = field(default_factory=dict)
    standardise: Standardisation = "parent"
    racemates: Mapping[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        counts = [f"{len(self.values):,} compound{'s' * (len(self.values) != 1)}"]
        counts += [f"{len(self.bounds):,} only with bounds"] if self.bounds else []
        return f"Measurements({self.name}: {', '.join(counts)})"

    @classmethod
    def read(
        cls,
        path: str | Path,
        columns: Sequence[str],
        smiles_column: str | None = None,
        standardise: Standardisation = "parent",
        tasks: Sequence[str] | None = (),
        units: Mapping[str, str] | None = None,
    ) -> "Measurements":
        """Read the values of a table from the first of these columns that has numbers.

        Numbers are read as for training, see `read_labels` and `Table.measured`. They become
        logarithms if they then are of one of the `tasks`, by default of one called as the column;
        with None, where training takes logarithms. A column may be named with its unit in `units`.
        A warning counts rows whose SMILES or value is not understood.

        Raises:
            ValueError: if no column has numbers; it is a `NoNumbersError` if a column has values.
                The message is about that column, or else about the first.
        """
        table = open_table(path, smiles_column)
        table.structures  # noqa: B018 (raises an error that says what is missing)
        try:
            return cls.in_table(table, columns, standardise, tasks=tasks, units=units)
        except ValueError as error:
            raise type(error)(f"{path} has no measured values: {error}") from None

    @classmethod
    def in_table(
        cls,
        table: Table,
        columns: Sequence[str],
        standardise: Standardisation,
        limit: int | None = None,
        tasks: Sequence[str] | None = (),
        units: Mapping[str, str] | None = None,
    ) -> "Measurements":
        """Read the values of an open table, in its first `limit` rows, as `read` does."""
        structures, errors = table.structures.name, []
        for column in columns:
            try:
                source = table.source_of(column, (units or {}).get(column, "")) or column
                names = None if tasks is None else tasks or [column]
                records, plain = table.measured(source, names, limit)
                pairs = zip((r.cells[structures] for r in records), plain.cells, strict=True)
                is_named = names is None or plain.name in names
                return cls.of(pairs, plain.name if is_named else column, standardise)
            except ValueError as error:
                errors.append(error)
        raise next((e for e in errors if isinstance(e, NoNumbersError)), errors[0])

    @classmethod
    def of(
        cls,
        pairs: Mapping[str, Any] | Iterable[tuple[str, Any]],
        name: str = "value",
        standardise: Standardisation = "parent",
    ) -> "Measurements":
        """Take measured values by SMILES, or as pairs: a number each, or a bound such as ">10".

        The warning and errors are as for `read`. Raises TypeError for anything else.
        """
        listed = list(pairs.items() if isinstance(pairs, Mapping) else pairs)
        if not all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in listed):
            raise TypeError(
                "measured values are a dict by SMILES, or pairs of a SMILES and a value, not a"
                f" {type(pairs).__name__}. Those of a frame are"
                " dict(zip(frame['smiles'], frame['value']))."
            )
        rows = [(smiles, _text(cell)) for smiles, cell in listed]
        cells = [cell for _, cell in rows]
        values, limits, strange = read_measured(cells)
        sided = {bound.position: str(bound) for bound in limits}
        used = [k for k in range(len(rows)) if k in sided or not math.isnan(values[k])]
        texts = [rows[k][0] for k in used]
        compounds = compounds_of(texts, standardise)
        values_of, bounds = defaultdict(list), {}
        for k, compound in zip(used, compounds, strict=True):
            if compound and k in sided:
                bounds[compound] = sided[k]
            elif compound:
                values_of[compound].append(float(values[k]))
        unreadable = compounds.count("")
        unclear = not_understood(name, cells, strange)
        counted = "1 row has" if unreadable == 1 else f"{unreadable:,} rows have"
        unread = f"{counted} a value in {name!r} but no readable SMILES." if unreadable else ""
        many = len(values_of) > MOST_COMPARED
        pairs_of = f"Pairs are those of the first {MOST_COMPARED:,} compounds." if many else ""
        note = " ".join(filter(None, (unclear, unread, pairs_of)))
        if not values_of:
            only = f"{len(sided):,} are bounds, such as {cells[min(sided)]!r}." if sided else ""
            text = f"no row has a SMILES and a number in {name!r}. {f'{only} {note}'.strip()}"
            with_digits = re.search(r"\d", "".join(cells[k] for k in strange))
            looks_right = unreadable or sided or with_digits
            raise (NoNumbersError if looks_right else ValueError)(text.strip())
        if note:
            warn(note, stacklevel=2)
        means = {compound: float(np.mean(each)) for compound, each in values_of.items()}
        bounds = {compound: text for compound, text in bounds.items() if compound not in means}
        return cls(name, means, note, bounds, standardise, racemates_among(texts, compounds))

    def doubt(self, task: Task) -> str:
        """Return a warning if the values hardly look like those that a regression was trained on.

        The text is empty if they do. It is also empty where the mean and the standard deviation of
        the training values (the task's `offset` and `scale`) are not recorded.
        """
        if task.kind != "regression" or (task.offset, task.scale) == (0, 1) or not self.values:
            return ""
        values = np.array(list(self.values.values()))
        if np.mean(np.abs(values - task.offset) <= SPREAD * task.scale) >= 0.5:
            return ""
        usual = (task.offset + side * SPREAD * task.scale for side in (-1, 1))
        return (
            f"Column {self.name!r} has values from {values.min():.4g} to {values.max():.4g}, but"
            f" {task.name} was mostly from {' to '.join(f'{end:.3g}' for end in usual)} in"
            " training: compare the same quantity in the same unit."
        )

    def about(self, before: str, after: str) -> Measured:
        """Return what was measured for a change between two molecules, both as SMILES."""
        before, after = (_compound(smiles, self.standardise) for smiles in (before, after))
        exchange = _exchange(before, after)
        changes = () if exchange is None else tuple(self._changes.get(exchange, ()))
        varies = exchange is None or any(each.old == exchange.old for each in self._changes)
        return Measured(
            *(self.name, self.values.get(before), self.values.get(after), exchange, changes),
            bound=self.bounds.get(after, ""),
            varies=varies,
            bound_before=self.bounds.get(before, ""),
        )

    @cached_property
    def pairs(self) -> list[tuple[str, str, MatchedPair]]:
        """The matched pairs among the first `MOST_COMPARED` compounds, by their SMILES."""
        compared = list(islice(self.values, MOST_COMPARED))
        pairs = matched_pairs([Chem.MolFromSmiles(smiles) for smiles in compared])
        return [(compared[i], compared[j], pair) for (i, j), pair in pairs.items()]

    @cached_property
    def _changes(self) -> dict[Exchange, list[float]]:
        """The measured changes of every exchange in the table."""
        return both_ways((pair.exchange, self._change(a, b)) for a, b, pair in self.pairs)

    @cached_property
    def exchanges(self) -> dict[tuple[str, str], dict[Exchange, ShrunkenMean]]:
        """What was measured for each exchange, by the old part and the environment of the bond.

        The prior of an exchange's mean is normal around 0, as each is also counted backwards. Its
        variance, and that of the changes around their mean, are estimated from all exchanges, so
        that a mean of few pairs is drawn towards 0 (James and Stein 1961; Efron and Morris 1975).
        """
        by_environment: dict[str, list[tuple[Exchange, float]]] = defaultdict(list)
        for a, b, pair in self.pairs:
            by_environment[pair.environment].append((pair.exchange, self._change(a, b)))
        changes = {
            (exchange.old, around, exchange): np.array(each)
            for around, rows in by_environment.items()
            for exchange, each in both_ways(rows).items()
        }
        prior, noise = variances(list(changes.values()))
        exchanges: dict[tuple[str, str], dict[Exchange, ShrunkenMean]] = defaultdict(dict)
        for (old, around, exchange), each in changes.items():
            exchanges[old, around][exchange] = ShrunkenMean.of(each, prior, noise)
        return dict(exchanges)

    def _change(self, before: str, after: str) -> float:
        return self.values[after] - self.values[before]


def measurements_for_tasks(
    path: str | Path,
    units: Mapping[str, str],
    column: str | None,
    smiles_column: str | None = None,
    standardise: Standardisation = "parent",
) -> Measurements:
    """Read the values of a table's column, or else of the first that is named after a task.

    Args:
        units: the unit of each task, by its name.
    """
    columns, units_of = ([column], {}) if column else ([*units], units)
    return Measurements.read(path, columns, smiles_column, standardise, [*units], units_of)


def compounds_of(smiles: Sequence[str], standardise: Standardisation) -> list[str]:
    """Return the canonical SMILES of the compound of each molecule, or "" if it cannot be read."""
    with rdBase.BlockLogs():
        read = read_molecules(smiles, MAX_ATOMS, standardise, canonical=True)
    return [str(Chem.MolToSmiles(r.form)) if isinstance(r, ReadMolecule) else "" for r in read]


def racemates_among(smiles: Sequence[str], compounds: Sequence[str]) -> dict[str, str]:
    """Return the SMILES of each compound that its first row gives groups such as |&1:1|.

    A compound has none, so that all rows of it are one. A model answers for its isomers.
    """
    first = dict(zip(reversed(compounds), reversed(smiles), strict=True))
    return {compound: text for compound, text in first.items() if compound and "|" in text}


@lru_cache(maxsize=4096)  # a search asks again after every batch
def _compound(smiles: str, standardise: Standardisation) -> str:
    """Return the canonical SMILES of a molecule's compound, or the SMILES given."""
    return compounds_of([smiles], standardise)[0] or smiles


@lru_cache(maxsize=4096)
def _exchange(before: str, after: str) -> Exchange | None:
    pair = matched_pairs([Chem.MolFromSmiles(smiles) for smiles in (before, after)]).get((0, 1))
    return None if pair is None else pair.exchange


def _text(cell: Any) -> str:
    if cell is None or isinstance(cell, str):
        return cell or ""
    try:
        return repr(float(cell))
    except (TypeError, ValueError):
        return str(cell)


def measured_properties(
    panel: ModelPanel,
    measured: str | Path | Mapping[str, Measurements | Mapping[str, float]],
    smiles_column: str | None = None,
) -> dict[str, Measurements]:
    """Return the measured values of each property with a value that was measured.

    Args:
        measured: a table with columns that are named after properties; or for the name of each
            property its values by SMILES.
        smiles_column: the table's column of structures, by default by its name or content.

    Raises:
        ValueError: there is no such property, or no property was measured. It is a `NoNumbersError`
            if a property has a column without numbers.
    """
    way = standardisation_of(panel.models[0])
    tasks = {each.name: each.task for each in panel.properties if not each.task.classes}
    if isinstance(measured, Mapping):
        for name in measured:
            if name not in tasks:
                raise ValueError(
                    f"{name!r} is no property with values; there is {', '.join(tasks) or 'none'}."
                    " For several properties, give the values of each by its name."
                )
        return {
            name: values if isinstance(values, Measurements) else Measurements.of(values, name, way)
            for name, values in measured.items()
        }
    tables, errors = {}, []
    for name, task in tasks.items():
        try:
            units = {task.name: task.unit}
            tables[name] = measurements_for_tasks(measured, units, None, smiles_column, way)
        except ValueError as error:
            errors.append(error)
    if not tables:
        if not errors:
            raise ValueError("no model predicts a value that can be compared with measured ones.")
        raise next((e for e in errors if isinstance(e, NoNumbersError)), errors[0])
    return tables
