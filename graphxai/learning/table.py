"""The recipe for your own table: fine-tune, learn from a teacher, calibrate, score."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch_geometric.data import Data

from graphxai.contract.tasks import Task
from graphxai.datasets.csv_files import iter_records
from graphxai.datasets.splits import (
    Split,
    cluster_split,
    given_split,
    random_split,
    scaffold_split,
    time_split,
)
from graphxai.datasets.training_set import write_held_out
from graphxai.learning.calibration import scale_logits
from graphxai.learning.cleaning import CleanTable, Target
from graphxai.learning.conformal import Unseen, calibrate
from graphxai.learning.fit import require_hardware
from graphxai.learning.leaks import labels_met
from graphxai.learning.loading import encode_all
from graphxai.learning.recipes.distillation import STUDENT, Distilled, distil_table
from graphxai.learning.recipes.molecules import FINETUNING, PRETRAINED, finetune, molecule_config
from graphxai.learning.scores import (
    dummy_predictions,
    measure,
    task_outputs,
    task_readings,
    task_temperature,
    verdicts,
)
from graphxai.learning.settings import TrainingSettings
from graphxai.learning.table_files import (
    begin_run,
    shares_text,
    split_rows,
    summary,
    table_card,
    write_scores,
    write_test,
    write_training,
)
from graphxai.learning.teachers.saved_teacher import save_teacher
from graphxai.learning.teachers.stacking import Features, Stack
from graphxai.models.graphormer import (
    Ensemble,
    LoadedModel,
    load_checkpoint,
    locate,
    measure_mean_node,
    members_of,
    save_checkpoint,
    save_ensemble,
)
from graphxai.models.graphormer.ensemble import MOST

__all__ = ["table_split", "table_tasks", "train_table"]

FloatArray = NDArray[np.float64]
FROM_SCRATCH = replace(FINETUNING, epochs=40, learning_rate=1e-3, head_learning_rate=None)
BASELINES = ("forest", "descriptor_forest")
RECOMBINED = 8000  # molecules for the teacher to label
SHARED_SETTINGS = ("seed", "accelerator", "devices", "precision", "progress")
SPLITS = ("scaffold", "random", "clusters", "time", "column")
RARE = 0.1  # share of the training molecules below which a class is named
LEARNING_CURVE = (0.125, 0.25, 0.5)  # fractions of the training part; the run itself uses all


def table_split(
    table: CleanTable, kind: str = "scaffold", seed: int = 0, column: str | None = None
) -> Split:
    """Split the molecules into a training, a validation and a test part.

    Args:
        table: the molecules.
        kind: 80/10/10 by "scaffold" (deterministic), "random" (with `seed`), "clusters" of similar
            molecules, "time" (oldest to newest by `column`); or "column", the parts that it names.
        seed: seed of a random split, and of a validation part that a column lacks.
        column: column of the file for "time" and "column". Of a molecule with several rows, the
            first one counts.

    Raises:
        ValueError: an unknown kind; a column that is missing, not needed or not understood; one
            scaffold has most of the molecules; or the training part lacks a class, or has only one
            value.
    """
    if kind not in SPLITS:
        raise ValueError(f"split must be one of {', '.join(SPLITS)}, not {kind!r}.")
    if (column is not None) != (kind in ("column", "time")):
        raise ValueError("a column is needed to split by column or time, and for nothing else.")
    smiles = [graph.smiles for graph in table.graphs]
    if column is not None:
        cells = dict(iter_records(table.path, (column,)))
        given = [cells[row][column] for row in table.rows]
        if kind == "time":
            split = time_split(given, rows=table.rows)
        else:
            split = given_split(given, seed, table.rows)
    elif kind == "random":
        split = random_split(len(smiles), seed)
    else:
        split = (scaffold_split if kind == "scaffold" else cluster_split)(smiles)
        if len(split.train) < len(smiles) / 2 or not split.test:
            what = "scaffold" if kind == "scaffold" else "cluster"
            raise ValueError(
                f"splitting by {what} leaves {len(split.train)} of {len(smiles)} molecules for"
                f" training and {len(split.test)} for testing: most share one {what}, as in a"
                " congeneric series. Try --split random."
            )
    labels = table.y[list(split.train)]
    for target, y in zip(table.targets, labels.T, strict=True):
        distinct = np.unique(y[~np.isnan(y)])
        if len(distinct) < max(2, len(target.classes)):
            other = "another --seed" if kind == "random" else "--split random"
            what = "classes" if target.classes else "values"
            rare = ", or merge rare classes" if target.classes else ""
            raise ValueError(
                f"target {target.name!r}: the training part of the {kind} split has"
                f" {len(distinct)} of the {max(2, len(target.classes))} {what} needed: try"
                f" {other}{rare}."
            )
    return split


def table_tasks(targets: Sequence[Target], y: FloatArray) -> tuple[Task, ...]:
    """Return the model's tasks; values are standardised on the training labels y (n, targets)."""
    tasks = []
    for target, column in zip(targets, y.T, strict=True):
        if target.kind == "classification":
            kind = "binary" if len(target.classes) == 2 else "multiclass"
            tasks.append(Task(target.name, kind, target.classes))  # type: ignore[arg-type]
        else:
            known = column[~np.isnan(column)]
            mean = float(known.mean()) if len(known) else 0.0
            deviation = float(known.std()) if len(known) > 1 else 0.0
            scale = deviation or 1.0
            tasks.append(Task(target.name, "regression", (), target.unit, mean, scale))
    return tuple(tasks)


