"""Change modules in small ways, and list the changes that no test notices.

    python tests/mutants.py --everywhere 300      # drawn from all modules, by their lines
    python tests/mutants.py                       # 40 of each module of the core, two hours
    python tests/mutants.py --sample 10 rules/conservative.py

Cosmic Ray makes the changes in a copy of the last commit, one at a time, and the tests named in
`SUBJECTS` are run for each. For other modules these are the test files that name most of what the
module defines, and those that name most of what its importers define. Changes of types and of
identities are left out. The same seed draws the same changes. `mutants_without_effect.toml` lists
changes that no test can notice, each with the reason.

What was tried is kept in `.mutants/`. A second run of an unchanged module goes on where the first
one was stopped, and then tries the changes again that no test noticed.

A test that fails without any change would notice every change. So the tests that noticed one are
run once more at the end, without a change, and what one that fails then had noticed is not counted.
"""

import argparse
import hashlib
import importlib
import math
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import unified_diff
from functools import cache
from pathlib import Path

import pytest
from cosmic_ray.commands import init
from cosmic_ray.mutating import use_mutation
from cosmic_ray.plugins import get_operator
from cosmic_ray.work_db import WorkDB, use_db
from cosmic_ray.work_item import TestOutcome, WorkerOutcome, WorkItem, WorkResult

ROOT = Path(__file__).resolve().parents[1]
KEPT_RESULTS = ROOT / ".mutants"
WITHOUT_EFFECT = Path(__file__).with_name("mutants_without_effect.toml")

EVALUATION = ("evaluation/test_evaluation.py", "evaluation/test_benchmark.py")
CHECKPOINTS = (
    "models/test_checkpoint.py",
    "contract/test_intervals.py",
    "models/test_graphormer.py",
    "models/test_zoo.py",
)
TABLES = ("datasets/test_tables.py", "tables/test_dialects.py")

# For each module under graphxai/, the tests under tests/ that have to notice its changes, in the
# order in which they run until one fails: those that notice most come first.
SUBJECTS = {
    "rules/conservative.py": ("rules", "wrapping/test_tiers.py", "wrapping/test_wrap.py"),
    "rules/positive.py": ("explainers/test_positive.py", "wrapping/test_wrapped_positive.py"),
    "rules/remainders.py": ("rules", "test_api.py"),
    "rules/operation_rule.py": ("rules", "explainers/test_positive.py"),
    "rules/module_rule.py": ("rules", "wrapping/test_wrapped_module_rules.py"),
    "evaluation/metrics.py": EVALUATION,
    "evaluation/curves.py": EVALUATION,
    "evaluation/statistics.py": EVALUATION[::-1],
    "explanation/ledger.py": ("test_api.py", "rules/test_remainders.py", "explanation"),
    "learning/conformal.py": (
        "learning/test_conformal.py",
        "contract/test_intervals.py",
        "learning/test_table.py",
    ),
    "contract/intervals.py": ("contract/test_intervals.py", "learning/test_table.py"),
    "runtime/writing.py": ("runtime/test_writing.py", "tables/test_run.py"),
    "runtime/reading.py": ("models/test_checkpoint.py", *TABLES),
    "contract/checkpoint_files.py": CHECKPOINTS,
    "models/graphormer/checkpoint.py": CHECKPOINTS,
    "models/graphormer/config.py": CHECKPOINTS,
    "datasets/tables/collections.py": TABLES,
    "datasets/tables/columns.py": TABLES,
    "datasets/tables/delimited.py": TABLES,
    "datasets/tables/dialect.py": TABLES,
    "datasets/tables/opening.py": TABLES,
    "datasets/tables/structures.py": TABLES,
    "datasets/tables/table.py": TABLES,
    "datasets/tables/typed.py": TABLES,
}
# `X | None` is a type nearly everywhere, and `==` for `is` makes no difference where it is used.
LIMIT = 300  # seconds for the tests of one change, if they take a fifth of that without it
MOST_FILES = 4  # of tests of a module for which none are named, and as many of its importers'
LEFT_OUT = ("BinaryOperator_BitOr", "ExceptionReplacer", "RemoveDecorator", "_Is")
KEPT = ("ReplaceComparisonOperator_Is_IsNot", "ReplaceComparisonOperator_IsNot_Is")

