"""Test whether the learned explainer is more faithful than its teachers and Shapley sampling.

    python benchmarks/learned_explainer.py fit --teacher path_marginals  # or shapley_sampling
    python benchmarks/learned_explainer.py measure                       # on validation graphs
    python benchmarks/learned_explainer.py register                      # writes the registration
    python benchmarks/learned_explainer.py test                          # on test graphs, once

`fit` learns from training graphs of each model with classes: the bundled models, and the further
Graphormers that `faithfulness.py train` has made (`--models`). It writes to
`runs/learned/TEACHER/MODEL` (`--out`). `measure` compares the explainers of bundled models in that
folder with methods that need no fitting, and prints tables. Models of public tables are explained
for the class they predict, the others for the true one. `test` runs only if
`learned_registration.json` is committed, unchanged, and says what this script would do.
"""

import argparse
import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from faithfulness import (
    OPERATORS,
    SEARCHED,
    SEEDS,
    best_found,
    named,
    register,
    registered,
    require_registration,
    section,
    shapley,
)

import graphxai as gx
from graphxai.contract.target import Target
from graphxai.datasets.mnist import load_mnist
from graphxai.datasets.molecules import load_bace
from graphxai.evaluation import Report, merged
from graphxai.evaluation.sources import BenchmarkSource
from graphxai.evaluation.statistics import bootstrap, compare_pairs
from graphxai.explainers import fit_explainer, get_explainer
from graphxai.models.graphormer import PRETRAINED
from tested_models import DRAWN, TESTED_MODELS, graphs_of

MEASURES = ("auac", "au_mse", "srg")
RIVALS = ("lrp", "lrp_path", "path_marginals 16", "shapley 8")
# Validation graphs measured
MODELS = {"bace": 60, "mnist-superpixels": 24, "blood-brain-barrier": 60, "hiv": 60, "tox21": 60}
TASKS = {"tox21": ("NR-AhR", "SR-MMP")}  # tasks that are measured, by default the first one
TESTED = tuple(name for name in TESTED_MODELS if not name.startswith("gps"))  # the Graphormers
REGISTRATION = Path(__file__).with_name("learned_registration.json")
FITTED_ON = 1100  # graphs, of which a hundred are held out
EPOCHS = 6
TEACHER = "path_marginals"
ORDERS = 32
SEED = 2027  # of the graphs drawn


def loaded(name: str, models: Path) -> Any:
    """Return a bundled model, or one that `faithfulness.py train` has made."""
    return TESTED_MODELS[name].load(models)[0] if name in TESTED_MODELS else gx.load(name)


def part_of(name: str, part: str, model: Any) -> BenchmarkSource:
    """Return the graphs of the model's own training ("train") or validation ("valid")."""
    if name.startswith("bace"):
        graphs = load_bace()
        keys = model.origin.metadata["split"][part]
        labels = {k: int(graphs[k].y[0, 0]) for k in keys}
        return BenchmarkSource(f"BACE, {part}", {k: graphs[k].smiles for k in keys}, labels)
    if not name.startswith("mnist"):
        return BenchmarkSource(f"{name}, {part}", dict(enumerate(molecules_of(name, part))))
    images, digits = load_mnist(None, "train", limit=10_000)
    keys = range(9_000) if part == "train" else range(9_000, 10_000)
    return BenchmarkSource(
        f"MNIST, {part}", {k: images[k] for k in keys}, {k: int(digits[k]) for k in keys}
    )


def molecules_of(name: str, part: str) -> list[str]:
    """Return the SMILES of a part, from the files beside a model of a public table."""
    path = PRETRAINED / name / ("training.csv" if part == "train" else "held_out.csv")
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return [row["smiles"] for row in rows if part == "train" or row["part"] == "validation"]


def fit(name: str, teacher: str, out: Path, models: Path, limit: int, epochs: int) -> None:
    model = loaded(name, models)
    source = part_of(name, "train", model).sample(limit, seed=SEED)
    fitted = fit_explainer(
        model,
        source.inputs.values(),
        shapley_orders=ORDERS if teacher == "shapley_sampling" else None,
        epochs=epochs,
        data=f"{source.title} part of the model's data, {len(source.inputs)} drawn, seed {SEED}",
    )
    fitted.save(out / teacher / name)
    print(name, json.dumps(fitted.card, indent=1), flush=True)


def measure(name: str, out: Path, limit: int | None) -> None:
    """Print the means of all methods and their differences from the learned explainers."""
    model = gx.load(name)
    source = part_of(name, "valid", model).sample(limit or MODELS[name], seed=SEED)
    fitted = {path.parent.name: path for path in sorted(out.glob(f"*/{name}"))}
    methods = [named(f"learned, taught by {k}", "learned", fitted=v) for k, v in fitted.items()]
    methods += [get_explainer("lrp"), get_explainer("lrp_path")]
    methods.append(named("path_marginals 16", "path_marginals"))
    methods.append(named("shapley 8", "shapley_sampling"))
    for task in TASKS.get(name, (None,)):
        report = gx.evaluate(
            model,
            source.inputs,
            methods,
            labels=source.labels or None,
            target=Target("true" if source.labels else "predicted", task),
            metrics=MEASURES,
        )
        print(f"\n## {source.title}{f', {task}' if task else ''}, {len(source.inputs)} graphs\n")
        compare(report, [explainer.name for explainer in methods[: len(fitted)]])


