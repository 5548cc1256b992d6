"""Explain or predict a batch of molecules: SMILES with row numbers in, rows of a table out.

`ExplainBatch` and `PredictBatch` know neither files nor processes. They can be pickled, so that a
pool of processes, or an engine such as Ray, Spark or Dask, can call them anywhere. A batch is
explained as a whole, because its results would be rounded differently if it were split.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from graphxai.chemistry.desirability import PropertyProfile
from graphxai.chemistry.profile_text import read_profile
from graphxai.contract.batching import in_chunks
from graphxai.contract.inputs import Input, prepare_for
from graphxai.contract.intervals import LEVEL
from graphxai.contract.method_names import DEFAULT_METHOD
from graphxai.datasets.graph import Graph
from graphxai.datasets.molecule_reading import MoleculeError, shortened
from graphxai.datasets.molecules import MAX_QUOTED, RejectedRow, read_once
from graphxai.datasets.training_set import training_set_of
from graphxai.evaluation.trust.other_forms import form_notes
from graphxai.explainers import get_explainer
from graphxai.explainers.registry import Method
from graphxai.explanation.compute.explaining import explain_prepared, explanations_or_errors
from graphxai.explanation.compute.models import Model, ModelPanel, is_several, loaded_once
from graphxai.explanation.compute.predicting import predict_prepared, read_nearness
from graphxai.explanation.explanation import Explanation
from graphxai.explanation.files import one_line
from graphxai.explanation.prediction import Prediction, parent_cells
from graphxai.runtime.device import one_thread
from graphxai.visualization.color import Scale
from graphxai.visualization.layout import layout_note

from .files import (
    PARENT,
    above_noise,
    ledger_cells,
    ledger_columns,
    predicted_columns,
    prediction_cells,
)
from .settings import Pictures

Encoded: TypeAlias = "list[tuple[int, Input]]"  # encoded rows with their numbers
Names: TypeAlias = Sequence[str] | None
Result = TypeVar("Result")


@dataclass(frozen=True)
class ExplainedRow:
    """A row of a table with its explanation, and the compound's name if the table has names."""

    row: int
    explanation: Explanation
    name: str = ""


@dataclass(frozen=True)
class NamedRejectedRow(RejectedRow):
    """A row that was left out, with the compound's name if the table has names."""

    name: str = ""


@dataclass(frozen=True)
class ExplainBatch:
    """Explain batches of molecules, and make the rows of `explanations.csv`.

    Attributes:
        model: the name of a bundled model or a checkpoint folder, which every process loads once,
            or a loaded model.
        method: an explainer, or its name (see `graphxai.methods()`).
        target: the output to explain, see `Target`.
        pictures: how each row's picture looks, or None for no pictures.
        sdf: whether each row gets a record of an SD file.
        level: how often the predictions' intervals and sets of classes should hold.
    """

    model: "Model | str | Path"
    method: Method = DEFAULT_METHOD
    target: Any = None
    pictures: Pictures | None = None
    sdf: bool = False
    level: float = LEVEL

    def check(self) -> None:
        """Raise ValueError if the model, method or target would fail on every molecule."""
        model = loaded_once(self.model)
        require_molecules(model)
        probe = [(0, prepare_for(model, "CC"))]
        explainer = get_explainer(self.method, model=model)
        list(explanations_or_errors(model, probe, explainer, target=self.target))

    def columns(self, named: bool = False) -> dict[str, type]:
        """Return the columns of a row with their types.

        The type `list` stands for numbers separated by spaces.
        """
        model = loaded_once(self.model)
        return {
            "row": int,
            **_with_name({}, str, named),
            "smiles": str,
            **predicted_columns(ModelPanel.of(model)),
            "target": str,
            **dict.fromkeys(ledger_columns(model), float),
            "relevance": list,
            **({"bonds": list} if _explains_bonds(model) else {}),
            "picture": str,
            **dict.fromkeys(PARENT, str),
        }

    def __call__(
        self, smiles: Sequence[str], numbers: Sequence[int], names: Names = None
    ) -> list[dict[str, Any]]:
        """Explain molecules, and return a row for each of them in the order of the numbers.

        A row has the cells of `columns`, with numbers as text. `relevance` has a number for each
        atom of `smiles`, which is 0 for the atoms of a counter-ion that was removed. `bonds` has
        one for each bond, if the model reads features of bonds. `picture` is the path for the
        picture, and a further cell, `drawing`, is its SVG or PNG. A record of an SD file is in
        `record`. A molecule that cannot be read, explained or drawn has only `row`, `smiles` and
        `reason`. If the table has names, every row has a `name`.
        """
        model = loaded_once(self.model)  # which looks at the files of a name, too long for each row
        cells: list[dict[str, Any]] = []
        for row in self._explained(smiles, numbers, names, training_set_of(model)):
            if isinstance(row, ExplainedRow):
                try:
                    cells.append(self._cells(model, row, names is not None))
                    continue
                except Exception as error:  # RDKit raises errors of any type
                    given, what = row.explanation.smiles or "", "cannot be written: "
                    row = replace(_rejected_for(row.row, given, error, what), name=row.name)
            cells.append(rejected_cells(row, names is not None))
        return cells

    def explanations(
        self, smiles: Sequence[str], numbers: Sequence[int], names: Names = None
    ) -> list[ExplainedRow | NamedRejectedRow]:
        """Explain molecules as a call does, but return the explanations instead of cells.

        The explanations do not say how near their molecules are to the training set, see
        `set_nearness`.
        """
        return self._explained(smiles, numbers, names, None)

    def _explained(
        self, smiles: Sequence[str], numbers: Sequence[int], names: Names, training: Any
    ) -> list[ExplainedRow | NamedRejectedRow]:
        """Explain molecules, and tell how near they are to a training set if there is one."""
        model = loaded_once(self.model)
        explainer = get_explainer(self.method, model=model)

        def work(rows: Encoded) -> Iterator[tuple[int, Explanation]]:
            about: dict[str, Any] = {"target": self.target, "training": training}
            for row, explanation in explain_prepared(model, rows, explainer, **about):
                read_nearness(explanation)  # now, while the molecule that was read is at hand
                yield row, explanation

        made = rows_of(work, model, smiles, numbers)
        return [
            ExplainedRow(row, made.results[row], name)
            if row in made.results
            else replace(made.rejected[row], name=name)
            for row, name in sorted(zip(numbers, names or [""] * len(numbers), strict=True))
        ]

    def _cells(self, model: Model, row: ExplainedRow, named: bool) -> dict[str, Any]:
        explanation, pictures = row.explanation.at(self.level), self.pictures
        as_given, relevance = explanation.as_given, explanation.by_atom_given(explanation.relevance)
        cells = {
            "row": row.row,
            "smiles": one_line((as_given.smiles if as_given else explanation.smiles) or ""),
            **prediction_cells(explanation.predictions),
            "target": explanation.target,
            **ledger_cells(model, explanation),
            "relevance": _listed(relevance),
            "picture": f"pictures/{row.row:06d}{pictures.suffix}" if pictures else "",
            **parent_cells(explanation.predictions),
        }
        if _explains_bonds(model):
            bonds = explanation.bonds
            cells["bonds"] = "" if bonds is None else _listed(bonds)
        if self.sdf:
            cells["record"] = explanation.to_sdf(title=row.name, Row=row.row)
        if pictures:
            layout = layout_note(explanation.atoms())
            cells["note"] = "; ".join(filter(None, (explanation.note, layout)))
            draw = explanation.png if pictures.suffix == ".png" else explanation.svg
            limit, shared_by = pictures.limit, "all pictures of this table"
            cells["drawing"] = draw(
                scale=limit and Scale(limit, pictures.palette, shared_by=shared_by),
                palette=pictures.palette,
                atom_numbers=pictures.atom_numbers,
            )
        return _with_name(cells, row.name, named)


