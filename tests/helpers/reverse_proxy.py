"""A reverse proxy that serves a page of this machine in a folder of its own, as nginx does."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

LARGEST_BODY = 1_000_000  # bytes of a request, as in nginx


@contextmanager
def reverse_proxy(folder: str) -> Iterator[tuple[str, list[int]]]:
    """Yield the address of a folder, and a list into which the port behind it is put.

    A request for what lies in the folder goes to that port, with the host that was asked and
    without the folder. Its answer comes back part by part.
    """
    behind: list[int] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._pass_on(b"")

        def do_POST(self) -> None:
            length = int(self.headers["Content-Length"])
            if length > LARGEST_BODY:
                self.send_error(413)
            else:
                self._pass_on(self.rfile.read(length))

        def _pass_on(self, body: bytes) -> None:
            connection = HTTPConnection("127.0.0.1", behind[0])
            path = "/" + self.path.removeprefix(folder)
            connection.request(self.command, path, body or None, dict(self.headers.items()))
            answer = connection.getresponse()
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in ("transfer-encoding", "connection", "content-length"):
                    self.send_header(name, value)
            self.end_headers()
            while part := answer.read1():
                self.wfile.write(part)
            connection.close()

        def log_message(self, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}{folder}", behind
        finally:
            server.shutdown()
            thread.join()
