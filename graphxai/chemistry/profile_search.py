"""Search for changes of a molecule that bring several properties nearer to what is wished.

Neighbours are made and ordered as in `counterfactuals`: those come first that change what speaks
against the goals that are not met yet. The best are those on the Pareto front of the
desirabilities, which no other neighbour beats in one property without losing in another.
"""

import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
from rdkit import Chem
from rdkit.DataStructs import TanimotoSimilarity

from graphxai.api import OneOrMoreModels, explain, predict
from graphxai.datasets.fingerprints import ecfp4_bits
from graphxai.datasets.training_set import training_set_of
from graphxai.explanation.compute.panel import ModelPanel
from graphxai.explanation.prediction import Prediction

from .contrast import NO_MOLECULE
from .counterfactual_choice import over_sites, pareto_fronts
from .desirability import DesirabilityScore, PropertyProfile
from .feasibility import feasibility
from .measured_properties import MeasuredProperties, measured_change
from .neighbours import (
    EXPANDED,
    SOURCES,
    Neighbourhood,
    SearchStart,
    Way,
    in_parts,
    kept_atoms,
    kept_pattern,
)
from .profile_results import ProfileCounterfactual, ProfileCounterfactuals
from .profile_text import read_profile
from .transformations import Change

Best = Callable[[], ProfileCounterfactuals]


@dataclass(frozen=True)
class SearchLimits:
    """How far a search goes, as in `counterfactuals`.

    Attributes:
        n: how many neighbours to return.
        predictions: how many neighbours are predicted at most.
        steps: how many changes may follow each other.
        sure: whether only neighbours count for which the models are sure that all goals are met.
    """

    n: int = 12
    predictions: int = 1000
    steps: int = 2
    sure: bool = False


def search_profile(
    models: OneOrMoreModels,
    molecule: Any,
    towards: str,
    limits: SearchLimits,
    *,
    keep: str | Collection[int] = (),
    sources: Sequence[str] = SOURCES[:2],
    guided: bool = True,
    seed: int = 0,
    measured: MeasuredProperties | None = None,
) -> Iterator[tuple[int, Best]]:
    """Yield how many neighbours were predicted, and a function that returns the best of them.

    The first pair comes before any prediction, then one pair after each batch. The search works
    only as far as you iterate: stop iterating to cancel it.

    Raises:
        ValueError: `towards` is not understood, a model cannot read the molecule, `keep` does not
            fit, a source is unknown, or `limits` ask for what is sure and a model cannot tell.
    """
    panel = ModelPanel.of(models)
    profile = read_profile(panel, towards)
    searcher = _ProfileSearcher(panel, profile)
    mol: Chem.Mol = explain(panel.models[0], molecule, progress=False).atoms(NO_MOLECULE)
    smiles = Chem.MolToSmiles(mol)
    before = predict(list(panel.models), smiles, progress=False)
    now = profile.score(before)
    training = training_set_of(panel.models[0])
    neighbourhood = Neighbourhood(tuple(sources), guided, random.Random(seed), seed, training)
    kept = kept_atoms(mol, keep)
    if limits.sure and None in [part.goal.sure(before[part.goal.of.name]) for part in now.parts]:
        raise ValueError("how wrong a model of these goals is, is not known: leave out sure.")
    seen = {smiles}
    tried: list[ProfileCounterfactual] = []

    def best() -> ProfileCounterfactuals:
        chosen = chosen_by_front(tried, now, limits)
        successes = sum(each.reached for each in tried)
        improved = sum(_worth(each.score) > _worth(now) for each in tried)
        judged = tuple(_judged(each, smiles, measured or {}) for each in chosen)
        return ProfileCounterfactuals(
            smiles, profile, before, judged, len(tried), successes, improved
        )

    yield 0, best
    starts = [SearchStart(mol, searcher.against(mol, before))]
    tried += searcher.predicted(
        neighbourhood.quick(starts[0], kept, seen)[: limits.predictions], mol, before
    )
    yield len(tried), best
    for step in range(limits.steps):
        keeping = kept if step == 0 else kept_pattern(mol, kept)
        queue = neighbourhood.neighbours(starts, keeping, seen)
        for part in in_parts(queue, limits.predictions - len(tried)):
            tried += searcher.predicted(part, mol, before)
            yield len(tried), best
        if sum(_counts(each, limits) for each in tried) >= limits.n:
            return
        if len(tried) >= limits.predictions:
            return
        near = sorted(tried, key=_order)[:EXPANDED]
        starts = [searcher.start(each) for each in near]


