"""Frames, files and masks are taken as users hand them over."""

import numpy as np
import pandas as pd
import pytest
from rdkit import Chem

import graphxai as gx
from graphxai.datasets.tables.opening import TableError
from graphxai.datasets.tables.table import structures_in

SMILES = ["CCO", "CCN", "CCCl"]


@pytest.fixture(scope="module")
def model():
    return gx.load("solubility")


@pytest.mark.parametrize("columns", [[0, 1], [("a", "id"), ("a", "smiles")], [1.5, None]])
def test_columns_may_have_any_names(columns):
    frame = pd.DataFrame([[f"x{k}", s] for k, s in enumerate(SMILES)])
    frame.columns = columns
    assert structures_in(frame) == SMILES


def test_cells_may_hold_molecules(model):
    mols = [Chem.MolFromSmiles(s) for s in SMILES]
    frame = pd.DataFrame({"id": [1, 2, 3], "drawn": mols}, index=list("abc"))
    predictions = gx.predict(model, frame)
    expected = gx.predict(model, SMILES)
    assert [p["solubility"].value for p in predictions] == [p["solubility"].value for p in expected]


def test_frames_of_polars_are_read_lazy_ones_too():
    pl = pytest.importorskip("polars")
    frame = pl.DataFrame({"id": [1, 2, 3], "smiles": SMILES})
    for each in (frame, frame["smiles"], frame.lazy()):
        assert structures_in(each) == SMILES


def test_a_frame_without_structures_says_what_to_pass():
    with pytest.raises(TableError, match=r"pass the column itself, such as frame\['smiles'\]"):
        structures_in(pd.DataFrame({"a": [1, 2]}))


def test_the_path_of_a_table_may_be_a_text(model, tmp_path):
    path = tmp_path / "mine.csv"
    pd.DataFrame({"smiles": SMILES}).to_csv(path, index=False)
    assert [e.smiles for e in gx.explain(model, str(path))] == SMILES
    with pytest.raises(FileNotFoundError, match="no such file"):
        gx.explain(model, str(tmp_path / "other.sdf"))


def test_a_mask_chooses_results_with_their_labels(model):
    frame = pd.DataFrame({"smiles": SMILES}, index=["a", "b", "c"])
    explanations = gx.explain(model, frame)
    mask = frame.smiles.str.endswith(("O", "Cl"))
    for each in (mask, mask.to_numpy(), mask.tolist()):
        chosen = explanations[each]
        assert type(chosen) is type(explanations)
        assert [e.smiles for e in chosen] == ["CCO", "CCCl"]
        assert list(chosen.labels) == ["a", "c"]
    assert explanations[np.zeros(3, dtype=bool)] == []
    with pytest.raises(IndexError, match="2 values for 3 results"):
        explanations[[True, False]]
    with pytest.raises(TypeError, match="mask of True and False"):
        explanations[[0, 2]]
