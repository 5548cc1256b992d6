"""Change modules in small ways, and list the changes that no test notices.

    python tests/mutants.py --everywhere 300      # drawn from all modules, by their lines
    python tests/mutants.py                       # 40 of each module of the core
    python tests/mutants.py --sample 10 rules/conservative.py
    python tests/mutants.py --everywhere 100 --near 2 --most 20    # a rough answer, in less time

Cosmic Ray makes the changes in a copy of the last commit, one at a time. All tests are run once, to
note which changed statements each of them runs. A change then faces the tests that run it, the
shortest first (`helpers/judging.py`). With `--near`, these are only those of the test files that
name most of what the module defines, and of those that name most of what its importers define.
Changes of types and of identities are left out. The same seed draws the same changes.
`mutants_without_effect.toml` lists changes that no test can notice, each with the reason.

What was tried is kept in `.mutants/`, and a second run goes on where the first one was stopped.
With `--again` it tries the changes once more that no test noticed.

A test that fails without any change would notice every change. Those that fail in the first run, or
alone, judge nothing.
"""

import argparse
import importlib
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import unified_diff
from functools import cache
from pathlib import Path
from typing import Any

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "helpers"))
from judging import Judge, Mutant, collected, imported, in_child  # noqa: E402

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
    "datasets/tables/columns.py": TABLES,
    "datasets/tables/dialect.py": TABLES,
    "datasets/tables/opening.py": TABLES,
    "datasets/tables/structures.py": TABLES,
    "datasets/tables/table.py": TABLES,
    "datasets/tables/rows.py": TABLES,
}
# `X | None` is a type nearly everywhere, and `==` for `is` makes no difference where it is used.
MOST_FILES = 4  # of tests of a module, for changes of what runs at import
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
    parser.add_argument("--of", type=int, help="modules at most of which these are drawn")
    parser.add_argument("--near", type=int, help="test files of each module, and of its importers")
    parser.add_argument("--most", type=float, default=120, help="seconds of tests of a change")
    parser.add_argument("--longest", type=float, default=1e9, help="seconds of a file of tests")
    parser.add_argument("--workers", type=int, default=2, help="files of tests noted at a time")
    parser.add_argument("--again", action="store_true", help="try again what no test noticed")
    options = parser.parse_args()
    os.chdir(ROOT)
    samples = dict.fromkeys(options.modules, options.sample)
    if options.everywhere:
        samples = drawn(options.everywhere, options.seed, options.of)
    if unknown := set(samples) - set(modules()):
        parser.error(f"there is no module {min(unknown)!r} under graphxai/")
    KEPT_RESULTS.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(copied(Path(folder)))
        mutants = [m for name, n in samples.items() for m in sampled(name, n, options.seed)]
        results = tried(mutants, options)
    reasons = changes_without_effect()
    tallies = [counted(name, results, reasons) for name in samples]
    for tally in tallies:
        print("\n".join((str(tally), *tally.survivors)))
    killed = sum(tally.num_killed for tally in tallies)
    num_counted = killed + sum(len(tally.survivors) for tally in tallies)
    print(f"in all: {killed} of {num_counted} changes with an effect were noticed")


def drawn(count: int, seed: int, most: int | None) -> Counter[str]:
    """Draw changes of modules, as often as a module has lines, and return how many of each.

    If there are to be at most so many modules, these are drawn first.
    """
    files = modules()
    lengths = [len((Path("graphxai") / m).read_text(encoding="utf-8").splitlines()) for m in files]
    chance = random.Random(seed)
    if most is not None:
        subset = set(chance.sample(range(len(files)), most))
        lengths = [length if k in subset else 0 for k, length in enumerate(lengths)]
    return Counter(chance.choices(files, lengths, k=count))


def modules() -> list[str]:
    """Return all modules below `graphxai/`, where `models` and `datasets` are links."""
    paths = [
        path for name in ("", "models", "datasets") for path in Path("graphxai", name).rglob("*.py")
    ]
    return sorted({path.relative_to("graphxai").as_posix() for path in paths})


