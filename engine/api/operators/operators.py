"""Endpoints for operators: status, runners, policies, SQL, schedules, tokens, backups, shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
from starlette.responses import Response

from .... import __version__
from ....policies import registry
from ....policies.autosched.search_space import space_of
from ....policies.contract import Policy
from ....policies.keys import make_config
from ...adhoc.desk import Question
from ...disk_room import largest, room
from ...errors import Conflict, NotFound, UsageError
from ...fleet.watch import StopAll
from ...format import duration
from ...jobs.schedule_rows import ScheduleChange, change_schedule
from ...json_rows import objects
from ...pages.listening import HOST
from ...pages.sessions import LINK_SECONDS
from ...scheduling.policy_settings import Auto, PolicySetting, set_policy
from ...spec.check import NAME
from ...spec.reading.tree import shown
from ...store.disk_watch import named
from ...store.maintenance import backup as back_up
from ...store.maintenance import check_target, move
from ...store.maintenance import compact as compact_database
from ...store.schema_text import schema as schema_tables
from ...store.stored_tokens import NewToken, add_token, revoke_token
from ..answers import Encoded
from ..auth import GRANTS, digest, new_token
from ..call import Call, Nothing, endpoint
from ..thread_pools import Kind
from .pool_calls import absent_pool
from .prometheus import exposition
from .tuning import require_objective


async def healthz(call: Call) -> dict[str, Any]:
    return {"ok": call.daemon.store.failed is None}


async def metrics(call: Call) -> Response:
    text = await call.read(exposition, call.daemon)
    return Response(text, media_type="text/plain; version=0.0.4")


async def status(call: Call) -> dict[str, Any]:
    daemon = call.daemon
    told = await daemon.snapshots.ask(Kind.STATUS, "status", lambda: _standing(call), topics=("nodes", "leases", "policy"))
    return {
        "version": __version__,
        "pid": os.getpid(),
        "home": str(daemon.home.path),
        "started_at": daemon.started_at,
        "now": daemon.clock(),
        "role": call.who.role,
        "disk": await _disk(call),
        **{name: value for name, value in told.items() if name != "tuned"},
        "jobs": daemon.counts.by_state(),
        "pools": _pools(call, told["pools"], told["tuned"]),
        "tasks": [
            {"name": t.name, "last_run": t.last_run, "last_seconds": t.last_seconds, "errors": t.errors, "last_error": t.last_error,
             "stuck": t.stuck}
            for t in daemon.tasks.states()
        ],
    }  # fmt: skip


async def _disk(call: Call) -> dict[str, Any]:
    """Free room on the home's disk; the largest directories are measured once it runs low."""
    daemon = call.daemon
    found, refused = room(daemon.home.path), daemon.store.refused

    def measure() -> list[dict[str, Any]]:
        return named(daemon.store, largest(daemon.home.path))

    low = found.state != "enough" or refused is not None
    takers = await daemon.snapshots.ask(Kind.REPORT, "disk", measure, topics=()) if low else []
    return {"free": found.free, "total": found.total, "low": low, "refused": refused, "reserve": daemon.reserve.size, "largest": takers}


def _standing(call: Call) -> dict[str, Any]:
    """The part of the status that is read from the database: it changes only with runners, leases and policies."""
    store = call.daemon.store
    return {
        "database": {"path": str(store.path), "bytes": store.size, "schema": store.rows("api/schema_version")[0][0]},
        "runners": objects(store, "api/runners"),
        "tuned": call.daemon.tuning.standing(),
        "notices": objects(store, "api/notices"),
        "pools": {row["pool"]: row for row in objects(store, "api/pool_use")},
    }


def _pools(call: Call, use: Mapping[str, Mapping[str, Any]], tuned: Mapping[str, Any]) -> list[dict[str, Any]]:
    empty = {"gpus": 0, "busy": 0}
    told = ("pool", "policy", "interval", "error", "failing_since", "remedy")
    pools = call.daemon.scheduling.in_force()
    return [
        {name: p[name] for name in told} | {key: use.get(p["pool"], empty)[key] for key in empty} | {"auto": tuned.get(p["pool"])}
        for p in pools
    ]


async def top(call: Call) -> Encoded:
    def read() -> dict[str, Any]:
        store = call.daemon.store
        return {
            "now": call.daemon.clock(),
            "gpus": objects(store, "api/top_gpus"),
            "running": objects(store, "api/top_running"),
            "queue": objects(store, "api/top_queue"),
            "counts": dict(store.rows("api/job_counts")),
            "warm": objects(store, "api/warm_now"),
            "notices": objects(store, "api/notices"),
        }

    return await call.snapshot(Kind.LISTING, "top", read)


class PageRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    port: Annotated[int, msgspec.Meta(ge=1, le=65535)] | None = None  #: None: the present port of the page, or any


async def page_link(call: Call) -> dict[str, Any]:
    """A link that opens the page once, with the rights of the user who asks for it."""
    asked = await call.options(PageRequest)
    page = call.daemon.page
    if page.port is None and call.who.role != "admin":
        raise Conflict("the page is not answered yet: whoever runs the daemon opens it, with 'stoker ui' or 'stoker up --ui'")
    port = page.open(asked.port)
    token = call.daemon.page.sessions.link(call.who)
    return {
        "url": f"http://{HOST}:{port}/?token={token}",
        "port": port,
        "seconds": LINK_SECONDS,
        "user": call.who.user,
        "role": call.who.role,
    }


async def list_runners(call: Call) -> Encoded:
    return await call.snapshot(Kind.LISTING, "runners", lambda: {"runners": objects(call.daemon.store, "api/runners")})


class Leave(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    now: bool = False  #: its jobs are stopped too


async def drain(call: Call) -> dict[str, Any]:
    asked = await call.options(Leave)
    await call.control(drain_runner, call, asked.now)
    return {"ok": True}


def drain_runner(call: Call, now: bool, *, leaving: bool = False) -> None:
    node = call.path("node")
    words = "stopped" if leaving else "drained"
    user = call.who.user
    # Servers do not end by themselves: they go on elsewhere.
    call.daemon.drain([node], user, f"{words} by {user}", leaving=leaving, stops=StopAll("drain", user, node, servers=not now))


async def resume(call: Call) -> dict[str, Any]:
    await call.options(Nothing)
    node = call.path("node")
    await call.control(call.daemon.fleet.change, node, "up", call.who.user, f"resumed by {call.who.user}")
    return {"ok": True}


async def stop_runner(call: Call) -> dict[str, Any]:
    asked = await call.options(Leave)
    await call.control(drain_runner, call, asked.now, leaving=True)
    return {"ok": True}


async def forget(call: Call) -> dict[str, Any]:
    await call.options(Nothing)
    await call.control(call.daemon.fleet.forget, call.path("node"), call.who.user)
    return {"ok": True}


class Query(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    query: str
    limit: int | None = None
    timeout: float | None = None
    format: str = "json"


async def sql(call: Call) -> Response:
    asked = await call.message(Query)
    limits = call.daemon.config.limits
    rows = asked.limit if asked.limit is not None else limits.query_rows
    seconds = asked.timeout if asked.timeout is not None else limits.query_seconds
    answer = await call.unless_gone(call.daemon.desk.ask(call.who.user, Question(asked.query, asked.format, rows, seconds)))
    headers = {"X-Stoker-Truncated": str(answer.truncated).lower()}
    return Encoded(answer.body, answer.media, headers, call.daemon.desk.hold(len(answer.body)))


class CopyRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    path: str


async def sql_copy(call: Call) -> dict[str, Any]:
    """A database file of the tables that people may read, made beside the daemon."""
    asked = await call.message(CopyRequest)
    target = Path(asked.path)
    check_target(target)
    made = await call.unless_gone(call.daemon.desk.copy(call.who.user))
    await call.run(Kind.UPLOAD, move, made, target)
    return {"path": str(target), "bytes": target.stat().st_size}


async def schema(call: Call) -> dict[str, Any]:
    def read() -> list[dict[str, Any]]:
        with call.daemon.store.read() as con:
            return schema_tables(con)

    return {"tables": await call.read(read)}


async def policies(call: Call) -> dict[str, Any]:
    return await call.read(_policies, call, call.query("name"))


def _policies(call: Call, asked: str | None) -> dict[str, Any]:
    """All built-in policies and people's own that are in force; and the requested one, which is loaded only for those who may set it."""
    tuned = call.daemon.tuning.automatic()
    pools = [{**row, "auto": tuned.get(row["pool"])} for row in call.daemon.scheduling.in_force()]
    known = registry.describe()
    names = {row["policy"] for row in pools} - set(registry.POLICIES)
    for name in sorted(names):
        with contextlib.suppress(ValueError):  # the policy can't be loaded; its pools are listed all the same
            known.append(registry.describe_one(name))
    if asked is not None and asked not in {row["name"] for row in known}:
        call.who.require("admin")
        try:
            with registry.anew(asked):
                known.append(registry.describe_one(asked))
        except ValueError as error:
            raise NotFound(str(error)) from None
    return {"policies": known, "pools": pools, "history": objects(call.daemon.store, "api/policy_history")}


class PolicyChange(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    policy: str
    pool: str = "default"
    interval: float | None = None
    config: dict[str, Any] = {}
    create: bool = False  #: the pool need not be known
    auto: bool = False  #: the pool tunes itself; a change without it ends that
    every: float = 3600.0  #: seconds from one search to the next, with ``auto``
    objective: str = "jct"
    force: bool = False  #: set the policy though it fails on the pool's present jobs


async def change_policy(call: Call) -> dict[str, Any]:
    asked = await call.message(PolicyChange)
    if not NAME.fullmatch(asked.pool):
        raise UsageError(f"pool: must be the name of a pool, not {shown(asked.pool)}")
    if asked.interval is not None and not 0.05 <= asked.interval <= 3600:
        raise UsageError(f"interval: {asked.interval} s is outside its range 0.05 to 3600")
    if not 12 <= asked.every <= 7 * 86400:
        raise UsageError(f"every: {asked.every:g} s is outside its range 12 s to 7 days")
    require_objective(asked.objective)
    return await call.control(_change_policy, call, asked)  # on a thread: importing a policy may take long


def _change_policy(call: Call, asked: PolicyChange) -> dict[str, Any]:
    store = call.daemon.store
    before = {row["pool"]: row for row in call.daemon.scheduling.in_force()}.get(asked.pool)
    notes = _about_pool(call, asked)
    interval = asked.interval if asked.interval is not None else _interval(call, asked.pool)
    try:
        with registry.anew(asked.policy) as loaded:
            notes += _on_trial(call, asked, registry.create(asked.policy, asked.config), loaded.code)
            config = make_config(loaded.policy.Config, asked.config)
            # The configuration as the policy reads it, so that people see the one in force.
            given = {key: getattr(config, key) for key in asked.config}
            auto = Auto(asked.auto, asked.every, asked.objective)
            notes += _about_tuning(call, asked, config)
            store.write(set_policy, PolicySetting(asked.pool, asked.policy, interval, given, call.who.user, loaded.code, auto), urgent=True)
    except registry.NoSuchPolicy as error:
        raise NotFound(str(error)) from None
    except (ValueError, KeyError) as error:
        raise UsageError(str(error.args[0])) from None
    row = next(row for row in objects(store, "api/policies") if row["pool"] == asked.pool)
    code_before = before["code"] if before and before["policy"] == asked.policy else None
    return {**row, "modules": list(loaded.modules), "code_before": code_before, "notes": notes + _about_leases(call, given)}


def _on_trial(call: Call, asked: PolicyChange, policy: Policy, code: str) -> list[str]:
    """Ask a policy once, before it is in force, for a plan of the pool's present jobs."""
    why = call.daemon.scheduling.would_fail(asked.pool, policy, asked.policy, code)
    if why is None:
        return []
    fails = f"policy: {asked.policy} fails on what pool {asked.pool} holds now: {why}"
    if not asked.force:
        raise ValueError(f'{fails}; repair it, or set it all the same with --force ("force": true)')
    return [f"{fails}; nothing starts in the pool until it is repaired"]


def _about_tuning(call: Call, asked: PolicyChange, config: Any) -> list[str]:
    """Notes on whether a pool tunes itself from now on, and when. ValueError for a policy without anything to tune."""
    tuning = call.daemon.tuning
    if not asked.auto:
        ends = f"auto: pool {asked.pool!r} no longer tunes itself; 'stoker policy set {asked.policy} --auto' lets it again"
        return [ends] if asked.pool in tuning.automatic() else []
    space_of(type(config), dataclasses.asdict(config))
    waits = tuning.waits_for(asked.pool)
    every = f"every {duration(asked.every)} for {asked.objective}, and upon bursts of arrivals"
    begins = f"pool {asked.pool!r} tunes itself, {every}; 'stoker tune history' tells what it does"
    return [f"auto: {begins}", *([f"auto: {waits}"] if waits else [])]


def _about_pool(call: Call, asked: PolicyChange) -> list[str]:
    """A pool exists once a runner offers it; before that a policy is set for it only with ``create``, as its name may be a slip."""
    if not (absent := absent_pool(call.daemon.store, asked.pool)):
        return []
    if not asked.create:
        raise NotFound(f'{absent}; --create ("create": true) sets it for a pool that is to come')
    return [f"pool {asked.pool!r} has no GPUs yet; runners offer it with 'stoker runner start --pool {asked.pool}'"]


def _about_leases(call: Call, config: dict[str, Any]) -> list[str]:
    """Notes on leases that are accepted, but may surprise."""
    min_run_time = call.daemon.config.guards.min_run_time
    if config.get("be_lease", min_run_time) < min_run_time:
        return [f"be_lease: guards.min_run_time is {min_run_time:g} s: no lease is taken back sooner"]
    return []


def _interval(call: Call, pool: str) -> float:
    """The interval that was set last for a pool, whether it is in force yet or not."""
    set_before = {row["pool"]: row["interval"] for row in objects(call.daemon.store, "api/policies")}
    return float(set_before.get(pool, call.daemon.config.policy.interval))


async def schedules(call: Call) -> dict[str, Any]:
    rows = await call.read(objects, call.daemon.store, "api/schedules")
    return {"schedules": [{**row, "next_at": call.daemon.recurring.next_run(row["id"])} for row in rows]}


async def remove_schedule(call: Call) -> dict[str, Any]:
    await call.options(Nothing)
    change = ScheduleChange(_number(call, "id"), call.who.user, only=call.only)
    await asyncio.wrap_future(call.daemon.store.submit(change_schedule, change, urgent=True))
    return {"ok": True}


def _number(call: Call, name: str) -> int:
    given = call.path(name)
    if not given.isdecimal():
        raise UsageError(f"{name}: {given!r} is not a number")
    return int(given)


class TokenRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    role: str


async def create_token(call: Call) -> dict[str, Any]:
    asked = await call.message(TokenRequest)
    if not NAME.fullmatch(asked.name):  # it is also the user of the jobs that the token submits
        raise UsageError(f"name: {shown(asked.name)} is no name for a token: up to 100 letters, digits, '.', '_' and '-'")
    roles = [role for role in GRANTS if role != "none"]
    if asked.role not in roles:
        raise UsageError(f"role: {asked.role!r} is not one of {', '.join(roles)}")
    token = new_token()
    number = await asyncio.wrap_future(call.daemon.store.submit(add_token, NewToken(asked.name, asked.role, digest(token), call.who.user)))
    return {"id": number, "token": token}


async def list_tokens(call: Call) -> dict[str, Any]:
    return {"tokens": await call.read(objects, call.daemon.store, "api/token_list")}


async def remove_token(call: Call) -> dict[str, Any]:
    await call.options(Nothing)
    await asyncio.wrap_future(call.daemon.store.submit(revoke_token, (_number(call, "id"), call.who.user), urgent=True))
    return {"ok": True}


class BackupRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    path: str | None = None


async def backup(call: Call) -> dict[str, Any]:
    asked = await call.message(BackupRequest)
    return await call.control(back_up, call.daemon.store, call.daemon.home, Path(asked.path) if asked.path else None)


async def compact(call: Call) -> dict[str, Any]:
    await call.options(Nothing)
    return await call.control(compact_database, call.daemon.store, call.daemon.home)


class ShutdownRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    runners: bool = False
    workers: bool = False


async def shutdown(call: Call) -> dict[str, Any]:
    asked = await call.message(ShutdownRequest)
    daemon, nodes = call.daemon, list[str]()
    if asked.runners or asked.workers:
        nodes = await call.control(daemon.dismiss, workers=asked.workers, actor=call.who.user)
    daemon.ending = asyncio.create_task(daemon.stop_when_left(nodes))
    return {"ok": True, "pid": os.getpid()}


ENDPOINTS = [
    endpoint("/healthz", "none", healthz),
    endpoint("/metrics", "read", metrics),
    endpoint("/v1/status", "read", status),
    endpoint("/v1/top", "read", top),
    endpoint("/v1/ui", "read", page_link, ["POST"]),
    endpoint("/v1/runners", "read", list_runners),
    endpoint("/v1/runners/{node}/drain", "admin", drain, ["POST"]),
    endpoint("/v1/runners/{node}/resume", "admin", resume, ["POST"]),
    endpoint("/v1/runners/{node}/stop", "admin", stop_runner, ["POST"]),
    endpoint("/v1/runners/{node}/forget", "admin", forget, ["POST"]),
    endpoint("/v1/sql", "read", sql, ["POST"]),
    endpoint("/v1/sql/copy", "admin", sql_copy, ["POST"]),
    endpoint("/v1/schema", "read", schema),
    endpoint("/v1/policy", "read", policies),
    endpoint("/v1/policy", "admin", change_policy, ["POST"]),
    endpoint("/v1/schedules", "read", schedules),
    endpoint("/v1/schedules/{id}/remove", "submit", remove_schedule, ["POST"]),
    endpoint("/v1/tokens", "admin", list_tokens),
    endpoint("/v1/tokens", "admin", create_token, ["POST"]),
    endpoint("/v1/tokens/{id}/revoke", "admin", remove_token, ["POST"]),
    endpoint("/v1/backup", "admin", backup, ["POST"]),
    endpoint("/v1/compact", "admin", compact, ["POST"]),
    endpoint("/v1/shutdown", "admin", shutdown, ["POST"]),
]
