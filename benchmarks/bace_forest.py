"""Where the BACE recipe and a random forest differ, on the test parts of finished runs.

    python benchmarks/bace_forest.py --runs runs/bace-quality [--data FOLDER]

Reads the runs of `bace_quality.py`. Some ligands of crystal structures count as active although
their pIC50 is below 7: each score is given with and without them, with the difference between model
and forest and its 95 % interval (both on the same resampled compounds). Takes a minute.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from graphxai.datasets.molecules import load_bace
from graphxai.datasets.splits import Split
from graphxai.learning.fit import predict
from graphxai.learning.loading import encode_all
from graphxai.learning.metrics import roc_auc
from graphxai.learning.recipes.bace import LINK, bace_split
from graphxai.learning.teachers.forests import reference_forest
from graphxai.models.graphormer import load_checkpoint

DRAWS = 4000
HEAD = ["split", "compounds", "n", "this model", "random forest", "difference", "95 % interval"]


def rows(run: Path, data: Path | None) -> list[list[str]]:
    """Return a run folder's rows: all test compounds, the consistent, the contradictory ones."""
    kind, _, seed = run.name.partition("-")
    model = load_checkpoint(run / "model")
    graphs = encode_all(load_bace(data, canonical=True), model.config)
    split = bace_split(graphs, kind, int(seed or 0))
    y = torch.cat([graph.y for graph in graphs])
    test = list(split.test)
    ours = predict(model, [graphs[k] for k in test])[:, 0].double()
    forest = _forest([graph.smiles for graph in graphs], y[:, 0], split)
    active, potency = y[test, 0] > 0.5, y[test, 1]
    contradictory = active & (potency < LINK.threshold)
    chosen = {
        "all": torch.ones_like(active),
        "class and pIC50 agree": ~contradictory,
        "active below 7, against the inactive": contradictory | ~active,
    }
    name = run.name.replace("-", ", seed ")
    return [
        [name, group, str(int(mask.sum())), *_compared(ours[mask], forest[mask], active[mask])]
        for group, mask in chosen.items()
        if 0 < int(active[mask].sum()) < int(mask.sum())
    ]


def _forest(smiles: list[str], active: Tensor, split: Split) -> Tensor:
    """Predict the test part with the reference forest, fitted to the training part, (test,)."""
    train = list(split.train)
    found = reference_forest(
        [smiles[k] for k in train], active[train].numpy(), [smiles[k] for k in split.test]
    )
    return torch.from_numpy(found).double()


def _compared(ours: Tensor, forest: Tensor, active: Tensor) -> list[str]:
    """Return both ROC-AUCs, their difference, and its paired bootstrap interval over compounds."""
    generator = torch.Generator().manual_seed(0)
    ours, forest, active = ours.numpy(), forest.numpy(), active.numpy()
    draws = []
    for _ in range(DRAWS):
        k = torch.randint(len(active), (len(active),), generator=generator).numpy()
        first, second = roc_auc(ours[k], active[k]), roc_auc(forest[k], active[k])
        draws.append(first - second)
    low, high = np.nanquantile(draws, (0.025, 0.975))
    first, second = roc_auc(ours, active), roc_auc(forest, active)
    interval = f"{low:+.3f} to {high:+.3f}"
    return [f"{first:.3f}", f"{second:.3f}", f"{first - second:+.3f}", interval]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--data", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    runs = sorted(path.parent.parent for path in given.runs.glob("*/model/config.json"))
    for line in [
        HEAD,
        ["---"] * len(HEAD),
        *(row for run in runs for row in rows(run, given.data)),
    ]:
        print("| " + " | ".join(line) + " |", flush=True)


if __name__ == "__main__":
    main()
