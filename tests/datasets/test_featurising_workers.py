"""Featurising in several processes gives the same graphs, and leaves no process behind."""

import itertools
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from rdkit import Chem
from torch_geometric.data import Data

import graphxai
from graphxai.datasets.features import featurise
from graphxai.datasets.molecules import (
    MoleculeError,
    iter_table,
    load_bace,
    molecule_to_data,
    molecules_to_data,
    read_table,
)
from graphxai.runtime import worker_process

ODD = [
    "CN1C(=N)N[C@](C)(CS1(=O)=O)c1cc(NC(=O)c2ccc(F)cn2)ccc1F",  # verubecestat
    "",
    "  CCO ",
    "C",
    "C1CC",
    "[Na+].[O-]C(=O)c1ccccc1.O",
    "[2H]C([2H])([2H])[13CH2]O",
    "C" * 255,
    "C" * 256 + "/C=C/C",
    "C" * 501,
    "CCO>>CC=O",
    "CCπ",
    "F/C=C/[C@H](Cl)/C=C\\[C@@](N)(O)C",
    "[Te-6].[U+6].[C+127]",
    "CC* |$;;R1$|",
]
KEYS = ("x", "edge_index", "edge_attr")
GIVEN = Chem.RenumberAtoms(Chem.MolFromSmiles("CCO"), [2, 0, 1])


def assert_same(graph: Data | MoleculeError, expected: Data | MoleculeError) -> None:
    assert type(graph) is type(expected)
    if isinstance(expected, MoleculeError):
        assert str(graph) == str(expected)
        return
    assert graph.keys() == expected.keys()
    assert (graph.smiles, graph.vocabulary) == (expected.smiles, expected.vocabulary)
    for key in KEYS:
        tensor, expected_tensor = graph[key], expected[key]
        assert torch.equal(tensor, expected_tensor), expected.smiles
        assert tensor.dtype == expected_tensor.dtype == torch.int64
        assert tensor.is_contiguous()
        assert tensor.numpy().flags.writeable
        assert tensor.untyped_storage().nbytes() == tensor.numel() * 8  # no other graph's beside it


@pytest.mark.parametrize("smiles", [[], [""], ["C1CC", ""], ["C"]])
def test_a_chunk_without_molecules_or_bonds_comes_back_from_a_worker(smiles: list[str]) -> None:
    graphs = list(molecules_to_data(smiles, workers=2))
    for graph, expected in zip(graphs, molecules_to_data(smiles), strict=True):
        assert_same(graph, expected)


def test_no_process_starts_unless_workers_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = []
    running = worker_process.WorkerProcess._running
    monkeypatch.setattr(
        worker_process.WorkerProcess, "_running", lambda self: started.append(1) or running(self)
    )
    table = tmp_path / "table.csv"
    table.write_text("smiles\nCCO\nCCN\n")
    ways = (partial(read_table, table), lambda **options: list(iter_table(table, **options)))
    for read in (*ways, lambda **options: list(molecules_to_data(["CCO", "CCN"], **options))):
        read()
        assert not started
        read(workers=2)
        assert started
        started.clear()


