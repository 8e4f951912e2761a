"""Asks policies that may hang, and has the words for one that fails: its error with the line of its code, and the remedy."""

from __future__ import annotations

import ctypes
import threading
import traceback
from pathlib import Path

from ...policies import registry
from ...policies.contract import Plan, Policy, View
from .plan_check import PlanError, check, check_enacted

POLICY_ERROR = "policy-error"  #: code of the reason why jobs wait while their policy fails
LONGEST_ERROR = 300  #: characters of the error that are kept: they stand in the reason of each waiting job
ANSWER_SECONDS = 10.0  #: seconds in which a policy has to answer before it is set, and when it is asked beside its ticks
_ENGINE = Path(__file__).parents[1]


class Silence(Exception):
    """A policy has not answered in time."""


class _GivenUp(BaseException):
    """Raised in a policy that did not answer in time."""


class Questions:
    """Asks a policy in threads of their own, one at a time, so that one that never answers keeps no other work waiting.

    A policy that does not answer in time is stopped as soon as it is back in Python code, and is not asked again before that.
    """

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None

    def plan(self, policy: Policy, view: View, within: float) -> Plan:
        answers: list[Plan | BaseException] = []

        def ask() -> None:
            try:
                answers.append(policy.plan(view))
            except _GivenUp:
                pass
            except BaseException as error:  # a policy is anybody's code
                answers.append(error)

        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=ask, name="policy is asked", daemon=True)
            self._thread.start()
            self._thread.join(within)
            if not answers and self._thread.is_alive():
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread.ident or 0), ctypes.py_object(_GivenUp))
        if not answers:
            raise Silence(f"it does not answer within {within:g} s")
        if isinstance(answers[0], BaseException):
            raise answers[0]
        return answers[0]


def ask(policy: Policy, view: View, questions: Questions | None = None, within: float | None = None) -> Plan:
    """The plan of a policy. One of a user's own may hang, or raise anything: it must keep nobody waiting.

    ``questions``: those of before to this policy, None: it is asked beside its ticks, for a forecast. ``within``: seconds, None:
    `ANSWER_SECONDS`.
    """
    if type(policy).__module__.startswith(f"{registry.__package__}."):
        return policy.plan(view)
    return (questions or Questions()).plan(policy, view, ANSWER_SECONDS if within is None else within)


def words(error: BaseException) -> str:
    """An error of a policy in one line, with the line of its code that it came from."""
    plain = isinstance(error, PlanError | Silence)
    try:
        text = str(error)
    except BaseException:  # a policy's own kind of error may fail at that too
        text = "its own words fail"
    said = " ".join((text if plain else f"{type(error).__name__}: {text}").split())
    said = said if len(said) <= LONGEST_ERROR else f"{said[:LONGEST_ERROR]}…"
    return said if plain else said + _line_of(error)


def _line_of(error: BaseException) -> str:
    """The innermost line in the policy's folder, not in a library that it calls; "": there is none."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _ENGINE not in Path(frame.filename).parents]
    if not frames:
        return ""
    folder = Path(frames[0].filename).parent
    last = next(frame for frame in reversed(frames) if Path(frame.filename).is_relative_to(folder))
    return f" ({Path(last.filename).name}, line {last.lineno}{f': {last.line[:LONGEST_ERROR]}' if last.line else ''})"


def remedy(policy: str, pool: str) -> str:
    other = f"'stoker policy set {'priority' if policy == 'fifo' else 'fifo'} --pool {pool}'"
    return f"set another with {other}, and report it" if policy in registry.POLICIES else f"repair it and set it again, or use {other}"


def told(policy: str, pool: str, error: str) -> str:
    """The sentence for people: the failing policy, the consequence, the cause and the remedy."""
    return f"policy {policy} of pool {pool} fails, so nothing starts there: {error}; {remedy(policy, pool)}"


def would_fail(policy: Policy, view: View, within: float = ANSWER_SECONDS) -> str | None:
    """Why a policy, asked once, gives no valid plan for a view in time; None: it does."""
    try:
        check_enacted(check(Questions().plan(policy, view, within), view))
    except BaseException as error:
        return words(error)
    return None
