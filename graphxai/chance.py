"""A warning where a model's answer is left to chance in passes that nobody watches."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from .draws import current_draws


@contextmanager
def noticing_chance(model: Any, batch: Any) -> Iterator[None]:
    """If random numbers were drawn within the block, look where in a pass of a wrapped model.

    Another thread may have drawn them, or a method: then nothing is said. Passes that are watched
    have said so already.
    """
    before = torch.get_rng_state()
    yield
    draws, module = current_draws(), getattr(model, "module", None)
    if draws is None or draws.seen or torch.equal(before, torch.get_rng_state()):
        return
    if isinstance(module, torch.nn.Module):
        from graphxai.adapters.interception import intercepted

        with torch.no_grad(), intercepted(module, always=True) as watch:
            model(batch)
            watch.warn_of_chance()
