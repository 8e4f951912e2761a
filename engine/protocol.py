"""Messages between the daemon and its runners, and where their endpoints are. JSON by msgspec.

The daemon answers a poll with ALL the leases that the node should have (desired state); the runner makes
it so: it starts leases that it lacks, stops marked ones, kills those that are not listed. Every message
carries the node's session; every report carries the lease, which is the fencing number.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

import msgspec

#: The ranges of the tables' columns: one value outside would make a whole report fail, so it is refused where it is read.
Count = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
Time = Annotated[float, msgspec.Meta(ge=0, le=4e9)]  #: seconds since the epoch
Small = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
Whole = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
LARGEST_FIGURE = 1e300
Figure = Annotated[float, msgspec.Meta(ge=-LARGEST_FIGURE, le=LARGEST_FIGURE)]  #: a finite number
MOST_WORDS = 2000  #: characters of a message
LONGEST_NAME = 200  #: characters of the name of a metric, a stage and the like
MOST_VALUES = 1000  #: values of one record
MOST_GPUS = 4096  #: GPUs or slots of one runner
Words = Annotated[str, msgspec.Meta(max_length=MOST_WORDS)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=LONGEST_NAME)]
PathName = Annotated[str, msgspec.Meta(max_length=4096)]

#: the form of a runner's name, which is part of file names, GPU ids and messages
NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", re.ASCII)
NODE_FORM = "up to 100 letters, digits, '.', '_' and '-', beginning with a letter or digit"

DIGEST = r"^[0-9a-f]{64}$"  #: SHA-256

SERVER_SOCKET = "infer.sock"  #: in the run directory of a lease that serves a model: a line of JSON in, a line out
LONGEST_REQUEST = 1 << 20  #: bytes of a line to that socket

VERSION = 1  #: version of this protocol; a runner with another one is refused with a clear error

HELLO, POLL, REPORT, LOG = "/v1/runner/hello", "/v1/runner/poll", "/v1/runner/report", "/v1/runner/log"
LAST_LOG = "/v1/runner/last_log"
ASKED = "/v1/runner/asked"
ENV_PILOT = "STOKER_PILOT"  #: set for a runner that a batch job starts: `Hello.pilot`
BUNDLE_PIECE, BUNDLE = "/v1/runner/bundle_piece", "/v1/runner/bundle"
CHECKPOINT_SENT = "/v1/runner/checkpoint_sent"


class GpuInfo(msgspec.Struct, frozen=True, kw_only=True):
    id: str  #: UUID, or NODE/cpuN for a CPU slot
    index: Whole
    kind: Literal["cuda", "cpu"]
    name: str
    memory: Annotated[int, msgspec.Meta(ge=-(2**62), le=2**62)] = 0  #: bytes
    health: Literal["ok", "dirty", "quarantined", "missing"] = "ok"
    note: str | None = None


class PlaceTold(msgspec.Struct, frozen=True, kw_only=True):
    """Where the checkpoints of a runner's jobs lie: runners with the same name for it read the same ones."""

    name: Name
    path: PathName  #: the directory on that host: a job's checkpoints are in PATH/<job>/checkpoints


class SharedPlace(msgspec.Struct, frozen=True, kw_only=True):
    """A directory in which runners of several hosts are to keep their checkpoints."""

    path: str
    name: str  #: of this daemon's folder below it, and the content of the probe file there
    known: bool  #: a runner has found or made that file


class Hello(msgspec.Struct, frozen=True, kw_only=True):
    """A runner registers. Its former session is ended; its live workers are adopted from ``leases``."""

    protocol: int
    version: str
    node: str
    host: str
    boot_id: str
    pid: Count
    pid_started: Figure
    home: str
    address: str
    pool: str
    gpus: list[GpuInfo]
    leases: list[Count]  #: leases whose run directories the runner still keeps (running, or ended and unreported)
    place: Name | None = None  #: name of its home as a place of checkpoints; None: its version does not say
    leaves_in: Annotated[float, msgspec.Meta(ge=0, le=1e9)] | None = None  #: seconds until it hands its node back; None: it does not
    #: bytes of the largest checkpoint that it fetches from other hosts or sends there, as the daemon says; None: its version does neither
    fetch_at_most: Count | None = None
    #: seconds without an answer of the daemon after which it stops all its jobs, as the daemon says; None: some of them go on
    fence_after: Annotated[float, msgspec.Meta(ge=0, le=1e9)] | None = None
    pilot: Name | None = None  #: ENGINE/CLUSTER/JOB/HOST of the batch job to which it belongs and with which it ends; None: none
    serves: Name | None = (
        None  #: the daemon whose jobs are in its home (its `Welcome.daemon`); None: there are none, or its version does not say
    )


