"""The supervisor with real processes: started at most once, everything ended, and a last word about it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from stoker.engine import identity
from stoker.engine.identity import Process
from stoker.runners.lease import endings, processes
from stoker.runners.lease.rundir import ENV_TAG, RunDir
from stoker.runners.lease.supervisor import LEASE_TAKEN_EXIT
from waiting import patient, until


class Shim:
    """One supervisor under test."""

    def __init__(self, home: Path, argv: list[str], lease: int = 1, **launch: Any):
        self.run = RunDir(home, job=1, lease=lease)
        self.run.path.mkdir(parents=True, exist_ok=True)
        env = {**os.environ, "STOKER_TAG": self.run.tag, **launch.pop("env", {})}
        self.launch = {"argv": argv, "env": env, "cwd": str(home), "log_limit": 1 << 20, "kill_wait": 5.0, **launch}
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, module: str = "stoker.runners.lease.supervisor") -> subprocess.Popen[bytes]:
        command = [sys.executable, "-I", "-m", module, str(self.run.path)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
        assert process.stdin is not None
        with process.stdin as pipe:
            pipe.write(json.dumps(self.launch).encode())
        self.process = self.process or process
        return process

    def says(self, text: str) -> None:
        """Wait until this is in its log."""
        until(lambda: self.run.log.exists() and text in self.run.log.read_text())

    def stop(self, reason: str = "preempted", grace: float = 20.0, number: int = signal.SIGTERM) -> None:
        assert self.process is not None
        self.run.write("stop.json", {"reason": reason, "grace": grace})
        os.kill(self.process.pid, number)

    def end(self) -> dict[str, Any]:
        """Its last word, after which nothing of it may live."""
        assert self.process is not None
        assert self.process.wait(patient(60)) == 0
        assert processes.tagged(self.run.tag) == []
        exit: dict[str, Any] = self.run.read("exit.json")
        return exit


@pytest.fixture
def shim(tmp_path: Path) -> Any:
    made: list[Shim] = []

    def make(*argv: str, **launch: Any) -> Shim:
        found = Shim(tmp_path, list(argv), lease=len(made) + 1, **launch)
        made.append(found)
        found.start()
        return found

    yield make
    for found in made:
        assert found.process is not None
        if found.process.poll() is None:
            found.process.kill()
        found.process.wait()
        processes.end_tagged(found.run.tag)


def python(code: str) -> tuple[str, ...]:
    return (sys.executable, "-S", "-c", code)


def test_completes_and_keeps_output(shim: Any) -> None:
    run = shim("sh", "-c", "echo out; echo err >&2")
    end = run.end()
    assert (end["outcome"], end["exit_code"], end["stop_reason"]) == ("completed", 0, None)
    assert run.run.log.read_text() == "out\nerr\n"
    assert end["started_at"] <= end["ended_at"]


def test_room_for_the_last_word_is_taken_at_the_start_so_that_a_disk_that_fills_up_does_not_lose_a_finished_job(shim: Any) -> None:
    one = shim("sh", "-c", "echo ready; until [ -e go ]; do sleep 0.05; done", cwd=str(shim("true").run.path))
    one.says("ready")
    (kept,) = one.run.path.glob(".exit.json.*.tmp")
    found = kept.stat()
    assert found.st_blocks * 512 >= 7 * 4096  # the end of a log of control characters, six bytes each in JSON, and the rest
    (Path(one.launch["cwd"]) / "go").touch()
    assert one.end()["outcome"] == "completed"
    assert (one.run.path / "exit.json").stat().st_ino == found.st_ino
    assert not kept.exists()


def test_a_job_starts_with_default_signals_whatever_its_starter_had(tmp_path: Path) -> None:
    ignoring = "import os, signal, sys; [signal.signal(n, signal.SIG_IGN) for n in (1, 2, 3, 10, 13, 17)]; "
    ignoring += "signal.pthread_sigmask(0, {2, 12, 15}); "
    one = Shim(tmp_path, ["sh", "-c", "grep -E '^Sig(Ign|Blk)' /proc/self/status"])
    command = [sys.executable, "-c", ignoring + "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"]
    command += ["-I", "-m", "stoker.runners.lease.supervisor", str(one.run.path)]
    subprocess.run(command, input=json.dumps(one.launch).encode(), check=True, timeout=patient(60))
    blocked, ignored = (line.split() for line in one.run.log.read_text().splitlines())
    # 32 and 33 are the C library's own: its posix_spawn, by which make starts this, leaves them ignored, and no sigaction sets them back.
    settable = sum(1 << number - 1 for number in signal.valid_signals())
    for mask in (blocked, ignored):
        mask[1] = f"{int(mask[1], 16) & settable:016x}"
    assert [*blocked, *ignored] == ["SigBlk:", "0" * 16, "SigIgn:", "0" * 16]


def test_failure_says_the_last_line(shim: Any) -> None:
    end = shim("sh", "-c", "echo 'ValueError: no such column'; exit 3").end()
    assert (end["outcome"], end["exit_code"], end["message"]) == ("failed", 3, "exit code 3: ValueError: no such column")


def test_signal_is_named(shim: Any) -> None:
    end = shim(*python("import os; os.kill(os.getpid(), 11)")).end()
    assert (end["outcome"], end["exit_code"], end["signal"]) == ("failed", -11, "SIGSEGV")


def test_cannot_start(shim: Any) -> None:
    end = shim("no-such-program").end()
    assert end["outcome"] == "start-failed"
    assert "no-such-program" in end["message"]


def test_a_lease_is_started_at_most_once(tmp_path: Path) -> None:
    """Many supervisors of one lease at the same moment: one runs the command, the others leave."""
    shim = Shim(tmp_path, ["sh", "-c", "echo started; sleep 0.3"])
    codes = [process.wait(patient(60)) for process in [shim.start() for _ in range(6)]]
    assert sorted(codes) == [0] + [LEASE_TAKEN_EXIT] * 5
    assert shim.run.log.read_text() == "started\n"
    assert shim.start().wait(patient(60)) == LEASE_TAKEN_EXIT, "not after its end either"


def test_an_agent_under_which_the_package_was_replaced_starts_it_by_its_former_name(tmp_path: Path) -> None:
    shim = Shim(tmp_path, ["sh", "-c", "echo started"])
    shim.start("stoker.runners.host.supervisor")
    assert shim.end()["outcome"] == "completed"
    assert shim.run.log.read_text() == "started\n"


def test_nothing_is_started_when_the_agent_died_before_saying_what(tmp_path: Path) -> None:
    run = RunDir(tmp_path, 1, 1)
    run.path.mkdir(parents=True)
    command = [sys.executable, "-I", "-m", "stoker.runners.lease.supervisor", str(run.path)]
    assert subprocess.run(command, input=b'{"argv": ["tou', check=False).returncode == 1
    assert run.read("supervisor.json") is None, "the next agent can start it"


def test_stop_that_came_first(tmp_path: Path) -> None:
    shim = Shim(tmp_path, ["sh", "-c", "echo started"])
    shim.run.write("stop.json", {"reason": "cancelled", "grace": 5})
    shim.start()
    end = shim.end()
    assert (end["outcome"], end["stop_reason"], end["exit_code"]) == ("stopped", "cancelled", None)
    assert not shim.run.log.exists()


#: Without print: a handler may run within the one before it, which then lets no other in, or has written half of its line.
CHECKPOINTS = """
import os, signal, sys, time
def leave(*_):
    os.write(1, b"saved\\n")
    sys.exit(75)
