"""Every command writes the same files on every terminal, and when nobody reads what it prints."""

import io
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch_geometric.data import Data
from typer.main import get_command

from graphxai.cli import main as cli
from graphxai.datasets.graph_folders import save_graphs
from graphxai.datasets.samples import digit_paths
from graphxai.models.graphormer import save_checkpoint
from toy import random_graphormer

CODE_PAGES = ("ascii", "cp1252", "cp437", "cp932", "gbk")
STRANGE = "β-漢字 ≥ é😀"  # none of the code pages has all of these characters
TABLE = f"{STRANGE}.csv"
MODEL = ("--model", "toy")
TRAINING = ("--no-teacher", "--init-weights", "none", "--epochs", 1, "--split-column", "part")
COMMANDS = {
    "explain": ("CCO", *MODEL, "--out", f"{STRANGE}.svg"),
    "explain a table": (TABLE, *MODEL, "--name-column", STRANGE, "--format", "csv,sdf"),
    "explain a picture": (digit_paths()[3], "--model", "mnist-superpixels", "--out", "three.png"),
    "explain graphs": ("squares", "--model", "small", "--out", "explained"),
    "predict": ("CCO", *MODEL),
    "predict a table": (TABLE, *MODEL, "--name-column", STRANGE, "--out", "predicted.csv"),
    "benchmark": ("toy", TABLE, "--limit", 2, "--steps", 2, "--methods", "lrp,gae"),
    "report": (TABLE, *MODEL, "--name-column", STRANGE, "--detailed", 1),
    "fragments": (TABLE, *MODEL),
    "audit": (TABLE, *MODEL, "--measured-column", "y", "--threshold", 2, "--minimum", 1),
    "counterfactuals": (TABLE, *MODEL, "--towards", "active", "-n", 1, "--out", "changed.sdf"),
    "changes": (TABLE, "--measured-column", "y"),
    "train": ("learned.csv", "--target-column", STRANGE, "--out", "run", *TRAINING),
    "examples": (STRANGE,),
    "fit-explainer": ("learned.csv", *MODEL, "--graphs", 20, "--epochs", 1),
    "fit-masked-atoms": ("learned.csv", *MODEL, "--epochs", 1),
    "adapt": ("lipophilicity", "learned.csv", "--target-column", STRANGE, "--out", "run"),
    "models": (),
    "methods": (),
    "demo": (),
    "app": ("--no-browser",),
}
PRINT_ALONE = ("predict", "models", "methods", "app")  # commands that write no file


class AnyCodePage(io.TextIOWrapper):
    """A stream that fails if any of the code pages lacks what is written to it."""

    def __init__(self):
        super().__init__(io.BytesIO(), encoding="cp437")

    def write(self, text):
        for page in CODE_PAGES:
            text.encode(page, self.errors)
        return super().write(text)


def of_nobody():
    """Open a pipe that nobody reads any more."""
    reading, writing = os.pipe()
    os.close(reading)
    return os.fdopen(writing, "w", encoding="utf-8")


def files_after(command, folder, monkeypatch, out, err=None):
    """Run a command in a new folder with the same inputs each time, and return what it wrote."""
    folder.mkdir()
    monkeypatch.chdir(folder)
    save_checkpoint(random_graphormer(), Path("toy"))
    of_graphs = {"node_cardinalities": (), "edge_cardinalities": (), "num_node_features": 2}
    save_checkpoint(random_graphormer(**of_graphs, node_feature_names=("β", "漢")), Path("small"))
    square = torch.tensor([[0, 1, 2, 3, 1, 2, 3, 0], [1, 2, 3, 0, 0, 1, 2, 3]])
    save_graphs([Data(x=torch.ones(4, 2), edge_index=square)] * 2, Path("squares"))
    rows = [f"{'C' * k}O,{STRANGE},{k}" for k in (1, 2, 3)]
    Path(TABLE).write_text("\n".join([f"smiles,{STRANGE},y", *rows, f"XX,{STRANGE},4"]))
    parts = ["train"] * 30 + ["valid"] * 5 + ["test"] * 5
    rows = [f"{'C' * k}O,{k % 2},{part}" for k, part in enumerate(parts, start=1)]
    Path("learned.csv").write_text("\n".join([f"smiles,{STRANGE},part", *rows]))
    name, *_ = command.split()
    monkeypatch.setattr("sys.argv", ["graphxai", name, *map(str, COMMANDS[command])])
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", AnyCodePage() if err is None else err)
    before = set(folder.rglob("*"))
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 0
    files = {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path not in before
    }
    monkeypatch.chdir(folder.parent)
    shutil.rmtree(folder)
    return files


@pytest.fixture
def quick(monkeypatch, small_networks, small_figures):
    """Train small networks, draw small figures, explain molecules alone in the demo, serve nothing.

    What a run says of its seconds is no result, and stands still.
    """
    for name in ("_every_model", "_digits"):
        monkeypatch.setattr(f"graphxai.cli.demo.{name}", lambda *_: [])
    monkeypatch.setattr("uvicorn.Server.run", lambda server, sockets: None)
    monkeypatch.setattr("graphxai.evaluation.measure.perf_counter", lambda: 0.0)
    monkeypatch.setattr("time.process_time", lambda: 0.0)


@pytest.mark.parametrize("command", COMMANDS)
def test_files_are_the_same_to_the_byte_on_every_terminal(command, tmp_path, monkeypatch, quick):
    utf8, unread = io.TextIOWrapper(io.BytesIO(), encoding="utf-8"), of_nobody()
    expected, *others = (
        files_after(command, tmp_path / "work", monkeypatch, out, err)
        for out, err in ((utf8, None), (AnyCodePage(), None), (unread, unread))
    )
    assert command in PRINT_ALONE or expected
    for files in others:
        assert files == expected


def test_every_command_is_tried():
    assert {name.split()[0] for name in COMMANDS} == {*get_command(cli.app).commands}


def test_what_a_code_page_lacks_is_escaped(tmp_path, monkeypatch):
    words = AnyCodePage()  # about the run, on standard error
    files_after("explain", tmp_path / "work", monkeypatch, AnyCodePage(), words)
    text = words.buffer.getvalue().decode("cp437")
    assert r"written: \u03b2-\u6f22\u5b57 ≥ é\U0001f600.svg" in text


def test_a_table_on_standard_output_is_utf8_as_in_a_file(tmp_path, monkeypatch):
    out = AnyCodePage()
    monkeypatch.setitem(COMMANDS, "predict", COMMANDS["predict a table"][:-2])
    files_after("predict", tmp_path / "work", monkeypatch, out)
    written = files_after("predict a table", tmp_path / "work", monkeypatch, AnyCodePage())
    assert out.buffer.getvalue() == written["predicted.csv"]


def test_a_table_that_nobody_reads_ends_the_command_in_one_word(tmp_path):
    (tmp_path / "t.csv").write_text("smiles\nCO\n")
    save_checkpoint(random_graphormer(), tmp_path / "toy")
    command = [sys.executable, "-m", "graphxai", "predict", "t.csv", "--model", "toy"]
    done = subprocess.run(command, cwd=tmp_path, stdout=of_nobody(), stderr=subprocess.PIPE)
    assert done.returncode == 1
    assert done.stderr == b""
