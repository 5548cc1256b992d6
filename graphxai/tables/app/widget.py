"""The view of the app as a widget, which sends requests to the kernel instead of a server."""

import asyncio
import base64
import json
import logging
import sys
from collections.abc import Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, parse_qsl, urlencode
from uuid import uuid4

from graphxai.runtime.extras import missing_extra

try:
    import anywidget
    import traitlets
except ImportError:
    raise missing_extra("gx.explore needs", "anywidget", "notebook") from None

from graphxai.explanation.api import explain
from graphxai.explanation.compute.models import Model
from graphxai.explanation.labelled import TaskPredictions
from graphxai.explanation.result import image_html
from graphxai.runtime.progress import in_kernel

from .answers import EXPECTED, Body, OfferedModels, reason, steps_of
from .page import STYLE, filled, read, text_of, view_script

if TYPE_CHECKING:
    from IPython.display import DisplayHandle

SILENT = "The kernel does not answer."
AGAIN = "Run the cell again to change the molecule."
RESTARTED = "The kernel was restarted: run the cell again."
# The script of the view. The kernel sends it, so that no notebook stores it with each widget.
PROGRAM = filled(
    "notebook_view.js",
    SCRIPT=text_of("draw.js") + view_script(),
    STYLE=json.dumps(STYLE),
    VIEW=json.dumps(text_of("view.html")),
    RESTARTED=json.dumps(RESTARTED),
)
_Execution = tuple[str, list[Any]]  # the id of an execution of a cell, and what it showed
_executions: dict[str, _Execution] = {}  # the last one of each cell, by the cell's id
# Molecules are explained one at a time, in the order requested, while the kernel stays free.
TURNS = ThreadPoolExecutor(1, "graphxai")
LOGGER = logging.getLogger(__name__)


