"""Positions: the same batches as the order's, and whatever is left over, by a buffer or by other ranks, is owed exactly once."""

import itertools
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stoker.engine.errors import UsageError
from stoker.engine.spec.model import Reuse
from stoker.runners.loaders.reuse.buffer import ReuseBuffer
from stoker.runners.train.batch_feeds import SampleSource
from stoker.runners.train.batches import Interrupted, Loader, Order, Positions
from stoker.runners.train.feed_choice import Loading
from stoker.runners.worker import script
from waiting import patient

SIZES = st.tuples(st.integers(1, 6), st.integers(1, 9)).map(lambda pair: (pair[0] * 8 + pair[1], 8))  #: samples, batch size
RANKS = st.integers(1, 4)


def streams(order, ranks):
    return [Positions(order, rank, ranks) for rank in range(ranks)]


@given(SIZES, RANKS)
def test_the_streams_of_the_ranks_are_the_batches_of_the_order(sizes, ranks):
    order = Order(*sizes, seed=1)
    for rank, stream in enumerate(streams(order, ranks)):
        for step in range(2 * order.steps_per_epoch):
            taken = [stream.take() for _ in range(stream.part)]
            assert [order.index(position) for position in taken] == order.batch(step, rank, ranks)
            assert {position // order.batch_size for position in taken} == {step}


@given(SIZES, RANKS, st.lists(st.integers(0, 20), min_size=4, max_size=4), RANKS, st.integers(0, 30))
def test_another_number_of_ranks_goes_on_with_what_was_not_taken(sizes, ranks, takes, later, further):
    order = Order(*sizes, seed=1)
    before = streams(order, ranks)
    taken = [stream.take() for stream, count in zip(before, takes, strict=False) for _ in range(count)]
    after = Positions.deal(order, [stream.state() for stream in before], later)
    taken += [stream.take() for stream in after for _ in range(further)]
    again = Positions.deal(order, [stream.state() for stream in after], 1)[0]
    taken += [again.take() for _ in range(100)]
    assert len(set(taken)) == len(taken)
    complete = max(taken) - max(taken) % order.batch_size
    assert set(range(complete)) <= set(taken)


@given(SIZES, RANKS, st.integers(0, 20), st.data())
def test_what_was_taken_and_not_used_comes_first(sizes, ranks, count, data):
    order = Order(*sizes, seed=1)
    for stream in streams(order, ranks):
        taken = [stream.take() for _ in range(count)]
        unused = data.draw(st.lists(st.sampled_from(taken), unique=True)) if taken else []
        ahead = list(itertools.islice(stream.ahead(), 10))
        assert list(itertools.islice(stream.with_first(unused).ahead(), len(unused) + 10)) == [*unused, *ahead]


class Numbers:
    """Samples that are their index."""

    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return index


def loading(order, rank, ranks, reuse):
    source = SampleSource(Numbers(order.samples), None, list, 3, order)
    return Loading(source, order, rank, ranks, reuse, None)


@given(RANKS, RANKS, st.integers(2, 4), st.integers(8, 30), st.integers(0, 9), st.integers(0, 9))
def test_buffers_are_dealt_to_another_number_of_ranks_and_no_use_is_lost_or_made_twice(ranks, later, repeat, buffer, steps, further):
    order = Order(50, 8, seed=1)
    reuse = Reuse(repeat=repeat, shuffle_buffer=buffer)
    used = []

    def run(feeds, count):
        for feed in feeds:
            drawn = feed._buffer.next
            feed._buffer.next = lambda since, drawn=drawn: used.extend(batch := drawn(since)) or batch
            for _ in range(count):
                feed.fetch()
                feed.used()

    first = [loading(order, rank, ranks, reuse).reused() for rank in range(ranks)]
    run(first, steps)
    states = [feed.state() for feed in first]
    second = [loading(order, rank, later, reuse).resumed(states) for rank in range(later)]
    run(second, further)
    rest = Positions.deal(order, [feed.rest().state() for feed in second], 1)[0]
    for feed in [*first, *second]:
        feed.close()
    by_position = {}
    for position, _, use in used:
        by_position.setdefault(position, []).append(use)
    assert all(uses == list(range(len(uses))) for uses in map(sorted, by_position.values()))
    assert max(map(len, by_position.values()), default=0) <= repeat
    # In the stage without reuse each position comes that was not used yet, and none that was.
    ahead = list(itertools.islice(rest.ahead(), 40))
    assert not set(ahead) & by_position.keys()
    assert set(range(max(ahead) - max(ahead) % order.batch_size)) <= by_position.keys() | set(ahead)


def test_a_buffer_too_small_for_fewer_ranks_is_an_error_at_the_start_and_grows_later(caplog):
    order, reuse = Order(50, 8, seed=1), Reuse(repeat=2, shuffle_buffer=3)
    with pytest.raises(
        UsageError, match=r"reuse\.shuffle_buffer: 3 samples are less than the 8 that a rank uses of each batch of the task"
    ):
        loading(order, 0, 1, reuse).reused()
    first = [loading(order, rank, 4, reuse).reused() for rank in range(4)]
    for feed in first:
        feed.fetch()
        feed.used()
    with caplog.at_level("INFO"):
        shrunk = loading(order, 0, 1, reuse).resumed([feed.state() for feed in first])
    assert "shuffle_buffer: 3 samples are less than the 8" in caplog.text and "the buffer holds 8" in caplog.text
    assert len(shrunk.fetch().data) == 8
    for feed in [*first, shrunk]:
        feed.close()


def test_a_step_does_not_copy_the_buffer_and_its_state_is_known_while_a_sample_takes_for_ever(monkeypatch):
    order = Order(50, 8, seed=1)
    begun, released = threading.Event(), threading.Event()

    class Stuck(Numbers):
        def __getitem__(self, index):
            if stuck and threading.current_thread() is not threading.main_thread():
                begun.set()
                assert released.wait(patient(30))
            return index

    stuck = False
    feed = Loading(SampleSource(Stuck(50), None, list, 3, order), order, 0, 1, Reuse(repeat=3), None).reused()
    with monkeypatch.context() as patch:
        patch.setattr(ReuseBuffer, "_state", lambda *given: pytest.fail("the state of the whole buffer was made in a step"))
        for _ in range(10):
            feed.fetch()
            feed.used()
    before = feed.state()
    feed.fetch()
    assert feed.state() == before  # fetched, and not used
    feed.used()
    before = feed.state()
    assert before["buffer"]["positions"]
    stuck = True
    monkeypatch.setattr(script, "should_stop", begun.is_set)
    with pytest.raises(Interrupted):
        while True:
            before = feed.state()
            feed.fetch()
            feed.used()
    assert feed.state() == before
    released.set()
    feed.close()
    feed._loader._thread.join(patient(30))
    assert feed.state() == before


def test_a_loader_that_is_at_work_can_be_left_and_one_that_is_not_ends(monkeypatch):
    begun, released = threading.Event(), threading.Event()

    def load():
        begun.set()
        assert released.wait(patient(30))

    loader = Loader(load)
    monkeypatch.setattr(script, "should_stop", begun.is_set)
    with pytest.raises(Interrupted):
        loader.fetch()
    loader.close()  # does not wait
    assert loader._thread.is_alive()
    released.set()
    loader._thread.join(patient(30))
    assert not loader._thread.is_alive()

    idle = Loader(list)
    assert idle.fetch() == []
    idle.close()
    assert not idle._thread.is_alive()
