"""Write the files of a run on graphs: first what the run is, then its results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphxai.learning.card import coverage_text, markdown_table, score_tables, summary
from graphxai.learning.graphs.splitting import SplitGraphs
from graphxai.learning.scores import verdicts
from graphxai.learning.settings import TrainingSettings
from graphxai.learning.writing import csv_text, prediction_columns, record_run
from graphxai.models.graphormer import (
    Ensemble,
    GraphormerConfig,
    LoadedModel,
    members_of,
    save_checkpoint,
    save_ensemble,
)
from graphxai.runtime.writing import json_text, write_whole

__all__ = ["begin_run", "write_run"]

FloatArray = NDArray[np.float64]
HARDWARE = ("accelerator", "devices", "strategy", "precision", "num_workers", "progress")
FOREST_READS = {
    "graphs": "the means of all features and the numbers of nodes and edges",
    "nodes": "a node's features, its degree and the mean features of its neighbours",
}
SCORES = ("data", "sha256", "split", "temperature", "scores", "coverage", "notes")


def begin_run(
    out: Path, split: SplitGraphs, training: TrainingSettings, ensemble: int, *, resume: bool
) -> None:
    """Create a run's folder with what is known before training, or check that it has this run.

    Raises:
        ValueError: see `record_run`.
    """
    record_run(out, _identity(split, training, ensemble), resume=resume)


def write_run(
    out: Path,
    model: LoadedModel,
    split: SplitGraphs,
    training: TrainingSettings,
    figures: dict[str, Any],
    readings: Sequence[FloatArray],
    command: str,
) -> Path:
    """Write the checkpoint with its card and scores, and the test predictions.

    Args:
        out: folder of the run.
        model: the calibrated model.
        split: the graphs.
        training: settings of the training.
        figures: `scores`, `coverage`, `temperature`, `ensemble` and `best_epochs`.
        readings: the model's probabilities and values for the test part, by task.
        command: how the run was started, for the card; "" if that is not known.

    Returns:
        The checkpoint folder, `out / "model"`.
    """
    scores = figures["scores"]
    metadata = _identity(split, training, figures["ensemble"]) | figures
    metadata |= {"notes": verdicts(scores), "summary": summary(scores)}
    card = _card(model, split, training, metadata, command)
    if isinstance(model, Ensemble):
        folder = save_ensemble(model, out / "model", card=card, metadata=metadata)
    else:
        folder = save_checkpoint(model, out / "model", card=card, metadata=metadata)
    write_whole(folder / "scores.json", json_text({name: metadata[name] for name in SCORES}))
    write_whole(out / "test.csv", _test_csv(split, readings))
    return folder


def _identity(split: SplitGraphs, training: TrainingSettings, ensemble: int) -> dict[str, Any]:
    """Return what must be the same when a run is resumed, as JSON values."""
    chosen = {name: value for name, value in asdict(training).items() if name not in HARDWARE}
    return {
        "data": split.name,
        "sha256": split.sha256,
        "graphs": len(split.graphs),
        "split": asdict(split.parts),
        "training": chosen,
        "ensemble": ensemble,
    }


def _test_csv(split: SplitGraphs, readings: Sequence[FloatArray]) -> str:
    """Return positions in the data set, labels and predictions of the test graphs or nodes."""
    predicted = [
        column
        for task, values in zip(split.tasks, readings, strict=True)
        for column in prediction_columns(task, values)
    ]
    places = ["graph"] if split.labelled == "graphs" else ["graph", "node"]
    header = [*places, *(task.name for task in split.tasks), *(name for name, _ in predicted)]
    rows = []
    for position, k in enumerate(split.parts.test):
        labels = [
            "" if np.isnan(v) else task.classes[int(v)] if task.classes else f"{v:.7g}"
            for task, v in zip(split.tasks, split.y[k], strict=True)
        ]
        place = [k] if split.labelled == "graphs" else split.node_of(k)
        rows.append([*place, *labels, *(f"{values[position]:.6g}" for _, values in predicted)])
    return csv_text(header, rows)


def _card(
    model: LoadedModel,
    split: SplitGraphs,
    training: TrainingSettings,
    metadata: dict[str, Any],
    command: str,
) -> str:
    """Return the model card."""
    config = model.config
    sizes = f"{len(split.parts.train):,} / {len(split.parts.valid):,} / {len(split.parts.test):,}"
    nodes = [int(graph.num_nodes or 0) for graph in split.graphs]
    parameters = sum(parameter.numel() for parameter in model.parameters())
    networks = members_of(model)
    temperatures = [
        f"{name} {value:.2f}" for name, value in metadata["temperature"].items() if value
    ]
    kind = {
        "random": f"at random with seed {split.parts.seed}",
        "masks": "by the masks of the graphs",
    }.get(split.parts.kind, "as given")
    of_graphs, what = split.labelled == "graphs", split.labelled
    text = [
        f"# {', '.join(task.name for task in split.tasks)}",
        f"{'A Graphormer' if len(networks) == 1 else f'The mean of {len(networks)} Graphormers'}"
        f" ({config.num_layers} layers, width {config.hidden_dim}, {config.num_heads}"
        f" heads, {parameters:,} parameters) trained with graphxai on {what}.",
        f"**Data.** {split.name}, {len(split.graphs):,} graphs of {min(nodes):,} to"
        f" {max(nodes):,} nodes, SHA-256 of features and edges `{split.sha256}`."
        f" {_inputs_text(config)}",
        f"**Split.** {sizes} {what} to train, validate and test, {kind}. Their positions are in"
        f" `config.json`{'' if of_graphs else ', counted over all graphs'}.",
        f"**Training.** At most {training.epochs} epochs from scratch, batches of"
        f" {training.batch_size}, learning rate {training.learning_rate:g}, seed {training.seed};"
        f" stopped after {training.patience} epochs without a lower validation loss. The averaged"
        f" weights of epoch {', '.join(str(k + 1) for k in metadata['best_epochs'])} were kept."
        f" The test {what} were not used"
        " for any choice."
        + (
            f" Class logits are divided by a temperature fitted on the validation {what}:"
            f" {', '.join(temperatures)}."
            if temperatures
            else ""
        ),
        f"    {command}" if command else "",
        *(f"**Note.** {note[0].upper()}{note[1:]}." for note in metadata["notes"]),
        f"**Test scores.** In brackets: 95 % bootstrap intervals over {what}. GIN: a graph"
        " isomorphism network (Xu 2019) with as many parameters, trained for as many epochs."
        f" Forest: 500 trees on {FOREST_READS[what]}."
        " Dummy: predicts the training mean, or the class frequencies. Minus: this model minus the"
        " other; if the interval includes 0, this test part shows no clear difference.",
        *(markdown_table(rows) for rows in score_tables(metadata["scores"])),
        _uncertainty_text(split, metadata["coverage"]),
        f"**Limits.** The scores apply to {what} like those tested.",
    ]
    return "\n\n".join(part for part in text if part) + "\n"


def _inputs_text(config: GraphormerConfig) -> str:
    """Say what the network reads of nodes and edges."""
    parts = []
    for word, sizes, numbers in (
        ("Nodes", config.node_cardinalities, config.num_node_features),
        ("Edges", config.edge_cardinalities, config.num_edge_features),
    ):
        if sizes == (1,):
            parts.append(f"{word} all look alike.")
        elif sizes:
            parts.append(f"{word} have {len(sizes)} categorical features.")
        elif numbers:
            parts.append(f"{word} have {numbers} numbers, standardised on the training graphs.")
        else:
            parts.append(f"{word} have no features.")
    return " ".join(parts)


def _uncertainty_text(split: SplitGraphs, coverage: dict[str, Any]) -> str:
    """Say how often intervals and sets of classes held, or return "" if there are none."""
    if not coverage:
        return ""
    return (
        "**Uncertainty.** Conformal intervals and sets of classes, made from the validation"
        f" {split.labelled}, which also decided about the epoch. On the test {split.labelled}:\n\n"
        + coverage_text(coverage, {task.name: task.unit for task in split.tasks})
    )
