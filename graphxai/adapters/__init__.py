"""Explain any PyTorch model: apply rules and make recordings without changing its code."""

from typing import TYPE_CHECKING

from .engine.passing import intercepted
from .layout import Layout

if TYPE_CHECKING:
    from .wrapped import WrappedModel, wrap

__all__ = ["Layout", "WrappedModel", "intercepted", "wrap"]


def __getattr__(name: str) -> object:
    """Import `wrap` on demand: it needs PyG, which takes longer to import than torch."""
    if name in ("WrappedModel", "wrap"):
        from . import wrapped

        return getattr(wrapped, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
