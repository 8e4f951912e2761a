"""Words of Slurm, Docker, kubectl and shells that are not ours: each is answered with the command to type. None is an alias."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import click


class Hint(NamedTuple):
    sentence: str
    command: str  #: with {jobs} and {words} for the words that followed


def _hints(*rows: tuple[str, str, str]) -> dict[str, Hint]:
    return {word: Hint(sentence, command) for words, sentence, command in rows for word in words.split()}


COMMANDS = _hints(
    ("kill stop abort delete del rm remove terminate scancel qdel bkill", "a job is ended with", "stoker cancel {jobs}"),
    ("squeue qstat bjobs queue list ls jobs", "jobs are listed with", "stoker ps"),
    ("rerun restart resubmit requeue redo",
     "a job that fails is tried again as often as its 'retries' say; one that failed or was cancelled is submitted once more with",
     "stoker retry {jobs}"),
    ("join await", "the end of a job is waited for with 'stoker submit --wait', or later with", "stoker wait {jobs}"),
    ("prune gc purge cleanup df", "what is kept, and until when, is shown by", "stoker clean"),
    ("sbatch srun salloc qsub bsub run exec launch create add apply", "a job is submitted with", "stoker submit -- {words}"),
    ("suspend pause", "a job gives its GPUs back, and waits, with", "stoker hold {jobs}"),
    ("resume unpause unhold continue", "a held job goes on with", "stoker release {jobs}"),
    ("scontrol describe inspect info get job cat", "all about a job is told by", "stoker show {jobs}"),
    ("why", "why a job waits is told by", "stoker explain {jobs}"),
    ("tail log attach output follow", "what a job writes is printed by", "stoker logs -f {jobs}"),
    ("sinfo qhost nodes hosts cluster pools", "runners and pools are shown by", "stoker status"),
    ("htop nvtop gpus gpu nvidia-smi watch", "GPUs, and what runs on them, are shown by", "stoker top"),
    ("sacct qacct history", "jobs of all times are listed with", "stoker ps --all"),
    ("nice renice prio", "the priority of a job, here 10, is changed with", "stoker priority 10 {jobs}"),
    ("start serve init daemon", "the daemon and a runner are started with", "stoker up --detach"),
    ("undrain uncordon", "a drained runner takes jobs again with", "stoker runner resume NODE"),
    ("quit shutdown exit", "the daemon is stopped with", "stoker down"),
)  # fmt: skip

#: of commands that take no job
WITH_A_JOB = _hints(("ps status top", "one job is shown by", "stoker show {jobs}"))

OPTIONS = {
    "submit": _hints(
        ("--memory --mem --ram --mem-per-gpu",
         "GPU memory that it needs is --gpu-memory SIZE; it trains in less with", "stoker submit --set memory.cap=8GiB"),
        ("--cap --memory-cap --max-memory", "it trains in less memory than it needs with", "stoker submit --set memory.cap=8GiB"),
        ("--gres --num-gpus --ngpus --gpus-per-task --gpus-per-node", "GPUs are asked for with", "stoker submit --gpus 2"),
        ("--cpus --cpu --cores --cpus-per-task", "cores of the host are limited with", "stoker submit --set host.cpus=2"),
        ("--host-memory --mem-per-cpu", "main memory of the host is limited with", "stoker submit --set host.memory=8GiB"),
        ("--ntasks --nodes", "GPUs alone are asked for", "stoker submit --gpus 2"),
        ("--time --time-limit --walltime --max-time", "the longest time of an attempt is", "stoker submit --timeout 2h"),
        ("--partition --queue --qos", "GPUs belong to pools", "stoker submit --pool default"),
        ("--dependency --depends-on --needs", "it waits for another job with", "stoker submit --after JOB"),
        ("--output --error --log -o", "what a job writes is kept, and printed by", "stoker logs JOB"),
        ("--chdir --cwd --dir", "it runs in another directory with", "stoker submit --workdir DIR"),
        ("--job-name --title", "a job is named with", "stoker submit --name NAME"),
        ("--retry --max-retries --restart", "it is tried again after failures with", "stoker submit --retries 3"),
        ("--script --command --cmd --exec", "a command stands after '--'", "stoker submit -- python train.py"),
        ("--nice", "larger is more urgent", "stoker submit --priority 10"),
    ),
    "ps": _hints(
        ("-u", "jobs of one user are listed with", "stoker ps --user NAME"),
        ("--watch -w -f --follow", "jobs and GPUs are watched with", "stoker top"),
    ),
    "logs": _hints(("--tail --last", "the last lines are printed by", "stoker logs -n 20 JOB")),
}  # fmt: skip

_PROGRAMS = ("python", "python3", "bash", "sh", "torchrun", "accelerate", "deepspeed")
_SCRIPTS = {".py": ("python",), ".sh": ("bash",)}


def command_hint(word: str, rest: Sequence[str]) -> str:
    """The command to type in place of an unknown one, with the words that followed; "" if there is no guess."""
    return _filled(COMMANDS.get(word), rest)


def job_hint(command: str, rest: Sequence[str]) -> str:
    """The command to type in place of one that takes no job, but was given one."""
    return _filled(WITH_A_JOB.get(command), rest)


def option_hint(error: click.NoSuchOption) -> str:
    """The option to type in place of an unknown one."""
    command = error.ctx.command_path.partition(" ")[2] if error.ctx else ""
    return _filled(OPTIONS.get("submit" if command == "prompt tune" else command, {}).get(error.option_name), ())


def _filled(hint: Hint | None, rest: Sequence[str]) -> str:
    if hint is None:
        return ""
    jobs = shlex.join(word for word in rest if not word.startswith("-")) or "JOB"
    return f"{hint.sentence}: {hint.command.format(jobs=jobs, words=shlex.join(_runnable(rest)) or 'python train.py')}"


def as_submission(words: Sequence[str]) -> str:
    """The submission of words that were meant as a command."""
    return f"stoker submit -- {shlex.join(_runnable(words))}"


def _runnable(words: Sequence[str]) -> list[str]:
    return [*_SCRIPTS.get(Path(words[0]).suffix, ()), *words] if words else []


def begin_of_command(words: Sequence[str]) -> int | None:
    """The place among options and files where a command begins; None: there is none."""
    found = (place for place, word in enumerate(words) if word in _PROGRAMS or (Path(word).suffix in _SCRIPTS and not word.startswith("-")))
    return next(found, None)


def is_program(path: Path) -> bool:
    """Whether a file is a program, not a file of jobs."""
    if path.suffix in _SCRIPTS:
        return True
    try:
        with path.open("rb") as file:
            return file.read(4).startswith((b"#!", b"\x7fELF"))
    except OSError:
        return False
