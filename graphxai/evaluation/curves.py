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


@dataclass(frozen=True)
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


def activation_and_pruning(
    model: Graphormer,
    data: Data,
    relevance: Tensor,
    target: Target,
    *,
    operator: Operator = "mask",
    steps: int | None = None,
) -> tuple[Curve, Curve]:
    """Both curves of one encoded graph for node scores relevance (N,), from one series of passes.

    Activation: nodes join the empty graph by descending signed relevance; the value is the
    probability of the target's class (a regression: f_c rescaled so that the empty graph has 0
    and the full one 1). Pruning: nodes leave by ascending |relevance|; the value is the squared
    distance of the task's logits to those of the full graph, summed over the classes. Equal
    scores go by node number. Raises ValueError for scores of another length or not finite.
    """
    n = int(data.num_nodes or 0)
    if relevance.shape != (n,):
        raise ValueError(f"relevance has shape {tuple(relevance.shape)}; the graph has {n} nodes.")
    if not torch.isfinite(relevance).all():
        raise ValueError("relevance holds values that are not finite.")
    counts = node_counts(n, steps)
    fractions = counts / n if steps is None else torch.linspace(0, 1, steps)
    joining = relevance.argsort(descending=True, stable=True)
    leaving = relevance.abs().argsort(stable=True)
    keep = torch.cat([_first(joining, counts), ~_first(leaving, counts)])
    outputs = outputs_of_parts(model, data, keep, operator).cpu()
    added, pruned = outputs[: len(counts)], outputs[len(counts) :]
    # the class explained is chosen on the full graph, then followed
    full = pruned[:1]
    resolved = target.resolve(model.config, full)
    activation = _follow(model.config, target, resolved, added)
    logits = class_logits(model.config, target, pruned)
    distance = (logits - logits[:1]).square().sum(-1)
    return Curve(fractions, activation), Curve(fractions, distance)


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
    """Probability of the class explained, or the rescaled value, (K,)."""
    task = target.task_in(config)
    if task.kind == "regression":
        value = (outputs * resolved.weights).sum(-1)
        span = value[-1] - value[0]
        return (value - value[0]) / span if span != 0 else torch.zeros_like(value)
    label = resolved.labels[0]
    if label not in task.classes:
        raise ValueError(f"activation needs one class as target, not {label!r}.")
    logits = class_logits(config, target, outputs)
    return logits.softmax(-1)[:, task.classes.index(label)]
