"""What to change in a molecule so that the model says something else (Wachter 2017).

1. Neighbours: transformations that medicinal chemists make, exchanged BRICS fragments, SELFIES.
2. Order: neighbours that change what speaks against the wish are predicted first.
3. Choice: the Pareto front of the wish, the similarity to the molecule and to the training set.
"""

import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rdkit import Chem
from rdkit.DataStructs import TanimotoSimilarity

from graphxai.api import explain, load, predict
from graphxai.datasets.fingerprints import ecfp4_bits
from graphxai.datasets.training_set import TrainingSet, training_set_of
from graphxai.explanation.compute.models import Model, conformal_of
from graphxai.explanation.explanation import Explanation
from graphxai.runtime.progress import progress_bar

from .contrast import NO_MOLECULE
from .counterfactual_results import Counterfactual, Counterfactuals, Way
from .exchange import exchanged, fragments_for, mutated
from .feasibility import accessibility, alerts
from .measurements import Measurements
from .transformations import Change, transformed
from .wish import Wish

__all__ = ["Counterfactual", "Counterfactuals", "counterfactuals", "pareto_fronts", "search"]

SOURCES = ("transformations", "fragments", "selfies")
BATCH = 64  # molecules predicted together
EXPANDED = 4  # molecules whose neighbours are tried in the next round
PER_PLACE = 2  # counterfactuals shown that change the same atoms
MUTATIONS = 400  # changes of SELFIES tried
Measured = Measurements | Mapping[str, float] | str | Path


def counterfactuals(
    model: "Model | str | Path",
    molecule: Any,
    towards: str,
    n: int = 12,
    *,
    keep: str | Collection[int] = (),
    sources: Sequence[str] = SOURCES[:2],
    predictions: int = 1000,
    steps: int = 2,
    sure: bool = False,
    guided: bool = True,
    seed: int = 0,
    measured: Measured | None = None,
    progress: bool | None = None,
) -> Counterfactuals:
    """Find what to change in a molecule so that the model predicts something else.

    model: from `load` or `wrap`, or a name. molecule: a SMILES or an RDKit molecule. towards: a
    class, or ">6.5" or "<6.5" for a value; "task: ..." in models with several tasks. n: how many to
    return. keep: a SMARTS pattern, or numbers of atoms, that stay as they are. sources: any of
    "transformations", "fragments" (BRICS) and "selfies" (needs the package selfies). predictions:
    how many neighbours are predicted at most. steps: if fewer than n reach the wish, the neighbours
    of those nearest to it are tried, too, up to this many changes. sure: whether only those count
    that the model is sure of, see `Wish.sure`: fewer, and right more often. guided: whether
    neighbours that change what speaks against the wish come first; otherwise in random order. seed:
    for the order among equals, and SELFIES. measured: a CSV file with the columns `smiles` and one
    named after the wish's task, or after another task of the model; or values by SMILES. Each
    result then says whether it is in the table, and what was measured for pairs with the same
    exchange.

    Those that reach the wish are returned, by Pareto front (distance beyond the wish, similarity to
    the molecule, similarity to the training set), or if none does, those nearest to it. At most two
    change the same atoms unless there are no others. Raises ValueError for a wish, pattern or table
    that does not fit, and for `sure` if it is not known how wrong the model is.
    """
    options: dict[str, Any] = {"keep": keep, "sources": sources, "predictions": predictions}
    options |= {"steps": steps, "sure": sure, "guided": guided, "seed": seed, "measured": measured}
    with progress_bar("predicting neighbours", predictions, show=progress) as advance:
        done = 0
        for predicted, best in _searched(model, molecule, towards, n, **options):
            advance(predicted - done)
            done, so_far = predicted, best
    return so_far()


def search(
    model: "Model | str | Path",
    molecule: Any,
    towards: str,
    n: int = 12,
    *,
    keep: str | Collection[int] = (),
    sources: Sequence[str] = SOURCES[:2],
    predictions: int = 1000,
    steps: int = 2,
    sure: bool = False,
    guided: bool = True,
    seed: int = 0,
    measured: Measured | None = None,
) -> Iterator[Counterfactuals]:
    """The best counterfactuals so far, at first none, then after each batch of predictions.

    Arguments and errors as for `counterfactuals`, whose result is the last one. The search works
    only as far as you iterate: stop iterating to cancel it.
    """
    options: dict[str, Any] = {"keep": keep, "sources": sources, "predictions": predictions}
    options |= {"steps": steps, "sure": sure, "guided": guided, "seed": seed, "measured": measured}
    for _, so_far in _searched(model, molecule, towards, n, **options):
        yield so_far()


