"""Reports for chemists: many explained molecules in one HTML file that needs no network."""

from .build import report

__all__ = ["report"]
