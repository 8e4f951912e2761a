"""Common parts of `stoker simulate` and `stoker replay`: the options of a study, running it, and showing it."""

from __future__ import annotations

import contextlib
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ... import format as fmt
from ...errors import NotFound, StokerError, UsageError
from ..command import App, CommandEnded
from ..output import Answer, Row, console, note, print_table, section, write
from ..running.policy import PolicyName
from . import sim_words
from .sim_options import make_options, sim_options
from .sim_store import RunStore
from .sim_table import columns_for, row_of, without_room

if TYPE_CHECKING:
    from ...sim.cluster import Cluster
    from ...sim.results.record import Average, Recorded
    from ...sim.study import Run, Study, WorkloadSource
    from ...sim.workload import Workload

F = TypeVar("F", bound=Callable[..., Any])


class Folder(click.Path):
    """A folder to write to. An empty name is refused: it would be the current folder, and comes from an empty variable."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail("it is empty; name a folder, or . for the current one", param, ctx)
        return super().convert(value, param, ctx)


ON_RAY = (
    click.option("--on", type=click.Choice(["ray"]), help="As tasks of a Ray cluster, on whose nodes Stoker is installed."),
    click.option("--ray-address", metavar="HOST:PORT", help="Its head (default: $RAY_ADDRESS, or that of this host)."),
)
_STUDY_OPTIONS = (
    click.option("-p", "--policy", "policies", type=PolicyName(), multiple=True, required=True, metavar="NAME[,KEY=VALUE]...",
                 help="Policy to simulate: one of 'stoker policy list', with keys of 'stoker policy show NAME', or your own as "
                      "package.module:Class. May be repeated."),
    click.option("-c", "--config", "settings", multiple=True, metavar="[POLICY.]KEY=VALUE",
                 help="Configuration key, of every policy that has it or of the one named."),
    click.option("--seeds", type=click.IntRange(1, 1000), default=1, show_default=True,
                 help="Runs of each policy, of consecutive seeds; one where nothing is random."),
    click.option("--seed", type=click.IntRange(0, 2**31), default=0, show_default=True, help="The first seed."),
    click.option("-j", "--jobs", "processes", type=click.IntRange(1, 1024), metavar="N", help="Runs at a time (default: one a core)."),
    *ON_RAY,
    click.option("--strict", is_flag=True, help="Jobs larger than the cluster are an error; else they are left out and counted."),
    click.option("--out", type=Folder(file_okay=False, path_type=Path), help="Write figures (PNG) and a page (index.html) there."),
    click.option("--study", "name", metavar="NAME",
                 help="Name to store the runs under, beside those that have it already (default: trace and time)."),
    click.option("--no-store", is_flag=True, help="Do not store the figures in the daemon's database."),
    click.option("--costs", type=click.Choice(["none", "thesis"]), default="none", show_default=True,
                 help="Costs to begin with: none, or suspension and resumption as the thesis measured them."),
)  # fmt: skip


#: Options with which something is drawn.
_RANDOM = "--estimate-error, --estimate-noise, --unknown-share or --failures-per-gpu-hour"
PROGRESS_SECONDS = 10.0  #: seconds between lines in a pipe
_ENDED = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}


def study_options(*, until: bool) -> Callable[[F], F]:
    """Decorator: the options of a study, with those of costs last; ``until``: it may be cut off."""

    def add(command: F) -> F:
        command = sim_options(command, until=until)
        for option in reversed(_STUDY_OPTIONS):
            command = option(command)
        return command

    return add


def make_study(workload: Workload, cluster: Cluster, given: Mapping[str, Any], source: WorkloadSource) -> Study:
    """The study of the options; UsageError names their mistake."""
    from ....policies.registry import POLICIES, NoSuchPolicy
    from ...autosched.simulated_tuning import make_control
    from ...sim.study import Study, choose, runs_of

    try:
        choices = choose(given["policies"], given["settings"])
    except NoSuchPolicy as error:
        raise NotFound(str(error)) from None
    except ValueError as error:
        raise UsageError(str(error)) from None
    if given["strict"]:
        _refuse_large(workload, cluster)
    options, count = make_options(given["costs"], given), given["seeds"]
    if count > 1 and not options.random and all(choice.policy in POLICIES for choice in choices):  # users' own may draw
        note(f"--seeds {count}: nothing is random here, so each policy runs once; {_RANDOM} would make seeds differ")
        count = 1
    seeds = range(given["seed"], given["seed"] + count)
    study = Study(workload, cluster, options, runs_of(choices, seeds), source, make_control)
    _refuse_nothing(study)
    return study


def parse_nodes(text: str) -> Cluster:
    from ...sim.cluster import Cluster

    try:
        return Cluster.parse(text)
    except ValueError as error:
        raise UsageError(f"--{error}") from None


def _refuse_nothing(study: Study) -> None:
    """Refuse a study without jobs, as its figures would be read as a result."""
    workload, cluster = study.workload, study.cluster
    if not len(workload):
        raise UsageError(f"{workload.name} has no jobs")
    fits = workload.gpus_min <= cluster.total
    if not fits.any():
        raise UsageError(f"no job of {workload.name} fits {cluster}: the smallest needs {workload.gpus_min.min()} GPUs; give more --nodes")
    if (first := float(workload.submitted[fits].min())) >= study.until:
        when = f"{fmt.duration(first)} after its start"
        raise UsageError(f"--until: nothing has come by then: the first job of {workload.name} is submitted {when}")


def _refuse_large(workload: Workload, cluster: Cluster) -> None:
    large = [row for row, gpus in enumerate(workload.gpus_min.tolist()) if gpus > cluster.total]
    if large:
        first = f"job {workload.key[large[0]]!r} needs {workload.gpus_min[large[0]]} GPUs"
        more = f", and {len(large) - 1} more are too large" if len(large) > 1 else ""
        raise UsageError(f"--strict: {first}, {cluster} has {cluster.total}{more}; without --strict they are left out")


def answer(app: App, study: Study, given: Mapping[str, Any], notes: Sequence[str] = (), before: Recorded | None = None) -> Answer:
    """Run the study, store each run as it comes, write the report.

    ``notes``: remarks on its jobs, also for the report; ``before``: the real outcome, shown first.
    """
    from ...sim.results.record import averages

    if given["out"]:
        _check_writable(given["out"])
    head = on_ray(given)
    name = given["name"] or f"{study.workload.name} {_now()}"
    for words in sim_words.searches_ahead(study):
        note(words)
    keeper = None if given["no_store"] else RunStore(app, study, name)
    runs, ended = _run(study, given["processes"], keeper, head)
    shown = [*([before] if before else []), *runs]
    means = averages(shown)
    numbers = keeper.numbers if keeper else {}
    rows = [row_of(average) for average in means]
    said = [*sim_words.remarks(study, rows, runs)]
    errors: list[StokerError] = [StokerError(f"{run.outcome.run}: {run.outcome.error}") for run in runs if run.outcome.error]
    stopped = [] if ended is None else [CommandEnded(f"{_ENDED[ended]}: {len(runs)} of {len(study.runs)} runs are done", 128 + ended)]
    page = None
    if given["out"] and means:
        about = [*sim_words.about(study, name, time.time()), *notes, *said]
        try:
            page = _report(given["out"], study, shown, means, about, [str(error) for error in (*errors, *stopped)])
        except UsageError as error:  # the figures are still printed
            errors.append(error)
    value = {
        "simulated": True,
        "study": name,
        "trace": study.workload.name,
        "nodes": str(study.cluster),
        "policies": rows,
        "runs": [{"id": numbers.get(run.outcome.run.number), **run.row, "tuned": run.outcome.tuned} for run in runs],
        "page": page,
    }
    return Answer(value, lambda: _show(study, value, said), [*errors, *stopped])


def _now() -> str:
    """The time to the microsecond: commands that a script starts together are separate studies."""
    return datetime.now().astimezone().strftime("%Y-%m-%d %H:%M:%S.%f")


def _run(study: Study, processes: int | None, keeper: RunStore | None, head: str | None) -> tuple[list[Recorded], signal.Signals | None]:
    """The completed runs, in the order of the study, and the signal that stopped it, if any."""
    from ...sim import simulation_error as errors
    from ...sim.results.record import recorded
    from ...sim.study import cores, run_study
    from ...sim.study_on_ray import run_on_ray

    runs: list[Recorded] = []
    ended = None
    try:
        with _cluster(head) as ray, _signals(), _progress(study) as told:
            coming = run_study(study, processes or cores(), told) if ray is None else run_on_ray(ray, study, processes)
            with contextlib.closing(coming):
                for outcome in coming:
                    runs.append(recorded(study, outcome))
                    told(outcome.run, 1, 1)
                    if keeper is not None:
                        keeper.add(runs[-1])
    except errors.StudyEnded as error:
        ended = signal.Signals(error.number)
    except KeyboardInterrupt:  # the second one
        ended = signal.SIGINT
    return sorted(runs, key=lambda run: run.outcome.run.number), ended


def on_ray(given: Mapping[str, Any]) -> str | None:
    """Head of the requested cluster; None: none is requested. Nothing is connected yet."""
    if given["on"] is None:
        if given["ray_address"]:
            raise UsageError("--ray-address: goes with --on ray")
        return None
    from ...hosts.ray_runners import head

    return head(given["ray_address"])


def _cluster(head: str | None) -> contextlib.AbstractContextManager[Any]:
    """The library of Ray, connected; None: no head was named."""
    from ...hosts.ray_runners import connected

    return contextlib.nullcontext() if head is None else connected(head)


@contextlib.contextmanager
def _signals() -> Iterator[None]:
    """The first Ctrl-C or SIGTERM raises `StudyEnded`; another Ctrl-C has its normal effect, in case the end takes too long."""
    from ...sim import simulation_error as errors

    if threading.current_thread() is not threading.main_thread():
        yield  # signals cannot be set there, and go to the main thread
        return

    def end(number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGTERM:
            before[number] = signal.SIG_IGN  # timeout(1) sends it to the command and then to its group: twice
        restore()
        raise errors.StudyEnded(number)

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    before: dict[int, Any] = {number: signal.getsignal(number) for number in _ENDED if signal.getsignal(number) is not signal.SIG_IGN}
    for number in before:
        signal.signal(number, end)
    try:
        yield
    finally:
        restore()


@contextlib.contextmanager
def _progress(study: Study) -> Iterator[Callable[[Run, int, int], None]]:
    """A bar on a terminal, elsewhere a line from time to time."""
    shares: dict[int, float] = {}
    if not sys.stderr.isatty():
        over = threading.Event()

        def tell() -> None:
            while not over.wait(PROGRESS_SECONDS):
                parts = list(shares.values())
                done, share = sum(part >= 1.0 for part in parts), sum(parts) / len(study.runs)
                note(f"{done} of {len(study.runs)} runs are done, {fmt.percent(share)} of all")

        def heard(run: Run, done: int, total: int) -> None:
            shares[run.number] = done / total if total else 1.0

        threading.Thread(target=tell, daemon=True).start()  # a run says nothing while it searches
        try:
            yield heard
        finally:
            over.set()
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("simulating", total=len(study.runs))

        def told(run: Run, done: int, total: int) -> None:
            shares[run.number] = done / total if total else 1.0
            ended = sum(share >= 1.0 for share in shares.values())
            bar.update(task, completed=sum(shares.values()), description=f"{ended} of {len(study.runs)} runs, {fmt.clean(str(run))}")

        yield told


def _check_writable(out: Path) -> None:
    """Check before hours of simulations, not after them."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=out).close()
    except OSError as error:
        raise _unwritable(out, error) from None


