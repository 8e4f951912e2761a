"""Lookup in a prompt bank, as the daemon exports it: two layers of prompts (002 ch. 4.4.3.2)."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...engine.errors import Conflict, NotFound, StokerError
from ...engine.home import Home

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    #: A text, or the vectors (tokens, hidden) of a tuned prompt.
    Prompt = str | NDArray[np.float32]

LOOKUP_BUDGET = 0.2  #: share of a deadline that a lookup may take (4.4.3.4)

#: Takes rows of the bank, and returns the score of each (equation 4.1). Smaller is better.
Score = Callable[[Sequence[int]], Sequence[float]]


@dataclass(frozen=True, slots=True)
class Candidate:
    row: int
    score: float
    layer: int  #: 1: a representative of a cluster, 2: another prompt of the chosen cluster


def lookup(medoid: NDArray[np.int32], score: Score) -> list[Candidate]:
    """Score all representatives, then the other prompts of the best one's cluster. Returns all scored rows, the best first.

    ``medoid`` (n): for each row, the row of its representative. ValueError: the bank is empty.
    """
    if not len(medoid):
        raise ValueError("the bank is empty")
    first = sorted({int(row) for row in medoid})
    scored = [Candidate(row, value, 1) for row, value in zip(first, score(first), strict=True)]
    best = min(scored, key=_order).row
    second = [row for row, of in enumerate(medoid.tolist()) if of == best and row != best]
    if second:
        scored += [Candidate(row, value, 2) for row, value in zip(second, score(second), strict=True)]
    return sorted(scored, key=_order)


def read_bank(home: Path, asked: str, llm: str, revision: str, tokenizer: str) -> dict[str, Any]:
    """The bank of this LLM as the daemon has exported it; ``asked``: how its user names the LLM. One line says why it cannot be used."""
    import numpy as np

    path, here = Home(home).bank(llm, revision, tokenizer), f"the LLM here is {llm}@{revision} ({tokenizer})"
    build = f"'stoker prompt bank build --llm {asked} --from FILE.jsonl' makes one"
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as found:
            bank = dict(found)
    except FileNotFoundError:
        if others := sorted(path.parents[2].glob(f"{llm}@*/*/bank.npz")):
            there = ", ".join(f"{other.parents[1].name} ({other.parent.name})" for other in others)
            raise Conflict(f"the bank is of {there}, and {here}; they are never mixed: {build}") from None
        raise NotFound(f"there is no prompt bank of {llm}@{revision} in {home}: {build}") from None
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise StokerError(f"{path} cannot be read ({error}); the daemon writes it again when it starts") from None
    if str(bank.get("llm")) != f"{llm}@{revision}":
        raise Conflict(f"{path} is of {bank.get('llm')}, and {here}; they are never mixed: {build}")
    if not len(bank["prompts"]):
        raise NotFound(f"the prompt bank of {llm}@{revision} is empty: {build}")
    return bank


def prompts_of(bank: Mapping[str, Any]) -> list[Prompt]:
    """The prompt with which a tuning would begin, for each row of an exported bank (`engine.prompts.bank_files`)."""
    texts: list[Prompt] = bank["prompts"].tolist()
    if "ends" not in bank:  # a file of an earlier version
        return texts
    ends, width = bank["ends"].tolist(), bank["features"].shape[1]
    return [
        bank["vectors"][begin:end].reshape(-1, width) if begin < end else text
        for text, begin, end in zip(texts, [0, *ends[:-1]], ends, strict=True)
    ]


def _order(candidate: Candidate) -> tuple[float, int]:
    return candidate.score, candidate.row


def most_scores(medoid: NDArray[np.int32]) -> int:
    """Scores of the longest lookup in this bank: all representatives, and the rest of the largest cluster."""
    import numpy as np

    _, sizes = np.unique(medoid, return_counts=True)
    return len(sizes) + int(sizes.max()) - 1
