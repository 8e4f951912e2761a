"""Whatever the stages, the buffers and the resizes while it runs: each sample once, in order when asked; faults always arrive."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipeline_work import Broken, FailsAt, nothing_left, same, uneven
from stoker.runners.loaders.pipeline import Pipeline
from stoker.runners.loaders.stages import Batch, Map, Prefetch, Shuffle, Source, Stage

SAMPLES = 60

workers = st.integers(1, 5)
middle = st.one_of(
    st.builds(lambda count: Map(uneven, workers=count), workers),
    st.builds(lambda buffer, seed: Shuffle(buffer, seed=seed), st.integers(1, 80), st.integers(0, 3)),
    st.builds(Prefetch, st.integers(1, 3)),
)


@st.composite
def stage_lists(draw: st.DrawFn, *, batches: bool = True) -> list[Stage]:
    """A source, up to four stages in any order, perhaps batches, perhaps a prefetch: each with a name of its own."""
    source = draw(st.sampled_from([lambda: range(SAMPLES), lambda: lambda: iter(range(SAMPLES))]))()
    read = Source(source, workers=draw(workers)) if isinstance(source, range) else Source(source)
    stages: list[Stage] = [read]
    for stage in draw(st.lists(middle, max_size=4)):
        if not (isinstance(stage, Prefetch) and isinstance(stages[-1], Prefetch)):
            stages.append(stage)
    if batches and draw(st.booleans()):
        stages.append(Batch(draw(st.integers(1, 70)), collate=list, drop_last=False, workers=draw(workers)))
        stages.append(Prefetch(draw(st.integers(1, 3))))
    return [_renamed(stage, f"{index}-{stage.name}") for index, stage in enumerate(stages)]


def _renamed(stage: Stage, name: str) -> Stage:
    return dataclasses.replace(stage, name=name)


bounds = st.fixed_dictionaries({"queue_items": st.integers(1, 40), "queue_mib": st.integers(1, 2)})
resizes = st.lists(st.lists(st.integers(1, 6), min_size=10, max_size=10), max_size=SAMPLES)


def consumed(pipeline: Pipeline, resizing: list[list[int]]) -> list[int]:
    """One pass, with a resize after each of the first items."""
    changes, seen = iter(resizing), []
    for item in pipeline:
        seen += item if isinstance(item, list) else [item]
        if (values := next(changes, None)) is not None:
            pipeline.set(tuple(values[: len(pipeline.knobs)]))
    return seen


def by_one_worker(stages: list[Stage], passes: int) -> list[list[int]]:
    """What the stages give when each has one worker and nothing is resized."""
    pipeline = Pipeline(stages)
    pipeline.set((1,) * len(pipeline.knobs))
    return [consumed(pipeline, []) for _ in range(passes)]


@given(stages=stage_lists(), options=bounds, resizing=resizes)
def test_ordered_each_sample_once_and_where_one_worker_would_put_it(stages: list[Stage], options: Any, resizing: list[list[int]]) -> None:
    with nothing_left():
        pipeline = Pipeline(stages, **options)
        passes = [consumed(pipeline, resizing), consumed(pipeline, resizing[::-1])]
        assert passes == by_one_worker(stages, 2)
    assert [sorted(seen) for seen in passes] == [list(range(SAMPLES))] * 2


@given(stages=stage_lists(), options=bounds, resizing=resizes)
def test_unordered_each_sample_once(stages: list[Stage], options: Any, resizing: list[list[int]]) -> None:
    with nothing_left():
        seen = consumed(Pipeline(stages, ordered=False, **options), resizing)
    assert sorted(seen) == list(range(SAMPLES))


@given(stages=stage_lists(), after=st.integers(0, SAMPLES), resizing=resizes, ordered=st.booleans())
def test_left_and_resumed_anywhere(stages: list[Stage], after: int, resizing: list[list[int]], ordered: bool) -> None:
    with nothing_left():
        first, begun = Pipeline(stages, ordered=ordered), []
        for count, item in enumerate(first, 1):
            begun += item if isinstance(item, list) else [item]
            if count > after:
                break
        else:
            begun = []  # the pass has come to its end: the state begins the next one
        second = Pipeline(stages, ordered=ordered)
        second.load_state_dict(state := first.state_dict())
        seen = begun + consumed(second, resizing)
        assert sorted(seen) == list(range(SAMPLES))
        if ordered:
            assert seen == by_one_worker(stages, 2)[state["pass"]]


@given(
    stages=stage_lists(batches=False),
    at=st.integers(0, SAMPLES - 1),
    place=st.integers(1, 5),
    resizing=resizes,
    ordered=st.booleans(),
    count=workers,
)
def test_a_fault_anywhere_arrives_and_ends_everything(
    stages: list[Stage], at: int, place: int, resizing: list[list[int]], ordered: bool, count: int
) -> None:
    faulty = Map(FailsAt(at, Broken("bad")), name="faulty", workers=count)
    where = min(place, len(stages))
    with nothing_left(), pytest.raises(Broken) as raised:
        consumed(Pipeline([*stages[:where], faulty, *stages[where:]], ordered=ordered), resizing)
    assert raised.value.__notes__ == [f"in stage 'faulty' of the pipeline, item {at}"]


@settings(max_examples=5)
@given(
    first=workers,
    buffer=st.integers(1, 80),
    resizing=st.lists(st.lists(st.integers(1, 3), min_size=10, max_size=10), min_size=10, max_size=40),
    ordered=st.booleans(),
)
def test_processes_resized_while_they_run(first: int, buffer: int, resizing: list[list[int]], ordered: bool) -> None:
    stages = [
        Source(range(SAMPLES)),
        Shuffle(buffer),
        Map(uneven, name="udf", workers=min(first, 3), processes=True),
        Map(same, workers=2),
        Batch(3, collate=list),
        Prefetch(1),
    ]
    with nothing_left(), Pipeline(stages, ordered=ordered) as pipeline:
        seen = consumed(pipeline, resizing)
        if ordered:
            assert seen == by_one_worker([stages[0], stages[1], Batch(3, collate=list)], 1)[0]
    assert sorted(seen) == list(range(SAMPLES))


@settings(max_examples=4)
@given(at=st.integers(0, SAMPLES - 1), count=st.integers(1, 3), ordered=st.booleans())
def test_a_fault_in_a_process_arrives_and_ends_everything(at: int, count: int, ordered: bool) -> None:
    with nothing_left(), pytest.raises(Broken) as raised:
        list(
            Pipeline([Source(range(SAMPLES)), Map(FailsAt(at, Broken("bad")), name="udf", workers=count, processes=True)], ordered=ordered)
        )
    assert raised.value.__notes__[-1] == f"in stage 'udf' of the pipeline, item {at}"
