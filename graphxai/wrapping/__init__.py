"""Explain any PyTorch model without changing its code."""

from typing import TYPE_CHECKING

from graphxai.runtime.lazy import lazily

if TYPE_CHECKING:  # loaded on first use, because PyG takes longer to import than torch
    from graphxai.contract.batch import NodeLayout
    from graphxai.engine.session import intercepted

    from .wrapped import WrappedModel
    from .wrapping import wrap

__all__ = ["NodeLayout", "WrappedModel", "intercepted", "wrap"]

__getattr__, __dir__, _ = lazily(__name__, __file__)
