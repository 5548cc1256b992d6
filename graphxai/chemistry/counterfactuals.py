"""What to change in a molecule so that the model says something else (Wachter 2017).

1. Neighbours: transformations that medicinal chemists make, exchanged BRICS fragments, SELFIES.
2. Order: neighbours that change what speaks against the wish are predicted first.
3. Choice: the Pareto front of the wish, the similarity to the molecule and to the training set.
"""

import random
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from rdkit import Chem
from rdkit.DataStructs import TanimotoSimilarity

from graphxai.api import Model, explain, load, predict
from graphxai.contract.target import Target
from graphxai.datasets.fingerprints import ecfp4_bits
from graphxai.datasets.progress import progress_bar
from graphxai.datasets.training_set import TrainingSet, training_set_of
from graphxai.explainers.registry import Method
from graphxai.explanation.explanation import Explanation
from graphxai.explanation.grid import PANEL, SATURATED
from graphxai.explanation.prediction import Prediction
from graphxai.explanation.result import Result
from graphxai.visualization.resonance import averaged

from .contrast import NO_MOLECULE, Contrast, contrast
from .exchange import exchanged, fragments_for, mutated
from .feasibility import accessibility, alerts
from .matching import NoCommonPartError, common_part
from .transformations import Change, transformed

if TYPE_CHECKING:
    import pandas as pd

    from graphxai.visualization import Scale

SOURCES = ("transformations", "fragments", "selfies")
BATCH = 64  # molecules predicted together
EXPANDED = 4  # molecules whose neighbours are tried in the next round
PER_PLACE = 2  # counterfactuals shown that change the same atoms
MUTATIONS = 400  # changes of SELFIES tried
Way = tuple[tuple[str, str], ...]  # changes, each with the SMILES it led to


@dataclass(frozen=True)
class Wish:
    """What the model should say: a class, or a value above or below a limit.

    side: for a regression, +1 above the limit and -1 below it.
    """

    task: str
    label: str | None = None
    limit: float = 0.0
    side: int = 1

    @classmethod
    def of(cls, text: str, model: Model) -> "Wish":
        """Read the name of a class, ">6.5" or "<6.5"; "task: ..." names a task.

        Raises ValueError for anything else; the message lists what the model offers.
        """
        config = model.config
        named = next((t for t in config.tasks if text.startswith(f"{t.name}:")), None)
        rest = text.removeprefix(f"{named.name}:").strip() if named else text.strip()
        tasks = [named] if named else list(config.tasks)
        if found := re.fullmatch(r"([<>])=?\s*([-+]?\d+(?:\.\d*)?(?:e[-+]?\d+)?)", rest, re.I):
            values = [task for task in tasks if task.kind == "regression"]
            if values:
                side = 1 if found[1] == ">" else -1
                return cls(values[0].name, limit=float(found[2]), side=side)
        for task in tasks:
            if rest in task.classes:
                return cls(task.name, rest)
        offered = [
            f"{task.name}: >LIMIT or <LIMIT"
            if task.kind == "regression"
            else f"{task.name}: {', '.join(task.classes)}"
            for task in config.tasks
        ]
        raise ValueError(f"cannot go towards {text!r}; this model offers {'; '.join(offered)}.")

    @property
    def target(self) -> Target:
        """The output whose relevance guides the search."""
        return Target(self.label, self.task)

    def distance(self, prediction: Prediction) -> float:
        """How far beyond the wish a prediction is; negative on the wrong side.

        A class: log-odds against the most probable other one. A value: its distance from the limit.
        """
        if self.label is None:
            assert prediction.value is not None
            return self.side * (prediction.value - self.limit)
        own = prediction.probabilities[self.label]
        other = max(p for name, p in prediction.probabilities.items() if name != self.label)
        return float(np.log(max(own, 1e-12) / max(other, 1e-12)))

    def __str__(self) -> str:
        sign = ">" if self.side > 0 else "<"
        return self.label or f"{self.task} {sign} {self.limit:g}"


@dataclass(frozen=True)
class Counterfactual:
    """A neighbour of the molecule that was asked about.

    change, source: what was done last and where it comes from; way: the changes before, each with
    the SMILES it led to. atoms: what was changed in the molecule before. distance:
    how far beyond the wish, see `Wish.distance`; reached: whether it is beyond. similarity: ECFP4
    Tanimoto similarity to the first molecule. front: 0 for the Pareto front, 1 for the next.
    accessibility: synthetic accessibility from 1 (easy) to 10 (Ertl 2009), None where RDKit comes
    without it. alerts: new ones, from RDKit's catalogs BRENK and PAINS.
    """

    smiles: str
    change: str
    source: str
    atoms: frozenset[int]
    prediction: Prediction
    distance: float
    similarity: float
    way: Way = ()
    front: int = 0
    accessibility: float | None = None
    alerts: tuple[str, ...] = ()

    @property
    def changes(self) -> str:
        """All changes, in order."""
        return ", then ".join([*(name for name, _ in self.way), self.change])

    @property
    def reached(self) -> bool:
        """Whether the prediction is what was wished for."""
        return self.distance > 0

    @property
    def trust(self) -> float:
        """Similarity to the nearest training compound; 0 if the training set is unknown."""
        near = self.prediction.nearness
        return (near.similarity or 0.0) if near is not None else 0.0


