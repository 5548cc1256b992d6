"""Audit a model for bias: which groups does it favour, or disfavour, more than the labels do?

    gx.audit(model, "table.csv")
    gx.audit(model, graphs, labels, parts=[{"names": [3, 4]}, ...])

A group is a fragment, a scaffold, a salt, a part of graphs or a word. Ali (2022, section 6.4) ranks
groups by their relevance. A model may favour a group with good reason, so each is tested here
against the labels of the same objects.
"""

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from graphxai.contract.inputs import as_list
from graphxai.contract.target import Target
from graphxai.contract.tasks import Task
from graphxai.datasets.labels import not_understood, read_measured, with_unit
from graphxai.datasets.tables.table import Record, Table, open_table
from graphxai.evaluation.statistics import GroupTest, bootstrap, holm
from graphxai.explainers.registry import Method, get_explainer
from graphxai.explanation import files
from graphxai.explanation.api import KnownTarget, explain
from graphxai.explanation.compute.lists import OnError
from graphxai.explanation.compute.models import Model, loaded
from graphxai.explanation.explanation import Explanation
from graphxai.explanation.labelled import short_text
from graphxai.explanation.result import table_html

from .fragment_table import FragmentTable
from .fragments import REST, Fragments, fragments
from .modalities import Core
from .schemes import AUTO, Scheme

FloatArray = NDArray[np.float64]
Order = Literal["evidence", "share"]
COLUMNS = (
    *("name", "smiles", "objects", "share", "share_low", "share_high"),
    *("predicted", "labelled", "excess", "excess_low", "excess_high"),
    *("evidence", "p", "p_holm", "verdict", "examples"),
)
TESTED = ("key", "evidence", "p", "p_holm", "verdict")
AT_LEAST = 5  # objects that a group must occur in
DRAWS = 1000  # resamplings for an interval
SIGNIFICANT = 0.05
SHOWN = 12  # groups that a notebook or a terminal shows
HEAD = ("group", "objects", "share", "predicted", "labelled", "p (Holm)", "verdict")


