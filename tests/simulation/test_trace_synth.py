"""Workloads that are made: which jobs, with which models, deadlines and stopping rules; recipes; the command."""

from __future__ import annotations

import io
import itertools
import json
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from e2e import DaemonProcess
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import run as simulated
from stoker.engine.cli.main import run
from stoker.engine.cli.tracing.trace_synth import window
from stoker.engine.traces.attributes import KEYWORDS, MIXES, SPARED, Attributes
from stoker.engine.traces.formats import from_stoker as stoker
from stoker.engine.traces.formats.from_stoker import SCALES
from stoker.engine.traces.generate import Shape
from stoker.engine.traces.models import CATALOGUES, IterationTime, TraceModel, profiles
from stoker.engine.traces.read import read
from stoker.engine.traces.sampling import HOUR, Choice, scale_rows
from stoker.engine.traces.synth import from_nothing, sample
from stoker.engine.traces.trace import Trace, TraceJob, to_workload
from stoker.engine.traces.trace_check import check_jobs

DAY = 24 * HOUR


def source(count: int = 400, seed: int = 0, span: float = 4 * DAY) -> Trace:
    """A trace with all three scales, users and pools."""
    rng = np.random.default_rng(seed)
    submitted = np.sort(rng.uniform(0, span, count)).round(3).tolist()
    hours = np.exp(rng.uniform(np.log(0.01), np.log(60.0), count))
    gpus = rng.choice([1, 2, 4, 8], count)
    jobs = [
        TraceJob(
            key=f"j{row}",
            submitted=submitted[row],
            duration=float(hours[row] * HOUR / gpus[row]),
            gpus_min=int(gpus[row]),
            user_name=f"u{row % 9}",
            pool="p",
            raw={"column": "value"},
        )
        for row in range(count)
    ]
    return Trace(name="src", format="helios", source="src.csv", sha256="ab" * 32, jobs=jobs, starts_at=1e9)


SOURCE = source()


def as_bytes(trace: Trace) -> bytes:
    return msgspec.json.encode(trace)


def service(trace: Trace) -> float:
    return sum(job.duration * job.gpus_min for job in trace.jobs)


choices = st.builds(
    Choice,
    window=st.sampled_from([None, (0.0, DAY), (DAY, 3.5 * DAY), (2 * DAY, 99 * DAY)]),
    max_duration=st.sampled_from([None, HOUR]),
    max_gpus=st.sampled_from([None, 4]),
    jobs=st.sampled_from([None, 1, 20, 300]),
    replace=st.just(True),
)
attributes = st.builds(
    Attributes,
    models=st.sampled_from(["keep", *CATALOGUES]),
    models_by=st.sampled_from(["scale", "even"]),
    mix=st.sampled_from(["keep", *MIXES]),
    performance=st.sampled_from([None, 0.0, 0.5, 1.0]),
    elastic=st.sampled_from([1.0, 1.5, 8.0]),
    gpus=st.sampled_from([None, 4]),
)
seeds = st.integers(0, 1000)


# -- what always holds ---------------------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(choices, attributes, st.sampled_from(["keep", "poisson"]), seeds)
def test_every_workload_is_sound(choice: Choice, wanted: Attributes, arrivals: str, seed: int) -> None:
    made = sample(SOURCE, "w", choice=choice, wanted=wanted, arrivals=arrivals, seed=seed)
    check_jobs(made.jobs)  # what the daemon would refuse
    assert choice.jobs is None or len(made.jobs) == choice.jobs
    assert len({job.key for job in made.jobs}) == len(made.jobs)
    for job in made.jobs:
        assert 0 <= job.submitted < made.recipe["made"]["span_seconds"] + 1e-6
        assert job.duration >= 1 and job.raw is None
        check_deadlines(job)
    workload = to_workload(made, profiles())
    assert len(workload) == len(made.jobs)
    for row in range(len(workload)):
        tiers = slice(workload.tier_start[row], workload.tier_start[row + 1])
        assert (np.diff(workload.tier_deadline[tiers]) > 0).all() and (np.diff(workload.tier_reward[tiers]) < 0).all()


sources = st.lists(st.tuples(st.floats(0, 1e8), st.floats(0, 1e8), st.integers(1, 4096)), max_size=12)
small = st.builds(
    Choice,
    window=st.none() | st.tuples(st.floats(0, 1e8), st.floats(0, 1e8)),
    jobs=st.none() | st.integers(-1, 30),
    load=st.none() | st.floats(-1, 100),
    gpus=st.none() | st.integers(0, 4096),
    replace=st.booleans(),
    scales=st.sampled_from([None, (0.3, 0.6, 0.1), (1.0, 0.0, 0.0)]),
)


