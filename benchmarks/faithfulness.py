"""Can one or two backward passes be more faithful than occlusion and Shapley sampling?

    python benchmarks/reproduce.py --out runs/reproduce       # trains the 2-layer models
    python benchmarks/faithfulness.py --models runs/reproduce --out runs/faithfulness

Evaluates methods on the test graphs of every model (BACE: the test part of its split; MNIST: a
fixed sample of the official test set): true class, nodes masked, all steps. Tests the differences
over graphs, shows every model separately, and compares with the best ordering found by a local
search on the curve itself. `--part valid` evaluates variants of `lrp_path` on BACE's validation
graphs, on which its two parameters were chosen. `--part removal` evaluates it on the test graphs
with presence 1 or 0, as for wrapped models. Every stage continues where it was interrupted.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import torch

import graphxai as gx
from graphxai.contract.inputs import prepare
from graphxai.contract.target import Target
from graphxai.evaluation import Report, merged
from graphxai.evaluation.best_ordering import best_areas
from graphxai.evaluation.sources import Source, bace_test, mnist_test
from graphxai.explainers import get_explainer
from graphxai.explainers.activation_path import by_removal

METHODS = (
    "gradient_input",
    "gae",
    "integrated_gradients",
    "lrp_ln",
    "lrp_ah_ln",
    "lrp",
    "attn_lrp",
    "lrp_path",
    "occlusion",
    "shapley_sampling",
)
SETTINGS = {"integrated_gradients": {"steps": 20}}
MNIST_IMAGES = 100
CEILINGS = {
    "BACE": 152,
    "MNIST superpixels": 20,
}  # graphs per model whose best ordering is searched
STARTS = ("lrp", "lrp_path", "shapley_sampling")
VARIANTS = [(1.0, 2.0), (0.1, 1.0), (0.1, 2.0), (0.1, 5.0), (0.03, 2.0), (0.03, 5.0)]


def chosen_methods() -> list:
    return [get_explainer(name, **SETTINGS.get(name, {})) for name in METHODS]


def variants() -> list:
    """Return `lrp_path` with other parameters, each variant under its own name."""
    found = []
    for floor, steepness in VARIANTS:
        explainer = get_explainer("lrp_path", floor=floor, steepness=steepness)
        explainer.name = f"floor {floor}, steepness {steepness}"
        found.append(explainer)
    return [*found, "lrp", "occlusion", "shapley_sampling"]


def presence_1_or_0(model, batch, target):
    """Return the scores (B, N) of `lrp_path` with presence 1 or 0."""
    return by_removal(model, batch, Target.of(target)).relevance


def bace_validation(model) -> Source:
    """Return the compounds in the validation part of the model's split."""
    from graphxai.datasets.molecules import load_bace

    graphs = load_bace()
    keys = model.origin.metadata["split"]["valid"]
    labels = {k: int(graphs[k].y[0, 0]) for k in keys}
    return Source("BACE, validation part", {k: graphs[k].smiles for k in keys}, labels)


def measure(checkpoint, source: Source, methods: list, out: Path) -> Report:
    model = gx.load(checkpoint)
    return gx.evaluate(
        model,
        source.inputs,
        methods,
        labels=source.labels,
        target="true",
        out=out / model.origin.sha256[:8],
        resume=True,
    )


def ceilings(checkpoint, source: Source, out: Path, limit: int) -> dict[str, list[float]]:
    """Search the largest AUAC and smallest AU-MSE of the first graphs, by key."""
    model = gx.load(checkpoint)
    path = out / f"{model.origin.sha256[:8]}.json"
    found = json.loads(path.read_text()) if path.exists() else {}
    task = model.config.tasks[0]
    for key, value in list(source.inputs.items())[:limit]:
        if str(key) in found:
            continue
        target = Target(task.classes[int(source.labels[key])], task.name)
        starts = [
            torch.from_numpy(gx.explain(model, value, name, target=target).relevance)
            for name in STARTS
        ]
        found[str(key)] = best_areas(model, prepare(model.config, value).data, target, starts)
        path.write_text(json.dumps(found))
    return found


def shares(
    reports: list[Report], best: list[dict[str, list[float]]], metric: str
) -> tuple[float, dict[str, float]]:
    """Return the mean ceiling, and how far each method gets on average from random to ceiling.

    Over all graphs and models whose ceiling was searched.
    """
    column = 0 if metric == "auac" else 1
    ceiling: list[float] = []
    values: dict[str, list[float]] = {}
    for report, found in zip(reports, best, strict=True):
        ceiling += [pair[column] for pair in found.values()]
        for unit in report.units:
            if str(unit.graph) in found:
                values.setdefault(unit.method, []).append(unit.values["mask"][metric])
    means = {name: float(np.mean(of)) for name, of in values.items()}
    top, low = float(np.mean(ceiling)), means["random"]
    return top, {name: (mean - low) / (top - low) for name, mean in means.items()}