def nearest_files(module: str, most: int) -> list[str]:
    """Return the test files that are nearest to a module, or the folders named for it."""
    importing = re.compile(rf"\b{Path(module).stem} import ")
    importers = [each for each, text in texts_of_modules().items() if importing.search(text)]
    near, far = naming([module]), naming(importers)
    near = near[:most] if module not in SUBJECTS or most < MOST_FILES else [*SUBJECTS[module]]
    return [*dict.fromkeys((*near, *far[: most // 2]))] or ["test_api.py", "cli/test_cli.py"]


@cache
def texts_of_modules() -> dict[str, str]:
    """Return the text of each module, read once."""
    return {each: (Path("graphxai") / each).read_text(encoding="utf-8") for each in modules()}


@cache
def words_of_tests() -> dict[Path, frozenset[str]]:
    """Return the words of each test file, read once."""
    return {
        path.relative_to("tests"): frozenset(re.findall(r"\w+", path.read_text(encoding="utf-8")))
        for path in test_files()
    }


def test_files() -> list[Path]:
    """Return the files of the tests of what the package computes, writes and shows."""
    files = sorted(Path("tests").rglob("test_*.py"))
    return [
        path for path in files if path.parts[1] not in ("install", "walkthroughs", "benchmarks")
    ]


def naming(named: Sequence[str]) -> list[str]:
    """Return the test files that name modules, or what they define, with the nearest first.

    A name counts the less the more test files have it. A file of the module's own folder comes
    before others.
    """
    texts = [texts_of_modules()[module] for module in named]
    names = {name for text in texts for name in re.findall(r"^(?:def|class) (\w+)", text, re.M)}
    # below the room, also the folders: tests of a report are those of `tables/report/`
    stems = {Path(part).stem for module in named for part in module.split("/")[1:] or [module]}
    rooms = {module.split("/")[0] for module in named}
    words = words_of_tests()
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
    subprocess.run([*compiling, "graphxai", "models", "datasets"], cwd=copy, check=True)
    os.environ |= {"PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1"}
    sys.path.insert(0, str(copy))
    sys.dont_write_bytecode = True
    for library in LIBRARIES:
        importlib.import_module(library)
    return copy


def sampled(module: str, sample: int, seed: int) -> list[Mutant]:
    """Draw changes of a module."""
    before = (Path("graphxai") / module).read_text(encoding="utf-8")
    nodes = [*ast_nodes(get_ast(before))]
    places = [
        (start, name, number)
        for name in operator_names()
        if is_worth_trying(name) and not get_operator(name).arguments()
        for number, (start, _) in enumerate(positions(nodes, name))
    ]
    chosen = random.Random(seed).sample(sorted(places), min(sample, len(places)))
    changed = [
        (line, mutate_code(before, get_operator(name)(), number))
        for (line, _), name, number in sorted(chosen)
    ]
    return [Mutant(module, before, after, line) for line, after in changed if is_python(after)]


def is_python(text: str | None) -> bool:
    """Return whether a text can be compiled, so that only a test can notice the change."""
    try:
        return text is not None and bool(compile(text, "module", "exec"))
    except SyntaxError:
        return False


def positions(nodes: Sequence[Any], operator: str) -> Iterator[Any]:
    """Yield where an operator of Cosmic Ray can change a module."""
    for node in nodes:
        yield from get_operator(operator)().mutation_positions(node)


def is_worth_trying(operator: str) -> bool:
    """Return whether a change by this operator of Cosmic Ray may change what is computed."""
    return operator.endswith(KEPT) or not any(part in operator for part in LEFT_OUT)


def tried(mutants: Sequence[Mutant], options: argparse.Namespace) -> dict[Mutant, str]:
    """Try changes in the copy, where this process is, and return which test noticed each."""
    results, waiting = KEPT_RESULTS / "results.jsonl", Path("waiting.jsonl")
    earlier = dict(lines_of(results))
    due = [m for m in mutants if not earlier.get(m.digest, "" if options.again else None)]
    due = [m for m in due if options.again or m.digest not in earlier]

    def keep(mutant: Mutant, noticed: str) -> None:
        append(results, [mutant.digest, noticed])
        print(f"{mutant.module}:{mutant.line}: {noticed or 'SURVIVED'}", flush=True)

    def say(mutant: Mutant, noticed: str | None, names: Sequence[str]) -> None:
        if noticed is None:
            append(waiting, [mutant.digest, names])
        else:
            keep(mutant, noticed)

    every = [path.relative_to("tests").as_posix() for path in test_files()]
    near = options.near
    files = {m.module: every if near is None else nearest_files(m.module, near) for m in due}
    if due:
        limits = (options.longest, options.most, options.workers)
        judge = Judge(due, mutants, files, KEPT_RESULTS, *limits, say)
        chosen = sorted({name for names in files.values() for name in names})
        in_child(lambda: collected(chosen, judge), silent=False)
    of_waiting = dict(lines_of(waiting))
    for mutant in due:
        if mutant.digest in of_waiting:
            near = [
                f"tests/{name}" for name in nearest_files(mutant.module, options.near or MOST_FILES)
            ]
            keep(mutant, imported(mutant, of_waiting[mutant.digest] or near))
    found = dict(lines_of(results))
    return {mutant: found[mutant.digest] for mutant in mutants if mutant.digest in found}


def append(path: Path, value: Any) -> None:
    """Add a value to a file of JSON lines."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(value) + "\n")


def lines_of(path: Path) -> list[Any]:
    """Return the values of a file of JSON lines, or none if there is no file."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return [json.loads(line) for line in text.splitlines()]


def counted(module: str, results: dict[Mutant, str], reasons: dict[Change, str]) -> Tally:
    """Count the changes of a module that were tried, and describe those that survived."""
    survived = [m for m, noticed in results.items() if m.module == module and not noticed]
    unexplained = [mutant for mutant in survived if change_of(mutant) not in reasons]
    num_tried = sum(mutant.module == module for mutant in results)
    lines = [
        "\n    ".join((f"  line {mutant.line}", *changed_lines(mutant))) for mutant in unexplained
    ]
    without_effect = len(survived) - len(unexplained)
    return Tally(module, num_tried - len(survived), without_effect, tuple(lines))


def change_of(mutant: Mutant) -> Change:
    """Return the lines that a change takes away and adds."""
    before, after = (
        "\n".join(line[1:].strip() for line in changed_lines(mutant) if line[0] == sign)
        for sign in "-+"
    )
    return Change(mutant.module, before, after)


def changed_lines(mutant: Mutant) -> list[str]:
    """Return the lines that were taken away or added, with - or + before them."""
    texts = (text.splitlines() for text in (mutant.before, mutant.after))
    lines = unified_diff(*texts, n=0, lineterm="")
    return [line for line in lines if line[:1] in "+-" and line[:3] not in ("+++", "---")]


if __name__ == "__main__":
    main()