class Welcome(msgspec.Struct, frozen=True, kw_only=True):
    session: int
    telemetry_interval: float  #: seconds between GPU samples
    heartbeat: float  #: longest wait of a poll in seconds
    warm: Literal["auto", "off"] = "off"  #: auto: jobs start by fork, unless the runner was started with --warm off
    turn: Literal["kernel", "cooperative"] = "kernel"  #: how jobs that share a CPU slot by turns are switched
    input_memory: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.1  #: share of the host's main memory that a group's batches may take
    warm_memory: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.25  #: share of the host's main memory that fork servers may take
    shared: SharedPlace | None = None  #: where it is to keep checkpoints, None: in its home; it reports when it can
    keeps_logs: bool = False  #: the daemon cannot read the runner's files, so it keeps the end of each log when a lease ends
    fence_after: float | None = None  #: seconds without an answer of the daemon after which jobs are stopped, None: they go on
    download: bool = False  #: whether jobs may fetch the backbones that they name
    daemon: str | None = None  #: identity of the daemon; None: its version does not say


class Poll(msgspec.Struct, frozen=True, kw_only=True):
    node: str
    session: int
    version: int  #: of the last answer; the daemon holds the request until it has a newer one, or ``wait`` is over
    wait: Annotated[float, msgspec.Meta(ge=0, le=1e9)]
    sends_logs: bool = False  #: it answers the ``logs`` of `Assignments`
    hands_on: bool = False  #: it answers the ``asks`` of these
    taken: Count | None = None  #: number of the newest log or ask that it has taken, 0: none; None: its version does not say


class AdapterOffer(msgspec.Struct, frozen=True, kw_only=True):
    """An adapter that an ended job has left, with which another may begin."""

    job: int
    directory: str  #: of that job's checkpoints on this node
    data: str
    digest: str  #: digest of that job's training samples
    expected: float | None = None  #: steps from the backbone divided by steps with it; None: not measured
    why: str = ""
    same_kind: bool = False  #: use it only if the kind of labels is the same
    named: bool = False  #: its submitter named it: it is taken without a trial
    here: bool = True  #: as far as known, this node can read the directory
    part: str = ""  #: directory below it for one job of a joint training, which holds its own head too
    steps: int = 0  #: steps that were trained jointly


class Partner(msgspec.Struct, frozen=True, kw_only=True):
    """A waiting job with which this one trains its first steps."""

    job: int
    spec: dict[str, Any]  #: JobSpec


class Fetch(msgspec.Struct, frozen=True, kw_only=True):
    """A job whose checkpoints lie on another host: it begins with them, or not at all."""

    lies: str  #: the checkpoints and where they are, in words
    digest: str = ""  #: digest under which the daemon keeps them; empty: it has none yet and has asked for them
    size: int = 0  #: bytes; 0: not known
    refused: str = ""  #: why they will not come


class Replica(msgspec.Struct, frozen=True, kw_only=True):
    """A live lease of a group of replicas."""

    lease: Count
    index: Count  #: index of its task
    address: str = ""  #: host:port where it answers the others; empty: not known yet


