"""A column of values is read with the columns that stand beside it, in whatever table."""

import math

import pytest
from rdkit import Chem
from rdkit.Chem.Descriptors import MolWt

from graphxai.chemistry.measurements import Measurements
from graphxai.contract.tasks import Task
from graphxai.datasets.tables.assays import plain_values
from graphxai.datasets.tables.columns import assay_columns, header_unit
from graphxai.datasets.tables.opening import TableError
from graphxai.datasets.tables.table import open_table
from graphxai.evaluation.sources import table as benchmark_table
from graphxai.learning.cleaning import clean_table
from graphxai.tables.report.molecules import measured_columns, measured_table


def read(header, rows, value, unit="", transform=None):
    """Read a column of a table that has the structures in its first column."""
    names = header.split(",")
    columns = assay_columns(names, value, unit, names[0])
    cells = dict(zip(names, zip(*rows, strict=True), strict=True))
    return plain_values(columns, cells, cells[names[0]], transform)


@pytest.mark.parametrize(
    ("header", "name", "unit"),
    [
        ("IC50 (nM)", "IC50", "nM"),
        ("IC50 [µM]", "IC50", "µM"),
        ("IC50_nM", "IC50", "nM"),
        ("ki um", "ki", "um"),
        ("EGFR: IC50 (nM) (mean)", "EGFR: IC50 (mean)", "nM"),
        ("Inhibition at 10 uM", "Inhibition at 10", "uM"),
        ("Ki (hERG)", "Ki (hERG)", ""),
        ("wavelength nm", "wavelength nm", ""),
    ],
)
def test_a_header_has_a_name_and_a_unit_of_assays(header, name, unit):
    assert header_unit(header) == (name, unit)


@pytest.mark.parametrize(
    ("header", "value", "relation"),
    [
        ("smiles,IC50,Relation", "IC50", "Relation"),
        ("smiles,Ki,IC50,IC50 qualifier", "Ki", None),
        ("smiles,Ki,Ki.1,Operator,Operator.1", "Ki.1", "Operator.1"),
        ("smiles,EGFR Modifier,EGFR IC50 (nM),hERG Modifier,hERG IC50 (nM)", "hERG IC50 (nM)",
         "hERG Modifier"),
        ("smiles,IC50 (nM),IC50 modifier,pIC50", "pIC50", "IC50 modifier"),
        ("smiles,Standard Relation,Standard Value,pChEMBL Value", "pChEMBL Value",
         "Standard Relation"),
        ("smiles,Standard Relation,Standard Value,AlogP", "AlogP", None),
    ],
)  # fmt: skip
def test_relations_are_about_the_column_that_their_words_name(header, value, relation):
    assert assay_columns(header.split(","), value, "", "smiles").relation == relation


@pytest.mark.parametrize(
    ("header", "value", "unit", "kind"),
    [
        ("smiles,Assay Type,pIC50,Target Type", "pIC50", None, None),
        ("smiles,IC50 (nM),Time Units", "IC50 (nM)", None, None),
        ("smiles,Value,Result Units,Result Type", "Value", "Result Units", "Result Type"),
        ("smiles,IC50,Units,Time Units", "IC50", "Units", None),
    ],
)
def test_units_and_kinds_of_something_else_are_not_taken(header, value, unit, kind):
    columns = assay_columns(header.split(","), value, "", "smiles")
    assert (columns.unit, columns.kind) == (unit, kind)


def test_two_columns_of_relations_on_both_sides_are_refused():
    with pytest.raises(TableError, match=r"both sides of 'IC50': name them after the values"):
        assay_columns(["smiles", "Operator", "IC50", "Qualifier"], "IC50", "", "smiles")


