"""Copy a model, even if its last pass left tensors in it; undo what a pass leaves in one."""

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any, TypeVar

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

Model = TypeVar("Model")


def copied(model: Model) -> Model:
    """A deep copy, in which tensors left behind by a pass are constants.

    A model may keep some, for example for an auxiliary loss; PyTorch cannot copy a tensor with a
    history.
    """
    inner: Any = getattr(model, "module", model)
    memo: dict[int, Any] = {}
    held: list[Tensor] = []  # alive, so that no other object gets their ids

    for module in inner.modules() if isinstance(inner, nn.Module) else ():
        own = {k: v for k, v in vars(module).items() if k not in ("_modules", "_parameters")}
        for value in tree_leaves(own):
            if isinstance(value, Tensor) and not value.is_leaf:
                held.append(value)
                memo[id(value)] = value.detach().clone()
    return deepcopy(model, memo)


@contextmanager
def leaving_no_trace(module: nn.Module) -> Iterator[None]:
    """Undo what passes within the block assign to the module, such as weights kept to be read."""
    before = [(part, dict(vars(part))) for part in module.modules()]
    try:
        yield
    finally:
        for part, own in before:
            vars(part).clear()
            vars(part).update(own)
