"""A member of a group of replicas: it meets the others before each step, and sums with them.

torchft does both: its lighthouse lists the present members, and its process group is made anew for these. Each member runs a lighthouse.
A member asks the others which one is in use: that of the farthest training member, or else that of the member named by the daemon.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch

from ...engine.errors import StokerError, UsageError
from ...engine.protocol import ReplicaGroup
from ..train.batches import Interrupted
from .member_server import MemberServer, Status, ask_all, fetch
from .membership import Decision, Member, decide, decoded, farthest, named, newest, same_state

log = logging.getLogger(__name__)

_STOP_POLL_INTERVAL = 0.1  #: seconds between looks at the request to stop
_MEETING_PAUSE = 0.2  #: seconds between two meetings while the group may not go on
_HEARTBEAT_INTERVAL = 0.2  #: seconds between signs of life at the lighthouse
_ANSWER_TIMEOUT = 1.0  #: seconds to wait for a member's answer
_UNKNOWN_STEP_SECONDS = 20.0  #: seconds allowed for a step while its speed is unknown
_ASSUMED_BANDWIDTH = 10e6  #: bytes a second, slowest link assumed for copying a state
_LOG_INTERVAL = 30.0  #: seconds between two log lines that say why it waits


class Finished(Exception):
    """The group has done all steps. ``state``: its final one, None: no member sends it any more."""

    def __init__(self, state: bytes | None) -> None:
        super().__init__()
        self.state = state


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of a group, and of this member in it."""

    group: int
    lease: int
    index: int
    host: str
    port: int
    batch: int  #: samples in a step
    least: int  #: members at first
    quorum_timeout: float = 5.0  #: a member silent for so many seconds counts as lost
    goodbye: float = 5.0  #: seconds at most that a leaving member waits until the others know
    state_bytes: int = 0  #: approximate size of the model and its optimizer


