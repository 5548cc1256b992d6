"""The neighbours that a search predicts: what is known of each, and which are the best."""

import importlib.util
import math
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cache, lru_cache
from itertools import zip_longest
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from rdkit import Chem, RDConfig

from graphxai.chemistry.desirability import DesirabilityScore
from graphxai.chemistry.matched_pairs import Measured, ShrunkenMean, sentence_about
from graphxai.chemistry.table_changes import MeasuredTable
from graphxai.datasets.rules import alert_filters
from graphxai.explanation.prediction import Prediction, table_cells
from graphxai.explanation.result import fields_html

from .neighbours import Way


@dataclass(frozen=True, eq=False)
class ChangedMolecule:
    """A neighbour of a molecule, as searches towards one and several goals find it.

    Attributes:
        change: the last change that led to it.
        source: where that change comes from.
        atoms: the atoms that it changed in the molecule before.
        similarity: Tanimoto similarity of ECFP4 to the first molecule.
        way: the earlier changes, each with the SMILES that it led to.
        front: the number of its Pareto front, see `pareto_fronts`; 0 is the best.
        accessibility: synthetic accessibility from 1 (easy) to 10 (Ertl 2009). None where RDKit
            comes without it.
        alerts: substructure alerts (BRENK and PAINS) that the first molecule does not have.
        expected: for an exchange of measured pairs, the change that they suggest, by property.
    """

    smiles: str
    change: str
    source: str
    atoms: frozenset[int]
    _: KW_ONLY
    way: Way = ()
    front: int = 0
    accessibility: float | None = None
    alerts: tuple[str, ...] = ()
    measured: Any
    expected: Mapping[str, ShrunkenMean] = field(default_factory=dict, hash=False)

    @property
    def changes(self) -> str:
        """All changes, in order."""
        return ", then ".join(name for name, _ in self._whole_way)

    @property
    def _whole_way(self) -> Way:
        """All changes, each with the SMILES that it led to."""
        return (*self.way, (self.change, self.smiles))

    @property
    def measured_sentence(self) -> str:
        """What was measured for the change, or "" without a table."""
        return self._expected_first(sentence_about(self.measured))

    def _expected_first(self, sentence: str) -> str:
        """Return a sentence about measured values after what is expected from measured pairs."""
        several = len(self.expected) > 1
        means = (f"{f'{name} ' * several}{mean}" for name, mean in self.expected.items())
        expected = ", ".join(means)
        return "; ".join(filter(None, (f"expected {expected}" if expected else "", sentence)))

    @property
    def _expected_columns(self) -> dict[str, Any]:
        """The cells of what is expected from measured pairs."""
        several = len(self.expected) > 1
        return {
            f"{f'{name}_' * several}expected_change{end}": cell
            for name, mean in self.expected.items()
            for end, cell in (("", mean.mean), ("_low", mean.low), ("_high", mean.high))
        }

    def compared(self, start: str, tables: Mapping[str, MeasuredTable]) -> Self:
        """Return the change with what was measured of each property, from the SMILES before it."""
        about = {name: table.about(start, self.smiles) for name, table in tables.items()}
        return replace(self, measured=self._told(about))

    def _told(self, about: dict[str, Measured]) -> Any:
        """Return what was measured as the result holds it."""
        return about


