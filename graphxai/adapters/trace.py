"""What is known of a tensor on its way through a model that is being watched.

Tensors that depend on the explained nodes have a `Trace`; all others are constants of the pass.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

Rule = Literal["attention", "layernorm", "activation"]
Role = Literal["exponential", "sum", "probability", "gate"]


@dataclass(frozen=True)
class Curve:
    """A step that keeps its gradient although `rule` was asked for: what it is and where."""

    rule: Rule
    what: str
    place: str


@dataclass(eq=False)
class Softmax:
    """One softmax: its group index (E,) if sparse, its attention (B, H, T, T) if recordable.

    `used`: whether it has mixed values, which makes it attention.
    """

    place: str
    index: Tensor | None = None
    attention: Tensor | None = None
    used: bool = False


@dataclass(frozen=True, eq=False)
class Trace:
    """`curves` on the way here; `role` and `softmax` if the tensor is part of a softmax.

    `multiple_of`: what the tensor is a constant multiple of, if that is known; `gate_of`: what a
    gate was computed of (see `gates`).
    """

    curves: frozenset[Curve] = frozenset()
    role: Role | None = None
    softmax: Softmax | None = None
    multiple_of: Tensor | None = None
    gate_of: Tensor | None = None


OUTSIDE = Trace()  # stands for "never seen"


class Traces:
    """The traces of one pass, beside the tensors and not in them.

    place: gives the path of the module that runs.
    """

    def __init__(self, place: Callable[[], str] = str) -> None:
        self._known = WeakTensorKeyDictionary()
        self._customs = WeakTensorKeyDictionary()  # results of custom functions, with where
        self.place = place

    def of(self, value: Any) -> Trace | None:
        """The trace of a tensor; None for constants.

        A tensor with a gradient that came from outside of the pass, other than a parameter, is an
        input. What a custom autograd function gives depends on nodes: no mode sees inside.
        """
        if not isinstance(value, Tensor):
            return None
        found: Trace | None = self._known.get(value, OUTSIDE)
        if found is OUTSIDE:
            outside = value.requires_grad and not isinstance(value, nn.Parameter)
            found = Trace() if outside and value.is_floating_point() else None
        if (what := custom_function(value)) is not None:
            place = self.maker_of(value)
            before = frozenset() if found is None else found.curves
            return Trace(before | {Curve("attention", what, place)})
        return found

    def maker_of(self, value: Tensor) -> str:
        """The module in which this result of a custom function was first seen."""
        place: str = self._customs.setdefault(value, self.place())
        return place

    def is_hidden_softmax(self, value: Any) -> bool:
        """Whether a custom autograd function gave a softmax that was made inside of it."""
        if not isinstance(value, Tensor) or custom_function(value) is None:
            return False
        found: Trace | None = self._known.get(value)
        return found is not None and found.role == "probability"

    def mark_if_new(self, value: Tensor) -> None:
        """Note that a result of the pass without a trace is a constant, as one of parameters."""
        if value not in self._known:
            self._known[value] = None

    def constant(self, value: Tensor) -> Tensor:
        """A view of the tensor that counts as a constant of the pass, whatever its gradient."""
        view = value.view_as(value)
        self._known[view] = None
        return view

    def mark(self, value: Tensor, trace: Trace) -> Tensor:
        """Note the trace of a tensor and give the tensor back."""
        self._known[value] = trace
        return value


def custom_function(value: Tensor) -> str | None:
    """What a tensor that a custom autograd function made was made by."""
    node = value.grad_fn
    if not isinstance(node, torch.autograd.function.BackwardCFunction):
        return None
    return f"the custom function {type(node).__name__.removesuffix('Backward')}"


def tensors_in(values: Iterable[Any]) -> Iterator[Tensor]:
    """Tensors among the values and in their lists and tuples, at any depth."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, tuple | list):
            yield from tensors_in(value)
