"""Messages between the daemon and its runners, and where their endpoints are. JSON by msgspec.

The daemon answers a poll with ALL the leases that the node should have (desired state); the runner
makes it so: it starts what it lacks, stops what is marked, kills what is not listed. Every message
carries the node's session; every report carries the lease, which is the fencing number.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

import msgspec

#: What the tables can hold: a value beyond would make the whole report unacceptable, so it is refused where it is read.
Count = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
Time = Annotated[float, msgspec.Meta(ge=0, le=4e9)]  #: seconds since the epoch
Small = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
Whole = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
LARGEST_FIGURE = 1e300
Figure = Annotated[float, msgspec.Meta(ge=-LARGEST_FIGURE, le=LARGEST_FIGURE)]  #: a finite number
MOST_WORDS = 2000  #: characters of a message
LONGEST_NAME = 200  #: characters of the name of a metric, a stage and the like
MOST_VALUES = 1000  #: of one record
MOST_GPUS = 4096  #: or slots, of one runner
Words = Annotated[str, msgspec.Meta(max_length=MOST_WORDS)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=LONGEST_NAME)]
PathName = Annotated[str, msgspec.Meta(max_length=4096)]

#: what a runner may be called: its name stands in file names, GPU ids and messages
NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", re.ASCII)
NODE_FORM = "up to 100 letters, digits, '.', '_' and '-', beginning with a letter or digit"

DIGEST = r"^[0-9a-f]{64}$"  #: SHA-256

SERVER_SOCKET = "infer.sock"  #: of a lease that serves a model, in its run directory: a line of JSON in, a line out
LONGEST_REQUEST = 1 << 20  #: bytes of such a line

VERSION = 1  #: of this protocol; a runner with another one is turned away with a clear error

HELLO, POLL, REPORT, LOG = "/v1/runner/hello", "/v1/runner/poll", "/v1/runner/report", "/v1/runner/log"
LAST_LOG = "/v1/runner/last_log"
ASKED = "/v1/runner/asked"
ENV_PILOT = "STOKER_PILOT"  #: in the environment of a runner that a batch job starts: `Hello.pilot`
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
    """Where the checkpoints of a runner's jobs lie: runners that tell the same name read the same ones."""

    name: Name
    path: PathName  #: of the directory on that host: a job's are in PATH/<job>/checkpoints


class SharedPlace(msgspec.Struct, frozen=True, kw_only=True):
    """A directory in which runners of several hosts are to keep checkpoints."""

    path: str
    name: str  #: of the folder below it that is this daemon's, and what its probe file says
    known: bool  #: a runner has found or made that


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
    leases: list[Count]  #: leases whose run directories the runner still has in hand (running, or ended and unreported)
    place: Name | None = None  #: name of its home as a place of checkpoints; None: its version does not tell
    leaves_in: Annotated[float, msgspec.Meta(ge=0, le=1e9)] | None = None  #: seconds until it hands its node back; None: it does not
    #: of a checkpoint, that it fetches from other hosts or sends there, as the daemon says; None: its version does neither
    fetch_at_most: Count | None = None
    #: seconds without the daemon after which all its jobs are stopped, as the daemon says; None: some of them go on
    fence_after: Annotated[float, msgspec.Meta(ge=0, le=1e9)] | None = None
    pilot: Name | None = None  #: ENGINE/CLUSTER/JOB/HOST of the batch job that it is part of and ends with; None: of none
    serves: Name | None = (
        None  #: the daemon whose jobs are in its home, as that says (`Welcome.daemon`); None: nobody's, or it does not tell
    )


