"""Accept requests only from the page that was opened with the token, on this machine.

The web page of somebody else may send requests to 127.0.0.1, and after DNS rebinding it may even
read the answers. So the host must be ours. If a request names an origin, this must be ours too.
Each request needs the token.
"""

from secrets import compare_digest

from starlette.datastructures import Headers, MutableHeaders, QueryParams
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

TOKEN = "x-graphxai-token"
HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class Guard:
    """A layer that lets a request through to an application, or refuses it with status 403."""

    def __init__(self, app: ASGIApp, token: str, port: int) -> None:
        self.app, self.token = app, token.encode()
        self.hosts = {f"127.0.0.1:{port}", f"localhost:{port}"}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request. Web sockets are not supported."""
        if scope["type"] == "lifespan":
            return await self.app(scope, receive, send)
        if scope["type"] != "http":
            return

        async def sealed(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        reason = self._refusal(scope)
        app = self.app if reason is None else JSONResponse({"error": reason}, 403)
        await app(scope, receive, sealed)

    def _refusal(self, scope: Scope) -> str | None:
        """Return the reason why a request is refused, or None if it is not."""
        headers = Headers(scope=scope)
        hosts = headers.getlist("host")
        if len(hosts) != 1 or hosts[0] not in self.hosts:
            return "this server answers to 127.0.0.1 only."
        page = scope["path"] == "/"
        if any(origin != f"http://{hosts[0]}" for origin in headers.getlist("origin")):
            return "requests of other pages are refused."
        if not page and headers.get("sec-fetch-site", "same-origin") != "same-origin":
            return "requests of other pages are refused."
        token = QueryParams(scope["query_string"]).get("token") if page else headers.get(TOKEN)
        if not compare_digest((token or "").encode("utf-8", "replace"), self.token):
            return (
                "the token is missing or from an earlier start; open the address that was printed."
            )
        return None
