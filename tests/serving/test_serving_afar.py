"""Servers on other hosts: a runner over TCP with a home of its own, through which the daemon asks."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from e2e import Jobs, command, runner_afar, until
from stoker.engine.api.jobs.model_requests import asked_through
from stoker.engine.client import Client
from stoker.engine.errors import LimitExceeded, StokerError, Unreachable, UsageError
from stoker.engine.fleet.remote_requests import LOGS, MESSAGES, RemoteRequests
from stoker.engine.home import Home
from stoker.engine.protocol import Asked, AskRequest, Assignments, LogPiece, LogRequest, Poll
from stoker.engine.store.store import Committed
from stoker.runners.handover import passed_requests
from stoker.runners.handover.passed_requests import RequestPasser
from stoker.runners.lease import processes
from test_serving_live import SERVER, SLOW

ANSWER = Assignments(version=1, leases=[])
REQUEST: dict[str, Any] = {"job": 3, "name": "tagger", "lease": 7, "requests": ["a"], "timeout": 5.0}


class Board:
    def __init__(self) -> None:
        self.woken: list[str] = []

    def wake(self, node: str) -> None:
        self.woken.append(node)


def poll(node: str = "n1", *, hands_on: bool = True, session: int = 1, taken: int | None = None) -> Poll:
    return Poll(node=node, session=session, version=0, wait=0.0, hands_on=hands_on, sends_logs=True, taken=taken)


def said(number: int, **more: Any) -> Asked:
    return Asked(node="n1", session=1, number=number, **more)


def test_what_is_asked_is_told_once_and_answered_whoever_is_still_there() -> None:
    async def work() -> None:
        board = Board()
        remote = RemoteRequests(board)  # type: ignore[arg-type]

        def ask(*requests: str) -> asyncio.Task[list[Any]]:
            where = {"node": "n1", "job": 3, "name": "tagger", "lease": 7}
            return asyncio.ensure_future(asked_through(remote, where, list(requests), 5.0))

        first, gone = ask("a", "b"), ask("c")
        await asyncio.sleep(0)
        assert board.woken == ["n1", "n1"] and remote.waiting(poll()) and not remote.waiting(poll("n2"))
        assert remote.hand_out(poll("n2"), ANSWER) is ANSWER
        told = remote.hand_out(poll(), ANSWER).asks
        assert [(one.job, one.lease, one.requests, one.timeout) for one in told] == [(3, 7, ["a", "b"], 5.0), (3, 7, ["c"], 5.0)]
        assert not remote.waiting(poll()) and remote.hand_out(poll(), ANSWER) is ANSWER
        gone.cancel()
        await asyncio.sleep(0)
        for one in told:
            remote.take(said(one.number, answers=[1, 2]))
        assert await first == [1, 2]
        for failed, error in (("busy", LimitExceeded), ("unreachable", Unreachable), ("refused", UsageError)):
            asked = ask("x")
            await asyncio.sleep(0)
            (one,) = remote.hand_out(poll(), ANSWER).asks
            remote.take(said(one.number, failed=failed, error="so it is"))
            with pytest.raises(error, match=r"^so it is$"):
                await asked
        asked = ask("x")
        await asyncio.sleep(0)
        assert remote.hand_out(poll(hands_on=False), ANSWER) is ANSWER
        with pytest.raises(Unreachable, match="tagger runs on another host, and its runner n1 is of a version that hands on no requests"):
            await asked
        told, fresh = ask("x"), ask("y")
        await asyncio.sleep(0)
        assert len(remote.hand_out(poll(), ANSWER).asks) == 2
        fresh.cancel()
        fresh = ask("z")
        await asyncio.sleep(0)
        assert [one.requests for one in remote.hand_out(poll(session=2), ANSWER).asks] == [["z"]]
        with pytest.raises(Unreachable, match="runner n1 was started again before it had answered: ask again"):
            await asyncio.wait_for(told, 5)
        assert not fresh.done()
        fresh.cancel()
        await asyncio.sleep(0)
        most = [ask("x") for _ in range(MESSAGES.most)]
        await asyncio.sleep(0)
        with pytest.raises(LimitExceeded, match="64 messages wait for servers of runner n1 already: try again later"):
            await ask("y")
        for asked in most:
            asked.cancel()

    asyncio.run(work())


def test_what_was_told_in_an_answer_that_got_lost_is_told_again_and_nothing_twice() -> None:
    async def work() -> None:
        remote = RemoteRequests(Board())  # type: ignore[arg-type]

        def ask() -> asyncio.Task[Any]:
            return asyncio.ensure_future(remote.ask(MESSAGES, "n1", lambda number: AskRequest(number=number, **REQUEST)))

        def read() -> asyncio.Task[Any]:
            return asyncio.ensure_future(remote.ask(LOGS, "n1", lambda number: LogRequest(number=number, job=3, lease=7, node_rank=0)))

        first, log = ask(), read()
        await asyncio.sleep(0)
        remote.hand_out(poll(), ANSWER)  # of a runner that leaves: it asks for its leases beside its poller, which has the rest
        lost = remote.hand_out(poll(taken=0), ANSWER)
        assert [len(lost.asks), len(lost.logs)] == [1, 1] and remote.waiting(poll(taken=0))
        assert remote.hand_out(poll(taken=0), ANSWER) == lost
        assert remote.hand_out(poll(taken=lost.asks[0].number), ANSWER).asks == []
        newest = lost.logs[0].number
        assert not remote.waiting(poll(taken=newest)) and remote.hand_out(poll(taken=newest), ANSWER) is ANSWER
        second = ask()
        await asyncio.sleep(0)
        (told,) = remote.hand_out(poll(taken=newest), ANSWER).asks
        assert told.number > newest
        remote.take(LogPiece(node="n1", session=1, number=told.number, text="no answer to a message"))
        remote.take(said(told.number, answers=["yes"]))
        assert (await second).answers == ["yes"]
        # An agent that was started anew reads the log, which costs nothing; a message may have been answered.
        again = remote.hand_out(poll(session=2, taken=0), ANSWER)
        assert (again.asks, again.logs) == ([], lost.logs)
        with pytest.raises(Unreachable, match="was started again"):
            await first
        # Whatever number a daemon with a clock that was ahead gave out last, this one's are told.
        assert remote.hand_out(poll(session=2, taken=2**61), ANSWER).logs == lost.logs
        log.cancel()

    asyncio.run(work())


def test_whoever_waits_for_a_runner_that_leaves_for_good_is_told_at_once() -> None:
    def commit(kind: str, after: str) -> Committed:
        return Committed(
            frozenset(), [{"kind": kind, "node_id": "n1", "after": after}, {"kind": "job.state", "node_id": None, "after": "gone"}]
        )

    async def work() -> None:
        remote = RemoteRequests(Board())  # type: ignore[arg-type]

        def ask(node: str = "n1") -> asyncio.Task[Any]:
            return asyncio.ensure_future(remote.ask(MESSAGES, node, lambda number: AskRequest(number=number, **REQUEST)))

        async def tell(kind: str, after: str) -> None:
            await asyncio.to_thread(remote.committed, commit(kind, after))  # the writer's thread

        other = ask("n2")
        for kind, after in (("node.stopped", "stopped"), ("node.state", "gone")):
            untold, told = ask(), ask()
            await asyncio.sleep(0)
            remote.hand_out(poll(), ANSWER)
            await tell("node.state", "draining")
            assert not untold.done() and not told.done()
            await tell(kind, after)
            for asked in (untold, told, ask()):  # the last one comes when it has left already
                with pytest.raises(Unreachable, match=r"^runner n1 has left: ask again when the job runs on another one$"):
                    await asyncio.wait_for(asked, 5)
            await tell("node.up", "up")
        back = ask()
        await asyncio.sleep(0)
        assert remote.waiting(poll()) and not back.done() and not other.done()
        back.cancel()
        other.cancel()

    asyncio.run(work())


def test_an_answer_that_cannot_be_sent_is_told_to_be_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else whoever asked would wait for it until the time is up."""
    sent: list[Asked] = []
    lost: list[str] = []

    class Daemon:
        def post_raw(self, path: str, body: bytes, timeout: float) -> bytes:
            sent.append(msgspec.json.decode(body, type=Asked))
            if lost:
                raise Unreachable(lost.pop())
            return b"{}"

    passer = RequestPasser(Daemon(), tmp_path, "n1", 1)  # type: ignore[arg-type]
    request = AskRequest(number=3, job=1, name="tagger", lease=1, requests=["a"], timeout=1.0)
    nested: Any = "a"
    for _ in range(5000):
        nested = [nested]
    monkeypatch.setattr(passed_requests, "_LONGEST", 2000)
    for answer, words in (("\ud800", "no JSON"), (nested, "no JSON"), ("a" * 2000, "larger than")):
        monkeypatch.setattr(passer, "_asked", lambda request, found=answer: said(request.number, answers=[{"answer": found}]))
        passer._pass(request)
        told = sent.pop()
        assert (told.number, told.failed, told.answers) == (3, "refused", []) and f"the answer is {words}" in told.error
    monkeypatch.setattr(passer, "_asked", lambda request: said(request.number, answers=[{"answer": "ä"}]))
    passer._pass(request)
    assert sent == [said(3, answers=[{"answer": "ä"}])]
    monkeypatch.setattr(passed_requests, "_RETRY_SECONDS", 0.0)
    lost += ["the connection was cut"] * 2
    passer._pass(request)
    assert sent == [said(3, answers=[{"answer": "ä"}])] * 4


