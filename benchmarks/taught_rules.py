"""Teach the model of all rules what the neighbours of its molecules answer, and where it is fooled.

    python benchmarks/ground_truth.py --out runs/ground-truth --groups rules
    python benchmarks/taught_rules.py --rules runs/ground-truth/rules --out runs/taught/rules
        [--data FOLDER] [--rounds 2] [--workers 2]

A rule labels any molecule for nothing. So the training part grows by

1. the molecules of the local tables that `ground_truth.py` left out;
2. neighbours of training molecules, one transformation away: those that change an answer, and a few
   that change none;
3. in every round, counterfactuals of training molecules, found by the model of the round before:
   with the rules' answers, whatever that model thought of them. After the first round, only those
   of rules that the model gets wrong on more than 1 % of the validation molecules, or those named
   by `--again`: `--again pains:no` asks molecules without PAINS what would make one;
4. where rings of more than six atoms are among these rules, training molecules with a ring made
   larger, smaller, opened or closed.

The first model starts from the bundled weights `molecules`, each later one from the one before.
Validation and test part stay those of the table, and none of their molecules is taught. OUT gets
the tables and models of each round, and `molecules.csv` and `run/` of the last one, as
`ground_truth.py` and `counterfactuals.py --rules` read them. What is there is not made again.
"""

import argparse
import json
import random
import shutil
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from rdkit import Chem, rdBase

import graphxai as gx
from graphxai.chemistry.transformation_table import TRANSFORMATIONS
from graphxai.chemistry.transformations import transformed
from graphxai.datasets.rule_molecules import local_smiles
from graphxai.datasets.rule_tables import RuleTable, read_rule_table
from graphxai.datasets.rules import RULES, RuleTask
from graphxai.evaluation.ground_truth_report import answers_of, judged
from graphxai.models.graphormer.checkpoint import load_checkpoint
from graphxai.models.graphormer.recipes.rules import train_rules

PRESENCE = [rule for rule in RULES.values() if rule.kind == "presence"]
QUICK = [rule for rule in PRESENCE if rule.name != "pains"]  # the alerts' filters take 5 ms
TRIED = 40  # neighbours of a molecule whose answers are computed; PAINS for a fourth of them
KEPT = 8  # neighbours of a molecule that are taught, half of which change an answer if they can
MOST_ATOMS = 60  # as in the table
WRONG = 0.01  # of the validation molecules: the rules that are asked for again
RESIZING = ("ring larger by CH2", "ring smaller by CH2", "ring opened", "ring closed by CH2")
PIECE = 20  # molecules that a process takes at a time
REACHED = 60  # counterfactuals of a molecule that are taught at most

T = TypeVar("T")


def sources(table: RuleTable, per_answer: int, seed: int) -> list[str]:
    """Training molecules, up to `per_answer` with each answer to each rule."""
    rng, chosen = random.Random(seed), set[int]()
    for rule in PRESENCE:
        answers = table.of(rule.name)
        for side in (0, 1):
            among = [k for k in table.split.train if answers[k] == side]
            chosen |= set(rng.sample(among, min(per_answer, len(among))))
    return [table.smiles[k] for k in rng.sample(sorted(chosen), len(chosen))]


