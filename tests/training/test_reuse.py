"""The reuse buffer: every sample exactly r times, never twice in a batch, within its memory, and exact when it is taken up again."""

from __future__ import annotations

import random
import statistics
from collections import Counter, defaultdict
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from saved import through_a_file
from stoker.engine.errors import UsageError
from stoker.runners.loaders.reuse.buffer import ReuseBuffer
from stoker.runners.loaders.reuse.dealing import deal
from stoker.runners.train.batches import Order

GENEROUS = 1 << 40


class Stream:
    """Samples of given sizes; a sample is its position and as many bytes as its size says."""

    def __init__(self, sizes: Sequence[int], *, first: int = 0, step: int = 1, fails: Sequence[int] = ()) -> None:
        self.sizes, self.next, self.step, self.fails = sizes, first, step, set(fails)
        self.decoded = 0

    def take(self) -> tuple[int, bytes]:
        if self.next >= len(self.sizes):
            raise StopIteration
        sample = self.again(self.next)
        self.next += self.step
        return self.next - self.step, sample

    def again(self, position: int) -> bytes:
        if position in self.fails:
            self.fails.remove(position)
            raise OSError(f"sample {position} cannot be read")
        self.decoded += 1
        return bytes(self.sizes[position])


class Watched(Stream):
    """A stream that checks at each decode that what the buffer holds is within its bounds."""

    buffer: ReuseBuffer

    def again(self, position: int) -> bytes:
        assert len(self.buffer) <= self.buffer.capacity_samples
        assert self.buffer.held_bytes <= self.buffer.capacity_bytes
        return super().again(position)


def make(stream: Stream, batch: int, repeat: int, capacity: int, memory: int = GENEROUS, **options: object) -> ReuseBuffer:
    return ReuseBuffer(
        stream,
        batch_size=batch,
        repeat=repeat,
        capacity_samples=capacity,
        capacity_bytes=memory,
        **{"measure": len, **options},  # type: ignore[arg-type]
    )


@st.composite
def settings_of_a_pass(draw: st.DrawFn) -> tuple[list[int], dict[str, int]]:
    sizes = draw(st.lists(st.integers(1, 50), min_size=1, max_size=120))
    batch = draw(st.integers(1, 16))
    return sizes, {
        "batch": batch,
        "repeat": draw(st.integers(1, 7)),
        "capacity": batch + draw(st.integers(0, 60)),
        "memory": batch * max(sizes) + draw(st.integers(0, 400)),
        "seed": draw(st.integers(0, 3)),
    }


@given(settings_of_a_pass(), st.booleans())
def test_every_sample_is_used_exactly_r_times_never_twice_in_a_batch_and_within_the_memory(
    made: tuple[list[int], dict[str, int]], shuffle_first: bool
) -> None:
    sizes, options = made
    stream = Watched(sizes)
    stream.buffer = buffer = make(stream, **options, shuffle_first=shuffle_first)
    uses: dict[int, list[int]] = defaultdict(list)
    for batch in buffer:
        assert 0 < len(batch) <= options["batch"]
        assert len({use.position for use in batch}) == len(batch)
        assert len(buffer) <= options["capacity"]
        assert buffer.held_bytes <= options["memory"]
        for use in batch:
            assert len(use.sample) == sizes[use.position]
            uses[use.position].append(use.use)
    assert uses == {position: list(range(options["repeat"])) for position in range(len(sizes))}
    assert buffer.uses == options["repeat"] * len(sizes)
    assert buffer.first_uses == buffer.taken == len(sizes)
    assert (len(buffer), buffer.held_bytes) == (0, 0)


