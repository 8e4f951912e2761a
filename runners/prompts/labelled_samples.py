"""Labelled texts as questions to an LLM: the text, then ``Answer:``, then one word that stands for the label."""

from __future__ import annotations

import logging
import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, overload

import torch

from ...engine.errors import UsageError
from ..backbones.pretrained import Llm, ids_of
from .labelled_files import TEXT_AND_LABEL, ColumnNames, read_labelled

log = logging.getLogger(__name__)

Sample = tuple[list[int], int]  #: tokens up to the answer, label
Batch = tuple[torch.Tensor, torch.Tensor, torch.Tensor]  #: tokens padded on the right, place of the last of each, labels

CUE = "\nAnswer:"
#: full words for labels that are abbreviations
_FULL_WORDS = {"ABBR": "abbreviation", "DESC": "description", "ENTY": "entity", "HUM": "person", "LOC": "location", "NUM": "number"}


class Tokenised(Sequence[Sample]):
    """Labelled texts. Each is tokenised when it is first used, as a tuning of a hundred steps never sees most of a large set.

    Rows are texts and labels. A text is cut to ``most`` tokens, and then followed by the tokens of ``cue``.
    """

    def __init__(self, tokenizer: Any, rows: list[tuple[str, int]], most: int, cue: list[int]) -> None:
        self.labels = [label for _, label in rows]
        self.cut = 0  #: number of texts so far that were cut
        self._rows, self._tokenizer, self._most, self._cue = rows, tokenizer, most, cue
        self._known: dict[int, Sample] = {}

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> Sample: ...
    @overload
    def __getitem__(self, index: slice) -> Tokenised: ...
    def __getitem__(self, index: int | slice) -> Sample | Tokenised:
        if isinstance(index, slice):
            return Tokenised(self._tokenizer, self._rows[index], self._most, self._cue)
        if index not in self._known:
            self._known[index] = self._tokenise(*self._rows[index])
        return self._known[index]

    def _tokenise(self, text: str, label: int) -> Sample:
        # Tokens are shorter than 40 characters, so that a book need not be tokenised to its end.
        ids = ids_of(self._tokenizer, text.strip()[: self._most * 40])
        if len(ids) > self._most:
            self.cut += 1
            if self.cut == 1:
                log.info("there are texts of more than %d tokens, which are cut there (max_tokens)", self._most)
        return ids[: self._most] + self._cue, label

    @property
    def read(self) -> int:
        """Number of texts that were used so far."""
        return len(self._known)


@dataclass(frozen=True, slots=True)
class Samples:
    classes: tuple[str, ...]
    words: tuple[str, ...]  #: the LLM's answer for each class
    answers: tuple[int, ...]  #: the first token of each of these
    train: Tokenised
    held_out: Tokenised

    def common(self, count: int, seed: int) -> list[Sample]:
        """Samples on which prompts are compared: of the training's, the classes in turn; never of those that are reported on."""
        order = torch.randperm(len(self.train), generator=torch.Generator().manual_seed(seed)).tolist()
        return [self.train[row] for row in _in_turn([self.train.labels[row] for row in order], order)[:count]]


def load_samples(
    llm: Llm,
    data: str,
    *,
    max_tokens: int,
    prompt_tokens: int = 0,
    balance: bool = True,
    columns: ColumnNames = TEXT_AND_LABEL,
    held_out: str = "",
) -> Samples:
    """A packaged set, or a file, with each text cut to ``max_tokens``. UsageError says in one line why it cannot be tuned on."""
    cue = llm.ids(CUE)
    longest, context = prompt_tokens + max_tokens + len(cue), llm.model.shape.context
    if longest > context:
        raise UsageError(f"params.max_tokens: {longest} tokens with prompt and question are more than the context of {llm.name}, {context}")
    texts = read_labelled(data, columns=columns, held_out=held_out)
    words = tuple(_FULL_WORDS.get(name, name.strip().lower()) for name in texts.classes)
    answers = tuple(llm.ids(f" {word}")[0] for word in words)
    if len(set(answers)) < len(answers):
        words = tuple(string.ascii_uppercase[: len(words)])
        answers = tuple(llm.ids(f" {word}")[-1] for word in words)
        told = ", ".join(f"{word} for {name!r}" for word, name in zip(words, texts.classes, strict=True))
        log.info("some labels begin with the same token, so the LLM is asked for letters: %s", told)
    train, kept = (_balanced(rows) if balance else rows for rows in (texts.train, texts.held_out))
    if len(train) < len(texts.train):
        log.info("%d of %d samples are tuned on, as many of each label (balance: false takes all)", len(train), len(texts.train))
    return Samples(texts.classes, words, answers, *(Tokenised(llm.tokenizer, rows, max_tokens, cue) for rows in (train, kept)))


def batch_of(samples: Sequence[Sample]) -> Batch:
    """One batch: tokens (batch, length), last (batch), labels (batch)."""
    tokens = torch.zeros(len(samples), max(len(ids) for ids, _ in samples), dtype=torch.int64)
    for row, (ids, _) in enumerate(samples):
        tokens[row, : len(ids)] = torch.tensor(ids)
    last = torch.tensor([len(ids) - 1 for ids, _ in samples])
    return tokens, last, torch.tensor([label for _, label in samples])


def _balanced(rows: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """As many rows of each class as the rarest one has. Classes take turns, so that any first rows are balanced too."""
    least = min(Counter(label for _, label in rows).values())
    classes = len({label for _, label in rows})
    return [rows[row] for row in _in_turn([label for _, label in rows], range(len(rows)))[: least * classes]]


def _in_turn(labels: Sequence[int], rows: Sequence[int]) -> list[int]:
    """The rows in another order: the first row of each class, then the second of each, and so on."""
    seen: Counter[int] = Counter()
    placed = []
    for label, row in zip(labels, rows, strict=True):
        placed.append((seen[label], label, row))
        seen[label] += 1
    return [row for _, _, row in sorted(placed)]
