"""Checkpoints that go to another host through the daemon: whole, verified, or not at all."""

from __future__ import annotations

import io
import os
import signal
import tarfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from afar import Daemon
from e2e import DaemonProcess, Jobs, RunnerProcess, command, end_workers, free_port, until
from stoker.engine.errors import Conflict, LimitExceeded, NotFound, Stale, Unreachable
from stoker.engine.fleet import registration
from stoker.engine.fleet.board import Board
from stoker.engine.fleet.kept_bundles import KeptBundles
from stoker.engine.fleet.places_told import drop_bundle, fetch_at_most, take_sent
from stoker.engine.fleet.registration import NodeChange
from stoker.engine.fleet.silence import Fleet
from stoker.engine.forecast.explain import explain
from stoker.engine.home import Home
from stoker.engine.hosts.bundles import PIECE, Damaged, digest_of, fetch, send, tree, unpack
from stoker.engine.protocol import Assignment, BundleWanted, CheckpointSent, Report, SendCheckpoint
from stoker.engine.scheduling.view import Snapshot, snapshot
from stoker.policies import registry
from stoker.runners.handover.fetched import Fetcher, WantedDirectory, _Unwanted, marked
from stoker.runners.handover.sent_checkpoints import CheckpointSender
from stoker.runners.old_files import clean, keep_snapshots
from test_moves import COUNTS, step
from test_places import JOB, saved

MiB = 1 << 20
DIGEST = "ab" * 32


@pytest.fixture
def hosts(daemon: Daemon) -> Daemon:
    for node in ("h1", "h2", "h3"):
        daemon.join(node, place=f"place-{node}", fetch_at_most=MiB)
    return daemon


def look(daemon: Daemon) -> Snapshot:
    with daemon.store.read() as con:
        return snapshot(con, "default", 1_800_000_100.0)


def starts(daemon: Daemon) -> dict[int, list[str]]:
    view = look(daemon).view
    plan = registry.create("fifo", {}).plan(view)
    return {job: [str(view.gpus.id[gpu]) for gpu in allocation.gpus] for job, allocation in plan.allocations.items()}


def told(daemon: Daemon, node: str) -> tuple[list[Assignment], list[SendCheckpoint]]:
    board = Board(daemon.store)
    board.refresh()
    answer = board._answers[node]
    return answer.leases, answer.send


def why(daemon: Daemon, job: int) -> str:
    return str(explain(daemon.store, job)["summary"])


def sent(daemon: Daemon, node: str, job: int, after: int, **fields: Any) -> None:
    message = CheckpointSent(node=node, session=daemon.sessions[node], job=job, after=after, **fields)
    daemon.store.write(take_sent, message)


def test_it_goes_on_where_its_checkpoint_is_while_there_is_room_and_else_fetches_it(hosts: Daemon) -> None:
    job = saved(hosts, "h2")
    assert starts(hosts) == {job: ["h2/cpu0"]}
    hosts.grant(other := hosts.submit(JOB), "h2")
    assert starts(hosts)[job] == ["h1/cpu0"]
    hosts.grant(job, "h1")
    ((assignment,), nothing), ((beside,), (wanted,)) = told(hosts, "h1"), told(hosts, "h2")
    assert assignment.fetch is not None and nothing == [] and beside.job == other and beside.fetch is None
    assert (assignment.fetch.digest, assignment.fetch.refused, assignment.fetch.size) == ("", "", 1000)
    assert (wanted.job, wanted.after, wanted.checkpoints, wanted.at_most) == (job, 1, None, MiB)
    assert why(hosts, job).endswith("; fetches its checkpoint at step 134 from h2")
    sent(hosts, "h2", job, wanted.after, digest=DIGEST)
    ((assignment,), _), (_, wanted_now) = told(hosts, "h1"), told(hosts, "h2")
    assert assignment.fetch is not None and assignment.fetch.digest == DIGEST and wanted_now == []
    # What it saves there is newer, and what the daemon has is of no use any more.
    hosts.tell("h1", assignment.lease, "running", 1_800_000_000.0)
    assert told(hosts, "h1")[0][0].fetch is None
    hosts.tell("h1", assignment.lease, "exited", 1_800_000_000.0, outcome="stopped", saved=2000)
    row = hosts.job(job)
    assert (row["place"], row["bundle"], row["saved_bytes"]) == ("place-h1", None, 2000)


