"""A table is checked before anything is trained on it; every row is accounted for."""

import csv
import json
import math
import time

import numpy as np
import pytest

from graphxai.datasets.labels import name_and_unit, not_understood, read_labels, read_measured
from graphxai.learning.cleaning import clean_table

ALKANES = ["C" * n for n in range(1, 31)]


@pytest.fixture
def write(tmp_path):
    def call(rows, header="smiles,y", name="table.csv", **options):
        path = tmp_path / name
        path.write_text("\n".join([header, *rows]) + "\n", **options)
        return path

    return call


def alkanes(labels):
    return [f"{smiles},{label}" for smiles, label in zip(ALKANES, labels, strict=False)]


def binary():
    return alkanes([k % 2 for k in range(30)])


def finding_of(table, check):
    return next(f for f in table.findings if f.check == check)


@pytest.mark.parametrize(
    ("cells", "classes"),
    [
        (["0", "1", "1"], ("0", "1")),
        (["1", "-1", "1.0"], ("-1", "1")),
        (["Yes", "no", "yes "], ("no", "Yes")),
        (["active", "inactive", "ACTIVE", "active"], ("inactive", "active")),
        (["soluble", "insoluble"], ("insoluble", "soluble")),
        (["not toxic", "toxic"], ("not toxic", "toxic")),
        (["mutagen", "nonmutagen"], ("nonmutagen", "mutagen")),
        (["pass", "fail"], ("fail", "pass")),
        (["low", "medium", "high", "low", "medium", "high"], ("high", "low", "medium")),
    ],
)
def test_words_and_two_whole_numbers_are_classes_and_the_positive_one_is_last(cells, classes):
    labels = read_labels("y", cells)
    assert labels.kind == "classification"
    assert labels.classes == classes
    assert not labels.unusable
    named = [classes[int(value)].casefold() for value in labels.values]
    assert named == [cell.strip().casefold().replace("1.0", "1") for cell in cells]


@pytest.mark.parametrize("order", [1, -1])
def test_the_order_of_two_classes_does_not_depend_on_the_rows(order):
    for pair in (["yes", "no"], ["in vitro", "vitro"], ["+", "-"], ["low", "high"], ["a", "b"]):
        assert read_labels("y", pair[::order]).classes == read_labels("y", pair).classes


def test_numbers_are_values_unless_the_user_says_otherwise():
    cells = ["1", "2", "3", "3.0", "NA", ""]
    values = read_labels("y", cells)
    assert values.kind == "regression"
    np.testing.assert_array_equal(values.values, [1, 2, 3, 3, math.nan, math.nan])
    text = read_labels("y", cells, "classification")
    assert text.classes == ("1", "2", "3")
    assert read_labels("y", ["0.5", "1.5"]).kind == "regression"
    assert read_labels("y", ["0", "1"], "regression").kind == "regression"


def test_a_qualified_value_is_not_a_number_and_is_reported():
    labels = read_labels("IC50", ["1.5", "2.5", ">10", "inf", "1e400", "1_0", "2.5", "3", "4"])
    assert labels.kind == "regression"
    assert labels.unusable == (2, 3, 4, 5)
    odd = read_labels("y", ["0", "1", "1", "0", "inconclusive"])
    assert odd.classes == ("0", "1")
    assert odd.unusable == (4,)
    half = read_labels(
        "y", ["0", "1", "1", "not read", "repeat", "lost"]
    )  # as many as there are words
    assert (half.classes, half.unusable) == (("0", "1"), (3, 4, 5))
    assert read_labels("y", ["0", "1", "1", "unclear"], "classification").classes[2] == "unclear"


def test_a_decimal_comma_is_read_and_a_thousand_is_not_guessed():
    np.testing.assert_array_equal(read_labels("y", ["5,25", "-6,125"]).values, [5.25, -6.125])
    for kind in (None, "regression"):
        with pytest.raises(ValueError, match="'1,234', whose comma may mark decimals or thousands"):
            read_labels("y", ["1,234", "5,678", "9,012"], kind)
    # among numbers that are clear, the odd one is left out instead
    for odd in ("1,234", "12 nM"):
        assert read_labels("y", ["5", "6", "8", odd]).unusable == (3,)


