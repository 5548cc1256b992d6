"""Judge changes of modules by the tests that run the changed line.

A first run of each test file notes which tests run the statements that are changed, and how long
each test takes. The statements themselves say so, as a call is put before each of them. A change is
then judged in a child of this process, which has imported the library and the tests: it runs the
tests that run the changed statement, the shortest first, until one fails.
"""

import ast
import builtins
import hashlib
import json
import math
import os
import resource
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path

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


@dataclass
class Notes:
    """What a run of the tests of a file says.

    seconds: the processor time of each test that passes.
    reached: by test, the changes whose statement it runs.
    failing: the tests that fail without a change, which judge nothing.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    reached: dict[str, list[str]] = field(default_factory=dict)
    failing: list[str] = field(default_factory=list)

    def add(self, others: "Notes") -> None:
        """Add what the run of another file says."""
        self.seconds |= others.seconds
        self.reached |= others.reached
        self.failing += others.failing


@dataclass
class Judge:
    """A plugin of pytest that judges changes instead of running the tests that were collected.

    mutants: the changes to judge.
    sample: these and those that were judged earlier, so that the notes hold for all of them.
    files: by module, the beginnings of the names of its test files.
    kept: a folder for the notes of each test file, which hold while neither it nor the library is
        changed.
    longest: the processor time in seconds that one file may take for its notes.
    most: the processor time in seconds of the tests of one change.
    workers: how many files are noted at a time.
    say: takes a change, the test that noticed it, and the tests that run the line. The name is
        empty if no test noticed it, and None if the change has to be imported.
    """

    mutants: Sequence[Mutant]
    sample: Sequence[Mutant]
    files: Mapping[str, Sequence[str]]
    kept: Path
    longest: float
    most: float
    workers: int
    say: Callable[[Mutant, str | None, Sequence[str]], None]
    sound: dict[pytest.Item, bool] = field(default_factory=dict)

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Note what tests run, then judge the changes."""
        by_name = {item.nodeid: item for item in session.items}
        of_files: dict[str, list[pytest.Item]] = {}
        for item in session.items:
            name = item.path.relative_to(Path("tests").resolve()).as_posix()
            of_files.setdefault(name, []).append(item)
        notes = self.noted_files(of_files)
        for mutant in self.mutants:
            names = self.tests_of(mutant, notes)
            if runs_at_import(mutant.before, mutant.after) or not names:
                self.say(mutant, None, names)
                continue
            limit = SLOWER * (2 + sum(notes.seconds[name] for name in names))
            self.say(mutant, self.noticing(mutant, [by_name[name] for name in names], limit), names)
        return True

    def noted_files(self, of_files: Mapping[str, list[pytest.Item]]) -> Notes:
        """Run the tests of the files of the changes, or read what an earlier run has noted."""
        wanted = tuple({name for mutant in self.mutants for name in self.files[mutant.module]})
        library = fingerprint(path for name in LIBRARY for path in Path(name).rglob("*.py"))
        sample = "".join(sorted(mutant.digest for mutant in self.sample))
        kept, due = [], []
        for name in [name for name in of_files if name.startswith(wanted)]:
            state = (Path("tests") / name).read_bytes() + (library + sample).encode()
            version = hashlib.sha256(state).hexdigest()[:12]
            kept.append(self.kept / f"{name.replace('/', '-')}-{version}-{self.longest:g}.json")
            if not kept[-1].exists():
                due.append((of_files[name], kept[-1]))

        def note_all() -> str:
            digests = set[str]()
            instrument(self.sample, digests.add)
            with ThreadPoolExecutor(self.workers) as pool:
                list(pool.map(lambda each: note(each, digests), due))
            return ""

        def note(each: tuple[list[pytest.Item], Path], digests: set[str]) -> None:
            in_child(lambda: noted(each[0], digests, each[1], self.longest))

        if due:
            in_child(note_all)
        notes = Notes()
        for path in kept:
            if path.exists():  # else the child crashed
                notes.add(Notes(**json.loads(path.read_text(encoding="utf-8"))))
        return notes

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
        """Return the tests that run the changed statement, shortest first."""
        running = [name for name, digests in notes.reached.items() if mutant.digest in digests]
        chosen, total = [], 0.0
        for name in sorted(running, key=notes.seconds.__getitem__):
            total += notes.seconds[name]
            if chosen and total > self.most:
                break
            chosen.append(name)
        return chosen


def fingerprint(paths: Iterable[Path]) -> str:
    """Return a digest of files."""
    return hashlib.sha256(b"".join(path.read_bytes() for path in sorted(paths))).hexdigest()


class Instrumented(ast.NodeTransformer):
    """Puts a call before each statement that is changed.

    digests: by line, the changes of this line.
    """

    def __init__(self, digests: Mapping[int, Sequence[str]]) -> None:
        self.digests = digests

    def generic_visit(self, node: ast.AST) -> ast.AST:
        """Go through the statements of each block."""
        super().generic_visit(node)
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if (
                isinstance(block, list)
                and block
                and not isinstance(node, ast.Module | ast.ClassDef)
            ):
                setattr(node, name, [each for statement in block for each in self.both(statement)])
        return node

    def both(self, statement: ast.stmt) -> list[ast.stmt]:
        """Return a statement, after the call if it is changed outside the blocks that it holds."""
        blocks = [getattr(statement, name, []) for name in ("body", "orelse", "finalbody")]
        blocks += [handler.body for handler in getattr(statement, "handlers", [])]
        inner = {
            line
            for block in [*blocks, *(case.body for case in getattr(statement, "cases", []))]
            for each in block
            for line in range(each.lineno, (each.end_lineno or each.lineno) + 1)
        }
        lines = range(statement.lineno, (statement.end_lineno or statement.lineno) + 1)
        digests = [d for line in {*lines} - inner for d in self.digests.get(line, ())]
        calls = [ast.parse(f"_reached({digest!r})").body[0] for digest in digests]
        for call in calls:
            for part in ast.walk(call):
                ast.copy_location(part, statement)
        return [*calls, statement]


def instrument(sample: Sequence[Mutant], reached: Callable[[str], None]) -> None:
    """Let the functions of the library say which changes their statements have."""
    builtins._reached = reached  # type: ignore[attr-defined]
    sources = {}
    for module in {mutant.module for mutant in sample}:
        digests: dict[int, list[str]] = {}
        of_module = [mutant for mutant in sample if mutant.module == module]
        for mutant in of_module:
            digests.setdefault(mutant.line, []).append(mutant.digest)
        tree = Instrumented(digests).visit(ast.parse(of_module[0].before))
        sources[str(of_module[0].path)] = tree
    change_functions(sources)


def noted(items: Sequence[pytest.Item], digests: set[str], kept: Path, longest: float) -> str:
    """Run tests, and write down how long each takes and which changed statements it runs.

    digests: takes the changes whose statements run.
    """
    notes = Notes()
    started = time.process_time()
    for item, following in pairs(items):
        if (begin := time.process_time()) - started > longest:
            break
        digests.clear()
        if run(item, following):
            notes.seconds[item.nodeid] = round(time.process_time() - begin, 3)
            notes.reached[item.nodeid] = sorted(digests)
        else:
            notes.failing.append(item.nodeid)
    kept.write_text(json.dumps(asdict(notes)), encoding="utf-8")
    return ""


def judged(mutant: Mutant, items: Sequence[pytest.Item]) -> str:
    """Run tests with a change, and return the name of the first that fails, or an empty one."""
    if not change_functions({str(mutant.path): mutant.after}):
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
