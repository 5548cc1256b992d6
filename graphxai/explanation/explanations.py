"""A list of explanations that can be shown in a notebook and saved to one file.

Explanations are drawn side by side: one input by several methods, or several inputs by one method.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from graphxai.runtime.writing import write_whole
from graphxai.visualization import Scale, grid_svg
from graphxai.visualization.grid import aligned_series
from graphxai.visualization.render import save_picture

from . import files
from .explanation import Explanation, write_values
from .labelled import LabelledResults
from .prediction import table_cells
from .result import Picture, image_html, page_html, shown_as_png

if TYPE_CHECKING:
    import pandas as pd

SHOWN = 12  # how many pictures of a list a notebook shows
THUMBNAIL: dict[str, Any] = {"width": 250, "height": 180}  # the size of a picture in a table


class Explanations(LabelledResults[Explanation]):
    """The explanations of several inputs as a list, with None where an input was left out.

    A notebook shows their pictures, or for a data frame a table with them.

    Args:
        explanations: the explanations.
        labels: the index of the frame or column that the inputs came from, or their positions in a
            longer list.
    """

    def grid(self, **options: Any) -> Picture:
        """Draw the pictures side by side, with the options of `graphxai.grid`."""
        return grid(self, **options)

    def to_frame(
        self, per: Literal["atom", "input"] = "atom", *, pictures: bool = False
    ) -> "pd.DataFrame":
        """Return a table with one row per atom, or one per input.

        A row per atom has the columns input (the explanation's label, by default its position in
        the list), atom, symbol, relevance and parts, as in `Explanation.to_frame`.

        A row per input has those of `Predictions.to_frame`, which keep the index of a data frame,
        and the method, the target and the explained output. Its pictures share a colour scale.

        Args:
            per: what a row is for.
            pictures: whether a row per input ends with a small `picture`, the HTML of an image,
                which `to_html(escape=False)` shows.
        """
        import pandas as pd

        if per == "input":
            smiles = [None if e is None else e.smiles for e in self]
            molecules = any(smiles)
            scale = common_scale([e for *_, e in self._labelled()]) if pictures else None
            rows = [{} if e is None else _cells(e, pictures, scale) for e in self]
            return self._frame(rows, smiles if molecules else None)
        if per != "atom":
            raise ValueError(f"a table has a row per 'atom' or per 'input', not per {per!r}.")
        frames = []
        for _, label, explanation in self._labelled():
            frame = explanation.to_frame().reset_index()
            frame.insert(0, "input", [label] * len(frame))
            frames.append(frame)
        return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame({"input": []})

    def save(self, path: str | Path, **options: Any) -> Path:
        """Write all explanations that are not None to one file, by the file's suffix.

        In tables, `input` is the explanation's label. A picture is a `grid` and
        takes its options. PDF and HTML show one picture after another, with the options of
        `Explanation.svg` and `shared_scale=False`, which gives each picture a scale of its own.
        Formats and errors are as for `Explanation.save`.
        """
        path = files.writable(path)
        explanations = [explanation for *_, explanation in self._labelled()]
        suffix = path.suffix.lower()
        if suffix in (".pdf", ".html") and options.pop("shared_scale", True):
            options["scale"] = options.get("scale") or common_scale(
                explanations, options.get("palette", "red-blue")
            )
        if suffix in files.TABLES:
            return write_values(explanations, path, self.to_frame, self._to_dicts)
        if suffix == ".pdf":
            return save_picture([e.svg(**options) for e in explanations], path)
        if suffix == ".html":
            if not explanations:
                raise ValueError("there is no explanation to show.")
            count = len(explanations)
            title = explanations[0].headline if count == 1 else f"{count} explanations"
            sections = [e.section(**options) for e in explanations]
            return write_whole(path, page_html(title, sections))
        return save_picture([grid(explanations, **options)], path)

    def _to_dicts(self) -> list[dict[str, Any]]:
        return [
            {"input": label if isinstance(label, int | float | str) else str(label)} | e.to_dict()
            for _, label, e in self._labelled()
        ]

    def _line(self, result: Explanation) -> str:
        return f"{result.headline}; {result.caption}".replace("\n", "; ")

    def _repr_svg_(self) -> str | None:
        shown = self._some(SHOWN)
        if self.from_table or not _all_drawn(shown):
            return None
        titles = [f"{label}: {e.headline}" for _, label, e in shown]
        alike = len({(e.method, e.target) for *_, e in shown}) == 1
        about: dict[str, Any] = {"subtitle": self._counts(SHOWN), "shared_scale": alike}
        return grid([e for *_, e in shown], titles=titles, **about)._repr_svg_()

    def _repr_png_(self) -> bytes | None:
        return shown_as_png(self._repr_svg_())

    def _repr_html_(self) -> str | None:
        """Return a table of the first explanations, if they came from one or have no pictures."""
        shown = self._some(SHOWN)
        drawable = _all_drawn(shown)
        if drawable and not self.from_table:
            return None
        head = ("", "prediction", "training set", "explanation")
        scale = common_scale([e for *_, e in shown]) if drawable else None
        rows = [_shown_cells(label, e, drawable, scale) for _, label, e in shown]
        return self._table(head, rows, SHOWN)


def _all_drawn(shown: list[tuple[int, Any, Explanation]]) -> bool:
    return bool(shown) and all(e.has_picture for *_, e in shown)


def _cells(explanation: Explanation, pictures: bool, scale: Scale | None) -> dict[str, Any]:
    cells = table_cells(explanation.predictions)
    cells |= {name: getattr(explanation, name) for name in ("method", "target", "output")}
    if pictures and explanation.has_picture:
        picture = explanation.svg(scale=scale, **THUMBNAIL)
        cells["picture"] = image_html(picture, explanation.headline)
    return cells


def _shown_cells(
    label: Any, explanation: Explanation, drawable: bool, scale: Scale | None
) -> tuple[Any, ...]:
    near = explanation.nearness
    predicted = "; ".join(f"{p.task}: {p.in_full}" for p in explanation.predictions)
    text = f"{explanation.headline}. {explanation.caption}".replace("\n", "; ")
    picture = explanation.svg(scale=scale, **THUMBNAIL) if drawable else ""
    shown = image_html(picture, text) if drawable else explanation.caption
    return label, predicted, "" if near is None else near.sentence, shown


PANEL = {"width": 400, "height": 310}  # the size of a molecule in a grid, in pixels
SATURATED = 0.975  # a shared scale ends at this quantile of |relevance|


def grid(
    explanations: Sequence[Explanation | None],
    *,
    columns: int = 3,
    title: str = "",
    subtitle: str = "",
    titles: Sequence[str] | None = None,
    shared_scale: bool = True,
    scale: Scale | float | None = None,
    palette: str = "red-blue",
    core: str | None = None,
    **options: Any,
) -> Picture:
    """Draw several inputs explained by one method.

    Panels always have separate scales if methods or tasks differ, because their scores have
    different units. Their titles then name the difference.

    Args:
        explanations: what to draw. Inputs that could not be explained (None) are left out.
        columns: the number of panels in a row.
        title: the title above all panels, by default the method.
        subtitle: the text below the title.
        titles: a title above each panel, instead of the prediction.
        shared_scale: whether all panels share a colour scale and its bar. The scale ends at the
            97.5 % quantile of |relevance|, so that one strong atom does not wash out the other
            molecules. Pointed ends of the bar mark larger values.
        scale: a scale for all panels.
        palette: one of `visualization.PALETTES`.
        core: the SMARTS of a core that is drawn alike in all molecules. By default it is their
            maximum common core, and molecules with 2D coordinates keep these.
        options: options of `Explanation.svg`. By default, molecules are drawn at 400 x 310 pixels.
    """
    if titles is not None:
        if len(titles) != len(explanations):
            raise ValueError(f"{len(titles)} titles for {len(explanations)} explanations.")
        titles = [name for name, e in zip(titles, explanations, strict=True) if e is not None]
    explanations = _aligned(drawable(explanations), core)
    title = title or (explanations[0].title if len({e.title for e in explanations}) == 1 else "")
    titles = titles or _panel_titles(explanations)
    one_key = len({e.unsigned for e in explanations}) == 1
    values = np.concatenate([e.relevance for e in explanations])
    if scale is None and shared_scale:
        scale = common_scale(explanations, palette)
    shared: dict[str, Any] = {"subtitle": "", "color_bar": scale is None or not one_key}
    subtitle = with_doubt(subtitle, *(e.contested for e in explanations))
    panels = [
        e.svg(scale=scale, palette=palette, title=name, **shared, **panel_options(e, options))
        for e, name in zip(explanations, titles, strict=True)
    ]
    if scale is None or not one_key:
        return Picture(grid_svg(panels, columns, title, subtitle=subtitle))
    one_legend = len({e.legend for e in explanations}) == 1
    legend = explanations[0].legend if one_legend else ("against", "for")
    scale = explanations[0].scale(scale, palette)
    about: dict[str, Any] = {"subtitle": subtitle, "legend": legend}
    return Picture(grid_svg(panels, columns, title, scale=scale, values=values, **about))


def with_doubt(subtitle: str, *pale: ArrayLike) -> str:
    """Return the subtitle of panels, which says what pale nodes mean if there are any."""
    doubt = "pale: models disagree on the sign" if any(map(np.any, pale)) else ""
    return " · ".join(filter(None, [subtitle, doubt]))


def _aligned(explanations: list[Explanation], core: str | None) -> list[Explanation]:
    if len({id(e) for e in explanations}) < 2 or not all(e.molecule for e in explanations):
        return explanations
    placed = aligned_series([e.atoms() for e in explanations], core)
    return [replace(e, mol=mol) for e, mol in zip(explanations, placed, strict=True)]


def common_scale(explanations: Sequence[Explanation], palette: str = "red-blue") -> Scale | None:
    """Return the colour scale that all pictures share, or None for different methods or tasks.

    It ends at the quantile `SATURATED` of |relevance|. A single picture has a scale of its own.
    """
    if len(explanations) < 2 or len({(e.title, e.prediction.task) for e in explanations}) > 1:
        return None
    values = np.concatenate([e.relevance for e in explanations])
    limit = saturated_limit(values)
    return Scale(limit, palette, shared_by=f"all {len(explanations)} pictures")


def saturated_limit(values: ArrayLike) -> float:
    """Return where a scale for these relevances ends, such that few lie beyond it."""
    sizes = np.abs(values)
    return float(np.quantile(sizes, SATURATED)) or float(sizes.max()) or 1.0


def _panel_titles(explanations: Sequence[Explanation]) -> list[str]:
    """Return the predictions, with method and target if these differ."""
    one_method = len({e.title for e in explanations}) == 1
    one_target = len({e.target for e in explanations}) == 1
    named = not one_target and any(  # the prediction has the name of the task already
        e.target.removeprefix(f"{e.prediction.task}: ") != e.prediction.label for e in explanations
    )
    return [
        ("" if one_method else f"{e.title}: ")
        + (e.headline if one_method or len(e.predictions) > 1 else str(e.prediction))
        + (f", for {e.target}" if named else "")
        for e in explanations
    ]


def panel_options(explanation: Explanation, options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a panel, with a size unless the input is an image."""
    return options if explanation._is_of_cells else PANEL | options


def drawable(explanations: Sequence[Explanation | None]) -> list[Explanation]:
    """Return the explanations that are not None, or raise ValueError if there are none."""
    if isinstance(explanations, Explanation):
        return [explanations]
    drawable = [e for e in explanations if e is not None]
    if not drawable:
        raise ValueError("there is no explanation to draw.")
    return drawable
