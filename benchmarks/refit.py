"""Do rankings of methods change when the model that measures has been trained on masked graphs?

    python benchmarks/refit.py --out runs/refit [--data FOLDER] [--rule indole] [--size 1000]

First a case with known truth: a model trained on a rule, and explanations that are the true atoms,
of which a share is replaced by others. A measure should rank them by that share. Then the bundled
BACE model: Kendall's tau between the rankings of methods, measured by the model itself, by one
trained further on masked graphs (`f-fidelity`), and by models trained without the top share
(`roar`).
FOLDER holds `molecules/*.csv` and BACE. Training runs in the output folder are not repeated.
"""

import argparse
import time
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from scipy.stats import spearmanr

from graphxai import evaluate, load
from graphxai.contract.target import Target
from graphxai.datasets.rule_molecules import local_smiles, rule_dataset
from graphxai.evaluation import METRICS, Refit, kendall_tau
from graphxai.evaluation.curves import several_series
from graphxai.evaluation.measure import Plan
from graphxai.evaluation.refit import judges, labelled_items
from graphxai.evaluation.sources import bace_part
from graphxai.evaluation.statistics import bootstrap
from graphxai.models.graphormer import load_checkpoint
from graphxai.models.graphormer.recipes.rules import train_rule
from graphxai.models.graphormer.training.fit import evaluate as scores_of

REPLACED = (0.0, 0.25, 0.5, 0.75, 1.0)  # share of the true atoms
DRAWS = 4
MEASURES = ("auac", "srg", "comprehensiveness", "sufficiency", "fidelity_plus")
OPERATORS = ("mask", "delete")
METHODS = (
    "lrp", "lrp_path", "lrp_ah_ln", "lrp_ah", "lrp_ln", "attn_lrp", "gradient_input", "saliency",
    "gae", "gae_rollout", "transformer_attribution", "rollout", "attention_last", "cam", "grad_cam",
    "att_cat", "random",
)  # fmt: skip
ROAR_METHODS = ("lrp", "gradient_input", "gae", "rollout", "random")


def spoiled(truth: np.ndarray, share: float, generator: np.random.Generator) -> torch.Tensor:
    """Scores (N,): one at the true atoms, of which a share has moved to others, and some noise."""
    true, others = np.flatnonzero(truth), np.flatnonzero(~truth)
    moved = min(round(share * len(true)), len(others))
    chosen = np.concatenate(
        [generator.permutation(true)[moved:], generator.permutation(others)[:moved]]
    )
    scores = 0.1 * generator.random(len(truth))
    scores[chosen] += 1
    return torch.from_numpy(scores)


def known_truth(given: argparse.Namespace) -> str:
    """Markdown: how well measures rank explanations whose quality is known."""
    smiles = local_smiles(given.data)
    folder = given.out / given.rule
    options = {"size": given.size, "seed": 0}
    checkpoint = train_rule(
        folder / "run", given.rule, molecules=smiles, resume=True, accelerator="cpu",
        progress=False, **options,
    )  # fmt: skip
    model, dataset = load_checkpoint(checkpoint), rule_dataset(smiles, given.rule, **options)
    train = list(dataset.split.train)
    refit = Refit(
        "f-fidelity", [dataset.smiles[k] for k in train], dataset.labels[train].tolist(),
        epochs=given.epochs,
    )  # fmt: skip
    plan = Plan((), (), OPERATORS, None, 0)
    task = model.config.tasks[0]
    graphs = [item.data for _, item in labelled_items(model, refit, task)]
    spent = time.process_time()
    judged = judges(model, graphs, refit, plan, folder / "refit")
    spent = time.process_time() - spent
    test = Refit("f-fidelity", *_of(dataset, list(dataset.split.test)))
    whole = [item.data for _, item in labelled_items(model, test, task)]
    chosen = dataset.scored(limit=given.n)
    explained = [
        item.data
        for _, item in labelled_items(model, Refit("f-fidelity", *_of(dataset, chosen)), task)
    ]
    generator = np.random.default_rng(0)
    scores = [
        [spoiled(dataset.truths[k], s, generator) for s in REPLACED for _ in range(DRAWS)]
        for k in chosen
    ]
    lines = [
        f"Rule `{given.rule}`, {len(train)} training graphs, n = {len(chosen)} test molecules that"
        f" have the answer yes. The model has a test ROC-AUC of"
        f" {scores_of(model, whole)[task.name]:.3f}; trained further"
        f" ({given.epochs} passes, {spent:.0f} s of processor time for both), it has"
        f" {scores_of(judged['mask'], whole)[task.name]:.3f} (`mask`) and"
        f" {scores_of(judged['delete'], whole)[task.name]:.3f} (`delete`).",
        "",
        "| operator | measure | rank correlation, model itself | refit | difference"
        " | truth − random, model itself | refit |",
        "|---|---|---|---|---|---|---|",
    ]
    for operator in OPERATORS:
        found = {}
        for name, by in (("itself", model), ("refit", judged[operator])):
            series = several_series(by, explained, scores, Target("yes"), operator=operator)
            for measure in MEASURES:
                sign = 1 if METRICS[measure].higher_is_better else -1
                values = np.array([[METRICS[measure].measure(s) for s in of] for of in series])
                found[name, measure] = sign * values.reshape(-1, len(REPLACED), DRAWS).mean(-1)
        for measure in MEASURES:
            own, further = found["itself", measure], found["refit", measure]
            ranks = [np.array([_ranked(row) for row in v]) for v in (own, further)]
            cells = [bootstrap(r) for r in (*ranks, ranks[1] - ranks[0])]
            cells += [bootstrap(v[:, 0] - v[:, -1]) for v in (own, further)]
            lines.append(f"| `{operator}` | {measure} | {' | '.join(map(str, cells))} |")
    return "\n".join(lines) + "\n"


