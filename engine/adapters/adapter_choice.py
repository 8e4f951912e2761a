"""The bank's adapters with which a job might begin, the best first: by measurements of such pairs, else by the kind of labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

MOST_OFFERS = 4  #: offers of one job: if the first cannot be read, the next is tried
LEAST_GAIN = 1.05  #: least ratio of steps from the backbone to steps with an adapter


@dataclass(frozen=True, slots=True)
class Banked:
    """An adapter of the bank."""

    job: int
    data: str
    digest: str  #: of its training samples
    labels: str  #: kind of its labels


@dataclass(frozen=True, slots=True)
class Gain:
    """The outcomes of beginnings of one kind."""

    helped: int = 0  #: jobs that kept the adapter, with a known gain
    ratio: float = 1.0  #: geometric mean of their gains
    undone: int = 0  #: jobs that did not keep it

    @property
    def known(self) -> bool:
        return self.helped + self.undone > 0

    @property
    def worth(self) -> bool:
        return self.helped >= self.undone and self.ratio >= LEAST_GAIN


@dataclass(frozen=True, slots=True)
class Gains:
    pairs: Mapping[tuple[str, str], Gain] = field(default_factory=dict)  #: by data set of the source, and of the job
    kinds: Mapping[tuple[str, str], Gain] = field(default_factory=dict)  #: the same of kinds of labels


@dataclass(frozen=True, slots=True)
class OfferedAdapter:
    """An adapter with which a job may begin."""

    banked: Banked
    expected: float | None  #: steps from the backbone over steps with it; None: not measured
    why: str
    same_kind: bool = False  #: only if the labels are of one kind, which the job itself must check


def offers(bank: Sequence[Banked], data: str, labels: str | None, gains: Gains) -> list[OfferedAdapter]:
    """``bank``: of one owner, recipe and form, the newest first; ``labels``: the job's kind, None: not known before it has read its data.

    Jobs of the same data are left out: they have almost nothing left to learn (002 ch. 3, footnote 2).
    """
    found: list[tuple[int, float, OfferedAdapter]] = []
    for banked in bank:
        if banked.data == data:
            continue
        pair = gains.pairs.get((banked.data, data), Gain())
        kinds = gains.kinds.get((banked.labels, labels), Gain()) if labels is not None else Gain()
        if pair.known:
            if pair.worth:
                found.append((0, -pair.ratio, OfferedAdapter(banked, pair.ratio, _measured(pair, "this pair of data"))))
        elif kinds.known:
            if kinds.worth:
                found.append((1, -kinds.ratio, OfferedAdapter(banked, kinds.ratio, _measured(kinds, "this pair of kinds of labels"))))
        elif labels is None or labels == banked.labels:
            words = "its labels are of the same kind, and nothing was measured of this pair yet"
            found.append((2, 0.0, OfferedAdapter(banked, None, words, same_kind=True)))
    found.sort(key=lambda one: one[:2])
    return [offer for _, _, offer in found[:MOST_OFFERS]]


def _measured(gain: Gain, what: str) -> str:
    jobs = f"{gain.helped} job{'s' * (gain.helped > 1)}"
    return f"{gain.ratio:.1f} x fewer steps expected, as measured for {what} ({jobs})"
