"""Counterfactuals: predictions needed, truth on rules, and measured matched pairs of BACE.

    python benchmarks/counterfactuals.py --out runs/counterfactuals [--data FOLDER] [--limit 40]

1. BACE test compounds: how many neighbours are predicted until the first that reaches the other
   class, in the order that relevance suggests and in random order (one change at most).
2. Rules ("indole", "halogen"): whether counterfactuals of a model trained on the rule lose or gain
   what the rule asks for. Indole is also taught on near misses, as its model confuses look-alikes.
3. Matched pairs of BACE: predicted against measured change of pIC50, and how often intervals of the
   change hold. Pairs with compounds that the model was trained on are reported apart.
4. Counterfactual sets (`sets`): the superpixels of MNIST test images, and the atoms of BACE test
   compounds, whose removal changes the class.

Results that are already in the folder are not computed again.
"""

import argparse
import json
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rdkit import Chem, rdBase
from scipy.stats import spearmanr

import graphxai as gx
from graphxai.chemistry.cliffs import activity_cliffs
from graphxai.chemistry.transformations import transformed
from graphxai.datasets.molecules import load_bace
from graphxai.datasets.rule_molecules import RuleDataset, local_smiles, rule_dataset
from graphxai.datasets.rules import get_rule
from graphxai.evaluation.sources import bace_test, mnist_test
from graphxai.evaluation.statistics import bootstrap
from graphxai.models.graphormer.checkpoint import load_checkpoint
from graphxai.models.graphormer.recipes.rules import train_rule

RULES = ("indole", "halogen")
SIZE = 4000  # molecules of a rule's data set
PREDICTIONS = 200
CLASS, VALUE = "BACE-1 inhibition", "pIC50"


def orders(given: argparse.Namespace) -> dict[str, Any]:
    """Neighbours predicted until the first success; PREDICTIONS + 1 where there is none."""
    model = gx.load("bace")
    inputs = list(bace_test(model, given.data).inputs.values())
    chosen = np.random.default_rng(0).permutation(len(inputs))[: given.limit]
    rows = []
    for k in chosen.tolist():
        label = gx.predict(model, inputs[k])[CLASS].label
        wish = "inactive" if label == "active" else "active"
        for guided in (True, False):
            found = gx.counterfactuals(
                model, inputs[k], f"{CLASS}: {wish}", predictions=PREDICTIONS, steps=1,
                guided=guided, progress=False,
            )  # fmt: skip
            share = found.successes / max(found.predicted, 1)
            rows.append((k, guided, found.first or PREDICTIONS + 1, share))
    table = np.array(rows, dtype=float).reshape(-1, 2, 4)
    first, share = table[..., 2], table[..., 3]
    gap = np.log2(first[:, 1] / first[:, 0])
    return {
        "molecules": len(table),
        "median first, guided and random": np.median(first, axis=0).tolist(),
        "mean first, guided and random": first.mean(axis=0).tolist(),
        "reached, guided and random": (first <= PREDICTIONS).mean(axis=0).tolist(),
        "mean share of successes": float(share.mean()),
        "log2 of random / guided": _interval(gap),
    }


def near_misses(dataset: RuleDataset, count: int = 1000) -> list[str]:
    """Neighbours of training molecules: up to two that change the rule's answer, and two others."""
    rng, found = random.Random(0), []
    held_out = {dataset.smiles[k] for k in (*dataset.split.valid, *dataset.split.test)}
    for k in rng.sample(list(dataset.split.train), count):
        changes: dict[bool, list[str]] = {True: [], False: []}
        for change in transformed(Chem.MolFromSmiles(dataset.smiles[k])):
            if change.smiles not in held_out:
                answer = bool(dataset.rule.label(change.smiles))
                changes[answer != bool(dataset.labels[k])].append(change.smiles)
        for group in changes.values():
            found += rng.sample(group, min(2, len(group)))
    return found


def rules(given: argparse.Namespace) -> dict[str, Any]:
    """Share of counterfactuals whose true answer changed with the model's."""
    found: dict[str, Any] = {}
    for name in RULES:
        folder = given.out / name
        smiles = local_smiles(given.data)
        rule, dataset = get_rule(name), rule_dataset(smiles, name, size=SIZE, seed=0)
        if not (folder / "model").is_dir():
            train_rule(folder, name, molecules=smiles, size=SIZE, accelerator="cpu", resume=True)
        if name == "indole" and not (folder / "near" / "model").is_dir():
            taught = [*(dataset.smiles[k] for k in dataset.split.train), *near_misses(dataset)]
            train_rule(
                folder / "near", name, molecules=taught, size=5000, start=folder / "model",
                accelerator="cpu", resume=True,
            )  # fmt: skip
        near = folder / "near" / "model"
        model = load_checkpoint(near if near.is_dir() else folder / "model")
        right: list[bool] = []
        reached = 0
        test = list(dataset.split.test)[: given.limit]
        for k in test:
            wish = "no" if dataset.labels[k] else "yes"
            if gx.predict(model, dataset.smiles[k])[name].label == wish:
                continue  # the model is wrong already, and so it is on most neighbours
            result = gx.counterfactuals(
                model, dataset.smiles[k], wish, n=6, predictions=300, progress=False
            )
            reached += result.first is not None
            right += [bool(rule.label(c.smiles)) == (wish == "yes") for c in result if c.reached]
        found[name] = {
            "score": model.origin.metadata["score"],
            "molecules": len(test),
            "with a counterfactual": reached,
            "counterfactuals": len(right),
            "right": _interval(np.array(right, dtype=float)),
        }
    return found


