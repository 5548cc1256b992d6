"""Which probabilities and sets of classes hold on new scaffolds: what helps, what does not.

    python benchmarks/calibration.py --out runs/calibration --data FOLDER

Each table is dealt into ten scaffold folds. Two are for testing, one calibrates, and the others
train a network as `graphxai train --fast` does; three such divisions, with two test folds each.
Compared are one network and the mean of five, each with a temperature from nothing, from the
calibration fold, from molecules of the training part, each predicted by a network that has not seen
its inner scaffold fold (one of three), or from both. The sets of classes take their scores from the
same molecules. Results are kept by division: an interrupted run continues. `--report` prints the
tables.

FOLDER contains `bace/raw/bace.csv` and `molecules/bbbp.csv`, `tox21.csv`.
"""

import argparse
import json
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch_geometric.data import Data

from graphxai.contract.tasks import Task
from graphxai.datasets.molecules import iter_table
from graphxai.datasets.splits import Split, scaffold_folds
from graphxai.learning.calibration import fit_temperature
from graphxai.learning.conformal import (
    conformal_scores,
    coverage,
    nearest_similarities,
)
from graphxai.learning.fit import predict
from graphxai.learning.metrics import brier, calibration_error, roc_auc
from graphxai.learning.recipes.molecules import FINETUNING, finetune

FloatArray = NDArray[np.float64]
FOLDS, INNER, DIVISIONS, MEMBERS, MOST = 10, 3, 3, 5, 1500
TABLES = {  # file, SMILES column, label column
    "BACE": ("bace/raw/bace.csv", "mol", "Class"),
    "BBBP": ("molecules/bbbp.csv", "smiles", "p_np"),
    "Tox21 SR-MMP": ("molecules/tox21.csv", "smiles", "SR-MMP"),
}
TASK = Task("label", "binary", ("0", "1"))
SOURCES = ("none", "calibration", "inner", "both")


@dataclass(frozen=True, eq=False)
class Known:
    """Molecules with a label: logits (members, n), labels and nearest similarities (n,)."""

    logits: FloatArray
    y: FloatArray
    near: FloatArray

    def and_(self, other: "Known") -> "Known":
        """Both one after the other; of a member that lacks the other's logits, the first's."""
        rows = [np.concatenate(pair) for pair in zip(self.logits, other.logits, strict=False)]
        return Known(
            np.stack(rows),
            np.concatenate([self.y, other.y]),
            np.concatenate([self.near, other.near]),
        )


def read(name: str, data: Path) -> list[Data]:
    """At most 1,500 molecules with a label, drawn with seed 0."""
    file, smiles, column = TABLES[name]
    rows = [
        graph for graph in iter_table(data / file, smiles, (column,)) if isinstance(graph, Data)
    ]
    rows = [graph for graph in rows if not graph.y.isnan().any()]
    return random.Random(0).sample(rows, min(len(rows), MOST))


def trained(graphs: list[Data], split: Split, seed: int, out: Path) -> torch.nn.Module:
    """The network that fine-tuning makes of the split's training part."""
    settings = replace(FINETUNING, seed=seed, accelerator="cpu")
    return finetune(graphs, [TASK], split, out, settings=settings, resume=True, at_frequencies=True)


def known(
    models: Sequence[torch.nn.Module], graphs: list[Data], part: Sequence[int], train: Sequence[int]
) -> Known:
    """What the networks say of a part that they did not learn from."""
    chosen = [graphs[k] for k in part]
    logits = np.stack([predict(model, chosen)[:, 0].double().numpy() for model in models])
    near = nearest_similarities([g.smiles for g in chosen], [graphs[k].smiles for k in train])
    return Known(logits, np.array([float(g.y) for g in chosen]), near)


