"""Durations, sizes and times: as people write them, and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stoker.engine.spec import units


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


@given(st.integers(0, int(units.LONGEST) * 1000).map(lambda ms: ms / 1000))
def test_a_formatted_duration_is_read_back(seconds: float) -> None:
    assert units.duration(units.format_duration(seconds)) == seconds


@given(st.integers(0, units.LARGEST))
def test_a_formatted_size_is_read_back(count: int) -> None:
    assert units.size(units.format_size(count)) == count


@given(st.integers(0, 4 * 10**12).map(lambda ms: ms / 1000))
def test_a_formatted_time_is_read_back(ts: float) -> None:
    assert units.clock(units.format_clock(ts)) == ts


def test_moments_count_from_now_or_stand() -> None:
    assert units.moment("2h", 1000.0) == 8200.0
    assert units.moment(60, 1000.0) == 1060.0
    assert units.moment("1970-01-02T00:00Z", 1000.0) == 86_400.0
    assert (units.is_relative("2h"), units.is_relative("90"), units.is_relative("1970-01-02T00:00Z")) == (True, True, False)
