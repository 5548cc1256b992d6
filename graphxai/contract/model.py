"""The contract between explainers and models.

An explainer asks a model for three things: tokens, outputs from tokens, and (through
`rules.conservative.record`) the attention probabilities of a pass.
"""

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from graphxai.rules.conservative import rules_suspended
from graphxai.runtime.randomness import one_draw

from .purpose import is_to_start
from .tasks import TaskSet


@dataclass(frozen=True)
class Origin:
    """Where a model came from.

    Args:
        name: the model's name.
        sha256: the SHA-256 of its weights.
        metadata: what its folder says about it.
        folder: the folder that it was loaded from.
    """

    name: str = "unnamed"
    sha256: str = ""
    metadata: dict[str, Any] = field(default_factory=dict)
    folder: Path | None = None


class HasOrigin(Protocol):
    """Anything that was loaded from a checkpoint."""

    origin: Origin


Stored = TypeVar("Stored", bound=HasOrigin)


def weights_hash(model: Any) -> str:
    """Return the SHA-256 of the checkpoint file, or of the weights if the model has no file."""
    if model.origin.sha256:
        known: str = model.origin.sha256
        return known
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def only_starts(model: Stored) -> bool:
    """Return whether a model has only weights to start training from."""
    return is_to_start(model.origin.metadata)


def require_purpose(model: Stored) -> Stored:
    """Return the model, or raise a ValueError if it has only weights to start training from."""
    if only_starts(model):
        raise ValueError(
            f"{model.origin.name!r} has only weights to start training from: choose a model with a"
            " task (see `graphxai models`), or train one with `graphxai train`."
        )
    return model


class NoAttentionError(ValueError):
    """A method reads attention, but the model has no attention that it can see."""


@runtime_checkable
class ExplainableModel(Protocol):
    """What a model must offer to be explained. The Graphormer and any wrapped model do.

    A batch is whatever the model's `collate` returns: it has a length B, `mask` (B, N),
    `num_nodes` (B,) and `x` (B, N, ...).
    """

    @property
    def config(self) -> TaskSet:
        """The model's tasks, and whatever else describes the model."""
        ...

    @property
    def training(self) -> bool:
        """Whether the model is in training mode, with dropout on."""
        ...

    def embed(self, batch: Any) -> Tensor:
        """Return the tokens (B, T, D) that enter the first layer, graph token first."""
        ...

    def encode(self, tokens: Tensor, batch: Any, keep: Tensor | None = None) -> Tensor:
        """Return the outputs (B, num_outputs). Nodes where `keep` (B, N) is False are hidden."""
        ...

    def split_by_feature(self, batch: Any, gradient: Tensor) -> Tensor | None:
        """Split every node's `embedding . gradient` exactly into parts (B, N, F) by feature.

        Return None if the model cannot.
        """
        ...

    def train(self, mode: bool = True) -> "ExplainableModel":
        """Switch training mode, and with it dropout, on or off."""
        ...


_MEMBERS = tuple(name for name in vars(ExplainableModel) if not name.startswith("_"))
_lock = threading.Lock()
_users: "WeakKeyDictionary[Any, tuple[int, bool]]" = WeakKeyDictionary()


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """Put a model into eval mode within the block. The last block to end restores its mode.

    Several threads may use one model at the same time. If the model has an `evaluating` method, as
    wrapped models do, the model looks after its mode itself.
    """
    if (evaluating_itself := getattr(model, "evaluating", None)) is not None:
        with evaluating_itself():
            yield
        return
    with _lock:
        count, was_training = _users.get(model, (0, bool(model.training)))
        _users[model] = (count + 1, was_training)
        if model.training:
            model.train(False)
    try:
        yield
    finally:
        with _lock:
            count, was_training = _users[model]
            if count > 1:
                _users[model] = (count - 1, was_training)
            else:
                del _users[model]
                if was_training:
                    model.train(True)


@contextmanager
def explaining(model: ExplainableModel) -> Iterator[None]:
    """Put a model into eval mode and turn gradients on within the block.

    Whatever the caller set before does not matter within the block and is restored at its end. The
    caller's rules do not apply within the block either.

    Raises:
        TypeError: the model does not meet the contract.
        ValueError: the weights cannot carry gradients.
    """
    require_contract(model)
    if _has_inference_weights(model):
        raise ValueError(
            f"{type(getattr(model, 'module', model)).__name__} has weights that were created in"
            " torch.inference_mode() and cannot carry gradients: create or load the model outside"
            " of it (torch.no_grad() works)."
        )
    with (
        evaluating(model),
        torch.inference_mode(False),
        torch.enable_grad(),
        rules_suspended(),
        one_draw(),
    ):
        yield


def _has_inference_weights(model: Any) -> bool:
    """Return whether any weight of a model was created in `torch.inference_mode()`.

    This is asked in every explanation. Going through the modules is five times as fast as going
    through `model.parameters()`. A wrapped model has the user's modules in `module`, and counts
    their buffers too.
    """
    root = getattr(model, "module", model)
    if getattr(type(root), "parameters", None) is not nn.Module.parameters:
        return any(value.is_inference() for value in getattr(model, "parameters", tuple)())
    modules, is_wrapped = [root], root is not model
    while modules:
        module = modules.pop()
        weights = [*module._parameters.values(), *(module._buffers.values() if is_wrapped else ())]
        if any(weight is not None and weight.is_inference() for weight in weights):
            return True
        modules += [part for part in module._modules.values() if part is not None]
    return False


def require_contract(model: Any) -> None:
    """Raise TypeError if the model cannot be explained, and say what it needs."""
    # the class is asked first: asking a model for `training` may go through all of its modules
    inside = getattr(model, "__dict__", {})
    if all(hasattr(type(model), name) or name in inside for name in _MEMBERS):
        return
    if isinstance(model, ExplainableModel):
        return
    name = model.__name__ if isinstance(model, type) else type(model).__name__
    raise TypeError(
        f"{name} cannot be explained: a model needs embed(batch),"
        " encode(tokens, batch, keep) and split_by_feature(batch, gradient)."
        " graphxai.wrap adds them to any PyTorch model."
    )
