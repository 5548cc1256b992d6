"""The recipe for a table of one's own: fine-tune, calibrate, measure beside a forest."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch_geometric.data import Data

from graphxai.datasets.hygiene import CleanTable, Target
from graphxai.datasets.splits import Split, random_split, scaffold_split

from .checkpoint import load_checkpoint, locate, save_checkpoint
from .config import Task
from .loading import encode_all
from .model import Graphormer
from .recipes import FINETUNING, PRETRAINED, finetune, molecule_config
from .report import scale_logits
from .table_records import split_rows, summary, table_card, write_scores, write_test, write_training
from .table_scores import (
    dummy_predictions,
    forest_predictions,
    measure,
    readings,
    task_temperature,
)
from .teacher import ecfp4
from .training import TrainingSettings, predict, require_lightning

__all__ = ["table_split", "table_tasks", "train_table"]

FloatArray = NDArray[np.float64]
FROM_SCRATCH = replace(FINETUNING, epochs=40, learning_rate=1e-3, head_learning_rate=None)
LEARNING_CURVE = (0.125, 0.25, 0.5)  # of the training part; the run itself is the whole


def table_split(table: CleanTable, kind: str = "scaffold", seed: int = 0) -> Split:
    """80/10/10 of the molecules, `kind` "scaffold" (no chance involved) or "random" (by `seed`).

    Raises:
        ValueError: another kind; or the training part lacks a class, or holds one value only.
    """
    if kind not in ("scaffold", "random"):
        raise ValueError(f"split must be 'scaffold' or 'random', not {kind!r}.")
    if kind == "random":
        split = random_split(len(table.graphs), seed)
    else:
        split = scaffold_split([graph.smiles for graph in table.graphs])
    labels = table.y[list(split.train)]
    for target, y in zip(table.targets, labels.T, strict=True):
        distinct = np.unique(y[~np.isnan(y)])
        if len(distinct) < max(2, len(target.classes)):
            other = "another --seed" if kind == "random" else "--split random"
            raise ValueError(
                f"target {target.name!r}: the training part of the {kind} split holds"
                f" {len(distinct)} of the {max(2, len(target.classes))} classes or values needed:"
                f" try {other}, or merge rare classes."
            )
    return split


def table_tasks(targets: Sequence[Target], y: FloatArray) -> tuple[Task, ...]:
    """The model's tasks; values are standardised with the training labels y (n, targets)."""
    tasks = []
    for target, column in zip(targets, y.T, strict=True):
        if target.kind == "classification":
            kind = "binary" if len(target.classes) == 2 else "multiclass"
            tasks.append(Task(target.name, kind, target.classes))  # type: ignore[arg-type]
        else:
            known = column[~np.isnan(column)]
            mean = float(known.mean()) if len(known) else 0.0
            deviation = float(known.std()) if len(known) > 1 else 0.0
            tasks.append(Task(target.name, "regression", offset=mean, scale=deviation or 1.0))
    return tuple(tasks)


