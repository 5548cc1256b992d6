"""Detect attention without a softmax, which methods that read attention leave out.

`relu(q k^T) v`, sparsemax and linear attention, `phi(q) (phi(k)^T v)`, have no probabilities to
record. They are recognised by their products. A product of two signals may have a number for each
pair of nodes or each edge ("pairs"), or may be summed over nodes ("moments"). If it takes two
steps, the first result is still to be summed: over channels ("by edge") or over nodes ("by node").
Elementwise operations keep that status. When such a product meets values again, it mixes nodes.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from torch import Tensor

from .layout import Layout
from .trace import Product, Trace, Traces, tensors_in
from .vocabulary import GATHERED_SUMS, MULTIPLICATIONS, PLUS_PRODUCT, PRODUCTS, QUOTIENTS

MIXING = PRODUCTS - MULTIPLICATIONS - QUOTIENTS
OUTER = MULTIPLICATIONS | {"add", "sub"}  # of which the result has the axes of both
SUMS_OF_ROWS = GATHERED_SUMS | {"sum", "mean"}
MATRICES = {"matmul", "mm", "bmm", "addmm", "baddbmm"}
WEIGHTS = ("pairs", "moments")  # products by which values may be weighed
GATHERED = {"index_select", "getitem", "gather"}


class Axes(NamedTuple):
    """Lengths of a product's axes: in both factors or in one; `summed`: not in the result."""

    both: set[int]
    summed: set[int]
    first: set[int]
    second: set[int]


Signal = tuple[Tensor, Trace]  # a tensor that depends on the input


class Softless:
    """Classifies products of signals in one block.

    layout: the nodes' positions; are_edges: whether an axis of this length may be one of edges.
    """

    def __init__(
        self, traces: Traces, layout: Layout | None, are_edges: Callable[[int], bool]
    ) -> None:
        self._traces, self._are_edges = traces, are_edges
        self._rows = 0 if layout is None else len(layout.graph)
        self._lengths = frozenset() if layout is None else layout.lengths - {0, 1}

    def described(
        self, name: str, args: tuple[Any, ...], signals: list[Signal], trace: Trace, out: Any
    ) -> Trace:
        """The trace of an operation's result, with its kind of product of signals."""
        if not self._lengths or not isinstance(out, Tensor):
            return trace
        if len(signals) == 1 and signals[0][1].product is None and name != "cdist":
            return trace
        if not _are_no_attention(signals):
            return trace
        product = self._made_by(name, args, signals, out)
        for tensor, known in signals:
            product = product or _kept(known.product, name, tensor, out)
        return trace if product is None else replace(trace, product=product)

    def meets_values(self, name: str, args: tuple[Any, ...]) -> bool:
        """Whether a product of these, one of which is a product of signals, mixes nodes."""
        if not self._lengths:
            return False
        found = ((tensor, self._traces.of(tensor)) for tensor in tensors_in(args))
        signals = [(tensor, trace) for tensor, trace in found if trace is not None]
        if not _are_no_attention(signals):
            return False
        if name == "einsum" and len(signals) > 2:
            return True
        made = [(t, known.product) for t, known in signals if known.product in WEIGHTS]
        values = [t for t, known in signals if known.product not in WEIGHTS]
        if len(made) != 1 or len(values) != 1:
            return False
        return self._meets(name, args, *made[0], values[0])

    def _meets(
        self, name: str, args: Any, made: Tensor, product: Product | None, values: Tensor
    ) -> bool:
        if name in MULTIPLICATIONS:
            per_value = made.dim() > 0 and made.shape[-1] == 1 < _last(values)
            return per_value if product == "pairs" else bool(_broadcast(values, made).second)
        axes = axes_of(name, args) if name in MIXING else None
        if axes is None:
            return False
        # a batch may have as many graphs as one graph has nodes, but not as all graphs have
        of_values = axes.first | axes.second | (axes.both & {self._rows})
        return bool((axes.summed if product == "pairs" else of_values) & self._lengths)

    def _made_by(
        self, name: str, args: tuple[Any, ...], signals: list[Signal], out: Tensor
    ) -> Product | None:
        """The kind of the product of two signals."""
        if name == "cdist":
            return "pairs" if _last(out) in self._lengths else None
        if len(signals) != 2 or signals[0][0] is signals[1][0]:
            return None
        if name in OUTER:
            return self._made_entrywise(name, signals[0][0], signals[1][0])
        axes = axes_of(name, args) if name in MIXING else None
        if axes is None:
            return None
        if axes.first & axes.second & self._lengths:
            return "pairs"
        if not (axes.first | axes.second) - {1} and any(map(self._are_edges, axes.both)):
            return "pairs"
        is_pooled = not (axes.first - {1} and axes.second - {1})  # a weighted sum of rows
        per_node = self._rows in axes.both - axes.summed
        if is_pooled or per_node:
            return None
        return "moments" if axes.summed & self._lengths else None

    def _made_entrywise(self, name: str, first: Tensor, second: Tensor) -> Product | None:
        axes = _broadcast(first, second)
        if name in MULTIPLICATIONS:
            length = first.shape[0] if first.dim() else 1
            if first.shape == second.shape and self._are_edges(length):
                return "by edge"
            if axes.first and axes.second and self._rows in axes.both:
                return "by node"
        return "pairs" if axes.first & axes.second & self._lengths else None


