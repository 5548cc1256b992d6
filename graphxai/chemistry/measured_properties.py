"""What was measured of several properties, and what it says about a change of a molecule."""

from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

from graphxai.explanation.compute.models import standardisation_of
from graphxai.explanation.compute.panel import ModelPanel

from .measurements import Measured, Measurements, NoNumbersError

MeasuredProperties: TypeAlias = Mapping[str, Measurements]


def measured_properties(
    panel: ModelPanel,
    measured: str | Path | Mapping[str, Measurements | Mapping[str, float]],
    smiles_column: str | None = None,
) -> dict[str, Measurements]:
    """Return the measured values of each property with a value that was measured.

    Args:
        panel: the models.
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
            name: values
            if isinstance(values, Measurements)
            else Measurements.of(values.items(), name, way)
            for name, values in measured.items()
        }
    tables, errors = {}, []
    for name, task in tasks.items():
        try:
            tables[name] = Measurements.read(measured, [task.name], smiles_column, way)
        except ValueError as error:
            errors.append(error)
    if not tables:
        if not errors:
            raise ValueError("no model predicts a value that can be compared with measured ones.")
        raise next((e for e in errors if isinstance(e, NoNumbersError)), errors[0])
    return tables


def measured_change(tables: MeasuredProperties, before: str, after: str) -> dict[str, Measured]:
    """Return what was measured of each property for a change between two SMILES."""
    return {name: table.about(before, after) for name, table in tables.items()}


def sentence_about(measured: Mapping[str, Measured]) -> str:
    """Put what was measured of several properties into words, or return "" without any."""
    told = [m.sentence for m in measured.values() if m.after is not None or m.bound or m.changes]
    if told or not measured:
        return "; ".join(told)
    return next(iter(measured.values())).sentence  # the same for all