def test_one_that_is_too_large_waits_for_its_host(hosts: Daemon) -> None:
    job = saved(hosts, "h1", size=2 * MiB)
    hosts.grant(hosts.submit(JOB), "h1")
    assert starts(hosts) == {}
    words = "its checkpoint at step 134 lies on h1, and is too large to be fetched (2.0 MiB, runners.fetch_at_most is 1.0 MiB)"
    assert words in why(hosts, job)
    hosts.store.write(fetch_at_most, 4 * MiB)
    assert starts(hosts) == {job: ["h2/cpu0"]}
    hosts.store.write(fetch_at_most, 0)
    assert starts(hosts) == {}


def test_one_that_cannot_be_sent_waits_and_says_why(hosts: Daemon) -> None:
    job = saved(hosts, "h1")
    hosts.grant(hosts.submit(JOB), "h1")
    lease = hosts.grant(job, "h2")
    sent(hosts, "h1", job, 1, refused="cannot read state.pt: Input/output error")
    ((assignment,), _) = told(hosts, "h2")
    assert assignment.fetch is not None and assignment.fetch.refused == "cannot read state.pt: Input/output error"
    hosts.tell("h2", lease, "exited", 1_800_000_000.0, outcome="lost", message="not started")
    assert hosts.job(job)["state"] == "pending" and starts(hosts) == {}
    assert "lies on h1, from where it cannot be fetched: cannot read state.pt: Input/output error" in why(hosts, job)
    hosts.join("h1", place="place-h1", fetch_at_most=MiB)  # started again, it tries again
    assert hosts.job(job)["not_sent"] is None


def test_where_nobody_can_send_it_nothing_waits_for_it(hosts: Daemon) -> None:
    job = saved(hosts, "h1")
    hosts.grant(hosts.submit(JOB), "h1")
    hosts.grant(job, "h2")
    hosts.store.write(registration.change_node, NodeChange("h1", "suspect", "daemon", "silent"))
    ((assignment,), _) = told(hosts, "h2")
    assert assignment.fetch is not None and assignment.fetch.refused == "no runner is there to send it"
    assert told(hosts, "h1")[1] == []


def test_a_drained_runner_that_is_silent_sends_nothing_until_it_is_heard_again(hosts: Daemon) -> None:
    job = saved(hosts, "h1")
    hosts.grant(job, "h2")
    for state in ("draining", "drained"):
        hosts.store.write(registration.change_node, NodeChange("h1", state, "ann", "switched off"))
    moments = [0.0]
    fleet, looks = Fleet(hosts.store, lambda: moments[0]), []
    hosts.store.listen(lambda commit: looks.append(commit.topics) if "leases" in commit.topics else None)

    def refused() -> str:
        ((assignment,), _) = told(hosts, "h2")
        assert assignment.fetch is not None
        return assignment.fetch.refused

    heard = time.time()
    for ago, words, looked in ((0, "", 0), (90, "no runner is there to send it", 1), (90, "no runner is there to send it", 1), (0, "", 2)):
        hosts.store.write(lambda tx, batch: [tx.update("nodes", ["id"], batch)], {"id": "h1", "last_seen": heard - ago})
        fleet.watch()
        assert (refused(), len(looks)) == (words, looked)


def test_a_version_that_does_not_fetch_is_given_no_job_that_would_have_to(daemon: Daemon) -> None:
    daemon.join("h1", place="place-h1", fetch_at_most=MiB)
    daemon.join("h2", place="place-h2")
    job = saved(daemon, "h1")
    daemon.grant(daemon.submit(JOB), "h1")
    assert starts(daemon) == {}
    daemon.join("h2", place="place-h2", fetch_at_most=MiB)
    assert starts(daemon) == {job: ["h2/cpu0"]}


