"""A small HTTP client of the daemon: Unix socket or TCP, JSON in and out, errors as StokerError. Standard library only.

Where the daemon is: ``STOKER_URL`` (``http://host:port`` or ``https://``, with ``STOKER_TOKEN``) or the socket of the home.
Over TLS ``STOKER_CA`` says which daemon to trust: the file of an authority, or the fingerprint of the daemon's certificate.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import re
import socket
import ssl
import time
import urllib.parse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .errors import KINDS, StokerError, Unreachable, Untrusted, UsageError
from .home import Home

KEEP_ALIVE = 60  #: seconds for which the daemon keeps an idle connection open
ENV_CA = "STOKER_CA"
AUTHORITY = "ca.pem"  #: in HOME/tls: trusted besides the authorities of the host
PIN = "sha256:"  #: a fingerprint follows
_TLS_WITHIN = 2.0  #: seconds to wait for a listener to show that it speaks TLS
_NO_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG", "HTTP_REQUEST", "UNKNOWN_PROTOCOL")  #: of an answer


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


class _SecureConnection(http.client.HTTPSConnection):
    """A connection to a daemon whose certificate is signed by a trusted authority or has the known fingerprint."""

    def __init__(self, host: str, port: int, timeout: float, trusted: str, home: Home) -> None:
        self._pin = trusted.removeprefix(PIN).replace(":", "").lower() if trusted.startswith(PIN) else None
        super().__init__(host, port, timeout=timeout, context=_anybody() if self._pin else _authorities(trusted, home))
        if self._pin is not None and not re.fullmatch("[0-9a-f]{64}", self._pin):
            raise UsageError(f"{ENV_CA}: {trusted[:100]!a} is no fingerprint: {PIN} and 64 hexadecimal digits, as 'stoker tls' tells them")

    def connect(self) -> None:
        super().connect()
        shown = hashlib.sha256(self.sock.getpeercert(binary_form=True) or b"").hexdigest()
        if self._pin is not None and shown != self._pin:
            self.close()
            raise Untrusted(f"the daemon at {self.host}:{self.port} shows another certificate ({PIN}{shown}) than {ENV_CA} names")


def _anybody() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _authorities(file: str, home: Home) -> ssl.SSLContext:
    """The authorities of a file; '': those that this host trusts, and the one of the home."""
    own = home.tls / AUTHORITY
    try:
        context = ssl.create_default_context(cafile=file or None)
        if not file and own.exists():
            context.load_verify_locations(own)
    except (OSError, ValueError) as error:
        why = "it has no certificate; it must be a PEM file" if isinstance(error, ssl.SSLError) else getattr(error, "strerror", error)
        raise UsageError(f"{ENV_CA if file else 'tls'}: {file or own} cannot be used: {why}") from None
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # the file may hold the daemon's own certificate
    return context


class Client:
    """One connection to the daemon, kept open; not to be shared between threads."""

    def __init__(self, home: Home | None = None, url: str | None = None, token: str | None = None, timeout: float = 30.0):
        self.home = home or Home.default()
        self.url = os.environ.get("STOKER_URL") if url is None else url  #: empty: the socket, whatever STOKER_URL says
        self.token = token or os.environ.get("STOKER_TOKEN")
        self.timeout = timeout
        self._connection: http.client.HTTPConnection | None = None
        self._used_at = 0.0  #: monotonic time of the last answer

    def _connect(self) -> http.client.HTTPConnection:
        if time.monotonic() - self._used_at > KEEP_ALIVE / 2:
            self.close()  # the daemon may close it just now: of a POST sent then nothing tells whether it was carried out
        if self._connection is None:
            if self.url:
                where = urllib.parse.urlsplit(self.url)
                host = where.hostname or "localhost"
                if where.scheme == "https":
                    trusted = os.environ.get(ENV_CA, "").strip()
                    self._connection = _SecureConnection(host, where.port or 443, self.timeout, trusted, self.home)
                else:
                    self._connection = http.client.HTTPConnection(host, where.port or 80, timeout=self.timeout)
            else:
                self._connection = _UnixConnection(self.home.socket, self.timeout)
        return self._connection

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def request(
        self, method: str, path: str, body: bytes | None = None, query: Mapping[str, Any] | None = None, timeout: float | None = None
    ) -> http.client.HTTPResponse:
        """Send one request; if the daemon closed the idle connection, open it again once.

        Raises Unreachable when there is no answer, and the daemon's own error when it refuses.
        """
        if query:
            path += "?" + urllib.parse.urlencode({key: value for key, value in query.items() if value is not None}, doseq=True)
        headers = {"Content-Type": "application/json"} if body is not None else {}
        if self.token:
            if not (self.token.isascii() and self.token.isprintable()):
                raise UsageError(
                    "token: has a character that is in no token, such as a line break; give it as 'stoker token create' told it"
                )
            headers["Authorization"] = f"Bearer {self.token}"
        connection = self._connect()
        reused = connection.sock is not None
        while True:
            connection.timeout = timeout or self.timeout
            if connection.sock is not None:
                connection.sock.settimeout(connection.timeout)
            try:
                connection.request(method, path, body, headers)
                response = connection.getresponse()
                self._used_at = time.monotonic()
                break
            except (ConnectionError, FileNotFoundError, http.client.HTTPException, TimeoutError, OSError) as error:
                self.close()
                # A request is sent again only where that is safe: a GET, or a connection gone before it was used.
                if reused and (method == "GET" or isinstance(error, (http.client.CannotSendRequest, BrokenPipeError))):
                    reused, connection = False, self._connect()
                    continue
                if (wrong := self._speaks_otherwise(error)) is not None:
                    raise Untrusted(wrong) from None
                nobody = Unreachable(self._nobody(error))
                nobody.sent = not isinstance(error, ConnectionRefusedError | FileNotFoundError | socket.gaierror)
                raise nobody from None
        if response.status >= 400:
            raise self._error(response.status, self._read(response))
        return response

    def _read(self, response: http.client.HTTPResponse) -> bytes:
        """The body of an answer; if the daemon dies between head and body it has not answered."""
        try:
            if response.length is None and not response.chunked:  # the head was cut off before the length
                raise http.client.IncompleteRead(b"")
            return response.read()
        except (http.client.HTTPException, OSError) as error:
            self.close()
            raise Unreachable(self._nobody(error)) from None

    def fetch(
        self, method: str, path: str, body: bytes | None = None, query: Mapping[str, Any] | None = None, timeout: float | None = None
    ) -> bytes:
        """`request`, with the whole answer read."""
        return self._read(self.request(method, path, body, query, timeout))

    def _speaks_otherwise(self, error: Exception) -> str | None:
        """Why the answering process is not understood (TLS), None: nothing answers."""
        url, where = self.url or "", urllib.parse.urlsplit(self.url or "")
        if isinstance(error, ssl.SSLCertVerificationError):
            remedy = f"{ENV_CA} names the file of the authority, or the fingerprint, that 'stoker tls' tells on its host"
            return f"the certificate of the daemon at {url} is not trusted: {error.verify_message.rstrip('.')}; {remedy}"
        if isinstance(error, ssl.SSLError) and error.reason in _NO_TLS:
            return f"the daemon at {url} speaks no TLS: say http://{where.netloc}, or start it with 'stoker up --tcp … --tls'"
        if where.scheme == "http" and isinstance(error, ConnectionResetError | http.client.BadStatusLine) and self._speaks_tls():
            return f"the daemon at {url} speaks TLS: say https://{where.netloc}"
        return None

    def _speaks_tls(self) -> bool:
        where = urllib.parse.urlsplit(self.url or "")
        try:
            with socket.create_connection((where.hostname or "localhost", where.port or 80), _TLS_WITHIN) as plain:
                _anybody().wrap_socket(plain).close()
        except OSError:
            return False
        return True

    def _nobody(self, error: Exception) -> str:
        where = self.url or str(self.home.socket)
        if isinstance(error, TimeoutError):
            return f"the daemon at {where} did not answer in time; look at it with 'stoker doctor'"
        died = not self.url and isinstance(error, ConnectionRefusedError)  # it has left its socket
        how = "; where 'stoker up' runs, wait some seconds for the next one, else" if died else ";"
        return f"no daemon answers at {where}{how} start it with 'stoker up --detach' ({error.__class__.__name__})"

    @staticmethod
    def _error(status: int, body: bytes) -> StokerError:
        try:
            said = json.loads(body)["error"]
            return KINDS.get(said["code"], StokerError)(said["message"])
        except (ValueError, KeyError, TypeError):
            return StokerError(f"the daemon answered {status}: {body[:200]!r}")

    def get(self, path: str, timeout: float | None = None, **query: Any) -> Any:
        return json.loads(self.fetch("GET", path, query=query, timeout=timeout))

    def post(self, path: str, message: Any = None, timeout: float | None = None) -> Any:
        return json.loads(self.fetch("POST", path, json.dumps(message).encode(), timeout=timeout))

    def post_raw(self, path: str, body: bytes, timeout: float | None = None) -> bytes:
        """Post an encoded message, for callers that encode with msgspec."""
        return self.fetch("POST", path, body, timeout=timeout)

    def post_raw_whole(self, path: str, body: bytes, timeout: float | None = None) -> tuple[bytes, bool]:
        """`post_raw`, and whether the answer is whole, not cut at a limit of rows."""
        response = self.request("POST", path, body, timeout=timeout)
        return self._read(response), response.getheader("X-Stoker-Truncated") != "true"
