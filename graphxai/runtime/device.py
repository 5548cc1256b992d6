"""Choose the device on which a model computes."""

from typing import Any, TypeVar

import torch

AnyModel = TypeVar("AnyModel", bound=Any)


def on_device(model: AnyModel, device: torch.device | str | None) -> AnyModel:
    """Move a model to a device in place and permanently, as `model.to(device)` does.

    The model's inputs follow it, and results come back to the CPU.

    Args:
        model: the model.
        device: the device; with None the model stays where it is.

    Raises:
        ValueError: this machine has no such device.
    """
    if device is None:
        return model
    try:
        torch.zeros(1, device=device).item()  # fails on 'meta' too, which holds no values
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        devices = ["cpu", *(f"cuda:{k}" for k in range(torch.cuda.device_count()))]
        devices += ["mps"] if torch.backends.mps.is_available() else []
        raise ValueError(
            f"cannot compute on the device {str(device)!r}; this machine has {', '.join(devices)}."
        ) from error
    return model.to(device)
