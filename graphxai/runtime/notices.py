"""Warnings that the logger `graphxai` hears as well, for programs that keep a log."""

import logging
import warnings

LOGGER = logging.getLogger("graphxai")
LOGGER.addHandler(logging.NullHandler())  # nothing is printed twice where nobody set up logging


def warn(message: str, category: type[Warning] = UserWarning, stacklevel: int = 1) -> None:
    """Give a warning to Python and to the logger, which hears it every time.

    The arguments are those of `warnings.warn`.
    """
    LOGGER.warning(message)
    warnings.warn(message, category, stacklevel=stacklevel + 1)
