"""`graphxai predict` for a folder of graphs: a table with a row for each graph or node."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from .terminal import PrintableOutput, echo

if TYPE_CHECKING:
    from graphxai.explanation.compute.models import Model


def predict_graphs(
    models: list[Model], source: Path, out: Path | None, *, nodes: Sequence[int], level: float
) -> None:
    """Predict every graph of a folder, and write or print a row for each.

    Args:
        models: models of graphs, or of nodes.
        source: folder of the graphs, see `graphxai.datasets.graph_folders`.
        out: .csv, .tsv or .parquet file to write, or None to print the table.
        nodes: the nodes of each graph to predict, for a model of nodes.
        level: level of the intervals and sets.

    Raises:
        typer.Exit: with status 1, if no graph could be predicted.
    """
    import pandas as pd

    from graphxai.api import predict
    from graphxai.datasets.graph_folders import load_graphs
    from graphxai.explanation.files import write_table
    from graphxai.explanation.prediction import table_cells

    rows: list[dict[str, Any]] = []
    num_left_out = 0
    graphs = list(load_graphs(source).graphs)
    for node in nodes or (None,):
        about = {} if node is None else {"node": node}
        predictions = predict(models, graphs, node=node)
        for number, by_task in enumerate(predictions):
            if by_task is None:
                num_left_out += 1
                continue
            cells = table_cells([each.at(level) for each in by_task.values()])
            rows.append({"graph": number} | about | cells)
    frame = pd.DataFrame(rows, columns=None if rows else ["graph"])
    if "node" in frame:
        frame = frame.sort_values(["graph", "node"])
    if out is None:
        PrintableOutput().write(frame.to_csv(index=False, lineterminator="\n"))
    else:
        write_table(frame, out)
    summary = f"{len(rows)} predicted, {num_left_out} left out"
    echo(summary if out is None else f"{summary}: {out}", err=out is None)
    if not rows:
        raise typer.Exit(1)
