"""The job spec: what a person submits, validated and normalised. Built by `load`, stored as JSON in `jobs.spec`.

Durations are seconds, times are seconds since the epoch (UTC), memory is bytes.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, ClassVar, Literal, get_args

import msgspec

Kind = Literal["train", "finetune", "prompt", "infer"]
SERVES = "infer"  #: the kind of a job that answers requests until it is cancelled
Tuner = Literal["rate", "fixed", "unoptimised", "uniform", "dqn", "rate+dqn"]  #: of a pipeline (`known_controllers` of the runners)
Retired = Literal["autotune", "autotune-adaptive", "plumber", "plumber-adaptive"]  #: in old jobs, which now get the default
Stage = Literal["decode", "augment", "batch"]  #: of a job's pipeline, whose workers can be set
#: names of params that only change numbers in the same operations
_SAME_SPEED = frozenset({"seed", "lr", "learning_rate", "weight_decay"})
_GROUP = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", re.ASCII)
REPLAY = "replay"  #: in place of a size of ``share.memory``
FROM_JOB = "job:"  #: prefix of ``weights`` that come from a job
#: recipes' names for the param of their backbone
BACKBONES = ("model", "backbone")
Size = Annotated[int, msgspec.Meta(ge=1, le=1 << 50, extra={"unit": "bytes"})]  #: people write 2GiB
Duration = Annotated[float, msgspec.Meta(ge=0, le=100 * 365.25 * 86_400, extra={"unit": "s"})]  #: people write 10m


class Tier(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One step of a demand: done by ``deadline``, worth ``reward``."""

    deadline: float
    reward: float = 100.0  #: that of a strict deadline; rewards go from 0 to 100 (002 ch. 5.3.3.2)


