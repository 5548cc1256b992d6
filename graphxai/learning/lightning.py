"""What `fit` needs of Lightning: the module, the trainer, and a file of its state."""

from __future__ import annotations

import json
import logging
import math
import random
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import lightning.pytorch as pl
import torch
from lightning.fabric.plugins import CheckpointIO
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor
from torch.optim.swa_utils import AveragedModel
from torch_geometric.data import Data

from graphxai.contract.batch import GraphBatch
from graphxai.contract.checkpoint_files import INVALID
from graphxai.learning.predicting import make_loaders
from graphxai.learning.removal import without_some_nodes
from graphxai.learning.scores import Objective, scores
from graphxai.learning.settings import TrainingSettings
from graphxai.models.graphormer import Graphormer, save_checkpoint
from graphxai.runtime.progress import Progress, logged
from graphxai.runtime.writing import csv_text, folder_at, write_whole

PAYS = 50  # the time between two states in that of writing one
ENVIRONMENT_RATE = 8  # learning rate of the table of environments, in those of the other weights


@dataclass
class BestEpoch:
    """The epoch whose weights are kept.

    Attributes:
        weights: checkpoint folder with the weights; None for the model's current ones, as it is
            while a training keeps the last ones.
        value: what decided: the score, or minus the loss.
    """

    weights: Path | None = None
    epoch: int = -1
    value: float = -math.inf
    loss: float = math.nan
    scores: dict[str, float] = field(default_factory=dict)


