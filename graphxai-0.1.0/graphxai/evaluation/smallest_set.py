"""Search for the smallest set of members (nodes or edges) that must go to change a class.

The first set is a prefix of one of two orders, without the members that it does not need. Then sets
of 2, 3, ... members are tried. All sets of a size are tried while they are few enough. After that,
sets grow from the best sets with one member less.

Source: Martens 2014 (SEDC, on documents); Lucic 2022 (CF-GNNExplainer, which removes edges).
"""

import math
from collections.abc import Generator
from itertools import combinations

import torch
from torch import Tensor

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
        largest: how many members a set may have.
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
    prefixes = torch.cat([_prefixes(ranking, largest) for ranking in (order, effects)])
    margins = yield prefixes
    if bool((margins < -ROUNDING).any()):
        changing = prefixes[margins < -ROUNDING]
        best = yield from _pruned(changing[changing.sum(1).argmin()])
    size, tried, beam = 2, 1, singles[effects[:BEAM]]  # up to size `tried`, all sets were tried
    while size < (min(largest, DEEPEST) + 1 if best is None else int(best.sum())):
        every = tried == size - 1 and math.comb(n, size) <= most
        sets = _all_sets(n, size) if every else _grown(beam)
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


def _prefixes(order: Tensor, largest: int) -> Tensor:
    """Return the sets (K, n) of the first 2, 3, ..., `largest` members of an order."""
    return order.argsort()[None, :] < torch.arange(2, largest + 1)[:, None]


def _all_sets(n: int, size: int) -> Tensor:
    """Return all sets (K, n) of this size."""
    members = torch.tensor(list(combinations(range(n), size)))
    return torch.zeros(len(members), n, dtype=torch.bool).scatter_(1, members, True)


def _grown(beam: Tensor) -> Tensor:
    """Return all sets (K, n) that add one member to a set of the beam."""
    made = beam[:, None, :] | torch.eye(beam.shape[1], dtype=torch.bool)
    return torch.unique(made[~beam], dim=0)