signal.signal(signal.SIGTERM, leave)
os.write(1, b"ready\\n")
while True: time.sleep(0.01)
"""


def test_stop_lets_it_checkpoint(shim: Any) -> None:
    run = shim(*python(CHECKPOINTS))
    run.says("ready")
    run.stop()
    end = run.end()
    assert (end["outcome"], end["exit_code"], end["stop_reason"], end["killed_after_grace"]) == ("stopped", 75, "preempted", False)
    run.says("saved")


def test_stop_behind_a_shell_lets_it_checkpoint(shim: Any, tmp_path: Path) -> None:
    """The shell dies of SIGTERM at once; what it had started still gets its grace."""
    script = tmp_path / "train.py"
    script.write_text(CHECKPOINTS.replace('os.write(1, b"saved', 'time.sleep(0.5); os.write(1, b"saved'))
    run = shim("sh", "-c", f"true && {sys.executable} -S {script}; echo after")
    run.says("ready")
    run.stop()
    assert run.end()["outcome"] == "stopped"
    assert run.run.log.read_text() == "ready\nsaved\n"


def test_stop_spares_loader_workers(shim: Any) -> None:
    """Children of the main process are its own affair: a loader worker that dies of SIGTERM breaks the step to be saved."""
    run = shim(
        *python(
            "import os, subprocess, signal, sys, time\n"
            "loader = subprocess.Popen(['sleep', '60'])\n"
            "def leave(*_):\n"
            "    time.sleep(0.3)\n"
            "    os.write(1, f'loader {loader.poll()}\\n'.encode())\n"
            "    sys.exit(75)\n"
            "signal.signal(signal.SIGTERM, leave)\n"
            "os.write(1, b'ready\\n')\n"
            "while True: time.sleep(0.01)\n"
        )
    )
    run.says("ready")
    run.stop()
    assert run.end()["exit_code"] == 75
    run.says("loader None")


DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); time.sleep(600)"


def test_kill_after_the_grace(shim: Any) -> None:
    run = shim(*python(DEAF))
    run.says("ready")
    run.stop(grace=0.3)
    end = run.end()
    assert (end["outcome"], end["exit_code"], end["signal"], end["killed_after_grace"]) == ("stopped", -9, "SIGKILL", True)
    assert "raise grace" in end["message"]


def test_a_second_word_may_shorten_the_grace(shim: Any) -> None:
    run = shim(*python(DEAF))
    run.says("ready")
    run.stop("preempted", grace=600)
    run.stop("cancelled", grace=0.1)
    end = run.end()
    assert (end["stop_reason"], end["exit_code"]) == ("cancelled", -9)


def test_stop_without_a_file(shim: Any) -> None:
    """A full disk has kept the agent from writing it: the signal is heard all the same, with a reason and grace of its own."""
    run = shim(*python(CHECKPOINTS))
    run.says("ready")
    (run.run.path / "stop.json").write_text('{"reas')
    run.process.terminate()
    end = run.end()
    assert (end["exit_code"], end["stop_reason"]) == (75, "terminated")


def test_kill_now(shim: Any) -> None:
    run = shim(*python(DEAF))
    run.says("ready")
    run.stop("fenced", grace=600, number=signal.SIGUSR1)
    assert run.end()["exit_code"] == -9


def test_grandchildren_that_hide_are_ended(shim: Any) -> None:
    """setsid, a double fork, and an emptied environment do not help: they stay descendants of the supervisor."""
    one, two, three = numbers = [f"{600 + n}.{os.getpid()}" for n in range(3)]  # seconds, and by which they are known
    run = shim("sh", "-c", f"setsid sleep {one} & (setsid sleep {two} &) ; env -i setsid sleep {three} & sleep 0.2; echo done")
    assert run.end()["outcome"] == "completed"
    left = [pid for pid in processes.pids() if any(f"sleep\0{number}".encode() in _cmdline(pid) for number in numbers)]
    assert left == []


def _cmdline(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def test_what_cannot_be_killed_is_named(tmp_path: Path) -> None:
    """As a process stuck in a driver call: the wait is bounded, and the GPU can be quarantined for those that are left."""
    shim = Shim(tmp_path, ["sh", "-c", "sleep 600 & echo ready; wait"], kill_wait=0.2)
    helpless = "import sys; from stoker.runners.lease import processes, supervisor; processes.send = lambda *_: False"
    command = [sys.executable, "-c", f"{helpless}; sys.exit(supervisor.main(sys.argv))", str(shim.run.path)]
    shim.process = subprocess.Popen(command, stdin=subprocess.PIPE)
    assert shim.process.stdin is not None
    with shim.process.stdin as pipe:
        pipe.write(json.dumps(shim.launch).encode())
    shim.says("ready")
    until(lambda: "sleep" in map(processes.command, (found.pid for found in processes.tagged(shim.run.tag))))  # and no shell any more
    shim.stop(grace=0.1)
    assert shim.process.wait(patient(60)) == 0
    end = shim.run.read("exit.json") or {}
    left = processes.tagged(shim.run.tag)
    processes.end_tagged(shim.run.tag)
    assert (end["outcome"], end["exit_code"]) == ("unkillable", None)
    assert sorted(Process(*found) for found in end["survivors"]) == sorted(left)
    assert len(left) == 2
    assert "(sleep)" in end["message"]


def test_terminated_from_outside_is_not_the_jobs_fault(shim: Any) -> None:
    run = shim(*python(CHECKPOINTS))
    run.says("ready")
    os.kill(run.process.pid, signal.SIGTERM)
    assert run.end()["outcome"] == "lost"


def test_log_stays_within_its_limit(shim: Any) -> None:
    run = shim(*python("for i in range(30_000): print(f'{i:09d}')"), log_limit=100_000)
    assert run.end()["outcome"] == "completed"
    rotated = run.run.log.with_name("output.log.1")
    assert rotated.stat().st_size == 100_000
    assert run.run.log.stat().st_size <= 100_000
    kept = (rotated.read_text() + run.run.log.read_text()).split()
    assert kept[-1] == "000029999"
    assert [int(line) for line in kept[1:]] == list(range(30_000 - len(kept) + 1, 30_000)), "nothing lost or doubled at the seam"


def test_a_full_disk_does_not_end_the_job(shim: Any, tmp_path: Path) -> None:
    """The log cannot be written: the job goes on, and its end is told with what it said last."""
    run = Shim(tmp_path, ["sh", "-c", "echo lost words; exit 4"], lease=77)
    run.run.log.symlink_to("/dev/full")
    run.start()
    end = run.end()
    assert (end["exit_code"], end["message"]) == (4, "exit code 4: lost words")


@pytest.mark.slow
def test_gang_is_stopped_at_its_ranks(shim: Any, tmp_path: Path) -> None:
    """Ranks under torch's launcher sit in sessions of their own; they leave with 75, and so does the gang."""
    rank = tmp_path / "rank.py"
    rank.write_text(
        "import os, signal, sys, time\n"
        "stop = []\n"
        "signal.signal(signal.SIGTERM, lambda *_: stop.append(1))\n"
        "print(f'rank {os.environ[\"RANK\"]} ready\\n', end='', flush=True)\n"
        "while not stop: time.sleep(0.01)\n"
        "time.sleep(0.3)\n"
        "print(f'rank {os.environ[\"RANK\"]} signalled\\n', end='', flush=True)\n"
        "sys.exit(75)\n"
    )
    gang = ("-m", "stoker.runners.worker.gang", "--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node", "2", str(rank))
    (tmp_path / "temporary").mkdir()
    env = {"OMP_NUM_THREADS": "1", "STOKER_RUN_DIR": str(tmp_path / "run"), "TMPDIR": str(tmp_path / "temporary")}
    run = shim(sys.executable, *gang, env=env)
    run.says("rank 0 ready")
    run.says("rank 1 ready")
    run.stop()
    end = run.end()
    assert (end["outcome"], end["exit_code"], end["killed_after_grace"]) == ("stopped", 75, False)
    assert list((tmp_path / "temporary").iterdir()) == [], "nobody would ever remove it"
    run.says("rank 0 signalled")
    run.says("rank 1 signalled")


