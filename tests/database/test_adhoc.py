"""Ad-hoc SQL in a process of its own: it follows the database, nothing that is asked outlives its time, and it may be killed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import duckdb
import psutil
import pytest
from adhoc import Server, changed, serving
from e2e import DaemonProcess, Jobs, daemon_apart, until
from forked import FRESH_SQL
from hypothesis import given, settings
from hypothesis import strategies as st
from stoker.engine.adhoc.desk import Desk, Question
from stoker.engine.adhoc.replica import Replica
from stoker.engine.adhoc.turns import MOST_WAITING, Turns
from stoker.engine.adhoc.wire import Ask, Drop, Failed, Load, Ready, StatementEnded
from stoker.engine.client import Client
from stoker.engine.errors import LimitExceeded, StokerError, StoreError, Unreachable, UsageError
from stoker.engine.home import Home
from stoker.engine.store.changes import Change, apply, decode, encode, merged
from stoker.engine.store.store import Store
from stoker.engine.store.transaction import Transaction

# What a transaction did can be done again, in fewer statements.

TYPES = {"t": {"id": "BIGINT", "name": "VARCHAR", "seen": "TIMESTAMP"}, "u": {"id": "BIGINT", "name": "VARCHAR", "seen": "TIMESTAMP"}}
rows = st.lists(st.tuples(st.integers(0, 5), st.text("ab", max_size=2) | st.none(), st.floats(0, 1e9) | st.none()), min_size=1, max_size=4)


@st.composite
def changes(draw: st.DrawFn) -> list[Change]:
    """Changes of two tables in an order in which a transaction could make them: no key twice in a statement, no insert of a known one."""
    known: dict[str, set[int]] = {"t": set(), "u": set()}
    made = []
    for _ in range(draw(st.integers(1, 12))):
        table, op = draw(st.sampled_from(["t", "u"])), draw(st.sampled_from(["insert", "update", "upsert", "delete"]))
        given = {id: {"id": id, "name": name, "seen": at} for id, name, at in draw(rows)}
        if op == "delete":
            made.append(Change("delete", table, ("id",), [list(given)]))
            known[table] -= set(given)
            continue
        if op == "insert":
            given = {id: row for id, row in given.items() if id not in known[table]}
        if not given:
            continue
        known[table] |= set(given) if op != "update" else set()
        columns = ("id", "name", "seen") if op != "update" or draw(st.booleans()) else ("id", "name")
        values = [[row[column] for row in given.values()] for column in columns]
        made.append(Change(op, table, columns, values, () if op == "insert" else ("id",)))
        if draw(st.booleans()):
            made.append(Change("update", table, ("name",), [["all"]]))
    return made


def after(con: duckdb.DuckDBPyConnection, done: list[Change]) -> list[Any]:
    con.execute("CREATE OR REPLACE TABLE t (id BIGINT PRIMARY KEY, name VARCHAR, seen TIMESTAMP)")
    con.execute("CREATE OR REPLACE TABLE u (id BIGINT PRIMARY KEY, name VARCHAR, seen TIMESTAMP)")
    for change in done:
        apply(con, TYPES, change)
    return [sorted(con.execute(f"FROM {table}").fetchall(), key=repr) for table in ("t", "u")]


@settings(max_examples=100)
@given(done=changes())
def test_changes_that_were_merged_and_sent_do_the_same(done: list[Change]) -> None:
    with duckdb.connect() as con:
        assert after(con, merged(decode(encode(done)))) == after(con, done)


def test_many_commits_become_few_statements() -> None:
    commits = [changed("insert", "metrics", [{"lease_id": 1, "step": n}]) for n in range(50)]
    commits += [changed("update", "progress", [{"job_id": n % 3, "step": n}], "job_id") for n in range(50)]
    first, second = merged(commits)
    assert len(first.values[0]) == 50
    assert sorted(zip(*second.values, strict=True)) == [(0, 48), (1, 49), (2, 47)]


# The copy.


@pytest.fixture
def folder(home: Home) -> Path:
    home.scratch.mkdir()
    return home.scratch / "sql"


@pytest.fixture
def server(database: Path, folder: Path) -> Iterator[Server]:
    with serving(database, folder) as server:
        yield server


@pytest.fixture(scope="module")
def attacked(template: Path) -> Iterator[Server]:
    """One server for all that is to be ended: nothing is left of any of it."""
    with tempfile.TemporaryDirectory(prefix="stoker-") as place:
        home = Home(Path(place))
        home.scratch.mkdir()
        with serving(Path(shutil.copyfile(template, home.database)), home.scratch / "sql") as server:
            yield server


def setting(number: int, by: str = "ann") -> dict[str, Any]:
    return {"id": number, "pool": "p", "policy": "x", "interval": 1.0, "config": "{}", "set_by": by, "ts": 1.0}


def test_messages_keep_the_names_by_which_a_daemon_knows_them_that_has_run_for_long() -> None:
    """Its next SQL process may be of a newer package."""
    names = [kind.__struct_config__.tag for kind in (Load, Ask, Drop, Ready, StatementEnded, Failed)]
    assert names == ["Load", "Ask", "Drop", "Ready", "Ended", "Failed"]


def test_it_follows_each_commit_and_answers_with_the_last(server: Server) -> None:
    for number in range(5):
        server.commit(changed("insert", "policy_settings", [setting(number)]))
        assert server.rows("SELECT count(*) FROM policy_settings") == [[number + 1]]
    server.commit(
        changed("update", "policy_settings", [{"id": 3, "set_by": "bob"}], "id"), Change("delete", "policy_settings", ("id",), [[1]])
    )
    assert server.rows("SELECT id, set_by FROM policy_settings ORDER BY id") == [[0, "ann"], [2, "ann"], [3, "bob"], [4, "ann"]]


@pytest.mark.slow
def test_tokens_are_not_in_it(database: Path, folder: Path) -> None:
    with duckdb.connect(str(database)) as con:
        con.execute("INSERT INTO tokens VALUES (1, 'ann', 'admin', 'digest', now()::TIMESTAMP, false)")
    with serving(database, folder) as server:
        names = [name for (name,) in server.rows("SHOW TABLES")]
        assert "tokens" not in names and {"jobs", "queue"} <= set(names)
        for name in names:  # what is listed can be read
            server.rows(f"FROM {name} LIMIT 1")
        with pytest.raises(UsageError, match="not known"):
            server.rows("FROM tokens")


def test_a_statement_in_progress_does_not_see_what_comes_after_it(database: Path, home: Home) -> None:
    """Also when the copy writes what it has applied into its file: it does not while anybody reads it."""
    copy = home.path / "copy.duckdb"
    copy.write_bytes(database.read_bytes())
    replica = Replica(copy, 0, 1 << 30)
    replica.take(1, encode([changed("insert", "policy_settings", [setting(number, "x" * 1000) for number in range(500)])]))
    replica.catch_up()
    assert replica.unsettled > 500_000
    replica.settle()
    assert replica.unsettled == 0
    with duckdb.connect(str(database)) as con:  # the database itself is never written to
        assert con.execute("SELECT count(*) FROM policy_settings").fetchall() == [(0,)]


# Limits: what cannot be seen in advance is ended.

ENDLESS = [
    "SELECT count(*) FROM range(10000000) a, range(10000000) b",
    "WITH RECURSIVE t AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM t) SELECT max(n) FROM t",
    "SELECT * FROM range(100000000000) t(i) WHERE i < 0",
    "SELECT regexp_matches(string_agg('a', ''), '(((a{0,10}){0,10}){0,10})b') FROM range(10000000)",
    "SELECT 1 AS a0, " + ", ".join(f"a{n} + a{n} AS a{n + 1}" for n in range(27)),
    "FROM range(10000000) t(i), LATERAL (SELECT list_sum(range(i)) AS s) ORDER BY s",
]
FILLING = [
    "SELECT list(i) FROM range(1000000000) t(i)",
    "SELECT list_distinct(list(i)) FROM range(1000000000) t(i)",
    "SELECT length(string_agg(i::VARCHAR, ',')) FROM range(1000000000) t(i)",
    "WITH RECURSIVE t AS (SELECT 'x' AS s UNION ALL SELECT s || s FROM t) SELECT max(length(s)) FROM t",
    "SELECT length(repeat('x', 2000000000) || repeat('y', 2000000000))",
    "SELECT lpad('x', 40000000, 'y') || lpad('x', 40000000, 'y')",
]
KILLING = "SELECT json_contains(string_agg('[', '') || string_agg(']', ''), '1') FROM range(300000)"


@pytest.mark.xdist_group("attacked")
@pytest.mark.parametrize("sql", ENDLESS)
@pytest.mark.sampled(3)
def test_what_never_ends_is_ended(attacked: Server, sql: str) -> None:
    with pytest.raises(LimitExceeded, match=r"time limit of 0\.3 s|more memory"):
        attacked.ask(sql, seconds=0.3, memory=256 << 20)
    assert attacked.rows("SELECT 1") == [[1]]


@pytest.mark.xdist_group("attacked")
@pytest.mark.parametrize("sql", FILLING)
@pytest.mark.sampled(3)
def test_what_takes_too_much_memory_is_ended(attacked: Server, sql: str) -> None:
    with pytest.raises((LimitExceeded, UsageError), match=r"memory|larger than|ended|maximum|exceed"):
        attacked.ask(sql, seconds=120, memory=128 << 20)
    assert attacked.rows("SELECT 1") == [[1]]


@pytest.mark.xdist_group("attacked")
def test_what_makes_duckdb_crash_ends_alone(attacked: Server) -> None:
    with pytest.raises(LimitExceeded, match="signal"):
        attacked.ask(KILLING)
    assert attacked.process.running.poll() is None and attacked.rows("SELECT 1") == [[1]]


def test_a_sort_that_is_too_large_spills_and_leaves_nothing(server: Server, folder: Path) -> None:
    sql = "SELECT max(r) FROM (SELECT row_number() OVER (ORDER BY hash(i)) AS r FROM range(3000000) t(i))"
    assert server.rows(sql, memory=128 << 20) == [[3_000_000]]
    until(lambda: [path.name for path in folder.iterdir()] == ["copy.duckdb"])


@pytest.mark.slow
def test_a_statement_has_the_copy_open_for_reading_only(server: Server, folder: Path) -> None:
    """Whatever DuckDB were led to do, the parent's file stays as it is."""

    def ask() -> None:
        with pytest.raises(LimitExceeded):
            server.ask(ENDLESS[0], seconds=2.0)

    asking = threading.Thread(target=ask)
    asking.start()
    parent = psutil.Process(server.process.running.pid)
    (child,) = until(parent.children)

    def modes(process: psutil.Process) -> set[str]:
        return {file.mode for file in process.open_files() if file.path == str(folder / "copy.duckdb")}

    until(lambda: modes(child) == {"r"})
    assert modes(parent) == {"r+"}
    asking.join()


