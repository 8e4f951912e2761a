"""Jobs that share their input, from spec to runner: each ends with the weights of a run alone, whatever happens to the others."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from e2e import DaemonProcess, Jobs, RunnerProcess, until
from stoker.engine.errors import UsageError
from stoker.engine.home import Home
from stoker.engine.spec.build import Context
from stoker.engine.spec.reading.load import load_text
from stoker.runners.lease import processes
from stoker.runners.share import input_groups, shared_input
from stoker.runners.share.batch_ring import BatchRing, living
from stoker.runners.share.input_groups import InputGroup, InputGroups
from stoker.runners.share.shared_input import SharedInput, described, same
from stoker.runners.train.batch_feeds import SampleSource, SharedFeed, StreamFeed
from stoker.runners.train.batches import Order, Positions
from test_batch_ring import code, forked  # noqa: F401

# ---- in one process ----


class Pictures:
    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.rand(3) + index, index


def jittered(sample: tuple[torch.Tensor, int]) -> tuple[torch.Tensor, int]:
    return sample[0] + random.random(), sample[1]


def source(augment: Callable[[Any], Any] | None = jittered) -> SampleSource:
    return SampleSource(Pictures(), augment, torch.utils.data.default_collate, 0, Order(40, 8, 0))


def group(directory: Path, lease: int = 1, leases: int = 1) -> InputGroup:
    return InputGroup(str(directory / "group"), 8 << 20, lease, leases)


def test_its_batches_are_those_of_a_job_alone(tmp_path: Path) -> None:
    shared = SharedInput.join(group(tmp_path), {"data": "pictures"}, 3)
    assert shared is not None
    feeds = [
        StreamFeed(source(), Positions(source().order, 1, 2, base=3)),
        SharedFeed(source(), Positions(source().order, 1, 2, base=3), shared),
    ]
    for _ in range(6):
        one, other = (feed.fetch() for feed in feeds)
        assert one.samples == other.samples == 4 and same(one.data, other.data)
        for feed in feeds:
            feed.used()
    assert feeds[0].state() == feeds[1].state()
    assert shared.values(last=True)["input_made"] == 6.0
    for feed in feeds:
        feed.close()
    shared.close()
    assert not (tmp_path / "group").exists()


def test_found_batches_that_are_others_are_noticed_and_sharing_ends(
    tmp_path: Path,
    forked: Any,  # noqa: F811
    caplog: pytest.LogCaptureFixture,
) -> None:
    def other() -> None:
        shared = SharedInput.join(group(tmp_path, 2, 2), {"data": "pictures"}, 0)
        assert shared is not None
        for number in range(3):
            shared.batch(number, lambda number=number: {"x": torch.full((2,), float(number))})
        (tmp_path / "made").touch()
        until((tmp_path / "done").exists)
        os._exit(0)

    pid = forked(other)
    shared = SharedInput.join(group(tmp_path, 1, 2), {"data": "pictures"}, 0)
    assert shared is not None
    until((tmp_path / "made").exists)
    mine = {"x": torch.full((2,), -1.0)}
    assert shared.batch(0, lambda: mine) is mine
    assert "its input is not shared any more: batch 0 of another job differs from its own, after 0 that were found" in caplog.text
    assert shared.batch(1, lambda: mine) is mine
    assert shared.values(last=True)["input_found"] == 1.0
    (tmp_path / "done").touch()
    assert code(pid) == 0
    shared.close()


def test_jobs_whose_batches_are_others_are_told_in_what(tmp_path: Path, forked: Any, caplog: pytest.LogCaptureFixture) -> None:  # noqa: F811
    def other() -> None:
        shared = SharedInput.join(group(tmp_path, 7), {"batch size": 32, "seed": 0}, 0)
        assert shared is not None
        (tmp_path / "joined").touch()
        signal.pause()

    forked(other)
    until((tmp_path / "joined").exists)
    shared = SharedInput.join(group(tmp_path, 1, 2), {"batch size": 64, "seed": 0}, 0)
    assert shared is not None
    assert "shares no input with lease 7, whose batches are others: batch size is 32, here 64" in caplog.text
    shared.close()


def test_who_begins_waits_for_those_that_start_beside_it_and_not_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(shared_input, "_LONGEST_START", 0.1)
    first = SharedInput.join(group(tmp_path, 1, 3), {}, 0)
    assert first is not None and "begins with 1 of the 3 jobs that share its input" in caplog.text
    caplog.clear()
    first.close()
    resumed = SharedInput.join(group(tmp_path, 1, 3), {}, 5)
    assert resumed is not None and "begins with" not in caplog.text
    resumed.close()


def test_without_shared_memory_it_is_said_and_not_shared(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    assert SharedInput.join(group(Path("/proc/none")), {}, 0) is None
    assert "its input is not shared: " in caplog.text


def test_a_directory_of_another_user_is_not_shared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(shared_input.os, "getuid", lambda: 4711)
    assert SharedInput.join(group(tmp_path), {}, 0) is None
    assert "belongs to another user" in caplog.text


def test_what_the_dead_have_left_is_taken_away(tmp_path: Path, forked: Any, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    groups = InputGroups(tmp_path / "home", memory=tmp_path / "memory")
    place = groups._place / "a"

    def member() -> None:
        shared = SharedInput.join(InputGroup(str(place), 8 << 20, 2, 1), {}, 0)
        assert shared is not None
        (tmp_path / "joined").touch()
        signal.pause()

    pid = forked(member)
    until((tmp_path / "joined").exists)
    groups.clean()
    (ring,) = place.glob("*.ring")
    assert living(ring) == [2]
    os.kill(pid, signal.SIGKILL)
    code(pid)
    groups.clean()
    assert not groups._place.exists()


def test_a_directory_that_goes_while_a_member_joins_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last member of before leaves between two lines of the next one."""
    taken = [0]

    def opened(path: Path, memory: int) -> BatchRing:
        if not taken[0]:
            taken[0] += 1
            input_groups.clear(path)
        return BatchRing(path, memory)

    monkeypatch.setattr(shared_input, "BatchRing", opened)
    shared = SharedInput.join(group(tmp_path), {}, 0)
    assert shared is not None and taken == [1]
    shared.close()
    made = Path.mkdir

    def gone_meanwhile(path: Path, *given: Any, **options: Any) -> None:
        monkeypatch.setattr(Path, "mkdir", made)
        raise FileExistsError(path)  # by pathlib: it was there when it was to be made, and was not when that was looked at

    monkeypatch.setattr(Path, "mkdir", gone_meanwhile)
    shared = SharedInput.join(group(tmp_path), {}, 0)
    assert shared is not None
    shared.close()


