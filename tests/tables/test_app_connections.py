"""Idle connections are closed, so that they cannot keep others out of the app."""

import socket
import threading
import time
import urllib.error
import urllib.request
from contextlib import ExitStack, contextmanager

import pytest

pytest.importorskip("uvicorn", reason="the extra `app` is not installed")

import uvicorn

from graphxai.tables.app import server as app_server

LIMIT = 20
PATIENCE = 60  # seconds that a busy machine may take


@contextmanager
def served(application):
    """Run the server in a thread, and yield its port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(
            application, log_level="error", lifespan="off", limit_concurrency=LIMIT,
            timeout_keep_alive=20, http=app_server.TimedConnection,
        )  # fmt: skip
        running = uvicorn.Server(config)
        thread = threading.Thread(target=running.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            running.should_exit = True
            thread.join()


async def slow(scope, receive, send):
    """Answer after three times the time that a request has to arrive."""
    import asyncio

    await asyncio.sleep(3 * app_server.ARRIVAL if scope["path"] == "/slow" else 0)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"done"})


def comes(port, status):
    """Ask again until an answer has this status, and return whether one has."""
    end = time.monotonic() + PATIENCE
    while (answered := answer(port)) != status and time.monotonic() < end:
        time.sleep(0.02)
    return answered == status


def answer(port, path="/"):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=PATIENCE) as response:
            return response.status
    except urllib.error.HTTPError as error:
        return error.code


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHost: 127."], ids=["idle", "half"])
def test_connections_without_a_request_are_closed_and_others_get_in_again(sent, monkeypatch):
    monkeypatch.setattr(app_server, "ARRIVAL", 1.5)
    with served(slow) as port, ExitStack() as stack:
        assert answer(port) == 200
        idle = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            for _ in range(LIMIT + 5)
        ]
        for connection in idle:
            connection.sendall(sent)
        assert comes(port, 503)  # too many connections
        assert comes(port, 200)
        for connection in idle:
            connection.settimeout(PATIENCE)
            assert connection.recv(1) == b""  # closed by the server


def test_a_second_request_must_arrive_in_time_too_and_a_long_answer_is_waited_for(monkeypatch):
    monkeypatch.setattr(app_server, "ARRIVAL", 1.0)
    with served(slow) as port, socket.create_connection(("127.0.0.1", port)) as connection:
        connection.settimeout(PATIENCE)
        for path in (b"/", b"/slow"):
            connection.sendall(b"GET " + path + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            received = b""
            while b"done" not in received:
                received += (chunk := connection.recv(1000))
                assert chunk, "the server closed the connection"
        connection.sendall(b"GET / HT")
        while received := connection.recv(1000):
            assert b"done" not in received