@given(st.integers(1, 200), st.integers(1, 16), st.integers(2, 7), st.integers(0, 20), st.integers(0, 5), st.booleans())
def test_three_batches_of_buffer_leave_at_most_one_short_batch(
    samples: int, batch: int, repeat: int, more: int, seed: int, shuffle_first: bool
) -> None:
    samples = max(samples, batch)
    capacity = 3 * batch + more
    lengths = [len(b) for b in make(Stream([1] * samples), batch, repeat, capacity, seed=seed, shuffle_first=shuffle_first)]
    short = [] if samples * repeat % batch == 0 else [samples * repeat % batch]
    assert lengths == [batch] * (samples * repeat // batch) + short


@given(settings_of_a_pass(), st.integers(0, 40), st.booleans())
def test_a_buffer_taken_up_again_anywhere_gives_the_identical_rest(
    made: tuple[list[int], dict[str, int]], stop: int, shuffle_first: bool
) -> None:
    sizes, options = made
    stream = Stream(sizes)
    buffer = make(stream, **options, shuffle_first=shuffle_first)
    for _, _batch in zip(range(stop), buffer, strict=False):
        pass
    again = make(Stream(sizes, first=stream.next), **options, shuffle_first=shuffle_first)
    again.load_state_dict(through_a_file(buffer.state_dict()))
    assert again.held_bytes == buffer.held_bytes
    assert list(again) == list(buffer)
    assert again.state_dict() == buffer.state_dict()


@given(settings_of_a_pass(), st.booleans())
def test_the_state_before_a_batch_is_known_after_it(made: tuple[list[int], dict[str, int]], shuffle_first: bool) -> None:
    sizes, options = made
    buffer = make(Stream(sizes), **options, shuffle_first=shuffle_first, identity=lambda position: position % 20)
    while True:
        before, calls = buffer.state_dict(), buffer.calls
        assert buffer.state_before(calls) == before  # not begun yet
        try:
            buffer.next()
        except StopIteration:
            break
        assert buffer.state_before(calls) == before
        assert buffer.state_before(buffer.calls) == buffer.state_dict() != before


@given(settings_of_a_pass(), st.integers(0, 12), st.booleans())
def test_the_state_before_any_of_the_last_batches_is_known(made: tuple[list[int], dict[str, int]], ahead: int, shuffle_first: bool) -> None:
    """As of a buffer that draws ahead of the training, which has used all but the last ``ahead`` batches."""
    sizes, options = made
    buffer = make(Stream(sizes), **options, shuffle_first=shuffle_first)
    states = []
    while True:
        states.append(buffer.state_dict())
        try:
            buffer.next(since=max(0, buffer.calls - ahead))
        except StopIteration:
            break
        oldest = max(0, buffer.calls - 1 - ahead)
        assert [buffer.state_before(call) for call in range(oldest, buffer.calls)] == states[oldest:]


@given(settings_of_a_pass())
def test_room_is_asked_for_before_each_sample_for_the_largest_so_far(made: tuple[list[int], dict[str, int]]) -> None:
    sizes, options = made
    asked: list[tuple[int, int]] = []  # room, and bytes held
    buffer = make(
        Stream(sizes), **(options | {"repeat": max(2, options["repeat"])}), room=lambda room: asked.append((room, buffer.held_bytes))
    )
    for _ in buffer:
        pass
    assert len(asked) >= len(sizes) and asked[0] == (options["memory"], 0)
    assert all(0 <= options["memory"] - held - room <= max(sizes) for room, held in asked)
    assert buffer.left_bytes == sum(sizes)


@given(st.integers(1, 8), st.integers(0, 16), st.integers(2, 8), st.integers(0, 24), st.integers(0, 99))
def test_two_passes_over_data_of_two_batches_never_meet_in_a_batch(batch: int, more: int, repeat: int, room: int, seed: int) -> None:
    samples = 2 * batch + more
    order = Order(samples, batch, seed)
    buffer = make(Stream([1] * 120 * batch), batch, repeat, 2 * batch + room, seed=seed, identity=order.index)
    for _ in range(100):
        assert len({order.index(use.position) for use in buffer.next()}) == batch


@given(settings_of_a_pass())
def test_one_use_is_the_plain_stream(made: tuple[list[int], dict[str, int]]) -> None:
    sizes, options = made
    buffer = make(Stream(sizes), **(options | {"repeat": 1, "capacity": 0, "memory": 0}))
    size = options["batch"]
    plain = [list(range(start, min(start + size, len(sizes)))) for start in range(0, len(sizes), size)]
    assert [[use.position for use in batch] for batch in buffer] == plain


@given(st.integers(1, 30), st.integers(1, 8), st.integers(2, 5), st.integers(3, 8), st.integers(0, 5))
def test_the_same_sample_of_two_passes_does_not_meet_in_a_batch(data: int, batch: int, repeat: int, batches: int, seed: int) -> None:
    data = max(data, 2 * batch)
    stream = Stream([1] * (5 * data))
    buffer = make(stream, batch, repeat, batches * batch, seed=seed, identity=lambda position: position % data)
    for got in buffer:
        if stream.next < len(stream.sizes):  # at the end of a stream only what is left can meet
            assert len({use.position % data for use in got}) == len(got)
    assert buffer.uses == 5 * data * repeat


def test_with_too_few_different_samples_two_passes_meet_rather_than_stand_still() -> None:
    buffer = make(Stream([1] * 40), 8, 2, 16, identity=lambda position: position % 5)
    counted = Counter(use.position for batch in buffer for use in batch)
    assert set(counted.values()) == {2}
    assert len(counted) == 40


@given(settings_of_a_pass(), st.integers(1, 4), st.integers(1, 4), st.integers(0, 12))
def test_dealt_to_another_number_of_ranks_every_sample_keeps_its_uses(
    made: tuple[list[int], dict[str, int]], before: int, after: int, stop: int
) -> None:
    sizes, options = made
    streams = [Stream(sizes, first=rank, step=before) for rank in range(before)]
    buffers = [make(stream, **options) for stream in streams]
    uses = Counter(use.position for buffer in buffers for _, batch in zip(range(stop), buffer, strict=False) for use in batch)
    states = deal([buffer.state_dict() for buffer in buffers], after)
    assert len(states) == after
    rest = sorted(position for stream in streams for position in range(stream.next, len(sizes), before))
    for rank, state in enumerate(states):
        stream = Stream(sizes)
        mine = iter(rest[rank::after])
        stream.take = lambda stream=stream, mine=mine: (p := next(mine), stream.again(p))  # type: ignore[method-assign]
        state["ended"] = False
        buffer = make(stream, **options)
        buffer.load_state_dict(state)
        assert len(buffer) <= options["capacity"]
        for batch in buffer:
            assert len({use.position for use in batch}) == len(batch)
            uses.update(use.position for use in batch)
    assert uses == dict.fromkeys(range(len(sizes)), options["repeat"])


def test_dropped_uses_are_those_of_the_batches_that_would_be_short() -> None:
    buffer = make(Stream([1] * 10), 4, 3, 12, drop_last=True)
    assert [len(batch) for batch in buffer] == [4] * 7
    assert buffer.dropped == 2
    shorter = make(Stream([1] * 3), 4, 3, 12, drop_last=True)
    assert list(shorter) == []
    assert shorter.dropped == 9


def test_leaving_gives_the_positions_never_used() -> None:
    buffer = make(Stream([1] * 100), 8, 3, 32, shuffle_first=True)
    used = {use.position for _ in range(3) for use in buffer.next()}
    assert sorted(used) != sorted(buffer.positions)
    never = buffer.leave()
    assert never
    assert not used & set(never)
    assert sorted(used | set(never)) == list(range(buffer.taken))
    assert len(buffer) == buffer.held_bytes == 0


def test_unused_shows_samples_not_used_and_changes_nothing() -> None:
    buffer = make(Stream([1] * 100), 8, 3, 32, shuffle_first=True)
    used = {use.position for use in buffer.next()}
    before = buffer.state_dict()
    shown = buffer.unused(3)
    assert [len(sample) for _, sample in shown] == [1, 1, 1]
    assert not {position for position, _ in shown} & used
    assert buffer.state_dict() == before


@pytest.mark.parametrize("repeat", [1, 3])
def test_a_sample_that_cannot_be_decoded_loses_none(repeat: int) -> None:
    buffer = make(Stream([1] * 50, fails=[0, 7, 30]), 6, repeat, 18)
    uses: Counter[int] = Counter()
    failures = 0
    while True:
        try:
            uses.update(use.position for use in buffer.next())
        except OSError:
            failures += 1
        except StopIteration:
            break
    assert failures == 3
    assert uses == dict.fromkeys(range(50), repeat)


def test_a_smaller_buffer_goes_on_with_what_fits_and_the_rest_later() -> None:
    stream = Stream([10] * 60)
    large = make(stream, 4, 3, 40)
    uses = Counter(use.position for _ in range(6) for use in large.next())
    small = make(Stream([10] * 60, first=stream.next), 4, 3, 12, memory=50, measure=len)
    small.load_state_dict(large.state_dict())
    assert len(small) == 5
    for batch in small:
        assert small.held_bytes <= 50
        uses.update(use.position for use in batch)
    assert uses == dict.fromkeys(range(60), 3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"repeat": 0}, "reuse.repeat: 0 uses"),
        ({"capacity": 3}, "reuse.shuffle_buffer: 3 samples hold less than one batch"),
        ({"memory": 0}, "reuse.memory: 0 bytes"),
        ({"batch": 0}, "batch_size: 0"),
    ],
)
def test_settings_that_cannot_work_are_one_line_that_names_the_field(options: dict[str, int], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make(Stream([1]), **({"batch": 4, "repeat": 2, "capacity": 8} | options))


def test_memory_below_one_batch_is_an_error_with_the_bytes_that_are_needed() -> None:
    buffer = make(Stream([10] * 20), 4, 2, 8, memory=39, measure=len)
    with pytest.raises(UsageError, match=r"reuse\.memory: 39 bytes hold 3 of the 4 samples of a batch; give at least 40"):
        buffer.next()


def test_another_repeat_than_the_checkpoint_is_an_error() -> None:
    state = make(Stream([1] * 20), 4, 2, 8).state_dict()
    with pytest.raises(UsageError, match=r"reuse\.repeat: the checkpoint was made with 2, not 3"):
        make(Stream([1] * 20), 4, 3, 8).load_state_dict(state)


def gaps_of(batches: Sequence[Sequence[int]]) -> list[int]:
    last: dict[int, int] = {}
    gaps = []
    for number, batch in enumerate(batches):
        for position in batch:
            if position in last:
                gaps.append(number - last[position])
            last[position] = number
    return gaps


def copies_in_a_shuffle_buffer(samples: int, repeat: int, capacity: int, batch: int, seed: int = 0) -> list[list[int]]:
    """What data echoing does: each sample is put r times into an ordinary shuffle buffer of as many entries."""
    generator = random.Random(seed)
    held: list[int] = []
    out: list[int] = []
    for position in (p for p in range(samples) for _ in range(repeat)):
        held.append(position)
        if len(held) == capacity:
            out.append(held.pop(generator.randrange(len(held))))
    generator.shuffle(held)
    out += held
    return [out[start : start + batch] for start in range(0, len(out), batch)]


@pytest.mark.parametrize("repeat", [2, 4])
def test_uses_of_a_sample_are_further_apart_than_copies_in_a_shuffle_buffer(repeat: int) -> None:
    batch, capacity = 32, 128
    counted = [[use.position for use in got] for got in make(Stream([1] * 2000), batch, repeat, capacity)]
    copies = copies_in_a_shuffle_buffer(2000, repeat, capacity, batch)
    assert statistics.median(gaps_of(counted)) >= 1.9 * statistics.median(gaps_of(copies))
    assert any(len(set(got)) < len(got) for got in copies)  # the same sample several times in a batch: gaps of 0


def test_the_decoder_has_about_the_same_work_in_each_batch_and_ages_are_mixed() -> None:
    batches = list(make(Stream([1] * 4000), 64, 4, 256))
    middle = [Counter(use.use for use in batch) for batch in batches[40:-40]]
    assert statistics.pstdev(uses[0] for uses in middle) < 4  # of 16; greedy refilling has waves of 0 and 64
    assert sum(len(uses) == 4 for uses in middle) > 0.95 * len(middle)