def pairs(given: argparse.Namespace) -> dict[str, Any]:
    """Rank correlation of predicted and measured differences between matched pairs."""
    model = gx.load("bace")
    graphs = load_bace(given.data)
    test = set(model.origin.metadata["split"]["test"])
    smiles = [g.smiles for g in graphs]
    values = np.array([float(g.y[0, 1]) for g in graphs])
    cliffs = activity_cliffs(smiles, values, similarity=1.0, difference=1e-6)
    matched = [(c.a, c.b) for c in cliffs if c.core is not None]
    predicted = [found[VALUE] for found in gx.predict(model, smiles)]
    kinds = {
        "both in the test part": [p for p in matched if {*p} <= test],
        "one in the test part": [p for p in matched if len({*p} & test) == 1],
        "both in training or validation": [p for p in matched if not {*p} & test],
    }
    return {
        name: _agreement(rows, np.array([p.value for p in predicted]), values)
        | _coverage(rows, predicted, values)
        for name, rows in kinds.items()
    }


def _coverage(
    rows: list[tuple[int, int]], predicted: Sequence[gx.Prediction], measured: Any
) -> dict[str, Any]:
    """Share of measured changes in their 90 % interval, and its median width.

    "both errors" is `Prediction.change_since`; "sum" adds the half widths of both 95 % intervals,
    which holds by the union bound.
    """
    found: dict[str, Any] = {}
    held: dict[str, list[tuple[bool, float]]] = {"both errors": [], "sum": []}
    for a, b in rows:
        change = measured[b] - measured[a]
        middle = predicted[b].value - predicted[a].value
        low, high = predicted[b].change_since(predicted[a])
        wide = sum(np.ptp(predicted[k].at(0.95).interval) for k in (a, b))
        held["both errors"].append((low <= change <= high, high - low))
        held["sum"].append((abs(change - middle) <= wide / 2, wide))
    for name, pairs in held.items():
        inside, width = np.array(pairs, dtype=float).T
        found[f"held, {name}"] = float(inside.mean())
        found[f"width, {name}"] = float(np.median(width))
    return found


def sets(given: argparse.Namespace) -> dict[str, Any]:
    """Sizes of counterfactual sets, the share proven smallest, predictions, processor time."""
    digits, bace = gx.load("mnist-superpixels"), gx.load("bace")
    sources = {
        "atoms": (bace, bace_test(bace, given.data)),
        "superpixels": (digits, mnist_test(given.data)),
    }
    rows = {}
    for name, (model, source) in sources.items():
        inputs = list(source.sample(given.limit).inputs.values())
        task = model.config.tasks[0].name
        for exhaustive in (3000, 0):
            start = time.process_time()
            found = gx.counterfactual_set(model, inputs, task=task, exhaustive=exhaustive)
            seconds = time.process_time() - start
            sizes = [len(one) for one in found if one]
            key = f"{name}, exhaustive={exhaustive}"
            rows[key] = {
                "graphs": len(found),
                "with a set": len(sizes),
                "mean size": float(np.mean(sizes)),
                "sizes": sorted(sizes),
                "proven": sum(one.proven for one in found),
                "mean predictions": float(np.mean([one.predictions for one in found])),
                "processor seconds a graph": seconds / len(found),
            }
            print(key, rows[key], flush=True)
    return rows


def _agreement(rows: list[tuple[int, int]], value: Any, measured: Any) -> dict[str, Any]:
    a, b = np.array(rows).T
    flip = np.random.default_rng(0).random(len(a)) < 0.5  # else all measured changes are positive
    a, b = np.where(flip, b, a), np.where(flip, a, b)
    gaps = np.stack([value[a] - value[b], measured[a] - measured[b]])
    rng = np.random.default_rng(1)
    drawn = [spearmanr(*gaps[:, rng.integers(0, len(a), len(a))]).statistic for _ in range(1000)]
    return {
        "pairs": len(a),
        "rank correlation": float(spearmanr(*gaps).statistic),
        "95 %": np.quantile(drawn, [0.025, 0.975]).tolist(),
        "same sign": float((gaps[0] * gaps[1] > 0).mean()),
    }


def _interval(values: Any) -> dict[str, float]:
    found = bootstrap(values)
    return {"mean": found.mean, "low": found.low, "high": found.high, "n": len(values)}


def main() -> None:
    """Measure what is not measured yet, and print it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--limit", type=int, default=40)
    parser.add_argument("--parts", nargs="+", default=["pairs", "orders", "rules"])
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    for name in given.parts:
        path = given.out / f"{name}.json"
        if not path.exists():
            with rdBase.BlockLogs():
                path.write_text(json.dumps(globals()[name](given), indent=1))
        print(name, path.read_text())


if __name__ == "__main__":
    main()
