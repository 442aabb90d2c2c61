"""ASGI middleware around the whole dashboard: access, limits, and headers of every response."""

import html
import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from controlvae.lab.dashboard.access import Access, AccessError

MAX_BODY_BYTES = 1_000  # of a request to move a target
MAX_STREAMS = 256
MAX_STREAMS_PER_CLIENT = 64
_MAX_REQUESTS = 256  # at a time, without streams
# Everything is loaded from this server, and no other page can embed this one.
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' blob: data:; connect-src 'self'; font-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}


class Guard:
    """Middleware that refuses foreign requests before the application sees them.

    Args:
        app: The application, which may answer with errors of its own.
        access: Rules of the server.
    """

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self.app, self.access = app, access
        self.streams: Counter[str] = Counter()  # open ones, by client
        self.requests = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                kept = [pair for pair in message["headers"] if pair[0].decode() not in HEADERS]
                added = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message = {**message, "headers": [*kept, *added]}
            await send(message)

        try:
            is_answered = await self._let_in(scope, send_with_headers)
            if not is_answered:
                with self._count(scope):
                    await self.app(scope, receive, send_with_headers)
        except AccessError as error:
            body = json.dumps({"error": error.message}).encode()
            more = {"retry-after": "5"} if error.status == 503 else {}
            await _respond(send_with_headers, error.status, "application/json", body, more)

    async def _let_in(self, scope: Scope, send: Send) -> bool:
        """Check a request. Return True if it was a token, which is exchanged for a cookie."""
        headers = read_headers(scope)
        is_page = scope["path"] == "/" and scope["method"] in ("GET", "HEAD")
        address = (scope.get("server") or ("", 0))[0]
        self.access.check_source(headers, str(address), is_page)
        length = headers.get("content-length", ["0"])[-1]
        if not length.isdecimal() or len(length) > 18 or int(length) > MAX_BODY_BYTES:
            raise AccessError(413, f"expected at most {MAX_BODY_BYTES:,} bytes")
        try:
            query = scope["query_string"].decode("ascii") if is_page else ""
            exchange = self.access.exchange_token(query)
        except ValueError:
            raise AccessError(400, "the address has too many parameters") from None
        if exchange is None:
            self.access.check_token(headers)
            return False
        await _redirect(send, *exchange, headers.get("sec-fetch-site", ["none"])[-1])
        return True

    @contextmanager
    def _count(self, scope: Scope) -> Iterator[None]:
        """Count a request as long as it is answered. Raise AccessError if there are too many."""
        if scope["path"] != "/events":
            if self.requests >= _MAX_REQUESTS:
                raise AccessError(503, "too many requests at a time; try again")
            self.requests += 1
            try:
                yield
            finally:
                self.requests -= 1
            return
        client = str((scope.get("client") or ("", 0))[0])
        if self.streams[client] >= MAX_STREAMS_PER_CLIENT:
            raise AccessError(
                503, f"{MAX_STREAMS_PER_CLIENT} pages are open on this machine; close some"
            )
        if self.streams.total() >= MAX_STREAMS:
            raise AccessError(503, f"{MAX_STREAMS} pages are open; close some")
        self.streams[client] += 1
        try:
            yield
        finally:
            self.streams[client] -= 1
            self.streams += Counter()  # forgets clients without streams


def read_headers(scope: Scope) -> dict[str, list[str]]:
    """Return the headers of a request by their names in lower case."""
    headers: dict[str, list[str]] = {}
    for name, value in scope["headers"]:
        headers.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))
    return headers


async def _redirect(send: Send, query: str, cookie: str, site: str) -> None:
    """Lead to the page without the token.

    A browser that followed a link of another site sends no strict cookie after a redirect, so it
    gets a page that leads on.
    """
    target = f"/?{query}" if query else "/"
    headers = {"set-cookie": cookie}
    if site in ("none", "same-origin"):
        await _respond(send, 303, "text/plain", b"", {**headers, "location": target})
        return
    page = f'<!doctype html><meta http-equiv="refresh" content="0;url={html.escape(target)}">'
    await _respond(send, 200, "text/html; charset=utf-8", page.encode(), headers)


async def _respond(
    send: Send, status: int, kind: str, body: bytes, more: dict[str, Any] | None = None
) -> None:
    headers = {"content-type": kind, "content-length": str(len(body)), **(more or {})}
    raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": body})
