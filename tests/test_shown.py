"""Everything that a function returns is shown in a notebook, and as text on at most a screen."""

import os
import re

import numpy as np
import pandas as pd
import pytest
import torch

import graphxai as gx
from graphxai.chemistry.measurements import Measurements
from graphxai.evaluation.statistics import Comparison, Comparisons, Interval
from graphxai.tables.run import predict_table

HOSTILE = "<script>alert(1)</script>"
ANILIDES = {"CC(=O)Nc1ccccc1": 5.0, "CC(=O)Nc1ccc(F)cc1": 5.5, "CC(=O)Nc1ccc(Cl)cc1": 6.0}


@pytest.fixture(scope="module")
def model():
    return gx.load("solubility")


@pytest.fixture(scope="module")
def changes(model):
    return gx.counterfactuals(model, "CCO", ">1", n=3, predictions=20, steps=1)


def assert_fits_a_screen(value):
    lines = repr(value).splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 300


def test_a_loaded_model_names_itself_its_task_score_and_size(model):
    count = sum(parameter.numel() for parameter in model.parameters())
    for text in (repr(model), re.sub("<[^>]*>", " ", model._repr_html_())):
        for part in ("solubility", "regression", f"{count:,} parameters"):
            assert part in text
        assert model.origin.metadata["summary"] in text
    assert_fits_a_screen(model)


