"""Train a model on a table of molecules or on graphs: one run of stages for both.

The source is split. Networks are fitted, and those of a table teach others. The model is
calibrated, scored beside other models, and written with its card.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from shutil import rmtree
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any

from graphxai.contract.checkpoint_files import list_digests
from graphxai.contract.prediction_metrics import FloatArray
from graphxai.contract.tasks import Task
from graphxai.datasets.graph import is_data
from graphxai.datasets.labels import with_unit
from graphxai.learning.calibration import Calibration, calibrate, mean_readings
from graphxai.learning.card import PREDICTORS, leading, mean_of_targets, run_card
from graphxai.learning.cleaned_table import CleanTable
from graphxai.learning.fit import record_run, require_hardware, resumable_in
from graphxai.learning.processes.process import cost_of_marked, worth_of_network
from graphxai.learning.removal import removal_facts
from graphxai.learning.scores import score_test_part
from graphxai.learning.settings import EnsembleSettings, GraphSettings, TableSettings, repeating
from graphxai.learning.table import split_table
from graphxai.learning.training import LearnedModel, Log, RunSource
from graphxai.models.graphormer import Ensemble, load_model, save_checkpoint, save_ensemble
from graphxai.models.process import KernelProcess, SummedModel, mean_of, save_process, save_sum
from graphxai.runtime.options import literal, with_options
from graphxai.runtime.randomness import callers_state_kept
from graphxai.runtime.writing import csv_text, folder_at, json_text, write_whole

if TYPE_CHECKING:
    from torch_geometric.data import Data

    from graphxai.learning.graphs.reading import TaskLike

REPLICATES = "replicates.json"


@callers_state_kept()
def train_table(
    table: CleanTable,
    out: str | Path,
    settings: TableSettings | None = None,
    *,
    command: str = "",
    log: Log = lambda line: None,
    **options: Any,
) -> Path:
    """Train a model on a table and score it on its test molecules.

    By default a Gaussian process is written first, in seconds. A network is then trained on all
    but one fold, and replaces the process if it is within one standard error of it on this fold. If
    the mean of both is better than either by more than one, it is the model.

    A network is fitted to the labels of the training part. Then it also learns from a teacher, a
    weighted mean of forests and Gaussian processes. It is calibrated on the validation part and
    scored on the test part, beside its teacher, a process, two forests and a dummy.

    Args:
        table: molecules and labels.
        out: folder of the run, with `hygiene.json`, `hygiene.csv`, `test.csv` (predictions);
            the checkpoint is its sub-folder `model`, with `scores.json`, `training.csv` and
            `held_out.csv`.
        settings: settings of the run, by default `TableSettings()`.
        command: how the run was started, for the model card; by default the call, in which `table`
            stands for what was given.
        log: called with a line of text at each stage.
        options: fields of `TableSettings` to change, such as `seed=1` or `ensemble=3`.

    Returns:
        The checkpoint folder.

    Raises:
        ImportError: the extra `train` is not installed.
        KeyboardInterrupt: the run was interrupted; the message says how to continue it.
        TypeError: there is no such option.
        ValueError: a column beside the values has units that cannot be converted and
            `values_alone` is False; `out` already contains a run and `resume` is False, or the run
            has another table or other settings; the split leaves too little to train on; or the
            settings contradict each other.
    """
    settings = with_options(settings or TableSettings(), options, "train_table")
    require_hardware(settings)
    start = "process" if settings.chosen_model == "auto" else settings.chosen_model
    source = split_table(table, replace(settings, model=start))
    for warning in filter(None, (*source.warnings, cost_of_marked(source))):
        log(warning)
    first = ["table", literal("runs/table")]
    command = command or repeating("table", "train_table", settings, first)
    if settings.chosen_model == "auto":
        return _better_of_two(table, settings, Path(out), command, log)
    return _run(source, Path(out), command, log)[0]


def _better_of_two(
    table: CleanTable, settings: TableSettings, out: Path, command: str, log: Log
) -> Path:
    """Write a process, and replace it by a network, or the mean of both, as one fold says.

    The network is trained in `out / "network"`. A process that is replaced goes to
    `out / "process"`.
    """
    source = split_table(table, replace(settings, model="process"))
    folder, process, of_process = _run(source, out, command, log)
    log(f"written: {folder}, a Gaussian process")
    if not find_spec("lightning"):
        log("a network needs the extra 'train', which is not installed: the process stays")
        return folder
    beside = out / "network"
    networks = split_table(table, replace(settings, model="network"))
    # the process and what it was compared with serve the teacher, too, and are not fitted again
    assert process.process is not None
    networks = replace(networks, fitted={**process.baselines, "process": process.process})
    with resumable_in(beside):
        verdict = worth_of_network(networks, process.unseen, beside, log)
        if verdict is None:
            log("too few labels to judge a network by: the process stays the model")
            return folder
        log(str(verdict))
        if verdict.choice == "process":
            return folder
        resuming = replace(networks, settings=replace(networks.settings, resume=True))
        trained, _, of_network = _run(resuming, beside, command, log)
    for name in (folder.name, "test.csv"):
        kept = folder_at(out / "process") / name
        if kept.is_dir():
            rmtree(kept)
        (out / name).replace(kept)
        if verdict.choice == "network":
            (beside / name).replace(out / name)
    if verdict.choice == "mean":
        inside = folder_at(out / trained.name) / "network"
        trained.replace(inside)
        unseen = [
            replace(a, readings=mean_readings(task, a.readings, b.readings))
            for task, a, b in zip(source.tasks, of_process.unseen, of_network.unseen, strict=True)
        ]
        both = replace(process, model=mean_of(load_model(inside), process.model), unseen=unseen)
        _judge(source, out, replace(both, left_out=[]), command, log)
    return out / trained.name


@callers_state_kept()
def train(
    dataset: Iterable[Data] | Data | str | Path,
    out: str | Path = "runs/graphs",
    *,
    task: TaskLike = None,
    settings: GraphSettings | None = None,
    command: str = "",
    log: Log = lambda line: None,
    **options: Any,
) -> Path:
    """Train a Graphormer on graphs, and score it on its test graphs beside simple models.

    The graphs are split, or their nodes if these have the labels, and continuous features and
    values are standardised on the training part.
    The network is fitted until the validation loss no longer falls. It is calibrated on the
    validation part and scored on the test part, beside a GIN with as many parameters, a forest on
    mean features and a dummy.

    Args:
        dataset: a PyG data set, a graph or a list of graphs, each with a label `y` (numbers or a
            row of them, NaN where one is missing), an `edge_index`, and if there are any `x` and
            `edge_attr`; or a folder, see `graphxai.datasets.graph_folders`. Integers are
            categories, other features are numbers. If `y` has a row for each node, the nodes are
            learned. Graphs may then say by `train_mask`, `val_mask` and `test_mask` which.
        out: folder of the run, with `test.csv` (predictions); the checkpoint is its sub-folder
            `model`, with `scores.json`.
        task: a `Task`, or a list of one for each label; or "binary", "multiclass",
            "classification" or "regression"; by default from the labels.
        settings: settings of the run, by default `GraphSettings()`.
        command: how the run was started, for the model card; by default the call, in which `graphs`
            stands for graphs that come from no folder.
        log: called with a line of text at each stage.
        options: fields of `GraphSettings` to change, such as `split=(train, valid, test)`,
            `seed=1` or `resume=True`.

    Returns:
        The checkpoint folder, for `graphxai.load`.

    Raises:
        ImportError: the extra `train` is not installed.
        TypeError: there is no such option.
        ValueError: a graph cannot be used (the message names it), labels do not fit the task, or
            `out` already contains a run and `resume` is False, or one of other graphs or settings.
    """
    from graphxai.datasets.graph_folders import load_graphs
    from graphxai.learning.graphs.source import split_graphs  # imports PyG, as a table does not

    settings = with_options(settings or GraphSettings(), options, "train")
    require_hardware(settings)
    name, given = "", {"task": task, "split": settings.split}
    texts = {
        key: literal(value) if isinstance(value, str) else key
        for key, value in given.items()
        if value is not None
    }
    first = [
        literal(dataset) if isinstance(dataset, str | Path) else "graphs",
        literal("runs/graphs"),
    ]
    command = command or repeating("graphs", "train", settings, first, **texts)
    if isinstance(dataset, str | Path):
        stored, name = load_graphs(dataset), Path(dataset).name
        dataset = stored.graphs
        if settings.split is None and stored.split is not None:
            settings = with_options(settings, {"split": stored.split}, "train")
    return _run(split_graphs(dataset, task, settings, name), Path(out), command, log)[0]


@callers_state_kept()
def train_replicates(
    data: CleanTable | Iterable[Data] | Data | str | Path,
    out: str | Path,
    count: int = 1,
    settings: EnsembleSettings | None = None,
    *,
    task: TaskLike = None,
    command: str = "",
    log: Log = lambda line: None,
    **options: Any,
) -> Path:
    """Train a table or graphs several times, from consecutive seeds.

    A random split depends on the seed, other splits stay the same. The first model is in the run's
    folder, the others in its sub-folders `replicates/1` and so on. `replicates.json` has the
    leading scores of all models.

    Args:
        data: a table, see `train_table`, or graphs, see `train`.
        out: folder of the run.
        count: number of models.
        settings: settings of the first model: `TableSettings` or `GraphSettings`.
        task: what graphs are learned for, see `train`.
        command: how the run was started, for the model cards.
        log: called with a line of text at each stage.
        options: fields of the settings to change.

    Returns:
        The checkpoint folder of the first model.

    Raises:
        ImportError, TypeError, ValueError: see `train_table` and `train`.
    """
    of_table = isinstance(data, CleanTable)
    chosen: Any = settings or (TableSettings() if of_table else GraphSettings())
    chosen = with_options(chosen, options, "train_replicates")
    data = data if isinstance(data, CleanTable | str | Path) or is_data(data) else list(data)
    once: Callable[..., Path] = train_table if of_table else train
    about = {"settings": chosen, "command": command, "log": log}
    about |= {} if of_table else {"task": task}
    out, models = Path(out), []
    seeds = range(chosen.seed, chosen.seed + count)
    for k, seed in enumerate(seeds):
        if count > 1:
            log(f"replicate {k + 1} of {count}, seed {seed}")
        folder = out / "replicates" / str(k) if k else out
        models.append(once(data, folder, seed=seed, **about))
    if count > 1:
        scores = [json.loads((m / "scores.json").read_text("utf-8"))["scores"] for m in models]
        content = {
            "seeds": list(seeds),
            "targets": {name: [leading(each[name]) for each in scores] for name in scores[0]},
        }
        write_whole(out / REPLICATES, json.dumps(content, indent=1) + "\n")
    return models[0]


def _run(
    source: RunSource, out: Path, command: str, log: Log
) -> tuple[Path, LearnedModel, Calibration]:
    """Train on a source, score the model and write it; return the checkpoint folder and model."""
    smaller = source.smaller()
    record_run(out, source.identity(), resume=source.settings.resume)
    source.save(out)
    with resumable_in(out):
        log(str(source))
        learned = source.learn(out, log)
        curve = []
        for part in smaller:
            log(f"learning curve: {part.share:.1%} of the training part")
            of_share = part.learn(out / "learning-curve" / f"{part.share:g}", log)
            curve.append(_point(part, _scores(part, of_share, log)[1]))
        folder, calibration = _judge(source, out, learned, command, log, curve)
        return folder, learned, calibration


def _judge(
    source: RunSource,
    out: Path,
    learned: LearnedModel,
    command: str,
    log: Log,
    curve: Sequence[dict[str, Any]] = (),
) -> tuple[Path, Calibration]:
    """Calibrate and score a model, and write it with its card; return its folder.

    The folder is `out / "model"`. The predictions for the test part are in `out / "test.csv"`.
    """
    calibration, scores = _scores(source, learned, log)
    model = learned.model
    results = {
        "temperature": calibration.temperatures,
        "scores": scores,
        "coverage": calibration.coverage,
        "learning_curve": [*curve, _point(source, scores)] if curve else [],
    }
    removal = removal_facts(model, source.test.graphs, source.test.y)
    facts = source.facts(learned, results) | {"removal": removal}
    others: dict[type, Any] = {Ensemble: save_ensemble, KernelProcess: save_process}
    others[SummedModel] = partial(save_sum, base="network")
    save = others.get(type(model), save_checkpoint)
    card = run_card(source, learned, facts, command)
    stored = {name: facts[name] for name in source.stored if name in facts}
    files = {"scores.json": json_text(stored), **source.files()}
    facts["lists"] = list_digests(files)
    folder: Path = save(model, out / "model", card=card, metadata=facts)
    for name, content in files.items():
        write_whole(folder / name, content)
    predicted = [
        column
        for task, values in zip(source.tasks, calibration.test_readings, strict=True)
        for column in _prediction_columns(task, values)
    ]
    header, *cells = source.rows(source.parts.test)
    rows = (
        [*row, *(f"{values[position]:.6g}" for _, values in predicted)]
        for position, row in enumerate(cells)
    )
    write_whole(out / "test.csv", csv_text([*header, *(name for name, _ in predicted)], rows))
    return folder, calibration


def _prediction_columns(task: Task, values: FloatArray) -> list[tuple[str, FloatArray]]:
    """Return the named columns of a task's readings."""
    if task.kind == "regression":
        return [(with_unit(f"{task.name}: predicted", task.unit), values)]
    if task.kind == "binary":
        return [(f"{task.name}: probability of {task.classes[1]}", values)]
    return [
        (f"{task.name}: probability of {name}", values[:, c]) for c, name in enumerate(task.classes)
    ]