def _searched(
    model: "Model | str | Path",
    molecule: Any,
    towards: str,
    n: int,
    *,
    keep: str | Collection[int],
    sources: Sequence[str],
    predictions: int,
    steps: int,
    sure: bool,
    guided: bool,
    seed: int,
    measured: Measured | None,
) -> Iterator[tuple[int, Callable[[], Counterfactuals]]]:
    """How many were predicted, and a function for the best of them; at first, then by batch."""
    model = load(model) if isinstance(model, str | Path) else model
    wish = Wish.of(towards, model)
    known_errors = wish.task in conformal_of(model)
    if sure and not known_errors:
        raise ValueError(
            f"how wrong the model is for {wish.task!r} is not known, so nothing can be sure: leave"
            " out sure, or train with a validation part."
        )
    source = _Search(
        model, wish, tuple(sources), guided, random.Random(seed), seed, training_set_of(model)
    )
    table = _table(measured, wish, model)
    explanation: Explanation = explain(model, molecule, target=wish.target, progress=False)
    start = explanation.atoms(NO_MOLECULE)
    kept = _kept(start, keep)
    known = {Chem.MolToSmiles(start)}
    tried: list[Counterfactual] = []

    def so_far() -> Counterfactuals:
        hits = [k for k, one in enumerate(tried, 1) if one.reached]
        return Counterfactuals(
            model,
            explanation,
            wish,
            tuple(_judged(one, start, table) for one in _chosen(tried, n, sure)),
            len(tried),
            successes=len(hits),
            sure=sum(_counts(one, sure=True) for one in tried) if known_errors else None,
            first=hits[0] if hits else None,
        )

    yield 0, so_far
    origins: list[tuple[Explanation, Way]] = [(explanation, ())]
    for step in range(steps):
        queue = source.neighbours(origins, kept if step == 0 else _pattern(start, kept), known)
        for part in _in_parts(queue, predictions - len(tried)):
            tried += source.predicted(part, explanation)
            yield len(tried), so_far
        if sum(_counts(one, sure) for one in tried) >= n or len(tried) >= predictions:
            return
        near = sorted(tried, key=lambda one: -one.distance)[:EXPANDED]
        origins = source.origins(near)


@dataclass(frozen=True, eq=False)
class _Search:
    """Proposes neighbours, the most promising first, and predicts them."""

    model: Model
    wish: Wish
    sources: tuple[str, ...]
    guided: bool
    rng: random.Random
    seed: int
    training: TrainingSet | None

    def __post_init__(self) -> None:
        if unknown := set(self.sources) - set(SOURCES):
            raise ValueError(f"unknown source {min(unknown)!r}; choose from {', '.join(SOURCES)}.")

    def neighbours(
        self,
        origins: Sequence[tuple[Explanation, Way]],
        keep: Collection[int] | Chem.Mol,
        known: set[str],
    ) -> list[tuple[Change, Way]]:
        """New neighbours of all origins and how each was reached, the most promising first."""
        found = []
        for explanation, way in origins:
            mol = explanation.atoms(NO_MOLECULE)
            kept = keep
            if isinstance(keep, Chem.Mol):
                kept = set(chain.from_iterable(mol.GetSubstructMatches(keep)[:1]))
            against = -self.wish.side * np.asarray(explanation.relevance, dtype=np.float64)
            for change in self._changes(mol, kept):
                if change.smiles not in known:
                    known.add(change.smiles)
                    worth = float(against[list(change.atoms)].sum())
                    found.append((worth, self.rng.random(), change, way))
        found.sort(key=lambda one: (-one[0], one[1]) if self.guided else one[1])
        return [(change, way) for _, _, change, way in found]

    def _changes(self, mol: Chem.Mol, keep: Collection[int]) -> Iterator[Change]:
        sources: dict[str, Callable[[], Iterator[Change]]] = {
            "transformations": lambda: transformed(mol, keep),
            "fragments": lambda: exchanged(mol, fragments_for(mol, self.training), keep),
            "selfies": lambda: mutated(mol, MUTATIONS, self.seed, keep),
        }
        return chain.from_iterable(sources[name]() for name in self.sources)

    def predicted(
        self, part: Sequence[tuple[Change, Way]], start: Explanation
    ) -> Iterator[Counterfactual]:
        """The neighbours with their predictions; those that the model cannot take are left out."""
        outcomes = predict(self.model, [change.smiles for change, _ in part], progress=False)
        before, fingerprint = start.prediction, ecfp4_bits(start.atoms(NO_MOLECULE))
        for (change, way), outcome in zip(part, outcomes, strict=True):
            if outcome is not None:
                prediction = outcome[self.wish.task]
                found = ecfp4_bits(Chem.MolFromSmiles(change.smiles))
                yield Counterfactual(
                    change.smiles,
                    change.name,
                    change.source,
                    change.atoms,
                    prediction,
                    before,
                    self.wish.value(prediction) - self.wish.value(before),
                    self.wish.distance(prediction),
                    TanimotoSimilarity(fingerprint, found),
                    self.wish.sure(prediction) if self.wish.distance(prediction) > 0 else None,
                    way,
                )

    def origins(self, near: Sequence[Counterfactual]) -> list[tuple[Explanation, Way]]:
        """The molecules to go on from, explained."""
        smiles = [one.smiles for one in near]
        explained = explain(self.model, smiles, target=self.wish.target, progress=False)
        ways = [(*one.way, (one.change, one.smiles)) for one in near]
        return [(e, way) for e, way in zip(explained, ways, strict=True) if e is not None]


