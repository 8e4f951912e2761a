"""Passes requests that come through the daemon from other hosts to servers of this node."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from pathlib import Path

import msgspec

from ...engine.client import Client
from ...engine.errors import LimitExceeded, StokerError, Unreachable
from ...engine.protocol import ASKED, Asked, AskRequest
from ..lease.rundir import RunDir
from ..share.inference_client import InferenceClient

log = logging.getLogger("stoker.runner")

_TIMEOUT = 30.0  #: seconds
_RETRY_SECONDS = 0.5  #: seconds until an answer that was not delivered is sent again
_LONGEST = 64 << 20  #: bytes that the daemon takes at once


class RequestPasser:
    """Each message has a thread of its own, as a server may be slow; the daemon has no more than some dozens under way."""

    def __init__(self, client: Client, home: Path, node: str, session: int) -> None:
        self._client, self._home, self._node, self._session = client, home, node, session
        self._sending = threading.Lock()

    def want(self, request: AskRequest) -> None:
        threading.Thread(target=self._pass, args=(request,), name=f"ask-{request.number}", daemon=True).start()

    def _pass(self, request: AskRequest) -> None:
        try:
            message = self._encoded(self._asked(request))
            until = time.monotonic() + request.timeout
            while not self._sent(message, until):
                time.sleep(_RETRY_SECONDS)
        except StokerError as error:  # the client gets an error, and may ask again
            log.warning("an answer of %s was not sent: %s", request.name, error)
        except Exception:
            log.exception("an answer of %s was not sent", request.name)

    def _sent(self, message: bytes, until: float) -> bool:
        """Whether the daemon has the answer; it takes only the first copy."""
        try:
            with self._sending:
                self._client.post_raw(ASKED, message, timeout=_TIMEOUT)
        except Unreachable:
            if time.monotonic() > until:
                raise
            return False
        return True

    def _encoded(self, asked: Asked) -> bytes:
        """The message to send: the answer, or why it cannot be sent."""
        try:
            message = msgspec.json.encode(asked)
            msgspec.json.decode(message)
            wrong = f"larger than {_LONGEST >> 20} MiB: ask less at once" if len(message) > _LONGEST else ""
        except (ValueError, TypeError, OverflowError, RecursionError) as error:
            wrong = f"no JSON: {error}"
        if wrong:
            return msgspec.json.encode(msgspec.structs.replace(asked, answers=[], failed="refused", error=f"the answer is {wrong}"))
        return message

    def _asked(self, request: AskRequest) -> Asked:
        found = Asked(node=self._node, session=self._session, number=request.number)
        try:
            run_dir = RunDir(self._home, request.job, request.lease).path
            with contextlib.closing(InferenceClient(run_dir, request.name, request.timeout)) as client:
                return msgspec.structs.replace(found, answers=client.ask(request.requests))
        except StokerError as error:
            kind = "busy" if isinstance(error, LimitExceeded) else "unreachable" if isinstance(error, Unreachable) else "refused"
            return msgspec.structs.replace(found, failed=kind, error=str(error))
        except Exception as error:
            log.exception("a request to %s was not handed on", request.name)
            return msgspec.structs.replace(found, failed="unreachable", error=f"{request.name} was not asked: {error}")