@pytest.mark.parametrize(
    ("given", "outcome", "words"),
    [
        ({"exit_code": 0}, "completed", None),
        ({"exit_code": 0, "stop_reason": "preempted"}, "completed", None),
        ({"exit_code": 0, "stop_reason": "preempted", "stop_seen": True}, "stopped", None),
        ({"exit_code": 0, "stop_reason": "preempted", "caught": True}, "stopped", None),
        ({"exit_code": 0, "stop_reason": "preempted", "caught": True, "stop_seen": True, "done": True}, "completed", None),
        ({"exit_code": 0, "caught": True, "stop_seen": True}, "completed", None),
        ({"exit_code": 0, "stop_reason": "terminated", "caught": True}, "lost", "stopped from outside"),
        ({"exit_code": 1, "stop_reason": "preempted", "done": True}, "stopped", None),
        ({"exit_code": 1, "stop_reason": "preempted"}, "stopped", None),
        ({"exit_code": -15, "stop_reason": "hang"}, "hang", "made no progress"),
        ({"exit_code": 1, "log": b"x\ntorch.OutOfMemoryError: CUDA out of memory. Tried to"}, "oom", "smaller batch"),
        ({"exit_code": 76}, "oom", "smaller batch"),
        ({"exit_code": 76, "log": b"stoker: out of memory: CUDA error: out of memory"}, "oom", "gpu_memory"),
        ({"exit_code": 76, "log": b"stoker: out of memory: MemoryError"}, "oom", "out of main memory: use fewer loader workers"),
        ({"exit_code": 1, "log": b"Traceback (most recent call last):\nMemoryError"}, "oom", "out of main memory"),
        ({"exit_code": 1, "log": b"numpy._core._exceptions._ArrayMemoryError: Unable to allocate 8 EiB"}, "oom", "out of main memory"),
        ({"exit_code": 1, "log": b"RuntimeError: DefaultCPUAllocator: can't allocate memory: you tried"}, "oom", "out of main memory"),
        ({"exit_code": -9, "kernel_oom": True}, "oom", "kernel"),
        ({"exit_code": 137, "kernel_oom": True}, "oom", "kernel"),
        ({"exit_code": 1, "kernel_oom": True, "log": b"KeyError: 'x'"}, "failed", "exit code 1: KeyError"),
        ({"exit_code": 1, "kernel_oom": True, "log": b"DataLoader worker (pid 7) is killed by signal: Killed. "}, "oom", "kernel"),
        ({"exit_code": 1, "log": b"DataLoader worker (pid 7) is killed by signal: Killed. "}, "failed", "exit code 1"),
        ({"exit_code": -9}, "failed", "SIGKILL, not by Stoker"),
        ({"exit_code": 0, "log": b"CUDA out of memory, retrying with a smaller batch"}, "completed", None),
        ({"exit_code": 1, "log": b"CUDA out of memory" + b"\nepoch" * 10_000}, "failed", "exit code 1: epoch"),
        ({"exit_code": 75}, "failed", "though Stoker had not asked"),
        ({"exit_code": 2}, "failed", "without a word"),
        ({"exit_code": -9, "stop_reason": "preempted", "survivors": "pid 7 (python)"}, "unkillable", "pid 7 (python)"),
    ],
)
def test_endings(given: dict[str, Any], outcome: str, words: str | None) -> None:
    rest = {"stop_reason": None, "stop_seen": False, "caught": False, "done": False, "grace": 30.0, "killed_after_grace": False}
    rest |= {"kernel_oom": False, "log": b""}
    ending = endings.judge(**{**rest, **given})
    assert ending.outcome == outcome
    assert (ending.message is None) if words is None else words in (ending.message or "")


