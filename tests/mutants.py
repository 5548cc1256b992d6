"""Change the core in small ways, and list the changes that no test notices.

    python tests/mutants.py                       # 40 changes of each module, a few hours
    python tests/mutants.py --sample 10 rules/conservative.py

Cosmic Ray makes the changes in a copy of the repository, one at a time, and runs the tests named in
`SUBJECTS` for each. Changes of types and of identities are left out. The same seed draws the same
changes.
"""

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from cosmic_ray.work_db import WorkDB, use_db
from cosmic_ray.work_item import WorkerOutcome, WorkItem, WorkResult

ROOT = Path(__file__).resolve().parents[1]
EVALUATION = ("evaluation/test_evaluation.py", "evaluation/test_benchmark.py")

# For each module under graphxai/, the tests under tests/ that have to notice its changes.
SUBJECTS = {
    "rules/conservative.py": ("rules", "adapters/test_tiers.py", "adapters/test_wrap.py"),
    "rules/positive.py": ("explainers/test_positive.py", "adapters/test_wrapped_positive.py"),
    "rules/relevance_shares.py": ("rules", "test_api.py"),
    "evaluation/metrics.py": EVALUATION,
    "evaluation/curves.py": EVALUATION,
    "evaluation/statistics.py": EVALUATION,
    "explanation/ledger.py": ("test_api.py", "explanation"),
    "learning/conformal.py": ("contract/test_intervals.py", "learning/test_table.py"),
    "contract/intervals.py": ("contract/test_intervals.py", "learning/test_table.py"),
    "runtime/writing.py": ("runtime/test_writing.py",),
}
CONFIGURATION = """
[cosmic-ray]
module-path = "{module}"
timeout = 1800.0
excluded-modules = []
test-command = "{python} -m pytest -x -p no:cacheprovider {tests}"
[cosmic-ray.distributor]
name = "local"
"""
# `X | None` is a type nearly everywhere, and `==` for `is` makes no difference where it is used.
LEFT_OUT = ("BinaryOperator_BitOr", "ExceptionReplacer", "RemoveDecorator", "_Is")
KEPT = ("ReplaceComparisonOperator_Is_IsNot", "ReplaceComparisonOperator_IsNot_Is")


@dataclass(frozen=True)
class Tally:
    """How the changes of one module fared.

    survivors: a description of each change that no test noticed, with the line that it changed.
    """

    module: str
    num_killed: int
    survivors: tuple[str, ...]


def main() -> None:
    """Try changes of all modules or of those that are named, and print what survived."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("modules", nargs="*", default=SUBJECTS, help=f"of {', '.join(SUBJECTS)}")
    parser.add_argument("--sample", type=int, default=40, help="changes of each module at most")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    for module in options.modules:
        if module not in SUBJECTS:
            parser.error(f"no tests are named for {module!r}; known are {', '.join(SUBJECTS)}")
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy"
        subprocess.run(["git", "clone", "--quiet", ROOT, copy], check=True)
        tallies = [tried(copy, module, options.sample, options.seed) for module in options.modules]
    killed = sum(tally.num_killed for tally in tallies)
    survived = sum(len(tally.survivors) for tally in tallies)
    print(f"in all: {killed} of {killed + survived} changes were noticed")


def tried(copy: Path, module: str, sample: int, seed: int) -> Tally:
    """Try a sample of the changes of a module in a copy of the repository."""
    path = copy / "graphxai" / module
    session, configuration = copy / "mutants.sqlite", copy / "mutants.toml"
    session.unlink(missing_ok=True)
    tests = " ".join(f"tests/{name}" for name in SUBJECTS[module])
    text = CONFIGURATION.format(
        module=path.relative_to(copy).as_posix(), tests=tests, python=sys.executable
    )
    configuration.write_text(text)
    cosmic_ray(copy, "baseline", configuration.name)  # the tests pass without a change
    cosmic_ray(copy, "init", configuration.name, session.name)
    with use_db(str(session), WorkDB.Mode.open) as changes:
        leave_out(changes, sample, seed)
    cosmic_ray(copy, "exec", configuration.name, session.name)
    with use_db(str(session), WorkDB.Mode.open) as changes:
        tally = counted(module, changes)
    print(f"{module}: {tally.num_killed} noticed, {len(tally.survivors)} survived", flush=True)
    for survivor in tally.survivors:
        print(survivor, flush=True)
    return tally


def cosmic_ray(copy: Path, *arguments: str) -> None:
    """Run a command of Cosmic Ray in a copy of the repository, which its tests then import."""
    program = shutil.which("cosmic-ray", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if program is None:
        raise SystemExit('mutants: Cosmic Ray is missing: pip install -e ".[release]"')
    variables = os.environ | {"PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1"}
    subprocess.run([program, *arguments], cwd=copy, env=variables, check=True)


def leave_out(changes: WorkDB, sample: int, seed: int) -> None:
    """Mark as skipped the changes of types, and all others but a sample of them."""
    items = sorted(changes.work_items, key=place)
    chosen = [item for item in items if is_worth_trying(place(item)[1])]
    chosen = random.Random(seed).sample(chosen, min(sample, len(chosen)))
    kept = {item.job_id for item in chosen}
    for item in items:
        if item.job_id not in kept:
            changes.set_result(item.job_id, WorkResult(WorkerOutcome.SKIPPED))


def is_worth_trying(operator: str) -> bool:
    """Return whether a change by this operator of Cosmic Ray may change what is computed."""
    return operator.endswith(KEPT) or not any(part in operator for part in LEFT_OUT)


def place(item: WorkItem) -> tuple[tuple[int, int], str, int]:
    """Return where a change is, which operator makes it, and its number among those."""
    (mutation,) = item.mutations
    return mutation.start_pos, mutation.operator_name, mutation.occurrence


def counted(module: str, changes: WorkDB) -> Tally:
    """Count the changes that were tried, and describe those that survived."""
    items = {item.job_id: item for item in changes.work_items}
    results = [(items[job], r) for job, r in changes.results if r.test_outcome is not None]
    survived = [(item, result) for item, result in results if not result.is_killed]
    lines = [
        f"  line {place(item)[0][0]}, {place(item)[1]}\n" + changed_lines(result.diff or "")
        for item, result in sorted(survived, key=lambda pair: place(pair[0]))
    ]
    return Tally(module, len(results) - len(survived), tuple(lines))


def changed_lines(diff: str) -> str:
    """Return the lines of a diff that were taken away or added."""
    lines = [
        line for line in diff.splitlines() if line[:1] in "+-" and line[:3] not in ("+++", "---")
    ]
    return "\n".join(f"    {line}" for line in lines)


if __name__ == "__main__":
    main()