class Welcome(msgspec.Struct, frozen=True, kw_only=True):
    session: int
    telemetry_interval: float  #: seconds between GPU samples
    heartbeat: float  #: longest wait of a poll, seconds
    warm: Literal["auto", "off"] = "off"  #: auto: jobs start by fork, unless the runner was told otherwise
    turn: Literal["kernel", "cooperative"] = "kernel"  #: who decides among jobs that are switched on a CPU slot
    input_memory: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.1  #: share of the host's main memory that a group's batches may take
    warm_memory: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.25  #: share of the host's main memory that fork servers may take
    shared: SharedPlace | None = None  #: where it is to keep checkpoints, None: in its home; that it can it tells in a report
    keeps_logs: bool = False  #: the daemon cannot read the runner's files: it takes the end of each log when a lease ends
    fence_after: float | None = None  #: seconds without an answer of the daemon after which jobs are stopped, None: they go on
    download: bool = False  #: whether jobs may fetch the backbones that they name
    daemon: str | None = None  #: which one this is; None: its version does not tell


class Poll(msgspec.Struct, frozen=True, kw_only=True):
    node: str
    session: int
    version: int  #: of the last answer; the daemon holds the request until it has another, or ``wait`` is over
    wait: Annotated[float, msgspec.Meta(ge=0, le=1e9)]
    sends_logs: bool = False  #: it answers the ``logs`` of `Assignments`
    hands_on: bool = False  #: it answers the ``asks`` of these
    taken: Count | None = None  #: number of the newest of both that it has taken, 0: of none; None: it does not say


class AdapterOffer(msgspec.Struct, frozen=True, kw_only=True):
    """What an ended job has left, with which one may begin."""

    job: int
    directory: str  #: of that job's checkpoints on this node
    data: str
    digest: str  #: of that job's training samples
    expected: float | None = None  #: steps from the backbone over steps with it; None: nothing was measured
    why: str = ""
    same_kind: bool = False  #: only if the kind of labels is the same
    named: bool = False  #: its submitter named it: it is not tried, but taken
    here: bool = True  #: as far as is known the directory lies in a place that this node reads
    part: str = ""  #: directory below it, of the half of a training together: its own head is there too
    steps: int = 0  #: that were trained together


class Partner(msgspec.Struct, frozen=True, kw_only=True):
    """A job that waits, and with which one trains its first steps."""

    job: int
    spec: dict[str, Any]  #: JobSpec


class Fetch(msgspec.Struct, frozen=True, kw_only=True):
    """The checkpoints of a job lie on another host; it begins with them, or not at all."""

    lies: str  #: which ones and where, in words
    digest: str = ""  #: by which the daemon has them; empty: it has not, and has asked for them
    size: int = 0  #: bytes, 0: not known
    refused: str = ""  #: why they will not come


class Replica(msgspec.Struct, frozen=True, kw_only=True):
    """A live lease of a group of replicas."""

    lease: Count
    index: Count  #: of its task
    address: str = ""  #: host:port where it answers the others, empty: not known yet


class ReplicaGroup(msgspec.Struct, frozen=True, kw_only=True):
    """The daemon's word on a group of replicas: who its members are. A larger ``epoch`` is a newer word."""

    group: Count
    epoch: Count
    members: list[Replica] = []  #: whose leases live, in the order of their tasks
    founder: Count | None = None  #: the oldest of these leases, with which a group begins that has none who took a step
    stepped: list[Count] = []  #: of these leases those that have taken a step with others
    done: bool = False  #: a member has finished all steps
    saved: list[Count] = []  #: indexes of tasks that have checkpoints, from which a group goes on that has no member left
    saved_steps: list[Count] = []  #: of those checkpoints; empty: a daemon that does not tell it
    first: Count | None = None  #: the first lease since there was none: nobody who lives can have begun without it; None: not told


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """One lease on this node. ``stop`` set: end it with that reason, within ``grace`` seconds."""

    lease: int
    job: int
    attempt: int
    spec: dict[str, Any]  #: JobSpec
    gpus: list[str]  #: of this node
    world_size: int  #: GPUs of the whole gang = ranks
    node_rank: int = 0
    nodes: int = 1
    rendezvous: str = ""  #: host:port of the first node, for gangs over several nodes; empty: the port is not known yet, so it waits
    snapshot: str | None = None  #: directory of the copied tree, in place of spec.workdir, or sha256: and its digest
    resume: int = 0  #: attempts that ran before
    profile: bool = False  #: it is only to measure its speed, on fewer GPUs than the gang, and to leave nothing of its training
    gpu_memory: int = 0  #: bytes that it needs of each GPU, by which all judge: as its spec says, or as measured of its model; 0: not known
    share: str = "exclusive"  #: or packed or switched: other leases may be on its GPUs
    stop: str | None = None
    grace: float = 30.0
    priority: int = 0  #: of the job, now; among those that share, larger goes first
    begin_from: str | None = None  #: directory of the checkpoints of another job, with whose weights it begins while it has none of its own
    input: str | None = None  #: owner and name of the group of jobs with which it shares its input
    hosts: int = 1  #: over which the gang goes: its nodes, but for those on one host
    checkpoints: str | None = None  #: directory of its checkpoints, None: in the home of the runner
    offers: list[AdapterOffer] = []  #: with one of which it may begin while it has no checkpoint of its own, the best first
    curve: list[tuple[int, float]] = []  #: steps, and what the metric that it stops at was there for jobs like it without one
    fetch: Fetch | None = None  #: what it is to begin with, None: what is in that directory
    replicas: ReplicaGroup | None = None  #: the group of replicas that it is in; ``rendezvous`` is then where it answers the others
    kept_memory: int = 0  #: of ``gpu_memory`` what it keeps while others have the turn; 0: all, or not known
    joint: Partner | None = None  #: with whom it trains first, while it has no checkpoint of its own


class SendCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """The daemon wants the checkpoints of a job that lie on this node."""

    job: int
    after: int  #: number of the last lease that has ended; another one may have saved more since
    checkpoints: str | None = None  #: directory as in `Assignment`
    at_most: int = 0  #: bytes


class CheckpointSent(msgspec.Struct, frozen=True, kw_only=True):
    """A runner has sent the checkpoints of a job, or can not."""

    node: str
    session: int
    job: Count
    after: Count  #: as asked for
    digest: Annotated[str, msgspec.Meta(pattern=DIGEST)] | None = None
    refused: Words = ""


class BundlePiece(msgspec.Struct, frozen=True, kw_only=True):
    """Some of a tar; none of it asks how much is there."""

    digest: Annotated[str, msgspec.Meta(pattern=DIGEST)]
    node: str = ""
    session: int = 0
    offset: Count = 0
    data: bytes = b""
    last: bool = False


class SnapshotPiece(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Some of the tar of a directory of code, as a `BundlePiece`."""

    digest: Annotated[str, msgspec.Meta(pattern=DIGEST)]
    offset: Count = 0
    data: bytes = b""
    last: bool = False


class BundleKept(msgspec.Struct, frozen=True, kw_only=True):
    """What the daemon has of a tar."""

    bytes: int
    whole: bool


class BundleWanted(msgspec.Struct, frozen=True, kw_only=True):
    """A runner wants some of a tar, from ``offset`` on; answered with the bytes, with none where it ends."""

    node: str
    session: int
    digest: Annotated[str, msgspec.Meta(pattern=DIGEST)]
    offset: Count = 0


class LogRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody wants to read the log of a lease that lies on this node. Told until it is taken, and answered with a `LogPiece`."""

    number: int
    job: int
    lease: int
    node_rank: int
    file: str | None = None  #: with ``offset`` the place to read on from; None: the end of the log
    offset: int = 0
    lines: int | None = None  #: so many last lines; None: the last 64 KiB


class LogPiece(msgspec.Struct, frozen=True, kw_only=True):
    """Some of a log, as asked for."""

    node: str
    session: int
    number: int  #: of the request
    text: str = ""
    file: str = ""
    offset: Count = 0  #: with ``file`` the place behind it
    more: bool = False  #: there was more already
    missing: bool = False  #: the node has no such lease any more


class AskRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Requests to a server that runs on this node. Told until they are taken, and answered with an `Asked`."""

    number: int
    job: int
    name: str  #: of the job
    lease: int
    requests: list[Any]
    timeout: float  #: seconds


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What a server answered, or why it did not."""

    node: str
    session: int
    number: Count  #: of the request
    answers: list[Any] = []
    failed: Literal["", "busy", "unreachable", "refused"] = ""
    error: str = ""


class LastLog(msgspec.Struct, frozen=True, kw_only=True):
    """The end of the log of a lease that has ended, for the daemon to keep."""

    node: str
    session: int
    job: Count
    lease: Count
    node_rank: Small = 0
    data: bytes
    file: PathName = ""  #: with ``begin`` the place of its first byte; before the file's own start where it was rotated
    begin: Annotated[int, msgspec.Meta(ge=-(2**40), le=2**62)] = 0


class Assignments(msgspec.Struct, frozen=True, kw_only=True):
    version: int
    leases: list[Assignment]
    shutdown: str | None = None  #: the runner is to leave: 'stop' after its workers have ended, None to go on
    logs: list[LogRequest] = []
    asks: list[AskRequest] = []
    warm: list[str] = []  #: backbones whose fork servers are kept, whether they are used or not
    draining: bool = False  #: nothing new comes: what was loaded for jobs to come is of no use
    send: list[SendCheckpoint] = []  #: until they are sent


Outcome = Literal["completed", "failed", "stopped", "oom", "hang", "lost", "start-failed", "unkillable"]


class WorkerUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a worker. Sent until acknowledged; taken at most once a state."""

    lease: Count
    state: Literal["starting", "running", "exited"]
    ts: Time
    pid: Count | None = None
    pid_started: Figure | None = None
    boot_id: Name | None = None
    run_dir: PathName | None = None
    exit_code: Whole | None = None  #: negative: signal
    outcome: Outcome | None = None  #: exited
    message: str | None = None  #: what happened and the remedy, in words
    warm: bool | None = None  #: running: it was forked from a process that had loaded what it imports
    cold_because: str | None = None  #: running: why it was not, in words
    port: Small | None = None  #: starting, of the first node of a gang: where its ranks meet
    saved: Count | None = None  #: exited, of the first node: bytes of its checkpoints here; None: not told
    place: Name | None = None  #: exited: in which place these lie
    host_at_fault: bool = False  #: start-failed: for want of something on this host, which another one may have


Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e9)]


class Speed(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How long a step takes, with a rank's part of the batch when it is divided over the gang (002 Eqn 5.2)."""

    compute: Annotated[float, msgspec.Meta(gt=0, le=1e9)]  #: seconds of a step, loading included, without the synchronisation of gradients
    communication: Seconds | None = None  #: seconds that each rank after the first adds to it; None: there was one rank
    steps: Count  #: that were measured
    memory: Count | None = None  #: peak GPU memory of a rank, bytes


class PipelineStage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A stage of a data pipeline in one window, and what its tuner then set. Times are of one item of the stage."""

    name: Name
    workers: Whole  #: from now on
    unit: Literal["workers", "MiB"] | None = None  #: of the value that can be set; None: nothing can
    value: Whole | None = None  #: from now on
    action: Whole | None = None  #: its change since the record before
    wanted: Whole | None = None  #: what the controller wanted it to be
    cpu: Figure | None = None  #: seconds of CPU time; None: no item was finished
    wait: Figure | None = None  #: seconds that were neither CPU time nor waiting for a core
    throughput: Figure = 0.0  #: items a second
    starved: Figure = 0.0  #: fraction of its workers' time without input
    blocked: Figure = 0.0  #: fraction of its workers' time with its output full
    queue: Count = 0  #: items that wait at its output
    queue_bytes: Count = 0


class Pipeline(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a tuner saw of a data pipeline in one window, and did (003 ch. 4.3, Table 2)."""

    name: Name = "pipeline"
    controller: Name
    throughput: Figure  #: samples a second that reached the consumer
    demand: Figure | None = None  #: samples a second that the consumer would take; None: without a limit
    reward: Figure  #: 003 Eqn 1
    cpus: Figure  #: cores that the process may use
    cpu_used: Figure
    memory_used: Count  #: bytes
    memory_total: Count
    why: Words = ""
    refused: Words = ""  #: what the guard did not allow, and why
    stages: Annotated[list[PipelineStage], msgspec.Meta(min_length=1, max_length=100)]


class Begun(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """With which adapter a job has begun, and whether it went on with it; told anew whenever that changes.

    joint: ``source`` is a job with which it has trained ``step`` steps, or, cold, with which it can't.
    """

    state: Literal["begun", "kept", "undone", "cold", "joint"]
    source: Count | None = None  #: job whose adapter it is; None: none
    labels: Words
    same_data: bool = False
    expected: Annotated[float, msgspec.Meta(gt=0, le=1e9)] | None = None
    step: Count = 0
    cost: Count = 0  #: steps that were computed and that it does not go on from
    why: Words
    damaged: dict[Count, Words] = {}  #: offers that cannot be read, by job, and why


class LeftAdapter(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a fine-tuning has left for others to begin with."""

    backbone: Name
    revision: Name
    petl: Name
    digest: Name
    labels: Words
    steps: Count
    reached: bool = False  #: the target of its metric
    begun: bool = False  #: it had begun with an adapter, and kept it
    bytes: Count = 0
    unusable: Words | None = None


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One report of a rank, a line of its reports file. ``seq`` counts from 1 within the lease and rank."""

    seq: Count
    ts: Time
    step: Count
    values: Annotated[dict[Name, Figure], msgspec.Meta(max_length=MOST_VALUES)] = {}
    total: Count | None = None  #: steps in all, when the job knows
    checkpoint: Count | None = None  #: step of the checkpoint that has just been made durable
    memory: Count | None = None  #: peak GPU memory, bytes
    kept: Count | None = None  #: of that what it keeps while others have the turn
    speed: Speed | None = None  #: a measurement; such a record tells nothing else
    pipeline: Pipeline | None = None  #: a step of a tuner; such a record tells nothing else
    begun: Begun | None = None  #: such a record tells nothing else
    adapter: LeftAdapter | None = None  #: such a record tells nothing else
    at: Figure | None = None  #: when, by the boot clock of its host (s): what its runner goes by


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
    turn: Literal["has", "waits", "behind"] | None = None  #: of a lease that takes turns; behind: the kernel puts others before it
    waited: Seconds | None = None  #: for turns, since the lease began


class ForkServer(msgspec.Struct, frozen=True, kw_only=True):
    """A process from which a runner forks jobs."""

    recipe: Annotated[str, msgspec.Meta(max_length=LONGEST_NAME)]  #: that it has loaded; empty: torch alone
    backbone: Annotated[str, msgspec.Meta(max_length=LONGEST_NAME)]  #: the same of a pre-trained model; empty: none
    state: Literal["loading", "ready", "failed"]
    since: Time
    pid: Count | None = None
    until: Time | None = None  #: when it ends if no job uses it; None: it is kept
    memory: Count | None = None  #: bytes that it takes by itself
    note: str | None = None  #: why it failed


class JobFiles(msgspec.Struct, frozen=True, array_like=True):
    """What the directory of a job takes on the disk of a runner."""

    job: Count
    bytes: Count


MOST_JOB_FILES = 50_000


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a runner has to tell; committed whole before it is answered."""

    node: str
    session: int
    workers: list[WorkerUpdate] = []
    records: list[Records] = []
    samples: list[Sample] = []
    gpus: list[GpuInfo] = []  #: those whose health changed
    left: bool = False  #: the runner leaves after this report
    hands_back: bool = False  #: it stops its jobs, and leaves when they have ended
    servers: Annotated[list[ForkServer], msgspec.Meta(max_length=1000)] | None = None  #: all that it has now; None: as told before
    files: Annotated[list[JobFiles], msgspec.Meta(max_length=MOST_JOB_FILES)] | None = (
        None  #: of all jobs in its home; None: as told before
    )
    place: PlaceTold | None = None  #: shared, in which it keeps checkpoints from now on; None: as told before
    now: Time | None = None  #: when it is sent, by the clock that all its times are of; None: that of the daemon


class Ack(msgspec.Struct, frozen=True, kw_only=True):
    """``stale``: leases that are not (or no longer) this node's: end their workers, drop their files."""

    stale: list[int] = []
