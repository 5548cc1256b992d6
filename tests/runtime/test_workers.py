"""Several processes give what one gives, in order, whatever happens to a process."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from contextlib import closing
from itertools import chain
from pathlib import Path

import pytest
from rdkit.Chem.rdFingerprintGenerator import GetMorganGenerator

import graphxai
from graphxai.runtime import workers
from graphxai.runtime.workers import LostItem, in_workers, map_in_processes, pieces_of
from toiling import DiesOn, DiesSending, DiesTimes, doubled, odd, slowly, strict, where

PIECES = [[1, 2], [3], [4, 5, 6], [], [7]]
posix = pytest.mark.skipif(sys.platform == "win32", reason="kills in the way of POSIX")


def results_of(parts):
    return [
        (list(part.items), part.result) for results_of_piece in parts for part in results_of_piece
    ]


def test_results_come_in_the_order_of_the_pieces():
    pieces = [[3], [0], [2], [0], [1]]
    with closing(in_workers(slowly, pieces, 2)) as parts:
        assert results_of(parts) == [(piece, piece) for piece in pieces]
    assert multiprocessing.active_children() == []


def test_processes_have_one_thread_each_and_are_other_ones():
    pids, threads, _ = zip(
        *(r for _, r in results_of(in_workers(where, [[1], [2]], 2))), strict=True
    )
    assert os.getpid() not in pids
    assert threads == ("1", "1")


def test_errors_and_warnings_come_as_if_the_work_was_done_here():
    done = []
    with (
        pytest.warns(UserWarning, match="item") as caught,
        pytest.raises(LookupError, match="no item 4"),
    ):
        done.extend(in_workers(strict, PIECES, 2))
    assert results_of(done) == [([1, 2], [1, 2]), ([3], [3])]
    assert [str(w.message) for w in caught] == [f"item {k} is odd" for k in (1, 2, 3, 4)]
    assert caught[0].filename == sys.modules["toiling"].__file__
    with pytest.raises(RuntimeError, match="OddError: 1 and 2"):
        list(in_workers(odd, [[1, 2]], 1))


@posix
def test_a_process_that_is_killed_is_replaced_and_its_piece_done_whole(tmp_path):
    work = DiesOn([5], tmp_path / "once")
    parts = results_of(in_workers(work, PIECES, 2))
    assert parts == [(piece, work(piece)) for piece in PIECES if piece]


@posix
def test_a_process_that_is_killed_while_it_sends_costs_nothing(tmp_path):
    """The pools of `concurrent.futures` and loky wait forever for the rest of the answer."""
    work = DiesSending(5, tmp_path / "once")
    assert results_of(in_workers(work, PIECES, 2)) == [(piece, piece) for piece in PIECES if piece]


@posix
def test_an_item_that_ends_its_process_twice_is_named_and_costs_no_other():
    (first, second), (rest,) = in_workers(DiesOn([5]), [[4, 5, 6], [7]], 1)
    assert first == ([4, 6], [0, 2], [(4, 2), (6, 2)])  # done together, without it
    assert second[:2] == ([5], [1])
    assert isinstance(second.result, LostItem)
    assert "ended its process twice (SIGKILL)" in second.result.reason
    assert rest.result == [(7, 1)]


LEAVING = """
from toiling import leave
from graphxai.runtime.workers import in_workers

