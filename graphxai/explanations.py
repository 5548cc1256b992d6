"""A list of explanations that shows itself and saves into one file."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsIndex, overload

from graphxai.explanation import Explanation

if TYPE_CHECKING:
    import pandas as pd

    from graphxai.pictures import Picture

SHOWN = 12  # pictures of a list in a notebook


class Explanations(list[Explanation | None]):
    """What `explain` returns for several inputs: a list, None where an input was left out."""

    @overload
    def __getitem__(self, index: SupportsIndex) -> Explanation | None: ...
    @overload
    def __getitem__(self, index: slice) -> "Explanations": ...
    def __getitem__(self, index: SupportsIndex | slice) -> "Explanation | Explanations | None":
        if isinstance(index, slice):
            return Explanations(super().__getitem__(index))
        return super().__getitem__(index)

    def grid(self, **options: Any) -> "Picture":
        """The pictures side by side; options as for `graphxai.grid`."""
        from graphxai.pictures import grid

        return grid(self, **options)

    def to_frame(self) -> "pd.DataFrame":
        """One row an atom of each, with the place of its input; see `export.to_frame`."""
        from graphxai.export import to_frame

        return to_frame(self)

    def save(self, path: str | Path, **options: Any) -> Path:
        """Write all into one file, its format by the suffix; see `graphxai.export`."""
        from graphxai.export import save_all

        return save_all(self, path, **options)

    def _repr_svg_(self) -> str | None:
        from graphxai.notebook import drawable, explanations_picture

        return explanations_picture(self, SHOWN)._repr_svg_() if drawable(self, SHOWN) else None

    def _repr_html_(self) -> str | None:
        from graphxai.notebook import drawable, explanations_html

        return None if drawable(self, SHOWN) else explanations_html(self, SHOWN)