@settings(max_examples=200)
@given(sources, small, attributes, seeds)
def test_any_source_gives_a_sound_workload_or_one_line(
    rows: list[tuple[float, float, int]], choice: Choice, wanted: Attributes, seed: int
) -> None:
    jobs = [TraceJob(key=str(row), submitted=at, duration=took, gpus_min=gpus) for row, (at, took, gpus) in enumerate(sorted(rows))]
    try:
        made = sample(msgspec.structs.replace(SOURCE, jobs=jobs), "w", choice=choice, wanted=wanted, seed=seed)
    except ValueError as error:
        assert "\n" not in str(error)
        return
    check_jobs(made.jobs)
    assert made.jobs and len(to_workload(made, profiles())) == len(made.jobs)
    json.dumps(made.recipe, allow_nan=False)


def test_a_scale_without_any_job_is_told() -> None:
    medium = TraceJob(key="medium", submitted=0.0, duration=14.0, gpus_min=1000)
    jobs = [medium, TraceJob(key="later", submitted=60.0, duration=0.5, gpus_min=1)]
    with pytest.raises(ValueError, match=r"^load: .*small.* at a load of 0, 1 is asked for"):
        sample(msgspec.structs.replace(SOURCE, jobs=jobs), "w", choice=Choice(load=1.0, gpus=1000, scales=(1.0, 0.0, 0.0)), seed=0)


def check_deadlines(job: TraceJob) -> None:
    """002 ch. 5.4.2: the first deadline is 1.1 to 2 times the duration, soft ones go on from there and are worth ever less."""
    count = {"strict": 1, "soft": 4, "best-effort": 0}[job.demand]
    assert len(job.deadlines) == len(job.rewards) == count
    if count:
        assert 1.1 * job.duration * (1 - 1e-12) <= job.deadlines[0] <= 2 * job.duration * (1 + 1e-12)
        assert job.rewards == (100.0, 80.0, 50.0, 20.0)[:count]
        assert [after / job.deadlines[0] for after in job.deadlines] == pytest.approx([1.0, 1.1, 1.2, 1.5][:count])


@settings(max_examples=20)
@given(choices, attributes, seeds)
def test_the_same_seed_gives_the_same_bytes_and_another_one_does_not(choice: Choice, wanted: Attributes, seed: int) -> None:
    made = [as_bytes(sample(SOURCE, "w", choice=choice, wanted=wanted, seed=one)) for one in (seed, seed)]
    assert made[0] == made[1]
    some = Choice(jobs=100)
    assert sample(SOURCE, "w", choice=some, seed=seed).jobs != sample(SOURCE, "w", choice=some, seed=seed + 1).jobs


def test_a_workload_from_nothing_is_the_same_from_the_same_seed() -> None:
    shape = Shape(jobs=200, rate=0.01)
    first, again, other = (as_bytes(from_nothing("w", shape, wanted=Attributes(mix="mix2"), seed=seed)) for seed in (3, 3, 4))
    assert first == again != other


def test_what_is_assigned_does_not_change_which_jobs_are_drawn() -> None:
    plain, rich = (
        sample(SOURCE, "w", choice=Choice(jobs=50), wanted=wanted) for wanted in (Attributes(), Attributes(mix="slo", models="dlt"))
    )
    assert [job.key for job in plain.jobs] == [job.key for job in rich.jobs]
    assert {job.demand for job in plain.jobs} == {"best-effort"} and {job.demand for job in rich.jobs} == {"strict"}


def test_the_source_is_not_touched() -> None:
    before = as_bytes(SOURCE)
    sample(SOURCE, "w", choice=Choice(window=(DAY, 2 * DAY)), wanted=Attributes(mix="mix2", models="dlt", elastic=4))
    assert as_bytes(SOURCE) == before


# -- which jobs ----------------------------------------------------------------------------------------------------------


def test_a_window_is_counted_from_its_start() -> None:
    made = sample(SOURCE, "w", choice=Choice(window=(DAY, 2 * DAY)))
    inside = [job for job in SOURCE.jobs if DAY <= job.submitted < 2 * DAY]
    assert [job.key for job in made.jobs] == [job.key for job in inside]
    assert [job.submitted for job in made.jobs] == pytest.approx([job.submitted - DAY for job in inside])
    assert made.starts_at == 1e9 + DAY
    assert made.dropped == {"outside the window": len(SOURCE.jobs) - len(inside)}


def test_sampling_keeps_the_pattern_of_arrivals() -> None:
    """Twice as many jobs a day in the second half of the source, and so in the sample."""
    moments = np.sort(np.concatenate([np.linspace(0, DAY, 2000), np.linspace(DAY, 2 * DAY, 4000, endpoint=False)]))
    jobs = [TraceJob(key=str(row), submitted=at, duration=60.0, gpus_min=1) for row, at in enumerate(moments.tolist())]
    made = sample(msgspec.structs.replace(SOURCE, jobs=jobs), "w", choice=Choice(jobs=1500))
    late = sum(job.submitted >= DAY for job in made.jobs) / 1500
    assert late == pytest.approx(2 / 3, abs=0.04)
    scattered = sample(msgspec.structs.replace(SOURCE, jobs=jobs), "w", choice=Choice(jobs=1500), arrivals="poisson")
    assert sum(job.submitted >= DAY for job in scattered.jobs) / 1500 == pytest.approx(1 / 2, abs=0.04)