def train_table(
    table: CleanTable,
    out: str | Path,
    *,
    split: str = "scaffold",
    split_column: str | None = None,
    seed: int = 0,
    epochs: int | None = None,
    distil: bool = True,
    keep_teacher: bool = False,
    ensemble: int = 1,
    start: str | Path | None = PRETRAINED,
    learning_curve: bool = False,
    resume: bool = False,
    accelerator: str = "auto",
    devices: int | str = 1,
    precision: str | None = None,
    progress: bool = True,
    command: str = "",
    say: Callable[[str], None] = lambda line: None,
) -> Path:
    """Train a Graphormer on a table and score it on its test molecules.

    Args:
        table: molecules and labels.
        out: folder of the run, with `hygiene.json`, `hygiene.csv`, `test.csv` (predictions);
            the checkpoint is its sub-folder `model`, with `scores.json`, `training.csv` and
            `held_out.csv`.
        split: "scaffold", "random", "clusters", "time" or "column", see `table_split`.
        split_column: column of the file with the times or the parts.
        seed: seed for the weights, the order of the graphs, a random split and the learning curve.
        epochs: epochs of fine-tuning; None means the recipe's: 20, or 40 from scratch.
        distil: whether the fine-tuned network then also learns from a teacher, see `distil_table`;
            this takes 6 more epochs (fewer if `epochs` is less).
        keep_teacher: whether to store the teacher beside the network, as `teacher.safetensors`;
            predictions then show the teacher's too, in further columns of a table.
        ensemble: number of networks, trained in the same way from consecutive seeds. With several,
            the checkpoint is an `Ensemble`: predictions are means, and relevance has a spread.
        start: weights to start from, by name (the bundled "molecules") or folder; None trains from
            scratch.
        learning_curve: also train on an eighth, a quarter and half of the training part.
        resume: continue an interrupted run in `out`.
        accelerator: Lightning's.
        devices: Lightning's.
        precision: Lightning's, such as "32-true" or "bf16-mixed"; None means the recipe's.
        progress: whether to show progress: bars on a terminal, elsewhere a line every 30 seconds.
        command: how the run was started, for the model card.
        say: called with a line of text at each stage.

    Returns:
        The checkpoint folder.

    Raises:
        ImportError: the extra `train` is not installed.
        ValueError: `out` already contains a run and `resume` is False, or the run has another table
            or other settings; the split leaves too little to train on; `keep_teacher` without
            `distil`; or `ensemble` is not from 1 to 50.
    """
    require_hardware(accelerator, devices, precision)
    if keep_teacher and not distil:
        raise ValueError("without distillation (--fast) there is no teacher to keep.")
    if not 1 <= ensemble <= MOST:
        raise ValueError(f"an ensemble has 1 to {MOST} networks, not {ensemble}.")
    out = Path(out)
    parts = table_split(table, split, seed, split_column)
    tasks = table_tasks(table.targets, table.y[list(parts.train)])
    graphs = encode_all(table.graphs, molecule_config(tasks))
    notes = [*_note(start, table, graphs), *_imbalance(table.targets, table.y[list(parts.train)])]
    for note in notes:
        say(note)
    recipe = FROM_SCRATCH if start is None else FINETUNING
    settings = recipe.changed(
        seed=seed,
        epochs=epochs,
        accelerator=accelerator,
        devices=devices,
        precision=precision,
        progress=progress,
    )
    run = {  # settings that must be the same when a run is resumed
        "file": table.path.name,
        "sha256": table.sha256,
        "smiles_column": table.smiles_column,
        "targets": [asdict(target) for target in table.targets],
        "split": split,
        "split_column": split_column,
        "standardise": table.standardise,
        "seed": seed,
        "epochs": settings.epochs,
        "distil": distil,
        "ensemble": ensemble,
        "start": None if start is None else str(start),
    }
    begin_run(out, run, resume)
    table.save(out)
    sizes = f"train {len(parts.train):,}, calibrate {len(parts.valid):,}, test {len(parts.test):,}"
    say(f"{split} split: {sizes}")
    fitting = _Fitting(graphs, table.y, table.targets, tasks, start, settings, distil, resume, say)
    found = fitting.ensemble(parts, out, ensemble)
    model = found.model
    if found.shares:
        say(f"the teacher's share, the rest is the network's own: {shares_text(found.shares)}")
    temperatures = fitting.calibrate(model, parts.valid)
    coverage = calibrate(model, graphs, table.y, parts, _of_teacher(found, split))
    if found.teacher is None:
        say("training random forests for comparison: on ECFP4, and on ECFP4 and descriptors")
    scores = fitting.scores(found, parts)
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
        "teacher_share": found.shares,
        "teacher": None if found.teacher is None else found.teacher.to_dict(),
        "recombined": found.molecules,
        "temperature": temperatures,
        "scores": scores,
        "coverage": coverage,
        "learning_curve": curve,
        "notes": [
            *notes,
            *_of_several(model, seed),
            *verdicts(scores),
            *fitting.behind(found, parts, keep_teacher),
        ],
        "summary": summary(scores),
    }
    card = table_card(table, parts, metadata, command)
    for member in members_of(model):
        if table.standardise:  # stored with the model, so that it predicts as it learned
            member.config.extra["standardise"] = True
        measure_mean_node(member, [graphs[k] for k in parts.train])
    if isinstance(model, Ensemble):
        folder = save_ensemble(model, out / "model", card=card, metadata=metadata)
    else:
        folder = save_checkpoint(model, out / "model", card=card, metadata=metadata)
    if keep_teacher and found.teacher is not None and any(found.teacher.weights):
        save_teacher(found.teacher, folder)
    write_scores(folder / "scores.json", metadata)
    write_training(folder / "training.csv", table, parts.train)
    held_out = {"validation": parts.valid, "test": parts.test}
    write_held_out(folder, {n: [table.canonical[k] for k in v] for n, v in held_out.items()})
    write_test(out / "test.csv", table, parts.test, tasks, fitting.readings(model, parts.test))
    return folder


