"""Roles and tokens. Only its owner can use the Unix socket (mode 0600), with all rights; TCP needs a token with a role."""

from __future__ import annotations

import hashlib
import os
import pwd
import secrets
from dataclasses import dataclass

from ..errors import Unauthorized
from ..store.store import Store

#: the roles that each role includes
GRANTS = {
    "none": frozenset({"none"}),
    "read": frozenset({"none", "read"}),
    "submit": frozenset({"none", "read", "submit"}),
    "runner": frozenset({"none", "read", "runner"}),
    "admin": frozenset({"none", "read", "submit", "runner", "admin"}),
}


@dataclass(frozen=True, slots=True)
class Identity:
    user: str
    role: str
    token: int | None = None  #: number of the token by which it is known

    def require(self, role: str) -> None:
        if role not in GRANTS[self.role]:
            who = f"token {self.user!r} has role {self.role}" if self.role != "none" else "no valid token was given (STOKER_TOKEN)"
            raise Unauthorized(f"this needs role {role}: {who}; an admin makes tokens with 'stoker token create --role {role}'")


def owner() -> Identity:
    """The user of the socket, who runs the daemon."""
    try:
        name = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        name = str(os.getuid())
    return Identity(name, "admin")


def digest(token: str) -> str:
    """Tokens are long and random, so one round of SHA-256 is enough."""
    return hashlib.sha256(token.encode()).hexdigest()


def new_token() -> str:
    return "stk_" + secrets.token_urlsafe(32)


class Tokens:
    """Tokens in force, by digest; read again when one is made or revoked."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[str, Identity] = {}
        self.refresh()

    def refresh(self) -> None:
        self._known = {row[0]: Identity(*row[1:]) for row in self._store.rows("api/tokens")}

    def identify(self, authorization: str | None) -> Identity:
        scheme, _, token = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not token:
            return Identity("", "none")
        return self._known.get(digest(token.strip()), Identity("", "none"))