@dataclass(frozen=True)
class Counterfactual(ChangedMolecule):
    """A neighbour of the molecule that was searched from, with its prediction.

    Attributes:
        prediction: the model's prediction for it.
        before: the model's prediction for the first molecule.
        predicted_change: how much the predicted value, or the probability of the class of the goal,
            changed from `before`.
        distance: how far the prediction lies beyond the goal, see `PropertyGoal.distance`.
        sure: whether the model is sure that the goal is reached, see `PropertyGoal.sure`.
        measured: what a table of measured values says about the change; None without a table.
        isomers: if the change makes a stereocentre, the SMILES of each isomer with its prediction;
            `smiles` and `prediction` are those of the isomer that is farthest from the goal.
    """

    prediction: Prediction
    before: Prediction
    predicted_change: float
    distance: float
    similarity: float
    sure: bool | None = None
    isomers: tuple[tuple[str, Prediction], ...] = ()
    measured: Measured | None = field(default=None, kw_only=True)

    def __repr__(self) -> str:
        """Return the change in one line of text; `columns` has everything else."""
        stated = f"{self.change_in_full}, {self.prediction.in_full}"
        return f"Counterfactual({self.changes}: {stated}, {self.smiles})"

    def _repr_html_(self) -> str:
        return fields_html(self.columns)

    @property
    def _outcome(self) -> str:
        return self.prediction.in_full

    @property
    def measured_sentence(self) -> str:
        """What was measured for the change, or "" without a table."""
        return self._expected_first(self.measured.sentence if self.measured else "")

    def _told(self, about: dict[str, Measured]) -> Measured | None:
        return next(iter(about.values()), None)

    @property
    def isomers_text(self) -> str:
        """The isomers with their predictions, which `smiles` is the worst of; empty without any."""
        return "; ".join(f"{smiles} {prediction}" for smiles, prediction in self.isomers)

    @property
    def change_interval(self) -> tuple[float, float] | None:
        """The range of the value's change, see `Prediction.change_since`.

        It is None for a class, for which `prediction.classes` lists what cannot be excluded.
        """
        return self.prediction.change_since(self.before)

    @property
    def change_range(self) -> str:
        """The interval of a value's change, such as `90 %: -1.15 to +2.39`, or "" without one."""
        interval = self.change_interval
        if interval is None or not math.isfinite(interval[0]):
            return ""
        low, high = interval
        return f"{100 * self.prediction.level:g} %: {low:+z.2f} to {high:+z.2f}"

    @property
    def change_in_full(self) -> str:
        """The predicted change with its interval, such as `+0.62 (90 %: -1.15 to +2.39)`."""
        within = f" ({self.change_range})" if self.change_range else ""
        return f"{self.predicted_change:+z.2f}{within}"

    @property
    def columns(self) -> dict[str, Any]:
        """The cells of its row in a table, by column."""
        near, (low, high) = self.prediction.nearness, self.change_interval or (None, None)
        return {
            "smiles": self.smiles,
            "changes": self.changes,
            "source": self.source,
            "prediction": str(self.prediction),
            "isomers": self.isomers_text,
            "range": self.prediction.range,
            "reached": self.reached,
            "sure": self.sure,
            "distance": self.distance,
            "predicted_change": self.predicted_change,
            "predicted_change_low": low,
            "predicted_change_high": high,
            **self._expected_columns,
            **(self.measured.columns if self.measured else {}),
            "similarity": self.similarity,
            "front": self.front,
            **(near.columns if near else {}),
            "accessibility": self.accessibility,
            "alerts": "; ".join(self.alerts),
            "way": " ".join(smiles for _, smiles in self.way),
        }

    @property
    def reached(self) -> bool:
        """Whether the prediction reaches the goal."""
        return self.distance > 0

    @property
    def trust(self) -> float:
        """Similarity to the nearest training compound; 0 if the training set is unknown."""
        near = self.prediction.nearness
        return (near.similarity or 0.0) if near is not None else 0.0


