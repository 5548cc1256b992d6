"""What is known about a tensor during an intercepted pass.

Tensors that depend on the explained nodes have a `Trace`; all others are constants of the pass.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from .descent import Ancestors

Rule = Literal["attention", "layernorm", "activation"]
Role = Literal["exponential", "sum", "probability", "pairs", "gate", "scale"]
Product = Literal["pairs", "moments", "by edge", "by node", "probability"]


@dataclass(frozen=True)
class Nonlinearity:
    """A step that keeps its gradient although `rule` was requested: what it is and where.

    Without a rule: whichever was requested.
    """

    rule: Rule | None
    what: str
    place: str


@dataclass(eq=False)
class Softmax:
    """One softmax: its group index (E,) if sparse, its attention (B, H, T, T) if recordable.

    `used`: whether it has mixed values, which makes it attention. `axis`: along which it sums to
    one, if known. `pools`: whether it reads nodes out, like a pooling.
    """

    place: str
    index: Tensor | None = None
    attention: Tensor | None = None
    used: bool = False
    axis: int | None = None
    pools: bool = False


@dataclass(frozen=True, eq=False)
class Trace:
    """`curves` on the way here; `role` and `softmax` if the tensor is part of a softmax.

    `multiple_of`: what the tensor is a constant multiple of, if known; `gate_of`: what a gate was
    computed from (see `gates`); `product`: which product of two signals it is (see `softless`).
    """

    curves: frozenset[Nonlinearity] = frozenset()
    role: Role | None = None
    softmax: Softmax | None = None
    multiple_of: Tensor | None = None
    gate_of: Tensor | None = None
    product: Product | None = None


OUTSIDE = Trace()  # stands for "never seen"
OUT_OF_SIGHT = "hidden operations (TorchScript, another thread or compiled code)"


class Traces:
    """The traces of one pass, kept separately from the tensors.

    place: gives the path of the module that runs.
    """

    def __init__(self, place: Callable[[], str] = str) -> None:
        self._known = WeakTensorKeyDictionary()
        self._inputs = Ancestors()
        self._all_seen = False  # whether only these inputs bring in the nodes
        self._elsewhere = ""  # the last module with hidden operations
        self.has_scales = False
        self.hidden: set[str] = set()  # places with hidden operations
        self._customs = WeakTensorKeyDictionary()  # results of custom functions, with their place
        self.place = place

    def of(self, value: Any) -> Trace | None:
        """The trace of a tensor; None for constants.

        A tensor with a gradient that came from outside of the pass, other than a parameter, is an
        input. The result of a custom autograd function depends on nodes: no mode sees inside.
        """
        if not isinstance(value, Tensor):
            return None
        found: Trace | None = self._known.get(value, OUTSIDE)
        if found is OUTSIDE:
            found = self._of_unseen(value)
        if (what := custom_function(value)) is not None:
            place = self.maker_of(value)
            before = frozenset() if found is None else found.curves
            return Trace(before | {Nonlinearity("attention", what, place)})
        return found

    def begin(self, inputs: Iterable[Tensor], all_seen: bool) -> None:
        """Treat these tensors as the nodes from here on; all_seen: and nothing else."""
        inputs = list(inputs)
        self._inputs = Ancestors(inputs)
        self._all_seen = all_seen and self._inputs.can_be_told
        for tensor in inputs:
            self.mark(tensor, Trace())

    def note_out_of_sight(
        self, inputs: Iterable[Any], place: str, outputs: Iterable[Tensor] = ()
    ) -> None:
        """Note what a module with hidden operations computes from known tensors."""
        found = [trace for t in tensors_in(inputs) if (trace := self._known.get(t)) is not None]
        if not found:
            return
        if not self._elsewhere or not place.startswith(f"{self._elsewhere}."):
            self._elsewhere = place
            self.hidden.add(place)
        before: frozenset[Nonlinearity] = frozenset().union(*(trace.curves for trace in found))
        for tensor in outputs:
            self.mark(tensor, Trace(before | {Nonlinearity(None, OUT_OF_SIGHT, place)}))

    def _of_unseen(self, value: Tensor) -> Trace | None:
        """The trace of a tensor that no operation of the pass returned.

        It may come from outside. If it depends on the nodes, it comes from hidden operations: from
        TorchScript, another thread or compiled code.
        """
        if not value.is_floating_point() or isinstance(value, nn.Parameter):
            return None
        if custom_function(value) is not None:
            return Trace()
        if value.grad_fn is None and not self._inputs.in_forward_mode(value):
            of_nodes = value.requires_grad and not self._all_seen
            return Trace() if of_nodes else None
        if self._inputs.lead_to(value):
            return self._out_of_sight(value)
        return None if self._all_seen else Trace()

    def _out_of_sight(self, value: Tensor) -> Trace:
        place = self._elsewhere or self.place()
        self.hidden.add(place)
        trace = Trace(frozenset({Nonlinearity(None, OUT_OF_SIGHT, place)}))
        self.mark(value, trace)
        return trace

    def maker_of(self, value: Tensor) -> str:
        """The module in which this result of a custom function was first seen."""
        place: str = self._customs.setdefault(value, self.place())
        return place

    def is_hidden_softmax(self, value: Any) -> bool:
        """Whether a custom autograd function returned a softmax computed inside it."""
        if not isinstance(value, Tensor) or custom_function(value) is None:
            return False
        found: Trace | None = self._known.get(value)
        return found is not None and found.role == "probability"

    def mark_if_new(self, value: Tensor) -> None:
        """Note that a result without a trace is a constant, like a result of parameters."""
        if value not in self._known:
            self._known[value] = None

    def known_constant(self, value: Tensor) -> Tensor:
        """Note that the tensor is a constant of the pass, and return it."""
        self._known[value] = None
        return value

    def constant(self, value: Tensor) -> Tensor:
        """A view of the tensor that counts as a constant of the pass, whatever its gradient."""
        return self.known_constant(value.view_as(value))

    def mark(self, value: Tensor, trace: Trace) -> Tensor:
        """Note the trace of a tensor, and return the tensor."""
        self._known[value] = trace
        return value


def custom_function(value: Tensor) -> str | None:
    """The custom autograd function that a tensor comes from, in words; None: none."""
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
