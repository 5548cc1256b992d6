"""What a search for counterfactuals aims at: goals for several properties, or a single one.

An objective predicts, compares and chooses neighbours; `counterfactuals` searches with it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rdkit import Chem

from graphxai.chemistry.contrast import NO_MOLECULE
from graphxai.chemistry.desirability import DesirabilityScore, PropertyGoal, PropertyProfile
from graphxai.chemistry.matched_pairs import ShrunkenMean
from graphxai.chemistry.measurements import (
    Measurements,
    measured_properties,
    measurements_for_tasks,
)
from graphxai.chemistry.profile_text import read_goal, read_profile
from graphxai.datasets.canonical_form import form_with_groups, smiles_with_groups
from graphxai.explanation.api import explain, predict
from graphxai.explanation.compute.models import ModelPanel, standardisation_of, tasks_with_range
from graphxai.explanation.explanation import Explanation
from graphxai.explanation.prediction import Prediction

from .changed_molecules import (
    Counterfactual,
    ProfileCounterfactual,
    counts,
    over_sites,
    with_fronts,
)
from .counterfactual_results import Counterfactuals, ProfileCounterfactuals
from .neighbours import SearchStart, Way

Outcome = tuple[Mapping[str, Prediction], DesirabilityScore]


@dataclass(frozen=True, eq=False)
class SearchObjective:
    """Goals for the properties of one or several models.

    Attributes:
        models: the models, as `predict` takes them.
        before: the predictions for it, by property.
        sure: whether only neighbours count of which the models are sure.
        tables: what was measured of each property.
    """

    models: Any
    profile: PropertyProfile
    mol: Chem.Mol
    before: Mapping[str, Prediction]
    sure: bool
    tables: Mapping[str, Measurements]

    @classmethod
    def of(
        cls, models: Any, molecule: Any, towards: Any, sure: bool, measured: Any
    ) -> "SearchObjective":
        """Read the goals and predict the molecule. Errors are those of `counterfactuals`."""
        panel = ModelPanel.of(models)
        if isinstance(measured, Measurements):
            raise ValueError("for several models, give the values of each property by its name.")
        tables = {} if measured is None else measured_properties(panel, measured)
        profile = read_profile(panel, str(towards))
        explanation = explain(panel.models[0], molecule, progress=False)
        mol = form_with_groups(explanation.atoms(NO_MOLECULE))
        before = predict(list(panel.models), smiles_with_groups(mol), progress=False)
        parts = profile.score(before).parts
        if sure and None in [part.goal.sure(before[part.goal.of.name]) for part in parts]:
            raise ValueError("how wrong a model of these goals is, is not known: leave out sure.")
        return cls(list(panel.models), profile, mol, before, sure, tables)

    def promise(self, means: Mapping[str, ShrunkenMean]) -> float:
        """Return how far the means of measured pairs lead towards the goals: the sum over them.

        Each is in standard deviations of the property's training values.
        """
        return sum(
            goal.side(self.before[goal.of.name]) * means[goal.of.name].mean / goal.of.task.scale
            for goal in self.profile.goals
            if goal.of.name in means and goal.label is None
        )

    def outcome(self, predictions: Mapping[str, Prediction] | None) -> Outcome | None:
        """Return the predictions with their score, or None if a goal has no prediction."""
        score = self.profile.score(predictions or {})
        return None if score.overall is None else (predictions or {}, score)

    def worth(self, outcome: Outcome) -> float:
        """Return how desirable a molecule is."""
        return outcome[1].overall or 0.0

    def candidate(
        self, changed: dict[str, Any], outcome: Outcome, isomers: Sequence[tuple[str, Outcome]]
    ) -> Any:
        """Return a neighbour with its predictions; `changed` says how it was made."""
        (predictions, score), before = outcome, self.before
        values = tuple((smiles, self.worth(each)) for smiles, each in isomers)
        return ProfileCounterfactual(
            **changed, predictions=predictions, before=before, score=score, isomers=values
        )

    def order(self, candidate: Any) -> tuple[Any, ...]:
        """Return what neighbours are sorted by: the most desirable, then the most similar."""
        overall, total = _worth(candidate.score)
        return -overall, -total, -candidate.similarity, candidate.smiles

    def chosen(self, tried: Sequence[Any], n: int) -> list[Any]:
        """Return n more desirable than the molecule, of the first fronts, the best first."""
        now = _worth(self.profile.score(self.before))
        ranked = [
            each
            for each in with_fronts(tried, [each.score.desirabilities for each in tried])
            if _worth(each.score) > now and (not self.sure or counts(each, sure=True))
        ]
        ranked.sort(key=lambda each: (each.front, *self.order(each)))
        return sorted(over_sites(ranked)[:n], key=self.order)

    def starts(self, near: Sequence[Any] | None = None) -> list[SearchStart]:
        """Explain these neighbours, or else the molecule, so that their neighbours can be tried."""
        if near is None:
            return [SearchStart(self.mol, self._against(self.mol, self.before))]
        pairs = [(Chem.MolFromSmiles(each.smiles), each) for each in near]
        return [SearchStart(m, self._against(m, e.predictions), e._whole_way) for m, e in pairs]

    def results(self, chosen: tuple[Any, ...], tried: Sequence[Any]) -> Any:
        """Return the result of the search."""
        now = _worth(self.profile.score(self.before))
        return ProfileCounterfactuals(
            smiles_with_groups(self.mol),
            self.profile,
            self.before,
            chosen,
            len(tried),
            successes=sum(each.reached for each in tried),
            improved=sum(_worth(each.score) > now for each in tried),
        )

    def _against(self, mol: Chem.Mol, predictions: Mapping[str, Prediction]) -> NDArray[np.float64]:
        """Return how much each atom speaks against the goals that are not met (N,).

        Every model's relevance is divided by its largest, as their units differ, and weighted by
        the goal's weight and by what its desirability lacks.
        """
        total = np.zeros(mol.GetNumAtoms())
        for goal in self.profile.goals:
            prediction = predictions.get(goal.of.name)
            if prediction is None or not (side := goal.side(prediction)):
                continue
            relevance = _relevance(explain(self.models[goal.of.place], mol, target=goal.target))
            if relevance.shape != total.shape:  # this model reads another form of the molecule
                continue
            lack = goal.weight * (1 - goal.desirability(prediction))
            total -= side * lack * relevance / (np.abs(relevance).max() or 1.0)
        return total


@dataclass(frozen=True, eq=False)
class SingleObjective(SearchObjective):
    """A single goal for one model, of which the distance beyond the goal matters.

    Attributes:
        explanation: the molecule, explained for the goal's output.
    """

    explanation: Explanation

    @classmethod
    def of(
        cls, models: Any, molecule: Any, towards: Any, sure: bool, measured: Any
    ) -> "SingleObjective":
        """Read the goal and explain the molecule. Errors are those of `counterfactuals`."""
        if not isinstance(towards, str):
            values = [p.value for p in predict(models, molecule, progress=False).values()]
            value = next((value for value in values if value is not None), math.inf)
            towards = f"{'>' if value <= towards else '<'}{float(towards)!r}"
        goal = read_goal(models, towards)
        name = goal.of.name
        if sure and name not in tasks_with_range(models):
            raise ValueError(
                f"how wrong the model is for {name!r} is not known, so nothing can be sure:"
                " leave out sure, or train with a validation part."
            )
        if measured is not None and not isinstance(measured, Measurements):
            way = standardisation_of(models)
            if isinstance(measured, Mapping):
                measured = Measurements.of(measured, name, way)
            else:
                units = goal.tasks_of(models)
                measured = measurements_for_tasks(measured, units, None, standardise=way)
        explanation = explain(models, molecule, target=goal.target, progress=False)
        tables = {} if measured is None else {name: measured}
        before = {name: explanation.prediction}
        mol, profile = form_with_groups(explanation.atoms(NO_MOLECULE)), PropertyProfile((goal,))
        return cls(models, profile, mol, before, sure, tables, explanation)

    @property
    def goal(self) -> PropertyGoal:
        """The goal."""
        return self.profile.goals[0]

    def worth(self, outcome: Outcome) -> float:
        """Return how far beyond the goal a molecule lies."""
        return self.goal.distance(outcome[0][self.goal.of.name])

    def candidate(
        self, changed: dict[str, Any], outcome: Outcome, isomers: Sequence[tuple[str, Outcome]]
    ) -> Counterfactual:
        """Return a neighbour with its prediction; `changed` says how it was made."""
        goal, before = self.goal, self.explanation.prediction
        prediction, distance = outcome[0][goal.of.name], self.worth(outcome)
        return Counterfactual(
            **changed,
            prediction=prediction,
            before=before,
            predicted_change=goal.value(prediction) - goal.value(before),
            distance=distance,
            sure=goal.sure(prediction) if distance > 0 else None,
            isomers=tuple((smiles, each[goal.of.name]) for smiles, (each, _) in isomers),
        )

    def order(self, candidate: Any) -> tuple[Any, ...]:
        """Return what neighbours are sorted by: the farthest beyond the goal come first."""
        return (-candidate.distance,)

    def chosen(self, tried: Sequence[Any], n: int) -> list[Any]:
        """Return those that reach the goal by Pareto front, or else all, those nearest first.

        Every other one is an exchange of measured pairs, the largest expected change first.
        """
        promising = [each for each in tried if self.promise(each.expected) > 0]
        if self.sure:
            promising = [each for each in promising if each.sure]
        promising.sort(key=lambda each: (-self.promise(each.expected), *self.order(each)))
        good = [each for each in tried if counts(each, self.sure)]
        criteria = [[each.distance, each.similarity, each.trust] for each in good]
        ranked = with_fronts(good, criteria)
        ranked.sort(key=lambda each: (each.front, -each.similarity, each.smiles))
        others = over_sites(ranked or sorted(tried, key=self.order))
        by_exchange: dict[str, list[Any]] = {}
        for each in promising:
            by_exchange.setdefault(each.changes, []).append(each)
        measured = chain.from_iterable(zip_longest(*by_exchange.values()))
        both = filter(None, chain.from_iterable(zip_longest(filter(None, measured), others)))
        each_once = {each.smiles: each for each in both}
        with_front = {each.smiles: each for each in ranked}
        return [with_front.get(smiles, each) for smiles, each in each_once.items()][:n]

    def starts(self, near: Sequence[Any] | None = None) -> list[SearchStart]:
        """Explain these neighbours, or else the molecule, so that their neighbours can be tried."""
        explained: list[Explanation | None] = [self.explanation]
        ways: list[Way] = [()]
        if near is not None:
            options: dict[str, Any] = {"target": self.goal.target, "progress": False}
            explained = explain(self.models, [each.smiles for each in near], **options)
            ways = [each._whole_way for each in near]
        side = 1 if math.isinf(self.goal.curve.one_to) else -1
        return [
            SearchStart(form_with_groups(e.atoms(NO_MOLECULE)), -side * _relevance(e), way)
            for e, way in zip(explained, ways, strict=True)
            if e is not None
        ]

    def results(self, chosen: tuple[Any, ...], tried: Sequence[Any]) -> Counterfactuals:
        """Return the result of the search."""
        hits = [k for k, each in enumerate(tried, 1) if each.reached]
        known = self.goal.of.name in tasks_with_range(self.models)
        return Counterfactuals(
            self.models,
            self.explanation,
            self.goal,
            chosen,
            len(tried),
            successes=len(hits),
            sure=sum(counts(each, sure=True) for each in tried) if known else None,
            first=hits[0] if hits else None,
        )


def _relevance(explanation: Explanation) -> NDArray[np.float64]:
    return np.asarray(explanation.relevance, dtype=np.float64)


def _worth(score: DesirabilityScore) -> tuple[float, float]:
    """Return what neighbours are compared by: the overall desirability, then the sum of its parts.

    The sum tells neighbours apart where one property makes the whole 0.
    """
    return score.overall or 0.0, sum(score.desirabilities)
