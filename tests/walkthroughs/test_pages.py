"""Every code block in the documentation runs and prints the output shown below it."""

import re
import shlex
from importlib.util import find_spec

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GINConv, GPSConv, global_mean_pool

from graphxai.datasets.molecules import molecule_to_data
from graphxai.datasets.samples import MOLECULES, example_files
from guides import pasted_blocks
from pages import (
    COMMAND,
    ENGINES,
    NEEDS_CHEMPROP,
    OFFICIAL,
    PAGES,
    blocks_of,
    commands_of,
    engine_of,
    files_of_the_reader,
    left_out,
    run,
    run_block,
    run_blocks_for,
)


class Gps(nn.Module):
    """The reader's model, if a page mentions one."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Linear(9, 16), nn.Linear(16, 1)
        self.layer = GPSConv(16, GINConv(nn.Linear(16, 16)), heads=2, act="gelu")

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        h = self.layer(self.embed(x), edge_index, batch)
        return self.head(global_mean_pool(h, batch))


def taken_for_granted() -> dict[str, dict]:
    """Return, by section of the README, what it assumes: a model, graphs, and a method."""
    torch.manual_seed(0)
    drugs = [molecule_to_data(smiles) for smiles in list(MOLECULES.values())[:3]]
    graphs = [Data(x=d.x.float() / 5, edge_index=d.edge_index) for d in drugs]
    return {
        "I have a network": {
            "my_gps": Gps().eval(),
            "graphs": graphs,
            "my_own_function": lambda model, batch, target: batch.mask.float(),
        },
    }


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("page", [page for page in PAGES if blocks_of(page)])
@pytest.mark.usefixtures("small_networks")
def test_every_block_of_the_page_runs(page, tmp_path, data_folder, monkeypatch, kept_registries):
    files_of_the_reader(tmp_path, page)
    monkeypatch.chdir(tmp_path)
    if page.startswith("docs/api/"):  # which shows how data are downloaded
        monkeypatch.setenv("GRAPHXAI_DATA", str(data_folder))
    for name in ("EPOCHS", "FEWEST_EPOCHS"):  # of training on graphs, which takes minutes
        monkeypatch.setattr(f"graphxai.learning.settings.{name}", 1)
    granted = taken_for_granted() if page == "README.md" else {}
    names = {"__name__": "page"}
    into_files = {block.text for block in pasted_blocks(page)}  # see install/test_guides.py
    for block in blocks_of(page):
        names |= granted.pop(block.section, {})
        if block.section == NEEDS_CHEMPROP and find_spec("chemprop") is None:
            continue
        if engine_of(block) is None and block.text not in into_files:
            run_block(block, page, names, monkeypatch)
    for name, example in example_files().items():  # a page writes over no file of its reader's
        copy = tmp_path / name
        assert not copy.exists() or copy.read_bytes() == example.read_bytes()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("engine", [e for e in ENGINES if e != "ray"])  # see test_cluster.py
def test_each_engine_of_the_page_explains_the_table(engine, tmp_path, monkeypatch):
    pytest.importorskip(engine, reason=f"{engine} is not installed")
    run_blocks_for(engine, tmp_path, monkeypatch)


def commands_on_official_data() -> list[str]:
    """Return each such command of all pages once."""
    blocks = [block for page in PAGES for block in blocks_of(page) if block.kind == "sh"]
    words = [words for block in blocks for words in commands_of(block.text)]
    return sorted({shlex.join(w[1:]) for w in words if w[1:3] in OFFICIAL})


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("command", commands_on_official_data())
def test_commands_on_official_data_run(command, data_folder, tmp_path, monkeypatch):
    monkeypatch.setenv("GRAPHXAI_DATA", str(data_folder))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("graphxai.evaluation.output._save", left_out)
    run(shlex.split(command), monkeypatch)
    assert list(tmp_path.rglob("summary.md"))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("command", sorted(COMMAND.commands))
@pytest.mark.usefixtures("small_networks")
def test_the_first_example_in_the_help_of_a_command_runs(
    command, data_folder, tmp_path, monkeypatch
):
    """It needs no file but those that `graphxai examples` writes."""
    monkeypatch.setenv("GRAPHXAI_DATA", str(data_folder))
    monkeypatch.setattr("graphxai.evaluation.output._save", left_out)
    monkeypatch.chdir(tmp_path)
    run(["examples"], monkeypatch)
    examples = re.findall(r"^`graphxai ([^`]*)`", COMMAND.commands[command].help, re.MULTILINE)
    words = shlex.split(examples[0])
    assert words[0] == command
    run(words, monkeypatch)