class JoinedGroup:
    """Not for several threads. ``told`` returns the daemon's newest word, ``stop`` whether the job is asked to stop; ``waits`` is called
    with the reason from time to time while it may not go on."""

    def __init__(
        self, settings: Settings, told: Callable[[], ReplicaGroup | None], stop: Callable[[], bool], waits: Callable[[str], None]
    ) -> None:
        from torch import distributed

        os.environ.setdefault("RUST_LOG", "error")  # else torchft logs megabytes
        try:
            from torchft.coordination import LighthouseServer
        except ModuleNotFoundError:
            words = "the package torchft is not installed here; install it with: pip install '.[replicas]' in Stoker's source tree"
            raise UsageError(f"replicas: {words}") from None
        logging.getLogger("torchft").setLevel(logging.CRITICAL)

        self.settings, self._told, self._stop, self._waits = settings, told, stop, waits
        self.lost = 0.0  #: seconds lost by waiting for others and by failed all-reduces
        self.gaps = 0  #: how often the group had to form anew after its first step
        self.finished = False  #: all steps are done
        self.settled: set[int] = set()  #: leases that do not need the last state: they have it, or have left
        self._closed = False
        self.gives_way = False  #: it has left to give its GPU to a task with the group's checkpoint
        self._lighthouse = ""  #: in use
        self._client: Any = None  #: of that
        self._heard = 0.0  #: when the lighthouse answered last
        self._cut: dict[int, str] = {}  #: members that do not answer, with their addresses
        self._summing: tuple[Any, Decision, float] | None = None  #: the sum under way: its processes, members and start
        self._process_group: Any = None
        self._formed: object = None  #: the members for which the process group was made
        self._said, self._why = -_LOG_INTERVAL, ""
        self._nobody = "no member answers yet"  #: why there is no lighthouse
        host = settings.host
        store: Any = distributed.TCPStore  # type: ignore[attr-defined]
        self._store = store(host, 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=settings.quorum_timeout))
        self._lighthouse_server: Any = LighthouseServer
        self._serve()
        self.me = Member(group=settings.group, lease=settings.lease, index=settings.index, address="", step=0,
                         store=f"{_bracketed(host)}:{self._store.port}", own=self._own)  # fmt: skip
        try:
            self._answers = MemberServer(host, settings.port, settings.group, self._status)
        except OSError as error:
            raise StokerError(
                f"replicas: cannot answer the others at {host}:{settings.port}: {error.strerror}; give the job retries, or try again"
            ) from None
        self.tell(address=f"{_bracketed(host)}:{self._answers.port}")
        threading.Thread(target=self._beat, name="heartbeat", daemon=True).start()
        threading.Thread(target=self._watch, name="watch", daemon=True).start()

    def tell(self, **now: Any) -> None:
        """Change the fields of `Member` that the others get from now on."""
        self.me = Member(**{name: getattr(self.me, name) for name in self.me.__struct_fields__} | now)

    def _status(self) -> Status:
        return Status(member=self.me, lighthouse=self._lighthouse, finished=self.finished)

    def _serve(self) -> None:
        """Run a lighthouse."""
        host, milliseconds = _bracketed(self.settings.host), int(self.settings.quorum_timeout * 1000)
        self._server = self._lighthouse_server(
            bind=f"{host}:0", min_replicas=1, join_timeout_ms=milliseconds, quorum_tick_ms=20,
            heartbeat_timeout_ms=max(milliseconds // 2, 500),
        )  # fmt: skip
        self._own = f"http://{host}:{self._server.address().rpartition(':')[2]}"

    # ---- the members of a step ----

    def meet(self) -> Decision:
        """Wait until this member may take part in the next step.

        Raises Interrupted if the job is asked to stop, after the others know that it leaves; Finished if no step is left; UsageError if
        it must not be in the group.
        """
        began, anew = time.monotonic(), False
        useful = began  #: the last time at which it was, or may have been, of use
        while True:
            if self._stop() and self._client is None:
                raise Interrupted
            decision = self._met()
            if decision.verdict == "leave":
                raise UsageError(decision.why)
            if decision.verdict == "go":
                changed = self._key(decision) != self._formed
                if self._form(decision):
                    if self.me.took_part and (anew or changed):
                        self.lost += time.monotonic() - began
                        self.gaps += 1
                    return decision
                continue
            anew = True
            if self._process_group is not None:  # others may have heard of a step with it, and wait in the sum
                self._give_up()
            self._say(decision.why)
            if not decision.useless:
                useful = time.monotonic()
            elif time.monotonic() - useful > 2 * self.settings.quorum_timeout:
                self.gives_way = True
                raise Interrupted
            if not decision.aside:  # else the others, whose lighthouse still hears of it, would wait for it at each step
                time.sleep(_MEETING_PAUSE)

    def _met(self) -> Decision:
        """Meet once, and decide from the present members."""
        word = newest((self._told(), self.me.word))
        if word is not None:  # ended members need not be asked any more
            living = {one.lease for one in word.members}
            self._cut = {lease: address for lease, address in list(self._cut.items()) if lease in living}  # `_watch` takes some out
        self.tell(word=word, unreached=tuple(self._cut), leaving=self._stop())
        if word is not None and word.done:
            raise Finished(self._final_state(self._ask_others()))
        if self._client is None:
            self._seek()
        if self._client is None:
            return Decision(verdict="wait", why=self._nobody)
        try:
            present = self._quorum()
        except _Silent:
            self._nobody = f"the lighthouse in use, {self._lighthouse}, does not answer here: looking for another one"
            self._lighthouse, self._client = "", None
            return Decision(verdict="wait", why=self._nobody)
        self.tell(word=newest((word, *(one.word for one in present))))  # else members known only to others would seem to have ended
        self.settled.update(one.lease for one in present if one.leaving)
        decision = decide(self.me, present, self.settings.batch, self.settings.least)
        if decision.left and decision.members:
            self._leave_behind(decision)
        if decision.verdict == "wait" and not decision.aside:
            self._seek()
        return decision

    def _leave_behind(self, decision: Decision) -> None:
        """Meet at another lighthouse from now on: the one in use would wait for members that have left until it counts them as lost."""
        others = [one.own for one in decision.members if one.own != self._lighthouse]
        if not others:  # it is alone, at its own lighthouse
            self._server.shutdown()
            self._serve()
            self.tell(own=self._own)
        self._use(others[0] if others else self._own)

    def _seek(self) -> None:
        """Choose the lighthouse: that of the farthest training member, or else of the one with which a group begins."""
        answers = self._ask_others()
        if any(status.finished for status in answers):
            raise Finished(self._final_state(answers))
        answers = [status for status in answers if not status.member.leaving]
        best = farthest([self.me, *(status.member for status in answers)])
        if best.took_part:
            first = best.lease
        elif self.me.word is not None and self.me.word.founder is not None:
            first = self.me.word.founder
        else:
            return
        if first == self.me.lease:
            self._use(self._lighthouse if best.took_part and self._lighthouse else self._own)
            return
        asked = next((status for status in answers if status.member.lease == first), None)
        if asked is not None:  # a member of an older version sends only the lighthouse that it uses
            self._use(asked.lighthouse if best.took_part else asked.member.own or asked.lighthouse)
        elif answers:
            self._nobody = f"waiting for {named(self.me.word, first)} to answer, with which the group begins"

    def _use(self, lighthouse: str) -> None:
        if not lighthouse or (lighthouse == self._lighthouse and self._client is not None):
            return
        from torchft.coordination import LighthouseClient

        try:
            self._client = LighthouseClient(lighthouse, connect_timeout=timedelta(seconds=_ANSWER_TIMEOUT))
        except Exception:  # it has gone, or the network is cut
            self._nobody = f"the lighthouse in use, {lighthouse}, is not reached from here: check the network"
            return
        self._nobody = "no member answers yet"
        self._lighthouse, self._heard = lighthouse, time.monotonic()

    def _others(self) -> list[str]:
        members = self.me.word.members if self.me.word is not None else []
        return [one.address for one in members if one.address and one.lease != self.me.lease]

    def _ask_others(self) -> list[Status]:
        answers = ask_all(self._others(), self.settings.group, _ANSWER_TIMEOUT)
        self.settled.update(one.member.lease for one in answers if one.finished)
        return answers

    def _name(self) -> str:
        return f"{self.me.index}.{self.me.lease}"

    def leave(self) -> None:
        """Tell the others that this member takes no further step, unless they know."""
        if not self.me.leaving and self._client is not None:
            self.tell(leaving=True)
            with contextlib.suppress(Interrupted, _Silent):
                self._quorum()
        self._give_up()  # others may have heard of a step with it, and wait in the sum

    def _quorum(self) -> list[Member]:
        """All present members, from the lighthouse. Raises _Silent if it does not answer, Interrupted once they know that this one leaves.

        If it is asked to stop while it waits it says so, but takes the step if the others have counted on it meanwhile.
        """
        result: queue.SimpleQueue[Any] = queue.SimpleQueue()
        asked = {self._join(result)}
        until = time.monotonic() + self.settings.goodbye if self.me.leaving else math.inf
        while True:
            try:
                found = result.get(timeout=_STOP_POLL_INTERVAL)
            except queue.Empty:
                if self._stop() and not self.me.leaving:
                    self.tell(leaving=True)
                    asked.add(self._join(result))
                    until = time.monotonic() + self.settings.goodbye
                if time.monotonic() > until:
                    raise Interrupted from None
                if time.monotonic() - self._heard > self.settings.quorum_timeout:  # the lighthouse is silent too
                    raise _Silent from None
                continue
            if isinstance(found, Exception):
                log.debug("no quorum at %s: %s", self._lighthouse, found)
                raise _Silent
            if asked.isdisjoint(found):  # what it told earlier was on its way for long, and has come to the lighthouse after this
                self._join(result)
                continue
            if any(one.lease == self.me.lease and one.leaving for one in found.values()):
                raise Interrupted
            return [one for one in found.values() if one.group == self.me.group]

    def _join(self, result: queue.SimpleQueue[Any]) -> str:
        """Ask the lighthouse for the members of the next step, in these words: the answer, or an error, comes when all are there."""
        client, me, words = self._client, self.me, self.me.encoded()
        wait = timedelta(seconds=3 * self.settings.quorum_timeout)

        def call() -> None:
            try:
                found = client.quorum(self._name(), timeout=wait, address=me.address, store_address=me.store, step=me.step, world_size=1,
                                      shrink_only=False, data={"member": words})  # fmt: skip
                result.put({text: decoded(text) for one in found.participants for text in [str(one.data["member"])]})
            except Exception as error:
                result.put(error)

        threading.Thread(target=call, name="quorum", daemon=True).start()
        return words

    def _beat(self) -> None:
        """Send signs of life while the member is in a group."""
        while not (self.finished or self._closed):
            client = self._client
            if client is not None:
                try:
                    client.heartbeat(self._name(), timeout=timedelta(seconds=_ANSWER_TIMEOUT))
                    if client is self._client:
                        self._heard = time.monotonic()
                except Exception as error:  # the request for a quorum will notice it
                    log.debug("no sign of the lighthouse: %s", error)
            time.sleep(_HEARTBEAT_INTERVAL)

    def _watch(self) -> None:
        known: object = None
        signs: dict[int, float] = {}
        while not (self.finished or self._closed):
            time.sleep(_HEARTBEAT_INTERVAL)
            self._ask_again()
            under_way = self._summing
            if under_way is None:
                continue
            group, decision, began = under_way
            if under_way is not known:
                known, signs = under_way, dict.fromkeys(decision.leases, began)
            late = time.monotonic() - began > self.settings.quorum_timeout / 2
            if late and self._waits_in_vain(decision, signs) and under_way is self._summing:
                _break(group)  # ends the wait in the sum

    def _waits_in_vain(self, decision: Decision, signs: dict[int, float]) -> bool:
        """Whether a member of a sum is silent for too long, or has given the sum up, which a cut link does not show.

        ``signs``: when each member answered last.
        """
        others = [one for one in decision.members if one.lease != self.me.lease]
        answers = {one.member.lease: one.member for one in ask_all([one.address for one in others], self.settings.group, _ANSWER_TIMEOUT)}
        signs |= dict.fromkeys(answers, time.monotonic())
        silent = time.monotonic() - self.settings.quorum_timeout
        return any(signs[one.lease] < silent or answers.get(one.lease, one).tries != one.tries for one in others)

    def _ask_again(self) -> None:
        """Ask the members that did not answer again."""
        for lease, address in list(self._cut.items()):
            if ask_all([address], self.settings.group, _HEARTBEAT_INTERVAL):
                self._cut.pop(lease, None)

    def _say(self, why: str) -> None:
        if time.monotonic() - self._said >= _LOG_INTERVAL or why != self._why:
            self._said, self._why = time.monotonic(), why
            self._waits(why + self._unreachable())

    def _unreachable(self) -> str:
        """The other members whose address is useless on this host, in words."""
        members = self.me.word.members if self.me.word is not None else []
        found = [one.index for one in members if one.address.startswith("127.")]
        if not found or self.settings.host.startswith("127."):
            return ""
        tasks = ", ".join(f"task {index}" for index in found)
        return f" ({tasks} can be reached from its own host only: start the runner there with --address)"

    # ---- the processes that sum ----

    def _key(self, decision: Decision) -> object:
        return (self._lighthouse, tuple((one.lease, one.tries) for one in decision.members))

    def _form(self, decision: Decision) -> bool:
        """Make the process group of the step's members, unless it exists already."""
        key = self._key(decision)
        if key == self._formed:
            return True
        from torchft.process_group import ProcessGroupGloo

        self._dissolve()
        rank = decision.leases.index(self.me.lease)
        assert decision.source is not None
        # The step: the same members may have met before another one came and left, and their old addresses are still in the store.
        prefix = "/".join([str(decision.source.step), *(f"{one.lease}.{one.tries}" for one in decision.members)])
        group = ProcessGroupGloo(timeout=timedelta(seconds=self.settings.quorum_timeout))
        try:
            group.configure(f"{decision.members[0].store}/{prefix}", self._name(), rank, len(decision.members))
        except Exception as error:  # a member is gone, or a link is cut
            log.debug("the group of %s cannot be formed: %s", decision.leases, error)
            self.failed(decision)
            return False
        self._process_group, self._formed = group, key
        return True

    def failed(self, decision: Decision) -> None:
        """Record that an all-reduce, or the making of the group, has failed: the next group leaves out members that cannot be reached."""
        self._give_up()
        others = [one for one in decision.members if one.lease != self.me.lease]
        answered = {status.member.lease for status in ask_all([one.address for one in others], self.settings.group, _ANSWER_TIMEOUT)}
        self._cut |= {one.lease: one.address for one in others if one.lease not in answered}

    def _give_up(self) -> None:
        self._dissolve()
        self.tell(tries=self.me.tries + 1)

    def _dissolve(self) -> None:
        group, self._process_group, self._formed = self._process_group, None, None
        if group is not None:
            _break(group)
            group.abort(errored=False)

    def start(self, tensor: torch.Tensor, decision: Decision) -> Any:
        """Begin to sum a tensor in host memory over the members, in place; returns the handle for which `sum` waits."""
        from torch.distributed import AllreduceOptions, ReduceOp

        options: Any = AllreduceOptions()
        options.reduceOp = ReduceOp.SUM
        options.timeout = timedelta(seconds=self._patience(decision))
        try:
            return self._process_group.allreduce([tensor], options)
        except RuntimeError as error:
            return error

    def sum(self, tensors: Sequence[torch.Tensor], decision: Decision, under_way: Sequence[Any] = ()) -> bool:
        """Sum tensors in host memory over the members, in place, after those that were started before.

        False: it failed, and the content of the tensors is useless.
        """
        began = time.monotonic()
        self._summing = (self._process_group, decision, began)
        try:
            for work in (*under_way, *(self.start(tensor, decision) for tensor in tensors)):
                if isinstance(work, RuntimeError):
                    raise work
                work.wait()
        except RuntimeError as error:
            self.lost += time.monotonic() - began
            self.broken(decision, f"a member was lost ({str(error).rpartition('] ')[2][:100]})")
            return False
        finally:
            self._summing = None
        return True

    def broken(self, decision: Decision, why: str) -> None:
        """Give up a sum that failed here; for another member it may have succeeded."""
        log.info("%s; the step goes on with those who are left", why)
        self.tell(doubts=tuple({*self.me.doubts, decision.leases}))
        self.failed(decision)

    def _patience(self, decision: Decision) -> float:
        """Seconds to wait for a member that computes or copies a state: a lost one is mostly noticed at once."""
        slowest = max(one.seconds if one.seconds is not None else _UNKNOWN_STEP_SECONDS for one in decision.members)
        copying = self.settings.state_bytes / _ASSUMED_BANDWIDTH if len(decision.shares) < len(decision.members) else 0.0
        return self.settings.quorum_timeout + 3 * slowest + copying

    # ---- states ----

    def publish(self, state: bytes) -> None:
        """Keep this member's state for those that request it."""
        self._answers.publish(self.me.step, self.me.history, state)

    def forget(self) -> None:
        self._answers.forget()

    def copy(self, decision: Decision) -> bytes | None:
        """The group's state from its source; None: the source has gone meanwhile."""
        assert decision.source is not None
        return self._fetched(decision.source, self._patience(decision))

    def _final_state(self, answers: Sequence[Status]) -> bytes | None:
        patience = self.settings.quorum_timeout + self.settings.state_bytes / _ASSUMED_BANDWIDTH
        for one in answers:
            if one.finished and (state := self._fetched(one.member, patience)) is not None:
                return state
        return None

    def _fetched(self, source: Member, patience: float) -> bytes | None:
        return fetch(source.address, self.settings.group, source.step, source.history, patience, self.settings.quorum_timeout)

    # ---- the end ----

    def finish(self, state: bytes) -> None:
        """After the last step: send the state to members that missed that step, until none is left that may need it."""
        self.publish(state)
        self.finished = True
        self._lighthouse, self._client = "", None
        until = time.monotonic() + 2 * self.settings.quorum_timeout
        while time.monotonic() < until and not self._stop():
            self.tell(word=newest((self._told(), self.me.word)))
            for one in self._ask_others():
                if same_state(one.member, self.me) and one.lighthouse != self._own:
                    self.settled.add(one.member.lease)
            members = self.me.word.members if self.me.word is not None else []
            if self.settled.issuperset(one.lease for one in members if one.address and one.lease != self.me.lease):
                return  # a silent member may have been stopped for a while, and come back
            time.sleep(_STOP_POLL_INTERVAL)

    def close(self) -> None:
        self._closed = True
        self._client = None
        self._dissolve()
        self._answers.close()
        self._server.shutdown()


class _Silent(StokerError):
    """The lighthouse does not answer."""


def _break(group: Any) -> None:
    """Close a process group's connections: others may be waiting in a sum for data from this member.

    gloo has no call for that, and a pending sum keeps them open. But a receive that times out closes all of them.
    """
    with contextlib.suppress(RuntimeError, AssertionError):  # another thread has just closed it
        for peer in range(group.size()):
            with contextlib.suppress(RuntimeError):  # the timeout itself, or a peer that has gone
                group.recv([torch.empty(1)], peer, 0).wait(timedelta(milliseconds=1))


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