class Demand(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The wanted completion time: none, a strict deadline (one tier), or soft steps (002 ch. 5.3)."""

    kind: Literal["best-effort", "soft", "strict"] = "best-effort"
    tiers: tuple[Tier, ...] = ()  #: earliest first


class Stop(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The stopping rule: a number of iterations, or a metric's target with a maximum of iterations."""

    iterations: int | None = None  #: the maximum, when a metric is given
    metric: str | None = None
    target: float | None = None
    mode: Literal["max", "min"] = "max"  #: whether the metric must rise to the target or fall to it


class Retries(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Attempts after failures of the job's own; preemptions and lost runners never count."""

    limit: int = 0
    backoff: float = 10.0  #: before the first retry
    factor: float = 2.0
    max_backoff: float = 3600.0
    never_on: tuple[int, ...] = ()  #: exit codes that are final


class Dependency(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Another job, by number, name or idempotency key, that must end first."""

    job: str
    mode: Literal["ok", "any"] = "ok"


class Switch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The final switch to the stage without reuse (004 ch. 4.4.1, 4.4.5)."""

    on: Literal["plateau", "epochs", "fraction"] = "plateau"
    epochs: float | None = None  #: passes over the data (each sample then has been used ``repeat`` times as often); on: epochs
    fraction: float = 0.25  #: of all steps, for the stage without reuse; with a plateau the least such fraction
    watch: str | None = None  #: the metric of a plateau; None: one that the task evaluates, or else the loss on first uses
    mode: Literal["max", "min"] | None = None  #: whether it should rise or fall; None: fall if its name has loss or error
    min_epochs: float = 1.0  #: no plateau before so many passes over the data
    patience: int = 3  #: looks without an improvement that make a plateau
    min_delta: float = 0.002  #: relative improvement that counts as one


class Reuse(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """PerFect: decoded samples are used several times, then the training goes on without reuse (004 ch. 4)."""

    repeat: int = 3  #: uses of each sample in a pass; 1: no reuse
    shuffle_buffer: int | None = None  #: decoded samples that a rank holds; None: ``shuffle_batches``
    shuffle_batches: float = 3.0  #: the same in batches of the rank (004 ch. 4.4.2: 3 were enough where 1 was not)
    memory: int = 1 << 30  #: most bytes of decoded samples that a rank holds
    augment: Literal["each-use", "once"] = "each-use"
    switch: Switch = Switch()
    schedule: Literal["onecycle", "cosine"] = "onecycle"  #: of the learning rate after the switch
    peak: float | Literal["rule", "search"] = "rule"  #: its highest value


class PipelineOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Decoding in stages that run beside the training, sized while they run (003)."""

    tune: Tuner | Retired = "rate"  #: the controller of its sizes
    processes: bool = False  #: workers are processes, for code that holds the interpreter's lock
    workers: dict[str, int] = {}  #: at first, by `Stage`; without tuning for good
    memory: int | None = None
    """Bytes that the process of each rank and its worker processes may use together, the model included: autotuned's ``memory``.

    None: all of the machine or its control group.
    """
    interval: float = 2.0  #: seconds between two decisions

    @property
    def controller(self) -> str:
        return "rate" if self.tune in get_args(Retired) else self.tune


class Block(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A block of a job that is read and checked by its type alone.

    A new one is a subclass and the line ``name: Subclass | None = None`` in `JobSpec`: `reading.blocks` reads it from YAML and from
    ``--set name.field=value``. What is not to be left out stands in docs/job-spec.md.
    """

    changes_speed: ClassVar[bool] = True  #: whether it changes a GPU's work in a step, see `JobSpec.signature`

    def problems(self, spec: JobSpec, /) -> Iterator[tuple[str, str]]:
        """Field of the block ("": the block itself), and a problem with it other than its type."""
        yield from ()


class Share(Block, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whether a job may share its GPUs with others, and how much of them it takes."""

    changes_speed: ClassVar[bool] = False  # speeds are those of a job alone on its GPUs

    gpu: Literal["exclusive", "packed", "switched"] = "exclusive"  #: the kind of group (policies.contract) that it may be in
    #: bytes that it takes of each shared GPU; None: ``gpu_memory``; replay: that during its turn, otherwise only the memory that it keeps
    #: between steps, as it gives a step up for a higher priority and repeats it
    memory: Size | Literal["replay"] | None = None
    #: jobs of a user that name the same share their input: each batch is made by one of them
    input: str | None = None

    @property
    def replays(self) -> bool:
        return self.memory == REPLAY

    @property
    def bytes(self) -> int | None:
        """Bytes of each shared GPU, if it gives a size."""
        return self.memory if isinstance(self.memory, int) else None

    def problems(self, spec: JobSpec, /) -> Iterator[tuple[str, str]]:
        if self.gpu == "switched" and (spec.gpus_min, spec.gpus_max) != (1, 1):
            yield "gpu", "switched takes one GPU, as a gang would wait for the turns of several at once; write gpus: 1"
        if self.input is not None and not _GROUP.fullmatch(self.input):
            yield "input", f"must be up to 100 letters, digits, '.', '_' and '-', not {self.input[:100]!r}"
        if self.input is not None and spec.command is not None:
            yield "input", "is for a recipe or an entrypoint, as Stoker makes their batches; remove it, or write an entrypoint"
        if self.input is not None and spec.kind == "infer":
            yield "input", "is for trainings; remove it"
        if self.input is not None and spec.reuse is not None and spec.reuse.repeat > 1:
            yield "input", "cannot go with reuse, which draws each batch from a buffer of the job's own; remove one of them"
        if self.replays:
            yield from _unfit_to_replay(self, spec)
        elif self.memory and self.gpu == "exclusive":
            yield "memory", "is for a job that shares its GPUs; write gpu: packed beside it, or remove it"
        if self.bytes is not None and self.bytes < spec.gpu_memory:
            yield "memory", f"is less than gpu_memory, {spec.gpu_memory} bytes, which the job needs; raise one or lower the other"


def _unfit_to_replay(share: Share, spec: JobSpec) -> Iterator[tuple[str, str]]:
    what = "replay gives a step up for a job of higher priority, "
    if share.gpu != "switched":
        yield "memory", what + "so it is for jobs that take turns; write gpu: switched beside it, or remove it"
    if spec.command is not None:
        yield "memory", what + "which Stoker cannot do to a command; remove it, or write an entrypoint"
    if spec.memory is not None and spec.memory.cap is not None:
        yield "memory", what + "but with memory.cap a step may have moved weights already; remove it, or memory.cap"
    if spec.reuse is not None and spec.reuse.repeat > 1:
        yield "memory", what + "but with reuse its samples are used up; remove it, or reuse"
    if spec.params.get("features") == "kept":
        yield "memory", what + "but features kept in it are not taken back; remove it, or params.features"


class Memory(Block, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The GPU memory that a training may use, and the batches of a step (004 ch. 3)."""

    cap: Size | None = None  #: bytes of the GPU; the model's parts are swapped in and out to stay below
    #: batches of a step, whose gradients are averaged; auto: chosen at submission, so no stored job has it
    accumulate: Annotated[int, msgspec.Meta(ge=1, le=4096)] | Literal["auto"] = 1
    swap: Literal["auto", "off", "force"] = "auto"  #: auto: as few parts as the cap allows, one if all fits; force: two at least

    @property
    def batches(self) -> int:
        """Of a step."""
        return self.accumulate if self.accumulate != "auto" else 1

    def problems(self, spec: JobSpec, /) -> Iterator[tuple[str, str]]:
        if spec.command is not None:
            yield "", "is for a job with a recipe or an entrypoint: a command manages its memory itself"
        if self.accumulate == "auto" and self.cap is None:
            yield "accumulate", "auto needs a cap, to find the fewest batches that hide the loading of parts; add one, or write a number"
        if self.swap == "off" and self.cap is not None:
            yield "cap", "is a limit for swapping; remove it, or swap: off"
        if self.swap == "force" and self.cap is None:
            yield "swap", "force needs a cap, such as cap: 600MiB"
        if self.cap is not None and 0 < spec.gpu_memory < self.cap:
            yield "cap", f"is more than gpu_memory, {spec.gpu_memory} bytes; lower it, or remove gpu_memory: the cap then counts as that"
        if self.cap is not None and spec.share is not None and spec.share.bytes is not None and spec.share.bytes < self.cap:
            yield "cap", f"is more than share.memory, {spec.share.bytes} bytes; lower it, or raise share.memory"
        if self.cap is not None and (spec.gpus_min, spec.gpus_max) != (1, 1):
            yield "cap", "a model is swapped on one GPU; write gpus: 1"
        if self.cap is not None and spec.params.get("features") == "kept":
            yield "cap", "a model whose features are kept is not swapped; remove params.features, or the cap"
        if spec.reuse is not None and (self.cap is not None or self.batches > 1):
            yield "", "does not work together with reuse; remove one of them"


class Serve(Block, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a job of kind infer takes requests."""

    changes_speed: ClassVar[bool] = False

    batch: Annotated[int, msgspec.Meta(ge=1, le=4096)] = 16  #: most requests computed at once
    delay: Duration = 0.0  #: for which the first request waits for others to fill a batch
    queue: Annotated[int, msgspec.Meta(ge=1, le=65536)] = 256  #: requests that may wait; more are refused

    def problems(self, spec: JobSpec, /) -> Iterator[tuple[str, str]]:
        if spec.kind != SERVES:
            yield "", "is for a job that serves a model; write kind: infer, or remove it"
        if self.queue < self.batch:
            yield "queue", f"holds less than a batch, {self.batch} requests; raise it, or lower batch"
        if self.delay > 60:
            yield "delay", "of more than a minute keeps each client waiting; give a few ms, or leave it out"


class Replicas(Block, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A training by whole copies of the model that come and go, each on one GPU (004 ch. 3): an array whose tasks train together."""

    min: Annotated[int, msgspec.Meta(ge=1, le=1000)]  #: number present at the first step
    max: Annotated[int, msgspec.Meta(ge=1, le=1000)]
    global_batch: Annotated[int, msgspec.Meta(ge=1, le=1 << 24)]  #: samples of a step, over all of them
    quorum_timeout: Duration = 5.0  #: without a sign of life, after which a member counts as lost

    def problems(self, spec: JobSpec, /) -> Iterator[tuple[str, str]]:
        if spec.command is not None:
            yield "", "is for a recipe or an entrypoint; remove it, or write an entrypoint"
        if spec.kind == SERVES:
            yield "", "is for a training; for several servers submit an array"
        if (spec.gpus_min, spec.gpus_max) != (1, 1):
            yield "", "each replica has one GPU; write gpus: 1, and the number of replicas as min and max"
        if self.min > self.max:
            yield "min", f"{self.min} is larger than max, {self.max}; lower one or raise the other"
        elif self.max > self.global_batch:
            yield "max", f"{self.max} replicas cannot share a global batch of {self.global_batch} samples; raise global_batch or lower max"
        elif all(self.global_batch % members for members in range(self.min, self.max + 1)):
            fits = self.global_batch - self.global_batch % self.max or self.max
            yield (
                "global_batch",
                f"no number of members from {self.min} to {self.max} divides {self.global_batch}; give {fits} or {fits + self.max}",
            )
        if not 1.0 <= self.quorum_timeout <= 600.0:
            yield "quorum_timeout", f"must be between 1s and 10m, not {self.quorum_timeout:g}s"
        if spec.reuse is not None or spec.pipeline is not None:
            yield "", "cannot go with reuse or pipeline, which read batches in an order of their own; remove one of them"
        if spec.share is not None and (spec.share.gpu == "switched" or spec.share.input is not None):
            yield (
                "",
                "cannot go with share: {gpu: switched} or share: {input}: a replica that waits for others keeps the turn; remove one",
            )
        if spec.cron is not None:
            yield "", "cannot recur, as an array cannot; let a recurring job submit it"


class Host(Block, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A job's limits on each of its hosts, for all its processes there together."""

    memory: Size | None = None  #: bytes of main memory; a job that takes more is ended
    cpus: Annotated[int, msgspec.Meta(ge=1, le=4096)] | None = None  #: cores at most

    def problems(self, spec: JobSpec, /) -> Iterator[tuple[str, str]]:
        if self.memory is None and self.cpus is None:
            yield "", "is empty; give memory, such as {memory: 8GiB}, or cpus"
        if self.memory is not None and self.memory < 16 << 20:
            yield "memory", f"is {self.memory} bytes, and no program runs in less than 16 MiB; write a size such as 8GiB"
        if self.cpus is not None and spec.share is not None and spec.share.gpu != "exclusive":
            yield "cpus", "does not work for a job that shares its GPUs, as its cores are those of its slots; remove it"


def command_digest(command: Sequence[str]) -> str:
    """A command's digest: other arguments are other work, even under the same name."""
    return hashlib.sha256(json.dumps(command).encode()).hexdigest()[:8]


def base_name(name: str) -> str:
    """Name of a task's array; for any other job its own."""
    return name.partition("[")[0]


class JobSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One job. Exactly one of ``recipe``, ``command`` and ``entrypoint`` is given."""

    name: str
    kind: Kind = "train"
    pool: str = "default"
    user: str = ""
    priority: int = 0
    gpus_min: int = 1
    gpus_max: int = 1
    gpu_memory: int = 0
    demand: Demand = Demand()
    stop: Stop = Stop()
    recipe: str | None = None
    command: tuple[str, ...] | None = None  #: argv; a string in YAML is run by /bin/sh -c
    entrypoint: str | None = None  #: module:function
    params: dict[str, Any] = {}
    env: dict[str, str] = {}
    env_file: str | None = None  #: read by the runner when it starts the job; values are never stored
    workdir: str = ""  #: absolute path of the directory in which the job runs
    reuse: Reuse | None = None  #: of a recipe or an entrypoint; None: each sample is decoded for each use
    pipeline: PipelineOptions | None = None  #: of a recipe or an entrypoint; None: each batch is decoded when it is wanted
    retries: Retries = Retries()
    timeout: float | None = None  #: of one attempt
    grace: float = 30.0  #: between the request to stop and the kill
    hang_after: float | None = None  #: seconds without a report, on an idle GPU, until it counts as hanging; None: 600 s after a report
    estimate: float | None = None  #: duration the submitter expects
    idempotency_key: str | None = None
    labels: dict[str, str] = {}
    after: tuple[Dependency, ...] = ()
    hold: bool = False
    array_index: int | None = None  #: set on the tasks of an array job
    array_size: int | None = None
    array_cap: int | None = None
    #: of a task of an array with a command: a digest of that command before its parameters were put in
    family: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{8}$")] | None = None
    cron: str | None = None  #: recurring: five fields, UTC
    share: Share | None = None  #: None: not given
    memory: Memory | None = None  #: None: all of the model is on its GPUs, and a step is one batch
    backbone: str | None = None  #: as given; `starts_from` also knows recipes' own names of the field
    warm: Literal["auto", "off"] = "auto"  #: whether it may start as a fork of a process that has loaded its imports
    weights: str | None = None  #: initial weights: ``job:`` and the name or number of a job, or the absolute path of a file
    serve: Serve | None = None  #: of kind infer; None: the defaults of `Serve`
    #: of a fine-tuning: ``auto``: with the adapter of an ended job of the same backbone, if that helps; ``job:`` and a name or number: with
    #: that job's adapter, once it has ended; ``never`` (None): from the backbone
    begin: str | None = None
    #: of a fine-tuning: ``job:`` and a name or number: train the first steps together with that job's, on its GPUs; ``transfer``: others
    #: may do so with this one; ``never`` (None): neither
    merge: str | None = None
    replicas: Replicas | None = None  #: None: it is trained by one lease at a time
    host: Host | None = None  #: None: no limit

    @property
    def weights_job(self) -> str | None:
        """Name or number of the job whose newest checkpoint it begins with."""
        return self.weights[len(FROM_JOB) :] if self.weights is not None and self.weights.startswith(FROM_JOB) else None

    @property
    def weights_file(self) -> str | None:
        return None if self.weights_job is not None else self.weights

    @property
    def begin_job(self) -> str | None:
        """Name or number of the job with whose adapter it begins."""
        return self.begin[len(FROM_JOB) :] if self.begin is not None and self.begin.startswith(FROM_JOB) else None

    @property
    def merge_job(self) -> str | None:
        """Name or number of the job together with which its first steps are trained."""
        return self.merge[len(FROM_JOB) :] if self.merge is not None and self.merge.startswith(FROM_JOB) else None

    @property
    def waits_for(self) -> list[str]:
        """Jobs, by the spec's names, without which it cannot start. Weights of its own name are those of an earlier job."""
        sources = [job for job in (self.weights_job, self.begin_job, self.merge_job) if job and job != base_name(self.name)]
        return list(dict.fromkeys([dependency.job for dependency in self.after] + sources))

    def waits_by(self, job: str) -> str:
        """The field by which it waits for a job, or for a task of that array."""
        named = {"begin": self.begin_job, "merge": self.merge_job, "weights": self.weights_job}
        return next((field for field, of in named.items() if of is not None and job in (of, base_name(of))), "after")

    @property
    def model(self) -> str:
        """The key under which estimates are shared: see `jobs.model`. A server has its own, as it shows nothing of a training."""
        of = f"{SERVES}/" if self.kind == SERVES else ""
        if self.recipe:
            backbone = self.params.get("model") or self.params.get("backbone") or self.backbone
            return f"{of}{self.recipe}/{backbone}" if backbone else f"{of}{self.recipe}"
        if self.entrypoint:
            return f"{of}{self.entrypoint}"
        name = self.name if self.array_index is None else base_name(self.name)  # tasks of one array share their estimates
        return f"command/{name}@{self.family or command_digest(self.command or ())}"

    @property
    def memory_of_a_gpu(self) -> int:
        """Bytes, see `jobs.gpu_memory`: its size on a shared GPU if given, else its need, or its cap."""
        return (self.share and self.share.bytes) or self.gpu_memory or (self.memory and self.memory.cap) or 0

    @property
    def starts_from(self) -> str | None:
        """Name of the backbone, see `jobs.backbone`: the field, or a recipe's parameter."""
        spelled = [self.params.get(name) for name in BACKBONES] if self.recipe else []
        return self.backbone or next((name for name in spelled if name and isinstance(name, str)), None)

    @property
    def signature(self) -> int | None:
        """Digest of a GPU's work in a step, see `jobs.signature`. It covers all that may change the speed, so equal means equal speed."""
        if self.command is not None or self.kind == SERVES:  # whose steps are not timed
            return None
        params = {name: value for name, value in self.params.items() if name not in _SAME_SPEED}
        where = self.workdir if self.entrypoint else ""  # other code may have the same name
        work: list[Any] = [self.recipe, self.entrypoint, where, params, self.gpus_min, self.env, self.env_file]
        # Only if they are given, so that signatures from before these blocks stay the same.
        work += [msgspec.to_builtins(block) for block in (self.reuse, self.pipeline) if block is not None]
        work += [{"backbone": self.backbone}] if self.backbone is not None else []
        work += [{"input": True}] if self.share is not None and self.share.input is not None else []  # a step loads less
        blocks = {name: getattr(self, name) for name in self.__struct_fields__ if isinstance(getattr(self, name), Block)}
        work += [{name: msgspec.to_builtins(block)} for name, block in blocks.items() if block.changes_speed]
        digest = hashlib.sha256(json.dumps(work, sort_keys=True, default=str).encode()).digest()
        return int.from_bytes(digest[:8]) >> 1  # fits a BIGINT

    @property
    def deadline(self) -> float | None:
        return self.demand.tiers[-1].deadline if self.demand.tiers else None


class Provenance(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The origin of a submission: its code and command line."""

    argv: list[str]
    cwd: str
    git_commit: str | None = None
    git_diff: str | None = None
    snapshot: str | None = None
    client: str = ""


class Submission(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One request to `POST /v1/jobs`: a job, or all the tasks of an array job, or a recurring job."""

    jobs: list[JobSpec]
    provenance: Provenance
    dry_run: bool = False
