"""Calls by which a training script reports its progress to Stoker, and asks whether to stop. Standard library only, cheap to import.

Outside Stoker (no ``STOKER_RUN_DIR``) nothing is written, no signal handler is installed and nothing is ever asked to stop.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import operator
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from ..lease.rundir import CPUS, DONE, ENV_CHECKPOINTS, ENV_NODE_RANK, ENV_RUN_DIR, STOP_SEEN

_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False, ensure_ascii=False).encode

_SEARCHED_BYTES = 1 << 16  #: bytes read back to find the last record; a record is a few hundred
_LONGEST_NAME = 200  #: of a value, as in `protocol`, whose import would cost a script more than all of this module
_LARGEST, _MOST, _MOST_VALUES = 1e300, 2**62, 1000  #: limits of a value, of a whole number, and of values in one report, as there
_MEMORY_INTERVAL = 1.0  #: seconds between looks at the peak of GPU memory, which cost more than a record


class _Reports:
    """The reports file of this rank. Several processes may append (a shell that runs two scripts, forked children)."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._lock = threading.Lock()
        self._seq = 0
        self._end = 0  #: size of the file after our last record
        self._glue = b""  #: ends a torn line of another process
        self._complained: set[str] = set()

    def append(self, record: dict[str, Any]) -> None:
        with self._lock:
            fcntl.flock(self._fd, fcntl.LOCK_EX)
            try:
                self._append(record)
            except OSError as error:  # a full disk must not end the training
                self.complain("write", f"cannot report: {error.strerror}; training goes on unseen")
            finally:
                fcntl.flock(self._fd, fcntl.LOCK_UN)

    def _append(self, record: dict[str, Any]) -> None:
        size = os.fstat(self._fd).st_size
        if size != self._end:
            self._read_tail(size)
        record["seq"] = self._seq + 1
        line = self._glue + _encode(record).encode() + b"\n"
        written = os.write(self._fd, line)  # one write: a killed process leaves whole lines, unless one crosses a page
        self._end = size + written
        self._glue = b"" if written == len(line) else b"\n"
        if written == len(line):
            self._seq += 1

    def _read_tail(self, size: int) -> None:
        tail = os.pread(self._fd, _SEARCHED_BYTES, max(0, size - _SEARCHED_BYTES))
        self._glue = b"" if tail.endswith(b"\n") or not tail else b"\n"
        for line in reversed(tail.split(b"\n")):
            try:
                self._seq = int(json.loads(line)["seq"])
                return
            except (ValueError, KeyError, TypeError):
                continue

    def complain(self, about: str, message: str) -> None:
        """Say it on stderr, once."""
        if about not in self._complained:
            self._complained.add(about)
            with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or none
                sys.stderr.write(f"stoker: {message}\n")


class _GivenCores:
    """The job's part of the node's cores; read again only after the agent has put a new file in place."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._seen: tuple[int, int] | None = None  #: inode and time of the file that was read
        self._cpus: float | None = None

    def cpus(self) -> float | None:
        try:
            found = os.stat(self._path)  # noqa: PTH116 - asked at each step of a tuner; a Path takes three times as long
            seen = (found.st_ino, found.st_mtime_ns)
            if seen != self._seen:
                self._cpus, self._seen = float(json.loads(Path(self._path).read_bytes())["cpus"]), seen
        except (OSError, ValueError, KeyError, TypeError):  # not there yet, or cut short by a full disk: the old figure stays
            pass
        return self._cpus


class _State:
    """State of this process. Made anew in a forked child, which must not share the parent's numbering."""

    def __init__(self) -> None:
        self.run_dir = Path(given) if (given := os.environ.get(ENV_RUN_DIR)) else None
        self.stop_file = f"{given}/stop.json"
        self.cores = _GivenCores(f"{given}/{CPUS}")
        self.stop = False
        self.listening = False
        self.seen = False
        self.reports: _Reports | None = None
        self.lock = threading.Lock()
        self.memory_read = -math.inf
        self.kept_memory: int | None = None  #: for the next report
        self.kept_told = 0
        self.yields: Callable[[], None] | None = None

    def open_reports(self, run_dir: Path) -> _Reports:
        with self.lock:
            if self.reports is None:
                # A command without a launcher's rank runs once a node: the reports of two nodes must not be taken for one's.
                rank = int(os.environ.get("RANK") or os.environ.get(ENV_NODE_RANK) or 0)
                self.reports = _Reports(run_dir / f"reports-{rank}.jsonl")
            return self.reports


_state = _State()