(first, second), (rest,) = in_workers(leave, [[4, 5], [7]], 1)
print(first.result, rest.result, second.result.reason)
"""


def test_an_item_for_which_a_library_calls_exit_is_named_and_costs_no_other():
    """The process ends although its parent lives, so that nobody waits for it."""
    root = Path(graphxai.__file__).parents[1]
    path = os.pathsep.join([str(root), str(root / "tests" / "helpers")])
    done = subprocess.run(
        [sys.executable, "-c", LEAVING],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
        timeout=60,
    )
    assert done.stdout.startswith("[4] [7] it ended its process twice (exit code 3)")


@posix
def test_an_item_that_ends_its_process_alone_only_once_is_not_blamed(tmp_path):
    """A machine short of memory may end any process, so one death says nothing of an item."""
    work = DiesTimes(5, 2, tmp_path)
    assert results_of(in_workers(work, [[4, 5, 6]], 1)) == [([4, 5, 6], [4, 5, 6])]
    assert len(list(tmp_path.iterdir())) == 2  # once with its piece, and once alone


@posix
def test_leaving_early_ends_a_process_at_once():
    with closing(in_workers(slowly, [[0], [10_000], [10_000]], 2)) as parts:
        next(parts)  # the others would take 500 s
    assert multiprocessing.active_children() == []


def here(items):
    return items


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda items: items, "lambda"),
        (here, None),
        (type("Own", (), {})(), "Own"),
        (GetMorganGenerator().GetFingerprintAsNumPy, "a function of yours can make its own"),
    ],
)
def test_what_no_process_could_rebuild_is_refused_in_a_sentence(function, message, monkeypatch):
    if message is None:
        monkeypatch.setattr(here, "__module__", "__main__")
        message = "here is defined in the running script"
    with pytest.raises(ValueError, match=rf"cannot be sent.*{message}.*: give workers=1, or "):
        next(in_workers(function, [[1]], 2))


def test_a_generator_of_random_numbers_is_refused():
    import torch

    from graphxai.explainers.control import Random

    with pytest.raises(ValueError, match="a seed does not"):
        next(in_workers(Random(generator=torch.Generator()), [[1]], 2))


def test_small_work_stays_in_this_process(monkeypatch):
    monkeypatch.setattr(workers, "free_cores", lambda: 2)
    pieces = [[0], [1], [1]]
    pids = {result[0] for _, result in results_of(map_in_processes(where, pieces, None, 3))}
    assert pids == {os.getpid()}
    monkeypatch.setattr(workers, "STARTING", 0.0)
    first, *rest = (r[0] for _, r in results_of(map_in_processes(where, pieces, None, 3)))
    assert first == os.getpid()
    assert os.getpid() not in rest


def test_one_worker_is_this_process():
    assert {r[0] for _, r in results_of(map_in_processes(where, PIECES, 1, 7))} == {os.getpid()}


def in_daemon(pipe):
    import warnings

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        parts = list(map_in_processes(doubled, [[1], [2]], 2, 2))
    pipe.send(
        (
            [part.result for results_of_piece in parts for part in results_of_piece],
            [str(w.message) for w in caught],
        )
    )


def test_a_daemon_works_alone_and_says_so():
    context = multiprocessing.get_context("spawn")
    mine, other = context.Pipe()
    process = context.Process(target=in_daemon, args=(other,), daemon=True)
    process.start()
    results, (warning,) = mine.recv()
    process.join()
    assert results == [[2], [4]]
    assert "daemon" in warning


ENDLESS = """
from itertools import repeat
from toiling import where
from graphxai.runtime.workers import in_workers

for (part,) in in_workers(where, repeat([1]), 2):
    print(part.result[0], flush=True)
"""


@posix
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_process_outlives_the_one_that_started_it(how):
    root = Path(graphxai.__file__).parents[1]
    path = os.pathsep.join([str(root), str(root / "tests" / "helpers")])
    with subprocess.Popen(
        [sys.executable, "-c", ENDLESS],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # the signal reaches all its processes, as Ctrl-C does
        # what a shell starts in the background ignores Ctrl-C, and so does all that it starts
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        pids = {int(process.stdout.readline()) for _ in range(200)}
        if how == signal.SIGINT:
            os.killpg(process.pid, how)
        else:
            process.send_signal(how)
        process.communicate(timeout=60)
    stop = time.monotonic() + 60
    while running(pids) and time.monotonic() < stop:
        time.sleep(0.05)
    assert not running(pids)


STOPPED_WHILE_STARTING = """
import multiprocessing, os, threading
from functools import partial
from toiling import doubled
from graphxai.runtime.workers import in_workers

