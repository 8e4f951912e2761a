"""The figures of a study as a table: one row per policy, averaged over its seeds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ... import format as fmt
from ..output import Column, Row, fit

if TYPE_CHECKING:
    from ...sim.results.record import Average

ROUNDING = 1e-12  #: of the mean: means of equal numbers differ by no more
_OF_DEADLINES = ("VIOLATED", "R_SLO")


def row_of(average: Average) -> dict[str, Any]:
    """A row: means by the names of the columns of sim_runs, with their spread if there are several seeds."""
    from ...sim.results.record import finite

    choice = average.choice
    row = {
        "policy": choice.policy,
        "label": choice.label,
        "config": dict(choice.config),
        "seeds": average.seeds,
        **average.mean,
        "spread": {name: value for name, value in average.spread.items() if value is not None},
    }
    return {name: finite(value) for name, value in row.items()}


def columns_for(rows: Sequence[Row]) -> list[Column]:
    """The columns, without those about deadlines if no job has one."""
    deadlines = any(row["slo_violations"] is not None for row in rows)
    return [column for column in _COLUMNS if deadlines or column.header not in _OF_DEADLINES]


def without_room(rows: Sequence[Row], columns: Sequence[Column], width: int) -> list[str]:
    """Headers of the columns that a terminal of this width does not show."""
    shown = {place for place, _ in fit(columns, [[column.drawn(row) for row in rows] for column in columns], width)} if rows else None
    return [column.header for place, column in enumerate(columns) if shown is not None and place not in shown]


def _cell(key: str, words: Callable[[float | None], str]) -> Callable[[Row], str]:
    """The mean in words, with its spread if seeds differ."""

    def cell(row: Row) -> str:
        value, spread = row.get(key), row["spread"].get(key, 0.0)
        differ = spread > ROUNDING * abs(value or 0.0) and words(spread) != words(0.0)
        return words(value) + (f" ±{words(spread)}" if differ else "")

    return cell


def _in_words(form: str, scale: float = 1.0) -> Callable[[float | None], str]:
    return lambda value: fmt.MISSING if value is None else form.format(value * scale)


_SHARE, _RATIO = _in_words("{:.1f}%", 100.0), _in_words("{:.3f}")

_COLUMNS = [
    Column("POLICY", "label", flexible=True),
    Column("JCT", _cell("jct_avg", fmt.duration), right=True),
    Column("MEDIAN", _cell("jct_p50", fmt.duration), right=True, rank=3),
    Column("P99", _cell("jct_p99", fmt.duration), right=True),
    Column("WAIT", _cell("wait_avg", fmt.duration), right=True),
    Column("MAKESPAN", _cell("makespan", fmt.duration), right=True, rank=4),
    Column("VIOLATED", _cell("slo_violations", _SHARE), right=True, rank=2),
    Column("R_SLO", _cell("r_slo", _RATIO), right=True, rank=2),
    Column("RHO", _cell("rho_avg", _RATIO), right=True, rank=5),
    Column("FAIR", _cell("fair_share", _SHARE), right=True, rank=6),
    Column("USED", _cell("utilisation", _SHARE), right=True, rank=1),
    Column("PREEMPTED", _cell("preemptions", _in_words("{:.0f}")), right=True, rank=7),
    Column("LOST GPU-H", _cell("lost_gpu_time", _in_words("{:.1f}", 1 / 3600)), right=True, rank=7),
    Column("DECISION", _cell("decision_seconds", _in_words("{:.3g}ms", 1000.0)), right=True, rank=8),
    Column("OF RUN", _cell("plan_share", fmt.percent), right=True, rank=9),
]
