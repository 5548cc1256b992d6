"""Node activation and pruning: how the output changes as nodes are added or removed by relevance.

The curves are those of Ali 2022, section 5. By default they have all points k = 0..N.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from graphxai.contract.inputs import Input
from graphxai.contract.target import Target
from graphxai.contract.tasks import TaskSet
from graphxai.explanation.compute.models import Model
from graphxai.wrapping.removal import Operator, Resampling, outputs_of_many


@dataclass(frozen=True, eq=False)
class Curve:
    """Values (K,) against the fraction of nodes that are added or removed, `fractions` (K,)."""

    fractions: Tensor
    values: Tensor

    @property
    def area(self) -> float:
        """The area under the curve by the trapezoidal rule, or the value of a single point."""
        if len(self.values) == 1:
            return float(self.values[0])
        return float(torch.trapezoid(self.values.double(), self.fractions.double()))


def node_counts(n: int, steps: int | None = None) -> Tensor:
    """Return the numbers of nodes at which to evaluate a curve.

    They are 0..n, or ceil(fraction * n) for `steps` evenly spaced fractions.
    """
    if steps is None:
        return torch.arange(n + 1)
    if steps < 2:
        raise ValueError(f"steps must be at least 2, not {steps}.")
    return torch.tensor([math.ceil(round(k / (steps - 1) * n, 9)) for k in range(steps)])


@dataclass(frozen=True, eq=False)
class Series:
    """The outputs for one graph as nodes are added or removed in order of relevance.

    The logits are those of the target's task. The most relevant nodes are those with the largest
    signed relevance. If a regression's value falls below the empty graph's, its fall is explained,
    and they are those with the smallest.

    Args:
        relevance: the relevance of the nodes (N,).
        counts: the numbers of nodes k (K,).
        fractions: these numbers as shares of all nodes (K,).
        logits_with_top: the logits of only the k most relevant nodes (K, C).
        logits_without_top: the logits of all but the k most relevant nodes (K, C).
        logits_pruned: the logits of all but the k nodes of smallest |relevance| (K, C).
        explained: the class that the curves track. It is None for a regression, which has its value
            in its unit as the only column.
        coalitions: random choices of nodes, True in (S, N), if they were asked for. Those at 2 k
            and 2 k + 1 have the same size.
        logits_of_coalitions: for only the nodes of each of these, (S, C).
        falls: whether a regression has a lower value for the full graph than for the empty one.
    """

    relevance: Tensor
    counts: Tensor
    fractions: Tensor
    logits_with_top: Tensor
    logits_without_top: Tensor
    logits_pruned: Tensor
    explained: int | None
    coalitions: Tensor | None = None
    logits_of_coalitions: Tensor | None = None
    falls: bool = False

    @property
    def with_top(self) -> Tensor:
        """The probability (K,) of the explained class, given only the k most relevant nodes.

        For a regression, it is how far the value has moved from the empty graph's towards the full
        graph's, in its unit.
        """
        return self._followed(self.logits_with_top)

    @property
    def without_top(self) -> Tensor:
        """The probability (K,) of the explained class, given all but the k most relevant nodes.

        For a regression, it is how far the value has moved, as for `with_top`.
        """
        return self._followed(self.logits_without_top)

    @property
    def distance(self) -> Tensor:
        """The squared distance (K,) of `logits_pruned` from the full graph's logits."""
        return (self.logits_pruned - self.logits_pruned[:1]).square().sum(-1)

    @property
    def full(self) -> float:
        """The probability of the explained class for the whole graph."""
        return float(self.with_top[-1])

    @property
    def activation(self) -> Curve:
        """The curve of `with_top` against the fraction of nodes (Ali 2022, node activation)."""
        return Curve(self.fractions, self.with_top)

    @property
    def pruning(self) -> Curve:
        """The curve of `distance` against the fraction of nodes (Ali 2022, node pruning)."""
        return Curve(self.fractions, self.distance)

    def step(self, fraction: float) -> int:
        """Return the index of the step with at least ceil(fraction * N) nodes."""
        wanted = math.ceil(round(fraction * int(self.counts[-1]), 9))
        return int(torch.searchsorted(self.counts, wanted))

    def at(self, values: Tensor, fraction: float) -> float:
        """Return the value at the step with at least ceil(fraction * N) nodes."""
        return float(values[self.step(fraction)])

    @property
    def is_undefined(self) -> bool:
        """Whether the outputs without any nodes and with all of them are equal to the last bit.

        Then the model did not see the removal, and no curve says anything.
        """
        return torch.equal(self.logits_with_top[0], self.logits_with_top[-1])

    def explained_value(self, logits: Tensor) -> Tensor:
        """Return what is explained, (K,), from logits (K, C) of the classes or values (K, 1)."""
        logits = logits.double()
        if self.explained is None:
            return logits[:, 0]
        is_single_logit = logits.shape[1] == 2 and torch.equal(logits[:, 0], -logits[:, 1])
        return logits[:, self.explained] * (2 if is_single_logit else 1)

    def _followed(self, logits: Tensor) -> Tensor:
        if self.explained is not None:
            return logits.softmax(-1)[:, self.explained]
        moved = logits[:, 0] - self.logits_with_top[0, 0]
        return -moved if self.falls else moved


