"""The names of the bundled models as a type, which editors complete."""

from typing import Literal

__all__ = ["ModelName"]

# A test compares these with the folders of the models.
ModelName = Literal[
    "bace",
    "blood-brain-barrier",
    "hiv",
    "lipophilicity",
    "mnist-superpixels",
    "molecules",
    "solubility",
    "tox21",
]
