"""One frame of `stoker top`, as lines that fit a screen. A pure function of the snapshot, the size and the time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ... import format as fmt
from .. import job_columns
from ..output import Column, Row, table

if TYPE_CHECKING:
    from rich.text import Text

ORDER = ("running", "starting", "assigned", "profiling", "suspending", "pending", "submitted", "completed", "failed", "cancelled")
NOTICED = 600.0  #: seconds for which events of the daemon itself are shown


@dataclass(frozen=True)
class Section:
    title: str
    rows: Sequence[Row]
    columns: Sequence[Column]
    empty: str

    @property
    def wanted(self) -> int:
        """Lines with everything shown: the title, the header and the rows."""
        return 2 + len(self.rows)

    @property
    def least(self) -> int:
        return min(self.wanted, 4)

    def lines(self, width: int, height: int) -> list[Text]:
        from rich.text import Text

        title = Text(self.title, style="bold reverse", no_wrap=True)
        title.truncate(width, pad=True)
        if not self.rows:
            body = [Text(self.empty, style="dim")]
        else:
            room = max(height - 2, 0)
            cut = len(self.rows) > room > 1
            shown = self.rows[: room - 1] if cut else self.rows[:room]
            body = table(shown, self.columns, width)
            if cut:
                body.append(Text(f"… {len(self.rows) - len(shown)} more", style="dim"))
        return [title, *body][:height]


def sections(snapshot: Mapping[str, Any], now: float) -> list[Section]:
    gpus, running, queue = snapshot["gpus"], snapshot["running"], snapshot["queue"]
    busy = sum(row["job_id"] is not None for row in gpus)
    kind = "CPU slots" if gpus and all(row["kind"] == "cpu" for row in gpus) else "GPUs"
    warm = snapshot.get("warm") or []
    ready = sum(row["state"] == "ready" for row in warm)
    return [
        Section(f" {kind}: {busy} of {len(gpus)} busy", gpus, job_columns.devices(), "no runner yet: stoker runner start"),
        *([Section(f" Warm: {ready} of {len(warm)} ready", warm, job_columns.servers(now), "")] if warm else []),
        Section(f" Running: {len(running)}", running, job_columns.running(now), "nothing runs"),
        Section(f" Queue: {len(queue)}", job_columns.together(queue), job_columns.queued(now), "nothing waits"),
    ]


def shares(wanted: Sequence[int], least: Sequence[int], room: int) -> list[int]:
    """Lines of each section: the least at first, then one each in turn until all are shown or no room is left."""
    given = list(least)
    while sum(given) < room and (open_ := [i for i in range(len(given)) if given[i] < wanted[i]]):
        given[min(open_, key=lambda i: given[i])] += 1
    while sum(given) > room:
        given[max(range(len(given)), key=lambda i: given[i])] -= 1
    return given


def header(snapshot: Mapping[str, Any], now: float, width: int, trouble: str | None) -> Text:
    from rich.text import Text

    counts = snapshot["counts"]
    summary = "  ".join(f"{counts[state]} {state}" for state in ORDER if counts.get(state))
    line = Text("stoker top ", style="bold", no_wrap=True).append(fmt.clock(now)[11:], style="not bold")
    noticed = next((row for row in snapshot.get("notices") or () if now - row["ts"] < NOTICED), None)
    if noticed and not trouble:
        summary += f"  {noticed['reason']}, {fmt.relative(noticed['ts'], now)}"
    line.append("  ").append(trouble or summary or "no jobs yet", style="bold red" if trouble else "not bold")
    line.truncate(width, overflow="ellipsis")
    return line


def frame(snapshot: Mapping[str, Any], width: int, height: int, trouble: str | None = None) -> list[Text]:
    """At most ``height`` lines of at most ``width`` cells."""
    from rich.text import Text

    now = snapshot["now"]
    parts = sections(snapshot, now)
    room = max(height - 2, 0)
    heights = shares([part.wanted for part in parts], [part.least for part in parts], room)
    lines = [header(snapshot, now, width, trouble)]
    for part, lines_given in zip(parts, heights, strict=True):
        lines += part.lines(width, lines_given) if lines_given else []
    lines += [Text("")] * (height - 1 - len(lines))
    lines = [*lines[: height - 1], Text("q quit", style="dim")]
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    return lines
