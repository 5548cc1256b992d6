"""Say what a model is for: to predict, or to start training from."""

from collections.abc import Mapping
from typing import Any

TO_START = "weights to start from"  # the summary of a model that predicts nothing useful


def is_to_start(metadata: Mapping[str, Any]) -> bool:
    """Return whether a model with these metadata has only weights to start training from."""
    return bool(metadata.get("summary") == TO_START)
