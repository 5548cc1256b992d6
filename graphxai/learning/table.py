"""A table of molecules as the source of a run: how it is split, taught, scored and described."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from graphxai.contract.prediction_metrics import FloatArray
from graphxai.datasets.splits import scaffold_folds
from graphxai.datasets.tables.assays import UNITS
from graphxai.datasets.training_set import HELD_OUT, held_out_csv
from graphxai.learning.card import (
    MOLECULES,
    counted,
    curve_text,
    summary,
    teacher_text,
    teaching_text,
    trees_text,
)
from graphxai.learning.cleaned_table import CleanTable, TargetColumn
from graphxai.learning.fit import FINETUNING, molecule_config
from graphxai.learning.measured_pairs import Fold, measured_pairs
from graphxai.learning.official import SPLIT, official_note, official_scores
from graphxai.learning.predicting import encode_all, predict
from graphxai.learning.processes.process import learn_process
from graphxai.learning.reliability import (
    bound_notes,
    labels_met,
    reachable,
    teacher_ahead,
    uninformative,
    verdicts,
)
from graphxai.learning.settings import TableSettings, TrainingSettings
from graphxai.learning.splitting import share_of, table_split, table_tasks
from graphxai.learning.teachers.gaussian_process import Positions, carriers_of
from graphxai.learning.teachers.stacking import FOLDS, MoleculeFeatures
from graphxai.learning.training import LearnedModel, Log, RunSource, fit_networks, teach_networks
from graphxai.models.graphormer import load_checkpoint, locate, set_standardisation
from graphxai.runtime.writing import csv_text

FROM_SCRATCH = replace(FINETUNING, epochs=40, learning_rate=1e-3, head_learning_rate=None)
CHECKED_FOR_LEAKS = 1000  # molecules, at most
RARE = 0.1  # share of the training molecules below which a class is called rare
SMALLER = (0.125, 0.25, 0.5)  # shares of the training part on a learning curve, before the whole
PROCESS_TEXT = (
    "The kernel is the mean of min-max kernels on five kinds of counts: ECFP6, atom pairs, ECFP4"
    " with chirality, torsions and FCFP4, of 4,096 columns each. The noise was chosen on folds of"
    " the training molecules."
)
SPLIT_TEXTS = {
    "scaffold": "by Murcko scaffold: test molecules have scaffolds that were never trained on",
    "clusters": "by clusters of similar molecules: those of test molecules were never trained on",
    "time": "by time: test molecules are the newest",
    "column": "as the table says",
}


@dataclass(frozen=True, eq=False)
class TableSource(RunSource):
    """The molecules of a table in their parts."""

    settings: TableSettings
    table: CleanTable
    warnings: tuple[str, ...] = ()
    valid_is_to = "calibrate"
    stored = (
        "file", "sha256", "seed", "split", "teacher_share", "teacher", "temperature", "scores",
        "official", "coverage", "learning_curve", "notes", "removal",
    )  # fmt: skip

    @property
    def labelled(self) -> str:
        """What has the labels, as a noun."""
        return "molecules"

    @cached_property
    def bounds(self) -> FloatArray:
        """The bounds of labels that were not measured (n, tasks, 2)."""
        return self.table.bounds

    @cached_property
    def folds(self) -> Sequence[Positions]:
        """The folds of the training part, as positions in it, if networks are to teach others.

        Folds are of scaffolds, as new molecules usually are. The test part of a random split
        resembles the training part, and so do the folds.
        """
        smiles = self.train.smiles
        if not self.settings.teacher:
            return []
        if self.parts.kind != "random":
            return [fold for fold in scaffold_folds(smiles, FOLDS) if len(fold)]
        order = np.random.default_rng(self.parts.seed or 0).permutation(len(smiles))
        return [np.sort(order[first::FOLDS]) for first in range(min(FOLDS, len(smiles)))]

    def smaller(self) -> list[TableSource]:
        """Return the table with an eighth, a quarter and half of its training part, if wanted."""
        smaller, settings = [], replace(self.settings, ensemble=1)
        for share in SMALLER if settings.learning_curve else ():
            parts = share_of(self.parts, share, settings.seed)
            tasks = table_tasks(self.table.targets, self.y[list(parts.train)])
            config = replace(self.config, tasks=tasks)
            part = replace(self, parts=parts, config=config, settings=settings, share=share)
            smaller.append(replace(part, warnings=(), fitted=None))
        return smaller

    def training(self, network: int = 0) -> TrainingSettings:
        """Return the settings for fitting one of the networks, which have consecutive seeds.

        Networks that only help to teach another one take half of the epochs, and lose no nodes.
        """
        recipe, settings = FROM_SCRATCH if self.init_weights is None else FINETUNING, self.settings
        if settings.teacher:
            recipe = replace(recipe, epochs=recipe.epochs // 2)
            settings = replace(settings, bears_removal=False)
        return recipe.for_run(replace(settings, seed=settings.seed + network))

    def identity(self) -> dict[str, Any]:
        """Return the table, its columns and the settings that decide about the model."""
        table, settings, weights = self.table, self.settings, self.init_weights
        return {
            "file": table.path.name,
            "sha256": table.sha256,
            "smiles_column": table.smiles_column,
            "targets": [asdict(target) for target in table.targets],
            "split": settings.split_kind,
            "split_column": settings.named_column,
            "standardise": table.standardise,
            "seed": settings.seed,
            "epochs": self.training().epochs,
            "teacher": settings.teacher,
            "ensemble": settings.ensemble,
            "init_weights": None if weights is None else str(weights),
            "model": settings.chosen_model,
            "bears_removal": settings.bears_removal,
        }

    def save(self, folder: Path) -> None:
        """Write `hygiene.json` and `hygiene.csv`, see `CleanTable.save`."""
        self.table.save(folder)

    def learn(self, out: Path, log: Log) -> LearnedModel:
        """Fit a process, or let networks and a teacher teach the model, see `teach_networks`."""
        if self._is_process:
            return learn_process(self, self.table.standardise, log)
        fits = fit_networks(self, out, log)
        learned = teach_networks([fit.model for fit in fits], self, out, log)
        set_standardisation(learned.model, self.table.standardise)
        return learned

    def rivals(self, learned: LearnedModel, log: Log) -> dict[str, Mapping[int, FloatArray]]:
        """Return what the teacher and the baselines predict, by name and position of the task."""
        features = MoleculeFeatures(self.test.smiles)
        by_teacher = learned.teacher.predict(features) if learned.teacher else []
        known = {k: r for k, r in enumerate(by_teacher) if r is not None}
        baselines = {name: each.predict(features) for name, each in learned.baselines.items()}
        return {"teacher": known, **baselines}

    def facts(self, learned: LearnedModel, results: dict[str, Any]) -> dict[str, Any]:
        """Return all that is stored with the model, as JSON values."""
        table, settings, scores = self.table, self.settings, results["scores"]
        counts = None if table.counts is None else table.counts[list(self.parts.test)]
        for name, r2 in reachable(table.targets, self.test.y, counts).items():
            if r2 > (scores[name]["scores"]["graphormer"]["R2"][0] or 0.0):
                scores[name]["reachable"] = r2
        train = self.parts.train
        folds = [
            Fold([train[k] for k in fold], model, [each[fold] for each in learned.by_folds])
            for fold, model in zip(self.folds, learned.of_folds, strict=False)
        ]
        of_pairs = measured_pairs(
            learned.model, self.tasks, table.canonical, self.graphs, self.y, self.parts.test, folds
        )
        for name, pairs in of_pairs.items():
            scores[name]["pairs"] = pairs
        official = official_scores(learned.model, table)
        rows, teacher = table.rows, learned.teacher
        of_parts = {
            f"{name}_rows": [rows[k] for k in getattr(self.parts, name)]  # to tell from positions
            for name in ("train", "valid", "test")
        }
        notes = [*self.warnings, *official_note(official)]
        if settings.ensemble > 1:
            last = settings.seed + settings.ensemble - 1
            notes.append(
                f"the mean of {settings.ensemble} networks, trained with the seeds {settings.seed}"
                f" to {last}"
            )
        notes += [*bound_notes(scores), *verdicts(scores)]
        notes += teacher_ahead(scores)
        notes += uninformative(results["coverage"], {t.name: t.unit for t in table.targets})
        hidden = settings.without_structures
        carriers: dict[str, Any] = {"without_structures": True} if hidden else {}
        if self._is_process and not hidden:  # which molecules of their list carry it
            rows = carriers_of(len(self.parts.train), settings.seed).tolist()
            carriers["carriers"] = {"rows": rows}
        return self.identity() | {
            "data": table.path.name,
            "split": {"kind": self.parts.kind, "seed": self.parts.seed, **of_parts},
            "rows": table.read,
            "molecules": len(table.molecules),
            "teacher_share": learned.shares,
            "teacher": None if teacher is None else teacher.to_dict(),
            "recombined": learned.recombined,
            **{
                name: results[name]
                for name in ("temperature", "scores", "coverage", "learning_curve")
            },
            "notes": notes,
            "summary": summary(scores),
            **carriers,
            **({} if official is None else {"official": official}),
        }

    @property
    def _is_process(self) -> bool:
        """Whether the model is a Gaussian process."""
        return self.settings.chosen_model == "process"

    def rows(self, positions: Sequence[int], *, canonical: bool = False) -> list[list[Any]]:
        """Return a header, and number, SMILES as written or canonical, and labels of molecules."""
        table = self.table
        rows: list[list[Any]] = [["row", "smiles", *(target.heading for target in table.targets)]]
        for k in positions:
            smiles = table.canonical[k] if canonical else table.molecules[k].smiles
            rows.append([table.rows[k], smiles, *self.label_cells(k)])
        return rows

    def files(self) -> dict[str, str]:
        """Return the training molecules, and those held out."""
        canonical, parts = self.table.canonical, self.parts
        header, *rows = self.rows(parts.train, canonical=True)
        held_out = {"validation": parts.valid, "test": parts.test}
        if self.settings.without_structures:
            return {}
        return {
            "training.csv": csv_text(header, rows),
            HELD_OUT: held_out_csv({n: [canonical[k] for k in p] for n, p in held_out.items()}),
        }

    def words(self, learned: LearnedModel, facts: dict[str, Any]) -> dict[str, str]:
        """Return what the card says of a table alone."""
        table, weights = self.table, facts["init_weights"]
        checks = [
            f"* {finding.check}{f' ({finding.target})' if finding.target else ''}:"
            f" {finding.count:,} ({finding.done})"
            for finding in table.findings
        ]
        made_from = ", wider far from the training set, made from "
        if not learned.unseen:
            made_from += "the calibration molecules"
        else:
            made_from += "the training molecules, as they were predicted without their fold"
            if learned.left_out and not all(task.classes for task in self.tasks):
                made_from += " and, for values, without themselves"
            if self.parts.valid:
                made_from += ", and the calibration molecules"
        sds = {target.name: f"{target.noise:.2g} {target.unit}" for target in table.targets}
        best = {n: each["reachable"] for n, each in facts["scores"].items() if "reachable" in each}
        noise = [f"{n}: sd {sds[n].rstrip()}, R2 up to {r:.2f}" for n, r in best.items()]
        at_random = (
            f"at random with seed {self.parts.seed}: test molecules may resemble training molecules"
        )
        return {
            "title": ", ".join(target.heading for target in table.targets),
            "kind": "a table",
            "data": f"`{table.path.name}`, SHA-256 `{table.sha256}`, {table.read:,} rows,"
            f" {len(table.molecules):,} different molecules with labels.",
            "targets": "\n".join(f"* {target}" for target in table.targets),
            "checks": "Found before training:\n\n" + ("\n".join(checks) or "* nothing to report"),
            "split": SPLIT_TEXTS.get(self.parts.kind, at_random),
            "where": "The row numbers are in `config.json`.",
            "molecules": MOLECULES[table.standardise],
            "training": PROCESS_TEXT
            if self._is_process
            else f"{counted(facts['epochs'], 'epoch')} "
            + (f"from the weights `{weights}`" if weights else "from scratch")
            + f", seed {facts['seed']}. {teaching_text(facts)}The weights of the last epoch were"
            " kept.",
            "fitted_on": "molecules that were not learned from",
            "teacher": teacher_text(facts["teacher"]),
            "rivals": f" Forest: {trees_text(table.targets)} trees on 2,048-bit ECFP4, and on these"
            " with 313 RDKit descriptors.",
            "further_scores": " `scores.json` has all of them.",
            "made_from": made_from,
            "noise": "**Noise.** Values of one molecule differ, which no model can predict. The"
            " standard deviation of replicates bounds the R2 that can be reached:"
            f" {'; '.join(noise)}."
            if noise
            else "",
            "learning_curve": curve_text(facts["learning_curve"]),
            "confidential": (
                " No structures are stored, so how near a molecule is to them is unknown."
                if self.settings.without_structures
                else " `training.csv` contains the training structures, and `held_out.csv`"
                " the others: if they are confidential, delete both before you share the model"
                " (how near a molecule is to them is then unknown)."
            )
            + (" The weights of a process contain counts of all of them." * self._is_process),
        }


def split_table(table: CleanTable, settings: TableSettings) -> TableSource:
    """Split a table, make its tasks, encode its molecules, and look for reasons to warn.

    Raises:
        ValueError: the split leaves too little to train on, see `table_split`, or a column beside
            the values has units that cannot be converted, and `values_alone` is False.
    """
    for finding in () if settings.values_alone else table.findings:
        if finding.check == UNITS:
            raise ValueError(
                f"{table.path}: column {finding.target!r} has units that cannot be converted into"
                f" one another ({finding.done}; {finding.count:,} rows, the first is row"
                f" {finding.rows[0].row}). Please keep the rows of one unit, remove the column if"
                " it says nothing about these values, or learn the values as they stand"
                " (--values-alone; in Python train_table(..., values_alone=True))."
            )
    if table.official is not None and settings.named_column != SPLIT:
        if settings.split is not None or settings.named_column is not None:
            name = table.official.name
            raise ValueError(f"{name} has an official split: leave out the other one.")
        settings = replace(settings, split_column=SPLIT)
    set_aside, column = not settings.teacher, settings.named_column
    parts = table_split(table, settings.split_kind, settings.seed, column, set_aside=set_aside)
    y = table.y
    training_labels = y[list(parts.train)]
    tasks = table_tasks(table.targets, training_labels)
    config = molecule_config(tasks, dropout=0.0, attention_dropout=0.0)
    is_network = settings.chosen_model != "process"
    graphs = encode_all(table.graphs, config) if is_network else list(table.molecules)
    warnings = []
    if is_network and settings.init_weights is not None:
        start = load_checkpoint(locate(settings.init_weights))
        checked = np.linspace(0, len(y) - 1, min(len(y), CHECKED_FOR_LEAKS)).astype(int)
        outputs = predict(start, [graphs[k] for k in checked]).double().numpy()
        if reasons := labels_met(table.targets, y[checked], start.config.tasks, outputs):
            warnings.append(
                f"the weights {str(settings.init_weights)!r} seem to have been trained on these"
                f" labels: {', '.join(reasons)}; if so, they have seen test labels and the scores"
                " below are too good; --init-weights none gives honest scores"
            )
    warnings += _rare_classes(table.targets, training_labels)
    return TableSource(graphs, y, parts, config, settings, table, tuple(warnings))


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
