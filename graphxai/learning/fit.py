"""Train a Graphormer with Lightning: on any graphs, or on a source from given weights.

Lightning (extra `train`) is imported when training starts, not before.
"""

from __future__ import annotations

import importlib
import json
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from graphxai.contract.tasks import Task
from graphxai.datasets.features import ATOM_CARDINALITIES, ATOM_FEATURE_NAMES, BOND_CARDINALITIES
from graphxai.explanation.compute.models import versions
from graphxai.learning.predicting import encode_all, predict
from graphxai.learning.scores import scores
from graphxai.learning.settings import RunSettings, TrainingSettings
from graphxai.learning.splitting import Source
from graphxai.models.graphormer import (
    Graphormer,
    GraphormerConfig,
    fill,
    graphormer,
    load_checkpoint,
    locate,
    read_weights,
)
from graphxai.runtime.extras import missing_extra
from graphxai.runtime.randomness import callers_state_kept
from graphxai.runtime.writing import folder_at, write_whole

if TYPE_CHECKING:
    from torch_geometric.data import Data

PRETRAINED = "molecules"
FINETUNING = TrainingSettings(
    epochs=20,
    batch_size=32,
    learning_rate=3e-4,
    head_learning_rate=1e-3,
    weight_decay=0.05,
    ema_decay=0.99,
    label_smoothing=0.05,
    keep_best=False,
)


@dataclass(frozen=True)
class FitResult:
    """The result of a training run.

    Attributes:
        epoch: the epoch whose weights it has.
    """

    model: Graphormer
    epoch: int
    scores: dict[str, float] = field(default_factory=dict)
    loss: float = float("nan")


@callers_state_kept()
def fit(
    model: Graphormer,
    train: Sequence[Data],
    valid: Sequence[Data],
    settings: TrainingSettings,
    out: str | Path,
    *,
    resume: bool = True,
) -> FitResult:
    """Train `model` in place on graphs with labels `y` (1, tasks), NaN where one is missing.

    The folder `out` gets `metrics.csv`, `settings.json` and `state/`. Calling `fit` again with the
    same arguments continues an interrupted run and reads back a finished one. With `resume=False`,
    a folder that contains a run is never touched. The graphs are encoded if they are not yet.
    Without validation graphs the last weights are kept.

    Raises:
        ImportError: the extra `train` is not installed.
        KeyboardInterrupt: the run was interrupted; the message says how to continue it.
        ValueError: no training graphs; the accelerator is not there; or `out` already contains a
            run and `resume` is False, or that run has different settings.
    """
    require_hardware(settings)
    from graphxai.learning.lightning import run

    if not train:
        raise ValueError("there are no graphs to train on.")
    out = Path(out)
    require_new(out, resume=resume)
    folder_at(out)
    path = out / "settings.json"
    may_differ = {"accelerator", "devices", "strategy", "num_workers", "progress"}
    identity: dict[str, Any] = {
        "model": model.config.to_dict(),
        "training": asdict(settings),
        "versions": versions(),
    }
    text = json.dumps(identity, indent=1, default=str) + "\n"
    if path.exists():
        before = json.loads(path.read_text(encoding="utf-8"))
        now = json.loads(text)
        differ = [
            name
            for name, value in now["training"].items()
            if name not in may_differ and before["training"].get(name) != value
        ]
        differ += [f"the {k}" for k in ("model", "versions") if before.get(k) != now[k]]
        require_same(path.parent, differ)
    write_whole(path, text)
    model.train()
    with resumable_in(out):
        kept = run(
            model, encode_all(train, model.config), encode_all(valid, model.config), settings, out
        )
    if kept.weights is not None:
        fill(model, read_weights(kept.weights)[0], kept.weights)
    model.eval()
    return FitResult(model, kept.epoch, kept.scores, kept.loss)