@pytest.mark.parametrize(
    ("cells", "values"),
    [
        (["28,2", "1.023", "12.345.678", "1.023,5"], [28.2, 1023, 12345678, 1023.5]),
        (["9,15", "8,70", "8,520", "7.12"], [9.15, 8.7, 8.52, 7.12]),
        (["9,15", "8,70", "7.12", "1.023"], [9.15, 8.7, 7.12, math.nan]),
        (["9.15", "8.70", "8.520", "7,12", "7,120"], [9.15, 8.7, 8.52, 7.12, math.nan]),
        (["0,150", "1,5E-03", "9,150"], [0.15, 0.0015, 9.15]),
        (["\u22126.5", "5", "1.25"], [-6.5, 5, 1.25]),
    ],
)
def test_a_column_shows_what_its_commas_and_points_mean(cells, values):
    labels = read_labels("y", cells, "regression")
    np.testing.assert_array_equal(labels.values, values)
    assert labels.unusable == tuple(np.flatnonzero(np.isnan(values)))


@pytest.mark.parametrize(
    ("cells", "unit"),
    [(["5.2 µM", "12 µM", "5,1 µM"], "µM"), (["45%", "12 %", "100%"], "%"), ([">10nM"] * 3, "nM")],
)
def test_numbers_with_a_unit_are_refused_and_do_not_become_classes(cells, unit):
    for kind in (None, "regression"):
        with pytest.raises(ValueError, match=f"remove '{unit}' from the cells"):
            read_labels("y", cells * 2, kind)
    assert read_labels("y", cells * 2, "classification").kind == "classification"


def test_bounds_are_numbers_of_which_only_a_side_is_known():
    cells = ["5", ">=10", "\u226412,5", "~7", "< 3", "6,25", "", "7,5", "> 1"]
    labels = read_labels("IC50", cells)
    assert labels.kind == "regression"
    assert [(b.position, b.side, b.value) for b in labels.bounds] == [
        *((1, 1, 10), (2, -1, 12.5), (3, 0, 7), (4, -1, 3), (8, 1, 1))
    ]
    assert labels.unusable == tuple(bound.position for bound in labels.bounds)
    with pytest.raises(ValueError, match="only bounds such as '>10'"):
        read_labels("IC50", [">10"] * 4)


def test_words_for_what_was_not_measured_are_no_classes():
    gaps = ["n.a.", "N.D.", "n.t.", "not  tested", "n/d", "ND", "-", "\u2013", "--"]
    labels = read_labels("y", ["active", "inactive"] * 6 + gaps)
    assert labels.classes == ("inactive", "active")
    assert not labels.unusable
    assert np.isnan(labels.values[12:]).all()
    assert read_labels("y", ["+", "-", "++", "-"] * 4, "classification").classes == ("+", "++", "-")


def test_measured_classes_are_those_of_the_task_however_they_are_written():
    cells = ["Active", "active ", "Yes", "1", "1.0", "INACTIVE", "no", "0", "", "maybe", "high"]
    values, bounds, strange = read_measured(cells, ("inactive", "active"))
    np.testing.assert_array_equal(values[:8], [1, 1, 1, 1, 1, 0, 0, 0])
    assert np.isnan(values[8:]).all()
    assert (bounds, strange) == ((), (9, 10))
    assert read_measured(["yes", "Red", "1"], ("blue", "red")).strange == (0,)  # is red positive?
    assert list(read_measured(["2.0", "3"], ("1", "2", "3")).values) == [1, 2]
    assert list(read_measured(["-", "+"], ("no", "yes")).values) == [0, 1]


def test_a_long_cell_takes_no_time():
    """Each would take minutes if every way to divide its digits were tried."""
    cells = ["1" * 10**6 + "x", "1" * 10**6 + " " * 10**6 + "9", ">" * 10**6, "1,234" * 10**5]
    assert read_measured(cells).strange == (0, 1, 2, 3)


def test_measured_values_are_read_as_in_training_and_the_rest_is_counted():
    cells = ["9,15", ">8,7", "", "8,52", "n.d.", "?", "x", "~5", "-,5"]
    values, bounds, strange = read_measured(cells)
    expected = [9.15, *[math.nan] * 2, 8.52, *[math.nan] * 4, -0.5]
    np.testing.assert_array_equal(values, expected)
    assert [(b.position, b.side, b.value) for b in bounds] == [(1, 1, 8.7)]
    assert strange == (6, 7)
    text = not_understood("pIC50", ["9,15", ">8,7", "", "x"], (1, 3))
    assert text == ("2 of 3 measured values in column 'pIC50' were not understood, such as '>8,7'.")
    assert not_understood("pIC50", ["5"], ()) == ""


