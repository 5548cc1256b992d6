"""The server of the page: one request is computed at a time, within limits of size and time.

A request is JSON by POST to /api/NAME, with the token in a header; a search answers line by line.
"""

import asyncio
import json
import logging
import re
import secrets
import socket
import time
import webbrowser
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

try:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.exceptions import HTTPException
    from starlette.requests import Request
    from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
    from starlette.routing import Route
except ImportError:
    raise ImportError("the app needs starlette and uvicorn: pip install 'graphxai[app]'.") from None

from graphxai.contract.target import Target
from graphxai.explanation.html import security_policy
from graphxai.models.graphormer import Trained

from .guard import Guard
from .models import Models
from .molecules import card, changes_at, contrasted, predicted, suggestions
from .tables import KINDS, exported, rows_of

LARGEST = 4_000_000  # bytes of a request
ARRIVAL = 10.0  # seconds for a request to arrive
PATIENCE = 30.0  # seconds that a request waits for its turn
LONGEST = 120.0  # seconds of a search
MOST = 64  # molecules predicted in one request
log = logging.getLogger(__name__)


class Body:
    """The fields of a request; reading one that is missing or of another type is a ValueError."""

    def __init__(self, fields: dict[str, Any]) -> None:
        self.fields = fields

    def text(self, name: str, default: str = "", most: int = 2000) -> str:
        """A text of at most `most` characters."""
        value = self.fields.get(name, default)
        if not isinstance(value, str) or len(value) > most:
            raise ValueError(f"{name} must be text of at most {most:,} characters.")
        return value.encode("utf-8", "replace").decode()  # half a surrogate pair is no text

    def numbers(self, name: str) -> list[int]:
        """A list of at most 200 whole numbers."""
        values = self.items(name, 200)
        if not all(type(value) is int for value in values):
            raise ValueError(f"{name} must be whole numbers.")
        return values

    def items(self, name: str, most: int) -> list[Any]:
        """A list of at most `most` values."""
        values = self.fields.get(name, [])
        if not isinstance(values, list) or len(values) > most:
            raise ValueError(f"{name} must be a list of at most {most}.")
        return values

    def target(self) -> Target:
        """The output to explain: `task`, and `label` for a class."""
        return Target(self.text("label") or None, self.text("task") or None)


Answer = Callable[[Models, Body], Any]


def _card(models: Models, body: Body) -> Any:
    like = body.fields.get("like")
    return card(
        models[body.text("model")],
        body.text("smiles"),
        body.text("method", "lrp"),
        body.target(),
        like if isinstance(like, dict) else None,
    )


def _changes(models: Models, body: Body) -> Any:
    model, smiles = models[body.text("model")], body.text("smiles")
    return changes_at(model, smiles, body.target(), body.numbers("place"), body.numbers("locked"))


def _predicted(models: Models, body: Body) -> Any:
    smiles = [Body({"smiles": one}).text("smiles") for one in body.items("smiles", MOST)]
    return predicted(models[body.text("model")], smiles, body.target())


def _contrast(models: Models, body: Body) -> Any:
    pair = body.text("a"), body.text("b")
    return contrasted(models[body.text("model")], *pair, body.text("method", "lrp"), body.target())


def _read(models: Models, body: Body) -> Any:
    return rows_of(body.text("name"), body.text("text", most=LARGEST), body.text("column"))


def _export(models: Models, body: Body) -> Any:
    rows = [Body(row) for row in body.items("basket", 1000) if isinstance(row, dict)]
    basket = [{name: row.text(name) for name in ("smiles", "name", "changes")} for row in rows]
    kind, model = body.text("kind"), models[body.text("model")]
    text = exported(kind, model, body.text("method", "lrp"), body.target(), basket)
    return Response(text, media_type=KINDS[kind])


ANSWERS: dict[str, Answer] = {
    "about": lambda models, body: models.about(body.text("model")),
    "card": _card,
    "changes": _changes,
    "predict": _predicted,
    "contrast": _contrast,
    "read": _read,
    "export": _export,
}


