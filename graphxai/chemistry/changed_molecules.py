"""What the results of all searches for counterfactuals share: pictures, pages and tables."""

from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from graphxai.explanation import files
from graphxai.explanation.explanations import PANEL
from graphxai.explanation.html import page_html
from graphxai.explanation.labelled import short_text
from graphxai.explanation.result import Result

from .matching import CommonPart, NoCommonPartError, common_part
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

    @property
    def changes(self) -> str:
        """All changes, in order."""
        return ", then ".join([*(name for name, _ in self.way), self.change])


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

    def to_sdf(self, **properties: object) -> Iterator[str]:
        """Yield the records of an SD file."""
        raise NotImplementedError

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

    def _rows(self) -> list[dict[str, Any]]:
        raise NotImplementedError

    def _sections(self, options: dict[str, Any]) -> Iterator[str]:
        """Yield the HTML of the sections of a page."""
        raise NotImplementedError

    @cached_property
    def _common_parts(self) -> tuple[CommonPart | None, ...]:
        """The part that each neighbour shares with the molecule, or None if none was found.

        Each search takes up to a second.
        """
        first, *others = self._mols
        return tuple(_common_part(first, other) for other in others)

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


def _common_part(first: "Mol", other: "Mol") -> CommonPart | None:
    try:
        return common_part(first, other, timeout=1)
    except NoCommonPartError:
        return None
