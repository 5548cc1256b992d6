"""The recipe of the bundled BACE model, on a few compounds in a file like MoleculeNet's."""

import csv
import hashlib
from itertools import chain
from pathlib import Path

import pytest
from sklearn.metrics import roc_auc_score

import graphxai as gx
from graphxai.datasets import molecules
from graphxai.learning.recipes.bace import train_bace
from graphxai.models.graphormer import load_checkpoint
from ogb_folders import bace_rows

NUM_COMPOUNDS = 50


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, compounds: list[dict[str, str]]) -> Path:
    """Train for an epoch, and return the folder of the checkpoint."""
    pytest.importorskip("lightning.pytorch")
    root = tmp_path_factory.mktemp("bace")
    table = root / "bace" / "raw" / "bace.csv"
    table.parent.mkdir(parents=True)
    with table.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(compounds[0]))
        writer.writeheader()
        writer.writerows(compounds)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(molecules, "BACE_MD5", hashlib.md5(table.read_bytes()).hexdigest())
        folder = train_bace(
            root / "run", root=root, molecules=0, epochs=1, accelerator="cpu", progress=False
        )
    return folder


@pytest.fixture(scope="module")
def compounds() -> list[dict[str, str]]:
    return bace_rows(NUM_COMPOUNDS)


def test_the_scores_are_those_of_the_test_compounds(
    trained: Path, compounds: list[dict[str, str]]
) -> None:
    """The stored model, after its temperature, gives the scores that its card reports."""
    metadata = load_checkpoint(trained).origin.metadata
    rows = [compounds[k] for k in metadata["split"]["test"]]
    predictions = gx.predict(trained, [row["mol"] for row in rows], progress=False)
    potency = [float(row["pIC50"]) for row in rows]
    active = [each["BACE-1 inhibition"].probabilities["active"] for each in predictions]
    scores = metadata["scores"]
    expected = roc_auc_score([value >= 7 for value in potency], active)
    of_class = scores["BACE-1 inhibition"]["scores"]
    assert set(of_class) == {"graphormer", "forest", "dummy"}
    assert of_class["graphormer"]["ROC-AUC"][0] == pytest.approx(expected)
    squares = [
        (each["pIC50"].value - value) ** 2 for each, value in zip(predictions, potency, strict=True)
    ]
    error = scores["pIC50"]["scores"]["graphormer"]["RMSE"][0]
    assert error == pytest.approx((sum(squares) / len(squares)) ** 0.5, rel=1e-4)
    card = (trained / "README.md").read_text("utf-8")
    assert f"{error:.3f}" in card


def test_no_compound_is_in_two_parts(trained: Path) -> None:
    split = load_checkpoint(trained).origin.metadata["split"]
    parts = [split[name] for name in ("train", "valid", "test")]
    assert sorted(chain(*parts)) == list(range(NUM_COMPOUNDS))
    stored = [
        (trained / name).read_text("utf-8").splitlines()
        for name in ("training.csv", "held_out.csv")
    ]
    learned, held_out = ({line.split(",")[0] for line in lines[1:]} for lines in stored)
    assert len(learned) == len(split["train"])
    assert not learned & held_out


def test_the_card_of_a_fine_tuning_tells_of_no_second_stage(trained: Path) -> None:
    card = (trained / "README.md").read_text("utf-8")
    assert "The model learned the measured labels." in card
    assert "recombined" not in card.partition("**Training.**")[2].partition("\n\n")[0]
    assert "Settings, apart from 1 epoch for each stage, were chosen" in card
    assert "train_bace('runs/bace', epochs=1, split='random', molecules=0)" in card
