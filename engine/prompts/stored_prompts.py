"""The prompt bank as rows of `prompts`: insertion and replacement (002 ch. 4.4.3.3), and storage of clusters.

A bank holds the prompts of one LLM, revision and tokenizer; prompts of two banks are never compared.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from ..errors import Conflict, StokerError, UsageError
from ..store.transaction import Transaction

CAPACITY = 3000  #: most prompts of a bank (4.4.3.3)
LONGEST_TEXT = 2000  #: characters of a prompt
MOST_FEATURES = 65_536
MOST_TOKENS = 128  #: tokens of a tuned prompt
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class BankKey(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which bank."""

    llm: str
    revision: str
    tokenizer: str

    @property
    def key(self) -> tuple[str, str, str]:
        return self.llm, self.revision, self.tokenizer

    def __str__(self) -> str:
        return f"{self.llm}@{self.revision} ({self.tokenizer})"

    def require_names(self) -> None:
        """Raise UsageError for a field that could not name a directory."""
        for field, word in zip(("llm", "revision", "tokenizer"), self.key, strict=True):
            if not _NAME.fullmatch(word):
                raise UsageError(f"{field}: {word[:100]!r} is no name: 1 to 100 letters, digits, '.', '_' and '-'")


class NewPrompt(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    text: str
    features: list[float]
    source: str
    task: str | None = None
    vectors: list[float] = []  #: of a tuned prompt, token after token, each as long as the features; empty: the prompt is its text


@dataclass(frozen=True, slots=True)
class NewPrompts:
    bank: BankKey
    prompts: Sequence[NewPrompt]
    added_by: str


@dataclass(frozen=True, slots=True)
class NewClusters:
    """Each prompt with its medoid; prompts that were added meanwhile go to the nearest one."""

    bank: BankKey
    medoids: Mapping[int, int]


def require_prompts(prompts: Sequence[NewPrompt]) -> None:
    """Raise UsageError for the first prompt that cannot be stored."""
    length = len(prompts[0].features) if prompts else 0
    for number, prompt in enumerate(prompts):
        where = f"prompts[{number}]"
        if not prompt.text.strip() or len(prompt.text) > LONGEST_TEXT or "\0" in prompt.text:
            raise UsageError(f"{where}.text: must have 1 to {LONGEST_TEXT} characters, and no NUL")
        if not 0 < len(prompt.source) <= 500 or len(prompt.task or "") > 200 or "\0" in prompt.source + (prompt.task or ""):
            raise UsageError(f"{where}.source: has 1 to 500 characters, task up to 200, and no NUL")
        if not 0 < len(prompt.features) <= MOST_FEATURES:
            raise UsageError(f"{where}.features: must have 1 to {MOST_FEATURES} numbers, not {len(prompt.features)}")
        if len(prompt.features) != length:
            raise UsageError(f"{where}.features: has {len(prompt.features)} numbers, prompts[0] has {length}; one LLM gives one length")
        tokens, rest = divmod(len(prompt.vectors), length)
        if rest or tokens > MOST_TOKENS or not all(map(math.isfinite, prompt.vectors)):
            raise UsageError(f"{where}.vectors: must be at most {MOST_TOKENS} times {length} finite numbers, not {len(prompt.vectors)}")
        norm = sum(value * value for value in prompt.features)  # its cosine must be finite in 32 bits too
        if not 1e-30 < norm < 1e30:
            raise UsageError(f"{where}.features: have no direction that could be compared (length {math.sqrt(norm):g})")


def add_prompts(tx: Transaction, batch: Sequence[NewPrompts]) -> Sequence[dict[str, Any] | StokerError]:
    """Store prompts; returns how many were added and known, and the numbers of the replaced ones."""
    return [_add(tx, new) for new in batch]


def _add(tx: Transaction, new: NewPrompts) -> dict[str, Any] | StokerError:
    size, length, clusters = tx.execute("bank_size", *new.bank.key)[0]
    if length is not None and new.prompts and len(new.prompts[0].features) != length:
        return Conflict(
            f"prompts[0].features: has {len(new.prompts[0].features)} numbers, those of the bank {new.bank} have {length}; "
            "features of another LLM or layer do not belong there"
        )
    known = {text for (text,) in tx.execute("bank_known", *new.bank.key, [prompt.text for prompt in new.prompts])}
    fresh = {prompt.text: prompt for prompt in new.prompts if prompt.text not in known}
    if not clusters and size + len(fresh) > CAPACITY:
        return Conflict(
            f"the bank {new.bank} has {size} prompts and no clusters yet, and may have {CAPACITY}: 'stoker prompt bank build' makes them"
        )
    added: list[int] = []
    replaced: list[int] = []
    for prompt in fresh.values():
        medoid = tx.execute("bank_nearest_medoid", *new.bank.key, prompt.features)[0][0] if clusters else None
        added.append(_insert(tx, new, prompt, medoid))
        if size + len(added) - len(replaced) > CAPACITY:
            replaced += _replace(tx, medoid)
    if added:
        tx.touch("prompts")
    return {"added": len(added), "known": len(new.prompts) - len(fresh), "ids": added, "replaced": replaced}


def _insert(tx: Transaction, new: NewPrompts, prompt: NewPrompt, medoid: int | None) -> int:
    number = tx.number("prompts")
    llm, revision, tokenizer = new.bank.key
    tx.insert("prompts", [{
        "id": number, "llm": llm, "revision": revision, "tokenizer": tokenizer, "text": prompt.text, "source": prompt.source,
        "task": prompt.task, "features": prompt.features, "medoid": medoid, "ts": tx.now, "added_by": new.added_by,
        "vectors": prompt.vectors or None,
    }])  # fmt: skip
    return number


def _replace(tx: Transaction, medoid: int | None) -> list[int]:
    """Remove the prompt of this cluster that is nearest to its medoid.

    By the paper's text that is the medoid itself, at distance 0; but it stays, as the cluster needs one. The new prompt may be removed.
    """
    victims = [number for (number,) in tx.execute("bank_replaced", medoid)]
    tx.delete("prompts", "id", victims)
    return victims


def set_clusters(tx: Transaction, batch: Sequence[NewClusters]) -> Sequence[dict[str, int] | StokerError]:
    """Give prompts their medoids; returns the numbers of clusters and prompts."""
    return [_set_clusters(tx, new) for new in batch]


def _set_clusters(tx: Transaction, new: NewClusters) -> dict[str, int] | StokerError:
    there = {number for (number,) in tx.execute("bank_ids", *new.bank.key)}
    representatives = set(new.medoids.values())
    if not representatives or not representatives <= there or any(new.medoids.get(one) != one for one in representatives):
        return Conflict(f"medoids: not all are prompts of the bank {new.bank} that represent themselves; it has changed, so build it again")
    given = [{"id": one, "medoid": medoid} for one, medoid in new.medoids.items() if one in there]
    tx.update("prompts", ["id"], [{"id": one, "medoid": None} for one in sorted(there)])
    tx.update("prompts", ["id"], given)
    left = tx.execute("bank_left_over", *new.bank.key)
    for number, features in left:
        nearest = tx.execute("bank_nearest_medoid", *new.bank.key, features)[0][0]
        tx.update("prompts", ["id"], [{"id": number, "medoid": nearest}])
    tx.touch("prompts")
    return {"clusters": len(representatives), "prompts": len(there)}
