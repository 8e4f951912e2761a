"""Fixtures: a store on a real file, and real daemon and runner processes with a home of their own.

A test that takes more than 5 s, or some seconds and is not the first of its room to fail, is marked `slow`. The state machine of
`test_properties` is not, as it finds most. `make quick` leaves these out, `make test` does not. Both divide the tests among workers: those
of one `xdist_group` stay together, as what they share is made but once.
"""

from __future__ import annotations

import atexit
import fcntl
import gc
import os
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import hypothesis
import leftovers
import preloaded
import pytest
from e2e import DaemonProcess, RunnerProcess, end_workers
from hypothesis.internal.conjecture import providers
from small_disk import Quota, SmallDisk, small_disk
from stoker.engine.home import Home
from stoker.engine.store.store import Store
from stores import reopened

leftovers.begin(leftovers.place(Path(__file__).parents[1] / "build" / "tmp"))

# In the background of a shell that has no job control SIGINT is ignored, and so it would be in every process that a test starts.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Without bytecode each of the hundreds of processes that the tests start would compile all that it imports.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False


# The same examples each time, on a busy machine too. Here, before any test module is imported, whose settings start from these.
hypothesis.settings.register_profile("steady", deadline=None, derandomize=True, max_examples=40)
hypothesis.settings.load_profile("steady")
# It draws constants of those modules of ours, too, that happen to be loaded: with xdist that is chance, and other examples each time.
providers.is_local_module_file = lambda _: False  # type: ignore[attr-defined]


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Folders of tests have short paths, whatever the checkout's: Unix sockets lie in them."""
    folder = Path(tempfile.gettempdir())
    if config.option.basetemp is None and folder.name == str(os.getpid()):  # made by this run; pytest empties what it is given
        config.option.basetemp = str(folder / "t")


def pytest_collection(session: pytest.Session) -> None:
    """No garbage is looked for while millions of objects come that stay. Where workers collect, the process above them does not."""
    if hasattr(session.config, "workerinput") or not session.config.getoption("numprocesses", None):
        gc.disable()


def pytest_collection_finish() -> None:
    """Nor among them later, not by pytest either when it ends. At last all is freed: DuckDB's binding tells of each object that is not."""
    gc.freeze()
    atexit.register(gc.unfreeze)
    gc.enable()


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Bytes are named by their argument: xdist needs the same names in each worker, and packed data may hold the time."""
    return argname if isinstance(val, bytes) else None


@pytest.hookimpl(tryfirst=True)  # before those of the night are left out
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Hypothesis takes an eighth of the examples that a test names (all up to four), by night ten times as many, others each time.

    Of the cases of a test that is ``sampled(n)`` each n-th runs by day (of those that no mark leaves to the night), the others by night.

    Slow tests come first where several workers share them, and groups that have one: none is left alone with it at the end. Before all
    others those that watch the clock while they train: `clock`, one at a time, and mostly asleep.
    """
    for test in {getattr(item.obj, "__func__", item.obj) for item in items if isinstance(item, pytest.Function)}:
        if (named := getattr(test, "_hypothesis_internal_use_settings", None)) is not None:
            test._hypothesis_internal_use_settings = _as_many(named)
    cases: Counter[str] = Counter()
    for item in items:
        if (sampled := item.get_closest_marker("sampled")) is not None and item.get_closest_marker("nightly") is None:
            function = item.nodeid.partition("[")[0]
            if cases[function] % sampled.args[0]:
                item.add_marker("nightly")
            cases[function] += 1
    if hasattr(config, "workerinput"):
        long = {_group(item) for item in items if item.get_closest_marker("slow") and not item.get_closest_marker("nightly")}
        items.sort(key=lambda item: 0 if _group(item) == "clock" else 1 if _group(item) in long else 2)