def node_series(
    model: Model,
    data: Data | Input,
    relevance: Tensor,
    target: Target,
    *,
    operator: Operator = "mask",
    steps: int | None = None,
    resampling: Resampling | None = None,
) -> Series:
    """Return all outputs that the curve metrics need, for one encoded graph.

    Nodes are ordered by descending signed relevance, or for pruning by ascending |relevance|. Where
    a regression's value falls below the empty graph's, the signed order is ascending. Ties are
    ordered by node number.

    Args:
        model: the model that computes the outputs.
        data: the graph.
        relevance: the relevance of its nodes (N,).
        target: the explained output.
        operator: how nodes are removed.
        steps: the number of points of a curve. None takes every number of nodes.
        resampling: see `outputs_of_parts`.

    Raises:
        ValueError: the scores have the wrong length or are not finite.
    """
    options: dict[str, Any] = {"operator": operator, "steps": steps, "resampling": resampling}
    return several_series(model, [data], [[relevance]], target, **options)[0][0]


def several_series(
    model: Model,
    graphs: Sequence[Data | Input],
    relevances: Sequence[Sequence[Tensor]],
    target: Target,
    *,
    operator: Operator = "mask",
    steps: int | None = None,
    resampling: Resampling | None = None,
    coalitions: int = 0,
) -> list[list[Series]]:
    """Return a list of `node_series` for each graph, with one series for each method's scores.

    Each graph is embedded once, and parts that several curves share are computed once.

    `coalitions` says how many random coalitions of nodes are measured, too, see
    `random_coalitions`. They are the same for all methods.
    """
    keeps, places, counts, drawn = [], [], [], []
    falls = _falling(model, graphs, target, operator, resampling)
    for data, scores, falling in zip(graphs, relevances, falls, strict=True):
        n = int(data.num_nodes or 0)
        for relevance in scores:
            check_scores(relevance, n)
        counts.append(node_counts(n, steps))
        drawn.append(random_coalitions(n, coalitions))
        parts = [_parts(relevance, counts[-1], falling) for relevance in scores]
        wanted = torch.cat([*parts, drawn[-1]])  # (3 K M + S, N)
        keep, where = torch.unique(wanted, dim=0, return_inverse=True)
        keeps.append(keep)
        places.append(where)
    outputs = outputs_of_many(model, graphs, keeps, operator, resampling)
    return [
        _series_of(model.config, target, scores, count, of_graph.cpu()[where], parts, falling)
        for scores, count, of_graph, where, parts, falling in zip(
            relevances, counts, outputs, places, drawn, falls, strict=True
        )
    ]


