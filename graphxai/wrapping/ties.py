"""Let entries that share a maximum, or a place in an order, share its gradient.

`x.max(dim)` passes its gradient to one of several equal entries, whichever the kernel took. If six
atoms of a ring are equal, one of them would get all the relevance. `x.amax(dim)` has the same value
and gives each of them the same, but only if they are equal to the last bit. Layers round equal
nodes differently. Here entries are equal if rounding explains their difference, and each value of a
maximum, a minimum, `sort` and `topk` passes its gradient to all entries that are equal to it.
Rounding is measured by the size of the values of a graph, whether it is alone or in a list. If a
model uses the indices to choose among equal entries, a warning says so.
"""

import math
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes

from graphxai.engine.fused import ties_as_computed
from graphxai.runtime.notices import warn

ROUNDING = 32  # units in the last place by which equal nodes may differ in single and double
MASK = 1e4  # larger values replace others
MINIMA = {torch.min, Tensor.min, torch.amin, Tensor.amin}
EXTREMES = {torch.max, Tensor.max, torch.min, Tensor.min}
ALONG_AXES = {torch.amax, Tensor.amax, torch.amin, Tensor.amin}  # share if equal to the last bit
IN_PLACE = {Tensor.scatter_reduce_, Tensor.index_reduce_}
IN_GROUPS = {torch.scatter_reduce, Tensor.scatter_reduce, torch.index_reduce, Tensor.index_reduce}
IN_GROUPS |= {*IN_PLACE, torch.segment_reduce, torch.sparse.mm}
IN_WINDOWS = {F.max_pool1d, torch.max_pool1d}
ARGSORTS = {torch.argsort, Tensor.argsort}
SORTS = {torch.sort, Tensor.sort, *ARGSORTS}
POSITIONS = {torch.argmax, Tensor.argmax, torch.argmin, Tensor.argmin, *ARGSORTS}
# For each function that orders entries, the place of the axis among its arguments and its default.
ORDERS: dict[Any, tuple[int, int | None]] = {
    **dict.fromkeys((*SORTS, torch.msort, Tensor.msort), (1, -1)),
    **dict.fromkeys((torch.topk, Tensor.topk, torch.kthvalue, Tensor.kthvalue), (2, -1)),
    **dict.fromkeys((*ALONG_AXES, *EXTREMES, *IN_WINDOWS, torch.median, Tensor.median), (1, None)),
    **dict.fromkeys(POSITIONS - SORTS, (1, None)),
}

CHOICE = "chooses among entries that are equal"  # of the warning
_without_choices: "weakref.WeakSet[nn.Module]" = weakref.WeakSet()


@contextmanager
def shared_ties(module: nn.Module) -> Iterator[None]:
    """Within a pass of a module, let ties share their gradient, or warn of them."""
    if not torch.is_grad_enabled() or (ties_as_computed.get() and module in _without_choices):
        yield
        return
    with (mode := _TieMode(type(module).__name__)):
        yield
    if not mode.chooses:
        _without_choices.add(module)


def orders_entries(module: nn.Module) -> bool:
    """Return whether passes so far have put entries in an order, or have taken extremes."""
    return module not in _without_choices


class _TieMode(TorchFunctionMode):
    """A mode that looks for ties in functions that order entries."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name, self.chooses = name, False
        self._tied: dict[int, Tensor] = {}  # by `id`, indices that chose among equal entries

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call a function. If it orders entries, let its values share their gradient."""
        options = kwargs or {}
        if func in IN_GROUPS and (groups := _groups_of(func, args, options)) is not None:
            self.chooses = True
            if (source := _source_with_ties(*groups)) is not None:
                out, dim, index, _, way, whole = groups
                reduce = Tensor.scatter_reduce_ if func in IN_PLACE else Tensor.scatter_reduce
                return reduce(out, dim, index, source, way, include_self=whole)
        result = func(*args, **options)
        if func in ORDERS and "out" not in options:
            return self._with_ties(func, result, args, options)
        if self._tied and self._reads_tied((*args, *options.values())):
            self._follow(result)
        return result

    def _with_ties(self, func: Any, result: Any, args: tuple[Any, ...], options: Any) -> Any:
        """Return the result of an ordering function, with values that share their gradient."""
        with _disable_current_modes():  # a recording does not see how ties are looked for
            order = _order_of(func, result, args, options)
            self.chooses |= order is not None
            if order is None or not order.has_ties(besides_equal=func in ALONG_AXES):
                return result
        order = _order_of(func, result, args, options)
        assert order is not None
        indices = result if func in POSITIONS else result[1] if isinstance(result, tuple) else None
        if indices is not None and order.chooses_among_equals(everything=func in SORTS):
            self._tied[id(indices)] = indices
        if func in POSITIONS:
            return result
        values = result[0] if isinstance(result, tuple) else result
        if func in EXTREMES | ALONG_AXES:
            extreme = torch.amin if func in MINIMA else torch.amax
            shared = extreme(order.made_equal(), order.dims, values.dim() == order.argument.dim())
        else:
            shared = order.shared().movedim(-1, order.dims[-1]).reshape(values.shape)
        return shared if indices is None else type(result)((shared, indices))

    def _reads_tied(self, arguments: Iterable[Any]) -> bool:
        """Return whether an argument holds indices that chose among equal entries."""
        return any(
            id(value) in self._tied or (isinstance(value, tuple | list) and self._reads_tied(value))
            for value in arguments
        )

    def _follow(self, result: Any) -> None:
        """Warn if a choice among equal entries took values, or follow indices made from it."""
        for value in result if isinstance(result, tuple | list) else [result]:
            if not isinstance(value, Tensor):
                continue
            if not value.is_floating_point():
                self._tied[id(value)] = value
            elif value.requires_grad:
                warn(
                    f"{self.name} {CHOICE}, by the indices of a maximum"
                    " or of an order: relevance goes to the entry that it took, and none to the"
                    " others.",
                    stacklevel=4,
                )


