"""A table of scores has all its numbers, however narrow the terminal and long the names are."""

import json
import re
from pathlib import Path

import pytest

import graphxai as gx
from graphxai.cli.train import print_scores
from graphxai.learning.card import score_tables

PRETRAINED = Path(gx.__file__).parents[1] / "models" / "graphormer" / "pretrained"
SCORE = re.compile(r"[+-]?\d\.\d{3}")


def tables_of(name):
    """Return the tables of a bundled model, with names as long as those of assays."""
    scores = json.loads((PRETRAINED / name / "scores.json").read_text())["scores"]
    long_names = {
        f"{target}, agonism, HepG2, 24 h, % of control": s for target, s in scores.items()
    }
    return [
        (title, ["test", *header], rows) for (title, *header), *rows in score_tables(long_names)
    ]


@pytest.mark.parametrize("width", [60, 80, 100, 200])
@pytest.mark.parametrize("name", ["tox21", "solubility", "hiv"])
def test_no_score_is_cut(name, width, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(width))
    for table in tables_of(name):
        with_intervals = print_scores(*table)
        printed = capsys.readouterr().out
        for row in table[2]:
            for cell in row[1:]:
                shown = SCORE.findall(cell)
                assert set(shown if with_intervals else shown[:1]) <= set(SCORE.findall(printed))
        assert "…" not in printed
        assert max(map(len, printed.splitlines())) <= width
        assert len(SCORE.findall(printed)) == sum(
            len(SCORE.findall(cell)) if with_intervals else bool(SCORE.search(cell))
            for row in table[2]
            for cell in row[1:]
        )


def test_intervals_are_left_out_only_where_they_do_not_fit(monkeypatch, capsys):
    ((title, header, rows),) = tables_of("hiv")
    beginning, *_ = rows[0][1].split(" to")  # a score and the lower end of its interval
    for width, fits in ((60, False), (80, True), (200, True)):
        monkeypatch.setenv("COLUMNS", str(width))
        assert print_scores(title, header, rows) is fits
        assert (beginning in capsys.readouterr().out) is fits
