"""The world changes while a fork server lives: its jobs find what a fresh process would, or start in one, and are told why."""

from __future__ import annotations

import json
import os
import resource
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typing_extensions
from stoker.engine.home import Home
from stoker.runners.host.agent import Agent, Options
from stoker.runners.host.gpus import CpuSlots
from stoker.runners.host.launch import prepare
from stoker.runners.lease.rundir import RunDir
from stoker.runners.warm import loaded_state, warm_starts
from stoker.runners.warm.warm_starts import ServerKind, WarmServer, WarmStarts
from test_agent import until
from test_warm_starts import Warm, job, launched, said

# ---- what a process tells of what it has read ----


def test_who_reads_a_variable_is_seen_and_who_goes_through_all_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEEN", "1")
    monkeypatch.setenv("UNSEEN", "1")
    monkeypatch.setenv("GOES", "1")
    with loaded_state.Reading() as reading:
        assert os.environ["SEEN"] == "1"
        assert os.environ.get("ABSENT") is None and os.getenv("BY_GETENV") is None and "BY_IN" not in os.environ
        assert os.getenvb(b"BY_BYTES") is None
        assert {name: value for name, value in os.environ.items() if name == "UNSEEN"} == {"UNSEEN": "1"}
        os.environ.setdefault("BY_DEFAULT", "made")
        os.environ["SET"] = "made"
        del os.environ["GOES"]
    os.environ.get("AFTERWARDS")
    assert {"SEEN", "ABSENT", "BY_GETENV", "BY_IN", "BY_BYTES", "BY_DEFAULT"} <= set(reading.read)
    assert not {"UNSEEN", "AFTERWARDS", "SET"} & set(reading.read)
    for name in ("BY_DEFAULT", "SET"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("GOES", "of the job")
    reading.repeat()
    assert (os.environ["BY_DEFAULT"], os.environ["SET"], "GOES" in os.environ) == ("made", "made", False)
    assert reading.before["GOES"] == "1"


def test_what_has_changed_among_files_and_directories(tmp_path: Path) -> None:
    module, package, dist, pth = (tmp_path / name for name in ("a.py", "b", "b-1.0.dist-info", "more.pth"))
    package.mkdir()
    dist.mkdir()
    for file, content in ((module, "x = 1"), (package / "__init__.py", ""), (pth, "/some/where")):
        file.write_text(content)
    watched = [str(module), str(tmp_path), str(tmp_path / "absent")]

    def after(change: Callable[[], Any]) -> str | None:
        before = json.loads(json.dumps({path: loaded_state.stamp(path) for path in watched}))  # as it is told
        change()
        found = loaded_state.changed(before)
        return found and Path(found).name

    def replace() -> None:
        (tmp_path / "new").write_text("x = 2")
        os.utime(tmp_path / "new", ns=(module.stat().st_atime_ns, module.stat().st_mtime_ns))
        (tmp_path / "new").rename(module)

    here = tmp_path.name
    assert after(lambda: None) is None
    assert after(lambda: (tmp_path / "log.txt").write_text("a job writes here")) is None
    assert after((tmp_path / "outputs").mkdir) is None
    assert after((tmp_path / "__pycache__").mkdir) is None
    assert after(lambda: module.write_text("x = 22")) == "a.py"
    assert after(replace) == "a.py"
    assert after(lambda: (tmp_path / "c.py").write_text("")) == here
    assert after(lambda: dist.rename(tmp_path / "b-1.1.dist-info")) == here
    assert after(lambda: pth.write_text("/some/where/else")) == here
    assert after(lambda: shutil.rmtree(package)) == here
    assert after((tmp_path / "absent").mkdir) == "absent"
    assert after(module.unlink) == "a.py"


def test_a_file_that_changes_while_it_is_read_is_never_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "lib.py"
    file.write_text("")
    monkeypatch.setitem(sys.modules, "lib", type("module", (), {"__file__": str(file)})())
    now = file.stat().st_ctime
    assert loaded_state.changed({str(file): loaded_state.files(now + 1, [])[str(file)]}) is None
    assert loaded_state.changed({str(file): loaded_state.files(now - 1, [])[str(file)]}) == str(file)
    model = tmp_path / "model"
    model.mkdir()
    (model / "weights").write_text("1")
    before = loaded_state.files(0, [model])
    assert before[str(model / "weights")] == loaded_state.stamp(str(model / "weights"))


# ---- a server ----


@pytest.fixture(scope="module", autouse=True)
def torch_reads_tmpdir() -> Iterator[None]:
    """At import: it does not where this variable is set already."""
    with pytest.MonkeyPatch.context() as patched:
        patched.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
        yield


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of modules with one that torch imports."""
    folder = tmp_path_factory.mktemp("library")
    shutil.copy(typing_extensions.__file__, folder)
    return folder


@pytest.fixture(scope="module")
def server(library: Path) -> Iterator[WarmServer]:
    """One for entrypoints, which has loaded that module."""
    server = WarmServer.start(ServerKind(None), environment(library), warm_starts.code_stamp())
    until(lambda: server.ready or server.gone)
    assert server.ready, server.why
    yield server
    server.end()


def environment(library: Path) -> dict[str, str]:
    return WarmStarts(True, {**os.environ, "PYTHONPATH": str(library), "SEEN_BY_NOBODY": "1"})._servers_environment() | {"STOKER_TAG": "-"}


@pytest.mark.slow
@pytest.mark.xdist_group("one server")
def test_a_variable_that_a_server_has_read_starts_cold_and_no_other(server: WarmServer, library: Path) -> None:
    env = environment(library)
    assert server.unlike(env) is None
    warm = {"SEEN_BY_NOBODY": "2", "MY_DATA": "/here", "PATH": "/bin", "TZ": "Asia/Tokyo", "HF_HOME": "/here", "RANDOM_SEED": "1",
            "TERM": "dumb", "CUBLAS_WORKSPACE_CONFIG": ":4096:8", "CUDA_VISIBLE_DEVICES": "GPU-1", "STOKER_RUN_DIR": "/here",
            "NCCL_DEBUG": "INFO", "HTTP_PROXY": "http://here"}  # fmt: skip
    assert server.unlike(env | warm) is None
    cold = {"TMPDIR": "/var/tmp", "TORCH_HOME": "/here", "SYMPY_USE_CACHE": "no", "TQDM_ASCII": "1", "NUMPY_EXPERIMENTAL_X": "1",
            "CXX": "clang", "LOGNAME": "somebody", "CI": "1", "OMP_WAIT_POLICY": "active"}  # fmt: skip
    for name, value in cold.items():
        assert server.unlike(env | {name: value}) == f"its environment differs in {name}, which is read at import", name
    assert server.unlike(env | {"TMPDIR": "/var/tmp", "LANG": "tlh"}) == "its environment differs in LANG, TMPDIR, which is read at import"


@pytest.mark.slow
@pytest.mark.xdist_group("one server")
def test_a_server_is_not_used_once_what_it_has_read_or_the_runner_is_another(
    server: WarmServer, library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warm_starts, "_FRESH", 0.0)
    module = library / "typing_extensions.py"
    assert server.outdated() == ""

    before, content = module.stat(), module.read_bytes()
    module.write_bytes(content + b"\n")
    assert server.outdated() == f"{module} has changed since its server was loaded"
    module.write_bytes(content)
    os.utime(module, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert server.outdated() == ""

    (library / "networkx.py").write_text("")  # torch has asked for it in vain, or found another one
    assert server.outdated() == f"{library} has changed since its server was loaded"
    (library / "networkx.py").unlink()

    soft, hard = resource.prlimit(server.process.pid, resource.RLIMIT_CORE)
    resource.prlimit(server.process.pid, resource.RLIMIT_CORE, (0 if soft else 1, hard))
    assert server.outdated() == "the runner has another Max core file size than its server"
    resource.prlimit(server.process.pid, resource.RLIMIT_CORE, (soft, hard))

    mask = os.umask(0o27)
    try:
        assert server.outdated() == "the runner has another Umask than its server"
    finally:
        os.umask(mask)
    assert server.outdated() == ""
    with monkeypatch.context() as patched:
        patched.setattr(warm_starts, "code_stamp", lambda: "of another version")
        assert server.outdated() == "the code has changed since its server was loaded"

    starts = WarmStarts(True, {**os.environ, "PYTHONPATH": str(library)})
    starts._servers[ServerKind(None)] = server
    given = job(1, entrypoint="mine:task", env={"PYTHONPATH": str(library)})
    run, launch = launched(tmp_path, 1, given)
    assert starts.why_cold(given, launch) is None
    module.unlink()  # as an upgrade does, for a moment
    assert starts.start(run, given, launch) == (None, f"{module} has changed since its server was loaded")
    assert starts.why_cold(given, launch) == "no process had loaded what entrypoints need yet"
    assert server.process.poll() is not None
    shutil.copy(typing_extensions.__file__, library)


def test_the_ranks_of_whoever_started_the_runner_are_no_servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs do not get them: they would all find another environment than their server's."""
    theirs = {"RANK": "3", "WORLD_SIZE": "4", "SLURM_PROCID": "3", "STOKER_PARAM_X": "1"}
    for name, value in theirs.items():
        monkeypatch.setenv(name, value)
    launch = prepare(RunDir(tmp_path, 1, 1), job(1), [])
    agent = Agent(Options(tmp_path, "n1"), lambda: pytest.fail("no daemon here"), CpuSlots("n1", 1))
    loaded_in = agent.warm._servers_environment()
    assert not theirs.keys() & loaded_in.keys()
    assert warm_starts._differs(loaded_in, launch["env"], lambda name: True) is None


def test_a_path_that_means_another_directory_in_each_job_starts_cold(tmp_path: Path) -> None:
    for number, path in enumerate(("lib", "/lib:", ":/lib", "/lib:../lib"), 1):
        given = job(number, env={"PYTHONPATH": path})
        why = WarmStarts(True, {**os.environ, "PYTHONPATH": path}).why_cold(given, launched(tmp_path, number, given)[1])
        assert why == "PYTHONPATH has a part that is no whole path: it means another directory in each job"


FACTS = """
import json, locale, logging, multiprocessing, os, platform, random, resource, signal, sys, tempfile, time
import torch
from stoker.runners.training import Task

OWN = ("STOKER_JOB_ID", "STOKER_JOB_NAME", "STOKER_LEASE_ID", "STOKER_RUN_DIR", "STOKER_TAG", "STOKER_CHECKPOINT_DIR",
       "TORCHINDUCTOR_CACHE_DIR")  # which torch sets when it is first used

def facts():
    os.umask(mask := os.umask(0))
    streams = (sys.stdin, sys.stdout, sys.stderr)
    return {
        "environment": {name: value for name, value in sorted(os.environ.items()) if name not in OWN},
        "python": [str(sys.flags), sys.path, sys.warnoptions, sys.argv, sys.orig_argv, sys.getrecursionlimit(), sys.dont_write_bytecode],
        "process": [mask, os.getcwd(), os.nice(0), sorted(os.sched_getaffinity(0)), os.getsid(0) == os.getpid()],
        "limits": [resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name.startswith("RLIMIT_")],
        "signals": {int(number): str(signal.getsignal(number)).partition(" at ")[0] for number in signal.valid_signals()},
        "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
        "streams": [[one.encoding, one.errors, one.line_buffering, one.write_through, one.mode] for one in streams],
        "places": [tempfile.gettempdir(), os.path.expanduser("~"), platform.node(), locale.setlocale(locale.LC_ALL), time.tzname],
        "loggers": [str(logging.root.handlers), logging.root.level, time.time() - logging._startTime < 30],
        "torch": [torch.get_num_threads(), torch.get_num_interop_threads(), str(torch.get_default_dtype()), torch.initial_seed()],
        "drawn": [random.random(), float(torch.rand(1))],
        "multiprocessing": [multiprocessing.get_start_method(True), multiprocessing.current_process().name],
    }

def task(to):
    with open(to, "w") as file:
        json.dump([facts(), multiprocessing.current_process().authkey.hex()], file)
    data = [(torch.rand(4), torch.rand(1)) for _ in range(32)]
    loss = lambda model, batch: torch.nn.functional.mse_loss(model(batch[0]), batch[1])
    return Task(model=torch.nn.Linear(4, 1), train=data, loss=loss, batch_size=8)
"""


@pytest.mark.slow
def test_a_forked_job_finds_the_world_as_a_fresh_process_does(home: Home, tmp_path: Path) -> None:
    (tmp_path / "facts.py").write_text(FACTS)
    own = tmp_path / "own"
    own.mkdir()
    host = Warm(home.path)
    host.daemon.open()
    try:
        host.start()

        def facts(lease: int, run: Callable[..., Any] = host.train, **env: str) -> Any:
            to = tmp_path / f"{lease}.json"
            run(
                lease,
                entrypoint="facts:task",
                workdir=str(tmp_path),
                params={"to": str(to)},
                env={"MY_OWN": "1", "TZ": "Asia/Tokyo", **env},
            )
            return json.loads(to.read_text())

        fresh, fork, other, elsewhere = facts(1, host.warmed), facts(2), facts(3), facts(4, TMPDIR=str(own))
        assert [host.daemon.update(lease, "running").warm for lease in (1, 2, 3, 4)] == [False, True, True, False]
        assert fork[0] == fresh[0]
        assert len({fresh[1], fork[1], other[1]}) == 3  # the key of its processes is its own
        assert elsewhere[0]["places"][0] == str(own)
        assert "starts cold: its environment differs in TMPDIR, which is read at import" in said(host)
    finally:
        host.close()
