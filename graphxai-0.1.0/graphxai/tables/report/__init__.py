"""Make reports for chemists: many explained molecules in one HTML file that opens offline."""

from .build import report

__all__ = ["report"]