def _report(out: Path, study: Study, runs: Sequence[Recorded], means: Sequence[Average], about: Sequence[str], wrong: Sequence[str]) -> str:
    from .sim_report import write_report

    try:
        return str(write_report(out, study, runs, means, about=about, wrong=wrong))
    except OSError as error:
        raise _unwritable(out, error) from None


def _unwritable(out: Path, error: OSError) -> UsageError:
    return UsageError(f"--out: cannot write {out}: {error.strerror}")


def _show(study: Study, value: Row, said: Sequence[str]) -> None:
    from ...sim.results.history import AS_IT_WAS

    rows = value["policies"]
    replayed = f"; {AS_IT_WAS!r} was measured" if rows and rows[0]["label"] == AS_IT_WAS else ""
    section(f"Simulated: {value['trace']} on {value['nodes']} ({fmt.counted(study.cluster.total, 'GPU')}){replayed}")
    for words in said:
        write(words + "\n")
    columns = columns_for(rows)
    print_table(rows, columns, "no run was completed")
    if sys.stdout.isatty() and (hidden := without_room(rows, columns, console().width)):
        note(f"no room for {', '.join(hidden)}: widen the terminal, or take --json")
    if value["page"]:
        write(f"report: {value['page']}\n")
    if any(run["id"] is not None for run in value["runs"]):
        name = value["study"].replace("'", "''")
        write(f"stored: stoker sql \"FROM sim_runs WHERE study = '{name}'\"\n")
