"""Counterfactuals: predictions needed, truth on rules, and measured matched pairs of BACE.

    python benchmarks/counterfactuals.py --out runs/counterfactuals [--data FOLDER] [--limit 40]
        [--rules runs/ground-truth/rules]

1. BACE test compounds: how many neighbours are predicted until the first that reaches the other
   class, in the order that relevance suggests and in random order (one change at most).
2. Rules ("indole", "halogen" and others): whether counterfactuals lose or gain what the rule asks
   for. Three models are asked: the one that `benchmarks/ground_truth.py` trains on all rules, or
   `benchmarks/taught_rules.py` (`--rules` is the folder `rules` of either), one that learns the
   rule alone from 4,000 molecules, half of them with each answer, and one that also learns it on
   neighbours of its training molecules.
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
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
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
from graphxai.datasets.rule_tables import read_rule_table
from graphxai.datasets.rules import RULES, RuleTask, get_rule
from graphxai.evaluation.sources import bace_test, source
from graphxai.evaluation.statistics import bootstrap
from graphxai.learning.recipes.rules import train_rule
from graphxai.models.graphormer import Graphormer, load_checkpoint

PREDICTIONS = 200
SIZE = 4000  # molecules of a rule's data set
HALF = 0.5  # of the difference; chosen on the first 20 test molecules of three rules
KINDS = ("all rules", "alone", "with neighbours")
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


@dataclass
class Answers:
    """Of a molecule: whether the truth changed with each counterfactual, and where it did not."""

    wish: str
    right: list[bool]
    at_change: list[float | None]
    fooled: list[tuple[str, ...]]

    def where(self, holds: Callable[[float], bool]) -> "Answers":
        """Those counterfactuals alone whose share of the difference at the change is so."""
        kept = [k for k, at in enumerate(self.at_change) if at is not None and holds(at)]
        right, at_change = ([each[k] for k in kept] for each in (self.right, self.at_change))
        return replace(self, right=right, at_change=at_change)


def rules(given: argparse.Namespace) -> dict[str, Any]:
    """Share of counterfactuals whose true answer changed with the model's, by rule and model."""
    names = [rule.name for rule in RULES.values() if rule.kind == "presence"]
    found: dict[str, Any] = {}
    for name, kind in product(given.names or names, given.kinds):
        path = given.out / f"rule {name}, {kind}.json"
        if not path.exists():
            model, molecules = taught(name, kind, given)
            path.write_text(json.dumps(truths(model, get_rule(name), molecules), indent=1))
        found[path.stem] = json.loads(path.read_text())
        print(path.stem, {k: v for k, v in found[path.stem].items() if k != "fooled"}, flush=True)
    return found


def taught(name: str, kind: str, given: argparse.Namespace) -> tuple[Graphormer, list[str]]:
    """A model that learned a rule, see KINDS, and test molecules, half of them with each answer."""
    if kind == "all rules":
        table = read_rule_table(given.rules / "molecules.csv")
        test = [(table.smiles[k], bool(table.of(name)[k])) for k in table.split.test]
        return load_checkpoint(given.rules / "run" / "model"), balanced(
            test, given.limit, given.skip
        )
    smiles = local_smiles(given.data)
    dataset = rule_dataset(smiles, name, size=SIZE, seed=0)
    folder, size = given.out / f"{name}, {kind}", SIZE
    if kind == "with neighbours":
        smiles = [dataset.smiles[k] for k in dataset.split.train] + neighbours(dataset)
        size = len(smiles)
    if not (folder / "model").is_dir():
        train_rule(
            folder, name, molecules=smiles, size=size, start="molecules", accelerator="cpu",
            resume=True,
        )  # fmt: skip
    test = [(dataset.smiles[k], bool(dataset.labels[k])) for k in dataset.split.test]
    return load_checkpoint(folder / "model"), balanced(test, given.limit, given.skip)


