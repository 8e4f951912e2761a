"""Forecasts of deadlines in words, for `stoker submit` and `stoker explain`, from the daemon's simulated futures."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

from ... import format as fmt
from ...client import Client
from ...errors import Conflict, StokerError
from ..jobref import job_path

Forecast = dict[str, Any]

PATIENCE = 10.0  #: seconds that all the forecasts of one command may take
LIKELY_KEPT = 0.9  #: probability from which on a deadline counts as kept
_UNCERTAIN = 0.5
_ROUNDED_FROM = 300.0  #: seconds from which on times are rounded, as the submission itself took some
_REMEDIES = {
    "unknown-duration": "give --estimate, or --iterations where jobs of its model have run before",
    "busy": "'stoker explain JOB' says it later",
    "slow": "'stoker explain JOB' says it later",
}


def forecasts(client: Client, jobs: Sequence[int]) -> Iterator[tuple[int, Forecast]]:
    """Forecasts for submitted jobs, one after the other, as long as there is time."""
    end = time.monotonic() + PATIENCE
    for job in jobs:
        left = end - time.monotonic()
        if left <= 0:
            return
        yield job, forecast_of(client, job, left)


def forecast_of(client: Client, job: int, patience: float = PATIENCE) -> Forecast:
    """The forecast of one job. A failure is returned as a reason, as nothing else depends on it."""
    try:
        found: Forecast = client.get(job_path(str(job), "forecast"), timeout=patience)
    except StokerError as error:
        return {"status": error.code, "reason": str(error)}
    return found


def lines(forecast: Forecast, now: float) -> list[str]:
    """One line per deadline, and one on the effect on others."""
    if forecast["status"] != "estimated":
        remedy = _REMEDIES.get(forecast["status"])
        return [f"deadline: not estimated: {fmt.clean(forecast['reason'])}{': ' + remedy if remedy else ''}"]
    return _lines(forecast, [f"{_when(forecast, step, now)}: {_judged(forecast, step, now)}" for step in forecast["steps"]], now)


def beside(forecast: Forecast, risk: str, *, given_up: bool, now: float) -> list[str]:
    """The same beside a verdict on the last deadline: they are its grounds, or a reservation, never a second verdict.

    ``risk`` is that verdict (`safe` or `at risk`). If the policy has ``given_up`` the deadline, that counts.
    """
    if forecast["status"] != "estimated":
        return lines(forecast, now)
    *earlier, last = forecast["steps"]
    said = [f"{_when(forecast, step, now)}: {_judged(forecast, step, now)}" for step in earlier]
    doubtful, likely = last["probability"] < _UNCERTAIN, last["probability"] >= (_UNCERTAIN if given_up else LIKELY_KEPT)
    if (risk == "safe" and doubtful) or (risk != "safe" and likely):
        if given_up:
            return _lines(forecast, [], now)
        share = ("only " if doubtful else "") + fmt.percent(last["probability"])
        return _lines(forecast, [*said, f"but as its policy goes on, {share} of {_runs(forecast)} keep it"], now)
    return _lines(forecast, [*said, f"simulated: {_judged(forecast, last, now)}"], now)


def _lines(forecast: Forecast, said: list[str], now: float) -> list[str]:
    if said:
        said[-1] += f"; {_promise(forecast, now)}"
    others = forecast["others"]
    if others["missed"] is not None and others["missed"] >= 0.05:
        said.append(f"because of it {others['missed']:.1f} of {others['deadlines']} deadlines of other jobs would be missed, in the mean")
    return said


def _distance(step: Forecast, now: float) -> str:
    left = step["deadline"] - now
    return f"in {fmt.duration(round(left, -1) if left > _ROUNDED_FROM else left)}" if left > 0 else fmt.relative(step["deadline"], now)


def _when(forecast: Forecast, step: Forecast, now: float) -> str:
    worth = f" for {step['reward']:g}" if forecast["demand"] == "soft" else ""
    return f"deadline {_at(step['deadline'], now)} ({_distance(step, now)}){worth}"


def _judged(forecast: Forecast, step: Forecast, now: float) -> str:
    share = step["probability"]
    if step["impossible"]:
        gpus = forecast["gpus"]
        left_over = f"{_distance(step, now).removeprefix('in ')} are left" if step["deadline"] > now else "it is over"
        return f"impossible: needs at least {fmt.duration(forecast['needs'])} on {gpus} GPU{'s' * (gpus > 1)}, {left_over}"
    verdict = "likely met" if share >= LIKELY_KEPT else "uncertain" if share >= _UNCERTAIN else "unlikely"
    return f"{verdict} ({fmt.percent(share)} of {_runs(forecast)})"


def _runs(forecast: Forecast) -> str:
    """The number and kind of runs. A policy that is slow to decide is simulated a few times, or not at all."""
    many, simulated = forecast["runs"], forecast["simulated"]
    if simulated == many:
        return f"{many} simulated run{'s' * (many > 1)}"
    by_queue = f"{many} runs in the order of the queue"
    return f"{by_queue}, set right by {simulated} simulated" if simulated else by_queue


def _promise(forecast: Forecast, now: float) -> str:
    """The earliest deadline that can be kept."""
    last = forecast["steps"][-1]
    end = forecast["end_90"]
    if end is None:
        return "no end is in sight"
    if last["probability"] >= LIKELY_KEPT:
        return f"9 of 10 runs end by {_at(end, now)}"
    return f"the earliest that can be kept 9 times in 10 is {_at(end, now)}"


def _at(ts: float, now: float) -> str:
    """Local time; the nearer, the more exact."""
    when, away = fmt.local(ts), abs(ts - now)
    return when.strftime("%H:%M:%S" if away < 3600 else "%H:%M" if away < 12 * 3600 else "%Y-%m-%d %H:%M")


def require(found: Sequence[tuple[str, Forecast]], now: float) -> None:
    """Conflict unless each of these jobs (names) keeps its last deadline in nine of ten runs."""
    for name, forecast in found:
        steps = forecast.get("steps") or [{"probability": 0.0}]
        if steps[-1]["probability"] < LIKELY_KEPT:
            raise Conflict(f"--require-deadline: nothing was submitted: {name}: {lines(forecast, now)[len(steps) - 1]}")
