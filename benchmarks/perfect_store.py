"""Runs of the evaluation of PerFect: in processes beside each other, each kept in a file when it ends, none made twice."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

import msgspec
from perfect_case import Case, Measured

_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class _Kept(msgspec.Struct):
    case: Case
    measured: Measured


class Store:
    """A directory of measured runs, one file each; without a directory they are held for the process alone."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._held: dict[Case, Measured] = {}
        if folder:
            folder.mkdir(parents=True, exist_ok=True)

    def get(self, case: Case) -> Measured | None:
        if case not in self._held and self._folder and (path := self._path(case)).exists():
            self._held[case] = msgspec.json.decode(path.read_bytes(), type=_Kept).measured
        return self._held.get(case)

    def all(self, cases: Iterable[Case]) -> dict[Case, Measured]:
        """Those of the cases that there are."""
        return {case: measured for case in cases if (measured := self.get(case)) is not None}

    def put(self, case: Case, measured: Measured) -> None:
        self._held[case] = measured
        if self._folder:
            path = self._path(case)
            partial = path.with_suffix(".partial")
            partial.write_bytes(msgspec.json.encode(_Kept(case, measured)))
            partial.rename(path)

    def _path(self, case: Case) -> Path:
        assert self._folder is not None
        digest = hashlib.sha256(msgspec.json.encode(case)).hexdigest()[:16]
        return self._folder / f"{case.method}-{digest}.json"


def measure(case: Case) -> Measured:
    from perfect_training import Training  # only here: the parent process needs no torch

    return Training(case).run()


def run(cases: Iterable[Case], store: Store, processes: int, tell: Callable[[int, int, str], None]) -> dict[Case, Measured]:
    """Each case once, however often it is asked for, and not if the store has it."""
    wanted = list(dict.fromkeys(cases))
    todo = [case for case in wanted if store.get(case) is None]
    tell(0, len(todo), "")
    for number, (case, measured) in enumerate(_measured(todo, processes), 1):
        store.put(case, measured)
        tell(number, len(todo), str(case))
    return store.all(wanted)


def _measured(todo: list[Case], processes: int) -> Iterator[tuple[Case, Measured]]:
    if processes == 1:
        for case in todo:
            yield case, measure(case)
        return
    os.environ.update(dict.fromkeys(_THREADS, "1"))  # read when a child loads its libraries; threads that wait would count as work
    pool = ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"))
    try:
        futures = {pool.submit(measure, case): case for case in todo}
        for future in as_completed(futures):
            yield futures[future], future.result()
    finally:
        pool.shutdown(cancel_futures=True)  # an evaluation that is stopped waits for the trainings that run, not for all
