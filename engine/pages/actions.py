"""Actions of a visitor, each confirmed on a page of its own, which works without scripts."""

from __future__ import annotations

import secrets
from typing import Any

import msgspec
from starlette.responses import Response

from ..api.jobs import jobs as api
from ..api.jobs.retries import Retry, submit_again
from ..api.operators.operators import drain_runner
from ..errors import NotFound, UsageError
from ..spec.check import MAX_PRIORITY
from .markup import Safe, h
from .visit import Visit, at, back, page

#: For each action its name, and its effect on a job.
WORDS = {
    "cancel": ("Cancel", "It ends, and does not go on. What it has saved stays."),
    "hold": ("Hold", "It is not scheduled until it is released. If it runs, it is asked to save and to stop."),
    "release": ("Release", "It may be scheduled again."),
    "priority": ("Set the priority of", "Larger is more urgent."),
    "retry": ("Retry", "It is submitted once more as a new job, with its deadlines from now on."),
}


async def ask_job(visit: Visit) -> Response:
    action = _action(visit)
    of = (await api.show(visit))["job"]
    name, words = WORDS[action]
    given = None
    if action == "priority":
        given = h("label", "priority ", h("input", name="priority", type="number", value=of["priority"], required=True))
    elif action == "retry":
        given = h("input", name="key", type="hidden", value=secrets.token_hex(8))
    return _asked(visit, f"{name} job {of['id']} {of['name']}?", words, f"{name.split()[0]} it", given, action)


async def act_on_job(visit: Visit) -> Response:
    action = _action(visit)
    fields = visit.request.state.fields
    if action == "retry":  # a form that is sent twice submits one job
        (new, *_) = (await submit_again(visit, Retry(key=f"page-{fields.get('key', '')[:40]}")))["jobs"]
        return back(visit, f"jobs/{new['id']}")
    asked: api.Action = api.Action()
    if action == "priority":
        try:
            asked = msgspec.convert({"priority": int(fields.get("priority", ""))}, api.Priority)
        except (ValueError, msgspec.ValidationError):
            raise UsageError(f"priority: must be a whole number from {-MAX_PRIORITY} to {MAX_PRIORITY}") from None
    (one, *_) = (await api.change(visit, action, asked))["jobs"]  # type: ignore[arg-type]
    return back(visit, f"jobs/{one['id']}")


def _action(visit: Visit) -> str:
    action = visit.path("action")
    if action not in WORDS:
        raise NotFound(f"there is no page {visit.request.url.path[:200]}")
    return action


async def _node(visit: Visit) -> str:
    node = visit.path("node")
    if node not in {row[0] for row in await visit.read(visit.daemon.store.rows, "api/node_states")}:
        raise NotFound(f"there is no runner {node[:100]!r}")
    return node


async def ask_drain(visit: Visit) -> Response:
    node = await _node(visit)
    return _asked(visit, f"Drain runner {node}?", "Its jobs go on to their end, and nothing new starts on it.", "Drain it", None, "drain")


async def ask_resume(visit: Visit) -> Response:
    return _asked(visit, f"Let runner {await _node(visit)} start jobs again?", "It was drained.", "Resume it", None, "resume")


async def drain(visit: Visit) -> Response:
    await visit.control(drain_runner, visit, False)
    return back(visit, "gpus")


async def resume(visit: Visit) -> Response:
    who = visit.who.user
    await visit.control(visit.daemon.fleet.change, visit.path("node"), "up", who, f"resumed by {who}")
    return back(visit, "gpus")


def _asked(visit: Visit, title: str, words: str, yes: str, given: Safe | None, to: str) -> Response:
    buttons = h(
        "div", h("button", yes, class_="main"), h("a", "No, go back", href=visit.root + _from(visit), class_="button"), class_="actions"
    )
    return page(visit, title, h("h1", title), h("p", words), visit.form(to, given, buttons))


def _from(visit: Visit) -> str:
    params: dict[str, Any] = visit.request.path_params
    return f"jobs/{params['ref']}" if "ref" in params else "gpus"


PAGES = [
    at("/jobs/{ref}/{action}", "submit", ask_job),
    at("/jobs/{ref}/{action}", "submit", act_on_job, "POST"),
    at("/runners/{node}/drain", "admin", ask_drain),
    at("/runners/{node}/drain", "admin", drain, "POST"),
    at("/runners/{node}/resume", "admin", ask_resume),
    at("/runners/{node}/resume", "admin", resume, "POST"),
]
