"""What is told of a trace: quantiles, periods, recurrence, load, shares; the figures, the page and the command."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stoker.engine.cli.main import run
from stoker.engine.report import style
from stoker.engine.report.trace_page import SECTIONS, write_trace_report
from stoker.engine.report.trace_plots import FIGURES
from stoker.engine.traces.describe import Description, by_name, by_request, cdf, demand, quantiles, recurrence
from stoker.engine.traces.periods import LONGEST_PERIOD, MOST_BUCKETS, arrivals, dominating_period, periodic_part
from stoker.engine.traces.trace import Trace, TraceJob

HOUR = 3600.0


def make(rows: Sequence[tuple[float, float, int]], **more: Sequence[Any]) -> Trace:
    """A trace of (submitted, duration, GPUs), with more columns by name."""
    jobs = [
        TraceJob(
            key=str(place), submitted=submitted, duration=took, gpus_min=gpus, **{name: column[place] for name, column in more.items()}
        )
        for place, (submitted, took, gpus) in enumerate(rows)
    ]
    return Trace(name="t", format="stoker", source="t.csv", sha256="0" * 64, jobs=jobs)


def hourly(period: float, hours: int, seed: int = 0, mean: float = 20.0, swing: float = 12.0) -> np.ndarray:
    """Counts an hour of a Poisson process whose rate is a sine."""
    at = np.arange(hours)
    return np.random.default_rng(seed).poisson(mean + swing * np.sin(2 * np.pi * at / period)).astype(float)


@pytest.fixture(autouse=True)
def _coarse_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most of the time that a figure takes goes by its dots."""
    monkeypatch.setattr(style, "DPI", 30)


# -- durations and requests ----------------------------------------------------------------------------------------------


def test_quantiles_by_hand() -> None:
    found = quantiles(np.array([4.0, 1.0, 3.0, 2.0, 5.0]))
    assert (found["min"], found["mean"], found["p50"], found["p75"], found["max"]) == (1.0, 3.0, 3.0, 4.0, 5.0)


def test_quantiles_of_nothing_are_none() -> None:
    assert set(quantiles(np.zeros(0)).values()) == {None}


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=500), st.integers(2, 50))
def test_a_thinned_cdf_is_part_of_the_whole_one(values: list[float], most: int) -> None:
    whole = dict(zip(*(part.tolist() for part in cdf(np.array(values), len(values))), strict=True))
    x, y = cdf(np.array(values), most)
    assert len(x) <= most and y[-1] == 1.0 and x[-1] == max(values) and x[0] == min(values)
    assert (np.diff(x) >= 0).all() and (np.diff(y) > 0).all()
    assert all(share <= whole[value] for value, share in zip(x.tolist(), y.tolist(), strict=True))


def test_requests_by_hand() -> None:
    one, four = by_request(np.array([4, 1, 1]), np.array([10.0, 20.0, 40.0]))
    assert (one.gpus, one.jobs, one.share, one.service_share) == (1, 2, 2 / 3, 0.6)
    assert (four.gpus, four.service.tolist(), four.service_share) == (4, [40.0], 0.4)


# -- periods -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("period", [12.0, 23.0, 24.0])
@pytest.mark.parametrize("days", [7, 14, 40])
@pytest.mark.parametrize("seed", range(3))
def test_the_period_of_a_sine_in_noise_is_found(period: float, days: int, seed: int) -> None:
    """Of a week, the bins of a plain FFT are 21, 24 and 28 hours: 23 lies between."""
    found = dominating_period(hourly(period, days * 24, seed))
    assert found == pytest.approx(period, rel=0.02)


def test_the_period_stands_against_a_trend_and_bursts() -> None:
    counts = hourly(24.0, 336) + np.linspace(0, 30, 336)
    counts[[50, 171, 300]] += 100
    assert dominating_period(counts) == pytest.approx(24.0, rel=0.02)


def test_noise_has_no_period() -> None:
    found = [dominating_period(np.random.default_rng(seed).poisson(20, 300).astype(float)) for seed in range(200)]
    assert sum(period is not None for period in found) <= 12  # FALSE_ALARM of them, somewhat more as peaks are looked for between bins


def test_what_was_not_seen_twice_or_is_slower_than_the_longest_is_no_period() -> None:
    assert dominating_period(hourly(400.0, 500, swing=18.0)) is None
    weekly = hourly(168.0, 1000)
    assert dominating_period(weekly, LONGEST_PERIOD / HOUR) == pytest.approx(168.0, rel=0.02)
    assert dominating_period(weekly, 100.0) is None


