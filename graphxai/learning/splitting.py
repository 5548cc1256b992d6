"""The first stage of a table's training: split its molecules, and say what looks suspicious."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from torch_geometric.data import Data

from graphxai.contract.tasks import Task
from graphxai.datasets.splits import (
    Split,
    cluster_split,
    given_split,
    random_split,
    scaffold_folds,
    scaffold_split,
    time_split,
)
from graphxai.learning.cleaned_table import CleanTable, TargetColumn
from graphxai.learning.finetuning import molecule_config
from graphxai.learning.leaks import leak_warnings
from graphxai.learning.predicting import encode_all, predict
from graphxai.learning.settings import TableSettings
from graphxai.models.graphormer import load_checkpoint, locate

__all__ = ["SplitTable", "TablePart", "split_table", "table_split", "table_tasks", "with_share"]

FloatArray = NDArray[np.float64]
SPLITS = ("scaffold", "random", "clusters", "time", "column")
FOLDS = 4  # of the training part, each predicted by models that learned from the others
CHECKED_FOR_LEAKS = 1000  # molecules, at most
RARE = 0.1  # share of the training molecules below which a class is called rare


@dataclass(frozen=True, eq=False)
class TablePart:
    """The training, validation or test part of a table.

    Attributes:
        positions: positions of its molecules in the table (m,).
        graphs: the encoded molecules (m,).
        smiles: their SMILES (m,).
        y: their labels (m, tasks), NaN where one is missing.
        bounds: the lowest and highest possible values (m, tasks, 2), see `learning.bounds`.
    """

    positions: tuple[int, ...]
    graphs: list[Data]
    smiles: tuple[str, ...]
    y: FloatArray
    bounds: FloatArray


@dataclass(frozen=True, eq=False)
class SplitTable:
    """A table that is ready to train on.

    Attributes:
        table: molecules and labels.
        parts: positions of the training, validation and test molecules.
        tasks: one task per target; values are standardised on the training labels.
        graphs: the encoded molecules (n,).
        y: their labels (n, tasks), NaN where one is missing.
        warnings: what a user should know before training.
        share: the share of the training part that is used, below 1 on a learning curve.
    """

    table: CleanTable
    parts: Split
    tasks: tuple[Task, ...]
    graphs: list[Data]
    y: FloatArray
    warnings: tuple[str, ...] = ()
    share: float = 1.0

    @cached_property
    def train(self) -> TablePart:
        """The molecules to learn from."""
        return self._part(self.parts.train)

    @cached_property
    def valid(self) -> TablePart:
        """The molecules held out for calibration."""
        return self._part(self.parts.valid)

    @cached_property
    def test(self) -> TablePart:
        """The molecules held out for the scores."""
        return self._part(self.parts.test)

    def _part(self, positions: Sequence[int]) -> TablePart:
        """Return the molecules at some positions."""
        graphs = [self.graphs[k] for k in positions]
        smiles = tuple(graph.smiles for graph in graphs)
        places = list(positions)
        return TablePart(tuple(positions), graphs, smiles, self.y[places], self.bounds[places])

    @cached_property
    def folds(self) -> list[NDArray[np.intp]]:
        """Positions in the training part that are predicted without being learned from, by fold.

        Folds are of scaffolds, as new molecules usually are. The test part of a random split
        resembles the training part, and so do the folds.
        """
        smiles = self.train.smiles
        if self.parts.kind != "random":
            return [fold for fold in scaffold_folds(smiles, FOLDS) if len(fold)]
        order = np.random.default_rng(self.parts.seed or 0).permutation(len(smiles))
        return [np.sort(order[first::FOLDS]) for first in range(min(FOLDS, len(smiles)))]

    @cached_property
    def bounds(self) -> FloatArray:
        """The bounds of the labels (n, tasks, 2), see `learning.bounds`."""
        return self.table.bounds

    def __str__(self) -> str:
        sizes = [len(part) for part in (self.parts.train, self.parts.valid, self.parts.test)]
        train, valid, test = (f"{size:,}" for size in sizes)
        calibrate = f", calibrate {valid}" if self.parts.valid else ""
        return f"{self.parts.kind} split: train {train}{calibrate}, test {test}"


def split_table(table: CleanTable, settings: TableSettings) -> SplitTable:
    """Split a table, make its tasks, encode its molecules, and look for reasons to warn.

    Raises:
        ValueError: the split leaves too little to train on, see `table_split`.
    """
    parts = table_split(
        table,
        settings.split_kind,
        settings.seed,
        settings.named_column,
        set_aside=not settings.teacher,
    )
    y = table.y
    training_labels = y[list(parts.train)]
    tasks = table_tasks(table.targets, training_labels)
    rare = _rare_classes(table.targets, training_labels)
    config = molecule_config(tasks)
    graphs = encode_all(table.graphs, config)
    leaks = []
    if settings.init_weights is not None:
        start = load_checkpoint(locate(settings.init_weights))
        checked = np.linspace(0, len(y) - 1, min(len(y), CHECKED_FOR_LEAKS)).astype(int)
        outputs = predict(start, [graphs[k] for k in checked]).double().numpy()
        name = str(settings.init_weights)
        leaks = leak_warnings(table.targets, y[checked], start.config.tasks, outputs, name)
    return SplitTable(table, parts, tasks, graphs, y, (*leaks, *rare))


def with_share(split: SplitTable, share: float, seed: int) -> SplitTable:
    """Return the same table with a share of its training part, for a learning curve.

    Smaller shares are subsets of larger ones. The tasks are standardised anew.
    """
    order = list(split.parts.train)
    random.Random(seed).shuffle(order)
    train = tuple(sorted(order[: max(2, round(share * len(order)))]))
    tasks = table_tasks(split.table.targets, split.y[list(train)])
    parts = replace(split.parts, train=train)
    return replace(split, parts=parts, tasks=tasks, warnings=(), share=share)


def table_split(
    table: CleanTable,
    kind: str = "scaffold",
    seed: int = 0,
    column: str | None = None,
    *,
    set_aside: bool = True,
) -> Split:
    """Split the molecules into a training, a validation and a test part.

    Args:
        table: the molecules.
        kind: 80/10/10 by "scaffold" (deterministic), "random" (with `seed`), "clusters" of similar
            molecules, "time" (oldest to newest by `column`); or "column", the parts that it names.
        seed: seed of a random split, and of a validation part that a column lacks.
        column: column of the file for "time" and "column". If a molecule has several rows, the
            first one counts.
        set_aside: whether to set molecules aside for validation. If not, they are trained on, and
            only those that a column marks as "valid" are held out.

    Raises:
        ValueError: an unknown kind; a column that is missing, not needed or not understood; one
            scaffold has most of the molecules; or the training part lacks a class, or has only one
            value.
    """
    if kind not in SPLITS:
        raise ValueError(f"split must be one of {', '.join(SPLITS)}, not {kind!r}.")
    if (column is not None) != (kind in ("column", "time")):
        raise ValueError("a column is needed to split by column or time, and for nothing else.")
    if column is not None:
        cells = table.cells(column)
        if kind == "time":
            split = time_split(cells, rows=table.rows)
        else:
            split = given_split(cells, seed, table.rows, draw_valid=set_aside)
    elif kind == "random":
        split = random_split(len(table.graphs), seed)
    else:
        split = _structural_split([graph.smiles for graph in table.graphs], kind)
    if kind != "column" and not set_aside:
        split = replace(split, train=tuple(sorted(split.train + split.valid)), valid=())
    _require_labels(table.targets, table.y[list(split.train)], kind)
    return split


def _structural_split(smiles: Sequence[str], kind: str) -> Split:
    """Split by scaffold or by clusters, but not if a single group has most molecules."""
    split = (scaffold_split if kind == "scaffold" else cluster_split)(smiles)
    if len(split.train) < len(smiles) / 2 or not split.test:
        group = "scaffold" if kind == "scaffold" else "cluster"
        raise ValueError(
            f"splitting by {group} leaves {len(split.train)} of {len(smiles)} molecules for"
            f" training and {len(split.test)} for testing: most share one {group}, as in a"
            " congeneric series. Try --split random."
        )
    return split


def _require_labels(targets: Sequence[TargetColumn], y: FloatArray, kind: str) -> None:
    """Refuse training labels y (n, targets) that lack a class or have only one value."""
    for target, labels in zip(targets, y.T, strict=True):
        distinct = np.unique(labels[~np.isnan(labels)])
        if len(distinct) < max(2, len(target.classes)):
            other = "another --seed" if kind == "random" else "--split random"
            content = "classes" if target.classes else "values"
            rare = ", or merge rare classes" if target.classes else ""
            raise ValueError(
                f"target {target.name!r}: the training part of the {kind} split has"
                f" {len(distinct)} of the {max(2, len(target.classes))} {content} needed: try"
                f" {other}{rare}."
            )


def table_tasks(targets: Sequence[TargetColumn], y: FloatArray) -> tuple[Task, ...]:
    """Return the model's tasks, with values standardised on training labels y (n, targets)."""
    tasks = []
    for target, column in zip(targets, y.T, strict=True):
        if target.kind == "classification":
            kind = "binary" if len(target.classes) == 2 else "multiclass"
            tasks.append(Task(target.name, kind, target.classes))  # type: ignore[arg-type]
        else:
            measured = column[~np.isnan(column)]
            mean = float(measured.mean()) if len(measured) else 0.0
            deviation = float(measured.std()) if len(measured) > 1 else 0.0
            scale = deviation or 1.0
            tasks.append(Task(target.name, "regression", (), target.unit, mean, scale))
    return tuple(tasks)


def _rare_classes(targets: Sequence[TargetColumn], y: FloatArray) -> list[str]:
    """Say which classes are rare in training labels y (n, targets), and what is done about it."""
    warnings = []
    for target, column in zip(targets, y.T, strict=True):
        measured = column[~np.isnan(column)]
        if target.kind != "classification" or not len(measured):
            continue
        counts = np.bincount(measured.astype(int), minlength=len(target.classes))
        rarest = int(counts.argmin())
        if counts[rarest] < RARE * len(measured):
            share = counts[rarest] / len(measured)
            warnings.append(
                f"{target.name}: only {share:.1%} of the training molecules"
                f" ({counts[rarest]:,}) are {target.classes[rarest]!r}; the model starts from the"
                " frequencies of the classes"
                + (
                    f", and PR-AUC, {share:.2f} for a guess, says more than ROC-AUC"
                    if rarest == 1 and len(counts) == 2
                    else ""
                )
            )
    return warnings