@contextmanager
def resumable_in(out: str | Path) -> Iterator[None]:
    """Let an interrupt of the block say how to continue the run in the folder `out`.

    Lightning ends the whole process on Ctrl-C, and ignores every further one. In a notebook the
    first would be an exit with status 1, so it becomes KeyboardInterrupt again, and the next
    Ctrl-C acts as before.
    """
    words = f"training was interrupted: call it again with resume=True to continue in {out}"
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    except KeyboardInterrupt as stop:
        stop.args = stop.args or (words,)
        raise
    except SystemExit as stop:
        if isinstance(stop.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt(words) from None
        raise
    finally:
        if threading.current_thread() is threading.main_thread() and handler is not None:
            signal.signal(signal.SIGINT, handler)


def require_new(out: Path, *, resume: bool) -> None:
    """Raise a ValueError if a folder contains a run that is not to be resumed."""
    if has_run(out) and not resume:
        raise ValueError(
            f"{out} already contains a run: continue it with --resume (resume=True), or choose"
            " another folder."
        )


def has_run(out: Path) -> bool:
    """Return whether a folder has the states of a network in training, or a finished model."""
    return (out / "state").exists() or (out / "model").exists()


def require_same(out: Path, differing: Sequence[str]) -> None:
    """Raise a ValueError if the run in a folder differs from this one in any of its settings."""
    if differing:
        raise ValueError(
            f"{out} contains a run with different settings ({', '.join(differing)}): choose another"
            " folder, or delete it to start over."
        )


def record_run(out: Path, identity: dict[str, Any], *, resume: bool) -> None:
    """Create a run's folder with `run.json`, or check that it has this run.

    Args:
        identity: what must be the same when the run is resumed, as JSON values.

    Raises:
        ValueError: the folder has a run that is not to be continued, or one with another identity
            or under other versions of what decides numbers.
    """
    stored = out / "run.json"
    text = json.dumps(identity | {"versions": versions()}, indent=1) + "\n"
    if stored.exists() and has_run(out):
        require_new(out, resume=resume)
        before = json.loads(stored.read_text(encoding="utf-8"))
        now = json.loads(text)
        require_same(out, [name for name, value in now.items() if before.get(name) != value])
    folder_at(out)
    write_whole(stored, text)


def require_lightning() -> None:
    """Raise an ImportError that says what to install if Lightning is missing."""
    try:
        importlib.import_module("lightning.pytorch")
    except ImportError as error:
        raise missing_extra("training needs", "Lightning", "train") from error


def require_hardware(settings: RunSettings | TrainingSettings) -> None:
    """Check that Lightning can train on the hardware that was chosen.

    Raises:
        ImportError: the extra `train` is not installed.
        ValueError: the machine has no such accelerator or fewer devices, or Lightning does not know
            the precision.
    """
    kind = getattr(settings, "chosen_model", "network")
    if kind == "process" or (kind == "auto" and not importlib.util.find_spec("lightning")):
        return  # which trains nothing
    require_lightning()
    from graphxai.learning.lightning import check_hardware

    precision = settings.precision or TrainingSettings.precision
    check_hardware(settings.accelerator, settings.devices, precision)


def initialise(model: Graphormer, source: Graphormer, *, head: bool = False) -> Graphormer:
    """Copy the weights of `source` into `model`, those of the head only if `head` is true.

    Raises:
        ValueError: a size differs; the message names the parameter.
    """
    parameters = model.state_dict()
    for name, value in source.state_dict().items():
        if name.startswith("head.") and not head:
            continue
        if name not in parameters or parameters[name].shape != value.shape:
            shape = tuple(parameters[name].shape) if name in parameters else "none"
            raise ValueError(
                f"the two models differ in {name!r}: {tuple(value.shape)} and {shape}. Give the "
                "new model the pre-trained model's configuration."
            )
        parameters[name].copy_(value)
    return model


def molecule_config(tasks: Sequence[Task], **changes: Any) -> GraphormerConfig:
    """Configure the Graphormer for molecules: 4 layers of width 128, 8 heads, OGB's features."""
    values: dict[str, Any] = {
        "num_layers": 4,
        "hidden_dim": 128,
        "ffn_dim": 256,
        "num_heads": 8,
        "node_cardinalities": ATOM_CARDINALITIES,
        "node_feature_names": ATOM_FEATURE_NAMES,
        "edge_cardinalities": BOND_CARDINALITIES,
    }
    return GraphormerConfig(tuple(tasks), **(values | changes))


@callers_state_kept()
def finetune(
    source: Source,
    out: str | Path,
    *,
    init_weights: Graphormer | str | Path | None = PRETRAINED,
    settings: TrainingSettings = FINETUNING,
    resume: bool = False,
    extra: Sequence[Data] = (),
    at_frequencies: bool = False,
) -> FitResult:
    """Train on the training part of a source, from given weights.

    Args:
        source: encoded graphs with labels, and the configuration of the network.
        init_weights: weights to start from. From a model with the same tasks, the head is copied
            too; from a checkpoint, by name or folder, it is not. None trains from scratch.
        extra: further training graphs, such as those with a teacher's labels.
        at_frequencies: let a new head start from the frequencies of the classes, so that the first
            epochs are not spent on learning that a class is rare.
    """
    torch.manual_seed(settings.seed)
    model = graphormer(source.config)
    if at_frequencies:  # weights that bring their own head replace it
        start_at_frequencies(model, torch.from_numpy(source.train.y))
    if isinstance(init_weights, Graphormer):
        initialise(model, init_weights, head=True)
    elif init_weights is not None:
        initialise(model, load_checkpoint(locate(init_weights)))
    train = [*source.train.graphs, *extra]
    return fit(model, train, source.valid.graphs, settings, out, resume=resume)


@torch.no_grad()
def start_at_frequencies(model: Graphormer, y: torch.Tensor) -> None:
    """Set the head's bias to the log-odds of classes among labels y (n, tasks), NaN where missing.

    For several classes it is set to their log-frequencies. Every class counts as if it had one more
    molecule, so that none has a frequency of 0.
    """
    if not isinstance(model.head, torch.nn.Linear):
        raise ValueError("only a linear head has a bias for every class.")
    by_task = zip(model.config.tasks, model.config.columns, y.T, strict=True)
    for task, columns, column in by_task:
        if task.kind == "regression":
            continue
        labels = column[~column.isnan()].long()
        counts = torch.bincount(labels, minlength=len(task.classes)) + 1.0
        bias = (counts / counts.sum()).log()
        model.head.bias[columns] = bias[1:] - bias[:1] if task.kind == "binary" else bias


def evaluate(model: Graphormer, graphs: Sequence[Data]) -> dict[str, float]:
    """Score each task on graphs with labels, see `scores`."""
    y = torch.cat([graph.y.reshape(1, -1).float() for graph in graphs])
    return scores(model.config.tasks, predict(model, graphs), y)