def _scores(
    source: RunSource, learned: LearnedModel, log: Log
) -> tuple[Calibration, dict[str, Any]]:
    """Calibrate a model, and score it beside others on the test part."""
    calibration = calibrate(learned, source)
    predictions = {"graphormer": dict(enumerate(calibration.test_readings))}
    return calibration, score_test_part(source, predictions | source.rivals(learned, log))


def _point(source: RunSource, scores: dict[str, Any]) -> dict[str, Any]:
    """Return a point of a learning curve, as JSON values."""
    return {"share": source.share, "n": len(source.parts.train), "targets": scores}


def replicate_rows(out: Path) -> list[list[list[str]]]:
    """Return a table of means and standard deviations, or no table if there are no replicates."""
    if not (out / REPLICATES).is_file():
        return []
    stored = json.loads((out / REPLICATES).read_text("utf-8"))
    title = f"mean and spread of {len(stored['seeds'])} replicates"
    scored = {p for runs in stored["targets"].values() for run in runs for p in run["values"]}
    shown = [p for p in PREDICTORS if p in scored]

    def row(name: str, metric: str, replicates: list[Any]) -> list[str]:
        return [name, metric, *(_spread([each.get(p) for each in replicates]) for p in shown)]

    rows, kinds = [], defaultdict[str, list[Any]](list)
    for name, runs in stored["targets"].items():
        metric = next((run["metric"] for run in runs if run["values"]), "")
        values = [run["values"] for run in runs]
        rows.append(row(name, metric, values))
        # a mean over other targets in each replicate would not be one number with a spread
        if all(each and None not in each.values() for each in values):
            kinds[metric].append(values)
    means = []
    for metric, targets in kinds.items() if len(rows) > 1 else ():
        common = [p for p in shown if all(p in each for values in targets for each in values)]
        of_seeds = [
            {p: mean(v[p] for v in each) for p in common} for each in zip(*targets, strict=True)
        ]
        means.append(row(mean_of_targets(len(targets)), metric, of_seeds))
    return [[[title, "score", *(PREDICTORS[p] for p in shown)], *means, *rows]]


def _spread(values: list[float | None]) -> str:
    """Return mean and standard deviation as text, or a dash for fewer than two values."""
    defined = [value for value in values if value is not None]
    if len(defined) < 2:
        return "–"
    return f"{mean(defined):.3f} ± {stdev(defined):.3f}"
