"""The settings of a training run on MNIST superpixels, for Python and the command line."""

from dataclasses import dataclass, field

from graphxai.learning.run_settings import RunSettings
from graphxai.runtime.options import documented, option

__all__ = ["DigitSettings"]

DIGITS = ("mnist-superpixels",)
FEWEST_IMAGES = 20


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
    versions: int = option(
        10, "Versions of each training image, all but one deformed.", applies_to=DIGITS, minimum=1
    )
    num_test: int | None = field(
        default=None, metadata={"help": "Number of test images; None takes all."}
    )
    batch_size: int = field(default=32, metadata={"help": "Graphs per step."})
    learning_rate: float = field(default=2e-3, metadata={"help": "Highest learning rate."})

    def __post_init__(self) -> None:
        if self.versions < 1 or self.num_train < FEWEST_IMAGES:
            raise ValueError(f"versions must be at least 1 and num_train at least {FEWEST_IMAGES}.")
