"""Explain inputs with known true nodes, shares or pixels, and score the results."""

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike, NDArray

from graphxai.contract.inputs import Input, prepare_all, prepare_each
from graphxai.contract.prediction_metrics import score_task
from graphxai.contract.target import Target
from graphxai.explainers import Explainer, get_explainer
from graphxai.explainers.control import with_controls
from graphxai.explainers.edge_shapley import edge_shapley
from graphxai.explainers.registry import Method, each_of, told_apart
from graphxai.explanation.api import pairs
from graphxai.explanation.compute.explaining import explain_prepared, explanations_or_errors
from graphxai.explanation.explanation import Explanation
from graphxai.models.graphormer import Graphormer
from graphxai.runtime.progress import progress_bar
from graphxai.wrapping.removal import outputs_of_many

from .truth_metrics import BOND_METRICS, bond_scores, metrics_for, outstanding, undefined

COLUMNS = ("graph", "method", "operator", "metric", "value", "note")


def evaluate_truth(
    model: Graphormer,
    inputs: Sequence[Any],
    truths: Sequence[ArrayLike],
    methods: Sequence[Method],
    *,
    target: Any = None,
    bonds: Sequence[tuple[ArrayLike, ArrayLike]] | None = None,
    top: Sequence[int] = (),
    progress: bool | None = None,
) -> pd.DataFrame:
    """Score methods against the known truth of every input, always including `random`.

    Args:
        model: the explained model.
        inputs: n inputs as for `explain`.
        truths: n arrays, see `metrics_for`. An (H, W) truth is about the pixels of a picture, and
            each pixel gets the relevance of its superpixel.
        methods: names of methods, or explainers.
        target: see `explain`.
        bonds: for each input, the ends (M, 2) of its bonds and which bonds are true (M,). Bonds are
            scored as well, by the mean relevance of their atoms.
        top: numbers k of the most relevant nodes, such as `range(10, 90, 10)`. For each of them the
            precision and the token-F1 of these nodes are measured too ("precision_at_10").
        progress: whether to show a progress bar. None shows it only on a terminal.

    Returns:
        A data frame with the columns graph (the position in `inputs`), method, operator ("none"),
        metric, value and note. If an input cannot be used or a score is not defined, value is NaN
        and note says why. Its `attrs["seconds"]` has the mean time of an explanation by method.

    Raises:
        ValueError: a truth does not fit its input, or a method returns relevance that is not
            finite. The message names the graph.
    """
    if len(inputs) != len(truths):
        raise ValueError(f"{len(inputs)} inputs, but {len(truths)} truths.")
    explainers = explainers_of(model, methods)
    arrays = [np.asarray(truth) for truth in truths]
    prepared, notes = _prepare(model, inputs, arrays)
    seconds: dict[str, float] = {}
    rows: list[tuple[int, str, str, str, float, str]] = []
    with progress_bar("evaluating", len(prepared) * len(explainers), show=progress) as advance:
        for explainer in explainers:
            scores_of = {k: dict.fromkeys(metrics_for(arrays[k], top), np.nan) for k in notes}
            begun = perf_counter()
            computed = list(explanations_or_errors(model, prepared, explainer, target=target))
            seconds[explainer.name] = (perf_counter() - begun) / max(len(prepared), 1)
            for graph, explanation in computed:
                if isinstance(explanation, Exception):
                    raise ValueError(
                        f"graph {graph}, method {explainer.name!r}: relevance contains values that"
                        " are not finite."
                    ) from explanation
                scores_of[graph] = _scores(explanation, arrays[graph], graph, top)
                if bonds is not None:
                    ends, is_true = bonds[graph]
                    of_bonds = bond_scores(explanation.relevance, ends)
                    scores_of[graph] |= {
                        name: score(of_bonds, np.asarray(is_true))
                        for name, score in BOND_METRICS.items()
                    }
                advance(1)
            for graph, scores in sorted(scores_of.items()):
                for name, value in scores.items():
                    truth = bonds[graph][1] if bonds and name in BOND_METRICS else arrays[graph]
                    reason = notes.get(graph) or undefined(truth) or "relevance is constant"
                    note = reason if np.isnan(value) else ""
                    rows.append((graph, explainer.name, "none", name, value, note))
    frame = pd.DataFrame(rows, columns=list(COLUMNS))
    frame.attrs["seconds"] = seconds
    return frame


