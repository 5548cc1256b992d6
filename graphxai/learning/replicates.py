"""Train a table several times, with different seeds, and report the mean and the spread."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from graphxai.learning.cleaning import CleanTable
from graphxai.learning.table import train_table
from graphxai.learning.table_files import PREDICTORS, mean_scores
from graphxai.runtime.writing import write_whole

__all__ = ["replicate_rows", "train_replicates"]

FILE = "replicates.json"


def train_replicates(
    table: CleanTable,
    out: str | Path,
    count: int = 1,
    *,
    seed: int = 0,
    say: Callable[[str], None] = lambda line: None,
    **options: Any,
) -> Path:
    """Train `count` models from consecutive seeds; options and errors as for `train_table`.

    A random split differs too, the others stay the same. The first model is that of the run's
    folder, the others are in its sub-folders `replicates/1` and so on. `replicates.json` has the
    leading scores of all.

    Returns:
        The checkpoint folder of the first model.
    """
    out = Path(out)
    folders = [out, *(out / "replicates" / str(k) for k in range(1, count))]
    models = []
    for k, folder in enumerate(folders):
        if count > 1:
            say(f"replicate {k + 1} of {count}, seed {seed + k}")
        models.append(train_table(table, folder, seed=seed + k, say=say, **options))
    if count > 1:
        scores = [json.loads((m / "scores.json").read_text("utf-8"))["scores"] for m in models]
        found = {
            "seeds": list(range(seed, seed + count)),
            "targets": {name: [_leading(each[name]) for each in scores] for name in scores[0]},
            "means": [mean_scores(each) for each in scores],
        }
        write_whole(out / FILE, json.dumps(found, indent=1) + "\n")
    return models[0]


def replicate_rows(out: Path) -> list[list[list[str]]]:
    """Return a table of means and standard deviations over replicates; none without them."""
    if not (out / FILE).is_file():
        return []
    found = json.loads((out / FILE).read_text("utf-8"))
    header = [f"mean and spread of {len(found['seeds'])} replicates", "score", *PREDICTORS.values()]
    rows = []
    for name, runs in found["targets"].items():
        metrics = {run["metric"] for run in runs if run["values"]}
        cells = [_spread([run["values"].get(p) for run in runs]) for p in PREDICTORS]
        rows.append([name, *sorted(metrics), *cells])
    if len(found["targets"]) > 1:
        for kind in zip(*found["means"], strict=False):
            cells = [_spread([values.get(p) for _, _, values in kind]) for p in PREDICTORS]
            rows.insert(0, [f"mean of {kind[0][1]} targets", kind[0][0], *cells])
    return [[header, *rows]]


def _leading(of_target: dict[str, Any]) -> dict[str, Any]:
    """Return the leading metric of a target and its value by predictor."""
    scores = of_target["scores"]
    metric = next(iter(scores["graphormer"]), "") if scores else ""
    return {"metric": metric, "values": {name: each[metric][0] for name, each in scores.items()}}


def _spread(values: list[float | None]) -> str:
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return "–"
    return f"{mean(known):.3f} ± {stdev(known):.3f}"
