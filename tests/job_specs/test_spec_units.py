"""Durations, sizes and times: as people write them, and back."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spec_as_yaml import format_clock
from stoker.engine.spec.reading import units


@pytest.mark.parametrize(
    ("written", "seconds"),
    [(30, 30.0), (0.5, 0.5), ("30", 30.0), ("90s", 90.0), ("10m", 600.0), ("1h30m", 5400.0), ("1h 30m", 5400.0), ("2d", 172_800.0),
     ("1w", 604_800.0), ("1.5h", 5400.0), ("500ms", 0.5), ("1m500ms", 60.5), (0, 0.0)],
)  # fmt: skip
def test_durations(written: str | float, seconds: float) -> None:
    assert units.duration(written) == seconds


@pytest.mark.parametrize(
    "written", ["", "h", "1x", "30m1h", "1h1h", "-5", -5, "1e3", "2 hours", "1h30", float("nan"), float("inf"), "101y", 1e10, 10**400]
)
def test_what_is_no_duration(written: str | float) -> None:
    with pytest.raises(ValueError, match="must be"):
        units.duration(written)


@pytest.mark.parametrize(
    ("written", "count"),
    [
        ("8GiB", 8 << 30),
        ("8G", 8 << 30),
        ("8Gi", 8 << 30),
        ("8GB", 8 * 10**9),
        ("500 MiB", 500 << 20),
        ("1.5k", 1536),
        ("7b", 7),
        (1024, 1024),
        ("0", 0),
    ],
)
def test_sizes(written: str | int, count: int) -> None:
    assert units.size(written) == count


@pytest.mark.parametrize("written", ["", "GiB", "8 gigs", "-1", -1, "2PiB", "9" * 400, 1 << 60])
def test_what_is_no_size(written: str | int) -> None:
    with pytest.raises(ValueError, match="must be"):
        units.size(written)


@given(st.integers(0, int(units.LONGEST_DURATION) * 1000).map(lambda ms: ms / 1000))
def test_a_formatted_duration_is_read_back(seconds: float) -> None:
    assert units.duration(units.format_duration(seconds)) == seconds


@given(st.integers(0, units.LARGEST_SIZE))
def test_a_formatted_size_is_read_back(count: int) -> None:
    assert units.size(units.format_size(count)) == count


@given(st.integers(0, 4 * 10**12).map(lambda ms: ms / 1000))
def test_a_formatted_time_is_read_back(ts: float) -> None:
    assert units.clock(format_clock(ts)) == ts


def test_moments_count_from_now_or_stand() -> None:
    assert units.moment("2h", 1000.0) == 8200.0
    assert units.moment(60, 1000.0) == 1060.0
    assert units.moment("1970-01-02T00:00Z", 1000.0) == 86_400.0
    assert (units.is_relative("2h"), units.is_relative("90"), units.is_relative("1970-01-02T00:00Z")) == (True, True, False)


@pytest.fixture
def zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Local time is that of the zone named."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", request.param)
        time.tzset()
        yield
    time.tzset()


#: Rules as POSIX writes them, so that no table of zones is needed.
BERLIN = "CET-1CEST,M3.5.0,M10.5.0/3"


@pytest.mark.parametrize(
    ("zone", "now", "written", "then"),
    [
        (BERLIN, "2030-01-31T17:00+01:00", "18:30", "2030-01-31T18:30+01:00"),
        (BERLIN, "2030-01-31T18:30+01:00", "18:30", "2030-02-01T18:30+01:00"),
        (BERLIN, "2030-01-31T18:31+01:00", " 18:30 ", "2030-02-01T18:30+01:00"),
        (BERLIN, "2030-12-31T23:59:59+01:00", "0:00", "2031-01-01T00:00+01:00"),
        (BERLIN, "2030-01-31T00:00+01:00", "00:00", "2030-02-01T00:00+01:00"),
        (BERLIN, "2030-01-31T00:10+01:00", "23:59", "2030-01-31T23:59+01:00"),
        (BERLIN, "2030-03-30T18:30+01:00", "18:30", "2030-03-31T18:30+02:00"),  # a day of 23 hours
        (BERLIN, "2030-10-27T02:30+02:00", "02:30", "2030-10-27T02:30+01:00"),  # an hour that comes twice
        (BERLIN, "2030-10-27T02:30+01:00", "02:30", "2030-10-28T02:30+01:00"),
        ("UTC0", "2030-01-31T17:00+01:00", "16:30", "2030-01-31T16:30Z"),
    ],
    indirect=["zone"],
)
def test_a_time_of_day_is_the_next_one_in_local_time(zone: None, now: str, written: str, then: str) -> None:
    assert units.moment(written, datetime.fromisoformat(now).timestamp()) == datetime.fromisoformat(then).timestamp()


@pytest.mark.parametrize("written", ["24:00", "18:60", "18:3", "18:30:00", "-1:00", "١8:30"])
def test_what_is_no_time_of_day(written: str) -> None:
    with pytest.raises(ValueError, match=r"must be .* such as 18:30 \(local, the next one\)"):
        units.moment(written, 1000.0)


@pytest.fixture
def in_berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("in_berlin")
def test_a_local_time_that_does_not_exist_or_comes_twice_is_refused() -> None:
    for text, words in (("2026-03-29 02:30", "does not exist"), ("2026-10-25T02:30:00", "comes twice")):
        with pytest.raises(ValueError, match=words):
            units.clock(text)
    evening = units.clock("2026-03-28 22:00")
    with pytest.raises(ValueError, match="2026-03-29 02:30 does not exist"):
        units.moment("02:30", evening)
    assert units.moment("03:30", evening) == units.clock("2026-03-29T01:30Z") == units.clock("2026-03-29 03:30")
    assert units.clock("2026-10-25T02:30+01:00") == units.clock("2026-10-25T02:30+02:00") + 3600
