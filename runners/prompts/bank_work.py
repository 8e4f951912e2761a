"""Work on a prompt bank that needs the LLM: ``python -m stoker.runners.prompts.bank_work FOLDER``, a job or a process of the command line.

FOLDER/request.json is the request (`Request`). Answers are lines of JSON. Each is appended to FOLDER/answer.jsonl as soon as it is found,
so that an interruption loses none of them:

``features``: ``{"bank": {llm, revision, tokenizer}, "todo": n}``, then ``{"texts": [..], "features": [[..]]}`` some at a time.
``tuned``: ``{"bank": …, "todo": n}``, then ``{"features": [..], "vectors": [..]}`` of the prompt in each folder, the vectors end to end.
``lookup``: ``{"bank": …, "todo": n}``, ``{"scored": n}`` as it goes on, ``{"candidates": [{text, score, layer}], "seconds": …}``.

The last line is ``{"done": true}``. Where it is missing, one line on stderr says what is wrong.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import msgspec

from ...engine.errors import NotFound, StokerError, UsageError
from ..worker import script
from ..worker.worker import NO_HOST_MEMORY
from .lookup import lookup, most_scores, prompts_of, read_bank

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from .lookup import Prompt

PROMPTS_PER_ANSWER = 16  #: prompts between two answers


class Request(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    work: Literal["features", "tuned", "lookup"]
    llm: str
    home: str
    texts: tuple[str, ...] = ()  #: for ``features``: compute theirs; for ``lookup``: score them beside the bank's
    folders: tuple[str, ...] = ()  #: for ``tuned``: each has a tuned prompt
    known: tuple[tuple[str, str, tuple[str, ...]], ...] = ()  #: revision, tokenizer, and the texts that this bank has already
    parent: int | None = None  #: the process that waits for the answers; this one ends when that has ended
    data: str = ""
    samples: int = 16
    seed: int = 0


class BankModel(Protocol):
    """The LLM, as the bank uses it."""

    name: str
    revision: str
    tokenizer: str

    def features(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Activations, a row a text."""

    def tuned(self, folder: Path) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Activations (hidden) and vectors (tokens, hidden) of the tuned prompt in a folder."""

    def scorer(self, data: str, samples: int, seed: int) -> Callable[[Sequence[Prompt]], Sequence[float]]:
        """The score of equation 4.1 of prompts, on the same samples each time."""


class Answers:
    """Writes answers, each in one write, so that readers find whole lines only."""

    def __init__(self, folder: Path, parent: int | None) -> None:
        self._parent = parent
        path = folder / "answer.jsonl"
        #: answers of an earlier attempt
        self.before = [json.loads(line) for line in path.read_bytes().splitlines()] if path.exists() else []
        self._file = path.open("ab", buffering=0)

    def tell(self, **answer: Any) -> None:
        if self._parent is not None and os.getppid() != self._parent:
            raise StokerError("the command that asked for this has ended")
        self._file.write(json.dumps(answer).encode() + b"\n")


def serve(folder: Path, load: Callable[[str], BankModel]) -> None:
    """Do what the request asks with the LLM that ``load`` gives."""
    try:
        request = msgspec.json.decode((folder / "request.json").read_bytes(), type=Request)
    except OSError:
        raise NotFound(f"{folder}/request.json: is not there; work on a bank runs on the host of the command that asked for it") from None
    except msgspec.DecodeError as error:
        raise UsageError(f"{folder}/request.json: {error}") from None
    answers, model = Answers(folder, request.parent), load(request.llm)
    {"features": _features, "tuned": _tuned, "lookup": _lookup}[request.work](request, model, answers)
    answers.tell(done=True)


def _features(request: Request, model: BankModel, answers: Answers) -> None:
    known = {text for revision, tokenizer, texts in request.known if (revision, tokenizer) == _which(model) for text in texts}
    known.update(text for answer in answers.before for text in answer.get("texts", ()))
    todo = [text for text in dict.fromkeys(request.texts) if text not in known]
    answers.tell(bank=_bank(model), todo=len(todo))
    for start in range(0, len(todo), PROMPTS_PER_ANSWER):
        texts = todo[start : start + PROMPTS_PER_ANSWER]
        answers.tell(texts=texts, features=[[float(value) for value in row] for row in model.features(texts)])
        script.report(step=start + len(texts), total=len(todo))


def _tuned(request: Request, model: BankModel, answers: Answers) -> None:
    answers.tell(bank=_bank(model), todo=len(request.folders))
    for folder in request.folders:
        features, vectors = model.tuned(Path(folder))
        answers.tell(features=features.tolist(), vectors=vectors.ravel().tolist())


def _lookup(request: Request, model: BankModel, answers: Answers) -> None:
    began = time.monotonic()
    bank = read_bank(Path(request.home), request.llm, model.name, *_which(model))
    score = model.scorer(request.data, request.samples, request.seed)
    texts, prompts, scored = bank["prompts"].tolist(), prompts_of(bank), 0

    def told(some: Sequence[Prompt]) -> list[float]:
        nonlocal scored
        found: list[float] = []
        for prompt in some:
            found += score([prompt])
            scored += 1
            answers.tell(scored=scored)
        return found

    answers.tell(bank=_bank(model), todo=most_scores(bank["medoid"]) + len(request.texts))
    given = [{"text": text, "score": value, "layer": 0} for text, value in zip(request.texts, told(request.texts), strict=True)]
    found = lookup(bank["medoid"], lambda rows: told([prompts[row] for row in rows]))
    rows = [{"text": texts[one.row], "id": int(bank["ids"][one.row]), "score": one.score, "layer": one.layer} for one in found]
    answers.tell(
        candidates=sorted(given + rows, key=lambda row: float(str(row["score"]))), seconds=time.monotonic() - began, prompts=len(prompts)
    )


def _which(model: BankModel) -> tuple[str, str]:
    return model.revision, model.tokenizer


def _bank(model: BankModel) -> dict[str, str]:
    return {"llm": model.name, "revision": model.revision, "tokenizer": model.tokenizer}


def main(arguments: Sequence[str], load: Callable[[str], BankModel]) -> int:
    """Serve a request. An error is one line on stderr, and the exit code."""
    try:
        serve(Path(arguments[0]), load)
    except StokerError as error:
        sys.stderr.write(f"stoker: {error}\n")
        return error.exit_code
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and not any(words in str(error) for words in NO_HOST_MEMORY):
            raise
        sys.stderr.write("stoker: the host has no memory left for the LLM; end something there, then start the command again\n")
        return 1
    return 0


if __name__ == "__main__":
    from .bank_llm import load

    sys.exit(main(sys.argv[1:], load))