@pytest.mark.parametrize("counts", [[], [5.0], [3.0] * 100, [0.0, 1.0] * 3, [0.0] * 50])
def test_flat_and_short_counts_have_no_period(counts: list[float]) -> None:
    assert dominating_period(np.array(counts)) is None
    series, components = periodic_part(np.array(counts), len(counts))
    assert components == [] and series.tolist() == pytest.approx([np.mean(counts) if counts else 0.0] * len(counts))


def test_the_periodic_part_is_the_sine_and_the_rest_is_the_burst() -> None:
    sine = 20 + 12 * np.sin(2 * np.pi * np.arange(336) / 24)
    noise = np.random.default_rng(1).normal(0, 1, 336)
    counts = sine + noise
    counts[100] += 200
    series, components = periodic_part(counts, 336)
    assert components[0] == pytest.approx(24.0)
    assert np.abs(series - sine).max() < 3.0
    assert int(np.argmax(counts - series)) == 100


def test_arrivals_split_into_periodic_and_bursty() -> None:
    counts = hourly(24.0, 336).astype(int)
    moments = np.concatenate([hour * HOUR + np.linspace(0, HOUR - 1, count) for hour, count in enumerate(counts.tolist())])
    found = arrivals(moments)
    assert found.counts.tolist() == counts.tolist() and found.bucket == HOUR
    np.testing.assert_allclose(found.periodic + found.bursty, found.counts)
    assert (found.periodic >= 0).all()
    assert found.period == pytest.approx(24 * HOUR, rel=0.02)
    assert 0.5 < found.share < 1.0
    assert found.components[0] == pytest.approx(24 * HOUR)


def test_arrivals_are_counted_from_the_first_one_and_never_in_too_many_buckets() -> None:
    late = arrivals(np.array([1e8, 1e8 + 1]))
    assert late.counts.tolist() == [2.0] and late.start <= 1e8 < late.start + late.bucket
    far = arrivals(np.array([0.0, 1e12]))
    assert len(far.counts) <= MOST_BUCKETS + 2 and far.counts.sum() == 2


# -- recurrence ----------------------------------------------------------------------------------------------------------


def test_recurrence_by_hand() -> None:
    users = ["a"] * 12 + ["b"] * 3 + [None]
    trace = make([(0.0, 1.0, 1)] * 16, user_name=users, model=["m"] * 16)
    found = recurrence(trace.jobs)
    assert (found.by, found.jobs, found.tasks) == (("user", "model"), 15, 2)
    assert found.sizes.tolist() == [3] * 3 + [12] * 12
    assert found.often == 12 / 15


def test_ten_jobs_are_not_more_than_ten() -> None:
    trace = make([(0.0, 1.0, 1)] * 10, user_name=["a"] * 10)
    assert recurrence(trace.jobs).often == 0.0


@pytest.mark.parametrize(
    ("columns", "by"),
    [
        ({"user_name": ["u"], "model": ["m"]}, ("user", "model")),
        ({"model": ["m"]}, ("model", "gpus")),
        ({"user_name": ["u"]}, ("user", "gpus")),
        ({"pool": ["p"]}, ()),
    ],
)
def test_a_task_is_what_the_trace_tells(columns: dict[str, list[str]], by: tuple[str, ...]) -> None:
    assert recurrence(make([(0.0, 1.0, 1)], **columns).jobs).by == by


def test_tasks_can_be_said() -> None:
    trace = make([(0.0, 1.0, gpus) for gpus in (1, 1, 2)], pool=["p"] * 3)
    assert recurrence(trace.jobs, ("pool", "gpus")).tasks == 2
    with pytest.raises(ValueError, match="task: 'colour' is no column"):
        recurrence(trace.jobs, ("colour",))


# -- load and shares -----------------------------------------------------------------------------------------------------


def test_demand_by_hand() -> None:
    """Two GPUs for the first hour, one for half of the second: 1.5 and 0.5 GPUs on average beside what overlaps."""
    found = demand(np.array([0.0, 1800.0]), np.array([3600.0, 3600.0]), np.array([1, 1]))
    assert found.gpus.tolist() == pytest.approx([1.5, 0.5])
    assert (found.mean, found.peak) == (1.0, 2.0)  # one GPU until the second comes, two from then on
    following = demand(np.array([0.0, 60.0, 120.0]), np.array([60.0, 60.0, 60.0]), np.array([2, 2, 2]))
    assert (following.mean, following.peak) == (2.0, 2.0)  # at the moment at which one ends the next begins


