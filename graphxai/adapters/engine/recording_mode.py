"""What a recording shares with every other mode that watches a pass in PyTorch's dispatcher."""

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
HOOKS = {"register_hook", "retain_grad"}
REPORTED = HOOKS | DRAWING
_saving_hooks = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)


def saved_tensor_hooks_active() -> bool:
    """Whether hooks handle what autograd saves for the backward pass, as a checkpoint's do.

    The function that tells is not public. Without it the answer is yes, which is always correct:
    no cached program is used, so that every pass is recorded anew.
    """
    return _saving_hooks is None or _saving_hooks(True) is not None


class _PythonCalls(TorchFunctionMode):
    """Reports values that leave PyTorch, random numbers and gradient hooks to a recording.

    As long as it is active, PyTorch's layers do not use their kernels for inference.
    """

    def __init__(self, mode: Any) -> None:
        super().__init__()
        self._mode = mode

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = name_of(func), kwargs or {}
        if getattr(func, "__name__", "") in EXITS:
            self._mode.leaves(args[0])
        if name in REPORTED:
            if name in HOOKS:
                self._mode.changes_gradients()
            if name in DRAWING and draws_numbers(name, args, kwargs):
                self._mode.draws(name)
        out = func(*args, **kwargs)
        return self._mode.returned(out) if self._mode.apart else out


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