class Explorer(anywidget.AnyWidget):
    """The view of `explore`. Its content can be read and set from Python.

    Attributes:
        link: everything on view as a text, which is also the end of an address of the app.
        still: the class of the pictures in HTML that take the view's place without a kernel.
    """

    _esm = filled("widget.js", SILENT=json.dumps(SILENT))
    link = traitlets.Unicode().tag(sync=True)
    still = traitlets.Unicode().tag(sync=True)

    def __init__(self, models: "Sequence[Model | str | Path]", smiles: Sequence[str]) -> None:
        """Show models, names or folders, the first one first, and molecules as SMILES.

        Raises:
            ValueError: a model does not read molecules, or a text is not a SMILES.
        """
        self._models = OfferedModels(models)
        # The requests that are not yet answered or cancelled, each with the task that answers it.
        self._wanted: dict[str, asyncio.Task[None] | None] = {}
        self._stills: list[DisplayHandle] = []
        super().__init__(link=_begun("", smiles), still=f"graphxai-still-{uuid4().hex}")
        self.on_msg(self._asked)
        self.observe(self._renew_stills, "link")

    @property
    def smiles(self) -> str:
        """The molecule shown, or "" for none. Setting it shows another one."""
        fields = parse_qs(self.link)
        at = int(fields.get("at", ["0"])[0])
        return json.loads(fields["n"][at])[1] if "n" in fields else ""

    @smiles.setter
    def smiles(self, value: str) -> None:
        self.link = _begun(self.link, [value])

    def __repr__(self) -> str:
        return f"Explorer({self.smiles})"

    def _ipython_display_(self) -> None:
        """Show a picture with a table, which the view hides, and the view.

        The picture remains where no kernel answers the view: in the saved notebook, in what it is
        converted to, and on web sites.
        """
        view = self._repr_mimebundle_() if in_kernel() and self.comm is not None else None
        if view is None:
            raise NotImplementedError  # IPython shows the text
        from IPython.display import display

        if self.smiles:
            self._stills.append(display(self._still(), raw=True, display_id=True))
        data, metadata = view
        display(data | {"text/plain": ""} if self._stills else data, metadata=metadata, raw=True)
        note_shown(self)

    def close(self) -> None:
        """Remove the view from the notebook, which stores it no longer."""
        self.layout.close()
        super().close()

    def _renew_stills(self, change: Any) -> None:
        """Show the molecule that is on view now in the pictures that remain."""
        if not self._stills or not self.smiles:
            return
        self._renewal = _start(self._renew_soon(self.link))

    async def _renew_soon(self, link: str) -> None:
        """Renew the pictures in turn with the requests of the view, unless it has gone on."""
        still = await asyncio.get_running_loop().run_in_executor(TURNS, self._still)
        if link == self.link:
            for handle in self._stills:
                handle.update(still, raw=True)

    def _still(self) -> dict[str, Any]:
        """Return the molecule shown, explained by the first model, as HTML and as PNG."""
        explanation = explain(self._models[self._models.names[0]], self.smiles, progress=False)
        picture = explanation._repr_png_()
        predicted = TaskPredictions({p.task: p for p in explanation.predictions})
        shown = predicted._repr_html_() + f"<p>{AGAIN}</p>"
        text = {"text/plain": repr(self)}
        if picture is None:
            return text | {"text/html": f'<div class="{self.still}">{shown}</div>'}
        image = image_html(picture, explanation.headline)
        return text | {
            "text/html": f'<div class="{self.still}"><p>{image}</p>{shown}</div>',
            "image/png": base64.b64encode(picture).decode(),
        }

    @property
    def basket(self) -> list[dict[str, str]]:
        """The molecules in the basket, each with `smiles`, `name` and `changes`."""
        chosen = map(json.loads, parse_qs(self.link).get("b", []))
        return [dict(zip(("smiles", "name", "changes"), values, strict=True)) for values in chosen]

    def _asked(self, widget: Any, content: dict[str, Any], buffers: Any) -> None:
        """Handle a message from the view, which makes a request or cancels one."""
        number = str(content.get("id"))
        if content.get("cancel"):
            self._wanted.pop(number, None)
            return
        self._wanted[number] = None
        task = _start(self._answer(number, str(content.get("name")), content.get("body")))
        if task is not None:
            self._wanted[number] = task

    async def _answer(self, number: str, name: str, fields: Any) -> None:
        """Send what a request yields as it comes, from this thread, as kernels expect."""
        loop = asyncio.get_running_loop()
        try:
            body = Body(fields if isinstance(fields, dict) else {})
            is_answer = name != "program"
            steps = steps_of(self._models, name, body) if is_answer else iter([PROGRAM])
            while (
                value := await loop.run_in_executor(TURNS, self._next, number, steps)
            ) is not None:
                self.send({"id": number, "value": value})
            self.send({"id": number, "over": True})
        except Exception as error:  # RDKit raises errors of any type
            if not isinstance(error, EXPECTED):
                LOGGER.error("a request failed", exc_info=error)
            self.send({"id": number, "error": reason(error)})
        finally:
            self._wanted.pop(number, None)

    def _next(self, number: str, steps: Iterator[Any]) -> Any:
        return next(steps, None) if number in self._wanted else None


def _start(work: Coroutine[Any, Any, None]) -> "asyncio.Task[None] | None":
    """Begin work in the event loop of the kernel, or do it now in a kernel without one."""
    try:
        return asyncio.get_running_loop().create_task(work)
    except RuntimeError:
        asyncio.run(work)
        return None


def _begun(link: str, smiles: Sequence[str]) -> str:
    """Add molecules to a link, and show the first of them."""
    fields = [(name, value) for name, value in parse_qsl(link) if name != "at"]
    at = sum(name == "n" for name, _ in fields)
    for molecule in smiles:
        read(molecule)
        fields.append(("n", json.dumps([-1, molecule, "", []])))
    return urlencode([*fields, ("at", at)] if smiles else fields)


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
