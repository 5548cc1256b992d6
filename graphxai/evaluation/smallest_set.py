"""The search for the smallest set of members (nodes or edges) whose removal changes a class.

Prefixes of two orders give a first set, which is pruned. Then sets of 2, 3, ... members are tried:
all of them while they are few enough, after that those that grow from the best of the size before.
Source: Martens 2014 (SEDC, on documents); Lucic 2022 (CF-GNNExplainer, which asks for edges).
"""

import math
from collections.abc import Generator
from itertools import combinations

import torch
from torch import Tensor

BEAM = 8  # sets of a size that grow by one member
DEEPEST = 12  # members of a set that is grown while none is known
ROUNDING = 1e-5  # a margin beyond what a batch of another size may change

Search = Generator[Tensor, Tensor, tuple[Tensor | None, bool]]


def smallest_set(relevance: Tensor, largest: int, most: int) -> Search:
    """Yield sets as rows (K, n) of members to remove; `send` takes their margins (K,).

    A margin is the logit of the original class minus that of the best other: below 0 where the
    class changed. relevance (n,): members that speak for the class come first; largest: members
    that a set may have; most: all sets of a size are tried if there are no more than this.

    Returns the set (n,), None if none was found, and whether all smaller ones (if none was found,
    all) were tried.
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
    prefixes = torch.cat([_prefixes(one, largest) for one in (order, effects)])
    margins = yield prefixes
    if bool((margins < -ROUNDING).any()):
        changing = prefixes[margins < -ROUNDING]
        best = yield from _pruned(changing[changing.sum(1).argmin()])
    size, tried, beam = 2, 1, singles[effects[:BEAM]]  # tried: the sizes whose sets were all tried
    while size < (min(largest, DEEPEST) + 1 if best is None else int(best.sum())):
        every = tried == size - 1 and math.comb(n, size) <= most
        sets = _all_sets(n, size) if every else _grown(beam)
        margins = yield sets
        if (found := _changing(sets, margins)) is not None:
            best = found if tried == size - 1 else (yield from _pruned(found))
            break
        tried += every
        beam = sets[margins.argsort(stable=True)[:BEAM]]
        size += 1
    return best, tried >= (largest if best is None else int(best.sum()) - 1)


def _changing(sets: Tensor, margins: Tensor) -> Tensor | None:
    """The set (n,) that changes the class most; None if none does."""
    k = int(margins.argmin())
    return sets[k] if margins[k] < -ROUNDING else None


def _pruned(found: Tensor) -> Generator[Tensor, Tensor, Tensor]:
    """The set without the members that it does not need, dropped one by one."""
    while True:
        members = found.nonzero()[:, 0]
        smaller = found.repeat(len(members), 1)
        smaller[torch.arange(len(members)), members] = False
        margins = yield smaller
        if (changing := _changing(smaller, margins)) is None:
            return found
        found = changing


def _prefixes(order: Tensor, largest: int) -> Tensor:
    """Sets (K, n) of the first 2, 3, ... largest members of an order."""
    return order.argsort()[None, :] < torch.arange(2, largest + 1)[:, None]


def _all_sets(n: int, size: int) -> Tensor:
    """All sets (K, n) of this size."""
    members = torch.tensor(list(combinations(range(n), size)))
    return torch.zeros(len(members), n, dtype=torch.bool).scatter_(1, members, True)


def _grown(beam: Tensor) -> Tensor:
    """All sets (K, n) that add one member to one of these."""
    made = beam[:, None, :] | torch.eye(beam.shape[1], dtype=torch.bool)
    return torch.unique(made[~beam], dim=0)