class GraphormerModule(pl.LightningModule):
    """A Graphormer with its objective, optimiser and averaged weights."""

    def __init__(self, model: Graphormer, settings: TrainingSettings, out: Path) -> None:
        super().__init__()
        self.model = model
        self.settings = settings
        self.folder = out / "state"
        self.metrics_file = out / "metrics.csv"
        self.metrics: list[dict[str, float]] = []  # of each epoch
        self.objective = Objective(
            model.config.tasks, settings.task_weights, settings.label_smoothing
        )
        self.hard_objective = Objective(model.config.tasks, settings.task_weights)
        self.averaged = None if settings.ema_decay is None else AveragedModel(model)
        self._pairs: list[list[Tensor]] = []  # the averaged weights, and those that they average
        # Several devices would wait for a gradient of the average, which has none. (The average
        # could also require no gradient, but then its embeddings would be rounded differently.)
        averaged = () if self.averaged is None else self.averaged.state_dict()
        self._ddp_params_and_buffers_to_ignore = [f"averaged.{name}" for name in averaged]
        self.kept = BestEpoch()
        self.stale = 0
        self._seen: list[tuple[Tensor, Tensor]] = []
        self._losses: list[tuple[Tensor, int]] = []  # of the epoch's batches, with their graphs

    @property
    def current_model(self) -> Graphormer:
        """The weights that would be kept now."""
        return self.model if self.averaged is None else cast(Graphormer, self.averaged.module)

    def training_step(self, batch: GraphBatch, index: int) -> Tensor:
        """Return the loss of a batch.

        What dropout draws depends only on the seed, the step and the process, so a resumed run
        draws what an uninterrupted one does.
        """
        step = f"{self.settings.seed}/{self.global_step}/{self.global_rank}"
        # `torch.manual_seed` also notes the call, with a traceback, for GPUs that may come
        seed = torch.default_generator if self.device.type == "cpu" else torch
        seed.manual_seed(random.Random(step).getrandbits(63))
        if self.settings.bears_removal:
            batch = without_some_nodes(batch, self.settings.seed, self.global_step)
        assert batch.y is not None
        loss = self.objective(self.model.labelled_outputs(batch), batch.y, batch.bounds)
        self._losses.append((loss.detach(), len(batch)))
        return loss

    def on_train_epoch_end(self) -> None:
        """Log the mean loss of the epoch's graphs, once, as each call of `log` costs."""
        losses, sizes = zip(*self._losses, strict=True)
        weights = torch.tensor(sizes, dtype=torch.float, device=self.device)
        mean = torch.stack(losses).float() @ weights / weights.sum()
        self.log("train/loss", mean, batch_size=sum(sizes), sync_dist=True)
        self._losses = []

    def on_train_batch_end(self, outputs: Any, batch: GraphBatch, batch_idx: int) -> None:
        """Average the weights after each step, by a moving average whose memory grows."""
        if self.averaged is None or self.settings.ema_decay is None:
            return
        if not self._pairs:  # looked up once, which takes longer than the average; on their device
            both = self.averaged.module, self.model
            self._pairs = [[weights.detach() for weights in each.parameters()] for each in both]
        averaged, current = self._pairs
        if (count := int(self.averaged.n_averaged)) == 0:
            torch._foreach_copy_(averaged, current)
        else:
            keep = min(self.settings.ema_decay, (1 + count) / (10 + count))
            torch._foreach_lerp_(averaged, current, 1 - keep)
        self.averaged.n_averaged += 1

    def on_validation_epoch_start(self) -> None:
        """Forget the outputs of the last validation, and switch dropout off."""
        self._seen = []
        self.current_model.eval()

    def validation_step(self, batch: GraphBatch, index: int) -> None:
        """Collect the outputs of a batch."""
        assert batch.y is not None
        outputs = self.current_model.labelled_outputs(batch)
        self._seen.append((outputs.float().cpu(), batch.y.cpu()))

    def on_validation_epoch_end(self) -> None:
        """Score the validation graphs, and keep the weights if they are the best so far."""
        outputs, y = map(torch.cat, zip(*self._seen, strict=True))
        loss = float(self.hard_objective(outputs, y))
        by_task = scores(self.model.config.tasks, outputs, y)
        chosen = self.settings.monitor_task
        judged = [v for name, v in by_task.items() if chosen in (None, name)]
        score = sum(judged) / len(judged) if judged else math.nan
        self.log("valid/loss", loss, prog_bar=True, rank_zero_only=True)
        self.log("valid/score", score, prog_bar=True, rank_zero_only=True)
        if len(by_task) <= 32:
            for name, each in by_task.items():
                self.log(f"valid/{name}", each, rank_zero_only=True)
        value = -loss if self.settings.monitor == "loss" or math.isnan(score) else score
        improved = value > self.kept.value or not self.settings.keep_best
        self.stale = 0 if improved else self.stale + 1
        # equal scores are common if there are few validation graphs
        if improved or (value == self.kept.value and loss < self.kept.loss):
            # the weights of the last epoch are written when it has ended
            weights = self.folder / "best" if self.settings.keep_best else None
            self.kept = BestEpoch(weights, self.current_epoch, value, loss, by_task)
            if weights is not None and self.trainer.is_global_zero:
                save_checkpoint(self.current_model, weights)
        self._stop_without_patience()

    def _stop_without_patience(self) -> None:
        """End the training if too many epochs in a row brought nothing."""
        patience = self.settings.patience
        if patience is not None and self.stale >= patience:
            self.trainer.should_stop = True

    def configure_optimizers(self) -> Any:
        """Return AdamW and its schedule: a warm-up, then a cosine.

        Only matrices decay, not biases, LayerNorm or tables of embeddings. A row of the table of
        environments is in few batches, so its learning rate is higher.
        """
        s = self.settings
        head = s.learning_rate if s.head_learning_rate is None else s.head_learning_rate
        groups: dict[tuple[bool, float], list[Tensor]] = {}
        for name, parameter in self.model.named_parameters():
            matrix = name.endswith("weight") and parameter.dim() == 2
            rate = head if name.startswith("head.") else s.learning_rate
            if name.endswith(".environments"):
                rate = ENVIRONMENT_RATE * s.learning_rate
            groups.setdefault((matrix, rate), []).append(parameter)
        optimizer = torch.optim.AdamW(
            [
                {"params": parameters, "weight_decay": s.weight_decay * matrix, "lr": rate}
                for (matrix, rate), parameters in groups.items()
            ],
            betas=(0.9, 0.98),
            # On a CPU a fused step takes a third of the time. Mixed precision cannot clip with it.
            fused=s.precision == "32-true" and self.device.type == "cpu",
        )
        total = max(1, int(self.trainer.estimated_stepping_batches))
        rising = max(1, round(s.warmup * total))

        def factor(step: int) -> float:
            if step < rising:
                return (step + 1) / rising
            return 0.5 * (1 + math.cos(math.pi * min(1.0, (step - rising) / (total - rising + 1))))

        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Store what a resumed run needs to know, and write the metrics of all epochs so far.

        The metrics are in the checkpoint as well, so whenever a run is killed, the resumed one has
        those of exactly the epochs that it does not repeat.
        """
        epoch, logged_values = self.current_epoch, self.trainer.callback_metrics
        row = {name: float(value) for name, value in sorted(logged_values.items())}
        self.metrics.append({"epoch": epoch, "step": self.trainer.global_step - 1, **row})
        if self.trainer.is_global_zero:
            columns = list(dict.fromkeys(name for row in self.metrics for name in row))
            rows = [[row.get(name, "") for name in columns] for row in self.metrics]
            write_whole(self.metrics_file, csv_text(columns, rows))
        weights, *rest = astuple(self.kept)
        state = [weights is not None, *rest]
        checkpoint["graphxai"] = {"kept": state, "stale": self.stale, "metrics": self.metrics}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restore what `on_save_checkpoint` stored. A run that had stopped early trains no more."""
        exists, *rest = checkpoint["graphxai"]["kept"]
        self.kept = BestEpoch(self.folder / "best" if exists else None, *rest)
        self.stale = checkpoint["graphxai"]["stale"]
        self.metrics = checkpoint["graphxai"]["metrics"]
        self._stop_without_patience()