def test_what_does_not_fit_is_left_out_and_counted() -> None:
    rows = [(0.5, 1), (60.0, 1), (60.0, 16), (9e9, 1), (60.0, 2)]
    jobs = [TraceJob(key=str(row), submitted=float(row), duration=took, gpus_min=gpus) for row, (took, gpus) in enumerate(rows)]
    made = sample(msgspec.structs.replace(SOURCE, jobs=jobs), "w", choice=Choice(gpus=8, max_duration=HOUR, max_gpus=1))
    assert [job.key for job in made.jobs] == ["1"]
    assert made.dropped == {"shorter than 1s": 1, "longer than 1h": 1, "more than 1 GPU": 2}


@settings(max_examples=40)
@given(st.floats(0.05, 3.0), st.booleans(), seeds)
def test_the_load_is_as_asked_but_for_half_a_job(load: float, by_scale: bool, seed: int) -> None:
    scales = (0.3, 0.6, 0.1) if by_scale else None
    made = sample(SOURCE, "w", choice=Choice(load=load, gpus=16, replace=True, scales=scales), seed=seed)
    capacity = 16 * made.recipe["made"]["span_seconds"]
    largest = max(job.duration * job.gpus_min for job in SOURCE.jobs)
    assert abs(service(made) / capacity - load) <= max(largest / 2 / capacity, 1e-9) + 1e-9
    assert made.recipe["made"]["load"] == pytest.approx(service(made) / capacity)


def test_without_replacement_the_load_ends_where_the_jobs_do() -> None:
    whole = sample(SOURCE, "w", choice=Choice(gpus=16)).recipe["made"]["load"]
    assert len(sample(SOURCE, "w", choice=Choice(load=whole, gpus=16)).jobs) == len(SOURCE.jobs)
    with pytest.raises(ValueError, match=r"load: the 400 jobs that there are are used up at a load of .* ask for less, or add replace"):
        sample(SOURCE, "w", choice=Choice(load=whole * 1.1, gpus=16))


