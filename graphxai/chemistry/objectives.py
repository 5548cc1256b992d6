"""What a search for counterfactuals aims at: a single goal, or a profile of several properties.

An objective predicts, compares and chooses neighbours; `counterfactuals` searches with it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from rdkit import Chem

from graphxai.api import explain, predict
from graphxai.explanation.compute.models import Model, conformal_of, standardisation_of
from graphxai.explanation.compute.panel import ModelPanel
from graphxai.explanation.explanation import Explanation
from graphxai.explanation.prediction import Prediction

from .changed_molecules import ChangedMolecule
from .contrast import NO_MOLECULE
from .counterfactual_results import Counterfactual, Counterfactuals
from .desirability import DesirabilityScore, PropertyProfile
from .goal import Goal
from .measurements import (
    Measured,
    MeasuredProperties,
    Measurements,
    measured_change,
    measured_properties,
)
from .neighbours import SearchStart, Way
from .profile_results import ProfileCounterfactual, ProfileCounterfactuals
from .profile_text import read_profile

Changed = TypeVar("Changed", Counterfactual, ProfileCounterfactual)


@dataclass(frozen=True, eq=False)
class SingleObjective:
    """A goal for one model.

    Attributes:
        models: the model.
        goal: the goal.
        explanation: the molecule from which the search starts, explained for the goal's output.
        sure: whether only neighbours count of which the model is sure.
        table: what was measured, or None.
    """

    models: Model
    goal: Goal
    explanation: Explanation
    sure: bool
    table: Measurements | None

    @classmethod
    def of(
        cls, model: Model, molecule: Any, towards: str | float, sure: bool, measured: Any
    ) -> "SingleObjective":
        """Read the goal and explain the molecule. Errors are those of `counterfactuals`."""
        if isinstance(towards, str):
            goal = Goal.of(towards, model)
        else:
            goal = Goal.at(float(towards), predict(model, molecule, progress=False))
        if sure and goal.task not in conformal_of(model):
            raise ValueError(
                f"how wrong the model is for {goal.task!r} is not known, so nothing can be sure:"
                " leave out sure, or train with a validation part."
            )
        if measured is not None and not isinstance(measured, Measurements):
            way = standardisation_of(model)
            if isinstance(measured, Mapping):
                measured = Measurements.of(measured.items(), goal.task, way)
            else:
                measured = Measurements.read(measured, goal.columns(model), standardise=way)
        explanation = explain(model, molecule, target=goal.target, progress=False)
        return cls(model, goal, explanation, sure, measured)

    @property
    def first_model(self) -> Model:
        """The model whose training set gives fragments."""
        return self.models

    @property
    def mol(self) -> Chem.Mol:
        """The molecule from which the search starts."""
        return self.explanation.atoms(NO_MOLECULE)

    def outcome(self, predictions: Mapping[str, Prediction] | None) -> Prediction | None:
        """Return the prediction for the goal's task, or None for what the model cannot read."""
        return None if predictions is None else predictions[self.goal.task]

    def worth(self, prediction: Prediction) -> float:
        """Return how far beyond the goal a prediction lies."""
        return self.goal.distance(prediction)

    def candidate(
        self,
        of_change: tuple[str, str, str, frozenset[int]],
        way: Way,
        similarity: float,
        prediction: Prediction,
        isomers: Sequence[tuple[str, Prediction]],
    ) -> Counterfactual:
        """Return a neighbour: its SMILES, change, source and atoms, with its prediction."""
        goal, before = self.goal, self.explanation.prediction
        distance = goal.distance(prediction)
        return Counterfactual(
            *of_change,
            prediction,
            before,
            goal.value(prediction) - goal.value(before),
            distance,
            similarity,
            goal.sure(prediction) if distance > 0 else None,
            way,
            isomers=tuple(isomers),
        )

    def order(self, candidate: Counterfactual) -> float:
        """Return what neighbours are sorted by when their own neighbours are tried next."""
        return -candidate.distance

    def chosen(self, tried: Sequence[Counterfactual]) -> list[Counterfactual]:
        """Return those that reach the goal by Pareto front, or else all, those nearest first."""
        good = [each for each in tried if counts(each, self.sure)]
        criteria = [[each.distance, each.similarity, each.trust] for each in good]
        ranked = _with_fronts(good, criteria)
        ranked.sort(key=lambda each: (each.front, -each.similarity, each.smiles))
        return over_sites(ranked or sorted(tried, key=self.order))

    def starts(self, near: Sequence[Counterfactual] | None = None) -> list[SearchStart]:
        """Explain these neighbours, or else the molecule, so that their neighbours can be tried."""
        explained: list[Explanation | None] = [self.explanation]
        ways: list[Way] = [()]
        if near is not None:
            options: dict[str, Any] = {"target": self.goal.target, "progress": False}
            explained = explain(self.models, [each.smiles for each in near], **options)
            ways = [_way_through(each) for each in near]
        return [
            SearchStart(e.atoms(NO_MOLECULE), -self.goal.side * _relevance(e), way)
            for e, way in zip(explained, ways, strict=True)
            if e is not None
        ]

    def measured(self, before: str, after: str) -> Measured | None:
        """Return what was measured for a change between two SMILES."""
        return None if self.table is None else self.table.about(before, after)

    def results(
        self, chosen: tuple[Counterfactual, ...], tried: Sequence[Counterfactual]
    ) -> Counterfactuals:
        """Return the result of the search."""
        hits = [k for k, each in enumerate(tried, 1) if each.reached]
        known = self.goal.task in conformal_of(self.models)
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


