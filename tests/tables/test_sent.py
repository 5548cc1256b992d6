"""What reports and benchmarks send to other processes gives the same there."""

import pickle
from dataclasses import replace

import pytest

import graphxai as gx
from graphxai.evaluation import runs
from graphxai.runtime import workers
from graphxai.runtime.worker_process import as_bytes
from graphxai.runtime.workers import PieceResult
from graphxai.tables.report import cards, full_cards, report
from toy import random_graphormer

SMILES = ["CCO", "C1CC", "c1ccccc1O", "CC(=O)Oc1ccccc1C(=O)O", "CN", "OCCO"]


def rebuilt(value):
    """Return a value as another process rebuilds it."""
    return pickle.loads(as_bytes(value))


@pytest.fixture(autouse=True)
def near(monkeypatch):
    """Send everything to this process, so that tests need not start another."""

    def sent(function, pieces, count):
        there = rebuilt(function)
        for piece in pieces:
            yield [PieceResult(piece, range(len(piece)), rebuilt(there(rebuilt(piece))))]

    monkeypatch.setattr(workers, "in_workers", sent)


@pytest.fixture(scope="module")
def model():
    return random_graphormer(num_layers=1)


def test_a_benchmark_has_the_same_values(model, monkeypatch):
    monkeypatch.setattr(runs, "CHUNK", 2)
    by_one_process, many = (gx.evaluate(model, SMILES, ["lrp"], steps=3, workers=k) for k in (1, 2))
    lines = [
        [replace(unit, seconds=0).to_json() for unit in run.units] for run in (many, by_one_process)
    ]
    assert lines[0] == lines[1]
    assert many.rejected == by_one_process.rejected


def test_a_report_is_the_same_page(model, monkeypatch, tmp_path):
    monkeypatch.setattr(cards, "CHUNK", 2)
    monkeypatch.setattr(full_cards, "MOLECULES_AT_A_TIME", 2)
    pages = [
        report(model, SMILES, tmp_path / f"{k}.html", compared=("cam",), workers=k) for k in (1, 2)
    ]
    assert pages[0].read_bytes() == pages[1].read_bytes()
