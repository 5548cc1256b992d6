"""Train on a data set of OGB with its official split, and score the model by OGB's evaluator."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from typing import Any

import numpy as np

from graphxai.datasets.as_given import Standardisation
from graphxai.datasets.molecules import MoleculeError, molecules_to_data
from graphxai.datasets.open_graph_benchmark import load_ogb
from graphxai.learning.cleaned_table import CleanTable
from graphxai.learning.cleaning import clean_table
from graphxai.learning.predicting import task_readings
from graphxai.models.graphormer import LoadedModel
from graphxai.runtime.progress import progress_bar
from graphxai.runtime.writing import folder_at, write_whole

SPLIT = "split"  # the column of the table that names the parts
METRICS = {"rocauc": "ROC-AUC", "ap": "average precision", "rmse": "RMSE"}


def official_table(
    name: str,
    out: str | os.PathLike[str],
    *,
    root: str | os.PathLike[str] | None = None,
    standardise: Standardisation = "parent",
    progress: bool = True,
) -> CleanTable:
    """Read a data set of OGB as a table that `train_table` learns from in its official split.

    Args:
        name: such as "ogbg-molbace", see `datasets.open_graph_benchmark.load_ogb`.
        out: folder of the run, where the data set is written as a table.
        root: data folder; None means `$GRAPHXAI_DATA`, else `~/.cache/graphxai`.
        standardise: as for `clean_table`.
        progress: whether to show a bar.

    Raises:
        DownloadError, ValueError: see `load_ogb` and `clean_table`.
    """
    official = load_ogb(name, root)
    path = write_whole(folder_at(out) / f"{name}.csv", official.to_csv())
    shown = None if progress else False
    with progress_bar("reading", len(official.smiles), show=shown) as advance:
        table = clean_table(
            path,
            "smiles",
            official.tasks,
            kinds=dict.fromkeys(official.tasks, official.kind),
            standardise=standardise,
            split_column=SPLIT,
            progress=advance,
        )
    return replace(table, official=official)


def official_scores(model: LoadedModel, table: CleanTable) -> dict[str, Any] | None:
    """Score a model on all test molecules of an official table, by OGB's evaluator.

    Molecules that cannot be read are predicted to have the mean training label.

    Returns:
        JSON values: `data`, `metric`, `value` (None if it is undefined), `n` test molecules and how
        many are `unread`; None if the table is of no official data set.
    """
    official = table.official
    if official is None:
        return None
    smiles = [official.smiles[k] for k in official.positions("test")]
    graphs = molecules_to_data(smiles, canonical=True, standardise=table.standardise)
    read = {k: each for k, each in enumerate(graphs) if not isinstance(each, MoleculeError)}
    trained = [target.heading for target in table.targets]
    predictions = np.zeros((len(smiles), len(official.tasks)))
    for column, labels in enumerate(official.labels[official.positions("train")].T):
        measured = labels[~np.isnan(labels)]
        predictions[:, column] = measured.mean() if len(measured) else 0.0
    for name, readings in zip(trained, task_readings(model, list(read.values())), strict=True):
        predictions[list(read), official.tasks.index(name)] = readings
    value = official.score(predictions)
    return {
        "data": official.name,
        "metric": METRICS[official.metric],
        "value": None if math.isnan(value) else value,
        "n": len(smiles),
        "unread": len(smiles) - len(read),
    }


def official_note(scores: dict[str, Any] | None) -> list[str]:
    """Say what `official_scores` returned."""
    if scores is None:
        return []
    metric, value = scores["metric"], scores["value"]
    result = f"no {metric}" if value is None else f"{metric} {value:.4f}"
    note = (
        f"OGB's evaluator gives {result} on the {scores['n']:,} test molecules of {scores['data']}"
    )
    if scores["unread"]:
        note += f"; {scores['unread']:,} could not be read and count as the mean training label"
    return [note]
