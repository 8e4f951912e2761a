"""The search space of a policy: its keys with ranges, scales and dependencies, and the projection onto them (002 ch. 6.2.2, 6.4.3.1).

A configuration is a dict of plain values. A search moves in units: each number lies between 0 and 1, on a logarithmic scale where its
key says so; whole numbers and truth values are rounded when they become values.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..arrays import Floats

Configuration = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Number:
    """A key that is a number."""

    name: str
    low: float
    high: float
    log: bool
    whole: bool
    needs: tuple[str, float] | None  #: it is in use from that value of another key on
    above: str | None  #: a key whose value is no larger, where both are in use

    def scaled(self, value: float) -> float:
        """On the scale of the search: logarithms, from log(1 + x) where 0 is in the range."""
        return value if not self.log else math.log1p(value) if self.low <= 0.0 else math.log(value)

    def unit(self, value: float) -> float:
        """Between 0 and 1."""
        low, high = self.scaled(self.low), self.scaled(self.high)
        return (self.scaled(min(max(value, self.low), self.high)) - low) / (high - low) if high > low else 0.0

    def value(self, unit: float) -> float | int:
        """The value of a unit, rounded to six digits, so that the printed value is the one in force."""
        low, high = self.scaled(self.low), self.scaled(self.high)
        at = low + min(max(unit, 0.0), 1.0) * (high - low)
        plain = at if not self.log else math.expm1(at) if self.low <= 0.0 else math.exp(at)
        if self.whole:
            return int(min(max(round(plain), math.ceil(self.low)), math.floor(self.high)))
        return min(max(float(f"{plain:.6g}"), self.low), self.high)


@dataclass(frozen=True, slots=True)
class Category:
    """A key that is one of a few values, without an order."""

    name: str
    choices: tuple[Any, ...]
    needs: tuple[str, float] | None = None


@dataclass(frozen=True)
class Space:
    """The keys of a policy that are tuned. ``kept``: all others, with the values that they keep. ``ends``: the numbers among these that
    bound an ascending chain of tuned keys."""

    numbers: tuple[Number, ...]
    categories: tuple[Category, ...]
    kept: Mapping[str, Any]
    ends: tuple[Number, ...] = ()

    @property
    def parts(self) -> tuple[Number | Category, ...]:
        return (*self.numbers, *self.categories)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(one.name for one in self.parts)

    def units(self, config: Mapping[str, Any]) -> Floats:
        return np.array([number.unit(float(config[number.name])) for number in self.numbers], dtype=np.float64)

    def configuration(self, units: Sequence[float] | Floats, chosen: Mapping[str, Any]) -> Configuration:
        """The values of a point, not projected yet."""
        values = {number.name: number.value(float(unit)) for number, unit in zip(self.numbers, units, strict=True)}
        return {**self.kept, **values, **chosen}

    def drawn(self, rng: np.random.Generator) -> Configuration:
        """Evenly from the space, not projected yet."""
        chosen = {one.name: one.choices[int(rng.integers(len(one.choices)))] for one in self.categories}
        return self.configuration(rng.uniform(size=len(self.numbers)), chosen)

    def in_use(self, one: Number | Category, config: Mapping[str, Any]) -> bool:
        return one.needs is None or float(config[one.needs[0]]) >= one.needs[1]

    def project(
        self, config: Mapping[str, Any], fixed: Mapping[str, Any] | None = None, otherwise: Mapping[str, Any] | None = None
    ) -> Configuration:
        """Line 6 of algorithm 3: the configuration of the space near ``config``; values that are allowed stay.

        ``fixed``: values that win over ``config`` (W of algorithm 3). ``otherwise``: values of the keys that are not in use, so that
        configurations which differ in these alone are the same.
        """
        made = {**config, **(fixed or {})}
        for number in self.numbers:
            made[number.name] = number.value(number.unit(float(made[number.name])))
        for category in self.categories:
            if made[category.name] not in category.choices:
                made[category.name] = category.choices[0]
        for chain in self._chains(made):
            self._ascend(chain, made, fixed or {})
        for one in self.parts:
            if not self.in_use(one, made) and otherwise is not None and one.name in otherwise:
                made[one.name] = otherwise[one.name]
        return made

    def _chains(self, config: Mapping[str, Any]) -> list[list[Number]]:
        """Keys in use that are to ascend, each list from the lowest."""
        used = {number.name: number for number in (*self.numbers, *self.ends) if self.in_use(number, config)}
        over = {number.above: number for number in used.values() if number.above in used}
        chains = []
        for first in used.values():
            if first.above in used or first.name not in over:
                continue
            chain = [first]
            while chain[-1].name in over:
                chain.append(over[chain[-1].name])
            chains.append(chain)
        return chains

    def _ascend(self, chain: Sequence[Number], made: Configuration, fixed: Mapping[str, Any]) -> None:
        """The nearest ascending values on the scale of the search, within the ranges of all and beside what is fixed."""
        values = np.array([number.scaled(float(made[number.name])) for number in chain])
        low = np.array([number.scaled(float(fixed.get(number.name, number.low))) for number in chain])
        high = np.array([number.scaled(float(fixed.get(number.name, number.high))) for number in chain])
        low, high = np.maximum.accumulate(low), np.minimum.accumulate(high[::-1])[::-1]
        if (np.diff(values) >= 0).all() and (values >= low - 1e-12).all() and (values <= high + 1e-12).all():
            return
        for number, at in zip(chain, np.clip(ascending(values), low, high).tolist(), strict=True):
            plain = at if not number.log else math.expm1(at) if number.low <= 0.0 else math.exp(at)
            made[number.name] = number.value(number.unit(plain))


def ascending(values: Floats) -> Floats:
    """The nearest ascending values by least squares (pool adjacent violators): neighbours in the wrong order become their mean."""
    blocks: list[tuple[float, int]] = []
    for value in values.tolist():
        mean, count = value, 1
        while blocks and blocks[-1][0] > mean:
            before, many = blocks.pop()
            mean, count = (before * many + mean * count) / (many + count), many + count
        blocks.append((mean, count))
    return np.array([mean for mean, count in blocks for _ in range(count)], dtype=np.float64)


def space_of(
    config_type: type, config: Mapping[str, Any], *, only: Sequence[str] = (), ranges: Mapping[str, tuple[float, float]] | None = None
) -> Space:
    """The search space of a policy whose configuration in force is ``config``, defaults included.

    ``only``: the keys to tune, (): all that have ranges or choices. ``ranges``: narrower ones. Raises ValueError, in one line, for a
    policy without such keys, for unknown keys, and for ranges that contradict each other.
    """
    ranges = ranges or {}
    fields = {field.name: field for field in dataclasses.fields(config_type)}
    for key in (*only, *ranges):
        if key not in fields:
            raise ValueError(f"{key}: the policy has no such key; there are: {', '.join(fields) or 'none'}")
    numbers: list[Number] = []
    categories: list[Category] = []
    for name, field in fields.items():
        if only and name not in only:
            continue
        told = field.metadata
        if isinstance(field.default, bool):
            categories.append(Category(name, (False, True), told.get("needs")))
        elif told.get("choices"):
            categories.append(Category(name, tuple(told["choices"]), told.get("needs")))
        elif told.get("low") is not None and told.get("high") is not None:
            numbers.append(_number(field, ranges.get(name)))
        elif only:
            raise ValueError(f"{name}: has neither a range nor choices, so it can't be tuned")
    if not numbers and not categories:
        raise ValueError("the policy has no keys to tune; 'stoker policy list' names others")
    for key in ranges:
        if key not in {number.name for number in numbers}:
            raise ValueError(f"{key}: a range is for a number that is tuned; there are: {', '.join(number.name for number in numbers)}")
    tuned = {*(one.name for one in numbers), *(one.name for one in categories)}
    kept = {name: config[name] for name in fields if name not in tuned}
    ends = _ends(fields.values(), kept)
    _check_order([*numbers, *(one for one in ends if one.needs is None or float(kept.get(one.needs[0], -math.inf)) >= one.needs[1])])
    return Space(tuple(numbers), tuple(categories), kept, tuple(ends))


def _number(field: dataclasses.Field[Any], narrower: tuple[float, float] | None) -> Number:
    told = field.metadata
    low, high = narrower or (told["low"], told["high"])
    if not told["low"] <= low <= high <= told["high"]:
        raise ValueError(f"{field.name}: {low:g} to {high:g} is not within its range {told['low']:g} to {told['high']:g}")
    whole = isinstance(field.default, int)
    if whole and math.ceil(low) > math.floor(high):
        raise ValueError(f"{field.name}: {low:g} to {high:g} has no whole number")
    return Number(field.name, float(low), float(high), bool(told.get("log")), whole, told.get("needs"), told.get("above"))


def _ends(fields: Iterable[dataclasses.Field[Any]], kept: Mapping[str, Any]) -> list[Number]:
    """Numbers that stand in an order with others and are not tuned: each is as large as it is."""
    fields = [field for field in fields if not isinstance(field.default, bool) and field.metadata.get("low") is not None]
    ordered = {field.name for field in fields if field.metadata.get("above")} | {field.metadata.get("above") for field in fields}
    return [_number(field, (kept[field.name], kept[field.name])) for field in fields if field.name in kept and field.name in ordered]


def _check_order(numbers: Sequence[Number]) -> None:
    by_name = {number.name: number for number in numbers}
    for number in numbers:
        below = by_name.get(number.above or "")
        while below is not None:
            if below.low > number.high:
                raise ValueError(
                    f"{number.name}: at most {number.high:g}, while {below.name}, which is no larger, is at least {below.low:g}"
                )
            below = by_name.get(below.above or "")