@dataclass(frozen=True, eq=False)
class JointObjective:
    """Goals for the properties of one or several models.

    Attributes:
        panel: the models.
        profile: the goals.
        mol: the molecule from which the search starts.
        before: the predictions for it, by property.
        sure: whether only neighbours count of which the models are sure.
        tables: what was measured of each property.
    """

    panel: ModelPanel
    profile: PropertyProfile
    mol: Chem.Mol
    before: Mapping[str, Prediction]
    sure: bool
    tables: MeasuredProperties

    @classmethod
    def of(
        cls, models: Any, molecule: Any, towards: str, sure: bool, measured: Any
    ) -> "JointObjective":
        """Read the goals and predict the molecule. Errors are those of `counterfactuals`."""
        panel = ModelPanel.of(models)
        if isinstance(measured, Measurements):
            raise ValueError("for several models, give the values of each property by its name.")
        tables = {} if measured is None else measured_properties(panel, measured)
        profile = read_profile(panel, towards)
        mol = explain(panel.models[0], molecule, progress=False).atoms(NO_MOLECULE)
        before = predict(list(panel.models), Chem.MolToSmiles(mol), progress=False)
        parts = profile.score(before).parts
        if sure and None in [part.goal.sure(before[part.goal.of.name]) for part in parts]:
            raise ValueError("how wrong a model of these goals is, is not known: leave out sure.")
        return cls(panel, profile, mol, before, sure, tables)

    @property
    def models(self) -> list[Model]:
        """The models, as `predict` takes them."""
        return list(self.panel.models)

    @property
    def first_model(self) -> Model:
        """The model whose training set gives fragments."""
        return self.panel.models[0]

    def outcome(
        self, predictions: Mapping[str, Prediction] | None
    ) -> tuple[Mapping[str, Prediction], DesirabilityScore] | None:
        """Return the predictions with their score, or None if a goal has no prediction."""
        score = self.profile.score(predictions or {})
        return None if score.overall is None else (predictions or {}, score)

    def worth(self, outcome: tuple[Mapping[str, Prediction], DesirabilityScore]) -> float:
        """Return how desirable a molecule is."""
        return outcome[1].overall or 0.0

    def candidate(
        self,
        of_change: tuple[str, str, str, frozenset[int]],
        way: Way,
        similarity: float,
        outcome: tuple[Mapping[str, Prediction], DesirabilityScore],
        isomers: Sequence[tuple[str, Any]],
    ) -> ProfileCounterfactual:
        """Return a neighbour: its SMILES, change, source and atoms, with its predictions."""
        predictions, score = outcome
        values = tuple((smiles, self.worth(each)) for smiles, each in isomers)
        return ProfileCounterfactual(
            *of_change, predictions, self.before, score, similarity, way, isomers=values
        )

    def order(self, candidate: ProfileCounterfactual) -> tuple[float, float, float, str]:
        """Return what neighbours are sorted by: the most desirable, then the most similar."""
        overall, total = _worth(candidate.score)
        return -overall, -total, -candidate.similarity, candidate.smiles

    def chosen(self, tried: Sequence[ProfileCounterfactual]) -> list[ProfileCounterfactual]:
        """Return those that are more desirable than the molecule, by front among all neighbours."""
        now = _worth(self.profile.score(self.before))
        ranked = [
            each
            for each in _with_fronts(tried, [each.score.desirabilities for each in tried])
            if _worth(each.score) > now and (not self.sure or counts(each, sure=True))
        ]
        ranked.sort(key=lambda each: (each.front, *self.order(each)))
        return over_sites(ranked)

    def starts(self, near: Sequence[ProfileCounterfactual] | None = None) -> list[SearchStart]:
        """Explain these neighbours, or else the molecule, so that their neighbours can be tried."""
        if near is None:
            return [SearchStart(self.mol, self._against(self.mol, self.before))]
        mols = [Chem.MolFromSmiles(each.smiles) for each in near]
        return [
            SearchStart(mol, self._against(mol, each.predictions), _way_through(each))
            for mol, each in zip(mols, near, strict=True)
        ]

    def measured(self, before: str, after: str) -> dict[str, Measured]:
        """Return what was measured of each property for a change between two SMILES."""
        return measured_change(self.tables, before, after)

    def results(
        self, chosen: tuple[ProfileCounterfactual, ...], tried: Sequence[ProfileCounterfactual]
    ) -> ProfileCounterfactuals:
        """Return the result of the search."""
        now = _worth(self.profile.score(self.before))
        return ProfileCounterfactuals(
            Chem.MolToSmiles(self.mol),
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
            model = self.panel.models[goal.of.place]
            smiles = Chem.MolToSmiles(mol, canonical=False)
            relevance = _relevance(explain(model, smiles, target=goal.target))
            if relevance.shape != total.shape:  # this model reads another form of the molecule
                continue
            lack = goal.weight * (1 - goal.desirability(prediction))
            total -= side * lack * relevance / (np.abs(relevance).max() or 1.0)
        return total


def _way_through(neighbour: ChangedMolecule) -> Way:
    return (*neighbour.way, (neighbour.change, neighbour.smiles))


def _relevance(explanation: Explanation) -> NDArray[np.float64]:
    return np.asarray(explanation.relevance, dtype=np.float64)


def _worth(score: DesirabilityScore) -> tuple[float, float]:
    """Return what neighbours are compared by: the overall desirability, then the sum of its parts.

    The sum tells neighbours apart where one property makes the whole 0.
    """
    return score.overall or 0.0, sum(score.desirabilities)


def counts(candidate: Any, sure: bool) -> bool:
    """Return whether a neighbour reaches the goal, and with `sure` whether the model is sure."""
    return candidate.reached and (not sure or bool(candidate.sure))


def _with_fronts(neighbours: Sequence[Changed], criteria: Sequence[Any]) -> list[Changed]:
    """Return neighbours with the number of their Pareto front."""
    if not neighbours:
        return []
    fronts = pareto_fronts(np.array(criteria)).tolist()
    return [replace(each, front=front) for each, front in zip(neighbours, fronts, strict=True)]


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
