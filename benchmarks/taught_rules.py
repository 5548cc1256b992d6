"""Teach one model all rules, on neighbours of its molecules and where it is fooled.

    python benchmarks/ground_truth.py --out runs/ground-truth --groups rules
    python benchmarks/taught_rules.py --rules runs/ground-truth/rules --out runs/taught/rules
        [--data FOLDER] [--rounds 2] [--workers 2]

A rule labels any molecule for nothing. So the training part grows by

1. the molecules of the local tables that `ground_truth.py` left out;
2. neighbours, one and two random changes away: those of molecules that answer yes, and of others;
3. molecules with one ring made larger, smaller, opened or closed;
4. in every round after the first, counterfactuals of training molecules, found by the model of the
   round before: with the rules' answers, whatever that model thought of them. Asked are the rules
   that it gets wrong on more than 0.5 % of the validation molecules, or those named by `--again`:
   `--again pains:no` asks molecules without PAINS what would make one.

The first model starts from that of `ground_truth.py` and sees every molecule three times. (With
fewer molecules and more epochs it learns the molecules by heart.) Each later one starts from the
one before, and learns the counterfactuals and as many of the other molecules as `--replayed`.
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
from graphxai.chemistry.fragment_swaps import exchanged, fragments_for
from graphxai.chemistry.transformation_table import TRANSFORMATIONS
from graphxai.chemistry.transformations import transformed
from graphxai.datasets.rule_molecules import local_smiles
from graphxai.datasets.rule_tables import RuleTable, read_rule_table
from graphxai.datasets.rules import RULES, RuleTask
from graphxai.evaluation.ground_truth_report import answers_of, judged
from graphxai.learning.recipes.rules import train_rules
from graphxai.models.graphormer import load_checkpoint

PRESENCE = [rule for rule in RULES.values() if rule.kind == "presence"]
ROWS = 14  # transformations that are tried at a time, of 189
ONE, TWO = 10, 4  # neighbours of a molecule that are taught, one and two changes away
MOST_ATOMS = 60  # as in the table
WRONG = 0.005  # of the validation molecules: the rules that are asked for again
RESIZING = ("ring larger by CH2", "ring smaller by CH2", "ring opened", "ring closed by CH2")
PIECE = 20  # molecules that a process takes at a time
REACHED = 60  # counterfactuals of a molecule that are taught at most

T = TypeVar("T")


def sources(table: RuleTable, per_rule: int, others: int, seed: int) -> list[str]:
    """Training molecules: up to `per_rule` that answer yes to each rule, and any others."""
    rng, chosen = random.Random(seed), set[int]()
    for rule in PRESENCE:
        answers = table.of(rule.name)
        among = [k for k in table.split.train if answers[k]]
        chosen |= set(rng.sample(among, min(per_rule, len(among))))
    rest = [k for k in table.split.train if k not in chosen]
    chosen |= set(rng.sample(rest, min(others, len(rest))))
    return [table.smiles[k] for k in rng.sample(sorted(chosen), len(chosen))]


def neighbours(smiles: Sequence[str], seed: int) -> list[str]:
    """Of each molecule some neighbours, and some of the neighbours of one of them."""
    found: list[str] = []
    for text in smiles:
        rng = random.Random(f"{seed} {text}")
        near = changed(text, ONE, rng)
        found += near
        if near:
            found += changed(rng.choice(near), TWO, rng)
    return found


def changed(text: str, n: int, rng: random.Random) -> list[str]:
    """At most n molecules that a few random transformations and fragments make of one."""
    mol = Chem.MolFromSmiles(text)
    fragments = {
        kind: tuple(rng.sample(several, min(2, len(several))))
        for kind, several in fragments_for(mol, None).items()
    }
    rows = rng.sample(TRANSFORMATIONS, ROWS)
    found = [one.smiles for one in (*transformed(mol, rows=rows), *exchanged(mol, fragments))]
    return rng.sample(found, min(n, len(found)))


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
    parser.add_argument("--epochs", type=int, nargs="+", default=(3, 1), help="by round")
    parser.add_argument("--per-rule", type=int, default=2500, help="sources of neighbours")
    parser.add_argument("--others", type=int, default=5000, help="more of them")
    parser.add_argument("--asked", type=int, default=100, help="molecules a round, rule and answer")
    parser.add_argument("--again", nargs="*", metavar="RULE:ANSWER", help="see step 4")
    parser.add_argument("--taught", type=int, default=100_000, help="molecules; 60 kB each")
    parser.add_argument("--replayed", type=int, default=60_000, help="molecules")
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    torch.set_num_threads(1)
    first = read_rule_table(given.rules / "molecules.csv")
    table = made_once(given.out / "neighbours.csv", partial(with_neighbours, first, given))
    start = str(given.rules / "run" / "model")
    for k in range(given.rounds):
        if k:
            more = partial(with_counterfactuals, first, table, Path(start), k, given)
            table = made_once(given.out / f"round-{k}.csv", more)
        print(f"round {k}: {len(table.smiles):,} molecules", flush=True)
        model = train_rules(
            given.out / f"round-{k}", table, start=start, resume=True, accelerator="cpu",
            epochs=given.epochs[min(k, len(given.epochs) - 1)],
        )  # fmt: skip
        start = str(model)
        print(json.loads((model / "config.json").read_text())["metadata"]["summary"], flush=True)
    first.save(given.out / "molecules.csv")
    shutil.copytree(model.parent, given.out / "run", dirs_exist_ok=True)


def with_neighbours(first: RuleTable, given: argparse.Namespace) -> RuleTable:
    """The table with what the steps 1 to 3 add, or a sample of it."""
    table = extended(first, local_smiles(given.data), given.workers)
    rings = in_parallel(partial(resized, seed=0), training(table), given.workers)
    some = sources(table, given.per_rule, given.others, 0)
    near = in_parallel(partial(neighbours, seed=0), some, given.workers)
    again = random.Random(0).sample(near, len(near) // 5)
    rings += in_parallel(partial(resized, seed=1), again, given.workers)
    print(f"{len(near):,} neighbours, {len(rings):,} with another ring", flush=True)
    new = sorted({*training(table), *near, *rings} - {*first.smiles})
    chosen = random.Random(0).sample(new, min(given.taught, len(new)))
    return extended(first, chosen, given.workers)


def with_counterfactuals(
    first: RuleTable, before: RuleTable, model: Path, k: int, given: argparse.Namespace
) -> RuleTable:
    """The first table with counterfactuals of training molecules, and some that were taught."""
    if given.again:
        asked = [tuple(one.split(":")) for one in given.again]
    else:
        asked = [(rule.name, answer) for rule in unsure(first, model) for answer in ("no", "yes")]
    found = random.Random(k).sample(training(before), min(given.replayed, len(before.split.train)))
    for name, answer in asked:
        labels, rng = first.of(name), random.Random(f"{k} {name} {answer}")
        among = [first.smiles[j] for j in first.split.train if labels[j] == (answer == "yes")]
        chosen = rng.sample(among, min(given.asked, len(among)))
        fooled = in_parallel(partial(fooling, folder=model, name=name), chosen, given.workers)
        print(f"round {k}, {name}, {answer}: {len(fooled):,} counterfactuals", flush=True)
        found += fooled
    return extended(first, found, given.workers)


def training(table: RuleTable) -> list[str]:
    """The molecules of the training part."""
    return [table.smiles[j] for j in table.split.train]


def unsure(table: RuleTable, folder: Path) -> list[RuleTask]:
    """The rules that a model gets wrong on more than WRONG of the validation molecules."""
    model, valid = load_checkpoint(folder), list(table.split.valid)
    outputs = answers_of(model, [table.smiles[j] for j in valid])
    right = {r: judged(model, outputs, table.of(r.name)[valid], r.name)[0] for r in PRESENCE}
    return [rule for rule, good in right.items() if 1 - np.mean(good) > WRONG]


if __name__ == "__main__":
    main()