def _are_equal(x: Tensor, values: Tensor, size: Tensor) -> Tensor:
    """Return where rounding explains the difference of x from values, if there is any.

    Args:
        x: entries.
        values: those with which they are compared.
        size: the size of values in their graph, as sums of larger terms may vanish.
    """
    x, eps = x.detach(), torch.finfo(x.dtype).eps
    width = values.abs().maximum(size) * (eps * ROUNDING if eps < 1e-6 else eps)
    return (x == values) | ((x - values).abs() < width)


def _to_equal(x: Tensor, values: Tensor, tied: Tensor) -> list[Tensor]:
    """Return two constants, of rounding's size, that make tied entries equal to the last bit.

    So an extreme of them stays an extreme, for what recognises a softmax by its maximum.
    """
    x, steps = x.detach(), []
    for _ in range(2):  # the first sum is rounded where x and values are near zero
        steps.append(torch.where(tied & (x != values), values - x, 0.0))
        x = x + steps[-1]
    return steps


def _size(values: Tensor, axes: Iterable[int]) -> Tensor:
    """Return the mean size along axes, without zeros and masks, which may be padding."""
    sizes, axes = values.detach().abs(), [*axes]
    if not axes:
        return sizes.new_zeros(())
    counted = (sizes > 0) & (sizes < MASK)
    total = torch.where(counted, sizes, 0.0).sum(axes, keepdim=True)
    return total / counted.sum(axes, keepdim=True).clamp(min=1)


@dataclass(frozen=True, eq=False)
class _Order:
    """What an ordering function took from its argument along some axes.

    Args:
        argument: what it ordered.
        dims: the positions of the axes in the argument.
        x: the argument with these axes last and flat (..., n).
        values (..., K): the values that were taken, without their gradient.
        of_graphs: whether the first axis of x is one of graphs or nodes.
    """

    argument: Tensor
    dims: list[int]
    x: Tensor
    values: Tensor
    of_graphs: bool

    def has_ties(self, besides_equal: bool) -> bool:
        """Return whether values have ties, perhaps besides those that are equal to the last bit."""
        tied = self._equal()
        if besides_equal:
            return bool((tied & (self.x[..., None, :] != self.values[..., None])).any())
        return bool((tied.sum(-1) > 1).any())

    def chooses_among_equals(self, everything: bool) -> bool:
        """Return whether one of several equal entries was taken, or came before the others.

        If `everything` was put in order, the least entries do not count, because they may be
        padding.
        """
        counts = self._equal().sum(-1)
        if everything:
            return bool(((counts > 1) & (self.values > self.x.detach().amin(-1, True))).any())
        values = self.values[..., None]
        taken = _are_equal(self.values[..., None, :], values, self._size()).sum(-1)  # (..., K)
        return bool((counts > taken).any())

    def made_equal(self) -> Tensor:
        """Return the argument with its ties equal to the extreme that was taken of them."""
        with _disable_current_modes():
            lengths = [self.argument.shape[dim] for dim in self.dims]
            last = [*range(-len(lengths), 0)]
            first, second = (
                step.unflatten(-1, lengths).movedim(last, self.dims)
                for step in _to_equal(self.x, self.values, self._equal()[..., 0, :])
            )
        return self.argument + first + second

    def shared(self) -> Tensor:
        """Return the values as means over the entries that are equal to them."""
        equal = self._equal()
        entries = torch.where(equal, self.x[..., None, :], 0.0)  # (..., K, n)
        return entries.sum(-1) / equal.sum(-1).clamp(min=1)

    def _equal(self) -> Tensor:
        return _are_equal(self.x[..., None, :], self.values[..., None], self._size())

    def _size(self) -> Tensor:
        return _size(self.values, range(int(self.of_graphs), self.values.dim()))[..., None]


