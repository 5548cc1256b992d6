"""Modes of blocks inside of blocks, which may end in any order."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode, _pop_mode, _push_mode

from graphxai.rules.scope import Blocks


class Nest:
    """The modes of blocks that were opened within a mode's own, in its thread."""

    def __init__(self) -> None:
        self.inner: list[Any] = []

    @contextmanager
    def within(self, mode: TorchFunctionMode) -> Iterator[None]:
        """For the length of the block the mode, whose nest this is, is in those around it."""
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
    """Take the mode off this thread's stack, if it is there, from wherever in it."""
    above = []
    while torch._C._len_torch_function_stack():
        top = _pop_mode()
        if top is mode:
            break
        above.append(top)
    for other in reversed(above):
        _push_mode(other)
