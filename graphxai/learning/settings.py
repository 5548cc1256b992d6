"""Settings for training a Graphormer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class TrainingSettings:
    """How to train. `warmup` is a fraction of all steps, `monitor` is "score" or "loss".

    The learning rate rises linearly and then falls to zero along a cosine. `ema_decay`: the
    weights validated and kept are an exponential moving average of the trained ones; None keeps
    the trained ones. `patience`: number of epochs without improvement after which training stops;
    None trains to the end. `keep_best` keeps the weights of the best validation epoch instead of
    the last. The score is the mean over tasks of ROC-AUC (binary), accuracy (multi-class) and R
    squared (regression), or that of `monitor_task` only. `head_learning_rate`: learning rate of
    the read-out head; None means the same as the rest. `accelerator`, `devices`, `strategy` and
    `precision` are Lightning's.
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
        """`show` of `progress_bar`: a bar on a terminal, lines in a log file, or nothing at all."""
        return None if self.progress else False

    def changed(self, **changes: Any) -> TrainingSettings:
        """A recipe's settings with what a user chose; None leaves what the recipe says."""
        return replace(self, **{name: one for name, one in changes.items() if one is not None})

    def __post_init__(self) -> None:
        if self.monitor not in ("score", "loss"):
            raise ValueError(f"monitor must be 'score' or 'loss', not {self.monitor!r}.")
        for name in ("epochs", "batch_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}.")
