"""The first page: the jobs on each GPU, running jobs, and waiting jobs with the reason."""

from __future__ import annotations

import urllib.parse
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from starlette.responses import Response

from .. import format as fmt
from ..api.thread_pools import Kind
from .components import Cell, bar, empty, grid, moment, risk, since, state, tile
from .look import Look, look
from .markup import Inside, Safe, h, join
from .visit import Visit, at, page

MOST_SHOWN_JOBS = 200  #: jobs of the queue
NOTICED = 600.0  #: seconds for which an event of the daemon itself is shown
ORDER = ("running", "starting", "assigned", "profiling", "suspending", "pending", "submitted", "completed", "failed", "cancelled")


@dataclass(frozen=True)
class Filter:
    """Selects the jobs to show; an empty field selects all."""

    state: str = ""
    user: str = ""
    pool: str = ""
    label: str = ""  #: KEY, or KEY=VALUE
    text: str = ""  #: part of the name or the reason

    @classmethod
    def of(cls, visit: Visit) -> Filter:
        return cls(*(visit.asked(name)[:100] for name in ("state", "user", "pool", "label", "text")))

    def takes(self, row: Mapping[str, Any]) -> bool:
        key, _, value = self.label.partition("=")
        return (
            (not self.state or (row["held"] if self.state == "held" else row["state"] == self.state))
            and (not self.user or row["owner"] == self.user)
            and (not self.pool or row["pool"] == self.pool)
            and (not key or (key in row["labels"] and value in ("", str(row["labels"][key]))))
            and (not self.text or self.text.lower() in f"{row['name']} {row['reason']} {row['id']}".lower())
        )

    def query(self) -> str:
        return urllib.parse.urlencode({name: value for name, value in asdict(self).items() if value})


async def now(visit: Visit) -> Response:
    wanted = Filter.of(visit)
    seen = await look(visit.daemon)
    body = await visit.run(Kind.LISTING, _body, wanted, seen)  # a queue may have thousands of jobs
    return page(visit, "Now", body, stream=f"stream?{wanted.query()}")


def _body(wanted: Filter, seen: Look) -> Safe:
    parts = [h("div", Safe(part), id=name) for name, part in render(wanted, seen).items()]
    return join(h("h1", "Now"), parts[0], _form(wanted, seen), parts[1:])


def render(wanted: Filter, seen: Look) -> dict[str, str]:
    """The parts that change."""
    running = [row for row in seen.running if wanted.takes(row)]
    queue = [row for row in seen.queue if wanted.takes(row)]
    some = bool(wanted.query())
    return {
        "summary": join(_notice(seen), _summary(seen)),
        "gpus": join(h("h2", _devices(seen)), _gpus(seen), _warm(seen)),
        "running": join(h("h2", f"Running: {_of(len(running), len(seen.running))}"), _running(running, seen, some)),
        "queue": join(h("h2", f"Queue: {_of(len(queue), len(seen.queue))}"), _queue(queue, some)),
    }


def _of(shown: int, there: int) -> str:
    return f"{there:,}" if shown == there else f"{shown:,} of {there:,}"


def _notice(seen: Look) -> Safe | None:
    fresh = [row for row in seen.notices if seen.now - row["ts"] < NOTICED]
    return h("p", fresh[0]["reason"], " ", moment(fresh[0]["ts"]), class_="bad") if fresh else None


def _summary(seen: Look) -> Safe:
    counts = [(name, seen.counts[name]) for name in ORDER if seen.counts.get(name)]
    return h("dl", [tile(name, f"{count:,}") for name, count in counts]) if counts else join()


def _devices(seen: Look) -> str:
    busy = sum(gpu["id"] in seen.on_gpu for gpu in seen.gpus)
    kind = "CPU slots" if seen.gpus and all(gpu["kind"] == "cpu" for gpu in seen.gpus) else "GPUs"
    return f"{kind}: {busy} of {len(seen.gpus)} busy"


def _gpus(seen: Look) -> Safe:
    if not seen.gpus:
        return empty("No runner offers a GPU or a CPU slot. Start one with", "stoker runner start")
    return h("ul", [_gpu(gpu, seen) for gpu in seen.gpus], class_="gpus")


def _gpu(gpu: Mapping[str, Any], seen: Look) -> Safe:
    on = seen.on_gpu.get(gpu["id"], [])
    sound = gpu["health"] == "ok" and gpu["node_state"] == "up"
    measured = on or gpu["kind"] == "cuda"  # the last sample of a free slot is of a job that has ended
    used = bar(gpu["utilisation"], f"{fmt.percent(gpu['utilisation'])} in use") if measured and gpu["utilisation"] is not None else None
    memory = None
    if measured and gpu["memory_used"] is not None:
        memory = fmt.size(gpu["memory_used"]) + (f" of {fmt.size(gpu['memory'])}" if gpu["memory"] else "")
    label = f"{gpu['node']}/{'cpu' if gpu['kind'] == 'cpu' else 'gpu'}{gpu['idx']}"
    who: Inside = [_holder(share, seen, alone=len(on) == 1) for share in on] or h("div", state("free") if sound else "free", class_="soft")
    ill = None if sound else h("div", f"✗ {gpu['note'] or (gpu['health'] if gpu['health'] != 'ok' else gpu['node_state'])}", class_="bad")
    more = [h("small", piece) for piece in (used, memory, f"warm: {gpu['warm']}" if gpu["warm"] else None) if piece]
    return h("li", h("b", label, title=gpu["name"]), who, ill, more, class_="ill" if not sound else "busy" if on else None)