def section(
    title: str, names: list[str], reports: list[Report], best: list[dict[str, list[float]]]
) -> list[str]:
    """Write a table for all models, tests of `lrp_path` against each method, and single models."""
    whole = merged(reports)
    graphs = len({u.graph for u in whole.units})
    methods = whole.ranking("auac")
    lines = [
        f"## {title}",
        "",
        f"{len(reports)} models, {graphs} different graphs; the best ordering was"
        f" searched for {sum(map(len, best))} pairs of graph and model.",
        "",
    ]
    lines += ["| method | AUAC ↑ | of the way | AU-MSE ↓ | of the way |", "|---|---|---|---|---|"]
    auac, au_mse = whole.intervals("auac"), whole.intervals("au_mse")
    ceiling, ways = zip(*(shares(reports, best, m) for m in ("auac", "au_mse")), strict=True)
    lines.append(
        f"| *local search on the curve* | {ceiling[0]:.3f} | 100 % | {ceiling[1]:.3f} | 100 % |"
    )
    for name in methods:
        way = [f"{of[name]:.0%}" for of in ways]
        lines.append(f"| `{name}` | {auac[name]} | {way[0]} | {au_mse[name]} | {way[1]} |")
    lines += ["", "`lrp_path` minus each other method, paired over graphs (Wilcoxon, Holm):", ""]
    lines += ["| method | AUAC | | AU-MSE | |", "|---|---|---|---|---|"]
    tests = [whole.compare("lrp_path", metric=m) for m in ("auac", "au_mse")]
    for a, b in zip(*tests, strict=True):
        cells = [f"{c.difference} | {verdict(c, k)}" for k, c in enumerate((a, b))]
        lines.append(f"| `{a.second}` | {' | '.join(cells)} |")
    lines += ["", "Each model alone (AUAC / AU-MSE):", ""]
    shown = [
        n for n in ("lrp", "lrp_path", "occlusion", "shapley_sampling", "random") if n in methods
    ]
    lines += [f"| model | {' | '.join(shown)} |", "|---" * (len(shown) + 1) + "|"]
    for name, report in zip(names, reports, strict=True):
        found = [report.intervals(m) for m in ("auac", "au_mse")]
        cells = [f"{found[0][n].mean:.3f} / {found[1][n].mean:.3f}" for n in shown]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return [*lines, ""]


def verdict(comparison, lower_is_better: int) -> str:
    if not comparison.significant:
        return "not significant"
    better = (comparison.difference.mean > 0) != bool(lower_is_better)
    return f"{'better' if better else 'worse'}, p {comparison.p_adjusted:.1g}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--part", choices=("test", "valid", "removal"), default="test")
    options = parser.parse_args()
    torch.set_num_threads(1)
    seeds = [options.models / f"bace-{k}" / "model" for k in range(3)]
    options.out.mkdir(parents=True, exist_ok=True)
    if options.part == "valid":
        reports = [
            measure(c, bace_validation(gx.load(c)), variants(), options.out / "valid")
            for c in ("bace", *seeds)
        ]
        found = merged(reports)
        print(found.table().sort_values("auac", ascending=False).to_string())
        return
    digits = [options.models / f"mnist-{k}" / "model" for k in range(2)]
    lines: list[str] = []
    for title, checkpoints in (
        ("BACE", ["bace", *seeds]),
        ("MNIST superpixels", ["mnist-superpixels", *digits]),
    ):
        reports, best = [], []
        for c in checkpoints:
            source = bace_test(gx.load(c)) if title == "BACE" else mnist_test().sample(MNIST_IMAGES)
            if options.part == "removal":
                methods = [presence_1_or_0, "lrp", "lrp_path", "occlusion"]
                reports.append(measure(c, source, methods, options.out / "removal" / title[:5]))
                continue
            reports.append(measure(c, source, chosen_methods(), options.out / title[:5]))
            best.append(ceilings(c, source, options.out, CEILINGS[title]))
        if options.part == "removal":
            whole = merged(reports)
            print(title, whole.table().to_string(), sep="\n")
            for metric in ("auac", "au_mse"):
                for found in whole.compare("presence_1_or_0", metric=metric):
                    print(metric, found.second, found.difference, f"p {found.p_adjusted:.1g}")
            continue
        names = ["bundled", *(f"2 layers, seed {k}" for k in range(len(checkpoints) - 1))]
        lines += section(title, names, reports, best)
        (options.out / "faithfulness.md").write_text("\n".join(lines), encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
