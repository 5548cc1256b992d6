"""Import chemprop, which is an optional package, when it is first needed."""

from functools import cache
from typing import Any


@cache
def chemprop_nn() -> Any:
    """Return the module `chemprop.nn`.

    Raises:
        ImportError: chemprop 2 is not installed.
    """
    try:
        from chemprop import nn
    except ImportError as error:
        raise ImportError(
            "models of chemprop need chemprop 2: install it with `pip install"
            f" 'graphxai[chemprop]'`. ({error})"
        ) from error
    if not hasattr(nn, "BondMessagePassing"):
        raise ImportError(
            "the chemprop that is installed is version 1: install version 2 with `pip install"
            " 'graphxai[chemprop]'`."
        )
    return nn


@cache
def chemprop_featurizers() -> Any:
    """Return the module `chemprop.featurizers`, or raise ImportError as `chemprop_nn` does."""
    chemprop_nn()
    from chemprop import featurizers

    return featurizers