class LoggedBatches(Callback):
    """Write a line every 30 seconds that says how many batches are done."""

    def __init__(self) -> None:
        self.advance: Progress | None = None

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        """Count the batch. Lightning knows the total only when training runs."""
        if trainer.is_global_zero:
            if self.advance is None:
                self.advance = logged("training, batches", int(trainer.estimated_stepping_batches))
                self.advance(trainer.global_step - 1)
            self.advance(1)


def run(
    model: Graphormer, train: list[Data], valid: list[Data], settings: TrainingSettings, out: Path
) -> BestEpoch:
    """Train on encoded graphs, continuing from `out/state/last.ckpt` if it exists."""
    pl.seed_everything(settings.seed, workers=True, verbose=False)
    _quiet()
    module = GraphormerModule(model, settings, out)
    state = out / "state"
    last = state / "last.ckpt"
    states, on_terminal = StateFile(), sys.stderr.isatty()
    trainer = pl.Trainer(
        max_epochs=settings.epochs,
        accelerator=settings.accelerator,
        devices=settings.devices,  # type: ignore[arg-type]
        strategy=settings.strategy,
        precision=settings.precision,  # type: ignore[arg-type]
        gradient_clip_val=settings.gradient_clip or None,
        logger=False,
        callbacks=[
            ModelCheckpoint(
                dirpath=out / "state",
                filename="last",
                save_top_k=1,
                save_on_train_epoch_end=True,  # after the validation of the epoch
                enable_version_counter=False,
            ),
            *([] if on_terminal or not settings.progress else [LoggedBatches()]),
        ],
        enable_progress_bar=settings.progress and on_terminal,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        plugins=[states],
        use_distributed_sampler=False,
    )
    loaders = make_loaders(train, valid, settings, module)
    try:
        trainer.fit(module, *loaders, ckpt_path=str(last) if last.exists() else None)
    finally:
        states.flush()
        if trainer.received_sigterm:
            # Lightning alone would end the process with status 0, as if training were complete.
            raise SystemExit(
                f"training was terminated; continue the run in {out} with resume=True."
            )
    if (kept := module.kept).weights is None:
        save_checkpoint(module.current_model, state / "best")
        epoch = trainer.current_epoch - 1 if kept.epoch < 0 else kept.epoch
        return replace(kept, weights=state / "best", epoch=epoch)
    return kept


