"""The API under load and nonsense: threads apart by kind, answers that many share, strangers' connections, an end that nothing holds up."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
from e2e import DaemonProcess, Jobs, free_port, until
from stoker.engine.api import connections as guard
from stoker.engine.api import thread_pools as pools_module
from stoker.engine.api.connections import Connections
from stoker.engine.api.snapshots import Snapshots
from stoker.engine.api.thread_pools import MOST_LARGE, THREADS, Kind, Pools
from stoker.engine.client import Client
from stoker.engine.config import Hook
from stoker.engine.errors import LimitExceeded, StokerError
from stoker.engine.hooks import Hooks
from stoker.engine.jobs.control import Control, control
from stoker.engine.jobs.counts import Counts
from stoker.engine.jobs.notes import Note, note
from stoker.engine.jobs.submission import SubmitRequest, submit
from stoker.engine.spec.model import JobSpec, Provenance, Submission
from stoker.engine.store.store import Committed, Store
from stores import reopened
from waiting import patient

# -- Threads ---------------------------------------------------------------------------------------------------------------


@pytest.fixture
def pools() -> Iterator[Pools]:
    made = Pools()
    yield made
    made.close()


def test_a_kind_of_which_all_threads_hang_keeps_no_other_waiting(pools: Pools) -> None:
    async def run() -> None:
        go = threading.Event()
        stuck = [asyncio.create_task(pools.run(Kind.READ, go.wait)) for _ in range(3 * THREADS[Kind.READ])]
        for kind in Kind:
            if kind is not Kind.READ:
                assert await asyncio.wait_for(pools.run(kind, lambda: "done"), 30) == "done"
        assert not any(task.done() for task in stuck)
        go.set()
        assert all(await asyncio.gather(*stuck))

    asyncio.run(run())


def test_too_many_that_wait_are_refused_and_those_that_wait_are_served(pools: Pools, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools_module, "MOST_WAITING", 3)

    async def run() -> None:
        go = threading.Event()
        taken = [asyncio.create_task(pools.run(Kind.UPLOAD, go.wait)) for _ in range(3 + THREADS[Kind.UPLOAD])]
        await asyncio.sleep(0)
        with pytest.raises(LimitExceeded, match="the daemon is busy: 3 requests like this one wait already"):
            await pools.run(Kind.UPLOAD, go.wait)
        go.set()
        assert all(await asyncio.gather(*taken))
        assert await pools.run(Kind.UPLOAD, lambda: "again") == "again"

    asyncio.run(run())


def test_an_error_reaches_who_asked(pools: Pools) -> None:
    def fail() -> None:
        raise StokerError("no")

    with pytest.raises(StokerError, match="no"):
        asyncio.run(pools.run(Kind.READ, fail))


# -- Answers that many share -----------------------------------------------------------------------------------------------

QUEUE = Committed(frozenset({"queue"}), ())


class Asked:
    """A question whose answer is what has been committed when it is read."""

    def __init__(self, snapshots: Snapshots) -> None:
        self.snapshots = snapshots
        self.committed = self.reads = 0
        self.go = threading.Event()
        self.go.set()

    def commit(self, what: Committed = QUEUE) -> None:
        self.committed += 1
        self.snapshots.committed(what)

    def read(self) -> int:
        self.reads += 1
        seen = self.committed
        assert self.go.wait(patient(30))
        return seen

    def ask(self, topics: tuple[str, ...] = ("anything",)) -> Any:
        return asyncio.ensure_future(self.snapshots.ask(Kind.LISTING, "question", self.read, topics))


def test_many_who_ask_at_once_share_one_answer(pools: Pools) -> None:
    async def run() -> None:
        asked = Asked(Snapshots(pools))
        assert await asyncio.gather(*(asked.ask() for _ in range(200))) == [0] * 200
        assert asked.reads == 1

    asyncio.run(run())


def test_who_has_written_sees_it_though_an_answer_is_under_way(pools: Pools) -> None:
    """The answer that was begun before the commit is not good enough; those who came before it have it all the same."""

    async def run() -> None:
        asked = Asked(Snapshots(pools))
        asked.go.clear()
        before = [asked.ask() for _ in range(3)]
        while asked.reads == 0:
            await asyncio.sleep(0.001)
        asked.commit()
        after = [asked.ask() for _ in range(3)]
        await asyncio.sleep(0)
        asked.go.set()
        assert await asyncio.gather(*before) == [0, 0, 0]
        assert await asyncio.gather(*after) == [1, 1, 1]
        assert asked.reads == 2

    asyncio.run(run())


def test_each_commit_is_seen_by_who_asks_after_it(pools: Pools) -> None:
    async def run() -> None:
        asked = Asked(Snapshots(pools))
        for number in range(1, 20):
            asked.commit()
            assert await asked.ask() >= number

    asyncio.run(run())


def test_what_only_says_how_work_goes_on_makes_no_new_answer_and_other_topics_neither(pools: Pools) -> None:
    async def run() -> None:
        asked = Asked(Snapshots(pools))
        assert await asked.ask() == 0
        asked.commit(Committed(frozenset(), ()))
        assert await asked.ask() == 0
        asked.commit(Committed(frozenset(), ({"kind": "job.state"},)))
        assert await asked.ask() == 2

    async def run_topics() -> None:
        asked = Asked(Snapshots(pools))
        assert await asked.ask(("nodes", "leases")) == 0
        asked.commit(QUEUE)
        assert await asked.ask(("nodes", "leases")) == 0
        asked.commit(Committed(frozenset({"leases"}), ()))
        assert await asked.ask(("nodes", "leases")) == 2

    asyncio.run(run())
    asyncio.run(run_topics())


def test_an_answer_grows_old(pools: Pools, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stoker.engine.api.snapshots.MAX_AGE", 0.0)

    async def run() -> None:
        asked = Asked(Snapshots(pools))
        await asked.ask()
        await asked.ask()
        assert asked.reads == 2

    asyncio.run(run())


def test_an_answer_that_fails_fails_for_those_who_waited_and_for_nobody_later(pools: Pools) -> None:
    async def run() -> None:
        snapshots, answers = Snapshots(pools), iter([None, "fine"])

        def read() -> str:
            if (answer := next(answers)) is None:
                raise StokerError("broken")
            return answer

        both = await asyncio.gather(*(snapshots.ask(Kind.READ, "q", read) for _ in range(2)), return_exceptions=True)
        assert [str(error) for error in both] == ["broken", "broken"]
        assert await snapshots.ask(Kind.READ, "q", read) == "fine"

    asyncio.run(run())


def test_answers_that_are_kept_have_their_bounds(pools: Pools, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stoker.engine.api.snapshots.MAX_QUESTIONS", 10)
    monkeypatch.setattr("stoker.engine.api.snapshots.MAX_BYTES", 50)

    async def run() -> None:
        snapshots = Snapshots(pools)
        for number in range(30):
            await snapshots.ask(Kind.READ, number, lambda: b"x")
        assert len(snapshots._known) == 10
        for number in range(30):
            assert len(await snapshots.ask(Kind.READ, number, lambda: b"x" * 20)) == 20
        assert len(snapshots._known) == 2
        assert len(await snapshots.ask(Kind.READ, "large", lambda: b"x" * 1000)) == 1000
        assert not snapshots._known

    asyncio.run(run())


# -- Jobs by state ---------------------------------------------------------------------------------------------------------


def put(store: Store, *names: str, **fields: Any) -> list[int]:
    jobs = [JobSpec(name=name, recipe="toy", **fields) for name in names]
    request = SubmitRequest(Submission(jobs=jobs, provenance=Provenance(argv=[], cwd="/")), "ann")
    return [row["id"] for row in store.write(submit, request)]


def test_jobs_by_state_in_memory_are_those_of_the_table(store: Store) -> None:
    put(store, "before")
    counts = Counts(store)
    store.listen(counts.committed)
    first = put(store, "a", "b", "c")
    held = put(store, "d", hold=True)
    store.write(control, Control("cancel", (first[0],), "ann"))
    store.write(control, Control("release", tuple(held), "ann"))
    store.write(control, Control("hold", (first[1],), "ann"))
    assert counts.by_state() == dict(store.rows("api/job_counts"))
    assert counts.by_state()["cancelled"] == 1


# -- A daemon --------------------------------------------------------------------------------------------------------------

#: A policy that hangs, and one that computes for ever, as somebody's own may.
POLICIES = """
import threading
from stoker.policies.fifo import Fifo
class Hangs(Fifo):
    def plan(self, view):
        threading.Event().wait()