class ReplicaGroup(msgspec.Struct, frozen=True, kw_only=True):
    """The members of a group of replicas, as the daemon knows them. A larger ``epoch`` is newer."""

    group: Count
    epoch: Count
    members: list[Replica] = []  #: those with live leases, in the order of their tasks
    founder: Count | None = None  #: the oldest of these leases; a group in which none has taken a step begins with it
    stepped: list[Count] = []  #: those of these leases that have taken a step with others
    done: bool = False  #: a member has finished all steps
    saved: list[Count] = []  #: indexes of tasks with checkpoints, from which a group without live members goes on
    saved_steps: list[Count] = []  #: steps of those checkpoints; empty: the daemon's version does not say
    first: Count | None = None  #: the first lease after a time with none: every live member began with or after it; None: not told


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """One lease on this node. If ``stop`` is set, end it with that reason within ``grace`` seconds."""

    lease: int
    job: int
    attempt: int
    spec: dict[str, Any]  #: JobSpec
    gpus: list[str]  #: its GPUs on this node
    world_size: int  #: GPUs of the whole gang = ranks
    node_rank: int = 0
    nodes: int = 1
    rendezvous: str = ""  #: host:port of the first node, for gangs over several nodes; empty: the port is not known yet, so wait
    snapshot: str | None = None  #: directory of the copied tree, in place of spec.workdir, or sha256: and the digest of the copy
    resume: int = 0  #: number of earlier attempts
    profile: bool = False  #: it only measures its speed, on fewer GPUs than the gang, and its training is discarded
    gpu_memory: int = 0  #: bytes that it needs on each GPU, as its spec says or as measured for its model; 0: not known
    share: str = "exclusive"  #: or packed or switched: other leases may use its GPUs
    stop: str | None = None
    grace: float = 30.0
    priority: int = 0  #: of the job now; among jobs that share, the larger goes first
    begin_from: str | None = None  #: directory of another job's checkpoints, with whose weights it begins while it has none of its own
    input: str | None = None  #: owner and name of the group of jobs that share their input with it
    hosts: int = 1  #: number of hosts of the gang; several of its nodes may be on one
    checkpoints: str | None = None  #: directory of its checkpoints, None: in the home of the runner
    offers: list[AdapterOffer] = []  #: it may begin with one of them while it has no checkpoint of its own; the best first
    curve: list[tuple[int, float]] = []  #: steps, and there the metric at which it stops, of similar jobs without an adapter
    fetch: Fetch | None = None  #: checkpoints with which it begins, None: those in that directory
    replicas: ReplicaGroup | None = None  #: its group of replicas; ``rendezvous`` is then where it answers the others
    kept_memory: int = 0  #: the part of ``gpu_memory`` that it keeps while others have the turn; 0: all, or not known
    joint: Partner | None = None  #: the job with which it trains first, while it has no checkpoint of its own


class SendCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """The daemon wants the checkpoints of a job that lie on this node."""

    job: int
    after: int  #: number of the last lease that has ended; a later one may have saved more since
    checkpoints: str | None = None  #: directory as in `Assignment`
    at_most: int = 0  #: bytes


class CheckpointSent(msgspec.Struct, frozen=True, kw_only=True):
    """A runner has sent the checkpoints of a job, or cannot."""

    node: str
    session: int
    job: Count
    after: Count  #: as in the request
    digest: Annotated[str, msgspec.Meta(pattern=DIGEST)] | None = None
    refused: Words = ""


