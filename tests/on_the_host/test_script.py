"""stoker.report, should_stop and checkpoint_dir: in scripts that run under Stoker, and in scripts that do not."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest
import stoker
from stoker.engine.protocol import Record
from stoker.runners.worker import script
from waiting import patient


@pytest.fixture
def run_dir(tmp_path, monkeypatch):
    monkeypatch.setenv("STOKER_RUN_DIR", str(tmp_path))
    monkeypatch.setenv("STOKER_CHECKPOINT_DIR", str(tmp_path / "checkpoints"))
    monkeypatch.setattr(script, "_state", script._State())
    before = signal.getsignal(signal.SIGTERM)
    yield tmp_path
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def outside(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("STOKER_RUN_DIR", raising=False)
    monkeypatch.delenv("STOKER_CHECKPOINT_DIR", raising=False)
    monkeypatch.setattr(script, "_state", script._State())
    return tmp_path


def records(run_dir, rank=0):
    lines = (run_dir / f"reports-{rank}.jsonl").read_bytes().splitlines()
    return [msgspec.json.decode(line, type=Record) for line in lines]


def python(code, **env):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False, env={**os.environ, **env}
    )
    assert done.returncode == 0, done.stderr
    return done


def test_a_report_is_a_record_of_the_protocol(run_dir):
    stoker.report(step=3, loss=0.5, accuracy=1)
    stoker.report(step=4, total=10, checkpoint=4, memory=1 << 30)
    first, second = records(run_dir)
    assert (first.seq, first.step, first.values, first.total) == (1, 3, {"loss": 0.5, "accuracy": 1.0}, None)
    assert (second.seq, second.step, second.values, second.total, second.checkpoint, second.memory) == (2, 4, {}, 10, 4, 1 << 30)
    assert second.ts >= first.ts > 1e9


def test_numbers_of_torch_and_numpy_are_taken(run_dir):
    np, torch = pytest.importorskip("numpy"), pytest.importorskip("torch")
    stoker.report(step=np.int64(1), loss=torch.tensor(0.25, requires_grad=True).detach(), lr=np.float32(0.5))
    assert records(run_dir)[0].values == {"loss": 0.25, "lr": 0.5}


def test_a_value_that_is_no_number_is_named(run_dir):
    with pytest.raises(TypeError, match="report: loss must be a number, not str 'low'"):
        stoker.report(step=1, loss="low")


def test_values_that_are_not_finite_are_counted_and_told_once(run_dir, capfd):
    for step in (1, 2):
        stoker.report(step=step, loss=float("nan"), norm=float("inf"), lr=0.1)
    assert [record.values for record in records(run_dir)] == [{"nonfinite": 2.0, "lr": 0.1}] * 2
    assert capfd.readouterr().err.count("loss is nan at step 1") == 1


def test_each_rank_has_its_file(run_dir, monkeypatch):
    monkeypatch.setenv("RANK", "3")
    stoker.report(step=1)
    assert records(run_dir, rank=3)[0].step == 1


def test_numbers_go_on_in_the_next_process_and_after_a_torn_line(run_dir):
    stoker.report(step=1)
    with (run_dir / "reports-0.jsonl").open("ab") as file:
        file.write(b'{"seq":2,"ts":17')  # a process killed, or a disk that was full, in the middle of it
    python("import stoker; stoker.report(step=2)")
    stoker.report(step=3)  # this process notices that another one has written
    lines = (run_dir / "reports-0.jsonl").read_bytes().splitlines()
    assert [json.loads(line)["seq"] for line in (lines[0], *lines[2:])] == [1, 2, 3]


def test_threads_and_processes_share_one_numbering(run_dir):
    def many(_):
        for step in range(100):
            stoker.report(step=step, loss=0.1)

    child = subprocess.Popen([sys.executable, "-c", "import stoker\nfor step in range(300): stoker.report(step=step, loss=0.1)"])
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(many, range(4)))
    assert child.wait() == 0
    assert [record.seq for record in records(run_dir)] == list(range(1, 701))


def test_a_forked_child_numbers_on(run_dir):
    code = """
        import os, stoker
        stoker.report(step=1)
        child = os.fork()
        stoker.report(step=2)
        if child:
            assert os.waitpid(child, 0)[1] == 0
    """
    python(code)
    assert [record.seq for record in records(run_dir)] == [1, 2, 3]


def test_kill_9_leaves_whole_lines_but_for_the_last(run_dir):
    """Linux gives a write up where it crosses a page of the file; the runner takes whole lines only."""
    code = "import itertools, stoker\nfor step in itertools.count(): stoker.report(step=step, loss=0.1, accuracy=0.2)"
    child = subprocess.Popen([sys.executable, "-c", code])
    reports = run_dir / "reports-0.jsonl"
    while not reports.exists() or reports.stat().st_size < 50_000:
        assert child.poll() is None
    child.kill()
    child.wait()
    whole, _, _ = reports.read_bytes().rpartition(b"\n")
    found = [msgspec.json.decode(line, type=Record) for line in whole.splitlines()]
    assert [record.seq for record in found] == list(range(1, len(found) + 1))


def test_a_full_disk_does_not_end_the_training(run_dir, capfd):
    (run_dir / "reports-0.jsonl").symlink_to("/dev/full")
    stoker.report(step=1, loss=0.5)
    stoker.report(step=2, loss=0.5)
    assert capfd.readouterr().err.count("cannot report: No space left on device") == 1


def test_a_name_that_is_not_text_is_left_out_and_told(run_dir, capfd):
    stoker.report(step=1, loss=0.5, **{"loss/" + os.fsdecode(b"caf\xe9"): 0.5, "größe": 1})
    assert records(run_dir)[0].values == {"loss": 0.5, "größe": 1.0}
    assert "'loss/caf\\udce9'…: a value's name has 1 to 200 characters" in capfd.readouterr().err


def test_what_is_accepted_can_be_stored(run_dir):
    import numpy as np

    stoker.report(step=np.int64(3), total=4.0, memory=2**62, checkpoint=True, loss=np.float32(0.5), large=1e301)
    (found,) = records(run_dir)
    assert (found.step, found.total, found.memory, found.checkpoint) == (3, 4, 2**62, 1)
    assert found.values == {"loss": 0.5, "nonfinite": 1.0}


@pytest.mark.parametrize("name", ["step", "total", "checkpoint", "memory"])
@pytest.mark.parametrize("value", [-1, 2**62 + 1, 0.5, float("nan"), float("inf"), 1e300, "3", "x", [1], b"1"])
def test_what_cannot_be_stored_is_refused_with_its_name(run_dir, name, value):
    with pytest.raises(ValueError, match=f"report: {name} must be a whole number from 0 to"):
        stoker.report(**{"step": 1, name: value})
    assert records(run_dir) == []


@pytest.mark.parametrize(
    ("values", "words"), [({"loss": [1, 2]}, "loss must be a number, not list"), ({"loss": 10**400}, "loss must be a number")]
)
def test_values_that_are_no_numbers_are_refused_with_their_name(run_dir, values, words):
    with pytest.raises(TypeError, match=words):
        stoker.report(step=1, **values)


def test_too_many_values_are_refused(run_dir):
    with pytest.raises(ValueError, match="1001 values; one report takes 1000"):
        stoker.report(step=1, **{f"v{number}": 1.0 for number in range(1001)})


def test_sigterm_sets_a_flag(run_dir):
    assert not stoker.should_stop()
    assert not (run_dir / "stop-seen").exists()
    os.kill(os.getpid(), signal.SIGTERM)
    assert stoker.should_stop()
    assert stoker.should_stop()
    assert (run_dir / "stop-seen").exists()


def test_a_script_that_never_asks_is_ended_by_the_signal(run_dir):
    code = "import os, signal, stoker; stoker.report(step=1); os.kill(os.getpid(), signal.SIGTERM); import time; time.sleep(60)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -signal.SIGTERM


def test_a_handler_of_the_script_s_own_is_called_too(run_dir):
    called = []
    signal.signal(signal.SIGTERM, lambda number, frame: called.append(number))
    stoker.should_stop()
    os.kill(os.getpid(), signal.SIGTERM)
    assert stoker.should_stop()
    assert called == [signal.SIGTERM]


def test_threads_and_scripts_that_take_the_signal_over_see_the_file(run_dir):
    seen = []

    def ask():
        seen.append(stoker.should_stop())

    for expected in (False, True):
        thread = threading.Thread(target=ask)
        thread.start()
        thread.join()
        assert seen.pop() is expected
        (run_dir / "stop.json").write_text("{}")
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.mark.slow
def test_ranks_agree(tmp_path):
    """Only rank 1 gets the signal; both answer the same, at the same step. They fork from one process, which has imported torch."""
    code = """
        import os, signal
        from torch import distributed
        other = os.fork()
        os.environ["RANK"] = str(int(other == 0))
        import stoker
        distributed.init_process_group("gloo", init_method=f"file://{os.environ['MEET']}", rank=int(os.environ["RANK"]), world_size=2)
        answers = []
        for step in range(4):
            if step == 2 and os.environ["RANK"] == "1":
                os.kill(os.getpid(), signal.SIGTERM)
            answers.append(stoker.should_stop(sync=True))
        os.write(1, f"{answers}{os.linesep}".encode())  # at once: both write to one pipe
        distributed.destroy_process_group()
        assert not other or os.waitpid(other, 0)[1] == 0
    """
    env = {**os.environ, "STOKER_RUN_DIR": str(tmp_path), "MEET": str(tmp_path / "meet"), "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=True, timeout=patient(60))
    assert done.stdout.splitlines() == [str([False, False, True, True])] * 2


def test_checkpoint_dir_is_made(run_dir):
    assert stoker.checkpoint_dir() == run_dir / "checkpoints"
    assert (run_dir / "checkpoints").is_dir()


def test_outside_stoker_nothing_happens(outside):
    before = signal.getsignal(signal.SIGTERM)
    stoker.report(step=1, loss="anything")
    assert stoker.should_stop() is False
    assert stoker.should_stop(sync=True) is False
    assert signal.getsignal(signal.SIGTERM) is before
    assert list(outside.iterdir()) == []
    assert stoker.checkpoint_dir() == Path("checkpoints")
    assert (outside / "checkpoints").is_dir()


def test_nothing_heavy_is_imported():
    code = """
        import sys, stoker
        stoker.report; stoker.should_stop
        print(*sorted({name.split('.')[0] for name in sys.modules} & {"torch", "numpy", "msgspec", "duckdb", "asyncio", "http"}))
    """
    assert python(code).stdout.split() == []


def test_what_scripts_use_is_listed_before_it_is_used():
    code = """
        import rlcompleter, stoker
        completer = rlcompleter.Completer({"stoker": stoker})
        print(*(name for name in dir(stoker) if name in stoker.__all__))
        print(completer.complete("stoker.rep", 0), completer.complete("stoker.should", 0))
        help(stoker)
    """
    listed, completed, *text = python(code).stdout.splitlines()
    assert listed.split() == sorted(stoker.__all__)
    assert completed == "stoker.report( stoker.should_stop("
    assert {"    checkpoint_dir() -> 'Path'"} <= set(text)