def application(models: Models, token: str, port: int) -> Guard:
    """The page and what it asks for, as an ASGI application."""
    turn = asyncio.Lock()  # molecules are explained one after the other, in the order asked for

    async def page(request: Request) -> Response:
        text, policy = _page()
        return HTMLResponse(text, headers={"Content-Security-Policy": policy})

    async def answer(request: Request) -> Response:
        work = ANSWERS.get(request.path_params["name"])
        if work is None:
            raise HTTPException(404)
        try:
            found = await _in_turn(turn, request, work, models, await _body(request))
        except HTTPException:
            raise
        except Exception as error:  # RDKit raises errors of any type
            return _failed(error)
        return found if isinstance(found, Response) else JSONResponse(found)

    async def suggest(request: Request) -> Response:
        try:
            body = await _body(request)
            n = max(1, min(24, (body.numbers("n") or [12])[0]))
            model = models[body.text("model")]
            wished = body.text("smiles"), body.text("towards"), body.target()
            steps = suggestions(model, *wished, body.numbers("locked"), n)
            first = await _in_turn(turn, request, next, steps)
        except HTTPException:
            raise
        except Exception as error:
            return _failed(error)
        lines = _lines(turn, request, first, steps)
        return StreamingResponse(lines, media_type="application/x-ndjson")

    routes = [
        Route("/", page),
        Route("/api/suggest", suggest, methods=["POST"]),
        Route("/api/{name}", answer, methods=["POST"]),
    ]
    handlers: Any = {HTTPException: _refused}
    return Guard(Starlette(routes=routes, exception_handlers=handlers), token, port)


def serve(
    given: Sequence[Trained | str | Path],
    port: int = 0,
    *,
    open_browser: bool = True,
    tell: Callable[[str], None] = print,
) -> None:
    """Serve the page on 127.0.0.1 until interrupted.

    given: models, names or folders. port: 0 takes a free one. tell: is called with the address,
    token included, before it is opened in the browser.
    """
    models, token = Models(given), secrets.token_urlsafe(24)
    with socket.create_server(("127.0.0.1", port)) as listener:
        port = listener.getsockname()[1]
        address = f"http://127.0.0.1:{port}/?token={token}"
        config = uvicorn.Config(
            application(models, token, port),
            access_log=False,  # which would hold the token
            log_level="warning",
            lifespan="off",
            ws="none",
            http="h11",
            server_header=False,
            limit_concurrency=100,
            timeout_keep_alive=20,
            timeout_graceful_shutdown=2,
        )
        tell(address)
        if open_browser:
            webbrowser.open(address)
        uvicorn.Server(config).run(sockets=[listener])


async def _body(request: Request) -> Body:
    if request.headers.get("content-type", "").partition(";")[0] != "application/json":
        raise HTTPException(415, "send JSON.")
    found = bytearray()
    try:
        async with asyncio.timeout(ARRIVAL):
            async for part in request.stream():
                found += part
                if len(found) > LARGEST:
                    raise HTTPException(413, f"more than {LARGEST // 10**6} MB: send a part of it.")
    except TimeoutError:
        raise HTTPException(408, "the request did not arrive in time.") from None
    try:
        fields = json.loads(found)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise HTTPException(400, "the request is no JSON object.")
    return Body(fields)


async def _in_turn(
    turn: asyncio.Lock, request: Request, work: Callable[..., Any], *args: Any
) -> Any:
    """What a function returns, called in a thread when it is its turn."""
    try:
        async with asyncio.timeout(PATIENCE):
            await turn.acquire()
    except TimeoutError:
        raise HTTPException(503, "the server is busy; try again.") from None
    try:
        if await request.is_disconnected():  # nobody waits for it any more
            raise HTTPException(499, "nobody waits for it.")
        return await run_in_threadpool(work, *args)
    finally:
        turn.release()


async def _lines(
    turn: asyncio.Lock, request: Request, first: Any, steps: Iterator[Any]
) -> AsyncIterator[str]:
    """Each step of a search as a line of JSON; others have their turn in between."""
    end = time.monotonic() + LONGEST
    found = first
    try:
        while found is not None and time.monotonic() < end:
            yield json.dumps(found, allow_nan=False) + "\n"
            found = await _in_turn(turn, request, next, steps, None)
    except HTTPException as error:
        yield json.dumps({"error": error.detail}) + "\n"
    except Exception as error:
        yield json.dumps({"error": _reason(error)}) + "\n"


def _failed(error: Exception) -> JSONResponse:
    """A refusal in words; an error that is nobody's input is logged, too."""
    if isinstance(error, ValueError | ImportError | NotImplementedError):
        return JSONResponse({"error": _reason(error)}, 400)
    log.error("a request failed", exc_info=error)
    return JSONResponse({"error": _reason(error)}, 500)


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split()).encode("utf-8", "replace").decode()
    return text[:500] or type(error).__name__


def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": error.detail}, error.status_code)


def _page() -> tuple[str, str]:
    """The page and its content security policy, which allows this style and script alone."""
    folder, report = files(__package__), files("graphxai.tables.report")
    template, style = (
        (folder / name).read_text(encoding="utf-8") for name in ("page.html", "app.css")
    )
    script = "".join(
        (place / name).read_text(encoding="utf-8")
        for place, name in ((report, "draw.js"), (folder, "app.js"))
    )
    rest = "; img-src data:; connect-src 'self'; frame-ancestors 'none'"
    policy = security_policy(style, script, rest=f"{rest}; require-trusted-types-for 'script'")
    parts = {"STYLE": style, "SCRIPT": script}
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], template), policy