class BundlePiece(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a tar; an empty part asks how much the daemon has."""

    digest: Annotated[str, msgspec.Meta(pattern=DIGEST)]
    node: str = ""
    session: int = 0
    offset: Count = 0
    data: bytes = b""
    last: bool = False


class SnapshotPiece(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part of the tar of a code directory, like a `BundlePiece`."""

    digest: Annotated[str, msgspec.Meta(pattern=DIGEST)]
    offset: Count = 0
    data: bytes = b""
    last: bool = False


class BundleKept(msgspec.Struct, frozen=True, kw_only=True):
    """How much of a tar the daemon has."""

    bytes: int
    whole: bool


class BundleWanted(msgspec.Struct, frozen=True, kw_only=True):
    """A runner asks for a part of a tar from ``offset`` on; the answer is the bytes, none at the end."""

    node: str
    session: int
    digest: Annotated[str, msgspec.Meta(pattern=DIGEST)]
    offset: Count = 0


class LogRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A client wants to read a lease's log on this node. Repeated until the runner takes it, which answers with a `LogPiece`."""

    number: int
    job: int
    lease: int
    node_rank: int
    file: str | None = None  #: with ``offset`` the place from which to read on; None: the end of the log
    offset: int = 0
    lines: int | None = None  #: number of last lines; None: the last 64 KiB


class LogPiece(msgspec.Struct, frozen=True, kw_only=True):
    """The requested part of a log."""

    node: str
    session: int
    number: int  #: of the request
    text: str = ""
    file: str = ""
    offset: Count = 0  #: with ``file`` the place after this part
    more: bool = False  #: more follows already
    missing: bool = False  #: the node no longer has this lease


class AskRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Requests to a model server on this node. Repeated until the runner takes them, which answers with an `Asked`."""

    number: int
    job: int
    name: str  #: of the job
    lease: int
    requests: list[Any]
    timeout: float  #: seconds


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of a model server, or why there is none."""

    node: str
    session: int
    number: Count  #: of the request
    answers: list[Any] = []
    failed: Literal["", "busy", "unreachable", "refused"] = ""
    error: str = ""


class LastLog(msgspec.Struct, frozen=True, kw_only=True):
    """The end of the log of an ended lease, for the daemon to keep."""

    node: str
    session: int
    job: Count
    lease: Count
    node_rank: Small = 0
    data: bytes
    file: PathName = ""  #: with ``begin`` the place of its first byte, which is before the file's start where the log was rotated
    begin: Annotated[int, msgspec.Meta(ge=-(2**40), le=2**62)] = 0


class Assignments(msgspec.Struct, frozen=True, kw_only=True):
    version: int
    leases: list[Assignment]
    shutdown: str | None = None  #: the runner must leave: with 'stop' after its workers have ended; None: go on
    logs: list[LogRequest] = []
    asks: list[AskRequest] = []
    warm: list[str] = []  #: backbones whose fork servers are kept even if unused
    draining: bool = False  #: no new jobs come, so fork servers kept for them are of no use
    send: list[SendCheckpoint] = []  #: checkpoints to send, repeated until they are sent


Outcome = Literal["completed", "failed", "stopped", "oom", "hang", "lost", "start-failed", "unkillable"]


class WorkerUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """A change of a worker's state. Sent until acknowledged; each state is taken at most once."""

    lease: Count
    state: Literal["starting", "running", "exited"]
    ts: Time
    pid: Count | None = None
    pid_started: Figure | None = None
    boot_id: Name | None = None
    run_dir: PathName | None = None
    exit_code: Whole | None = None  #: negative: signal
    outcome: Outcome | None = None  #: exited
    message: str | None = None  #: what happened and the remedy
    warm: bool | None = None  #: running: it was forked from a process that had its imports loaded
    cold_because: str | None = None  #: running: why it was not
    port: Small | None = None  #: starting, from the first node of a gang: the port where its ranks meet
    saved: Count | None = None  #: exited, from the first node: bytes of its checkpoints here; None: not told
    place: Name | None = None  #: exited: the place where these lie
    host_at_fault: bool = False  #: start-failed: this host lacks something that another one may have


Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e9)]