def neighbours(smiles: Sequence[str], seed: int) -> list[str]:
    """Of each molecule at most KEPT neighbours; see the first paragraph."""
    found: list[str] = []
    for text in smiles:
        rng = random.Random(f"{seed} {text}")
        around = [one.smiles for one in transformed(Chem.MolFromSmiles(text))]
        around = rng.sample(around, min(TRIED, len(around)))
        slow = set(around[: TRIED // 4])
        before = [rule.label(text) for rule in PRESENCE]
        changed = {
            one
            for one in around
            for rule, answer in zip(PRESENCE, before, strict=True)
            if (rule in QUICK or one in slow) and rule.label(one) != answer
        }
        flips = rng.sample(sorted(changed), min(KEPT // 2, len(changed)))
        rest = [one for one in around if one not in changed]
        found += flips + rest[: KEPT - len(flips)]
    return found


def resized(smiles: Sequence[str], seed: int) -> list[str]:
    """Of each molecule all with one ring changed that answer otherwise, and as many that do not."""
    rows = [row for row in TRANSFORMATIONS if row[0] in RESIZING]
    large, found = RULES["large-ring"], list[str]()
    for text in smiles:
        around = [one.smiles for one in transformed(Chem.MolFromSmiles(text), rows=rows)]
        answer = large.label(text)
        changed = [one for one in around if large.label(one) != answer]
        rest = [one for one in around if one not in changed]
        rng = random.Random(f"{seed} {text}")
        found += changed + rng.sample(rest, min(len(rest), max(len(changed), 1)))
    return found


def fooling(smiles: Sequence[str], folder: Path, name: str) -> list[str]:
    """Counterfactuals of each molecule under the model in `folder`, towards the other answer."""
    torch.set_num_threads(1)
    model, found = load_checkpoint(folder), list[str]()
    for text in smiles:
        answer = "yes" if RULES[name].label(text) else "no"
        if gx.predict(model, text)[name].label != answer:
            continue  # already wrong, and among the training molecules
        wish = f"{name}: {'no' if answer == 'yes' else 'yes'}"
        result = gx.counterfactuals(model, text, wish, n=REACHED, predictions=300, progress=False)
        found += [one.smiles for one in result if one.reached]
    return found


def answers(smiles: Sequence[str]) -> list[tuple[str, list[float]]]:
    """Canonical SMILES with the answer to every rule; without unreadable and large ones."""
    rows = []
    with rdBase.BlockLogs():
        for text in smiles:
            mol = Chem.MolFromSmiles(text) if text else None
            if mol is None or not 0 < mol.GetNumAtoms() <= MOST_ATOMS:
                continue
            canonical = Chem.MolToSmiles(mol)
            again = Chem.MolFromSmiles(canonical)
            if again is not None:
                rows.append((canonical, [float(r.label(again)) for r in RULES.values()]))
    return rows


def in_parallel(work: Callable[[Sequence[str]], list[T]], on: Sequence[str], n: int) -> list[T]:
    """What the work finds in all pieces of a list, in order."""
    pieces = [on[k : k + PIECE] for k in range(0, len(on), PIECE)]
    with ProcessPoolExecutor(n, get_context("spawn")) as pool:
        return [one for found in pool.map(work, pieces) for one in found]


def extended(table: RuleTable, smiles: Iterable[str], workers: int) -> RuleTable:
    """The table with more training molecules; those that it holds already are left out."""
    known = set(table.smiles)
    fresh = dict(in_parallel(answers, list(dict.fromkeys(smiles)), workers))
    new = [(text, row) for text, row in fresh.items() if text not in known]
    if not new:
        return table
    first, (texts, rows) = len(table.smiles), zip(*new, strict=True)
    train = (*table.split.train, *range(first, first + len(new)))
    return replace(
        table,
        smiles=table.smiles + tuple(texts),
        labels=np.concatenate([table.labels, np.array(rows, dtype=np.float32)]),
        split=replace(table.split, train=train),
    )


def made_once(path: Path, make: Callable[[], RuleTable]) -> RuleTable:
    """The table at a path, made first if it is not there."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        make().save(path)
    return read_rule_table(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rules", type=Path, required=True, help="folder of ground_truth.py")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--epochs", type=int, nargs="+", default=(6, 3), help="by round")
    parser.add_argument("--per-answer", type=int, default=350, help="sources of neighbours")
    parser.add_argument("--asked", type=int, default=50, help="molecules a round, rule and answer")
    parser.add_argument("--again", nargs="*", metavar="RULE:ANSWER", help="see step 3")
    parser.add_argument("--resized", type=int, default=60_000, help="see step 4: molecules")
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    torch.set_num_threads(1)
    table = read_rule_table(given.rules / "molecules.csv")
    model, start = given.rules / "run" / "model", "molecules"
    near = partial(neighbours, seed=0)
    table = made_once(
        given.out / "neighbours.csv",
        lambda: extended(
            extended(table, local_smiles(given.data), given.workers),
            in_parallel(near, sources(table, given.per_answer, 0), given.workers),
            given.workers,
        ),
    )
    for k in range(given.rounds):
        before, epochs = table, given.epochs[min(k, len(given.epochs) - 1)]
        table = made_once(given.out / f"round-{k}.csv", partial(grown, before, model, k, given))
        print(
            f"round {k}: {len(before.smiles):,} molecules, then {len(table.smiles):,}", flush=True
        )
        model = train_rules(
            given.out / f"round-{k}", table, start=start, epochs=epochs, resume=True,
            accelerator="cpu",
        )  # fmt: skip
        start = str(model)
        print(json.loads((model / "config.json").read_text())["metadata"]["summary"], flush=True)
    table.save(given.out / "molecules.csv")
    shutil.copytree(model.parent, given.out / "run", dirs_exist_ok=True)


def grown(table: RuleTable, model: Path, k: int, given: argparse.Namespace) -> RuleTable:
    """The table with what a round adds, see the steps 3 and 4 above."""
    first = read_rule_table(given.rules / "molecules.csv")
    rules = PRESENCE if k == 0 else unsure(first, model)
    asked = {(rule.name, answer) for rule in rules for answer in ("no", "yes")}
    if k and given.again:
        asked = {(name, answer) for name, _, answer in (one.partition(":") for one in given.again)}
    found = list[str]()
    for rule in PRESENCE:
        labels, rng = first.of(rule.name), random.Random(f"{k} {rule.name}")
        for side, answer in enumerate(("no", "yes")):
            among = [first.smiles[j] for j in first.split.train if labels[j] == side]
            chosen = rng.sample(among, min(given.asked, len(among)))
            if (rule.name, answer) in asked:
                ask = partial(fooling, folder=model, name=rule.name)
                found += in_parallel(ask, chosen, given.workers)
                print(f"round {k}, {rule.name}: {len(found):,} counterfactuals", flush=True)
    if k and any(name == "large-ring" for name, _ in asked):
        train = [table.smiles[j] for j in table.split.train]
        some = random.Random(k).sample(train, min(given.resized, len(train)))
        found += in_parallel(partial(resized, seed=k), some, given.workers)
    return extended(table, found, given.workers)


def unsure(table: RuleTable, folder: Path) -> list[RuleTask]:
    """The rules that a model gets wrong on more than WRONG of the validation molecules."""
    model, valid = load_checkpoint(folder), list(table.split.valid)
    outputs = answers_of(model, [table.smiles[j] for j in valid])
    right = {r: judged(model, outputs, table.of(r.name)[valid], r.name)[0] for r in PRESENCE}
    return [rule for rule, good in right.items() if 1 - np.mean(good) > WRONG]


if __name__ == "__main__":
    main()