# What the tests import takes longer than most of them: it is imported once.
LIBRARIES = (
    "hypothesis", "matplotlib", "openpyxl", "pandas", "rdkit.Chem.AllChem", "scipy.stats",
    "sklearn", "torch", "torch_geometric.data",
)  # fmt: skip


@dataclass(frozen=True)
class Change:
    """A change of a module.

    before, after: the lines taken away and added, without the spaces around them.
    """

    module: str
    before: str
    after: str


@dataclass(frozen=True)
class Tally:
    """How the changes of one module fared.

    without_effect: how many of those that no test noticed are listed with a reason.
    survivors: a description of each of the others, with the lines that it changed.
    """

    module: str
    num_killed: int
    without_effect: int
    survivors: tuple[str, ...]

    def __str__(self) -> str:
        """Say how many changes there were of each kind."""
        tried = self.num_killed + self.without_effect + len(self.survivors)
        return (
            f"{self.module}: {tried} tried, {self.num_killed} noticed, {self.without_effect}"
            f" without effect, {len(self.survivors)} survived"
        )


def main() -> None:
    """Try changes of all modules or of those that are named, and print what survived."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("modules", nargs="*", default=SUBJECTS, help="paths under graphxai/")
    parser.add_argument("--sample", type=int, default=40, help="changes of each module at most")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--everywhere", type=int, help="changes, drawn from all modules")
    options = parser.parse_args()
    os.chdir(ROOT)
    samples = dict.fromkeys(options.modules, options.sample)
    if options.everywhere:
        samples = drawn(options.everywhere, options.seed)
    if unknown := set(samples) - set(modules()):
        parser.error(f"there is no module {min(unknown)!r} under graphxai/")
    reasons = changes_without_effect()
    KEPT_RESULTS.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(copied(Path(folder)))
        tallies = [tried(name, n, options.seed, reasons) for name, n in samples.items()]
        if broken := failing_without_a_change():
            raise SystemExit("these tests fail without a change:\n" + "\n".join(broken))
    killed = sum(tally.num_killed for tally in tallies)
    counted = killed + sum(len(tally.survivors) for tally in tallies)
    print(f"in all: {killed} of {counted} changes with an effect were noticed")


def drawn(count: int, seed: int) -> Counter[str]:
    """Draw changes of modules, as often as a module has lines, and return how many of each."""
    files = {
        module: (Path("graphxai") / module).read_text(encoding="utf-8") for module in modules()
    }
    lines = [len(text.splitlines()) for text in files.values()]
    return Counter(random.Random(seed).choices(list(files), lines, k=count))


def modules() -> list[str]:
    """Return all modules below `graphxai/`, where `models` and `datasets` are links."""
    paths = [
        path for name in ("", "models", "datasets") for path in Path("graphxai", name).rglob("*.py")
    ]
    return sorted({path.relative_to("graphxai").as_posix() for path in paths})


def tests_of(module: str) -> tuple[str, ...]:
    """Return the tests that have to notice a change of a module, with the nearest first."""
    if module in SUBJECTS:
        return SUBJECTS[module]
    importing = re.compile(rf"\b{Path(module).stem} import ")
    texts = {each: (Path("graphxai") / each).read_text(encoding="utf-8") for each in modules()}
    importers = [each for each, text in texts.items() if importing.search(text)]
    near, far = naming([module]), naming(importers)
    chosen = dict.fromkeys((*near[:MOST_FILES], *far[:MOST_FILES]))
    return tuple(chosen) or ("test_api.py", "cli/test_cli.py")


def naming(named: Sequence[str]) -> list[str]:
    """Return the test files that name modules, or what they define, with the nearest first.

    A name counts the less the more test files have it. A file of the module's own folder comes
    before others.
    """
    texts = [(Path("graphxai") / module).read_text(encoding="utf-8") for module in named]
    names = {name for text in texts for name in re.findall(r"^(?:def|class) (\w+)", text, re.M)}
    # below the room, also the folders: tests of a report are those of `tables/report/`
    stems = {Path(part).stem for module in named for part in module.split("/")[1:] or [module]}
    rooms = {module.split("/")[0] for module in named}
    files = {path.relative_to("tests"): path for path in Path("tests").rglob("test_*.py")}
    words = {
        name: set(re.findall(r"\w+", path.read_text(encoding="utf-8")))
        for name, path in files.items()
        if name.parts[0] not in ("install", "walkthroughs", "benchmarks")
    }
    counts = Counter(word for each in words.values() for word in each)
    scores = {}
    for name, of_file in words.items():
        score = sum(1 / counts[word] for word in names & of_file)
        score += sum(1 / counts[stem] for stem in stems & of_file)
        # a test of `pyg` is one of `pyg_graphs`
        alike = set(name.stem.split("_")) & {part for stem in stems for part in stem.split("_")}
        score += len(alike) / (len(name.stem.split("_")) - 1)
        if score:
            scores[name.as_posix()] = score + 0.5 * (name.parts[0] in rooms)
    return sorted(scores, key=lambda name: (-scores[name], name))


def failing_without_a_change() -> list[str]:
    """Run the tests that noticed a change once more, and return those that fail without any."""
    noticing = Path("noticing.txt")
    names = sorted(set(noticing.read_text().splitlines())) if noticing.exists() else []
    return [name for name in names if not passes([name])]


def changes_without_effect() -> dict[Change, str]:
    """Return the changes that no test can notice, each with the reason."""
    listed = tomllib.loads(WITHOUT_EFFECT.read_text(encoding="utf-8"))["change"]
    return {
        Change(each["module"], each["before"], each["after"]): each["reason"] for each in listed
    }


def copied(folder: Path) -> Path:
    """Copy the last commit, compile it, and let the tests import it."""
    copy = folder / "copy"
    subprocess.run(["git", "clone", "--quiet", ROOT, copy], check=True)
    # A compiled file is recognised by its content, so that none of a changed module is ever used.
    compiling = [sys.executable, "-m", "compileall", "-q", "--invalidation-mode", "checked-hash"]
    subprocess.run([*compiling, "graphxai", "models", "datasets", "tests"], cwd=copy, check=True)
    os.environ |= {"PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1"}
    sys.path.insert(0, str(copy))
    sys.dont_write_bytecode = True
    for library in LIBRARIES:
        importlib.import_module(library)
    return copy


def tried(module: str, sample: int, seed: int, reasons: dict[Change, str]) -> Tally:
    """Try a sample of the changes of a module in the copy, where this process is."""
    path = Path("graphxai") / module
    version = hashlib.sha256(path.read_bytes()).hexdigest()[:8]
    kept = KEPT_RESULTS / f"{module.replace('/', '-')}-{version}-{sample}-{seed}.sqlite"
    with use_db(str(kept), WorkDB.Mode.create) as changes:
        if not changes.num_work_items:
            init([path], changes, operator_cfgs={})
            leave_out(changes, sample, seed)
        try_pending(changes, module, reasons)
        tally = counted(module, changes, reasons)
    print("\n".join((str(tally), *tally.survivors)), flush=True)
    return tally


def leave_out(changes: WorkDB, sample: int, seed: int) -> None:
    """Mark as skipped the changes of types, and all others but a sample of them."""
    items = sorted(changes.work_items, key=place)
    chosen = [item for item in items if is_worth_trying(place(item)[1])]
    chosen = random.Random(seed).sample(chosen, min(sample, len(chosen)))
    skipped = {item.job_id for item in items} - {item.job_id for item in chosen}
    changes.set_multiple_results(skipped, WorkResult(WorkerOutcome.SKIPPED))


def is_worth_trying(operator: str) -> bool:
    """Return whether a change by this operator of Cosmic Ray may change what is computed."""
    return operator.endswith(KEPT) or not any(part in operator for part in LEFT_OUT)


def place(item: WorkItem) -> tuple[tuple[int, int], str, int]:
    """Return where a change is, which operator makes it, and its number among those."""
    (mutation,) = item.mutations
    return mutation.start_pos, mutation.operator_name, mutation.occurrence


def try_pending(changes: WorkDB, module: str, reasons: dict[Change, str]) -> None:
    """Run the tests with each change that was not tried yet, or that survived without a reason."""
    settled = {
        job
        for job, result in changes.results
        if result.test_outcome != TestOutcome.SURVIVED or change_of(module, result) in reasons
    }
    pending = [item for item in changes.work_items if item.job_id not in settled]
    if not pending:
        return
    tests = tests_of(module)
    for item in sorted(pending, key=place):
        changes.set_result(item.job_id, outcome_of(item, tests))


def outcome_of(item: WorkItem, tests: Sequence[str]) -> WorkResult:
    """Make a change, run the tests, and take the change back."""
    (mutation,) = item.mutations
    operator = get_operator(mutation.operator_name)(**mutation.operator_args)
    limit, passed = 0.0, None
    while passed is None and limit < (longest := LIMIT if not limit else 5 * duration(tests)):
        limit = longest
        with use_mutation(mutation.module_path, operator, mutation.occurrence) as (before, after):
            passed = passes(tests, limit)
    diff = "\n".join(unified_diff(before.splitlines(), after.splitlines(), n=0, lineterm=""))
    outcome = TestOutcome.SURVIVED if passed else TestOutcome.KILLED
    return WorkResult(WorkerOutcome.NORMAL, test_outcome=outcome, diff=diff)


@cache
def duration(tests: Sequence[str]) -> float:
    """Return how many seconds tests take without a change."""
    started = time.monotonic()
    passes(tests)
    return time.monotonic() - started


def passes(tests: Sequence[str], limit: float = math.inf) -> bool | None:
    """Run tests in a copy of this process, which has imported other libraries already.

    The result is None if they take longer than `limit` seconds.
    """
    child = os.fork()
    if not child:
        os.setpgrp()  # so that programs started by tests end with them
        silence = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):
            os.dup2(silence, stream)
        paths = [f"tests/{name}" for name in tests]
        options = ["-x", "-p", "no:cacheprovider"]
        os._exit(bool(pytest.main([*options, *paths], plugins=[Noticing()])))
    end = time.monotonic() + limit
    while True:
        number, status = os.waitpid(child, os.WNOHANG)
        if number:
            return status == 0
        if time.monotonic() > end:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return None
        time.sleep(0.02)


class Noticing:
    """Write down which test noticed a change."""

    def pytest_runtest_logreport(self, report):
        if report.failed:
            with open("noticing.txt", "a", encoding="utf-8") as file:
                file.write(report.nodeid.removeprefix("tests/") + "\n")


def change_of(module: str, result: WorkResult) -> Change:
    """Return the change that was tried."""
    before, after = (
        "\n".join(line[1:].strip() for line in changed_lines(result) if line[0] == sign)
        for sign in "-+"
    )
    return Change(module, before, after)


def changed_lines(result: WorkResult) -> list[str]:
    """Return the lines that were taken away or added, with - or + before them."""
    lines = (result.diff or "").splitlines()
    return [line for line in lines if line[:1] in "+-" and line[:3] not in ("+++", "---")]


def counted(module: str, changes: WorkDB, reasons: dict[Change, str]) -> Tally:
    """Count the changes that were tried, and describe those that survived without a reason."""
    items = {item.job_id: item for item in changes.work_items}
    results = [(items[job], r) for job, r in changes.results if r.test_outcome is not None]
    survived = [(item, result) for item, result in results if not result.is_killed]
    unexplained = [pair for pair in survived if change_of(module, pair[1]) not in reasons]
    lines = [
        "\n    ".join((f"  line {place(item)[0][0]}, {place(item)[1]}", *changed_lines(result)))
        for item, result in sorted(unexplained, key=lambda pair: place(pair[0]))
    ]
    num_killed = len(results) - len(survived)
    return Tally(module, num_killed, len(survived) - len(unexplained), tuple(lines))


if __name__ == "__main__":
    main()
