"""Hold values that are in force within blocks of one thread, in whatever order the blocks end.

A plain context variable is reset to its value from before the block. That value is wrong when
generators are closed in another order than they were opened, or in another thread. Here every block
ends independently.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Generic, TypeVar

Value = TypeVar("Value")


@dataclass(eq=False)
class _Block(Generic[Value]):
    """A value, and whether its block has ended."""

    value: Value
    ended: bool = False


class Blocks(Generic[Value]):
    """All blocks of one name. The innermost open block gives the value, or else `default` does."""

    def __init__(self, name: str, default: Value) -> None:
        self._default = default
        self._open: ContextVar[tuple[_Block[Value], ...]] = ContextVar(name, default=())

    def get(self) -> Value:
        """Return the value that is in force in this thread."""
        opened = self._open.get()
        if opened and not opened[-1].ended:
            return opened[-1].value
        return next((block.value for block in reversed(opened) if not block.ended), self._default)

    @contextmanager
    def block(self, value: Value) -> Iterator[Value]:
        """Bring `value` into force within the block."""
        block = _Block(value)
        self._open.set((*self._unended(), block))
        try:
            yield value
        finally:
            block.ended = True
            self._open.set(self._unended())

    def _unended(self) -> tuple[_Block[Value], ...]:
        """Return the blocks that have not ended."""
        return tuple(block for block in self._open.get() if not block.ended)