def test_free_text_is_not_a_label():
    with pytest.raises(ValueError, match=r"nor a few classes \(at most 20\)"):
        read_labels("name", [f"compound {k}" for k in range(40)])
    with pytest.raises(ValueError, match=r"21 different numbers, such as '0': learn them as a reg"):
        read_labels("count", list(map(str, range(21))), "classification")
    with pytest.raises(ValueError, match="has no numbers, only words"):
        read_labels("name", ["a", "b"], "regression")
    with pytest.raises(ValueError, match="has no labels"):
        read_labels("name", ["", "NA"])


def test_every_row_has_one_place(write, tmp_path):
    rows = [
        *binary(),
        "C1CC,1",  # 31: unreadable
        ",1",  # 32: no SMILES
        "CCO,",  # 33: no label
        "OCC,1",  # 34
        "C(C)O,1",  # 35: the same as 34
        "c1ccccc1,0",  # 36
        "C1=CC=CC=C1,1",  # 37: the same as 36, in another class
        "C" * 501 + ",1",  # 38: too large
        "CC(=O)[O-].[Na+],1",  # 39: a salt
        "C[C@H](N)C(=O)O,1",  # 40
        "C[C@@H](N)C(=O)O,0",  # 41: its mirror image
        "CN,>5",  # 42: no class
    ]
    table = clean_table(write(rows), "smiles", ["y"], standardise="as drawn")
    assert table.read == 42
    left_out = sum(f.count for f in table.findings if f.done == "left out")
    merged = finding_of(table, "duplicate molecules").count
    assert table.read == len(table.graphs) + left_out + merged
    places = {
        "SMILES unreadable": [31],
        "SMILES empty": [32],
        "no label": [33],
        "duplicate molecules": [35, 37],
        "duplicates with different classes": [36, 37],
        "more than 500 atoms": [38],
        "salts or mixtures": [39],
        "stereoisomers of another row": [41],
        "label not understood": [42],
        "no usable label left": [36, 42],
    }
    assert {f.check: [row.row for row in f.rows] for f in table.findings} == places
    assert "ring 1 is opened" in finding_of(table, "SMILES unreadable").rows[0].reason
    assert 36 not in table.rows
    table.save(tmp_path)
    with (tmp_path / "hygiene.csv").open(newline="") as file:
        listed = list(csv.DictReader(file))
    assert sorted(int(r["row"]) for r in listed) == sorted(
        row for rows in places.values() for row in rows
    )
    assert json.loads((tmp_path / "hygiene.json").read_text())["rows"] == 42
    frame = table.findings.to_frame().set_index("check")
    assert frame["count"].to_dict() == {check: len(rows) for check, rows in places.items()}
    assert table.findings.rows_to_frame().astype(str).to_dict("records") == listed


def test_findings_are_read_as_words_and_escaped_in_a_page(write):
    """The broken SMILES and the label come from the user's file."""
    table = clean_table(write([*binary(), "<b>C1CC,1", "CN,<b>"]), "smiles", ["y"])
    assert "SMILES unreadable: 1, left out" in str(table.findings)
    assert "label not understood in y: 1, label not used" in str(table.findings).splitlines()
    page = table.findings._repr_html_()
    assert page.count("<tr") == 1 + len(table.findings)
    assert "<b>" not in page
    assert "<b>" not in table.findings.rows_to_frame().to_html()


def test_values_of_one_molecule_become_their_median(write):
    rows = [*alkanes(range(30)), "OCC,1", "CCO,2", "C(O)C,9"]
    table = clean_table(write(rows), "smiles", ["y"])
    assert table.y[table.rows.index(31)] == 2
    finding = finding_of(table, "duplicates with different values")
    assert finding.count == 3
    assert "largest difference 8" in finding.done
    assert "assays" not in finding.done
    twice = [row for k in range(30) for row in (f"{'C' * (k + 1)},{k}", f"{'C' * (k + 1)},{k + 2}")]
    table = clean_table(write(twice), "smiles", ["y"])
    finding = finding_of(table, "duplicates with different values")
    assert finding.done.endswith("if these are several assays, keep the rows of one")


def test_a_gap_or_a_contradiction_costs_one_target_only(write):
    rows = [f"{smiles},{k % 2},{k}.5" for k, smiles in enumerate(ALKANES)]
    rows += ["OCC,0,1", "CCO,1,3", "CN,,4", "CS,1,NA"]
    table = clean_table(write(rows, "smiles,class,value"), "smiles", ["class", "value"])
    labels = dict(zip(table.rows, table.y.tolist(), strict=True))
    np.testing.assert_array_equal(labels[31], [math.nan, 2])
    np.testing.assert_array_equal(labels[33], [math.nan, 4])
    np.testing.assert_array_equal(labels[34], [1, math.nan])


