"""The command `graphxai counterfactuals`."""

import csv

import pytest
from typer.testing import CliRunner

from graphxai.cli.main import app

FEW = ["-n", "2", "--predictions", "40", "--steps", "1", "--sources", "transformations"]


def test_a_molecule_is_printed_and_saved(tmp_path):
    out = tmp_path / "changes.csv"
    given = ["counterfactuals", "c1ccccc1O", "--towards", "pIC50: >4", *FEW, "--out", str(out)]
    result = CliRunner().invoke(app, given, catch_exceptions=False)
    assert "neighbours predicted" in result.output
    rows = list(csv.DictReader(out.open()))
    assert len(rows) == 2
    assert all(row["changes"] in result.output for row in rows)


def test_a_table_gets_its_rows_numbered_and_bad_ones_named(tmp_path):
    table, out = tmp_path / "molecules.csv", tmp_path / "changes.csv"
    table.write_text("smiles\nCCO\nnonsense\nc1ccccc1O\n")
    given = ["counterfactuals", str(table), "--towards", "active", *FEW, "--out", str(out)]
    result = CliRunner().invoke(app, given, catch_exceptions=False)
    assert [row["row"] for row in csv.DictReader(out.open())] == ["1", "1", "3", "3"]
    assert "row 2" in result.output


def test_a_wish_that_does_not_fit_says_what_the_model_offers():
    with pytest.raises(ValueError, match="inactive, active"):
        CliRunner().invoke(
            app, ["counterfactuals", "CCO", "--towards", "blue"], catch_exceptions=False
        )
