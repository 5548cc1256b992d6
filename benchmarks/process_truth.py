"""Compare what methods say of a Gaussian process with the true atoms, or their true contributions.

    python benchmarks/process_truth.py --data FOLDER [--train 1500] [--test 60] [--rules logp ...]

A process learns each rule of `ground_truth.md` from so many molecules of its table: yes as one and
no as zero, or Crippen's log P, which is a sum over atoms. Of the others, molecules with true atoms
that it answers correctly are explained. The score is the ROC-AUC of the atoms, and for log P the
mean of Spearman's correlation with the true shares. FOLDER contains `molecules/*.csv`.
"""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from scipy.stats import spearmanr
from sklearn.metrics import roc_auc_score

import graphxai as gx
from graphxai.contract.prediction_metrics import r2
from graphxai.contract.tasks import Task
from graphxai.datasets.fingerprints import similarity, structure_counts
from graphxai.datasets.rule_molecules import RuleTable, local_smiles, rule_table
from graphxai.datasets.rules import RULES
from graphxai.learning.teachers.gaussian_process import Process
from graphxai.models.process import CarriedCounts, KernelProcess, ProcessConfig
from graphxai.runtime.writing import markdown_table

METHODS = ("kernel", "occlusion", "shapley_sampling", "integrated_gradients", "gradient_input")
FEWEST = 10  # molecules with true atoms, answered correctly


def fitted(smiles: Sequence[str], y: np.ndarray) -> KernelProcess:
    """Return a process that has learned values (n,) of molecules."""
    counts = structure_counts(smiles)
    process = Process.fit(similarity(counts, counts), np.arange(len(y)), y[:, None], left_out=False)
    weights, means = torch.from_numpy(process.weights), torch.from_numpy(process.means)
    config = ProcessConfig((Task("rule", "regression"),), len(y))
    return KernelProcess(config, CarriedCounts.of(counts), weights, means).eval()


def agreement(relevance: np.ndarray, truth: np.ndarray) -> float:
    """Return how well relevance finds true atoms, or agrees with their true shares."""
    if truth.dtype == np.bool_:
        return float(roc_auc_score(truth, relevance))
    return float(spearmanr(relevance, truth).statistic)


def rows_of(
    rule: str, table: RuleTable, train: int, test: int, methods: Sequence[str]
) -> list[list[str]]:
    """Return the rows of a rule: its process, and what each method makes of it."""
    chosen, begun = list(table.split.train[:train]), time.process_time()
    model = fitted([table.smiles[k] for k in chosen], table.of(rule)[chosen].astype(float))
    seconds = time.process_time() - begun
    predicted = np.array(
        [
            each["rule"].value
            for each in gx.predict(model, [table.smiles[k] for k in table.split.test])
        ]
    )
    answers = table.of(rule)[list(table.split.test)]
    if RULES[rule].kind == "additive":
        right = np.ones(len(answers), dtype=bool)
        score = f"R2 {r2(predicted, answers):.3f}"
    else:
        right = (predicted > 0.5) == (answers > 0.5)
        score = f"ROC-AUC {roc_auc_score(answers > 0.5, predicted):.3f}"
    known = {table.smiles[k] for k, good in zip(table.split.test, right, strict=True) if good}
    shown = [pair for pair in table.with_truth(rule) if pair[0] in known][:test]
    print(f"{rule}: {score}, fitted in {seconds:.0f} s; {len(shown)} explained", flush=True)
    if len(shown) < FEWEST:
        return [[rule, score, f"{len(shown)}", "too few right answers", "", "", ""]]
    rows = []
    for method in methods:
        begun = time.process_time()
        explained = gx.explain(model, [smiles for smiles, _ in shown], method, progress=False)
        milliseconds = 1000 * (time.process_time() - begun) / len(shown)
        values = [agreement(e.relevance, t) for e, (_, t) in zip(explained, shown, strict=True)]
        error = np.std(values, ddof=1) / len(values) ** 0.5
        gaps = [abs(each.ledger.unexplained) for each in explained if each.ledger]
        gap = f"{max(gaps):.0e}" if gaps else ""
        cells = f"{np.mean(values):.3f} ± {error:.3f}", f"{milliseconds:.0f}", gap
        rows.append([rule, score, f"{len(shown)}", f"`{method}`", *cells])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--size", type=int, default=4000, help="molecules of the table")
    parser.add_argument("--train", type=int, default=1500)
    parser.add_argument("--test", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rules", nargs="+", choices=list(RULES), default=list(RULES))
    parser.add_argument("--methods", nargs="+", default=METHODS)
    given = parser.parse_args()
    table = rule_table(local_smiles(given.data), size=given.size, seed=given.seed)
    rows = []
    for rule in given.rules:
        rows += rows_of(rule, table, given.train, given.test, given.methods)
    columns = ["rule", "process", "explained", "method", "agreement", "ms", "unexplained, at most"]
    print(markdown_table([columns, *rows]) + "\n")


if __name__ == "__main__":
    main()
