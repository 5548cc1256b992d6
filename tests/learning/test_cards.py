"""The line on a model card repeats the weights bit for bit, whatever the settings were."""

import hashlib
import re
import shlex
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data
from typer.testing import CliRunner

import graphxai as gx
from graphxai.cli.main import app
from graphxai.datasets import molecules
from graphxai.datasets.graph_folders import save_graphs
from graphxai.datasets.rule_molecules import rule_table
from graphxai.datasets.rules import get_rule
from graphxai.datasets.shapes import shape_dataset
from graphxai.learning import removal
from graphxai.learning.cleaning import clean_table
from graphxai.learning.recipes import distillation
from graphxai.learning.recipes.bace import train_bace
from graphxai.learning.recipes.mnist import mnist_config, train_mnist
from graphxai.learning.recipes.rules import train_rule
from graphxai.learning.teachers import forests
from ground_truth_tasks import train_rules, train_shapes
from mnist_files import write_mnist
from ogb_folders import bace_rows, write_molbace
from pretraining import PRETRAINING, pretrain

ASSAY = Path(__file__).parents[2] / "datasets" / "examples" / "assay.csv"
QUIET: dict[str, Any] = {"accelerator": "cpu", "progress": False}
ALCOHOLS = [f"{'C' * n}{end}" for n in range(1, 30) for end in ("O", "Cl", "N", "OC")]
OF_PRETRAINING = replace(PRETRAINING, batch_size=8, **QUIET)


