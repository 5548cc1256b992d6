"""Settings for training a Graphormer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from .run_settings import RunSettings

CHOSEN_FOR_A_RUN = ("seed", "epochs", "accelerator", "devices", "precision", "progress")


@dataclass(frozen=True)
class TrainingSettings:
    """How to train a Graphormer.

    The learning rate rises linearly and then falls to zero along a cosine. The score of an epoch is
    the mean over tasks of ROC-AUC (binary), accuracy (multi-class) and R squared (regression).

    Attributes:
        epochs: passes over the training graphs.
        batch_size: graphs per step.
        learning_rate: highest learning rate.
        head_learning_rate: highest learning rate of the read-out head; None means that of the
            rest.
        weight_decay: AdamW's weight decay, for matrices.
        warmup: fraction of all steps in which the learning rate rises.
        gradient_clip: largest norm of a gradient; 0 for none.
        ema_decay: the weights validated and kept are an exponential moving average of the trained
            ones with this decay; None keeps the trained ones.
        label_smoothing: share of a class label that is spread evenly over all classes.
        task_weights: weight of each task in the loss; None means equal ones.
        monitor: whether the "score" or the "loss" decides which epoch is the best. Of epochs with
            the same score, the one with the lowest loss is the best.
        monitor_task: the only task whose score counts; None means all.
        patience: number of epochs without improvement after which training stops; None trains to
            the end.
        keep_best: whether to keep the weights of the best validation epoch instead of the last.
        seed: seed of the order of the graphs and of dropout.
        accelerator: Lightning's.
        devices: Lightning's.
        strategy: Lightning's.
        precision: Lightning's.
        num_workers: processes that load batches.
        progress: whether to show progress.
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
        """The argument `show` of `progress_bar`: None shows progress, False does not."""
        return None if self.progress else False

    def for_run(self, run: RunSettings) -> TrainingSettings:
        """Return a recipe's settings with what the user of a run chose: seed, epochs, hardware.

        Where the user chose nothing (None), the recipe decides.
        """
        chosen = {name: getattr(run, name) for name in CHOSEN_FOR_A_RUN}
        return replace(self, **{name: value for name, value in chosen.items() if value is not None})

    def __post_init__(self) -> None:
        if self.monitor not in ("score", "loss"):
            raise ValueError(f"monitor must be 'score' or 'loss', not {self.monitor!r}.")
        for name in ("epochs", "batch_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}.")
