"""The contract between explainers and models.

An explainer asks a model for three things: tokens, outputs from tokens, and (through
`rules.conservative.record`) the attention probabilities of a pass.
"""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from html import escape
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from graphxai.contract.tasks import Task, TaskSet, is_to_start
from graphxai.rules.conservative import rules_suspended
from graphxai.runtime.modules import all_modules
from graphxai.runtime.randomness import one_draw
from graphxai.runtime.scope import Blocks, shared_block


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


Stored = TypeVar("Stored", bound=Any)  # a model that was loaded from a checkpoint


def weights_hash(model: Any) -> str:
    """Return the SHA-256 of the checkpoint file, or of the weights if the model has no file."""
    if model.origin.sha256:
        return model.origin.sha256
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def only_starts(model: Any) -> bool:
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

    @classmethod
    def of(cls, name: str, why: str = "") -> "NoAttentionError":
        """Return the error for a model of this name."""
        return cls(
            f"{name} has no attention between nodes that graphxai can see: methods that read"
            f" attention cannot explain it.{why}"
        )


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

    def mode_restored() -> Callable[[], Any]:
        return partial(model.train, True) if model.training else lambda: None

    with shared_block(("evaluating", id(model)), mode_restored):
        if model.training:
            model.train(False)
        yield


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
    is_wrapped = root is not model
    return any(
        weight is not None and weight.is_inference()
        for part in all_modules(root)
        for weights in (part._parameters, part._buffers if is_wrapped else {})
        for weight in weights.values()
    )


def require_contract(model: Any) -> None:
    """Raise TypeError if the model cannot be explained, and say what it needs."""
    # the class is asked first: asking a model for `training` may go through all of its modules
    inside = getattr(model, "__dict__", {})
    if all(hasattr(type(model), name) or name in inside for name in _MEMBERS):
        return
    if all(hasattr(model, name) for name in _MEMBERS):
        return  # it may hand on what it lacks, which `isinstance` misses since Python 3.12
    name = model.__name__ if isinstance(model, type) else type(model).__name__
    raise TypeError(
        f"{name} cannot be explained: a model needs embed(batch),"
        " encode(tokens, batch, keep) and split_by_feature(batch, gradient)."
        " graphxai.wrap adds them to any PyTorch model."
    )


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


LISTED = 6  # how many tasks are named


class ShownModel:
    """A model that is shown in a few lines, and not as all of its layers.

    `torch.nn.Module.__repr__(model)` still lists the layers.
    """

    def __repr__(self) -> str:
        name, *others = self._described().values()
        return f"{type(self).__name__}({name}: {'; '.join(others)})"

    def _repr_html_(self) -> str:
        rows = "".join(
            f'<tr><th style="text-align: left">{escape(key)}</th>'
            f'<td style="text-align: left">{escape(value)}</td></tr>'
            for key, value in self._described().items()
        )
        return f"<table>{rows}</table>"

    def _described(self) -> dict[str, str]:
        """Return name, tasks, score and size as text. A model without a score has none."""
        origin: Origin = self.origin  # type: ignore[attr-defined]
        config: TaskSet = self.config  # type: ignore[attr-defined]
        score = origin.metadata.get("summary")
        return {
            "model": origin.name,
            "predicts": tasks_text(config.tasks),
            **({"score": score} if isinstance(score, str) and score else {}),
            "size": f"{self._num_parameters():,} parameters",
        }

    def _num_parameters(self) -> int:
        """Return how many numbers were learned, as far as their shapes are known."""
        network: Any = self
        network = getattr(network, "module", network)  # a wrapped model learned in its module
        weights = (p for p in network.parameters() if not isinstance(p, UninitializedParameter))
        return sum(weight.numel() for weight in weights)


def tasks_text(tasks: tuple[Task, ...]) -> str:
    """Return what a model predicts as text, such as `solubility (regression)`."""
    named = [f"{task.name} ({task.kind})" for task in tasks[:LISTED]]
    more = [f"{len(tasks) - LISTED} more"] if len(tasks) > LISTED else []
    return ", ".join([*named, *more])
