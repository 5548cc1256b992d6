"""Turn cells that have types, as in workbooks and Parquet files, into the text of a CSV file."""

from __future__ import annotations

import datetime
import math
from typing import Any

__all__ = ["as_text"]


def as_text(value: Any) -> str:
    """Return a value as a cell of text, "" if it is missing.

    A whole number has no decimal point, as spreadsheets hold all numbers as floating point.
    """
    if isinstance(value, str):
        return value
    if value is None or value != value:  # NaN and pandas's NaT
        return ""
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, float):
        whole = value.is_integer() and abs(value) < 1e15
        return str(int(value)) if whole else repr(value) if math.isfinite(value) else ""
    if isinstance(value, datetime.datetime):
        is_date = value.time() == datetime.time() and value.tzinfo is None
        return value.date().isoformat() if is_date else value.isoformat(sep=" ")
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return str(value)
