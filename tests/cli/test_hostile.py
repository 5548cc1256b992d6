"""What tables, checkpoints and arguments hold cannot harm the terminal, or files of others."""

import os
import warnings

import pandas as pd
import pytest

from graphxai.cli.terminal import printable
from graphxai.contract.tasks import Task
from graphxai.models.graphormer import save_checkpoint
from toy import random_graphormer

EVIL = "\x1b]0;x\x07\x9b31m\u202e"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    tasks = (Task(f"a{EVIL}", "binary", ("no", f"yes{EVIL}")), Task("b", "regression", unit=EVIL))
    model = random_graphormer(num_layers=1, tasks=tasks)
    return str(save_checkpoint(model, tmp_path_factory.mktemp("model") / "toy"))


def test_no_control_character_reaches_the_terminal(run, checkpoint, tmp_path, monkeypatch):
    table = tmp_path / "t.csv"
    table.write_text(f"smiles,ID\nCCO,x{EVIL}\nC1{EVIL},y\n")
    monkeypatch.chdir(tmp_path)
    model = ("--model", checkpoint)
    for arguments in (
        ("explain", "CCO", *model, "--method", "lrp,gae"),
        ("explain", f"CC{EVIL}", *model),
        ("explain", "CCO", *model, "--target", EVIL),
        ("explain", table, *model, "--out", f"out{EVIL}"),
        ("explain", table, *model, "--smiles-column", EVIL),
        ("predict", "CCO", *model),
        ("predict", table, *model, "--name-column", "ID"),
        ("predict", f"{EVIL}.csv", *model),
        ("fragments", table, *model, "--smarts", f"a{EVIL}:C", "--minimum", 1),
        (f"x{EVIL}",),
    ):
        text = "".join(run(*arguments)[1:])
        assert text
        assert printable(text) == text, arguments
    warning = warnings.formatwarning(EVIL, UserWarning, EVIL, 1)
    assert printable(warning) == warning


@pytest.mark.parametrize("command", ["explain", "predict", "fragments", "report"])
def test_a_pipe_is_refused_before_anything_is_computed(command, run, checkpoint, tmp_path):
    table = tmp_path / "t.csv"
    table.write_text("smiles\nCCO\n")
    pipe = tmp_path / ("a.csv" if command != "report" else "a.html")
    os.mkfifo(pipe)
    source = "CCO" if command == "explain" else table
    code, _, text = run(command, source, "--model", checkpoint, "--out", pipe)
    assert code == 1
    assert "is a device, a pipe or a socket: name a file" in text


def test_names_of_fragments_can_be_guarded_for_a_spreadsheet(run, checkpoint, tmp_path):
    table, out = tmp_path / "t.csv", tmp_path / "fragments.csv"
    table.write_text("smiles\nCCO\n")
    command = ("fragments", table, "--model", checkpoint, "--smarts", "=1+1:C", "--minimum", 1)
    for options, name in (((), "=1+1,"), (("--excel-safe",), "'=1+1,")):
        assert run(*command, *options, "--out", out)[0] == 0
        assert f"\n{name}" in out.read_text("utf-8-sig")
        out.unlink()


@pytest.mark.parametrize("command", ["predict", "fragments"])
def test_a_table_does_not_overwrite_itself(command, run, checkpoint, tmp_path):
    table = tmp_path / "t.csv"
    table.write_text("smiles\nCCO\n")
    (tmp_path / "link.csv").symlink_to(table)
    code, _, text = run(command, table, "--model", checkpoint, "--out", tmp_path / "link.csv")
    assert code == 1
    assert "is the input: choose another name" in text
    assert table.read_text() == "smiles\nCCO\n"


def test_predictions_can_be_guarded_for_a_spreadsheet(run, checkpoint, tmp_path):
    table = tmp_path / "t.csv"
    table.write_text("smiles,ID,=A1\nCCO,=1+1,5\n")
    options = ("--model", checkpoint, "--name-column", "ID")
    assert ",=1+1," in run("predict", table, *options)[1]
    assert ",'=1+1," in run("predict", table, *options, "--excel-safe")[1]
    # Parquet needs no guard, and is made of a guarded table all the same
    run("predict", table, *options, "--excel-safe", "--out", tmp_path / "p.parquet")
    assert pd.read_parquet(tmp_path / "p.parquet").loc[0, ["ID", "=A1"]].tolist() == ["=1+1", "5"]
    rest = ("--excel-safe", "--format", "csv,parquet", "--pictures", "none", "--out", tmp_path)
    assert run("explain", table, *options, *rest)[0] == 0
    assert pd.read_parquet(tmp_path / "explanations.parquet")["=A1"].tolist() == ["5"]


def test_a_fragment_table_skips_a_row_that_cannot_be_divided(
    run, checkpoint, tmp_path, monkeypatch
):
    from graphxai.chemistry.fragment_table import FragmentTable

    whole = FragmentTable.add

    def failing(self, parts):
        if parts.explanation.smiles == "CCN":
            raise RuntimeError("Bad bond type")
        return whole(self, parts)

    monkeypatch.setattr(FragmentTable, "add", failing)
    table = tmp_path / "t.csv"
    table.write_text("smiles\nCCO\nCCN\n")
    out = tmp_path / "f.csv"
    code, _, text = run("fragments", table, "--model", checkpoint, "--out", out, "--minimum", 1)
    assert code == 0
    assert "left out: row 2: cannot be divided: Bad bond type" in text
    assert out.exists()
