"""A batch of molecules becomes the rows of a table, in this process or in any other."""

import csv
import json
import pickle

import pytest
from kernels import needs_rows_that_stand_alone

import graphxai as gx
from graphxai.explainers import get_explainer
from graphxai.explainers.registry import methods_for
from graphxai.models.graphormer import load_checkpoint, save_checkpoint
from graphxai.tables.batches import ExplainBatch, Pictures, PredictBatch, rows_of
from graphxai.tables.files import above_noise
from graphxai.tables.run import explain_table, predict_table
from one_compound import MODELS
from one_compound import test_part as of_test_part
from toy import random_graphormer

SMILES = ["CCO", "C1CC", "c1ccccc1O", "C[*+]"]
NUMBERS = [4, 7, 9, 12]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "model"
    save_checkpoint(random_graphormer(num_layers=1), folder)
    return folder


def test_a_batch_that_was_pickled_gives_the_same_rows(folder):
    batch = ExplainBatch(str(folder), pictures=Pictures(), sdf=True)
    there = pickle.loads(pickle.dumps(batch))
    assert len(pickle.dumps(batch)) < 1000  # the name of the model, not the model
    rows = there(SMILES, NUMBERS, ["a", "b", "c", "d"])
    assert rows == batch(SMILES, NUMBERS, ["a", "b", "c", "d"])
    assert [(row["row"], row["name"]) for row in rows] == [(4, "a"), (7, "b"), (9, "c"), (12, "d")]
    assert ["reason" in row for row in rows] == [False, True, False, True]
    assert rows[3]["reason"].startswith("cannot be written: ")
    good = rows[0]
    assert good["picture"] == "pictures/000004.svg"
    assert good["drawing"].startswith("<svg")
    assert good["record"].startswith("a\n")
    assert good.keys() - {"drawing", "record"} == batch.columns(named=True).keys()


def test_an_error_of_many_lines_is_a_reason_of_one_line_of_300_characters(folder):
    def fails(rows):
        raise RuntimeError("the kernel failed\n" + "at 0x0\n" * 100)

    (rejected,) = rows_of(fails, load_checkpoint(folder), ["CCO"], [4]).rejected.values()
    assert (rejected.row, rejected.smiles, len(rejected.reason)) == (4, "CCO", 300)
    assert rejected.reason.startswith("the kernel failed at 0x0 at")
    assert rejected.reason.endswith("...")


def test_rows_are_those_that_a_run_over_a_table_writes(folder, tmp_path):
    table = tmp_path / "t.csv"
    table.write_text("smiles\n" + "\n".join(SMILES) + "\n")
    model = load_checkpoint(folder)
    explain_table(model, table, tmp_path / "out", get_explainer("lrp"))
    with (tmp_path / "predicted.csv").open("w") as file:
        predict_table(model, table, file)
    made = {
        tmp_path / "out" / "explanations.csv": ExplainBatch(folder),
        tmp_path / "predicted.csv": PredictBatch(folder),
    }
    for path, batch in made.items():
        with path.open(newline="") as file:
            written = list(csv.DictReader(file))
        rows = [row for row in batch(SMILES, [1, 2, 3, 4]) if "reason" not in row]
        assert [{name: str(cell) for name, cell in row.items()} for row in rows] == written
        assert list(rows[0]) == list(batch.columns())


def test_large_molecules_are_encoded_a_few_at_a_time_with_the_same_result(folder, monkeypatch):
    """Their pairs of atoms, kept for all rows at once, could take all memory."""
    peptides = ["NCC(=O)" * 2, "C1CC", "NCC(=O)" * 3, "O", "NCC(=O)" * 4]
    batches = ExplainBatch(folder), PredictBatch(folder)
    together = [batch(peptides, [*NUMBERS, 20]) for batch in batches]
    monkeypatch.setattr("graphxai.contract.batching.CHUNK_PAIRS", 100)
    for batch, rows in zip(batches, together, strict=True):
        for alone, row in zip(batch(peptides, [*NUMBERS, 20]), rows, strict=True):
            assert alone.keys() == row.keys()
            assert (alone["row"], alone["smiles"]) == (row["row"], row["smiles"])
            assert alone.get("reason") == row.get("reason")
            outputs = float(alone.get("output", 0)), float(row.get("output", 0))  # six digits each
            assert outputs[0] == pytest.approx(outputs[1], abs=2e-6)


def test_a_model_is_loaded_once_and_anew_when_it_was_trained_anew(folder):
    batch = PredictBatch(str(folder))
    (before,) = batch(["CCO"], [1])
    assert batch(["CCO"], [1]) == [before]
    other = random_graphormer(num_layers=2)
    save_checkpoint(other, folder)
    (after,) = PredictBatch(other)(["CCO"], [1])
    assert after != before
    assert batch(["CCO"], [1]) == [after]