def mapped(product: Product | None, before: Tensor, out: Tensor) -> Product | None:
    """The kind after a linear map or a norm: pairs, if only the channels changed."""
    same_axes = out.dim() == before.dim()
    others = sum(a != b for a, b in zip(before.shape, out.shape, strict=False))
    return product if product == "pairs" and same_axes and others < 2 else None


def _kept(product: Product | None, name: str, before: Tensor, out: Tensor) -> Product | None:
    """The kind that remains after an operation on a product of signals, or on a constant."""
    if product is None or name in MIXING:
        return None
    if name in SUMS_OF_ROWS:
        along_last = out.shape in (before.shape[:-1], (*before.shape[:-1], 1))
        if along_last and name not in GATHERED_SUMS:
            return "pairs" if product == "by edge" else product
        return "moments" if product in ("by node", "moments") else None
    return product if out.numel() == before.numel() or name in GATHERED else None


def _are_no_attention(signals: list[Signal]) -> bool:
    return not any("probability" in (trace.role, trace.product) for _, trace in signals)


def axes_of(name: str, args: tuple[Any, ...]) -> Axes | None:
    """The axes of a product of two tensors; None: unknown."""
    if name == "einsum" and args and isinstance(args[0], str):
        tensors = list(tensors_in(args[1:]))
        return _of_equation(args[0], *tensors) if len(tensors) == 2 else None
    tensors = list(tensors_in(args))[1 if name in PLUS_PRODUCT else 0 :]
    if name not in MATRICES or len(tensors) != 2:
        return None
    first, second = tensors
    rows = set(first.shape[-2:-1])
    columns = set(second.shape[-1:]) if second.dim() > 1 else set()
    return Axes(set(first.shape[:-2]), {_last(first)}, rows, columns)


def _of_equation(equation: str, first: Tensor, second: Tensor) -> Axes | None:
    terms, _, result = equation.replace(" ", "").partition("->")
    names = terms.split(",")
    if len(names) != 2 or not result:
        return None
    of_first, of_second = _by_letter(names[0], first), _by_letter(names[1], second)
    both = of_first.keys() & of_second.keys()
    kept = set(result)
    return Axes(
        {of_first[axis] for axis in both & kept},
        {of_first[axis] for axis in both - kept},
        {of_first[axis] for axis in (of_first.keys() - both) & kept},
        {of_second[axis] for axis in (of_second.keys() - both) & kept},
    )


def _by_letter(term: str, tensor: Tensor) -> dict[str, int]:
    """The length of each axis with a letter; those of an ellipsis have none."""
    before, _, after = term.partition("...")
    lengths = tensor.shape
    found = dict(zip(before, lengths, strict=False))
    return found | dict(zip(reversed(after), reversed(lengths), strict=False))


def _broadcast(first: Tensor, second: Tensor) -> Axes:
    """The axes of the entrywise product of two tensors, from the last one."""
    both, of_first, of_second = set(), set(), set()
    size = max(first.dim(), second.dim())
    for a, b in zip(_filled(first, size), _filled(second, size), strict=True):
        if a == b:
            both.add(a)
        elif b == 1:
            of_first.add(a)
        else:
            of_second.add(b)
    return Axes(both, set(), of_first, of_second)


def _filled(tensor: Tensor, size: int) -> tuple[int, ...]:
    return (1,) * (size - tensor.dim()) + tuple(tensor.shape)


def _last(tensor: Tensor) -> int:
    return tensor.shape[-1] if tensor.dim() else 1
