"""Is a method better than Shapley sampling on hybrid models? Two tests, each registered first.

    python benchmarks/hybrids.py register  # writes the registration
    python benchmarks/hybrids.py train     # the models, two hours
    python benchmarks/hybrids.py test      # on test graphs, once
    python benchmarks/hybrids.py spread    # of Shapley sampling over five seeds, on some of them

The first test, `gates`, is of `path_marginals` on 24 models, and its unit is a pair of a model and
a graph. The second, `--test sum`, is of the sum of `path_marginals` and `occlusion` on these models
and 24 more, and its unit is the model.

The file of each registration names the primary method, what it is compared with, models, graphs,
tests and bars. `test` runs only if that file is committed and says what this script would do. It
continues where it was interrupted, and `--only NAME` takes one model, so that several processes can
share the work.
"""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from faithfulness import named, register, require_registration
from hybrid_tests import (
    GATES,
    KINDS,
    RANKING,
    SHAPLEY,
    SUM,
    TESTS,
    TITLES,
    HybridTest,
    graphs_of,
    parts_of,
)
from numpy.typing import NDArray

import graphxai as gx
from gps import load_gps, train_gps
from graphxai.evaluation import Report, merged
from graphxai.evaluation.statistics import bootstrap, compare_pairs

SPREAD = {"bace": 6, "mnist": 2}  # graphs on which Shapley sampling has five seeds


def measured(test: HybridTest, name: str, out: Path) -> Report:
    """Return the report of a model's graphs."""
    kind, data, _ = parts_of(name)
    model, _ = load_gps(out / "models" / name, data, kind)
    source = graphs_of(test, name)
    return gx.evaluate(
        model,
        source.inputs,
        test.methods(),
        labels=source.labels,
        target="true",
        metrics=test.measures,
        out=out / ("test" if test is GATES else "test of the sum") / name,
        resume=True,
    )


def spread(name: str, out: Path) -> str:
    """Return a row: AUAC and SRG of Shapley sampling, and their standard deviation over seeds."""
    kind, data, _ = parts_of(name)
    model, _ = load_gps(out / "models" / name, data, kind)
    source = graphs_of(GATES, name).sample(SPREAD[data])
    seeds = [named(f"{k}", "shapley_sampling", permutations=32, seed=k) for k in range(5)]
    report = gx.evaluate(
        model,
        source.inputs,
        seeds,
        labels=source.labels,
        target="true",
        metrics=RANKING,
        out=out / "spread" / name,
        resume=True,
    )
    cells = []
    for metric in RANKING:
        values = report.values(metric)
        means = [np.nanmean(values[each.name]) for each in seeds]
        cells.append(f"{np.mean(means):.3f} ± {np.std(means, ddof=1):.3f}")
    return f"| {KINDS[kind]}, {TITLES[data]} | {SPREAD[data]} | {' | '.join(cells)} |"


def section(test: HybridTest, reports: list[Report]) -> Iterator[str]:
    """Yield the lines about the models of one data set."""
    whole = merged(reports)
    values = {metric: by_unit(reports, metric, "pair") for metric in test.measures}
    seconds = whole.seconds()
    yield f"{len(values['auac'][SHAPLEY])} pairs of a model and a graph.\n"
    columns = ["method", *test.measures, "seconds"]
    yield f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|"
    for name in sorted(values["auac"], key=lambda name: -np.nanmean(values["auac"][name])):
        cells = [str(bootstrap(values[metric][name])) for metric in test.measures]
        yield f"| {name} | {' | '.join(cells)} | {seconds[name]:.3f} |"
    yield f"\n| {test.primary} minus | measure | difference [95 %] | p, not corrected |"
    yield "|---|---|---|---|"
    for other in whole.methods:
        for metric in test.measures if other != test.primary else ():
            (c,) = compare_pairs(values[metric], [(test.primary, other)])
            yield f"| {other} | {metric} | {c.difference} | {c.p:.2g} |"
    yield ""


def by_unit(reports: Sequence[Report], metric: str, unit: str) -> dict[str, NDArray[np.float64]]:
    """Return the values of each method: one for each pair, or the mean of each model."""
    values = [report.values(metric) for report in reports]
    if unit == "pair":
        return {name: np.concatenate([v[name] for v in values]) for name in values[0]}
    return {name: np.array([np.nanmean(v[name]) for v in values]) for name in values[0]}


