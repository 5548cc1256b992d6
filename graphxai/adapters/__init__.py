"""Explain any PyTorch model: apply rules and make recordings without changing its code."""

from typing import TYPE_CHECKING, Any

from graphxai.contract.lazy import lazily

from .engine.passing import intercepted
from .layout import Layout

if TYPE_CHECKING:  # loaded when they are used: PyG takes longer to import than torch
    from .wrapped import WrappedModel, wrap

__all__ = ["Layout", "WrappedModel", "intercepted", "wrap"]

_load, _ = lazily(__name__, __file__)


def __getattr__(name: str) -> Any:
    return _load(name)