HANDLES = "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(0)); print('ready', flush=True); time.sleep(60)"
BLOCKS = "import signal; signal.pthread_sigmask(0, {15}); print('ready', flush=True)\nwhile not signal.sigpending(): pass"
IGNORES = "import os, signal, time; signal.signal(15, 1); print('ready', flush=True)\nwhile not os.path.exists('go'): time.sleep(0.01)"


@pytest.mark.parametrize(
    ("argv", "outcome"),
    [
        (python(HANDLES), "stopped"),
        (python(BLOCKS), "stopped"),
        (("sh", "-c", 'echo on; "$@"; exit 0', "sh", *python(HANDLES)), "stopped"),
        (("sh", "-c", "trap 'kill $!' TERM; sleep 60 & echo ready; wait; exit 0"), "stopped"),
        (python(IGNORES), "completed"),
    ],
)
def test_exit_0_after_sigterm_is_an_end_only_where_nothing_could_act_on_it(shim: Any, argv: tuple[str, ...], outcome: str) -> None:
    one = shim(*argv, cwd=str(shim("true").run.path))
    one.says("ready")
    one.stop()
    time.sleep(0.1)
    (Path(one.launch["cwd"]) / "go").touch()
    end = one.end()
    assert (end["outcome"], end["sigterm_caught"]) == (outcome, outcome == "stopped")


