"""Cron expressions: five fields, UTC, checked by APScheduler, with cron's own numbers for the days of the week."""

from __future__ import annotations

import re
from datetime import UTC, datetime

_FIELDS = ("minute", "hour", "day", "month", "weekday")
#: APScheduler's own patterns of names are open at the end, so it takes `mon-fri/2` for `mon-fri`.
_PART = re.compile(r"\*(/[0-9]+)?|[0-9]+(-[0-9]+)?(/[0-9]+)?|[a-z]{3}(-[a-z]{3})?")
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
FORM = "five fields 'minute hour day month weekday', such as '30 2 * * mon-fri'"


def normalise(text: str) -> str:
    """The expression with days of the week by name; ValueError when it is malformed or never fires.

    APScheduler counts weekdays from Monday = 0 where cron counts from Sunday = 0 (CronTrigger.from_crontab's
    documentation warns of it), so numbers are turned into names here, and mean what they mean in a crontab.
    """
    fields = text.lower().split()
    if len(fields) != 5:
        raise ValueError(f"must be {FORM}, not {text!r}")
    for name, field in zip(_FIELDS, fields, strict=True):
        wrong = [part for part in field.split(",") if not _PART.fullmatch(part) and (name, part) != ("day", "last")]
        if wrong:
            raise ValueError(
                f"{name} {wrong[0]!r} is not understood; {FORM}, with parts such as *, 5, 1-5, */2, 1-5/2, or names without a step"
            )
    fields[4] = ",".join(dict.fromkeys(name for part in fields[4].split(",") for name in _weekday(part)))
    expression = " ".join(fields)
    _check(expression, text)
    return expression


def _weekday(part: str) -> list[str]:
    """Names of the days of ``1-5``, ``*/2``, ``7``; parts with names are left to APScheduler."""
    span, _, step = part.partition("/")
    first, dash, last = span.partition("-")
    if span == "*" and step.isdecimal():
        first, dash, last = "0", "-", "6"
    if not first.isdecimal() or (dash and not last.isdecimal()):
        return [part]
    low, high = int(first), int(last) if dash else int(first)
    if step and not dash:
        high = 6
    if not 0 <= low <= high <= 7 or (step and not (step.isdecimal() and int(step))):
        raise ValueError(f"weekday {part!r} is not within 0 to 7 (0 and 7 are Sunday), low to high")
    return [_DAYS[day % 7] for day in range(low, high + 1, int(step or 1))]


def _check(expression: str, text: str) -> None:
    from apscheduler.triggers.cron import CronTrigger

    try:
        trigger = CronTrigger.from_crontab(expression, timezone=UTC)
        fires = trigger.get_next_fire_time(None, datetime(2024, 1, 1, tzinfo=UTC))
    except (ValueError, TypeError, OverflowError, AttributeError) as error:
        raise ValueError(f"must be {FORM}, not {text!r}: {error}") from None
    if fires is None:
        raise ValueError(f"{text!r} never fires: there is no such day")