def train_table(
    table: CleanTable,
    out: str | Path,
    *,
    split: str = "scaffold",
    seed: int = 0,
    epochs: int | None = None,
    start: str | Path | None = PRETRAINED,
    learning_curve: bool = False,
    resume: bool = False,
    accelerator: str = "auto",
    devices: int | str = 1,
    progress: bool = True,
    command: str = "",
    say: Callable[[str], None] = lambda line: None,
) -> Path:
    """Train a Graphormer on a table and measure it on its test molecules.

    Args:
        table: molecules and labels.
        out: folder of the run, with `hygiene.json`, `hygiene.csv`, `test.csv` (predictions);
            the checkpoint is its sub-folder `model`, with `scores.json` and `training.csv`.
        split: "scaffold" or "random", see `table_split`.
        seed: of the weights, the order of the graphs, a random split and the learning curve.
        epochs: None means the recipe's: 20, from scratch 40.
        start: weights to start from, by name (the bundled "molecules") or folder; None: scratch.
        learning_curve: also train on an eighth, a quarter and half of the training part.
        resume: go on with an interrupted run in `out`.
        accelerator: Lightning's.
        devices: Lightning's.
        progress: whether progress bars are shown.
        command: how the run was started, for the card.
        say: is given lines on what goes on.

    Returns:
        The checkpoint folder.

    Raises:
        ImportError: the extra `train` is not installed.
        ValueError: `out` holds a run and `resume` is False, or it is of another table or setting;
            or the split leaves too little to train on.
    """
    require_lightning()
    out = Path(out)
    parts = table_split(table, split, seed)
    note = _seen_before(start, table)
    if note:
        say(note)
    tasks = table_tasks(table.targets, table.y[list(parts.train)])
    recipe = FROM_SCRATCH if start is None else FINETUNING
    settings = replace(
        recipe,
        seed=seed,
        accelerator=accelerator,
        devices=devices,
        progress=progress,
        epochs=recipe.epochs if epochs is None else epochs,
    )
    run = _run(table, split, start, settings)
    _begin(out, run, resume)
    table.save(out)
    sizes = f"train {len(parts.train):,}, calibrate {len(parts.valid):,}, test {len(parts.test):,}"
    say(f"{split} split: {sizes}")
    fitting = _Fitting(
        encode_all(table.graphs, molecule_config(tasks)),
        table.y,
        table.targets,
        tasks,
        start,
        settings,
        resume,
    )
    model = fitting.model(parts, out)
    temperatures = _calibrate(model, fitting, parts.valid)
    say("random forest on ECFP4 beside it")
    scores = fitting.scores(model, parts)
    curve: list[dict[str, Any]] = []
    for share in LEARNING_CURVE if learning_curve else ():
        say(f"learning curve: {share:.1%} of the training part")
        curve.append(fitting.point(share, parts, out / "learning-curve" / f"{share:g}"))
    if curve:
        curve.append({"share": 1.0, "n": len(parts.train), "targets": scores})
    metadata = run | {
        "data": table.path.name,
        "split": split_rows(parts, table.rows),
        "rows": table.read,
        "molecules": len(table.graphs),
        "temperature": temperatures,
        "scores": scores,
        "learning_curve": curve,
        "notes": [note] if note else [],
        "summary": summary(scores),
    }
    card = table_card(table, parts, metadata, command)
    folder = save_checkpoint(model, out / "model", card=card, metadata=metadata)
    write_scores(folder / "scores.json", metadata)
    write_training(folder / "training.csv", table, parts.train)
    write_test(out / "test.csv", table, parts.test, tasks, fitting.readings(model, parts.test))
    return folder


