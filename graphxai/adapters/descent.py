"""Whether a tensor was computed from others, according to autograd."""

from collections.abc import Iterable
from typing import Any

import torch.autograd.forward_ad as forward_ad
from torch import Tensor


class Ancestors:
    """Tensors, in their current state, from which others may be computed."""

    def __init__(self, tensors: Iterable[Tensor] = ()) -> None:
        self._tensors = [tensor for tensor in tensors if isinstance(tensor, Tensor)]
        self._nodes = {t.grad_fn for t in self._tensors if t.grad_fn is not None}
        self._leaves = {id(t) for t in self._tensors if t.grad_fn is None and t.requires_grad}

    @property
    def can_be_told(self) -> bool:
        """Whether autograd knows what is computed from them."""
        return bool(self._nodes or self._leaves) or any(map(_tangent, self._tensors))

    def in_forward_mode(self, value: Tensor) -> bool:
        """Whether the tensors are tracked by tangents, and this one has one."""
        return any(map(_tangent, self._tensors)) and _tangent(value)

    def lead_to(self, value: Tensor) -> bool:
        """Whether the value was computed from one of the tensors."""
        if self.in_forward_mode(value):
            return True
        if not self._nodes and not self._leaves:
            return False
        left, seen = [value.grad_fn], set()
        while left:
            node: Any = left.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            if node in self._nodes or id(getattr(node, "variable", None)) in self._leaves:
                return True
            left.extend(before for before, _ in node.next_functions)
        return False


def _tangent(value: Tensor) -> bool:
    return forward_ad._current_level >= 0 and forward_ad.unpack_dual(value).tangent is not None