def check_hardware(accelerator: str, devices: int | str | Sequence[int], precision: str) -> None:
    """Raise ValueError if Lightning cannot train on this hardware with this precision."""
    _quiet()
    bare = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    hardware: dict[str, Any] = {"accelerator": accelerator, "devices": devices}
    try:
        pl.Trainer(**hardware, precision=precision, **dict.fromkeys(bare, False))  # type: ignore[arg-type]
    except (MisconfigurationException, ImportError, TypeError, ValueError) as error:
        raise ValueError(
            f"cannot train with accelerator {accelerator!r}, devices {devices!r} and precision"
            f" {precision!r}: {error}"
        ) from error


def _quiet() -> None:
    """Hide Lightning's greetings and its advice about workers, but not our warnings."""
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    for words in (
        ".*does not have many workers.*",
        ".*exists and is not empty.*",
        ".*eval mode.*",
        ".*no `val_dataloader`.*",
        ".*LeafSpec.*",
        ".*sync_dist=True.*",  # every device validates all graphs
    ):
        warnings.filterwarnings("ignore", words)


class StateFile(CheckpointIO):
    """Lightning's state as one file of safetensors, whose header has all but the tensors as JSON.

    Lightning itself would use a pickle. A short epoch takes no longer than writing its state, so a
    state waits until the one before has paid, or for `flush` at a stop. A killed process repeats
    what it has not written.
    """

    def __init__(self) -> None:
        self._waiting: tuple[Path, dict[str, Tensor], Any] | None = None
        self._due = -math.inf  # when writing pays again, in seconds of `time.monotonic`

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None
    ) -> None:
        """Write a state, which takes the place of the one before, now or when it pays."""
        tensors: dict[str, Tensor] = {}
        content = _without_tensors(checkpoint, tensors)  # which copies, as training goes on
        self._waiting = Path(path), tensors, content
        if time.monotonic() >= self._due:
            self.flush()

    def flush(self) -> None:
        """Write the last state, unless it is written."""
        if self._waiting is not None:
            begin, (path, tensors, content) = time.monotonic(), self._waiting
            folder_at(path.parent)
            write_whole(path, save(tensors, metadata={"state": json.dumps(content)}))
            self._waiting, self._due = None, (1 + PAYS) * time.monotonic() - PAYS * begin

    def load_checkpoint(self, path: Any, *_: Any, **__: Any) -> dict[str, Any]:
        """Read what `save_checkpoint` wrote. A ValueError says what to do if that fails."""
        try:
            with safe_open(path, framework="pt") as file:
                content = json.loads(file.metadata()["state"])
                state: dict[str, Any] = _with_tensors(content, file.get_tensor)
        except (SafetensorError, OSError, *INVALID) as error:
            raise ValueError(
                f"{path} is no state of a training ({error}): delete {Path(path).parent.parent},"
                " and train anew."
            ) from error
        return state

    def remove_checkpoint(self, path: Any) -> None:
        """Delete a file."""
        Path(path).unlink(missing_ok=True)


def _without_tensors(value: Any, tensors: dict[str, Tensor]) -> Any:
    """Return a value as JSON can hold it, and its tensors in `tensors`, by name."""
    if isinstance(value, Tensor):
        name = str(len(tensors))
        tensors[name] = value.detach().cpu().clone(memory_format=torch.contiguous_format)
        return {"tensor": name}
    if isinstance(value, Mapping):  # whose keys may be numbers
        return {"entries": [[key, _without_tensors(each, tensors)] for key, each in value.items()]}
    if isinstance(value, list | tuple):
        items = [_without_tensors(each, tensors) for each in value]
        return {"tuple": items} if isinstance(value, tuple) else items
    return value


def _with_tensors(value: Any, tensor: Callable[[str], Tensor]) -> Any:
    """Return the value of which `_without_tensors` made this."""
    if isinstance(value, list):
        return [_with_tensors(each, tensor) for each in value]
    if not isinstance(value, dict):
        return value
    if "tensor" in value:
        return tensor(value["tensor"])
    if "tuple" in value:
        return tuple(_with_tensors(each, tensor) for each in value["tuple"])
    return {key: _with_tensors(each, tensor) for key, each in value["entries"]}
