"""Let a pass that runs anyway note what the model returns for a graph without nodes.

An explanation names this output, for which the model would otherwise have to run once more.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from graphxai.runtime.scope import Blocks


class EmptyOutputs:
    """The outputs for graphs without nodes that passes have noted."""

    def __init__(self) -> None:
        self._noted: list[tuple[Any, Any, Tensor]] = []

    def note(self, model: Any, batch: Any, output: Tensor | None) -> None:
        """Note the model's output (1, C) for each graph of a batch without its nodes, if any."""
        if output is not None:
            self._noted.append((model, batch, output))

    def of(self, model: Any, batch: Any) -> Tensor | None:
        """Return what was noted for a model and a batch, or None."""
        outputs = (out for asked, noted, out in self._noted if asked is model and noted is batch)
        return next(outputs, None)


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
