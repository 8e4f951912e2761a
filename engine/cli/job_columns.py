"""The columns for rows of the views jobs_now, queue and gpus_now, in `ps` and in `top`."""

from __future__ import annotations

from collections.abc import Sequence

from .. import format as fmt
from .output import STATE_STYLE, Column, Row, state_style

_IDLE = 0.05  #: utilisation of a GPU below which it counts as unused
MOST_SPANS = 8
RISK_STYLE = {"met": "green", "safe": "green", "at risk": "yellow", "missed": "red"}


def together(queue: Sequence[Row]) -> list[Row]:
    """The queue, with neighbouring tasks of an array that wait for the same reason as one row."""
    rows: list[Row] = []
    for row in queue:
        last = rows[-1] if rows else None
        if last and row["array_id"] is not None and (last["array_id"], last["reason"]) == (row["array_id"], row["reason"]):
            count = last.get("tasks", 1) + 1
            rows[-1] = {**last, "tasks": count, "name": f"{str(row['name']).rsplit('[', 1)[0]}[{count} tasks]"}
        else:
            rows.append(row)
    return rows


def collapsed(row: Row) -> bool:
    """Whether the row stands for a whole array."""
    return row.get("array_size") is not None and bool(row.get("collapsed"))


def name(row: Row) -> str:
    if not collapsed(row):
        return str(row["name"])
    base = str(row["name"]).rsplit("[", 1)[0]
    return f"{base}[{row['array_size']} tasks]"


def number(row: Row) -> str:
    """Of an array that of its first task, also where only later ones are listed."""
    return str(row["array_id"] if collapsed(row) else row["id"])


def state(row: Row) -> str:
    """The state; of an array: running while any task is, then waiting, at the end failed if a task failed, else cancelled if one was."""
    if not collapsed(row):
        return f"{row['state']} (held)" if row.get("held") else str(row["state"])
    if row["array_ended"] < row["array_size"]:
        return "running" if row["array_active"] else "pending"
    return "failed" if row["array_failed"] else "cancelled" if row["array_cancelled"] else "completed"


def _state_style(row: Row) -> str:
    return STATE_STYLE.get(state(row).split(" ")[0], "")


def progress(row: Row) -> str:
    if collapsed(row):
        otherwise = "".join(f", {row[f'array_{how}']} {how}" for how in ("failed", "cancelled", "held") if row.get(f"array_{how}"))
        return f"{row['array_ended']}/{row['array_size']} ended{otherwise}"
    if row.get("kind") == "infer":
        return "" if row["step"] is None else f"{row['step']} answered"
    if row["progress"] is None:
        return "" if row["step"] is None else f"step {row['step']}"
    return fmt.percent(row["progress"] / 100)


def done(row: Row) -> float | None:
    """Share of the work that is done."""
    if collapsed(row):
        return float(row["array_ended"] / row["array_size"])
    return None if row["progress"] is None else float(row["progress"] / 100)


def gpus(row: Row) -> str:
    """The GPUs that it holds, or asks for; of an array: those that its tasks hold together, or that each asks for."""
    if held := row.get("array_gpus" if collapsed(row) else "gpus"):
        return str(held)
    return str(row["gpus_min"]) if row["gpus_min"] == row["gpus_max"] else f"{row['gpus_min']}-{row['gpus_max']}"


def risk_style(row: Row) -> str:
    return RISK_STYLE.get(str(row.get("deadline_risk")), "")


def _deadline(row: Row, now: float) -> str:
    """The state of its deadline, and its time while that is open."""
    risk = row["deadline_risk"] or ""
    return f"{risk}, {fmt.relative(row['deadline'], now)}" if risk and row["finished_at"] is None else risk


def _ends(row: Row, now: float) -> str:
    """The time of its end, its expected end, or its expected start."""
    if collapsed(row) and row["array_ended"] < row["array_size"]:
        return ""
    ended = row["array_finished_at"] if collapsed(row) else row["finished_at"]
    if ended is not None:
        return f"ended {fmt.relative(ended, now)}"
    if row["gpus"] and row["eta_at"] is not None:
        return f"ends {fmt.expected(row['eta_at'], now)}"
    return f"starts {fmt.expected(row['est_start'], now)}" if row["est_start"] is not None else fmt.MISSING


