"""A study: one workload under several policies, configurations and seeds, its runs in parallel processes."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol

from ...policies import registry
from ...policies.autosched.search_space import space_of
from ...policies.keys import make_config
from ...policies.nearest import meant
from ...policies.own import prints_aside
from .cluster import Cluster
from .results.result import Result
from .run_options import Options
from .simulation_error import SimulationError
from .simulator import Control, simulate
from .workload import Workload

PROGRESS_EVERY = 0.1  #: real seconds between two progress reports of a run
_SPAWN = multiprocessing.get_context("spawn")  # a fork would lose the threads of NumPy's and a policy's libraries


@dataclass(frozen=True, slots=True)
class PolicyChoice:
    """A policy with its whole configuration, defaults included."""

    label: str  #: its name, unique in the study
    policy: str
    config: Mapping[str, Any]
    auto: bool = False  #: it tunes itself during the run, see `Study.control`


@dataclass(frozen=True, slots=True)
class Run:
    number: int
    choice: PolicyChoice
    seed: int

    def __str__(self) -> str:
        return f"{self.choice.label}, seed {self.seed}"


@dataclass(frozen=True, slots=True)
class StudyOutcome:
    run: Run
    result: Result | None  #: None: it failed
    error: str | None = None
    tuned: Mapping[str, int] | None = None  #: its controller's counts; None: it has no controller


@dataclass(frozen=True, slots=True)
class WorkloadSource:
    """Distinguishes traces of the same name."""

    sha256: str | None = None  #: of the file that it was read from
    trace_id: int | None = None  #: number of the daemon's trace; None: it is none


class Tuner(Control, Protocol):
    """A controller of a study, with counts of its ``searches``, of the ``applied`` ones, and of those ``taken_back``."""

    def did(self) -> Mapping[str, int]: ...


@dataclass(frozen=True, slots=True)
class Study:
    workload: Workload
    cluster: Cluster
    options: Options
    runs: Sequence[Run]
    source: WorkloadSource = WorkloadSource()
    control: Callable[[PolicyChoice, Options], Tuner] | None = None  #: makes the controller of choices that tune themselves

    @property
    def until(self) -> float:
        """The time at which its simulations are cut off; inf: never."""
        return math.inf if self.options.until is None else self.options.until


Progress = Callable[[Run, int, int], None]  #: gets a run, and its number of ended jobs, and of all


def runs_of(choices: Sequence[PolicyChoice], seeds: Sequence[int]) -> list[Run]:
    pairs = [(choice, seed) for choice in choices for seed in seeds]
    return [Run(number, choice, seed) for number, (choice, seed) in enumerate(pairs)]


def run_study(study: Study, processes: int, progress: Progress) -> Generator[StudyOutcome, None, None]:
    """Outcomes as they come. A failed run ends no other; closing the iterator ends runs under way."""
    processes = min(processes, len(study.runs))
    if processes > 1:
        yield from _in_processes(study, processes, progress)
        return
    for run in study.runs:
        yield one_run(study, run, lambda done, total, run=run: progress(run, done, total))  # type: ignore[misc]


@prints_aside()
def one_run(study: Study, run: Run, progress: Callable[[int, int], None]) -> StudyOutcome:
    try:
        policy = registry.create(run.choice.policy, run.choice.config, interval=study.options.interval)
        options = dataclasses.replace(study.options, seed=run.seed)
        control = study.control(run.choice, options) if study.control is not None and run.choice.auto else None
        result = simulate(study.workload, study.cluster, policy, options, progress=progress, control=control)
        return StudyOutcome(run, result, tuned=None if control is None else control.did())
    except SimulationError as error:
        return StudyOutcome(run, None, str(error))
    except KeyboardInterrupt as error:
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            raise  # a person may have caused it
        return StudyOutcome(run, None, f"the policy failed: KeyboardInterrupt: {error}".rstrip(": "))
    except Exception as error:  # a policy may be any code, and the other runs shall go on
        return StudyOutcome(run, None, f"unexpected {type(error).__name__}: {error}")


class _Worker:
    """A process that simulates one run after another. It gets the workload once, at its start."""

    def __init__(self, study: Study) -> None:
        self.pipe, theirs = _SPAWN.Pipe()
        self.process = _SPAWN.Process(target=_work, args=(theirs, study), daemon=True)
        with _deaf_to_interrupts():
            self.process.start()
        theirs.close()  # so that its end is seen here
        self.run: Run | None = None

    def give(self, run: Run) -> None:
        self.run = run
        with contextlib.suppress(OSError):  # it has died; the next `recv` shows it
            self.pipe.send(run)

    def end(self) -> None:
        self.process.terminate()
        self.process.join()
        self.pipe.close()


def _in_processes(study: Study, processes: int, progress: Progress) -> Iterator[StudyOutcome]:
    todo = list(reversed(study.runs))
    workers: list[_Worker] = []
    try:
        while todo or workers:
            while todo and len(workers) < processes:
                workers.append(_Worker(study))
                workers[-1].give(todo.pop())
            ready = wait([worker.pipe for worker in workers])
            for worker in [worker for worker in workers if worker.pipe in ready]:
                if (outcome := _hear(worker, progress)) is None:
                    continue
                yield outcome
                if todo and worker.process.is_alive():
                    worker.give(todo.pop())
                else:
                    workers.remove(worker)
                    worker.end()
    finally:
        for worker in workers:
            worker.end()


def _hear(worker: _Worker, progress: Progress) -> StudyOutcome | None:
    """A worker's message: the progress or the outcome of its run."""
    assert worker.run is not None, "only a worker with a run is listened to"
    try:
        said = worker.pipe.recv()
    except (EOFError, OSError):
        worker.process.join()
        code = worker.process.exitcode or 0
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        return StudyOutcome(worker.run, None, f"its process {how}; if memory is short, run fewer at once (--jobs 1)")
    if isinstance(said, StudyOutcome):
        return said
    progress(worker.run, *said)
    return None


