"""Keys of a policy's configuration: their meanings, their ranges, and their values from plain ones."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .nearest import meant


def tunable(
    default: Any,
    doc: str,
    *,
    low: float | None = None,
    high: float | None = None,
    choices: Sequence[Any] = (),
    log: bool = False,
    needs: tuple[str, float] | None = None,
    above: str | None = None,
) -> Any:
    """A field of a policy's Config with its meaning and range; search spaces use these.

    The type is the annotation of the field: bool, int, float or str (with ``choices``). For searches only (002 ch. 6.2.2):
    ``log``: sizes matter by their ratio; ``needs``: the key is in use from that value of another key on; ``above``: a key whose value
    is never larger than this one's, if both are in use.
    """
    told = {"doc": doc, "low": low, "high": high, "choices": tuple(choices), "log": log, "needs": needs, "above": above}
    return dataclasses.field(default=default, metadata=told)


SHORTEST_ROUND = 0.1  #: seconds


def check_round(seconds: float) -> None:
    """Refuse rounds without a pause, with which no simulation would end."""
    if 0 < seconds < SHORTEST_ROUND:
        raise ValueError(f"round: {seconds} s is too short; give {SHORTEST_ROUND} s at least, or 0 to decide at every event")


def make_config(config_type: type, values: Mapping[str, Any]) -> Any:
    """Build and check a Config from plain values; ValueError names the key, the mistake and the remedy."""
    fields = {f.name: f for f in dataclasses.fields(config_type)}
    for key in values:
        if key not in fields:
            near = meant(key, fields)
            hint = f"did you mean {near!r}?" if near else f"known keys: {', '.join(fields) or 'none'}"
            raise ValueError(f"{key}: unknown configuration key; {hint}")
    return config_type(**{key: _coerce(fields[key], value) for key, value in values.items()})


def _truth(value: Any) -> bool:
    return {"true": True, "false": False}[str(value).lower()]


def _whole(value: Any) -> int:
    """A whole number, also from ``10.0`` and ``"1e1"``, but not from a value with a fraction."""
    number = _number(value)
    if not number.is_integer():
        raise ValueError
    return int(value) if isinstance(value, int) else int(number)


def _number(value: Any) -> float:
    if isinstance(value, bool):  # an int to Python, a slip to people
        raise ValueError
    return float(value)


_READERS: Mapping[type, Callable[[Any], Any]] = {bool: _truth, int: _whole, float: _number}
_KINDS: Mapping[type, str] = {bool: "true or false", int: "a whole number", float: "a number"}


def _coerce(spec: dataclasses.Field[Any], value: Any) -> Any:
    kind: type = type(spec.default)
    try:
        value = _READERS.get(kind, kind)(value)
    except (KeyError, TypeError, ValueError, OverflowError):
        raise ValueError(f"{spec.name}: {value!r} is not {_KINDS.get(kind, f'a {kind.__name__}')}") from None
    low, high, choices = (spec.metadata.get(key) for key in ("low", "high", "choices"))
    number = isinstance(value, int | float)
    if number and (math.isnan(value) or (low is not None and value < low) or (high is not None and value > high)):
        raise ValueError(f"{spec.name}: {value!r} is outside its range {low} to {high}")
    if choices and value not in choices:
        raise ValueError(f"{spec.name}: {value!r} is not one of {', '.join(map(str, choices))}")
    return value
