"""A large read by the daemon itself, limited in rows, time and memory, so that commits always find memory."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import LimitExceeded, UsageError
from .sqlfiles import sql
from .store import Store

if TYPE_CHECKING:
    import duckdb

SHARE_OF_MEMORY = 1 / 8  #: share of the database's memory: sorts and hash tables that need more go to disk

Value = bool | int | float | list[int] | None
_PARAMETER = re.compile(r"\$(\w+)")


@dataclass(frozen=True, slots=True)
class QueryAnswer:
    columns: list[str]
    rows: list[tuple[Any, ...]]
    truncated: bool  #: there are more rows


def read(store: Store, name: str, values: Mapping[str, Value], *, rows: int, seconds: float) -> QueryAnswer:
    """Rows of ``sql/NAME.sql``, which gets the values that it uses. UsageError names a missing one."""
    with store.read(kept=False) as con:
        return read_on(con, name, values, rows=rows, seconds=seconds)


def read_on(cursor: duckdb.DuckDBPyConnection, name: str, values: Mapping[str, Value], *, rows: int, seconds: float) -> QueryAnswer:
    """`read` on a cursor, which is closed at the end."""
    import duckdb

    text = sql(name)
    wanted = dict.fromkeys(_PARAMETER.findall(text))
    if lacking := [one for one in wanted if one not in values]:
        raise UsageError(f"values: {', '.join(lacking)} must be given for {name}")
    watch = threading.Timer(seconds, cursor.interrupt)
    watch.start()
    try:
        available = cursor.execute(sql("api/memory_limit")).fetchall()[0][0]
        cursor.execute(f"SET operator_memory_limit = '{int(available * SHARE_OF_MEMORY)} bytes'")
        cursor.execute(text, {one: values[one] for one in wanted})
        found = cursor.fetchmany(rows + 1)
        columns = [column[0] for column in cursor.description or ()]
    except duckdb.InterruptException:
        raise LimitExceeded(f"{name}: stopped after {seconds:g} s; {_REMEDY}") from None
    except duckdb.OutOfMemoryException:
        raise LimitExceeded(f"{name}: it needs more memory than the daemon may use; {_REMEDY}") from None
    except (duckdb.DataError, duckdb.ProgrammingError) as error:  # the query is Stoker's own, so a value is wrong
        raise UsageError(f"values: {str(error).splitlines()[0]}") from None
    finally:
        watch.cancel()
        cursor.close()
    return QueryAnswer(columns, list(found[:rows]), len(found) > rows)


_REMEDY = "ask for less, such as the jobs of a shorter time"