# Turns.


def test_users_take_turns() -> None:
    async def main() -> list[str]:
        turns, order = Turns(1), []

        async def one(user: str) -> None:
            async with turns.of(user):
                order.append(user)
                await asyncio.sleep(0)

        await asyncio.gather(*(one(user) for user in ["ann"] * 4 + ["bob", "cy", "bob"]))
        return order

    assert asyncio.run(main()) == ["ann", "ann", "bob", "cy", "ann", "bob", "ann"]


def test_one_user_never_has_all_turns() -> None:
    async def main() -> None:
        turns = Turns(2)
        async with turns.of("ann"):
            second = asyncio.ensure_future(turns.of("ann").__aenter__())
            await asyncio.sleep(0)
            assert not second.done()
            async with asyncio.timeout(30), turns.of("bob"):
                pass
        await asyncio.wait_for(second, 30)

    asyncio.run(main())


@given(steps=st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=30), at_once=st.integers(1, 3))
def test_no_turn_is_lost_and_none_is_given_twice(steps: list[tuple[str, bool]], at_once: int) -> None:
    async def main() -> None:
        turns, running, most = Turns(at_once), 0, 0

        async def one(user: str) -> None:
            nonlocal running, most
            async with turns.of(user):
                running += 1
                most = max(most, running)
                try:
                    await asyncio.sleep(0)
                finally:
                    running -= 1

        tasks = [(asyncio.ensure_future(one(user)), stays) for user, stays in steps]
        await asyncio.sleep(0)
        for task, stays in tasks:
            if not stays:
                task.cancel()
            await asyncio.sleep(0)
        await asyncio.gather(*(task for task, _ in tasks), return_exceptions=True)
        assert most <= at_once
        await asyncio.wait_for(asyncio.gather(*(one("z") for _ in range(at_once + 1))), 30)

    asyncio.run(main())