def test_copies_come_in_the_hour_of_the_first_and_have_keys_of_their_own() -> None:
    few = msgspec.structs.replace(SOURCE, jobs=SOURCE.jobs[:5])
    made = sample(few, "w", choice=Choice(jobs=100, replace=True))
    first = few.jobs[0].submitted
    origin = {job.key: (job.submitted - first) // HOUR for job in few.jobs}
    copies = [job for job in made.jobs if "#" in job.key]
    assert len(made.jobs) == 100 and len(copies) >= 95
    assert all(job.submitted // HOUR == origin[job.key.split("#")[0]] for job in copies)
    assert len({job.submitted for job in made.jobs}) == 100


def test_scales_are_drawn_as_often_as_asked() -> None:
    """002 ch. 3.5.1: small, medium and large with 0.3, 0.6 and 0.1."""
    made = sample(SOURCE, "w", choice=Choice(jobs=5000, replace=True, scales=(0.3, 0.6, 0.1)))
    counts = Counter(job.scale for job in made.jobs)
    assert [counts[scale] / 5000 for scale in SCALES] == pytest.approx([0.3, 0.6, 0.1], abs=0.02)
    assert max(job.duration * job.gpus_min for job in made.jobs) <= 64 * HOUR


def test_borders_of_scales_belong_to_the_smaller_one() -> None:
    hours = np.array([0.0, 0.5, 0.5001, 10.0, 10.001, 64.0, 1000.0])
    assert [SCALES[row] for row in scale_rows(hours * HOUR)] == ["small"] * 2 + ["medium"] * 2 + ["large"] * 3


# -- what is assigned ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mix", MIXES)
def test_mixes_have_their_shares(mix: str) -> None:
    made = sample(SOURCE, "w", choice=Choice(jobs=5000, replace=True), wanted=Attributes(mix=mix))
    counts = Counter(job.demand for job in made.jobs)
    assert set(counts) == set(MIXES[mix])
    for demand, share in MIXES[mix].items():
        assert counts[demand] / 5000 == pytest.approx(share, abs=0.02)
    assert sum(MIXES[mix].values()) == pytest.approx(1.0)


def test_first_deadlines_are_spread_evenly() -> None:
    made = sample(SOURCE, "w", choice=Choice(jobs=4000, replace=True), wanted=Attributes(mix="mix2"))
    factors = np.array([job.deadlines[0] / job.duration for job in made.jobs if job.deadlines])
    assert np.quantile(factors, [0.0, 0.25, 0.5, 0.75, 1.0]) == pytest.approx([1.1, 1.325, 1.55, 1.775, 2.0], abs=0.03)


def test_shares_may_be_given() -> None:
    made = sample(SOURCE, "w", wanted=Attributes(mix="mix2", shares={"soft": 1.0}))
    assert {job.demand for job in made.jobs} == {"soft"}
    assert made.recipe["attributes"]["shares"] == {"soft": 1.0}


def test_a_fifth_stops_by_performance_and_only_models_whose_names_hint_at_it() -> None:
    made = sample(SOURCE, "w", choice=Choice(jobs=5000, replace=True), wanted=Attributes(mix="slo", models="dlt", models_by="even"))
    stops = Counter(job.stop for job in made.jobs)
    assert stops["performance"] / 5000 == pytest.approx(0.2, abs=0.02) and stops["iterations"] == 5000 - stops["performance"]
    for job in made.jobs:
        if job.stop == "performance":
            assert any(word in str(job.model) for word in KEYWORDS)
            assert job.estimate is not None and job.duration <= job.estimate <= job.duration / (1 - max(SPARED))
        else:
            assert job.estimate is None


def test_where_no_name_hints_any_job_may_stop_by_performance() -> None:
    made = sample(SOURCE, "w", wanted=Attributes(performance=1.0))
    assert {job.stop for job in made.jobs} == {"performance"}


def test_nothing_is_assigned_unasked() -> None:
    made = sample(SOURCE, "w")
    kept = [msgspec.structs.replace(job, scale=None, submitted=0.0, raw=None) for job in made.jobs]
    assert kept == [msgspec.structs.replace(job, submitted=0.0, raw=None) for job in SOURCE.jobs]


@pytest.mark.parametrize("catalogue", CATALOGUES)
def test_models_fit_the_scale_of_the_job(catalogue: str) -> None:
    made = sample(SOURCE, "w", choice=Choice(jobs=3000, replace=True), wanted=Attributes(models=catalogue))
    by_name = {model.name: model for model in CATALOGUES[catalogue]}
    assert all(by_name[str(job.model)].scale == job.scale for job in made.jobs)
    for scale in SCALES:
        models = [model for model in by_name.values() if model.scale == scale]
        counts = Counter(job.model for job in made.jobs if job.scale == scale)
        total = sum(model.share for model in models)
        assert [counts[model.name] / counts.total() for model in models] == pytest.approx([m.share / total for m in models], abs=0.06)


def test_iterations_follow_from_duration_and_speed() -> None:
    """Eqn 5.2 by hand: 0.1039 s and one time 1.452 ms on two GPUs of a node, three times 25.2 ms over nodes of two."""
    jobs = [TraceJob(key=str(gpus), submitted=float(gpus), duration=100.0, gpus_min=gpus) for gpus in (1, 2, 4)]
    few = msgspec.structs.replace(SOURCE, jobs=jobs)
    made = sample(few, "w", wanted=Attributes(models="dlt", models_by="scale", per_node=2), seed=0)
    assert {job.scale for job in made.jobs} == {"small"}
    step = {
        "resnet18-cifar10": {1: 0.1039, 2: 0.1039 + 0.001452, 4: 0.1039 + 3 * 0.0252},
        "neumf-movielens": {1: 0.02132, 2: 0.02132 + 0.003549, 4: 0.02132 + 3 * 0.01341},
    }
    assert [job.iterations for job in made.jobs] == [round(100 / step[str(job.model)][job.gpus_min]) for job in made.jobs]


def test_batch_sizes_of_the_whole_job_stay() -> None:
    whole = TraceModel("m", "small", 1.0, 64, True, IterationTime(0.0, 0.01, 0.1, 0.2))
    each = TraceModel("m", "small", 1.0, 64, False, IterationTime(0.0, 0.01, 0.1, 0.2))
    assert (whole.batch_on(4), each.batch_on(4)) == (64, 256)
    assert whole.iteration(4, spread=False) == pytest.approx(0.16 + 0.3)
    assert each.iteration(4, spread=True) == pytest.approx(0.64 + 0.6)
    fast, slow = whole.profile(), each.profile()
    assert fast is not None and slow is not None and fast.throughput is not None and slow.throughput is not None
    assert fast.throughput.rate(4) == pytest.approx(1 / 0.46)
    assert slow.throughput.rate(4, spread=True) == pytest.approx(4 / 1.24)


def test_catalogues_are_whole() -> None:
    for models in CATALOGUES.values():
        assert len({model.name for model in models}) == len(models)
        assert {model.scale for model in models} == set(SCALES)
    known = {profile.name for profile in profiles()}
    assert known == {model.name for model in itertools.chain(*CATALOGUES.values()) if model.speed is not None}


def ends(policy: str, nodes: str, *jobs: tuple[float, float, int, str]) -> list[float]:
    """When jobs of (submission, duration, GPUs, model) end under a policy."""
    made = [
        TraceJob(key=str(row), submitted=at, duration=took, gpus_min=gpus, model=model) for row, (at, took, gpus, model) in enumerate(jobs)
    ]
    result = simulated(to_workload(msgspec.structs.replace(SOURCE, jobs=made), profiles()), policy, nodes)
    return [float(end) for end in result.fates.ended]


@pytest.mark.parametrize(
    ("model", "knob", "expected"),
    [
        ("resnet18-cifar10", 2, [100.0, 200.0]),  # scores of 2 and 2 are too many
        ("resnet18-cifar10", 4, [192.6, 192.6]),  # both use 0.963 of the one GPU
        ("neumf-movielens", -1, [100.0, 200.0]),
        ("neumf-movielens", 0, [100.0, 100.0]),
        ("bert-squad", 4, [100.0, 200.0]),  # 0.831 of the memory each
        ("deepspeech2-cmuarctic", 3, [100.0, 200.0]),  # of unknown use
    ],
)
def test_lucid_packs_models_whose_use_of_a_gpu_is_published(model: str, knob: int, expected: list[float]) -> None:
    found = ends(f"lucid,profiler_capacity=0,pack_knob={knob}", "1x1", (0.0, 100.0, 1, model), (0.0, 100.0, 1, model))
    assert found == pytest.approx(expected)


@pytest.mark.parametrize("policy", ["tiresias", "themis,lease_term=100000"])
@pytest.mark.parametrize(("limit", "starts"), [(0.3, 20.0), (0.1, 1000.0)])
def test_models_of_small_skew_are_spread(policy: str, limit: float, starts: float) -> None:
    """After 10 s each of the two nodes has one free GPU. BERT's largest tensor is 0.21 of it; on two nodes its step is 1.69 as long."""
    neumf = [(0.0, 1000.0, 1, "neumf-movielens"), (0.0, 10.0, 1, "neumf-movielens"), (0.0, 1000.0, 1, "neumf-movielens")]
    slower = (0.9215 + 0.7327) / (0.9215 + 0.05512) if limit > 0.21 else 1.0
    found = ends(f"{policy},pack_limit={limit}", "2x2", *neumf, (20.0, 100.0, 2, "bert-squad"))
    assert found[3] == pytest.approx(starts + 100.0 * slower)


def test_pollux_chooses_larger_batches_where_they_are_published() -> None:
    """Alone on its GPU: a pass of 1 024 samples of ResNet-18 costs less a sample than one of 129, and its noise scale bears it."""
    job = (0.0, 10_000.0, 1, "resnet18-cifar10")
    assert ends("pollux,adapt_batch_size=false", "1x1", job) == pytest.approx([10_000.0])
    assert ends("pollux", "1x1", job)[0] < 9_500.0
    assert ends("pollux", "1x1", (0.0, 10_000.0, 1, "vit-base/mnist")) == pytest.approx([10_000.0])  # its batch size stays
    widest = [(0.0, 1000.0, 512, model.name) for model in CATALOGUES["dlt"]]
    assert all(np.isfinite(ends("pollux", "64x8", *widest))), "more GPUs than any batch was measured on"


def test_elastic_jobs_can_use_more_but_not_more_than_there_are() -> None:
    made = sample(SOURCE, "w", wanted=Attributes(elastic=3.0, gpus=6))
    assert {(job.gpus_min, job.gpus_max) for job in made.jobs} == {(1, 3), (2, 6), (4, 6), (8, 8)}


# -- from nothing --------------------------------------------------------------------------------------------------------


def test_jobs_from_nothing_have_the_shape_that_was_asked_for() -> None:
    shape = Shape(jobs=20_000, rate=0.5, median=600.0, sigma=1.5, requests={1: 3.0, 8: 1.0})
    made = from_nothing("w", shape)
    gaps = np.diff([job.submitted for job in made.jobs])
    logs = np.log([job.duration for job in made.jobs])
    assert gaps.mean() == pytest.approx(2.0, rel=0.03) and gaps.std() == pytest.approx(2.0, rel=0.05)  # as exponential gaps have it
    assert np.median(logs) == pytest.approx(np.log(600), abs=0.05) and logs.std() == pytest.approx(1.5, rel=0.03)
    assert Counter(job.gpus_min for job in made.jobs)[8] / 20_000 == pytest.approx(0.25, abs=0.02)


@given(st.floats(0.1, 5.0), st.integers(2, 200), seeds)
def test_the_load_from_nothing_is_as_asked(load: float, jobs: int, seed: int) -> None:
    made = from_nothing("w", Shape(jobs=jobs, load=load, gpus=32), seed=seed)
    check_jobs(made.jobs)
    assert service(made) / (32 * made.jobs[-1].submitted) == pytest.approx(load, rel=1e-3)


# -- recipes -------------------------------------------------------------------------------------------------------------


def test_the_recipe_says_everything() -> None:
    choice = Choice(window=(0.0, 3 * DAY), jobs=30, scales=(0.3, 0.6, 0.1))
    made = sample(SOURCE, "w", choice=choice, wanted=Attributes(mix="mix1", models="dlt"), seed=9, version="1.2")
    recipe = made.recipe
    assert recipe is not None
    assert recipe["source"] == {"name": "src", "format": "helios", "sha256": "ab" * 32, "jobs": 400, "recipe": None}
    assert (recipe["seed"], recipe["version"], recipe["numpy"]) == (9, "1.2", np.__version__)
    assert set(recipe["choice"]) == set(Choice.__slots__) and set(recipe["attributes"]) == set(Attributes.__slots__)
    assert recipe["attributes"]["performance"] == 0.2 and recipe["attributes"]["shares"] == dict(MIXES["mix1"])
    assert (made.source, made.sha256, made.format) == ("src", "ab" * 32, "synth")
    again = sample(made, "x", choice=Choice(jobs=3))
    assert again.recipe is not None and again.recipe["source"]["recipe"] == recipe


@pytest.mark.parametrize(
    "make",
    [
        lambda: sample(SOURCE, "w", choice=Choice(window=(0.0, float("inf")), jobs=9), wanted=Attributes(mix="mix2", models="dlt")),
        lambda: from_nothing("w", Shape(jobs=9, load=0.5, gpus=16), wanted=Attributes(mix="mix2")),
    ],
)
def test_a_workload_survives_its_file(make: Callable[[], Trace], tmp_path: Path) -> None:
    made = make()
    text = io.StringIO(newline="")
    stoker.write(made, text)
    path = tmp_path / "w.csv"
    path.write_text(text.getvalue(), newline="")
    back = read(path)
    assert back.jobs == made.jobs and back.recipe == made.recipe


# -- what is refused -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: sample(SOURCE, "w", wanted=Attributes(mix="mix3")), "mix: 'mix3' is unknown; did you mean 'mix2'"),
        (lambda: sample(SOURCE, "w", wanted=Attributes(models="cnn")), "models: 'cnn' is unknown; known are keep, dlt"),
        (lambda: sample(SOURCE, "w", wanted=Attributes(shares={"strict": 0.4})), "shares: .* must be probabilities that add to 1"),
        (lambda: sample(SOURCE, "w", wanted=Attributes(shares={"hard": 1.0})), "shares: 'hard' is unknown"),
        (lambda: sample(SOURCE, "w", wanted=Attributes(performance=1.1)), "performance: 1.1 is outside 0 to 1"),
        (lambda: sample(SOURCE, "w", wanted=Attributes(elastic=float("nan"))), "elastic: nan is outside"),
        (lambda: sample(SOURCE, "w", choice=Choice(load=0.0, gpus=8)), "load: 0 must be above 0"),
        (lambda: sample(SOURCE, "w", choice=Choice(load=float("nan"), gpus=8)), "load: nan must be above 0"),
        (lambda: sample(SOURCE, "w", choice=Choice(load=-1.0, gpus=8)), "load: -1 must be above 0"),
        (lambda: sample(SOURCE, "w", choice=Choice(load=1.0)), "load: is of a cluster"),
        (lambda: sample(SOURCE, "w", choice=Choice(load=1.0, jobs=3, gpus=8)), "jobs, load: give one of them"),
        (lambda: sample(SOURCE, "w", choice=Choice(jobs=401)), "jobs: 401 are asked for and there are 400"),
        (lambda: sample(SOURCE, "w", choice=Choice(jobs=0)), "jobs: 0 is outside 1 to"),
        (lambda: sample(SOURCE, "w", choice=Choice(window=(5.0, 5.0))), "window: .* is empty"),
        (lambda: sample(SOURCE, "w", choice=Choice(window=(float("nan"), 5.0))), "window: .* is empty"),
        (lambda: sample(SOURCE, "w", choice=Choice(window=(9 * DAY, 10 * DAY))), "window: no job of 'src' was submitted in 9 to 10 days"),
        (lambda: sample(SOURCE, "w", choice=Choice(window=(-5 * DAY, 0.0))), "window: no job of 'src' was submitted in -5 to 0 days"),
        (lambda: sample(SOURCE, "w", choice=Choice(scales=(0.3, 0.6, 0.1))), "scales: say how many jobs"),
        (lambda: sample(SOURCE, "w", choice=Choice(scales=(0.3, 0.6, 0.6), jobs=3)), "scales: .* that add to 1"),
        (lambda: sample(SOURCE, "w", choice=Choice(scales=(0.0, 0.0, 1.0), jobs=390)), "jobs: the jobs of one scale are used up"),
        (lambda: sample(SOURCE, "w", choice=Choice(min_duration=1e9)), "no job of 'src' is left to choose from: 400 shorter than"),
        (lambda: sample(source(0), "w"), "no job of 'src' is left to choose from: it has none"),
        (lambda: sample(source(9, span=0.0), "w", choice=Choice(load=1.0, gpus=8)), "load: all jobs arrive in the same second"),
        (lambda: sample(SOURCE, "w", arrivals="bursty"), "arrivals: 'bursty' is unknown"),
        (lambda: sample(SOURCE, "w", seed=-1), "seed: -1 must be 0 or above"),
        (lambda: from_nothing("w", Shape(jobs=3)), "rate, load: say how often"),
        (lambda: from_nothing("w", Shape(jobs=3, rate=1.0, load=1.0, gpus=8)), "rate, load: say how often"),
        (lambda: from_nothing("w", Shape(jobs=3, rate=0.0)), "rate: 0 must be above 0"),
        (lambda: from_nothing("w", Shape(jobs=3, rate=1.0, requests={0: 1.0})), "requests: write GPUs:WEIGHT"),
        (lambda: from_nothing("w", Shape(jobs=3, load=1.0, gpus=4, requests={8: 1.0})), "requests: 8 GPUs are more than"),
        (lambda: from_nothing("w", Shape(jobs=3, rate=1.0, sigma=float("inf"))), "sigma: inf is outside"),
        (lambda: from_nothing("w", Shape(jobs=3, rate=1.0, requests={10**9: 1.0})), "requests: 1000000000 GPUs are more than a trace"),
        (lambda: from_nothing("w", Shape(jobs=1, load=1.0, gpus=16)), "load: one job has no rate"),
        (lambda: from_nothing("w", Shape(jobs=9, load=1e-300, gpus=16)), "load: is so little that .* over more than 3000 years"),
        (lambda: from_nothing("w", Shape(jobs=9, rate=5e-324)), "rate: is so little that .* over more than 3000 years"),
    ],
)
def test_what_cannot_be_is_refused_in_a_line(make: Callable[[], Trace], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_a_window_of_dates_that_begins_before_the_trace_is_cut_to_it() -> None:
    assert sample(SOURCE, "w", choice=Choice(window=(-DAY, DAY))).jobs == sample(SOURCE, "w", choice=Choice(window=(0.0, DAY))).jobs


def test_a_window_beside_the_trace_says_when_the_trace_was() -> None:
    dated = msgspec.structs.replace(SOURCE, starts_at=1506062877.0)
    with pytest.raises(ValueError, match=r"its jobs came in 0.* to .* days, which is 2017-09-22 \d\d:\d\d to 2017-\d\d-\d\d \d\d:\d\d UTC"):
        sample(dated, "w", choice=Choice(window=(-9 * DAY, -8 * DAY)))
    with pytest.raises(ValueError, match=r"its jobs came in 0.* days$"):
        sample(msgspec.structs.replace(SOURCE, starts_at=1e300), "w", choice=Choice(window=(-9 * DAY, -8 * DAY)))


# -- the command ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2d..16d", (2 * DAY, 16 * DAY)),
        ("..1h", (0.0, HOUR)),
        ("90..", (90.0, float("inf"))),
        ("1970-01-02..1970-01-02T12:00", (DAY - 100, 1.5 * DAY - 100)),
        ("1970-01-02T00:00+01:00..3d", (23 * HOUR - 100, 3 * DAY)),
    ],
)
def test_windows_are_durations_or_dates(text: str, expected: tuple[float, float]) -> None:
    assert window(text, 100.0) == expected


