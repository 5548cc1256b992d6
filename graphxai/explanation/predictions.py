"""A list of predictions that is a table in a notebook and in pandas."""

from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any, Self

from .html import table_html
from .labelled import LabelledResults
from .prediction import Prediction, table_cells

if TYPE_CHECKING:
    import pandas as pd

ROWS = 20  # how many predictions of a list a notebook shows


class Predictions(LabelledResults[dict[str, Prediction]]):
    """The predictions of several inputs, each as a dict {task: Prediction}.

    The list has None where an input was left out.

    Args:
        predictions: the predictions.
        labels: as for `Explanations`.
        smiles: what each input was, where these were SMILES.
    """

    def __init__(
        self,
        predictions: Iterable[dict[str, Prediction] | None] = (),
        *,
        labels: "pd.Index | Sequence[Any] | None" = None,
        smiles: Sequence[str] | None = None,
    ) -> None:
        super().__init__(predictions, labels=labels)
        self._smiles = smiles

    def to_frame(self) -> "pd.DataFrame":
        """Return a table with one row per input.

        For each task it has the value or the class, the probability of each class, and the ends of
        `Prediction.interval` or the set of `Prediction.classes`. For molecules,
        `nearest_similarity` and `training_set` tell how near each is to the training set, and
        `note` what was done to it before it was predicted. The row of an input that was left out is
        empty.

        The predictions of a data frame keep its index, so that `frame.join(predictions.to_frame())`
        puts them beside its columns. Those of a list of SMILES have these in the column `smiles`.
        """
        rows = [table_cells(list((by_task or {}).values())) for by_task in self]
        return self._frame(rows, self._written_smiles())

    def _written_smiles(self) -> Sequence[str] | None:
        """Return the SMILES of a list, or None for other inputs."""
        fits = self._smiles is not None and len(self._smiles) == len(self)
        return self._smiles if fits else None

    def _part(self, positions: slice) -> Self:
        part, smiles = super()._part(positions), self._written_smiles()
        part._smiles = None if smiles is None else smiles[positions]
        return part

    def _line(self, result: dict[str, Prediction]) -> str:
        return "; ".join(f"{task}: {prediction.in_full}" for task, prediction in result.items())

    def _repr_html_(self) -> str:
        """Return a table of the first predictions, with their ranges and how near they are."""
        smiles = self._written_smiles()
        shown = self._some(ROWS)
        tasks = list(dict.fromkeys(task for _, _, by_task in shown for task in by_task))
        head = ["", *(["smiles"] if smiles else []), *tasks, "training set", "note"]
        rows = []
        for position, label, by_task in shown:
            first = next(iter(by_task.values()))
            near = "" if first.nearness is None else first.nearness.sentence
            stated = [by_task[task].in_full if task in by_task else "" for task in tasks]
            rows.append([label, *([smiles[position]] if smiles else []), *stated, near, first.note])
        return f"{table_html(head, rows) if rows else ''}<p>{escape(self._counts(ROWS))}</p>"
