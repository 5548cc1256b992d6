"""Training a Graphormer with Lightning: one function, `fit`, for every data set.

Lightning (extra `train`) is imported when training starts, not before.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch_geometric.data import Data

from .checkpoint import fill, read_weights
from .config import GraphormerConfig
from .encoding import collate
from .loading import SizeBuckets, encode_all, make_loader
from .model import Graphormer
from .objectives import scores

__all__ = ["FitResult", "TrainingSettings", "evaluate", "fit", "initialise", "predict"]


@dataclass(frozen=True)
class TrainingSettings:
    """How to train. `warmup` is a fraction of all steps, `monitor` one of "score" and "loss".

    The learning rate rises linearly and then falls to zero along a cosine. `ema_decay`: the
    weights that are validated and kept are an exponential moving average of those trained; None
    keeps the last ones. `patience`: epochs without an improvement after which training stops;
    None trains to the end. `keep_best` keeps the weights of the best validation epoch, else the
    last. `score` is the mean over tasks of ROC-AUC (binary), accuracy (multi-class) and R
    squared (regression), or that of `monitor_task` alone. `head_learning_rate`: for the read-out
    head; None means that of the rest. `accelerator`, `devices`, `strategy` and `precision` are
    Lightning's own.
    """

    epochs: int = 50
    batch_size: int = 64
    learning_rate: float = 1e-3
    head_learning_rate: float | None = None
    weight_decay: float = 0.01
    warmup: float = 0.05
    gradient_clip: float = 1.0
    ema_decay: float | None = 0.995
    label_smoothing: float = 0.0
    task_weights: tuple[float, ...] | None = None
    monitor: str = "score"
    monitor_task: str | None = None
    patience: int | None = None
    keep_best: bool = True
    seed: int = 0
    accelerator: str = "auto"
    devices: int | str | Sequence[int] = 1
    strategy: str = "auto"
    precision: str = "32-true"
    num_workers: int = 0
    progress: bool = True

    @property
    def show(self) -> bool | None:
        """`show` of `progress_bar`: a bar where stderr is a terminal, or none at all."""
        return None if self.progress else False

    def __post_init__(self) -> None:
        if self.monitor not in ("score", "loss"):
            raise ValueError(f"monitor must be 'score' or 'loss', not {self.monitor!r}.")
        for name in ("epochs", "batch_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}.")


@dataclass(frozen=True)
class FitResult:
    """What came out of a training run; `scores` are those of the validation graphs, by task."""

    model: Graphormer
    epoch: int
    scores: dict[str, float] = field(default_factory=dict)
    loss: float = float("nan")


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

    `out` gets `metrics.csv`, `settings.json` and `state/`. An interrupted run goes on from there
    when `fit` is called again with the same arguments; a finished one is read back. `resume=False`
    refuses to touch a folder that holds a run.
    Structure is encoded where it is missing. Without validation graphs the last weights are kept.

    Raises:
        ImportError: the extra `train` is not installed.
        ValueError: no training graphs; or `out` holds a run already and `resume` is False, or that
            run has other settings.
    """
    require_lightning()
    from ._lightning import run

    if not train:
        raise ValueError("there are no graphs to train on.")
    out = Path(out)
    if (out / "state").exists() and not resume:
        raise ValueError(
            f"{out} holds a run already: resume it (resume=True, --resume) or choose another "
            "folder."
        )
    out.mkdir(parents=True, exist_ok=True)
    _check_same_run(out / "settings.json", model.config, settings)
    model.train()
    kept = run(
        model, encode_all(train, model.config), encode_all(valid, model.config), settings, out
    )
    if kept.weights is not None:
        fill(model, read_weights(kept.weights)[0], kept.weights)
    model.eval()
    return FitResult(model, kept.epoch, kept.scores, kept.loss)


def require_lightning() -> None:
    """Raise an ImportError that says what to install where Lightning is missing."""
    try:
        importlib.import_module("lightning.pytorch")
    except ImportError as error:
        raise ImportError(
            "training needs Lightning: install it with `pip install 'graphxai[train]'`."
        ) from error


def initialise(model: Graphormer, source: Graphormer, *, head: bool = False) -> Graphormer:
    """Copy the weights of `source`, with its head or (the default) without, into `model`.

    Raises:
        ValueError: a size differs; the message names the parameter.
    """
    own = model.state_dict()
    for name, value in source.state_dict().items():
        if name.startswith("head.") and not head:
            continue
        if name not in own or own[name].shape != value.shape:
            found = tuple(own[name].shape) if name in own else "none"
            raise ValueError(
                f"the two models differ in {name!r}: {tuple(value.shape)} and {found}. Give the "
                "new model the configuration of the pre-trained one."
            )
        own[name].copy_(value)
    return model


@torch.no_grad()
def predict(model: Graphormer, graphs: Sequence[Data], batch_size: int = 64) -> torch.Tensor:
    """Outputs (G, num_outputs) of the model for graphs, on the CPU and in the given order."""
    encoded = encode_all(graphs, model.config)
    sizes = [int(graph.num_nodes or 0) for graph in encoded]
    device = next(model.parameters()).device
    training = model.training
    model.eval()
    outputs = torch.empty(len(encoded), model.config.num_outputs)
    for batch in SizeBuckets(sizes, batch_size, shuffle=False):
        graphs_of_batch = collate([encoded[k] for k in batch]).to(device)
        outputs[batch] = model(graphs_of_batch).float().cpu()
    model.train(training)
    return outputs


def evaluate(model: Graphormer, graphs: Sequence[Data]) -> dict[str, float]:
    """Score of each task on graphs with labels (see `scores`)."""
    y = torch.cat([graph.y.reshape(1, -1).float() for graph in graphs])
    return scores(model.config, predict(model, graphs), y)


def _check_same_run(path: Path, config: GraphormerConfig, settings: TrainingSettings) -> None:
    """Write the settings of a new run; refuse to go on with an old one under other settings."""
    free = {"accelerator", "devices", "strategy", "num_workers", "progress"}
    wanted: dict[str, Any] = {"model": config.to_dict(), "training": asdict(settings)}
    text = json.dumps(wanted, indent=1, default=str) + "\n"
    if path.exists():
        before = json.loads(path.read_text(encoding="utf-8"))
        now = json.loads(text)
        differ = [
            name
            for name, value in now["training"].items()
            if name not in free and before["training"].get(name) != value
        ]
        differ += ["the model"] if before["model"] != now["model"] else []
        if differ:
            raise ValueError(
                f"{path.parent} holds a run with another setting of {', '.join(differ)}: "
                "choose another folder, or delete it to start afresh."
            )
    path.write_text(text, encoding="utf-8")


def make_loaders(
    train: list[Data], valid: list[Data], settings: TrainingSettings, module: Any
) -> tuple[Any, Any]:
    """Loaders of the training and the validation graphs for a Lightning module."""

    def sampler(graphs: list[Data], *, shuffle: bool) -> SizeBuckets:
        return SizeBuckets(
            [int(graph.num_nodes or 0) for graph in graphs],
            settings.batch_size,
            seed=settings.seed,
            shuffle=shuffle,
            epoch=lambda: module.current_epoch,
            share=lambda: (
                (module.trainer.global_rank, module.trainer.world_size) if shuffle else (0, 1)
            ),
        )

    workers = settings.num_workers
    return (
        make_loader(train, sampler(train, shuffle=True), workers),
        make_loader(valid, sampler(valid, shuffle=False), workers) if valid else None,
    )
