"""Accept requests only from the page that was opened with the token, on this machine.

The web page of somebody else may send requests to 127.0.0.1, and after DNS rebinding it may even
read the answers. So the host must be ours. If a request names an origin, this must be ours too.
Each request needs the token.

Behind a proxy, such as JupyterHub's, the page has an address of its own. Its host is then ours as
well, and its origin is the only one from which requests to it may come.
"""

from dataclasses import dataclass
from secrets import compare_digest
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders, QueryParams
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

TOKEN = "x-graphxai-token"
OPENED = ("/", "/openchemlib.js")  # what a browser loads by an address, which holds the token
HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


@dataclass(frozen=True)
class PublicAddress:
    """The address at which a proxy serves the page.

    Attributes:
        page: the address of the page, which ends in "/".
        origin: its scheme, host and port, as browsers write an origin.
        host: its host, with the port unless that is the usual one.
    """

    page: str
    origin: str
    host: str

    @classmethod
    def of(cls, address: str) -> "PublicAddress":
        """Read an address such as https://hub.example/user/ann/proxy/8765/.

        Raises ValueError if it is no address of a page.
        """
        wrong = f"{address!r} is not the address of a page, such as https://hub.example/graphxai/."
        try:
            parts = urlsplit(address)
            host, port = parts.hostname, parts.port
        except ValueError:
            raise ValueError(wrong) from None
        plain = address.isascii() and address.isprintable() and not parts.query + parts.fragment
        if parts.scheme not in ("http", "https") or not host or parts.username or not plain:
            raise ValueError(wrong)
        if port is not None and port != {"http": 80, "https": 443}[parts.scheme]:
            host = f"{host}:{port}"
        origin = f"{parts.scheme}://{host}"
        return cls(f"{origin}{parts.path.rstrip('/')}/", origin, host)


class Guard:
    """A layer that lets a request through to an application, or refuses it with status 403."""

    def __init__(
        self, app: ASGIApp, token: str, port: int, public: PublicAddress | None = None
    ) -> None:
        self.app, self.token = app, token.encode()
        local = [f"127.0.0.1:{port}", f"localhost:{port}"]
        # for each host, the origins from which requests to it may come
        self.origins = {host: {f"http://{host}"} for host in local}
        if public is not None:
            # proxies ask by the name of the page, or by that of this machine
            for host in (public.host, *local):
                self.origins.setdefault(host, set()).add(public.origin)

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
        headers = Headers(scope=scope)
        hosts = headers.getlist("host")
        if len(hosts) != 1 or hosts[0] not in self.origins:
            return "this server answers to 127.0.0.1 only; behind a proxy, use --behind-proxy."
        page = scope["path"] in OPENED
        if any(origin not in self.origins[hosts[0]] for origin in headers.getlist("origin")):
            return "requests of other pages are refused."
        if not page and headers.get("sec-fetch-site", "same-origin") != "same-origin":
            return "requests of other pages are refused."
        token = QueryParams(scope["query_string"]).get("token") if page else headers.get(TOKEN)
        if not compare_digest((token or "").encode("utf-8", "replace"), self.token):
            return (
                "the token is missing or from an earlier start; open the address that was printed."
            )
        return None