def test_who_leaves_a_ring_that_was_removed_leaves_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "ring"
    former = BatchRing(path, 8 << 20)
    former.enter(1, 0)
    path.unlink()
    present = BatchRing(path, 8 << 20)
    present.enter(2, 0)
    former.leave()
    assert present.in_place
    present.leave()
    assert not path.exists()


def test_who_joins_while_the_last_one_leaves_is_found_by_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    last = SharedInput.join(group(tmp_path), {}, 0)
    assert last is not None
    joined: list[SharedInput | None] = []

    def clear(ring: Path) -> None:
        joined.append(SharedInput.join(group(tmp_path), {}, 0))
        input_groups.clear(ring)

    monkeypatch.setattr(shared_input, "clear", clear)
    last.close()
    monkeypatch.undo()
    (new,) = joined
    assert new is not None and new._ring.in_place
    new.close()
    assert not list(tmp_path.rglob("*.ring"))


def test_functions_and_what_they_are_made_of_tell_batches_apart() -> None:
    assert described(lambda sample: sample) != described(lambda sample: sample + 1)
    assert described(jittered) == described(jittered)
    assert described(Pictures) != described(InputGroup)


def test_values_are_compared_to_the_bit() -> None:
    nan = {"x": torch.tensor([float("nan"), 1.0]), "y": [1, ("a", 2.0)]}
    assert same(nan, {"x": torch.tensor([float("nan"), 1.0]), "y": [1, ("a", 2.0)]})
    for other in ({"x": nan["x"]}, {**nan, "y": [1, ["a", 2.0]]}, {**nan, "x": nan["x"].double()}, {**nan, "x": torch.tensor([0.0, 1.0])}):
        assert not same(nan, other)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("recipe: jpeg-cnn\nshare: {input: a b}", "f.yaml:2: share.input: must be up to 100 letters, digits, '.', '_' and '-', not 'a b'"),
        ("command: echo\nshare: {input: a}", "f.yaml:2: share.input: is for a recipe or an entrypoint, as Stoker makes their batches;"
         " remove it, or write an entrypoint"),
        ("recipe: jpeg-cnn\nshare: {input: a}\nreuse: 3", "f.yaml:2: share.input: cannot go with reuse, which draws each batch from a"
         " buffer of the job's own; remove one of them"),
    ],
)  # fmt: skip
def test_where_input_cannot_be_shared_a_line_says_so(text: str, problem: str) -> None:
    with pytest.raises(UsageError) as caught:
        load_text(text, "f.yaml", Context(now=0.0, cwd=Path("/"), files=False))
    assert str(caught.value) == problem