@contextlib.contextmanager
def _deaf_to_interrupts() -> Iterator[None]:
    """Processes started within ignore Ctrl-C from the first moment: the process in the foreground handles it, and ends them."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals cannot be set here, and Ctrl-C does not come here
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _work(pipe: Connection, study: Study) -> None:
    spoke = 0.0

    def progress(done: int, total: int) -> None:
        nonlocal spoke
        if (now := time.monotonic()) >= spoke + PROGRESS_EVERY:
            spoke = now
            pipe.send((done, total))

    with contextlib.suppress(EOFError, OSError):  # the parent is gone
        while True:
            pipe.send(one_run(study, pipe.recv(), progress))


def cores() -> int:
    return len(os.sched_getaffinity(0))


def choose(policies: Sequence[str], settings: Sequence[str]) -> list[PolicyChoice]:
    """Policies with their configurations from ``NAME[,KEY=VALUE]…`` and from settings ``[NAME.]KEY=VALUE``.

    A setting without a name is for every policy that has the key. ValueError names an unknown word, and the nearest known one.
    """
    asked = [_asked(text) for text in policies]
    automatic = [_is_automatic(own) for _, own in asked]
    given = [_setting(text) for text in settings]
    _check_once(given)
    kinds = {name: registry.load(name).Config for name, _ in asked}
    keys = {name: [field.name for field in dataclasses.fields(kind)] for name, kind in kinds.items()}
    for name, key, _ in given:
        _check_known(name, key, keys)
    choices = []
    for (name, own), auto in zip(asked, automatic, strict=True):
        values = {key: value for where, key, value in given if where == "" and key in keys[name]}
        values |= {key: value for where, key, value in given if where == name} | own
        try:
            config = dataclasses.asdict(make_config(kinds[name], values))
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
        if auto:
            _check_tunable(name, kinds[name], config)
        label = ",".join([name, *(f"{key}={value}" for key, value in own.items()), *(["auto=true"] if auto else [])])
        choices.append(PolicyChoice(label, name, config, auto))
    _check_different(choices)
    return choices


def _check_different(choices: Sequence[PolicyChoice]) -> None:
    """Defaults count: ``srtf`` and ``srtf,hysteresis=2`` are the same if 2 is the default."""
    for one, other in itertools.combinations(choices, 2):
        if one.config == other.config and one.auto == other.auto and registry.load(one.policy) is registry.load(other.policy):
            same = f"{one.label} is given twice" if one.label == other.label else f"{one.label} and {other.label} are the same"
            raise ValueError(f"{same}; tell them apart by their configuration, such as {one.policy},KEY=VALUE")


def _asked(text: str) -> tuple[str, dict[str, str]]:
    name, *own = text.split(",")
    settings = [_setting(part) for part in own]
    if other := next((where for where, _, _ in settings if where), None):
        raise ValueError(f"{text}: {other!r} stands before a key of {name}; write {name},KEY=VALUE")
    _check_once(settings)
    return name, {key: value for _, key, value in settings}


def _is_automatic(own: dict[str, str]) -> bool:
    """Whether the policy tunes itself: ``auto`` is our word, not a key of a policy."""
    said = own.pop("auto", "false").lower()
    if said not in ("true", "false"):
        raise ValueError(f"auto: {said!r} is not true or false")
    return said == "true"


def _check_tunable(name: str, kind: type, config: Mapping[str, Any]) -> None:
    try:
        space_of(kind, config)
    except ValueError as error:
        raise ValueError(f"{name},auto=true: {error}") from None


def _check_once(settings: Sequence[tuple[str, str, str]]) -> None:
    keys = [(where, key) for where, key, _ in settings]
    if twice := next((one for one in keys if keys.count(one) > 1), None):
        values = [value for where, key, value in settings if (where, key) == twice]
        raise ValueError(f"{'.'.join(filter(None, twice))} is set more than once: {', '.join(values)}; give it one value")


def _setting(text: str) -> tuple[str, str, str]:
    """The parts of ``NAME.KEY=VALUE``; the name is "" if absent."""
    where, equals, value = text.partition("=")
    name, _, key = where.rpartition(".")
    if not equals or not key:
        also = f"; for another policy repeat the option: -p {text}" if text in registry.POLICIES or ":" in text else ""
        raise ValueError(f"{text!r} is not KEY=VALUE or POLICY.KEY=VALUE{also}")
    return name, key, value


def _check_known(name: str, key: str, keys: Mapping[str, Sequence[str]]) -> None:
    known = sorted({one for some in keys.values() for one in some}) if name == "" else [*keys]
    wanted = key if name == "" else name
    if wanted in known:
        return
    near = meant(wanted, known)
    hint = f"did you mean {near!r}?" if near else f"there are: {', '.join(known) or 'none'}"
    if name == "":
        raise ValueError(f"{key}: no policy of this study has such a key; {hint}")
    raise ValueError(f"{name}.{key}: {name!r} is no policy of this study; {hint}")