def test_a_column_with_one_class_is_not_learned(write):
    rows = [f"{smiles},{k % 2},1" for k, smiles in enumerate(ALKANES)]
    path = write([*rows, "CO,,1"], "smiles,a,b")
    table = clean_table(path, "smiles", ["a", "b"])
    assert [target.name for target in table.targets] == ["a"]
    assert finding_of(table, "one class or value only").target == "b"
    assert [row.row for row in finding_of(table, "no usable label left").rows] == [31]
    with pytest.raises(ValueError, match="all molecules have the same class or value"):
        clean_table(path, "smiles", ["b"])


def test_a_class_whose_molecules_all_contradict_themselves_is_gone(write):
    rows = alkanes(["low", "mid"] * 15)
    rows += ["CCO,low", "OCC,top", "CN,top", "NC,mid"]
    table = clean_table(write(rows), "smiles", ["y"])
    (target,) = table.targets
    assert (target.classes, target.counts) == (("low", "mid"), (15, 15))
    assert set(table.y[:, 0]) == {0.0, 1.0}


def test_outliers_and_values_over_orders_of_magnitude_are_reported(write):
    table = clean_table(write(alkanes([*range(1, 30), 5000])), "smiles", ["y"])
    assert [row.row for row in finding_of(table, "values far from the rest").rows] == [30]
    assert "logarithm" in finding_of(table, "values span orders of magnitude").done
    assert len(table.graphs) == 30


@pytest.mark.parametrize(
    ("cell", "below", "at_the_bound", "above"),
    [
        (">5", True, False, False),
        (">=5", True, False, False),
        ("<5", False, False, True),
        ("<=5", False, False, True),
        ("~5", False, False, False),
    ],
)
def test_a_value_at_a_bound_does_not_contradict_it(cell, below, at_the_bound, above):
    """An assay that stops at 5 and a rounded value of 5 may come from the same compound."""
    (bound,) = read_labels("y", [cell, "1.5", "2.5"]).bounds
    assert [bound.excludes(v) for v in (4.9, 5.0, 5.1)] == [below, at_the_bound, above]


def test_bounds_have_a_finding_of_their_own_with_what_they_contradict(write):
    rows = alkanes([f"{k}.5" for k in range(1, 31)])
    rows += ["OCC,>9", "CCO,4", "CCO,4.1", "CN,<3", "CCN,broken"]
    table = clean_table(write(rows), "smiles", ["y"])
    bounds = finding_of(table, "bounds instead of values")
    assert [row.row for row in bounds.rows] == [31, 34]
    assert "contradicts 4.05" in bounds.rows[0].reason
    assert bounds.done == (
        "learned as bounds, such as '>9'; 1 not needed beside a value, or without a side;"
        " 1 contradicts the value learned for the same compound"
    )
    assert [row.row for row in finding_of(table, "label not understood").rows] == [35]


def test_a_column_with_one_number_says_which_cells_are_none(write):
    path = write(alkanes(["7", *["many"] * 29]))
    with pytest.raises(ValueError, match=r"only value is 7, and 29 cells are not numbers"):
        clean_table(path, "smiles", ["y"], kinds={"y": "regression"})


def test_what_excel_writes_is_read(write):
    rows = [f'"{smiles}";"{k},5"' for k, smiles in enumerate(ALKANES)]
    path = write(rows, "smiles;y", encoding="utf-8-sig", newline="\r\n")
    table = clean_table(path, "smiles", ["y"])
    assert table.y[3, 0] == 3.5
    assert len(table.graphs) == 30


def test_rows_with_another_separator_are_pointed_out(write):
    table = clean_table(write([*binary(), "CCO;1,1"]), "smiles", ["y"])
    assert "semicolon" in finding_of(table, "SMILES unreadable").rows[0].reason


def test_an_inchi_is_named_and_its_commas_are_not_taken_for_separators(write):
    table = clean_table(write([*binary(), '"InChI=1S/CH4O/c1-2/h2H,1H3",1']), "smiles", ["y"])
    reason = finding_of(table, "SMILES unreadable").rows[0].reason
    assert "is an InChI, not a SMILES" in reason
    assert "comma" not in reason


