"""SIGTERM and Ctrl-C end the command line at once, each with a status and words of its own."""

import os
import signal
import subprocess
import sys
from contextlib import suppress

import pytest

import graphxai as gx
from graphxai.cli.terminal import heeding_signals

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals")


@pytest.fixture
def terminated(monkeypatch):
    """Send SIGTERM to this process when a molecule is predicted."""

    def encode(*_, **__):
        os.kill(os.getpid(), signal.SIGTERM)
        raise RuntimeError("a library does not notice, and fails because of it")

    monkeypatch.setattr("graphxai.models.graphormer.Graphormer.encode", encode)


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["explain", "CCO"], "continue a table, benchmark or training run with --resume."),
        (["report", "t.csv"], "repeat the command to start it again."),
    ],
)
def test_a_terminated_command_says_how_to_go_on(
    arguments, hint, run, terminated, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.csv").write_text("smiles\nCCO\n")
    before = signal.getsignal(signal.SIGTERM)
    code, _, error = run(*arguments)
    assert code == 143
    assert error.splitlines()[-1] == f"terminated; {hint}"
    assert signal.getsignal(signal.SIGTERM) == before
    assert [path.name for path in tmp_path.iterdir()] == ["t.csv"]


def test_a_server_that_ends_by_itself_on_sigterm_has_an_error_status_too(run, monkeypatch):
    pytest.importorskip("uvicorn", reason="the extra `app` is not installed")

    def serve(server, sockets):
        with suppress(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr("uvicorn.Server.run", serve)
    assert run("app", "--no-browser")[0] == 143


def test_a_second_signal_does_not_disturb_the_tidying_up():
    tidied = []

    def work():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)
            tidied.append("all of it")

    with heeding_signals() as termination, pytest.raises(KeyboardInterrupt):
        work()
    assert tidied
    assert termination.arrived


def test_the_status_is_that_of_sigterm_wherever_it_arrives(tmp_path):
    """After a plain KeyboardInterrupt in a text that `exec` runs, Python would end by SIGINT."""
    code = (
        "import os, signal, sys\n"
        "from graphxai.cli.terminal import heeding_signals\n"
        "with heeding_signals() as termination:\n"
        "    try:\n"
        "        exec('os.kill(os.getpid(), signal.SIGTERM)\\nwhile True: pass')\n"
        "    except KeyboardInterrupt:\n"
        "        sys.exit(termination.exit(True).code)\n"
    )
    root = os.path.dirname(os.path.dirname(gx.__file__))
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": root}, timeout=60
    )
    assert done.returncode == 143


ENDLESS = """
import os, signal, sys, threading, time
from graphxai.cli import main as cli

def endless(*args, **kwargs):
    print("at work", flush=True)
    {body}

type(cli.app).__call__ = endless
sys.argv = ["graphxai", "explain", "CCO"]
cli.program()
"""
LOST = "while True:\n        try: time.sleep(60)\n        except KeyboardInterrupt: pass"
THREAD = "threading.Thread(target=time.sleep, args=(60,)).start(); time.sleep(60)"
FAILED = """try: time.sleep(60)
    except KeyboardInterrupt: raise SystemError('from a library') from None"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
@pytest.mark.parametrize(
    "body", ["time.sleep(60)", THREAD, FAILED, LOST], ids=["plain", "thread", "failed", "lost"]
)
def test_a_program_ends_soon_whatever_a_library_does(body, number):
    """A library may lose the exception, turn it into another, or leave a thread behind."""
    root = os.path.dirname(os.path.dirname(gx.__file__))
    process = subprocess.Popen(
        [sys.executable, "-c", ENDLESS.format(body=body)],
        env={**os.environ, "PYTHONPATH": root},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "at work\n"
    process.send_signal(number)
    _, error = process.communicate(timeout=30)  # it would take 60 s by itself
    assert process.returncode == 128 + number
    word = "interrupted" if number == signal.SIGINT else "terminated"
    assert error.splitlines()[-1].startswith(f"{word}; ")
