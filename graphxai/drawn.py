"""What a result with a picture and a table can do: files, PNG, display in a notebook."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd


class Drawn:
    """A result that draws itself as SVG and has a table; the rest follows from these two."""

    def svg(self, **options: Any) -> str:
        """The picture as SVG text."""
        raise NotImplementedError

    def to_frame(self) -> "pd.DataFrame":
        """The figures that the picture shows."""
        raise NotImplementedError

    def png(self, *, zoom: float = 2.0, **options: Any) -> bytes:
        """The picture as PNG, `zoom` pixels per SVG unit; options as for `svg`."""
        from graphxai.visualization import svg_to_png

        return svg_to_png(self.svg(**options), zoom)

    def save(self, path: str | Path, **options: Any) -> Path:
        """Write the picture (.svg, .png, .pdf) or the table (.csv), by suffix."""
        from graphxai.export import write_picture_or_table

        return write_picture_or_table(self.svg, self.to_frame, path, options)

    def _repr_svg_(self) -> str | None:
        from graphxai.visualization import displayed

        return displayed(self.svg())
