"""Are presence gates better than Shapley sampling on hybrid models? One test, registered first.

    python benchmarks/hybrids.py register  # writes the registration
    python benchmarks/hybrids.py train     # the models
    python benchmarks/hybrids.py test      # on test graphs, once

`hybrids_registration.json` names the primary method, what it is compared with, models, graphs,
tests and bars. `test` runs only if that file is committed and says what this script would do. It
continues where it was interrupted, `--only NAME` takes one model, and `--part K` one of its three
parts of the graphs, so that several processes can share the work.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from faithfulness import named, register, require_registration
from numpy.typing import NDArray

import graphxai as gx
from gps import load_gps, train_gps
from graphxai.datasets.molecules import load_bace
from graphxai.evaluation import Report, merged
from graphxai.evaluation.sources import Source, mnist_test
from graphxai.evaluation.statistics import bootstrap, compare_pairs
from graphxai.explainers import Explainer, get_explainer

REGISTRATION = Path(__file__).with_name("hybrids_registration.json")
MODELS = {"gine-bace": 24, "gine-mnist": 9}  # with how many test graphs
PARTS = 3
DRAWN = 2027  # seed of the graphs
PRIMARY, SHAPLEY = "path_marginals", "shapley 32"
MEASURES = ("auac", "srg", "au_mse")
TITLES = {"bace": "BACE", "mnist": "MNIST"}


def methods() -> list[Explainer]:
    shapley = named(SHAPLEY, "shapley_sampling", permutations=32, seed=0)
    return [get_explainer(PRIMARY), shapley, get_explainer("lrp"), get_explainer("lrp_path")]


def registration() -> dict[str, Any]:
    """Return what the registration file says: all that decides the outcome."""
    return {
        "question": "Does path_marginals by presence gates, with 40 passes, order the nodes of"
        " hybrid models better than Shapley sampling over 32 orders?",
        "primary": {"method": PRIMARY, "rounds": 16, "passes": "21 forward, 19 backward"},
        "compared with": "shapley_sampling, 32 orders, antithetic, seed 0",
        "secondary": ["AU-MSE", "lrp", "lrp_path", "random"],
        "measures": list(MEASURES),
        "operator": "mask",
        "target": "the true class; all numbers of nodes",
        "models": MODELS,
        "graphs": f"drawn with seed {DRAWN} from the test part of the model's split (BACE), or from"
        " the official test images (MNIST)",
        "tests": "Two-sided Wilcoxon signed-rank tests over graphs; Holm's correction over the four"
        " primary tests (AUAC and SRG, BACE and MNIST) at 5 %; 95 % bootstrap intervals over"
        " graphs, 4,000 draws, seed 0.",
        "bars": {
            "better": "AUAC and SRG significantly higher on both data sets",
            "aims": "AUAC at least .915 and SRG at least .68 on BACE, .79 and .76 on MNIST",
        },
        "smaller than planned": "Planned were four kinds of models (GPS with GINE, GPS with a gated"
        " convolution, sparse attention on an expander graph, GIN), three seeds of each and 60"
        " graphs. One kind and one seed are tested, on as many graphs as there is time for; the"
        " script trains the other kinds.",
        "seen before": "Eight validation digits, on which the first coalitions were chosen."
        " An earlier trial with other code had seen test"
        " graphs of GPS models of this kind.",
        "published": "whatever comes",
    }


def graphs_of(name: str, split: dict[str, list[int]]) -> Source:
    """Return the test graphs of a model."""
    if name.endswith("bace"):
        graphs = load_bace()
        labels = {k: int(graphs[k].y[0, 0]) for k in split["test"]}
        source = Source("BACE, test", {k: graphs[k].smiles for k in labels}, labels)
    else:
        source = mnist_test()
    return source.sample(MODELS[name], seed=DRAWN)


def measured(name: str, part: int, out: Path) -> Report:
    """Return the report of one part of a model's graphs."""
    kind, _, data = name.partition("-")
    model, card = load_gps(out / "models" / name, data, kind)
    source = graphs_of(name, card["split"])
    keys = list(source.inputs)[part::PARTS]
    return gx.evaluate(
        model,
        {key: source.inputs[key] for key in keys},
        methods(),
        labels=source.labels,
        target="true",
        metrics=MEASURES,
        out=out / "test" / f"{name}-{part}",
        resume=True,
    )


def section(title: str, report: Report) -> Iterator[str]:
    """Yield the lines about one data set."""
    values = {metric: report.values(metric) for metric in MEASURES}
    graphs = len({unit.graph for unit in report.units})
    nodes = float(np.mean([unit.nodes for unit in report.units]))
    yield f"## {title}\n\n{graphs} graphs, {nodes:.0f} nodes on average.\n"
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
    parser.add_argument("stage", choices=("register", "train", "test"))
    parser.add_argument("--out", type=Path, default=Path("runs/hybrids"))
    parser.add_argument("--only", choices=list(MODELS), help="one model")
    parser.add_argument("--part", type=int, choices=range(PARTS), help="a third of its graphs")
    options = parser.parse_args()
    torch.set_num_threads(1)
    chosen = list(MODELS) if options.only is None else [options.only]
    if options.stage == "register":
        register(REGISTRATION, registration())
        return
    if options.stage == "train":
        for name in chosen:
            kind, _, data = name.partition("-")
            train_gps(options.out / "models" / name, data, 0, kind)
        return
    require_registration(REGISTRATION, registration())
    parts = range(PARTS) if options.part is None else [options.part]
    reports = {name: [measured(name, part, options.out) for part in parts] for name in chosen}
    sets = {TITLES[name.partition("-")[2]]: merged(of) for name, of in reports.items()}
    lines = [line for title, report in sets.items() for line in section(title, report)]
    if len(sets) == len(TITLES) and options.part is None:
        lines += registered(sets)
        (options.out / "test.md").write_text("\n".join(lines), encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
