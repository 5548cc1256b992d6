"""Whether what was explained is the model: the same outputs under the rules, and no chance."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from graphxai.adapters.interception import intercepted
from graphxai.contract.randomness import current_draws

FAR = 7e4  # machine epsilons of the largest output: more than bfloat16 within a pass makes
SMALL = 1e-4  # outputs below are taken for a difference of larger ones

_compared: "WeakKeyDictionary[nn.Module, set[str]]" = WeakKeyDictionary()


def warn_if_another(model: Any, batch: Any, outputs: Tensor, method: str) -> None:
    """Compare outputs (B, C) of a method's pass with a wrapped model's own, once a method.

    Rules change gradients, never values. Should they for some module, a warning says so.
    """
    module, draws = getattr(model, "module", None), current_draws()
    if not isinstance(module, nn.Module) or (draws is not None and draws.seen):
        return
    compared = _compared.setdefault(module, set())
    if method in compared:
        return
    compared.add(method)
    with torch.no_grad():
        own = model(batch).to(outputs)
    size = own.abs().max().clamp(min=SMALL)
    far = float((own - outputs).abs().max() / size)
    if far > FAR * torch.finfo(next(_floats(model), own).dtype).eps:
        warnings.warn(
            f"{type(module).__name__} gives other outputs under the rules of {method!r} than by"
            f" itself, by {far:.1e} of the largest: what is explained is not the model.",
            stacklevel=4,
        )


def _floats(model: Any) -> Any:
    return (value for value in model.parameters() if value.is_floating_point())


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
        with torch.no_grad(), intercepted(module, always=True) as watch:
            model(batch)
            watch.warn_of_chance()
