"""A result that draws itself: in a notebook, as a PNG, into a file."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import files

if TYPE_CHECKING:
    import pandas as pd


class Drawing:
    """Something with a picture as SVG; the PNG and the display in a notebook follow from it."""

    def svg(self, **options: Any) -> str:
        """The picture as SVG text."""
        raise NotImplementedError

    def png(self, *, zoom: float = 2.0, **options: Any) -> bytes:
        """The picture as PNG, `zoom` pixels per SVG unit; options as for `svg`."""
        from graphxai.visualization import svg_to_png

        return svg_to_png(self.svg(**options), zoom)

    def save(self, path: str | Path, **options: Any) -> Path:
        """Write the picture as .svg, .png or .pdf; ValueError for another suffix."""
        path = files.writable(path, files.PICTURES)
        return files.write_pictures([self.svg(**options)], path)

    def _repr_svg_(self) -> str | None:
        from graphxai.visualization import displayed

        return displayed(self.svg())


class Result(Drawing):
    """A drawing with a table of the figures that it shows."""

    def to_frame(self) -> "pd.DataFrame":
        """The figures that the picture shows."""
        raise NotImplementedError

    def save(self, path: str | Path, **options: Any) -> Path:
        """Write the picture (.svg, .png, .pdf) or the table (.csv), by suffix."""
        path = files.writable(path, (*files.PICTURES, ".csv"))
        if path.suffix.lower() == ".csv":
            self.to_frame().to_csv(path, index=False)
            return path
        return files.write_pictures([self.svg(**options)], path)


class Picture(str, Drawing):
    """SVG text that a notebook draws."""

    def svg(self, **options: Any) -> str:
        """The text itself; there is nothing left to choose."""
        return str(self)

    def png(self, *, zoom: float = 2.0) -> bytes:  # type: ignore[override]
        """The picture as PNG, `zoom` pixels per SVG unit."""
        return super().png(zoom=zoom)

    def save(self, path: str | Path) -> Path:  # type: ignore[override]
        """Write the picture as .svg, .png or .pdf; ValueError for another suffix."""
        return super().save(path)

    def __repr__(self) -> str:
        return f"Picture({len(self):,} characters of SVG)"
