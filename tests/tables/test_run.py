"""A run over a table loses no row, whatever the rows hold, and nothing that others wrote."""

import csv
import errno
import gc
import io
import json
import math
import os
import platform
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from graphxai.datasets.molecules import MAX_QUOTED
from graphxai.explainers import get_explainer
from graphxai.explanation.files import one_line
from graphxai.models.graphormer import StructureEncoding, save_checkpoint
from graphxai.runtime.writing import exclusive_lock
from graphxai.tables import batches
from graphxai.tables.batches import ExplainBatch
from graphxai.tables.files import guarded
from graphxai.tables.rows import ExplainFrame
from graphxai.tables.run import explain_table, predict_table
from graphxai.tables.settings import Pictures
from toy import random_graphormer


@pytest.fixture(scope="module")
def model():
    return random_graphormer(num_layers=1)


def write_table(path, *smiles):
    path.write_text("smiles\n" + "".join(f"{text}\n" for text in smiles), encoding="utf-8")
    return path


def read(path):
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def explained(model, table, out, **options):
    return explain_table(model, table, out, get_explainer("lrp"), **options)


def contents(folder):
    return {p.name: p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize("run", ["predicted", "explained"])
def test_no_row_of_a_long_table_waits_for_a_search_for_garbage(model, tmp_path, run):
    """The command line searches rarely, so memory would grow by each row until then."""
    garbage = {}
    for count in (4, 4, 40):  # the first run also prepares what later ones use
        table = write_table(tmp_path / "t.csv", *("C" * k + "O" for k in range(1, count + 1)))
        gc.collect()
        gc.disable()
        try:
            if run == "predicted":
                predict_table(model, table, io.StringIO())
            else:
                explained(model, table, tmp_path / f"{len(garbage)}-{count}")
            garbage[count] = gc.collect()
        finally:
            gc.enable()
    assert garbage[40] == garbage[4]


def test_a_structure_that_cannot_be_written_is_rejected_and_the_run_goes_on(model, tmp_path):
    table = write_table(tmp_path / "t.csv", "CCO", "C[*+]", "CCN")
    options = {"formats": ["sdf"], "pictures": Pictures()}
    counts = explained(model, table, tmp_path / "out", **options)
    assert (counts.done, counts.rejected) == (2, 1)
    (refused,) = read(tmp_path / "out" / "rejected.csv")
    assert refused["row"] == "2"
    assert refused["reason"].startswith("cannot be written: ")
    assert [row["row"] for row in read(tmp_path / "out" / "explanations.csv")] == ["1", "3"]
    assert (tmp_path / "out" / "explanations.sdf").read_text().count("$$$$") == 2
    assert explained(model, table, tmp_path / "out", resume=True, **options).earlier == 3


@pytest.mark.parametrize(
    ("place", "step"), [(StructureEncoding, "forward"), (batches, "explain_prepared")]
)
def test_a_row_that_fails_at_any_step_is_rejected_alone(model, tmp_path, monkeypatch, place, step):
    whole = getattr(place, step)

    def failing(model, value, *rest, **options):
        graphs = [item.data for _, item in value] if isinstance(value, list) else [value]
        if any(not isinstance(graph, str) and graph.num_nodes == 5 for graph in graphs):
            raise RuntimeError("Pre-condition\n\x1b[31mViolation")
        return whole(model, value, *rest, **options)

    table = write_table(tmp_path / "t.csv", "C", "CC", "CCCCC", "CCC", "CCCC")
    monkeypatch.setattr(place, step, failing)
    counts = explained(model, table, tmp_path / "out")
    assert (counts.done, counts.rejected) == (4, 1)
    (refused,) = read(tmp_path / "out" / "rejected.csv")
    assert refused == {
        "row": "3",
        "smiles": "CCCCC",
        "reason": one_line("Pre-condition \x1b[31mViolation"),
    }


def test_an_error_of_every_row_stops_a_run_before_its_first_row(model, tmp_path):
    table = write_table(tmp_path / "t.csv", "CCO", "CCN")
    with pytest.raises(ValueError, match="toxic"):
        explained(model, table, tmp_path / "out", target="toxic")
    assert explained(model, table, tmp_path / "out").done == 2


def test_results_that_are_not_finite_are_rejected(tmp_path):
    model = random_graphormer(num_layers=1)
    model.node_embedding.table.data[5] = 1e38  # the row of carbon
    table = write_table(tmp_path / "t.csv", "O", "CCO", "N")
    counts = explained(model, table, tmp_path / "out")
    assert (counts.done, counts.rejected) == (2, 1)
    assert "not a finite number" in read(tmp_path / "out" / "rejected.csv")[0]["reason"]
    with (tmp_path / "p.csv").open("w") as out:
        counts, refused = predict_table(model, table, out)
    assert (counts.done, [row.row for row in refused]) == (2, [2])
    assert "nan" not in (tmp_path / "p.csv").read_text()


def test_a_resumed_run_equals_an_uninterrupted_one_byte_for_byte(
    model, smiles, tmp_path, monkeypatch
):
    monkeypatch.setattr("graphxai.tables.rows.CHUNK", 5)
    table = write_table(tmp_path / "t.csv", *smiles[:6], "C1CC", *smiles[6:9], "C[*+]", "CCO")
    options = {"formats": ["sdf"], "pictures": Pictures()}
    explained(model, table, tmp_path / "whole", **options)
    whole = contents(tmp_path / "whole")
    explained(model, table, tmp_path / "cut", **options)
    for name in ("explanations.csv", "rejected.csv"):
        path = tmp_path / "cut" / name
        lines = whole[name].splitlines(keepends=True)
        path.write_bytes(b"".join(lines[: len(lines) // 2]) + b"7,CC")  # killed while writing
    told: list[int] = []
    options["progress"] = told.append
    earlier = explained(model, table, tmp_path / "cut", resume=True, **options).earlier
    assert contents(tmp_path / "cut") == whole
    assert told[0] > earlier > 0  # so that starting does not count as the pace of new rows
    assert sum(told) == len(table.read_text().splitlines()) - 1


def test_a_run_is_not_resumed_under_other_versions(model, tmp_path, monkeypatch):
    table = write_table(tmp_path / "t.csv", "CCO", "CCN")
    explained(model, table, tmp_path / "out")
    stored = json.loads((tmp_path / "out" / "run.json").read_text())["versions"]
    assert stored["torch"] == torch.__version__
    assert stored["numpy"] == np.__version__
    assert stored["python"] == platform.python_version()
    later = stored | {"rdkit": "2099.9.1"}
    monkeypatch.setattr("graphxai.tables.run.versions", lambda: later)
    told = f"versions.rdkit = {stored['rdkit']!r}, not '2099.9.1'"
    with pytest.raises(ValueError, match=re.escape(told)):
        explained(model, table, tmp_path / "out", resume=True)


def test_files_that_no_run_wrote_are_kept(model, tmp_path):
    table = write_table(tmp_path / "t.csv", "CCO")
    for name in ("explanations.csv", "rejected.csv", "explanations.sdf", "run.json"):
        folder = tmp_path / name.replace(".", "-")
        folder.mkdir()
        (folder / name).write_text("mine, without a line end")
        for resume in (False, True):
            with pytest.raises((FileExistsError, ValueError), match=r"choose another folder"):
                explained(model, table, folder, resume=resume)
        assert (folder / name).read_text() == "mine, without a line end"
        assert contents(folder).keys() == {name}


def test_two_runs_into_one_folder_are_refused_with_who_runs(model, tmp_path):
    table = write_table(tmp_path / "t.csv", "CCO")
    (tmp_path / "out").mkdir()
    with (
        exclusive_lock(tmp_path / "out"),
        pytest.raises(OSError, match=rf"process {os.getpid()} since 2\d\d\d-"),
    ):
        explained(model, table, tmp_path / "out")
    assert explained(model, table, tmp_path / "out").done == 1
    assert not [p for p in (tmp_path / "out").iterdir() if p.name.startswith(".")]


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_a_killed_run_leaves_no_lock(tmp_path):
    code = f"""
        import os, signal
        from graphxai.runtime.writing import exclusive_lock
        with exclusive_lock({str(tmp_path)!r}):
            os.kill(os.getpid(), signal.SIGKILL)
    """
    killed = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=False)
    assert killed.returncode == -signal.SIGKILL
    with exclusive_lock(tmp_path):
        pass


def test_a_cell_is_refused_by_its_length_and_quoted_in_short(model, tmp_path):
    table = write_table(tmp_path / "t.csv", "C" * 2_000_000, "CCO")
    assert explained(model, table, tmp_path / "out").rejected == 1
    (refused,) = read(tmp_path / "out" / "rejected.csv")
    assert "has 2,000,000 characters, more than the limit of 20,000" in refused["reason"]
    assert len(refused["smiles"]) == MAX_QUOTED
    assert len(refused["reason"]) < 200


OWN = ("A  1", "A 1", "a\u200cb", "x\u3000y", "\xa0z ", "two\nlines", "r\r\nn", 'a "b"', "\rr")


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_cells_of_the_user_come_back_as_they_were(model, tmp_path, suffix):
    """White space, line breaks and joiners, in names and in other columns."""
    table = tmp_path / "t.csv"
    with table.open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file, quoting=csv.QUOTE_ALL)
        rows.writerows([("ID", "smiles", "note"), *((own, "CCO", own) for own in OWN)])
    out = tmp_path / f"p.{suffix}"
    predict_table(model, table, out, name_column="ID")
    read_back = pd.read_parquet(out) if suffix == "parquet" else read(out)
    rows = read_back.to_dict("records") if suffix == "parquet" else read_back
    assert [row["ID"] for row in rows] == list(OWN)
    assert [row["input note"] for row in rows] == list(OWN)  # predictions have a note of their own


@pytest.mark.parametrize("suffix", ["csv", "tsv", "parquet"])
def test_structures_come_back_with_the_white_space_around_them(model, tmp_path, suffix):
    """Of rows with a result and of rejected ones, alone, in workers and in frames as on Ray."""
    good, bad = [" CCO ", "c1ccccc1O\t", "\xa0CC(C)=O", "CC\n"], [" C1CC "]
    table, out, refused = tmp_path / "t.csv", tmp_path / f"p.{suffix}", io.StringIO()
    with table.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([["smiles"], *([cell] for cell in good + bad)])
    predict_table(model, table, out, rejected=refused)
    tabs = {"sep": "\t"} if suffix == "tsv" else {}
    read_back = pd.read_parquet(out) if suffix == "parquet" else pd.read_csv(out, **tabs)
    assert read_back.smiles.tolist() == good
    assert [row["smiles"] for row in csv.DictReader(io.StringIO(refused.getvalue()))] == bad
    rows: list[dict] = []
    predict_table(model, table, rows, workers=2)
    assert [row["smiles"] for row in rows] == good
    explained(model, table, tmp_path / "run")
    assert [row["smiles"] for row in read(tmp_path / "run" / "explanations.csv")] == good
    assert [row["smiles"] for row in read(tmp_path / "run" / "rejected.csv")] == bad
    frame = ExplainFrame(ExplainBatch(model), "smiles")(pd.DataFrame({"smiles": good + bad}))
    assert frame.smiles.tolist() == good + bad


def test_a_run_cut_within_a_cell_of_several_lines_equals_a_whole_one(model, tmp_path):
    table = tmp_path / "t.csv"
    table.write_text('ID,smiles\na,CCO\n"two\nlines",CCN\n"three\n\nlines",CC\n')
    options = {"name_column": "ID", "formats": ["sdf"]}
    explained(model, table, tmp_path / "whole", **options)
    whole = contents(tmp_path / "whole")
    explained(model, table, tmp_path / "cut", **options)
    path = tmp_path / "cut" / "explanations.csv"
    place = whole["explanations.csv"].index(b"three\n") + len(b"three\n")
    path.write_bytes(whole["explanations.csv"][:place])
    explained(model, table, tmp_path / "cut", resume=True, **options)
    assert contents(tmp_path / "cut") == whole


def test_text_that_a_spreadsheet_takes_for_a_formula_can_be_guarded(model, tmp_path):
    table = tmp_path / "t.csv"
    table.write_text('ID,smiles\n=1+1,C\n-CN,C\n"@x",CC\nplain,CCC\n-4,C1\n', encoding="utf-8")
    explained(model, table, tmp_path / "out", name_column="ID", excel_safe=True)
    rows = read(tmp_path / "out" / "explanations.csv")
    assert [row["ID"] for row in rows] == ["'=1+1", "'-CN", "'@x", "plain"]
    for row in rows:
        relevance = [*map(float, row["relevance"].split())]
        step = 10.0 ** (math.floor(math.log10(max(map(abs, relevance)))) - 4)  # of five digits
        most = (len(relevance) + 1) * step / 2
        assert sum(relevance) == pytest.approx(float(row["nodes"]), abs=most)
    assert read(tmp_path / "out" / "rejected.csv")[0]["ID"] == "-4"  # a number is no formula


@pytest.mark.parametrize("first", ["=", "+", "-", "@", "\t", "\r"])
def test_every_first_character_of_a_formula_is_guarded(first):
    """OWASP lists them; a program may drop a leading TAB or CR and evaluate what follows."""
    cell = f"{first}=cmd|' /C calc'!A0"
    assert guarded({"name": cell, "pIC50": "-4.2"}) == {"name": f"'{cell}", "pIC50": "-4.2"}


def limited(limit, code):
    """Run code in a process that cannot make a file larger than `limit` bytes."""
    head = "import resource, signal, sys\nsignal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
    head += f"resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))\n"
    return subprocess.run(
        [sys.executable, "-c", head + textwrap.dedent(code)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )


@pytest.mark.skipif(os.name != "posix", reason="limits")
def test_a_limit_names_the_file_and_leaves_no_half_file(tmp_path):
    (tmp_path / "old.csv").write_text("old")
    done = limited(
        1000,
        f"""
        from pathlib import Path
        from graphxai.runtime.writing import Appended, write_whole
        folder = Path({str(tmp_path)!r})
        grown = Appended(folder / "grown.csv")
        grown.write("a" * 900)
        for write in (
            lambda: grown.write("b" * 900),
            lambda: write_whole(folder / "old.csv", "c" * 5000),
            lambda: write_whole(folder / "new.csv", "c" * 5000),
        ):
            try:
                write()
            except OSError as error:
                print(error)
        """,
    )
    messages = done.stdout.splitlines()
    assert [Path(line.split(" cannot be written")[0]).name for line in messages] == [
        "grown.csv",
        "old.csv",
        "new.csv",
    ], done.stderr
    assert contents(tmp_path) == {"grown.csv": b"a" * 900, "old.csv": b"old"}


def test_what_counts_as_written_is_synced(model, tmp_path, monkeypatch):
    synced = []
    sync = os.fsync
    monkeypatch.setattr(
        os, "fsync", lambda file: (synced.append(os.fstat(file).st_ino), sync(file))
    )
    table = write_table(tmp_path / "t.csv", "CCO", "CCN")
    out = tmp_path / "out"
    explained(model, table, out, formats=["sdf"], pictures=Pictures())
    names = ["pictures/000001.svg", "pictures/000002.svg", "explanations.sdf", "explanations.csv"]
    last = [len(synced) - synced[::-1].index((out / name).stat().st_ino) for name in names]
    assert last == sorted(last)  # a row only counts when the files it names are safe


def test_the_pictures_of_a_chunk_are_synced_together(model, tmp_path, monkeypatch):
    synced = []
    sync = os.fsync
    monkeypatch.setattr(
        os, "fsync", lambda file: (synced.append(os.fstat(file).st_ino), sync(file))
    )
    table = write_table(tmp_path / "t.csv", "CCO", "CCN", "CCC")
    explained(model, table, tmp_path / "out", pictures=Pictures())
    pictures = tmp_path / "out" / "pictures"
    assert synced.count(pictures.stat().st_ino) == 1
    assert {path.stat().st_ino for path in pictures.iterdir()} <= set(synced)


def test_appended_rows_are_synced_by_the_second_and_survive_a_kill(tmp_path):
    code = """
        import os, signal, sys
        from pathlib import Path
        from graphxai.runtime.writing import Appended
        synced = []
        sync = os.fsync
        os.fsync = lambda file: (synced.append(file), sync(file))
        with Appended(Path(sys.argv[1])) as grown:
            for row in range(1000):
                grown.write(f"{row}\\n")
            print(len(synced), flush=True)
            if sys.argv[2] == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
        print(len(synced))
    """
    for how in ("leave", "kill"):
        path = tmp_path / how
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code), path, how],
            capture_output=True,
            text=True,
            check=False,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        )
        assert path.read_text() == "".join(f"{row}\n" for row in range(1000)), done.stderr
        before, *after = map(int, done.stdout.split())
        assert before < 100
        assert after == ([before + 1] if how == "leave" else [])


def test_a_report_lists_rows_that_cannot_be_drawn(model, tmp_path, monkeypatch):
    from graphxai.tables.report import cards, report

    whole = cards.molecule_card

    def failing(name, row, *rest):
        if row == 2:
            raise RuntimeError("Bad bond type")
        return whole(name, row, *rest)

    monkeypatch.setattr(cards, "molecule_card", failing)
    path = report(model, ["CCO", "CCN", "C1"], tmp_path / "r.html", detailed=0)
    page = path.read_text()
    data = json.loads(page.partition('type="application/json"')[2].split(">", 1)[1].split("<")[0])
    assert sorted(row for row, *_ in data["rejected"]) == [2, 3]


def test_a_checkpoint_is_only_replaced_whole(tmp_path, monkeypatch):
    folder = save_checkpoint(random_graphormer(num_layers=1), tmp_path / "m")
    before = contents(folder)

    def full(file):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"model\.safetensors cannot be written: No space left"):
        save_checkpoint(random_graphormer(num_layers=2), folder)
    assert contents(folder) == before
