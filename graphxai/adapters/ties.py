"""Let entries that share a maximum share its gradient, as they do in PyG's max pooling.

`x.max(dim)` passes its gradient to one of several equal entries, whichever the kernel took. Of six
equal atoms of a ring one would get all relevance. `x.amax(dim)` has the same value and gives each
of them the same.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from graphxai.runtime.scope import Blocks

SHARED = {
    torch.max: torch.amax,
    Tensor.max: torch.amax,
    torch.min: torch.amin,
    Tensor.min: torch.amin,
}


_as_computed: Blocks[bool] = Blocks("graphxai_ties", False)


def ties_as_computed() -> AbstractContextManager[bool]:
    """Leave ties within the block as PyTorch treats them, which costs nothing."""
    return _as_computed.block(True)


def shared_ties() -> AbstractContextManager[Any]:
    """Let ties share gradients within the block, if there are any gradients."""
    if not torch.is_grad_enabled() or _as_computed.get():
        return nullcontext()
    return SharedTies()


class SharedTies(TorchFunctionMode):
    """Within the block, a maximum or minimum along an axis shares its gradient among ties."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call the function, and put in the values of `amax` or `amin` where there is an axis."""
        options = dict(kwargs or {})
        result = func(*args, **options)
        if (shared := SHARED.get(func)) is None or "out" in options:
            return result
        if not isinstance(result, tuple) or not result[0].is_floating_point():
            return result
        x, *rest = args
        dim: Any = options.get("dim", rest[0] if rest else None)
        keepdim = options.get("keepdim", rest[1] if len(rest) > 1 else False)
        return type(result)((shared(x, dim, keepdim), result[1]))