@pytest.fixture
def csv(tmp_path: Path) -> str:
    path = tmp_path / "src.csv"
    with open(path, "w", newline="") as file:
        stoker.write(msgspec.structs.replace(SOURCE, starts_at=None), file)
    return str(path)


def synth(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert run(["trace", "synth", *arguments, "--json"]) == 0, capsys.readouterr().err
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return answer


def test_the_command_writes_a_file(csv: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    to = tmp_path / "w.csv"
    arguments = ["--jobs", "50", "--window", "12h..3d", "--mix", "mix2", "--models", "dlt", "--nodes", "2x4", "--to", str(to)]
    answer = synth(capsys, csv, "--name", "w", *arguments)
    made = read(to)
    assert answer["jobs"] == len(made.jobs) == 50 and answer["file"] == str(to)
    assert made.name == "w" and made.recipe == answer["recipe"]
    assert answer["recipe"]["attributes"]["per_node"] == 4 and answer["recipe"]["choice"]["window"][0] == DAY / 2
    assert {job.demand for job in made.jobs} == {"strict", "soft", "best-effort"}


def test_the_command_makes_a_workload_from_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    to = str(tmp_path / "w.csv.gz")
    arguments = ["--jobs", "60", "--rate", "30", "--median", "5m", "--sigma", "0.5", "--requests", "1:1,2:3", "--to", to]
    answer = synth(capsys, "--name", "w", *arguments)
    shape = answer["recipe"]["shape"]
    assert (shape["median"], shape["sigma"], shape["requests"]) == (300.0, 0.5, {"1": 1.0, "2": 3.0})
    assert shape["rate"] == pytest.approx(30 / 3600)
    assert len(read(Path(to)).jobs) == 60


def test_requests_that_do_not_fit_are_left_out_unless_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--jobs", "120", "--load", "1.1", "--nodes", "2x4", "--mix", "mix1", "--to", str(tmp_path / "w.csv")]
    answer = synth(capsys, "--name", "w", *arguments)
    assert list(answer["recipe"]["shape"]["requests"]) == ["1", "2", "4", "8"]
    assert answer["recipe"]["made"]["load"] == pytest.approx(1.1, abs=0.01)
    assert run(["trace", "synth", "--name", "w", "--force", *arguments, "--requests", "1:9,16:1"]) == 2
    assert "--requests: 16 GPUs are more than the cluster's 8" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--mix", "mix9"], "--mix: 'mix9' is unknown"),
        (["--load", "0", "--nodes", "1x8"], "--load: 0 must be above 0"),
        (["--jobs", "4000"], "--jobs: 4000 are asked for and there are 400 to choose from; ask for fewer, or add --replace"),
        (["--window", "900d..901d"], "--window: no job of"),
        (["--window", "1d"], "--window: '1d' is not START..END"),
        (["--window", "2017-09-22.."], "--window: '2017-09-22' is a date, and the trace does not tell when it was"),
        (["--window", "soon..later"], "--window: must be a duration"),
        (["--rate", "3"], "--rate: is for workloads from nothing"),
        (["--shares", "strict"], "--shares: 'strict' is not DEMAND=SHARE, such as strict=0.5"),
        (["--shares", "strict=2"], "--shares: strict=2 must be probabilities that add to 1"),
        (["--load", "1", "--jobs", "3", "--nodes", "1x8"], "--jobs, --load: give one of them"),
        (["--min-duration", "100d"], "400 shorter than 100d"),
        (["--scales", "0.5,0.5"], "--scales: '0.5,0.5' is not three numbers"),
        (["--nodes", "8"], "--nodes: '8' is not NODESxGPUS"),
        (["--max-duration", "x"], "--max-duration: must be a duration"),
    ],
)
def test_bad_options_get_one_line(csv: str, arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    to = tmp_path / "w.csv"
    assert run(["trace", "synth", csv, "--name", "w", "--to", str(to), *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1 and not to.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--name", "w"], "--jobs: say how many"),
        (["--name", "w", "--jobs", "5", "--rate", "1", "--replace"], "--replace: needs a SOURCE"),
        (["--name", "w.csv", "--jobs", "5", "--rate", "1"], "--name: 'w.csv' would be taken for a file"),
        *(
            (["--name", "w", "--jobs", "5", "--nodes", "1x8", option, value], f"'{option}': '{value}' is not a finite number")
            for option in ("--load", "--rate", "--sigma", "--performance", "--elastic")
            for value in ("nan", "inf")
        ),
        (["--name", "w", "--jobs", "5"], "--rate, --load: say how often"),
        (["--name", "w", "--jobs", "5", "--rate", "1", "--requests", "1:a"], "--requests: '1:a' is not GPUS:WEIGHT, such as 8:0.1"),
    ],
)
def test_bad_options_without_a_source_get_one_line(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["trace", "synth", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_a_workload_is_stored_with_its_recipe_and_made_from_again(
    csv: str, start_daemon: Callable[..., DaemonProcess], capsys: pytest.CaptureFixture[str]
) -> None:
    home = str(start_daemon().home.path)
    made = synth(capsys, csv, "--name", "first", "--jobs", "200", "--mix", "mix2", "--home", home)
    assert not made["existing"]
    assert synth(capsys, csv, "--name", "first", "--jobs", "200", "--mix", "mix2", "--home", home)["existing"]
    again = synth(capsys, "first", "--name", "second", "--jobs", "20", "--home", home)
    assert again["recipe"]["source"]["recipe"] == made["recipe"]
    assert run(["trace", "show", "second", "--home", home]) == 0
    shown = capsys.readouterr().out
    assert "\n  choice      min duration 1, jobs 20\n" in shown and "None" not in shown and "{" not in shown
    assert run(["trace", "describe", "second", "--home", home, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["jobs"] == 20
    assert run(["trace", "synth", csv, "--name", "first", "--jobs", "199", "--home", home]) == 4
    assert "first" in capsys.readouterr().err


# -- real traces ---------------------------------------------------------------------------------------------------------


@pytest.mark.skipif("STOKER_TRACES" not in os.environ, reason="STOKER_TRACES is not set to the directory of the real traces")
def test_philly_as_002_makes_it() -> None:
    philly = read(Path(os.environ["STOKER_TRACES"]) / "philly" / "philly_pollux_2w_20170922_20171005.csv")
    made = sample(philly, "p-mix2", choice=Choice(load=0.5, gpus=800), wanted=Attributes(mix="mix2", models="dlt"))
    assert made.recipe is not None and made.recipe["made"]["load"] == pytest.approx(0.5, rel=0.01)
    for job in made.jobs:
        check_deadlines(job)
