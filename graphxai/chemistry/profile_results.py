"""The results of searches for counterfactuals, above all those over several properties.

`counterfactual_results` adds those of a search towards a single goal.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np
from rdkit.Chem import MolFromSmiles, MolToSmiles

from graphxai.explanation import files
from graphxai.explanation.explanations import PANEL
from graphxai.explanation.html import image_html, page_html, table_html
from graphxai.explanation.labelled import short_text
from graphxai.explanation.prediction import Prediction, table_cells
from graphxai.explanation.result import Result, shown_as_png
from graphxai.visualization.text import minus_signs

from .desirability import DesirabilityScore, PropertyProfile
from .matching import CommonPart, NoCommonPartError, common_part
from .measurements import Measured, Measurements, sentence_about
from .neighbours import Way

if TYPE_CHECKING:
    import pandas as pd
    from rdkit.Chem import Mol


class ChangedMolecule:
    """What all neighbours of a molecule share: the changes that led to them."""

    smiles: str
    change: str
    atoms: frozenset[int]
    way: Way
    front: int
    measured: Any

    @property
    def changes(self) -> str:
        """All changes, in order."""
        return ", then ".join([*(name for name, _ in self.way), self.change])

    @property
    def measured_sentence(self) -> str:
        """What was measured for the change, or "" without a table."""
        return sentence_about(self.measured)

    def compared(self, start: str, tables: Mapping[str, Measurements]) -> Self:
        """Return the change with what was measured of each property, from the SMILES before it."""
        about = {name: table.about(start, self.smiles) for name, table in tables.items()}
        changed: Any = self
        return cast("Self", replace(changed, measured=self._told(about)))

    def _told(self, about: dict[str, Measured]) -> Any:
        """Return what was measured as the result holds it."""
        return about


class ChangedMolecules(Result, Sequence[Any]):
    """What the results of all searches share: pictures, pages, structures and tables."""

    ranked: tuple[Any, ...]

    def __len__(self) -> int:
        return len(self.ranked)

    def __getitem__(self, index: Any) -> Any:
        return self.ranked[index]

    def __repr__(self) -> str:
        lines = [f"{type(self).__name__}({self.summary})"]
        lines += [f"{k}: {each.changes}: {each._outcome}" for k, each in enumerate(self.ranked)]
        return short_text(lines)

    @property
    def summary(self) -> str:
        """The outcome of the search in one sentence."""
        raise NotImplementedError

    def compared(self, tables: Mapping[str, Measurements]) -> Self:
        """Return the result with what was measured of each property."""
        start = MolToSmiles(self._mols[0])
        ranked = tuple(each.compared(start, tables) for each in self.ranked)
        result: Any = self
        return cast("Self", replace(result, ranked=ranked))

    def to_sdf(self, **properties: object) -> Iterator[str]:
        """Yield the records of an SD file: the molecule, then each neighbour with its columns.

        Your `properties` come first in each record.
        """
        titles = ["the molecule", *(each.changes for each in self.ranked)]
        for k, (title, cells) in enumerate(zip(titles, [self._start, *self._rows()], strict=True)):
            known = {name: cell for name, cell in cells.items() if cell is not None}
            yield self._record(k, title, {**properties, **known})

    def to_frame(self) -> "pd.DataFrame":
        """Return a table with a row for each neighbour."""
        import pandas as pd

        return pd.DataFrame(self._rows())

    def save(self, path: str | Path, **options: Any) -> Path:
        """Write a picture (.svg, .png, .pdf), page (.html), structures (.sdf) or a table.

        Tables are .csv, .tsv or .parquet. For a single goal, the page has the contrast of every
        change, and the SD file has the relevance for the goal. Pictures and pages take the options
        of `svg`.
        """
        path = files.writable(path, (*files.PICTURES, ".html", *files.FRAMES, ".sdf"))
        match path.suffix.lower():
            case ".html":
                return files.write_text([page_html(self._aim, self._sections(options))], path)
            case ".sdf":
                return files.write_text(self.to_sdf(), path)
        return super().save(path, **options)

    @property
    def _aim(self) -> str:
        """The goal, or the goals, as text."""
        raise NotImplementedError

    @property
    def _mols(self) -> "list[Mol]":
        """The molecule and its neighbours."""
        raise NotImplementedError

    @property
    def _start(self) -> dict[str, Any]:
        """The cells of the molecule itself in an SD file."""
        return {}

    def _record(self, place: int, title: str, cells: Mapping[str, Any]) -> str:
        """Return the record of the molecule or of a neighbour in an SD file."""
        raise NotImplementedError

    def _rows(self) -> list[dict[str, Any]]:
        return [each.columns for each in self.ranked]

    def _sections(self, options: dict[str, Any]) -> Iterator[str]:
        """Yield the HTML of the sections of a page."""
        raise NotImplementedError

    @cached_property
    def _common_parts(self) -> tuple[CommonPart | None, ...]:
        """The part that each neighbour shares with the molecule, or None if none was found.

        Each search takes up to a second.
        """
        parts: list[CommonPart | None] = []
        first, *others = self._mols
        for other in others:
            try:
                parts.append(common_part(first, other, timeout=1))
            except NoCommonPartError:
                parts.append(None)
        return tuple(parts)

    def _panels(
        self, values: Sequence[Any], subtitles: Sequence[str], options: dict[str, Any]
    ) -> list[str]:
        """Draw the molecule and its neighbours in its pose, with the atoms that are new outlined.

        Args:
            values: the value of each atom, for each molecule.
            subtitles: the text below the title of each molecule.
            options: as for `molecule_svg`.
        """
        from graphxai.visualization import molecule_svg
        from graphxai.visualization.grid import aligned
        from graphxai.visualization.layout import laid_out

        start, *others = self._mols
        first = laid_out(start)
        drawn: list[tuple[Mol, list[int]]] = [(first, [])]
        for mol, part in zip(others, self._common_parts, strict=True):
            if part is None:
                drawn.append((laid_out(mol), list(range(mol.GetNumAtoms()))))
            else:
                new = np.setdiff1d(np.arange(mol.GetNumAtoms()), part.same[:, 1])
                drawn.append((aligned(mol, first, part.mapping), new.tolist()))
        shown: dict[str, Any] = {**PANEL, "color_bar": False, "keep_layout": True} | options
        titles = ["the molecule", *(each.changes for each in self.ranked)]
        return [
            molecule_svg(mol, of_atoms, outlined=new, title=title, subtitle=subtitle, **shown)
            for (mol, new), of_atoms, title, subtitle in zip(
                drawn, values, titles, subtitles, strict=True
            )
        ]


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

    def svg(self, *, columns: int = 3, **options: Any) -> str:
        """Draw the molecule and its neighbours, with the atoms outlined that a change brought.

        Args:
            columns: the number of panels in a row.
            options: as for `molecule_svg`.
        """
        from graphxai.visualization import grid_svg

        values = [np.zeros(mol.GetNumAtoms()) for mol in self._mols]
        briefs = []  # such as "0.85: 7.6, 2.1, penetrant (97%)"
        for score in (self.score, *(each.score for each in self.ranked)):
            predicted = ", ".join(str(part.prediction) for part in score.parts)
            briefs.append(minus_signs(f"{score.overall or 0:.2f}: {predicted}"))
        panels = self._panels(values, briefs, options)
        return grid_svg(panels, columns, str(self.profile), subtitle=self.summary)

    @property
    def _start(self) -> dict[str, Any]:
        return self.score.columns | table_cells([*self.predictions.values()], several_models=True)

    def _record(self, place: int, title: str, cells: Mapping[str, Any]) -> str:
        properties = {name: value for name, value in cells.items() if value != ""}
        return files.sdf_record(self._mols[place], None, title=title, properties=properties)

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
        start += [self.predictions[name].in_full for name in names]
        rows = [[*start, "", "", *("" for _ in told)]]
        for each in self.ranked:
            cells = [each.changes, each.smiles, f"{each.score.overall or 0:.2f}"]
            cells += [each.predictions[n].in_full if n in each.predictions else "" for n in names]
            more = [each.measured_sentence] if told else []
            rows.append([*cells, f"{each.similarity:.2f}", "; ".join(each.alerts), *more])
        return table_html(head, rows)
