"""Answers of any size."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

SLICE = 1 << 18  #: bytes that are sent at a time


class Encoded(Response):
    """An encoded answer, by default JSON. It is sent in slices, each after the peer has taken the one before.

    Sent as a whole, each connection would hold a copy of its unread part. ``sent`` is called after the last slice.
    """

    def __init__(
        self,
        body: bytes,
        media: str = "application/json",
        headers: Mapping[str, str] | None = None,
        sent: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(body, headers=headers, media_type=media)
        self._sent = sent

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = memoryview(self.body)
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            for start in range(0, max(len(body), 1), SLICE):
                part = bytes(body[start : start + SLICE])
                await send({"type": "http.response.body", "body": part, "more_body": start + SLICE < len(body)})
        finally:
            self._sent()
