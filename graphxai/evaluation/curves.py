"""Node activation and pruning: what happens as nodes come or go in the order of relevance.

Source: Ali 2022, section 5 (activation, pruning), on all steps k = 0..N by default.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch_geometric.data import Data

from graphxai.models.graphormer import Graphormer, GraphormerConfig
from graphxai.target import ResolvedTarget, Target

from .removal import Operator, outputs_of_parts


@dataclass(frozen=True, eq=False)
class Curve:
    """Values over the fraction of nodes added or removed, both (K,)."""

    fractions: Tensor
    values: Tensor

    @property
    def area(self) -> float:
        """Area under the curve by the trapezoidal rule; a curve of one point has its value."""
        if len(self.values) == 1:
            return float(self.values[0])
        return float(torch.trapezoid(self.values.double(), self.fractions.double()))


def node_counts(n: int, steps: int | None = None) -> Tensor:
    """Numbers of nodes at which a curve is taken: 0..n, or ceil(fraction * n) at `steps` points."""
    if steps is None:
        return torch.arange(n + 1)
    if steps < 2:
        raise ValueError(f"steps must be at least 2, not {steps}.")
    return torch.tensor([math.ceil(round(k / (steps - 1) * n, 9)) for k in range(steps)])


@dataclass(frozen=True, eq=False)
class Series:
    """What one graph's outputs do as nodes come and go in the order of relevance.

    counts (K,): numbers of nodes k; fractions (K,): their share of all nodes. `with_top` (K,):
    probability of the class explained from the k most relevant nodes alone; `without_top` (K,):
    from all but them; `distance` (K,): squared distance of the task's logits, summed over the
    classes, to the full graph's once the k nodes of smallest |relevance| are gone. For a
    regression the probability is f_c rescaled so that the empty graph has 0 and the full one 1.
    """

    counts: Tensor
    fractions: Tensor
    with_top: Tensor
    without_top: Tensor
    distance: Tensor

    @property
    def full(self) -> float:
        """Probability of the class explained from the whole graph."""
        return float(self.with_top[-1])

    @property
    def activation(self) -> Curve:
        """`with_top` over the fraction of nodes (Ali 2022, node activation)."""
        return Curve(self.fractions, self.with_top)

    @property
    def pruning(self) -> Curve:
        """`distance` over the fraction of nodes (Ali 2022, node pruning)."""
        return Curve(self.fractions, self.distance)

    def at(self, values: Tensor, fraction: float) -> float:
        """The value at ceil(fraction * N) nodes, or at the next number of nodes in the series."""
        wanted = math.ceil(round(fraction * int(self.counts[-1]), 9))
        return float(values[int(torch.searchsorted(self.counts, wanted))])


def node_series(
    model: Graphormer,
    data: Data,
    relevance: Tensor,
    target: Target,
    *,
    operator: Operator = "mask",
    steps: int | None = None,
) -> Series:
    """All outputs that the curve metrics need, for one encoded graph and node scores (N,).

    Nodes are ordered by descending signed relevance, for `distance` by ascending |relevance|;
    equal scores go by node number. Raises ValueError for scores of another length or not finite.
    """
    n = int(data.num_nodes or 0)
    if relevance.shape != (n,):
        raise ValueError(f"relevance has shape {tuple(relevance.shape)}; the graph has {n} nodes.")
    if not torch.isfinite(relevance).all():
        raise ValueError("relevance holds values that are not finite.")
    counts = node_counts(n, steps)
    fractions = counts / n if steps is None else torch.linspace(0, 1, steps)
    top = _first(relevance.argsort(descending=True, stable=True), counts)
    smallest = _first(relevance.abs().argsort(stable=True), counts)
    keep = torch.cat([top, ~top, ~smallest])
    outputs = outputs_of_parts(model, data, keep, operator).cpu()
    with_top, without_top, pruned = outputs.split(len(counts))
    resolved = target.resolve(model.config, with_top[-1:])  # chosen on the full graph, then held
    followed = _follow(model.config, target, resolved, torch.cat([with_top, without_top]))
    logits = class_logits(model.config, target, pruned)
    return Series(
        counts=counts,
        fractions=fractions,
        with_top=followed[: len(counts)],
        without_top=followed[len(counts) :],
        distance=(logits - logits[:1]).square().sum(-1),
    )


def class_logits(config: GraphormerConfig, target: Target, outputs: Tensor) -> Tensor:
    """Logits (K, classes) of the target's task; one logit z counts as two, -z/2 and z/2.

    For a regression the value (K, 1), in its unit.
    """
    task, columns = config.task_columns(target.task_in(config).name)
    logits = outputs[:, columns]
    if task.kind == "regression":
        return task.offset + task.scale * logits
    return torch.cat([-logits / 2, logits / 2], dim=-1) if task.kind == "binary" else logits


def _first(order: Tensor, counts: Tensor) -> Tensor:
    """Choices (K, N): the first counts[k] nodes of `order`."""
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order))
    return rank[None, :] < counts[:, None]


def _follow(
    config: GraphormerConfig, target: Target, resolved: ResolvedTarget, outputs: Tensor
) -> Tensor:
    """Probability of the class explained, or the rescaled value, (2 K,).

    The first K outputs go from the empty to the full graph.
    """
    task = target.task_in(config)
    if task.kind == "regression":
        value = (outputs * resolved.weights).sum(-1)
        empty, full = value[0], value[len(value) // 2 - 1]
        return (value - empty) / (full - empty) if full != empty else torch.zeros_like(value)
    label = resolved.labels[0]
    if label not in task.classes:
        raise ValueError(f"activation needs one class as target, not {label!r}.")
    logits = class_logits(config, target, outputs)
    return logits.softmax(-1)[:, task.classes.index(label)]
