"""The settings that all training runs share, for Python and the command line."""

from __future__ import annotations

from dataclasses import dataclass, field

from graphxai.runtime.options import documented, option

__all__ = ["EnsembleSettings", "RunSettings"]


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
    resume: bool = option(False, "Continue after an interruption.", applies_to=None)
    accelerator: str = option(
        "auto", "Lightning's accelerator: auto, cpu, gpu and others.", applies_to=None
    )
    devices: int | str = option(
        1,
        "Lightning's devices: a number or 'auto'.",
        applies_to=None,
        command_line_default="auto",
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


@dataclass(frozen=True)
class EnsembleSettings(RunSettings):
    """The settings of runs that may train several networks as one model."""

    ensemble: int = option(
        1,
        "Number of networks to average; relevance then has a spread over them.",
        applies_to=("table", "graphs"),
        minimum=1,
    )

    def __post_init__(self) -> None:
        if self.ensemble != 1:
            from graphxai.models.graphormer.ensemble import MOST  # brings torch

            if not 1 <= self.ensemble <= MOST:
                raise ValueError(f"an ensemble has 1 to {MOST} networks, not {self.ensemble}.")
