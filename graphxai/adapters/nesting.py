"""Modes of nested blocks, which may end in any order."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode, _pop_mode, _push_mode

from graphxai.rules.scope import Blocks


class Nest:
    """The modes of blocks that were opened within a mode's block, in its thread."""

    def __init__(self) -> None:
        self.inner: list[Any] = []

    @contextmanager
    def within(self, mode: TorchFunctionMode) -> Iterator[None]:
        """Within the block, add the mode that owns this nest to the enclosing nests."""
        around = _nests.get()
        for nest in around:
            nest.inner.append(mode)
        try:
            with _nests.block((*around, self)):
                yield
        finally:
            for nest in around:
                nest.inner.remove(mode)


_nests: Blocks[tuple[Nest, ...]] = Blocks("graphxai_nests", ())


def take_off(mode: TorchFunctionMode) -> None:
    """Remove the mode from this thread's stack, wherever it is, if it is there."""
    above = []
    while torch._C._len_torch_function_stack():
        top = _pop_mode()
        if top is mode:
            break
        above.append(top)
    for other in reversed(above):
        _push_mode(other)
