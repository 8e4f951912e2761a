"""Stages whose workers are processes: results, deaths, resizing, large arrays, and nothing left behind."""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from pipeline_work import (
    Broken,
    CannotBeLoaded,
    EndsItsProcess,
    FailsAt,
    KillsItself,
    arrays,
    double,
    draws,
    has_one_process,
    named_shared_memory,
    nothing_left,
    own_process,
    returns_a_lock,
    same,
    sleeps_for_ever,
    touched,
    uneven,
    unsendable,
)
from stoker.engine.errors import StokerError, UsageError
from stoker.runners.loaders.pipeline import Pipeline
from stoker.runners.loaders.stages import Batch, Map, Prefetch, Source
from stoker.runners.loaders.workers import ipc
from stoker.runners.loaders.workers.faults import StageError
from stoker.runners.loaders.workers.worker_processes import WorkerProcess
from waiting import patient, until

LONG = patient(60.0)


def mapped(function: Any, size: int = 20, **options: Any) -> Pipeline:
    return Pipeline([Source(range(size)), Map(function, name="udf", processes=True, **options)])


def test_the_work_is_done_by_processes_and_stays_in_order() -> None:
    with nothing_left(), mapped(own_process, 40, workers=2) as pipeline:
        seen = list(pipeline)
    assert [value for value, _ in seen] == list(range(40))
    assert os.getpid() not in {pid for _, pid in seen}


def test_the_next_pass_finds_the_processes_of_the_last() -> None:
    with nothing_left(), mapped(own_process, 10) as pipeline:
        first, second = ({pid for _, pid in pipeline} for _ in range(2))
    assert first == second


