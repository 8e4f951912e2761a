"""The daemon's configuration: ``HOME/config.toml``. Every option is documented here; all have sensible defaults."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from ..policies import registry
from .errors import UsageError
from .fieldnames import with_meant
from .fleet.silence import SILENT_AFTER
from .home import Home
from .spec.cron import normalise
from .spec.reading.units import duration, size

Amount = Annotated[float, msgspec.Meta(ge=0, le=1e9)]  #: seconds, days or money; not NaN either
Positive = Annotated[float, msgspec.Meta(gt=0, le=1e9)]
_MEMORY = r"^\d+(\.\d+)? *([kKMGT]i?)?B$"


class PolicyDefault(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The policy of pools for which 'stoker policy set' has set none."""

    name: str = "priority"
    interval: Annotated[float, msgspec.Meta(ge=0.05, le=3600)] = 5.0  #: seconds between ticks; events cause a tick at once


class Guards(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Limits that no policy can override (docs/concepts.md, preemption)."""

    min_run_time: Amount = 30.0  #: seconds a job runs before it may be preempted
    max_preemptions: Annotated[int, msgspec.Meta(ge=0)] | None = 10  #: for each job; None: no limit
    cooldown: Amount = 60.0  #: seconds in which a preempted job may not displace the job it made way for


class RetentionDays(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Days; see Retention in engine/store/maintenance.py."""

    telemetry_full: Amount = 2.0
    telemetry: Amount = 30.0
    metrics_full: Amount = 14.0
    pipelines_full: Amount = 14.0
    decisions: Amount = 30.0
    events: Amount = 365.0


class Runners(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How often runners report, and the consequences of their silence."""

    silent_after: Annotated[float, msgspec.Meta(ge=1, le=86_400)] = SILENT_AFTER  #: a runner silent for so many seconds is suspect
    telemetry_interval: Annotated[float, msgspec.Meta(ge=0.1, le=3600)] = 5.0  #: seconds between samples of each GPU
    checkpoints: str = ""  #: directory that all runners share, for the checkpoints of all jobs; empty: each keeps them in its home
    checkpoints_of_pools: dict[str, str] = {}  #: the same by pool
    fetch_at_most: Annotated[str, msgspec.Meta(pattern=_MEMORY)] = "1GiB"  #: largest checkpoint sent to another host; 0B: none is sent

    def shared(self, pool: str) -> str:
        """The directory that the runners of a pool share, empty: none."""
        return self.checkpoints_of_pools.get(pool, self.checkpoints)

    #: a runner that has not heard from the daemon for so long stops its jobs, and these then begin elsewhere; empty: they go on
    fence_after: str = ""

    @property
    def fenced_after(self) -> float | None:
        return duration(self.fence_after) if self.fence_after else None

    @property
    def fetched_bytes(self) -> int:
        return size(self.fetch_at_most)


class Warm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Warm starts (docs/warm.md)."""

    mode: Literal["auto", "off"] = "auto"  #: auto: runners start jobs by fork, unless one was started with --warm off
    memory: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.25  #: share of a host's main memory that fork servers may take


class Backbones(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Models that jobs start from (docs/backbones.md)."""

    download: bool = False  #: whether jobs download a model from Hugging Face that their host's cache lacks


class Turns(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Jobs that take turns (docs/sharing.md)."""

    turn: Literal["kernel", "cooperative"] = "kernel"  #: turns on CPU slots are given by the kernel by priority, or by the jobs as on GPUs
    #: share of a host's main memory for the batches of a group of jobs that share their input
    input_memory: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.1


class Prices(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Prices of GPU-time and storage in the view `costs`, in any currency. A change holds from the next start of the daemon on."""

    gpu_hour: Amount = 1.0  #: for an hour of a GPU or slot; 1: costs are GPU-hours
    gpus: dict[str, Amount] = {}  #: the same by product name of the GPU, as in `gpus_now.name`
    storage_gib_hour: Amount = 0.0  #: for a GiB of a job's files, for an hour

    def listed(self) -> dict[tuple[str, str], float]:
        """The rows of the table `prices`."""
        named = {("gpu", name): price for name, price in self.gpus.items()}
        return {("gpu", ""): self.gpu_hour, ("storage", ""): self.storage_gib_hour} | named


class Hook(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A command that is run on events: completed, failed, cancelled, deadline-at-risk, disk-low, policy-error, runner-suspect,
    task-error."""

    on: tuple[str, ...]
    command: str  #: for /bin/sh; the event is in STOKER_EVENT, STOKER_JOB_ID, STOKER_JOB_NAME, STOKER_REASON and as JSON on its input
    timeout: Positive = 30.0  #: seconds


HOOK_EVENTS = ("completed", "failed", "cancelled", "deadline-at-risk", "disk-low", "policy-error", "runner-suspect", "task-error")


class Backup(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Backups that the daemon makes on a schedule; the newest seven are kept."""

    cron: str = "30 3 * * *"  #: UTC; empty: none


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    memory: Annotated[str, msgspec.Meta(pattern=_MEMORY)] = "2GiB"  #: limit of DuckDB
    query_seconds: Positive = 30.0  #: longest time of one ad-hoc statement
    query_rows: Annotated[int, msgspec.Meta(ge=1)] = 10_000
    query_memory: Annotated[int, msgspec.Meta(ge=64, le=1 << 20)] = 1024  #: MiB, limit of one ad-hoc statement
    queries: Annotated[int, msgspec.Meta(ge=1, le=64)] = 4  #: ad-hoc statements that run at a time; users take turns


class Access(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Rights of tokens beyond their role."""

    team: bool = False  #: tokens of role submit act on everybody's jobs, schedules and traces, and submit in anybody's name


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    policy: PolicyDefault = PolicyDefault()
    guards: Guards = Guards()
    retention: RetentionDays = RetentionDays()
    runners: Runners = Runners()
    warm: Warm = Warm()
    share: Turns = Turns()
    backbones: Backbones = Backbones()
    prices: Prices = Prices()
    hooks: tuple[Hook, ...] = ()
    backup: Backup = Backup()
    limits: Limits = Limits()
    access: Access = Access()


def load(home: Home) -> Config:
    """The configuration of a home; UsageError names the file, the key, and the nearest known key."""
    try:
        text = home.config.read_bytes()
    except FileNotFoundError:
        return Config()
    try:
        config = msgspec.toml.decode(text, type=Config)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:  # ValidationError is one too
        raise UsageError(f"{home.config}: {_words(str(error))}") from None
    _check(home, config)
    return config


def _check(home: Home, config: Config) -> None:
    """Checks beyond those of the types."""
    try:
        registry.create(config.policy.name, {})
    except (ValueError, KeyError) as error:
        raise UsageError(f"{home.config}: {error.args[0]}") from None
    for key, path in [("checkpoints", config.runners.checkpoints), *config.runners.checkpoints_of_pools.items()]:
        if path and not (path.startswith("/") and path.isprintable()):
            where = key if key == "checkpoints" else f"checkpoints_of_pools.{key}"
            raise UsageError(f"{home.config}: runners.{where}: {path!r} is not the full path of a directory, such as /mnt/shared")
    try:
        fence = config.runners.fenced_after
    except ValueError as error:
        raise UsageError(f"{home.config}: runners.fence_after: {error}") from None
    if fence is not None and fence < config.runners.silent_after:
        raise UsageError(
            f"{home.config}: runners.fence_after: {config.runners.fence_after!r} is less than runners.silent_after, "
            f"{config.runners.silent_after:g} s: runners would stop their jobs between two words of the daemon"
        )
    if config.backup.cron:
        try:
            normalise(config.backup.cron)
        except ValueError as error:
            raise UsageError(f"{home.config}: backup.cron: {error}") from None
    for hook in config.hooks:
        for event in hook.on:
            if event not in HOOK_EVENTS:
                raise UsageError(f"{home.config}: hooks.on: {event!r} is not one of {', '.join(HOOK_EVENTS)}")


def _words(message: str) -> str:
    """The message of msgspec with the nearest known key added."""
    return with_meant(message.replace(f"`str` matching regex {_MEMORY!r}", "a size such as 2GiB"), Config)