class Speed(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The duration of a step, with a rank's share of the batch that is divided over the gang (002 Eqn 5.2)."""

    compute: Annotated[float, msgspec.Meta(gt=0, le=1e9)]  #: seconds of a step with loading, without the synchronisation of gradients
    communication: Seconds | None = None  #: seconds that each rank after the first adds; None: there was one rank
    steps: Count  #: number of measured steps
    memory: Count | None = None  #: peak GPU memory of a rank, bytes


class PipelineStage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A stage of a data pipeline in one window, and the tuner's settings after it. Times are per item of the stage."""

    name: Name
    workers: Whole  #: from now on
    unit: Literal["workers", "MiB"] | None = None  #: unit of the value that can be set; None: none can
    value: Whole | None = None  #: from now on
    action: Whole | None = None  #: the change of ``value`` since the record before
    wanted: Whole | None = None  #: the value that the controller wanted
    cpu: Figure | None = None  #: seconds of CPU time; None: it finished no item
    wait: Figure | None = None  #: seconds that were neither CPU time nor a wait for a core
    throughput: Figure = 0.0  #: items a second
    starved: Figure = 0.0  #: fraction of its workers' time without input
    blocked: Figure = 0.0  #: fraction of its workers' time with its output full
    queue: Count = 0  #: items waiting at its output
    queue_bytes: Count = 0


class Pipeline(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A tuner's measurements of a data pipeline in one window, and its action (003 ch. 4.3, Table 2)."""

    name: Name = "pipeline"
    controller: Name
    throughput: Figure  #: samples a second that reached the consumer
    demand: Figure | None = None  #: samples a second that the consumer would take; None: no limit
    reward: Figure  #: 003 Eqn 1
    cpus: Figure  #: cores that the process may use
    cpu_used: Figure
    memory_used: Count  #: bytes
    memory_total: Count
    why: Words = ""
    refused: Words = ""  #: the action that the guard refused, and why
    stages: Annotated[list[PipelineStage], msgspec.Meta(min_length=1, max_length=100)]


class Begun(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The adapter with which a job has begun, and whether it kept it; reported anew at each change.

    joint: ``source`` is a job with which it has trained ``step`` steps, or, if cold, with which it cannot train.
    """

    state: Literal["begun", "kept", "undone", "cold", "joint"]
    source: Count | None = None  #: the job that left the adapter; None: no adapter
    labels: Words
    same_data: bool = False
    expected: Annotated[float, msgspec.Meta(gt=0, le=1e9)] | None = None
    step: Count = 0
    cost: Count = 0  #: steps that were computed and then discarded
    why: Words
    damaged: dict[Count, Words] = {}  #: offers that cannot be read, by job, and why


class LeftAdapter(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The adapter that a fine-tuning has left for others."""

    backbone: Name
    revision: Name
    petl: Name
    digest: Name
    labels: Words
    steps: Count
    reached: bool = False  #: it reached the target of its metric
    begun: bool = False  #: it began with an adapter itself, and kept it
    bytes: Count = 0
    unusable: Words | None = None


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One report of a rank: a line of its reports file. ``seq`` counts from 1 within the lease and rank."""

    seq: Count
    ts: Time
    step: Count
    values: Annotated[dict[Name, Figure], msgspec.Meta(max_length=MOST_VALUES)] = {}
    total: Count | None = None  #: steps in all, if the job knows
    checkpoint: Count | None = None  #: step of the checkpoint that has just become durable
    memory: Count | None = None  #: peak GPU memory, bytes
    kept: Count | None = None  #: the part of it that it keeps while others have the turn
    speed: Speed | None = None  #: a measurement; such a record has no other field
    pipeline: Pipeline | None = None  #: a step of a tuner; such a record has no other field
    begun: Begun | None = None  #: such a record has no other field
    adapter: LeftAdapter | None = None  #: such a record has no other field
    at: Figure | None = None  #: its time by the boot clock of the host (s), which the runner uses


class Records(msgspec.Struct, frozen=True, kw_only=True):
    lease: Count
    rank: Small
    records: list[Record]


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """One reading of a GPU (NVML) or of a CPU slot's worker."""

    ts: Time
    gpu: str
    lease: Count | None = None
    utilisation: Figure | None = None  #: 0 to 1
    memory_used: Count | None = None
    power: Figure | None = None
    temperature: Figure | None = None
    turn: Literal["has", "waits", "behind"] | None = None  #: for a lease that takes turns; behind: the kernel prefers others
    waited: Seconds | None = None  #: seconds of waiting for turns since the lease began


class ForkServer(msgspec.Struct, frozen=True, kw_only=True):
    """A process from which a runner forks jobs."""

    recipe: Annotated[str, msgspec.Meta(max_length=LONGEST_NAME)]  #: the recipe that it has loaded; empty: torch alone
    backbone: Annotated[str, msgspec.Meta(max_length=LONGEST_NAME)]  #: the pre-trained model that it has loaded; empty: none
    state: Literal["loading", "ready", "failed"]
    since: Time
    pid: Count | None = None
    until: Time | None = None  #: when it ends if unused; None: it is kept
    memory: Count | None = None  #: bytes that it takes without its forks
    note: str | None = None  #: why it failed


class JobFiles(msgspec.Struct, frozen=True, array_like=True):
    """The size of a job's directory on a runner's disk."""

    job: Count
    bytes: Count


MOST_JOB_FILES = 50_000


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """All news of a runner; committed whole before it is answered."""

    node: str
    session: int
    workers: list[WorkerUpdate] = []
    records: list[Records] = []
    samples: list[Sample] = []
    gpus: list[GpuInfo] = []  #: GPUs whose health changed
    left: bool = False  #: the runner leaves after this report
    hands_back: bool = False  #: it is stopping its jobs, and leaves when they have ended
    servers: Annotated[list[ForkServer], msgspec.Meta(max_length=1000)] | None = None  #: all fork servers now; None: unchanged
    files: Annotated[list[JobFiles], msgspec.Meta(max_length=MOST_JOB_FILES)] | None = None  #: for all jobs in its home; None: unchanged
    place: PlaceTold | None = None  #: shared place where it keeps checkpoints from now on; None: unchanged
    now: Time | None = None  #: when it is sent, by the clock of all its times; None: they are by the daemon's clock


class Ack(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a report. ``stale``: leases that are not, or no longer, this node's: end their workers, drop their files."""

    stale: list[int] = []
