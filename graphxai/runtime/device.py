"""Choose the device on which a model computes, and the one on which new tensors are made."""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch

AnyModel = TypeVar("AnyModel", bound=Any)
Args = ParamSpec("Args")
Result = TypeVar("Result")

_of_thread = threading.local()  # not a context variable: checks run in contexts of their own


def on_device(model: AnyModel, device: torch.device | str | None) -> AnyModel:
    """Move a model to a device in place and permanently, as `model.to(device)` does.

    The model's inputs follow it, and results come back to the CPU.

    Args:
        device: the device; with None the model stays where it is.

    Raises:
        ValueError: this machine has no such device.
    """
    if device is None:
        return model
    try:
        torch.zeros(1, device=device).item()  # fails on 'meta' too, which holds no values
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        devices = ["cpu", *(f"cuda:{k}" for k in range(torch.cuda.device_count()))]
        devices += ["mps"] if torch.backends.mps.is_available() else []
        raise ValueError(
            f"cannot compute on the device {str(device)!r}; this machine has {', '.join(devices)}."
        ) from error
    return model.to(device)


def on_cpu_by_default(function: Callable[Args, Result]) -> Callable[Args, Result]:
    """Let a public function make its own tensors on the CPU, whatever the user's default device is.

    Inputs are prepared on the CPU, and go to the model's device from there. The user's own modules
    run under the user's default (see `users_default_device`).
    """

    @wraps(function)
    def called(*args: Args.args, **kwargs: Args.kwargs) -> Result:
        with _cpu_by_default():
            return function(*args, **kwargs)

    return called


@contextmanager
def _cpu_by_default() -> Iterator[None]:
    default = torch.get_default_device()
    if default.type == "cpu":
        yield
        return
    _of_thread.users_default = default
    try:
        with torch.device("cpu"):
            yield
    finally:
        _of_thread.users_default = None


def users_default_device() -> AbstractContextManager[Any]:
    """Within the block, make new tensors where the user's default says."""
    default = getattr(_of_thread, "users_default", None)
    return nullcontext() if default is None else default
