"""A list of predictions that is a table in a notebook and in pandas."""

from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any, Self

from .html import table_html
from .labelled import LabelledResults
from .prediction import Prediction, joined_notes, table_cells

if TYPE_CHECKING:
    import pandas as pd

ROWS = 20  # how many predictions of a list a notebook shows


class TaskPredictions(dict[str, Prediction]):
    """The predictions of one input by task, which a notebook shows as a table."""

    def _repr_html_(self) -> str:
        """Return a table of the tasks, and below it what holds for the input as a whole."""
        several = len({p.nearness.nearest for p in self.values() if p.nearness}) > 1
        rows = [(p.heading, _in_full(p) if several else p.in_full) for p in self.values()]
        near = next((p.nearness.sentence for p in self.values() if p.nearness), "")
        about = [] if several else [near]
        lines = filter(None, [*about, joined_notes([*self.values()])])
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

    def _part(self, positions: slice) -> Self:
        part, smiles = super()._part(positions), self._written_smiles()
        part._smiles = None if smiles is None else smiles[positions]
        part._several_models = self._several_models
        return part

    def _line(self, result: dict[str, Prediction]) -> str:
        return "; ".join(f"{task}: {prediction.in_full}" for task, prediction in result.items())

    def _repr_html_(self) -> str:
        """Return a table of the first predictions, with their ranges and how near they are."""
        smiles = self._written_smiles()
        shown = self._some(ROWS)
        tasks = list(dict.fromkeys(task for _, _, by_task in shown for task in by_task))
        domain = [] if self._several_models else ["training set"]
        head = ["", *(["smiles"] if smiles else []), *tasks, *domain, "note"]
        rows = []
        for position, label, by_task in shown:
            cells = [self._cell(by_task[task]) if task in by_task else "" for task in tasks]
            near = next(iter(by_task.values())).nearness
            cells += ["" if near is None else near.sentence] if domain else []
            note = joined_notes([*by_task.values()])
            rows.append([label, *([smiles[position]] if smiles else []), *cells, note])
        return self._table(head, rows, ROWS)

    def _cell(self, prediction: Prediction) -> str:
        """Return a prediction in full, with its nearness where each model has its own."""
        return _in_full(prediction) if self._several_models else prediction.in_full


def _in_full(prediction: Prediction) -> str:
    """Return a prediction in full, with its nearness to its model's training set."""
    near = prediction.nearness
    return prediction.in_full if near is None else f"{prediction.in_full}; {near.sentence}"