@pytest.mark.parametrize(
    ("options", "message"),
    [({"target": "toxic"}, "toxic"), ({"method": "lpr"}, "lpr"), ({"model": "bce"}, "bce")],
)
def test_what_would_fail_on_every_molecule_is_refused_at_once(folder, options, message):
    with pytest.raises(ValueError, match=message):
        ExplainBatch(**({"model": folder} | options)).check()


def test_one_and_several_models_write_the_same_cells_of_a_property():
    smiles, numbers = ["CC(=O)[O-].[Na+]", "CCO"], [1, 2]
    alone = PredictBatch("lipophilicity")(smiles, numbers)
    several = PredictBatch(("solubility", "lipophilicity"))(smiles, numbers)
    for one, row in zip(alone, several, strict=True):
        near = {name: one.pop(name) for name in ("nearest_similarity", "training_set")}
        assert one.items() <= row.items()
        assert near == {name: row[f"log D at pH 7.4_{name}"] for name in near}


@pytest.mark.parametrize("models", ["bace", ["bace", "lipophilicity"]])
def test_a_frame_of_predictions_has_the_parent_and_note_of_the_table(models):
    smiles = ["CC(=O)[O-].[Na+]", "CCO"]
    frame = gx.predict(models, smiles).to_frame()
    rows = PredictBatch(models)(smiles, [1, 2])
    for name in ("parent", "note"):
        assert frame[name].fillna("").tolist() == [row[name] for row in rows]
    assert frame["parent"].tolist()[0] == "CC(=O)O"


# -- in any company --------------------------------------------------------------------------------

COMPOUNDS = 7  # of each model, of all sizes
COMPANIES = {
    "alone": [[k] for k in range(COMPOUNDS)],
    "in twos": [[0, 1], [2, 3], [4, 5], [6]],
    "together": [[*range(COMPOUNDS)]],
    "one less": [[*range(COMPOUNDS - 1)]],
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("kind", [PredictBatch, ExplainBatch])
@needs_rows_that_stand_alone
def test_a_row_is_equal_to_the_byte_in_any_company(name, kind):
    texts = sorted(of_test_part(name), key=len)
    batch, texts = kind(gx.load(name)), texts[:: len(texts) // COMPOUNDS][:COMPOUNDS]
    rows = {
        company: {row["row"]: row for g in groups for row in batch([texts[k] for k in g], g)}
        for company, groups in COMPANIES.items()
    }
    for company in rows.values():
        assert company == {k: row for k, row in rows["alone"].items() if k in company}


@needs_rows_that_stand_alone
def test_an_explanation_is_equal_to_the_byte_in_any_company():
    texts = of_test_part("bace")[:5]
    together = gx.explain("bace", texts)
    for text, e in zip(texts, together, strict=True):
        assert json.dumps(gx.explain("bace", text).to_dict()) == json.dumps(e.to_dict())


def test_cells_end_above_the_noise_of_batches():
    """The last digit is the fifth of the largest number, whatever the size of the others."""
    assert above_noise([1.2345678, -0.00123456, 2e-7]) == ["1.2346", "-0.0012", "0"]
    assert above_noise([1234567.0, 12.0]) == ["1.2346e+06", "0"]
    assert above_noise([0.0]) == ["0"]
    assert above_noise([]) == []


@pytest.mark.parametrize("method", methods_for(gx.load("bace")))
@needs_rows_that_stand_alone
def test_a_row_of_every_method_is_equal_to_the_byte_in_company(method):
    """Of molecules of one size after padding, of different sizes, and of a size of their own."""
    texts = ["CCO", "CC(=O)Nc1ccc(O)cc1", "NCCc1ccccc1O", "CC(C)Cc1ccc(C)c(C(N)=O)c1"]
    batch = ExplainBatch("bace", method)
    alone = [batch([text], [k])[0] for k, text in enumerate(texts)]
    assert batch(texts, range(len(texts))) == alone


@pytest.mark.parametrize("method", ["rollout", "attention_last"])
@needs_rows_that_stand_alone
def test_attention_has_the_same_bits_in_company(method):
    """Also where only part of what was computed is printed."""
    texts = of_test_part("blood-brain-barrier")[:20]
    together = gx.explain("blood-brain-barrier", texts, method)
    for text, e in zip(texts, together, strict=True):
        alone = gx.explain("blood-brain-barrier", text, method)
        assert alone.output == e.output
        assert alone.relevance.tolist() == e.relevance.tolist()