def compare(report: Report, learned: list[str]) -> None:
    """Print the means of a report, and the learned explainers minus each other method."""
    values = {metric: report.values(metric, "mask") for metric in MEASURES}
    print(f"| method | {' | '.join(MEASURES)} |{chr(10)}{'|---' * (len(MEASURES) + 1)}|")
    for method in sorted(values["auac"], key=lambda name: -np.mean(values["auac"][name])):
        cells = [str(bootstrap(values[metric][method])) for metric in MEASURES]
        print(f"| {method} | {' | '.join(cells)} |")
    print("\n| learned | minus | measure | difference [95 %] | p |\n|---|---|---|---|---|")
    pairs = [(first, second) for first in learned for second in RIVALS] + [tuple(learned[:2])]
    for first, second in (pair for pair in pairs if len(pair) == 2):
        for metric in MEASURES:
            (c,) = compare_pairs(values[metric], [(first, second)])
            print(f"| {first} | {second} | {metric} | {c.difference} | {c.p:.2g} |")


def registration() -> dict[str, Any]:
    """Return what the registration file says: all that decides the outcome of the test."""
    return {
        "question": "Is the learned explainer, with 4 forward and 4 backward passes a graph after a"
        " fit on other graphs, more faithful than Shapley sampling over 8 orders?",
        "primary": {
            "method": "learned",
            "teacher": TEACHER,
            "fitted on": f"{FITTED_ON - 100:,} graphs of each model's training part, drawn with"
            f" seed {SEED}, without labels; {EPOCHS} epochs, seed 0",
        },
        "compared with": {
            "first": "shapley_sampling, 8 orders, antithetic, mean over seeds 0 to 4 of each graph",
            "second": ["shapley_sampling, 32 orders, seed 0", "path_marginals, 16 rounds"],
        },
        "measures": list(MEASURES),
        "operators": list(OPERATORS),
        "target": "the true class; all numbers of nodes",
        "models": {
            name: {"made": TESTED_MODELS[name].made, "test graphs": TESTED_MODELS[name].test}
            for name in TESTED
        },
        "graphs": "those of faithfulness_registration.json, drawn in the same way"
        f" (seed {DRAWN}). They were seen with other methods. Of the bundled models, some had also"
        " been seen with their learned explainers, which were fitted before (faithfulness.md,"
        " operators.md); those of the other five models had not.",
        "seeds": {"shapley_sampling": list(SEEDS), "graphs": DRAWN, "bootstrap": 0},
        "tests": "Two-sided Wilcoxon signed-rank tests over graphs, a graph counting once with its"
        " mean over models; Holm's correction over the four primary tests (AUAC and AU-MSE, BACE"
        " and MNIST) at 5 %; 95 % bootstrap intervals over graphs, 4,000 draws, seed 0. The same"
        " without the bundled models is shown beside them.",
        "bars": {
            "better": "AUAC significantly higher than Shapley 8 on both data sets, over all models",
            "of the way": "mean AUAC at least .75 (BACE) and .93 (MNIST) of the way from random"
            " scores to the best ordering found by local search",
            "aims": "AUAC above Shapley 32 on both; .85 and .95 of the way; AU-MSE not"
            " significantly higher than Shapley 8 on either",
        },
        "graphs of a model whose best ordering is searched": SEARCHED,
        "published": "whatever comes",
    }


def tested(name: str, out: Path, models: Path) -> tuple[Report, dict[str, float]]:
    """Return the report of one model, and the best AUAC found for its first graphs, by key."""
    tested = TESTED_MODELS[name]
    model, split = tested.load(models)
    source = graphs_of(tested, split, "test")
    report = gx.evaluate(
        model,
        source.inputs,
        [
            get_explainer("learned", fitted=out / TEACHER / name),
            *(get_explainer(method) for method in ("lrp", "lrp_path")),
            named("path_marginals 16", "path_marginals"),
            *(shapley(8, seed) for seed in SEEDS),
            shapley(32, 0),
        ],
        labels=source.labels,
        target="true",
        metrics=MEASURES,
        operators=OPERATORS,
        out=out / "test" / name,
        resume=True,
    )
    return report, best_found(name, model, source, out / "test" / f"{name}-best.json")


def test(out: Path, models: Path, only: str) -> None:
    """Measure all models, or one, and print what is complete."""
    require_registration(REGISTRATION, registration())
    names = [only] if only else TESTED
    results = {name: tested(name, out, models) for name in names}
    for title, chosen in (
        ("all models", names),
        ("without the bundled models", [name for name in names if name not in MODELS]),
    ):
        sets, lines = {}, []
        for data in ("BACE", "MNIST"):
            mine = [results[name] for name in chosen if TESTED_MODELS[name].data == data]
            if mine:
                reports = [report for report, _ in mine]
                sets[data] = merged(reports)
                lines += section(data, reports, [best for _, best in mine], "learned")
        if len(sets) == 2:
            lines += registered(sets, "learned")
        print("\n".join([f"# {title}\n", *lines]))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("stage", choices=("fit", "measure", "register", "test"))
    parser.add_argument("--teacher", default=TEACHER, help="or shapley_sampling, over 32 orders")
    parser.add_argument("--only", default="", help="one model")
    parser.add_argument("--out", type=Path, default=Path("runs/learned"))
    parser.add_argument("--models", type=Path, default=Path("runs/faithfulness/models"))
    parser.add_argument("--limit", type=int, default=FITTED_ON)
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--measured", type=int, help="validation graphs of each model")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.stage == "register":
        register(REGISTRATION, registration())
    elif given.stage == "test":
        test(given.out, given.models, given.only)
    elif given.stage == "fit":
        for name in [given.only] if given.only else dict.fromkeys((*MODELS, *TESTED)):
            fit(name, given.teacher, given.out, given.models, given.limit, given.epochs)
    else:
        for name in [given.only] if given.only else MODELS:
            measure(name, given.out, given.measured)


if __name__ == "__main__":
    main()
