"""The report of a benchmark, which holds values that can be plotted and saved to a folder."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .figures import draw
from .method_values import MethodValues
from .output import save_report
from .robustness import merged_robustness

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class Report(MethodValues):
    """The values of several methods on the same graphs, with plots and export."""

    def plot(
        self, kind: str = "activation", *, operator: str | None = None, ax: "Axes | None" = None
    ) -> "Figure":
        """Draw one of `figures.PLOTS` with matplotlib.

        Args:
            kind: the name of the plot.
            operator: how nodes were removed, by default the first operator of the report.
            ax: the axes to draw in, such as a subplot of yours. By default the figure is new.
                Plots with several panels take none.

        Raises:
            ValueError: there is no such plot, nothing to draw, or several panels and an `ax`.
        """
        return draw(self, kind, operator, ax)

    def save(self, folder: str | Path) -> Path:
        """Write rows, tables, tests and figures to a folder, as `output.save_report` does."""
        return save_report(self, Path(folder))


def merged(reports: Iterable[Report]) -> Report:
    """Merge reports of several checkpoints that were measured with the same settings."""
    parts: Sequence[Report] = list(reports)
    if not parts:
        raise ValueError("there is no report to merge.")
    settings = dict(parts[0].settings)
    settings["checkpoints"] = [c for part in parts for c in part.settings.get("checkpoints", [])]
    settings["sha256"] = [part.settings.get("sha256") for part in parts]
    if "robustness" in settings:
        settings["robustness"] = merged_robustness(
            [part.settings.get("robustness", {}) for part in parts]
        )
    rejected = dict(pair for part in parts for pair in part.rejected)
    units = tuple(unit for part in parts for unit in part.units)
    return Report(units, settings, tuple(rejected.items()))