def test_concentrations_become_negative_logarithms_and_bounds_turn_round():
    smiles = "CC(=O)Nc1ccc(O)cc1"
    rows = [(smiles, "100", "nM", ">"), (smiles, "3", "uM", "<="), (smiles, "5", "ug.mL-1", "")]
    plain = read("s,Ki,Units,Operator", rows, "Ki")
    mass = MolWt(Chem.MolFromSmiles(smiles))
    first, second, third = plain.cells
    assert (plain.name, first[0], second[:2]) == ("pKi", "<", ">=")
    assert float(first[1:]) == pytest.approx(7)
    assert float(second[2:]) == pytest.approx(6 - math.log10(3))
    assert float(third) == pytest.approx(-math.log10(5e-3 / mass))
    assert [r.check for r in plain.readings][-1] == "values in nM, uM, ug.mL-1"


def test_with_none_the_values_stay_in_their_commonest_unit():
    rows = [("C", "100", "nM"), ("C", "2", "uM"), ("C", "200", "nM")]
    plain = read("s,Ki,Units", rows, "Ki", transform="none")
    assert (plain.name, plain.unit) == ("Ki", "nM")
    assert [float(cell) for cell in plain.cells] == [100, 2000, 200]


def test_percent_and_logarithms_are_left_alone():
    percent = read("s,Inhibition (%)", [("C", "55"), ("C", "8"), ("C", "9")], "Inhibition (%)")
    assert (percent.name, percent.cells) == ("Inhibition (%)", ("55", "8", "9"))
    plain = read("s,pIC50,Units", [("C", "5.5", "nM"), ("C", "8", "nM"), ("C", "9", "")], "pIC50")
    assert (plain.name, plain.cells) == ("pIC50", ("5.5", "8", "9"))


def test_any_column_may_be_learned_as_its_logarithm():
    rows = [("C", "10"), ("C", "1000"), ("C", "-1"), ("C", ">100")]
    plain = read("s,CLint", rows, "CLint", transform="log10")
    assert (plain.name, plain.cells) == ("log10 CLint", ("1.0", "3.0", "", ">2.0"))
    (left_out,) = [r for r in plain.readings if r.check == "no logarithm"]
    assert left_out.rows == {2: "-1 has no logarithm"}


def test_a_bound_of_ic50_turns_round_for_the_column_of_its_logarithm():
    rows = [("C", "10000", ">", "5"), ("C", "10", "=", "8"), ("C", "1", "=", "9")]
    plain = read("s,IC50 (nM),Modifier,pIC50", rows, "pIC50")
    assert plain.cells == ("<5", "8", "9")


def test_units_that_cannot_be_converted_are_named_and_not_read():
    rows = [("C", "10", "nM"), ("C", "50", "%"), ("C", "20", "nM")]
    plain = read("s,Value,Units", rows, "Value")
    (units,) = plain.readings
    assert (units.done, plain.cells) == ("not read: nM, %", ("10", "50", "20"))


def test_a_value_that_contradicts_its_relation_or_has_no_unit_is_left_out_with_the_reason():
    rows = [
        ("C", "<10", ">", "nM"),
        ("C", "20", "", ""),
        ("C", "30", "", "nM"),
        ("C", "5", "", "nM"),
    ]
    plain = read("s,Km,Operator,Units", rows, "Km")
    assert plain.cells == ("", "", "30", "5")
    reasons = [reason for reading in plain.readings for reason in reading.rows.values()]
    assert reasons == ["Operator: '>' contradicts '<10'", "no unit"]


@pytest.fixture
def export(tmp_path):
    path = tmp_path / "export.csv"
    acids = [("C" * n + "C(=O)O", 10.0 * 2**n, "=" if n % 5 else ">") for n in range(1, 31)]
    lines = [f"{s},{v},{r},{n}" for n, (s, v, r) in enumerate(acids)]
    path.write_text("\n".join(["SMILES,IC50 (nM),Relation,ID", *lines]) + "\n")
    return path, acids


