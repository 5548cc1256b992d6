"""Train a Graphormer with Lightning: one function, `fit`, for every data set.

Lightning (extra `train`) is imported when training starts, not before.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from graphxai.learning.loading import SizeBuckets, encode_all
from graphxai.learning.objectives import scores
from graphxai.learning.settings import TrainingSettings
from graphxai.models.graphormer import Graphormer, GraphormerConfig, LoadedModel, collate
from graphxai.models.graphormer.checkpoint import fill, read_weights
from graphxai.runtime.writing import write_whole

if TYPE_CHECKING:
    from torch_geometric.data import Data

__all__ = [
    "FitResult",
    "evaluate",
    "fit",
    "initialise",
    "predict",
    "require_hardware",
    "require_lightning",
]

PREDICTED = 64  # graphs in a batch of predictions


@dataclass(frozen=True)
class FitResult:
    """The result of a training run; `scores` are for the validation graphs, by task."""

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

    `out` gets `metrics.csv`, `settings.json` and `state/`. Calling `fit` again with the same
    arguments continues an interrupted run and reads back a finished one. With `resume=False`, a
    folder that contains a run is never touched. Structure is encoded if missing. Without validation
    graphs the last weights are kept.

    Raises:
        ImportError: the extra `train` is not installed.
        ValueError: no training graphs; the accelerator is not there; or `out` already contains a
            run and `resume` is False, or that run has different settings.
    """
    require_hardware(settings.accelerator, settings.devices, settings.precision)
    from graphxai.learning.lightning import run

    if not train:
        raise ValueError("there are no graphs to train on.")
    out = Path(out)
    if (out / "state").exists() and not resume:
        raise ValueError(
            f"{out} already contains a run: resume it (resume=True, --resume) or choose another "
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
    """Raise an ImportError that says what to install if Lightning is missing."""
    try:
        importlib.import_module("lightning.pytorch")
    except ImportError as error:
        raise ImportError(
            "training needs Lightning: install it with `pip install 'graphxai[train]'`."
        ) from error


def require_hardware(
    accelerator: str = "auto", devices: int | str | Sequence[int] = 1, precision: str | None = None
) -> None:
    """Check that Lightning can train like this; the arguments are its own. precision: None for any.

    Raises:
        ImportError: the extra `train` is not installed.
        ValueError: the machine has no such accelerator or fewer devices, or Lightning does not know
            the precision.
    """
    require_lightning()
    from graphxai.learning.lightning import check_hardware

    check_hardware(accelerator, devices, precision or TrainingSettings.precision)


def initialise(model: Graphormer, source: Graphormer, *, head: bool = False) -> Graphormer:
    """Copy the weights of `source` into `model`; its head only if `head` is true.

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
                "new model the pre-trained model's configuration."
            )
        own[name].copy_(value)
    return model


@torch.no_grad()
def predict(model: LoadedModel, graphs: Sequence[Data]) -> torch.Tensor:
    """Return the model's outputs (G, num_outputs) for graphs, on the CPU, in the given order."""
    encoded = encode_all(graphs, model.config)
    sizes = [int(graph.num_nodes or 0) for graph in encoded]
    device = next(model.parameters()).device
    training = model.training
    model.eval()
    outputs = torch.empty(len(encoded), model.config.num_outputs)
    for batch in SizeBuckets(sizes, PREDICTED, shuffle=False):
        graphs_of_batch = collate([encoded[k] for k in batch]).to(device)
        outputs[batch] = model(graphs_of_batch).float().cpu()
    model.train(training)
    return outputs


def evaluate(model: Graphormer, graphs: Sequence[Data]) -> dict[str, float]:
    """Score each task on graphs with labels (see `scores`)."""
    y = torch.cat([graph.y.reshape(1, -1).float() for graph in graphs])
    return scores(model.config, predict(model, graphs), y)


def _check_same_run(path: Path, config: GraphormerConfig, settings: TrainingSettings) -> None:
    """Write the settings of a new run; refuse to continue an old one under different settings."""
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
                f"{path.parent} contains a run with different settings ({', '.join(differ)}): "
                "choose another folder, or delete it to start over."
            )
    write_whole(path, text)
