"""Judge changes of modules by the tests that run the changed line.

A first run of each test file notes which lines of the library every test runs, and how long it
takes. A change is then judged in a child of this process, which has imported the library and the
tests: it runs the tests that run the changed line, the shortest first, until one fails.
"""

import ast
import hashlib
import json
import math
import os
import resource
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest

from changed_code import change_functions, runs_at_import

SLOWER = 10  # times the processor time that tests take without a change, before they hang
WAITING = 600  # seconds that a child may take by the clock
LIBRARY = ("graphxai", "models", "datasets")
LIMIT = 300  # processor time of the tests of a change that is imported, in seconds


@dataclass(frozen=True)
class Mutant:
    """A change of a module.

    module: its path under `graphxai/`.
    before, after: the whole text of the file.
    line: the number of the changed line.
    """

    module: str
    before: str
    after: str
    line: int

    @property
    def digest(self) -> str:
        """What tells the change from others."""
        whole = "\0".join((self.module, self.before, self.after))
        return hashlib.sha256(whole.encode()).hexdigest()[:16]

    @property
    def path(self) -> Path:
        """The file, in the folder in which the judge works."""
        return Path("graphxai") / self.module

    def statement(self) -> range:
        """Return the lines of the statement, as a call may be written on several."""
        around = [
            range(node.lineno, (node.end_lineno or node.lineno) + 1)
            for node in ast.walk(ast.parse(self.before))
            if isinstance(node, ast.stmt) and not hasattr(node, "body")
        ]
        holding = [lines for lines in around if self.line in lines]
        return min(holding, key=len, default=range(self.line, self.line + 1))


@dataclass
class Notes:
    """What a run of the tests of a file says.

    seconds: the processor time of each test that passes.
    lines: by test, the lines that it runs of each module.
    failing: the tests that fail without a change, which judge nothing.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    lines: dict[str, dict[str, list[int]]] = field(default_factory=dict)
    failing: list[str] = field(default_factory=list)

    def add(self, others: "Notes") -> None:
        """Add what the run of another file says."""
        self.seconds |= others.seconds
        self.lines |= others.lines
        self.failing += others.failing


@dataclass
class Judge:
    """A plugin of pytest that judges changes instead of running the tests that were collected.

    mutants: the changes.
    files: by module, the beginnings of the names of its test files.
    kept: a folder for the notes of each test file, which hold while neither it nor the library is
        changed.
    longest: the processor time in seconds that one file may take for its notes.
    most: the processor time in seconds of the tests of one change.
    say: takes a change, the test that noticed it, and the tests that run the line. The name is
        empty if no test noticed it, and None if the change has to be imported.
    """

    mutants: Sequence[Mutant]
    files: Mapping[str, Sequence[str]]
    kept: Path
    longest: float
    most: float
    say: Callable[[Mutant, str | None, Sequence[str]], None]
    sound: dict[pytest.Item, bool] = field(default_factory=dict)
    watch: Any = field(default_factory=lambda: watching())

    def pytest_sessionstart(self) -> None:
        """Note the lines that run while the library and the tests are imported."""
        self.watch.start()

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Note what tests run, then judge the changes."""
        self.watch.stop()
        at_import = lines_by_module(self.watch.get_data())
        by_name = {item.nodeid: item for item in session.items}
        of_files: dict[str, list[pytest.Item]] = {}
        for item in session.items:
            name = item.path.relative_to(Path("tests").resolve()).as_posix()
            of_files.setdefault(name, []).append(item)
        library = fingerprint(path for name in LIBRARY for path in Path(name).rglob("*.py"))
        notes, known = Notes(), set()
        for mutant in self.mutants:
            wanted = tuple(self.files[mutant.module])
            for name in [name for name in of_files if name.startswith(wanted)]:
                if name not in known:
                    notes.add(self.notes_of(name, of_files[name], library))
                    known.add(name)
            names = self.tests_of(mutant, notes)
            lines = {*mutant.statement()} & {*at_import.get(mutant.module, {})}
            if lines or runs_at_import(mutant.before, mutant.after) or not names:
                self.say(mutant, None, names)
                continue
            limit = SLOWER * (2 + sum(notes.seconds[name] for name in names))
            self.say(mutant, self.noticing(mutant, [by_name[name] for name in names], limit), names)
        return True

    def noticing(self, mutant: Mutant, items: Sequence[pytest.Item], limit: float) -> str:
        """Return the first test that fails with a change, and passes alone without it."""
        mutant.path.write_text(mutant.after, encoding="utf-8")  # for processes that tests start
        try:
            noticed = in_child(lambda: judged(mutant, items), limit)
        finally:
            mutant.path.write_text(mutant.before, encoding="utf-8")
        others = [item for item in items if item.nodeid != noticed]
        if len(others) < len(items) and not self.is_sound(*set(items).difference(others)):
            return self.noticing(mutant, others, limit)
        return noticed

    def is_sound(self, item: pytest.Item) -> bool:
        """Return whether a test passes alone, without a change."""
        if item not in self.sound:
            self.sound[item] = in_child(lambda: str(run(item, None))) == "True"
        return self.sound[item]

    def tests_of(self, mutant: Mutant, notes: Notes) -> list[str]:
        """Return the tests that run the changed statement, or else the module, shortest first."""
        lines = set(mutant.statement())
        running = {
            name: set(of[mutant.module]) for name, of in notes.lines.items() if mutant.module in of
        }
        touching = [name for name, of in running.items() if lines & of] or [*running]
        chosen, total = [], 0.0
        for name in sorted(touching, key=notes.seconds.__getitem__):
            total += notes.seconds[name]
            if chosen and total > self.most:
                break
            chosen.append(name)
        return chosen

    def notes_of(self, name: str, items: Sequence[pytest.Item], library: str) -> Notes:
        """Run the tests of a file, or read what an earlier run has noted."""
        content = (Path("tests") / name).read_bytes()
        version = hashlib.sha256(content + library.encode()).hexdigest()[:12]
        kept = self.kept / f"{name.replace('/', '-')}-{version}-{self.longest:g}.json"
        if not kept.exists():
            in_child(lambda: noted(items, kept, self.longest))
        if not kept.exists():  # the child crashed
            return Notes()
        return Notes(**json.loads(kept.read_text(encoding="utf-8")))


