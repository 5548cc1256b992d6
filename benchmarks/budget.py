"""How faithful is each method for the passes it takes, and does it depend on how nodes are removed?

    python benchmarks/budget.py --out runs/budget [--models bace mnist-superpixels]

Measures every registered method on test graphs of the bundled models with three removal operators,
and Shapley sampling with 1 to 32 orders and five seeds: true class, all steps. Writes `budget.md`,
and a picture of passes against faithfulness. Continues where it was interrupted.
"""

import argparse
import re
from pathlib import Path
from typing import Any

import numpy as np
import torch

import graphxai as gx
from graphxai.evaluation import METRICS, Report
from graphxai.evaluation.sources import Source, bace_test, mnist_test
from graphxai.explainers import REGISTRY, Explainer, get_explainer

GRAPHS = {"bace": 60, "mnist-superpixels": 10}
BUDGETS = (1, 2, 4, 8, 16, 32)
SEEDS = range(5)
OPERATORS = ("mask", "zero", "delete")
MEASURES = ("auac", "srg", "au_mse")
NAMED = (
    "lrp", "lrp_path", "path_marginals", "order_marginals", "learned", "occlusion",
    "gradient_input", "rollout", "random", "gnn_explainer",
)  # fmt: skip


def shapley(orders: int, seed: int) -> Explainer:
    """Return Shapley sampling under a name that tells its orders and seed."""
    explainer = get_explainer("shapley_sampling", permutations=orders, seed=seed)
    explainer.name = f"shapley {orders}/{seed}"  # type: ignore[misc]
    return explainer


def passes(method: str, nodes: float) -> float:
    """Return the graphs sent through the network; a backward or relevance pass counts as one."""
    if method.startswith("shapley "):
        return int(method.split()[1].split("/")[0]) * nodes
    counted = re.findall(r"(\d+) (?:forward|backward|relevance)( per node)?", REGISTRY[method].cost)
    return sum(int(count) * (nodes if per_node else 1) for count, per_node in counted)


def measured(name: str, source: Source, out: Path) -> tuple[Report, Report]:
    """Return all methods under all operators, and Shapley sampling over budgets and seeds."""
    model = gx.load(name)
    common: dict[str, Any] = {"labels": source.labels, "target": "true", "metrics": MEASURES}
    folder = out / model.origin.sha256[:8]
    methods = gx.evaluate(
        model,
        source.inputs,
        "all",
        operators=OPERATORS,
        out=folder / "methods",
        resume=True,
        **common,
    )
    sampled = [shapley(orders, seed) for orders in BUDGETS for seed in SEEDS]
    budgets = gx.evaluate(
        model, source.inputs, sampled, out=folder / "budgets", resume=True, **common
    )
    return methods, budgets


def over_seeds(report: Report, metric: str) -> dict[int, tuple[float, float]]:
    """Return the mean over graphs and seeds, and the spread (standard deviation) of the seeds."""
    values = report.values(metric)
    found = {}
    for orders in BUDGETS:
        means = [np.nanmean(values[shapley(orders, seed).name]) for seed in SEEDS]
        found[orders] = float(np.mean(means)), float(np.std(means, ddof=1))
    return found


