"""Choose the counterfactuals to show: by Pareto front, and over all sites of the molecule."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import zip_longest

import numpy as np
from numpy.typing import NDArray

from .counterfactual_results import Counterfactual

__all__ = ["chosen_from", "counts", "pareto_fronts"]


def counts(candidate: Counterfactual, sure: bool) -> bool:
    """Return whether a neighbour is a counterfactual, and with `sure` whether the model is sure."""
    return candidate.reached and (not sure or bool(candidate.sure))


def chosen_from(tried: Sequence[Counterfactual], n: int, sure: bool) -> list[Counterfactual]:
    """Return the best n by Pareto front, or else those nearest to the goal, see `_over_sites`."""
    good = [candidate for candidate in tried if counts(candidate, sure)]
    if good:
        values = np.array(
            [[candidate.distance, candidate.similarity, candidate.trust] for candidate in good]
        )
        fronts = pareto_fronts(values).tolist()
        ranked = [
            replace(candidate, front=front) for candidate, front in zip(good, fronts, strict=True)
        ]
        ranked.sort(
            key=lambda candidate: (candidate.front, -candidate.similarity, candidate.smiles)
        )
    else:
        ranked = sorted(tried, key=lambda candidate: -candidate.distance)
    return _over_sites(ranked)[:n]


def _over_sites(ranked: Sequence[Counterfactual]) -> list[Counterfactual]:
    """Return the best of every site first, then the second of every site, and so on.

    Many exchanges of one ring are one idea. Changes are at the same site if they follow the same
    earlier changes and at least half of the atoms that either alters are the same.
    """
    sites: list[list[Counterfactual]] = []
    for candidate in ranked:
        site = next((site for site in sites if _at_same_site(candidate, site[0])), None)
        if site is None:
            sites.append([candidate])
        else:
            site.append(candidate)
    rounds = zip_longest(*sites)
    return [candidate for each in rounds for candidate in each if candidate is not None]


def _at_same_site(first: Counterfactual, second: Counterfactual) -> bool:
    same = len(first.atoms & second.atoms)
    return first.way == second.way and 2 * same >= len(first.atoms | second.atoms) > 0


def pareto_fronts(values: NDArray[np.floating]) -> NDArray[np.intp]:
    """Return the number of the Pareto front of each row of values (n, criteria), (n,).

    Larger values are better. A row is in front 0 if no other row is at least as good in all
    criteria and better in one. Front 1 is front 0 of the rows that are left, and so on.
    """
    row, rival = values[:, None], values[None]
    better = np.logical_and((row >= rival).all(-1), (row > rival).any(-1))  # (n, n)
    fronts = np.full(len(values), -1)
    front = 0
    while (left := fronts < 0).any():
        fronts[left & ~better[left].any(0)] = front
        front += 1
    return fronts
