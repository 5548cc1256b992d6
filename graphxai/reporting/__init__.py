"""Reports for chemists: many explained molecules in one HTML file that needs no network."""

from graphxai.reporting.build import report

__all__ = ["report"]
