"""Test whether a method of at most 20 passes is more faithful than Shapley sampling.

    python benchmarks/faithfulness.py register  # writes the registration
    python benchmarks/faithfulness.py train     # the seven models that are not bundled
    python benchmarks/faithfulness.py pilot     # fewer methods, on validation graphs
    python benchmarks/faithfulness.py test      # on test graphs, once

The test is registered before it is run: `faithfulness_registration.json` names the primary method,
what it is compared with, models, graphs, seeds, tests and bars. `test` runs only if that file is
committed, unchanged, and says what this script would do. Every stage continues where it was
interrupted, in steps of sixteen graphs, and `--only NAME` takes one model. Tables and a figure of
passes against faithfulness go to the folder of results (`--out`, by default `runs/faithfulness`).
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import graphxai as gx
from gps import train_gps
from graphxai.contract.inputs import prepare_for
from graphxai.contract.target import Target
from graphxai.evaluation import Report, merged
from graphxai.evaluation.best_ordering import best_areas
from graphxai.evaluation.sources import BenchmarkSource
from graphxai.evaluation.statistics import bootstrap, compare_pairs
from graphxai.explainers import Explainer, get_explainer
from graphxai.explainers.traits import SEARCHES
from reproduce import train_bace, train_digits
from tested_models import DRAWN, TESTED_MODELS, graphs_of

REGISTRATION = Path(__file__).with_name("faithfulness_registration.json")
PRIMARY = "path_marginals 16"
SHAPLEY = "shapley 8, mean over seeds"
MEASURES = ("auac", "au_mse", "srg")
OPERATORS = ("mask", "zero")
SEEDS = range(5)
SEARCHED = {"BACE": 20, "MNIST": 8}  # graphs of each model whose best ordering is searched


def named(name: str, method: str, **options: Any) -> Explainer:
    explainer = get_explainer(method, **options)
    explainer.name = name  # type: ignore[misc]
    return explainer


def methods(part: str) -> list[Explainer]:
    """Return the methods of a part, each with its options under its own name."""
    pilot = part == "pilot"
    names = ("lrp_path",) if pilot else ("lrp", "lrp_path", "gae", "occlusion")
    rounds = {
        "path_marginals": (8, 16) if pilot else (4, 8, 16, 32),
        "order_marginals": (2,) if pilot else (1, 2, 4),
    }
    chosen = [get_explainer(name) for name in names]
    chosen += [named(f"{name} {r}", name, rounds=r) for name, rs in rounds.items() for r in rs]
    chosen += [shapley(8, seed) for seed in (SEEDS[:2] if pilot else SEEDS)]
    return chosen + ([] if pilot else [shapley(orders, 0) for orders in (1, 2, 4, 32)])


def shapley(orders: int, seed: int) -> Explainer:
    return named(f"shapley {orders}/{seed}", "shapley_sampling", permutations=orders, seed=seed)


def passes(name: str, nodes: float) -> float:
    """Return how many graphs go through the network. A backward pass counts as one more."""
    method, _, budget = name.partition(" ")
    number = int(budget.partition("/")[0].partition(",")[0] or 0)
    return {
        "random": 0,
        "lrp": 2,
        "gae": 2,
        "lrp_path": 4,
        "occlusion": nodes,
        "path_marginals": 4 + 2 * number,
        "order_marginals": 4 + number * nodes,
        "learned": 8,
        "shapley": number * nodes,
    }[method]


def registration() -> dict[str, Any]:
    """Return what the registration file says: all that decides the outcome."""
    return {
        "question": "Is a method of at most 20 forward and 20 backward passes, without training,"
        " more faithful than Shapley sampling over 8 orders?",
        "primary": {"method": "path_marginals", "rounds": 16, "passes": "18 forward, 18 backward"},
        "compared with": {
            "first": "shapley_sampling, 8 orders, antithetic, mean over seeds 0 to 4 of each graph",
            "second": ["shapley_sampling, 32 orders, seed 0", "lrp_path"],
        },
        "secondary": {
            "order_marginals": f"1, 2, 4 rounds; it {SEARCHES}, so it is tested by SRG under mask"
            " and AUAC and SRG under zero, which it does not see",
            "path_marginals": "SRG under mask and zero, AUAC under zero; 4, 8 and 32 rounds, to see"
            " how much the number of coalitions matters",
        },
        "measures": list(MEASURES),
        "operators": list(OPERATORS),
        "target": "the true class; all numbers of nodes",
        "models": {
            name: {"made": tested.made, "data": tested.data, "test graphs": tested.test}
            for name, tested in TESTED_MODELS.items()
        },
        "graphs": f"drawn with seed {DRAWN}, and one more for each further model, from the test"
        " part of each model's own split (BACE) or from the official test images (MNIST), without"
        " the 92 compounds and 64 images on which an earlier trial had tested the primary method",
        "seeds": {"shapley_sampling": list(SEEDS), "graphs": DRAWN, "bootstrap": 0},
        "tests": "Two-sided Wilcoxon signed-rank tests over graphs, a graph counting once with its"
        " mean over models; Holm's correction over the four primary tests (AUAC and AU-MSE, BACE"
        " and MNIST) at 5 %; 95 % bootstrap intervals over graphs, 4,000 draws, seed 0.",
        "bars": {
            "better": "AUAC significantly higher than Shapley 8 on both data sets, over all models",
            "not worse": "AU-MSE not significantly higher than Shapley 8 on either",
            "of the way": "mean AUAC at least .75 (BACE) and .93 (MNIST) of the way from random"
            " scores to the best ordering found by local search",
            "aims": "AUAC above Shapley 32 on both; .85 and .95 of the way",
        },
        "graphs of a model whose best ordering is searched": SEARCHED,
        "processor time": "about half an hour on a free core, estimated from the pilot, besides"
        " training",
        "published": "whatever comes",
    }


def register(path: Path, contents: dict[str, Any]) -> None:
    """Write what a test will do to a file, which is committed before the test is run."""
    path.write_text(json.dumps(contents, indent=1) + "\n")


def require_registration(path: Path, contents: dict[str, Any]) -> None:
    """Exit unless the registration is committed and is what the script would run."""
    if not path.exists() or path.read_text() != json.dumps(contents, indent=1) + "\n":
        sys.exit(f"{path.name} does not say what this script does: register, then commit.")
    status = subprocess.run(
        ["git", "status", "--porcelain", "--ignored", "--", path.name],
        cwd=path.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    if status.returncode or status.stdout.strip():
        sys.exit(f"{path.name} is not committed: commit it before the test is run.")


def measured(name: str, part: str, out: Path) -> tuple[Report, dict[str, float]]:
    """Return the report of one model, and the best AUAC found for its first graphs, by key."""
    tested = TESTED_MODELS[name]
    model, split = tested.load(out / "models")
    source = graphs_of(tested, split, part)
    report = gx.evaluate(
        model,
        source.inputs,
        methods(part),
        labels=source.labels,
        target="true",
        metrics=MEASURES,
        operators=OPERATORS[:1] if part == "pilot" else OPERATORS,
        out=out / part / name,
        resume=True,
    )
    searched = part == "test" and not name.startswith("gps")
    path = out / part / f"{name}-best.json"
    return report, best_found(name, model, source, path) if searched else {}


def best_found(name: str, model: Any, source: BenchmarkSource, path: Path) -> dict[str, float]:
    """Search the best AUAC of the first graphs, from the orders of two methods."""
    areas: dict[str, float] = json.loads(path.read_text()) if path.exists() else {}
    task = model.config.tasks[0]
    for key, value in list(source.inputs.items())[: SEARCHED[TESTED_MODELS[name].data]]:
        if str(key) in areas:
            continue
        target = Target(task.classes[int(source.labels[key])], task.name)
        starts = [
            torch.from_numpy(gx.explain(model, value, method, target=target).relevance)
            for method in ("lrp_path", "shapley_sampling")
        ]
        data = prepare_for(model, value).data
        areas[str(key)] = best_areas(model, data, target, starts)[0]
        path.write_text(json.dumps(areas))
    return areas


def of_methods(report: Report, metric: str, operator: str) -> dict[str, NDArray[np.float64]]:
    """Return values by method, averaged over the seeds of Shapley sampling over 8 orders."""
    values = report.values(metric, operator)
    seeds = [name for name in values if name.startswith("shapley 8/")]
    return values | {SHAPLEY: np.mean([values.pop(name) for name in seeds], axis=0)}


def way(reports: list[Report], best: list[dict[str, float]]) -> dict[str, float]:
    """Return how far each method gets from random scores (0) to the best ordering found (1)."""
    searched: list[float] = []
    reached: dict[str, list[float]] = {}
    for report, areas in zip(reports, best, strict=True):
        searched += areas.values()
        for unit in report.units:
            if str(unit.graph) in areas:
                value = unit.values["mask"]["auac"]
                name = SHAPLEY if unit.method.startswith("shapley 8/") else unit.method
                reached.setdefault(name, []).append(value)
    if not searched:
        return {}
    low, high = np.mean(reached["random"]), np.mean(searched)
    return {name: float((np.mean(v) - low) / (high - low)) for name, v in reached.items()}


def section(
    title: str, reports: list[Report], best: list[dict[str, float]], primary: str = PRIMARY
) -> Iterator[str]:
    """Yield the lines about one data set: all methods, tests, and single models."""
    whole, reach = merged(reports), way(reports, best)
    nodes = float(np.mean([unit.nodes for unit in whole.units]))
    values = {(m, op): of_methods(whole, m, op) for op in whole.operators for m in MEASURES}
    first = values["auac", "mask"]
    yield f"## {title}\n"
    graphs = len({unit.graph for unit in whole.units})
    yield f"{len(reports)} models, {graphs} graphs, {nodes:.0f} nodes on average.\n"
    columns = list(values)
    heads = [f"{metric} ({operator})" for metric, operator in columns]
    yield f"| method | passes | {' | '.join(heads)} | of the way |"
    yield "|---" * (len(heads) + 3) + "|"
    ranked = sorted(first, key=lambda name: -np.nanmean(first[name]))
    for name in ranked:
        note = f" ({SEARCHES})" if name.startswith("order_marginals") else ""
        cells = [str(bootstrap(values[column][name])) for column in columns]
        reached = f"{reach[name]:.2f}" if name in reach else ""
        yield f"| {name}{note} | {passes(name, nodes):.0f} | {' | '.join(cells)} | {reached} |"
    yield "\nDifferences, paired over graphs (Wilcoxon; p as it is):\n"
    yield "| method | minus | measure | difference [95 %] | p |\n|---|---|---|---|---|"
    for column in columns:
        unseen = ["order_marginals 2", "order_marginals 4"] if column != ("auac", "mask") else []
        for name in filter(first.__contains__, [primary, *unseen]):
            for other in filter(first.__contains__, (SHAPLEY, "shapley 32/0", "lrp_path")):
                (c,) = compare_pairs(values[column], [(name, other)])
                yield f"| {name} | {other} | {' '.join(column)} | {c.difference} | {c.p:.2g} |"
    yield "\nEach model alone (AUAC / AU-MSE):\n"
    candidates = (
        "random",
        "lrp_path",
        SHAPLEY,
        "shapley 32/0",
        PRIMARY,
        primary,
        "order_marginals 2",
    )
    shown = [name for name in dict.fromkeys(candidates) if name in first]
    yield f"| model | {' | '.join(shown)} |\n{'|---' * (len(shown) + 1)}|"
    for report in reports:
        alone = [of_methods(report, m, "mask") for m in ("auac", "au_mse")]
        cells = [" / ".join(f"{np.nanmean(v[name]):.3f}" for v in alone) for name in shown]
        yield f"| {report.settings['checkpoints'][0]} | {' | '.join(cells)} |"
    yield ""


def registered(sets: dict[str, Report], primary: str = PRIMARY) -> Iterator[str]:
    """Yield the four registered tests, Holm-corrected together."""
    yield f"## The registered tests: {primary} minus {SHAPLEY}\n"
    values: dict[str, NDArray[np.float64]] = {}
    pairs = []
    for title, report in sets.items():
        for metric in ("auac", "au_mse"):
            values_by_method, heading = (
                of_methods(report, metric, "mask"),
                f"{title} {metric}",
            )
            values |= {
                f"{heading} ours": values_by_method[primary],
                f"{heading} theirs": values_by_method[SHAPLEY],
            }
            pairs.append((f"{heading} ours", f"{heading} theirs"))
    yield "| data, measure | difference [95 %] | p (Holm) | |\n|---|---|---|---|"
    for c in compare_pairs(values, pairs):
        heading = c.first.removesuffix(" ours")
        better = (c.difference.mean > 0) != heading.endswith("au_mse")
        verdict = ("better" if better else "worse") if c.significant else "not significant"
        yield f"| {heading} | {c.difference} | {c.p_adjusted:.2g} | {verdict} |"
    yield ""


def draw(sets: dict[str, Report], path: Path) -> None:
    """Draw AUAC and SRG of all methods against their passes, with a curve for each family."""
    import matplotlib.pyplot as plt

    size = {"figsize": (11, 4 * len(sets)), "layout": "constrained", "squeeze": False}
    figure, axes = plt.subplots(len(sets), 2, **size)
    for row, (title, report) in zip(axes, sets.items(), strict=True):
        nodes = float(np.mean([unit.nodes for unit in report.units]))
        for axis, metric in zip(row, ("auac", "srg"), strict=True):
            values_by_method = of_methods(report, metric, "mask")
            families: dict[str, list[tuple[float, float]]] = {}
            for name, value in values_by_method.items():
                point = max(passes(name, nodes), 1), float(np.nanmean(value))
                families.setdefault(name.partition(" ")[0], []).append(point)
            for family, points in families.items():
                note = f" ({SEARCHES})" if family == "order_marginals" else ""
                axis.plot(*zip(*sorted(points), strict=True), "o-", label=f"{family}{note}")
            axis.set(xscale="log", xlabel="passes a graph", ylabel=metric.upper(), title=title)
    axes[0, 0].legend(fontsize=8)
    figure.savefig(path, dpi=150)


def run(part: str, out: Path, only: str | None) -> None:
    """Measure all models of a part, or one, and write what is complete."""
    chosen = TESTED_MODELS if only is None else [only]
    names = [name for name in chosen if getattr(TESTED_MODELS[name], part)]
    results = {name: measured(name, part, out) for name in names}
    lines: list[str] = [f"# {part}\n"]
    sets: dict[str, Report] = {}
    for title in ("BACE", "MNIST"):
        title_results = [results[name] for name in names if TESTED_MODELS[name].data == title]
        if title_results:
            reports = [report for report, _ in title_results]
            sets[title] = merged(reports)
            lines += section(title, reports, [best for _, best in title_results])
    if part == "test" and len(results) == len(TESTED_MODELS):
        lines += registered(sets)
    (out / f"{part}.md").write_text("\n".join(lines), encoding="utf-8")
    draw(sets, out / f"{part}.png")
    print("\n".join(lines))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stage", choices=("register", "train", "pilot", "test"))
    parser.add_argument("--out", type=Path, default=Path("runs/faithfulness"))
    parser.add_argument("--only", choices=list(TESTED_MODELS), help="one model")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.stage == "register":
        register(REGISTRATION, registration())
        return
    if options.stage == "train":
        for name in TESTED_MODELS if options.only is None else [options.only]:
            folder, (kind, _, which) = options.out / "models" / name, name.partition("-")
            if kind == "gps":
                train_gps(folder, which)
            elif which.isdigit():
                (train_bace if kind == "bace" else train_digits)(folder, int(which), True)
        return
    if options.stage == "test":
        require_registration(REGISTRATION, registration())
    run(options.stage, options.out, options.only)


if __name__ == "__main__":
    main()