@dataclass(frozen=True, eq=False)
class Audit:
    """The groups of a set of objects, those first that model and labels judge most differently.

    Args:
        frame: the table of `to_frame`.
        target: the explained output, as text.
        title: the title of the method.
        objects: how many objects were audited.
        slope: the change in the log-odds of the label, or in the value, for one unit of the output.
            Far below 1, the model is too sure of itself, and at 0 the labels do not follow it.
    """

    frame: pd.DataFrame
    target: str
    title: str
    objects: int
    slope: float

    def to_frame(self, order: Order = "evidence") -> pd.DataFrame:
        """Return a table with a row per group, which has these columns:

        - name and smiles: of the group; smiles is empty where it is no fragment.
        - objects: how many contain it.
        - share: the mean over these of its summed relevance, with a 95 % bootstrap interval in
          share_low and share_high. It is positive if the group speaks for the target.
        - predicted and labelled: the mean probability of the target and how often the label is it,
          or the means of predicted and measured values, over the objects with the group.
        - excess: the mean of predicted minus labelled, with its bootstrap interval.
        - evidence: the log-likelihood that the labels gain by a constant for the objects with the
          group, and by taking away as much of its share as makes them most likely. Both allow for
          a model that is too sure of itself, and for the groups above with a verdict.
        - p and p_holm: of the likelihood-ratio test that the constant is zero, and after Holm's
          correction over all groups.
        - verdict: "favoured" or "disfavoured" by the model more than by the labels, or "".
        - examples: the objects in which it is strongest, separated by spaces.

        Args:
            order: "evidence" puts the strongest evidence first, and "share" the largest share.
        """
        if order not in ("evidence", "share"):
            raise ValueError(f"the order is 'evidence' or 'share', not {order!r}.")
        by = {"evidence": self.frame.index, "share": -self.frame.share}[order]
        return self.frame.iloc[np.argsort(by, kind="stable")].reset_index(drop=True)

    @property
    def flagged(self) -> pd.DataFrame:
        """The groups with a verdict."""
        return self.frame[self.frame.verdict != ""]

    @property
    def headline(self) -> str:
        """How many groups of how many objects were tested, and how many have a verdict."""
        groups = "1 group" if len(self.frame) == 1 else f"{len(self.frame):,} groups"
        return (
            f"{groups} in {self.objects:,} objects, {self.title} for {self.target}:"
            f" {len(self.flagged)} favoured or disfavoured more than by the labels"
        )

    def __repr__(self) -> str:
        lines = [
            f"{name}: share {share}, predicted {predicted}, labelled {labelled}, p {p} {verdict}"
            for name, _, share, predicted, labelled, p, verdict in self.cells()
        ]
        return short_text([f"Audit({self.headline})", *map(str.rstrip, lines)])

    def cells(self, count: int = SHOWN) -> list[tuple[str, ...]]:
        """Return the first groups as text, in the columns `HEAD`."""
        cells: list[tuple[str, ...]] = []
        for row in self.frame.head(count).itertuples(index=False):
            figures = f"{row.share:+z.2f}", f"{row.predicted:z.2f}", f"{row.labelled:z.2f}"
            cells.append((row.name, str(row.objects), *figures, f"{row.p_holm:.2g}", row.verdict))
        return cells

    def _repr_html_(self) -> str:
        return f"{table_html([self.headline], [])}{table_html(HEAD, self.cells())}"

    def save(self, path: str | Path, **options: Any) -> Path:
        """Write the table as .csv, .tsv, .parquet or .json, or raise ValueError for another suffix.

        Options are those of `files.write_table`, for text.
        """
        path = files.writable(path, (*files.FRAMES, ".json"))
        if path.suffix.lower() == ".json":
            about = {"target": self.target, "method": self.title, "objects": self.objects}
            rows = self.frame.to_dict("records")
            return files.write_json({**about, "slope": self.slope, "groups": rows}, path)
        return files.write_table(self.frame, path, **options)


