"""One rank of a job with a recipe or an entrypoint: ``python -m stoker.runners.worker.worker``, alone or under torch's launcher.

Reads assignment.json of ``STOKER_RUN_DIR`` and trains. Exit codes: 0 done; `PREEMPTED_EXIT` stopped as asked, with a checkpoint;
`OOM_EXIT` out of memory; 2 the spec is wrong, with one line about it on stderr; 1 anything else, with its traceback.
"""

from __future__ import annotations

import atexit
import fcntl
import gc
import importlib
import inspect
import io
import logging
import os
import stat
import sys
import threading
import traceback
import weakref
from collections.abc import Callable, Iterator
from contextlib import chdir, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from ...engine.errors import StokerError, UsageError, nearest
from ...engine.home import ENV_IMPORTING
from ...engine.protocol import Assignment, Partner
from ...engine.spec.model import SERVES, JobSpec, Serve
from ..lease.rundir import ENV_CHECKPOINTS, ENV_JOB, ENV_RUN_DIR, OOM_EXIT, OOM_MARKER, PREEMPTED_EXIT
from . import late_dynamo, script

if TYPE_CHECKING:
    import torch

    from ..train.step import PartialStep, Step
    from ..train.task import Task
    from .ranks import Ranks

SWAP_PLAN = "swap-plan"  #: an internal recipe: it plans the job in its parameters
_PACKING = ("gzip", "bz2", "lzma")  #: modules of files that compress
NO_HOST_MEMORY = ("can't allocate memory", "Cannot allocate memory")  #: words of torch's allocator, and of a failed mapping
ENV_THREADS = "STOKER_THREADS"  #: threads of one operation; 1 unless set, as more spin at barriers on a shared host


def main() -> int:
    script.should_stop()  # listens for SIGTERM from here on: the slow imports come next
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stdout)
    try:
        return _train(*_read())
    except StokerError as error:
        sys.stderr.write(f"stoker: {error}\n")
        return error.exit_code
    except Exception as error:
        traceback.print_exc()
        if not _out_of_memory(error):
            _tell_place(error)
            return 1
        sys.stderr.write(f"{OOM_MARKER} {str(error).splitlines()[0] if str(error) else type(error).__name__}\n")
        return OOM_EXIT


def _tell_place(error: Exception) -> None:
    """Write the error's place in the loading as the last line: the log's last line is the job's message."""
    # A note of several lines is a worker process's traceback, which is above already.
    if notes := [note for note in getattr(error, "__notes__", ()) if "\n" not in note]:
        what = " ".join(str(error).split()) or "no message"
        sys.stderr.write(f"stoker: {type(error).__name__}: {what} ({'; '.join(notes)})\n")


def _read() -> tuple[JobSpec, Assignment]:
    """The job and its lease's assignment."""
    run_dir = os.environ.get(ENV_RUN_DIR)
    if not run_dir:
        raise UsageError(f"{ENV_RUN_DIR} is not set: the worker is started by Stoker's runner, with the directory of a lease")
    try:
        assignment = msgspec.json.decode((Path(run_dir) / "assignment.json").read_bytes(), type=Assignment)
        return msgspec.convert(assignment.spec, JobSpec), assignment
    except (OSError, msgspec.DecodeError) as error:
        raise UsageError(f"{run_dir}/assignment.json cannot be read: {error}") from None