@dataclass(frozen=True)
class PredictBatch:
    """Predict batches of molecules by one or several models, and make the rows of a table.

    With several models, a row has each property with how near the molecule is to the training set
    of its model. A molecule that some models leave out has the cells of the others, and the reasons
    in its note.

    Attributes:
        model: a name, a folder or a loaded model, as for `ExplainBatch`, or several of them.
        level: how often the predictions' intervals and sets of classes should hold.
        goal: what is wished, as `gx.profile` reads it, or "". Rows say how desirable a molecule is.
        forms: whether notes say what isomers and likely tautomers get.
    """

    model: "Model | str | Path | Sequence[Model | str | Path]"
    level: float = LEVEL
    goal: str = ""
    forms: bool = False

    @property
    def panel(self) -> ModelPanel:
        """The loaded models."""
        return ModelPanel.of(self.model)

    def columns(self, named: bool = False) -> dict[str, type]:
        """Return the columns of a row with their types."""
        panel, several = self.panel, is_several(self.model)
        columns = _with_name({"row": int}, str, named) | {"smiles": str}
        columns |= predicted_columns(panel, self._profile(panel), several_models=several)
        return columns | dict.fromkeys(PARENT, str)

    def __call__(
        self, smiles: Sequence[str], numbers: Sequence[int], names: Names = None
    ) -> list[dict[str, Any]]:
        """Predict molecules, and return rows like those of `ExplainBatch`."""
        panel, profile = self.panel, self._profile(self.panel)
        of_models: list[Rows[tuple[Prediction, ...]]] = []
        with read_once() if len(panel.models) > 1 else nullcontext():
            for model in panel.models:
                work = partial(predict_prepared, model, training=training_set_of(model))
                of_models.append(rows_of(work, model, smiles, numbers))
        of_forms = [self._notes(*pair) for pair in zip(panel.models, of_models, strict=True)]
        cells: dict[int, dict[str, Any]] = {}
        for row in numbers:
            by_task = [
                {p.task: p.at(self.level) for p in each.results.get(row, ())} or None
                for each in of_models
            ]
            predictions = panel.merged(by_task)
            if predictions is None:
                cells[row] = rejected_cells(of_models[0].rejected[row], False)
                continue
            item = next(each.items[row] for each in of_models if row in each.results)
            given = item.smiles if item.as_given is None else item.as_given.smiles
            cells[row] = {"row": row, "smiles": one_line(given or "")}
            cells[row] |= prediction_cells(
                [*predictions.values()],
                None if profile is None else profile.score(predictions),
                several_models=is_several(self.model),
            )
            parent = parent_cells([*predictions.values()])
            said = chain.from_iterable(each.get(row, ()) for each in of_forms)
            notes = [parent["note"], *(each for each in said if each not in parent["note"])]
            for name, each in zip(panel.names, of_models, strict=True):
                if row in each.rejected:
                    notes.append(f"left out by {name}: {each.rejected[row].reason}")
            cells[row] |= parent | {"note": one_line("; ".join(filter(None, notes)))}
        pairs = zip(numbers, names or [""] * len(numbers), strict=True)
        return [_with_name(cells[row], name, names is not None) for row, name in sorted(pairs)]

    def _notes(
        self, model: Model, rows: "Rows[tuple[Prediction, ...]]"
    ) -> Mapping[int, Sequence[str]]:
        """Return what the molecules of rows get in other forms, by row number."""
        if not self.forms:
            return {}
        read = {row: rows.items[row].read for row in rows.results}
        with one_thread():
            return form_notes(model, {k: m for k, m in read.items() if m is not None}, rows.results)

    def _profile(self, panel: ModelPanel) -> PropertyProfile | None:
        return read_profile(panel, self.goal) if self.goal else None


