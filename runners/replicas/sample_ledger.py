"""The samples of a global batch that each member computes: a function of the step, the members and their work on it so far.

A step is the positions ``0 … batch - 1`` of its global batch (`train.batches.Order`). No process keeps the ledger: each member sends the
positions that it has done, and all compute the same shares from these. So a step has exactly the samples of its batch, even if members
come, leave or die: the work of a lost member was in no sum, and falls to the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

Ranges = tuple[tuple[int, int], ...]  #: [begin, end) of positions, in order and apart


@dataclass(frozen=True, slots=True)
class MemberShare:
    """The part of a step's sum that one member computes."""

    kept: Ranges  #: the part of its finished work that counts; empty: it begins its sum anew
    todo: Ranges

    @property
    def all(self) -> Ranges:
        return joined((*self.kept, *self.todo))


def shares(batch: int, done: Sequence[Ranges]) -> list[MemberShare]:
    """The share of each member, given the work of each: together they have every position of the batch once.

    A position that two members have done counts for the first. The other's sum cannot be split, so that member begins anew.
    """
    taken: Ranges = ()
    kept: list[Ranges] = []
    for ranges in done:
        keeps = () if overlap(taken, ranges) else ranges
        taken = joined((*taken, *keeps))
        kept.append(keeps)
    return [MemberShare(keeps, todo) for keeps, todo in zip(kept, divided(rest(batch, taken), len(done)), strict=True)]


def divided(ranges: Ranges, parts: int) -> list[Ranges]:
    """The positions in ``parts`` parts, in order, whose sizes differ by one at most."""
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
    """The positions of a batch that are not in ``taken``."""
    found, at = [], 0
    for begin, end in taken:
        if begin > at:
            found.append((at, begin))
        at = end
    return (*found, (at, batch)) if at < batch else tuple(found)


def joined(ranges: Sequence[tuple[int, int]]) -> Ranges:
    """The same positions in as few ranges as possible, in order."""
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
    """The positions in batches of at most ``most``, about equally large within each range."""
    found = []
    for begin, end in ranges:
        parts = -(-(end - begin) // most)
        cuts = [begin + (end - begin) * part // parts for part in range(parts + 1)]
        found += [range(*cut) for cut in pairwise(cuts)]
    return found


def checksum(ranges: Ranges) -> int:
    """A number for a set of positions: its sum over the members shows whether each position is there once."""
    return sum((end - begin) * (begin + end + 1) // 2 for begin, end in ranges)
