"""Run models under `torch.compile` uncompiled while they are recorded."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import nn

_lock = threading.Lock()
_users = 0  # of the eager stance, which is the whole process's
_stances = ExitStack()  # holds what the stance was before


def as_written(model: nn.Module) -> nn.Module:
    """The module inside `torch.compile`'s, or inside `DataParallel`; the weights are the same."""
    inner = getattr(model, "_orig_mod", model)
    if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
        inner = model.module
    return as_written(inner) if isinstance(inner, nn.Module) and inner is not model else model


@contextmanager
def uncompiled(model: nn.Module) -> Iterator[None]:
    """Within the block nothing is compiled, if any part of the model is.

    Compiled code runs no hooks and hides its operations. Compiled code in other threads runs
    eagerly too in the meantime, with the same results: PyTorch has one setting for all threads.
    """
    if not any(_is_compiled(module) for module in model.modules()):
        yield
        return
    _count(1)
    try:
        yield
    finally:
        _count(-1)


def _is_compiled(module: nn.Module) -> bool:
    in_place = getattr(module, "_compiled_call_impl", None) is not None
    return in_place or as_written(module) is not module


def _count(change: int) -> None:
    """The first user sets the eager stance, the last one restores the previous stance."""
    global _users
    with _lock:
        before, _users = _users, _users + change
        if not before:
            _stances.enter_context(torch.compiler.set_stance("force_eager"))
        elif not _users:
            _stances.close()