@dataclass(frozen=True)
class Rows(Generic[Result]):
    """What was computed of the molecules of a table, all by row number.

    Attributes:
        items: the molecules that could be read, without their graphs, which take much memory.
    """

    items: dict[int, Input]
    results: dict[int, Result]
    rejected: dict[int, NamedRejectedRow]


def rows_of(
    work: Callable[[Encoded], Iterable[tuple[int, Result]]],
    model: Model,
    smiles: Sequence[str],
    numbers: Sequence[int],
) -> Rows[Result]:
    """Compute the result of each molecule for a model, each of which fails alone.

    There is one part, or several where the molecules are so large that memory could run out.
    """
    rows = Rows[Result]({}, {}, {})
    texts = dict(zip(numbers, smiles, strict=True))
    with one_thread():
        # errors of any type are caught, because one row must not stop the others
        for chunk in in_chunks(model, list(texts.items()), Exception):
            encoded = [(row, item) for row, item in chunk if isinstance(item, Input)]
            results, rejected = _all_that_work(work, encoded)
            for row, item in chunk:
                if isinstance(item, MoleculeError):
                    text = shortened(texts[row], MAX_QUOTED)
                    rejected.append(NamedRejectedRow(row, text, str(item)))
                elif isinstance(item, Exception):
                    rejected.append(_rejected_for(row, texts[row], item))
            for row, item in encoded:  # `replace` takes several times as long
                about = item.image, item.segments, item.as_given, item.read
                rows.items[row] = Input(Graph(), item.smiles, item.molecule, *about)
            rows.results.update(results)
            rows.rejected.update((row.row, row) for row in rejected)
    return rows


def require_molecules(model: Model) -> None:
    """Raise ValueError if the model does not read molecules."""
    if not model.config.reads_molecules:
        raise ValueError(
            f"model {model.origin.name!r} reads {model.config.reads}, not molecules: for a table"
            " of SMILES, choose a model that reads molecules, such as 'bace'."
        )


def rejected_cells(row: NamedRejectedRow, named: bool) -> dict[str, Any]:
    """Return the cells of a row that was left out, with its name if the table has names."""
    cells = {"row": row.row, "smiles": one_line(row.smiles), "reason": one_line(row.reason)}
    return _with_name(cells, row.name, named)


def _explains_bonds(model: Model) -> bool:
    return "edge_attr" in getattr(model, "explained_inputs", ())


def _listed(values: NDArray[np.floating]) -> str:
    """Return numbers as one cell, separated by spaces."""
    return " ".join(above_noise(values.tolist()))


def _with_name(cells: dict[str, Any], name: Any, named: bool) -> dict[str, Any]:
    """Add the cell `name` if the table has names."""
    return cells | {"name": name} if named else cells


def _all_that_work(
    work: Callable[[Encoded], Iterable[tuple[int, Result]]], rows: Encoded
) -> tuple[list[tuple[int, Result]], list[NamedRejectedRow]]:
    """Return the results of encoded rows, and the rows that fail even when they are alone."""
    try:
        return list(work(rows)), []
    except Exception as error:  # one row must not stop the others, whatever its error
        if len(rows) == 1:
            ((row, item),) = rows
            return [], [_rejected_for(row, item.smiles or "", error)]
        half = len(rows) // 2
        first, first_failed = _all_that_work(work, rows[:half])
        second, second_failed = _all_that_work(work, rows[half:])
        return first + second, first_failed + second_failed


def _rejected_for(row: int, smiles: str, error: Exception, what: str = "") -> NamedRejectedRow:
    """Make a rejected row with the error on one line."""
    reason = shortened(one_line(str(error)) or type(error).__name__, 300)
    return NamedRejectedRow(row, shortened(smiles, MAX_QUOTED), f"{what}{reason}")