def test_one_user_cannot_wait_without_end() -> None:
    async def main() -> None:
        turns = Turns(1)
        async with turns.of("bob"):
            waiting = [asyncio.ensure_future(turns.of("ann").__aenter__()) for _ in range(MOST_WAITING)]
            await asyncio.sleep(0)
            with pytest.raises(LimitExceeded, match="wait already"):
                await turns.of("ann").__aenter__()
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    asyncio.run(main())


# In the daemon.


def sql(client: Client, query: str, timeout: float = 30.0) -> list[list[Any]]:
    rows: list[list[Any]] = client.post("/v1/sql", {"query": query, "timeout": timeout})["rows"]
    return rows


def server_of(daemon: DaemonProcess) -> psutil.Process:
    return next(child for child in psutil.Process(daemon.pid).children() if "stoker.engine.adhoc.server" in " ".join(child.cmdline()))


@pytest.fixture(scope="module")
def live() -> Iterator[DaemonProcess]:
    with daemon_apart(config="[limits]\nqueries = 3\nquery_memory = 256\n", changes=FRESH_SQL) as daemon:
        assert sql(daemon.client(), "SELECT 1") == [[1]]
        yield daemon


@pytest.mark.xdist_group("adhoc")
def test_who_has_written_reads_it(live: DaemonProcess) -> None:
    jobs = Jobs(live.client())
    for number in range(10):
        job = jobs.shell(f"read-{number}", "true")
        assert jobs.sql(f"SELECT name FROM jobs WHERE id = {job}") == [(f"read-{number}",)]


