"""Explain any PyTorch model: apply rules and make recordings without changing its code."""

from typing import TYPE_CHECKING

from graphxai.runtime.lazy import lazily

from .engine.passing import intercepted
from .layout import Layout

if TYPE_CHECKING:  # loaded when they are used: PyG takes longer to import than torch
    from .wrapped import WrappedModel, wrap

__all__ = ["Layout", "WrappedModel", "intercepted", "wrap"]

__getattr__, __dir__, _ = lazily(__name__, __file__)
