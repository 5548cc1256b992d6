"""Explain models of others: rules and recordings without a change to their code."""

from .interception import intercepted
from .layout import Layout
from .wrapped import WrappedModel, wrap

__all__ = ["Layout", "WrappedModel", "intercepted", "wrap"]