@pytest.mark.xdist_group("adhoc")
@pytest.mark.slow
def test_hostile_statements_at_once_disturb_nobody(live: DaemonProcess) -> None:
    """Each is answered or refused, the daemon stays, and submissions go on between them."""
    client, jobs = live.client(), Jobs(live.client())
    pid = client.get("/v1/status")["pid"]
    restarts = sql(client, "SELECT count(*) FROM events WHERE kind = 'sql.restart'")

    def hostile(query: str) -> str:
        try:
            sql(live.client(), query, 1.0)
        except StokerError as error:
            return error.code
        return "answered"

    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(hostile, query) for query in (*ENDLESS, *FILLING, KILLING)]
        submitted = 0
        while not all(answer.done() for answer in asked):
            jobs.shell("beside", "true")
            submitted += 1
    assert {answer.result() for answer in asked} <= {"limit", "bad-request", "answered"}
    assert submitted > 0 and client.get("/v1/status")["pid"] == pid
    assert sql(client, "SELECT count(*) FROM events WHERE kind = 'sql.restart'") == restarts


@pytest.mark.xdist_group("adhoc")
def test_a_process_that_was_killed_is_replaced_and_that_is_told(live: DaemonProcess) -> None:
    client = live.client()
    before = sql(client, "SELECT count(*) FROM events WHERE kind = 'sql.restart'")[0][0]
    job = Jobs(client).shell("kept", "true")
    server_of(live).kill()
    assert until(lambda: sql(client, f"SELECT name FROM jobs WHERE id = {job}")) == [["kept"]]
    assert until(lambda: sql(client, "SELECT count(*) FROM events WHERE kind = 'sql.restart'")[0][0] == before + 1)
    assert "SIGKILL" in sql(client, "SELECT reason FROM events WHERE kind = 'sql.restart' ORDER BY seq DESC LIMIT 1")[0][0]


@pytest.mark.xdist_group("adhoc")
@pytest.mark.slow
def test_a_process_that_hangs_is_replaced(live: DaemonProcess) -> None:
    client = live.client()
    sql(client, "SELECT 1")
    stopped = server_of(live)
    stopped.suspend()
    with pytest.raises(LimitExceeded):
        sql(client, "SELECT 1", 0.5)
    assert until(lambda: sql(client, "SELECT 1")) == [[1]]
    assert server_of(live).pid != stopped.pid


@pytest.mark.xdist_group("adhoc")
@pytest.mark.slow
def test_who_gives_little_time_takes_nobody_elses(live: DaemonProcess) -> None:
    """Whether a question was late says nothing of the process: it goes on, with what others have asked."""
    client = live.client()
    before = sql(client, "SELECT count(*) FROM events WHERE kind = 'sql.restart'")
    with ThreadPoolExecutor(1) as pool:
        long = pool.submit(sql, live.client(), "SELECT count(*) FROM range(30000) a, range(20000) b WHERE a.range % 7 = b.range % 5", 100.0)
        for _ in range(40):
            with contextlib.suppress(LimitExceeded):
                sql(client, "SELECT 1", 0.001)
        assert long.result()[0][0] > 0
    assert sql(client, "SELECT count(*) FROM events WHERE kind = 'sql.restart'") == before


