"""`graphxai explain` for a folder of graphs: tables of predictions and relevance, and pictures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from graphxai.runtime.writing import folder_at

from .arguments import require_nodes
from .terminal import echo

if TYPE_CHECKING:
    from graphxai.explanation.compute.models import Model
    from graphxai.explanation.explanations import Explanations

PREDICTIONS, RELEVANCE = "predictions.csv", "relevance.csv"


def explain_graphs(
    model: Model,
    source: Path,
    method: str,
    out: Path,
    *,
    target: str | None,
    nodes: Sequence[int],
    suffix: str | None,
    options: dict[str, Any],
) -> None:
    """Explain every graph of a folder, and write what comes of it to another folder.

    Args:
        model: a model of graphs or of nodes.
        source: folder of the graphs, see `graphxai.datasets.graph_folders`.
        method: name of the method.
        out: folder for `predictions.csv`, `relevance.csv` and the pictures.
        target: what to explain, as text.
        nodes: the nodes of each graph to explain, for a model of nodes.
        suffix: that of the pictures; None for none.
        options: how pictures look.

    Raises:
        ValueError: the model does not read graphs, or nodes are missing or not wanted.
        typer.Exit: with status 1, if no graph could be explained.
    """
    from graphxai.api import explain
    from graphxai.datasets.graph_folders import load_graphs
    from graphxai.explainers import get_explainer

    require_nodes(model, nodes)
    graphs, explainer = load_graphs(source).graphs, get_explainer(method)
    explained: dict[str, Explanations] = {}
    if nodes:
        for k, graph in enumerate(graphs):
            results = explain(model, graph, explainer, target=target, node=list(nodes))
            explained |= {f"{k}/{node}": e for node, e in zip(nodes, results, strict=True)}
    else:
        explained = dict(zip(map(str, range(len(graphs))), explain(
            model, graphs, explainer, target=target
        ), strict=True))  # fmt: skip
    _write_tables(explained, folder_at(out))
    drawn = [] if suffix is None else list(_pictures(explained, out, suffix, options))
    left_out = sum(each is None for each in explained.values())
    echo(f"{len(explained) - left_out} explained, {left_out} left out: {out}")
    if drawn:
        echo(f"pictures: {len(drawn)} in {out / 'pictures'}")
    if left_out == len(explained):
        raise typer.Exit(1)


def _write_tables(explained: dict[str, Any], out: Path) -> None:
    """Write a row for each prediction, and a row for each node."""
    import pandas as pd

    from graphxai.explanation.files import write_csv

    predictions, relevance = [], []
    for key, explanation in explained.items():
        if explanation is None:
            continue
        about = {"graph": key, "method": explanation.method, "target": explanation.target}
        about["output"] = explanation.ledger.output
        for prediction in explanation.predictions:
            predictions.append(about | {"task": prediction.task, "prediction": prediction.in_full})
        for node, value in enumerate(explanation.relevance.tolist()):
            relevance.append({"graph": key, "node": node, "relevance": value})
    write_csv(pd.DataFrame(predictions), out / PREDICTIONS, index=False)
    write_csv(pd.DataFrame(relevance), out / RELEVANCE, index=False)


def _pictures(
    explained: dict[str, Any], out: Path, suffix: str, options: dict[str, Any]
) -> Iterator[Path]:
    """Draw every explanation that has a picture."""
    for key, explanation in explained.items():
        if explanation is not None and explanation.has_picture:
            path = folder_at(out / "pictures") / f"{key.replace('/', '-')}{suffix}"
            yield explanation.save(path, **options)