def _after_fork() -> None:
    global _state
    stop, listening, yields = _state.stop, _state.listening, _state.yields
    _state = _State()
    _state.stop, _state.listening = stop, listening
    if yields is not None:  # the parent takes the turns
        _state.yields = lambda: None


os.register_at_fork(after_in_child=_after_fork)


def begin() -> None:
    """Begin anew with the environment as it is now: a forked worker gets its own after this module was imported."""
    global _state
    _state = _State()


def report(*, step: int, total: int | None = None, checkpoint: int | None = None, memory: int | None = None, **values: float) -> None:
    """Report that ``step`` steps are done, with any values: ``report(step=10, loss=0.3, accuracy=0.9)``.

    ``total``: steps in all, from which the end is estimated. ``checkpoint``: the step of a checkpoint that is now durable.
    ``memory``: peak GPU memory in bytes, read from torch unless given. Values that are not finite cannot be stored: they are
    left out, and counted in a value named ``nonfinite``.
    """
    state = _state
    if state.run_dir is None:
        return
    reports = state.reports or state.open_reports(state.run_dir)
    record: dict[str, Any] = {**_stamp(), "step": _count("step", step)}
    if len(values) > _MOST_VALUES:
        raise ValueError(f"report: {len(values)} values; one report takes {_MOST_VALUES} at most")
    if values:
        record["values"] = _finite(values, step, reports)
    if total is not None:
        record["total"] = _count("total", total)
    if checkpoint is not None:
        record["checkpoint"] = _count("checkpoint", checkpoint)
    if memory is None and (now := time.monotonic()) - state.memory_read >= _MEMORY_INTERVAL:
        state.memory_read = now
        memory = _peak_gpu_memory()
    if memory is not None:
        record["memory"] = _count("memory", memory)
    if state.kept_memory is not None:
        record["kept"], state.kept_memory = _count("kept", state.kept_memory), None
    reports.append(record)


def _stamp() -> dict[str, Any]:
    """The time of a record, by the time of day, which may be set meanwhile, and by the boot clock. It is numbered as it is written."""
    return {"seq": 0, "ts": time.time(), "at": time.clock_gettime(time.CLOCK_BOOTTIME)}


def report_speed(*, steps: int, compute: float, communication: float | None, total: int | None = None) -> None:
    """Report the time of a step, measured over ``steps``: the fields of `protocol.Speed`. ``total``: steps of the job in all."""
    state = _state
    if state.run_dir is None:
        return
    speed = {"compute": compute, "communication": communication, "steps": steps, "memory": _peak_gpu_memory()}
    record: dict[str, Any] = {**_stamp(), "step": 0, "speed": {k: v for k, v in speed.items() if v is not None}}
    if total is not None:
        record["total"] = total
    (state.reports or state.open_reports(state.run_dir)).append(record)


def keeps(memory: int) -> None:
    """The job holds so many bytes of its GPU while others compute there; goes with the next report."""
    if memory > 1.02 * _state.kept_told:
        _state.kept_told = _state.kept_memory = memory


def report_pipeline(pipeline: Mapping[str, Any]) -> None:
    """Report a tuner's measurements and actions: the fields of `protocol.Pipeline`. Numbers that are not finite are left out."""
    state = _state
    if state.run_dir is None:
        return
    stages = [_known(stage) for stage in pipeline["stages"]]
    record = {**_stamp(), "step": 0, "pipeline": {**_known(pipeline), "stages": stages}}
    (state.reports or state.open_reports(state.run_dir)).append(record)


def report_of_adapters(**told: Mapping[str, Any]) -> None:
    """Report the adapter that the job began with (``begun``) or has left (``adapter``): fields of the structs of `protocol`."""
    state = _state
    if state.run_dir is not None:
        (state.reports or state.open_reports(state.run_dir)).append({**_stamp(), "step": 0, **told})


def given_cores() -> float | None:
    """Cores of this node that this process may use now, perhaps a fraction; None outside a job. The call takes microseconds: ask often.

    The runner divides the cores among the running jobs by the GPUs that they hold, again whenever one starts or ends. Ranks
    on the same node divide the job's part.
    """
    state = _state
    cpus = state.cores.cpus() if state.run_dir is not None else None
    return None if cpus is None else cpus / max(1, int(os.environ.get("LOCAL_WORLD_SIZE") or 1))


