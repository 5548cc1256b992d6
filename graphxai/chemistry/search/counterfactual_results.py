"""The results of searches for counterfactuals: their pictures, pages, structures and tables."""

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeAlias, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray
from rdkit.Chem import Mol, MolFromSmiles, MolToSmiles

from graphxai.chemistry.contrast import NO_MOLECULE, Contrast, contrast
from graphxai.chemistry.desirability import DesirabilityScore, PropertyGoal, PropertyProfile
from graphxai.chemistry.matching import CommonPart, NoCommonPartError, common_part_or_none
from graphxai.chemistry.table_changes import MeasuredTable
from graphxai.explainers.registry import Method
from graphxai.explanation import files
from graphxai.explanation.api import explain
from graphxai.explanation.compute.models import Model
from graphxai.explanation.explanation import Explanation
from graphxai.explanation.explanations import PANEL, saturated_limit, with_doubt
from graphxai.explanation.labelled import short_text
from graphxai.explanation.prediction import Prediction, table_cells
from graphxai.explanation.result import Result, image_html, page_html, shown_as_png, table_html
from graphxai.runtime.writing import write_whole
from graphxai.visualization import Scale, grid_svg, molecule_svg
from graphxai.visualization.grid import aligned
from graphxai.visualization.layout import averaged, laid_out
from graphxai.visualization.text import minus_signs

from .changed_molecules import Counterfactual, ProfileCounterfactual

if TYPE_CHECKING:
    import pandas as pd

AT_CHANGE = "of it at the changed atoms"
_Panel: TypeAlias = tuple[NDArray[np.float64], ArrayLike, str]