def test_drugs_and_odd_molecules_come_out_the_same_and_in_order(
    data_folder: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    smiles = [graph.smiles for graph in load_bace(data_folder, download=False)[::4]]
    molecules = [*smiles[:100], GIVEN, *ODD, Chem.Mol(), *smiles[100:], None, *ODD[::-1], GIVEN]
    expected = list(molecules_to_data(molecules, canonical=True))
    graphs = list(molecules_to_data(molecules, canonical=True, workers=2))
    assert len(graphs) == len(molecules)
    for from_workers, other in zip(graphs, expected, strict=True):
        assert_same(from_workers, other)
    assert [a.GetSymbol() for a in graphs[-1].mol.GetAtoms()] == ["O", "C", "C"]
    assert graphs[-1].mol is not GIVEN
    assert capfd.readouterr() == ("", "")


def test_features_from_workers_equal_those_of_ogb() -> None:
    from ogb.utils.mol import smiles2graph

    smiles = [text for text in ODD if isinstance(next(featurise([text])), tuple)]
    smiles = [text for text in smiles if "|" not in text] * 20
    for text, data in zip(smiles, molecules_to_data(smiles, workers=2), strict=True):
        graph = smiles2graph(text)
        assert np.array_equal(data.x, graph["node_feat"])
        assert np.array_equal(data.edge_index, graph["edge_index"])
        assert np.array_equal(data.edge_attr, graph["edge_feat"])


def test_the_limit_on_atoms_reaches_the_workers() -> None:
    graphs = list(molecules_to_data(["CCO", "CCCO"], max_atoms=3, workers=2))
    assert graphs[0].num_nodes == 3
    assert "4 atoms, more than the limit of 3" in str(graphs[1])


def test_a_table_is_read_by_workers(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    rows = [f"{'C' * (1 + i % 20)}O,{i}" for i in range(300)]
    rows[199], rows[200] = "C1CC,7", "CCO,high"
    path.write_text("\n".join(["smiles,value", *rows]) + "\n")
    graphs, rejected = read_table(path, label_columns=["value"], workers=2)
    expected, left_out = read_table(path, label_columns=["value"])
    assert rejected == left_out
    assert [item.row for item in rejected] == [200, 201]
    for item, other in zip(graphs, expected, strict=True):
        assert_same(item, other)
        assert (item.row, item.y) == (other.row, other.y)
    path.write_text("\n".join(["smiles,note", *["CCO,x"] * 200, 'C,"open', "C,x"]) + "\n")
    with pytest.raises(ValueError, match="a quote opened in line 202 is never closed"):
        list(iter_table(path, workers=2))


def counted(source: Iterator[str]) -> tuple[Iterator[str], list[int]]:
    """Return the source, and a list that says how many items were taken from it."""
    taken = [0]

    def take() -> Iterator[str]:
        for item in source:
            taken[0] += 1
            yield item

    return take(), taken


def test_an_endless_source_is_read_as_needed() -> None:
    source, taken = counted("C" * (1 + k % 9) for k in itertools.count())
    with closing(molecules_to_data(source, workers=2)) as graphs:
        assert taken == [0]
        sizes = [graph.num_nodes for graph in itertools.islice(graphs, 1000)]
    assert sizes == [1 + k % 9 for k in range(1000)]
    assert 1000 <= taken[0] <= 1000 + 2 * 384


def test_an_error_in_the_source_keeps_its_place() -> None:
    def source() -> Iterator[str]:
        yield from ["CCO"] * 300
        raise KeyError("the disk is gone")

    graphs = []
    with pytest.raises(KeyError, match="the disk is gone"):
        graphs.extend(molecules_to_data(source(), workers=2))
    assert multiprocessing.active_children() == []


def workers_of(graphs: Iterator[Data | MoleculeError]) -> list[int]:
    """Wait until two workers have begun, and return their process ids."""
    while len(multiprocessing.active_children()) < 2:  # the second begins when the first is busy
        next(graphs)
    return [process.pid for process in multiprocessing.active_children() if process.pid]


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def ends_soon(pids: list[int]) -> bool:
    """Wait for processes to end, and return whether they did."""
    stop = time.monotonic() + 60
    while any(map(is_running, pids)) and time.monotonic() < stop:
        time.sleep(0.02)
    return not any(map(is_running, pids))


@pytest.mark.skipif(sys.platform == "win32", reason="asks for processes in the way of POSIX")
@pytest.mark.parametrize("how", ["close", "forget", "table"])
def test_leaving_early_ends_the_workers(how: str, tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("\n".join(["smiles", *["CCOc1ccccc1"] * 5000]) + "\n")
    graphs = (
        iter_table(path, workers=2)
        if how == "table"
        else molecules_to_data(itertools.repeat("CCOc1ccccc1"), workers=2)
    )
    pids = workers_of(graphs)
    assert len(pids) == 2
    if how != "forget":
        graphs.close()
    del graphs
    assert multiprocessing.active_children() == []
    assert ends_soon(pids)


@pytest.mark.skipif(sys.platform == "win32", reason="kills in the way of POSIX")
def test_a_worker_that_is_killed_is_replaced_and_loses_nothing() -> None:
    smiles = ["CCOc1ccccc1" + "C" * (k % 9) for k in range(1500)]
    graphs = molecules_to_data(smiles, workers=2)
    first = next(graphs)
    os.kill(multiprocessing.active_children()[0].pid, signal.SIGKILL)
    all_graphs = [first, *graphs]
    for graph, other in zip(all_graphs, molecules_to_data(smiles), strict=True):
        assert_same(graph, other)
    assert multiprocessing.active_children() == []


SCRIPT = """
import sys
from graphxai.datasets.features import featurise_in_workers

print("the script runs as", __name__)
found = list(featurise_in_workers(["CCO"] * 200, 2, max_atoms=500, canonical=False))
print(len(found), len(found[0].atoms))
print(__file__ == sys.argv[0], __spec__)
"""


def test_a_script_without_a_guard_runs_once(tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    root = str(Path(graphxai.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, str(path)],
        env={**os.environ, "PYTHONPATH": root},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.stderr == ""
    assert done.stdout.splitlines() == ["the script runs as __main__", "200 3", "True None"]


def test_a_worker_needs_no_torch() -> None:
    program = (
        "import sys, graphxai.datasets.features;"
        "print([name for name in ('torch', 'pandas', 'scipy') if name in sys.modules])"
    )
    root = str(Path(graphxai.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": root},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("workers", [0, -1, None, 1.5, "auto"])
def test_an_invalid_number_of_workers_is_refused(workers: object, tmp_path: Path) -> None:
    message = f"workers must be 1 .* or a number of processes, not {re.escape(repr(workers))}"
    with pytest.raises(ValueError, match=message):
        molecules_to_data(["CCO"], workers=workers)
    path = tmp_path / "table.csv"
    path.write_text("smiles\nCCO\n")
    with pytest.raises(ValueError, match=message):
        read_table(path, workers=workers)


def test_explicit_hydrogens_give_a_warning_at_the_users_line() -> None:
    source = ["CCO", Chem.AddHs(Chem.MolFromSmiles("CCO"))]
    with pytest.warns(UserWarning, match=r"use Chem\.RemoveHs") as caught:
        for _ in molecules_to_data(source, workers=2):
            pass
    assert caught[0].filename == __file__


def test_smiles_give_no_warnings_that_a_worker_could_lose() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for text in ODD:
            next(molecules_to_data([text], canonical=True))


def test_without_smiles_no_process_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(worker_process, "_serve")
    assert list(molecules_to_data([], workers=2)) == []
    for graph in molecules_to_data([GIVEN] * 3, workers=2):
        assert_same(graph, molecule_to_data(GIVEN))