def test_a_wrapped_model_names_itself_its_task_and_size():
    class Network(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(3, 1)

        def forward(self, x, edge_index):
            return self.layer(x).sum(0, keepdim=True)

    shown = gx.wrap(Network(), kind="regression", task=HOSTILE)._repr_html_()
    assert "4 parameters" in shown
    assert "Network" in shown
    assert "&lt;script" in shown
    assert "<script" not in shown


def test_a_model_with_many_tasks_names_the_first():
    shown = repr(gx.load("tox21"))
    assert "6 more" in shown


def test_trust_is_a_line_for_each_sign(model):
    explanation = gx.explain(model, "CCO")
    trust = gx.trust(model, explanation)
    assert trust == gx.trust("solubility", explanation)
    assert repr(trust) == str(trust)
    assert_fits_a_screen(trust)


def test_counterfactuals_have_a_line_each_and_a_single_one_a_table(changes):
    assert_fits_a_screen(changes)
    assert len(repr(changes).splitlines()) == 1 + len(changes)
    first = changes[0]
    assert_fits_a_screen(first)
    assert first.smiles in repr(first)
    assert first.change_in_full in repr(first)
    assert f">{first.smiles}</td>" in first._repr_html_()


def test_goals_and_molecules_that_meet_them_are_shown_in_words_and_as_a_picture():
    wanted = gx.profile(["solubility"], "solubility > -2")
    options = {"n": 2, "predictions": 20, "steps": 1, "progress": False}
    changes = gx.counterfactuals(["solubility"], "CCO", wanted, **options)
    assert "<img" in changes._repr_html_()
    assert changes._repr_svg_() is None  # a notebook would store the picture twice
    score = wanted.score(gx.predict(["solubility"], "CCO"))
    for value in (wanted, changes, score):
        assert_fits_a_screen(value)
    assert wanted.explanation.split("\n")[-1] in wanted._repr_html_()


def test_a_list_of_results_with_pictures_is_a_table(model):
    pairs = gx.pairs(model, ["CCO", "CCN"] * 15)
    assert_fits_a_screen(pairs)
    shown = pairs._repr_html_()
    assert shown.count("<img") == 12
    assert "18 more not shown" in shown
    sets = gx.counterfactual_set("bace", ["CCO"], progress=False)
    assert_fits_a_screen(sets)
    assert sets[0].summary in sets._repr_html_()


def test_the_predictions_of_one_molecule_are_a_table():
    predictions = gx.predict("bace", "CC(=O)Nc1ccc(OC)cc1")
    shown = predictions._repr_html_()
    for prediction in predictions.values():
        assert f"<td>{prediction.heading}</td><td>{prediction.in_full}</td>" in shown
    assert predictions["pIC50"].nearness.sentence in shown


def test_methods_are_a_table_with_a_sentence_each():
    methods = gx.methods()
    assert_fits_a_screen(methods)
    assert methods._repr_html_().count("<tr>") == 1 + len(methods)
    assert "constant activation ratios" in methods._repr_html_()


def test_compounds_are_counted_and_not_listed(model):
    compounds = gx.training_set_of(model)
    assert_fits_a_screen(compounds)
    assert f"<td>{len(compounds.given):,}</td>" in compounds._repr_html_()
    measured = gx.Measurements("y", {"C" * k: 1.0 for k in range(1, 99)}, bounds={"O": ">1"})
    assert repr(measured) == "Measurements(y: 98 compounds, 1 only with bounds)"
    values = {"c1ccccc1O": 1.0, "c1ccccc1N": 2.0, "Cc1ccccc1O": 3.0, "Cc1ccccc1N": 4.5}
    (exchange, *_) = gx.table_changes(model, values)
    assert repr(exchange).endswith("in 2 pairs)")
    assert "<th" in exchange._repr_html_()


def test_a_recording_says_how_much_it_holds(model):
    with gx.record() as tape:
        gx.predict(model, "CCO")
    assert_fits_a_screen(tape)


def test_comparisons_of_many_methods_fit_on_a_screen():
    difference = Interval(0.1, 0.0, 0.2, 3)
    comparison = Comparison("lrp", "gradient_input", difference, 0.01, 0.04, 1.0)
    comparisons = Comparisons([comparison] * 400)
    assert_fits_a_screen(comparisons)
    assert "lrp higher" in repr(comparisons)


def test_cliffs_are_a_table_of_their_molecules():
    smiles = ["c1ccccc1C", "c1ccccc1O", "c1ccccc1N", HOSTILE]
    values = np.array([5.0, 7.0, 8.5, np.nan])
    cliffs = gx.activity_cliffs(smiles, values)
    frame = cliffs.to_frame()
    assert len(frame) == len(cliffs) == 3
    assert (frame.value_a - frame.value_b).tolist() == pytest.approx(frame.difference.tolist())
    assert frame.smiles_a.tolist() == [smiles[cliff.a] for cliff in cliffs]
    assert cliffs[1:].to_frame().smiles_b.tolist() == frame.smiles_b.tolist()[1:]
    assert cliffs._repr_html_().count("<tr>") == 4
    many = gx.activity_cliffs(["C" * k + "O" for k in range(4, 16)], np.arange(12.0))
    assert len(many) > 20
    assert_fits_a_screen(many)
    assert f"{len(many) - 20} more not shown" in many._repr_html_()


def test_no_cliffs_are_shown_as_none():
    none = gx.activity_cliffs(["C", "CCO"], [1.0, 1.1])
    assert repr(none) == "0 cliffs"
    assert none._repr_html_() == "<p>0 cliffs</p>"


def test_a_report_is_a_link_that_works_from_the_notebooks_folder(model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = gx.report(model, ["CCO"], 'a "b" <i>.html', detailed=0)
    (address,) = re.findall('href="([^"]*)"', path._repr_html_())
    assert address == "a%20%22b%22%20%3Ci%3E.html"
    assert "<i>" not in path._repr_html_()
    assert path.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert os.fspath(path) == 'a "b" <i>.html'


def test_equal_predictions_are_one_in_a_set():
    (first, second) = (gx.predict("bace", "CCO") for _ in range(2))
    assert {*first.values(), *second.values()} == {*first.values()}
    changes = gx.table_changes("bace", ANILIDES, at_least=1)
    assert len({*changes}) == len(changes)


def test_a_slice_of_results_is_a_result():
    fragments = gx.fragments(gx.explain("bace", "CC(=O)Nc1ccc(F)cc1"))
    assert isinstance(fragments[:2], gx.Fragments)
    assert fragments[:2].to_frame()["name"].tolist() == fragments.to_frame()["name"].tolist()[:2]
    changes = gx.table_changes("bace", ANILIDES, at_least=1)
    assert len(changes[1:].pairs_frame()) == len(changes) - 1
    found = gx.counterfactuals("bace", "CC(=O)Nc1ccc(F)cc1", "active", n=3)
    assert found[:2].to_frame().equals(found.to_frame()[:2])


def test_tables_without_rows_have_the_columns_of_others():
    cliffs = gx.activity_cliffs(["c1ccccc1CCO", "c1ccccc1CCCO"], [1, 9], similarity=0.1)
    assert len(cliffs) == 1
    nothing = gx.activity_cliffs([], []).to_frame()
    assert nothing.columns.tolist() == cliffs.to_frame().columns.tolist()
    changes = gx.table_changes("bace", ANILIDES, at_least=1)
    never = gx.table_changes("bace", ANILIDES, at_least=9)
    for kind in ("to_frame", "pairs_frame"):
        full, empty = (getattr(each, kind)().columns for each in (changes, never))
        assert empty.tolist() == [name for name in full if not name.startswith("predicted ")]


def test_measured_values_of_a_frame_are_asked_for_by_smiles():
    frame = pd.DataFrame({"smiles": list(ANILIDES), "pIC50": list(ANILIDES.values())})
    with pytest.raises(TypeError, match=r"not a DataFrame\. .* dict\(zip\(frame\['smiles'\]"):
        Measurements.of(frame)
    with pytest.raises(TypeError, match="not a list"):
        Measurements.of(["CO", "CN"])  # whose letters are no pairs
    of_dict = Measurements.of(dict(zip(frame["smiles"], frame["pIC50"], strict=True)))
    assert of_dict.values == ANILIDES


def test_what_a_terminal_shows_is_what_is_printed():
    shown = repr(gx.ionisation("CC(=O)O"))
    assert shown == "strong acid (carboxylic acid), more than half ionised at pH 7.4"
    ledger = gx.explain("bace", "CCO").ledger
    assert repr(ledger) == str(ledger)
    assert "graph token" in repr(ledger)


def test_no_name_turns_the_direction_of_the_text_around_it(tmp_path):
    name = "A\u202egnp.exe\u2066"
    named = pd.Series(["CCO", "CCN"], index=[name, "B"])
    explained, predicted = gx.explain("bace", named), gx.predict("bace", named)
    report = gx.report("bace", ["CCO"], tmp_path / "r.html", names=[name], title=name, detailed=0)
    table, out = tmp_path / "t.csv", tmp_path / "p.csv"
    table.write_text(f"name,smiles\n{name},CCO\n", encoding="utf-8")
    with out.open("w", encoding="utf-8") as file:
        predict_table(gx.load("bace"), table, file, name_column="name")
    texts = [repr(explained), repr(predicted), explained._repr_html_(), predicted._repr_html_()]
    texts += [explained[0].svg(title=name), report.read_text("utf-8"), out.read_text("utf-8")]
    for text in texts:
        assert "gnp.exe" in text or "<svg" in text  # which draws its glyphs
        assert not re.search("[\u202a-\u202e\u2066-\u2069]", text)
