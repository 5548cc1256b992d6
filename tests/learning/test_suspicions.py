"""Training counts what no model sees, and rows that differ in little but contradict each other."""

import pytest

from graphxai.learning.cleaning import clean_table

BINARY = [f"{'C' * n},{n % 2}" for n in range(1, 31)]


@pytest.fixture
def write(tmp_path):
    def call(rows):
        path = tmp_path / "table.csv"
        path.write_text("\n".join(["smiles,y", *BINARY, *rows]) + "\n")
        return path

    return call


def finding_of(table, check):
    return next(f for f in table.findings if f.check == check)


def test_what_no_model_sees_is_merged_with_its_contradictions(write):
    """Features leave out isotopes and the labels of attachment points."""
    rows = ["[13CH3]CCCl,1", "CCCCl,0", "CCC[35Cl],1", "[1*]CCCCN,1", "[2*]CCCCN,0", "CC[CH3:7],1"]
    table = clean_table(write(rows), "smiles", ["y"])
    alike = finding_of(table, "differences that no model sees")
    assert [row.row for row in alike.rows] == [32, 33, 35, 36]
    contradicting = finding_of(table, "duplicates with different classes")
    assert {row.row for row in contradicting.rows} >= {31, 33, 34, 35}
    assert not any(f.check == "stereoisomers of another row" for f in table.findings)
    graphs = {graph.smiles for graph in table.graphs}
    assert not graphs & {"[13CH3]CCCl", "CCCCl", "CCC[35Cl]", "[1*]CCCCN", "[2*]CCCCN"}


def test_undefined_configuration_tautomers_and_salts_are_counted_with_their_conflicts(write):
    rows = [
        "CC(F)Cl,1",  # 31
        "C[C@H](F)Cl,1",
        "C[C@@H](F)Cl,0",
        "CC=CC,0",
        "Oc1ccccn1,1",  # 35
        "O=c1cccc[nH]1,0",
        "CCCCN.Cl,1",
        "CCCCN,0",
    ]
    table = clean_table(write(rows), "smiles", ["y"], standardise="as drawn")
    undefined = finding_of(table, "undefined configuration")
    assert [(row.row, row.reason) for row in undefined.rows] == [
        (31, "1 of 1 not drawn"),
        (34, "1 of 1 not drawn"),
    ]
    expected = {
        "stereoisomers of another row": [32, 33],
        "tautomers of another row": [36],
        "salts or ions of another row": [38],
    }
    for check, numbers in expected.items():
        finding = finding_of(table, check)
        assert [row.row for row in finding.rows] == numbers
        assert finding.done == "kept; 1 group has several classes"
    merged = clean_table(write(rows), "smiles", ["y"])
    assert {row.row for row in finding_of(merged, "duplicates with different classes").rows} == {
        37,
        38,
    }
