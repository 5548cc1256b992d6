"""Training counts what no model sees, and rows that differ in little but contradict each other."""

from math import inf

import pytest

from graphxai.learning.cleaning import clean_table
from graphxai.learning.run import train_table

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


def chembl(tmp_path, columns, rows):
    """Write a table of 25 alcohols with a number, after rows with what stands beside theirs."""
    path = tmp_path / "chembl.csv"
    plain = ["="] * (len(columns) - 2)
    cells = [*rows, *((str(7 + 0.1 * k), *plain) for k in range(25 - len(rows)))]
    lines = [("C" * (k + 1) + "O", *row) for k, row in enumerate(cells)]
    path.write_text("\n".join(";".join(line) for line in (columns, *lines)) + "\n")
    return path


CHEMBL = ("Smiles", "Standard Value", "Standard Relation")


@pytest.mark.parametrize(
    "name",
    ["Standard Relation", "standard_relation", "StandardRelation", "pIC50 qualifier", "Operator",
     "modifier", "Prefix (pIC50)"],
)  # fmt: skip
def test_relations_beside_the_values_are_read_as_bounds_and_said(tmp_path, name):
    rows = [("10000", "'>'"), ("1", "<"), ("5", ""), ("7", "'='"), (">8", ">"), ("", ">")]
    table = clean_table(chembl(tmp_path, (*CHEMBL[:2], name), rows), None, ["Standard Value"])
    finding = finding_of(table, "relations beside the values")
    assert ([row.row for row in finding.rows], finding.target) == ([1, 2], name)
    assert finding.done == "read as bounds: >, <"
    limits = {row: tuple(b) for row, b in zip(table.rows, table.bounds[:, 0].tolist(), strict=True)}
    assert (limits[1], limits[2], limits[5]) == ((10000, inf), (-inf, 1), (8, inf))
    assert limits[3] == (-inf, inf)


def test_units_that_cannot_be_converted_end_training(tmp_path):
    columns = ("Smiles", "Standard Value", "Standard Units")
    rows = [("5", "nM"), ("6", "%"), ("", "mM"), *((str(k), "nM") for k in range(22))]
    table = clean_table(chembl(tmp_path, columns, rows), None, ["Standard Value"])
    finding = finding_of(table, "units beside the values")
    assert (finding.done, finding.count) == ("not read: nM, %", 24)
    with pytest.raises(ValueError, match=r"'Standard Units' .*keep the rows of one unit"):
        train_table(table, tmp_path / "run")


@pytest.mark.parametrize(
    ("columns", "row"),
    [
        (CHEMBL, ("5", "'='")),
        (CHEMBL, ("", ">")),  # the row has no value
        (CHEMBL, (">10", ">")),  # the cell says it too
        (("Smiles", "Ki", "IC50", "IC50 relation"), ("5", "6", ">")),
        (("Smiles", "Ki", "operator"), ("5", "Ms Smith")),
        (("Smiles", "Ki", "unit cell volume"), ("5", "512.2")),
        (("Smiles", "Ki", "subunit"), ("5", "beta")),
        (("Smiles", "Ki", "units"), ("5", "=")),  # one for all
    ],
)
def test_columns_that_say_nothing_about_the_values_learned_are_no_reason_to_stop(
    tmp_path, columns, row
):
    table = clean_table(chembl(tmp_path, columns, [row]), None, [columns[1]])
    assert not any(f.check.endswith("beside the values") for f in table.findings)


def test_values_alone_are_learned_if_that_is_wanted(tmp_path):
    path = chembl(tmp_path, CHEMBL, [("10000", "'>'")])
    table = clean_table(path, None, ["Standard Value"], values_alone=True)
    assert table.targets[0].limits[1] == 10000
    assert not table.targets[0].bounded
