"""Free-Wilson: what each R-group adds, the empty cells of a table, and products with a goal."""

import numpy as np
import pandas as pd
import pytest
from rdkit import Chem
from sklearn.linear_model import Ridge

import graphxai as gx
from graphxai.chemistry.free_wilson import PENALTIES, free_wilson
from toy import random_graphormer

CORE = "c1cc([*:1])ccc1C(=O)N[*:2]"
ON_RING = {"[H]": 0.0, "F": 0.5, "Cl": 1.0, "OC": -0.5}
ON_NITROGEN = {"C": 0.0, "CC": 0.25, "C1CC1": 0.75}


def compound(ring: str, amine: str) -> str:
    """Return a benzamide as SMILES."""
    group = "" if ring == "[H]" else f"({ring})"
    return Chem.CanonSmiles(f"c1cc{group}ccc1C(=O)N{amine}")


@pytest.fixture(scope="module")
def values():
    """All combinations but that of Cl and cyclopropyl, and of F and ethyl."""
    hidden = {("Cl", "C1CC1"), ("F", "CC")}
    return {
        compound(ring, amine): 5 + a + b
        for ring, a in ON_RING.items()
        for amine, b in ON_NITROGEN.items()
        if (ring, amine) not in hidden
    }


def test_doses_are_fitted_as_logarithms(values, tmp_path):
    path = tmp_path / "series.csv"
    rows = (f"{smiles},{10 ** (9 - value)!r}" for smiles, value in values.items())
    path.write_text("\n".join(["smiles,IC50 (nM)", *rows]) + "\n")
    fit, expected = free_wilson(CORE, path, "IC50 (nM)"), free_wilson(CORE, values, "pIC50")
    assert fit.name == "pIC50"
    assert fit.q2 == pytest.approx(expected.q2)


def test_contributions_are_those_of_ridge_regression(values):
    fit = free_wilson(CORE, values, "pIC50")
    rows = np.array(
        [
            [(g, p) in set(zip(fit.groups, parts, strict=True)) for g, p in fit.columns]
            for parts in fit.parts.values()
        ],
        dtype=float,
    )
    y = np.array([values[smiles] for smiles in fit.parts])
    expected = {}
    for penalty in PENALTIES:
        others = [np.delete(np.arange(len(y)), k) for k in range(len(y))]
        left_out = [
            (Ridge(penalty).fit(rows[o], y[o]).predict(rows[[k]])[0] - y[k]) ** 2
            for k, o in enumerate(others)
        ]
        expected[penalty] = np.mean(left_out), Ridge(penalty).fit(rows, y).coef_
    error, contributions = min(expected.values(), key=lambda pair: pair[0])
    assert [value for value, _, _ in fit.contributions.values()] == pytest.approx(
        contributions, abs=1e-5
    )
    assert fit.q2 == pytest.approx(1 - error / np.var(y), abs=1e-5)
    assert fit.q2 > 0.9
    frame = fit.to_frame()
    assert (frame.low <= frame.value).all()
    assert frame.compounds.sum() == 2 * len(values)


def test_the_empty_cells_are_the_hidden_compounds_with_their_values(values):
    fit = free_wilson(CORE, values, "pIC50")
    cells = {smiles: estimate for smiles, _, estimate in fit.empty_cells()}
    truth = {compound("Cl", "C1CC1"): 6.75, compound("F", "CC"): 5.75}
    assert cells.keys() == truth.keys()
    for smiles, value in truth.items():
        fitted, low, high = cells[smiles]
        assert fitted == pytest.approx(value, abs=0.15)
        assert low <= value <= high
    (rows, columns), matrix = fit.matrix()
    assert {rows, columns} == {"R1", "R2"}
    assert sum(mean is None for _, *row in matrix for _, mean, _ in row) == 2
    assert len(matrix) == 4


def test_products_that_are_not_made_are_told_of(values, monkeypatch):
    fitted = gx.free_wilson(CORE, values)
    monkeypatch.setattr("graphxai.chemistry.free_wilson.MOST_MADE", 3)
    with pytest.warns(UserWarning, match="12 combinations, of which the first 3"):
        assert len([*fitted.empty_cells()]) <= 3


def test_products_are_sorted_by_the_goal(values):
    model = random_graphormer(num_layers=1)
    products = free_wilson(CORE, values, "pIC50").products(model, "pIC50 > 6 (0 at -20)")
    assert set(products.smiles) == {compound("Cl", "C1CC1"), compound("F", "CC")}
    assert products.desirability.is_monotonic_decreasing
    assert products.columns[:3].tolist() == ["smiles", "R1", "R2"]
    assert {"fitted_value", "fitted_low", "pIC50"} <= set(products.columns)


def test_few_products_are_predicted_on_the_side_of_the_goal(values):
    model = random_graphormer(num_layers=1)
    pairs = zip(values, gx.predict(model, list(values)), strict=True)
    predicted = {smiles: each["pIC50"].value for smiles, each in pairs}
    fit = free_wilson(CORE, predicted, "pIC50")
    fitted = [value for _, _, (value, _, _) in fit.empty_cells()]
    for goal, best in (("pIC50 < -20 (0 at 20)", min), ("pIC50 > 20 (0 at -20)", max)):
        made = fit.products(model, goal, predictions=1)
        assert made.fitted_value.tolist() == [pytest.approx(best(fitted))]


def test_a_series_that_is_too_small_is_refused(values):
    with pytest.raises(ValueError, match="fewer than 6 compounds"):
        free_wilson(CORE, dict(list(values.items())[:4]), "pIC50")
    with pytest.raises(ValueError, match="fewer than 6 compounds"):
        free_wilson("[Xe]", values)


def test_a_frame_in_place_of_the_table_is_refused_with_what_to_do(values):
    frame = pd.DataFrame({"smiles": list(values), "value": list(values.values())})
    with pytest.raises(TypeError, match="write it to one"):
        free_wilson(CORE, frame)