class GroupEvidence:
    """The shares of the groups of all objects added so far, beside outputs and labels."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.table = FragmentTable()
        self._shares: dict[str, dict[int, float]] = {}
        self._rows: list[tuple[float, float, float]] = []  # output, predicted, labelled
        self._last: Explanation | None = None

    def add(self, parts: Fragments, label: float, example: str = "") -> None:
        """Add an object with its label, unless the same molecule was added before.

        Args:
            label: the number of its class, or the measured value. NaN leaves the object out.
            example: what it is called among the examples, by default its SMILES.
        """
        if math.isnan(label):
            return
        explanation = parts.explanation
        choice, prediction = explanation.wanted.choice, explanation.prediction
        shares = self.table.add(parts, example)
        if not shares:
            return
        if prediction.label is None:
            predicted, labelled = float(prediction.value or 0.0), label
        else:
            predicted = prediction.probabilities[str(choice)]
            labelled = float(label == self.task.classes.index(str(choice)))
        for key, share in shares.items():
            if key != REST:
                self._shares.setdefault(key, {})[len(self._rows)] = share
        self._rows.append((explanation.output, predicted, labelled))
        self._last = explanation

    def audit(self, *, at_least: int = AT_LEAST, seed: int = 0) -> Audit:
        """Test each group that occurs in enough objects.

        Args:
            at_least: how many objects a group must occur in.
            seed: of the bootstrap intervals.

        Raises:
            ValueError: no object has a label, all have the same, or no group occurs often enough.
        """
        output, predicted, labelled = np.array(self._rows, dtype=float).reshape(-1, 3).T
        if self._last is None or np.ptp(labelled) == 0:
            seen = "no object has a label" if self._last is None else "all labels are the same"
            raise ValueError(f"{seen} of {self.task.name!r}: an audit needs different labels.")
        frame = self.table.by_key(at_least)
        frame = frame[frame.index != REST]
        if not len(frame):
            raise ValueError(
                f"no group occurs in at least {at_least} objects: give more objects or divide them"
                " another way. A model sees salts if it reads molecules as drawn (as_drawn=True)."
            )
        test = GroupTest(output, labelled, binary=bool(self.task.classes))
        tested = pd.DataFrame(self._tested(list(frame.index), test), columns=list(TESTED))
        measured = {}
        for key in tested.key:
            having = list(self._shares[key])
            share = bootstrap(list(self._shares[key].values()), draws=DRAWS, seed=seed)
            gap = bootstrap((predicted - labelled)[having], draws=DRAWS, seed=seed)
            means = predicted[having].mean(), labelled[having].mean()
            ends = share.mean, share.low, share.high, *means, gap.mean, gap.low, gap.high
            measured[key] = (len(having), *ends)
        figures = pd.DataFrame.from_dict(measured, "index", columns=list(COLUMNS[2:11]))
        ranked = tested.set_index("key").join([figures, frame])[list(COLUMNS)]
        ranked = ranked.reset_index(drop=True)
        target = with_unit(self._last.subject, self._last.unit)
        return Audit(ranked, target, self._last.title, len(output), test.slope)

    def _tested(self, keys: list[str], test: GroupTest) -> list[tuple[Any, ...]]:
        """Return the values of `TESTED`, the strongest first, given those with a verdict before."""
        rows: list[tuple[Any, ...]] = []
        left = list(keys)
        while True:
            tests = sorted(
                ((key, *test(*self._group(key))) for key in left),
                key=lambda each: (-each[3], each[2], each[0]),
            )
            adjusted = holm([p for _, _, p, _ in tests])
            order = list(zip(tests, adjusted, strict=True))
            sure = next((each for each in order if each[1] < SIGNIFICANT), None)
            if sure is None:
                return rows + [(key, gain, p, high, "") for (key, _, p, gain), high in order]
            (key, constant, p, gain), high = sure
            rows.append((key, gain, p, high, "favoured" if constant < 0 else "disfavoured"))
            left.remove(key)
            test.allow(*self._group(key))

    def _group(self, key: str) -> tuple[NDArray[np.bool_], FloatArray]:
        """Return which objects have a group (n,), and its share in each of them (n,)."""
        shares = np.zeros(len(self._rows))
        shares[list(self._shares[key])] = list(self._shares[key].values())
        having = np.zeros(len(self._rows), dtype=bool)
        having[list(self._shares[key])] = True
        return having, shares


def audited_task(model: Model, target: KnownTarget, method: Method | None) -> Task:
    """Return the task to audit.

    Raises:
        ValueError: the method has no shares of the output, or the target is not one class or value.
    """
    explainer = get_explainer(method, model=model)
    if not explainer.traits.adds_up:
        raise ValueError(
            f"an audit needs shares of the output, and the scores of {explainer.title} are none:"
            " use a method such as lrp."
        )
    chosen = Target.of(target)
    task = chosen.task_in(model.config)
    if isinstance(chosen.choice, tuple) or (task.kind == "multiclass" and chosen.choice is None):
        raise ValueError(f"an audit needs one class or value: name a class of {task.name!r}.")
    return task


def labels_in(
    table: Table, task: Task, column: str | None = None, threshold: float | None = None
) -> tuple[list[Record], FloatArray]:
    """Read the rows of a table and their labels (n,) of a task, NaN where there is none.

    A warning counts the labels that are not understood.

    Args:
        column: the column of the labels, by default the one that is named after the task.
        threshold: as for `audit`.

    Raises:
        ValueError: there is no such column.
    """
    source = column or table.source_of(task.name, task.unit) or table.column(task.name)
    rows, plain = table.measured(source, [task.name])
    return rows, _read(plain.cells, task, source, threshold)


def _read(cells: Sequence[Any], task: Task, name: str, threshold: float | None) -> FloatArray:
    """Return labels (n,) for cells, NaN for those without one."""
    if threshold is not None and task.kind != "binary":
        raise ValueError(f"a threshold makes two classes of values, but {task.name!r} has not two.")
    texts = ["" if cell is None else str(cell) for cell in cells]
    labels, bounds, strange = read_measured(texts, task.classes if threshold is None else ())
    if strange:
        warnings.warn(not_understood(name, texts, strange), stacklevel=3)
    if bounds:
        said = f"{len(bounds):,} measured values in column {name!r} are bounds, and are left out."
        warnings.warn(said, stacklevel=3)
    if threshold is not None:
        labels = np.where(np.isnan(labels), np.nan, labels >= threshold)
    return labels


def audit(
    model: "Model | str | Path",
    inputs: Any,
    labels: "Sequence[Any] | str | None" = None,
    parts: "Scheme | Sequence[Mapping[str, Any]]" = AUTO,
    method: Method | None = None,
    *,
    target: KnownTarget = None,
    threshold: float | None = None,
    at_least: int = AT_LEAST,
    seed: int = 0,
    on_error: OnError = "warn",
    progress: bool | None = None,
    workers: int | None = 1,
) -> Audit:
    """Find the groups that a model favours, or disfavours, more than the labels do.

    For each group, such as a fragment, the audit compares its share of the output with the labels
    of the objects that contain it. The first group is the one that model and labels judge most
    differently. A compound that occurs several times counts once. Give labels of objects that the
    model did not learn from: it has learned those of its training set, with their bias.

    Args:
        model: a model from `load` or `wrap`, or its name.
        inputs: the path of a table of molecules, a frame, or a list as for `explain`.
        labels: the label of each input: a class by name or number, or a value. For a table or a
            frame, the name of the column, by default that of the task.
        parts: how inputs are divided, as for `fragments`, such as "brics", "scaffold", "groups" or
            "components" (salts), or a list with the parts {name: numbers of nodes} of each graph or
            text. Parts of one name are one group.
        method: a method whose relevance is a share of the output.
        target: the class or task to audit, as for `explain`. A model of several classes needs one.
        threshold: for labels that are numbers, and a task with two classes, the value from which
            the second class begins.
        at_least: how many objects a group must occur in.
        seed: of the bootstrap intervals.
        on_error, progress, workers: as for `explain`.

    Returns:
        An `Audit`, which is a table.

    Raises:
        ValueError: there are no labels or not one for each input, no group occurs often enough, the
            method has no shares, or the target is not one class or value.
    """
    model = loaded(model)
    task = audited_task(model, target, method)
    if isinstance(inputs, str | Path):
        table, column = open_table(inputs), labels if isinstance(labels, str) else None
        rows, read = labels_in(table, task, column, threshold)
        inputs = [row.cells[table.structures.name] for row in rows]
    else:
        if labels is None or isinstance(labels, str):
            column = task.name if labels is None else labels
            if column not in getattr(inputs, "columns", ()):
                raise ValueError(f"the inputs have no column {column!r}: give their labels.")
            labels = inputs[column].tolist()
        read = _read([*labels], task, "labels", threshold)
    values, _ = as_list(inputs)
    if len(values) != len(read):
        raise ValueError(f"{len(read)} labels for {len(values)} inputs.")
    each: list[Any] = [parts] * len(values)
    if not isinstance(parts, str | Mapping | Core) and all(isinstance(p, Mapping) for p in parts):
        each = list(parts)
    if len(each) != len(values):
        raise ValueError(f"parts of {len(each)} inputs for {len(values)} inputs.")
    run: dict[str, Any]
    explainer, run = get_explainer(method, model=model), {"progress": progress, "workers": workers}
    explained = explain(model, values, explainer, target=target, on_error=on_error, **run)
    evidence = GroupEvidence(task)
    for place, (explanation, label) in enumerate(zip(explained, read.tolist(), strict=True)):
        if explanation is not None:
            name = explanation.smiles or str(place)
            evidence.add(fragments(explanation, each[place]), label, name)
    return evidence.audit(at_least=at_least, seed=seed)