@pytest.mark.xdist_group("adhoc")
def test_nobody_waits_for_an_answer_that_nobody_wants(live: DaemonProcess) -> None:
    """Who closes the connection ends the statement: else three of those would keep everybody else waiting."""
    server = server_of(live)
    body = json.dumps({"query": ENDLESS[0], "timeout": 200}).encode()
    request = b"POST /v1/sql HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    for _ in range(3):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(live.home.socket))
            connection.sendall(request)
            until(server.children)
    until(lambda: not server.children())
    assert sql(live.client(), "SELECT 1") == [[1]]


@pytest.mark.xdist_group("adhoc")
def test_a_copy_for_other_programs(live: DaemonProcess, tmp_path: Path) -> None:
    client = live.client()
    Jobs(client).shell("copied", "true")
    target = tmp_path / "copy.duckdb"
    assert client.post("/v1/sql/copy", {"path": str(target)})["bytes"] == target.stat().st_size
    with duckdb.connect(str(target), read_only=True) as con:
        assert con.execute("SELECT count(*) FROM jobs_now WHERE name = 'copied'").fetchall() == [(1,)]
        assert con.execute("SELECT count(*) FROM duckdb_tables() WHERE table_name = 'tokens'").fetchall() == [(0,)]
    with pytest.raises(UsageError, match="exists already"):
        client.post("/v1/sql/copy", {"path": str(target)})


@pytest.mark.slow
def test_the_daemon_ends_whatever_is_asked_of_it(start_daemon: Callable[..., DaemonProcess]) -> None:
    daemon = start_daemon(changes=FRESH_SQL)
    sql(daemon.client(), "SELECT 1")
    server = server_of(daemon)

    def ask() -> None:
        with pytest.raises(StokerError):
            sql(daemon.client(), ENDLESS[0], 200.0)

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    until(lambda: len(server.children()) == 3)  # of four: one user never has all
    began = time.monotonic()
    assert daemon.stop() == 0
    assert time.monotonic() - began < 30  # 200 is how long they were asked for
    for thread in threads:
        thread.join()
    assert not server.is_running()
    assert list(daemon.home.scratch.iterdir()) == []


def test_who_never_asks_pays_for_no_copy(start_daemon: Callable[..., DaemonProcess]) -> None:
    daemon = start_daemon(changes=FRESH_SQL)
    client = daemon.client()
    Jobs(client).shell("x", "true")
    assert client.get("/v1/jobs/x")["job"]["name"] == "x" and not psutil.Process(daemon.pid).children()
    assert sql(client, "SELECT name FROM jobs") == [["x"]] and server_of(daemon)


# The desk alone: what is rare.


@pytest.fixture
def desk(store: Store, home: Home) -> Iterator[Callable[[Callable[[Desk], Any]], Any]]:
    """Run something with a desk in an event loop."""
    home.scratch.mkdir()

    def run(use: Callable[[Desk], Any]) -> Any:
        async def main() -> Any:
            made = Desk(store, home, at_once=2, memory=256 << 20, tell=lambda why: None)
            made.start()
            try:
                return await use(made)
            finally:
                await asyncio.to_thread(made.close)

        return asyncio.run(main())

    yield run


def add_setting(tx: Transaction, batch: Any) -> list[None]:
    tx.insert("policy_settings", [setting(tx.number("policy_settings"), by) for by in batch])
    return [None] * len(batch)


