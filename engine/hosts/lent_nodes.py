"""Common parts of runners that an engine starts: the daemon's address, and a runner's token, in a private file."""

from __future__ import annotations

import os
from pathlib import Path

from ..client import AUTHORITY, ENV_CA, PIN, Client
from ..errors import Conflict, UsageError
from ..home import Home
from ..protocol import NODE, NODE_FORM


def require_pool(name: str) -> None:
    if not NODE.fullmatch(name):
        raise UsageError(f"--pool: {name[:60]!a} is no name: {NODE_FORM}")


def require_url(url: str | None) -> str:
    if not url:
        raise UsageError("--url: runners of other hosts reach the daemon by TCP: name it as 'stoker --url http(s)://HOST:PORT runner …'")
    return url


def token_for_runners(client: Client, file: str | None) -> str:
    """The token of a file, or of STOKER_TOKEN. UsageError if it is no runner's: an admin's would give every host all rights."""
    try:
        token = Path(file).read_text().strip() if file else os.environ.get("STOKER_TOKEN", "").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise UsageError(f"--token-file: {file}: cannot be read ({why})") from None
    if not (token and token.isascii() and token.isprintable()):
        where = f"--token-file: {file} holds no token" if file else "runners need a token"
        raise UsageError(f"{where}: make one with 'stoker token create --role runner NAME', then give it as STOKER_TOKEN or --token-file")
    client.token = token
    role = client.get("/v1/status").get("role")
    if role != "runner":
        raise UsageError(f"the token has role {role}, and every host reads it: make one with 'stoker token create --role runner NAME'")
    return token


def trusted_by(client: Client) -> str:
    """The trust of runners over TLS: a fingerprint, the text of an authority's file, or '': their hosts' own."""
    if not (client.url or "").startswith("https:"):
        return ""
    if pin := pinned():
        return pin
    given = os.environ.get(ENV_CA, "").strip()
    own = client.home.tls / AUTHORITY
    return (Path(given) if given else own).read_text() if given or own.exists() else ""  # it was read when the token was checked


def pinned() -> str:
    """The fingerprint trusted here; '': an authority is trusted."""
    given = os.environ.get(ENV_CA, "").strip()
    return given if given.startswith(PIN) else ""


def trust(home: Home, trusted: str) -> dict[str, str]:
    """Give the runners of a home the trust of `trusted_by`; returns additions to their environment."""
    if trusted.startswith(PIN):
        return {ENV_CA: trusted}
    if trusted:
        keep_secret(home.tls / AUTHORITY, trusted)
    return {}


def keep_secret(file: Path, text: str) -> None:
    """Write a private file; Conflict if that is impossible."""
    fresh = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        with open(descriptor, "w") as kept:
            kept.write(f"{text}\n")
        fresh.replace(file)
    except OSError as error:
        raise Conflict(f"{file}: it cannot be kept there ({error.strerror}); choose another --dir") from None