@pytest.mark.parametrize(
    ("rows", "columns", "message"),
    [
        ([], ["y"], "has no rows"),
        (["C1CC,1", "xx,0"], ["y"], "no usable row. SMILES unreadable: 2"),
        (binary()[:19], ["y"], "19 different molecules with a label; at least 20"),
        (alkanes(["1"] * 30), ["y"], "all molecules have the same class"),
        (binary(), ["activity"], "no column 'activity'; its columns: 'smiles', 'y'"),
        (binary(), ["smiles"], "cannot be both"),
        (binary(), ["y", "y"], "given twice"),
        (binary(), [], "at least one column"),
    ],
)
def test_what_cannot_be_learned_from_is_one_clear_line(write, rows, columns, message):
    with pytest.raises(ValueError, match=message) as error:
        clean_table(write(rows), "smiles", columns)
    assert "\n" not in str(error.value)


def test_a_repeated_molecule_is_not_kept(write, monkeypatch):
    """Memory grows with the different molecules, not with the rows."""
    path = write(binary() * 5)
    table = clean_table(path, "smiles", ["y"])
    assert (table.read, len(table.graphs)) == (150, 30)
    assert len({id(graph) for graph in table.graphs}) == 30


@pytest.mark.parametrize("unit", ["nanomolar", "ng/l", "g/mL"])
def test_cells_with_any_unit_that_can_be_converted_are_no_classes(unit):
    with pytest.raises(ValueError, match="has numbers with a unit"):
        read_labels("y", [f"5 {unit}", f"5 {unit}", f"7 {unit}", f"7 {unit}"])


@pytest.mark.parametrize(
    ("header", "units", "name", "unit"),
    [
        ("freesolv (kcal/mol)", {}, "freesolv", "kcal/mol"),
        ("logS [log mol/L]", {}, "logS", "log mol/L"),
        ("pIC50", {}, "pIC50", ""),
        ("pIC50", {"pIC50": "log M"}, "pIC50", "log M"),
        ("freesolv (kcal/mol)", {"freesolv (kcal/mol)": "kcal/mol"}, "freesolv", "kcal/mol"),
        ("Km (hERG)", {"Km (hERG)": "nM"}, "Km (hERG)", "nM"),
        ("Ki (hERG)", {"Ki (hERG)": ""}, "Ki (hERG)", ""),
        ("(odd)", {}, "(odd)", ""),
        ("Km (nM) (mean)", {}, "Km (nM)", "mean"),
        ("rate (1/(M s))", {}, "rate (1/(M s))", ""),
        ("Ki ( )", {}, "Ki ( )", ""),
    ],
)
def test_a_header_is_read_as_name_and_unit_of_a_value(write, header, units, name, unit):
    path = write(alkanes([0.5 + k for k in range(30)]), f"smiles,{header}")
    (target,) = clean_table(path, "smiles", [header], units=units).targets
    assert (target.name, target.unit) == (name, unit)
    assert target.heading == (f"{name} ({unit})" if unit else name)


@pytest.mark.parametrize(
    "header",
    [
        "(" * 16_000,
        "()" * 8_000,
        "a(" + "x" * 16_000,
        "a(" + "[" * 16_000 + "x)",
        "a" + ")" * 16_000,
    ],
    ids=["opening", "pairs", "open", "nested", "closing"],
)
def test_a_header_of_many_brackets_is_read_at_once(header):
    """It took 5 s at 16,000 characters when the time grew with the square of the length."""
    start = time.process_time()
    name_and_unit(header)
    assert time.process_time() - start < 0.5


def test_classes_and_names_that_would_be_alike_keep_their_header(write):
    path = write(binary(), "smiles,active (assay 2)")
    assert clean_table(path, "smiles", ["active (assay 2)"]).targets[0].name == "active (assay 2)"
    with pytest.raises(ValueError, match="has classes: a unit is for numbers"):
        clean_table(path, "smiles", ["active (assay 2)"], units={"active (assay 2)": "nM"})
    rows = [f"{smiles},{k + 0.5},{2 * k + 0.5}" for k, smiles in enumerate(ALKANES)]
    both = ["Km (nM)", "Km (uM)"]
    path = write(rows, f"smiles,{','.join(both)}")
    assert [target.name for target in clean_table(path, "smiles", both).targets] == both


def test_a_notebook_shows_the_findings_of_a_table_and_not_its_molecules(write):
    table = clean_table(write([*binary(), "C1CC,1"], name="<b>.csv"), "smiles", ["y"])
    assert repr(table) == "CleanTable(<b>.csv: 30 molecules, y)"
    assert "&lt;b&gt;.csv: 31 rows, 30 molecules" in table._repr_html_()
    assert "SMILES unreadable" in table._repr_html_()