@contextmanager
def _imports() -> Iterator[None]:
    """The objects of imports stay; a search for garbage among them, then and during the training, takes a fifth of the start.

    Only before any code of the user's: objects that exist by the end are never searched again, be they garbage or an open file.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def _train(spec: JobSpec, assignment: Assignment) -> int:
    with _imports():
        import torch

        if spec.recipe not in {None, SWAP_PLAN}:  # the model of a plan is a user's
            late_dynamo.put_off()
        from ..train.batches import Interrupted
    torch.set_num_threads(_threads())

    if spec.recipe == SWAP_PLAN:
        try:
            _plan_swapping(spec.params)
        except Interrupted:
            return PREEMPTED_EXIT
        script.done()
        return 0
    from .ranks import Ranks

    if assignment.profile:  # a profiling run must not touch the job's checkpoints
        os.environ[ENV_CHECKPOINTS] = str(Path(os.environ[ENV_RUN_DIR]) / "scratch")
    # Ranks meet before the task is built, so none waits for one that is asked to stop meanwhile.
    ranks = Ranks.join(_device())
    code = _trained(assignment, spec, ranks)
    # Not after an error: it holds the trainer, and leaving a group before the model is gone can hang. The process ends anyway.
    ranks.leave()
    return code


def _trained(assignment: Assignment, spec: JobSpec, ranks: Ranks) -> int:
    """Run the job's part of this lease as a server, a replica, a training or a profiling run; returns the exit code."""
    with _imports():
        from ..train import rng, trainer  # noqa: F401
        from ..train.batches import Interrupted
        from .ranks import any_rank

    seed = spec.params.get("seed", 0)
    rng.seed_all(seed if isinstance(seed, int) else 0)
    try:
        task, interrupted = build(spec), script.should_stop()
    except Interrupted:
        interrupted = True
    if any_rank(interrupted):
        return PREEMPTED_EXIT
    source = assignment.begin_from or spec.weights_file
    begin_from = Path(source) if source else None
    run_dir = Path(os.environ[ENV_RUN_DIR])
    if spec.kind == SERVES:
        from ..share.inference import ModelServer

        frees = spec.share is not None and spec.share.replays
        ModelServer(task, spec.serve or Serve(), begin_from, ranks, run_dir, spec.hang_after, frees=frees).run()
        return PREEMPTED_EXIT
    if spec.replicas is not None and not assignment.profile:
        from ..replicas.replica_trainer import ReplicaTrainer, word_in

        where, step = word_in(run_dir, assignment), _plain_or_swapped(spec, task, ranks)
        replica = ReplicaTrainer(
            task, spec.stop, script.checkpoint_dir(), ranks, spec.replicas, assignment, where, begin_from, step
        )  # fmt: skip
        done = replica.run()
    else:
        done = _has_trained(task, assignment, spec, ranks, begin_from)
    if done:
        script.done()
    return 0 if done else PREEMPTED_EXIT


def _has_trained(task: Task, assignment: Assignment, spec: JobSpec, ranks: Ranks, begin_from: Path | None) -> bool:
    """Train to the end, or measure steps; False: asked to stop before. No reference to the trainer may outlive the call."""
    from ..train.trainer import Trainer

    checkpoints = script.checkpoint_dir()
    loading: dict[str, Any] = {"reuse": spec.reuse, "pipeline": spec.pipeline}
    if assignment.input is not None and not assignment.profile:
        from ..share.input_groups import told

        loading["group"] = told(Path(os.environ[ENV_RUN_DIR]))

    def trainer(checkpoints: Path, **how: Any) -> Trainer:
        return Trainer(task, spec.stop, checkpoints, ranks, work=_work(spec, task, ranks), **loading, **how)

    if assignment.profile:
        from ..train.profiling_run import Profiling

        return Profiling(trainer(checkpoints, parts=spec.gpus_min)).run()
    if assignment.joint is not None and not _first_steps_together(assignment.joint, task, spec, ranks, begins=begin_from is not None):
        return False
    if task.leaves is not None and begin_from is None:
        from ..finetune.beginning import train

        return train(task, trainer, assignment.offers, assignment.curve, spec.stop, checkpoints, ranks)
    training = trainer(checkpoints, begin_from=begin_from)
    done = training.run()
    if done and task.leaves is not None:
        from ..finetune.beginning import tell_left

        tell_left(training, begun=True)
    return done