# ---- live ----

STEPS = 16
SWEEP: dict[str, Any] = {
    "recipe": "jpeg-cnn",
    "params": {"batch_size": 16, "augment": True, "eval_every": 0, "checkpoint_every": 0},
    "stop": {"iterations": STEPS},
    "grace": 20.0,
}


@pytest.fixture
def jobs(home: Home, start_daemon: Callable[..., DaemonProcess], start_runner: Callable[..., RunnerProcess]) -> Iterator[Jobs]:
    home.config.write_text("[runners]\ntelemetry_interval = 0.5\n")
    daemon = start_daemon()
    start_runner(slots=3)
    yield Jobs(daemon.client())


def weights(home: Home, job: int) -> dict[str, Any]:
    file = max((home.path / "jobs" / str(job) / "checkpoints").glob("step-*")) / "state.pt"
    return dict(torch.load(file, weights_only=True)["model"])


def member(name: str, lr: float, **fields: Any) -> dict[str, Any]:
    return {**SWEEP, "name": name, "params": {**SWEEP["params"], "lr": lr}, "share": {"input": "sweep"}, **fields}


def used(jobs: Jobs) -> dict[str, tuple[int, int]]:
    return {job: (made, found) for job, made, found in jobs.sql("SELECT job, made, found FROM shared_input_now")}


@pytest.mark.slow
@pytest.mark.parametrize(
    "pipeline",
    [
        None,
        pytest.param({"processes": True, "tune": "fixed", "workers": {"decode": 1}}, marks=pytest.mark.nightly),
        pytest.param({"workers": {"decode": 2}}, marks=pytest.mark.nightly),
    ],
    ids=["plain", "processes", "threads"],
)
def test_members_of_a_sweep_end_as_alone_also_when_one_is_killed(jobs: Jobs, home: Home, pipeline: Any) -> None:
    block = {} if pipeline is None else {"pipeline": pipeline}
    alone = jobs.submit(**member("alone", 0.03, **block))
    assert jobs.ended(alone)["state"] == "completed"
    made, found = used(jobs)["alone"]
    assert made >= STEPS and not found  # stages make some ahead
    victim = jobs.submit(**member("victim", 0.01, stop={"iterations": 100_000}, **block))
    rest = jobs.submit_all(*(member(f"lr{number}", lr, **block) for number, lr in enumerate((0.03, 0.1))))
    words = f"; shares its input sweep, with 2 jobs here ({victim}, {rest[1]})"
    until(lambda: words in jobs.client.get(f"/v1/jobs/{rest[0]}/explain")["summary"])  # before they train: that takes a moment only
    until(lambda: jobs.sql(f"SELECT max(step) FROM metrics WHERE job_id = {rest[0]}")[0][0])
    os.kill(rank_of(jobs, victim), signal.SIGKILL)
    assert [jobs.ended(job)["state"] for job in rest] == ["completed"] * 2
    assert same(weights(home, alone), weights(home, rest[0]))
    assert not same(weights(home, alone), weights(home, rest[1]))
    both = [used(jobs)[f"lr{number}"] for number in (0, 1)]
    assert all(sum(one) >= STEPS for one in both) and sum(found for _, found in both) > STEPS / 2
    jobs.act("cancel", victim)
    jobs.ended(victim)
    until(lambda: not (input_groups.MEMORY / InputGroups(home.path)._place.name).exists())


def rank_of(jobs: Jobs, job: int) -> int:
    ((pid,),) = jobs.sql(f"SELECT pid FROM workers w JOIN leases l ON l.id = w.lease_id WHERE l.job_id = {job} AND l.state = 'running'")
    return processes.descendants(pid, processes.table())[-1].pid
