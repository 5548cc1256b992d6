"""Run a pass while it is recorded: below PyTorch's dispatcher, and at its calls from Python."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from graphxai.runtime.randomness import DRAWING, current_draws, draws_numbers

from .vocabulary import name_of

# the underscores tell `float(x)` from `x.float()`, which stays within PyTorch
EXITS = {"tolist", "numpy", "__array__", "item", "__float__", "__dlpack__"}


class _PythonCalls(TorchFunctionMode):
    """Reports values that leave PyTorch, and random numbers, to a recording.

    As long as it is active, PyTorch's layers do not use their kernels for inference.
    """

    def __init__(self, mode: Any) -> None:
        super().__init__()
        self._mode = mode

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = name_of(func), kwargs or {}
        if any(kind.__name__ == "NestedTensor" for kind in types):
            self._mode.refuse_nested()
        if getattr(func, "__name__", "") in EXITS:
            self._mode.leaves(args[0])
        if name in DRAWING and draws_numbers(name, args, kwargs):
            self._mode.draws(name)
        return func(*args, **kwargs)


_recording = threading.local()


def is_recording() -> bool:
    """Whether a pass is being recorded in this thread."""
    return getattr(_recording, "count", 0) > 0


@contextmanager
def under_mode(mode: Any, graded: bool) -> Iterator[None]:
    """Run a pass within the block under a mode of the dispatcher.

    Args:
        graded: with gradients or not.
    """
    if (draws := current_draws()) is not None:
        draws.begin()
    _recording.count = getattr(_recording, "count", 0) + 1
    try:
        with torch.set_grad_enabled(graded), _PythonCalls(mode), mode:
            yield
    finally:
        _recording.count -= 1
