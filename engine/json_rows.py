"""Rows of a query as JSON objects: times as seconds since the epoch, JSON columns decoded."""

from __future__ import annotations

import datetime
import json
import math
from typing import Any

from .spec.reading.units import EARLIEST, LATEST
from .store.sqlfiles import run
from .store.store import Store


def objects(store: Store, name: str, *parameters: Any) -> list[dict[str, Any]]:
    """Rows of ``sql/NAME.sql``."""
    with store.read() as con:
        result = run(con, name, *parameters)
        columns = [(column[0], str(column[1])) for column in result.description or ()]
        rows = result.fetchall()
    return [{name: plain(value, kind) for (name, kind), value in zip(columns, row, strict=True)} for row in rows]


def first(store: Store, name: str, *parameters: Any) -> dict[str, Any] | None:
    """The first row; None: there is none."""
    return next(iter(objects(store, name, *parameters)), None)


def plain(value: Any, kind: str = "") -> Any:
    """A value that JSON can hold."""
    if value is None or isinstance(value, int):
        return value
    if isinstance(value, str):
        if kind == "TIMESTAMP":  # DuckDB returns text for a time outside Python's range of dates
            return EARLIEST if "BC" in value else LATEST
        return json.loads(value) if kind == "JSON" else value
    if isinstance(value, datetime.datetime):
        return value.replace(tzinfo=datetime.UTC).timestamp()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value
