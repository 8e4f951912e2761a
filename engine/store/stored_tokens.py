"""Tokens and sessions of the page in the tables: made and revoked, begun and ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import NotFound, StokerError
from .transaction import Transaction


@dataclass(frozen=True, slots=True)
class NewToken:
    name: str
    role: str
    digest: str  #: SHA-256, hexadecimal
    actor: str


def add_token(tx: Transaction, batch: Sequence[NewToken]) -> Sequence[int]:
    rows: list[dict[str, Any]] = [
        {"id": tx.number("tokens"), "name": t.name, "role": t.role, "digest": t.digest, "created_at": tx.now, "revoked": False}
        for t in batch
    ]
    tx.insert("tokens", rows)
    for t in batch:
        tx.event("token.created", t.actor, detail={"name": t.name, "role": t.role})
    tx.touch("tokens")
    return [row["id"] for row in rows]


def revoke_token(tx: Transaction, batch: Sequence[tuple[int, str]]) -> Sequence[StokerError | None]:
    """``(number, actor)``: the token is no longer accepted."""
    known = {row[0] for row in tx.execute("token_ids")}
    tx.update("tokens", ["id"], [{"id": number, "revoked": True} for number, _ in batch if number in known])
    for number, actor in batch:
        if number in known:
            tx.event("token.revoked", actor, detail={"id": number})
    tx.touch("tokens")
    return [None if number in known else NotFound(f"token {number}: there is none; 'stoker token list' shows them") for number, _ in batch]


@dataclass(frozen=True, slots=True)
class NewPageSession:
    digest: str  #: SHA-256 of its cookie, hexadecimal
    name: str
    role: str
    token: int | None  #: the token that asked for its link
    port: int
    seconds: float  #: its duration


def begin_page_session(tx: Transaction, batch: Sequence[NewPageSession]) -> Sequence[None]:
    """Begin sessions, and remove expired ones."""
    tx.delete("page_sessions", "digest", [digest for (digest,) in tx.execute("page_sessions_over", tx.now)])
    tx.insert(
        "page_sessions",
        [
            {"digest": one.digest, "name": one.name, "role": one.role, "token_id": one.token, "port": one.port, "created_at": tx.now,
             "expires_at": tx.now + one.seconds}
            for one in batch
        ],
    )  # fmt: skip
    for one in batch:
        tx.event("page.opened", one.name, detail={"role": one.role})
    tx.touch("page")
    return [None] * len(batch)


def end_page_sessions(tx: Transaction, batch: Sequence[tuple[str, str]]) -> Sequence[None]:
    """``(digest, actor)``: the session is no longer accepted."""
    tx.delete("page_sessions", "digest", [digest for digest, _ in batch])
    for _, actor in batch:
        tx.event("page.closed", actor)
    tx.touch("page")
    return [None] * len(batch)
