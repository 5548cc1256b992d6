"""Are presence gates better than Shapley sampling on hybrid models? One test, registered first.

    python benchmarks/hybrids.py register  # writes the registration
    python benchmarks/hybrids.py train     # the models, two hours
    python benchmarks/hybrids.py test      # on test graphs, once
    python benchmarks/hybrids.py spread    # of Shapley sampling over five seeds, on some of them

`hybrids_registration.json` names the primary method, what it is compared with, models, graphs,
tests and bars. `test` runs only if that file is committed and says what this script would do. It
continues where it was interrupted, and `--only NAME` takes one model, so that several processes can
share the work.
"""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from faithfulness import named, register, require_registration
from numpy.typing import NDArray

import graphxai as gx
from gps import load_gps, train_gps
from graphxai.datasets.molecules import load_bace
from graphxai.datasets.splits import random_split
from graphxai.evaluation import Report, merged
from graphxai.evaluation.sources import BenchmarkSource, mnist_part
from graphxai.evaluation.statistics import bootstrap, compare_pairs
from graphxai.explainers import Explainer, get_explainer

REGISTRATION = Path(__file__).with_name("hybrids_registration.json")
KINDS = {
    "gine": "GPS with GINE",
    "gatedgcn": "GPS with a gated convolution",
    "exphormer": "sparse attention on an expander graph",
    "gin": "GIN without attention",
}
SEEDS = (0, 1, 2)
GRAPHS = 10  # test graphs of each model
DRAWN, SEEN = 2028, 2027  # seeds of the graphs of this test and of the smaller one before it
SEEN_GRAPHS = {"bace": 24, "mnist": 9}
PRIMARY, SHAPLEY = "path_marginals", "shapley 32"
MEASURES = ("auac", "srg", "au_mse", "partial_sums_scaled")
RANKING = ("auac", "srg")
TITLES = {"bace": "BACE", "mnist": "MNIST"}
SPREAD = {"bace": 6, "mnist": 2}  # graphs on which Shapley sampling has five seeds
MODELS = [f"{kind}-{data}-{seed}" for data in TITLES for seed in SEEDS for kind in KINDS]


def methods() -> list[Explainer]:
    shapley = named(SHAPLEY, "shapley_sampling", permutations=32, seed=0)
    others = ("lrp", "lrp_path", "gradient_input", "integrated_gradients", "occlusion")
    return [get_explainer(PRIMARY), shapley, *map(get_explainer, others)]


def registration() -> dict[str, Any]:
    """Return what the registration file says: all that decides the outcome."""
    return {
        "question": "Does path_marginals by presence gates, with 40 passes, order the nodes of"
        " hybrid models better than Shapley sampling over 32 orders?",
        "primary": {"method": PRIMARY, "rounds": 16, "passes": "21 forward, 19 backward"},
        "compared with": "shapley_sampling, 32 orders, antithetic, seed 0",
        "secondary": [
            "AU-MSE and the error of scaled partial sums",
            "lrp, lrp_path, gradient_input, integrated_gradients, occlusion, random",
            "the same differences for each kind of model",
            "the differences of means over the graphs of a model, with the model as the unit",
        ],
        "measures": list(MEASURES),
        "operator": "mask",
        "target": "the true class; all numbers of nodes",
        "models": {"kinds": KINDS, "seeds": list(SEEDS), "data": list(TITLES.values())},
        "graphs": f"{GRAPHS} of each model, so 120 of each data set, drawn with seed {DRAWN} plus"
        " the model's seed, from the test part of the model's split (BACE), or from the official"
        " test images (MNIST). The graphs of the smaller test before this one are left out.",
        "tests": "Two-sided Wilcoxon signed-rank tests over the 120 pairs of a model and a graph;"
        " Holm's correction over the four primary tests (AUAC and SRG, BACE and MNIST) at 5 %;"
        " 95 % bootstrap intervals over the pairs.",
        "bars": {
            "better": "AUAC and SRG significantly higher on both data sets",
            "aims": "on GPS with GINE: AUAC at least .915 and SRG at least .68 on BACE, .79 and .76"
            " on MNIST",
        },
        "seen before": "The smaller test, of one GPS model with GINE for each data set: 24"
        " compounds and 9 digits. All models here are trained anew. Before this file was committed,"
        " only explanations of validation graphs were looked at.",
        "published": "whatever comes",
    }


def parts_of(name: str) -> tuple[str, str, int]:
    """Return kind, data and seed of a model's name."""
    kind, data, seed = name.split("-")
    return kind, data, int(seed)


def graphs_of(name: str, split: dict[str, list[int]]) -> BenchmarkSource:
    """Return the test graphs of a model, without those of the smaller test before this one."""
    _, data, seed = parts_of(name)
    if data == "bace":
        seen = bace_source(random_split(len(load_bace()), 0).test)
        source = bace_source(split["test"])
    else:
        seen = source = mnist_part()
    left_out = seen.sample(SEEN_GRAPHS[data], seed=SEEN).inputs
    unseen = {key: value for key, value in source.inputs.items() if key not in left_out}
    return BenchmarkSource(source.title, unseen, source.labels).sample(GRAPHS, seed=DRAWN + seed)


def bace_source(positions: Sequence[int]) -> BenchmarkSource:
    """Return the compounds of BACE at these positions of its file."""
    graphs = load_bace()
    return BenchmarkSource(
        "BACE, test",
        {k: graphs[k].smiles for k in positions},
        {k: int(graphs[k].y[0, 0]) for k in positions},
    )


