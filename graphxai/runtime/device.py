"""Choose the device on which a model computes, and how many threads and processes do.

Torch has one thread in each process. Molecules are small, so two threads spend more time waiting
for each other than they save, and ten times as much if the machine is busy. Results do not depend
on how many threads torch was given.
"""

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
        default = torch.get_default_device()
        if default.type == "cpu":
            return function(*args, **kwargs)
        _of_thread.users_default = default
        try:
            with torch.device("cpu"):
                return function(*args, **kwargs)
        finally:
            _of_thread.users_default = None

    return called


def users_default_device() -> AbstractContextManager[Any]:
    """Within the block, make new tensors where the user's default says."""
    default = getattr(_of_thread, "users_default", None)
    return nullcontext() if default is None else default


_changing = threading.Lock()
_running = 0  # threads within the block
_before = 1  # torch's number of threads outside of it


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch compute with one thread within the block, and afterwards with as many as before.

    Blocks may be nested, and entered by several threads of a program at once.
    """
    global _running, _before
    if getattr(_of_thread, "within", False):
        yield
        return
    with _changing:
        if not _running:  # a thread that enters later may see 1
            _before = torch.get_num_threads()
        _running += 1
        _set_threads(1)
    _of_thread.within = True
    try:
        yield
    finally:
        _of_thread.within = False
        with _changing:
            _running -= 1
            _set_threads(_before)


def workers_for(model: Any, workers: int | None) -> int | None:
    """Return how many processes to use, by default one for a model on an accelerator.

    Several processes would share the accelerator.
    """
    if workers is None and next(model.parameters()).device.type != "cpu":
        return 1
    return workers


def _set_threads(count: int) -> None:
    if torch.get_num_threads() != count:
        torch.set_num_threads(count)
