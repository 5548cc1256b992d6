"""Keep what is computed from the weights of a model, or within a block, to compute it once."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from graphxai.runtime.modules import all_modules
from graphxai.runtime.scope import Blocks

_MOST = 2**21  # weights that are compared in each call of `derived_values`
Value = TypeVar("Value")


class DerivedValues:
    """Values that were computed from tensors, each when it was first needed.

    Args:
        tensors: what everything is computed from.
        settings: whatever else the values depend on.
        watched: whether a copy of the tensors is kept, to notice changes. Otherwise the values
            belong to this object alone.
    """

    def __init__(self, tensors: Sequence[Tensor], settings: list[Any], watched: bool) -> None:
        self._settings, self.watched = settings, watched
        self._values: dict[object, Any] = {}
        self._places = _places(tensors)
        # while these arrays exist, no other tensor can be in the same place
        self._arrays = [tensor.detach().numpy() for tensor in tensors] if watched else []
        self._copies = [array.tobytes() for array in self._arrays]

    def are_of(self, tensors: Sequence[Tensor], settings: list[Any]) -> bool:
        """Return whether these are the same tensors and settings, with the same numbers in them.

        Every number is compared. PyTorch's counter of changes misses what is written through
        `.data` or NumPy.
        """
        if not self.watched or settings != self._settings or _places(tensors) != self._places:
            return False
        return all(
            array.tobytes() == copy  # twice as fast as `torch.equal`
            for array, copy in zip(self._arrays, self._copies, strict=True)
        )

    def once(self, name: object, compute: Callable[[], Value]) -> Value:
        """Return the value of this name, or compute it now. It is shared and must not change."""
        if name not in self._values:
            with torch.inference_mode(False), torch.no_grad():
                self._values[name] = compute()
        return self._values[name]


_kept: "WeakKeyDictionary[Any, DerivedValues]" = WeakKeyDictionary()


def derived_values(owner: Any, tensors: Sequence[Tensor], settings: list[Any]) -> DerivedValues:
    """Return the values that were computed from the tensors of their owner.

    They are empty at first, and again when anything has changed. Values from tensors on a GPU, or
    from so many that comparing them takes long, are not kept for the next call.
    """
    kept = _kept.get(owner)
    if kept is not None and kept.are_of(tensors, settings):
        return kept
    on_processor = all(tensor.device.type == "cpu" for tensor in tensors)
    watched = on_processor and sum(tensor.numel() for tensor in tensors) <= _MOST
    values = _kept[owner] = DerivedValues(tensors, settings, watched)
    return values


def _places(tensors: Sequence[Tensor]) -> list[tuple[int, tuple[int, ...], tuple[int, ...]]]:
    """Return where each tensor lies in memory, and how its numbers are laid out there."""
    return [(tensor.data_ptr(), tensor.shape, tensor.stride()) for tensor in tensors]


# the last values that were computed, each with its key, the newest first
_cache: Blocks[deque[tuple[tuple[Any, ...], Any]] | None] = Blocks("graphxai_pass_cache", None)


@contextmanager
def cached_passes(most: int) -> Iterator[None]:
    """Let `cached` keep its last results, at most so many, within this block and blocks inside."""
    if _cache.get() is not None:
        yield
        return
    with _cache.block(deque(maxlen=most)):
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
    if (entries := _cache.get()) is None:
        return compute()
    for cached_key, value in entries:
        if _are_same(cached_key, key):
            return value
    value = compute()
    if keep(value):
        entries.appendleft((key, value))
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
