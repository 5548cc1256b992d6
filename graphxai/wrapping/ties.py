"""Let entries that share a maximum, or a place in an order, share its gradient.

`x.max(dim)` passes its gradient to one of several equal entries, whichever the kernel took. If six
atoms of a ring are equal, one of them would get all the relevance. `x.amax(dim)` has the same value
and gives each of them the same. In the same way, each value of `sort` and `topk` passes its
gradient to all entries that are equal to it. If a model uses the indices to choose among equal
entries, a warning says so.
"""

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes

from graphxai.engine.fused import are_ties_as_computed
from graphxai.runtime.notices import warn

EXTREMES = {
    torch.max: torch.amax,
    Tensor.max: torch.amax,
    torch.min: torch.amin,
    Tensor.min: torch.amin,
}
SORTS = {torch.sort, Tensor.sort, torch.argsort, Tensor.argsort}
POSITIONS = {
    torch.argmax,
    Tensor.argmax,
    torch.argmin,
    Tensor.argmin,
    torch.argsort,
    Tensor.argsort,
}
# For each function that orders entries, the place of the axis among its arguments and its default.
ORDERS: dict[Any, tuple[int, int | None]] = {
    **dict.fromkeys((*SORTS, torch.msort, Tensor.msort), (1, -1)),
    **dict.fromkeys((torch.topk, Tensor.topk, torch.kthvalue, Tensor.kthvalue), (2, -1)),
    **dict.fromkeys((*EXTREMES, torch.median, Tensor.median), (1, None)),
    **dict.fromkeys(POSITIONS - SORTS, (1, None)),
}

CHOICE = "chooses among entries that are equal"  # of the warning
_without_choices: "weakref.WeakSet[nn.Module]" = weakref.WeakSet()


@contextmanager
def shared_ties(module: nn.Module) -> Iterator[None]:
    """Within a pass of a module, let ties share their gradient, or only warn about them."""
    shares = not are_ties_as_computed()
    if not torch.is_grad_enabled() or (not shares and module in _without_choices):
        yield
        return
    with (mode := _TieMode(type(module).__name__, shares)):
        yield
    if not mode.chooses:
        _without_choices.add(module)


def orders_entries(module: nn.Module) -> bool:
    """Return whether passes so far have put entries in an order, or have taken extremes."""
    return module not in _without_choices


class _TieMode(TorchFunctionMode):
    """A mode that looks for ties in functions that order entries.

    Args:
        name: the name of the model.
        shares: whether ties share the gradient of a value.
    """

    def __init__(self, name: str, shares: bool) -> None:
        super().__init__()
        self.name, self.shares, self.chooses = name, shares, False
        self._tied: dict[int, Tensor] = {}  # by `id`, indices that chose among equal entries

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call a function. If it orders entries, let its values share their gradient."""
        options = dict(kwargs or {})
        result = func(*args, **options)
        if func in ORDERS:
            order = None if "out" in options else _order_of(func, result, args, options)
            return result if order is None else self._with_ties(func, result, order)
        if self._tied and self._reads_tied((*args, *options.values())):
            self._follow(result)
        return result

    def _with_ties(self, func: Any, result: Any, order: "_Order") -> Any:
        """Return the result of an ordering function, with values that share their gradient."""
        self.chooses = True
        with _disable_current_modes():  # a recording does not see how ties are looked for
            tied = bool((order.counts() > 1).any())
        if not tied:
            return result
        counts = order.counts()
        indices = result if func in POSITIONS else result[1] if isinstance(result, tuple) else None
        if indices is not None and order.chooses_among_equals(counts, everything=func in SORTS):
            self._tied[id(indices)] = indices
        if not self.shares or func in POSITIONS:
            return result
        values = result if indices is None else result[0]
        shared = order.shared(counts).movedim(-1, order.dim).reshape(values.shape)
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


@dataclass(frozen=True, eq=False)
class _Order:
    """What an ordering function took from its argument along one axis.

    Args:
        x: the argument with that axis last (..., n).
        values (..., K): the values that were taken, without their gradient.
        dim: the position of the axis in the argument.
    """

    x: Tensor
    values: Tensor
    dim: int

    def counts(self) -> Tensor:
        """Return how many entries are equal to each value that was taken (..., K)."""
        return self._equal().sum(-1).clamp(min=1)

    def chooses_among_equals(self, counts: Tensor, everything: bool) -> bool:
        """Return whether one of several equal entries was taken, or came before the others.

        If `everything` was put in order, the least entries do not count, because they may be
        padding.
        """
        if everything:
            return bool(((counts > 1) & (self.values > self.x.detach().amin(-1, True))).any())
        taken = (self.values[..., None] == self.values[..., None, :]).sum(-1)  # (..., K)
        return bool((counts > taken).any())

    def shared(self, counts: Tensor) -> Tensor:
        """Return the values as means over the entries that are equal to them."""
        entries = torch.where(self._equal(), self.x[..., None, :], 0.0)  # (..., K, n)
        return entries.sum(-1) / counts

    def _equal(self) -> Tensor:
        return self.values[..., None] == self.x.detach()[..., None, :]


def _order_of(func: Any, result: Any, args: tuple[Any, ...], options: Any) -> _Order | None:
    """Return what a function took from a signal along an axis, or None if it did not."""
    x = options.get("input", args[0] if args else None)
    place, dim = ORDERS[func]
    dim = options.get("dim", args[place] if len(args) > place else dim)
    signal = isinstance(x, Tensor) and x.requires_grad and x.dim() > 0
    if not signal or not isinstance(dim, int) or isinstance(dim, bool):
        return None
    if func in (torch.msort, Tensor.msort):
        dim = 0
    dim %= x.dim()
    taken = result[0] if isinstance(result, tuple) else result
    taken = taken if taken.dim() == x.dim() else taken.unsqueeze(dim)
    if func in POSITIONS:
        taken = x.detach().gather(dim, taken)
    x, values = x.movedim(dim, -1), taken.detach().movedim(dim, -1)
    return _Order(x, values, dim) if values.numel() else None
