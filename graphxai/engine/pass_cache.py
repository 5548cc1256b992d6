"""A cache for what several methods need of the same pass.

Transformer attribution needs the same pass twice, and methods that run on the same batch all begin
by recording the same pass. Within `cached_passes` it is recorded once. Weights and inputs may
change in between, because they are compared. Whatever else the model reads must stay as it is.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from graphxai.runtime.scope import Blocks

from .eval_replica import all_modules

Value = TypeVar("Value")


class _PassCache:
    """The last values that were computed, for at most `most` keys, the newest first."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.entries: list[tuple[tuple[Any, ...], Any]] = []


_cache: Blocks[_PassCache | None] = Blocks("graphxai_pass_cache", None)


@contextmanager
def cached_passes(most: int) -> Iterator[None]:
    """Let `cached` keep its last results, at most so many, within this block and blocks inside."""
    if _cache.get() is not None:
        yield
        return
    with _cache.block(_PassCache(most)):
        yield


def cached(
    key: tuple[Any, ...],
    compute: Callable[[], Value],
    keep: Callable[[Value], bool] = lambda value: True,
) -> Value:
    """Return what `compute` returns, or what it returned for the same key within the block.

    Args:
        key: dense tensors, numbers and text in it are compared by value, everything else by
            identity.
        keep: whether a value may serve later calls.
    """
    cache = _cache.get()
    if cache is None:
        return compute()
    for cached_key, value in cache.entries:
        if _are_same(cached_key, key):
            return value
    value = compute()
    if keep(value):
        cache.entries = [(key, value), *cache.entries][: cache.most]
    return value


def _are_same(a: Any, b: Any) -> bool:
    """Whether two keys, or two parts of keys, are the same."""
    if a is b:
        return True
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        kinds = ((t.shape, t.dtype, t.device, t.layout) for t in (a, b))
        return len(set(kinds)) == 1 and a.layout == torch.strided and torch.equal(a, b)
    if isinstance(a, tuple | list) and isinstance(b, tuple | list):
        return len(a) == len(b) and all(map(_are_same, a, b))
    return isinstance(a, int | float | str) and type(a) is type(b) and a == b


def weight_versions(module: nn.Module) -> tuple[int, ...]:
    """Return numbers that change whenever weights or buffers are written to."""
    named = (names for part in all_modules(module) for names in (part._parameters, part._buffers))
    tensors = (t for names in named for t in names.values() if t is not None)
    return tuple(-1 if t.is_inference() else t._version for t in tensors)