def _in_parts(items: Sequence[Any], limit: int) -> Iterator[Sequence[Any]]:
    """The first `limit` items, some at a time."""
    for start in range(0, min(limit, len(items)), BATCH):
        yield items[start : min(start + BATCH, limit)]


def _kept(mol: Chem.Mol, keep: str | Collection[int]) -> frozenset[int]:
    """The atoms to keep, by number."""
    if not isinstance(keep, str):
        if wrong := [i for i in keep if not 0 <= i < mol.GetNumAtoms()]:
            raise ValueError(f"keep names atom {wrong[0]}; the molecule has {mol.GetNumAtoms()}.")
        return frozenset(keep)
    pattern = Chem.MolFromSmarts(keep)
    if pattern is None:
        raise ValueError(f"keep={keep!r} is not a SMARTS pattern.")
    matches = mol.GetSubstructMatches(pattern)
    if not matches:
        raise ValueError(f"keep={keep!r} matches no atom of {Chem.MolToSmiles(mol)}.")
    return frozenset(chain.from_iterable(matches))


def _pattern(mol: Chem.Mol, keep: Collection[int]) -> Collection[int] | Chem.Mol:
    """The kept atoms as a pattern, to find them again in a neighbour."""
    return Chem.MolFromSmarts(Chem.MolFragmentToSmarts(mol, list(keep))) if keep else ()


def _counts(one: Counterfactual, sure: bool) -> bool:
    """Whether a neighbour is a counterfactual; sure: only if the model is sure."""
    return one.reached and (not sure or bool(one.sure))


def _chosen(tried: Sequence[Counterfactual], n: int, sure: bool) -> list[Counterfactual]:
    """The best n by Pareto front, or those nearest to the wish; few for the same place."""
    good = [one for one in tried if _counts(one, sure)]
    if good:
        values = np.array([[one.distance, one.similarity, one.trust] for one in good])
        fronts = pareto_fronts(values).tolist()
        ranked = [replace(one, front=front) for one, front in zip(good, fronts, strict=True)]
        ranked.sort(key=lambda one: (one.front, -one.similarity, one.smiles))
    else:
        ranked = sorted(tried, key=lambda one: -one.distance)
    places: dict[tuple[Any, ...], int] = {}
    first: list[Counterfactual] = []
    later: list[Counterfactual] = []
    for one in ranked:
        place = (one.way, one.atoms)
        places[place] = places.get(place, 0) + 1
        (first if places[place] <= PER_PLACE else later).append(one)
    return (first + later)[:n]


def pareto_fronts(values: NDArray[np.floating]) -> NDArray[np.intp]:
    """The front of each row of values (n, criteria), larger is better, (n,).

    A row is in front 0 if no other is at least as good in all criteria and better in one; in front
    1 if that is so once front 0 is removed; and so on.
    """
    one, other = values[:, None], values[None]
    better = np.logical_and((one >= other).all(-1), (one > other).any(-1))  # (n, n)
    fronts = np.full(len(values), -1)
    front = 0
    while (left := fronts < 0).any():
        fronts[left & ~better[left].any(0)] = front
        front += 1
    return fronts


def _table(given: Measured | None, wish: Wish, model: Model) -> Measurements | None:
    """Measured values of the wish's task, or of another task of the model."""
    if given is None or isinstance(given, Measurements):
        return given
    if isinstance(given, Mapping):
        return Measurements.of(given.items(), wish.task)
    return Measurements.read(given, wish.columns(model))


def _judged(one: Counterfactual, start: Chem.Mol, table: Measurements | None) -> Counterfactual:
    """The counterfactual with accessibility, new alerts and what was measured."""
    first = Chem.MolToSmiles(start)
    (score, found), (_, before) = _feasibility(one.smiles), _feasibility(first)
    return replace(
        one,
        accessibility=score,
        alerts=tuple(alert for alert in found if alert not in before),
        measured=None if table is None else table.about(first, one.smiles),
    )


@lru_cache(maxsize=4096)  # a search asks again after every batch
def _feasibility(smiles: str) -> tuple[float | None, tuple[str, ...]]:
    mol = Chem.MolFromSmiles(smiles)
    return accessibility(mol), alerts(mol)