jobs = st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 1e5), st.integers(1, 64)), max_size=40)


@given(jobs)
def test_demand_is_all_of_the_service(rows: list[tuple[float, float, int]]) -> None:
    submitted, took, gpus = (
        (np.array(column) for column in zip(*rows, strict=True)) if rows else (np.zeros(0), np.zeros(0), np.zeros(0, int))
    )
    found = demand(submitted, took, gpus)
    assert found.gpus.sum() * found.bucket == pytest.approx(float((took * gpus).sum()), rel=1e-6, abs=1e-3)
    assert (found.gpus >= -1e-6).all()
    assert found.mean is None or found.mean <= found.peak <= gpus.sum()


def test_shares_of_users_by_hand() -> None:
    found = by_name(["b", "a", None, "a"], np.array([10.0, 30.0, 40.0, 20.0]))
    assert [(group.name, group.jobs, group.share) for group in found] == [("a", 2, 0.5), ("(none)", 1, 0.4), ("b", 1, 0.1)]
    assert by_name([None, None], np.ones(2)) == []


def test_the_load_is_told_against_a_cluster() -> None:
    of = Description(make([(0.0, 100.0, 4), (200.0, 100.0, 4)]), capacity=8)
    assert of.mean_demand == 4.0 and of.load == 0.5


@pytest.mark.parametrize("rows", [[(0.0, 1e8, 1), (1.0, 1e8, 1)], [(5.0, 10.0, 2)] * 50])
def test_a_mean_demand_of_more_than_all_ask_for_is_unknown(rows: list[tuple[float, float, int]], tmp_path: Path) -> None:
    of = Description(make(rows), capacity=8)
    assert of.mean_demand is None and of.load is None
    assert "; the jobs run for longer than they arrive" in write_trace_report(of, tmp_path).read_text()


# -- whole traces --------------------------------------------------------------------------------------------------------

TINY = {
    "none": make([]),
    "one": make([(0.0, 10.0, 1)]),
    "at once": make([(5.0, 10.0, 2)] * 50),
    "hardly any duration": make([(0.0, 1e-310, 1), (10.0, 5e-324, 2), (30.0, 1e8, 1)]),
    "denormal": make([(0.0, 1e-310, 1), (10.0, 5e-324, 2), (5e-324, 1e-310, 1)]),
    "no duration": make([(0.0, 0.0, 1), (9.0, 0.0, 8)]),
    "flat": make([(hour * HOUR, HOUR, 1) for hour in range(100)]),
    "long": make([(0.0, 1e8, 1000), (3e8, 1.0, 1)]),
    "odd names": make([(0.0, 60.0, 1)] * 2, user_name=["<b>$x$", "\x1b[31m\N{SNOWMAN}"], pool=["p", None], model=["m", "m"]),
    "many requests": make([(float(gpus), 60.0 * gpus, gpus) for gpus in range(1, 40)]),
}


DRAWN = ("denormal", "long", "odd names")  #: the others are drawn by night


@pytest.mark.parametrize("name", TINY)
def test_odd_traces_are_described(name: str) -> None:
    of = Description(TINY[name], capacity=4)
    text = json.dumps({**of.summary(), **of.series()}, allow_nan=False)
    assert json.loads(text)["jobs"] == len(TINY[name].jobs)


@pytest.mark.parametrize("name", [pytest.param(name, marks=[] if name in DRAWN else pytest.mark.nightly) for name in TINY])
@pytest.mark.slow
@pytest.mark.sampled(3)
def test_odd_traces_are_drawn(name: str, tmp_path: Path) -> None:
    page = write_trace_report(Description(TINY[name], capacity=4), tmp_path / "out")
    assert json.loads((page.parent / "trace.json").read_text())["series"]["arrivals"]["bucket"] >= HOUR
    assert "<b>$x$" not in page.read_text()


rows = st.lists(st.tuples(st.floats(0, 1e7), st.floats(0, 1e6), st.integers(1, 2000)), max_size=30)


