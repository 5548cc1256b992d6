"""Values that are in force within blocks, in one thread, whatever the order in which blocks end.

A context variable alone is put back to what it was before its block. Generators may be closed in
another order than they were opened in, or in another thread; what was before is then wrong. Here
every block ends for itself.
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
    """A value that is the innermost block's, or `default` outside of all blocks."""

    def __init__(self, name: str, default: Value) -> None:
        self._default = default
        self._open: ContextVar[tuple[_Block[Value], ...]] = ContextVar(name, default=())

    def get(self) -> Value:
        """What is in force here and now, in this thread."""
        opened = self._open.get()
        if opened and not opened[-1].ended:
            return opened[-1].value
        return next((block.value for block in reversed(opened) if not block.ended), self._default)

    @contextmanager
    def block(self, value: Value) -> Iterator[Value]:
        """Within the block `value` is in force."""
        mine = _Block(value)
        self._open.set((*self._rest(), mine))
        try:
            yield value
        finally:
            mine.ended = True
            self._open.set(self._rest())

    def _rest(self) -> tuple[_Block[Value], ...]:
        return tuple(block for block in self._open.get() if not block.ended)