def _falling(
    model: Model,
    graphs: Sequence[Data | Input],
    target: Target,
    operator: Operator,
    resampling: Resampling | None,
) -> list[bool]:
    """Return for each graph whether it has a regression's value below the empty graph's."""
    if target.task_in(model.config).kind != "regression":
        return [False] * len(graphs)
    ends = [torch.tensor([[False], [True]]).expand(2, int(data.num_nodes or 0)) for data in graphs]
    outputs = outputs_of_many(model, graphs, ends, operator, resampling)
    values = [class_logits(model.config, target, of_graph.cpu())[:, 0] for of_graph in outputs]
    return [bool(full < empty) for empty, full in values]


def random_coalitions(n: int, count: int) -> Tensor:
    """Draw coalitions (count, n) of n nodes, in neighbouring pairs of the same size.

    Sizes from 0 to n are equally likely. The draws depend on n alone.
    """
    generator = torch.Generator().manual_seed(n)
    sizes = torch.randint(n + 1, (count - count // 2, 1), generator=generator)
    places = torch.rand(count, n, generator=generator, dtype=torch.float).argsort(-1)
    return places < sizes.repeat_interleave(2, dim=0)[:count]


def _series_of(
    config: TaskSet,
    target: Target,
    scores: Sequence[Tensor],
    counts: Tensor,
    outputs: Tensor,
    coalitions: Tensor,
    falls: bool,
) -> list[Series]:
    """Return the series of all M methods from the outputs (3 K M + S, num_outputs) of one graph."""
    steps = len(counts)
    n = int(counts[-1])
    whole = torch.equal(counts, torch.arange(n + 1))
    fractions = counts / n if whole else torch.linspace(0, 1, steps)
    explained = explained_class(config, target, outputs[steps - 1][None])
    logits = class_logits(config, target, outputs)
    of_curves, of_coalitions = logits.split([3 * steps * len(scores), len(coalitions)])
    drawn, of_drawn = (coalitions, of_coalitions) if len(coalitions) else (None, None)
    series = []
    for relevance, of_method in zip(scores, of_curves.split(3 * steps), strict=True):
        with_top, without_top, pruned = of_method.chunk(3)
        curves = counts, fractions, with_top, without_top, pruned
        series.append(Series(relevance, *curves, explained, drawn, of_drawn, falls))
    return series


def check_scores(relevance: Tensor, n: int) -> None:
    """Raise ValueError unless relevance is one finite score for each of n nodes."""
    if relevance.shape != (n,):
        raise ValueError(f"relevance has shape {tuple(relevance.shape)}; the graph has {n} nodes.")
    if not torch.isfinite(relevance).all():
        raise ValueError("relevance holds values that are not finite.")


def class_logits(config: TaskSet, target: Target, outputs: Tensor) -> Tensor:
    """Return the logits (K, classes) of the target's task.

    A single logit z becomes two, -z/2 and z/2. A regression gives its value (K, 1) in its unit.
    """
    task, columns = config.task_columns(target.task_in(config).name)
    logits = outputs[:, columns]
    if task.kind == "regression":
        return task.offset + task.scale * logits
    return torch.cat([-logits / 2, logits / 2], dim=-1) if task.kind == "binary" else logits


def _parts(relevance: Tensor, counts: Tensor, falling: bool) -> Tensor:
    """Choose the nodes to keep (3 K, N): the top k, all but the top k, all but the k smallest."""
    top = _first(relevance.argsort(descending=not falling, stable=True), counts)
    smallest = _first(relevance.abs().argsort(stable=True), counts)
    return torch.cat([top, ~top, ~smallest])


def _first(order: Tensor, counts: Tensor) -> Tensor:
    """Choose the first counts[k] nodes of `order`, as True in (K, N)."""
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order))
    return rank[None, :] < counts[:, None]


def explained_class(config: TaskSet, target: Target, full: Tensor) -> int | None:
    """Return the column of the explained class, given the full graph's outputs (1, num_outputs)."""
    task = target.task_in(config)
    if isinstance(target.choice, tuple):
        label = target.resolve(config, full).labels[0]
        raise ValueError(f"activation needs a single class as target, not {label!r}.")
    if task.kind == "regression":
        return None
    return task.classes.index(str(target.settled(config, full[0].tolist()).choice))