def test_without_room_on_one_host_another_one_fetches_it_and_at_last_it_waits(hosts: Daemon) -> None:
    job = saved(hosts, "h1")
    hosts.grant(hosts.submit(JOB), "h1")
    fault = {"outcome": "lost", "message": "there is no room for it", "host_at_fault": True}
    hosts.tell("h2", hosts.grant(job, "h2"), "exited", 1_800_000_000.0, **fault)
    assert hosts.job(job)["state_reason"] == "there is no room for it; another host is tried"
    assert starts(hosts) == {job: ["h3/cpu0"]}
    hosts.tell("h3", hosts.grant(job, "h3"), "exited", 1_800_000_000.0, **fault)
    row = hosts.job(job)
    assert (row["state"], row["failures"]) == ("pending", 0) and "h3 (there is no room for it)" in why(hosts, job)


def test_of_a_node_that_is_handed_back_the_daemon_takes_what_nobody_else_reads(hosts: Daemon) -> None:
    hosts.join("h1b", host="h1", home="/h1", place="place-h1", fetch_at_most=MiB)
    job, ended = saved(hosts, "h1"), saved(hosts, "h1")
    hosts.store.write(registration.report, Report(node="h1", session=hosts.sessions["h1"], hands_back=True))
    assert told(hosts, "h1")[1] == []  # h1b reads it
    hosts.store.write(registration.report, Report(node="h1b", session=hosts.sessions["h1b"], hands_back=True))
    assert [one.job for one in told(hosts, "h1")[1]] == [job, ended]
    sent(hosts, "h1", job, 1, digest=DIGEST)
    for node in ("h1", "h1b"):
        hosts.store.write(registration.report, Report(node=node, session=hosts.sessions[node], left=True))
    assert starts(hosts) == {job: ["h2/cpu0"]}
    assert (ended, "place") in [row[:2] for row in look(hosts).ineligible]
    hosts.grant(job, "h2")
    ((assignment,), _) = told(hosts, "h2")
    assert assignment.fetch is not None and (assignment.fetch.digest, assignment.fetch.refused) == (DIGEST, "")
    hosts.store.write(drop_bundle, DIGEST)  # the daemon's disk has damaged it
    ((assignment,), _) = told(hosts, "h2")
    assert assignment.fetch is not None and assignment.fetch.refused == "no runner is there to send it"


def test_what_was_sent_of_an_earlier_lease_is_not_taken(hosts: Daemon) -> None:
    job = saved(hosts, "h1")
    lease = hosts.grant(job, "h1")
    hosts.tell("h1", lease, "running", 1_800_000_000.0)
    sent(hosts, "h1", job, 1, digest=DIGEST)
    hosts.tell("h1", lease, "exited", 1_800_000_000.0, outcome="lost")
    sent(hosts, "h1", job, 1, digest=DIGEST)
    sent(hosts, "h2", job, lease, digest=DIGEST)  # which does not have it
    assert hosts.job(job)["bundle"] is None
    with pytest.raises(Stale):
        hosts.store.write(take_sent, CheckpointSent(node="h1", session=9, job=job, after=lease, digest=DIGEST))
    sent(hosts, "h1", job, lease, digest=DIGEST)
    assert hosts.job(job)["bundle"] == DIGEST


# -- the bytes -------------------------------------------------------------------------------------------------------


@pytest.fixture
def checkpoints(tmp_path: Path) -> Path:
    """As a job leaves them: directories, links, what is half made."""
    path = tmp_path / "h1" / "jobs" / "7" / "checkpoints"
    (path / "step-1").mkdir(parents=True)
    (path / "step-1" / "state.pt").write_bytes(os.urandom(2 * PIECE + 77))
    (path / "latest").symlink_to("step-1")
    (path / "tool").write_text("#!/bin/sh\n")
    (path / "tool").chmod(0o755)
    (path / ".step-2.tmp").mkdir()
    return path


