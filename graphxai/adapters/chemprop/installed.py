"""Import chemprop, which is an optional package, when it is first needed."""

from functools import cache
from typing import Any

from graphxai.runtime.extras import missing_extra


@cache
def chemprop_nn() -> Any:
    """Return the module `chemprop.nn`.

    Raises:
        ImportError: chemprop 2 is not installed.
    """
    try:
        from chemprop import nn
    except ModuleNotFoundError as error:
        if error.name != "chemprop":
            raise  # chemprop is installed, and lacks something itself
        raise missing_extra("models of chemprop need", "chemprop 2", "chemprop") from error
    if not hasattr(nn, "BondMessagePassing"):
        raise missing_extra("models of chemprop need", "chemprop 2, not 1", "chemprop")
    return nn


@cache
def chemprop_featurizers() -> Any:
    """Return the module `chemprop.featurizers`, or raise ImportError as `chemprop_nn` does."""
    chemprop_nn()
    from chemprop import featurizers

    return featurizers