def section(title: str, methods: Report, budgets: Report, nodes: float) -> list[str]:
    """Write the tables of one model."""
    first = methods.operators[0]
    graphs = len({unit.graph for unit in methods.units})
    lines = [f"## {title}", "", f"{graphs} test graphs, {nodes:.0f} nodes on average.", ""]
    heads = [f"{m} {'↑' if METRICS[m].higher_is_better else '↓'}" for m in MEASURES]
    lines += [f"| method | passes | {' | '.join(heads)} | rank by AUAC, SRG, AU-MSE |"]
    lines += ["|---" * (len(heads) + 3) + "|"]
    ranked = {m: methods.ranking(m, first) for m in MEASURES}
    found = {m: methods.intervals(m, first) for m in MEASURES}
    for name in ranked["srg"]:
        ranks = ", ".join(str(ranked[m].index(name) + 1) for m in MEASURES)
        cells = " | ".join(str(found[m][name]) for m in MEASURES)
        lines += [f"| {methods.labelled(name)} | {passes(name, nodes):.0f} | {cells} | {ranks} |"]
    lines += ["", "Shapley sampling, mean of five seeds ± their standard deviation:", ""]
    lines += [f"| orders | passes | {' | '.join(heads)} |", "|---" * (len(heads) + 2) + "|"]
    spread = {m: over_seeds(budgets, m) for m in MEASURES}
    for orders in BUDGETS:
        cells = " | ".join("{:.3f} ± {:.3f}".format(*spread[m][orders]) for m in MEASURES)
        lines += [f"| {orders} | {orders * nodes:.0f} | {cells} |"]
    for metric in MEASURES:
        best = methods.against_the_best(metric, first)
        equal = [f"`{c.second}`" for c in best if not c.significant]
        lines += ["", f"Best {metric}: `{best[0].first}`; not significantly different from it: "]
        lines[-1] += (", ".join(equal) or "none") + "."
    lines += ["", "Kendall's tau between the rankings under two removal operators:", ""]
    for metric in MEASURES:
        frame = methods.agreement(metric)
        pairs = [(a, b) for i, a in enumerate(frame) for b in list(frame)[i + 1 :]]
        text = ", ".join(f"{a} and {b} {frame.loc[a, b]:.2f}" for a, b in pairs)
        lines += [f"* {metric}: {text}"]
    return [*lines, ""]


def draw(cases: dict[str, tuple[Report, Report, float]], path: Path) -> None:
    """Draw passes against each measure: Shapley sampling as a curve, other methods as points."""
    import matplotlib.pyplot as plt

    size = {"figsize": (13, 4.2 * len(cases)), "layout": "constrained", "squeeze": False}
    figure, axes = plt.subplots(len(cases), len(MEASURES), **size)
    for row, (title, (methods, budgets, nodes)) in zip(axes, cases.items(), strict=True):
        for axis, metric in zip(row, MEASURES, strict=True):
            curve = over_seeds(budgets, metric)
            x = [orders * nodes for orders in curve]
            mean, spread = zip(*curve.values(), strict=True)
            axis.errorbar(x, mean, spread, marker="o", color="#2c6fbb", label="Shapley sampling")
            means = methods.intervals(metric, methods.operators[0])
            for name, interval in means.items():
                if name == "shapley_sampling":
                    continue
                at = passes(name, nodes), interval.mean
                axis.plot(*at, marker=".", color="#d62728" if name in NAMED else "#aaaaaa")
                if name in NAMED:
                    left = name == "occlusion"  # the others of that height are on its right
                    below = name == "order_marginals"
                    axis.annotate(
                        name, at, fontsize=8, xytext=(-5 if left else 5, -9 if below else 2),
                        ha="right" if left else "left", textcoords="offset points",
                    )  # fmt: skip
            axis.set(xscale="log", title=f"{title}: {metric}", xlabel="passes for a graph")
            if not METRICS[metric].higher_is_better:
                axis.invert_yaxis()
    axes[0, 0].legend(loc="lower right", fontsize=8)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--models", nargs="+", choices=list(GRAPHS), default=list(GRAPHS))
    options = parser.parse_args()
    out: Path = options.out
    torch.set_num_threads(1)
    lines: list[str] = []
    cases: dict[str, tuple[Report, Report, float]] = {}
    for name in options.models:
        whole = bace_test(gx.load(name)) if name == "bace" else mnist_test()
        methods, budgets = measured(name, whole.sample(GRAPHS[name]), out)
        nodes = float(np.mean([unit.nodes for unit in methods.units]))
        cases[name] = methods, budgets, nodes
        lines += section(name, methods, budgets, nodes)
        (out / "budget.md").write_text("\n".join(lines), encoding="utf-8")
        draw(cases, out / "budget.png")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
