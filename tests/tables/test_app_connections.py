"""Idle connections are closed, so that they cannot keep others out of the app."""

import base64
import json
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
from graphxai.tables.app.answers import OfferedModels
from toy import random_graphormer

LIMIT = 20
PATIENCE = 60  # seconds that a busy machine may take


@contextmanager
def served(application, port=0):
    """Run the server in a thread, and yield its port."""
    with socket.create_server(("127.0.0.1", port)) as listener:
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


def test_the_work_for_a_client_that_has_gone_is_stopped(monkeypatch):
    """A file of a million ends of records was once read to its end for nobody."""
    token = {"X-Graphxai-Token": "key", "Content-Type": "application/json"}
    content = base64.b64encode(b"$$$$\n" * 1_000_000).decode()
    read = json.dumps({"name": "a.sdf", "content": content}).encode()
    begun = threading.Event()
    rows_of = app_server.ANSWERS["read"]

    def reading(models, body):
        begun.set()
        return rows_of(models, body)

    monkeypatch.setitem(app_server.ANSWERS, "read", reading)
    monkeypatch.setattr(app_server, "PATIENCE", PATIENCE)
    models = OfferedModels([random_graphormer(num_layers=1)])
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with served(app_server.application(models, "key", port), port):
        home = f"http://127.0.0.1:{port}"
        with socket.create_connection(("127.0.0.1", port)) as connection:
            head = "".join(f"{name}: {value}\r\n" for name, value in token.items())
            head += f"Host: 127.0.0.1:{port}\r\nContent-Length: {len(read)}\r\n\r\n"
            connection.sendall(b"POST /api/read HTTP/1.1\r\n" + head.encode() + read)
            assert begun.wait(PATIENCE)
        used = time.process_time()
        asked = urllib.request.Request(f"{home}/api/about", b"{}", token)
        with urllib.request.urlopen(asked, timeout=PATIENCE) as response:
            assert response.status == 200
        assert time.process_time() - used < 2.5  # reading to the end takes more than four
