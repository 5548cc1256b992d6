"""Measure explainers on a data set: one row a graph, method, metric and operator."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from graphxai.api import explain_prepared
from graphxai.explainers import Explainer, get_explainer
from graphxai.inputs import Input, prepare_for
from graphxai.models.graphormer import Graphormer
from graphxai.progress import progress_bar
from graphxai.target import Target

from .curves import node_series
from .metrics import METRICS
from .removal import Operator
from .statistics import Comparison, Interval, bootstrap, compare_pairs

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ("graph", "method", "operator", "metric", "value")


@dataclass(frozen=True, eq=False)
class Report:
    """Figures of several methods on the same graphs.

    rows: data frame with the columns graph, method, operator, metric, value; settings: what
    makes it reproducible; rejected: (index, reason) of inputs left out.
    """

    rows: "pd.DataFrame"
    settings: dict[str, Any] = field(default_factory=dict)
    rejected: tuple[tuple[int, str], ...] = ()

    def values(self, metric: str, operator: str = "mask") -> dict[str, Any]:
        """Values (n,) of each method, in the same order of graphs."""
        chosen = self.rows[(self.rows.metric == metric) & (self.rows.operator == operator)]
        if chosen.empty:
            raise ValueError(f"there is no metric {metric!r} under operator {operator!r}.")
        wide = chosen.pivot(index="graph", columns="method", values="value")
        methods = chosen.method.unique()
        return {method: wide[method].to_numpy() for method in methods}

    def intervals(self, metric: str, operator: str = "mask") -> dict[str, Interval]:
        """Mean and 95 % bootstrap interval of each method."""
        return {name: bootstrap(v) for name, v in self.values(metric, operator).items()}

    def compare(
        self,
        first: str | None = None,
        second: str | None = None,
        *,
        metric: str = "auac",
        operator: str = "mask",
    ) -> list[Comparison]:
        """Paired tests with Holm's correction: of two methods, or of all pairs."""
        values = self.values(metric, operator)
        if first is None or second is None:
            pairs = list(combinations(values, 2))
        else:
            pairs = [(first, second)]
        unknown = {name for pair in pairs for name in pair} - set(values)
        if unknown:
            raise ValueError(f"no method {sorted(unknown)[0]!r} in the report.")
        return compare_pairs(values, pairs)

    def table(self, operator: str = "mask") -> "pd.DataFrame":
        """Methods in rows, metrics in columns: mean [95 % interval]; n graphs in `attrs`."""
        import pandas as pd

        metrics = self.rows.metric.unique()
        found = {metric: self.intervals(metric, operator) for metric in metrics}
        frame = pd.DataFrame({m: {k: str(v) for k, v in found[m].items()} for m in metrics})
        frame.index.name = "method"
        frame.attrs["n"] = int(self.rows.graph.nunique())
        return frame

    def save(self, folder: str | Path) -> Path:
        """Write `results.csv` (every row) and `summary.md` (the table)."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        self.rows.to_csv(folder / "results.csv", index=False)
        parts = [f"{self.rows.graph.nunique()} graphs; mean with 95 % bootstrap interval.", ""]
        for operator in self.rows.operator.unique():
            frame = self.table(operator)
            head = " | ".join(f"{m} ({METRICS[m].direction})" for m in frame.columns)
            parts += [f"Nodes removed by `{operator}`:", "", f"| method | {head} |"]
            parts += ["|---" * (len(frame.columns) + 1) + "|"]
            parts += [f"| {name} | {' | '.join(row)} |" for name, row in frame.iterrows()]
            parts += [""]
        (folder / "summary.md").write_text("\n".join(parts), encoding="utf-8")
        return folder


def evaluate(
    model: Graphormer,
    inputs: Iterable[Any],
    methods: Sequence[str | Explainer | type[Explainer]] = ("lrp", "gradient_input"),
    *,
    target: Any = None,
    metrics: Sequence[str] = ("auac", "au_mse"),
    operators: Sequence[Operator] = ("mask",),
    steps: int | None = None,
    progress: bool | None = None,
) -> Report:
    """Measure the faithfulness of several methods on the same graphs.

    inputs: what `explain` takes. target: as there. metrics: names in `METRICS`. operators: how
    nodes are removed. steps: points of a curve; None takes every number of nodes, 11 is the grid
    of Ali 2022. `random` is always among the methods. Inputs that cannot be used are counted in
    `Report.rejected`.
    """
    import pandas as pd

    explainers = [get_explainer(method) for method in methods]
    if "random" not in {explainer.name for explainer in explainers}:
        explainers.append(get_explainer("random"))
    prepared, rejected = _prepare(model, inputs)
    if not prepared:
        raise ValueError("there is no graph to evaluate.")
    graphs = {index: item.data for index, item in prepared}
    wanted = Target.of(target)
    _check_metrics(metrics, wanted.task_in(model.config).kind)
    rows: list[tuple[int, str, str, str, float]] = []
    total = len(prepared) * len(explainers)
    with progress_bar("evaluating", total, show=progress) as tick:
        for explainer in explainers:
            for index, explanation in explain_prepared(model, prepared, explainer, target=wanted):
                data = graphs[index]
                scores = torch.from_numpy(explanation.relevance)
                for operator in operators:
                    series = node_series(
                        model, data, scores, wanted, operator=operator, steps=steps
                    )
                    rows += [
                        (index, explainer.name, operator, name, METRICS[name].measure(series))
                        for name in metrics
                    ]
                tick(1)
    settings = {
        "model": model.origin.name,
        "sha256": model.origin.sha256,
        "methods": [explainer.name for explainer in explainers],
        "steps": steps,
        "target": repr(target),
    }
    frame = pd.DataFrame(rows, columns=list(COLUMNS))
    return Report(frame, settings, tuple(rejected))


def _check_metrics(metrics: Sequence[str], kind: str) -> None:
    for name in metrics:
        if name not in METRICS:
            raise ValueError(f"unknown metric {name!r}; there are {', '.join(METRICS)}.")
        if METRICS[name].probabilities_only and kind == "regression":
            raise ValueError(f"metric {name!r} needs probabilities; the target is a regression.")


def _prepare(
    model: Graphormer, inputs: Iterable[Any]
) -> tuple[list[tuple[int, Input]], list[tuple[int, str]]]:
    prepared, rejected = [], []
    for index, value in enumerate(inputs):
        try:
            prepared.append((index, prepare_for(model, value)))
        except (ValueError, OSError) as error:
            rejected.append((index, str(error)))
    return prepared, rejected
