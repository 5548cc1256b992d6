"""A list of explanations that can be shown in a notebook and saved to one file."""

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsIndex, overload

from . import files
from .explanation import Explanation
from .grid import grid
from .html import page_html, table_html
from .result import Picture

if TYPE_CHECKING:
    import pandas as pd

SHOWN = 12  # how many pictures of a list a notebook shows


class Explanations(list[Explanation | None]):
    """The explanations of several inputs as a list, with None where an input was left out.

    Args:
        explanations: the explanations.
        labels: the labels of the inputs, see `labels`.
    """

    def __init__(
        self,
        explanations: Iterable[Explanation | None] = (),
        *,
        labels: Sequence[Any] | None = None,
    ) -> None:
        super().__init__(explanations)
        self._labels = labels

    @property
    def labels(self) -> Sequence[Any]:
        """The labels of the inputs in tables and files: the index of a frame, or the positions."""
        fits = self._labels is not None and len(self._labels) == len(self)
        return self._labels if self._labels is not None and fits else range(len(self))

    @overload
    def __getitem__(self, index: SupportsIndex) -> Explanation | None: ...
    @overload
    def __getitem__(self, index: slice) -> "Explanations": ...
    def __getitem__(self, index: SupportsIndex | slice) -> "Explanation | Explanations | None":
        if isinstance(index, slice):
            return Explanations(super().__getitem__(index), labels=self.labels[index])
        return super().__getitem__(index)

    def grid(self, **options: Any) -> Picture:
        """Draw the pictures side by side, with the options of `graphxai.grid`."""
        return grid(self, **options)

    def to_frame(self) -> "pd.DataFrame":
        """Return a table with one row per atom.

        Its columns are input (the explanation's label, by default its position in the list), atom,
        symbol, relevance and parts, as in `Explanation.to_frame`.
        """
        import pandas as pd

        frames = []
        for label, explanation in self._labelled():
            frame = explanation.to_frame().reset_index()
            frame.insert(0, "input", [label] * len(frame))
            frames.append(frame)
        return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame({"input": []})

    def save(self, path: str | Path, **options: Any) -> Path:
        """Write all explanations that are not None to one file, by the file's suffix.

        In tables, `input` is the explanation's label. A picture is a `grid` and
        takes its options. PDF and HTML show one picture after another, with the options of
        `Explanation.svg`. Formats and errors are as for `Explanation.save`.
        """
        path = files.writable(path)
        explanations = [explanation for _, explanation in self._labelled()]
        match path.suffix.lower():
            case ".pdf":
                return files.write_pictures([e.svg(**options) for e in explanations], path)
            case ".html":
                return files.write_text([self._page(**options)], path)
            case ".csv":
                return files.write_csv(self.to_frame(), path, index=False)
            case ".parquet":
                return files.write_parquet(self.to_frame(), self._to_dicts(), path)
            case ".json":
                return files.write_json(self._to_dicts(), path)
            case ".sdf":
                return files.write_text([e.to_sdf() for e in explanations], path)
            case ".smi":
                return files.write_text([e._to_smi() for e in explanations], path)
        return files.write_pictures([grid(explanations, **options)], path)

    def _labelled(self) -> list[tuple[Any, Explanation]]:
        """Return the explanations that are not None, with their labels."""
        pairs = zip(self.labels, self, strict=True)
        return [(label, explanation) for label, explanation in pairs if explanation is not None]

    def _to_dicts(self) -> list[dict[str, Any]]:
        return [
            {"input": label if isinstance(label, int | float | str) else str(label)} | e.to_dict()
            for label, e in self._labelled()
        ]

    def _page(self, **options: Any) -> str:
        explanations = [explanation for _, explanation in self._labelled()]
        if not explanations:
            raise ValueError("there is no explanation to show.")
        count = len(explanations)
        title = explanations[0].headline if count == 1 else f"{count} explanations"
        return page_html(title, [e.section(**options) for e in explanations])

    def _repr_svg_(self) -> str | None:
        shown = self._shown()
        if not self._drawable(shown):
            return None
        return grid(
            [e for _, e in shown],
            titles=[f"{label}: {e.headline}" for label, e in shown],
            subtitle=self._counts(),
            shared_scale=len({(e.method, e.target) for _, e in shown}) == 1,
        )._repr_svg_()

    def _repr_html_(self) -> str | None:
        """Return a table of the first explanations, if they have no pictures."""
        shown = self._shown()
        if self._drawable(shown):
            return None
        rows = [(label, e.headline, e.caption) for label, e in shown]
        table = table_html(("input", "prediction", "explanation"), rows) if rows else ""
        return f"{table}<p>{escape(self._counts())}</p>"

    def _shown(self) -> list[tuple[Any, Explanation]]:
        """Return the first explanations that are not None, with their labels."""
        return self._labelled()[:SHOWN]

    def _drawable(self, shown: list[tuple[Any, Explanation]]) -> bool:
        return bool(shown) and all(e.has_picture for _, e in shown)

    def _counts(self) -> str:
        """Say how many inputs there are, how many are not shown, and how many were left out."""
        left_out = len(self) - len(self._labelled())
        hidden = len(self) - left_out - SHOWN
        counts = [f"{len(self)} input{'' if len(self) == 1 else 's'}"]
        counts += [f"{hidden} more not shown"] if hidden > 0 else []
        counts += [f"{left_out} left out (None)"] if left_out else []
        return ", ".join(counts)