def balanced(test: Sequence[tuple[str, bool]], limit: int, skip: int = 0) -> list[str]:
    """The first test molecules with each answer after `skip`, half of `limit` each."""
    sides = ([smiles for smiles, answer in test if answer == side] for side in (True, False))
    return [smiles for side in sides for smiles in side[skip : skip + limit // 2]]


def neighbours(dataset: RuleDataset) -> list[str]:
    """Of 2,000 training molecules up to four neighbours, some of which change the rule's answer.

    Two are one transformation away, two are two away. The rule labels them like any molecule.
    """
    rng, found = random.Random(0), []
    held_out = {dataset.smiles[k] for k in (*dataset.split.valid, *dataset.split.test)}
    train = dataset.split.train
    for k in rng.sample(train, min(2000, len(train))):
        near = dataset.smiles[k]
        for _ in range(2):
            around = [one.smiles for one in transformed(Chem.MolFromSmiles(near))]
            around = rng.sample(around, min(40, len(around)))
            answers = {bool(dataset.rule.label(one)): one for one in around if one not in held_out}
            found += answers.values()
            near = rng.choice([near, *answers.values()])
    return found


def truths(model: Graphormer, rule: RuleTask, molecules: Sequence[str]) -> dict[str, Any]:
    """Whether the rule's answer changes with the model's; all, and by side.

    Molecules that the model has wrong are left out: so it has most of their neighbours.
    """
    known = [
        smiles
        for smiles in molecules
        if (gx.predict(model, smiles)[rule.name].label == "yes") == rule.label(smiles)
    ]
    found, sure = (
        [answers_of(model, rule, one, "no" if rule.label(one) else "yes", sure) for one in known]
        for sure in (False, True)
    )
    return {
        "molecules": len(found),
        "wrong already": len(molecules) - len(found),
        "with a counterfactual": sum(bool(one.right) for one in found),
        "with a sure one": sum(bool(one.right) for one in sure),
        "right": share(found),
        "sure": share(sure),
        "sure towards no": share([one for one in sure if one.wish == "no"]),
        "sure towards yes": share([one for one in sure if one.wish == "yes"]),
        "right towards no": share([one for one in found if one.wish == "no"]),
        "right towards yes": share([one for one in found if one.wish == "yes"]),
        "right, most at the change": share([one.where(lambda at: at >= HALF) for one in found]),
        "right, less at the change": share([one.where(lambda at: at < HALF) for one in found]),
        "fooled": [row for one in found for row in one.fooled],
        "fooled, sure": [row for one in sure for row in one.fooled],
    }


def answers_of(model: Graphormer, rule: RuleTask, smiles: str, wish: str, sure: bool) -> Answers:
    """What the rule says of up to six counterfactuals of a molecule; sure: of sure ones alone."""
    result = gx.counterfactuals(
        model, smiles, f"{rule.name}: {wish}", n=6, predictions=300, sure=sure, progress=False
    )
    counted = [one.reached and (not sure or one.sure) for one in result]
    reached = [one for one, counts in zip(result, counted, strict=True) if counts]
    shares = [s for s, counts in zip(result.at_change, counted, strict=True) if counts]
    right = [("yes" if rule.label(one.smiles) else "no") == wish for one in reached]
    pairs = zip(reached, right, strict=True)
    return Answers(
        wish, right, shares, [(smiles, one.changes, one.smiles) for one, ok in pairs if not ok]
    )


def share(found: Sequence[Answers]) -> dict[str, float]:
    """The share of right counterfactuals; its interval resamples molecules."""
    rows = np.array([(sum(one.right), len(one.right)) for one in found if one.right])
    if not len(rows):
        return {"n": 0}
    rng = np.random.default_rng(0)
    sums = rows[rng.integers(len(rows), size=(2000, len(rows)))].sum(1)
    low, high = np.quantile(sums[:, 0] / sums[:, 1], [0.025, 0.975])
    return {
        "share": float(rows[:, 0].sum() / rows[:, 1].sum()),
        "low": float(low),
        "high": float(high),
        "n": int(rows[:, 1].sum()),
        "of molecules": len(rows),
    }


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
    names = {"atoms": "bace", "superpixels": "mnist-superpixels"}
    rows = {}
    for exhaustive, (name, bundled) in product((3000, 0), names.items()):
        key = f"{name}, exhaustive={exhaustive}"
        path = given.out / f"sets, {key}.json"
        if not path.exists():
            model = gx.load(bundled)
            test = source(model, bundled, data=given.data)
            inputs = list(test.sample(given.limit).inputs.values())
            path.write_text(json.dumps(_sizes(model, inputs, exhaustive), indent=1))
        rows[key] = json.loads(path.read_text())
        print(key, rows[key], flush=True)
    return rows


def _sizes(model: Graphormer, inputs: Sequence[Any], exhaustive: int) -> dict[str, Any]:
    start = time.process_time()
    found = gx.counterfactual_set(
        model, inputs, task=model.config.tasks[0].name, exhaustive=exhaustive
    )
    seconds = time.process_time() - start
    sizes = [len(one) for one in found if one]
    return {
        "graphs": len(found),
        "nodes, mean": float(np.mean([len(one.explanation.relevance) for one in found])),
        "with a set": len(sizes),
        "mean size": float(np.mean(sizes)),
        "sizes": sorted(sizes),
        "proven": sum(one.proven for one in found),
        "mean predictions": float(np.mean([one.predictions for one in found])),
        "processor seconds a graph": seconds / len(found),
    }


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
    if not len(values):
        return {"n": 0}
    found = bootstrap(values)
    return {"mean": found.mean, "low": found.low, "high": found.high, "n": len(values)}


def main() -> None:
    """Measure what is not measured yet, and print it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--limit", type=int, default=40)
    parser.add_argument("--rules", type=Path)
    parser.add_argument("--skip", type=int, default=0, help="of each answer, the first N")
    parser.add_argument("--names", nargs="+", choices=list(RULES), help="rules; default: all")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
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