def _as_many(named: hypothesis.settings) -> hypothesis.settings:
    count = named.max_examples
    if os.environ.get("HYPOTHESIS_PROFILE") == "nightly":
        return hypothesis.settings(named, max_examples=10 * count, derandomize=False, print_blob=True)
    return hypothesis.settings(named, max_examples=max(min(count, 4), count // 8))


def _group(item: pytest.Item) -> str:
    """What stays together with it, on one worker; a test of no group is one of its own."""
    group = item.get_closest_marker("xdist_group")
    return item.nodeid if group is None else str(group.args[0])


@pytest.fixture(scope="session", autouse=True)
def _quiet_environment() -> Iterator[None]:
    """No test, and no process that several tests share, sees the settings of the person who runs it."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        for name in list(os.environ):
            if name.startswith("STOKER_") and name not in ("STOKER_CACHE", "STOKER_TRACES", "STOKER_TEST_PATIENCE", "STOKER_TEST_WARM"):
                monkeypatch.delenv(name)
        monkeypatch.setenv("OMP_NUM_THREADS", "1")
        yield


@pytest.fixture(scope="session")
def warm_server() -> None:
    """Of the processes that `preloaded.start` starts."""
    preloaded.serve()


@pytest.fixture
def roomy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory without an end, for pipelines of this process: how large it has grown with other tests refuses them no worker."""
    from stoker.runners.loaders.readings import machine  # with torch, which most tests do without

    used = machine.memory
    monkeypatch.setattr(machine, "_tree", machine._Tree())  # what was read before may be of processes that have ended
    monkeypatch.setattr(machine, "memory", lambda: (used()[0], 1 << 50))
    monkeypatch.setattr(machine, "memory_total", lambda: 1 << 50)


@pytest.fixture
def home() -> Iterator[Home]:
    """An empty home with a path short enough for a Unix socket."""
    path = Path(tempfile.mkdtemp(prefix="stoker-"))
    yield Home(path)
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def disk(home: Home) -> Iterator[SmallDisk | Quota]:
    """What the home lies on, to be filled."""
    with small_disk(home.path) as found:
        yield found


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated, empty database file to copy: migrating takes longer than all that most tests then do with it."""
    path = tmp_path_factory.mktemp("template") / "template.duckdb"
    base = tmp_path_factory.getbasetemp()
    common = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "migrated.duckdb"
    with common.with_suffix(".lock").open("w") as lock:  # the first of the workers makes it; each has a copy, as some tests open it
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not common.exists():
            Store.open(path).close()
            shutil.copyfile(path, common)
    return Path(shutil.copyfile(common, path))


@pytest.fixture
def database(home: Home, template: Path) -> Path:
    """The database file of the home, migrated and empty."""
    return Path(shutil.copyfile(template, home.database))


@pytest.fixture
def store(database: Path) -> Iterator[Store]:
    opened = reopened(database)
    yield opened
    opened.close()


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Networks this small gain nothing from a second thread, and lose much where other tests want the cores."""
    import torch  # here, as most tests need none

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def start_daemon(home: Home, template: Path) -> Iterator[Callable[..., DaemonProcess]]:
    """Start daemons of the test's home, on an empty database; what is left of them is ended after the test."""
    started: list[DaemonProcess] = []

    def start(*arguments: str, env: Mapping[str, str] | None = None, changes: str = "") -> DaemonProcess:
        if not home.database.exists():
            shutil.copyfile(template, home.database)
        daemon = DaemonProcess(home, *arguments, env=env, changes=changes)
        started.append(daemon)
        daemon.start()
        return daemon

    yield start
    for daemon in started:
        daemon.end()


@pytest.fixture
def start_runner(home: Home) -> Iterator[Callable[..., RunnerProcess]]:
    """Start runners of CPU slots in the test's home; what is left of them and of their workers is ended after the test."""
    started: list[RunnerProcess] = []

    def start(node: str = "here", slots: int = 2, *arguments: str) -> RunnerProcess:
        runner = RunnerProcess(home, node, slots, *arguments)
        started.append(runner)
        runner.start()
        return runner

    yield start
    for runner in started:
        runner.end()
    end_workers(home)
