"""The result of a search over several properties: changes with what each does to all of them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
from rdkit.Chem import MolFromSmiles

from graphxai.explanation import files
from graphxai.explanation.html import image_html, table_html
from graphxai.explanation.prediction import Prediction, table_cells
from graphxai.explanation.result import shown_as_png
from graphxai.visualization.text import minus_signs

from .changed_molecules import ChangedMolecule, ChangedMolecules
from .desirability import DesirabilityScore, PropertyProfile
from .measurements import Measured, sentence_about
from .neighbours import Way

if TYPE_CHECKING:
    from rdkit.Chem import Mol


@dataclass(frozen=True, eq=False)
class ProfileCounterfactual(ChangedMolecule):
    """A neighbour of the molecule that was searched from, with all its predicted properties.

    Attributes:
        smiles: its canonical SMILES.
        change: the last change that led to it.
        source: where that change comes from.
        atoms: the atoms that it changed in the molecule before.
        predictions: the predictions for it, by property.
        before: the predictions for the first molecule, by property.
        score: how desirable it is.
        similarity: Tanimoto similarity of ECFP4 to the first molecule.
        way: the earlier changes, each with the SMILES that it led to.
        front: the number of its Pareto front. No neighbour at all is at least as desirable in each
            property as one in front 0, and more desirable in one. Front 1 is front 0 of the others.
        accessibility: synthetic accessibility from 1 (easy) to 10 (Ertl 2009). None where RDKit
            comes without it.
        alerts: substructure alerts (BRENK and PAINS) that the first molecule does not have.
        isomers: if the change makes a stereocentre, the SMILES of each isomer with its overall
            desirability. `smiles` is the least desirable of them.
        measured: what was measured for the change, by property.
    """

    smiles: str
    change: str
    source: str
    atoms: frozenset[int]
    predictions: Mapping[str, Prediction]
    before: Mapping[str, Prediction]
    score: DesirabilityScore
    similarity: float
    way: Way = ()
    front: int = 0
    accessibility: float | None = None
    alerts: tuple[str, ...] = ()
    isomers: tuple[tuple[str, float], ...] = ()
    measured: Mapping[str, Measured] = field(default_factory=dict)

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
        cells = {
            "smiles": self.smiles,
            "changes": self.changes,
            "source": self.source,
            **self.score.columns,
            "goals_met": self.score.met,
            "sure": self.sure,
            "front": self.front,
            "similarity": self.similarity,
            **table_cells([*self.predictions.values()], several_models=True),
        }
        for name, prediction in self.predictions.items():
            if prediction.value is not None and (was := self.before[name].value) is not None:
                cells[f"{name}_change"] = prediction.value - was
        isomers = "; ".join(f"{smiles} {value:.2f}" for smiles, value in self.isomers)
        more = {"accessibility": self.accessibility, "alerts": "; ".join(self.alerts)}
        for name, known in self.measured.items():
            cells |= {f"{name}_{column}": cell for column, cell in known.columns.items()}
        return cells | more | {"isomers": isomers}


@dataclass(frozen=True, eq=False, repr=False)
class ProfileCounterfactuals(ChangedMolecules):
    """The changes of one molecule that improve its profile, the best first.

    Attributes:
        smiles: the molecule.
        profile: what is wished.
        predictions: the predictions for the molecule, by property.
        ranked: the neighbours.
        predicted: how many neighbours were predicted.
        successes: how many of them meet all goals.
        improved: how many of them are more desirable than the molecule.
    """

    smiles: str
    profile: PropertyProfile
    predictions: Mapping[str, Prediction]
    ranked: tuple[ProfileCounterfactual, ...]
    predicted: int
    successes: int
    improved: int

    @cached_property
    def score(self) -> DesirabilityScore:
        """How desirable the molecule itself is."""
        return self.profile.score(self.predictions)

    @property
    def summary(self) -> str:
        """The outcome of the search in one sentence."""
        goals = len(self.profile.goals)
        met = f"{self.successes:,} meet {'both' if goals == 2 else f'all {goals}'} goals"
        if goals == 1:
            met = f"{self.successes:,} meet the goal"
        better = f"{self.improved:,} are more desirable than the molecule"
        return f"{self.predicted:,} neighbours predicted, {met}, {better}"

    @property
    def _aim(self) -> str:
        return str(self.profile)

    @property
    def _mols(self) -> "list[Mol]":
        return [MolFromSmiles(smiles) for smiles in (self.smiles, *(c.smiles for c in self.ranked))]

    def _rows(self) -> list[dict[str, Any]]:
        return [each.columns for each in self.ranked]

    def svg(self, *, columns: int = 3, **options: Any) -> str:
        """Draw the molecule and its neighbours, with the atoms outlined that a change brought.

        Args:
            columns: the number of panels in a row.
            options: as for `molecule_svg`.
        """
        from graphxai.visualization import grid_svg

        values = [np.zeros(mol.GetNumAtoms()) for mol in self._mols]
        briefs = [_brief(score) for score in (self.score, *(each.score for each in self.ranked))]
        panels = self._panels(values, briefs, options)
        return grid_svg(panels, columns, str(self.profile), subtitle=self.summary)

    def to_sdf(self, **properties: object) -> Iterator[str]:
        """Yield the records of an SD file: the molecule, then each neighbour with its columns.

        Your `properties` come first in each record.
        """
        cells = self.score.columns | table_cells([*self.predictions.values()], several_models=True)
        yield _record(self.smiles, "the molecule", {**properties, **cells})
        for each in self.ranked:
            yield _record(each.smiles, each.changes, {**properties, **each.columns})

    def _repr_svg_(self) -> str | None:
        return None  # the picture is part of the HTML

    def _repr_png_(self) -> bytes | None:
        return shown_as_png(super()._repr_svg_())

    def _repr_html_(self) -> str:
        picture = self._repr_png_()
        image = "" if picture is None else f"<p>{image_html(picture, self.summary)}</p>"
        return f"{image}{self._table()}"

    def _sections(self, options: dict[str, Any]) -> Iterator[str]:
        lines = "".join(f"<p>{escape(line)}</p>" for line in self.profile.explanation.split("\n"))
        yield f"{lines}<p>{image_html(self.svg(**options), self.summary)}</p>{self._table()}"

    def _table(self) -> str:
        """Return the HTML of a table with the molecule and each neighbour, and all properties."""
        names = list(self.predictions)
        told = ["measured"] if any(each.measured for each in self.ranked) else []
        head = ("change", "SMILES", "desirability", *names, "similarity", "alerts", *told)
        start = ["the molecule", self.smiles, f"{self.score.overall or 0:.2f}"]
        rows = [
            [
                *start,
                *(self.predictions[name].in_full for name in names),
                "",
                "",
                *("" for _ in told),
            ]
        ]
        for each in self.ranked:
            cells = [each.changes, each.smiles, f"{each.score.overall or 0:.2f}"]
            cells += [each.predictions[n].in_full if n in each.predictions else "" for n in names]
            more = [sentence_about(each.measured)] if told else []
            rows.append([*cells, f"{each.similarity:.2f}", "; ".join(each.alerts), *more])
        return table_html(head, rows)


def _brief(score: DesirabilityScore) -> str:
    """Return a score on one short line, such as `0.85: 7.6, 2.1, penetrant (97%)`."""
    values = ", ".join(str(part.prediction) for part in score.parts)
    return minus_signs(f"{score.overall or 0:.2f}: {values}")


def _record(smiles: str, title: str, cells: Mapping[str, Any]) -> str:
    """Return a record of an SD file, without empty cells."""
    properties = {name: value for name, value in cells.items() if value not in (None, "")}
    return files.sdf_record(MolFromSmiles(smiles), None, title=title, properties=properties)
