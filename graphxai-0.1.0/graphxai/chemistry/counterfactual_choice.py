"""Choose the counterfactuals to show: by Pareto front, and over all sites of the molecule."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from .counterfactual_results import Counterfactual
from .neighbours import Way

__all__ = ["chosen_from", "counts", "over_sites", "pareto_fronts"]


class ChangedMolecule(Protocol):
    """A neighbour of a molecule, with the way to it and the atoms that its last change altered."""

    @property
    def way(self) -> Way:
        """The earlier changes."""

    @property
    def atoms(self) -> frozenset[int]:
        """The atoms that the last change altered."""


Changed = TypeVar("Changed", bound=ChangedMolecule)


def counts(candidate: Counterfactual, sure: bool) -> bool:
    """Return whether a neighbour is a counterfactual, and with `sure` whether the model is sure."""
    return candidate.reached and (not sure or bool(candidate.sure))


def chosen_from(tried: Sequence[Counterfactual], n: int, sure: bool) -> list[Counterfactual]:
    """Return the best n by Pareto front, or else those nearest to the goal, see `over_sites`."""
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
    return over_sites(ranked)[:n]


def over_sites(ranked: Sequence[Changed]) -> list[Changed]:
    """Return the best of every site first, then the second of every site, and so on.

    Many exchanges of one ring are one idea. Changes are at the same site if they follow the same
    earlier changes and at least half of the atoms that either alters are the same.
    """
    sites: list[list[Changed]] = []
    for candidate in ranked:
        site = next((site for site in sites if _at_same_site(candidate, site[0])), None)
        if site is None:
            sites.append([candidate])
        else:
            site.append(candidate)
    rounds = zip_longest(*sites)
    return [candidate for each in rounds for candidate in each if candidate is not None]


def _at_same_site(first: ChangedMolecule, second: ChangedMolecule) -> bool:
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