def _holder(share: Mapping[str, Any], seen: Look, *, alone: bool) -> Safe:
    job = seen.by_id.get(share["job_id"])
    how = {"has": ", has the turn", "waits": ", waits for its turn", "behind": ", behind others"}.get(share["turn"] or "", "")
    shared = "" if alone or share["share"] == "exclusive" else f" ({share['share']}{how})"
    name = job["name"] if job else "job"
    return h(
        "div",
        h("a", f"{share['job_id']} {name}", href=f"jobs/{share['job_id']}"),
        shared,
        " ",
        h("span", job["owner"] if job else "", class_="soft"),
    )


def _warm(seen: Look) -> Safe | None:
    if not seen.warm:
        return None
    told = [f"{row['backbone']} on {row['node']} ({row['state']}, {fmt.size(row['memory'])})" for row in seen.warm]
    return h("p", "Warm: ", ", ".join(told))


def done(row: Mapping[str, Any]) -> Safe | None:
    """The progress of a job."""
    if row["step"] is None:
        return None
    if row["kind"] == "infer":
        return h("span", f"{row['step']:,} answered")
    if not row["steps"]:
        return h("span", f"step {row['step']:,}")
    share = min(row["step"] / row["steps"], 1.0)
    return h("span", bar(share, fmt.percent(share)), title=f"step {row['step']:,} of at most {row['steps']:,}")


def _running(rows: list[dict[str, Any]], seen: Look, some: bool) -> Safe:
    if not rows:
        return (
            empty("Nothing that runs fits these filters.")
            if some
            else empty("Nothing runs. Submit a job with", "stoker submit -- python train.py")
        )
    columns = ("#", "job", "state", "progress", "loss", "ran", "ends", "deadline", "user", "on")
    made = (
        (
            [
                Cell(str(row["id"]), "n"),
                Cell(h("a", row["name"], href=f"jobs/{row['id']}")),
                Cell(state(row["state"])),
                Cell(done(row)),
                Cell(fmt.number(row["loss"], 3) if row["loss"] is not None else "", "n"),
                Cell(since(row["started"]) if row["started"] else ""),
                Cell(moment(row["est_end"], "soon") if row["est_end"] else ""),
                Cell(risk(row["risk"], row["deadline"])),
                Cell(row["owner"]),
                Cell(", ".join(seen.gpus_of.get(row["id"], [])[:8]), "long"),
            ],
            "",
        )
        for row in rows[:MOST_SHOWN_JOBS]
    )
    return grid("Running jobs", columns, made)


def _queue(rows: list[dict[str, Any]], some: bool) -> Safe:
    if not rows:
        return empty("Nothing that waits fits these filters.") if some else empty("Nothing waits.")
    columns = ("place", "#", "job", "GPUs", "priority", "waited", "starts", "deadline", "user", "pool", "reason")
    made = (
        (
            [
                Cell("" if row["position"] is None else str(row["position"]), "n"),
                Cell(str(row["id"]), "n"),
                Cell(join(h("a", row["name"], href=f"jobs/{row['id']}"), h("small", "⏸ held") if row["held"] else None)),
                Cell(str(row["gpus_min"]) if row["gpus_min"] == row["gpus_max"] else f"{row['gpus_min']}-{row['gpus_max']}", "n"),
                Cell(str(row["priority"]), "n"),
                Cell(since(row["waits_since"])),
                Cell(moment(row["est_start"], "soon") if row["est_start"] else ""),
                Cell(risk(row["risk"], row["deadline"])),
                Cell(row["owner"]),
                Cell(row["pool"]),
                Cell(row["reason"], "long"),
            ],
            "",
        )
        for row in rows[:MOST_SHOWN_JOBS]
    )
    more = h("p", f"The first {MOST_SHOWN_JOBS} of {len(rows):,}: filter to see others.") if len(rows) > MOST_SHOWN_JOBS else None
    return join(grid("Jobs that wait", columns, made), more)


def _form(wanted: Filter, seen: Look) -> Safe:
    labels = sorted({f"{key}={value}" for row in seen.jobs for key, value in row["labels"].items()})[:100]
    lists = [
        _choice("state", wanted.state, sorted({row["state"] for row in seen.jobs} | {"held"})),
        _choice("user", wanted.user, sorted({row["owner"] for row in seen.jobs})),
        _choice("pool", wanted.pool, sorted({row["pool"] for row in seen.jobs})),
        h("label", "label", h("input", name="label", value=wanted.label, list="labels", placeholder="KEY=VALUE")),
        h("datalist", [h("option", value=label) for label in labels], id="labels"),
        h("label", "text", h("input", name="text", type="search", value=wanted.text, placeholder="name, reason")),
    ]
    clear = h("a", "Clear", href="./", class_="button") if wanted.query() else None
    return h("form", lists, h("button", "Filter"), clear, class_="filter", role="search", aria_label="Filter jobs")


def _choice(name: str, chosen: str, known: list[str]) -> Safe:
    there = known if not chosen or chosen in known else [*known, chosen]
    return h(
        "label",
        name,
        h("select", h("option", "all", value=""), [h("option", one, value=one, selected=one == chosen) for one in there], name=name),
    )


PAGES = [at("/", "read", now)]
