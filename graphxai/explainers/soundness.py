"""Check that a method explains the model itself, with its outputs and without randomness."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from graphxai.adapters.engine.pass_warnings import warn_of_random_numbers
from graphxai.adapters.engine.recording import recording
from graphxai.runtime.randomness import current_draws

FAR = 7e4  # in machine epsilons of the largest output, more than bfloat16 inside a pass causes
HUGE = 1e9  # products of larger inputs may overflow
SMALL = 1e-4  # smaller outputs are assumed to be differences of larger numbers

_compared: "WeakKeyDictionary[nn.Module, set[tuple[Any, ...]]]" = WeakKeyDictionary()


def checked_outputs(model: Any, batch: Any, outputs: Tensor, method: str) -> Tensor:
    """Return the outputs (B, C) of a method's pass, without numbers where the model has none.

    A pass that is recorded and runs again need not overflow where the model does, as in a softmax
    written as exp(x) / sum(exp(x)). Neither need PyTorch's attention for gradients with huge
    inputs. Warns as `warn_if_outputs_differ` does.
    """
    memory = getattr(model, "memory", None)
    noted = set() if memory is None else memory.noted_passes()
    if noted != {True}:
        warn_if_outputs_differ(model, batch, outputs, method)
    may_differ = False in noted or (noted and bool((batch.x.abs() > HUGE).any()))
    if not may_differ or _draws_random_numbers():
        return outputs
    with torch.no_grad():
        of_model = model(batch).to(outputs)
    return torch.where(of_model.isfinite(), outputs, of_model)


def warn_if_outputs_differ(model: Any, batch: Any, outputs: Tensor, method: str) -> None:
    """Warn if the outputs (B, C) of a method's pass are not those of the model.

    Rules should change gradients, but never values. The check runs once for each model, method and
    rules of `wrap`. Two graphs of a wrapped model's batch are enough for it.
    """
    module = getattr(model, "module", model)
    if not isinstance(module, nn.Module) or _draws_random_numbers():
        return
    compared = _compared.setdefault(module, set())
    key = (method, *getattr(getattr(model, "settings", None), "rules", ()))
    if key in compared:
        return
    compared.add(key)
    if len(batch) > 2 and hasattr(batch, "of_rows"):  # the first and the last differ most in size
        batch, outputs = batch.of_rows(0, len(batch) - 1), outputs[[0, -1]]
    with torch.no_grad():
        expected = model(batch).to(outputs)
    size = expected.abs().max().clamp(min=SMALL)
    far = float((expected - outputs).abs().max() / size)
    if far > FAR * torch.finfo(next(_floats(model), expected).dtype).eps:
        warnings.warn(
            f"the outputs of {type(module).__name__} change under the rules of {method!r}, by"
            f" {far:.1e} of the largest output: the explanation is not of this model.",
            stacklevel=4,
        )


def _draws_random_numbers() -> bool:
    draws = current_draws()
    return draws is not None and draws.seen


def _floats(model: Any) -> Any:
    return (value for value in model.parameters() if value.is_floating_point())


@contextmanager
def noticing_random_numbers(model: Any, batch: Any) -> Iterator[None]:
    """Warn if a wrapped model draws random numbers within the block, and name the place.

    There is no warning if another thread or the method itself draws them, or if a recorded pass has
    already warned.
    """
    module = getattr(model, "module", None)
    if not isinstance(module, torch.nn.Module):
        yield
        return
    before = torch.get_rng_state()
    yield
    draws = current_draws()
    if not (draws is None or draws.seen or torch.equal(before, torch.get_rng_state())):
        with recording(model.running, [], graded=False) as done:
            warn_of_random_numbers(type(module).__name__, done(model(batch)))