@dataclass(frozen=True, eq=False)
class _Fitting:
    """What all training jobs of a run share: encoded graphs, labels (n, tasks), tasks, settings."""

    graphs: list[Data]
    y: FloatArray
    targets: tuple[Target, ...]
    tasks: tuple[Task, ...]
    start: str | Path | None
    settings: TrainingSettings
    distil: bool
    resume: bool
    say: Callable[[str], None]

    def ensemble(self, parts: Split, out: Path, count: int) -> Distilled:
        """Train several Graphormers from consecutive seeds, and one teacher for all of them."""
        found = self.model(parts, out)
        members = [found.model]
        for k in range(1, count):
            seed = self.settings.seed + k
            self.say(f"network {k + 1} of {count}, seed {seed}")
            another = replace(self, settings=replace(self.settings, seed=seed))
            members.append(another.model(parts, out / "networks" / str(k), found.teacher).model)
        return found if count == 1 else replace(found, model=Ensemble(members))  # type: ignore[arg-type]

    def model(self, parts: Split, out: Path, teacher: Stack | None = None) -> Distilled:
        """Train a Graphormer on the training part; without a teacher, choose one if wanted."""
        first = finetune(
            self.graphs,
            self.tasks,
            parts,
            out,
            start=self.start,
            settings=self.settings,
            resume=self.resume,
            at_frequencies=True,
        )
        if not self.distil:
            return Distilled(first, 0, {})
        common = {name: getattr(self.settings, name) for name in SHARED_SETTINGS}
        epochs = min(STUDENT.epochs, self.settings.epochs)
        return distil_table(
            first,
            self.graphs,
            self.y,
            parts,
            out / "distilled",
            molecules=RECOMBINED,
            teacher=teacher,
            settings=replace(STUDENT, epochs=epochs, **common),
            resume=self.resume,
            say=self.say,
        )

    def calibrate(self, model: LoadedModel, valid: Sequence[int]) -> dict[str, float | None]:
        """Fit a temperature on the validation part and fold it into each class read-out."""
        found: dict[str, float | None] = dict.fromkeys(task.name for task in self.tasks)
        if not valid:
            return found
        y = torch.from_numpy(self.y[list(valid)])
        outputs = task_outputs(model, [self.graphs[k] for k in valid])
        for task, each, labels in zip(self.tasks, outputs, y.T, strict=True):
            found[task.name] = temperature = task_temperature(task, each, labels)
            if temperature is not None:
                for member in members_of(model):
                    scale_logits(member, task.name, temperature)
        return found

    def readings(self, model: LoadedModel, chosen: Sequence[int]) -> list[FloatArray]:
        """Return the model's probabilities and values for graphs, by task."""
        return task_readings(model, [self.graphs[k] for k in chosen])

    def scores(self, trained: Distilled, parts: Split) -> dict[str, Any]:
        """Score the model, its teacher, two forests and a dummy on the test part, by target.

        The forests are the teacher's, or fitted here if there is no teacher.
        """
        train, test = list(parts.train), list(parts.test)
        teacher = trained.teacher or Stack.fit(
            self.tasks,
            [self.graphs[k].smiles for k in train],
            self.y[train],
            seed=self.settings.seed,
            choose=False,
            show=self.settings.show,
        )
        features = Features(tuple(self.graphs[k].smiles for k in test))
        forests = {name: teacher.sources[name].predict(features) for name in BASELINES}
        found: dict[str, dict[str, Any]] = {}
        for k, (task, read, taught) in enumerate(
            zip(
                self.tasks,
                self.readings(trained.model, parts.test),
                teacher.predict(features),
                strict=True,
            )
        ):
            judged = ~np.isnan(self.y[test, k])
            learned = self.y[train, k][~np.isnan(self.y[train, k])]
            about = {"kind": task.kind, "unit": task.unit}
            found[task.name] = about | {"trained": len(learned), "n": 0, "scores": {}}
            if not len(learned) or not judged.any():
                continue
            predictions = {"graphormer": read[judged]}
            if taught is not None:
                predictions["teacher"] = taught[judged]
            predictions |= {name: forests[name][k][judged] for name in BASELINES}
            predictions["dummy"] = dummy_predictions(task, learned, int(judged.sum()))
            found[task.name] |= measure(task.kind, predictions, self.y[test, k][judged])
        return found

    def behind(self, trained: Distilled, parts: Split, kept: bool) -> list[str]:
        """Name the targets that the teacher predicts better, judged on the validation part."""
        if trained.teacher is None or not parts.valid:
            return []
        valid = list(parts.valid)
        taught = trained.teacher.predict(Features(tuple(self.graphs[k].smiles for k in valid)))
        each = zip(self.tasks, self.readings(trained.model, valid), taught, strict=True)
        found = []
        for k, (task, own, readings) in enumerate(each):
            known = ~np.isnan(self.y[valid, k])
            if readings is None or not known.any():
                continue
            both = {"network": own[known], "teacher": readings[known]}
            judged = measure(task.kind, both, self.y[valid, k][known])
            metric, (middle, _, high) = next(iter(judged["differences"]["teacher"].items()))
            if high is not None and high < 0:
                found.append(
                    f"the teacher predicts {task.name} better than this model on the calibration"
                    f" molecules ({metric} {middle:+.3f}): "
                    + (
                        "its predictions are shown beside the model's"
                        if kept
                        else "--resume --keep-teacher stores its predictions beside the model's"
                    )
                )
        return found

    def point(self, share: float, parts: Split, out: Path) -> dict[str, Any]:
        """Compute a point of the learning curve: same test part, a `share` of the training part."""
        order = list(parts.train)
        random.Random(self.settings.seed).shuffle(order)  # smaller shares are subsets of larger
        chosen = tuple(sorted(order[: max(2, round(share * len(order)))]))
        fewer = replace(parts, train=chosen)
        part = replace(self, tasks=table_tasks(self.targets, self.y[list(chosen)]))
        found = part.model(fewer, out)
        part.calibrate(found.model, parts.valid)
        return {"share": share, "n": len(chosen), "targets": part.scores(found, fewer)}


