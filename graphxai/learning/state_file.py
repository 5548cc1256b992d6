"""Lightning's state of a training as a file without pickle, written when that pays."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins import CheckpointIO
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from graphxai.contract.checkpoint_files import INVALID
from graphxai.runtime.writing import folder_at, write_whole

PAYS = 50  # the time between two states in that of writing one


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
