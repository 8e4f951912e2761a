"""A client of a server's socket, for one request after the other. Standard library only."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...engine.errors import LimitExceeded, StokerError, Unreachable, UsageError
from ...engine.protocol import LONGEST_REQUEST, SERVER_SOCKET


class InferenceClient:
    """A connection to the server whose lease has the run directory; ``name``: of its job, for messages."""

    def __init__(self, run_dir: Path, name: str, timeout: float = 60.0) -> None:
        self.name, self.timeout = name, timeout
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(timeout)
        try:
            there = os.open(run_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                self._socket.connect(f"/proc/self/fd/{there}/{SERVER_SOCKET}")
            finally:
                os.close(there)
        except OSError as error:
            self._socket.close()
            if isinstance(error, BlockingIOError):
                raise LimitExceeded(f"{name} has more clients waiting than it takes: ask again later") from None
            raise Unreachable(f"{name} does not serve yet, or no more: 'stoker explain {name}' says why ({error.strerror})") from None
        self._answers = self._socket.makefile("rb")

    def ask(self, requests: Sequence[Any]) -> list[dict[str, Any]]:
        """For each request ``{"answer": …}`` or ``{"error": "…"}``. Raises LimitExceeded if the server has no room for them now."""
        line = json.dumps({"requests": list(requests)}).encode() + b"\n"
        if len(line) > LONGEST_REQUEST:
            raise UsageError(f"the request is larger than {LONGEST_REQUEST >> 20} MiB: send less at once")
        try:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it may have sent the reason before it closed
                self._socket.sendall(line)
            said = self._answers.readline()
        except TimeoutError:
            raise LimitExceeded(f"{self.name} has not answered within {self.timeout:g} s: wait longer, or look at its log") from None
        except OSError:
            said = b""
        if not said.endswith(b"\n"):
            raise Unreachable(
                f"{self.name} ended before it answered: 'stoker explain {self.name}' says why; ask again when it serves again"
            )
        answer = json.loads(said)
        if "error" in answer:
            raise (LimitExceeded if answer.get("busy") else StokerError)(f"{self.name}: {answer['error']}")
        answers: list[dict[str, Any]] = answer["answers"]
        return answers

    def close(self) -> None:
        self._answers.close()
        self._socket.close()
