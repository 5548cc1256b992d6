"""The result of a search towards a single goal: each with what speaks for and against it."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from graphxai.api import explain
from graphxai.contract.method_names import DEFAULT_METHOD
from graphxai.explainers.registry import Method
from graphxai.explanation.compute.models import Model
from graphxai.explanation.explanation import Explanation
from graphxai.explanation.explanations import SATURATED
from graphxai.explanation.html import fields_html, image_html, table_html
from graphxai.explanation.prediction import Prediction
from graphxai.visualization.layout import averaged
from graphxai.visualization.text import minus_signs

from .contrast import NO_MOLECULE, Contrast, contrast
from .desirability import PropertyGoal
from .matching import NoCommonPartError
from .measurements import Measured
from .neighbours import Way
from .profile_results import ChangedMolecule, ChangedMolecules

if TYPE_CHECKING:
    from rdkit.Chem import Mol

    from graphxai.visualization import Scale

AT_CHANGE = "of it at the changed atoms"


@dataclass(frozen=True)
class Counterfactual(ChangedMolecule):
    """A neighbour of the molecule that was searched from, with its prediction.

    Args:
        smiles: its canonical SMILES.
        change: the last change that led to it.
        source: where that change comes from.
        atoms: the atoms that it changed in the molecule before.
        prediction: the model's prediction for it.
        before: the model's prediction for the first molecule.
        predicted_change: how much the predicted value, or the probability of the class of the goal,
            changed from `before`.
        distance: how far the prediction lies beyond the goal, see `PropertyGoal.distance`.
        similarity: Tanimoto similarity of ECFP4 to the first molecule.
        sure: whether the model is sure that the goal is reached, see `PropertyGoal.sure`.
        way: the earlier changes, each with the SMILES that it led to.
        front: number of its Pareto front; 0 is the best front.
        accessibility: synthetic accessibility from 1 (easy) to 10 (Ertl 2009); None where RDKit
            comes without it.
        alerts: substructure alerts (BRENK and PAINS) that the first molecule does not have.
        measured: what a table of measured values says about the change; None without a table.
        isomers: if the change makes a stereocentre, the SMILES of each isomer with its prediction;
            `smiles` and `prediction` are those of the isomer that is farthest from the goal.
    """

    smiles: str
    change: str
    source: str
    atoms: frozenset[int]
    prediction: Prediction
    before: Prediction
    predicted_change: float
    distance: float
    similarity: float
    sure: bool | None = None
    way: Way = ()
    front: int = 0
    accessibility: float | None = None
    alerts: tuple[str, ...] = ()
    measured: Measured | None = None
    isomers: tuple[tuple[str, Prediction], ...] = ()

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
        return self.measured.sentence if self.measured else ""

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


@dataclass(frozen=True, eq=False, repr=False)
class Counterfactuals(ChangedMolecules):
    """The counterfactuals of one molecule, the best first; see `counterfactuals`.

    Args:
        model: the model that was searched.
        explanation: the explanation of the molecule itself, for the goal's output.
        goal: what the model should predict.
        ranked: the counterfactuals.
        predicted: how many neighbours were predicted.
        successes: how many of them reached the goal.
        sure: how many of these the model is sure of; None if the model cannot tell.
        first: number of the first neighbour that reached the goal; None if none did.
    """

    model: Model
    explanation: Explanation
    goal: PropertyGoal
    ranked: tuple[Counterfactual, ...]
    predicted: int
    successes: int
    sure: int | None
    first: int | None

    @property
    def summary(self) -> str:
        """The outcome of the search in one sentence."""
        tried = f"{self.predicted:,} neighbours predicted"
        start = self.explanation.prediction
        if self.goal.distance(start) > 0:
            sure = percent(self.goal.value(start)) if self.goal.label else str(start)
            stay = f"{self.successes:,} are {self.goal.aim}, like the molecule itself ({sure})"
            return f"{tried}, {stay}. Ask for another class or value"
        if self.first is None:
            return f"{tried}, none reaches {self.goal.aim}"
        sure = "" if self.sure is None else f" ({self.sure:,} surely)"
        reach = f"{self.successes:,} reach {self.goal.aim}{sure}"
        return f"{tried}, {reach}, the first was number {self.first}"

    def contrast(self, index: int, method: Method = DEFAULT_METHOD) -> Contrast:
        """Explain the molecule against one counterfactual, to see what the change does."""
        target = self.goal.target
        molecule = self.explanation.smiles
        return contrast(self.model, molecule, self.ranked[index].smiles, method, target=target)

    @cached_property
    def at_change(self) -> tuple[float | None, ...]:
        """The share of the output's difference that lies at the changed atoms, by counterfactual.

        The relevance (`lrp`) of the atoms without a counterpart is divided by the sum of all terms
        of the contrast (see `Account`). The rest lies at atoms that both molecules have, and in the
        graph token. What a small share means was measured on models of known rules
        (benchmarks/results/counterfactuals.md). The share is None without a common part, and where
        the outputs do not differ.
        """
        if not self.ranked:
            return ()
        shares: list[float | None] = []
        first, *others = self.explanations
        for other, part in zip(others, self._common_parts, strict=True):
            account = None if part is None else Contrast(first, other, part).account
            if account is None or not account.output:
                shares.append(None)
            else:
                shares.append((account.changed_a - account.changed_b) / account.output)
        return tuple(shares)

    @property
    def _aim(self) -> str:
        return self.goal.aim

    @property
    def _mols(self) -> "list[Mol]":
        return [e.atoms(NO_MOLECULE) for e in self.explanations]

    def _rows(self) -> list[dict[str, Any]]:
        pairs = zip(self.ranked, self.at_change, strict=True)
        return [counterfactual.columns | {"at_change": share} for counterfactual, share in pairs]

    @cached_property
    def explanations(self) -> list[Explanation]:
        """The molecule and its counterfactuals, explained for the goal's output."""
        smiles = [counterfactual.smiles for counterfactual in self.ranked]
        options: dict[str, Any] = {"target": self.goal.target, "progress": False}
        return [self.explanation, *explain(self.model, smiles, **options)]

    def svg(
        self,
        *,
        columns: int = 3,
        scale: "Scale | float | None" = None,
        palette: str = "red-blue",
        **options: Any,
    ) -> str:
        """Draw the molecule and its counterfactuals, coloured by relevance for the goal.

        Counterfactuals are aligned with the molecule.

        Atoms that the molecule does not have are outlined.

        Args:
            columns: panels in a row.
            scale: the relevance shown in full colour; by default the 97.5 % quantile of
                |relevance|.
            palette: one of `visualization.PALETTES`.
            options: as for `molecule_svg`.
        """
        from graphxai.visualization import Scale, grid_svg

        values = [averaged(e.relevance, e.equivalent) for e in self.explanations]
        limit = float(np.quantile(np.abs(np.concatenate(values)), SATURATED)) or None
        colours = Scale.chosen(scale or limit, *values, palette=palette)
        predictions = [self.explanation.prediction, *(each.prediction for each in self.ranked)]
        panels = self._panels(values, [*map(str, predictions)], {"scale": colours} | options)
        return grid_svg(
            panels,
            columns,
            f"towards {self.goal.aim}",
            subtitle=self.summary,
            scale=colours,
            values=np.concatenate(values),
            legend=self.explanation.legend,
        )

    def _record(self, place: int, title: str, cells: Mapping[str, Any]) -> str:
        return self.explanations[place].to_sdf(title=title, **cells)

    def _sections(self, options: dict[str, Any]) -> Iterator[str]:
        """Yield the HTML of the picture and a table, then of each counterfactual's contrast."""
        head = (
            "change",
            "SMILES",
            "prediction",
            "predicted change",
            AT_CHANGE,
            "measured",
            "alerts",
        )
        rows = [
            (
                counterfactual.changes,
                counterfactual.smiles,
                counterfactual.prediction.in_full
                + (", sure" if counterfactual.sure else "")
                + (f"; isomers: {text}" if (text := counterfactual.isomers_text) else ""),
                counterfactual.change_in_full,
                percent(share),
                counterfactual.measured_sentence,
                "; ".join(counterfactual.alerts),
            )
            for counterfactual, share in zip(self.ranked, self.at_change, strict=True)
        ]
        yield f"<p>{image_html(self.svg(**options), self.summary)}</p>{table_html(head, rows)}"
        for index, counterfactual in enumerate(self.ranked):
            try:
                compared = self.contrast(index)
            except NoCommonPartError as error:
                yield f"<p>{escape(f'{counterfactual.changes}: {error}')}</p>"
            else:
                picture = image_html(compared.svg(), compared.headline)
                yield f"<p>{escape(counterfactual.changes)}</p><p>{picture}</p>"


def percent(share: float | None) -> str:
    """Return a share as "52 %", or "" if there is none."""
    return "" if share is None else minus_signs(f"{100 * share:.0f} %")
