"""The values of several methods on the same graphs, with tables, intervals and tests."""

from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from graphxai.contract.method_names import CONTROLS

from .by_layer import Conservation
from .metrics import METRICS, TRUTH_METRICS, higher_is_better
from .robustness import Robustness
from .statistics import Comparisons, Interval, bootstrap, compare_pairs, kendall_tau
from .store import SIZE_SHARE, Key, Unit

COLUMNS = ("checkpoint", "graph", "nodes", "method", "operator", "metric", "value", "note")


@dataclass(frozen=True, eq=False)
class MethodValues:
    """Values of several methods on the same graphs.

    If several checkpoints were measured, a graph's value is the mean over them, so that each graph
    counts once in every interval and test.

    Args:
        units: the values of each method on each graph, for each checkpoint.
        rejected: the key of each input that was left out, and the reason.
    """

    units: tuple[Unit, ...]
    settings: dict[str, Any] = field(default_factory=dict)
    rejected: tuple[tuple[Key, str], ...] = ()

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({len({u.graph for u in self.units})} graphs, methods:"
            f" {', '.join(self.methods)}; metrics: {', '.join(self.metrics())})"
        )

    def _repr_html_(self) -> str:
        said = "".join(f"<p>{escape(line)}</p>" for line in self.sentences())
        return said + self.table(costs=True).rename(index=self.labelled).to_html()

    @property
    def robustness(self) -> "dict[str, Robustness]":
        """What the model keeps of its accuracy or R2 with nodes removed, by operator."""
        measured = self.settings.get("robustness", {})
        return {operator: Robustness(**of) for operator, of in measured.items()}

    def robustness_sentences(self) -> list[str]:
        """Say for each operator whether rankings of methods can be trusted."""
        return [of.sentence(operator) for operator, of in self.robustness.items()]

    def sentences(self) -> list[str]:
        """Say how far the figures can be trusted.

        They are the sentences on robustness, whether nodes of zeros stand for a graph without
        nodes, how much of the output follows from the number of nodes alone, and on which metrics a
        control beats every method.
        """
        lines = self.robustness_sentences()
        if self.settings.get("without_nodes") == "zeros":
            lines.append(
                "Where `mask` or `delete` leaves no node, all nodes are set to zero instead."
            )
        for operator in self.operators:
            if (share := self.size_share(operator)).n:
                lines.append(
                    f"Under `{operator}` the number of nodes alone explains {share} of the variance"
                    " of the output over random sets of nodes."
                )
        for operator in self.operators or ("none",):
            for metric in self.metrics(operator):
                best = self.best(metric, operator)
                if best and set(best) <= set(CONTROLS):
                    measured = any(metric in unit.values.get(operator, {}) for unit in self.units)
                    under = f" under `{operator}`" if measured else ""
                    lines.append(
                        f"By {metric}{under} the control `{best[0]}` is better than every method:"
                        " do not judge methods by it here."
                    )
        return list(dict.fromkeys(lines))

    def size_share(self, operator: str | None = None) -> Interval:
        """Return the share of the variance over random sets of nodes that follows from their size.

        It is measured with `exchange_error`, see `metrics.size_share`; without it n is 0.
        """
        operator = operator or (self.operators or ("none",))[0]
        if SIZE_SHARE not in {m for u in self.units for m in u.values.get(operator, {})}:
            return bootstrap([np.nan])
        return bootstrap(np.nanmean(list(self.values(SIZE_SHARE, operator).values()), axis=0))

    def labelled(self, method: str) -> str:
        """Return a method's name for a table, with a note if its AUAC is no independent test.

        See `Traits.note`.
        """
        note = self.settings.get("notes", {}).get(method)
        return f"{method} ({note})" if note else method

    @cached_property
    def rows(self) -> pd.DataFrame:
        """A table with one row per checkpoint, graph, method, operator and metric.

        `operator` is "none" if no nodes are removed. `note` says why a value is missing.
        """
        rows = [
            (u.checkpoint, u.graph, u.nodes, u.method, operator, metric, value, u.note)
            for u in self.units
            for operator, figures in u.values.items()
            for metric, value in figures.items()
        ]
        return pd.DataFrame(rows, columns=list(COLUMNS))

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods, in the order in which they were measured."""
        return tuple(dict.fromkeys(unit.method for unit in self.units))

    @property
    def operators(self) -> tuple[str, ...]:
        """The removal operators that were used."""
        operators = dict.fromkeys(op for unit in self.units for op in unit.values)
        return tuple(op for op in operators if op != "none")

    def metrics(self, operator: str | None = None) -> tuple[str, ...]:
        """Return the metrics for an operator with those that need none, or else all metrics."""
        wanted = (operator, "none")
        names = {m for u in self.units for op, of in u.values.items() for m in of
                 if m != SIZE_SHARE and (operator is None or op in wanted)}  # fmt: skip
        known = (*METRICS, *TRUTH_METRICS)
        return tuple(name for name in known if name in names) + tuple(sorted(names - set(known)))

    @property
    def failures(self) -> dict[str, list[tuple[Key, str]]]:
        """By method, each graph on which the method gave no scores, with the reason."""
        failures: dict[str, list[tuple[Key, str]]] = {}
        for unit in self.units:
            if unit.note:
                failures.setdefault(unit.method, []).append((unit.graph, unit.note))
        return failures

    def seconds(self) -> dict[str, float]:
        """Return the mean time of an explanation by method, in seconds, or NaN if not measured.

        The graphs of a chunk are explained together, in one process.
        """
        times = pd.Series([unit.seconds for unit in self.units], dtype=float)
        by_method = times.groupby([unit.method for unit in self.units], sort=False)
        return {str(method): float(mean) for method, mean in by_method.mean().items()}

    def passes(self) -> dict[str, str]:
        """Return how many passes each method takes for an explanation, as text such as "1 forward".

        It is "" for a report that was stored without them.
        """
        costs = self.settings.get("costs", {})
        return {method: str(costs.get(method, "")) for method in self.methods}

    def values(self, metric: str, operator: str | None = None) -> dict[str, NDArray[np.float64]]:
        """Return the values (n,) by method in the same order of graphs, NaN if one is missing."""
        key = metric, operator or (self.operators or ("none",))[0]
        if key not in self._pivoted:
            self._pivoted[key] = self._pivot(*key)
        return {method: values.copy() for method, values in self._pivoted[key].items()}

    @cached_property
    def _pivoted(self) -> dict[tuple[str, str], dict[str, NDArray[np.float64]]]:
        """The values that were requested so far, because a saved report needs each five times."""
        return {}

    def _pivot(self, metric: str, operator: str) -> dict[str, NDArray[np.float64]]:
        rows = self.rows
        chosen = rows[(rows.metric == metric) & rows.operator.isin([operator, "none"])]
        if chosen.empty:
            raise ValueError(f"there is no metric {metric!r} for operator {operator!r}.")
        graphs = chosen.graph.drop_duplicates()
        wide = chosen.pivot_table(
            index="graph", columns="method", values="value", aggfunc="mean", dropna=False
        ).reindex(index=graphs, columns=list(self.methods))
        return {method: wide[method].to_numpy(dtype=float) for method in self.methods}

    def intervals(self, metric: str, operator: str | None = None) -> dict[str, Interval]:
        """Return each method's mean with its 95 % bootstrap interval."""
        return {name: bootstrap(v) for name, v in self.values(metric, operator).items()}

    def ranking(self, metric: str, operator: str | None = None) -> list[str]:
        """Return the methods by their mean, the best first and those without a value last."""
        sign = -1 if higher_is_better(metric) else 1
        intervals = self.intervals(metric, operator)
        return sorted(
            intervals, key=lambda name: sign * intervals[name].mean if intervals[name].n else np.inf
        )

    def best(self, metric: str, operator: str | None = None) -> list[str]:
        """Return the method with the best mean, and those whose mean has the same three decimals.

        There are none without a value. Whether others differ from them is tested by
        `against_the_best`.
        """
        intervals = self.intervals(metric, operator)
        first = intervals[self.ranking(metric, operator)[0]]
        return [
            name
            for name, each in intervals.items()
            if each.n and f"{each.mean:z.3f}" == f"{first.mean:z.3f}"
        ]

    def compare(
        self,
        first: str | None = None,
        second: str | None = None,
        *,
        metric: str = "auac",
        operator: str | None = None,
    ) -> Comparisons:
        """Test methods in pairs, with Holm's correction over all tests of the call.

        Args:
            first: a method. Without `second`, it is tested against every other method. By default
                all pairs are tested.
            second: the method to test `first` against.
            metric: the metric that is compared.
            operator: how nodes are removed. By default it is the first operator.
        """
        values = self.values(metric, operator)
        if first is None:
            pairs = list(combinations(values, 2))
        elif second is None:
            pairs = [(first, other) for other in values if other != first]
        else:
            pairs = [(first, second)]
        for name in (first, second):
            if name is not None and name not in values:
                listed = ", ".join(values)
                raise ValueError(f"no method {name!r} in the report; choose from {listed}.")
        return compare_pairs(values, pairs)

    def against_the_best(self, metric: str = "auac", operator: str | None = None) -> Comparisons:
        """Test the method with the best mean against every other.

        The same data choose this method and test it. So Holm's correction counts all pairs of
        methods, because any of them could have been chosen.
        """
        values = self.values(metric, operator)
        best = self.ranking(metric, operator)[0]
        pairs = [(best, other) for other in values if other != best]
        others = [pair for pair in combinations(values, 2) if best not in pair]
        return compare_pairs(values, pairs, others=others)

    def table(self, operator: str | None = None, *, costs: bool = False) -> pd.DataFrame:
        """Return a table of mean [95 % interval], with a row per method and a column per metric.

        Its `attrs` hold the number of graphs n. If a cell is based on fewer graphs, it says so.

        Args:
            operator: how nodes were removed, by default the first operator of the report.
            costs: whether to add the columns "ms", the mean time of one explanation of graphs that
                share passes, and "passes".
        """
        operator = operator or (self.operators or ("none",))[0]
        metrics = self.metrics(operator)
        total = len({unit.graph for unit in self.units})
        cells = {}
        for metric in metrics:
            intervals = self.intervals(metric, operator)
            cells[metric] = {
                name: str(i) + (f" (n = {i.n})" if 0 < i.n < total else "")
                for name, i in intervals.items()
            }
        if costs:
            times = {name: 1000 * time for name, time in self.seconds().items()}
            cells["ms"] = {name: "" if np.isnan(t) else f"{t:.2f}" for name, t in times.items()}
            cells["passes"] = self.passes()
        frame = pd.DataFrame(cells, index=list(self.methods))
        frame.index.name = "method"
        frame.attrs["n"] = total
        return frame

    def agreement(self, metric: str = "auac") -> pd.DataFrame:
        """Return Kendall's tau between the method rankings for each pair of operators."""
        means = {
            op: [interval.mean for interval in self.intervals(metric, op).values()]
            for op in self.operators
        }
        tau = [[kendall_tau(means[a], means[b]) for b in means] for a in means]
        return pd.DataFrame(tau, index=list(means), columns=list(means))

    def seeds(self, metric: str = "auac", operator: str | None = None) -> pd.DataFrame:
        """Return each method's mean for each checkpoint, with mean and SD over checkpoints."""
        operator = operator or (self.operators or ("none",))[0]
        rows = self.rows
        chosen = rows[(rows.metric == metric) & rows.operator.isin([operator, "none"])]
        table = chosen.pivot_table(index="method", columns="checkpoint", values="value")
        table = table.reindex(list(self.methods))
        return table.assign(mean=table.mean(axis=1), sd=table.std(axis=1, ddof=1))

    def conservation(self) -> dict[str, Conservation]:
        """Compare sums of relevance with outputs, for methods that divide the output."""
        ledgers = {
            method: [u.ledger for u in self.units if u.method == method and u.ledger]
            for method in self.methods
        }
        return {method: Conservation.of(method, of) for method, of in ledgers.items() if of}

    def curves(
        self, kind: str = "activation", operator: str | None = None
    ) -> dict[str, tuple[Any, Any, Any]]:
        """Return each method's mean curve on `GRID` with its 95 % interval, as arrays (21,)."""
        operator = operator or (self.operators or ("none",))[0]
        curves = {}
        for method in self.methods:
            by_graph: dict[Key, list[list[float]]] = {}
            for unit in self.units:
                if unit.method == method and operator in unit.curves:
                    by_graph.setdefault(unit.graph, []).append(unit.curves[operator][kind])
            if by_graph:
                values = np.array([np.mean(several, axis=0) for several in by_graph.values()])
                bands = [bootstrap(column, draws=1000) for column in values.T]
                ends = np.array([(band.mean, band.low, band.high) for band in bands]).T
                curves[method] = (ends[0], ends[1], ends[2])
        if not curves:
            raise ValueError(f"there is no {kind} curve for operator {operator!r}.")
        return curves

    def randomisation(self) -> dict[str, dict[str, Interval]]:
        """Return |rank correlation| by method and block, after shuffling up to that block."""
        stages: dict[str, dict[str, list[float]]] = {}
        for unit in self.units:
            for block, value in unit.stages.items():
                stages.setdefault(unit.method, {}).setdefault(block, []).append(value)
        return {m: {b: bootstrap(v) for b, v in of.items()} for m, of in stages.items()}
