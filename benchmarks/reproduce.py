"""Reproduce Tables 1 and 2 of Ali et al. (ICML 2022) for BACE and MNIST superpixels.

    python benchmarks/reproduce.py --out runs/reproduce

The script trains 2-layer Graphormers as in the paper (three seeds on BACE with three random splits,
two on MNIST superpixels) and evaluates methods on them and on the bundled models. It writes tables
and tests, which `reproduce.md` shows and discusses. For the data, see `graphxai.datasets`. Every
stage continues where it was interrupted. The script takes about half an hour on one core.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import torch

import graphxai as gx
from graphxai.datasets.molecules import load_bace
from graphxai.datasets.splits import random_split
from graphxai.evaluation import Conservation, Report, conservation, kendall_tau, merged
from graphxai.evaluation.sources import BenchmarkSource, bace_part, mnist_part
from graphxai.learning.fit import fit, molecule_config
from graphxai.learning.recipes.bace import bace_tasks
from graphxai.learning.recipes.mnist import mnist_config, train_mnist
from graphxai.learning.settings import TrainingSettings
from graphxai.models.graphormer import Graphormer, save_checkpoint

# Ali 2022, Tables 1 and 2: (AUAC, AU-MSE). The paper's "GAE" normalises the rows.
PAPER = {
    "bace": {
        "random": (0.624, 1.95),
        "attention_last": (0.620, 1.99),
        "attention_flow": (0.637, 1.87),
        "rollout": (0.653, 1.77),
        "gae_rollout": (0.675, 1.66),
        "gradient_input": (0.646, 2.06),
        "lrp_ah": (0.645, 2.08),
        "lrp_ln": (0.702, 1.65),
        "lrp_ah_ln": (0.707, 1.61),
    },
    "mnist": {
        "random": (0.324, 69.82),
        "attention_last": (0.862, 45.82),
        "rollout": (0.358, 115.2),
        "gae_rollout": (0.426, 59.81),
        "gradient_input": (0.942, 18.06),
        "lrp_ah": (0.942, 18.03),
        "lrp_ln": (0.947, 17.55),
        "lrp_ah_ln": (0.948, 17.49),
    },
}
OURS = ("gae", "lrp")  # not in the paper's tables
MNIST_IMAGES = 300
CLAIMS = (
    ("lrp_ah_ln", "gradient_input", "au_mse"),
    ("lrp_ah_ln", "gradient_input", "auac"),
    ("lrp_ah_ln", "lrp_ln", "auac"),
    ("lrp_ah_ln", "lrp_ah", "auac"),
    ("lrp_ah_ln", "gae_rollout", "auac"),
    ("gradient_input", "random", "auac"),
    ("rollout", "random", "au_mse"),
    ("lrp", "lrp_ah_ln", "auac"),
    ("lrp", "lrp_ah_ln", "au_mse"),
)


def train_bace(folder: Path, seed: int, progress: bool) -> Path:
    """Train two layers of width 64 from scratch on a random split, for the class and the pIC50."""
    if (folder / "model").exists():
        return folder / "model"
    graphs = load_bace(canonical=True)
    split = random_split(len(graphs), seed)
    torch.manual_seed(seed)
    config = molecule_config(
        bace_tasks(graphs, split),
        num_layers=2,
        hidden_dim=64,
        ffn_dim=64,
        dropout=0.1,
        attention_dropout=0.1,
    )
    settings = TrainingSettings(epochs=40, batch_size=32, seed=seed, progress=progress)
    parts = [[graphs[k] for k in part] for part in (split.train, split.valid)]
    model = fit(Graphormer(config), *parts, settings, folder).model.cpu()
    metadata = {"split": json.loads(split.to_json()), "seed": seed}
    return save_checkpoint(model, folder / "model", metadata=metadata)


def train_digits(folder: Path, seed: int, progress: bool) -> Path:
    """Train two layers of width 64 on 9,000 images in two versions."""
    if (folder / "model").exists():
        return folder / "model"
    config = mnist_config(num_layers=2, hidden_dim=64, ffn_dim=128)
    return train_mnist(
        folder,
        config=config,
        seed=seed,
        versions=2,
        epochs=3,
        num_test=2000,
        resume=True,
        progress=progress,
    )


def accuracy(model: Graphormer, source: BenchmarkSource) -> str:
    """Return ROC-AUC or accuracy on the graphs evaluated."""
    from sklearn.metrics import roc_auc_score

    predictions = gx.predict(model, list(source.inputs.values()))
    labels = [source.labels[key] for key in source.inputs]
    first = model.config.tasks[0]
    if first.kind == "binary":
        scores = [p[first.name].probabilities[first.classes[1]] for p in predictions]
        return f"ROC-AUC {roc_auc_score(labels, scores):.3f}"
    right = [p[first.name].label == str(y) for p, y in zip(predictions, labels, strict=True)]
    return f"accuracy {sum(right) / len(right):.3f}"


def measure(
    name: str, checkpoints: list[str | Path], out: Path, steps: int | None
) -> tuple[Report, list[str]]:
    """Return one report of all checkpoints, and how good each model is."""
    methods = [*PAPER[name], *OURS]
    reports, scores = [], []
    for checkpoint in checkpoints:
        model = gx.load(checkpoint)
        source = bace_part(model) if name == "bace" else mnist_part().sample(MNIST_IMAGES)
        # the checkpoints of several seeds have the same folder name: use the hash of the weights
        folder = out / (str(steps) if steps else "all") / model.origin.sha256[:8]
        reports.append(
            gx.evaluate(
                model,
                source.inputs,
                methods,
                labels=source.labels,
                target="true",
                steps=steps,
                out=folder,
                resume=True,
            )
        )
        scores.append(accuracy(model, source))
    return merged(reports), scores


def table(name: str, reports: dict[str, Report]) -> list[str]:
    """Show the paper's columns next to ours."""
    heads = [f"{m}, {title}" for m in ("AUAC ↑", "AU-MSE ↓") for title in ("paper", *reports)]
    lines = [f"| method | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
    for method in [*PAPER[name], *OURS]:
        cells = []
        for column, metric in enumerate(("auac", "au_mse")):
            text = PAPER[name].get(method)
            cells.append(f"{text[column]:.4g}" if text else "-")
            cells += [str(r.intervals(metric)[method]) for r in reports.values()]
        lines.append(f"| `{method}` | {' | '.join(cells)} |")
    return lines


def orderings(name: str, reports: dict[str, Report]) -> list[str]:
    """Show how far our orderings agree with the paper's, and test its claims."""
    lines = [
        "Kendall's tau between the paper's ordering of its methods and ours (1: the same):",
        "",
        f"| | {' | '.join(reports)} |",
        "|---" * (len(reports) + 1) + "|",
    ]
    for column, metric in enumerate(("auac", "au_mse")):
        theirs = [pair[column] for pair in PAPER[name].values()]
        tau = [
            kendall_tau(theirs, [r.intervals(metric)[m].mean for m in PAPER[name]])
            for r in reports.values()
        ]
        lines.append(f"| {metric} | {' | '.join(f'{t:.2f}' for t in tau)} |")
    lines += [
        "",
        "Differences, first minus second, with 95 % intervals; Holm's correction over each column.",
        "",
    ]
    lines += [f"| | paper | {' | '.join(reports)} |", "|---" * (len(reports) + 2) + "|"]
    claims = [c for c in CLAIMS if c[0] in {*PAPER[name], *OURS}]
    tested = {title: holm_tested(report, claims) for title, report in reports.items()}
    for k, (first, second, metric) in enumerate(claims):
        column = 0 if metric == "auac" else 1
        pair = (PAPER[name].get(first), PAPER[name].get(second))
        theirs = f"{pair[0][column] - pair[1][column]:+.3g}" if all(pair) else "-"
        cells = [tested[title][k] for title in reports]
        lines.append(f"| {metric}: `{first}` - `{second}` | {theirs} | {' | '.join(cells)} |")
    return lines


def sums_of_attention(name: str, checkpoint: str) -> dict[str, Conservation]:
    """Compare sums of attention with the output of the true class (Ali 2022, Figure 8)."""
    model = gx.load(checkpoint)
    source = bace_part(model) if name == "bace" else mnist_part().sample(MNIST_IMAGES)
    sums = {}
    for method in ("gae", "rollout", "attention_flow"):
        parts = []
        for label, of_class in enumerate(model.config.tasks[0].classes):
            inputs = [x for key, x in source.inputs.items() if source.labels[key] == label]
            parts.append(conservation(model, inputs, [method], target=of_class)[method])
        joined = [np.concatenate([getattr(p, n) for p in parts]) for n in ("outputs", "tokens")]
        sums[method] = Conservation(method, *joined, biases=np.zeros_like(joined[0]))
    return sums


def holm_tested(report: Report, claims: list[tuple[str, str, str]]) -> list[str]:
    from graphxai.evaluation import holm

    comparisons = [report.compare(a, b, metric=metric)[0] for a, b, metric in claims]
    adjusted = holm([c.p for c in comparisons])
    return [
        f"{c.difference.mean:+.3f} [{c.difference.low:.3f}, {c.difference.high:.3f}]"
        + ("" if p < 0.05 else ", not significant")
        for c, p in zip(comparisons, adjusted, strict=True)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--quiet", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    show = not options.quiet
    small = {
        "bace": [train_bace(options.out / f"bace-{s}", s, show) for s in range(3)],
        "mnist": [train_digits(options.out / f"mnist-{s}", s, show) for s in range(2)],
    }
    bundled = {"bace": "bace", "mnist": "mnist-superpixels"}
    sections: list[str] = []
    for name, title in (("bace", "BACE"), ("mnist", "MNIST superpixels")):
        out = options.out / f"measured-{name}"
        eleven, scores = measure(name, small[name], out, steps=11)
        whole, _ = measure(name, small[name], out, steps=None)
        good, score = measure(name, [bundled[name]], out, steps=None)
        reports = {"2 layers, 11 steps": eleven, "2 layers": whole, "bundled": good}
        for label, report in reports.items():
            report.save(out / label.replace(", ", "-").replace(" ", "-"))
        graphs = {t: len({u.graph for u in r.units}) for t, r in reports.items()}
        sections += [
            f"## {title}",
            "",
            f"2 layers of width 64, {len(small[name])} seeds: {', '.join(scores)} on the graphs"
            f" measured ({graphs['2 layers']} different ones). Bundled model: {score[0]}"
            f" ({graphs['bundled']} graphs).",
            "",
            *table(name, reports),
            "",
            *orderings(name, reports),
            "",
            "Sum of relevance (nodes and graph token) against the explained output, bundled model:",
            "",
            "| method | slope | correlation | gap |",
            "|---|---|---|---|",
            *(
                f"| `{m}` | {c.slope:.2f} | {c.correlation:.2f} | {c.gap:.2f} |"
                for m, c in (good.conservation() | sums_of_attention(name, bundled[name])).items()
            ),
            "",
        ]
    (options.out / "reproduced.md").write_text("\n".join(sections), encoding="utf-8")
    print("\n".join(sections))


if __name__ == "__main__":
    main()
