"""Hold what is in force within blocks: values of one thread, and states that threads share.

The blocks of a thread may end in any order. A plain context variable is reset to its value from
before the block. That value is wrong when generators are closed in another order than they were
opened, or in another thread. Here every block ends independently.
"""

import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Generic, TypeVar

Value = TypeVar("Value")

_lock = threading.Lock()
_users: dict[Hashable, tuple[int, Callable[[], None]]] = {}  # a count, and what the last one calls


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
        return tuple(block for block in self._open.get() if not block.ended)


@contextmanager
def shared_block(key: Hashable, begin: Callable[[], Callable[[], None]]) -> Iterator[None]:
    """Let threads share a block. The first calls `begin`, and the last what `begin` returned."""
    with _lock:
        count, undo = _users[key] if key in _users else (0, begin())
        _users[key] = count + 1, undo
    try:
        yield
    finally:
        with _lock:
            count, undo = _users.pop(key)
            if count > 1:
                _users[key] = count - 1, undo
            else:
                undo()


def in_shared_block(key: Hashable) -> bool:
    """Whether any thread is in a block with this key."""
    return key in _users
