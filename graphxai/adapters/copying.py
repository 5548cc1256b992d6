"""A copy of a model, whatever its last pass has left in it."""

from copy import deepcopy
from typing import Any, TypeVar

from torch import Tensor, nn

from .arguments import mapped

Model = TypeVar("Model")


def copied(model: Model) -> Model:
    """A deep copy, in which tensors that a pass has left behind are constants.

    A model may keep some, as for an auxiliary loss; PyTorch copies no tensor with a history.
    """
    inner: Any = getattr(model, "module", model)
    memo: dict[int, Any] = {}
    held: list[Tensor] = []  # alive, so that no other object gets their ids

    def note(tensor: Tensor) -> Tensor:
        if not tensor.is_leaf:
            held.append(tensor)
            memo[id(tensor)] = tensor.detach().clone()
        return tensor

    for module in inner.modules() if isinstance(inner, nn.Module) else ():
        own = {k: v for k, v in vars(module).items() if k not in ("_modules", "_parameters")}
        mapped(own, note)
    return deepcopy(model, memo)