@dataclass(frozen=True, eq=False)
class ProfileCounterfactual(ChangedMolecule):
    """A neighbour of the molecule that was searched from, with all its predicted properties.

    Attributes:
        predictions: the predictions for it, by property.
        before: the predictions for the first molecule, by property.
        score: how desirable it is.
        isomers: if the change makes a stereocentre, the SMILES of each isomer with its overall
            desirability. `smiles` is the least desirable of them.
        measured: what was measured for the change, by property.
    """

    predictions: Mapping[str, Prediction]
    before: Mapping[str, Prediction]
    score: DesirabilityScore
    similarity: float
    isomers: tuple[tuple[str, float], ...] = ()
    measured: Mapping[str, Measured] = field(default_factory=dict, kw_only=True)

    def __repr__(self) -> str:
        return f"ProfileCounterfactual({self.changes}: {self.score}, {self.smiles})"

    @property
    def _outcome(self) -> str:
        return str(self.score)

    @property
    def reached(self) -> bool:
        """Whether all goals are met."""
        return self.score.met == len(self.score.parts)

    @property
    def sure(self) -> bool | None:
        """Whether the models are sure that all goals are met, or None if one cannot tell."""
        each = [p.goal.sure(p.prediction) for p in self.score.parts if p.prediction is not None]
        return None if None in each else all(each)

    @property
    def columns(self) -> dict[str, Any]:
        """The cells of its row in a table, by column."""
        low, high = self.score.interval or (None, None)
        cells = {
            "smiles": self.smiles,
            "changes": self.changes,
            "source": self.source,
            **self.score.columns,
            "desirability_low": low,
            "desirability_high": high,
            "goals_met": self.score.met,
            "sure": self.sure,
            "front": self.front,
            "similarity": self.similarity,
            **table_cells([*self.predictions.values()], several_models=True),
        }
        for name, prediction in self.predictions.items():
            if prediction.value is not None and (was := self.before[name].value) is not None:
                cells[f"{name}_change"] = prediction.value - was
                if ends := prediction.change_since(self.before[name]):
                    cells[f"{name}_change_low"], cells[f"{name}_change_high"] = ends
        isomers = "; ".join(f"{smiles} {value:.2f}" for smiles, value in self.isomers)
        more = {"accessibility": self.accessibility, "alerts": "; ".join(self.alerts)}
        for name, known in self.measured.items():
            cells |= {f"{name}_{column}": cell for column, cell in known.columns.items()}
        return cells | self._expected_columns | more | {"isomers": isomers}


Changed = TypeVar("Changed", Counterfactual, ProfileCounterfactual)


def counts(candidate: Any, sure: bool) -> bool:
    """Return whether a neighbour reaches the goal, and with `sure` whether the model is sure."""
    return candidate.reached and (not sure or bool(candidate.sure))


def with_fronts(neighbours: Sequence[Changed], criteria: Sequence[Any]) -> list[Changed]:
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
        for site in sites:
            first, same = site[0], len(candidate.atoms & site[0].atoms)
            of_both = len(candidate.atoms | first.atoms)
            if candidate.way == first.way and 2 * same >= of_both > 0:
                site.append(candidate)
                break
        else:
            sites.append([candidate])
    rounds = zip_longest(*sites)
    return [candidate for each in rounds for candidate in each if candidate is not None]


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


def accessibility(mol: Chem.Mol) -> float | None:
    """Return the synthetic accessibility from 1 (easy) to 10 (hard), Ertl 2009.

    The result is None where RDKit comes without its Contrib folder, and for a molecule without
    atoms, which RDKit cannot score.
    """
    scorer = _scorer()
    if scorer is None or not mol.GetNumAtoms():
        return None
    return float(scorer.calculateScore(mol))


def alerts(mol: Chem.Mol) -> tuple[str, ...]:
    """Return the sorted names of substructure alerts: BRENK (Brenk 2008) and PAINS (Baell 2010)."""
    matches = alert_filters("BRENK", "PAINS").GetMatches(mol)
    return tuple(sorted({match.GetDescription() for match in matches}))


@lru_cache(maxsize=4096)  # a search asks again after every batch
def feasibility(smiles: str) -> tuple[float | None, tuple[str, ...]]:
    """Return the synthetic accessibility and the alerts of a molecule."""
    mol = Chem.MolFromSmiles(smiles)
    return accessibility(mol), alerts(mol)


@cache
def _scorer() -> Any:
    """Load RDKit's script for the score, which is not part of its package."""
    path = Path(RDConfig.RDContribDir) / "SA_Score" / "sascorer.py"
    spec = importlib.util.spec_from_file_location("sascorer", path) if path.is_file() else None
    if spec is None or spec.loader is None:
        return None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