multiprocessing.set_forkserver_preload(["slow_library"])
megabytes = partial(doubled, weights=bytes(4_000_000))
work = in_workers(megabytes, [[1], [2]], 2)
threading.Thread(target=next, args=(work,), daemon=True).start()
threading.Event().wait(1.0)
os._exit(3)
"""


@posix
def test_a_process_of_a_run_that_stopped_before_it_started_ends_without_a_word(tmp_path):
    (tmp_path / "slow_library.py").write_text("import time; time.sleep(2.0)")
    root = Path(graphxai.__file__).parents[1]
    path = os.pathsep.join([str(root), str(root / "tests" / "helpers"), str(tmp_path)])
    run = subprocess.run(  # waits for the last process that holds the other end of stderr
        [sys.executable, "-c", STOPPED_WHILE_STARTING],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (run.returncode, run.stderr) == (3, "")


INTERRUPTED_WHILE_STARTING = """
import multiprocessing
from toiling import doubled
from graphxai.runtime.workers import in_workers

multiprocessing.set_forkserver_preload(["slow_library"])
try:
    list(in_workers(doubled, [[1], [2]], 2))
except KeyboardInterrupt:
    print("interrupted")
"""


@posix
def test_ctrl_c_while_processes_start_is_for_the_one_that_starts_them(tmp_path):
    slow = f"import pathlib, time; pathlib.Path({str(tmp_path / 'began')!r}).touch(); time.sleep(2)"
    (tmp_path / "slow_library.py").write_text(slow)
    root = Path(graphxai.__file__).parents[1]
    path = os.pathsep.join([str(root), str(root / "tests" / "helpers"), str(tmp_path)])
    with subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED_WHILE_STARTING],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        while not (tmp_path / "began").exists() and process.poll() is None:
            time.sleep(0.02)
        os.killpg(process.pid, signal.SIGINT)
        assert process.communicate(timeout=60) == ("interrupted\n", "")


def running(pids):
    running_processes = []
    for pid in pids:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            continue
        state = Path(f"/proc/{pid}/stat")
        if not state.exists() or state.read_text().rsplit(")", 1)[1].split()[0] != "Z":
            running_processes.append(pid)
    return running_processes


def test_one_process_joins_small_pieces_of_quick_work():
    sizes = []

    def work(piece):
        sizes.append(len(piece))
        return list(piece)

    parts = chain.from_iterable(map_in_processes(work, pieces_of(range(500), 256), 1, 500))
    assert list(chain.from_iterable(part.result for part in parts)) == list(range(500))
    assert sizes == [16, 64, 420]


def test_the_last_pieces_are_shared_among_the_processes():
    parts = list(chain.from_iterable(map_in_processes(len, pieces_of(range(600), 512), 2, 600)))
    sizes = [part.result for part in parts]
    assert sizes[:4] == [16, 64, 130, 97]
    left = [600 - sum(sizes[:k]) for k in range(len(sizes))]
    assert all(size <= max(16, rest // 4) for size, rest in zip(sizes, left, strict=True))
    assert [item for part in parts for item in part.items] == list(range(600))


def test_pieces_stay_whole_where_there_are_more_items_than_expected():
    parts = chain.from_iterable(map_in_processes(len, pieces_of(range(600), 512), 2, 50))
    assert [part.result for part in parts] == [16, 16, 16, 16, 16, 256, 264]


def _pieces_before(items):
    """Yield pieces of 16, 32 and 52 items, and then the error of the 101st."""
    for size in (16, 32, 52, 64):
        yield [next(items) for _ in range(size)]


def test_pieces_of_the_full_size_are_not_joined():
    sizes = []
    list(map_in_processes(lambda piece: sizes.append(len(piece)), pieces_of(range(96), 16), 1, 96))
    assert sizes == [16] * 6


def test_what_came_before_an_error_of_the_source_is_done_first():
    def items():
        yield from range(100)
        raise ValueError("damaged")

    results = chain.from_iterable(map_in_processes(list, _pieces_before(items()), 1, 500))
    parts = [next(results) for _ in range(3)]
    assert list(chain.from_iterable(part.result for part in parts)) == list(range(100))
    with pytest.raises(ValueError, match="damaged"):
        next(results)
