"""The command `graphxai counterfactuals` prints changes of a molecule and writes them to files."""

import csv

import pytest
from typer.testing import CliRunner

from graphxai.cli.main import app

FEW = ["-n", "2", "--predictions", "40", "--steps", "1", "--sources", "transformations"]


def test_a_molecule_is_printed_and_saved(tmp_path):
    out = tmp_path / "changes.csv"
    given = ["counterfactuals", "c1ccccc1O", "--towards", "pIC50: >4", *FEW, "--out", str(out)]
    wide = CliRunner(env={"COLUMNS": "200"})  # no cell is folded
    result = wide.invoke(app, given, catch_exceptions=False)
    assert "neighbours predicted" in result.output
    rows = list(csv.DictReader(out.open()))
    assert len(rows) == 2
    assert all(row["changes"] in result.output for row in rows)


def test_every_source_that_is_named_counts_however_often_the_option_stands():
    given = ["counterfactuals", "CCO", "--sources", "guesses", "--sources", "fragments"]
    result = CliRunner().invoke(app, [*given, "--towards", "pIC50: >4"])
    assert result.exit_code != 0
    assert "guesses" in result.output + str(result.exception)


def test_an_exchanged_fragment_is_named_with_what_it_became(tmp_path):
    out = tmp_path / "changes.csv"
    few = ["-n", "3", "--predictions", "10", "--steps", "1", "--sources", "fragments"]
    given = ["counterfactuals", "CCOc1ccccc1", "--towards", "pIC50: >9", *few, "--out", str(out)]
    CliRunner().invoke(app, given, catch_exceptions=False)
    changes = [row["changes"] for row in csv.DictReader(out.open())]
    assert len(changes) == 3
    assert all(name.startswith(("ethoxy to ", "ethyl to ")) for name in changes)


def test_a_table_gets_its_rows_numbered_and_bad_ones_named(tmp_path):
    table, out = tmp_path / "molecules.csv", tmp_path / "changes.csv"
    table.write_text("ID,smiles,batch\nx1,CCO,7\nx2,nonsense,8\nx3,c1ccccc1O,9\n")
    given = ["counterfactuals", str(table), "--towards", "active", *FEW, "--out", str(out)]
    result = CliRunner().invoke(app, given, catch_exceptions=False)
    header, *rows = csv.reader(out.open())
    assert header[:5] == ["row", "ID", "input smiles", "batch", "smiles"]
    first, third = ["1", "x1", "CCO", "7"], ["3", "x3", "c1ccccc1O", "9"]
    assert [row[:4] for row in rows] == [first, first, third, third]
    assert "row 2" in result.output


def test_measured_values_are_printed_and_written(tmp_path):
    table, assay = tmp_path / "molecules.csv", tmp_path / "assay.csv"
    table.write_text("smiles\nc1ccccc1O\n")
    assay.write_text("smiles,IC\nc1ccccc1O,4\nOc1ccccc1F,4.5\nc1ccccc1CN,5\nNCc1ccccc1F,5.75\n")
    for source, name in ((str(table), "found.sdf"), ("c1ccccc1O", "found.csv")):
        given = ["counterfactuals", source, "--towards", "pIC50: >3", *FEW, "--measured-column"]
        given += ["IC", "--measured", str(assay), "--out", str(tmp_path / name)]
        result = CliRunner().invoke(app, given, catch_exceptions=False, env={"COLUMNS": "200"})
    assert "predicted change" in result.output
    assert "measured" in result.output
    rows = list(csv.DictReader((tmp_path / "found.csv").open()))
    assert {row["measured_before"] for row in rows} == {"4.0"}
    records = (tmp_path / "found.sdf").read_text()
    assert records.count("<row>") == records.count("$$$$") == 3  # the molecule and two others
    assert records.count("<measured_pairs>") == 2


