"""A list of results with the labels of their inputs, such as the index of a data frame.

A list of predictions is a table in a notebook and in pandas.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from inspect import cleandoc
from itertools import compress, islice
from textwrap import fill
from typing import TYPE_CHECKING, Any, Generic, Self, SupportsIndex, TypeVar, overload

from graphxai.contract.method_names import MethodName
from graphxai.datasets.graph import is_from
from graphxai.explanation.prediction import Prediction, joined_notes, table_cells
from graphxai.explanation.result import image_html, shown_as_png, table_html
from graphxai.visualization.text import FORBIDDEN

if TYPE_CHECKING:
    import pandas as pd

Item = TypeVar("Item")
LINES = 20  # the most results that the text of a list names
LINE = 100  # the most characters of such a line


def short_text(lines: Sequence[str]) -> str:
    """Join the lines of a text, and cut off what would not fit on a screen."""
    shown = [FORBIDDEN.sub("", line) for line in lines[: LINES + 1]]
    more = [f"and {len(lines) - len(shown)} more"] if len(lines) > len(shown) else []
    cut = (line if len(line) <= LINE else f"{line[: LINE - 3]}..." for line in shown)
    return "\n".join([*cut, *more])


def numbered(names: Iterable[str]) -> tuple[str, ...]:
    """Number the names that occur more than once, as in "bace", "bace 2"."""
    seen: Counter[str] = Counter()
    distinct: list[str] = []
    for name in names:
        seen[name] += 1
        distinct.append(name if seen[name] == 1 else f"{name} {seen[name]}")
    return tuple(distinct)


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
    def __getitem__(self, index: slice | Sequence[bool]) -> Self: ...
    def __getitem__(self, index: SupportsIndex | slice | Sequence[bool]) -> Item | Self | None:
        """Return a result, or several: a slice, or those where a mask of booleans is true.

        Raises:
            IndexError: a mask has another length than the results.
            TypeError: positions are given in a list.
        """
        if isinstance(index, slice):
            return self._part(list(range(len(self))[index]))
        if isinstance(index, Iterable):
            mask = list(index)
            if not all(type(chosen).__name__.startswith("bool") for chosen in mask):
                raise TypeError(
                    "several results are chosen by a slice or a mask of True and False."
                )
            if len(mask) != len(self):
                raise IndexError(f"the mask has {len(mask)} values for {len(self)} results.")
            return self._part(list(compress(range(len(self)), mask)))
        return super().__getitem__(index)

    def __repr__(self) -> str:
        """Return a text of one line for each result, which fills at most a screen."""
        lines = [f"{label}: {self._line(result)}" for _, label, result in self._some(LINES)]
        return short_text([f"{type(self).__name__}: {self._counts(LINES)}", *lines])

    def _part(self, positions: Sequence[int]) -> Self:
        """Return the results at these positions with their labels."""
        labels = self._fitting_labels()
        kept = labels[positions] if self.from_table else [labels[k] for k in positions]
        return type(self)([list.__getitem__(self, k) for k in positions], labels=kept)

    def _line(self, result: Item) -> str:
        """Return a result in one line of text."""
        return repr(result)

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

    def _repr_html_(self) -> str:
        """Return a table of the first results, with small pictures."""
        rows = []
        for _, label, result in self._some(SHOWN):
            picture = shown_as_png(result._repr_svg_(), SMALL)
            image = "" if picture is None else image_html(picture, repr(result))
            rows.append((label, repr(result), image))
        return self._table(("", "result", "picture"), rows, SHOWN)


ROWS = 20  # how many predictions of a list a notebook shows


class TaskPredictions(dict[str, Prediction]):
    """The predictions of one input by task, which a notebook shows as a table."""

    def _repr_html_(self) -> str:
        """Return a table of the tasks, and below it what holds for the input as a whole."""
        several = len({p.nearness.nearest for p in self.values() if p.nearness}) > 1
        rows = [(p.heading, _in_full(p) if several else p.in_full) for p in self.values()]
        near = next((p.nearness.sentence for p in self.values() if p.nearness), "")
        shared = [] if several else [near]
        lines = filter(None, [*shared, joined_notes([*self.values()])])
        said = "".join(f"<p>{escape(line)}</p>" for line in lines)
        return f"{table_html(('task', 'prediction'), rows)}{said}"


class Predictions(LabelledResults[dict[str, Prediction]]):
    """The predictions of several inputs, each as a dict {task: Prediction}.

    The list has None where an input was left out.

    Args:
        predictions: the predictions.
        labels: as for `Explanations`.
        smiles: what each input was, where these were SMILES.
        several_models: whether several models made them, each with its own training set.
    """

    def __init__(
        self,
        predictions: Iterable[dict[str, Prediction] | None] = (),
        *,
        labels: "pd.Index | Sequence[Any] | None" = None,
        smiles: Sequence[str] | None = None,
        several_models: bool = False,
    ) -> None:
        rows = (None if row is None else TaskPredictions(row) for row in predictions)
        super().__init__(rows, labels=labels)
        self._smiles = smiles
        self._several_models = several_models

    def to_frame(self) -> "pd.DataFrame":
        """Return a table with one row per input.

        For each task it has the value or the class, the probability of each class, and the ends of
        `Prediction.interval` or the set of `Prediction.classes`. For molecules,
        `nearest_similarity` and `training_set` tell how near each is to the training set, `parent`
        which molecule was predicted instead, and `note` what was done to it. Where several models
        predicted, each property has its own nearness, such as `solubility_training_set`. The row of
        an input that was left out is empty.

        The predictions of a data frame keep its index, so that `frame.join(predictions.to_frame())`
        puts them beside its columns. Those of a list of SMILES have these in the column `smiles`.
        """
        several = self._several_models
        rows = [table_cells([*(row or {}).values()], several_models=several) for row in self]
        return self._frame(rows, self._written_smiles())

    def _written_smiles(self) -> Sequence[str] | None:
        """Return the SMILES of a list, or None for other inputs."""
        fits = self._smiles is not None and len(self._smiles) == len(self)
        return self._smiles if fits else None

    def _part(self, positions: Sequence[int]) -> Self:
        part, smiles = super()._part(positions), self._written_smiles()
        part._smiles = None if smiles is None else [smiles[k] for k in positions]
        part._several_models = self._several_models
        return part

    def _line(self, result: dict[str, Prediction]) -> str:
        return "; ".join(f"{task}: {prediction.in_full}" for task, prediction in result.items())

    def _repr_html_(self) -> str:
        """Return a table of the first predictions, with their ranges and how near they are."""
        shown = self._some(ROWS)
        tasks = list(dict.fromkeys(task for _, _, by_task in shown for task in by_task))
        domain = [] if self._several_models else ["training set"]
        head = ["", *tasks, *domain, "note"]
        rows = []
        for _, label, by_task in shown:
            several = self._several_models  # of which each has its own nearness
            cells = [
                (_in_full(by_task[task]) if several else by_task[task].in_full)
                if task in by_task
                else ""
                for task in tasks
            ]
            near = next(iter(by_task.values())).nearness
            cells += ["" if near is None else near.sentence] if domain else []
            rows.append([label, *cells, joined_notes([*by_task.values()])])
        return self._table(head, rows, ROWS)


def _in_full(prediction: Prediction) -> str:
    near = prediction.nearness
    return prediction.in_full if near is None else f"{prediction.in_full}; {near.sentence}"


class MethodTable(dict[MethodName, type[Any]]):
    """Explainers by name, with the first sentence of what each says about itself."""

    def __repr__(self) -> str:
        return fill(f"{len(self)} methods: {', '.join(self)}", 100)

    def _repr_html_(self) -> str:
        docs = {name: cleandoc(explainer.__doc__ or "") for name, explainer in self.items()}
        rows = ((name, " ".join(text.split("\n\n")[0].split())) for name, text in docs.items())
        return table_html(("method", "relevance"), rows)
