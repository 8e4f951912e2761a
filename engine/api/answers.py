"""JSON answers of any size."""

from __future__ import annotations

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

SLICE = 1 << 18  #: bytes that are sent at a time


class Encoded(Response):
    """JSON that is encoded already. It is sent in slices, each once the peer has taken the one before.

    Given as a whole, each connection would hold a copy of what its peer has yet to read.
    """

    media_type = "application/json"

    def __init__(self, body: bytes, status_code: int = 200) -> None:
        super().__init__(body, status_code=status_code)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = memoryview(self.body)
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        for start in range(0, max(len(body), 1), SLICE):
            part = bytes(body[start : start + SLICE])
            await send({"type": "http.response.body", "body": part, "more_body": start + SLICE < len(body)})