class Spins(Fifo):
    def plan(self, view):
        while True: pass
"""


@pytest.fixture
def daemon(start_daemon: Callable[..., DaemonProcess], tmp_path: Path, home: Any) -> Callable[..., DaemonProcess]:
    def start(*arguments: str, config: str = "") -> DaemonProcess:
        (tmp_path / "bad.py").write_text(POLICIES)
        home.config.write_text(config)
        return start_daemon(*arguments, env={"PYTHONPATH": str(tmp_path)})

    return start


def test_who_submits_and_then_asks_sees_it_while_many_ask(daemon: Callable[..., DaemonProcess]) -> None:
    running = daemon()
    over = threading.Event()

    def watch() -> int:
        with contextlib.closing(Client(running.home, url="", timeout=patient(120))) as client:
            count = 0
            while not over.is_set():
                client.get("/v1/jobs")
                client.get("/v1/status")
                count += 1
            return count

    with ThreadPoolExecutor(6) as pool:
        watching = [pool.submit(watch) for _ in range(6)]
        client = running.client()
        jobs = Jobs(client)
        try:
            for number in range(1, 6):
                job = jobs.submit(f"job-{number}", "true", hold=True)
                assert job in [row["id"] for row in client.get("/v1/jobs")["jobs"]]
                assert sum(client.get("/v1/status")["jobs"].values()) == number
                jobs.act("cancel", job)
                assert job not in [row["id"] for row in client.get("/v1/jobs", state="submitted,pending")["jobs"]]
                assert job not in [row["id"] for row in client.get("/v1/top")["queue"]]
                assert client.get("/v1/status")["jobs"] == {"cancelled": number}
        finally:
            over.set()
        assert all(one.result() for one in watching)


@pytest.mark.slow
@pytest.mark.nightly  # of hostile ones, and of the end: test_adhoc.py
def test_slow_statements_keep_nobody_waiting_and_not_the_end(daemon: Callable[..., DaemonProcess]) -> None:
    """As many as the threads that all of the API once had, and a few more."""
    running = daemon()

    def ask() -> object:
        with contextlib.closing(Client(running.home, url="", timeout=patient(120))) as client, contextlib.suppress(StokerError):
            return client.post("/v1/sql", {"query": "SELECT count(*) FROM range(1000000000) a, range(1000000000) b", "timeout": 100.0})

    client = running.client()
    with ThreadPoolExecutor(8) as pool:
        asking = [pool.submit(ask) for _ in range(8)]
        time.sleep(0.5)
        jobs = Jobs(client)
        job = jobs.submit("goes-through", "true")
        jobs.act("priority", job, priority=3)
        assert client.get("/v1/status")["jobs"] == {"pending": 1} and client.get("/v1/jobs")["jobs"][0]["priority"] == 3
        assert jobs.show(job)["priority"] == 3
        assert not any(one.done() for one in asking)
        _ends(running, lambda: client.post("/v1/shutdown", {}))
        assert [one.result() for one in asking] == [None] * 8


def test_a_long_listing_comes_whole_to_who_reads_slowly(daemon: Callable[..., DaemonProcess]) -> None:
    running = daemon()
    client = running.client()
    Jobs(client).submit_all(*({"name": f"job-{number}", "command": ["true", "x" * 200], "hold": True} for number in range(600)))
    with socket.socket(socket.AF_UNIX) as peer:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        peer.connect(str(running.home.socket))
        peer.sendall(b"GET /v1/jobs HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        time.sleep(0.3)
        assert client.get("/v1/status")["jobs"] == {"submitted": 600}
        answer = b"".join(iter(lambda: peer.recv(1 << 14), b""))
    head, _, body = answer.partition(b"\r\n\r\n")
    assert len(json.loads(body)["jobs"]) == 600 and len(body) > 1 << 18, "several slices"
    assert f"content-length: {len(body)}".encode() in head.lower()


@pytest.mark.slow
def test_large_bodies_wait_for_their_turn_and_small_ones_do_not(daemon: Callable[..., DaemonProcess]) -> None:
    running = daemon()
    client, jobs = running.client(), Jobs(running.client())
    with contextlib.ExitStack() as stack:
        for _ in range(MOST_LARGE + 4):
            peer = stack.enter_context(socket.socket(socket.AF_UNIX))
            peer.connect(str(running.home.socket))
            peer.settimeout(1.0)
            with contextlib.suppress(TimeoutError):  # beyond those that may be in memory it is not read any further
                peer.sendall(HALF + b"Content-Length: 9000000\r\n\r\n[" + b" " * 3_000_000)
        assert jobs.submit("small", "true", hold=True) == 1
        assert psutil.Process(running.pid).memory_info().rss < 1 << 30
    large = {"name": "large", "command": ["true", "x" * 100_000], "hold": True, "labels": {}}
    jobs.submit_all(*({**large, "name": f"large-{number}"} for number in range(20)))
    assert client.get("/v1/status")["jobs"] == {"submitted": 21}


def _open(port: int, sent: bytes = b"") -> socket.socket:
    peer = socket.create_connection(("127.0.0.1", port), timeout=patient(60))
    with contextlib.suppress(ConnectionError):
        peer.sendall(sent)
    return peer


def _is_closed(peer: socket.socket) -> bool:
    """Whether the daemon has closed it, perhaps after an answer."""
    peer.settimeout(0.05)
    try:
        while peer.recv(1 << 16):
            pass
    except TimeoutError:
        return False
    except ConnectionError:
        pass
    return True


HALF = b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\n"


@pytest.mark.slow
def test_strangers_are_closed_in_time_and_those_with_a_token_are_not(daemon: Callable[..., DaemonProcess]) -> None:
    port = free_port()
    running = daemon("--tcp", f"127.0.0.1:{port}")
    token = running.client().post("/v1/tokens", {"name": "ann", "role": "admin"})["token"]
    known = running.client(f"http://127.0.0.1:{port}", token)
    assert known.get("/v1/status")
    kept = known._connection
    bearer = f"Authorization: Bearer {token}\r\n".encode()
    strangers = {
        "silent": _open(port),
        "half a head": _open(port, HALF),
        "half a body, no token": _open(port, HALF + b"Content-Length: 100\r\n\r\n{"),
        "a wrong token": _open(port, HALF + b"Authorization: Bearer stk_x\r\nContent-Length: 100\r\n\r\n{"),
        "answered": _open(port, b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"),
        "half a head after a whole one with a token": _open(port, b"GET /v1/status HTTP/1.1\r\nHost: x\r\n" + bearer + b"\r\n"),
    }
    again = strangers["half a head after a whole one with a token"]
    assert again.recv(1 << 16).startswith(b"HTTP/1.1 200")
    again.sendall(HALF)
    with contextlib.ExitStack() as stack:
        uploading = stack.enter_context(_open(port, HALF + bearer + b"Content-Length: 100\r\n\r\n{"))
        for peer in strangers.values():
            stack.enter_context(peer)
        for name, peer in strangers.items():
            until(lambda peer=peer: _is_closed(peer), 60, lambda name=name: f"{name} is open")
        assert not _is_closed(uploading), "a body may take its time"
    assert known.get("/v1/status") and known._connection is kept


def test_half_open_connections_keep_nobody_from_the_socket_nor_from_tcp(daemon: Callable[..., DaemonProcess]) -> None:
    """More of them than one address may have: the oldest make way for who speaks."""
    port = free_port()
    running = daemon("--tcp", f"127.0.0.1:{port}")
    client = running.client()
    token = client.post("/v1/tokens", {"name": "ann", "role": "read"})["token"]
    with contextlib.ExitStack() as stack:
        for _ in range(700):
            stack.enter_context(_open(port, HALF))
        assert client.get("/v1/status") and client.get("/healthz")
        assert running.client(f"http://127.0.0.1:{port}", token).get("/v1/status")
        fds = len(list(Path(f"/proc/{running.pid}/fd").iterdir()))
        assert fds < 700, "no more than may be are open"
    assert "Traceback" not in running.said()


class Peer:
    """What `Connections` knows of a connection."""

    def __init__(self, origin: str) -> None:
        self.origin, self.aborted, self.transport = origin, False, self

    def abort(self) -> None:
        self.aborted = True


def test_room_for_strangers_is_bounded_by_address_and_in_all_and_the_oldest_makes_way() -> None:
    room = Connections(descriptors=64)  # 32 connections, 8 strangers', 4 of one address
    peers = [Peer("a") for _ in range(6)]
    assert all(room.add(peer) for peer in peers)  # type: ignore[arg-type]
    assert [peer.aborted for peer in peers] == [True, True, False, False, False, False]
    others = [Peer(f"b{number}") for number in range(6)]
    assert all(room.add(peer) for peer in others)  # type: ignore[arg-type]
    assert [peer.aborted for peer in peers[2:]] == [True, True, False, False] and not any(peer.aborted for peer in others)
    for peer in (*peers, *others):
        room.remove(peer)  # type: ignore[arg-type]
    assert not room._open and not room._strangers and not room._by_origin


def test_who_has_shown_a_token_makes_way_for_nobody() -> None:
    room = Connections(descriptors=64)
    known = [Peer("a") for _ in range(31)]
    for peer in known:
        assert room.add(peer)  # type: ignore[arg-type]
        room.know(peer)  # type: ignore[arg-type]
    strangers = [Peer("a") for _ in range(3)]
    assert [room.add(peer) for peer in strangers] == [True, True, True]  # type: ignore[arg-type]
    assert [peer.aborted for peer in strangers] == [True, True, False]
    room.know(strangers[2])  # type: ignore[arg-type]
    assert not room.add(Peer("b")), "full"  # type: ignore[arg-type]
    assert not any(peer.aborted for peer in known)


def test_addresses_of_one_ipv6_network_count_as_one() -> None:
    assert guard._origin("2001:db8::1") == guard._origin("2001:db8::ffff:1") != guard._origin("2001:db8:0:1::1")
    assert guard._origin("10.0.0.1") != guard._origin("10.0.0.2")


# -- The end ---------------------------------------------------------------------------------------------------------------


def _ends(running: DaemonProcess, ask: Callable[[], object]) -> None:
    ask()
    assert running.process is not None
    assert running.process.wait(patient(30)) == 0, running.said()  # 5 s at most on a machine of its own


@pytest.mark.parametrize("policy", ["Hangs", pytest.param("Spins", marks=pytest.mark.nightly)])  # a core for 15 s
@pytest.mark.slow
def test_down_ends_it_whatever_policy_runs_and_nothing_is_lost(daemon: Callable[..., DaemonProcess], policy: str) -> None:
    port = free_port()
    running = daemon("--tcp", f"127.0.0.1:{port}", config='hooks = [{on = ["cancelled"], command = "sleep 600", timeout = 600.0}]\n')
    client = running.client()
    token = client.post("/v1/tokens", {"name": "ann", "role": "submit"})["token"]
    jobs = Jobs(client)
    client.post("/v1/policy", {"policy": f"bad:{policy}", "interval": 0.05, "force": True})
    kept = jobs.submit("kept", "true", hold=True)
    jobs.act("cancel", jobs.submit("hooked", "true", hold=True))
    until(lambda: any(task["name"] == "policy default" and task["last_run"] for task in client.get("/v1/status")["tasks"]))
    bearer = f"Authorization: Bearer {token}\r\n".encode()
    with contextlib.ExitStack() as stack:
        stack.enter_context(
            _open(port, HALF + bearer + b"Content-Length: 5000000\r\n\r\n[" + b" " * 100_000)
        )  # an upload that stands still
        stack.enter_context(_open(port, HALF))
        stack.enter_context(_open(port, f"GET /v1/jobs/{kept}/logs?wait=25&offset=0 HTTP/1.1\r\nHost: x\r\n".encode() + bearer + b"\r\n"))
        _ends(running, lambda: client.post("/v1/shutdown", {}))
    assert "the end itself" not in running.said(), "the database was closed in time"
    assert not running.home.database.with_name("stoker.duckdb.wal").exists(), "with a checkpoint"
    store = reopened(running.home.database)
    try:
        assert dict(store.rows("store/job_states", [kept])) == {kept: "submitted"}
        assert store.rows("api/job_counts") == [("cancelled", 1), ("submitted", 1)]
    finally:
        store.close()


def test_a_hook_that_outlives_the_end_is_killed_on_record(store: Store) -> None:
    hooks = Hooks(store, [Hook(("cancelled",), "sleep 600", timeout=600.0)])
    store.listen(hooks.committed)
    (job,) = put(store, "a")
    store.write(control, Control("cancel", (job,), "ann"))
    until(lambda: hooks._begun)
    hooks.close(time.monotonic())
    failed = [event["reason"] for event in store.objects("api/events", job) if event["kind"] == "hook.failed"]
    assert failed == ["sleep 600: was killed, for the daemon had to end"]


def test_a_store_closes_though_a_query_runs_and_says_when_its_writer_hangs(database: Path) -> None:
    store = reopened(database)
    store.write(note, Note("test.said", "test", "kept"))
    failed: list[Exception] = []

    def read() -> None:
        try:
            with store.read() as con:
                con.execute("SELECT count(*) FROM range(100000000) a, range(100000000) b").fetchall()
        except Exception as error:
            failed.append(error)

    reading = threading.Thread(target=read, daemon=True)
    reading.start()
    until(lambda: store._readers._lent)
    assert store.close(time.monotonic() + 30) is True
    reading.join(patient(30))
    assert [type(error).__name__ for error in failed] == ["InterruptException"]
    again = reopened(database)
    assert again.rows("api/schema_version")
    go = threading.Event()
    hanging = threading.Thread(target=lambda: again.exclusive(lambda _: go.wait(60)), daemon=True)
    hanging.start()
    until(again._requests.empty)
    assert again.close(time.monotonic() + 0.1) is False
    go.set()
    again._writer.join(patient(30))