@settings(max_examples=40)
@given(rows)
def test_every_trace_has_finite_numbers(some: list[tuple[float, float, int]]) -> None:
    of = Description(make(sorted(some)), capacity=8)
    summary = json.loads(json.dumps({**of.summary(), **of.series()}, allow_nan=False))
    assert sum(one["jobs"] for one in summary["requests"]) == len(some)
    assert sum(summary["arrivals"]["counts"]) == len(some)
    assert math.isclose(sum(one["share"] for one in summary["requests"]), 1.0) or not some


def test_a_page_has_every_figure_and_stands_alone(tmp_path: Path) -> None:
    generator = np.random.default_rng(3)
    some = sorted((float(at), float(took), int(gpus)) for at, took, gpus in zip(
        generator.uniform(0, 5e5, 300), generator.lognormal(6, 2, 300), generator.choice([1, 2, 8], 300), strict=True))  # fmt: skip
    trace = make(some, user_name=[f"u{row % 7}" for row in range(300)], pool=["p"] * 300)
    page = write_trace_report(Description(trace, capacity=16), tmp_path)
    text = page.read_text()
    assert {path.stem for path in tmp_path.glob("*.png")} == set(FIGURES) == set(SECTIONS)
    assert text.count("data:image/png;base64,") == len(FIGURES)
    assert "http" not in text and all(heading in text for heading, _, _ in SECTIONS.values())


def test_figures_of_an_earlier_trace_are_removed(tmp_path: Path) -> None:
    write_trace_report(Description(TINY["odd names"]), tmp_path)
    assert (tmp_path / "shares.png").exists()
    write_trace_report(Description(TINY["none"]), tmp_path)
    assert not list(tmp_path.glob("*.png"))


# -- the command ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def csv(tmp_path: Path) -> Path:
    path = tmp_path / "t.csv"
    lines = [f"{row},{row * 60.0},{60.0 + row},{1 + row % 2},u{row % 2}" for row in range(30)]
    path.write_text("key,submitted,duration,gpus_min,user_name\n" + "\n".join(lines) + "\n")
    return path


def test_the_command_prints_tables(csv: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["trace", "describe", str(csv), "--nodes", "1x8"]) == 0
    out = capsys.readouterr().out
    assert "30, submitted within 29m" in out
    assert "2 tasks by user, gpus; 100% of the jobs repeat more than ten times" in out
    assert "no period stands out" in out and "USER" in out


def test_the_command_says_why_there_is_no_mean(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "t.csv").write_text("key,submitted,duration,gpus_min\na,0,1e8,1\nb,1,1e8,1\n")
    assert run(["trace", "describe", str(tmp_path / "t.csv"), "--nodes", "1x8"]) == 0
    out = capsys.readouterr().out
    assert "GPUs demanded  unknown, as the jobs run for longer than they arrive\n" in out
    assert "GPUs in use    if no job waited: mean 1 until the last arrival, peak 2\n" in out
    assert "deadlines      2 best-effort\n" in out


def test_the_command_prints_json_and_writes_figures(csv: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["trace", "describe", str(csv), "--json", "--task", "user", "--out", str(tmp_path / "out")]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["jobs"] == 30 and answer["recurrence"]["by"] == ["user"]
    assert answer["page"] == str(tmp_path / "out" / "index.html") and Path(answer["page"]).exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--nodes", "many"], " --nodes: 'many' is not NODESxGPUS"),
        (["--task", "colour"], " --task: 'colour' is no column"),
        (["--out", "/proc/no"], "--out: cannot write /proc/no"),
    ],
)
def test_bad_options_get_one_line(csv: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["trace", "describe", str(csv), *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


# -- real traces ---------------------------------------------------------------------------------------------------------


@pytest.mark.skipif("STOKER_TRACES" not in os.environ, reason="STOKER_TRACES is not set to the directory of the real traces")
def test_philly_repeats_every_23_hours() -> None:
    """002 ch. 6.2.1 says so of Helios; the two weeks of Philly of ch. 6.6.1 do it too."""
    from stoker.engine.traces.read import read

    of = Description(read(Path(os.environ["STOKER_TRACES"]) / "philly" / "philly_pollux_2w_20170922_20171005.csv"), capacity=800)
    assert of.summary()["jobs"] == 13_085
    assert of.arrivals.period == pytest.approx(23 * HOUR, rel=0.02)
    assert of.load == pytest.approx(0.82, abs=0.01)
