"""Values in force within blocks of one thread, in whatever order the blocks end.

A plain context variable is reset to its value from before the block. Generators may be closed in
a different order than they were opened, or in another thread; that earlier value is then wrong.
Here every block ends independently.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Generic, TypeVar

Value = TypeVar("Value")


@dataclass(eq=False)
class _Block(Generic[Value]):
    value: Value
    ended: bool = False


class Blocks(Generic[Value]):
    """The innermost block's value, or `default` outside of all blocks."""

    def __init__(self, name: str, default: Value) -> None:
        self._default = default
        self._open: ContextVar[tuple[_Block[Value], ...]] = ContextVar(name, default=())

    def get(self) -> Value:
        """The value currently in force in this thread."""
        opened = self._open.get()
        if opened and not opened[-1].ended:
            return opened[-1].value
        return next((block.value for block in reversed(opened) if not block.ended), self._default)

    @contextmanager
    def block(self, value: Value) -> Iterator[Value]:
        """Put `value` in force within the block."""
        mine = _Block(value)
        self._open.set((*self._rest(), mine))
        try:
            yield value
        finally:
            mine.ended = True
            self._open.set(self._rest())

    def _rest(self) -> tuple[_Block[Value], ...]:
        return tuple(block for block in self._open.get() if not block.ended)
