"""The settings of training: what a user chooses for a run, and how a network is then fitted.

Every run takes `RunSettings`. What only a table, only graphs or only digits have is in a class of
its own that adds to them. Python and the command line share these classes. Importing them needs no
PyTorch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from itertools import compress
from pathlib import Path
from typing import Any, Literal

from graphxai.runtime.notices import warn
from graphxai.runtime.options import call_of, changes, documented, literal, option, written

warn_once = cache(warn)
KEPT_TEACHER = (
    "keep_teacher does nothing any more: a teacher is not stored. Its process, as a model of its"
    " own (model='process'), is as good on most tables, and is explained."
)
NOT_ON_CARDS = ("resume", "progress", "accelerator", "devices")  # of one run, not of the recipe
CHOSEN_FOR_A_RUN = (
    "seed", "epochs", "bears_removal", "accelerator", "devices", "precision", "progress",
)  # fmt: skip
MOLECULES = ("table", "ogb")
TABLE, GRAPHS, DIGITS = ("table",), ("graphs",), ("mnist-superpixels",)
EPOCHS, FEWEST_EPOCHS = 60, 8  # on graphs
STEPS = 300  # for learning labels of nodes, of which one batch has many
SEEN = 150_000  # training graphs in all epochs, above which there are fewer epochs
BATCH = 32  # graphs
PAIRS = 2_000_000  # pairs of nodes in a batch
FEWEST_IMAGES = 20
DIGIT_EPOCHS, VERSIONS = 4, 10  # of the recipe for digits


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
        bears_removal: whether half of the graphs of each batch lose up to 75 % of their nodes, see
            `removal.without_some_nodes`.
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
    bears_removal: bool = False
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


@documented
@dataclass(frozen=True)
class RunSettings:
    """How long to train, from which seed and on which hardware."""

    seed: int = option(0, "Seed for weights, batches and random split.", applies_to=None)
    epochs: int | None = option(
        None,
        "Epochs [default: the recipe's; for a table 10, from scratch 20, without a teacher twice as"
        " many; for graphs up to 60].",
        applies_to=None,
        minimum=1,
    )
    bears_removal: bool = option(
        False,
        "Half of the training graphs lose up to 75 % of their nodes, as occlusion removes them; the"
        " card says what the network knows without them.",
        applies_to=None,
    )
    resume: bool = option(False, "Continue after an interruption.", applies_to=None)
    accelerator: str = option(
        "auto", "Lightning's accelerator: auto, cpu, gpu and others.", applies_to=None
    )
    devices: int | str = option(
        1, "Lightning's devices: a number or 'auto'.", applies_to=None, command_line_default="auto"
    )
    precision: str | None = option(
        None,
        "Lightning's precision, such as 32-true or bf16-mixed [default: the recipe's].",
        applies_to=None,
    )
    progress: bool = field(
        default=True,
        metadata={"help": "Show no bar on a terminal, and elsewhere no line every 30 seconds."},
    )


def repeating(
    recipe: str,
    function: str,
    settings: RunSettings,
    positional: Sequence[str] = (),
    /,
    **others: str,
) -> str:
    """Return the command that trains the same weights again, or the call if it has no option.

    Args:
        recipe: the name of the recipe on the command line, or of the folder if there is no command.
        settings: the settings of the run, of which those that are not the default are written.
        positional: the first arguments of the call, as they are written in Python. If there are
            any, no command does the same.
        others: further arguments of the call, as they are written in Python.
    """
    changed = changes(settings, type(settings)(), NOT_ON_CARDS)
    has_option = {each.name: "option" in each.metadata for each in fields(settings)}
    if positional or others or not all(has_option[name] for name in changed):
        first = positional or [literal(f"runs/{recipe}")]
        return call_of(function, first, written(changed) | others)
    options = [
        f"--{name.replace('_', '-')}{'' if value is True else f' {value}'}"
        for name, value in changed.items()
    ]
    return " ".join(["graphxai train", recipe, f"--out runs/{recipe}", *options])


@dataclass(frozen=True)
class EnsembleSettings(RunSettings):
    """The settings of runs that may train several networks as one model."""

    ensemble: int = option(
        1,
        "Number of networks to average; relevance then has a spread over them.",
        applies_to=(*MOLECULES, "graphs"),
        minimum=1,
    )

    def __post_init__(self) -> None:
        if self.ensemble != 1:
            from graphxai.models.graphormer.ensemble import MOST  # brings torch

            if not 1 <= self.ensemble <= MOST:
                raise ValueError(f"an ensemble has 1 to {MOST} networks, not {self.ensemble}.")


@documented
@dataclass(frozen=True)
class TableSettings(EnsembleSettings):
    """How to split a table of molecules, what to train on it, and on which hardware.

    Raises:
        ValueError: options that exclude each other, or an impossible number of networks.
    """

    split: Literal["scaffold", "random", "clusters"] | None = option(
        None,
        "How test molecules are chosen [default: scaffold; bace: random].",
        applies_to=("table", "bace"),
    )
    split_column: str | None = option(
        None, "Column that says train, valid or test for each molecule.", applies_to=TABLE
    )
    time_column: str | None = option(
        None, "Column with dates or years; the newest molecules are tested.", applies_to=TABLE
    )
    model: Literal["auto", "process", "network"] = option(
        "auto",
        "A Gaussian process, which takes seconds and no extra, or a network; 'auto' writes the"
        " process first, and decides after one fold whether a network is worth its time. Options of"
        " networks (--bears-removal, --epochs, --ensemble, --init-weights, --no-teacher) choose a"
        " network.",
        applies_to=MOLECULES,
    )
    init_weights: str | Path | None = option(
        "molecules",
        "Weights to start from: a model's name, a folder or 'none'.",
        applies_to=MOLECULES,
    )
    teacher: bool = option(
        True,
        "Do not learn from a teacher (a fifth of the time, usually worse).",
        applies_to=MOLECULES,
    )
    keep_teacher: bool = option(
        False,
        "Does nothing any more: --model process makes a model of the teacher's process.",
        applies_to=MOLECULES,
    )
    learning_curve: bool = option(
        False, "Also train on 1/8, 1/4 and 1/2 (three times as long).", applies_to=MOLECULES
    )
    values_alone: bool = option(
        False,
        "Learn the numbers of the column; ignore columns of relations and units beside it.",
        applies_to=TABLE,
    )
    without_structures: bool = option(
        False,
        "Write no list of the molecules; no account by training molecule, and no nearness.",
        applies_to=MOLECULES,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        ways = {
            "--split": self.split,
            "--split-column": self.split_column,
            "--time-column": self.time_column,
        }
        given = [name for name, value in ways.items() if value is not None]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} cannot be combined: give one of them.")
        for name in self._of_networks if self.model == "process" else ():
            raise ValueError(f"a process has no networks and no teacher: leave out {name}.")
        if self.keep_teacher:
            warn_once(KEPT_TEACHER)

    @property
    def _of_networks(self) -> list[str]:
        """The options of networks that were given."""
        given = self.ensemble > 1, not self.teacher, self.epochs is not None, self.bears_removal
        names = ("--ensemble", "--no-teacher", "--epochs", "--bears-removal")
        return list(compress(names, given))

    @property
    def chosen_model(self) -> Literal["auto", "process", "network"]:
        """The model to train, which is a network if an option of networks was given."""
        of_networks = self._of_networks or self.init_weights != "molecules"
        return "network" if self.model == "auto" and of_networks else self.model

    @property
    def split_kind(self) -> str:
        """The way to split: "column", "time", "scaffold", "random" or "clusters"."""
        if self.split_column is not None:
            return "column"
        return "time" if self.time_column is not None else self.split or "scaffold"

    @property
    def named_column(self) -> str | None:
        """The column that the split reads, if there is one."""
        return self.split_column if self.time_column is None else self.time_column


@documented
@dataclass(frozen=True)
class GraphSettings(EnsembleSettings):
    """How to split graphs, which network to train on them, and on which hardware."""

    split: Any = field(
        default=None,
        metadata={
            "help": "The split: 'random' for 80/10/10 with the seed, a `Split`, or three lists with"
            " the positions of the training, validation and test graphs, or of nodes if a single"
            " graph has labels of nodes. None takes the split of the data set (masks of nodes, or"
            " the `split` of a folder), or else 'random'."
        },
    )
    layers: int = option(4, "Layers of the network.", applies_to=GRAPHS, minimum=1)
    width: int = option(64, "Width of the network, a multiple of 8.", applies_to=GRAPHS, minimum=8)
    learning_rate: float = option(2e-3, "Highest learning rate.", applies_to=GRAPHS, minimum=0)
    dropout: float = option(0.1, "Dropout, between layers and of attention.", applies_to=GRAPHS)
    patience: int = option(
        20,
        "Stop after so many epochs without a lower validation loss.",
        applies_to=GRAPHS,
        minimum=1,
    )
    baselines: bool = option(
        True, "Do not train a GIN and a forest for comparison.", applies_to=GRAPHS
    )

    def training(self, graphs: int, largest: int, *, of_nodes: bool = False) -> TrainingSettings:
        """Return the settings for fitting a network.

        Args:
            graphs: number of training graphs; the more there are, the fewer times each is seen.
            largest: nodes of the largest graph, on which the batch size depends.
            of_nodes: whether nodes have the labels. If there are few graphs, there are more epochs,
                and training is as much more patient.
        """
        epochs = min(EPOCHS, max(FEWEST_EPOCHS, SEEN // max(graphs, 1)))
        batch = max(1, min(BATCH, PAIRS // max(largest, 1) ** 2))
        patience = self.patience
        if of_nodes and (more := STEPS // (epochs * -(-graphs // batch))) > 1:
            epochs, patience = more * epochs, more * patience
        return TrainingSettings(
            epochs=epochs,
            batch_size=batch,
            learning_rate=self.learning_rate,
            ema_decay=0.99,
            monitor="loss",
            patience=patience,
        ).for_run(self)


@documented
@dataclass(frozen=True)
class DigitSettings(RunSettings):
    """How many digits to train on, how to train, and on which hardware.

    Raises:
        ValueError: there are too few images, or no versions of them.
    """

    num_train: int = option(
        10_000,
        "Training images, of which a tenth are for validation.",
        applies_to=DIGITS,
        minimum=FEWEST_IMAGES,
    )
    versions: int | None = option(
        None,
        f"Versions of each training image, all but one deformed [default: {VERSIONS}, and for fewer"
        f" epochs than {DIGIT_EPOCHS} as many fewer].",
        applies_to=DIGITS,
        minimum=1,
    )
    num_test: int | None = field(
        default=None, metadata={"help": "Number of test images; None takes all."}
    )
    batch_size: int = field(default=32, metadata={"help": "Graphs per step."})
    learning_rate: float = field(default=2e-3, metadata={"help": "Highest learning rate."})

    @property
    def versions_used(self) -> int:
        """The number of versions of each image, of which a short run prepares fewer."""
        epochs = min(self.epochs or DIGIT_EPOCHS, DIGIT_EPOCHS)
        return -(-VERSIONS * epochs // DIGIT_EPOCHS) if self.versions is None else self.versions

    def __post_init__(self) -> None:
        if self.versions_used < 1 or self.num_train < FEWEST_IMAGES:
            raise ValueError(f"versions must be at least 1 and num_train at least {FEWEST_IMAGES}.")
