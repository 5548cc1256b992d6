"""Let a pass that runs anyway note what the model returns for a graph without nodes.

An explanation names this output, for which the model would otherwise have to run once more.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from graphxai.runtime.scope import Blocks


class EmptyOutputs:
    """The outputs for graphs without nodes that passes have noted, by the batch of the pass."""

    def __init__(self) -> None:
        self._noted: list[tuple[Any, Tensor]] = []

    def note(self, batch: Any, output: Tensor) -> None:
        """Note the output (1, C) for each graph of a batch without its nodes."""
        self._noted.append((batch, output))

    def of(self, batch: Any) -> Tensor | None:
        """Return what was noted for a batch, or None."""
        return next((output for noted, output in self._noted if noted is batch), None)


_wanted: Blocks[EmptyOutputs | None] = Blocks("graphxai_empty_outputs", None)


@contextmanager
def noting_empty_outputs() -> Iterator[EmptyOutputs]:
    """Ask passes within the block to note the output without nodes if they can."""
    with _wanted.block(EmptyOutputs()) as noted:
        assert noted is not None
        yield noted


def wanted_empty_outputs() -> EmptyOutputs | None:
    """Return where a pass of this thread should note the output, or None if nobody asks for it."""
    return _wanted.get()