def _ranked(values: np.ndarray) -> float:
    """Rank correlation of a measure with the share of true atoms that stayed; 0 if constant."""
    return 0.0 if np.ptp(values) == 0 else float(spearmanr(values, -np.array(REPLACED)).statistic)


def _of(dataset, chosen: list[int]) -> tuple[list[str], list[float]]:
    return [dataset.smiles[k] for k in chosen], dataset.labels[chosen].tolist()


def bace(given: argparse.Namespace) -> str:
    """Markdown: agreement of rankings on the bundled BACE model."""
    model = load("bace")
    test = bace_part(model, "test", given.data).sample(given.n, 0)
    train = bace_part(model, "train", given.data).sample(given.train, 0)
    labels = [train.labels[key] for key in train.inputs]
    options = {"labels": test.labels, "target": "predicted", "progress": False, "resume": True}
    options |= {"metrics": MEASURES}
    further = Refit("f-fidelity", list(train.inputs.values()), labels, epochs=given.epochs)
    itself = evaluate(
        model, test.inputs, METHODS, operators=OPERATORS, out=given.out / "itself", **options
    )
    spent = time.process_time()
    refitted = evaluate(
        model, test.inputs, METHODS, operators=OPERATORS, refit=further,
        out=given.out / "f-fidelity", **options,
    )  # fmt: skip
    spent = time.process_time() - spent
    removed = Refit("roar", list(train.inputs.values()), labels, epochs=2, shares=(0.3,))
    roar = evaluate(
        model, test.inputs, ROAR_METHODS, refit=removed, out=given.out / "roar", **options
    )
    lines = [
        f"n = {len(test.inputs)} test compounds, {len(labels)} training compounds,"
        f" {len(METHODS)} methods; {spent:.0f} s of processor time for training and measuring.",
        "",
        "| operator | measure | tau, model itself against refit |",
        "|---|---|---|",
    ]
    for operator in OPERATORS:
        for measure in MEASURES:
            tau = _tau(_means(itself, measure, operator), _means(refitted, measure, operator))
            lines.append(f"| `{operator}` | {measure} | {tau:.2f} |")
    drops = _means(roar, "roar", "mask")
    lines += ["", "Against `roar` (30 % of the nodes removed by `mask`), tau over"]
    lines[-1] += f" {len(ROAR_METHODS)} methods: model itself"
    for name, report in (("", itself), ("; refit", refitted)):
        tau = _tau(_means(report, "comprehensiveness", "mask")[drops.index], drops)
        lines[-1] += f"{name} {tau:.2f}"
    lines[-1] += " (comprehensiveness)."
    table = pd.DataFrame(
        {
            "AUAC, model itself": itself.table("mask").auac,
            "AUAC, refit": refitted.table("mask").auac,
            "SRG, model itself": itself.table("mask").srg,
            "SRG, refit": refitted.table("mask").srg,
            "roar": roar.table("mask").roar,
        }
    ).reindex(METHODS)
    lines += [
        "",
        f"| method | {' | '.join(table.columns)} |",
        "|---" * (len(table.columns) + 1) + "|",
    ]
    lines += [f"| `{m}` | {' | '.join(row.fillna(''))} |" for m, row in table.iterrows()]
    return "\n".join(lines) + "\n"


def _means(report, measure: str, operator: str) -> pd.Series:
    sign = -1 if measure in METRICS and not METRICS[measure].higher_is_better else 1
    found = report.intervals(measure, operator)
    return pd.Series({name: sign * interval.mean for name, interval in found.items()})


def _tau(first: pd.Series, second: pd.Series) -> float:
    return kendall_tau(first.to_numpy(), second[first.index].to_numpy())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--rule", default="indole")
    parser.add_argument("--size", type=int, default=1000, help="molecules of the rule")
    parser.add_argument("--n", type=int, default=40, help="graphs measured")
    parser.add_argument("--train", type=int, default=400, help="BACE compounds trained on")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--parts", nargs="*", default=["truth", "bace"])
    given = parser.parse_args()
    for name, measured in (("truth", known_truth), ("bace", bace)):
        if name in given.parts:
            text = measured(given)
            (given.out / f"{name}.md").write_text(text, encoding="utf-8")
            print(text, flush=True)


if __name__ == "__main__":
    main()