class ChangedMolecules(Result, Sequence[Any]):
    """What the results of all searches share: pictures, pages, structures and tables."""

    ranked: tuple[Any, ...]

    def __len__(self) -> int:
        return len(self.ranked)

    def __getitem__(self, index: Any) -> Any:
        chosen, result = self.ranked[index], cast("Any", self)
        return replace(result, ranked=chosen) if isinstance(index, slice) else chosen

    def __repr__(self) -> str:
        lines = [f"{type(self).__name__}({self.summary})"]
        lines += [f"{k}: {each.changes}: {each._outcome}" for k, each in enumerate(self.ranked)]
        return short_text(lines)

    @property
    @abstractmethod
    def summary(self) -> str:
        """The outcome of the search in one sentence."""

    def compared(self, tables: Mapping[str, MeasuredTable]) -> Self:
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
        for k, (title, cells) in enumerate(zip(titles, self._rows(), strict=True)):
            known = {name: cell for name, cell in cells.items() if cell is not None}
            yield self._record(k, title, {**properties, **known})

    def to_frame(self) -> "pd.DataFrame":
        """Return a table with a row for each neighbour."""
        import pandas as pd

        return pd.DataFrame(self._rows()[1:])

    def save(self, path: str | Path, **options: Any) -> Path:
        """Write a picture (.svg, .png, .pdf), page (.html), structures (.sdf) or a table.

        Tables are .csv, .tsv or .parquet. For a single goal, the page has the contrast of every
        change, and the SD file has the relevance for the goal. Pictures and pages take the options
        of `svg`.
        """
        path = files.writable(path, (*files.PICTURES, ".html", *files.FRAMES, ".sdf"))
        match path.suffix.lower():
            case ".html":
                return write_whole(path, page_html(self._aim, self._sections(options)))
            case ".sdf":
                return write_whole(path, "".join(self.to_sdf()))
        return super().save(path, **options)

    @property
    @abstractmethod
    def _aim(self) -> str:
        """The goal, or the goals, as text."""

    @property
    @abstractmethod
    def _mols(self) -> "list[Mol]":
        """The molecule and its neighbours."""

    @abstractmethod
    def _record(self, place: int, title: str, cells: Mapping[str, Any]) -> str:
        """Return the record of the molecule or of a neighbour in an SD file."""

    @abstractmethod
    def _rows(self) -> list[dict[str, Any]]:
        """Return the cells of the molecule itself in an SD file, then those of each neighbour."""

    def _sections(self, options: dict[str, Any]) -> Iterator[str]:
        """Yield the HTML of the sections of a page."""
        picture = image_html(self.svg(**options), self.summary)
        yield f"<p>{picture}</p>{self._table()}"

    @abstractmethod
    def _table(self) -> str:
        """Return the HTML of a table with a row for each neighbour."""

    @abstractmethod
    def _panels(self) -> list[_Panel]:
        """Return the atoms' values, those of unsure sign, and a brief text, of each molecule."""

    @cached_property
    def _common_parts(self) -> tuple[CommonPart | None, ...]:
        """The part that each neighbour shares with the molecule, or None if none was found.

        Each search takes up to a second.
        """
        first, *others = self._mols
        return tuple(common_part_or_none(first, other) for other in others)

    def svg(
        self,
        *,
        columns: int = 3,
        scale: Scale | float | None = None,
        palette: str = "red-blue",
        **options: Any,
    ) -> str:
        """Draw the molecule and its neighbours in its pose, with the atoms that are new outlined.

        The counterfactuals of a single goal are coloured by relevance for it.

        Args:
            columns: panels in a row.
            scale: the relevance shown in full colour; by default the 97.5 % quantile of
                |relevance|.
            palette: one of `visualization.PALETTES`.
            options: as for `molecule_svg`.
        """
        values, pale, _ = about = tuple(zip(*self._panels(), strict=True))
        every = np.concatenate(values)
        colours = Scale.chosen(scale or saturated_limit(every), *values, palette=palette)
        start, *others = self._mols
        first = laid_out(start, keep=True)
        drawn: list[tuple[Mol, list[int]]] = [(first, [])]
        for mol, part in zip(others, self._common_parts, strict=True):
            kept: Any = [] if part is None else part.same[:, 1]
            posed = laid_out(mol) if part is None else aligned(mol, first, part.mapping)
            drawn.append((posed, np.setdiff1d(np.arange(mol.GetNumAtoms()), kept).tolist()))
        style: dict[str, Any] = {**PANEL, "color_bar": False, "keep_layout": True, "scale": colours}
        style |= options
        titles = ["the molecule", *(each.changes for each in self.ranked)]
        panels = [
            molecule_svg(mol, of, outlined=new, pale=p, title=name, subtitle=text, **style)
            for (mol, new), of, p, text, name in zip(drawn, *about, titles, strict=True)
        ]
        bar: dict[str, Any] = {}
        title = self._aim
        if isinstance(self, Counterfactuals):
            title = f"towards {title}"
            bar = {"scale": colours, "values": every, "legend": self.explanation.legend}
        return grid_svg(panels, columns, title, subtitle=with_doubt(self.summary, *pale), **bar)


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

    def contrast(self, index: int, method: Method | None = None) -> Contrast:
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
        first, *others = self.explanations
        pairs = zip(others, self._common_parts, strict=True)
        return tuple(
            account.at_change
            if part is not None and (account := Contrast(first, other, part).account)
            else None
            for other, part in pairs
        )

    @property
    def _aim(self) -> str:
        return self.goal.aim

    @property
    def _mols(self) -> "list[Mol]":
        return [e.atoms(NO_MOLECULE) for e in self.explanations]

    def _rows(self) -> list[dict[str, Any]]:
        pairs = zip(self.ranked, self.at_change, strict=True)
        return [{}, *(each.columns | {"at_change": share} for each, share in pairs)]

    @cached_property
    def explanations(self) -> list[Explanation]:
        """The molecule and its counterfactuals, explained for the goal's output."""
        smiles = [counterfactual.smiles for counterfactual in self.ranked]
        options: dict[str, Any] = {"target": self.goal.target, "progress": False}
        return [self.explanation, *explain(self.model, smiles, **options)]

    def _panels(self) -> list[_Panel]:
        predictions = (self.explanation.prediction, *(each.prediction for each in self.ranked))
        return [
            (averaged(e.relevance, e.equivalent), e.contested, str(prediction))
            for e, prediction in zip(self.explanations, predictions, strict=True)
        ]

    def _record(self, place: int, title: str, cells: Mapping[str, Any]) -> str:
        return self.explanations[place].to_sdf(title=title, **cells)

    def _table(self) -> str:
        head = ["change", "SMILES", "prediction", "predicted change", AT_CHANGE]
        rows = []
        for each, share in zip(self.ranked, self.at_change, strict=True):
            isomers = f"; isomers: {each.isomers_text}" if each.isomers else ""
            predicted = f"{each.prediction.in_full}{', sure' if each.sure else ''}{isomers}"
            cells = [each.changes, each.smiles, predicted, each.change_in_full, percent(share)]
            rows.append([*cells, each.measured_sentence, "; ".join(each.alerts)])
        return table_html([*head, "measured", "alerts"], rows)

    def _sections(self, options: dict[str, Any]) -> Iterator[str]:
        """Yield the picture with its table, then the contrast of each counterfactual."""
        yield from super()._sections(options)
        for index, each in enumerate(self.ranked):
            try:
                compared = self.contrast(index)
            except NoCommonPartError as error:
                yield f"<p>{escape(f'{each.changes}: {error}')}</p>"
            else:
                picture = image_html(compared.svg(), compared.headline)
                yield f"<p>{escape(each.changes)}</p><p>{picture}</p>"


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

    def _panels(self) -> list[_Panel]:
        briefs = []  # such as "0.85: 7.6, 2.1, penetrant (97%)"
        for score in (self.score, *(each.score for each in self.ranked)):
            predicted = ", ".join(str(part.prediction) for part in score.parts)
            briefs.append(minus_signs(f"{score.overall or 0:.2f}: {predicted}"))
        blank = (np.zeros(mol.GetNumAtoms()) for mol in self._mols)
        return [(zeros, (), text) for zeros, text in zip(blank, briefs, strict=True)]

    def _sections(self, options: dict[str, Any]) -> Iterator[str]:
        for section in super()._sections(options):
            yield f"{self.profile._repr_html_()}{section}"

    def _rows(self) -> list[dict[str, Any]]:
        start = table_cells([*self.predictions.values()], several_models=True)
        return [self.score.columns | start, *(each.columns for each in self.ranked)]

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

    def _table(self) -> str:
        """Return the HTML of a table with the molecule and each neighbour, and all properties."""
        names = list(self.predictions)
        last = ["measured"] if any(each.measured for each in self.ranked) else []
        head = ("change", "SMILES", "desirability", *names, "similarity", "alerts", *last)
        molecule: Any = self
        rows = []
        for name, each in [("the molecule", molecule), *((c.changes, c) for c in self.ranked)]:
            known = [each.predictions[n].in_full if n in each.predictions else "" for n in names]
            more = ["", "", ""]
            if each is not self:
                more = [f"{each.similarity:.2f}", "; ".join(each.alerts), each.measured_sentence]
            within = " to ".join(f"{end:.2f}" for end in each.score.interval or ())
            overall = f"{each.score.overall or 0:.2f}{f' ({within})' * bool(within)}"
            cells = [name, each.smiles, overall, *known, *more]
            rows.append(cells[: len(head)])
        return table_html(head, rows)


def percent(share: float | None) -> str:
    """Return a share as "52 %", or "" if there is none."""
    return "" if share is None else minus_signs(f"{100 * share:.0f} %")
