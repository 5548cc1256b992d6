"""Adapt a model to own measurements: a Gaussian process learns what the model gets wrong."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rdkit import Chem

from graphxai.contract.checkpoint_files import CONFIG, list_digests, read_config
from graphxai.contract.inputs import Input, prepare_each
from graphxai.contract.prediction_metrics import FloatArray
from graphxai.contract.tasks import Task
from graphxai.datasets.canonical_form import form_with_groups, smiles_with_groups
from graphxai.datasets.cell_numbers import POWERS, plain_unit
from graphxai.datasets.fingerprints import COUNTS, KINDS, Counts, similarity
from graphxai.datasets.labels import not_understood, read_measured
from graphxai.datasets.tables.columns import IS_LOG, header_unit
from graphxai.datasets.tables.table import open_table
from graphxai.datasets.training_set import FILE, training_set_of
from graphxai.explanation.compute.models import loaded
from graphxai.explanation.compute.predicting import predict_prepared
from graphxai.learning.card import counted
from graphxai.learning.conformal import Unseen, conformal_scores, nearest_of_others
from graphxai.learning.splitting import label_text
from graphxai.learning.suspicions import far_from_the_rest
from graphxai.learning.teachers.forests import filled_within
from graphxai.learning.teachers.gaussian_process import Process, carriers_of
from graphxai.models.graphormer import pretrained_names
from graphxai.models.process import (
    CarriedCounts,
    KernelProcess,
    ProcessConfig,
    SummedModel,
    save_sum,
    with_counts,
)
from graphxai.models.process.sum import COUNTED
from graphxai.runtime.notices import warn
from graphxai.runtime.randomness import callers_state_kept
from graphxai.runtime.writing import csv_text, write_whole

NOISE = 0.2  # ratio of measurement variance to process variance; residuals are mostly noise
FEWEST = 5  # measurements of a task that a process is fitted to
Limits = dict[str, tuple[float, float]]  # by task, the lowest and highest value: equal if measured
FACTORS = (1.0, 0.75, 0.5, 0.25, 0.0)  # how much of the model is kept, if all tasks are measured


@dataclass(frozen=True, eq=False)
class _Measurements:
    """Molecules that the base can read, each once, and what was measured of them.

    Attributes:
        smiles: canonical SMILES of what the base reads (n,).
        counted: the same molecules with the counts of their structures.
        y: the last value of each, NaN where there is none (n, tasks).
        bounds: the lowest and highest possible values, infinite where nothing is known (n, tasks,
            2).
        predicted: what the base says (n, tasks).
        left_out: of each row that could not be read, the reason.
        repeated: what is said of molecules whose values differ, or "".
    """

    smiles: tuple[str, ...]
    counted: tuple[Input, ...]
    y: FloatArray
    bounds: FloatArray
    predicted: FloatArray
    left_out: tuple[str, ...]
    repeated: str


@callers_state_kept()
def adapt(
    model: Any,
    table: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    target_column: str | None = None,
    task: str | None = None,
    smiles_column: str | None = None,
    log: Callable[[str], None] = lambda line: None,
) -> Path:
    """Adapt a model of molecules to own measurements, from ten to a few thousand, in seconds.

    A Gaussian process is fitted to what the model gets wrong, and its values are added to the
    model's, whose weights stay as they are. If all tasks are measured, the model's outputs are
    first multiplied by the one of `FACTORS` with which measurements are predicted best without
    themselves: a model that knows nothing of a series is set aside. The intervals come from each
    measurement as it is predicted without itself, and the ledger has a line for each of the two. A
    cell such as ">10" is learned as a bound where a molecule has no value (see `filled_within`). A
    model that was adapted before is updated: its measurements are kept, and a newer value of a
    molecule replaces the older one. Of several values in one table the median counts, as in
    training.

    Args:
        model: the name or path of a bundled, trained, chemprop or wrapped model ("my.py:model"), or
            of an adapted one; or such a model loaded from a folder.
        table: the table of measurements.
        out: the folder for the adapted model, which names the model by path and hash.
        target_column: the column of values, by default the one with the task's name.
        task: the task that `target_column` measures, by default the model's first with values.
        smiles_column: the column of structures, by default by its name or content.
        log: called with a line of text for what was done.

    Returns:
        The folder.

    Raises:
        ValueError: the model has no name or path, no task with values is measured at least five
            times in molecules that it can read, `out` contains a model that is not adapted, or
            the header has another unit of concentration than the task.
    """
    inside = Path(out, CONFIG)
    if inside.exists() and "adapted" not in read_config(Path(out)).get("metadata", {}):
        raise ValueError(f"{out} already contains another model: choose another folder.")
    adapted, named = loaded(model), _name_of(model)
    base, earlier = adapted, None
    stored = adapted.origin.metadata.get("adapted")
    if isinstance(adapted, SummedModel) and stored and adapted.origin.folder:
        base, named, earlier = adapted.base, str(stored), adapted.origin.folder / FILE
    tasks = base.config.tasks
    values = [t for t in tasks if t.kind == "regression" and task in (None, t.name)]
    if not values:
        listed = ", ".join(repr(each.name) for each in tasks)
        raise ValueError(
            f"a process is fitted to the errors of values: of the tasks {listed},"
            f" {'none has' if task is None else f'{task!r} is none that has'} values. For"
            " classes, train a model of your own with `graphxai train`."
        )
    columns: dict[Task, str | None] = dict.fromkeys(values)
    earlier_rows, _ = _rows(earlier, columns, "smiles") if earlier else ([], [])
    if target_column:
        columns = {values[0]: target_column}
    new_rows, unread = _rows(table, columns, smiles_column)
    measured = _merged(base, earlier_rows, new_rows, tasks)
    counts = {t.name: int((~np.isnan(y)).sum()) for t, y in zip(tasks, measured.y.T, strict=True)}
    learned = [t.name for t in values if counts[t.name] >= FEWEST]
    if not learned:
        unreadable = [f" The model cannot read the first: {why}" for why in measured.left_out[:1]]
        raise ValueError(
            f"{table}: {counted(max(counts.values(), default=0), 'measurement')} of"
            f" {values[0].name!r} in molecules that can be read; at least {FEWEST} are needed"
            f" (target_column= names the column).{''.join(unreadable)}"
        )
    for k, name in enumerate(t.name for t in tasks):
        if name in learned and (far := far_from_the_rest(measured.y[:, k])):
            which = f"{measured.y[far[0], k]:g} of {measured.smiles[far[0]]}"
            unread.append(f"{name}: values far from the rest: {len(far):,} (kept), first {which}")
            warn(f"{table}: {unread[-1]}; correct or delete what is a mistake.", stacklevel=3)
    summed, facts = _fitted(base, measured, learned)
    trained = training_set_of(base)
    known = set(measured.smiles)
    others = [] if trained is None else [each for each in trained.given if each not in known]
    each = zip(measured.smiles, measured.y, measured.bounds, strict=True)
    lines = [[smiles, *map(label_text, tasks, y, bounds)] for smiles, y, bounds in each]
    lines += [[smiles, *("" for _ in tasks)] for smiles in others]
    facts["carriers"] = {"rows": carriers_of(len(measured.smiles)).tolist()}
    facts |= {"adapted": named, "left_out": len(measured.left_out)}
    if measured.left_out:
        unread.append(f"rows left out, whose molecule cannot be read: {len(measured.left_out):,}")
    facts["words"] += [*filter(None, [measured.repeated]), *unread]
    facts["summary"] = "; ".join(facts["words"])
    training = csv_text(["smiles", *(t.name for t in tasks)], lines)
    facts["lists"] = list_digests({FILE: training})
    folder = save_sum(summed, Path(out), named, card=_card(named, facts), metadata=facts)
    write_whole(folder / FILE, training)
    for words in facts["words"]:
        log(words)
    return folder


def _name_of(model: Any) -> str:
    """Return the name or the absolute path by which a model can be loaded again."""
    if isinstance(model, str | os.PathLike):
        text = os.fspath(model)
        path, colon, name = text.rpartition(":") if ".py:" in text else (text, "", "")
        return text if text in pretrained_names() else os.path.abspath(path) + colon + name
    if (folder := getattr(model.origin, "folder", None)) is None:
        raise ValueError("give the name or path of the model, by which it can be loaded again.")
    name = model.origin.name
    return name if name in pretrained_names() else str(Path(folder).absolute())


def _rows(
    table: str | os.PathLike[str], columns: dict[Task, str | None], smiles_column: str | None
) -> tuple[list[tuple[str, Limits]], list[str]]:
    """Read the structures of a table, each with its values by task, and say what is no value."""
    opened = open_table(table, smiles_column)
    structures = opened.structures.name
    written = [record.cells[structures] for record in opened.records([structures])]
    values: list[Limits] = [{} for _ in written]
    unread: list[str] = []
    for task, column in columns.items():
        source = column or opened.source_of(task.name, task.unit)
        if source is None:
            continue
        plain = opened.measured(source, [task.name])[1]
        cells, unit = plain.cells, plain.unit or header_unit(plain.name)[1]
        is_dose = plain_unit(unit) in POWERS and not IS_LOG.search(plain.name)
        if task.unit and is_dose and plain_unit(unit) != plain_unit(task.unit):
            raise ValueError(
                f"{table}: column {source!r} has values in {unit}, and the model's {task.name!r} is"
                f" in {task.unit}: convert them, and the unit in the header."
            )
        numbers, bounds, strange = read_measured(cells)
        for row, value in zip(values, numbers.tolist(), strict=True):
            if not np.isnan(value):
                row[task.name] = value, value
        for position, side, value in map(astuple, bounds):
            values[position][task.name] = (value, np.inf) if side > 0 else (-np.inf, value)
        if strange:
            unread.append(not_understood(task.name, cells, strange))
    return list(zip(written, values, strict=True)), unread


def _merged(
    base: Any,
    earlier: Sequence[tuple[str, Limits]],
    new: Sequence[tuple[str, Limits]],
    tasks: Sequence[Task],
) -> _Measurements:
    """Read each molecule as the base does.

    The median of its new values counts, or else its earlier value, or its last bound without one.
    """
    read: dict[str, tuple[Input, Input, Limits]] = {}  # with its counts, and what is known of it
    of_table: dict[tuple[str, str], list[float]] = {}  # the new values, by molecule and task
    left_out: list[str] = []
    with_values = [
        (s, v, is_new) for is_new, rows in enumerate((earlier, new)) for s, v in rows if v
    ]
    encoded = prepare_each(base, [smiles for smiles, *_ in with_values], Exception)
    for item, (_, values, is_new) in zip(encoded, with_values, strict=True):
        if isinstance(item, Exception) or item.smiles is None:
            left_out.append(str(item) if isinstance(item, Exception) else "it has no SMILES.")
            continue
        try:
            its_counts = with_counts(item)
        except ValueError as error:
            left_out.append(str(error))
            continue
        smiles = smiles_with_groups(form_with_groups(Chem.MolFromSmiles(item.smiles)))
        _, _, known = read.setdefault(smiles, (item, its_counts, {}))
        for name, (low, high) in values.items():
            if low == high and is_new:
                of_table.setdefault((smiles, name), []).append(low)
                low = high = float(np.median(of_table[smiles, name]))
            if low == high or name not in known or known[name][0] != known[name][1]:
                known[name] = low, high
    spreads = [spread for each in of_table.values() if (spread := float(np.ptp(each))) > 0]
    repeated = (
        f"molecules measured several times with different values: {len(spreads):,}; median taken;"
        f" largest difference {max(spreads, default=0):.3g}"
    )
    unknown = -np.inf, np.inf
    limits = np.array([[each.get(t.name, unknown) for t in tasks] for *_, each in read.values()])
    limits = limits.reshape(len(read), len(tasks), 2)
    y = np.where(limits[..., 0] == limits[..., 1], limits[..., 0], np.nan)
    inputs = [(k, item) for k, (item, _, _) in enumerate(read.values())]
    predictions = dict(predict_prepared(base, inputs))
    means = [[np.nan if p.value is None else p.value for p in predictions[k]] for k, _ in inputs]
    counts = tuple(each for _, each, _ in read.values())
    predicted = np.array(means).reshape(y.shape)
    return _Measurements(
        tuple(read), counts, y, limits, predicted, tuple(left_out), repeated if spreads else ""
    )


def _fitted(
    base: Any, measured: _Measurements, learned: Sequence[str]
) -> tuple[SummedModel, dict[str, Any]]:
    """Fit a process to the residuals of the tasks that are learned, and measure what it gains."""
    tasks, config = base.config.tasks, base.config
    carriers = carriers_of(len(measured.smiles))
    counts = _counts_of(measured.counted)
    carried = tuple(kind[carriers] for kind in counts)
    kernel = similarity(counts, carried)
    # an answer for both mirror images is the mean over them
    mirrored = [k for k, item in enumerate(measured.counted) if item.mirrored is not None]
    images = _counts_of([measured.counted[k].passes[1] for k in mirrored])
    kernel[mirrored] = (kernel[mirrored] + similarity(images, carried)) / 2
    weights = np.zeros((len(carriers), config.num_outputs))
    means = np.zeros(config.num_outputs)
    nearest = nearest_of_others(measured.smiles)
    if (trained := training_set_of(base)) is not None:
        read = map(Chem.MolFromSmiles, measured.smiles)
        nearest = np.maximum(nearest, [trained.nearness(mol).similarity or 0.0 for mol in read])
    conformal = {n: each for n, each in getattr(base, "conformal", {}).items() if n not in learned}
    facts, words = {}, []
    places = [k for k, task in enumerate(tasks) if task.name in learned]
    offsets, scales = (np.array([getattr(t, n) for t in tasks]) for n in ("offset", "scale"))
    said, seen = ((x - offsets) / scales for x in (measured.predicted, measured.y))  # (n, tasks)
    limits = (measured.bounds - offsets[:, None]) / scales[:, None]  # (n, tasks, 2)

    def process_of(labels: FloatArray) -> Process:
        return Process.fit(kernel, carriers, labels[:, None], NOISE)

    def left_out(labels: FloatArray) -> FloatArray:
        process, unknown = process_of(labels), np.isnan(labels)
        return np.where(unknown, process.predict(kernel)[:, 0], process.left_out[:, 0])

    def fitted(k: int, factor: float) -> tuple[Process, FloatArray]:
        """Fit a process to a task, and predict each measurement without itself (n,)."""
        known = factor * said[:, k]
        wrong_by = seen[:, k] - known
        process = process_of(filled_within(left_out, wrong_by, limits[:, k] - known[:, None]))
        unseen = np.where(np.isnan(wrong_by), np.nan, process.left_out[:, 0])
        return process, known + unseen

    def error(factor: float) -> float:
        return sum(float(np.nanmean(abs(fitted(k, factor)[1] - seen[:, k]))) for k in places)

    factor = min(FACTORS, key=error) if len(places) == len(tasks) else 1.0
    for k in places:
        task = tasks[k]
        process, standardised = fitted(k, factor)
        weights[:, config.columns[k]], means[config.columns[k]] = process.weights, process.means
        unseen = offsets[k] + scales[k] * standardised
        known = ~np.isnan(measured.y[:, k])
        of_unseen = Unseen(unseen, measured.y[:, k], nearest)
        scored = conformal_scores(task, of_unseen)
        if scored is not None:
            conformal[task.name] = scored
        before, after = (
            float(np.abs(values - measured.y[:, k])[known].mean())
            for values in (measured.predicted[:, k], unseen)
        )
        n, unit = int(known.sum()), f" {task.unit}" if task.unit else ""
        bounded = int((~known & np.isfinite(measured.bounds[:, k]).any(1)).sum())
        also = f"; {bounded:,} bounds were learned, too" if bounded else ""
        facts[task.name] = {"n": n, "as_is": before, "left_out_in_turn": after}
        words.append(
            f"{task.name}: mean absolute error {after:.2f}{unit} on {n:,} of your molecules, each"
            f" left out in turn ({before:.2f} as the model was){also}"
        )
    if factor < 1:
        words.append(f"the model's outputs count {factor:g} times, which fits these molecules best")
    numbers = torch.from_numpy(weights), torch.from_numpy(means)
    is_exact = len(carriers) == len(counts[0])
    noise = (NOISE,) * len(tasks) if is_exact else ()
    shape = ProcessConfig(tuple(tasks), len(carriers), noise=noise)
    process_of_all = KernelProcess(shape, CarriedCounts.of(carried), *numbers).eval()
    summed = SummedModel(base, process_of_all, factor)
    summed.conformal = conformal
    return summed, {"measured": facts, "words": words}


def _counts_of(items: Sequence[Input]) -> Counts:
    """Return five kinds of counts of each molecule, (n, 4096) each, as `structure_counts` does."""
    counts = np.empty((KINDS, len(items), COUNTS), np.uint16)
    for row, item in enumerate(items):
        columns = item.graph.get(COUNTED).count_columns
        counts[:, row] = np.bincount(columns, minlength=KINDS * COUNTS).reshape(KINDS, COUNTS)
    return tuple(counts)


def _card(base: str, facts: dict[str, Any]) -> str:
    """Return the card of an adapted model."""
    lines = "\n".join(f"* {words}" for words in facts["words"])
    return f"""# An adapted model

The model `{base}` and a Gaussian process on what it gets wrong, whose values are added. The model
is named by its path and its hash, and its weights are not copied.

**Own measurements.**

{lines}

Intervals come from each own molecule as it is predicted without itself.

**Limits.** `training.csv` contains the measured structures and their values, and the weights of the
process contain counts of them: share the folder only with those who may see them.
"""