@pytest.fixture
def afar(start_daemon: Any, tmp_path: Path) -> Iterator[Jobs]:
    """Jobs of a daemon whose one runner is on another host, as far as can be told; ``slow`` serves there."""
    with runner_afar(start_daemon) as (jobs, _, _):
        (tmp_path / "slow.py").write_text(SLOW)
        jobs.submit("slow", workdir=str(tmp_path), **SERVER)
        yield jobs


@pytest.mark.slow
def test_a_server_of_another_host_is_asked_through_its_runner(afar: Jobs, home: Home) -> None:
    def ask(*requests: Any, timeout: float = 30.0, client: Client = afar.client) -> list[dict[str, Any]]:
        path, said = f"/v1/jobs/slow/ask?timeout={timeout}", {"requests": list(requests)}
        answers: list[dict[str, Any]] = client.post(path, said, timeout=timeout + 30.0)["answers"]
        return answers

    until(lambda: ask("a") == [{"answer": "a"}])
    assert afar.client.get("/v1/jobs/slow/server")["here"] is False
    assert command(home, "ask", "slow", "how far").out == "how far\n"
    assert ask("b", "raise", 1.5) == [{"answer": "b"}, {"error": "ValueError: not this one"}, {"answer": "1.5"}]
    with pytest.raises(UsageError, match="9 requests at once are more than may wait here, 8"):
        ask(*"abcdefghi")
    large = ["x" * 300_000] * 3
    assert ask(*large) == [{"answer": one} for one in large]
    with pytest.raises(LimitExceeded, match=r"slow has not answered within 0\.3 s"):
        ask(2.0, timeout=0.3)
    failed: list[str] = []

    def in_flight() -> None:
        with contextlib.closing(Client(afar.client.home, afar.client.url, afar.client.token)) as own:
            try:
                ask("raise", 500.0, timeout=500.0, client=own)  # it is killed before
            except StokerError as error:
                failed.append(str(error))

    def failures() -> int:
        return str(afar.client.get("/v1/jobs/slow/logs", lines=500)["text"]).count("a request failed with this error")

    until(lambda: afar.sql("SELECT 1 FROM latency_now"))  # before: while it computes it tells nothing
    before, thread = failures(), threading.Thread(target=in_flight, daemon=True)
    thread.start()
    supervisor = afar.sql("SELECT pid FROM workers WHERE state = 'running'")[0][0]
    until(lambda: failures() > before)
    os.kill(processes.descendants(int(supervisor), processes.table())[0].pid, signal.SIGKILL)
    thread.join(30)
    assert failed and "slow ended before it answered" in failed[0]
    until(lambda: ask("again") == [{"answer": "again"}])
