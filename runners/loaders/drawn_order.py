"""A sampler's order as part of a pipeline's state: the states of its generators before the current pass."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, islice
from typing import Any, TypeVar

import numpy as np
import torch
from torch.utils.data import DataLoader

from ...engine.errors import UsageError
from ..train import rng

T = TypeVar("T")


class DrawnOrder:
    """The order of one sampler. A pass is drawn once; a resumed pass is drawn again from the same states."""

    def __init__(self, sampler: Any, *, loader: DataLoader[Any] | None = None) -> None:
        """``loader``: whose sampler it is."""
        self._sampler = sampler
        batches = None if loader is None else loader.batch_sampler
        self._places = [loader, sampler, batches, *(getattr(place, "sampler", None) for place in (sampler, batches))]
        self._before: dict[str, Any] | None = None  #: the current pass, or the loaded one
        self._again = False  #: the next pass is that one

    def draw(self, begin: Callable[[], tuple[T, Any]]) -> T:
        """Begin a pass; ``begin`` returns it and its first indices. Raises UsageError if they come in another order."""
        if self._before is None or not self._again:
            before = self._own() | {"host": rng.host_state()}
            drawn, first = begin()
            self._before = before | {"first": repr(first)}
            return drawn
        with rng.host_preserved():  # these are the training's, which restores them itself
            rng.set_state(self._before["host"])
            self._restore(self._before)
            drawn, first = begin()
        self._again = False
        if repr(first) != self._before["first"]:
            raise UsageError(
                f"loader: {type(self._sampler).__name__} draws another order than before the stop, so samples would come "
                "twice or never; let it draw from a generator that it keeps as an attribute, or resume at the beginning of a pass"
            )
        return drawn

    def redraw(self) -> None:
        """Begin the current or loaded pass once more."""
        self._again = self._before is not None

    def end(self) -> None:
        """The next pass is another."""
        self._before, self._again = None, False

    def state(self) -> dict[str, Any]:
        return self._before or self._own()

    def load(self, state: Mapping[str, Any]) -> None:
        self._before = dict(state) if "first" in state else None
        self._again = self._before is not None
        if self._before is None:  # between two passes
            self._restore(state)

    def _own(self) -> dict[str, Any]:
        return {"generators": [_state(one) for one in self._generators()], "epochs": [one.epoch for one in self._counting()]}

    def _restore(self, state: Mapping[str, Any]) -> None:
        generators, counting = self._generators(), self._counting()
        if (len(generators), len(counting)) != (len(state["generators"]), len(state["epochs"])):
            raise UsageError("loader: the state is of a sampler with other generators than this one's; make the loader as it was made then")
        for generator, kept in zip(generators, state["generators"], strict=True):
            _set_state(generator, kept)
        for sampler, epoch in zip(counting, state["epochs"], strict=True):
            sampler.epoch = epoch

    def _generators(self) -> list[Any]:
        """The generators of the loader and its samplers, each once."""
        kept = (value for place in self._places for value in getattr(place, "__dict__", {}).values())
        return list(
            {id(value): value for value in kept if isinstance(value, torch.Generator | random.Random | np.random.Generator)}.values()
        )

    def _counting(self) -> list[Any]:
        """Samplers that count passes, as DistributedSampler."""
        return list({id(place): place for place in self._places if isinstance(getattr(place, "epoch", None), int)}.values())


def begun_with_first(indices: Iterable[T]) -> tuple[Iterator[T], list[T]]:
    """A pass and its first index. A sampler draws its own seed for the first index: that happens here, not in the thread that reads."""
    rest = iter(indices)
    first = list(islice(rest, 1))
    return chain(first, rest), first


def _state(generator: Any) -> Any:
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    return generator.getstate() if isinstance(generator, random.Random) else generator.bit_generator.state


def _set_state(generator: Any, state: Any) -> None:
    if isinstance(generator, torch.Generator):
        generator.set_state(state)
    elif isinstance(generator, random.Random):
        generator.setstate(state)
    else:
        generator.bit_generator.state = state
