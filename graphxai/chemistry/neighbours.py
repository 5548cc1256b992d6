"""Make neighbours of a molecule, the most promising first."""

import random
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from rdkit import Chem

from graphxai.datasets.training_set import TrainingSet

from .fragment_swaps import exchanged, fragments_for, mutated
from .settings import SOURCES
from .substructures import matches_in_time
from .transformations import Change, transformed

BATCH = 64  # molecules predicted together
EXPANDED = 4  # molecules whose neighbours are tried in the next round
QUICK, FROM = 8, 24  # neighbours of the first batch, and how many they are the best of
MUTATIONS = 400  # changes of SELFIES tried

Way: TypeAlias = tuple[tuple[str, str], ...]  # changes, each with the SMILES it led to


class SearchStart(NamedTuple):
    """A molecule whose neighbours are tried.

    Attributes:
        mol: the molecule.
        against: how much each atom speaks against the goal (N,).
        way: the earlier changes that led to it.
    """

    mol: Chem.Mol
    against: NDArray[np.float64]
    way: Way = ()


@dataclass(frozen=True, eq=False)
class Neighbourhood:
    """Proposes neighbours of molecules, the most promising first.

    Attributes:
        sources: where changes come from, see `SOURCES`.
        guided: whether changes at atoms that speak against the goal come first.
        rng: decides the order among equals, or the whole order without guidance.
        seed: decides the changes of SELFIES.
        training: the training set whose fragments are exchanged, or None.
    """

    sources: tuple[str, ...]
    guided: bool
    rng: random.Random
    seed: int
    training: TrainingSet | None

    def __post_init__(self) -> None:
        if unknown := set(self.sources) - set(SOURCES):
            raise ValueError(f"unknown source {min(unknown)!r}; choose from {', '.join(SOURCES)}.")

    def neighbours(
        self, starts: Sequence[SearchStart], keep: Collection[int] | Chem.Mol, seen: set[str]
    ) -> list[tuple[Change, Way]]:
        """Return new neighbours of all starts with the way to each, the most promising first."""
        scored = []
        for start in starts:
            kept = keep
            if isinstance(keep, Chem.Mol):
                kept = set(chain.from_iterable(matches_in_time(start.mol, keep)[:1]))
            for change in self._changes(start.mol, kept):
                if change.smiles not in seen:
                    seen.add(change.smiles)
                    scored.append((_worth(start, change), change, start.way))
        return self._in_order(scored)

    def quick(
        self, start: SearchStart, keep: Collection[int], seen: set[str]
    ) -> list[tuple[Change, Way]]:
        """Return the best of the first few neighbours, to be predicted while others are made."""
        first = islice(self._changes(start.mol, keep), FROM)
        chosen = self._in_order([(_worth(start, c), c, ()) for c in first])[:QUICK]
        seen.update(change.smiles for change, _ in chosen)
        return chosen

    def _in_order(self, scored: Sequence[tuple[float, Change, Way]]) -> list[tuple[Change, Way]]:
        """Return changes in the order in which they are tried."""
        drawn = [(self.rng.random(), *row) for row in scored]
        drawn.sort(key=lambda row: (-row[1], row[0]) if self.guided else row[0])
        return [(change, way) for _, _, change, way in drawn]

    def _changes(self, mol: Chem.Mol, keep: Collection[int]) -> Iterator[Change]:
        sources: dict[str, Callable[[], Iterator[Change]]] = {
            "transformations": lambda: transformed(mol, keep),
            "fragments": lambda: exchanged(mol, fragments_for(mol, self.training), keep),
            "selfies": lambda: mutated(mol, MUTATIONS, self.seed, keep),
        }
        return chain.from_iterable(sources[name]() for name in self.sources)


def _worth(start: SearchStart, change: Change) -> float:
    """Return how much of what speaks against the goal lies at the atoms of a change."""
    return float(start.against[list(change.atoms)].sum())


def in_parts(items: Sequence[Any], limit: int) -> Iterator[Sequence[Any]]:
    """Yield the first `limit` items, a batch at a time."""
    for start in range(0, min(limit, len(items)), BATCH):
        yield items[start : min(start + BATCH, limit)]


def kept_atoms(mol: Chem.Mol, keep: str | Collection[int]) -> frozenset[int]:
    """Return the numbers of the atoms to keep."""
    if not isinstance(keep, str):
        if wrong := [i for i in keep if not 0 <= i < mol.GetNumAtoms()]:
            raise ValueError(f"keep names atom {wrong[0]}; the molecule has {mol.GetNumAtoms()}.")
        return frozenset(keep)
    pattern = Chem.MolFromSmarts(keep)
    if pattern is None:
        raise ValueError(f"keep={keep!r} is not a SMARTS pattern.")
    matches = matches_in_time(mol, pattern)
    if not matches:
        raise ValueError(f"keep={keep!r} matches no atom of {Chem.MolToSmiles(mol)}.")
    return frozenset(chain.from_iterable(matches))


def kept_pattern(mol: Chem.Mol, keep: Collection[int]) -> Collection[int] | Chem.Mol:
    """Return the kept atoms as a pattern, which finds them again in a neighbour."""
    return Chem.MolFromSmarts(Chem.MolFragmentToSmarts(mol, list(keep))) if keep else ()
