"""Search for the best ordering of the nodes, to see how good an ordering could be.

This is no explanation method, because it optimises the curve that methods are measured by. The
search is local and not exhaustive, so the best possible area may be even better than its result.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch_geometric.data import Data

from graphxai.contract.target import Target
from graphxai.explanation.compute.models import Model
from graphxai.wrapping.removal import Operator, outputs_of_parts

from .curves import Curve, class_logits, explained_class

SWEEPS = 30  # how often all neighbours in the ordering are swapped at most
Value = Callable[[Tensor], Tensor]  # from choices (K, N) to values (K,), where lower is better


def best_areas(
    model: Model,
    data: Data,
    target: Target,
    starts: Sequence[Tensor] = (),
    *,
    operator: Operator = "mask",
) -> tuple[float, float]:
    """Search for the largest AUAC and the smallest AU-MSE of one encoded graph.

    These are the areas under its activation curve and its pruning curve, see `curves`. The search
    starts from a greedy ordering and from `starts`, which are the scores (N,) of methods. It swaps
    neighbours in the ordering until no swap helps.

    Raises:
        ValueError: the target is a regression.
    """
    n = int(data.num_nodes or 0)
    config = model.config
    if target.task_in(config).kind == "regression":
        raise ValueError("there is no best area for a regression: its curve is unbounded.")
    full = outputs_of_parts(model, data, torch.ones(1, n, dtype=torch.bool), operator).cpu()
    logits = class_logits(config, target, full)
    column = explained_class(config, target, full)

    def lost_probability(keep: Tensor) -> Tensor:
        outputs = class_logits(config, target, outputs_of_parts(model, data, keep, operator).cpu())
        return -outputs.softmax(-1)[:, column]

    def distance(keep: Tensor) -> Tensor:
        outputs = class_logits(config, target, outputs_of_parts(model, data, keep, operator).cpu())
        return (outputs - logits).square().sum(-1)

    def distance_without(gone: Tensor) -> Tensor:
        return distance(~gone)

    by_size = [s.abs().argsort(stable=True) for s in starts]
    by_sign = [s.argsort(descending=True, stable=True) for s in starts]
    activation = _search(lost_probability, n, by_sign)
    pruning = _search(distance_without, n, by_size)
    return -activation.area, pruning.area


def _search(value: Value, n: int, starts: Sequence[Tensor]) -> Curve:
    """Improve the ordering from each start, and return the curve with the smallest area."""
    curves = [_improved(value, order) for order in (_greedy(value, n), *starts)]
    return min(curves, key=lambda curve: curve.area)


def _greedy(value: Value, n: int) -> Tensor:
    """Return an ordering (N,) that adds the best next node at each step."""
    order: list[int] = []
    for _ in range(n):
        left = [i for i in range(n) if i not in order]
        keep = torch.zeros(len(left), n, dtype=torch.bool)
        keep[:, order] = True
        keep[torch.arange(len(left)), left] = True
        order.append(left[int(value(keep).argmin())])
    return torch.tensor(order)


def _improved(value: Value, order: Tensor) -> Curve:
    """Swap neighbours in the ordering while that lowers the curve.

    Each swap changes only one point of the curve.
    """
    n = len(order)
    order = order.clone()
    values = value(_prefixes(order))  # (N + 1,)
    for sweep in range(2 * SWEEPS):
        places = torch.arange(1 + sweep % 2, n, 2)  # odd and even lengths of the prefix in turn
        if not len(places):
            continue
        swapped = _prefixes(order)[places]
        rows = torch.arange(len(places))
        swapped[rows, order[places - 1]] = False
        swapped[rows, order[places]] = True
        other = value(swapped)
        better = other < values[places] - 1e-9
        if not bool(better.any()) and sweep % 2:
            break
        k = places[better]
        order[k - 1], order[k] = order[k].clone(), order[k - 1].clone()
        values[k] = other[better]
    return Curve(torch.linspace(0, 1, n + 1), values)


def _prefixes(order: Tensor) -> Tensor:
    """Return the first k nodes of an ordering for k = 0..N, as choices (N + 1, N)."""
    rank = order.argsort()
    return rank[None, :] < torch.arange(len(order) + 1)[:, None]