def _ran(row: Row) -> str:
    return "" if collapsed(row) or not row["ran"] else fmt.duration(row["ran"])


def _silence(row: Row, now: float) -> str:
    if collapsed(row):
        return f"{row['array_silent']} on silent runners" if row["array_silent"] else ""
    if not row["silent_nodes"]:
        return ""
    return fmt.silence(row["silent_nodes"].split(","), row["silent_since"], row["reported_at"], now)


def _reason(row: Row, now: float) -> str:
    """The reason; of an array that of its first task, but only while that waits, as its fate does not hold for the others."""
    silence = _silence(row, now)
    if collapsed(row) and row["state"] not in ("pending", "submitted"):
        return silence
    of_all = collapsed(row) and row["held"]  # the number alone would release its first task, the name another array of that name
    reason = f"held: 'stoker release {row['id']} --array' lets them go" if of_all else row["reason"]
    return "; ".join(filter(None, (reason, beside(row), silence)))


def start(row: Row) -> str:
    """Whether its worker was forked from a process that had loaded its imports (docs/warm.md)."""
    return "" if row.get("warm") is None else "warm" if row["warm"] else "cold"


def beside(row: Row) -> str:
    """The jobs that share its GPUs."""
    return f"beside {row['shared_with']}" if row.get("shared_with") else ""


def _on(row: Row, now: float) -> str:
    """The nodes on which it runs, and those that are silent."""
    return "; ".join(filter(None, ((row["nodes"] or "").replace(",", ", "), beside(row), _silence(row, now))))


def listed(now: float) -> list[Column]:
    """Columns of `stoker ps`."""
    return [
        Column("ID", number, right=True),
        Column("NAME", name, flexible=True),
        Column("STATE", state, style=_state_style),
        Column("GPUS", gpus, right=True, rank=2),
        Column("PROGRESS", progress, rank=3, share=done),
        Column("START", start, rank=10),
        Column("RAN", _ran, right=True, rank=5),
        Column("WHEN", lambda row: _ends(row, now), rank=1),
        Column("DEADLINE", lambda row: _deadline(row, now), style=risk_style, rank=6),
        Column("USER", "owner", rank=7),
        Column("POOL", "pool", rank=9),
        Column("PRIO", "priority", right=True, rank=8),
        Column("REASON", lambda row: _reason(row, now), flexible=True, least=24, rank=4),
    ]


def tasks(now: float) -> list[Column]:
    """Columns of the tasks of one array."""
    return [
        Column("TASK", "array_index", right=True),
        Column("ID", "id", right=True),
        Column("STATE", state, style=_state_style),
        Column("GPUS", gpus, right=True, rank=2),
        Column("PROGRESS", progress, rank=3, share=done),
        Column("RAN", _ran, right=True, rank=5),
        Column("WHEN", lambda row: _ends(row, now), rank=1),
        Column("REASON", lambda row: _reason(row, now), flexible=True, least=24, rank=4),
    ]


def groups() -> list[Column]:
    """Columns of the tasks of one array, grouped by state and reason."""
    return [
        Column("TASKS", "tasks", right=True),
        Column("STATE", lambda row: f"{row['state']} (held)" if row["held"] else str(row["state"]), style=_state_style),
        Column("GPUS", lambda row: str(row["gpus"] or ""), right=True),
        Column("WHICH", lambda row: spans(row["indices"]), flexible=True),
        Column("WHY", lambda row: row["why"] or "", flexible=True, least=24),
    ]