def evaluate_nothing(
    model: Graphormer,
    inputs: Sequence[Any],
    methods: Sequence[Method],
    *,
    target: Any = None,
    ends: Sequence[ArrayLike] | None = None,
) -> pd.DataFrame:
    """Count false positives in inputs where no node is true, see `outstanding`.

    Args:
        model: the explained model.
        inputs: inputs as for `explain`. If one cannot be used, its error is raised.
        methods: names of methods, or explainers.
        target: see `explain`.
        ends: for each input, the ends of its bonds (M, 2). Bonds are counted as well, by the mean
            relevance of their atoms.

    Returns:
        Rows as those of `evaluate_truth`.
    """
    prepared = list(enumerate(prepare_all(model, inputs)))
    rows: list[tuple[int, str, str, str, float, str]] = []
    for explainer in explainers_of(model, methods):
        explained = dict(explain_prepared(model, prepared, explainer, target=target))
        for graph, explanation in sorted(explained.items()):
            counted = {"false_positives": explanation.relevance}
            if ends is not None and len(np.asarray(ends[graph])):
                counted["bond_false_positives"] = bond_scores(explanation.relevance, ends[graph])
            rows += [
                (graph, explainer.name, "none", name, outstanding(values), "")
                for name, values in counted.items()
            ]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def evaluate_bonds(
    model: Graphormer,
    inputs: Sequence[Any],
    bonds: Sequence[tuple[ArrayLike, ArrayLike]],
    *,
    target: Any = None,
    methods: "Mapping[str, BondMethod] | None" = None,
) -> pd.DataFrame:
    """Score methods that give bonds a relevance of their own.

    Args:
        model: the explained model.
        inputs: inputs as for `explain`. If one cannot be used, its error is raised.
        bonds: for each input, the ends (M, 2) of its bonds and which bonds are true (M,). If none
            is true, false positives are counted.
        target: see `explain`.
        methods: the methods by name. None takes `BOND_METHODS`.

    Returns:
        Rows as those of `evaluate_truth`.
    """
    rows: list[tuple[int, str, str, str, float, str]] = []
    for name, method in (BOND_METHODS if methods is None else methods).items():
        relevances = method(model, inputs, [np.asarray(ends) for ends, _ in bonds], target)
        for graph, (values, (_, truth)) in enumerate(zip(relevances, bonds, strict=True)):
            true = np.asarray(truth)
            scores = {"bond_false_positives": outstanding(values)} if len(values) else {}
            if true.any():
                scores = {metric: score(values, true) for metric, score in BOND_METRICS.items()}
            rows += [(graph, name, "none", metric, value, "") for metric, value in scores.items()]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _shapley_of_bonds(
    model: Graphormer, inputs: Sequence[Any], ends: Sequence[NDArray[np.int64]], target: Any
) -> list[NDArray[np.float64]]:
    """Compute the Shapley values of the bonds over 8 orders."""
    games = edge_shapley(model, inputs, target)
    of_pair = [
        dict(zip(map(tuple, game.edges.tolist()), game.values, strict=True)) for game in games
    ]
    return [
        np.array([values[min(a, b), max(a, b)] for a, b in bonds.tolist()])
        for values, bonds in zip(of_pair, ends, strict=True)
    ]


def _pairs_of_bonds(
    model: Graphormer, inputs: Sequence[Any], ends: Sequence[NDArray[np.int64]], target: Any
) -> list[NDArray[np.float64]]:
    """Return the relevance (LRP, all layers) that the two atoms of a bond read from each other."""
    explained = pairs(model, list(inputs), target=target, on_error="raise", progress=False)
    between = [of_input.matrix[1:, 1:] for of_input in explained]
    return [
        matrix[bonds[:, 0], bonds[:, 1]] + matrix[bonds[:, 1], bonds[:, 0]]
        for matrix, bonds in zip(between, ends, strict=True)
    ]