def test_a_database_that_is_written_to_while_it_is_copied(desk: Any, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The copy would have rows that it is told of again: it is thrown away, and the next is made while commits wait."""
    store.write(add_setting, "first")
    begin, moved = Desk._begin, []

    def interrupted(self: Desk, process: Any, hold: bool) -> Any:
        begun = begin(self, process, hold)
        if not hold:
            store._con.execute("CREATE TABLE x AS SELECT 1")  # what a commit that checkpoints leaves
            store._con.execute("DROP TABLE x")
            store._con.execute("CHECKPOINT")
            moved.append(process)
        return begun

    monkeypatch.setattr(Desk, "_begin", interrupted)

    async def use(desk: Desk) -> Any:
        return json.loads((await desk.ask("ann", Question("SELECT set_by FROM policy_settings"))).body)["rows"]

    assert desk(use) == [["first"]]
    assert len(moved) == 1 and moved[0].moved


@pytest.mark.parametrize("hold", [False, True])
def test_the_copy_is_made_while_somebody_reads(desk: Any, store: Store, monkeypatch: pytest.MonkeyPatch, hold: bool) -> None:
    """DuckDB refuses a checkpoint as long as somebody reads what was so before the last commit: the copy needs none."""
    begin = Desk._begin
    monkeypatch.setattr(Desk, "_begin", lambda self, process, _: begin(self, process, hold))

    async def use(desk: Desk) -> Any:
        return json.loads((await desk.ask("ann", Question("SELECT set_by FROM policy_settings"))).body)["rows"]

    with store.read(kept=False) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM policy_settings").fetchall()
        store.write(add_setting, "first")
        with pytest.raises(StoreError, match="CHECKPOINT"):
            store.exclusive(lambda con: con.execute("CHECKPOINT"))
        assert desk(use) == [["first"]]
        reader.execute("COMMIT")


def test_what_cannot_start_is_told_at_once(desk: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Desk, process: Any, hold: bool) -> Any:
        raise StoreError("the disk is full")

    monkeypatch.setattr(Desk, "_begin", full)

    async def use(desk: Desk) -> Any:
        with pytest.raises(StoreError, match=r"the disk is full \(it is tried again in"):
            await desk.ask("ann", Question("SELECT 1"))

    desk(use)


def test_the_lock_on_the_database_is_kept(desk: Any, store: Store) -> None:
    """A process loses its lock on a file when it closes any descriptor of it, also one that somebody else opened."""

    async def use(desk: Desk) -> Any:
        return await desk.ask("ann", Question("SELECT 1"))

    desk(use)
    code = "import duckdb, sys; duckdb.connect(sys.argv[1])"
    done = subprocess.run([sys.executable, "-c", code, str(store.path)], capture_output=True, text=True, check=False)
    assert "lock" in done.stderr.lower()


def test_a_process_that_does_not_read_is_ended(desk: Any, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stoker.engine.adhoc.desk.MOST_BEHIND", 3)

    async def use(desk: Desk) -> Any:
        await desk.ask("ann", Question("SELECT 1"))
        process = desk._process
        assert process is not None
        os.kill(process.running.pid, signal.SIGSTOP)
        for _ in range(200):
            await asyncio.to_thread(store.write, add_setting, "x" * 100_000)
            if desk._process is not process:
                break
        question = Question("SELECT count(*) FROM policy_settings")
        while True:
            try:
                return json.loads((await desk.ask("ann", question)).body)["rows"]
            except Unreachable:
                await asyncio.sleep(0.05)

    ((count,),) = desk(use)
    with store.read() as con:
        assert con.execute("SELECT count(*) FROM policy_settings").fetchall() == [(count,)]


def test_answers_that_nobody_takes_are_bounded(desk: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stoker.engine.adhoc.desk.MOST_UNSENT", 100)

    async def use(desk: Desk) -> None:
        taken = desk.hold(60)
        with pytest.raises(LimitExceeded, match="wait until those who asked take them"):
            desk.hold(41)
        taken()
        desk.hold(100)

    desk(use)


def test_an_answer_is_measured_by_its_bytes(server: Server) -> None:
    """A control character is one in a string, and six bytes in JSON."""
    with pytest.raises(LimitExceeded, match="larger than 64 MiB"):
        server.ask("SELECT repeat(chr(1), 1000000) AS x FROM range(40)")
    with pytest.raises(UsageError, match="cannot be answered"):
        server.ask("SELECT INTERVAL 2000000000 DAY")


def test_questions_are_checked() -> None:
    for wrong in ({"rows": 0}, {"rows": 10**7}, {"seconds": 0.0}, {"seconds": float("nan")}, {"seconds": 301.0}, {"format": "xml"}):
        with pytest.raises(UsageError):
            Question("SELECT 1", **wrong)
    with pytest.raises(UsageError, match="characters"):
        Question("SELECT " + "1+" * 10_000 + "1")


def test_copying_that_fails_is_said_and_tried_again(desk: Any, home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stoker.engine.adhoc.desk.LONGEST_PAUSE", 0.1)
    right, asked = home.scratch, []

    def nowhere(self: Home) -> Path:
        asked.append(1)
        return home.path / "stoker.duckdb" / "x" if len(asked) < 3 else right

    monkeypatch.setattr(Home, "scratch", property(nowhere))

    async def use(desk: Desk) -> Any:
        with pytest.raises(StoreError, match="Not a directory"):
            await desk.ask("ann", Question("SELECT 1"))
        while True:
            try:
                return json.loads((await desk.ask("ann", Question("SELECT 1"))).body)["rows"]
            except StoreError:
                await asyncio.sleep(0.05)

    assert desk(use) == [[1]]