def spans(numbers: Sequence[int]) -> str:
    """Ascending numbers in short: 0-3, 7; the first few of many."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    told = [str(low) if low == high else f"{low}-{high}" for low, high in found[:MOST_SPANS]]
    return ", ".join(told + ["…"] * (len(found) > MOST_SPANS))


def running(now: float) -> list[Column]:
    """Columns of the running jobs in `stoker top`."""
    return [
        Column("ID", "id", right=True),
        Column("NAME", "name", flexible=True),
        Column("STATE", "state", style=state_style, rank=3),
        Column("GPUS", gpus, right=True, rank=1),
        Column("PROGRESS", progress, share=done),
        Column("LOSS", lambda row: "" if row["loss"] is None else fmt.number(row["loss"], 3), right=True, rank=4),
        Column("RAN", lambda row: fmt.duration(row["ran"]), right=True, rank=5),
        Column("ENDS", lambda row: fmt.expected(row["eta_at"], now), rank=0),
        Column("DEADLINE", lambda row: row["deadline_risk"] or "", style=risk_style, rank=2),
        Column("USER", "owner", rank=6),
        Column("ON", lambda row: _on(row, now), flexible=True, rank=3),
    ]


def queued(now: float) -> list[Column]:
    """Columns of the queue in `stoker top`."""
    return [
        Column("#", lambda row: "" if row["position"] is None else str(row["position"]), right=True),
        Column("ID", "id", right=True),
        Column("NAME", "name", flexible=True),
        Column("GPUS", gpus, right=True),
        Column("PRIO", "priority", right=True, rank=3),
        Column("WAITED", lambda row: fmt.duration(row["waited"]), right=True, rank=2),
        Column("STARTS", lambda row: fmt.expected(row["est_start"], now), rank=1),
        Column("DEADLINE", lambda row: row["deadline_risk"] or "", style=risk_style, rank=2),
        Column("USER", "owner", rank=4),
        Column("REASON", lambda row: row["reason"] or "", flexible=True, least=32),
    ]


def _gpu_label(row: Row) -> str:
    return f"{row['node']}/{row['kind'] if row['kind'] == 'cpu' else 'gpu'}{row['idx']}"


def _memory(row: Row) -> str:
    if row["memory_used"] is None:
        return ""
    return f"{fmt.size(row['memory_used'])}/{fmt.size(row['memory'])}" if row["memory"] else fmt.size(row["memory_used"])


def _held_by(row: Row) -> str:
    if row.get("turns"):
        return str(row["turns"])
    if row["job_id"] is not None:
        others = f", {row['shared_with']}" if row.get("shared_with") else ""
        return f"{row['job_id']} {row['job']}{others}"
    if row["state"] != "free":
        return str(row["note"] or row["state"])
    return "free" if (row["utilisation"] or 0.0) < _IDLE else f"free, {fmt.percent(row['utilisation'])} by others"


def _holder_style(row: Row) -> str:
    return "dim" if row["state"] == "free" else "" if row["job_id"] is not None else "red"


def _use(row: Row) -> float | None:
    """Its utilisation by its jobs; the use of an unleased GPU by others stands beside it."""
    return None if row["state"] == "free" else row["utilisation"]


def _use_style(row: Row) -> str:
    use = _use(row) or 0.0
    return "green" if use >= 0.7 else "yellow" if use >= 0.3 else "dim"


def _warm(row: Row) -> str:
    """The backbone of its pool, and any deviation."""
    if not row.get("warm"):
        return ""
    return str(row["warm"]) if row["warm_state"] == "ready" else f"{row['warm']} ({row['warm_state']})"


def servers(now: float) -> list[Column]:
    """Columns of the view warm_now."""
    return [
        Column("RUNNER", "node"),
        Column("RECIPE", lambda row: row["recipe"] or "(entrypoints)", flexible=True),
        Column("BACKBONE", lambda row: row["backbone"] or "", flexible=True),
        Column("STATE", "state", style=state_style),
        Column("MEMORY", lambda row: "" if row["memory"] is None else fmt.size(row["memory"]), right=True, rank=2),
        Column("STAYS", lambda row: _stays(row, now), rank=1),
        Column("JOBS", "jobs", right=True, rank=3),
        Column("NOTE", lambda row: row["note"] or "", flexible=True, rank=1),
    ]


def _stays(row: Row, now: float) -> str:
    if row["state"] == "failed":
        return ""
    return "is kept" if row["until"] is None else f"ends {fmt.expected(row['until'], now)} unless used"


def devices() -> list[Column]:
    """Columns of GPUs and CPU slots."""
    return [
        Column("GPU", _gpu_label),
        Column("BUSY", lambda row: fmt.percent(_use(row)), style=_use_style, share=_use),
        Column("MEMORY", _memory, right=True, rank=2),
        Column("POWER", lambda row: "" if row["power"] is None else f"{row['power']:.0f} W", right=True, rank=3),
        Column("TEMP", lambda row: "" if row["temperature"] is None else f"{row['temperature']:.0f}°C", right=True, rank=4),
        Column("WARM", _warm, rank=1),
        Column("JOB", _held_by, flexible=True, style=_holder_style),
    ]
