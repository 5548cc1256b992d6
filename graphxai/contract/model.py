"""The contract between explainers and models.

An explainer asks three things of a model: tokens, outputs from tokens, and (through
`propagation.record`) the attention probabilities of a pass.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol, runtime_checkable
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from graphxai.models.graphormer.config import TaskSet
from graphxai.rules.conservative import as_it_is

from .randomness import one_draw


@runtime_checkable
class ExplainableModel(Protocol):
    """What a model offers to be explained: the bundled Graphormer, or another's after `wrap`.

    A batch is whatever its own `collate` gives: it has a length B, `mask` (B, N), `num_nodes` (B,)
    and `x` (B, N, ...).
    """

    @property
    def config(self) -> TaskSet:
        """The tasks of the model, and what else describes it."""
        ...

    @property
    def training(self) -> bool:
        """Whether dropout is on."""
        ...

    def embed(self, batch: Any) -> Tensor:
        """Tokens (B, T, D) entering the first layer, the graph token first."""
        ...

    def encode(self, tokens: Tensor, batch: Any, keep: Tensor | None = None) -> Tensor:
        """Outputs (B, num_outputs); keep (B, N) hides nodes where it is False."""
        ...

    def split_by_feature(self, batch: Any, gradient: Tensor) -> Tensor | None:
        """Exact parts (B, N, F) of every node's `embedding . gradient`, or None."""
        ...

    def train(self, mode: bool = True) -> "ExplainableModel":
        """Switch dropout on or off."""
        ...


_lock = threading.Lock()
_users: "WeakKeyDictionary[Any, tuple[int, bool]]" = WeakKeyDictionary()


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """Eval mode for the block; the mode from before comes back with the last block that ends.

    Several threads may use one model at a time.
    """
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
                model.train(was_training)


@contextmanager
def explaining(model: ExplainableModel) -> Iterator[None]:
    """Eval mode with gradients on, whatever the caller's state; all of it is put back.

    Rules that the caller has in force are not, within the block. Raises TypeError for a model
    without the contract, ValueError for weights through which no gradient passes.
    """
    require_contract(model)
    if any(value.is_inference() for value in getattr(model, "parameters", tuple)()):
        raise ValueError(
            f"{type(getattr(model, 'module', model)).__name__} has weights that were made in"
            " torch.inference_mode(), through which no gradient passes: make or load the model"
            " outside of it (torch.no_grad() will do)."
        )
    with (
        evaluating(model),
        torch.inference_mode(False),
        torch.enable_grad(),
        as_it_is(),
        one_draw(),
    ):
        yield


def require_contract(model: Any) -> None:
    """Raise TypeError for what cannot be explained, and say what would make it so."""
    if isinstance(model, ExplainableModel):
        return
    name = model.__name__ if isinstance(model, type) else type(model).__name__
    raise TypeError(
        f"{name} cannot be explained: a model needs embed(batch),"
        " encode(tokens, batch, keep) and split_by_feature(batch, gradient)."
        " graphxai.wrap gives them to any PyTorch model."
    )