def test_every_door_reads_the_measured_values_as_training_does(export):
    path, acids = export
    clean = clean_table(path, None, ["IC50 (nM)"])
    expected = {s: 9 - math.log10(v) for s, v, r in acids if r == "="}
    learned = {g.smiles: float(g.y) for g in clean.graphs if not math.isnan(g.y)}
    assert learned == pytest.approx(expected, abs=1e-6)

    assert Measurements.read(path, ["pIC50"]).values == pytest.approx(expected)
    asked = Measurements.read(path, ["IC50 (nM)"], tasks=["pIC50"])
    assert asked.values == pytest.approx(expected)
    assert len(asked.bounds) == 6

    task = Task("pIC50", "regression")
    table = open_table(path)
    columns = measured_columns(table, [task], {})
    assert columns == {"pIC50": "IC50 (nM)"}
    measured = measured_table(table, [task], columns, 100)
    assert list(measured.values["pIC50"].values()) == pytest.approx(list(expected.values()))
    assert {b.side for b in measured.bounds["pIC50"].values()} == {-1}

    labels = benchmark_table(path, None, "IC50 (nM)", [task]).labels
    assert list(labels.values()) == pytest.approx(list(expected.values()))


def test_a_model_of_the_values_themselves_is_compared_with_these(export):
    path, acids = export
    measured = Measurements.read(path, ["IC50 (nM)"], tasks=["IC50"])
    assert measured.values == pytest.approx({s: v for s, v, r in acids if r == "="})


@pytest.mark.parametrize(
    "header",
    [
        "value,unit,relation",
        "Standard Value,Standard Unit,Standard Relation",
        "Activity_Value,Unit,Activity_Qualifier",
        "Result,Unit,Prefix",
        "Value,Units,Relation",
    ],
)
def test_a_column_of_units_is_read_whatever_the_export_calls_it(header, tmp_path):
    path = tmp_path / "export.csv"
    rows = [f"{'C' * n}O,{n}e{4 * (n % 2)},{('uM', 'nM')[n % 2]},=" for n in range(1, 9)]
    path.write_text("\n".join([f"smiles,{header}", *rows]) + "\n")
    columns = open_table(path).assay(header.split(",")[0])
    assert (columns.unit, columns.stated) == (header.split(",")[1], "")
    values = open_table(path).measured(header.split(",")[0], None)[1]
    expected = [n * (1e4 if n % 2 else 1e3) for n in range(1, 9)]
    assert values.unit == "nM"
    assert [float(cell) for cell in values.cells] == pytest.approx(expected)


def test_transform_is_decided_by_column(export):
    path, acids = export
    (target,) = clean_table(path, None, ["IC50 (nM)"], transform={"IC50 (nM)": "none"}).targets
    assert (target.name, target.unit) == ("IC50", "nM")
    assert target.limits[1] == max(v for _, v, r in acids if r == "=")


def test_two_limits_of_an_assay_are_bounds_and_no_classes():
    rows = [("C", "10000", ">"), ("C", "10000", ">"), ("C", "1000", "="), ("C", "1000", "=")]
    plain = read("s,IC50 (nM),Qualifier", rows, "IC50 (nM)")
    assert plain.cells == ("<5.0", "<5.0", "6.0", "6.0")
    flags = [("C", "0", "nM"), ("C", "1", "nM")]
    assert read("s,Ki,Units", flags, "Ki").cells == ("0", "1")


def test_two_columns_of_one_endpoint_keep_names_of_their_own(tmp_path):
    path = tmp_path / "t.csv"
    rows = [f"{'C' * n}O,{2.5 * n},{n / 8}" for n in range(1, 25)]
    path.write_text("\n".join(["smiles,IC50 (nM),IC50 (uM)", *rows]) + "\n")
    targets = clean_table(path, None, ["IC50 (nM)", "IC50 (uM)"]).targets
    assert [t.heading for t in targets] == ["pIC50 of IC50 (nM)", "pIC50 of IC50 (uM)"]


def test_a_column_with_its_unit_is_that_of_the_task_that_learned_from_it(tmp_path):
    (tmp_path / "given.csv").write_text("smiles,clearance (mL/min)\nCCO,1.5\nCCN,2.5\n")
    table = open_table(tmp_path / "given.csv")
    task, other = (Task("clearance", "regression", unit=unit) for unit in ("mL/min", "mL/h"))
    assert measured_columns(table, [task], {}) == {"clearance": "clearance (mL/min)"}
    assert measured_columns(table, [other], {}) == {}  # another unit, other numbers
