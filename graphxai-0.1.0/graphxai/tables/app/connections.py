"""Require requests to arrive in time, so that idle connections do not fill the server."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

ARRIVAL = 10.0  # how long a request may take to arrive, in seconds


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
