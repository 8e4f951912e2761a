"""A state taken in the midst of a pass leads to the samples that were left, whatever the loader's sampler draws from."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from saved import through_a_file
from stoker.engine.errors import UsageError
from stoker.loaders import Map, Pipeline, Source, autotuned
from torch.utils.data import DataLoader, RandomSampler, Sampler, SubsetRandomSampler, WeightedRandomSampler
from torch.utils.data.distributed import DistributedSampler

DATA = range(11)


class Drawn(Sampler[int]):
    """Draws from what it is given."""

    def __init__(self, order: Callable[[list[int]], Any], **kept: Any) -> None:
        self.order = order
        self.__dict__.update(kept)

    def __len__(self) -> int:
        return len(DATA)

    def __iter__(self) -> Iterator[int]:
        numbers = list(DATA)
        self.order(numbers)
        return iter(numbers)


def seeded(seed: int = 1) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def own_python() -> DataLoader[int]:
    generator = random.Random(3)
    return DataLoader(DATA, batch_size=3, sampler=Drawn(generator.shuffle, generator=generator))  # type: ignore[arg-type]


def own_numpy() -> DataLoader[int]:
    generator = np.random.default_rng(3)
    return DataLoader(DATA, batch_size=3, sampler=Drawn(generator.shuffle, generator=generator))  # type: ignore[arg-type]


MADE: dict[str, Callable[[], DataLoader[int]]] = {
    "generator": lambda: DataLoader(DATA, batch_size=3, shuffle=True, generator=seeded()),  # type: ignore[arg-type]
    "global": lambda: DataLoader(DATA, batch_size=3, shuffle=True),  # type: ignore[arg-type]
    "sampler": lambda: DataLoader(DATA, batch_size=3, sampler=RandomSampler(DATA, generator=seeded())),  # type: ignore[arg-type]
    "replacement": lambda: DataLoader(
        DATA, batch_size=3, sampler=RandomSampler(DATA, replacement=True, num_samples=100, generator=seeded())
    ),  # type: ignore[arg-type]
    "subset": lambda: DataLoader(DATA, batch_size=3, sampler=SubsetRandomSampler(DATA, generator=seeded())),  # type: ignore[arg-type]
    "weighted": lambda: DataLoader(DATA, batch_size=3, sampler=WeightedRandomSampler([1.0] * 11, 11)),  # type: ignore[arg-type]
    "global python": lambda: DataLoader(DATA, batch_size=3, sampler=Drawn(random.shuffle)),  # type: ignore[arg-type]
    "global numpy": lambda: DataLoader(DATA, batch_size=3, sampler=Drawn(np.random.shuffle)),  # type: ignore[arg-type]
    "own python": own_python,
    "own numpy": own_numpy,
    "distributed": lambda: DataLoader(DATA, batch_size=3, sampler=DistributedSampler(DATA, 1, 0)),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("kind", MADE)
@pytest.mark.parametrize("batches", [1, 3])
def test_a_resumed_pass_gives_the_rest_and_the_next_one_what_it_would_have_given(kind: str, batches: int) -> None:
    with autotuned(MADE[kind]()) as one:
        list(one)
        if kind == "distributed":
            one.sampler.set_epoch(5)
        going = iter(one)
        for _ in range(batches):
            next(going)
        state = through_a_file(one.state_dict())
        rest = [batch.tolist() for batch in going]
        following = [batch.tolist() for batch in one]
    torch.manual_seed(99)
    random.seed(99)
    np.random.seed(99)
    with autotuned(MADE[kind]()) as other:
        other.load_state_dict(state)
        before = torch.get_rng_state()
        iter(other)
        assert torch.equal(torch.get_rng_state(), before), "the training's own draws stay what they are"
        assert [batch.tolist() for batch in other] == rest
        if "global" not in kind and kind != "weighted":
            assert [batch.tolist() for batch in other] == following


@pytest.mark.parametrize("sampler", [lambda: RandomSampler(DATA, generator=seeded()), lambda: RandomSampler(DATA), lambda: [4, 2, 9, 0]])
def test_so_does_a_pass_of_a_plain_source(sampler: Callable[[], Any]) -> None:
    with Pipeline([Source(DATA, sampler=sampler()), Map(str)]) as one:
        list(one)
        going = iter(one)
        first = next(going)
        state = through_a_file(one.state_dict())
        rest = list(going)
    torch.manual_seed(99)
    with Pipeline([Source(DATA, sampler=sampler()), Map(str)]) as other:
        other.load_state_dict(state)
        assert list(other) == rest and first not in rest


def test_an_order_that_cannot_be_drawn_again_is_refused() -> None:
    with autotuned(DataLoader(DATA, batch_size=3, sampler=Drawn(random.SystemRandom().shuffle))) as one:  # type: ignore[arg-type]
        next(iter(one))
        state = one.state_dict()
    state["pipeline"]["order"]["first"] = "[[99, 98, 97]]"
    with autotuned(DataLoader(DATA, batch_size=3, sampler=Drawn(random.SystemRandom().shuffle))) as other:  # type: ignore[arg-type]
        other.load_state_dict(state)
        with pytest.raises(UsageError, match="Drawn draws another order than before the stop"):
            iter(other)