def differences(test: HybridTest, reports: dict[str, Report], unit: str) -> Iterator[str]:
    """Yield the four differences from Shapley sampling, Holm-corrected together."""
    values: dict[str, NDArray[np.float64]] = {}
    pairs = []
    for data, title in TITLES.items():
        chosen = [report for name, report in reports.items() if parts_of(name)[1] == data]
        for metric in RANKING:
            units, what = by_unit(chosen, metric, unit), f"{title} {metric}"
            values |= {f"{what} ours": units[test.primary], f"{what} theirs": units[SHAPLEY]}
            pairs.append((f"{what} ours", f"{what} theirs"))
    registered = "registered" if unit == test.unit else "not registered"
    yield f"## {test.primary} minus {SHAPLEY}, unit: {unit} ({registered})\n"
    yield "| data, measure | higher in | difference [95 %] | p | p (Holm) | |"
    yield "|---|---|---|---|---|---|"
    for c in compare_pairs(values, pairs):
        better = "better" if c.difference.mean > 0 else "worse"
        verdict = better if c.significant else "not significant"
        ours, theirs = values[c.first], values[c.second]
        higher = f"{int((ours > theirs).sum())} of {len(ours)}"
        cells = [c.first.removesuffix(" ours"), higher, str(c.difference)]
        yield f"| {' | '.join(cells)} | {c.p:.2g} | {c.p_adjusted:.2g} | {verdict} |"
    yield ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stage", choices=("register", "train", "test", "spread"))
    parser.add_argument("--out", type=Path, default=Path("runs/hybrids"))
    parser.add_argument("--only", choices=SUM.models, help="one model")
    parser.add_argument("--test", choices=TESTS, default="gates", help="which of the two tests")
    options = parser.parse_args()
    torch.set_num_threads(1)
    test = TESTS[options.test]
    path = Path(__file__).with_name(test.registration)
    chosen = test.models if options.only is None else [options.only]
    if options.stage == "register":
        register(path, test.registered())
        return
    if options.stage == "train":
        for name in chosen:
            kind, data, seed = parts_of(name)
            train_gps(options.out / "models" / name, data, seed, kind)
        return
    if options.stage == "spread":
        for name in chosen:
            if parts_of(name)[2] == 0:
                print(spread(name, options.out), flush=True)
        return
    require_registration(path, test.registered())
    reports = {name: measured(test, name, options.out) for name in chosen}
    if options.only is None:
        lines = "\n".join(summary(test, reports))
        (options.out / f"{options.test}.md").write_text(lines, encoding="utf-8")
        print(lines)


def summary(test: HybridTest, reports: dict[str, Report]) -> Iterator[str]:
    """Yield the lines about all models."""
    for unit in sorted(("pair", "model"), key=lambda unit: unit != test.unit):
        yield from differences(test, reports, unit)
    for data, title in TITLES.items():
        yield f"## {title}\n"
        chosen = [report for name, report in reports.items() if parts_of(name)[1] == data]
        yield from section(test, chosen)
        yield from by_kind(test, reports, data)


def by_kind(test: HybridTest, reports: dict[str, Report], data: str) -> Iterator[str]:
    """Yield AUAC and SRG of each method on each kind of model, and how it differs from Shapley."""
    of_kinds = []
    for kind in KINDS:
        chosen = [r for name, r in reports.items() if parts_of(name)[:2] == (kind, data)]
        of_kinds.append({metric: by_unit(chosen, metric, "pair") for metric in RANKING})
    yield "AUAC / SRG by kind of model:\n"
    yield f"| method | {' | '.join(KINDS.values())} |\n{'|---' * (len(KINDS) + 1)}|"
    for method in of_kinds[0]["auac"]:
        cells = [" / ".join(f"{np.nanmean(v[m][method]):.3f}" for m in RANKING) for v in of_kinds]
        yield f"| {method} | {' | '.join(cells)} |"
    cells = []
    for values in of_kinds:
        pairs = [compare_pairs(values[m], [(test.primary, SHAPLEY)])[0] for m in RANKING]
        cells.append(" / ".join(f"{c.difference} (p {c.p:.2g})" for c in pairs))
    yield f"| {test.primary} minus {SHAPLEY} | {' | '.join(cells)} |"
    yield ""


if __name__ == "__main__":
    main()