@dataclass(frozen=True, eq=False)
class Counterfactuals(Result, Sequence[Counterfactual]):
    """The counterfactuals of one molecule, best first; see `counterfactuals`.

    explanation: of the molecule itself, towards the wish. predicted: how many neighbours were
    predicted; successes: how many of them reached the wish; first: the number of the first of
    these, None if there is none.
    """

    model: Model
    explanation: Explanation
    wish: Wish
    found: tuple[Counterfactual, ...]
    predicted: int
    successes: int
    first: int | None

    def __len__(self) -> int:
        return len(self.found)

    def __getitem__(self, index: Any) -> Any:
        return self.found[index]

    def __repr__(self) -> str:
        return f"Counterfactuals({self.summary})"

    @property
    def summary(self) -> str:
        """What was found, in one sentence."""
        tried = f"{self.predicted:,} neighbours predicted"
        own = self.explanation.prediction
        if self.wish.distance(own) > 0:
            stay = f"{self.successes:,} are {self.wish}, as the molecule itself ({own})"
            return f"{tried}, {stay}: ask for another class or value"
        if self.first is None:
            return f"{tried}, none reaches {self.wish}"
        return f"{tried}, {self.successes:,} reach {self.wish}, the first was number {self.first}"

    def contrast(self, index: int, method: Method = "lrp") -> Contrast:
        """What the model makes of a change: the molecule against the counterfactual."""
        target = self.wish.target
        molecule = self.explanation.smiles
        return contrast(self.model, molecule, self.found[index].smiles, method, target=target)

    def to_frame(self) -> "pd.DataFrame":
        """One row per counterfactual."""
        import pandas as pd

        rows = [
            {
                "smiles": one.smiles,
                "changes": one.changes,
                "source": one.source,
                "prediction": str(one.prediction),
                "reached": one.reached,
                "distance": one.distance,
                "similarity": one.similarity,
                "front": one.front,
                **(one.prediction.nearness.columns if one.prediction.nearness else {}),
                "accessibility": one.accessibility,
                "alerts": "; ".join(one.alerts),
                "way": " ".join(smiles for _, smiles in one.way),
            }
            for one in self.found
        ]
        return pd.DataFrame(rows)

    @cached_property
    def explanations(self) -> list[Explanation]:
        """The molecule and its counterfactuals, explained towards the wish."""
        smiles = [one.smiles for one in self.found]
        options: dict[str, Any] = {"target": self.wish.target, "progress": False}
        return [self.explanation, *explain(self.model, smiles, **options)]

    def svg(
        self,
        *,
        columns: int = 3,
        scale: "Scale | float | None" = None,
        palette: str = "red-blue",
        **options: Any,
    ) -> str:
        """The molecule and its counterfactuals, drawn alike, coloured by relevance for the wish.

        Atoms that the molecule does not have are outlined. Options as for `molecule_svg`.
        """
        from graphxai.visualization import Scale, grid_svg, molecule_svg
        from graphxai.visualization.contrast import aligned
        from graphxai.visualization.layout import laid_out

        shown = self.explanations
        values = [averaged(e.relevance, e.equivalent) for e in shown]
        limit = float(np.quantile(np.abs(np.concatenate(values)), SATURATED)) or None
        colours = Scale.chosen(scale or limit, *values, palette=palette)
        first = laid_out(shown[0].atoms(NO_MOLECULE))
        given: dict[str, Any] = {
            **PANEL,
            "scale": colours,
            "color_bar": False,
            "keep_layout": True,
        } | options
        about: dict[str, Any] = {
            "title": "the molecule",
            "subtitle": str(self.explanation.prediction),
        }
        panels = [molecule_svg(first, values[0], **about, **given)]
        for one, e, relevance in zip(self.found, shown[1:], values[1:], strict=True):
            mol = e.atoms(NO_MOLECULE)
            about = {"title": one.changes, "subtitle": str(one.prediction)}
            try:
                part = common_part(first, mol, timeout=1)
                mol, same = aligned(mol, first, part.mapping), part.same[:, 1]
            except NoCommonPartError:
                mol, same = laid_out(mol), np.arange(0)
            new = np.setdiff1d(np.arange(len(e)), same).tolist()
            panels.append(molecule_svg(mol, relevance, outlined=new, **about, **given))
        return grid_svg(
            panels,
            columns,
            f"towards {self.wish}",
            subtitle=self.summary,
            scale=colours,
            values=np.concatenate(values),
            legend=self.explanation.legend,
        )


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
    guided: bool = True,
    seed: int = 0,
    progress: bool | None = None,
) -> Counterfactuals:
    """Find what to change in a molecule so that the model predicts something else.

    model: from `load` or `wrap`, or a name. molecule: a SMILES or an RDKit molecule. towards: a
    class, or ">6.5" or "<6.5" for a value; "task: ..." in models with several tasks. n: how many to
    return. keep: a SMARTS pattern, or numbers of atoms, that stay as they are. sources: any of
    "transformations", "fragments" (BRICS) and "selfies" (needs the package selfies). predictions:
    how many neighbours are predicted at most. steps: if fewer than n reach the wish, the neighbours
    of those nearest to it are tried, too, up to this many changes. guided: whether neighbours that
    change what speaks against the wish come first; otherwise in random order. seed: for the order
    among equals, and SELFIES.

    Those that reach the wish come first, by Pareto front (distance beyond the wish, similarity to
    the molecule, similarity to the training set), with at most two for the same atoms unless there
    are no others. Raises ValueError for a wish or pattern that does not fit.
    """
    options: dict[str, Any] = {"keep": keep, "sources": sources, "predictions": predictions}
    options |= {"steps": steps, "guided": guided, "seed": seed}
    with progress_bar("predicting neighbours", predictions, show=progress) as tick:
        done = 0
        for found in search(model, molecule, towards, n, **options):
            tick(found.predicted - done)
            done = found.predicted
    return found


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
    guided: bool = True,
    seed: int = 0,
) -> Iterator[Counterfactuals]:
    """The best counterfactuals so far, at first none, then after each batch of predictions.

    Arguments and errors as for `counterfactuals`, whose result is the last one. The search does no
    more work than is asked for: who stops iterating cancels it.
    """
    model = load(model) if isinstance(model, str | Path) else model
    wish = Wish.of(towards, model)
    source = _Search(
        model, wish, tuple(sources), guided, random.Random(seed), seed, training_set_of(model)
    )
    explanation: Explanation = explain(model, molecule, target=wish.target, progress=False)
    start = explanation.atoms(NO_MOLECULE)
    kept = _kept(start, keep)
    fingerprint, before = ecfp4_bits(start), alerts(start)
    known = {Chem.MolToSmiles(start)}
    tried: list[Counterfactual] = []

    def so_far() -> Counterfactuals:
        hits = [k for k, one in enumerate(tried, 1) if one.reached]
        chosen = tuple(_with_feasibility(one, before) for one in _chosen(tried, n))
        first = hits[0] if hits else None
        return Counterfactuals(model, explanation, wish, chosen, len(tried), len(hits), first)

    yield so_far()
    origins: list[tuple[Explanation, Way]] = [(explanation, ())]
    for step in range(steps):
        queue = source.neighbours(origins, kept if step == 0 else _pattern(start, kept), known)
        for part in _in_parts(queue, predictions - len(tried)):
            tried += source.predicted(part, fingerprint)
            yield so_far()
        if sum(one.reached for one in tried) >= n or len(tried) >= predictions:
            return
        near = sorted(tried, key=lambda one: -one.distance)[:EXPANDED]
        origins = source.origins(near)