def _order_of(func: Any, result: Any, args: tuple[Any, ...], options: Any) -> _Order | None:
    """Return what a function took from a signal along axes, or None if it did not."""
    x = options.get("input", args[0] if args else None)
    place, dim = ORDERS[func]
    dim = options.get("dim", options.get("axis", args[place] if len(args) > place else dim))
    if not isinstance(x, Tensor) or not x.requires_grad or x.dim() == 0 or "other" in options:
        return None
    if func in (torch.msort, Tensor.msort):
        dim = 0
    if func in IN_WINDOWS:
        if isinstance(result, tuple):  # with indices, which choose
            return None
        x, dim = _windows(x, result.shape[-1], args, options), -1
    dims = [*dim] if isinstance(dim, tuple | list) else [dim]
    if dims in ([], [None]) and func not in POSITIONS:
        dims = [*range(x.dim())]
    if not all(type(axis) is int for axis in dims):
        return None
    dims = [axis % x.dim() for axis in dims]
    argument, x = x, x.movedim(dims, [*range(-len(dims), 0)]).flatten(-len(dims))
    taken = result[0] if isinstance(result, tuple) else result
    if func in POSITIONS:
        taken = taken.movedim(dims[0], -1) if taken.dim() == x.dim() else taken.unsqueeze(-1)
        values = x.detach().gather(-1, taken)
    elif taken.numel() * x.shape[-1] == x.numel():  # one of each line
        values = taken.detach().reshape(*x.shape[:-1], 1)
    else:
        values = taken.detach().movedim(dims[0], -1)
    of_graphs = x.dim() > 2 or (x.dim() == 2 and 0 not in dims)
    return _Order(argument, dims, x, values, of_graphs) if values.numel() else None


def _windows(x: Tensor, length: int, args: tuple[Any, ...], options: Any) -> Tensor:
    """Return the windows (..., length, k) whose maxima `max_pool1d` takes of x (..., L)."""
    names = ("kernel_size", "stride", "padding", "dilation")
    given = {**dict(zip(names, args[1:], strict=False)), **options}
    given = {name: v[0] if isinstance(v, tuple | list) and v else v for name, v in given.items()}
    size = given["kernel_size"]
    padding, dilation = given.get("padding", 0), given.get("dilation", 1)
    stride, width = given.get("stride") or size, dilation * (size - 1) + 1
    right = max((length - 1) * stride + width - x.shape[-1] - padding, 0)
    if padding or right:
        x = F.pad(x, (padding, right), value=-math.inf)
    return x.unfold(-1, width, stride)[..., :length, ::dilation]


def _groups_of(func: Any, args: tuple[Any, ...], options: Any) -> tuple[Any, ...] | None:
    """Return the arguments of `_source_with_ties`, or None if no extreme of a signal is taken."""
    names = ("input", "data", "dim", "index", "src", "source", "reduce")
    given = [*args, *(options[name] for name in names if name in options)]
    if func is torch.segment_reduce:
        return _groups_of_segments(given[0], given[1], options)
    if func is torch.sparse.mm:
        return _groups_of_product(*given) if len(given) == 3 else None
    out, dim, index, source, way = given[:5]
    if not isinstance(source, Tensor) or not source.requires_grad or way not in ("amax", "amin"):
        return None
    if index.dim() < source.dim():  # of rows, as `index_reduce` has it
        index = index.view(-1, *[1] * (source.dim() - 1)).transpose(0, dim).expand_as(source)
    if index.shape != source.shape or not source.numel():
        return None
    return out, dim, index, source, way, options.get("include_self", True)


def _groups_of_segments(source: Tensor, way: str, options: Any) -> tuple[Any, ...] | None:
    """Return the groups of `segment_reduce` along the first axis."""
    ends, lengths = options.get("offsets"), options.get("lengths")
    lengths = ends.diff() if lengths is None and ends is not None else lengths
    taken = way in ("max", "min") and source.requires_grad and lengths is not None
    if not taken or lengths.dim() != 1 or options.get("initial") is not None or not source.numel():
        return None
    index = torch.arange(len(lengths), device=source.device).repeat_interleave(lengths)
    index = index.view(-1, *[1] * (source.dim() - 1)).expand_as(source)
    empty = -math.inf if way == "max" else math.inf
    out = source.new_full((len(lengths), *source.shape[1:]), empty)
    return out, 0, index, source, f"a{way}", False


def _groups_of_product(matrix: Tensor, rows: Tensor, way: str) -> tuple[Any, ...] | None:
    """Return the groups of a product with a sparse matrix that reduces instead of adding."""
    if way not in ("amax", "amin") or not rows.requires_grad or matrix.requires_grad:
        return None
    entries = matrix.to_sparse_coo().coalesce()
    (target, source), values = entries.indices(), entries.values()
    messages = values[:, None] * rows[source]
    out = rows.new_zeros(matrix.shape[0], rows.shape[1])
    return (
        (out, 0, target[:, None].expand_as(messages), messages, way, False) if len(values) else None
    )


def _source_with_ties(
    out: Tensor, dim: int, index: Tensor, source: Tensor, way: str, include_self: bool
) -> Tensor | None:
    """Return the source with its ties made equal, which share then, or None if they are."""
    with _disable_current_modes():  # a recording does not see how ties are looked for
        values = out.detach().scatter_reduce(
            dim, index, source.detach(), way, include_self=include_self
        )
        values = values.gather(dim, index)
        others = {*range(values.dim())} - {dim % values.dim()}
        steps = _to_equal(source, values, _are_equal(source, values, _size(values, others)))
        if not any(bool(step.any()) for step in steps):
            return None
    return source + steps[0] + steps[1]
