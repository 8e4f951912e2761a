"""Numbers and sizes as options. click's own types accept NaN despite bounds, and infinity without a bound."""

from __future__ import annotations

import math
from typing import Any

import click
from click.types import FloatParamType

from ..spec.reading import units


class Finite(FloatParamType):
    """A number that is neither NaN nor infinite."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        return _finite(self, super().convert(value, param, ctx), param, ctx)


class FiniteRange(click.FloatRange):
    """The same within bounds."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        return _finite(self, super().convert(value, param, ctx), param, ctx)


class Size(click.ParamType):  # type: ignore[type-arg]  # not generic before click 8.4
    """Bytes, at least one, as a number or as 8GiB."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            count = units.size(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        return count or self.fail("must be at least one byte.", param, ctx)


def _finite(kind: Finite | FiniteRange, number: float, param: click.Parameter | None, ctx: click.Context | None) -> float:
    if not math.isfinite(number):
        kind.fail(f"'{number}' is not a finite number.", param, ctx)
    return number
