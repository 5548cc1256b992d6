"""Measure whether models that disagree are wrong: Gaussian processes on bootstraps of two tables.

    python benchmarks/ensemble_truth.py --data FOLDER [--tables CHEMBL2034_Ki CHEMBL287_Ki]

Each of `--members` processes learns the distinct molecules of a bootstrap of the training part. For
up to `--limit` test molecules the error of their mean is compared with how far the members spread,
and with the share of atoms on whose sign fewer than nine tenths of them agree (method `kernel`), by
Spearman's correlation. The measured change of cliffs is compared with the mean relevance at the
change, apart for pairs in which all members have one sign there. Intervals are bootstraps.
"""

import argparse
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from scipy.stats import spearmanr

import graphxai as gx
from graphxai.chemistry.matching import common_part_or_none
from graphxai.contract.tasks import Task
from graphxai.datasets.fingerprints import similarity, structure_counts
from graphxai.evaluation.statistics import bootstrap
from graphxai.learning.teachers.gaussian_process import Process
from graphxai.models.process import CarriedCounts, KernelProcess, ProcessConfig
from graphxai.runtime.writing import markdown_table


def members_of(rows: pd.DataFrame, count: int) -> list[KernelProcess]:
    """Return processes, each of the distinct molecules of a bootstrap of rows."""
    counts, y = structure_counts(list(rows.smiles)), rows.y.to_numpy()[:, None]
    kernel, fitted = similarity(counts, counts), []
    for seed in range(count):
        drawn = np.unique(np.random.default_rng(seed).integers(len(rows), size=len(rows)))
        part = kernel[np.ix_(drawn, drawn)]
        process = Process.fit(part, np.arange(len(drawn)), y[drawn], left_out=False)
        config = ProcessConfig((Task("y", "regression"),), len(drawn), "parent")
        carried = CarriedCounts.of(tuple(kind[drawn] for kind in counts))
        numbers = torch.from_numpy(process.weights), torch.from_numpy(process.means)
        fitted.append(KernelProcess(config, carried, *numbers).eval())
    return fitted


def rank_correlation(x: np.ndarray, y: np.ndarray) -> str:
    """Return Spearman's correlation with a 95 % interval over molecules."""
    draws = np.random.default_rng(0).integers(len(x), size=(1000, len(x)))
    each = [spearmanr(x[rows], y[rows]).statistic for rows in draws]
    low, high = np.nanquantile(each, (0.025, 0.975))
    return f"{spearmanr(x, y).statistic:.2f} [{low:.2f}, {high:.2f}]"


def measured(table: Path, count: int, limit: int) -> list[str]:
    """Return the cells of a table's row."""
    rows = pd.read_csv(table)
    train, test = rows[rows.split == "train"], rows[rows.split == "test"]
    test = test.sample(min(limit, len(test)), random_state=0)
    models = members_of(train, count)
    values, relevance = [], []
    for model in models:
        explained = gx.explain(model, list(test.smiles), "kernel", progress=False)
        values.append([e.output for e in explained])
        relevance.append([e.relevance for e in explained])
    predicted = np.array(values)  # (members, molecules)
    error = np.abs(predicted.mean(0) - test.y.to_numpy())
    contested = []
    for of_molecule in zip(*relevance, strict=True):
        signs = np.sign(np.array(of_molecule))  # (members, atoms)
        contested.append(float((np.abs(signs.mean(0)) < 0.8).mean()))
    cells = [table.stem, str(len(test)), rank_correlation(predicted.std(0), error)]
    cells.append(rank_correlation(np.array(contested), error))
    settled, unsettled = changes_of(rows, models, limit)
    return cells + [
        f"{bootstrap(np.array(each))} (n = {len(each)})" if each else "–"
        for each in (settled, unsettled)
    ]


def changes_of(
    rows: pd.DataFrame, models: list[KernelProcess], limit: int
) -> tuple[list[float], list[float]]:
    """Return whether the sign at the change is right, where members agree on it and where not."""
    smiles, values = list(rows.smiles), rows.y.to_numpy()
    test = set(np.flatnonzero(rows.split == "test").tolist())
    cliffs = [c for c in gx.activity_cliffs(smiles, values) if test & {c.a, c.b}][:limit]
    used = sorted({row for cliff in cliffs for row in (cliff.a, cliff.b)})
    explained = [
        dict(
            zip(
                used,
                gx.explain(m, [smiles[k] for k in used], "kernel", progress=False),
                strict=True,
            )
        )
        for m in models
    ]
    settled: list[float] = []
    unsettled: list[float] = []
    for cliff in cliffs:
        pair = [explained[0][row].molecule for row in (cliff.a, cliff.b)]
        if (part := common_part_or_none(*pair)) is None:
            continue
        at_change = []
        for member in explained:
            a, b = member[cliff.a].relevance, member[cliff.b].relevance
            kept_a, kept_b = part.same.T
            at_change.append(np.delete(a, kept_a).sum() - np.delete(b, kept_b).sum())
        sides = np.sign(at_change)
        right = float(np.sign(np.mean(at_change)) == np.sign(values[cliff.a] - values[cliff.b]))
        (settled if abs(sides.sum()) == len(sides) else unsettled).append(right)
    return settled, unsettled


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--tables", nargs="*", default=["CHEMBL2034_Ki", "CHEMBL287_Ki"])
    parser.add_argument("--members", type=int, default=5)
    parser.add_argument("--limit", type=int, default=150)
    given = parser.parse_args()
    head = ["table", "n", "spread v error", "contested atoms v error", "sign right, settled"]
    rows = [
        measured(given.data / "moleculeace" / f"{name}.csv", given.members, given.limit)
        for name in given.tables
    ]
    print(markdown_table([[*head, "sign right, not settled"], *rows]) + "\n")


if __name__ == "__main__":
    main()
