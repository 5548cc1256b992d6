"""Measure a model's errors on molecules it did not learn from, to make intervals that hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphxai.contract.intervals import LEVEL, SURENESS, VALUES, Conformal
from graphxai.contract.prediction_metrics import FloatArray
from graphxai.contract.tasks import Task
from graphxai.datasets.fingerprints import BitTable, ecfp4_bits, packed_bits, parsed
from graphxai.datasets.labels import read_measured
from graphxai.datasets.tables.table import open_table
from graphxai.datasets.training_set import EDGE, FAR, TrainingSet
from graphxai.explanation.api import predict
from graphxai.explanation.prediction import Prediction
from graphxai.learning.predicting import task_readings
from graphxai.learning.splitting import Part, Source
from graphxai.models.graphormer import LoadedModel

SLOPES = (0.0, 0.5, 1.0, 2.0)  # how fast difficulty may grow away from what was learned
LESS = 0.98  # factor by which it must make sets smaller
LARGEST = 1000  # molecules per task, or class, whose scores are stored
FEW = 20  # far molecules, below which their coverage says nothing


@dataclass(frozen=True, eq=False)
class Unseen:
    """Predictions for molecules that were not learned from.

    Attributes:
        readings: as from `predicting.readings`, NaN where nothing was predicted.
        y: labels (n,), NaN where one is missing.
        similarity: to the nearest molecule learned from (n,); None for other graphs.
    """

    readings: FloatArray
    y: FloatArray
    similarity: FloatArray | None


def calibrate(model: LoadedModel, source: Source) -> dict[str, Any]:
    """Set `model.conformal` from the validation part, and measure its coverage on the test part.

    Returns:
        What `calibrate_readings` returns, or {} without a validation part.
    """
    if not source.parts.valid:
        return {}
    valid, test = (unseen_in(model, source, part) for part in (source.valid, source.test))
    return calibrate_readings(model, valid, test)


def calibrate_readings(
    model: LoadedModel,
    valid: Sequence[Unseen],
    test: Sequence[Unseen],
    more: Mapping[str, Sequence[Unseen]] | None = None,
) -> dict[str, Any]:
    """Set `model.conformal` from its predictions for unseen graphs, and measure its coverage.

    A temperature fitted on the validation part does no harm: it keeps the order of all margins.

    Args:
        valid: the predictions of the model for the validation part, by task.
        test: the same for the test part, by task.
        more: further predictions, by name of a task, whose errors count like those in `valid`.

    Returns:
        What `coverage` returns for each task with scores and test labels; `errors`, see
        `errors_by_nearness`, and for classes `errors_by_probability`; `guess`, see `guess_width`;
        and `made_from`, the number of scores from `valid` and from `more`.
    """
    report: dict[str, Any] = {}
    for task, held_out, tested in zip(model.config.tasks, valid, test, strict=True):
        sources = [held_out, *(more or {}).get(task.name, ())]
        slope = best_slope(task, held_out)
        scores = [conformal_scores(task, each, slope) for each in sources]
        conformal = pooled(scores)
        if conformal is None:
            continue
        model.conformal[task.name] = conformal
        if not np.isnan(tested.y).all():
            task_coverage = coverage(task, conformal, tested)
            task_coverage["errors"] = errors_by_nearness(task, held_out)
            if task.classes:
                task_coverage["errors_by_probability"] = errors_by_probability(task, held_out)
            task_coverage["guess"] = guess_width(task, held_out.y)
            task_coverage["made_from"] = [0 if scored is None else scored.n for scored in scores]
            report[task.name] = task_coverage
    return report


def learned_from(
    model: Any, table: str | Path, part: str | None = None, smiles_column: str | None = None
) -> Any:
    """Tell a wrapped model its training set, and how wrong it is, from a table; return the model.

    Predictions then say how near they are to the training set. They have an interval, or a set of
    classes, for each task of which a column has measured values of compounds that the model did not
    learn from.

    Args:
        model: a model from `wrap` that reads molecules.
        table: the table's file.
        part: the column that says which compounds the model learned from: those called "train" or
            "training". By default it learned from all, and has no intervals.
        smiles_column: the column of structures, by default by its name or content.

    Raises:
        ValueError: no row is a training compound.
    """
    opened = open_table(table, smiles_column)
    structures = opened.structures.name
    columns = [opened.column(part)] if part else []
    rows = [record.cells for record in opened.records([structures, *columns])]
    written = [row[structures] for row in rows]
    learned = np.array([not part or row[columns[0]].lower().startswith("train") for row in rows])
    if not learned.any():
        raise ValueError(f"no row of {table} is a training compound in column {part!r}.")
    model.training_set = TrainingSet(tuple(dict.fromkeys(compress(written, learned))))
    others = np.flatnonzero(~learned)
    made = predict(model, [written[k] for k in others], progress=False) if len(others) else []
    read = [(k, of) for k, of in zip(others.tolist(), made, strict=True) if of is not None]
    for task in model.config.tasks:
        source = opened.source_of(task.name, task.unit)
        if source is None or not read:
            continue
        cells = opened.measured(source, [task.name])[1].cells
        values, *_ = read_measured([cells[k] for k, _ in read], task.classes)
        each = [of[task.name] for _, of in read]
        near = [p.nearness.similarity for p in each if p.nearness is not None]
        unseen = Unseen(np.array([_reading(task, p) for p in each]), values, np.array(near))
        scored = conformal_scores(task, unseen, best_slope(task, unseen))
        if scored is not None:
            model.conformal[task.name] = scored
    return model


def _reading(task: Task, prediction: Prediction) -> Any:
    """Return a value, the probability of the second of two classes, or that of each class."""
    if not task.classes:
        return prediction.value
    shares = [prediction.probabilities[name] for name in task.classes]
    return shares[1] if len(shares) == 2 else shares


def unseen_in(model: LoadedModel, source: Source, part: Part) -> list[Unseen]:
    """Return, by task, what a model predicts for a part of a source, with the labels of the part.

    Molecules are compared with those of the training part.
    """
    smiles = source.train.smiles
    similarity = nearest_similarities(part.smiles, smiles) if smiles else None
    by_task = zip(task_readings(model, part.graphs), part.y.T, strict=True)
    return [Unseen(values, labels, similarity) for values, labels in by_task]


def nearest_similarities(smiles: Sequence[str], training: Sequence[str]) -> FloatArray:
    """Return the ECFP4 Tanimoto similarity of each molecule to the nearest training one, (n,)."""
    bits, training_bits = (list(map(ecfp4_bits, parsed(each))) for each in (smiles, training))
    table = BitTable(packed_bits(training_bits))
    return np.array([table.similarities(molecule).max() for molecule in bits])


def nearest_of_other_folds(smiles: Sequence[str], folds: Sequence[Any]) -> FloatArray:
    """Return the similarity of each molecule to the nearest one of the other folds, (n,)."""
    bits = list(map(ecfp4_bits, parsed(smiles)))
    table, nearest = BitTable(packed_bits(bits)), np.zeros(len(smiles))
    for fold in folds:
        for place in fold:
            similarities = table.similarities(bits[place])
            similarities[fold] = 0
            nearest[place] = similarities.max()
    return nearest


def nearest_of_others(smiles: Sequence[str]) -> FloatArray:
    """Return the similarity of each molecule to the nearest one of the others, (n,)."""
    return nearest_of_other_folds(smiles, [[place] for place in range(len(smiles))])


def best_slope(task: Task, unseen: Unseen) -> float:
    """Return how fast the margins of classes grow away from what was learned, as the errors show.

    It is the slope with the smallest sets at `LEVEL`, and 0 where similarity to what was learned
    does not go with the errors. It is 0 for values, whose intervals depend on similarity itself.
    """
    labelled, best, smallest = comparable(unseen.readings, unseen.y), 0.0, np.inf
    if not task.classes or unseen.similarity is None or not labelled.any():
        return best
    read, y = unseen.readings[labelled], unseen.y[labelled]
    for slope in SLOPES:
        difficulty = 1 + slope * (1 - unseen.similarity[labelled])
        margins = _margins(_by_class(task, read)) / difficulty[:, None]  # (n, classes)
        limits = [
            np.quantile(margins[y == code, code], LEVEL) if (y == code).any() else np.inf
            for code in range(len(task.classes))
        ]
        size = (margins <= limits).sum(1).mean()
        if size < LESS * smallest:
            best, smallest = slope, float(size)
    return best


def errors_by_nearness(task: Task, unseen: Unseen) -> dict[str, list[float]]:
    """Return how wrong predictions were for molecules near, at the edge, and far.

    The error of a value is its distance from the label; that of a class is 1 if another class is
    likelier than the measured one, and 0 otherwise.

    Returns:
        By "near", "edge" and "far" (see `Nearness`), the mean error, its standard error, and the
        number of molecules. Groups of fewer than two molecules are left out.
    """
    labelled = comparable(unseen.readings, unseen.y)
    if unseen.similarity is None or not labelled.any():
        return {}
    read, y = unseen.readings[labelled], unseen.y[labelled]
    if task.kind == "regression":
        errors = np.abs(y - read)
    else:
        errors = (_by_class(task, read).argmax(1) != y).astype(np.float64)
    similarity = unseen.similarity[labelled]
    groups = {
        "near": similarity >= EDGE,
        "edge": (similarity >= FAR) & (similarity < EDGE),
        "far": similarity < FAR,
    }
    return _mean_of_each(errors, groups)


def errors_by_probability(task: Task, unseen: Unseen) -> dict[str, list[float]]:
    """Return how often predicted classes were wrong, by the probability that they had.

    Returns:
        By the least probability in each group, see `SURENESS`, the share of wrong classes, its
        standard error, and the number of molecules. Groups of fewer than two are left out.
    """
    labelled = comparable(unseen.readings, unseen.y)
    by_class, y = _by_class(task, unseen.readings[labelled]), unseen.y[labelled]
    probability = by_class.max(1, initial=0.0)
    errors = (by_class.argmax(1) != y).astype(np.float64)
    group_of = np.digitize(probability, [float(least) for least in SURENESS])  # from sure to unsure
    groups = {least: group_of == k for k, least in enumerate(SURENESS)}
    return _mean_of_each(errors, groups)


def comparable(read: FloatArray, y: FloatArray) -> NDArray[np.bool_]:
    """Return which molecules have a label and a reading (n,)."""
    return ~np.isnan(y) & ~np.isnan(read.reshape(len(y), -1)).any(1)


def _mean_of_each(
    errors: FloatArray, groups: Mapping[str, NDArray[np.bool_]]
) -> dict[str, list[float]]:
    """Return the mean of each group of errors, its standard error, and their number."""
    return {
        word: [float(each.mean()), float(each.std(ddof=1) / len(each) ** 0.5), len(each)]
        for word, group in groups.items()
        if len(each := errors[group]) > 1
    }


def conformal_scores(task: Task, unseen: Unseen, slope: float = 1.0) -> Conformal | None:
    """Return a task's scores on molecules it did not learn from, or None without any label.

    If there are more than 1,000 labels, 1,000 are drawn at random. For classes, 1,000 are drawn
    from each class, or a rare one would keep too few. Molecules without a reading do not count.

    Args:
        slope: how fast difficulty grows away from the training set, see `best_slope`.
    """
    read, y, similarity = unseen.readings, unseen.y, unseen.similarity
    labelled = np.flatnonzero(comparable(read, y))
    if not len(labelled):
        return None
    by_class = [labelled[y[labelled] == code] for code in range(len(task.classes))]
    groups = by_class if task.classes else [labelled]
    rng = np.random.default_rng(0)
    drawn = np.concatenate(
        [k if len(k) <= LARGEST else rng.choice(k, LARGEST, replace=False) for k in groups]
    )
    if task.kind == "regression":
        scores = np.abs(y[drawn] - read[drawn]).tolist()
        near = () if similarity is None else np.round(similarity[drawn], 4).tolist()
        return Conformal({VALUES: scores}, 0.0, near)
    slope = 0.0 if similarity is None else slope
    labels = y[drawn].astype(int)
    margins = _margins(_by_class(task, read[drawn]))[np.arange(len(drawn)), labels]
    if similarity is not None:
        margins /= 1 + slope * (1 - similarity[drawn])
    by_name = {name: margins[labels == code] for code, name in enumerate(task.classes)}
    return Conformal({key: np.sort(values).tolist() for key, values in by_name.items()}, slope)


def pooled(sources: Sequence[Conformal | None]) -> Conformal | None:
    """Join the scores of a task from several sources, or return None if no source has any."""
    scored = [source for source in sources if source is not None]
    if not scored:
        return None
    keys = scored[0].scores
    scores = {key: [x for source in scored for x in source.scores[key]] for key in keys}
    near = [similarity for source in scored for similarity in source.similarity]
    known = len(near) == len(scores.get(VALUES, ()))
    return Conformal(scores, scored[0].slope, near if known else ())


def guess_width(task: Task, y: FloatArray) -> float | None:
    """Return the width of the interval around the median that holds a share `LEVEL` of labels y.

    A guess without any model would need it. It is None for classes, and without labels.
    """
    labels = y[~np.isnan(y)]
    if task.kind != "regression" or not len(labels):
        return None
    return float(2 * np.quantile(np.abs(labels - np.median(labels)), LEVEL))


def coverage(
    task: Task, conformal: Conformal, unseen: Unseen, level: float = LEVEL
) -> dict[str, Any]:
    """Return how often a task's intervals or sets of classes hold the measured labels.

    Args:
        unseen: molecules of the test part, and what is predicted for them.
        level: share of molecules whose label should be held.

    Returns:
        JSON values. All tasks have `level`, the number of labels `n`, and `held`, the share of
        them that is held. A regression has `width`, the median width, which is None if infinite.
        Classes have `single`, the share of sets with one class, and `held_by_class`. If 20 or more
        molecules are far from the training set, `far` has their share held and their number.
    """
    read, y, similarity = unseen.readings, unseen.y, unseen.similarity
    labelled = np.flatnonzero(~np.isnan(y))
    near = [None if similarity is None else float(similarity[k]) for k in labelled]
    report: dict[str, Any] = {"level": level, "n": len(labelled)}
    if task.kind == "regression":
        pairs = zip(read[labelled].tolist(), near, strict=True)
        ends = np.array([conformal.interval(value, s, level) for value, s in pairs])
        held = (ends[:, 0] <= y[labelled]) & (y[labelled] <= ends[:, 1])
        width = float(np.median(ends[:, 1] - ends[:, 0]))
        report["width"] = width if np.isfinite(width) else None
    else:
        rows = zip(_by_class(task, read[labelled]).tolist(), near, strict=True)
        sets = [
            conformal.classes(dict(zip(task.classes, p, strict=True)), s, level) for p, s in rows
        ]
        measured = [task.classes[int(label)] for label in y[labelled]]
        held = np.array([name in chosen for name, chosen in zip(measured, sets, strict=True)])
        report["single"] = float(np.mean([len(chosen) == 1 for chosen in sets]))
        report["held_by_class"] = {
            name: [float(held[in_class].mean()), int(in_class.sum())]
            for name in task.classes
            if (in_class := np.array([label == name for label in measured])).any()
        }
    report["held"] = float(held.mean())
    far = np.array([s is not None and s < FAR for s in near])
    if far.sum() >= FEW:
        report["far"] = [float(held[far].mean()), int(far.sum())]
    return report


def _by_class(task: Task, read: FloatArray) -> FloatArray:
    """Return the probability of every class, (n, classes)."""
    return np.stack([1 - read, read], axis=1) if task.kind == "binary" else read


def _margins(probabilities: FloatArray) -> FloatArray:
    """Return, for each class, the logit of the best other class minus its own, (n, classes)."""
    logits = np.log(np.maximum(probabilities, 1e-300))
    margins = np.empty_like(logits)
    for code in range(logits.shape[1]):
        margins[:, code] = np.delete(logits, code, axis=1).max(1) - logits[:, code]
    return margins
