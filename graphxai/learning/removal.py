"""Networks that bear removal: nodes removed in training, and what a network knows without them.

Explanations by removal, and the curves that compare methods, show a network graphs that it never
saw in training. It answers them better if it learned from graphs with nodes missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from graphxai.contract.batch import GraphBatch
from graphxai.contract.inputs import Input
from graphxai.contract.prediction_metrics import FloatArray
from graphxai.contract.target import Target
from graphxai.contract.tasks import Task
from graphxai.explainers.registry import get_explainer
from graphxai.explanation.explanation import Explanation
from graphxai.learning.predicting import encode_all
from graphxai.models.graphormer import Ensemble, Graphormer, LoadedModel

if TYPE_CHECKING:
    from torch_geometric.data import Data

    from graphxai.evaluation.measure import Item
    from graphxai.evaluation.store import Key

MOST = 0.75  # of the nodes of a graph that are removed in training
MOST_TASKS, SCORED, EXPLAINED, LARGEST = 3, 200, 30, 100  # tasks, graphs, graphs, nodes
ORDERS = 8  # of Shapley values
TRAINED = (
    "In training, half of the graphs of each batch lost up to 75 % of their nodes, as occlusion"
    " removes them. "
)


def without_some_nodes(batch: GraphBatch, seed: int, step: int) -> GraphBatch:
    """Remove nodes from half of the graphs of a batch, as the operator `mask` removes them.

    Each of these graphs loses a share of its nodes between 0 and 75 %. A removed node is hidden as
    padding is: what stays keeps its degrees and distances. Labels of removed nodes go with them.

    Args:
        step: number of the training step, which decides with the seed alone what is drawn, so that
            a resumed training draws the same.
    """
    drawn = np.random.default_rng([seed, step])
    graphs, most = batch.mask.shape
    halved = drawn.permutation(graphs) < (graphs + drawn.integers(2)) // 2  # of one graph, or none
    shares = MOST * drawn.random(graphs) * halved  # (B,)
    nodes = batch.num_nodes.cpu().numpy()
    chances = np.where(np.arange(most) < nodes[:, None], drawn.random((graphs, most)), np.inf)
    ranks = chances.argsort(1).argsort(1)  # (B, N), padding last
    stays = torch.from_numpy(ranks >= np.floor(shares * nodes)[:, None]).to(batch.mask.device)
    mask, y = batch.mask & stays, batch.y
    if y is not None and len(y) != graphs:  # a row for each node
        y = y[stays[batch.mask]]
    return replace(batch, mask=mask, y=y)


def removal_facts(model: LoadedModel, graphs: Sequence[Data], y: FloatArray) -> dict[str, Any]:
    """Measure what a network knows of test graphs without some of their nodes.

    Graphs of more than 100 nodes are left out, and of the others 200 are scored and 30 explained at
    most. Other models than networks, and those of nodes, are not measured.

    Args:
        y: the labels of the graphs (m, tasks), NaN where one is missing.

    Returns:
        By name of a task, for the first three: the fields of `Robustness`, and `error_mean`,
        `error_median` and `explained`. The error of a graph is that of Shapley values:
        mean((v(S) - v(none) - their sum over S)^2) over random sets S of nodes, over the variance
        of v (Yeh 2019).
    """
    if not isinstance(model, Graphormer | Ensemble) or model.config.level == "node":
        return {}
    from graphxai.evaluation.robustness import robustness_of  # imports PyG

    chosen = [k for k, graph in enumerate(graphs) if 0 < int(graph.num_nodes or 0) <= LARGEST]
    chosen = _spread(chosen, SCORED)
    encoded = encode_all([graphs[k] for k in chosen], model.config)
    items: list[Item] = [(k, Input(graph)) for k, graph in zip(chosen, encoded, strict=True)]
    facts = {}
    for task, column in zip(model.config.tasks[:MOST_TASKS], y.T, strict=False):
        labels: dict[Key, Any] = {k: _label(task, column[k]) for k in chosen}
        labelled = [item for item in items if labels[item[0]] is not None]
        if len({labels[key] for key, _ in labelled}) < 2:
            continue
        target = Target(None, task.name)
        kept = robustness_of(model, labelled, target, labels)
        errors = shapley_errors(model, _spread(labelled, EXPLAINED), target)
        facts[task.name] = asdict(kept) | {
            "error_mean": float(np.mean(errors)) if len(errors) else None,
            "error_median": float(np.median(errors)) if len(errors) else None,
            "explained": len(errors),
        }
    return facts


def shapley_errors(model: LoadedModel, items: Sequence[Item], target: Target) -> FloatArray:
    """Return the error of Shapley values on each graph whose output depends on its nodes (k,)."""
    from graphxai.evaluation.curves import several_series
    from graphxai.evaluation.measure import COALITIONS, explained_or_reason
    from graphxai.evaluation.metrics import partial_sums

    method = get_explainer("shapley_sampling", permutations=ORDERS)
    explained = explained_or_reason(model, items, method, target)
    graphs, scores = [], []
    for key, item in items:
        if isinstance(values := explained[key], Explanation):
            graphs.append(item)
            scores.append([torch.from_numpy(values.relevance)])
    measured = several_series(model, graphs, scores, target, steps=2, coalitions=COALITIONS)
    errors = np.array([partial_sums(series) for (series,) in measured], dtype=float)
    return errors[np.isfinite(errors)]


def removal_text(facts: Mapping[str, Any], *, trained: bool) -> str:
    """Return the paragraph of a card on what was measured, "" if nothing was and none removed."""
    lines = []
    for name, measured in facts.items():
        values = ", ".join(f"{value:.3f}" for value in measured["values"])
        line = (
            f"* {name}: without 0, 25, 50 and 75 % of the nodes, the {measured['measure']} is"
            f" {values} (n = {measured['graphs']:,}; always the same answer:"
            f" {measured['chance']:.3f})"
        )
        if measured["explained"]:
            line += (
                "; the squared error of Shapley values is"
                f" {measured['error_median']:.2f} of the variance of v(S) (median of"
                f" {measured['explained']} graphs; mean {measured['error_mean']:.2f})"
            )
        lines.append(line)
    said = TRAINED * trained + "On test graphs, with nodes drawn at random:\n\n" * bool(lines)
    return f"**Removal.** {said.strip(' ')}" + "\n".join(lines) if said else ""


def _spread(values: Sequence[Any], most: int) -> list[Any]:
    """Return at most so many values, evenly spread over all."""
    places = np.linspace(0, len(values) - 1, min(len(values), most)).astype(int)
    return [values[k] for k in places.tolist()]


def _label(task: Task, value: float) -> str | float | None:
    """Return a label as a class name or a value, None where it is missing."""
    if np.isnan(value):
        return None
    return task.classes[int(value)] if task.classes else float(value)
