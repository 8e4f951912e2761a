"""One run of the InTune benchmark: a job trained by one way of loading, in a process of its own, through resizes of its cores."""

from __future__ import annotations

import gc
import json
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from baseline_controllers import create
from intune_jobs import JOBS, Endless, Job

BIN = 0.5  #: seconds of a value of the curve of throughput
SPDL_BUFFER = 4  #: batches that SPDL holds ready
_WATCH = 0.5  #: seconds between two looks at memory


class Run(NamedTuple):
    """What was measured. Throughput is of samples that the model was trained on."""

    curve: list[float]  #: samples a second, a value a bin; from the first batch on
    first: float  #: seconds from the start of loading to the first batch
    cpu: float  #: cores that this process and its children kept busy
    own: float  #: microseconds of CPU time of a sample in this process, the training included
    workers: float  #: the same in its children
    tuner: float  #: share of a core that the tuner took
    memory: int  #: most bytes (PSS) of this process and its children
    over: bool  #: that was above the limit
    steps: list[list[Any]]  #: of a tuner: when, the values, and why
    failed: str


class Options(NamedTuple):
    folder: str
    records: int
    seconds: float  #: of a phase
    cores: list[int]  #: of each phase
    limit: int  #: bytes


def measure(job: str, way: str, options: Options) -> Run | str:
    """In a process of its own; a line of why it cannot be run instead."""
    given = json.dumps([job, way, options])
    done = subprocess.run(
        [sys.executable, __file__, given], capture_output=True, text=True, check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1"}, timeout=120 + 6 * options.seconds * len(options.cores),
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{job}, {way}: ended with {done.returncode}\n{done.stderr[-3000:]}")
    answer = json.loads(done.stdout.splitlines()[-1])
    return answer if isinstance(answer, str) else Run(**answer)


# -- ways of loading -----------------------------------------------------------------------------------------------------


class Loading(NamedTuple):
    batches: Iterator[Any]
    tuned: Any = None  #: what `autotuned` returned


@contextmanager
def by_pipeline(job: Job, controller: str, processes: bool | None) -> Iterator[Loading]:
    from stoker.loaders import Batch, Map, Pipeline, Prefetch, Shuffle, Source, autotuned

    stages = [
        Source(Reads(job), sampler=Endless(job.items), name="read", along=job.along and processes is not False),
        Shuffle(job.group),
        Map(job.udf, name="udf", processes=processes),
        Batch(job.group, collate=job.join),
        Prefetch(),
    ]
    with autotuned(Pipeline(stages), controller=create(controller)) as tuned:
        yield Loading(iter(tuned), tuned)


@contextmanager
def by_torch(job: Job, workers: int) -> Iterator[Loading]:
    from torch.utils.data import DataLoader

    loader = DataLoader(Items(job), job.group, sampler=Endless(job.items), collate_fn=job.join, num_workers=workers)
    batches = iter(loader)
    try:
        yield Loading(batches)
    finally:
        del loader, batches
        gc.collect()  # its workers end when it is collected


@contextmanager
def by_spdl(job: Job, concurrency: int) -> Iterator[Loading]:
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    from spdl.pipeline import PipelineBuilder

    pool = ProcessPoolExecutor(concurrency, get_context("forkserver")) if job.processes else None
    builder = PipelineBuilder().add_source(Endless(job.items)).pipe(job.read, concurrency=concurrency)
    builder = builder.pipe(job.udf, concurrency=concurrency, executor=pool).aggregate(job.group).pipe(job.join, concurrency=concurrency)
    pipeline = builder.add_sink(SPDL_BUFFER).build(num_threads=3 * concurrency)
    with pipeline.auto_stop():
        yield Loading(iter(pipeline))
    if pool is not None:
        pool.shutdown(cancel_futures=True)


class Reads:
    """A job's items as a data set that is read; the UDF comes in a stage of its own."""

    def __init__(self, job: Job) -> None:
        self._read, self._items = job.read, job.items

    def __len__(self) -> int:
        return self._items

    def __getitem__(self, number: int) -> Any:
        return self._read(number)


class Items(Reads):
    """The same with the UDF, as a data set for a DataLoader."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self._udf = job.udf

    def __getitem__(self, number: int) -> Any:
        return self._udf(self._read(number))


def way_of(name: str, job: Job) -> Any:
    kind, _, number = name.partition(":")
    if kind == "torch":
        return by_torch(job, int(number))
    if kind == "spdl":
        return by_spdl(job, int(number))
    return by_pipeline(job, kind, {"threads": False, "processes": True}.get(number, job.processes))


# -- the run -------------------------------------------------------------------------------------------------------------


def restrict(cores: Sequence[int]) -> None:
    """Let all threads of this process and of its children use only these cores; those to come inherit it."""
    me = psutil.Process()
    for process in (me, *me.children(recursive=True)):
        try:
            threads = [int(entry.name) for entry in Path(f"/proc/{process.pid}/task").iterdir()]
        except FileNotFoundError:
            continue
        for thread in threads:
            try:
                os.sched_setaffinity(thread, cores)
            except ProcessLookupError:
                continue


class MemoryWatch:
    """The most memory that this process and its children held, shared pages counted once."""

    def __init__(self) -> None:
        self.most = 0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> MemoryWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _look(self) -> None:
        me = psutil.Process()
        while True:
            held = 0
            for process in (me, *me.children(recursive=True)):
                try:
                    held += process.memory_full_info().pss
                except psutil.Error:
                    continue
            self.most = max(self.most, held)
            if self._end.wait(_WATCH):
                return


def cpu_seconds() -> tuple[float, float]:
    """Of this process, and of its children, those that have ended too."""
    mine, ended = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    total = ended.ru_utime + ended.ru_stime
    for child in psutil.Process().children(recursive=True):
        try:
            times = child.cpu_times()
        except psutil.Error:
            continue
        total += times.user + times.system
    return mine.ru_utime + mine.ru_stime, total


def train(
    loading: Loading, step: Callable[[Any], None], samples: int, options: Options, cores: Sequence[int]
) -> tuple[list[float], float, float, float, float]:
    """The curve, seconds until the first batch, cores kept busy, and what a sample took of `Run.own` and `Run.workers`.

    ``cores``: all that there are.
    """
    started = time.perf_counter()
    batch = next(loading.batches)
    began = time.perf_counter()
    cpu = cpu_seconds()
    done_in_all = 0
    counts = [0] * round(len(options.cores) * options.seconds / BIN)
    phase = 0
    while (now := time.perf_counter() - began) < len(counts) * BIN:
        if int(now / options.seconds) > phase:
            phase = int(now / options.seconds)
            restrict(cores[: options.cores[phase]])
        step(batch)
        done_in_all += samples
        done = int((time.perf_counter() - began) / BIN)
        if done < len(counts):
            counts[done] += samples
        batch = next(loading.batches)
    took = time.perf_counter() - began
    own, workers = (after - before for before, after in zip(cpu, cpu_seconds(), strict=True))
    each = 1e6 / done_in_all
    return [count / BIN for count in counts], began - started, (own + workers) / took, own * each, workers * each


def run(name: str, way: str, options: Options) -> Run | str:
    import torch

    if way.startswith("spdl"):
        try:
            import spdl.pipeline  # noqa: F401
        except ImportError:
            return "not installed: pip install spdl"
    torch.set_num_threads(1)
    cores = sorted(os.sched_getaffinity(0))
    restrict(cores[: options.cores[0]])
    job = JOBS[name](Path(options.folder), options.records)
    step = job.trainer()
    with MemoryWatch() as memory, way_of(way, job) as loading:
        found = train(loading, step, job.samples, options, cores)
    tuned = loading.tuned
    steps = [[round(step.seen.at, 2), list(step.given), step.wanted.why] for step in tuned.history] if tuned else []
    return Run(*found, tuned.overhead if tuned else 0.0, memory.most, memory.most > options.limit, steps, tuned.failed if tuned else "")


def main() -> None:
    job, way, options = json.loads(sys.argv[1])
    answer = run(job, way, Options(*options))
    print(json.dumps(answer if isinstance(answer, str) else answer._asdict()))


if __name__ == "__main__":
    main()