def same(one: Path, other: Path) -> bool:
    """Names, contents and rights, but for what is half made."""
    found = [
        {path.relative_to(top): (path.is_symlink(), path.is_file() and (path.read_bytes(), path.stat().st_mode)) for path in top.rglob("*")}
        for top in (one, other)
    ]
    return found[0] == {path: what for path, what in found[1].items() if not path.parts[0].startswith(".")}


def test_whoever_was_cut_off_goes_on_and_what_comes_is_what_was_there(checkpoints: Path, tmp_path: Path) -> None:
    digest, size = digest_of(tree(checkpoints))
    kept = KeptBundles(Home(tmp_path / "daemon"))
    (tmp_path / "daemon").mkdir()

    class Cut(Exception):
        pass

    def take(at: int, data: bytes) -> None:
        assert kept.take(digest, at, data, last=False, at_most=size, what="x").bytes == at + len(data)
        if at == 0:
            raise Cut

    with pytest.raises(Cut):
        send(tree(checkpoints), 0, take)
    begun = kept.take(digest, 0, b"", last=False, at_most=size, what="x")
    assert (begun.bytes, begun.whole) == (PIECE, False)
    send(tree(checkpoints), begun.bytes, take)
    assert kept.take(digest, size, b"", last=True, at_most=size, what="x").whole
    part, asked = tmp_path / "h2" / "part", list[int]()

    def piece(at: int) -> bytes:
        asked.append(at)
        if len(asked) == 2:
            raise Cut
        return kept.read(digest, at)

    with pytest.raises(Cut):
        fetch(piece, digest, part)
    fetch(piece, digest, part)
    assert asked == [0, PIECE, PIECE, 2 * PIECE, size]
    target = tmp_path / "h2" / "checkpoints"
    (target / "older").mkdir(parents=True)
    unpack(part, target)
    assert same(target, checkpoints) and not (target / "older").exists()
    assert (target / "latest").is_symlink() and os.access(target / "tool", os.X_OK)
    assert {path.name for path in target.parent.iterdir()} == {"part", "checkpoints"}


def test_what_is_damaged_or_too_large_is_not_kept(checkpoints: Path, tmp_path: Path) -> None:
    digest, size = digest_of(tree(checkpoints))
    kept = KeptBundles(Home(tmp_path))
    with pytest.raises(Conflict, match="not what its digest says"):
        kept.take(digest, 0, b"something else", last=True, at_most=size, what="x")
    with pytest.raises(LimitExceeded, match=r"^its checkpoint: it is larger than "):
        kept.take(digest, 0, b"x" * 9, last=True, at_most=8, what="its checkpoint")
    with pytest.raises(NotFound):
        kept.read(digest, 0)
    send(tree(checkpoints), 0, lambda at, data: kept.take(digest, at, data, last=False, at_most=size, what="x"))
    kept.take(digest, size, b"", last=True, at_most=size, what="x")
    with (kept.folder / digest).open("r+b") as file:
        file.write(b"?")
    with pytest.raises(NotFound, match="damaged"):
        kept.read(digest, 0)
    assert not any(kept.folder.iterdir())
    part = tmp_path / "part"
    with pytest.raises(Damaged):
        fetch(lambda at: b"" if at else b"something else", digest, part)
    assert not part.exists()
    kept.take(digest, 0, b"x", last=False, at_most=size, what="x")
    os.utime(kept.folder / f"{digest}.part", (0, 0))
    kept.clean({digest})
    assert any(kept.folder.iterdir())
    kept.clean(set())
    assert not any(kept.folder.iterdir())


