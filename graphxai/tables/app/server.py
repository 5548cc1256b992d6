"""Serve the page, one computation at a time, within limits of size and time.

A request is a POST of JSON to /api/NAME, with the token in a header. A search answers line by line.
The work of a request stops when its client has gone, or when it has taken too long.
"""

import asyncio
import ctypes
import html
import json
import logging
import secrets
import socket
import sys
import tempfile
import threading
import time
import webbrowser
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from graphxai.runtime.extras import missing_extra

try:
    import anyio
    import uvicorn
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.requests import Request
    from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
    from starlette.routing import Route
    from uvicorn.protocols.http.h11_impl import H11Protocol
except ImportError:
    raise missing_extra("the app needs", "Starlette and uvicorn", "app") from None

from graphxai.explanation.compute.models import Model
from graphxai.explanation.result import security_policy

from .answers import (
    ANSWERS,
    EXPECTED,
    LARGEST,
    LARGEST_FILE,
    LONGEST,
    SEARCH,
    Body,
    OfferedModels,
    reason,
    steps_of,
)
from .guard import Guard, PublicAddress
from .page import EDITOR, STYLE, filled, text_of, view_script

ARRIVAL = 10.0  # how long a request may take to arrive, in seconds
PATIENCE = 30.0  # how long a request waits for its turn, in seconds
GLANCE = 0.25  # how often a running request looks whether its client is still there, in seconds
LOGGER = logging.getLogger(__name__)


def application(
    models: OfferedModels, token: str, port: int, public: PublicAddress | None = None
) -> Guard:
    """Return the page and the answers to its requests as an ASGI application.

    `public` is the address at which a proxy serves the page, or None.
    """
    turn = asyncio.Lock()  # molecules are explained one at a time, in the order requested

    async def page(request: Request) -> Response:
        text, policy = _page(port, public)
        return HTMLResponse(text, headers={"Content-Security-Policy": policy})

    async def editor(request: Request) -> Response:
        return Response(text_of(EDITOR), media_type="text/javascript")

    async def answer(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in (*ANSWERS, SEARCH):
            raise HTTPException(404)
        try:
            most = 2 * LARGEST_FILE if name == "read" else LARGEST
            steps = steps_of(models, name, await _body(request, most))
            first = await _in_turn(turn, request, next, steps)
        except HTTPException:
            raise
        except Exception as error:  # RDKit raises errors of any type
            return _failed(error)
        if name != SEARCH:
            return JSONResponse(first)
        lines = lines_of(turn, request, first, steps)
        return StreamingResponse(lines, media_type="application/x-ndjson")

    routes = [
        Route("/", page),
        Route(f"/{EDITOR}", editor),
        Route("/api/{name}", answer, methods=["POST"]),
    ]
    handlers: Any = {HTTPException: _refused}
    return Guard(Starlette(routes=routes, exception_handlers=handlers), token, port, public)


def serve(
    models: "Sequence[Model | str | Path]",
    port: int = 0,
    *,
    open_browser: bool = True,
    public: str | None = None,
    log: Callable[[str], None] = print,
) -> None:
    """Serve the page on 127.0.0.1 until interrupted.

    Args:
        port: the port, or 0 for any free port.
        public: the address at which a proxy on this machine serves the page, or None. Then requests
            to that address and from its pages are answered, too.
        log: is called with the address, which includes the token, before the browser opens it.
    """
    proxied = None if public is None else PublicAddress.of(public)
    offered, token = OfferedModels(models), secrets.token_urlsafe(24)
    with socket.create_server(("127.0.0.1", port)) as listener:
        port = listener.getsockname()[1]
        place = f"http://127.0.0.1:{port}/" if proxied is None else proxied.page
        address = f"{place}?token={token}"
        config = uvicorn.Config(
            application(offered, token, port, proxied),
            access_log=False,  # which would hold the token
            log_level="warning",
            lifespan="off",
            ws="none",
            proxy_headers=False,  # nothing here depends on what a proxy says of its clients
            http=TimedConnection,
            server_header=False,
            limit_concurrency=100,
            timeout_keep_alive=20,
            timeout_graceful_shutdown=2,
        )
        log(address)
        with opened_in_browser(address) if open_browser else nullcontext():
            uvicorn.Server(config).run(sockets=[listener])


async def _body(request: Request, most: int = LARGEST) -> Body:
    if request.headers.get("content-type", "").partition(";")[0] != "application/json":
        raise HTTPException(415, "send JSON.")
    content = bytearray()
    try:
        async with asyncio.timeout(ARRIVAL):
            async for part in request.stream():
                content += part
                if len(content) > most:
                    raise HTTPException(413, f"more than {most // 10**6} MB: send less.")
    except TimeoutError:
        raise HTTPException(408, "the request did not arrive in time.") from None
    try:
        fields = json.loads(content)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise HTTPException(400, "the request is not a JSON object.")
    return Body(fields)


async def _in_turn(
    turn: asyncio.Lock, request: Request, work: Callable[..., Any], *args: Any
) -> Any:
    """Call a function in a thread when it is its turn, and return its result."""
    try:
        async with asyncio.timeout(PATIENCE):
            await turn.acquire()
    except TimeoutError:
        raise HTTPException(503, "the server is busy; try again.") from None
    try:
        if await request.is_disconnected():  # nobody is waiting any more
            raise HTTPException(499, "the client has gone.")
        with anyio.CancelScope(shield=True):  # nobody has the next turn before the work has ended
            return await _finished(request, _Work(work, *args))
    finally:
        turn.release()


class _Stopped(SystemExit):
    """Ends the work of a request. No row's error is of this kind, and threads end by it quietly."""


class _Work:
    """A function that runs in a thread of its own, and can be stopped between steps of Python."""

    def __init__(self, work: Callable[..., Any], *args: Any) -> None:
        self.result: Future[Any] = Future()
        self.thread = threading.Thread(target=self._run, args=(work, *args))
        self.thread.start()

    def _run(self, work: Callable[..., Any], *args: Any) -> None:
        with suppress(_Stopped):  # then there is no result
            try:
                self.result.set_result(work(*args))
            except Exception as error:
                self.result.set_exception(error)

    def stop(self) -> None:
        """Raise `_Stopped` in the thread, but not within an import, as half a module would stay."""
        number = self.thread.ident or 0
        frame = sys._current_frames().get(number)
        while frame is not None:
            if frame.f_code.co_filename.startswith("<frozen importlib"):
                return
            frame = frame.f_back
        raised = ctypes.py_object(_Stopped)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(number), raised)


