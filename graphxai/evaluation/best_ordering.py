"""Search for the best ordering of the nodes, and for the smallest set that changes a class.

The best ordering shows how good an ordering could be. This is no explanation method, because it
optimises the curve that methods are measured by. The search is local and not exhaustive, so the
best possible area may be even better than its result.

The smallest set of members (nodes or edges) must go to change a class. The first set is a prefix of
one of two orders, without the members that it does not need. Then sets of 2, 3, ... members are
tried. All sets of a size are tried while they are few enough. After that, sets grow from the best
sets with one member less. Source: Martens 2014 (SEDC, on documents); Lucic 2022 (CF-GNNExplainer,
which removes edges).
"""

import math
from collections.abc import Callable, Generator, Sequence
from itertools import combinations

import torch
from torch import Tensor
from torch_geometric.data import Data

from graphxai.contract.inputs import Input
from graphxai.contract.target import Target
from graphxai.explanation.compute.models import Model
from graphxai.wrapping.removal import Operator, outputs_of_parts

from .curves import Curve, class_logits, explained_class

SWEEPS = 30  # how often all neighbours in the ordering are swapped at most
Value = Callable[[Tensor], Tensor]  # from choices (K, N) to values (K,), where lower is better


def best_areas(
    model: Model,
    data: Data | Input,
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
    whole, column = class_logits(config, target, full), explained_class(config, target, full)

    def logits(keep: Tensor) -> Tensor:
        return class_logits(config, target, outputs_of_parts(model, data, keep, operator).cpu())

    def lost_probability(keep: Tensor) -> Tensor:
        return -logits(keep).softmax(-1)[:, column]

    def distance_without(gone: Tensor) -> Tensor:
        return (logits(~gone) - whole).square().sum(-1)

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
    values = value(_prefixes(order, 0, n))  # (N + 1,)
    for sweep in range(2 * SWEEPS):
        places = torch.arange(1 + sweep % 2, n, 2)  # odd and even lengths of the prefix in turn
        if not len(places):
            continue
        swapped = _prefixes(order, 0, n)[places]
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


BEAM = 8  # how many sets of a size grow by one member
DEEPEST = 12  # how large sets grow while no set changes the class
ROUNDING = 1e-5  # a batch of another size may change a margin by less than this

SetSearch = Generator[Tensor, Tensor, tuple[Tensor | None, bool]]


def smallest_set(relevance: Tensor, largest: int, most: int) -> SetSearch:
    """Yield sets to remove as rows (K, n) of members, and receive their margins (K,).

    A margin is the logit of the original class minus the logit of the best other class. It is below
    0 if the class changed.

    Args:
        relevance: the relevance of each member (n,). Members that speak for the class are tried
            first.
        most: all sets of a size are tried if there are at most this many.

    Returns:
        The smallest set (n,), or None if no set changes the class, and whether all smaller sets
        were tried. Without a set, it is whether all sets were tried.
    """
    n = len(relevance)
    if not largest:
        return None, True
    singles = torch.eye(n, dtype=torch.bool)
    margins = yield singles
    if (best := _changing(singles, margins)) is not None or largest == 1:
        return best, True
    effects = margins.argsort(stable=True)
    order = relevance.argsort(descending=True, stable=True)
    prefixes = torch.cat([_prefixes(ranking, 2, largest) for ranking in (order, effects)])
    margins = yield prefixes
    if bool((margins < -ROUNDING).any()):
        changing = prefixes[margins < -ROUNDING]
        best = yield from _pruned(changing[changing.sum(1).argmin()])
    size, tried, beam = 2, 1, singles[effects[:BEAM]]  # up to size `tried`, all sets were tried
    while size < (min(largest, DEEPEST) + 1 if best is None else int(best.sum())):
        every = tried == size - 1 and math.comb(n, size) <= most
        if every:
            members = torch.tensor(list(combinations(range(n), size)))
            none = torch.zeros(len(members), n, dtype=torch.bool)
            sets = none.scatter_(1, members, True)
        else:
            grown = beam[:, None, :] | torch.eye(n, dtype=torch.bool)
            sets = torch.unique(grown[~beam], dim=0)
        margins = yield sets
        if (changing_set := _changing(sets, margins)) is not None:
            best = changing_set if tried == size - 1 else (yield from _pruned(changing_set))
            break
        tried += every
        beam = sets[margins.argsort(stable=True)[:BEAM]]
        size += 1
    return best, tried >= (largest if best is None else int(best.sum()) - 1)


def _changing(sets: Tensor, margins: Tensor) -> Tensor | None:
    """Return the set (n,) that changes the class most, or None if no set changes it."""
    k = int(margins.argmin())
    return sets[k] if margins[k] < -ROUNDING else None


def _pruned(needed: Tensor) -> Generator[Tensor, Tensor, Tensor]:
    """Drop the members that a set does not need, one by one."""
    while True:
        members = needed.nonzero()[:, 0]
        smaller = needed.repeat(len(members), 1)
        smaller[torch.arange(len(members)), members] = False
        margins = yield smaller
        if (changing := _changing(smaller, margins)) is None:
            return needed
        needed = changing


def _prefixes(order: Tensor, first: int, last: int) -> Tensor:
    """Return the sets (K, n) of the first k members of an order, for k from `first` to `last`."""
    return order.argsort()[None, :] < torch.arange(first, last + 1)[:, None]