def _first_steps_together(partner: Partner, task: Task, spec: JobSpec, ranks: Ranks, *, begins: bool) -> bool:
    """``begins``: with the weights of another job. False: asked to stop meanwhile."""
    from ..finetune.joint_phase import train_together
    from ..train.batches import Interrupted

    def other() -> Task:
        about = msgspec.convert(partner.spec, JobSpec)
        with chdir(about.workdir or "."):  # from which its files count
            return build(about)

    try:
        folder = script.checkpoint_dir()
        return train_together(task, partner.job, other, lambda phase: _work(spec, phase, ranks), spec.stop, folder, ranks, begins=begins)
    except Interrupted:
        return False


def _work(spec: JobSpec, task: Task, ranks: Ranks) -> Step | None:
    """The step of the job's spec; None: the plain step."""
    step = _plain_or_swapped(spec, task, ranks)
    if spec.share is None or not spec.share.replays:
        return step
    from ..share.replayed_step import ReplayedStep
    from ..train.step import PlainStep

    assert isinstance(step, PlainStep)
    return ReplayedStep(step)


def _plain_or_swapped(spec: JobSpec, task: Task, ranks: Ranks) -> PartialStep | None:
    if spec.memory is None:
        if spec.share is None or spec.share.gpu != "switched":
            return None
        from ..train.step import PlainStep

        return PlainStep(task, ranks, fused=True)  # no other job can take the turn during an optimizer's step
    from ..swap.swapped_step import step_of

    return step_of(spec.memory, task, ranks)


def _plan_swapping(params: dict[str, Any]) -> None:
    """The internal recipe of 'stoker swap plan'; its parameters are the job to plan."""
    from ..swap import planning
    from ..train import rng

    spec = msgspec.convert(params["job"], JobSpec)
    seed = spec.params.get("seed", 0)
    rng.seed_all(seed if isinstance(seed, int) else 0)
    planning.run(spec, build(spec), params["cap"], params["accumulate"], _device())


def build(spec: JobSpec) -> Task:
    """The task of the job's recipe or entrypoint; UsageError if that is wrong."""
    from ..train.task import Task

    if spec.recipe is not None:
        from ..recipes import find

        recipe = find(spec.recipe)
        params = recipe.resolve(spec.params, spec.backbone)
        if spec.kind == SERVES:  # a server needs no training data
            params |= dict.fromkeys(recipe.samples, 1)
        return recipe.load()(**params)
    if spec.entrypoint is None:
        raise UsageError("entrypoint: the job has neither a recipe nor an entrypoint; the worker runs no commands")
    function = _entrypoint(spec.entrypoint)
    try:
        inspect.signature(function).bind(**spec.params)
    except TypeError as error:
        raise UsageError(f"params: {spec.entrypoint} cannot be called with {sorted(spec.params)}: {error}") from None
    task = function(**spec.params)
    if not isinstance(task, Task):
        raise UsageError(f"entrypoint: {spec.entrypoint} must return a stoker.runners.training.Task, not {type(task).__name__}")
    return task


def _entrypoint(name: str) -> Callable[..., Any]:
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise UsageError(f"entrypoint: {name!r} is not of the form module:function")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)  # as `python script.py` does, also where PYTHONSAFEPATH is set
    os.environ[ENV_IMPORTING] = os.environ.get(ENV_JOB, "0")  # submissions by the import are refused
    try:
        with _import_errors(name, module_name):
            module = importlib.import_module(module_name)
    finally:
        del os.environ[ENV_IMPORTING]
    function: Callable[..., Any] | None = getattr(module, attribute, None)
    if not callable(function):
        known = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise UsageError(f"entrypoint: {module_name} ({module.__file__}) has no function {attribute!r}{nearest(attribute, known)}")
    return function


@contextmanager
def _import_errors(entrypoint: str, module: str) -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name and (module == error.name or module.startswith(error.name + ".")):
            message = f"entrypoint: there is no module {error.name!r} in {Path.cwd()} or where Python is installed; check 'workdir'"
        else:
            message = f"entrypoint: {module} needs the module {error.name!r}, which is not installed for {sys.executable}"
        raise UsageError(message) from None
    except SyntaxError as error:
        raise UsageError(f"entrypoint: {error.filename}, line {error.lineno}: {error.msg}") from None
    except ImportError as error:
        raise UsageError(f"entrypoint: importing {module} failed: {error}") from None