def chosen_by_front(
    tried: Sequence[ProfileCounterfactual], now: DesirabilityScore, limits: SearchLimits
) -> list[ProfileCounterfactual]:
    """Return the best n of those that are more desirable than the molecule, over all sites.

    The fronts are those among all neighbours.

    Args:
        tried: all neighbours that were predicted.
        now: the score of the molecule itself.
        limits: how many to return, and whether the models must be sure of them.
    """
    if not tried:
        return []
    fronts = pareto_fronts(np.array([each.score.desirabilities for each in tried])).tolist()
    ranked = [
        replace(each, front=front)
        for each, front in zip(tried, fronts, strict=True)
        if _worth(each.score) > _worth(now) and (not limits.sure or _counts(each, limits))
    ]
    ranked.sort(key=lambda each: (each.front, *_order(each)))
    return over_sites(ranked)[: limits.n]


def _worth(score: DesirabilityScore) -> tuple[float, float]:
    """Return what neighbours are compared by: the overall desirability, then the sum of its parts.

    The sum tells neighbours apart where one property makes the whole 0.
    """
    return score.overall or 0.0, sum(score.desirabilities)


def _counts(candidate: ProfileCounterfactual, limits: SearchLimits) -> bool:
    return candidate.reached and (not limits.sure or bool(candidate.sure))


def _order(candidate: ProfileCounterfactual) -> tuple[float, float, float, str]:
    """Return what neighbours of one front are sorted by: the most desirable, then most similar."""
    overall, total = _worth(candidate.score)
    return -overall, -total, -candidate.similarity, candidate.smiles


@dataclass(frozen=True, eq=False)
class _ProfileSearcher:
    """Predicts neighbours by all models, and explains those that are searched from next."""

    panel: ModelPanel
    profile: PropertyProfile

    def against(self, mol: Chem.Mol, predictions: Mapping[str, Prediction]) -> Any:
        """Return how much each atom speaks against the goals that are not met (N,).

        Every model's relevance is divided by its largest, as their units differ, and weighted by
        the goal's weight and by what its desirability lacks.
        """
        total = np.zeros(mol.GetNumAtoms())
        for goal in self.profile.goals:
            prediction = predictions.get(goal.of.name)
            if prediction is None or not (side := goal.side(prediction)):
                continue
            model = self.panel.models[goal.of.place]
            explanation = explain(model, Chem.MolToSmiles(mol, canonical=False), target=goal.target)
            relevance = np.asarray(explanation.relevance, dtype=np.float64)
            if relevance.shape != total.shape:  # this model reads another form of the molecule
                continue
            lack = goal.weight * (1 - goal.desirability(prediction))
            total -= side * lack * relevance / (np.abs(relevance).max() or 1.0)
        return total

    def start(self, candidate: ProfileCounterfactual) -> SearchStart:
        """Return a neighbour whose own neighbours can be tried next."""
        mol = Chem.MolFromSmiles(candidate.smiles)
        way: Way = (*candidate.way, (candidate.change, candidate.smiles))
        return SearchStart(mol, self.against(mol, candidate.predictions), way)

    def predicted(
        self,
        part: Sequence[tuple[Change, Way]],
        mol: Chem.Mol,
        before: Mapping[str, Prediction],
    ) -> Iterator[ProfileCounterfactual]:
        """Yield neighbours with their predictions, without those that a model cannot read."""
        drawn = [change.isomers or (change.smiles,) for change, _ in part]
        every = list(chain.from_iterable(drawn))
        outcomes = iter(predict(list(self.panel.models), every, progress=False) if every else ())
        bits = ecfp4_bits(mol)
        for (change, way), isomers in zip(part, drawn, strict=True):
            scored = []
            for smiles in isomers:
                predictions = next(outcomes) or {}
                score = self.profile.score(predictions)
                if score.overall is not None:
                    scored.append((smiles, predictions, score))
            if len(scored) < len(isomers):
                continue
            smiles, predictions, score = min(scored, key=lambda each: each[2].overall or 0.0)
            similarity = TanimotoSimilarity(bits, ecfp4_bits(Chem.MolFromSmiles(smiles)))
            several = tuple((written, each.overall or 0.0) for written, _, each in scored)
            yield ProfileCounterfactual(
                smiles,
                change.name,
                change.source,
                change.atoms,
                predictions,
                before,
                score,
                similarity,
                way,
                isomers=several if len(several) > 1 else (),
            )


def _judged(
    candidate: ProfileCounterfactual, start: str, measured: MeasuredProperties
) -> ProfileCounterfactual:
    """Add accessibility, new alerts and measured values to a neighbour."""
    (effort, alerts), (_, before) = feasibility(candidate.smiles), feasibility(start)
    new = tuple(alert for alert in alerts if alert not in before)
    known = measured_change(measured, start, candidate.smiles)
    return replace(candidate, accessibility=effort, alerts=new, measured=known)
