"""Write the published tables again: `make tables`, or `make tables TABLE=values` for one of them.

    python benchmarks/tables.py --list           # what there is, and where it is written
    python benchmarks/tables.py                  # all, hours
    python benchmarks/tables.py values --limit 4 --out runs/trial   # printed, of few graphs

Tables are written into the pages, between `<!-- made by make tables: NAME -->` and `<!-- end -->`:
those that compare methods, and the first table that another script prints. All that a script
prints is kept in `runs/tables/NAME.md`, and some write their pages themselves. With `--limit`, a
script runs its trial, where it has one. Everything goes on where it was interrupted.
"""

import argparse
import random
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from faithfulness import named

import graphxai as gx
from gps import load_gps
from graphxai.datasets.molecules import load_bace
from graphxai.evaluation import Report, merged
from graphxai.evaluation.sources import bace_part
from graphxai.explainers import Explainer, get_explainer
from graphxai.runtime.writing import markdown_table

ROOT = Path(__file__).resolve().parents[1]
PRETRAINED = ROOT / "models" / "graphormer" / "pretrained"
CHEAP = ("path_marginals", "lrp_path", "occlusion", "lrp", "lrp_ah_ln", "gae", "gradient_input")
TITLES = {
    "auac": "AUAC ↑",
    "au_mse": "AU-MSE ↓",
    "srg": "SRG ↑",
    "exchange_error": "error of exchanges ↓",
}
TRAINED = ROOT / "runs" / "hybrids" / "models"  # by `python benchmarks/hybrids.py train`
SEEDS = (0, 1)  # of hybrid models
HYBRIDS = {
    "gine": "GPS with GINE",
    "gatedgcn": "gated convolution",
    "exphormer": "sparse attention",
    "gin": "GIN",
}
VALUES = {"lipophilicity": "log D", "solubility": "log solubility"}
RENDERED = Mapping[str, Callable[[dict[str, Report]], Iterator[str]]]  # by page


@dataclass(frozen=True)
class Script:
    """A script that makes tables of its own.

    Attributes:
        page: the page that has them.
        calls: what is called, one after another: a script in `benchmarks/` with its arguments.
        trial: a call of seconds that makes the same tables of little, where `{out}` is a folder;
            None if there is none.
    """

    page: str
    calls: tuple[str, ...]
    trial: str | None = None


SCRIPTS = {
    "kinds": Script("benchmarks/results/kinds.md", ("kinds.py",)),
    "spellings": Script("benchmarks/results/spellings.md", ("spellings.py",)),
    "ways": Script("benchmarks/results/ways.md", ("ways.py",), "ways.py --compounds 2"),
    "hybrids": Script("benchmarks/hybrids.md", ("hybrids.py train", "hybrids.py test")),
    "shares": Script(
        "benchmarks/results/shares.md",
        ("hybrids.py train", "shares.py"),
        "shares.py --compounds 3 --bundled --out {out}",
    ),
    "faithfulness": Script(
        "benchmarks/faithfulness.md", ("faithfulness.py train", "faithfulness.py test")
    ),
    "ground-truth": Script(
        "benchmarks/ground_truth.md", ("ground_truth.py --out runs/ground-truth",)
    ),
    "reproduce": Script("benchmarks/reproduce.md", ("reproduce.py --out runs/reproduce",)),
    "moleculeace": Script(
        "benchmarks/moleculeace.md", ("moleculeace.py",), "moleculeace.py --report"
    ),
    "own-data": Script("benchmarks/own_data.md", ("own_data.py",), "own_data.py --report"),
    "removal": Script(
        "docs/howto/own-table.md",
        ("removal.py",),
        "removal.py --epochs 1 --compounds 80 --seeds 0 1 --out {out}",
    ),
    "speed": Script("benchmarks/speed.md", ("speed.py",)),
}


def shapley(orders: int) -> Explainer:
    return named(f"shapley_sampling, {orders} orders", "shapley_sampling", permutations=orders)


ORDERS = ("auac", "au_mse", "srg")
ORDERED = (*CHEAP, "learned", "rollout", "attention_last")


def measure_bace(folder: Path, limit: int | None) -> dict[str, Report]:
    model = gx.load("bace")
    source = bace_part(model).sample(limit)
    methods = [*ORDERED, "shapley_sampling"]
    options: Any = {"labels": source.labels, "metrics": ORDERS, "out": folder, "resume": True}
    return {"bace": gx.evaluate(model, source.inputs, methods, **options)}


def measure_bace_values(folder: Path, limit: int | None) -> dict[str, Report]:
    model = gx.load("bace")
    source = bace_part(model).sample(limit or 48, seed=46)
    methods = [*map(get_explainer, ORDERED), shapley(8), shapley(32)]
    options: Any = {"metrics": ["exchange_error"], "steps": 2, "out": folder, "resume": True}
    report = gx.evaluate(model, source.inputs, methods, labels=source.labels, **options)
    return {"bace": report}