def test_a_tar_that_was_made_to_hurt_writes_nothing_outside(tmp_path: Path) -> None:
    (mine := tmp_path / "mine").write_text("mine")
    (tmp_path / "within").mkdir()
    (tmp_path / "within" / "here").write_text("here")
    os.link(tmp_path / "within" / "here", tmp_path / "within" / "same")  # this one is in order
    hard, pipe, again = tarfile.TarInfo("x"), tarfile.TarInfo("x"), tarfile.TarInfo("x")
    hard.type, hard.linkname, pipe.type, again.size = tarfile.LNKTYPE, str(mine), tarfile.FIFOTYPE, 5
    with tarfile.open(part := tmp_path / "part", "w") as tar:
        tree(tmp_path / "within")(tar)
    unpack(part, target := tmp_path / "h2" / "checkpoints")
    assert (target / "same").read_text() == "here"
    for bad in ([hard, again], [pipe]):
        with tarfile.open(part, "w") as tar:
            for entry in bad:
                tar.addfile(entry, io.BytesIO(b"yours"))
        with pytest.raises(Damaged):
            unpack(part, target)
    with tarfile.open(part, "w:gz") as tar:
        tree(tmp_path / "within")(tar)
    with pytest.raises(Damaged):
        unpack(part, target)
    assert mine.read_text() == "mine" and (target / "same").exists()


@pytest.fixture
def fetcher(tmp_path: Path) -> Fetcher:
    return Fetcher(None, tmp_path / "h2", "h2", 1, lambda: None)  # type: ignore[arg-type]


@pytest.fixture
def wanted(checkpoints: Path, tmp_path: Path) -> WantedDirectory:
    digest, size = digest_of(tree(checkpoints))
    return WantedDirectory(digest, tmp_path / "h2" / "jobs" / "7" / "checkpoints", f"{digest} 3", size)


def bytes_of(checkpoints: Path) -> bytes:
    pieces = list[bytes]()
    send(tree(checkpoints), 0, lambda at, data: pieces.append(data))
    return b"".join(pieces)


