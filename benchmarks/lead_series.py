"""Say what a model of many chemical series knows of one that it lacks, from a run of `zoo.py`.

    python benchmarks/lead_series.py --run runs/zoo/lipophilicity

A series is at least fifteen training molecules with one Murcko scaffold. Networks and processes
were fitted without each fold of scaffolds, so each series is predicted by what lacks its scaffold,
with the share of the process that the run chose.
"""

import argparse
import json
from collections import defaultdict
from pathlib import Path

import numpy as np
from rdkit.Chem.Scaffolds.MurckoScaffold import MurckoScaffoldSmiles
from scipy.stats import spearmanr

from graphxai.contract.prediction_metrics import r2
from graphxai.learning.cleaning import clean_table
from graphxai.learning.settings import TableSettings
from graphxai.learning.table import split_table
from graphxai.learning.teachers.choosing import choose_process
from graphxai.learning.training import fit_networks, unseen_readings

SMALLEST = 15
NO_SCAFFOLD = ("", "c1ccccc1")  # chains, and benzene alone


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--run", type=Path, required=True)
    args = parser.parse_args()
    stored = json.loads((args.run / "model" / "scores.json").read_text(encoding="utf-8"))
    ((name, share),) = stored["teacher_share"].items()
    table = args.run.with_suffix(".csv")
    (column,) = (c for c in table.read_text("utf-8").splitlines()[0].split(",") if name in c)
    settings = TableSettings(model="network", resume=True)
    source = split_table(clean_table(table, "smiles", [column]), settings)
    train, y = source.train, source.train.y[:, 0]
    networks = [fit.model for fit in fit_networks(source, args.run, print)]
    (by_network,) = unseen_readings(networks, source)
    process, _ = choose_process(
        source.tasks, train.smiles, train.y, source.folds, bounds=train.bounds
    )
    predicted = share * process.of_folds[0].readings + (1 - share) * by_network
    series = defaultdict(list)
    for k, smiles in enumerate(train.smiles):
        series[MurckoScaffoldSmiles(smiles)].append(k)
    large = [k for s, k in series.items() if len(k) >= SMALLEST and s not in NO_SCAFFOLD]
    rows = np.array(
        [
            (r2(predicted[k], y[k]), spearmanr(predicted[k], y[k])[0], np.mean(predicted[k] - y[k]))
            for k in large
        ]
    )
    print(f"{len(large)} series, {sum(map(len, large))} molecules")
    for words, values in zip(
        ("R2", "order (Spearman)", "size of the bias"), (*rows.T[:2], abs(rows[:, 2])), strict=True
    ):
        low, middle, high = np.quantile(values, (0.25, 0.5, 0.75))
        print(f"{words}: median {middle:.2f}, quartiles {low:.2f} and {high:.2f}")


if __name__ == "__main__":
    main()
