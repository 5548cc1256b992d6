"""Without a terminal, long work writes a line now and then."""

import time

import pytest

from graphxai.runtime import progress


def test_a_log_file_gets_a_line_every_thirty_seconds(capsys, monkeypatch):
    clock = iter([0.0, 10.0, 31.0, 45.0, 62.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    with progress.progress_bar("fitting", 1000) as advance:
        for _ in range(4):
            advance(100)
    assert capsys.readouterr().err.splitlines() == [
        "fitting: 200 of 1,000 after 31 s, about 3 min left",
        "fitting: 400 of 1,000 after 62 s, about 2 min left",
    ]
    with progress.progress_bar("fitting", 10, show=False) as advance:
        advance(10)
    assert capsys.readouterr().err == ""


def test_a_log_file_says_after_two_seconds_how_long_the_work_takes(capsys, monkeypatch):
    clock = iter([0.0, 1.0, 2.0, 3.0, 32.0, 40.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    advance = progress.logged("explaining", 1000)
    for rows in (16, 16, 16, 912, 40):
        advance(rows)
    assert capsys.readouterr().err.splitlines() == [
        "explaining: 32 of 1,000 after 2 s, about 60 s left",
        "explaining: 960 of 1,000 after 32 s, about 1 s left",
    ]


def test_what_comes_before_the_first_items_is_not_taken_for_their_pace(capsys, monkeypatch):
    """Two processes take three seconds to start, and then there are 1,000 rows a second."""
    clock = iter([0.0, 3.0, 3.1, 5.0, 35.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    advance = progress.logged("predicting", 1_000_000)
    for rows in (16, 100, 1900, 30_000):
        advance(rows)
    assert capsys.readouterr().err.splitlines() == [
        "predicting: 2,016 of 1,000,000 after 5 s, about 17 min left",
        "predicting: 32,016 of 1,000,000 after 35 s, about 16 min left",
    ]


def test_a_first_item_that_takes_long_tells_no_pace(capsys, monkeypatch):
    clock = iter([0.0, 60.0, 120.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    advance = progress.logged("networks", 5)
    advance(1)
    advance(1)
    assert capsys.readouterr().err.splitlines() == [
        "networks: 1 of 5 after 60 s",
        "networks: 2 of 5 after 120 s, about 3 min left",
    ]


def test_short_work_leaves_a_log_file_in_peace(capsys, monkeypatch):
    clock = iter([0.0, 0.0, 5.0, 10.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    advance = progress.logged("explaining", 100)
    for rows in (0, 50, 50):
        advance(rows)
    assert capsys.readouterr().err == ""


def test_a_notebook_gets_a_bar_that_leaves_nothing(capsys, monkeypatch):
    pytest.importorskip("IPython")
    shown = []

    class Handle:
        def update(self, data, raw):
            shown.append(data["text/plain"])

    def display(data, **options):
        Handle().update(data, raw=True)
        return Handle()

    clock = iter([50.0, 51.0, 53.0, 53.1, 56.0])  # since the machine was started
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    monkeypatch.setattr("graphxai.runtime.progress.in_kernel", lambda: True)
    monkeypatch.setattr("IPython.display.display", display)
    with progress.progress_bar("fitting", 1000) as advance:
        for _ in range(4):
            advance(100)
    assert shown == ["fitting: 200 of 1,000, 16 s left", "fitting: 400 of 1,000, 10 s left", ""]
    assert capsys.readouterr().err == ""


def test_what_was_done_before_a_resume_tells_no_pace(capsys, monkeypatch):
    """900 rows are there, processes take 30 s to start, and then there are ten rows a second."""
    clock = iter([0.0, 30.0, 32.0, 60.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    advance = progress.resumed(progress.logged("explaining", 2000), 900)
    for rows in (20, 20, 280):
        advance(rows)
    assert capsys.readouterr().err.splitlines() == [
        "explaining: 920 of 2,000 after 30 s",
        "explaining: 1,220 of 2,000 after 60 s, about 78 s left",
    ]
