"""Rules that users add: how an operation of PyTorch passes relevance back.

The rules of `conservative` come with the package. An `OperationRule` declares another one for a
single operation. Once it is named in `conservative.Rules(custom=...)`, it acts wherever a model
runs that operation. This holds for the layers of a bundled Graphormer, which call the functions of
`conservative`, and for the recorded pass of a wrapped model.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor

# Functions of PyTorch that basic operations of other names compute.
_FUNCTIONS = ("softmax", "layer_norm", "group_norm", "rms_norm")


@dataclass(frozen=True, eq=False)
class BoundOperation:
    """An operation as a function of the signal alone. Its other arguments are the model's.

    Args:
        function: computes the operation from the signal, `settings` and `options`.
        settings: the operation's further arguments in PyTorch's order, such as the axis of a
            softmax. The bias of a norm is None here, because it is added after the rule.
        options: the arguments that are given by name.
    """

    function: Callable[..., Any]
    settings: tuple[Any, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, x: Tensor) -> Tensor:
        """Compute the operation for a signal x, and return the first of its results."""
        result = self.function(x, *self.settings, **self.options)
        return result[0] if isinstance(result, tuple | list) else result


Compute: TypeAlias = Callable[[Tensor, BoundOperation], Tensor]


@dataclass(frozen=True)
class OperationRule:
    """A rule for one operation of PyTorch, which keeps its values but changes its gradient.

    Args:
        operation: PyTorch's name of an operation on one signal, which is its first argument. It may
            be a function of each entry such as "gelu", "softplus" or "sqrt", a reduction such as
            "std", or one of "softmax", "layer_norm", "group_norm" and "rms_norm".
        compute: takes the signal and the operation as a function of the signal, and returns what
            the operation returns. Whatever it detaches is a constant in the backward pass.
        conserves: whether the rule conserves relevance: the signal times its gradient sums to what
            arrives at the result. This holds if the result is the signal times constants. Otherwise
            the ledger lists the difference.

    Raises:
        ValueError: `operation` is no operation of PyTorch, or takes several signals.
    """

    operation: str
    compute: Compute
    conserves: bool = False

    def __post_init__(self) -> None:
        if self.operation not in _FUNCTIONS and not _takes_one_tensor(self.operation):
            raise ValueError(
                f"a rule cannot act on {self.operation!r}: name a basic operation of PyTorch on one"
                f" signal, such as 'gelu', 'softplus' or 'sqrt', or one of {', '.join(_FUNCTIONS)}."
            )

    @property
    def acts_on(self) -> str:
        """What the rule acts on."""
        return self.operation


def _takes_one_tensor(operation: str) -> bool:
    """Return whether PyTorch has a basic operation of this name on a single tensor."""
    packet = getattr(torch.ops.aten, operation, None)
    if operation.startswith("_") or packet is None:
        return False
    for name in packet.overloads():
        overload = getattr(packet, name)
        kinds = [str(argument.type) for argument in overload._schema.arguments]
        if kinds[:1] == ["Tensor"] and not any("Tensor" in kind for kind in kinds[1:]):
            composite = torch._C.DispatchKey.CompositeImplicitAutograd
            if not overload.has_kernel_for_dispatch_key(composite):
                return True
    return False


def constant_ratio(x: Tensor, f: Callable[[Tensor], Tensor]) -> Tensor:
    """Compute f(x) / x entry by entry. At x = 0 it is taken at a small positive number instead."""
    point = x.masked_fill(x == 0, 1e-4)
    return f(point) / point


def gelu_ratio(x: Tensor) -> Tensor:
    """Compute GELU(x) / x as the normal distribution function, which also has a value at x = 0."""
    return torch.special.ndtr(x)


def ratio_above_zero(func: Callable[..., Any], x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Compute an elementwise function as f(0) and x times the constant `(f(x) - f(0)) / x`.

    This is the identity rule for functions of single entries (Achtibat 2024, section 3.2), from
    zero on: f(0) is a constant and gets its share of the ledger. In a shifted softplus (Schuett
    2017), or in `exp(x) - 1`, it cancels. See `secant` for functions without a value at zero.
    """
    here = x.detach()
    slope, _ = secant(lambda z: func(z, *args, **kwargs), here)
    return func(here, *args, **kwargs) + (x - here).masked_fill(here.isinf(), 0.0) * slope


def secant(f: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the slope and the constant of the line through f at zero and f at x, entry by entry.

    Where f is infinite at zero, as a logarithm or a reciprocal is, the line begins at one, or at
    minus one if x is negative. The difference is taken in double precision, since near zero that of
    two singles is rounding.
    """
    dtype, x = x.dtype, x.double()
    start = torch.zeros_like(x)
    if not bool(f(start).isfinite().all()):
        start = torch.ones_like(x).copysign(x)
    at_start, point = f(start), torch.where(x == start, start + 1e-4, x)
    slope = (f(point) - at_start) / (point - start)
    slope = slope.masked_fill(~slope.isfinite(), 0.0)
    return slope.to(dtype), (at_start - slope * start).to(dtype)
