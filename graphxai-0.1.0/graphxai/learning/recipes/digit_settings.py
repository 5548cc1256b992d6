"""The settings of a training run on MNIST superpixels, for Python and the command line."""

from dataclasses import dataclass, field

from graphxai.learning.run_settings import RunSettings
from graphxai.runtime.options import documented, option

__all__ = ["DigitSettings"]

DIGITS = ("mnist-superpixels",)
FEWEST_IMAGES = 20
EPOCHS, VERSIONS = 4, 10  # of the recipe


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
        f" epochs than {EPOCHS} as many fewer].",
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
        return versions_for(self.epochs) if self.versions is None else self.versions

    def __post_init__(self) -> None:
        if self.versions_used < 1 or self.num_train < FEWEST_IMAGES:
            raise ValueError(f"versions must be at least 1 and num_train at least {FEWEST_IMAGES}.")


def versions_for(epochs: int | None) -> int:
    """Return the recipe's versions of an image for a number of epochs, None for the recipe's."""
    return -(-VERSIONS * min(epochs or EPOCHS, EPOCHS) // EPOCHS)