def fingerprint(paths: Iterable[Path]) -> str:
    """Return a digest of files."""
    return hashlib.sha256(b"".join(path.read_bytes() for path in sorted(paths))).hexdigest()


def watching() -> Any:
    """Return what notes the lines of the library that run."""
    import coverage

    measured = [f"{Path(name).resolve()}/*" for name in LIBRARY]
    return coverage.Coverage(data_file=None, include=measured, config_file=False)


def lines_by_module(data: Any) -> dict[str, dict[int, list[str]]]:
    """Return by module and line the tests that ran it, or an empty name for those of the import."""
    lines = {}
    for file in data.measured_files():
        path = Path(file).relative_to(Path.cwd())
        module = path.relative_to("graphxai") if path.parts[0] == "graphxai" else path
        lines[module.as_posix()] = data.contexts_by_lineno(file)
    return lines


def noted(items: Sequence[pytest.Item], kept: Path, longest: float) -> str:
    """Run tests, and write down what each of them runs of the library and how long it takes."""
    notes, watch = Notes(), watching()
    started = time.process_time()
    watch.start()
    for item, following in pairs(items):
        if (begin := time.process_time()) - started > longest:
            break
        watch.switch_context(item.nodeid)
        if run(item, following):
            notes.seconds[item.nodeid] = round(time.process_time() - begin, 3)
        else:
            notes.failing.append(item.nodeid)
    watch.stop()
    for module, lines in lines_by_module(watch.get_data()).items():
        for line, names in lines.items():
            for name in set(names) & set(notes.seconds):
                notes.lines.setdefault(name, {}).setdefault(module, []).append(line)
    kept.write_text(json.dumps(asdict(notes)), encoding="utf-8")
    return ""


def judged(mutant: Mutant, items: Sequence[pytest.Item]) -> str:
    """Run tests with a change, and return the name of the first that fails, or an empty one."""
    if not change_functions(str(mutant.path), mutant.after):
        raise AssertionError(f"{mutant.path}: no function has the changed line")
    return next((item.nodeid for item, following in pairs(items) if not run(item, following)), "")


def pairs(items: Sequence[pytest.Item]) -> "zip[tuple[pytest.Item, pytest.Item | None]]":
    """Pair each test with the one that follows, whose fixtures stay."""
    return zip(items, [*items[1:], None], strict=True)


def run(item: pytest.Item, following: pytest.Item | None) -> bool:
    """Run a test with its fixtures, and return whether it passes or is skipped."""
    from _pytest.runner import runtestprotocol

    reports = runtestprotocol(item, log=False, nextitem=following)
    return not any(report.failed for report in reports)


def in_child(work: Callable[[], str], limit: float = math.inf, silent: bool = True) -> str:
    """Call a function in a child of this process, and return what it says.

    The result is "no end" if it takes more than `limit` seconds of the processor, and "crashed" if
    the child ended otherwise.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.setpgrp()  # so that programs started by tests end with them
        if limit < math.inf:
            resource.setrlimit(resource.RLIMIT_CPU, (int(limit), int(limit) + 1))
        silence = os.open(os.devnull, os.O_RDWR)
        for stream in range(3) if silent else ():
            os.dup2(silence, stream)
        status = 1
        try:
            os.write(writing, b"=" + work().encode())
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    end = time.monotonic() + (WAITING if limit < math.inf else math.inf)
    number, ended = 0, 0
    while not number and time.monotonic() < end:
        number, ended = os.waitpid(child, os.WNOHANG)
        time.sleep(0.02)
    if not number:
        os.killpg(child, signal.SIGKILL)
        _, ended = os.waitpid(child, 0)
    with os.fdopen(reading, "rb", closefd=True) as pipe:
        said = pipe.read(4096).decode() if ended == 0 else ""
    if said:
        return said[1:]
    return "no end" if os.WIFSIGNALED(ended) else "crashed"


def collected(files: Sequence[str], judge: Judge) -> str:
    """Let a judge have the tests of files."""
    pytest.main(["-p", "no:cacheprovider", *(f"tests/{name}" for name in files)], plugins=[judge])
    return ""


def imported(mutant: Mutant, names: Sequence[str]) -> str:
    """Judge a change of what runs at import, in a child that has not imported the library."""
    mutant.path.write_text(mutant.after, encoding="utf-8")
    try:
        return in_child(lambda: first_failing(names), LIMIT)
    finally:
        mutant.path.write_text(mutant.before, encoding="utf-8")


def first_failing(names: Sequence[str]) -> str:
    """Run tests until one fails, and return its name, or an empty one."""
    failing: list[str] = []

    class Noticing:
        def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
            if report.failed:
                failing.append(report.nodeid)

    status = pytest.main(["-x", "-p", "no:cacheprovider", *names], plugins=[Noticing()])
    return failing[0] if failing else "the tests do not start" if status else ""
