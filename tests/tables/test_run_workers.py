"""Several processes write what one writes, byte for byte, whatever happens to a process."""

import csv
import multiprocessing
import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pytest

import graphxai as gx
from graphxai.contract import batching
from graphxai.explainers import get_explainer
from graphxai.runtime.workers import LostItem, PieceResult
from graphxai.tables.run import explain_rows, explain_table, predict_table
from graphxai.tables.settings import Pictures
from toy import random_graphormer

SMILES = ["CCO", "C1CC", "c1ccccc1O", "", "CC(=O)Oc1ccccc1C(=O)O", "CN", "OCCO", "CCC", "N"]


@pytest.fixture(scope="module")
def model():
    return random_graphormer(num_layers=1)


def write_table(path, smiles):
    rows = (f"{text},compound {k}" for k, text in enumerate(smiles))
    path.write_text("smiles,name\n" + "\n".join(rows) + "\n")
    return path


def contents(folder):
    return {p.name: p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize("suffix", [".svg", ".png"])
def test_files_are_those_of_one_process(model, tmp_path, monkeypatch, suffix):
    monkeypatch.setattr("graphxai.tables.rows.CHUNK", 4)
    table = write_table(tmp_path / "t.csv", SMILES)
    options = {"pictures": Pictures(suffix), "formats": ["sdf"], "name_column": "name"}
    counts = [
        explain_table(model, table, tmp_path / str(k), get_explainer("lrp"), workers=k, **options)
        for k in (1, 2)
    ]
    assert counts[0] == counts[1]
    assert (counts[0].done, counts[0].rejected) == (7, 2)
    assert len(contents(tmp_path / "1")) == 4 + 7
    assert contents(tmp_path / "2") == contents(tmp_path / "1")
    assert multiprocessing.active_children() == []


def test_a_row_that_ends_its_process_is_refused_with_the_reason(model, tmp_path, monkeypatch):
    """How such a row is found is tested in tests/runtime/test_workers.py."""

    def dying(function, pieces, workers, total):
        for piece in pieces:
            rest = [row for row in piece if row.smiles != "CN"]
            places = [k for k, row in enumerate(piece) if row in rest]
            (place,) = set(range(len(piece))) - set(places)
            yield [
                PieceResult(rest, places, function(rest)),
                PieceResult([piece[place]], [place], LostItem("it ended its process twice")),
            ]

    table = write_table(tmp_path / "t.csv", SMILES)
    without = write_table(tmp_path / "u.csv", ["" if text == "CN" else text for text in SMILES])
    options = {"pictures": Pictures(), "name_column": "name"}
    by_one = explain_table(model, without, tmp_path / "one", get_explainer("lrp"), **options)
    monkeypatch.setattr("graphxai.tables.rows.map_in_processes", dying)
    many = explain_table(model, table, tmp_path / "many", get_explainer("lrp"), **options)
    assert (many.done, many.rejected) == (by_one.done, by_one.rejected) == (6, 3)
    files_of_many, expected = contents(tmp_path / "many"), contents(tmp_path / "one")
    files_of_many.pop("run.json"), expected.pop("run.json")  # with the hash of the table
    assert b"6,CN,compound 5,it ended its process twice" in files_of_many.pop("rejected.csv")
    expected.pop("rejected.csv")
    assert files_of_many == expected
    rows = list(explain_rows(model, table, get_explainer("lrp")))
    assert [row.row for row in rows] == list(range(1, 10))
    assert rows[5].reason == "it ended its process twice"
    with (tmp_path / "p.csv").open("w") as file:
        counts, refused = predict_table(model, table, file)
    assert counts.done == 6
    assert [row.row for row in refused] == [2, 4, 6]


def test_predictions_are_those_of_one_process(model, tmp_path, monkeypatch):
    monkeypatch.setattr("graphxai.tables.rows.CHUNK", 4)
    table = write_table(tmp_path / "t.csv", SMILES)
    refused = []
    for count in (1, 2):
        with (tmp_path / f"{count}.csv").open("w") as file:
            refused.append(predict_table(model, table, file, workers=count))
    assert refused[0] == refused[1]
    assert (tmp_path / "1.csv").read_bytes() == (tmp_path / "2.csv").read_bytes()


def test_a_list_is_explained_as_by_one_process(monkeypatch):
    monkeypatch.setattr(batching, "CHUNK", 4)
    model = gx.load("bace")
    given = gx.explain(model, ["CCO"])[0]
    inputs = [*SMILES, given.molecule]
    by_workers = {}
    for count in (1, 2):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            explained = gx.explain(
                model, inputs, "shapley_sampling", permutations=2, seed=5, workers=count
            )
        ours = [w for w in caught if w.category is UserWarning]
        by_workers[count] = explained, [(str(w.message), w.filename) for w in ours]
    (by_one_process, warned), (many, warned_there) = by_workers.values()
    assert warned == warned_there
    assert [text.partition(" was")[0] for text, _ in warned] == ["input 1", "input 3"]
    assert {file for _, file in warned} == {__file__}
    assert many[1] is None
    for a, b in zip(filter(None, by_one_process), filter(None, many), strict=True):
        assert np.array_equal(a.relevance, b.relevance)
        assert a.to_dict() == b.to_dict()  # with ledger, predictions, nearness, provenance
        if a.molecule is not None:
            assert a.svg() == b.svg()


def test_what_cannot_be_sent_is_refused_and_never_done_by_one_process_in_silence(
    model, monkeypatch
):
    monkeypatch.setattr(batching, "CHUNK", 2)

    def attribute(model, batch, target):
        return batch.mask.float()

    with pytest.raises(ValueError, match=r"cannot be sent to other processes .*give workers=1"):
        gx.explain(model, ["CCO", "CC", "CN"], attribute, workers=2)
    monkeypatch.setattr("graphxai.runtime.workers.STARTING", 0.0)
    monkeypatch.setattr("graphxai.runtime.workers.free_cores", lambda: 2)
    with pytest.warns(UserWarning, match="one process does all the work: this cannot be sent"):
        assert None not in gx.explain(model, ["CCO", "CC", "CN"], attribute, workers=None)


def test_draws_of_a_model_do_not_depend_on_the_number_of_processes(model, monkeypatch):
    """The draws of a piece follow from torch's state at the call and from the piece's place."""
    import torch

    monkeypatch.setattr(batching, "CHUNK", 2)
    drawn = []

    def drawing(model, batch, target):
        drawn.append(torch.rand(3))
        return batch.mask.float()

    for smiles in (["CCO", "CC", "CN"], ["C", "N", "CN"]):
        torch.manual_seed(3)
        gx.explain(model, smiles, drawing)
    gx.explain(model, ["CCO", "CC", "CN"], drawing)
    first, second, again, after, third, _ = drawn
    assert torch.equal(first, again)
    assert torch.equal(second, after)
    assert not torch.equal(first, second)
    assert not torch.equal(first, third)


@pytest.mark.parametrize("workers", [0, -1, 1.5])
def test_a_wrong_number_of_processes_is_refused(model, tmp_path, workers):
    with pytest.raises(ValueError, match="workers must be 1"):
        gx.explain(model, ["CCO"] * 3, workers=workers)
    table = write_table(tmp_path / "t.csv", SMILES)
    with pytest.raises(ValueError, match="workers must be 1"):
        next(explain_rows(model, table, get_explainer("lrp"), workers=workers))


MANY_ASPIRINS = ["CC(=O)Oc1ccccc1C(=O)O"] * 1400


@pytest.fixture(scope="module")
def many_aspirins(tmp_path_factory):
    """Return the files of `MANY_ASPIRINS`, explained by one process that nobody stops."""
    folder = tmp_path_factory.mktemp("aspirins")
    table = write_table(folder / "t.csv", MANY_ASPIRINS)
    explain_table(gx.load("bace"), table, folder / "whole", get_explainer("lrp"))
    return contents(folder / "whole")


@pytest.mark.skipif(os.name != "posix", reason="signals")
@pytest.mark.parametrize(
    ("stop", "status", "word"),
    [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")],
    ids=["Ctrl-C", "a scheduler"],
)
def test_a_signal_leaves_no_process_and_whole_rows_from_which_to_resume(
    stop, status, word, tmp_path, many_aspirins
):
    table = write_table(tmp_path / "t.csv", MANY_ASPIRINS)
    out = tmp_path / "out"
    command = [sys.executable, "-m", "graphxai", "explain", str(table), "--workers", "2"]
    command += ["--out", str(out), "--pictures", "none", "--model", "bace"]
    root = Path(gx.__file__).parents[1]
    with subprocess.Popen(
        command,
        env={**os.environ, "PYTHONPATH": str(root)},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=heeding_ctrl_c,
    ) as process:
        while (rows := lines(out / "explanations.csv")) < 100 and process.poll() is None:
            time.sleep(0.02)
        os.killpg(process.pid, stop)
        _, error = process.communicate(timeout=60)
    assert process.returncode == status, error
    assert error.splitlines()[-1:] == [  # a slow run reports its progress before
        f"{word}; continue a table, benchmark or training run with --resume."
    ]
    assert 100 < rows < 1400
    latest = time.monotonic() + 60
    while group_lives(process.pid) and time.monotonic() < latest:
        time.sleep(0.05)
    assert not group_lives(process.pid)
    # On a busy machine a process has no time to remove its lock, which then binds nobody.
    left = {p.name for p in out.iterdir()} - {".lock", ".lock-holder"}
    assert left == {"explanations.csv", "rejected.csv", "run.json"}
    text = (out / "explanations.csv").read_text()
    assert text.endswith("\n")
    numbers = [int(row["row"]) for row in csv.DictReader(text.splitlines())]
    assert numbers == list(range(1, len(numbers) + 1))
    explain_table(gx.load("bace"), table, out, get_explainer("lrp"), resume=True)
    assert contents(out) == many_aspirins


def heeding_ctrl_c():
    """Heed Ctrl-C, which processes ignore that a shell starts in the background."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def lines(path):
    return path.read_bytes().count(b"\n") if path.exists() else 0


def group_lives(group):
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
