"""Tokens as the tables hold them: made, and revoked."""

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