@dataclass(frozen=True, eq=False)
class _Search:
    """Proposes neighbours in the order in which they are worth a prediction, and predicts them."""

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
        """New neighbours of all origins with the way to them, the most promising first."""
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

    def predicted(self, part: Sequence[tuple[Change, Way]], start: Any) -> Iterator[Counterfactual]:
        """The neighbours with their predictions; those that the model cannot take are left out."""
        outcomes = predict(self.model, [change.smiles for change, _ in part], progress=False)
        for (change, way), outcome in zip(part, outcomes, strict=True):
            if outcome is not None:
                prediction = outcome[self.wish.task]
                yield Counterfactual(
                    change.smiles,
                    change.name,
                    change.source,
                    change.atoms,
                    prediction,
                    self.wish.distance(prediction),
                    TanimotoSimilarity(start, ecfp4_bits(Chem.MolFromSmiles(change.smiles))),
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


def _chosen(tried: Sequence[Counterfactual], n: int) -> list[Counterfactual]:
    """The best n by Pareto front, few for the same place; the nearest ones if none reached."""
    good = [one for one in tried if one.reached]
    if not good:
        return sorted(tried, key=lambda one: -one.distance)[:n]
    values = np.array([[one.distance, one.similarity, one.trust] for one in good])
    fronts = pareto_fronts(values).tolist()
    ranked = [replace(one, front=front) for one, front in zip(good, fronts, strict=True)]
    ranked.sort(key=lambda one: (one.front, -one.similarity, one.smiles))
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

    Front 0 has the rows than which no other is as good in all and better in one; front 1 those of
    which this holds without front 0; and so on.
    """
    one, other = values[:, None], values[None]
    better = np.logical_and((one >= other).all(-1), (one > other).any(-1))  # (n, n)
    fronts = np.full(len(values), -1)
    front = 0
    while (left := fronts < 0).any():
        fronts[left & ~better[left].any(0)] = front
        front += 1
    return fronts


def _with_feasibility(one: Counterfactual, before: Collection[str]) -> Counterfactual:
    score, found = _feasibility(one.smiles)
    return replace(one, accessibility=score, alerts=tuple(a for a in found if a not in before))


@lru_cache(maxsize=4096)  # a search asks again after every batch
def _feasibility(smiles: str) -> tuple[float | None, tuple[str, ...]]:
    mol = Chem.MolFromSmiles(smiles)
    return accessibility(mol), alerts(mol)
