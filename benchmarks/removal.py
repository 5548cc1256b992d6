"""Fine-tune networks on BACE with and without removal, and compare what they know without atoms.

    python benchmarks/removal.py [--out runs/removal] [--seeds 0 1] [--epochs 12]

Every network starts from the weights `molecules`, and each seed has its own random split. The
settings are those of the first stage of the recipe of `bace`. What is finished is not repeated.
"""

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from graphxai.datasets.molecules import load_bace
from graphxai.datasets.splits import random_split
from graphxai.learning.fit import finetune, molecule_config
from graphxai.learning.predicting import encode_all, task_readings
from graphxai.learning.recipes.bace import ACTIVITY, FIRST_ROUND, STANDARDISED, bace_tasks
from graphxai.learning.removal import removal_facts
from graphxai.learning.scores import measure
from graphxai.learning.splitting import Source
from graphxai.runtime.writing import markdown_table

ERRORS = ("error_mean", "error_median")
WAYS = {"with removal": True, "without": False}


def measured(
    seed: int, bears: bool, out: Path, epochs: int, compounds: int | None
) -> dict[str, Any]:
    """Train a network, or read what was measured of it."""
    folder = out / f"{seed}-{epochs}-{compounds or 'all'}-{'removal' if bears else 'plain'}"
    kept = folder / "measured.json"
    if kept.exists():
        return dict(json.loads(kept.read_text(encoding="utf-8")))
    begun = time.process_time()
    graphs = load_bace(canonical=True, standardise=STANDARDISED)
    graphs = graphs[:: len(graphs) // (compounds or len(graphs))][:compounds]  # sorted by class
    parts = random_split(len(graphs), seed)
    config = molecule_config(bace_tasks(graphs, parts), dropout=0.0, attention_dropout=0.0)
    graphs = encode_all(graphs, config)
    source = Source(graphs, torch.cat([each.y for each in graphs]).double().numpy(), parts, config)
    settings = replace(
        FIRST_ROUND, epochs=epochs, seed=seed, bears_removal=bears, accelerator="cpu"
    )
    model = finetune(source, folder, settings=settings, resume=True).model
    active = task_readings(model, source.test.graphs)[0]
    results = removal_facts(model, source.test.graphs, source.test.y)[ACTIVITY]
    results |= {"active": active.tolist(), "y": source.test.y[:, 0].tolist()}
    results["seconds"] = time.process_time() - begun
    kept.write_text(json.dumps(results), encoding="utf-8")
    return results


def table(results: dict[str, list[dict[str, Any]]]) -> Iterator[str]:
    """Yield the lines of the table, means over seeds, and below it the difference in ROC-AUC."""
    compared = []
    for of_ways in zip(*results.values(), strict=True):
        active = {name: np.array(e["active"]) for name, e in zip(WAYS, of_ways, strict=True)}
        compared.append(measure("binary", active, np.array(of_ways[0]["y"])))
    rows = []
    for name, of_seeds in results.items():
        of_parts = np.mean([each["values"] for each in of_seeds], axis=0)
        auc = np.mean([each["scores"][name]["ROC-AUC"] for each in compared], axis=0)
        errors = [np.mean([each[key] for each in of_seeds]) for key in ERRORS]
        cells = [interval(auc, ""), *(f"{value:.3f}" for value in of_parts)]
        rows.append([name, *cells, *(f"{error:.2f}" for error in errors)])
    shares = ["accuracy", "without 25 %", "50 %", "75 %"]
    yield from [
        markdown_table([["trained", "ROC-AUC", *shares, "error, mean", "median"], *rows]),
        "",
    ]
    gap = np.mean([each["differences"]["without"]["ROC-AUC"] for each in compared], axis=0)
    first = next(iter(results.values()))
    graphs, explained = (sum(each[key] for each in first) for key in ("graphs", "explained"))
    yield (
        f"{len(first)} random split(s), {graphs} test compounds, {explained} explained."
        f" Removal changes ROC-AUC by {interval(gap, '+')}."
    )


def interval(ends: Sequence[float], sign: str) -> str:
    """Return a value with its 95 % interval over compounds, the mean of those of all seeds."""
    value, low, high = (f"{end:{sign}.3f}" for end in ends)
    return f"{value} ({low} to {high})"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/removal"))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    parser.add_argument("--epochs", type=int, default=FIRST_ROUND.epochs)
    parser.add_argument("--compounds", type=int, help="so few of them")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in WAYS}
    for seed in options.seeds:
        for name, bears in WAYS.items():
            of_way = measured(seed, bears, options.out, options.epochs, options.compounds)
            results[name].append(of_way)
    print("\n".join(table(results)))


if __name__ == "__main__":
    main()