def should_stop(*, sync: bool = False) -> bool:
    """Whether Stoker has asked the job to stop: finish the step, save to `checkpoint_dir`, and leave.

    The first call, in the main thread, makes SIGTERM set a flag instead of ending the process; a script that never
    asks is ended by the signal. ``sync``: all ranks of torch.distributed call it together and get the same answer.
    """
    state = _state
    if state.run_dir is None:
        return False
    if not state.listening:
        _listen(state)
    # The agent writes stop.json before it signals: this serves calls outside the main thread, and scripts whose
    # libraries took the signal over.
    stop = state.stop or os.path.exists(state.stop_file)  # noqa: PTH110 - asked each step; a Path takes four times as long
    if sync:
        from .ranks import any_rank

        stop = any_rank(stop)
    if stop and not state.seen:
        state.stop = state.seen = True
        (state.run_dir / STOP_SEEN).touch()
    return stop


def yield_point() -> None:
    """Call it between two steps of a script that shares its GPU (``share: {gpu: switched}``): jobs of higher priority, and waiting equals,
    compute first; then it returns, and the script has the turn until the next call. Without turns it does nothing.

    A script that never calls it is stopped and continued by Stoker while others have the turn. Within a recipe's or an entrypoint's
    task, which yields at each layer, it is one more such point.
    """
    state = _state
    if state.yields is None and state.run_dir is not None:
        from ..share.yield_points import YieldPoints

        state.yields = YieldPoints(state.run_dir)
    if state.yields is not None:
        state.yields()


def yield_by(look: Callable[[], None]) -> None:
    """This process takes turns by itself; ``look`` is called at each yield point."""
    _state.yields = look


def done() -> None:
    """Tell Stoker that all work is finished and saved: exit code 0 then means completion, even after a late request to stop.

    Only needed by a script that handles SIGTERM or asks `should_stop`, and reports no ``total``. In a gang each rank calls it.
    """
    if _state.run_dir is not None:
        (_state.run_dir / DONE).touch()


def checkpoint_dir() -> Path:
    """Directory of the job's checkpoints; its files outlive preemption and restarts.

    Outside Stoker it is ``checkpoints`` below the working directory, so that the same lines save and resume there.
    """
    path = Path(os.environ.get(ENV_CHECKPOINTS) or "checkpoints")
    path.mkdir(parents=True, exist_ok=True)
    return path


def _listen(state: _State) -> None:
    if threading.current_thread() is not threading.main_thread():
        return
    before = signal.getsignal(signal.SIGTERM)

    def on_sigterm(number: int, frame: FrameType | None) -> None:
        # Only a flag: saving inside a handler corrupts the work of the interrupted code (Lightning #21406).
        _state.stop = True
        if callable(before):
            before(number, frame)

    signal.signal(signal.SIGTERM, on_sigterm)
    state.listening = True


def _finite(values: dict[str, float], step: int, reports: _Reports) -> dict[str, float]:
    finite: dict[str, float] = {}
    for name, value in values.items():
        if not 0 < len(name) <= _LONGEST_NAME or not is_text(name):
            reports.complain(
                "name", f"{name[:40]!a}…: a value's name has 1 to {_LONGEST_NAME} characters, all of them Unicode; it is left out"
            )
            continue
        try:
            number = float(value)
        except (TypeError, ValueError, RuntimeError, OverflowError):  # a RuntimeError is torch's, of several elements
            raise TypeError(f"report: {name} must be a number, not {type(value).__name__} {repr(value)[:100]}") from None
        if abs(number) <= _LARGEST:
            finite[name] = number
        else:
            reports.complain(name, f"{name} is {number} at step {step}; such values are counted as 'nonfinite', not stored")
            finite["nonfinite"] = finite.get("nonfinite", 0.0) + 1.0
    return finite


def is_text(name: str) -> bool:
    """Whether it has no halves of surrogate pairs, which `os.fsdecode` makes from a file's name that is not UTF-8."""
    try:
        name.encode()
        return True
    except UnicodeEncodeError:
        return False


def _count(name: str, value: Any) -> int:
    """A whole number that the tables can hold; raises for any other, so that it is not lost silently later."""
    number: int | None
    try:
        number = operator.index(value)
    except (TypeError, ValueError, RuntimeError):
        try:
            number = int(value) if not isinstance(value, (str, bytes)) and float(value).is_integer() else None
        except (TypeError, ValueError, RuntimeError, OverflowError):
            number = None
    if number is None or not 0 <= number <= _MOST:
        raise ValueError(f"report: {name} must be a whole number from 0 to {_MOST}, not {type(value).__name__} {repr(value)[:100]}")
    return number


def _known(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Without fields that are None or not finite: JSON has no word for the latter."""
    return {
        name: value for name, value in fields.items() if value is not None and not (isinstance(value, float) and not math.isfinite(value))
    }


def _peak_gpu_memory() -> int | None:
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    return int(torch.cuda.max_memory_allocated())
