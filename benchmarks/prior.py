"""Which weights to start training from: fine-tuned on inner scaffold folds of several tables.

    python benchmarks/prior.py --out runs/prior --data FOLDER --weights molecules runs/new ...

The molecules are those of each table's training part (scaffold split), so test parts stay unseen.
Training starts from each of the weights in turn, with the same recipe and seed, on two of three
scaffold folds, and is scored on the third. `none` trains from scratch. Results are kept in
`prior.json`: an interrupted run continues.

FOLDER contains `bace/raw/bace.csv` and `molecules/bbbp.csv`, `esol.csv`, `lipo.csv`.
"""

import argparse
import json
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch_geometric.data import Data

from graphxai.contract.tasks import Task
from graphxai.datasets.molecules import iter_table
from graphxai.datasets.splits import Split, scaffold_folds, scaffold_split
from graphxai.learning.fit import evaluate
from graphxai.learning.recipes.molecules import FINETUNING, finetune

FOLDS = 3


@dataclass(frozen=True)
class Table:
    """A table to fine-tune on: its file, its SMILES column, and the columns to predict."""

    file: str
    smiles: str
    binary: tuple[str, ...] = ()
    regression: tuple[str, ...] = ()


TABLES = {
    "BACE": Table("bace/raw/bace.csv", "mol", ("Class",), ("pIC50",)),
    "BBBP": Table("molecules/bbbp.csv", "smiles", ("p_np",)),
    "ESOL": Table("molecules/esol.csv", "smiles", (), ("logSolubility",)),
    "Lipophilicity": Table("molecules/lipo.csv", "smiles", (), ("lipo",)),
}


def read(table: Table, data: Path) -> list[Data]:
    """Read the molecules of the table's training part, with their labels `y` (1, tasks)."""
    rows = iter_table(data / table.file, table.smiles, table.binary + table.regression)
    graphs = [graph for graph in rows if isinstance(graph, Data)]
    return [graphs[k] for k in scaffold_split([graph.smiles for graph in graphs]).train]


def tasks_of(table: Table, y: torch.Tensor) -> list[Task]:
    """Return the tasks, regression standardised on labels y (n, tasks)."""
    values = y[:, len(table.binary) :]
    return [
        *(Task(name, "binary", ("0", "1")) for name in table.binary),
        *(
            Task(name, "regression", offset=float(column.mean()), scale=float(column.std()))
            for name, column in zip(table.regression, values.T, strict=True)
        ),
    ]


def measure(table: Table, graphs: list[Data], weights: str, fold: int, out: Path) -> dict:
    """Fine-tune from the weights without one fold; score that fold, by task."""
    folds = scaffold_folds([graph.smiles for graph in graphs], FOLDS)
    train = [int(k) for n, part in enumerate(folds) if n != fold for k in part]
    y = torch.cat([graphs[k].y for k in train])
    split = Split(tuple(train), (), tuple(int(k) for k in folds[fold]), "inner scaffold fold")
    begun = time.process_time()
    model = finetune(
        graphs,
        tasks_of(table, y),
        split,
        out,
        start=None if weights == "none" else weights,
        settings=FINETUNING,
        resume=True,
    )
    found = evaluate(model, [graphs[k] for k in split.test])
    return {**found, "seconds": round(time.process_time() - begun)}


def main() -> None:
    """Measure what is missing, a fold at a time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--weights", nargs="+", default=["molecules"])
    parser.add_argument("--tables", nargs="+", default=list(TABLES), choices=list(TABLES))
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    kept = args.out / "prior.json"
    results = json.loads(kept.read_text()) if kept.exists() else {}
    for name in args.tables:
        graphs = read(TABLES[name], args.data)
        for fold in range(FOLDS):
            for weights in args.weights:
                key = f"{name} / fold {fold} / {weights}"
                if key not in results:
                    run = args.out / f"{name}-{fold}-{Path(weights).name}"
                    results[key] = measure(TABLES[name], graphs, weights, fold, run)
                    kept.write_text(json.dumps(results, indent=1))
                print(key, results[key], flush=True)


if __name__ == "__main__":
    main()