def measure_hybrid_values(folder: Path, limit: int | None) -> dict[str, Report]:
    """Measure the models of `hybrids.py` on BACE, by kind."""
    compounds, reports = load_bace(), {}
    methods = [*map(get_explainer, ("path_marginals", "lrp_path", "lrp", "occlusion")), shapley(8)]
    for kind, title in HYBRIDS.items():
        of_kind = []
        for path in [TRAINED / f"{kind}-bace-{seed}" for seed in SEEDS]:
            model, card = load_gps(path, "bace", kind)
            chosen = random.Random(46).sample(card["split"]["test"], limit or 5)
            inputs = {f"{path.name} {k}": compounds[k].smiles for k in chosen}
            labels = {f"{path.name} {k}": int(compounds[k].y[0, 0]) for k in chosen}
            options: Any = {"metrics": ["exchange_error"], "steps": 2, "resume": True}
            options |= {"labels": labels, "out": folder / path.name}
            of_kind.append(gx.evaluate(model, inputs, methods, **options))
        reports[title] = merged(of_kind)
    return reports


def measure_values(folder: Path, limit: int | None) -> dict[str, Report]:
    reports = {}
    for name in VALUES:
        table = pd.read_csv(PRETRAINED / name / "held_out.csv")
        smiles = table[table.part == "test"].smiles.sample(limit or 30, random_state=46)
        methods = [*map(get_explainer, CHEAP), shapley(8)]
        reports[name] = gx.evaluate(
            gx.load(name), dict(smiles.items()), methods, out=folder / name, resume=True
        )
    return reports


def count(report: Report) -> int:
    """Return how many graphs were measured."""
    return len({unit.graph for unit in report.units})


def table_of(report: Report, metrics: Sequence[str], order: str, digits: int = 3) -> list[str]:
    """Return the lines of a table with a row for each method, the best by `order` first."""
    costs, intervals = report.passes(), {metric: report.intervals(metric) for metric in metrics}
    rows = []
    for name in report.ranking(order):
        each = [intervals[metric][name] for metric in metrics]
        cells = [f"{e.mean:.{digits}f} [{e.low:.{digits}f}, {e.high:.{digits}f}]" for e in each]
        rows.append([f"`{name}`", *cells, costs[name]])
    return [
        markdown_table([("method", *(TITLES[metric] for metric in metrics), "passes"), *rows]),
        "",
    ]


def level_with_best(report: Report, metric: str) -> str:
    """Say which method has the best mean, and from which others it cannot be told."""
    level = [f"`{t.second}`" for t in report.against_the_best(metric) if not t.significant]
    best = report.ranking(metric)[0]
    rest = f"; {', '.join(level)} cannot be told from it." if level else ", ahead of all others."
    return f"* By {TITLES[metric][:-2]}, `{best}` has the best mean{rest}"


def details(report: Report) -> Iterator[str]:
    """Yield what is said below a table of one report."""
    known = report.robustness_sentences()  # the first table of a page has them
    yield from (f"* {line}" for line in report.sentences() if line not in known)
    for metric in report.metrics():
        yield level_with_best(report, metric)
        tests = report.compare("lrp", metric=metric)
        level = ", ".join(f"`{t.second}`" for t in tests if not t.significant) or "no other"
        most = max((t.p_adjusted for t in tests if t.significant), default=0.05)
        rest = f"differs from all others (p up to {most:.1g})"
        yield f"  `lrp` cannot be told from {level}, and {rest}."


def bace_in_full(reports: dict[str, Report]) -> Iterator[str]:
    report = reports["bace"]
    yield f"{count(report)} compounds:\n"
    yield from table_of(report, ORDERS, "auac")
    yield from (f"* {line}" for line in report.robustness_sentences())
    yield from details(report)


def bace_values(reports: dict[str, Report]) -> Iterator[str]:
    report = reports["bace"]
    yield f"{count(report)} compounds:\n"
    intervals = report.intervals("exchange_error")
    rows = [[f"`{name}`", str(intervals[name])] for name in report.ranking("exchange_error")]
    yield from [markdown_table([["method", TITLES["exchange_error"]], *rows]), ""]
    yield from details(report)


def bace_chosen(reports: dict[str, Report]) -> Iterator[str]:
    """Yield the means alone: intervals and tests are on the page of results."""
    report = reports["bace"]
    means = {metric: report.intervals(metric) for metric in ORDERS}
    rows = [
        [f"`{name}`", *(f"{of[name].mean:z.3f}" for of in means.values()), report.passes()[name]]
        for name in report.ranking("auac")
    ]
    yield from [markdown_table([["method", *map(TITLES.get, ORDERS), "passes"], *rows]), ""]


