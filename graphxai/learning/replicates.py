"""Train several times, with different seeds, and report the mean and the spread."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from torch_geometric.data import Data

from graphxai.learning.card import PREDICTORS, mean_scores
from graphxai.learning.cleaned_table import CleanTable
from graphxai.learning.graphs.labels import TaskLike
from graphxai.learning.graphs.train import train
from graphxai.learning.settings import GraphSettings, TableSettings
from graphxai.learning.table import train_table
from graphxai.runtime.options import with_options
from graphxai.runtime.writing import write_whole

__all__ = ["replicate_rows", "train_graph_replicates", "train_replicates"]

FILE = "replicates.json"


def train_replicates(
    table: CleanTable,
    out: str | Path,
    count: int = 1,
    settings: TableSettings | None = None,
    *,
    command: str = "",
    log: Callable[[str], None] = lambda line: None,
    **options: Any,
) -> Path:
    """Train a table several times, from consecutive seeds.

    A random split depends on the seed, other splits stay the same. The first model is in the run's
    folder, the others in its sub-folders `replicates/1` and so on. `replicates.json` has the
    leading scores of all models.

    Args:
        table: molecules and labels.
        out: folder of the run.
        count: number of models.
        settings: settings of the first model, by default `TableSettings()`.
        command: how the run was started, for the model cards.
        log: called with a line of text at each stage.
        options: fields of `TableSettings` to change.

    Returns:
        The checkpoint folder of the first model.

    Raises:
        ImportError, TypeError, ValueError: see `train_table`.
    """
    settings = with_options(settings or TableSettings(), options, "train_replicates")

    def train_once(folder: Path, seed: int) -> Path:
        return train_table(table, folder, settings, seed=seed, command=command, log=log)

    return _replicated(train_once, Path(out), range(settings.seed, settings.seed + count), log)


def train_graph_replicates(
    dataset: Iterable[Data] | Data | str | Path,
    out: str | Path,
    count: int = 1,
    settings: GraphSettings | None = None,
    *,
    task: TaskLike = None,
    command: str = "",
    log: Callable[[str], None] = lambda line: None,
    **options: Any,
) -> Path:
    """Train on graphs several times, from consecutive seeds, as `train_replicates` does on a table.

    Args:
        dataset: graphs, or a folder of them, see `learning.graphs.train.train`.
        out: folder of the run.
        count: number of models.
        settings: settings of the first model, by default `GraphSettings()`.
        task: see `learning.graphs.train.train`.
        command: how the run was started, for the model cards.
        log: called with a line of text at each stage.
        options: fields of `GraphSettings` to change.

    Returns:
        The checkpoint folder of the first model.

    Raises:
        ImportError, TypeError, ValueError: see `learning.graphs.train.train`.
    """
    settings = with_options(settings or GraphSettings(), options, "train_graph_replicates")
    graphs = dataset if isinstance(dataset, str | Path | Data) else list(dataset)

    def train_once(folder: Path, seed: int) -> Path:
        about: dict[str, Any] = {"task": task, "command": command, "log": log}
        return train(graphs, folder, settings=settings, seed=seed, **about)

    return _replicated(train_once, Path(out), range(settings.seed, settings.seed + count), log)


def _replicated(
    train_once: Callable[[Path, int], Path], out: Path, seeds: range, log: Callable[[str], None]
) -> Path:
    """Train with each seed, compare the scores, and return the first checkpoint folder."""
    count, models = len(seeds), []
    for k, seed in enumerate(seeds):
        if count > 1:
            log(f"replicate {k + 1} of {count}, seed {seed}")
        models.append(train_once(out / "replicates" / str(k) if k else out, seed))
    if count > 1:
        scores = [json.loads((m / "scores.json").read_text("utf-8"))["scores"] for m in models]
        content = {
            "seeds": list(seeds),
            "targets": {name: [_leading(each[name]) for each in scores] for name in scores[0]},
            "means": [mean_scores(each) for each in scores],
        }
        write_whole(out / FILE, json.dumps(content, indent=1) + "\n")
    return models[0]


def replicate_rows(out: Path) -> list[list[list[str]]]:
    """Return a table of means and standard deviations, or no table if there are no replicates."""
    if not (out / FILE).is_file():
        return []
    stored = json.loads((out / FILE).read_text("utf-8"))
    title = f"mean and spread of {len(stored['seeds'])} replicates"
    rows = []
    for name, runs in stored["targets"].items():
        metrics = {run["metric"] for run in runs if run["values"]}
        cells = [_spread([run["values"].get(p) for run in runs]) for p in PREDICTORS]
        rows.append([name, *sorted(metrics), *cells])
    if len(stored["targets"]) > 1:
        for kind in zip(*stored["means"], strict=False):
            cells = [_spread([values.get(p) for _, _, values in kind]) for p in PREDICTORS]
            rows.insert(0, [f"mean of {kind[0][1]} targets", kind[0][0], *cells])
    return [[[title, "score", *PREDICTORS.values()], *rows]]


def _leading(target_scores: dict[str, Any]) -> dict[str, Any]:
    """Return the leading metric of a target and its value by predictor."""
    scores = target_scores["scores"]
    metric = next(iter(scores["graphormer"]), "") if scores else ""
    return {"metric": metric, "values": {name: each[metric][0] for name, each in scores.items()}}


def _spread(values: list[float | None]) -> str:
    """Return mean and standard deviation in words, or a dash for fewer than two values."""
    defined = [value for value in values if value is not None]
    if len(defined) < 2:
        return "–"
    return f"{mean(defined):.3f} ± {stdev(defined):.3f}"
