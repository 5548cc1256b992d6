"""Structures in the files of a search for counterfactuals are read again to the same answers."""

import numpy as np
import pytest

import graphxai as gx
from graphxai.chemistry import SearchSettings
from graphxai.datasets.tables.table import open_table

MODEL = "lipophilicity"  # which sees configuration, and gives a racemate the mean of its isomers
SUFFIXES = (".csv", ".tsv", ".parquet", ".sdf")
DRAWN = {
    "racemate": "C[C@H](O)c1ccc(Cl)cc1 |&1:1|",
    "double bonds of which one is undefined": "CC=C/C=C/c1ccccc1",
    "hydrogens beside double bonds in a ring": r"[H]/C1=C/CC/C=C/CC/C([H])=C\CC1",
    "isotopes": "[2H]C([2H])([2H])Oc1ccc(CC(C)N)cc1",
    "salt": "CC(C)NCC(O)COc1cccc2ccccc12.Cl",
    "cation": "CC[n+]1ccc(C)cc1.[Br-]",
}


def values_of(structures) -> list[float]:
    """Return what the model predicts for structures as they stand in a file."""
    answers = gx.predict(MODEL, list(structures), progress=False)
    return [value.value for by_task in answers for value in by_task.values()]


def come_back(search, suffix, first, expected, tmp_path) -> None:
    """Read the saved results again. An SD file begins with the molecule itself."""
    table = open_table(search.save(tmp_path / f"found{suffix}"))
    read = [record.cells[table.structures.name] for record in table.records()]
    expected = [first, *expected] if suffix == ".sdf" else expected
    assert len(read) == len(expected) > 0
    np.testing.assert_allclose(values_of(read), expected, atol=1e-4)


@pytest.mark.parametrize("drawn", DRAWN.values(), ids=DRAWN)
def test_counterfactuals_come_back_from_every_file(drawn, tmp_path):
    settings = SearchSettings(predictions=30, steps=1)
    search = gx.counterfactuals(MODEL, drawn, "< -5", 3, settings=settings, progress=False)
    (first,) = values_of([drawn])
    expected = [each.prediction.value for each in search]
    for suffix in SUFFIXES:
        come_back(search, suffix, first, expected, tmp_path)


def test_counterfactuals_for_a_profile_come_back_from_every_file(tmp_path):
    drawn, models = DRAWN["hydrogens beside double bonds in a ring"], [MODEL, "solubility"]
    settings = SearchSettings(predictions=30, steps=1)
    goals = "log D > 3, solubility > -2"
    search = gx.counterfactuals(models, drawn, goals, 3, settings=settings, progress=False)
    (first,) = values_of([drawn])
    expected = [next(iter(each.predictions.values())).value for each in search]
    for suffix in SUFFIXES:
        come_back(search, suffix, first, expected, tmp_path)
