"""Which samples of a global batch each member computes: a function of the step, the members and what they have done of it already.

A step is the positions ``0 … batch - 1`` of its global batch (`train.batches.Order`). Nobody keeps the ledger: each member tells what it
has done of the present step, and all work out the same shares from what all have told. So a batch is neither more nor less than its
samples, whoever comes, goes or dies: what a lost member had done was in no sum, and falls to the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

Ranges = tuple[tuple[int, int], ...]  #: [begin, end) of positions, in order and apart


@dataclass(frozen=True, slots=True)
class Share:
    """What one member is to add to the sum of a step."""

    kept: Ranges  #: of what it has done; empty: it begins its sum anew
    todo: Ranges

    @property
    def all(self) -> Ranges:
        return joined((*self.kept, *self.todo))


def shares(batch: int, done: Sequence[Ranges]) -> list[Share]:
    """The share of each member, given what each has done: together every position of the batch once.

    What two have done, each without the other, counts for the first of them. The other's sum cannot be taken apart, so it begins anew.
    """
    taken: Ranges = ()
    kept: list[Ranges] = []
    for ranges in done:
        keeps = () if overlap(taken, ranges) else ranges
        taken = joined((*taken, *keeps))
        kept.append(keeps)
    return [Share(keeps, todo) for keeps, todo in zip(kept, divided(rest(batch, taken), len(done)), strict=True)]


def divided(ranges: Ranges, parts: int) -> list[Ranges]:
    """The positions in as many parts, in order, none of which has two more than another."""
    total = size(ranges)
    left = list(ranges)
    found: list[Ranges] = []
    for part in range(parts):
        wanted, own = (total * (part + 1)) // parts - (total * part) // parts, []
        while wanted:
            begin, end = left.pop(0)
            if end - begin > wanted:
                left.insert(0, (begin + wanted, end))
                end = begin + wanted
            own.append((begin, end))
            wanted -= end - begin
        found.append(tuple(own))
    return found


def rest(batch: int, taken: Ranges) -> Ranges:
    """The positions of a batch that are not among these."""
    found, at = [], 0
    for begin, end in taken:
        if begin > at:
            found.append((at, begin))
        at = end
    return (*found, (at, batch)) if at < batch else tuple(found)


def joined(ranges: Sequence[tuple[int, int]]) -> Ranges:
    """The same positions in as few ranges as will do, in order."""
    found: list[tuple[int, int]] = []
    for begin, end in sorted(ranges):
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((begin, end))
    return tuple(found)


def overlap(one: Ranges, other: Ranges) -> bool:
    return any(begin < end2 and begin2 < end for begin, end in one for begin2, end2 in other)


def size(ranges: Ranges) -> int:
    return sum(end - begin for begin, end in ranges)


def batches(ranges: Ranges, most: int) -> list[range]:
    """The positions in batches of so many at most, of each range about equally large."""
    found = []
    for begin, end in ranges:
        parts = -(-(end - begin) // most)
        cuts = [begin + (end - begin) * part // parts for part in range(parts + 1)]
        found += [range(*cut) for cut in pairwise(cuts)]
    return found


def checksum(ranges: Ranges) -> int:
    """Of a set of positions: sums over members tell whether all are there, and each once."""
    return sum((end - begin) * (begin + end + 1) // 2 for begin, end in ranges)
