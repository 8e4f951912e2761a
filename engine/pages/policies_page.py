"""Policies: those in force with their configuration, their decisions, and the changes by tuning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from .. import format as fmt
from ..api.thread_pools import Kind
from ..json_rows import objects
from .components import Cell, empty, facts, grid, lasted, moment
from .markup import Safe, h, join
from .visit import Visit, at, page

MOST_ROWS = 100  #: rows of each table


async def policies(visit: Visit) -> Response:
    store, pool = visit.daemon.store, visit.asked("pool")[:100]
    tuned = visit.daemon.tuning.automatic()
    pools = visit.daemon.scheduling.in_force()

    def read() -> tuple[list[dict[str, Any]], ...]:
        decisions = objects(store, "pages/decisions", pool or None, MOST_ROWS)
        return decisions, objects(store, "api/tunings", MOST_ROWS), objects(store, "api/policy_history")

    decisions, tunings, history = await visit.daemon.snapshots.ask(Kind.READ, ("policies", pool), read)
    choice = [h("a", row["pool"], href=f"policies?pool={row['pool']}", class_="button") for row in pools] if len(pools) > 1 else []
    return page(
        visit,
        "Policies",
        h("h1", "Policies"),
        [_pool(row, tuned.get(row["pool"])) for row in pools if pool in ("", row["pool"])],
        h("h2", f"Decisions{f' of pool {pool}' if pool else ''}"),
        h("p", choice, h("a", "all", href="policies", class_="button"), class_="actions") if choice else None,
        _decisions(decisions),
        h("h2", "Tunings"),
        _tunings([row for row in tunings if pool in ("", row["pool"])]),
        h("h2", "Settings"),
        _history([row for row in history if pool in ("", row["pool"])]),
    )


def _config(config: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} = {fmt.plain(value)}" for key, value in config.items()) or "defaults"


def _pool(row: Mapping[str, Any], auto: Any) -> Safe:
    return join(
        h("h2", f"Pool {row['pool']}: {row['policy']}"),
        h("p", f"✗ It fails: {row['error']} ", row["remedy"] or "", class_="bad") if row["error"] else None,
        facts(
            {
                "Configuration": _config(row["config"]),
                "Asked every": fmt.duration(row["interval"]),
                "Set by": row["set_by"],
                "Set": moment(row["ts"]) if row["ts"] else None,
                "Tunes itself": "yes" if auto else "no",
            }
        ),
    )


def _decisions(rows: list[dict[str, Any]]) -> Safe:
    if not rows:
        return empty("No policy has started or stopped a job yet. Submit one with", "stoker submit -- python train.py")
    columns = ("when", "pool", "policy", "jobs seen", "starts", "stops", "outcome", "took", "error")
    made = (
        (
            [
                Cell(moment(row["ts"])),
                Cell(row["pool"]),
                Cell(row["policy"]),
                Cell(f"{row['jobs_seen']:,}", "n"),
                Cell(str(row["starts"] or 0), "n"),
                Cell(str(row["stops"] or 0), "n"),
                Cell(row["outcome"], "bad" if row["error"] else ""),
                Cell(lasted(row["plan_seconds"]), "n"),
                Cell(row["error"] or "", "long"),
            ],
            "",
        )
        for row in rows
    )
    return grid("Decisions", columns, made)


def _tunings(rows: list[dict[str, Any]]) -> Safe:
    if not rows:
        return empty("Nothing was tuned. Let a policy tune itself to what is coming with", "stoker tune")
    columns = ("when", "pool", "policy", "for", "before", "after", "expected", "measured", "outcome", "why")
    made = (
        (
            [
                Cell(moment(row["ts"])),
                Cell(row["pool"]),
                Cell(row["policy"]),
                Cell(row["objective"]),
                Cell(_config(row["before"])),
                Cell(_config(row["after"])),
                Cell(fmt.percent(row["predicted_gain"]), "n"),
                Cell("" if row["measured_gain"] is None else fmt.percent(row["measured_gain"]), "n"),
                Cell(row["outcome"]),
                Cell(row["why"], "long"),
            ],
            "",
        )
        for row in rows
    )
    return grid("Tunings", columns, made)


def _history(rows: list[dict[str, Any]]) -> Safe:
    if not rows:
        return empty("The defaults are in force. Set another policy with", "stoker policy set tiresias")
    columns = ("when", "pool", "policy", "configuration", "every", "by")
    made = (
        ([Cell(moment(row["ts"])), Cell(row["pool"]), Cell(row["policy"]), Cell(_config(row["config"]), "long"),
          Cell(fmt.duration(row["interval"]), "n"), Cell(row["set_by"])], "")
        for row in rows
    )  # fmt: skip
    return grid("Settings", columns, made)


PAGES = [at("/policies", "read", policies)]