async def _finished(request: Request, work: _Work) -> Any:
    """Return the result of work, or stop it if the client has gone or it takes too long."""
    end, loop, done = time.monotonic() + LONGEST, asyncio.get_running_loop(), asyncio.Event()
    work.result.add_done_callback(lambda _: loop.call_soon_threadsafe(done.set))
    refused: HTTPException | None = None
    try:
        while work.thread.is_alive() and not work.result.done():
            with anyio.move_on_after(GLANCE):
                await done.wait()
                break
            if refused is None and await request.is_disconnected():
                refused = HTTPException(499, "the client has gone.")
            elif refused is None and time.monotonic() > end:
                refused = HTTPException(503, f"more than {LONGEST:.0f} s of work: ask for less.")
            if refused is not None:
                work.stop()
    finally:
        if not work.result.done():
            work.stop()
    if refused is not None:
        raise refused
    return work.result.result(timeout=0)


async def lines_of(
    turn: asyncio.Lock, request: Request, first: Any, steps: Iterator[Any]
) -> AsyncIterator[str]:
    """Yield each step of a search as a line of JSON, and let other requests in between."""
    step = first
    try:
        while step is not None:
            yield json.dumps(step, allow_nan=False) + "\n"
            step = await _in_turn(turn, request, next, steps, None)
    except HTTPException as error:
        yield json.dumps({"error": error.detail}) + "\n"
    except Exception as error:
        yield json.dumps({"error": reason(error)}) + "\n"


def _failed(error: Exception) -> JSONResponse:
    """Turn an error into an answer as text, and log it if no input caused it."""
    if isinstance(error, EXPECTED):
        return JSONResponse({"error": reason(error)}, 400)
    LOGGER.error("a request failed", exc_info=error)
    return JSONResponse({"error": reason(error)}, 500)


def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": error.detail}, error.status_code)


def _page(port: int, public: PublicAddress | None) -> tuple[str, str]:
    """Return the page and its content security policy.

    The policy only allows this style, this script and, by its address, the editor of molecules.
    """
    script = text_of("draw.js") + text_of("page.js") + view_script()
    rest = "; img-src data:; connect-src 'self'; frame-ancestors 'none'"
    places = [f"http://127.0.0.1:{port}/", f"http://localhost:{port}/"]
    places += [] if public is None else [public.page]
    policy = security_policy(
        STYLE,
        script,
        rest=f"{rest}; require-trusted-types-for 'script'",
        loaded=[quote(place, safe=":/%") + EDITOR for place in places],
    )
    return filled("page.html", STYLE=STYLE, VIEW=text_of("view.html"), SCRIPT=script), policy


class TimedConnection(H11Protocol):
    """HTTP on a connection that is closed if the header of a request does not arrive in time.

    By itself, uvicorn waits forever for the first request, and for the rest of one that has begun.
    Waiting connections count towards its limit, after which it refuses all others.
    """

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Start waiting for the first request."""
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Wait for the rest of a header, or stop waiting once it has arrived."""
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_waiting()
        elif self._deadline is None:
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting for a request."""
        self._stop_waiting()
        super().connection_lost(exc)

    def _wait(self) -> None:
        self._deadline = self.loop.call_later(ARRIVAL, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


@contextmanager
def opened_in_browser(address: str) -> Iterator[None]:
    """Open an address in the browser without showing its key to other users of the machine.

    Everybody can read the command lines of all processes, and so the address that a browser is
    started with. Instead, the browser opens a file that leads on to the address and that only its
    owner can read. The file lasts as long as the block.
    """
    link = html.escape(address)
    # the folder is closed to others from the start
    with tempfile.TemporaryDirectory(prefix="graphxai-", ignore_cleanup_errors=True) as folder:
        page = Path(folder) / "open.html"
        page.write_text(
            f'<!doctype html>\n<meta charset="utf-8">\n<title>graphxai</title>\n'
            f'<meta http-equiv="refresh" content="0; url={link}">\n<a href="{link}">graphxai</a>\n',
            encoding="utf-8",
        )
        webbrowser.open(page.as_uri())
        yield