def divided(graphs: list[Data], number: int, out: Path) -> dict[str, Known]:
    """Calibration, inner and test molecules of one division, with the logits of its networks."""
    folds = [part.tolist() for part in scaffold_folds([g.smiles for g in graphs], FOLDS)]
    test = [*folds[2 * number], *folds[2 * number + 1]]
    valid = folds[2 * number + 2]
    train = sorted({*range(len(graphs))} - {*test, *valid})
    split = Split(tuple(train), (), (), "scaffold folds")
    models = [trained(graphs, split, seed, out / f"network-{seed}") for seed in range(MEMBERS)]
    inner: Known | None = None
    for k, fold in enumerate(scaffold_folds([graphs[k].smiles for k in train], INNER)):
        left = [train[position] for position in fold]
        rest = sorted({*train} - {*left})
        model = trained(graphs, replace(split, train=tuple(rest)), 0, out / f"inner-{k}")
        part = known([model], graphs, left, rest)
        inner = part if inner is None else inner.and_(part)
    assert inner is not None
    return {
        "calibration": known(models, graphs, valid, train),
        "inner": inner,
        "test": known(models, graphs, test, train),
    }


def measured(found: dict[str, Known]) -> dict[str, dict[str, float]]:
    """By networks and source of the temperature: how well probabilities and sets hold."""
    rows, test = {}, found["test"]
    for members, kind in ((1, "one network"), (MEMBERS, "five networks")):
        sources = {
            "calibration": replace(
                found["calibration"],
                logits=found["calibration"].logits[:members].mean(0, keepdims=True),
            ),
            "inner": found["inner"],
        }
        sources["both"] = sources["calibration"].and_(sources["inner"])
        logits = test.logits[:members].mean(0)
        for name in SOURCES:
            source = sources.get(name)
            t = 1.0 if source is None else temperature(source)
            p = 1 / (1 + np.exp(-logits / t))
            rows[f"{kind}, {name}"] = {
                "temperature": t,
                "ECE": calibration_error(p, test.y),
                "Brier": brier(p, test.y),
                "log loss": float(-np.log(np.where(test.y == 1, p, 1 - p)).mean()),
                "ROC-AUC": roc_auc(p, test.y),
                **({} if source is None else sets(source, p, t, test)),
            }
    return rows


def temperature(source: Known) -> float:
    """The temperature that fits the first row of logits best."""
    return fit_temperature(torch.from_numpy(source.logits[0]), torch.from_numpy(source.y))


def sets(source: Known, p: FloatArray, t: float, test: Known) -> dict[str, float]:
    """How often 90 % sets of classes hold, over both classes, of the worse one, and single ones."""
    own = 1 / (1 + np.exp(-source.logits[0] / t))
    made = conformal_scores(TASK, own, source.y, source.near)
    assert made is not None
    found = coverage(TASK, made, p, test.y, test.near)
    worse = min(share for share, _ in found["held_by_class"].values())
    return {"held": found["held"], "held, worse class": worse, "single": found["single"]}


def report(results: dict[str, dict[str, dict[str, float]]]) -> None:
    """Print the mean over divisions, by table and over all tables."""
    columns = list(next(iter(results.values()))["one network, both"])
    for title in (*TABLES, "all"):
        chosen = [rows for key, rows in results.items() if title == "all" or key.startswith(title)]
        print(f"\n### {title}: {len(chosen)} divisions\n")
        print("| networks, molecules for the temperature |", " | ".join(columns), "|")
        print("|---" * (len(columns) + 1) + "|")
        for row in chosen[0]:
            cells = []
            for column in columns:
                values = [rows[row][column] for rows in chosen if column in rows[row]]
                cells.append(f"{np.mean(values):.3f}" if values else "")
            print("|", row, "|", " | ".join(cells), "|")


def main() -> None:
    """Measure what is missing, a division at a time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--tables", nargs="+", default=list(TABLES), choices=list(TABLES))
    parser.add_argument("--report", action="store_true", help="only print what was measured")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    kept = args.out / "calibration.json"
    results = json.loads(kept.read_text()) if kept.exists() else {}
    for number in range(0 if args.report else DIVISIONS):
        for name in args.tables:
            key = f"{name}, division {number}"
            if key not in results:
                begun, graphs = time.process_time(), read(name, args.data)
                found = divided(graphs, number, args.out / key)
                results[key] = measured(found)
                kept.write_text(json.dumps(results, indent=1))
                print(key, f"{time.process_time() - begun:.0f} s", flush=True)
    report(results)


if __name__ == "__main__":
    main()
