"""Python and the command line measure the same graphs alike, with labels and without."""

import csv
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import graphxai as gx
from graphxai.cli.main import app

SMILES = ["CC(=O)Nc1ccc(O)cc1", "NC1=NC(C)(c2ccccc2)CO1", "CCN(CC)CCO", "Cc1ccccc1C#N"]
LABELS = [0, 1, 1, 0]
METHODS = ["lrp", "gae", "random"]


@pytest.mark.parametrize("labelled", [True, False])
def test_both_doors_give_the_same_table(tmp_path: Path, labelled: bool) -> None:
    table, steps = tmp_path / "four.csv", 5
    with table.open("w", newline="") as file:
        csv.writer(file).writerows([("smiles", "active"), *zip(SMILES, LABELS, strict=True)])
    model = gx.load("bace")
    words = ["benchmark", str(model.origin.folder), str(table), "--methods", ",".join(METHODS)]
    words += ["--label-column", "active"] if labelled else []
    out = tmp_path / "out"
    result = CliRunner().invoke(app, [*words, "--steps", str(steps), "--out", str(out)])
    assert result.exit_code == 0, result.output
    by_command = json.loads((out / "summary.json").read_text())["results"]["mask"]
    assert {"layers.csv", "layers.png", "layers.svg"} <= {path.name for path in out.iterdir()}
    assert "passes" in result.output
    assert "| 1 forward, 1 backward |" in (out / "summary.md").read_text()
    assert "1 forward, 1 backward" in (out / "table.csv").read_text()
    labels = LABELS if labelled else None
    report = gx.evaluate(model, SMILES, METHODS, labels=labels, steps=steps, progress=False)
    assert set(by_command) == set(report.metrics())
    for metric, methods in by_command.items():
        intervals = report.intervals(metric)
        for name in METHODS:
            assert methods[name]["mean"] == pytest.approx(intervals[name].mean, rel=1e-12), metric