BondMethod = Callable[
    [Graphormer, Sequence[Any], Sequence[NDArray[np.int64]], Any], list[NDArray[np.float64]]
]
BOND_METHODS: Mapping[str, BondMethod] = {
    "edge_shapley": _shapley_of_bonds,
    "pairs": _pairs_of_bonds,
}


def model_score(
    model: Graphormer, inputs: Sequence[Any], labels: ArrayLike, *, target: Any = None
) -> tuple[str, float]:
    """Score the model itself, to compare with the scores of its explanations.

    Args:
        model: the model.
        inputs: inputs as for `explain`. If one cannot be used, its error is raised.
        labels: the labels (n,) for the task of `target`. They are 0 or 1 (scored by ROC-AUC), class
            numbers (accuracy) or values in the task's unit (R2).
        target: see `explain`.

    Returns:
        The name of the score and its value, which is NaN if the score is not defined, for example
        with a single class.
    """
    wanted = np.asarray(labels, dtype=np.float64)
    if wanted.shape != (len(inputs),):
        raise ValueError(f"{len(inputs)} inputs, but labels of shape {wanted.shape}.")
    task, columns = model.config.task_columns(Target.of(target).task_in(model.config).name)
    graphs = prepare_all(model, inputs)
    whole = [torch.ones(1, item.num_nodes, dtype=torch.bool) for item in graphs]
    outputs = torch.cat(outputs_of_many(model, graphs, whole)).cpu()
    value = score_task(task, outputs[:, columns], torch.from_numpy(wanted))
    name = {"binary": "ROC-AUC", "multiclass": "accuracy", "regression": "R2"}[task.kind]
    return name, np.nan if value is None else value


def explainers_of(model: Any, methods: Sequence[Method]) -> list[Explainer]:
    """Return the explainers of methods, fitted to the model, with the controls."""
    return with_controls(
        told_apart(get_explainer(method, model=model) for method in each_of(methods))
    )


def _prepare(
    model: Graphormer, inputs: Sequence[Any], truths: Sequence[NDArray[Any]]
) -> tuple[list[tuple[int, Input]], dict[int, str]]:
    """Return the encoded inputs by position, and a reason for each that cannot be used."""
    prepared, notes = [], {}
    for graph, (item, truth) in enumerate(zip(prepare_each(model, inputs), truths, strict=True)):
        metrics_for(truth)
        if isinstance(item, Exception):
            notes[graph] = f"left out: {item}"
            continue
        check_fit(item, truth, graph)
        prepared.append((graph, item))
    return prepared, notes


def check_fit(item: Input, truth: NDArray[Any], graph: int | str) -> None:
    """Raise ValueError unless a truth has an entry for each node, or each pixel, of its graph."""
    if truth.ndim == 1:
        expected: tuple[int, ...] = (item.num_nodes,)
    elif item.segments is None:
        raise ValueError(f"graph {graph} has no superpixels, but its truth is about pixels.")
    else:
        expected = item.segments.shape
    if truth.shape != expected:
        raise ValueError(f"graph {graph}: truth has shape {truth.shape}, expected {expected}.")


def comparable_relevance(explanation: Explanation, truth: NDArray[Any]) -> NDArray[np.float64]:
    """Return the relevance of nodes (N,), or of pixels (H, W) for a truth about pixels."""
    relevance = np.asarray(explanation.relevance, dtype=np.float64)
    if truth.ndim == 2:
        assert explanation.segments is not None
        relevance = relevance[explanation.segments]
    return relevance


def _scores(
    explanation: Explanation, truth: NDArray[Any], graph: int, top: Sequence[int]
) -> dict[str, float]:
    relevance = comparable_relevance(explanation, truth)
    try:
        return {name: score(relevance, truth) for name, score in metrics_for(truth, top).items()}
    except ValueError as error:
        raise ValueError(f"graph {graph}, method {explanation.method!r}: {error}") from error
