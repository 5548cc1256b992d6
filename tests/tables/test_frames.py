"""Data frames of any engine give one row out for each row in, whatever stands in the cells."""

import pickle

import numpy as np
import pandas as pd
import pytest
from rdkit import Chem

import graphxai as gx
from graphxai.tables.batches import ExplainBatch
from graphxai.tables.files import above_noise
from graphxai.tables.rows import ExplainFrame
from toy import random_graphormer

pa = pytest.importorskip("pyarrow")

HOSTILE = [None, float("nan"), "C" * 10_000_000, 3, b"CCO", ["CCO"], "\ud800", "", "C1CC", "\x00"]


@pytest.fixture(scope="module")
def batch() -> ExplainBatch:
    return ExplainBatch(random_graphormer(num_layers=1))


def test_a_frame_has_the_numbers_of_explain(batch):
    smiles = ["CCO", "C1CC", "c1ccccc1O"]
    frame = pd.DataFrame({"ID": ["a", None, 7], "n": [5, 3, 5], "structure": smiles})
    explain = ExplainFrame(batch, "structure", row_column="n", name_column="ID")
    result = pickle.loads(pickle.dumps(explain))(frame)
    assert result["row"].tolist() == [5, 3, 5]  # as given, in the order given
    assert result["name"].tolist() == ["a", "", "7"]
    assert result["reason"].notna().tolist() == [False, True, False]
    for k in (0, 2):
        expected = gx.explain(batch.model, smiles[k])
        digits = [*map(float, above_noise(expected.relevance.tolist()))]
        np.testing.assert_allclose(result["relevance"][k], digits, atol=1e-6)
        assert result["output"][k] == pytest.approx(expected.output, rel=1e-5)
    assert list(result) == explain.schema.names


def test_nothing_in_a_cell_stops_a_frame(batch):
    for k in range(0, len(HOSTILE), 5):
        values = ["CCO", *HOSTILE[k : k + 5], "CCN"]
        result = ExplainFrame(batch)(pd.DataFrame({"smiles": pd.Series(values, dtype=object)}))
        reasons = result["reason"].tolist()
        assert pd.isna(reasons[0])
        assert pd.isna(reasons[-1])
        assert all(isinstance(reason, str) and len(reason) < 400 for reason in reasons[1:-1])
        assert result["smiles"].str.len().max() <= 1000


@pytest.mark.parametrize("values", [[1, 2], [None, None], [1.5, None], [b"C", b"O"], [[1], []]])
def test_a_column_that_is_no_text_is_refused_row_by_row(batch, values):
    table = pa.table({"smiles": values})
    result = ExplainFrame(batch)(table)
    assert result.schema.equals(ExplainFrame(batch).schema)  # also if no row can be explained
    assert result["reason"].null_count == 0


def test_every_row_keeps_its_name_whatever_its_cell_holds(batch):
    frame = pd.DataFrame({"smiles": ["CCO", 5, "xx", None], "name": ["a", "b", 3, "d"]})
    assert ExplainFrame(batch, name_column="name")(frame)["name"].tolist() == ["a", "b", "3", "d"]


def test_an_empty_part_and_a_missing_column(batch):
    assert ExplainFrame(batch)(pd.DataFrame({"smiles": []})).empty
    with pytest.raises(ValueError, match=r"no column 'smiles'; its columns: 'drawn'"):
        ExplainFrame(batch, "smiles")(pd.DataFrame({"drawn": ["CCO"]}))


def test_results_keep_the_index_of_their_frame_and_its_column_is_found_by_itself(batch):
    frame = pd.DataFrame({"drawn": ["CCOC", "C1CC", "CCNC"], "x": 1}, index=[2, 0, 1])
    frame.loc[0, "drawn"] = "CCSC"
    joined = frame.join(ExplainFrame(batch)(frame)[["smiles", "reason"]])
    assert joined.smiles.tolist() == ["CCOC", "CCSC", "CCNC"]
    upper = frame.rename(columns={"drawn": "SMILES"})
    assert ExplainFrame(batch, "smiles")(upper).index.tolist() == [2, 0, 1]


def test_cells_may_be_molecules_and_columns_numbers(batch):
    frame = pd.DataFrame([["a", Chem.MolFromSmiles("CCO")], ["b", Chem.MolFromSmiles("CCN")]])
    result = ExplainFrame(batch, name_column="0")(frame)
    assert result["smiles"].tolist() == ["CCO", "CCN"]
    assert result["name"].tolist() == ["a", "b"]
    assert result["reason"].isna().all()