def values_chosen(reports: dict[str, Report]) -> Iterator[str]:
    """Yield one table of both models: the methods by their error on the first."""
    intervals = {
        (name, metric): report.intervals(metric)
        for name, report in reports.items()
        for metric in ("exchange_error", "auac")
    }
    first = next(iter(reports.values()))
    rows = []
    for method in first.ranking("exchange_error"):
        if method in ("ones", "reverse"):
            continue
        each = [of[method] for of in intervals.values()]
        cells = [f"{e.mean:.2f} [{e.low:.2f}, {e.high:.2f}]" for e in each]
        rows.append([f"`{method}`", *cells])
    head = [f"{VALUES[name]}: {TITLES[metric]}" for name, metric in intervals]
    yield from [markdown_table([["method", *head], *rows]), ""]


def hybrid_values(reports: dict[str, Report]) -> Iterator[str]:
    """Yield the means of each kind of model, and that of all with its interval."""
    every = merged(reports.values())
    columns = [report.intervals("exchange_error") for report in reports.values()]
    rows = [
        [f"`{name}`", *(f"{of[name].mean:.2f}" for of in columns), str(interval)]
        for name, interval in every.intervals("exchange_error").items()
        if name not in ("ones", "reverse")
    ]
    shares = [f"{report.size_share().mean:.2f}" for report in reports.values()]
    rows.append(["explained by the size", *shares, str(every.size_share())])
    head = ["method", *reports, f"all {count(every)} pairs of a model and a compound"]
    yield from [markdown_table([head, *rows]), ""]


@dataclass(frozen=True)
class Table:
    """How the reports of a table are measured, and what each page shows of them."""

    measure: Callable[[Path, int | None], dict[str, Report]]
    pages: RENDERED


TABLES = {
    "bace": Table(
        measure_bace,
        {"benchmarks/results/bace_methods.md": bace_in_full, "docs/choose.md": bace_chosen},
    ),
    "bace-values": Table(measure_bace_values, {"benchmarks/results/bace_methods.md": bace_values}),
    "hybrid-values": Table(measure_hybrid_values, {"benchmarks/hybrids.md": hybrid_values}),
    "values": Table(measure_values, {"docs/choose.md": values_chosen}),
}


def write_block(page: Path, name: str, lines: Iterator[str]) -> None:
    """Replace what stands between the marks of a table on a page.

    Raises:
        ValueError: the page has no such marks.
    """
    mark = f"<!-- made by make tables: {name} -->\n"
    text = page.read_text(encoding="utf-8")
    if mark not in text:
        raise ValueError(f"{page} has no line {mark.strip()!r}.")
    block = re.compile(f"{re.escape(mark)}.*?<!-- end -->", re.DOTALL)
    content = "\n".join(lines).strip("\n")
    new = f"{mark}{content}\n<!-- end -->"
    page.write_text(block.sub(lambda _: new, text, count=1), encoding="utf-8")


def make(name: str, out: Path, limit: int | None) -> None:
    """Measure one table, and write it."""
    folder = out / name
    if name in TABLES:
        reports = TABLES[name].measure(folder, limit)
        for page, render in TABLES[name].pages.items():
            if limit:  # a trial
                print("\n".join(render(reports)))
            else:
                write_block(ROOT / page, name, render(reports))
        return
    script = SCRIPTS[name]
    if limit:
        said = f"{name} has no trial."
        print(printed_by(script.trial.format(out=folder)) if script.trial else said)
        return
    printed = [printed_by(call) for call in script.calls][-1]
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.with_suffix(".md").write_text(printed, encoding="utf-8")
    if f"<!-- made by make tables: {name} -->" in (ROOT / script.page).read_text(encoding="utf-8"):
        write_block(ROOT / script.page, name, iter(first_table(printed)))


def printed_by(call: str) -> str:
    """Run a script of this folder, and return what it prints."""
    script, *arguments = call.split()
    command = [sys.executable, str(ROOT / "benchmarks" / script), *arguments]
    return subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


def first_table(printed: str) -> list[str]:
    """Return the lines of the first table in a text."""
    lines = printed.splitlines()
    start = next(k for k, line in enumerate(lines) if line.startswith("|"))
    return list(takewhile(lambda line: line.startswith("|"), lines[start:]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", nargs="*", help="names; by default all")
    parser.add_argument("--list", action="store_true", help="list the tables and their pages")
    parser.add_argument("--limit", type=int, help="print the table of this many graphs instead")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "tables")
    options = parser.parse_args()
    torch.set_num_threads(1)
    pages = {name: ", ".join(table.pages) for name, table in TABLES.items()}
    pages |= {name: script.page for name, script in SCRIPTS.items()}
    if unknown := set(options.tables) - set(pages):
        parser.error(f"no table {', '.join(sorted(unknown))}; there are {', '.join(pages)}.")
    if options.list:
        print("\n".join(f"{name:14s}{where}" for name, where in pages.items()))
        return
    for name in options.tables or pages:
        make(name, options.out, options.limit)


if __name__ == "__main__":
    main()