def _threads() -> int:
    given = os.environ.get(ENV_THREADS, "1")
    if not given.isdecimal() or int(given) < 1:
        raise UsageError(f"{ENV_THREADS}: {given!r} is not a number of threads; give 1 or more")
    return int(given)


def _device() -> torch.device:
    """The GPU of this local rank among the visible ones; the CPU when none is given."""
    import torch

    if not os.environ.get("CUDA_VISIBLE_DEVICES"):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        why = "this torch has no CUDA support" if torch.version.cuda is None else "torch finds no usable CUDA driver or GPU"
        raise StokerError(f"the job was given GPUs, but {why}; see 'stoker doctor'")
    local, visible = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if local >= visible:
        raise StokerError(f"local rank {local} has no GPU: {visible} visible in CUDA_VISIBLE_DEVICES")
    torch.cuda.set_device(local)
    return torch.device("cuda", local)


def _out_of_memory(error: BaseException) -> bool:
    import torch

    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    # The CPU allocator and the CUDA libraries raise a plain RuntimeError.
    words = (*NO_HOST_MEMORY, "out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
    return isinstance(error, RuntimeError) and any(word in str(error) for word in words)


def leave(code: int) -> NoReturn:
    """Leave without finalizing the interpreter, which takes half a second with torch's modules, and may abort the process.

    A thread that frees a tensor during finalization takes the interpreter's lock, which aborts the process after all its work. Gloo's
    threads hold tensors of the last collectives, although the group was destroyed (pytorch #179291), and a thread that loads an unused
    batch holds that batch. And a forked worker has the frames of its supervisor below its own.
    """
    threading._shutdown()  # type: ignore[attr-defined]  # waits for the user's threads, and ends those of idle executors
    _keep_operators()
    atexit._run_exitfuncs()  # of the user's code
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    daemons = any(thread.daemon for thread in threading.enumerate() if thread is not threading.current_thread())
    if not daemons and int(os.environ.get("WORLD_SIZE", "1")) == 1 and _writes_a_file():
        _write_out()
    os._exit(code)


def _keep_operators() -> None:
    """Keep torch from unregistering each of its operators, which takes 25 ms, in a process that is about to end."""
    for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        if (known := finalizer.peek()) is not None and known[1].__module__ == "torch.library":
            finalizer.atexit = False


def _write_out() -> None:
    """Flush all Python files, text before bytes; files that compress are closed in between, as their end is not written before."""
    gc.unfreeze()  # else files that were open as the user's code called gc.freeze are not found
    found = [one for one in gc.get_objects() if isinstance(one, io.IOBase)]
    texts = [one for one in found if isinstance(one, io.TextIOWrapper)]
    plain = [one for one in found if isinstance(one, io.BufferedWriter | io.BufferedRandom)]
    packing = [one for one in found if isinstance(one, io.BufferedIOBase) and type(one).__module__ in _PACKING]
    for one in texts + packing + plain:
        with suppress(OSError, ValueError):
            if stat.S_ISREG(os.fstat(one.fileno()).st_mode):  # a pipe may have no reader
                (one.close if one in packing else one.flush)()


def _writes_a_file() -> bool:
    """Whether a file is open for writing, beside the standard streams and the reports, which have no buffer."""
    reports = Path(os.environ.get(ENV_RUN_DIR, "/"))
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # the descriptor of this very listing is gone
            if int(entry.name) <= 2 or not stat.S_ISREG(entry.stat().st_mode) or entry.readlink().parent == reports:
                continue
            if fcntl.fcntl(int(entry.name), fcntl.F_GETFL) & os.O_ACCMODE:
                return True
    return False


if __name__ == "__main__":
    leave(main())