def test_resized_while_it_runs() -> None:
    with nothing_left(), mapped(uneven, 300) as pipeline:
        seen = []
        for value in pipeline:
            seen.append(value)
            if value % 60 == 0:
                pipeline.set((1, 1 + value // 60 % 3))
    assert seen == list(range(300))


def test_a_stage_of_each_kind() -> None:
    """A data set read, and batches collated, in processes too."""
    samples = [np.full((4, 4), i, dtype=np.float32) for i in range(12)]
    with nothing_left():
        pipeline = Pipeline([Source(samples, processes=True), Map(same), Batch(4, processes=True), Prefetch()])
        with pipeline:
            batches = list(pipeline)
    assert torch.equal(torch.cat(batches), torch.from_numpy(np.stack(samples)))


def test_a_function_that_raises() -> None:
    with nothing_left(), pytest.raises(Broken, match="bad sample") as raised:
        list(mapped(FailsAt(7, Broken("bad sample"))))
    first, second = raised.value.__notes__
    assert first.startswith("in a worker process:\nTraceback")
    assert 'pipeline_work.py", line' in first
    assert second == "in stage 'udf' of the pipeline, item 7"


def test_an_error_that_cannot_be_sent_comes_in_words() -> None:
    with nothing_left(), pytest.raises(RuntimeError, match="Unsendable: 0 and 0"):
        list(mapped(unsendable))


def test_a_result_that_cannot_be_sent() -> None:
    with nothing_left(), pytest.raises(TypeError, match=r"the function's return value cannot be sent from a worker process: .*lock"):
        list(mapped(returns_a_lock))


def test_an_item_that_cannot_be_sent() -> None:
    pipeline = Pipeline([Source(range(3)), Map(returns_a_lock, name="locks"), Map(same, name="udf", processes=True)])
    with nothing_left(), pytest.raises(TypeError, match=r"an item cannot be sent to a worker process: .*lock") as raised:
        list(pipeline)
    assert raised.value.__notes__ == ["in stage 'udf' of the pipeline, item 0"]


def test_a_function_that_cannot_be_sent() -> None:
    with pytest.raises(UsageError, match=r"stage 'udf': its function cannot be sent to worker processes .*define it at the top level"):
        mapped(lambda value: value)


def test_a_function_that_cannot_be_loaded() -> None:
    with nothing_left(), pytest.raises(StokerError, match="stage 'udf': its function cannot be loaded in a worker process: no such file"):
        list(mapped(CannotBeLoaded()))


def test_a_process_that_ends_as_it_starts_asks_for_the_guard() -> None:
    with nothing_left(), pytest.raises(StokerError, match=r"ended as it started: it exited with code 1; .* guarded by `if __name__ == "):
        list(mapped(EndsItsProcess()))


def test_a_killed_worker_is_replaced_and_its_item_done_again(tmp_path: Path) -> None:
    with nothing_left(), mapped(KillsItself(11, once=tmp_path / "died"), workers=2) as pipeline:
        assert list(pipeline) == list(range(20))
    assert (tmp_path / "died").exists()


def test_a_worker_killed_from_outside() -> None:
    with nothing_left(), mapped(own_process, 30) as pipeline:
        iterator = iter(pipeline)
        _, first = next(iterator)
        os.kill(first, signal.SIGKILL)
        rest = list(iterator)
    assert [value for value, _ in rest] == list(range(1, 30))
    assert len({pid for _, pid in rest} - {first}) == 1


def test_a_process_that_cannot_be_had_is_done_without(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    has_one_process(monkeypatch)
    with nothing_left(), mapped(uneven, 60) as pipeline:
        seen = []
        for value in pipeline:
            seen.append(value)
            if value == 10:
                pipeline.set((1, 3))
    assert seen == list(range(60))
    assert caplog.messages == [f"stage 'udf': cannot start a worker process; the stage goes on with {left}" for left in (2, 1)]


def test_an_item_that_kills_each_worker() -> None:
    message = (
        r"stage 'udf', item 5: 3 worker processes that worked on it have died, the last: killed by signal 9, by hand or because memory"
    )
    with nothing_left(), pytest.raises(StageError, match=message):
        list(mapped(KillsItself(5), workers=2))


def test_close_ends_processes_whose_function_hangs() -> None:
    pipeline = mapped(sleeps_for_ever)
    with nothing_left():
        with pytest.raises(StageError, match=r"stage 'udf', item 0: its function has not returned within the limit of 0.5 s"):
            list(mapped(sleeps_for_ever, limit=0.5))
        pipeline.close()


def test_closing_while_processes_start_is_silent(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """They are killed before they have the function; that is no fault, and nobody is left to go on with fewer."""
    starting, greet = threading.Event(), WorkerProcess.greet

    def slow(self: WorkerProcess, function: Any) -> None:
        if pipeline.values != (1, 1):
            starting.set()
            os.kill(self.pid or 0, signal.SIGSTOP)  # it answers nothing until it is killed
        greet(self, function)

    monkeypatch.setattr(WorkerProcess, "greet", slow)
    with nothing_left(), mapped(own_process, 10_000) as pipeline:
        items = iter(pipeline)
        next(items)
        pipeline.set((1, 4))
        assert starting.wait(LONG)
        for _ in range(20):
            next(items)
        seen = pipeline.observe().stages[1]
        assert (seen.workers, seen.starting) == (1, 3)
        assert pipeline.values == (1, 4)
    assert caplog.text == ""


@pytest.mark.slow
@pytest.mark.nightly  # so does one in the middle of a pass: test_loaders_module.py
def test_a_script_that_ends_while_processes_start_says_nothing(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""
            from stoker.runners.loaders.pipeline import Pipeline
            from stoker.runners.loaders.stages import Map, Source

            if __name__ == "__main__":
                pipeline = Pipeline([Source(range(10_000)), Map(abs, name="udf", processes=True)])
                for item in pipeline:
                    if item == 5:
                        pipeline.set((1, 6))
                    if item == 20:
                        break
                pipeline.close()
        """)
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=LONG, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_leaving_early_ends_the_processes() -> None:
    with nothing_left():
        for value in mapped(double, workers=2):
            if value == 4:
                break


def test_a_dropped_pipeline_ends_its_processes() -> None:
    with nothing_left():
        pipeline = mapped(double)
        assert len(list(pipeline)) == 20
        del pipeline


def test_random_numbers_differ_from_process_to_process() -> None:
    with nothing_left(), mapped(draws, 60, workers=3) as pipeline:
        seen = list(pipeline)
    assert len({first for first, _ in seen}) == len({second for _, second in seen}) == 60


def test_large_arrays_go_there_and_back() -> None:
    pipeline = Pipeline([Source(range(8)), Map(arrays, name="make", processes=True), Map(touched, name="use", processes=True, workers=2)])
    with nothing_left(), pipeline:
        assert list(pipeline) == [3 * value + 1 for value in range(8)]


def test_large_arrays_arrive_writable_and_outlive_their_maker() -> None:
    with nothing_left():
        with mapped(arrays, 4) as pipeline:
            samples = list(pipeline)
        for value, sample in enumerate(samples):
            sample["tensor"] += 1
            assert sample["tensor"].shape == (3, 256, 128)
            assert torch.equal(sample["tensor"], torch.full((3, 256, 128), value + 1, dtype=torch.int16))
            assert sample["half"].dtype is torch.bfloat16
            assert np.array_equal(sample["array"], np.full((128, 256), value, dtype=np.float32))


@pytest.mark.parametrize(
    "value",
    [
        torch.arange(6).reshape(2, 3).T,
        torch.tensor(3.5),
        torch.zeros(0, 4),
        torch.tensor([True, False]),
        torch.tensor([1 + 2j]).conj(),
        torch.ones(3, requires_grad=True),
        torch.eye(3).to_sparse(),
        np.arange(24).reshape(2, 3, 4)[:, ::2],
        np.array(["a", "bc"], dtype=object),
        b"x" * 100_000,
    ],
    ids=["transposed", "scalar", "empty", "bool", "conjugate", "gradient", "sparse", "strided", "objects", "bytes"],
)
def test_what_is_sent_arrives_as_it_was(value: Any) -> None:
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with here, there:
        sender = threading.Thread(target=ipc.send, args=(here, *ipc.dumps([value, value])))
        sender.start()
        received = ipc.receive(there)[1]
        sender.join(LONG)
    assert type(received) is type(value)
    if isinstance(value, torch.Tensor):
        assert (received.dtype, received.shape, received.layout) == (value.dtype, value.shape, value.layout)
        assert received.requires_grad == value.requires_grad
        assert torch.equal(received.to_dense(), value.to_dense())
    else:
        assert np.array_equal(received, value)


def test_a_pickle_ends_where_it_becomes_too_large() -> None:
    class Page:
        def __reduce__(self) -> Any:
            pickled.append(self)
            return bytes, (b"x" * 10_000 + bytes([len(pickled) % 256]),)

    pickled: list[Page] = []
    with pytest.raises(ipc.TooLarge):
        ipc.dumps([Page() for _ in range(1000)], limit=1_000_000)
    assert len(pickled) < 120
    array = np.zeros(1 << 20)
    assert ipc.dumps(array, limit=1000)[1][0].nbytes == array.nbytes  # referred to and not copied


def test_at_the_limit_of_descriptors_it_says_so_and_the_next_object_arrives() -> None:
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with here, there:
        ipc.send(here, *ipc.dumps(np.zeros(1 << 17)))
        ipc.send(here, *ipc.dumps(7))
        lowest_free = os.dup(0)
        os.close(lowest_free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, limits[1]))
        try:
            with pytest.raises(StokerError, match="ulimit -n"):
                ipc.receive(there)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert ipc.receive(there) == 7


@pytest.mark.parametrize("apart", [True, False], ids=["apart", "together"])
def test_a_sample_of_a_list_keeps_the_others_in_memory_unless_they_are_apart(apart: bool) -> None:
    others = mapped_items()  # what tests before this one have left in this process
    with nothing_left(), Pipeline([Source(range(2)), Map(four_arrays, processes=True, apart=apart)]) as pipeline:
        kept = [samples[1] for samples in pipeline]
        pipeline.close()
        assert [sample[0] for sample in kept] == [0.0, 1.0]
        assert (mapped_items() <= others) is apart
        kept[0][0] = 5.0  # what is given is to be written to


def mapped_items() -> set[str]:
    return {line for line in Path("/proc/self/maps").read_text().splitlines() if "memfd:stoker-item" in line}


def four_arrays(value: int) -> list[Any]:
    return [np.full(1 << 16, value, dtype=np.float32) for _ in range(4)]


def test_cpu_time_of_the_processes_is_measured_there() -> None:
    with mapped(uneven, 40) as pipeline:
        list(pipeline)
        reading = pipeline.observe().stages[1]
    assert (reading.processes, reading.items) == (True, 40)
    assert 0.0004 < reading.wait < 0.5  # seconds, of which it sleeps 0.00075 in the mean
    assert reading.cpu > 0


def test_nothing_is_ever_in_dev_shm() -> None:
    """What has no name there cannot be left there, whoever is killed and when."""
    stages = [Source(range(6)), Map(arrays, name="make", processes=True), Map(named_shared_memory, name="look", processes=True)]
    others = named_shared_memory(None)  # what loaders of torch have left in this process
    with Pipeline(stages) as pipeline, mapped(arrays, 3) as makes:
        assert list(pipeline) == [[]] * 6
        samples = list(makes)
        assert len(samples) == 3
        assert set(named_shared_memory(None)) <= set(others)


PARENT = """
import os, signal, sys, threading, time
import psutil
from stoker.runners.loaders.pipeline import Pipeline
from stoker.runners.loaders.stages import Map, Source

def same(value):
    return value

def sleeps(value):
    time.sleep(3600)

if __name__ == "__main__":
    idle = iter(Pipeline([Source(range(9)), Map(same, processes=True, workers=2)]))
    next(idle)
    busy = Pipeline([Source(range(9)), Map(sleeps, processes=True)])
    threading.Thread(target=list, args=(busy,), daemon=True).start()
    until = time.monotonic() + 50
    while len(family := psutil.Process().children(recursive=True)) < 5 and time.monotonic() < until:
        time.sleep(0.02)
    print(*[child.pid for child in family], flush=True)
    if sys.argv[1] == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    sys.exit(3)
"""


def running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.slow
@pytest.mark.parametrize("ends", ["kill", pytest.param("exit", marks=pytest.mark.nightly)])
def test_workers_do_not_outlive_a_parent_that_dies(ends: str, tmp_path: Path) -> None:
    """Neither those that wait nor those in the middle of an item."""
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    done = subprocess.run([sys.executable, str(script), ends], capture_output=True, text=True, timeout=LONG, check=False)
    assert done.returncode == (-signal.SIGKILL if ends == "kill" else 3), done.stderr
    pids = [int(pid) for pid in done.stdout.split()]
    assert len(pids) >= 5  # the fork server, its tracker, and three workers
    until(lambda: not [pid for pid in pids if running(pid)], LONG)


FORKED = """
import multiprocessing, os, sys
from stoker.engine.errors import StokerError
from stoker.runners.loaders.pipeline import Pipeline
from stoker.runners.loaders.stages import Map, Source

def first(tag):
    try:
        with Pipeline([Source(range(3)), Map(abs, processes=True)]) as pipeline:
            print(tag, list(pipeline), flush=True)
    except StokerError as error:
        print(tag, error, flush=True)

if __name__ == "__main__":
    first("before")
    if sys.argv[1] == "os":
        if not (child := os.fork()):
            first("fork")
            os._exit(0)
        os.waitpid(child, 0)
    for daemon in (False, True) if sys.argv[1] == "multiprocessing" else ():
        child = multiprocessing.get_context("fork").Process(target=first, args=(f"daemon={daemon}",), daemon=daemon)
        child.start()
        child.join()
    first("after")
"""


def forks(tmp_path: Path, how: str) -> list[str]:
    script = tmp_path / "forked.py"
    script.write_text(FORKED)
    return subprocess.run([sys.executable, str(script), how], capture_output=True, text=True, timeout=LONG, check=True).stdout.splitlines()


@pytest.mark.slow
@pytest.mark.nightly  # by multiprocessing: below
def test_a_fork_that_nobody_told_python_of_has_processes_of_its_own(tmp_path: Path) -> None:
    assert forks(tmp_path, "os") == [f"{tag} [0, 1, 2]" for tag in ("before", "fork", "after")]


@pytest.mark.slow
def test_a_fork_has_processes_of_its_own_or_is_told_why_not(tmp_path: Path) -> None:
    *lines, daemon, after = forks(tmp_path, "multiprocessing")
    assert [*lines, after] == [f"{tag} [0, 1, 2]" for tag in ("before", "daemon=False", "after")]
    assert "daemonic processes are not allowed to have children" in daemon
    assert "use processes=False here" in daemon
    assert "__main__" not in daemon


@pytest.mark.slow
def test_a_script_without_a_main_guard_is_told_so(tmp_path: Path) -> None:
    script = tmp_path / "unguarded.py"
    script.write_text(
        textwrap.dedent("""
        from stoker.runners.loaders.pipeline import Pipeline
        from stoker.runners.loaders.stages import Map, Source

        def twice(value):
            return 2 * value

        print(list(Pipeline([Source(range(3)), Map(twice, processes=True)])))
        """)
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=LONG, check=False)
    assert done.returncode != 0
    assert "guarded by `if __name__ == '__main__':`" in done.stderr
