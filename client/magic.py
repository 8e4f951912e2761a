"""``%load_ext stoker.client``: ``%%stoker sql`` runs the cell's query, ``%stoker ps`` and ``%stoker top`` show jobs and GPUs."""

from __future__ import annotations

from typing import Any

from ..engine.errors import StokerError, UsageError


def answer(line: str, cell: str | None = None) -> Any:
    """The output for a magic's line and the rest of its cell."""
    from . import jobs, sql, top

    word, _, rest = line.strip().partition(" ")
    query = "\n".join(filter(None, (rest.strip(), (cell or "").strip())))
    if word == "sql":
        if not query:
            raise UsageError("%%stoker sql: the query is empty: write it into the cell")
        return sql(query)
    if word == "ps" and not query:
        return jobs()
    if word == "top" and not query:
        return top()
    raise UsageError(f"%stoker {line.strip()}: there are 'sql QUERY', 'ps' and 'top'")


def register(shell: Any) -> None:
    """Add the magic to an IPython shell. Errors are one line, without traceback."""

    def stoker(line: str, cell: str | None = None) -> Any:
        try:
            return answer(line, cell)
        except StokerError as error:
            import sys

            print(f"stoker: error: {error}", file=sys.stderr)  # noqa: T201 - to the notebook
            return None

    shell.register_magic_function(stoker, magic_kind="line_cell", magic_name="stoker")