@dataclass(frozen=True, eq=False)
class _Fitting:
    """What all trainings of a run share: encoded graphs, labels (n, tasks), tasks, settings."""

    graphs: list[Data]
    y: FloatArray
    targets: tuple[Target, ...]
    tasks: tuple[Task, ...]
    start: str | Path | None
    settings: TrainingSettings
    resume: bool

    def model(self, parts: Split, out: Path) -> Graphormer:
        """A Graphormer trained on the training part."""
        return finetune(
            self.graphs,
            self.tasks,
            parts,
            out,
            start=self.start,
            settings=self.settings,
            resume=self.resume,
        )

    def outputs(self, model: Graphormer, chosen: Sequence[int]) -> list[torch.Tensor]:
        """The model's outputs for graphs, (n, columns) a task."""
        found = predict(model, [self.graphs[k] for k in chosen])
        return [found[:, model.config.task_columns(task.name)[1]] for task in self.tasks]

    def readings(self, model: Graphormer, chosen: Sequence[int]) -> list[FloatArray]:
        """The model's probabilities and values for graphs, by task."""
        each = zip(self.tasks, self.outputs(model, chosen), strict=True)
        return [readings(task, outputs) for task, outputs in each]

    def scores(self, model: Graphormer, parts: Split) -> dict[str, Any]:
        """Scores on the test part by target: the model, a forest, a dummy."""
        train, test = np.array(parts.train), np.array(parts.test)
        bits = ecfp4([self.graphs[k].smiles for k in (*train, *test)])
        bits_train, bits_test = bits[: len(train)], bits[len(train) :]
        found: dict[str, dict[str, Any]] = {}
        for k, (task, read) in enumerate(
            zip(self.tasks, self.readings(model, parts.test), strict=True)
        ):
            known, judged = ~np.isnan(self.y[train, k]), ~np.isnan(self.y[test, k])
            learned = self.y[train[known], k]
            found[task.name] = {"kind": task.kind, "trained": len(learned), "n": 0, "scores": {}}
            if not len(learned) or not judged.any():
                continue
            predictions = {
                "graphormer": read[judged],
                "forest": forest_predictions(
                    task, bits_train[known], learned, bits_test[judged], self.settings.seed
                ),
                "dummy": dummy_predictions(task, learned, int(judged.sum())),
            }
            found[task.name] |= measure(task.kind, predictions, self.y[test[judged], k])
        return found

    def point(self, share: float, parts: Split, out: Path) -> dict[str, Any]:
        """A point of the learning curve: the same test part, a share of the training part."""
        order = list(parts.train)
        random.Random(self.settings.seed).shuffle(order)  # a smaller share is part of a larger
        chosen = tuple(sorted(order[: max(2, round(share * len(order)))]))
        fewer = replace(parts, train=chosen)
        part = replace(self, tasks=table_tasks(self.targets, self.y[list(chosen)]))
        model = part.model(fewer, out)
        _calibrate(model, part, parts.valid)
        return {"share": share, "n": len(chosen), "targets": part.scores(model, fewer)}


def _calibrate(
    model: Graphormer, fitting: _Fitting, valid: Sequence[int]
) -> dict[str, float | None]:
    """Fold a temperature, fitted on the validation part, into each class read-out."""
    found: dict[str, float | None] = {}
    if not valid:
        return {task.name: None for task in fitting.tasks}
    y = torch.from_numpy(fitting.y[list(valid)])
    for k, (task, outputs) in enumerate(
        zip(fitting.tasks, fitting.outputs(model, valid), strict=True)
    ):
        found[task.name] = temperature = task_temperature(task, outputs, y[:, k])
        if temperature is not None:
            scale_logits(model, task.name, temperature)
    return found


def _seen_before(start: str | Path | None, table: CleanTable) -> str:
    """A warning where the weights to start from were trained with a column of the same name."""
    if start is None:
        return ""
    trained = {task.name for task in load_checkpoint(locate(start)).config.tasks}
    same = [target.name for target in table.targets if target.name in trained]
    if not same:
        return ""
    return (
        f"the weights {str(start)!r} were trained with labels called {', '.join(same)}: if they are"
        " of the same data, test labels were seen and the scores below are too good; --start none"
        " gives honest ones"
    )


def _run(
    table: CleanTable, split: str, start: str | Path | None, settings: TrainingSettings
) -> dict[str, Any]:
    """What a resumed run must have in common with the one before."""
    return {
        "file": table.path.name,
        "sha256": table.sha256,
        "smiles_column": table.smiles_column,
        "targets": [asdict(target) for target in table.targets],
        "split": split,
        "seed": settings.seed,
        "epochs": settings.epochs,
        "start": None if start is None else str(start),
    }


def _begin(out: Path, run: dict[str, Any], resume: bool) -> None:
    """Make the folder, or check that it holds the same run."""
    stored = out / "run.json"
    text = json.dumps(run, indent=1) + "\n"
    if stored.exists() and (out / "state").exists():
        if not resume:
            raise ValueError(
                f"{out} holds a run already: go on with --resume, or choose another folder."
            )
        before = json.loads(stored.read_text(encoding="utf-8"))
        differing = [name for name, value in json.loads(text).items() if before.get(name) != value]
        if differing:
            raise ValueError(
                f"{out} holds a run with another {', '.join(differing)}: choose another folder."
            )
    out.mkdir(parents=True, exist_ok=True)
    stored.write_text(text, encoding="utf-8")
