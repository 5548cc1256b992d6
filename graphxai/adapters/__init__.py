"""Explain any PyTorch model: apply rules and make recordings without changing its code."""

from .interception import intercepted
from .layout import Layout
from .wrapped import WrappedModel, wrap

__all__ = ["Layout", "WrappedModel", "intercepted", "wrap"]