@pytest.fixture(autouse=True)
def few_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fit small forests, as how many trees a forest has is on no card."""
    for module in (forests, distillation):
        monkeypatch.setattr(module, "TREES", 20)
        monkeypatch.setattr(module, "TREES_OF_VALUES", 20)
    monkeypatch.setattr(forests, "FEW_TREES", 10)


@pytest.fixture
def data(tmp_path: Path, mnist_digits: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder with 40 compounds of BACE, and 100 digits in place of MNIST."""
    pytest.importorskip("lightning.pytorch")
    write_mnist(tmp_path / "mnist", mnist_digits, np.arange(100, dtype=np.uint8) // 10)
    lines = [f"{row['mol']},{row['Class']},{row['pIC50']}" for row in bace_rows(40)]
    table = tmp_path / "bace" / "raw" / "bace.csv"
    table.parent.mkdir(parents=True)
    table.write_text("\n".join(["mol,Class,pIC50", *lines]) + "\n", "utf-8")
    monkeypatch.setattr(molecules, "BACE_MD5", hashlib.md5(table.read_bytes()).hexdigest())
    # most of the time, and no part of the weights
    monkeypatch.setattr(removal, "EXPLAINED", 2)
    monkeypatch.setattr(removal, "SCORED", 20)
    return tmp_path


def repeated(folder: Path, out: Path, data: Path, **given: Any) -> Path:
    """Run the line on a card, with another output folder, this data folder and what was given."""
    card = (folder / "README.md").read_text("utf-8")
    pattern = r"^(?:    |`)(graphxai train .*?|(?:train\w*|pretrain)\(.*?\))`?$"
    (line,) = re.findall(pattern, card, re.MULTILINE)
    if line.startswith("graphxai"):
        words = shlex.split(line)[1:]
        words[words.index("--out") + 1] = str(out)
        result = CliRunner().invoke(app, [*words, "--data", str(data), "--accelerator", "cpu"])
        assert result.exit_code == 0, result.output
    else:
        called = {
            "train_bace": partial(train_bace, root=data, **QUIET),
            "train_mnist": partial(train_mnist, root=data, **QUIET),
            "pretrain": pretrain,
        }
        others = (train_rule, train_rules, train_shapes, gx.train, gx.train_table)
        called |= {each.__name__: partial(each, **QUIET) for each in others}
        usual = {"mnist_config": mnist_config, "replace": replace, "PRETRAINING": OF_PRETRAINING}
        return eval(re.sub(r"'runs/[\w-]+'", repr(str(out)), line), called | usual | given)
    return out / "model"


def assert_same_weights(folder: Path, again: Path) -> None:
    assert folder != again
    first, second = (
        {file.relative_to(each): file.read_bytes() for file in each.rglob("*.safetensors")}
        for each in (folder, again)
    )
    assert first
    assert first == second


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
    assert_same_weights(folder, repeated(folder, data / "again", data))


OWN_RULE = replace(get_rule("halogen"), name="own", question="Is there a halogen of mine?")


@pytest.mark.parametrize(
    ("recipe", "positional", "given", "odd"),
    [
        (train_rule, ["halogen"], {"molecules": ALCOHOLS}, {"size": 60, "seed": 3}),
        (train_rule, ["rule"], {"rule": OWN_RULE, "molecules": ALCOHOLS}, {"size": 50}),
        (
            train_rule, ["logp"], {"molecules": ALCOHOLS},
            {"size": 40, "init_weights": Path("molecules")},
        ),
        (
            train_rules, ["table"], {"table": rule_table(ALCOHOLS, ("halogen", "logp"), size=80)},
            {"init_weights": None, "seed": 2},
        ),
        (train_shapes, [], {"dataset": shape_dataset(120, seed=1)}, {"seed": 5}),
    ],
    ids=["rule", "own rule", "rule from weights", "rules", "shapes"],
)  # fmt: skip
def test_the_call_on_the_card_of_a_known_truth_repeats_the_weights(
    recipe: Any, positional: list[str], given: dict[str, Any], odd: dict[str, Any], tmp_path: Path
) -> None:
    pytest.importorskip("lightning.pytorch")
    named = {name: value for name, value in given.items() if name not in ("rule", "table")}
    arguments = [given.get(name, name) for name in positional]
    folder = recipe(tmp_path / "first", *arguments, epochs=1, **named, **odd, **QUIET)
    assert_same_weights(folder, repeated(folder, tmp_path / "again", tmp_path, **given))


def test_the_call_on_the_card_of_pretrained_weights_repeats_them(tmp_path: Path) -> None:
    pytest.importorskip("lightning.pytorch")
    table = tmp_path / "alcohols.csv"
    table.write_text("\n".join(["smiles", *ALCOHOLS]) + "\n", "utf-8")
    exclude = ALCOHOLS[:3]
    folder = pretrain(
        tmp_path / "first", [table],
        exclude=exclude, per_table=40, recombined=5, count=16,
        settings=replace(OF_PRETRAINING, epochs=1, seed=2, batch_size=7),
    )  # fmt: skip
    assert "one of 3\ngiven molecules" in (folder / "README.md").read_text("utf-8")
    again = repeated(folder, tmp_path / "again", tmp_path, exclude=exclude)
    assert_same_weights(folder, again)


@pytest.fixture
def graphs() -> list[Data]:
    """Sixty rings and paths of three to eight nodes, which a network is to tell apart."""
    made = []
    for k in range(60):
        n, is_ring = 3 + k % 6, k % 2
        edges = [(i, i + 1) for i in range(n - 1)] + [(n - 1, 0)] * is_ring
        both = torch.tensor([*edges, *(pair[::-1] for pair in edges)]).T
        x = torch.linspace(0, 1, n)[:, None] + k / 60
        made.append(Data(x=x, edge_index=both, y=torch.tensor([is_ring])))
    return made


@pytest.mark.parametrize(
    "odd",
    [
        {"seed": 3, "layers": 1, "width": 16},
        {"split": "random", "dropout": 0.0, "ensemble": 2, "width": 8},
        {"split": (range(40), range(40, 50), range(50, 60)), "learning_rate": 1e-3, "patience": 1},
    ],
)
@pytest.mark.parametrize("stored", [True, False])
def test_the_call_on_the_card_of_graphs_repeats_the_weights(
    stored: bool, odd: dict[str, Any], graphs: list[Data], tmp_path: Path
) -> None:
    pytest.importorskip("lightning.pytorch")
    if stored:
        save_graphs(graphs, tmp_path / "stored")
    dataset: Any = tmp_path / "stored" if stored else graphs
    odd = {"epochs": 1, "baselines": False, "task": "classification", **odd}
    folder = gx.train(dataset, tmp_path / "first", **odd, **QUIET)
    again = repeated(folder, tmp_path / "again", tmp_path, graphs=graphs, split=odd.get("split"))
    assert_same_weights(folder, again)


def assert_typed_again(
    words: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch, *, seed: int = 4
) -> None:
    """Type a command, type the one on its card, and compare the weights."""
    pytest.importorskip("lightning.pytorch")
    words = ["train", *words, "--epochs", "1", "--seed", str(seed), "--out", str(folder / "first")]
    monkeypatch.setattr("sys.argv", ["graphxai", *words])
    assert CliRunner().invoke(app, words).exit_code == 0
    card = (folder / "first" / "model" / "README.md").read_text("utf-8")
    (line,) = re.findall(r"^    graphxai (train .*)$", card, re.MULTILINE)
    words = shlex.split(line)
    words[words.index("--out") + 1] = str(folder / "again")
    assert CliRunner().invoke(app, words).exit_code == 0
    assert_same_weights(folder / "first" / "model", folder / "again" / "model")


def test_the_command_on_the_card_of_a_folder_of_graphs_repeats_the_weights(
    graphs: list[Data], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_graphs(graphs, tmp_path / "stored")
    words = [str(tmp_path / "stored"), "--task", "classification", "--no-baselines"]
    words += ["--layers", "1", "--width", "16", "--accelerator", "cpu"]
    assert_typed_again(words, tmp_path, monkeypatch)


def test_the_command_on_the_card_of_a_table_repeats_the_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "few.csv"
    table.write_text("\n".join(ASSAY.read_text("utf-8").splitlines()[:61]) + "\n", "utf-8")
    words = [str(table), "--target-column", "efflux", "--no-teacher", "--split", "random"]
    assert_typed_again(words, tmp_path, monkeypatch)


@pytest.mark.usefixtures("small_networks")
def test_the_command_on_the_card_of_an_official_data_set_repeats_the_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_molbace(tmp_path / "data", 100)
    words = ["ogbg-molbace", "--data", str(tmp_path / "data"), "--no-teacher"]
    assert_typed_again([*words, "--accelerator", "cpu"], tmp_path, monkeypatch, seed=2)


def test_the_call_on_the_card_of_a_table_repeats_the_weights(tmp_path: Path) -> None:
    pytest.importorskip("lightning.pytorch")
    path = tmp_path / "few.csv"
    path.write_text("\n".join(ASSAY.read_text("utf-8").splitlines()[:61]) + "\n", "utf-8")
    table = clean_table(path, None, ["efflux"])
    folder = gx.train_table(
        table, tmp_path / "first", split="random", teacher=False, epochs=1, seed=2, **QUIET
    )
    card = (folder / "README.md").read_text("utf-8")
    assert "Pairs of two training molecules are left out: the model was trained without" in card
    assert_same_weights(folder, repeated(folder, tmp_path / "again", tmp_path, table=table))
