"""The report of a benchmark: measurements that can be plotted and saved to a folder."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .figures import draw
from .measurements import Measurements
from .output import save_report

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Report(Measurements):
    """Measurements with plots and export."""

    def plot(self, kind: str = "activation", *, operator: str | None = None) -> "Figure":
        """One of `figures.PLOTS` as a matplotlib figure."""
        return draw(self, kind, operator)

    def save(self, folder: str | Path) -> Path:
        """Write rows, tables, tests and figures to a folder; see `output.save_report`."""
        return save_report(self, Path(folder))


def merged(reports: Iterable[Report]) -> Report:
    """One report from reports of several checkpoints measured with the same settings."""
    found: Sequence[Report] = list(reports)
    if not found:
        raise ValueError("there is no report to merge.")
    settings = dict(found[0].settings)
    settings["checkpoints"] = [c for r in found for c in r.settings.get("checkpoints", [])]
    settings["sha256"] = [r.settings.get("sha256") for r in found]
    rejected = dict(pair for report in found for pair in report.rejected)
    units = tuple(unit for report in found for unit in report.units)
    return Report(units, settings, tuple(rejected.items()))
