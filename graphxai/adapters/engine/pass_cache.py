"""What several methods need of one pass, worked out once within a block.

Transformer attribution needs the same pass twice, and methods that are tried on a batch one after
another all begin by recording it. Within `cached_passes` it is recorded once. Weights and inputs may
change in between: they are compared. Whatever else the model reads must stay as it is.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from graphxai.runtime.scope import Blocks

from ..eval_replica import all_modules

Found = TypeVar("Found")


class _PassCache:
    """What was found last, for at most `most` keys."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.found: list[tuple[tuple[Any, ...], Any]] = []


_memory: Blocks[_PassCache | None] = Blocks("graphxai_memory", None)


@contextmanager
def cached_passes(most: int) -> Iterator[None]:
    """Within the block, and blocks inside it, `cached` keeps its last results, at most so many."""
    if _memory.get() is not None:
        yield
        return
    with _memory.block(_PassCache(most)):
        yield


def cached(
    key: tuple[Any, ...],
    find: Callable[[], Found],
    keep: Callable[[Found], bool] = lambda found: True,
) -> Found:
    """What `find` returns, or returned before for the same key within the block.

    key: dense tensors, numbers and text in it are the same if they are equal, all else if it is the
    same object. keep: whether the result serves later calls.
    """
    memory = _memory.get()
    if memory is None:
        return find()
    for known, found in memory.found:
        if _same(known, key):
            return found
    made = find()
    if keep(made):
        memory.found = [(key, made), *memory.found][: memory.most]
    return made


def _same(one: Any, other: Any) -> bool:
    if one is other:
        return True
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        kinds = ((t.shape, t.dtype, t.device, t.layout) for t in (one, other))
        return len(set(kinds)) == 1 and one.layout == torch.strided and torch.equal(one, other)
    if isinstance(one, tuple | list) and isinstance(other, tuple | list):
        return len(one) == len(other) and all(map(_same, one, other))
    return isinstance(one, int | float | str) and type(one) is type(other) and one == other


def weight_versions(module: nn.Module) -> tuple[int, ...]:
    """Numbers that change when weights or buffers are written to."""
    kept = (names for part in all_modules(module) for names in (part._parameters, part._buffers))
    tensors = (t for names in kept for t in names.values() if t is not None)
    return tuple(-1 if t.is_inference() else t._version for t in tensors)