def test_a_runner_takes_nothing_that_is_damaged_and_asks_once_more(
    checkpoints: Path, fetcher: Fetcher, wanted: WantedDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, spoilt = bytes_of(checkpoints), [1]

    def piece(digest: str, at: int) -> bytes:
        data = whole[at : at + PIECE]
        if at == PIECE and spoilt:
            spoilt.pop()
            data = b"?" + data[1:]
        return data

    monkeypatch.setattr(fetcher, "_piece", piece)
    fetcher._asked[wanted] = 1e18
    assert fetcher._fetch(wanted) == "" and same(wanted.target, checkpoints)
    (wanted.target / "newer").touch()
    assert fetcher._fetch(wanted) == "" and (wanted.target / "newer").exists()  # it has begun with them, and saved
    spoilt[:] = [1, 1]
    again = replace(wanted, mark="of the next lease")
    fetcher._asked[again] = 1e18
    assert fetcher._fetch(again) == "it arrived damaged, more than once"
    assert (wanted.target / "newer").exists()


def test_what_is_given_up_while_it_comes_is_not_put_under_the_next_lease(
    checkpoints: Path, fetcher: Fetcher, wanted: WantedDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = bytes_of(checkpoints)

    class Given:
        def post_raw(self, path: str, content: bytes, timeout: float) -> bytes:
            at = msgspec.json.decode(content, type=BundleWanted).offset
            if at >= len(whole):
                assert fetcher.leave(wanted.target)  # 'stoker move --restart', and the job begins anew here
            return whole[at : at + PIECE]

    monkeypatch.setattr(fetcher, "_client", Given())
    fetcher._asked[wanted] = time.monotonic()
    with pytest.raises(_Unwanted):
        fetcher._fetch(wanted)
    assert not wanted.target.exists()
    fetcher._fills = wanted.target
    assert not fetcher.leave(wanted.target) and fetcher.leave(wanted.target.parent)


def test_a_runner_without_room_says_so_and_keeps_nothing(fetcher: Fetcher, wanted: WantedDirectory, tmp_path: Path) -> None:
    told = fetcher._fetch(replace(wanted, size=1 << 50))
    assert told is not None and told.startswith("there is no room for it on the disk of this host: it needs ")
    assert not list((tmp_path / "h2").rglob("*.part"))


def test_a_sender_says_what_it_cannot_send(checkpoints: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sender = CheckpointSender(None, tmp_path / "h1", "h1", 1)  # type: ignore[arg-type]
    small = SendCheckpoint(job=7, after=1, at_most=1000)
    assert sender._send(small).refused.startswith("it is too large (")
    assert sender._send(replace_struct(small, job=8)).refused.endswith("No such file or directory")
    monkeypatch.setattr(sender, "_post", raising(Conflict("changed")))
    assert sender._send(replace_struct(small, at_most=1 << 30)).refused == "changed"
    monkeypatch.setattr(sender, "_post", raising(RuntimeError("a mistake")))
    assert sender._send(replace_struct(small, at_most=1 << 30)).refused == "RuntimeError: a mistake"
    monkeypatch.setattr(sender, "_post", raising(Unreachable("nobody")))
    with pytest.raises(Unreachable):
        sender._send(replace_struct(small, at_most=1 << 30))


def replace_struct(message: SendCheckpoint, **changes: Any) -> SendCheckpoint:
    return msgspec.structs.replace(message, **changes)


def raising(error: Exception) -> Callable[..., Any]:
    def act(*_: Any) -> Any:
        raise error

    return act


# -- real agents -----------------------------------------------------------------------------------------------------


@pytest.fixture
def pair(start_daemon: Callable[..., DaemonProcess], tmp_path: Path) -> Iterator[tuple[Jobs, dict[str, RunnerProcess]]]:
    """A daemon, and two runners with a home each, as on two hosts without a shared disk."""
    port = free_port()
    client = start_daemon("--tcp", f"127.0.0.1:{port}").client()
    token = client.post("/v1/tokens", {"name": "far", "role": "runner"})["token"]
    where = {"STOKER_URL": f"http://127.0.0.1:{port}", "STOKER_TOKEN": token}
    with ExitStack() as at_end:
        runners = {}
        for node in ("h1", "h2"):
            (folder := tmp_path / node).mkdir()
            runners[node] = RunnerProcess(Home(folder), node, 1, "--hand-back", env=where)
            at_end.callback(end_workers, Home(folder))
            at_end.callback(runners[node].end)
        yield Jobs(client), runners


def test_a_job_goes_on_at_its_step_on_another_host_and_on_a_third_when_that_one_is_handed_back(
    pair: tuple[Jobs, dict[str, RunnerProcess]], tmp_path: Path
) -> None:
    jobs, runners = pair
    client = jobs.client
    runners["h1"].start(client)
    job = jobs.python("counts", COUNTS)
    until(lambda: step(jobs, job) > 5)
    runners["h2"].start(client)
    client.post("/v1/runners/h1/drain", {"now": True})
    until(lambda: client.get(f"/v1/jobs/{job}/logs")["node"] == "h2")
    first = until(lambda: client.get(f"/v1/jobs/{job}/logs")["text"])
    begun = int(first.split()[2])
    assert begun > 5 and first.startswith("begins at ")
    until(lambda: step(jobs, job) > begun + 5)
    assert runners["h2"].process is not None
    runners["h2"].process.send_signal(signal.SIGTERM)  # nobody else is there: the daemon keeps the checkpoint
    assert runners["h2"].process.wait(60) == 0
    assert jobs.show(job)["bundle"]
    client.post("/v1/runners/h1/resume", {})
    until(lambda: client.get(f"/v1/jobs/{job}/logs")["node"] == "h1")
    again = int(until(lambda: client.get(f"/v1/jobs/{job}/logs")["text"]).split()[2])
    assert again > begun


def test_code_is_sent_once_and_fetched_once_a_host(pair: tuple[Jobs, dict[str, RunnerProcess]], home: Home, tmp_path: Path) -> None:
    jobs, runners = pair

    def snapshot_of(job: int) -> str:
        return str(jobs.client.get(f"/v1/jobs/{job}")["provenance"]["snapshot"])

    (tree := tmp_path / "code").mkdir()
    (tree / "say.sh").write_text("cat words/said; pwd\n")
    (tree / "words").mkdir()
    (tree / "words" / "said").write_text("before\n")
    (tree / ".hidden").write_text("x")
    runners["h1"].start(jobs.client)
    for name in ("one", "two"):
        said = command(home, "submit", "--snapshot", "--hold", "--name", name, "--", "sh", "say.sh", cwd=tree)
        assert said.code == 0, said.err
    (tree / "words" / "said").write_text("after\n")
    digest = snapshot_of(1).removeprefix("sha256:")
    assert snapshot_of(2) == f"sha256:{digest}" and not any((home.path / "snapshots").iterdir())
    for number in (1, 2):
        jobs.act("release", number)
        assert jobs.ended(number)["state"] == "completed"
        assert jobs.client.get(f"/v1/jobs/{number}/logs")["text"] == f"before\n{tmp_path}/h1/snapshots/{digest}\n"
    assert runners["h1"].said().count("is fetched") == 1
    assert {path.name for path in (tmp_path / "h1" / "snapshots" / digest).iterdir()} == {"say.sh", "words", ".hidden"}
    # A host that comes when the daemon has it no more says what is wrong, and another one is tried.
    (home.path / "bundles" / digest).unlink()
    jobs.client.post("/v1/runners/h1/drain", {})
    runners["h2"].start(jobs.client)
    said = command(home, "submit", "--snapshot", "--hold", "--name", "three", "--", "sh", "say.sh", cwd=tree)
    third = snapshot_of(3).removeprefix("sha256:")
    (home.path / "bundles" / third).unlink()
    jobs.act("release", 3)
    until(lambda: jobs.show(3)["excluded"])
    assert "snapshot: the daemon has no bundle" in jobs.show(3)["excluded"]


def test_copies_of_code_go_when_they_are_not_used(tmp_path: Path) -> None:
    folder = tmp_path / "snapshots"
    for digest, days in (("a" * 64, 8), ("b" * 64, 8), ("c" * 64, 1)):
        (folder / digest).mkdir(parents=True)
        (mark := marked(folder / digest)).touch()
        os.utime(mark, (then := time.time() - days * 86400, then))
    (folder / "by hand").mkdir()
    used = Assignment(lease=1, job=1, attempt=1, spec={}, gpus=[], world_size=1, snapshot=f"sha256:{'b' * 64}")
    keep_snapshots(tmp_path, [used])
    clean(tmp_path, ())
    assert sorted(path.name[:1] for path in folder.iterdir()) == [".", ".", "b", "b", "c"]


def test_code_that_is_too_large_for_other_hosts_stays_on_this_one(
    start_daemon: Callable[..., DaemonProcess], home: Home, tmp_path: Path
) -> None:
    port = free_port()
    client = start_daemon("--tcp", f"127.0.0.1:{port}").client()
    token = client.post("/v1/tokens", {"name": "ann", "role": "submit"})["token"]
    with (tmp_path / "large").open("wb") as file:
        file.truncate((64 << 20) + 1)
    far = ["submit", "--snapshot", "--hold", "--", "true"]
    said = command(
        Home(tmp_path / "other"), "--url", f"http://127.0.0.1:{port}", *far, cwd=tmp_path, env={**os.environ, "STOKER_TOKEN": token}
    )
    assert said.code == 7 and "the limit is 64.0 MiB; largest: large" in said.line
    said = command(home, *far, cwd=tmp_path)
    assert said.code == 0 and "only runners of this host can start the job" in said.err
    assert Path(client.get("/v1/jobs/1")["provenance"]["snapshot"], "large").is_file()