def test_identity_is_pid_and_start_time() -> None:
    child = subprocess.Popen(["sleep", "60"])
    found = identity.stat(child.pid)
    assert found is not None
    other = Process(found.pid, found.started - 1)
    assert identity.alive(found.process)
    assert not identity.alive(other)
    assert not processes.send(other, signal.SIGKILL), "another process with its pid is left alone"
    assert child.poll() is None
    assert processes.send(found.process, signal.SIGKILL)
    until(lambda: not identity.alive(found.process))  # a zombie is dead
    child.wait()
    assert identity.stat(child.pid) is None


def test_command_names_with_parentheses(tmp_path: Path) -> None:
    program = tmp_path / "a) S 1 (b"
    program.symlink_to("/bin/sleep")
    child = subprocess.Popen([str(program), "60"])
    try:
        found = until(lambda: (s := identity.stat(child.pid)) and processes.command(child.pid).startswith("a)") and s)
        assert found.parent == os.getpid()
    finally:
        child.kill()
        child.wait()


def test_holders_of_device_files(tmp_path: Path) -> None:
    device = tmp_path / "nvidia0"
    device.touch()
    with device.open() as file:
        child = subprocess.Popen(["sleep", "60"], stdin=file)
    try:
        held = until(lambda: processes.device_holders(str(tmp_path / "nvidia")))
        assert held[child.pid] == {str(device)}
    finally:
        child.kill()
        child.wait()


