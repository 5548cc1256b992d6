"""Where a model computes."""

from typing import Any, TypeVar

import torch

AnyModel = TypeVar("AnyModel", bound=Any)


def on_device(model: AnyModel, device: torch.device | str | None) -> AnyModel:
    """Move a model, as `model.to(device)` does: in place and permanently; None leaves it where it
    is.

    Its inputs follow it, and results come back to the CPU. Raises ValueError if this machine has
    no such device.
    """
    if device is None:
        return model
    try:
        torch.zeros(1, device=device).item()  # fails on 'meta' too, which holds no values
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        there = ["cpu", *(f"cuda:{k}" for k in range(torch.cuda.device_count()))]
        there += ["mps"] if torch.backends.mps.is_available() else []
        raise ValueError(
            f"cannot compute on the device {str(device)!r}; this machine has {', '.join(there)}."
        ) from error
    return model.to(device)