def _of_teacher(found: Distilled, split: str) -> dict[str, Unseen]:
    """What the teacher said about training molecules of other scaffolds, for tasks that it taught.

    The network, which says nearly the same, has no such predictions. The molecules held out for
    calibration are few, and have few scaffolds. Empty for a random split: there, the molecules held
    out resemble those to come, and other scaffolds are harder.
    """
    if found.teacher is None or split == "random":
        return {}
    return {name: one for name, one in found.teacher.unseen.items() if found.shares.get(name)}


def _of_several(model: LoadedModel, seed: int) -> list[str]:
    """Describe an ensemble."""
    count = len(members_of(model))
    if count == 1:
        return []
    return [f"the mean of {count} networks, trained with the seeds {seed} to {seed + count - 1}"]


def _imbalance(targets: Sequence[Target], y: FloatArray) -> list[str]:
    """Say which classes are rare in training labels y (n, targets), and what is done about it."""
    found = []
    for target, column in zip(targets, y.T, strict=True):
        known = column[~np.isnan(column)]
        if target.kind != "classification" or not len(known):
            continue
        counts = np.bincount(known.astype(int), minlength=len(target.classes))
        rare = int(counts.argmin())
        if counts[rare] < RARE * len(known):
            share = counts[rare] / len(known)
            found.append(
                f"{target.name}: only {share:.1%} of the training molecules"
                f" ({counts[rare]:,}) are {target.classes[rare]!r}; the model starts from the"
                " frequencies of the classes"
                + (
                    f", and PR-AUC, {share:.2f} for a guess, says more than ROC-AUC"
                    if rare == 1 and len(counts) == 2
                    else ""
                )
            )
    return found


def _note(start: str | Path | None, table: CleanTable, graphs: Sequence[Data]) -> list[str]:
    """Return a warning if the starting weights seem to have been trained on the table's labels."""
    if start is None:
        return []
    reasons = labels_met(load_checkpoint(locate(start)), graphs, table.y, table.targets)
    if not reasons:
        return []
    return [
        f"the weights {str(start)!r} seem to have been trained on these labels:"
        f" {', '.join(reasons)}; if so, they have seen test labels and the scores below are too"
        " good; --start none gives honest scores"
    ]
