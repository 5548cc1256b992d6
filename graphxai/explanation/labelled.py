"""A list of results with the labels of their inputs, such as the index of a data frame."""

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, Self, SupportsIndex, TypeVar, overload

from graphxai.datasets.graph import is_from
from graphxai.explanation.html import image_html, table_html
from graphxai.explanation.result import Drawing, shown_as_png

if TYPE_CHECKING:
    import pandas as pd

Item = TypeVar("Item")
LINES = 20  # the most results that the text of a list names
LINE = 100  # the most characters of such a line


def short_text(lines: Sequence[str]) -> str:
    """Join the lines of a text, and cut off what would not fit on a screen."""
    shown = lines[: LINES + 1]
    more = [f"and {len(lines) - len(shown)} more"] if len(lines) > len(shown) else []
    cut = (line if len(line) <= LINE else f"{line[: LINE - 3]}..." for line in shown)
    return "\n".join([*cut, *more])


class LabelledResults(list[Item | None], Generic[Item]):
    """The results of several inputs, with None where an input was left out.

    Args:
        results: the results.
        labels: the index of the frame or column that the inputs came from, or their positions in a
            longer list.
    """

    def __init__(
        self,
        results: Iterable[Item | None] = (),
        *,
        labels: "pd.Index | Sequence[Any] | None" = None,
    ) -> None:
        super().__init__(results)
        self._labels = labels

    @property
    def labels(self) -> Sequence[Any]:
        """The labels of the inputs in tables and files: the index of a frame, or the positions."""
        labels = self._fitting_labels()
        return labels.tolist() if is_from("pandas", labels) else labels

    @property
    def from_table(self) -> bool:
        """Whether the inputs came from a data frame, whose index the results keep."""
        return is_from("pandas", self._fitting_labels())

    @overload
    def __getitem__(self, index: SupportsIndex) -> Item | None: ...
    @overload
    def __getitem__(self, index: slice) -> Self: ...
    def __getitem__(self, index: SupportsIndex | slice) -> Item | Self | None:
        if isinstance(index, slice):
            return self._part(index)
        return super().__getitem__(index)

    def __repr__(self) -> str:
        """Return a text of one line for each result, which fills at most a screen."""
        lines = [f"{label}: {self._line(result)}" for _, label, result in self._some(LINES)]
        return short_text([f"{type(self).__name__}: {self._counts(LINES)}", *lines])

    def _part(self, positions: slice) -> Self:
        """Return some of the results with their labels."""
        return type(self)(super().__getitem__(positions), labels=self._fitting_labels()[positions])

    def _line(self, result: Item) -> str:
        """Return a result in one line of text."""
        raise NotImplementedError

    def _fitting_labels(self) -> Any:
        """Return the labels, or the positions if the list has grown or shrunk since."""
        fits = self._labels is not None and len(self._labels) == len(self)
        return self._labels if fits else range(len(self))

    def _labelled(self) -> Iterator[tuple[int, Any, Item]]:
        """Yield the results that are not None, with their positions and labels."""
        for position, (label, result) in enumerate(zip(self.labels, self, strict=True)):
            if result is not None:
                yield position, label, result

    def _some(self, count: int) -> list[tuple[int, Any, Item]]:
        """Return the first results that are not None, with their positions and labels."""
        return list(islice(self._labelled(), count))

    def _counts(self, shown: int) -> str:
        """Say how many inputs there are, how many are not shown, and how many were left out."""
        left_out = sum(result is None for result in self)
        hidden = len(self) - left_out - shown
        counts = [f"{len(self)} input{'' if len(self) == 1 else 's'}"]
        counts += [f"{hidden} more not shown"] if hidden > 0 else []
        counts += [f"{left_out} left out (None)"] if left_out else []
        return ", ".join(counts)

    def _table(self, head: Sequence[object], rows: Sequence[Sequence[object]], shown: int) -> str:
        """Return the HTML of a table of results, with the counts of those it leaves out."""
        table = table_html(head, rows) if rows else ""
        return f"{table}<p>{escape(self._counts(shown))}</p>"

    def _frame(
        self, rows: Sequence[dict[str, Any]], smiles: Sequence[str | None] | None
    ) -> "pd.DataFrame":
        """Return a table with a row for each input, and with the index of the inputs' frame.

        Only where the inputs came from no frame, the table has a column with their SMILES.

        Args:
            rows: the cells of each input, which are none where it was left out.
            smiles: the SMILES of each input, or None if they are no molecules.
        """
        import pandas as pd

        labels = self._fitting_labels()
        frame = pd.DataFrame(list(rows), index=labels if self.from_table else list(labels))
        if smiles is not None and not self.from_table:
            frame.insert(0, "smiles", list(smiles))
        return frame


SHOWN = 12  # how many results of a list a notebook shows
SMALL = 0.5  # PNG pixels per SVG unit


class Drawings(LabelledResults[Any]):
    """The results of several inputs, such as `Pairs`, with None where an input was left out.

    Args:
        results: results with pictures, see `Drawing`.
        labels: as for `Explanations`.
    """

    def _line(self, result: Drawing) -> str:
        return repr(result)

    def _repr_html_(self) -> str:
        """Return a table of the first results, with small pictures."""
        rows = []
        for _, label, result in self._some(SHOWN):
            picture = shown_as_png(result._repr_svg_(), SMALL)
            image = "" if picture is None else image_html(picture, repr(result))
            rows.append((label, repr(result), image))
        return self._table(("", "result", "picture"), rows, SHOWN)
