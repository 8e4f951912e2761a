"""One job: its state, its curves and its log, where it ran, the decisions about it, and its cost."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starlette.responses import Response, StreamingResponse

from .. import format as fmt
from ..api.jobs import jobs as api
from ..api.thread_pools import Kind
from ..errors import Conflict, NotFound, StokerError
from ..jobs.states import FINAL, State
from ..json_rows import objects
from ..logfile import Place, colourless, read_log
from . import now_page
from .components import Cell, Stay, bar, empty, facts, grid, lasted, moment, risk, since, state, time_line
from .look import Look, look
from .markup import Inside, Safe, h, join
from .visit import Visit, at, page

if TYPE_CHECKING:
    from ..services import Services

POINTS = 600  #: points of a curve
MOST_FOUND_LINES = 200  #: lines of a log that a search shows
SEARCH_SECONDS = 4.0
LOG_LINES = 400  #: lines of the log shown at first


async def job(visit: Visit) -> Response:
    of = await api.show(visit)
    row = of["job"]
    number = row["id"]
    told = await api.explain(visit)
    cost = await visit.read(objects, visit.daemon.store, "pages/cost", number)
    found = await _searched(visit, number)
    log = None if found is not None else await _tail(visit)
    seen = await look(visit.daemon)
    standing = render_standing(number, seen).get("standing") or _ended(row)
    body = [
        h("h1", f"{number} {row['name']}"),
        h("div", Safe(standing), id="standing"),
        h("div", h("p", told["summary"]), _actions(visit, row), id="now", data_part=True),
        h("div", _facts(row, of, told, cost[0] if cost else {}), id="facts", data_part=True),
        _array(of["array"]) if of["array"] else None,
        _curves(of),
        _log(visit, number, log, found),
        h("div", h("h2", "Where it ran"), _leases(row, of["leases"], seen.now), id="leases", data_part=True),
        h("div", _decisions(told["decisions"]), id="decisions", data_part=True),
        h("div", _events(of["events"]), id="events", data_part=True),
        _details("What was submitted", row["spec"]),
        _details("Where it came from", of["provenance"]) if of["provenance"] else None,
    ]
    return page(visit, f"{number} {row['name']}", *body, stream=f"stream?job={number}" if row["state"] not in FINAL else "")


def render_standing(number: int, seen: Look) -> dict[str, str]:
    """The state of a job, and a word that changes when the rest of its page does."""
    row = seen.by_id.get(number)
    if row is None:
        return {"version": "ended"}
    told: list[Inside] = [state(row["state"], held=row["held"])]
    if row["lease_id"] is not None:
        told += [now_page.done(row), f"loss {fmt.number(row['loss'])}" if row["loss"] is not None else None]
        told += [join("since ", since(row["started"])) if row["started"] else None]
        told += [join("ends ", moment(row["est_end"], "soon")) if row["est_end"] else None]
        told += [h("span", "on ", ", ".join(seen.gpus_of.get(number, [])[:8]))]
    else:
        told += [row["reason"] or None, f"place {row['position']} in the queue" if row["position"] else None]
        told += [join("starts ", moment(row["est_start"], "soon")) if row["est_start"] else None]
    told += [join("deadline ", risk(row["risk"], row["deadline"])) if row["deadline"] else None]
    pieces = [h("li", piece) for piece in told if piece]
    return {
        "standing": h("ul", pieces, class_="standing"),
        "version": f"{row['state']} {row['lease_id']} {row['held']} {row['priority']}",
    }


def _ended(row: Mapping[str, Any]) -> Safe:
    ended = join("ended ", moment(row["finished_at"])) if row["finished_at"] else None
    return h("ul", h("li", state(row["state"], held=row["held"])), h("li", ended) if ended else None, class_="standing")


def _actions(visit: Visit, row: Mapping[str, Any]) -> Safe | None:
    """Buttons for the actions that the visitor may take on the job; each asks for confirmation."""
    if row["state"] == State.COMPLETED or not visit.may("submit") or visit.only not in (None, row["owner"]):
        return None
    names = ["retry"] if row["state"] in FINAL else ["cancel", "release" if row["held"] else "hold", "priority"]
    words = {"cancel": "Cancel…", "hold": "Hold…", "release": "Release…", "priority": "Priority…", "retry": "Retry…"}
    return h("div", [h("a", words[name], href=f"{row['id']}/{name}", class_="button") for name in names], class_="actions")


def _facts(row: Mapping[str, Any], of: Mapping[str, Any], told: Mapping[str, Any], cost: Mapping[str, Any]) -> Safe:
    gpus = str(row["gpus_min"]) if row["gpus_min"] == row["gpus_max"] else f"{row['gpus_min']} to {row['gpus_max']}"
    labels = ", ".join(f"{key}={value}" for key, value in (row["spec"].get("labels") or {}).items())
    progress = of["progress"] or {}
    deadline = told["deadline"]
    steps = None
    if progress.get("step") is not None:
        total = progress.get("total_steps") or row["total_steps"]
        steps = f"{progress['step']:,}" + (f" of at most {total:,}" if total else "")
    return facts(
        {
            "User": row["owner"],
            "Pool": row["pool"],
            "GPUs": gpus,
            "Priority": str(row["priority"]),
            "Kind": f"{row['kind']}, {row['model']}",
            "Labels": labels,
            "Submitted": moment(row["submitted_at"]),
            "First start": moment(row["first_start_at"]) if row["first_start_at"] else None,
            "Ended": moment(row["finished_at"]) if row["finished_at"] else None,
            "Ran": lasted(row["run_time"]) if row["run_time"] else None,
            "Attempts": f"{row['attempts']}, {row['failures']} failed, {row['preemptions']} preempted" if row["attempts"] else None,
            "Steps": steps,
            "Expected": fmt.expectation(of["expected"]) if of["expected"] else None,
            "Serves": fmt.serving(of["serving"]) if of["serving"] else None,
            "Deadline": join(moment(deadline["at"]), ": ", deadline["verdict"]) if deadline else None,
            "Cost": f"{cost['cost']:.4g} for {cost['gpu_hours']:.3g} GPU-hours" if cost else None,
            "Keeps on disk": fmt.size(cost["stored_bytes"]) if cost and cost["stored_bytes"] else None,
        }
    )


def _array(array: Mapping[str, Any]) -> Safe:
    columns = ("task", "#", "state", "progress")
    rows = (
        ([Cell(str(row["array_index"]), "n"), Cell(h("a", str(row["id"]), href=str(row["id"])), "n"), Cell(state(row["state"])),
          Cell(bar(row["progress"] / 100, fmt.percent(row["progress"] / 100)) if row["progress"] is not None else "")], "")
        for row in array["tasks"]
    )  # fmt: skip
    return join(h("h2", "Tasks of the array"), grid("Tasks", columns, rows))


def _curves(of: Mapping[str, Any]) -> Safe:
    row, told = of["job"], of["progress"] or {}
    newest = {"step": told.get("step"), "loss": told.get("loss"), "metric": told.get("metric")}
    words = ", ".join(f"{name} {fmt.number(value)}" for name, value in newest.items() if value is not None)
    nothing = empty("It has reported nothing to draw." if not words else f"Newest: {words}. The curves are drawn by the page's script.")
    return h("section", h("h2", "Curves"), h("div", nothing, class_="plots", data_plots=f"{row['id']}/curves", data_live=True))


def _log(visit: Visit, number: int, log: Mapping[str, Any] | None, found: Mapping[str, Any] | None) -> Safe:
    wanted = visit.asked("find")
    search = h(
        "form",
        h("label", "find in the log", h("input", name="find", type="search", value=wanted)),
        h("button", "Find"),
        h("a", "Back to the end", href=str(number), class_="button") if wanted else None,
        class_="filter", role="search", action=f"{number}#log",
    )  # fmt: skip
    if found is not None:
        lines = [[*_marked(line, wanted), "\n"] for line in found["lines"]]
        shown: Inside = h("pre", lines, class_="log", tabindex=0, role="region", aria_label="Lines found")
        if not lines:
            shown = empty(f"No line has {wanted!r}.")
        said = h("p", found["said"])
    else:
        assert log is not None
        text = colourless(log["text"])
        said = h("p", log["why"] or (f"of lease {log['lease']} on {log['node']}, {log['path']}" if log["path"] else ""), id="log-where")
        follow = {"data_log": f"{number}/log", "data_file": log["file"], "data_offset": str(log["offset"])} if not log["why"] else {}
        shown = h("pre", text, class_="log", id="log-text", tabindex=0, role="log", aria_label="Log", **follow)
        if not text and not log["path"]:
            shown = join(empty("It has written nothing yet: it writes once it runs."), shown)
    return h("section", h("h2", "Log"), search, said, shown, id="log")


def _marked(line: str, wanted: str) -> list[Inside]:
    at_ = line.lower().find(wanted.lower())
    return [line] if at_ < 0 else [line[:at_], h("mark", line[at_ : at_ + len(wanted)]), line[at_ + len(wanted) :]]


async def _tail(visit: Visit) -> dict[str, Any]:
    """The end of its log, or why there is none to show."""
    try:
        _, source = await _source(visit)
        if source is None:
            return {"text": "", "file": "", "offset": 0, "lease": None, "node": None, "path": None, "why": ""}
        if not await visit.read(visit.daemon.remote_logs.is_here, source):
            return {"text": "", "file": "", "offset": 0, **api.whereabouts(source), "why": ""}
        piece = await visit.read(read_log, source.path, None, LOG_LINES)
        return {"text": piece.text, "file": piece.place.file, "offset": piece.place.offset, **api.whereabouts(source), "why": ""}
    except StokerError as error:
        return {"text": "", "file": "", "offset": 0, "lease": None, "node": None, "path": None, "why": str(error)}


async def _source(visit: Visit) -> tuple[int, Any]:
    named = await visit.read(api.resolve, visit.daemon.store, visit.path("ref"), visit.who.user)
    source, _ = await visit.read(api.log_source, visit.daemon.store, named.job, None, None)
    return named.job, source


async def _searched(visit: Visit, number: int) -> dict[str, Any] | None:
    """Lines of the whole log that contain the search text; None: there is no search."""
    wanted = visit.asked("find")[:200]
    if not wanted:
        return None
    _, source = await _source(visit)
    if source is None or not await visit.read(visit.daemon.remote_logs.is_here, source):
        return {"lines": [], "said": f"The log is on another host: 'stoker logs {number}' brings it here." if source else ""}
    return await visit.run(Kind.REPORT, _find, source.path, wanted)


def _find(path: Path, wanted: str) -> dict[str, Any]:
    lines: list[str] = []
    place, rest, read, end = Place("", 0), "", 0, time.monotonic() + SEARCH_SECONDS
    sought = wanted.lower()
    while len(lines) < MOST_FOUND_LINES and time.monotonic() < end:
        piece = read_log(path, place)
        if not piece.text:
            break
        place, read = piece.place, read + len(piece.text)
        text = rest + piece.text
        whole, _, rest = text.rpartition("\n")
        if sought in whole.lower():
            lines += [colourless(line)[:2000] for line in whole.split("\n") if sought in line.lower()]
        if len(rest) > 1 << 20:
            rest = ""
    else:
        how = f"The first {MOST_FOUND_LINES} lines" if len(lines) >= MOST_FOUND_LINES else f"Searched for {SEARCH_SECONDS:g} s"
        return {"lines": lines[:MOST_FOUND_LINES], "said": f"{how}: the first {fmt.size(read)} of the log were searched."}
    if rest and sought in rest.lower():
        lines.append(colourless(rest)[:2000])
    return {"lines": lines, "said": f"{fmt.counted(len(lines), 'line')} in {fmt.size(read)}."}


def _leases(row: Mapping[str, Any], leases: list[dict[str, Any]], now: float) -> Safe:
    if not leases:
        return empty("It has held no GPU yet. Why it waits is told above.")
    end = max(one["ended_at"] or now for one in leases)
    begin = row["submitted_at"]
    gpus = sorted({gpu for one in leases for gpu in one["gpus"] if gpu})[:32]
    stays = [
        Stay(gpu, one["granted_at"], one["ended_at"] or now, f"{one['attempt']}", _told(one, now), one["attempt"])
        for one in leases
        for gpu in one["gpus"]
        if gpu
    ]
    columns = ("attempt", "granted", "started", "lasted", "on", "outcome", "policy", "why it stopped")
    rows = (
        (
            [
                Cell(str(one["attempt"]), "n"),
                Cell(moment(one["granted_at"])),
                Cell(moment(one["started_at"]) if one["started_at"] else ""),
                Cell(lasted((one["ended_at"] or now) - one["granted_at"]), "n"),
                Cell(", ".join(filter(None, one["gpus"][:8])), "long"),
                Cell(one["outcome"] or one["state"]),
                Cell(one["policy"]),
                Cell(one["message"] or one["stop_reason"] or "", "long"),
            ],
            "",
        )
        for one in leases[:50]
    )
    return join(time_line("Leases by time", gpus, stays, begin, end), grid("Leases", columns, rows))


def _told(one: Mapping[str, Any], now: float) -> str:
    until = "now" if one["ended_at"] is None else fmt.clock(one["ended_at"])
    return f"attempt {one['attempt']}: {fmt.clock(one['granted_at'])} to {until}, {one['outcome'] or one['state']}"


def _decisions(decisions: list[dict[str, Any]]) -> Safe:
    columns = ("when", "policy", "what", "why")
    rows = (([Cell(moment(one["ts"])), Cell(one["policy"]), Cell(one["what"]), Cell(one["why"], "long")], "") for one in decisions)
    shown = grid("Decisions", columns, rows) if decisions else empty("No decision has named it yet.")
    return join(h("h2", "Decisions that concerned it"), shown)


def _events(events: list[dict[str, Any]]) -> Safe:
    columns = ("when", "what", "from", "to", "by", "why")
    rows = (
        ([Cell(moment(one["ts"])), Cell(one["kind"]), Cell(one["before"] or ""), Cell(one["after"] or ""), Cell(one["actor"]),
          Cell(one["reason"] or "", "long")], "")
        for one in events
    )  # fmt: skip
    return h("details", h("summary", f"Events ({len(events)})"), grid("Events", columns, rows))


def _details(title: str, value: Any) -> Safe:
    text = json.dumps(_said(value), indent=2, ensure_ascii=False)
    return h("details", h("summary", title), h("pre", text, class_="spec", tabindex=0))


def _said(value: Any) -> Any:
    """The value without empty fields."""
    if isinstance(value, dict):
        return {key: _said(one) for key, one in value.items() if one not in (None, [], {}, "")}
    return value


async def curves(visit: Visit) -> dict[str, Any]:
    named = await visit.read(api.resolve, visit.daemon.store, visit.path("ref"), visit.who.user)
    store = visit.daemon.store

    def read() -> list[dict[str, Any]]:
        return objects(store, "pages/curves", named.job, POINTS)

    rows = await visit.daemon.snapshots.ask(Kind.READ, ("curves", named.job), read, topics=())
    series = [{"name": row["name"], "x": row["steps"], "y": row["points"]} for row in rows]
    return {"plots": [{"title": one["name"], "unit": "step", "series": [one]} for one in series]}


async def log(visit: Visit) -> dict[str, Any]:
    """The next part of a log, if there is one: read once for all pages that have come as far."""
    ref, file = visit.path("ref"), visit.asked("file")[:40]
    lines = None if file else LOG_LINES
    place = Place(file, int(visit.number("offset") or 0)) if file else None
    who = "" if ref.isdecimal() else visit.who.user  # of several jobs of a name the visitor's own come first
    try:
        shared = await visit.daemon.snapshots.ask(
            Kind.READ, ("log", ref, who, place), partial(_more, visit.daemon, ref, visit.who.user, place, lines), topics=()
        )
        piece: dict[str, Any] = shared or await api.logs(visit)
    except (Conflict, NotFound) as error:  # its host does not send it now, but may later
        return {"why": str(error)}
    return {**piece, "text": fmt.harmless(colourless(piece["text"]))}


def _more(daemon: Services, ref: str, user: str, place: Place | None, lines: int | None) -> dict[str, Any] | None:
    """The next part of a log on this host; None: it is on another one."""
    number = api.resolve(daemon.store, ref, user).job
    source, over = api.log_source(daemon.store, number, None, None)
    if source is None:
        return {"text": "", "file": "", "offset": 0, "done": over, "path": None}
    if not daemon.remote_logs.is_here(source):
        return None
    piece = read_log(source.path, place, lines)
    where = {"file": piece.place.file, "offset": piece.place.offset, "done": over and not piece.text}
    return {"text": piece.text, **where, **api.whereabouts(source)}


async def stream(visit: Visit) -> Response:
    """The changes of a page, for as long as that is open."""
    job, listener = visit.number("job"), visit.daemon.page

    def allowed() -> bool:  # a session may end while its page is open
        return listener.sessions.identify(visit.cookie) == visit.who

    if job is not None:
        events = listener.stream.open(("job", int(job)), partial(render_standing, int(job)), allowed)
    else:
        wanted = now_page.Filter.of(visit)
        events = listener.stream.open(wanted, partial(now_page.render, wanted), allowed)
    return StreamingResponse(events, media_type="text/event-stream")


PAGES = [
    at("/stream", "read", stream),
    at("/jobs/{ref}", "read", job),
    at("/jobs/{ref}/curves", "read", curves),
    at("/jobs/{ref}/log", "read", log),
]
