"""The line on a model card repeats the weights bit for bit, whatever the settings were."""

import hashlib
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from graphxai.cli.main import app
from graphxai.datasets import molecules
from graphxai.learning.recipes.bace import train_bace
from graphxai.learning.recipes.mnist import mnist_config, train_mnist
from graphxai.models.graphormer import load_checkpoint
from mnist_files import write_mnist

ASSAY = Path(__file__).parents[2] / "datasets" / "examples" / "assay.csv"
BY_NAME = {"train_bace": train_bace, "train_mnist": train_mnist, "mnist_config": mnist_config}
QUIET: dict[str, Any] = {"accelerator": "cpu", "progress": False}


@pytest.fixture
def data(tmp_path: Path, mnist_digits: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder with 40 compounds in place of BACE, and 100 digits in place of MNIST."""
    pytest.importorskip("lightning.pytorch")
    write_mnist(tmp_path / "mnist", mnist_digits, np.arange(100, dtype=np.uint8) // 10)
    rows = [line.split(",") for line in ASSAY.read_text("utf-8").splitlines()[:41]]
    smiles, potency = (rows[0].index(name) for name in ("smiles", "pIC50"))
    lines = [f"{r[smiles]},{int(float(r[potency]) >= 7)},{r[potency]}" for r in rows[1:]]
    table = tmp_path / "bace" / "raw" / "bace.csv"
    table.parent.mkdir(parents=True)
    table.write_text("\n".join(["mol,Class,pIC50", *lines]) + "\n", "utf-8")
    monkeypatch.setattr(molecules, "BACE_MD5", hashlib.md5(table.read_bytes()).hexdigest())
    return tmp_path


def repeated(card: str, data: Path, out: Path) -> Path:
    """Run the line on a card, with another output folder and this data folder."""
    (line,) = re.findall(r"^(?:    |`)(graphxai train .*?|train_\w+\(.*?\))`?$", card, re.MULTILINE)
    if line.startswith("graphxai"):
        words = shlex.split(line)[1:]
        words[words.index("--out") + 1] = str(out)
        result = CliRunner().invoke(app, [*words, "--data", str(data), "--accelerator", "cpu"])
        assert result.exit_code == 0, result.output
    else:
        name, rest = line.split("(", 1)
        arguments = eval(f"dict({rest.split(', ', 1)[1]}", BY_NAME)
        BY_NAME[name](out, root=data, **arguments, **QUIET)
    return out / "model"


@pytest.mark.parametrize(
    ("recipe", "odd"),
    [
        (train_bace, {"molecules": 0, "epochs": 1, "seed": 3, "split": "scaffold"}),
        (train_mnist, {"epochs": 1, "versions": 1, "num_train": 40, "seed": 2}),
        (
            train_mnist,
            {
                "epochs": 1, "batch_size": 7, "learning_rate": 1e-3, "num_test": 20,
                "config": mnist_config(num_layers=1, hidden_dim=16, ffn_dim=16, num_heads=4),
            },
        ),
    ],
)  # fmt: skip
def test_the_line_on_the_card_repeats_the_weights(
    recipe: Any, odd: dict[str, Any], data: Path
) -> None:
    folder = recipe(data / "first", root=data, **odd, **QUIET)
    again = repeated((folder / "README.md").read_text("utf-8"), data, data / "again")
    weights, expected = (load_checkpoint(f).state_dict() for f in (again, folder))
    assert weights.keys() == expected.keys()
    assert all(torch.equal(weights[name], expected[name]) for name in expected)


def test_the_command_on_the_card_of_a_table_repeats_the_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("lightning.pytorch")
    table = tmp_path / "few.csv"
    table.write_text("\n".join(ASSAY.read_text("utf-8").splitlines()[:61]) + "\n", "utf-8")
    words = ["train", str(table), "--target-column", "pIC50", "--epochs", "1", "--seed", "4"]
    words += ["--no-teacher", "--split", "random", "--out", str(tmp_path / "first")]
    monkeypatch.setattr("sys.argv", ["graphxai", *words])
    assert CliRunner().invoke(app, words).exit_code == 0
    card = (tmp_path / "first" / "model" / "README.md").read_text("utf-8")
    (line,) = re.findall(r"^    graphxai (train .*)$", card, re.MULTILINE)
    words = shlex.split(line)
    words[words.index("--out") + 1] = str(tmp_path / "again")
    assert CliRunner().invoke(app, words).exit_code == 0
    first, again = (tmp_path / name / "model/model.safetensors" for name in ("first", "again"))
    assert first.read_bytes() == again.read_bytes()