def test_the_tables_own_pairs_are_measured_pairs(tmp_path):
    """The table has phenol and 2-fluorophenol, so this exchange of H for F was measured."""
    molecules = ["c1ccccc1O,4,5", "Oc1ccccc1F,4.5,", "c1ccccc1CN,5,", "NCc1ccccc1F,5.75,"]
    table, bare = tmp_path / "assay.csv", tmp_path / "bare.csv"
    table.write_text("\n".join(["smiles,pIC50,other", *molecules]))
    bare.write_text("smiles\nc1ccccc1O\n")
    few = ["--towards", "pIC50: >3", *FEW[4:], "--out", str(tmp_path / "found.csv")]

    def rows(*given, most=1):
        command = ["counterfactuals", *map(str, given), *few, "-n", str(most)]
        CliRunner().invoke(app, command, catch_exceptions=False)
        return list(csv.DictReader((tmp_path / "found.csv").open()))

    (fluoro,) = (r for r in rows(table, most=200) if (r["row"], r["smiles"]) == ("1", "Oc1ccccc1F"))
    assert (fluoro["measured_before"], fluoro["measured"]) == ("4.0", "4.5")
    assert fluoro["measured_pairs"] == "2"  # in phenol and in benzylamine
    assert float(fluoro["measured_mean_change"]) == pytest.approx((0.5 + 0.75) / 2)
    assert {r["measured_before"] for r in rows(table, "--measured-column", "other")} == {"5.0", ""}
    assert "measured" not in rows(bare)[0]


def test_measured_values_that_are_not_understood_or_of_another_kind_are_told(tmp_path):
    table = tmp_path / "assay.csv"
    table.write_text("smiles,pIC50,IC50\nc1ccccc1O,>4,1200\nOc1ccccc1F,>5,55\n")
    out = ("--out", str(tmp_path / "found.csv"))
    command = ["counterfactuals", str(table), "--towards", "pIC50: >3", *FEW, *out]
    result = CliRunner().invoke(app, command, catch_exceptions=False)
    assert "2 are bounds, such as '>4'" in result.stderr
    result = CliRunner().invoke(app, [*command, "--measured-column", "IC50"])
    assert "Column 'IC50' has values from 55 to 1200, but pIC50 was mostly from" in result.stderr


def test_a_column_of_no_table_is_refused(tmp_path):
    given = ["counterfactuals", "CCO", "--towards", "pIC50: >3", "--measured-column", "IC50"]
    result = CliRunner().invoke(app, given)
    assert result.exit_code == 2
    assert "give --measured" in result.output


def test_a_goal_that_does_not_fit_says_what_the_model_offers():
    with pytest.raises(ValueError, match="inactive, active"):
        CliRunner().invoke(
            app, ["counterfactuals", "CCO", "--towards", "blue"], catch_exceptions=False
        )


def test_a_class_of_several_tasks_is_asked_for_with_its_task():
    with pytest.raises(
        ValueError, match="12 properties have a class 'active': name the property too"
    ):
        CliRunner().invoke(
            *(app, ["counterfactuals", "CCO", "--towards", "active", "--model", "tox21"]),
            catch_exceptions=False,
        )


def test_several_goals_are_joined_and_each_change_shows_all_of_them(tmp_path):
    out = tmp_path / "changes.csv"
    few = ["-n", "2", "--predictions", "30", "--steps", "1", "--model", "bace"]
    given = ["counterfactuals", "CCOc1ccccc1", "--towards", "pIC50 > 6, inactive (weight 2)", *few]
    wide = CliRunner(env={"COLUMNS": "200"})
    result = wide.invoke(app, [*given, "--out", str(out)], catch_exceptions=False)
    assert "pIC50 > 6" in result.output
    assert "BACE-1 inhibition: inactive" in result.output
    for row in csv.DictReader(out.open()):
        assert row["smiles"] in result.output
        parts = float(row["pIC50_desirability"]), float(row["BACE-1 inhibition_desirability"])
        assert float(row["desirability"]) == pytest.approx((parts[0] * parts[1] ** 2) ** (1 / 3))
    wrong = wide.invoke(app, [*given[:3], "pIC50 > 6, tasty", "--out", str(out)])
    assert "'tasty' is not a goal" in str(wrong.exception)
    assert (
        wide.invoke(app, [*given, "--measured-column", "x", "--measured", "a.csv"]).exit_code == 2
    )
