"""Count how many measured values the intervals of a Gaussian process hold, near and far.

    python benchmarks/intervals.py --data FOLDER [--training 400] [--test 160] [--out FILE]

A process is fitted to a random part of each table's training molecules, with intervals as `graphxai
train --model process` makes them: from folds of scaffolds, and from each molecule without itself.
MoleculeACE's ten tables and Biogen's six have their authors' split; ESOL and Lipophilicity are
split by scaffold. Two widths are compared, one for all molecules and one that depends on the
similarity to the training set. The tables of intervals.md are printed. FOLDER has `moleculeace`,
`adme` and `molecules`.
"""

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rdkit import Chem, RDLogger
from scipy.stats import binomtest

from graphxai.contract.tasks import Task
from graphxai.datasets.fingerprints import similarity, structure_counts
from graphxai.datasets.splits import scaffold_folds, scaffold_split
from graphxai.datasets.training_set import FAR
from graphxai.learning.conformal import (
    Unseen,
    conformal_scores,
    nearest_of_other_folds,
    nearest_of_others,
    nearest_similarities,
    pooled,
)
from graphxai.learning.teachers.choosing import NOISES
from graphxai.learning.teachers.gaussian_process import Process

LEVELS = (0.5, 0.8, 0.9)
TASK = Task("value", "regression")
GROUPS = {
    f"near (similarity {FAR} or more)": (FAR, 1.01),
    f"far (below {FAR})": (-1.0, FAR),
    "of these, below 0.4": (-1.0, 0.4),
}
# The number of alike molecules in an interval was chosen on the others.
CHECKED = tuple(f"CHEMBL{n}" for n in ("219", "233", "234", "237", "238", "244", "287", "3979"))


def tables(data: Path) -> dict[str, tuple[Path, str, str]]:
    """Return the file, the column of values and that of the parts, by the name of a table."""
    found = {
        "ESOL": (data / "molecules/esol.csv", "logSolubility", ""),
        "Lipophilicity": (data / "molecules/lipo.csv", "lipo", ""),
    }
    found |= {p.stem: (p, "y", "split") for p in sorted((data / "adme").glob("biogen*.csv"))}
    ligands = sorted((data / "moleculeace").glob("CHEMBL*.csv"))
    return found | {p.stem: (p, "y [pEC50/pKi]", "split") for p in ligands}


def measured(path: Path, column: str, parts: str, training: int, test: int) -> pd.DataFrame:
    """Return by test molecule its similarity, its error, and the half widths at all levels."""
    table = pd.read_csv(path)
    table = table[[Chem.MolFromSmiles(each) is not None for each in table.smiles]]
    if parts:
        chosen = [np.flatnonzero((table[parts] == "test") == is_test) for is_test in (False, True)]
    else:
        split = scaffold_split(list(table.smiles))
        chosen = [np.sort([*split.train, *split.valid]), np.array(split.test)]
    rng = np.random.default_rng(1)
    train, tested = (
        np.sort(rng.permutation(rows)[:most])
        for rows, most in zip(chosen, (training, test), strict=True)
    )
    smiles, others = (tuple(table.smiles.iloc[rows]) for rows in (train, tested))
    y, truth = (table[column].to_numpy(float)[rows] for rows in (train, tested))
    counts, everyone = structure_counts(smiles), np.arange(len(smiles))
    kernel = similarity(counts, counts)
    folds = [fold for fold in scaffold_folds(smiles, 4) if len(fold)]

    def of_folds(noise: float) -> np.ndarray:
        predicted = np.empty(len(y))
        for fold in folds:
            rest = y.copy()
            rest[fold] = np.nan
            process = Process.fit(kernel, everyone, rest[:, None], noise, left_out=False)
            predicted[fold] = process.predict(kernel[fold])[:, 0]
        return predicted

    by_noise = {noise: of_folds(noise) for noise in NOISES}
    noise = min(NOISES, key=lambda each: float(((by_noise[each] - y) ** 2).mean()))
    process = Process.fit(kernel, everyone, y[:, None], noise)
    sources = (
        Unseen(by_noise[noise], y, nearest_of_other_folds(smiles, folds)),
        Unseen(process.left_out[:, 0], y, nearest_of_others(smiles)),
    )
    conformal = pooled([conformal_scores(TASK, each) for each in sources])
    assert conformal is not None
    predicted = process.predict(similarity(structure_counts(others), counts))[:, 0]
    near = nearest_similarities(others, smiles)
    rows: dict[str, Any] = {"smiles": others, "measured": truth, "predicted": predicted}
    rows |= {"similarity": near, "error": np.abs(predicted - truth)}
    ways = {"alike": conformal, "one width": replace(conformal, similarity=())}
    for way, each in ways.items():
        for level in LEVELS:
            rows[f"{way} {level}"] = [each.interval(0.0, s, level)[1] for s in near.tolist()]
    return pd.DataFrame(rows)


def summary(rows: pd.DataFrame, way: str) -> list[str]:
    """Return a line for each group: what was held at each level, and the width over that needed.

    The width that would do is one width for the group in each table; the median over tables counts.
    """
    lines = []
    for words, (low, high) in GROUPS.items():
        group = rows[(rows.similarity >= low) & (rows.similarity < high)]
        cells = [f"{len(group):,}"]
        for level in LEVELS:
            half = group[f"{way} {level}"]
            held = int((group.error <= half).sum())
            ends = binomtest(held, len(group)).proportion_ci()
            ratios = [
                each[f"{way} {level}"].mean() / each.error.quantile(level)
                for _, each in group.groupby("table")
                if len(each) >= 10
            ]
            share = f"{held / len(group):.1%}".replace("%", " %")
            cells.append(
                f"{share} ({100 * ends.low:.0f} to {100 * ends.high:.0f}), {np.median(ratios):.2f}"
            )
        lines.append(f"| {words} | " + " | ".join(cells) + " |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--training", type=int, default=400)
    parser.add_argument("--test", type=int, default=160)
    parser.add_argument("--out", type=Path, default=Path("runs/intervals.json"))
    options = parser.parse_args()
    RDLogger.DisableLog("rdApp.*")  # type: ignore[attr-defined]
    options.out.parent.mkdir(parents=True, exist_ok=True)
    key = f"{options.training} {options.test}"
    stored = json.loads(options.out.read_text()) if options.out.is_file() else {}
    done = stored.setdefault(key, {})
    for name, place in tables(options.data).items():
        if name not in done:
            began = time.process_time()
            done[name] = measured(*place, options.training, options.test).to_dict("list")
            options.out.write_text(json.dumps(stored))
            print(f"{name}: {time.process_time() - began:.0f} s", flush=True)
    every = pd.concat([pd.DataFrame(done[name]).assign(table=name) for name in done])
    is_checked = every.table.str.split("_").str[0].isin(CHECKED)
    parts = {"all tables": every, "the eight for checking": every[is_checked]}
    for words, rows in parts.items():
        for way in ("alike", "one width"):
            print(
                f"\n{words}, {way}\n\n| molecules | n | 50 % | 80 % | 90 % |\n|---|---|---|---|---|"
            )
            print("\n".join(summary(rows, way)))


if __name__ == "__main__":
    main()