def measured(name: str, out: Path) -> Report:
    """Return the report of a model's graphs."""
    kind, data, _ = parts_of(name)
    model, card = load_gps(out / "models" / name, data, kind)
    source = graphs_of(name, card["split"])
    return gx.evaluate(
        model,
        source.inputs,
        methods(),
        labels=source.labels,
        target="true",
        metrics=MEASURES,
        out=out / "test" / name,
        resume=True,
    )


def spread(name: str, out: Path) -> str:
    """Return a row: AUAC and SRG of Shapley sampling, and their standard deviation over seeds."""
    kind, data, _ = parts_of(name)
    model, card = load_gps(out / "models" / name, data, kind)
    source = graphs_of(name, card["split"]).sample(SPREAD[data])
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


def section(title: str, report: Report) -> Iterator[str]:
    """Yield the lines about the models of one data set, or of one kind on it."""
    values = {metric: report.values(metric) for metric in MEASURES}
    yield f"{title}: {len(report.units) // len(report.methods)} pairs of a model and a graph.\n"
    yield f"| method | {' | '.join(MEASURES)} |\n{'|---' * (len(MEASURES) + 1)}|"
    for name in sorted(values["auac"], key=lambda name: -np.nanmean(values["auac"][name])):
        yield f"| {name} | {' | '.join(str(bootstrap(values[m][name])) for m in MEASURES)} |"
    yield "\n| path_marginals minus | measure | difference [95 %] | p, not corrected |"
    yield "|---|---|---|---|"
    for other in report.methods:
        for metric in MEASURES if other != PRIMARY else ():
            (c,) = compare_pairs(values[metric], [(PRIMARY, other)])
            yield f"| {other} | {metric} | {c.difference} | {c.p:.2g} |"
    yield ""


def by_model(reports: dict[str, Report]) -> Iterator[str]:
    """Yield the difference of the means of each model, and how many models have a higher one."""
    yield "| data, measure | higher in | mean difference over models [95 %] | p over models |"
    yield "|---|---|---|---|"
    for data, title in TITLES.items():
        chosen = [report for name, report in reports.items() if parts_of(name)[1] == data]
        for metric in RANKING:
            means = {
                method: np.array([np.nanmean(r.values(metric)[method]) for r in chosen])
                for method in (PRIMARY, SHAPLEY)
            }
            (c,) = compare_pairs(means, [(PRIMARY, SHAPLEY)])
            higher = int((means[PRIMARY] > means[SHAPLEY]).sum())
            yield f"| {title} {metric} | {higher} of {len(chosen)} | {c.difference} | {c.p:.2g} |"
    yield ""


def registered(sets: dict[str, Report]) -> Iterator[str]:
    """Yield the four registered tests, Holm-corrected together."""
    values: dict[str, NDArray[np.float64]] = {}
    pairs = []
    for title, report in sets.items():
        for metric in ("auac", "srg"):
            of, what = report.values(metric), f"{title} {metric}"
            values |= {f"{what} ours": of[PRIMARY], f"{what} theirs": of[SHAPLEY]}
            pairs.append((f"{what} ours", f"{what} theirs"))
    yield f"## The registered tests: {PRIMARY} minus {SHAPLEY}\n"
    yield "| data, measure | difference [95 %] | p (Holm) | |\n|---|---|---|---|"
    for c in compare_pairs(values, pairs):
        better = "better" if c.difference.mean > 0 else "worse"
        verdict = better if c.significant else "not significant"
        what = c.first.removesuffix(" ours")
        yield f"| {what} | {c.difference} | {c.p_adjusted:.2g} | {verdict} |"
    yield ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stage", choices=("register", "train", "test", "spread"))
    parser.add_argument("--out", type=Path, default=Path("runs/hybrids"))
    parser.add_argument("--only", choices=MODELS, help="one model")
    options = parser.parse_args()
    torch.set_num_threads(1)
    chosen = MODELS if options.only is None else [options.only]
    if options.stage == "register":
        register(REGISTRATION, registration())
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
    require_registration(REGISTRATION, registration())
    reports = {name: measured(name, options.out) for name in chosen}
    if options.only is None:
        lines = "\n".join(summary(reports))
        (options.out / "test.md").write_text(lines, encoding="utf-8")
        print(lines)


def summary(reports: dict[str, Report]) -> Iterator[str]:
    """Yield the lines about all models."""
    sets = {
        title: merged([r for name, r in reports.items() if parts_of(name)[1] == data])
        for data, title in TITLES.items()
    }
    yield from registered(sets)
    yield from by_model(reports)
    for data, title in TITLES.items():
        yield f"## {title}\n"
        yield from section("All kinds", sets[title])
        yield from by_kind(reports, data)


def by_kind(reports: dict[str, Report], data: str) -> Iterator[str]:
    """Yield AUAC and SRG of each method on each kind of model, and how it differs from Shapley."""
    of_kinds = {
        kind: merged([r for name, r in reports.items() if parts_of(name)[:2] == (kind, data)])
        for kind in KINDS
    }
    first, *_ = of_kinds.values()
    yield "AUAC / SRG by kind of model:\n"
    yield f"| method | {' | '.join(KINDS.values())} |\n{'|---' * (len(KINDS) + 1)}|"
    for method in first.methods:
        cells = [
            " / ".join(f"{np.nanmean(r.values(metric)[method]):.3f}" for metric in RANKING)
            for r in of_kinds.values()
        ]
        yield f"| {method} | {' | '.join(cells)} |"
    differences = []
    for report in of_kinds.values():
        pairs = [compare_pairs(report.values(m), [(PRIMARY, SHAPLEY)])[0] for m in RANKING]
        differences.append(" / ".join(f"{c.difference} (p {c.p:.2g})" for c in pairs))
    yield f"| {PRIMARY} minus {SHAPLEY} | {' | '.join(differences)} |"
    yield ""


if __name__ == "__main__":
    main()