def test_a_process_that_is_becoming_another_program_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel shows neither arguments nor environment of it for a moment."""
    child = subprocess.Popen(["sleep", "60"], env={ENV_TAG: "/here:1"})
    until(lambda: processes.command(child.pid) == "sleep")
    blank = [f"/proc/{child.pid}/environ", f"/proc/{child.pid}/cmdline"]
    read = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: b"" if str(path) in blank and not blank.remove(str(path)) else read(path))
    assert [found.pid for found in processes.tagged("/here:1")] == [child.pid] and not blank
    child.kill()
    child.wait()


def test_a_process_whose_main_thread_has_ended_is_found_and_ended() -> None:
    """As one that is stuck in the GPU driver with another thread: a zombie that runs, and holds what it holds."""
    code = "import ctypes, threading, time\nthreading.Thread(target=time.sleep, args=(60,)).start()\nctypes.CDLL(None).syscall(60, 0)"
    child = subprocess.Popen([sys.executable, "-c", code], env={ENV_TAG: "/there:1"})
    until(lambda: (known := identity.stat(child.pid)) is not None and known.state == "Z")
    assert [found.pid for found in processes.tagged("/there:1")] == [child.pid]
    assert processes.end_tagged("/there:1") == []
    assert child.wait() == -signal.SIGKILL


def test_a_process_that_takes_long_to_die_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """It shows no environment any more, and holds its memory until it is dead."""
    child = subprocess.Popen(["sleep", "60"], env={ENV_TAG: "/anywhere:1"})
    found = until(lambda: processes.tagged("/anywhere:1"))
    seen = [found]
    monkeypatch.setattr(processes, "tagged", lambda _: seen.pop() if seen else [])
    monkeypatch.setattr(processes, "send", lambda *_: True)
    assert processes.end_tagged("/anywhere:1", wait=0.1) == found
    child.kill()
    child.wait()
