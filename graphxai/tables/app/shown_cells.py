"""Close the widgets that no cell of a notebook shows any more, so that it does not store them."""

import sys
from typing import Any

from graphxai.runtime.progress import in_kernel

_Execution = tuple[str, list[Any]]  # the id of an execution of a cell, and what it showed
_executions: dict[str, _Execution] = {}  # the last one of each cell, by the cell's id


def note_shown(widget: Any) -> None:
    """Note that the running cell shows a widget, and close those that it showed before.

    A widget that another cell shows, too, stays. A front end that does not name the running cell
    keeps all.
    """
    cell, execution = _running()
    if cell is None:
        return
    execution_before, widgets = _executions.get(cell, ("", []))
    if execution == execution_before:
        widgets.append(widget)
        return
    _executions[cell] = (execution, [widget])
    on_view = [shown for _, widgets_shown in _executions.values() for shown in widgets_shown]
    for before in widgets:
        if not any(before is shown for shown in on_view):
            before.close()


def _running() -> tuple[str | None, str]:
    """Return the ids of the running cell, or None, and of its execution."""
    if not in_kernel():
        return None, ""
    request = sys.modules["IPython"].get_ipython().kernel.get_parent() or {}
    cell = request.get("metadata", {}).get("cellId")
    return cell, request.get("header", {}).get("msg_id", "")
