"""A data frame goes in, and a table comes out that keeps its index."""

import base64
import pickle
import re
from html import unescape

import numpy as np
import pandas as pd
import pytest

import graphxai as gx
from graphxai.visualization import svg_to_png

SMILES = ["CCO", "nonsense", "CC(=O)Nc1ccc(OC)cc1"]
FRAME = pd.DataFrame(
    {"name": ["<b>ethanol", "?", "methacetin"], "smiles": SMILES},
    index=pd.Index([7, 3, 12], name="compound"),
)


@pytest.fixture(scope="module")
def predictions():
    with pytest.warns(UserWarning, match="input 1 was left out"):
        return gx.predict("solubility", FRAME)


@pytest.fixture(scope="module")
def explanations():
    with pytest.warns(UserWarning, match="input 1 was left out"):
        return gx.explain("solubility", FRAME)


def test_predictions_of_a_frame_can_be_joined_to_it(predictions):
    table = FRAME.join(predictions.to_frame())
    assert table.index.equals(FRAME.index)
    assert table.index.name == "compound"
    assert len(table.columns) == len(set(table.columns))
    (prediction,) = predictions[2].values()
    row = table.loc[12]
    assert row[prediction.heading] == prediction.value
    low, high = (name for name in table if "_low" in name or "_high" in name)
    assert (row[low], row[high]) == prediction.interval
    assert row.nearest_similarity == prediction.nearness.similarity
    assert row.training_set == prediction.nearness.word
    assert table.loc[3, prediction.heading :].isna().all()
    assert table[prediction.heading].dtype == np.float64


def test_a_column_names_the_structures_where_a_frame_has_several(predictions):
    pair = FRAME.assign(product_smiles="C")
    with pytest.warns(UserWarning, match="input 1"):
        of_column = gx.predict("solubility", pair.smiles)
    pd.testing.assert_frame_equal(of_column.to_frame(), predictions.to_frame())


@pytest.mark.parametrize("function", [gx.explain, gx.predict])
def test_names_of_columns_are_never_taken_for_structures(function):
    frame = pd.DataFrame({"C": [1.0, 2.0], "CCO": [3.0, 4.0]})
    with pytest.raises(ValueError, match="no column of structures"):
        function("solubility", frame)

    class Derived(pd.DataFrame):  # as GeoPandas has one
        pass

    with pytest.raises(ValueError, match="no column of structures"):
        function("solubility", Derived(frame))

    class Foreign:  # as in Dask, whose frames yield the names of their columns too
        columns = ("C", "CCO")

        def __iter__(self):
            return iter(self.columns)

        def __getitem__(self, name):
            return [1.0, 2.0]

    with pytest.raises(TypeError, match="inputs is a Foreign with columns: pass the structures"):
        function("solubility", Foreign())


def test_every_task_has_its_columns_and_a_class_its_probabilities_and_set():
    (row,) = gx.predict("bace", ["CCO"]).to_frame().to_dict("records")
    assert row["smiles"] == "CCO"
    for task, prediction in gx.predict("bace", "CCO").items():
        if prediction.label is None:
            assert row[prediction.heading] == prediction.value
            continue
        assert row[task] == prediction.label
        shares = {name: row[f"{task}: {name}"] for name in prediction.probabilities}
        assert shares == prediction.probabilities
        assert row[f"{task}_set"] == " or ".join(prediction.classes)


def test_explanations_have_a_row_per_input_with_a_small_picture(explanations, predictions):
    table = explanations.to_frame(per="input", pictures=True)
    assert table.index.equals(FRAME.index)
    same = list(predictions.to_frame())
    pd.testing.assert_frame_equal(table[same], predictions.to_frame())
    assert table.loc[12, "output"] == explanations[2].output
    assert pd.isna(table.loc[3, "picture"])
    page = table.to_html(escape=False)
    assert "\\n" not in page
    images = re.findall('<img alt="[^"]*" src="data:image/svg[+]xml;base64,([^"]*)">', page)
    for image in images:
        svg = base64.b64decode(image).decode()
        assert svg_to_png(svg, 1.0).startswith(b"\x89PNG")
    assert len(images) == 2
    assert "picture" not in explanations.to_frame(per="input")
    with pytest.raises(ValueError, match="not per 'bond'"):
        explanations.to_frame(per="bond")


def test_a_notebook_shows_tables_of_what_came_from_a_frame(explanations, predictions):
    shown = explanations._repr_html_()
    assert shown.count("<img") == 2
    assert explanations._repr_svg_() is explanations._repr_png_() is None
    of_list = gx.Explanations([explanations[0]])
    assert of_list._repr_png_() == svg_to_png(of_list._repr_svg_(), 1.5, few_colors=True)
    for results in (explanations, predictions):
        text = unescape(results._repr_html_())
        for label, of_input in zip((7, 12), (predictions[0], predictions[2]), strict=True):
            assert f"<td>{label}</td>" in text
            for prediction in of_input.values():
                assert prediction.in_full in text
                assert prediction.nearness.sentence in text
        assert "3 inputs, 1 left out (None)" in text


def test_labels_in_a_table_are_escaped():
    frame = pd.DataFrame({"smiles": ["CCO"]}, index=["<script>alert(1)</script>"])
    for results in (gx.predict("solubility", frame), gx.explain("solubility", frame)):
        assert "<script" not in results._repr_html_()
    with pytest.warns(UserWarning, match="left out"):
        shown = gx.predict("solubility", ["CCO", "<script>"])._repr_html_()
    assert "<script" not in shown


def test_plain_text_fills_at_most_a_screen():
    many = gx.predict("solubility", ["C" * 60] * 30)
    for results in (many, gx.Explanations([gx.explain("solubility", "CCO")] * 30)):
        lines = repr(results).splitlines()
        assert len(lines) <= 24
        assert max(map(len, lines)) <= 100
        assert "30 inputs, 10 more not shown" in lines[0]


def test_parts_and_copies_of_results_keep_labels_and_structures(predictions):
    assert predictions[1:].labels == [3, 12]
    assert predictions[1:].to_frame().index.name == "compound"
    some = gx.predict("solubility", ["CCO", "CCN", "CCC"])[1:]
    assert list(some.to_frame().smiles) == ["CCN", "CCC"]
    assert list(some.to_frame().index) == [1, 2]
    pd.testing.assert_frame_equal(pickle.loads(pickle.dumps(some)).to_frame(), some.to_frame())
    some.append(None)  # the labels no longer fit
    assert list(some.labels) == [0, 1, 2]
    assert "smiles" not in some.to_frame()


def test_predictions_that_a_mask_chooses_keep_what_a_slice_keeps():
    molecules = ["CCO", "CCN", "CCC"]
    for models in ("solubility", ["solubility", "bace"]):
        predictions = gx.predict(models, molecules)
        chosen = predictions[[False, True, True]].to_frame()
        assert list(chosen.smiles) == molecules[1:]
        pd.testing.assert_frame_equal(chosen, predictions[1:].to_frame())


def test_a_notebook_shows_predictions_without_the_smiles_for_which_a_screen_has_no_room():
    predictions = gx.predict("bace", ["CCO", "c1ccccc1O"])
    assert predictions.to_frame().smiles.tolist() == ["CCO", "c1ccccc1O"]
    shown = predictions._repr_html_()
    assert "c1ccccc1O" not in shown
    assert predictions[1]["pIC50"].in_full in shown
