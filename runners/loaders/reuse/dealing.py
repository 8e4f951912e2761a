"""The samples in the buffers of a gang, divided over another number of ranks."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

from .buffer import BufferState, as_tuple

_T = TypeVar("_T")


def deal(states: Sequence[Mapping[str, Any]], ranks: int) -> list[BufferState]:
    """The buffers' states of a gang that now has ``ranks`` ranks: each position, with its remaining uses, is in exactly one of them.

    Positions must be those of the job's stream, not of a rank's. They are dealt in turn, so that each rank gets a part of every
    old rank's samples. A rank takes the generator of the old rank of its number, or one derived from the first.
    """
    held = [one for group in _rounds([_held(state) for state in states]) for one in group]
    parked: list[tuple[int, int, int]] = [one for state in states for one in state["parked"]]
    total = {name: sum(int(state[name]) for state in states) for name in ("taken", "first_uses", "uses", "dropped")}
    dealt = []
    for rank in range(ranks):
        # Back into the order of the pools: by uses left, the rested first, those at rest by their last use.
        mine = sorted(held[rank::ranks], key=lambda one: (one[1], not one[3], one[2]))
        dealt.append(
            BufferState(
                repeat=int(states[0]["repeat"]),
                batches=max(int(state["batches"]) for state in states),
                taken=_part(total["taken"], rank, ranks),
                first_uses=_part(total["first_uses"], rank, ranks),
                uses=_part(total["uses"], rank, ranks),
                dropped=_part(total["dropped"], rank, ranks),
                carry=0.0,
                largest=max(int(state["largest"]) for state in states),
                ended=all(bool(state["ended"]) for state in states),
                random=_generator(states, rank),
                positions=[position for position, _, _, _ in mine],
                left=[left for _, left, _, _ in mine],
                last=[last for _, _, last, _ in mine],
                rested=[rested for _, _, _, rested in mine],
                parked=parked[rank::ranks],
            )
        )
    return dealt


def _held(state: Mapping[str, Any]) -> list[tuple[int, int, int, bool]]:
    return list(zip(state["positions"], state["left"], state["last"], state["rested"], strict=True))


def _rounds(held: Sequence[Sequence[_T]]) -> Iterator[list[_T]]:
    """The first of each, the second of each, and so on, as long as one has any."""
    for index in range(max(map(len, held))):
        yield [of_rank[index] for of_rank in held if index < len(of_rank)]


def _part(total: int, rank: int, ranks: int) -> int:
    return total // ranks + (rank < total % ranks)


def _generator(states: Sequence[Mapping[str, Any]], rank: int) -> tuple[Any, ...]:
    if rank < len(states):
        return as_tuple(states[rank]["random"])
    source = random.Random()
    source.setstate(as_tuple(states[0]["random"]))
    return random.Random(f"{source.getrandbits(64)} {rank}").getstate()
