"""HTTP connections with time limits, on top of uvicorn's protocol.

uvicorn closes connections that idle between requests, but waits for ever for the rest of a request.
"""

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from controlvae.lab.dashboard.guard import HEADERS

MAX_HEADER_BYTES = 1 << 16
_REQUEST_SECONDS = 10.0  # for a whole request, from its first byte
_MAX_CONNECTIONS = 1_000


class Connection(H11Protocol):
    """Connection that is closed unless each request is complete within ten seconds."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Start the time of the first request."""
        super().connection_made(transport)
        if len(self.connections) > _MAX_CONNECTIONS:
            transport.abort()
            return
        self._set_deadline(is_waiting=True)

    def data_received(self, data: bytes) -> None:
        """Read a part of a request."""
        try:
            super().data_received(data)
        except h11.LocalProtocolError:  # a malformed request after one that is being answered
            self.transport.abort()
        self._set_deadline(self.conn.their_state in (h11.IDLE, h11.SEND_BODY))

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the clock."""
        self._set_deadline(is_waiting=False)
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Refuse what is not HTTP, with the headers of every response."""
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.abort()
            return
        fields = {"content-type": "text/plain; charset=utf-8", "connection": "close", **HEADERS}
        headers = [(name.encode(), value.encode()) for name, value in fields.items()]
        for event in (
            h11.Response(status_code=400, headers=headers, reason=b"Bad Request"),
            h11.Data(data=msg.encode("ascii")),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _set_deadline(self, is_waiting: bool) -> None:
        """Set the time limit of a request that is incomplete, or clear that of a complete one."""
        if is_waiting and self._deadline is None:
            self._deadline = self.loop.call_later(_REQUEST_SECONDS, self.transport.abort)
        elif not is_waiting and self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
