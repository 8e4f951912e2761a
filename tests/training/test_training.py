"""The worker and its training loop, as real processes: signals in each phase, kills, ranks, and the same weights in the end."""

import json
import math
import os
import signal
import subprocess
import sys
import time

import msgspec
import preloaded
import pytest
import torch
from stoker.engine.errors import UsageError
from stoker.engine.protocol import Record
from stoker.engine.spec.model import JobSpec, Stop
from stoker.runners.lease.rundir import OOM_EXIT, OOM_MARKER, PREEMPTED_EXIT
from stoker.runners.train import batch_feeds as feeds
from stoker.runners.train import batches
from stoker.runners.train import trainer as training
from stoker.runners.train.checkpoint import Checkpoints
from stoker.runners.worker import worker
from waiting import patient

STEPS = 12

#: A user's module. Draws from every global generator, and pauses where PAUSE says, leaving a mark that it is there. A step, which
#: nothing interrupts, goes on once its process has been signalled.
USER = """
import os, random, time
from pathlib import Path
import numpy, torch
from stoker.runners.training import Task, interruptible

PAUSE, _, AT = os.environ.get("PAUSE", "").partition(":")

def pause(phase, watchful):
    if phase == PAUSE:
        Path(f"in-{phase}-{os.environ.get('RANK', '0')}").touch()
        for _ in interruptible(range(600)) if watchful else range(600):
            if phase == "step" and Path(os.environ["STOKER_RUN_DIR"], "signalled").exists():
                break
            time.sleep(0.05)

class Data:
    fetched = 0
    def __len__(self):
        return 40
    def __getitem__(self, index):
        Data.fetched += 1
        noise = torch.randn(4) + random.random() + torch.from_numpy(numpy.random.rand(4)).float()
        if AT and Data.fetched == int(AT) * 4 // int(os.environ.get("WORLD_SIZE", "1")):
            pause("loader", watchful=False)
        return torch.full((4,), index / 40) + 0.1 * noise, torch.tensor([index % 2.0])

steps = 0
def loss(model, batch):
    global steps
    steps += 1
    if AT and steps == int(AT):
        pause("step", watchful=False)
    return torch.nn.functional.mse_loss(model(batch[0]), batch[1])

def evaluate(model):
    noise = float(torch.rand(1))
    pause("evaluation", watchful=True)
    return {"noise": noise, "sum": sum(float(p.sum()) for p in model.parameters())}

def task(batch_size=4, **given):
    pause("build", watchful=True)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 1))
    schedule = lambda optimizer, steps: torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.01, total_steps=steps + 1)
    return Task(model=model, train=Data(), loss=loss, evaluate=evaluate, scheduler=schedule, batch_size=batch_size,
                eval_every=5, checkpoint_every=4, **given)

def exhausted():
    return torch.empty(1 << 50)

def nothing():
    return {"model": None}

def broken():
    raise RuntimeError("the user's own trouble")
"""

pytestmark = [pytest.mark.xdist_group("training"), pytest.mark.usefixtures("warm_server")]


class Job:
    """A job's directory, and the worker processes of its leases."""

    def __init__(self, path, entrypoint="user:task", stop=None, **params):
        self.path, self.lease, self.alive = path, 0, []
        self.assigned = {}  #: further fields of its assignments
        path.mkdir(exist_ok=True)
        (path / "user.py").write_text(USER)
        self.spec = {"name": "job", "entrypoint": entrypoint, "params": params, "stop": {"iterations": STEPS} if stop is None else stop}

    @property
    def run_dir(self):
        return self.path / f"run-{self.lease}"

    def start(self, ranks=1, largest_file=0, **env):
        self.lease += 1
        self.run_dir.mkdir(exist_ok=True)
        assignment = {"lease": self.lease, "job": 1, "attempt": self.lease, "spec": self.spec, "gpus": ["n/cpu0"], "world_size": ranks}
        (self.run_dir / "assignment.json").write_text(json.dumps(assignment | self.assigned))
        env |= {"STOKER_RUN_DIR": str(self.run_dir), "STOKER_CHECKPOINT_DIR": str(self.path / "checkpoints"), "CUDA_VISIBLE_DEVICES": ""}
        if ranks > 1:
            env |= {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
            self.store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
            # As the elastic launcher does: it serves the store, the ranks only connect.
            env |= {"MASTER_PORT": str(self.store.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
        self.alive = []
        for rank in range(ranks):
            given = {**os.environ, **env, **({"RANK": str(rank)} if ranks > 1 else {})}
            self.alive.append(
                preloaded.start(
                    "-m",
                    "stoker.runners.worker.worker",
                    cwd=self.path,
                    env=given,
                    output=self.path / "output.log",
                    largest_file=largest_file,
                )
            )
        return self

    def signal(self, number=signal.SIGTERM, ranks=None):
        for rank, process in enumerate(self.alive):
            if ranks is None or rank in ranks:
                os.kill(process.pid, number)
        (self.run_dir / "signalled").touch()
        return self

    def when(self, *marks):
        while not all((self.path / mark).exists() for mark in marks):
            assert all(process.is_alive() for process in self.alive), self.log
            time.sleep(0.01)
        return self

    def end(self):
        for process in self.alive:
            process.join(patient(60))
        codes = {process.exitcode for process in self.alive}
        assert len(codes) == 1, (codes, self.log)
        return codes.pop()

    def close(self):
        for process in self.alive:
            if process.is_alive():
                process.kill()
                process.join()

    @property
    def log(self):
        return (self.path / "output.log").read_text()

    @property
    def records(self):
        lines = (self.run_dir / "reports-0.jsonl").read_bytes().splitlines()
        return [msgspec.json.decode(line, type=Record) for line in lines]

    @property
    def state(self):
        return Checkpoints(self.path / "checkpoints").load()

    def losses(self):
        """All losses reported, by step, over all leases; a step that was done twice must have given the same."""
        found = {}
        for path in sorted(self.path.glob("run-*/reports-0.jsonl")):
            for line in path.read_bytes().splitlines():
                record = msgspec.json.decode(line, type=Record)
                if "loss" in record.values:
                    assert found.setdefault(record.step, record.values["loss"]) == record.values["loss"]
        return found


@pytest.fixture
def job(tmp_path):
    made = []

    def make(name="job", **given):
        made.append(Job(tmp_path / name, **given))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """Losses and final state of a run that nothing disturbed, by the number of ranks."""
    runs = {}

    def run(ranks=1):
        if ranks not in runs:
            reference = Job(tmp_path_factory.mktemp("reference") / "job").start(ranks)
            assert reference.end() == 0, reference.log
            runs[ranks] = reference.losses(), reference.state, reference.records
        return runs[ranks]

    return run


def assert_same(found, expected):
    """To the last bit, all the way down."""
    assert type(found) is type(expected)
    if isinstance(expected, torch.Tensor):
        assert torch.equal(found, expected)
    elif isinstance(expected, dict):
        assert list(found) == list(expected)
        for key in expected:
            assert_same(found[key], expected[key])
    elif isinstance(expected, (list, tuple)):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    elif isinstance(expected, float) and math.isnan(expected):
        assert math.isnan(found)
    else:
        assert found == expected


def assert_as_uninterrupted(job, uninterrupted, ranks=1):
    losses, state, _ = uninterrupted(ranks)
    assert job.losses() == losses
    assert sorted(losses) == list(range(1, STEPS + 1))
    assert_same(job.state, state)


def test_a_run_reports_each_step_its_evaluations_and_its_checkpoints(uninterrupted):
    losses, state, records = uninterrupted()
    assert [record.seq for record in records] == list(range(1, len(records) + 1))
    *records, measured = records
    assert measured.speed is not None and measured.speed.compute > 0 and measured.speed.communication is None
    assert [record.step for record in records if "loss" in record.values] == list(range(1, STEPS + 1))
    assert [record.step for record in records if "sum" in record.values] == [5, 10, STEPS]
    assert [record.checkpoint for record in records if record.checkpoint] == [4, 8, STEPS]
    assert all(record.total == STEPS for record in records)
    assert [record.values["samples"] for record in records if "loss" in record.values] == [4.0 * step for step in range(1, STEPS + 1)]
    assert len(set(losses.values())) == STEPS
    assert state["step"] == STEPS


@pytest.mark.parametrize(
    ("pause", "left_at"),
    [("build", None), ("loader:1", None), ("step:1", 1), ("loader:7", 6), ("step:6", 6), ("evaluation", 5)],
)
@pytest.mark.sampled(2)
def test_sigterm_is_obeyed_in_every_phase_and_changes_nothing(job, uninterrupted, pause, left_at):
    one = job().start(PAUSE=pause).when(f"in-{pause.partition(':')[0]}-0").signal()
    assert one.end() == PREEMPTED_EXIT
    assert (one.run_dir / "stop-seen").exists()
    if left_at is None:
        assert one.state is None
    else:
        assert one.state["step"] == left_at
        assert one.records[-1].checkpoint == left_at
    assert one.start().end() == 0
    assert_as_uninterrupted(one, uninterrupted)


def test_a_job_stopped_again_and_again_ends_the_same(job, uninterrupted):
    one = job()
    for pause in ("loader:3", "step:2", "evaluation", "loader:2"):
        one.start(PAUSE=pause).when(f"in-{pause.partition(':')[0]}-0").signal()
        assert one.end() == PREEMPTED_EXIT
        (one.path / f"in-{pause.partition(':')[0]}-0").unlink()
    assert one.start().end() == 0
    assert_as_uninterrupted(one, uninterrupted)


def test_kill_9_goes_on_from_the_last_checkpoint_to_the_same_end(job, uninterrupted):
    one = job().start(PAUSE="step:7").when("in-step-0").signal(signal.SIGKILL)
    assert one.end() == -signal.SIGKILL
    assert one.state["step"] == 4
    assert one.start().end() == 0
    assert_as_uninterrupted(one, uninterrupted)


def test_a_damaged_newest_checkpoint_is_passed_over(job, uninterrupted):
    one = job().start(PAUSE="loader:11").when("in-loader-0").signal()
    assert one.end() == PREEMPTED_EXIT
    newest = one.path / "checkpoints" / "step-0000000010" / "state.pt"
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1
    newest.write_bytes(content)
    assert one.state["step"] == 8
    assert one.start().end() == 0
    assert "checkpoint of step 10 is damaged (the checksum of state.pt does not match)" in one.log
    assert_as_uninterrupted(one, uninterrupted)


@pytest.mark.parametrize("pause", ["build", "loader:7", "step:6", "evaluation"])
@pytest.mark.sampled(2)
def test_two_ranks_leave_together_and_end_the_same(job, uninterrupted, pause):
    """Only rank 0 lingers in the phase (rank 1 waits for it), as a slow disk or an evaluation makes it."""
    one = job().start(ranks=2, PAUSE=pause).when(f"in-{pause.partition(':')[0]}-0").signal()
    assert one.end() == PREEMPTED_EXIT, one.log
    assert one.start(ranks=2).end() == 0, one.log
    assert_as_uninterrupted(one, uninterrupted, ranks=2)


def test_a_signal_to_one_rank_stops_both(job, uninterrupted):
    one = job().start(ranks=2, PAUSE="step:6").when("in-step-0", "in-step-1").signal(ranks=[1])
    assert one.end() == PREEMPTED_EXIT
    assert one.state["step"] == 6
    assert one.start(ranks=2).end() == 0
    assert_as_uninterrupted(one, uninterrupted, ranks=2)


def test_ranks_train_the_same_model_as_one(job):
    """Without dropout and noise two or three ranks (an uneven split) take the steps that one takes."""
    weights = []
    for ranks in (1, 2, 3):
        one = job(f"{ranks}-ranks", entrypoint="plain:task")
        (one.path / "plain.py").write_text(PLAIN)
        assert one.start(ranks).end() == 0, one.log
        weights.append(one.state["model"])
    for name, value in weights[0].items():
        torch.testing.assert_close(weights[1][name], value)
        torch.testing.assert_close(weights[2][name], value)


PLAIN = """
import torch
from stoker.runners.training import Task
def task():
    inputs = torch.randn(40, 4, generator=torch.Generator().manual_seed(1))
    data = list(zip(inputs, inputs.sum(1, keepdim=True)))
    return Task(model=torch.nn.Linear(4, 1), train=data, batch_size=8,
                loss=lambda model, batch: torch.nn.functional.mse_loss(model(batch[0]), batch[1]))
"""


def test_a_gang_s_checkpoint_is_taken_up_by_one_rank(job):
    one = job().start(ranks=2, PAUSE="step:6").when("in-step-0", "in-step-1").signal()
    assert one.end() == PREEMPTED_EXIT
    assert one.start(ranks=1).end() == 0
    assert one.state["step"] == STEPS
    assert sorted(one.losses()) == list(range(1, STEPS + 1))


@pytest.mark.slow  # three processes that import torch
def test_the_worker_runs_under_torch_s_launcher(tmp_path):
    one = Job(tmp_path / "job")
    run_dir = one.path / "run-1"
    run_dir.mkdir()
    assignment = {"lease": 1, "job": 1, "attempt": 1, "spec": one.spec, "gpus": ["n/cpu0", "n/cpu1"], "world_size": 2}
    (run_dir / "assignment.json").write_text(json.dumps(assignment))
    env = {**os.environ, "STOKER_RUN_DIR": str(run_dir), "STOKER_CHECKPOINT_DIR": str(one.path / "checkpoints")}
    # As runners start it: test_devices.py. By number: the name of a host need not resolve on it.
    launcher = ["stoker.runners.worker.gang", "--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node", "2", "--no-python"]
    command = [sys.executable, "-P", "-m", *launcher, sys.executable, "-P", "-m", "stoker.runners.worker.worker"]
    done = subprocess.run(command, cwd=one.path, env=env | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert one.state["step"] == STEPS
    assert len(one.state["generators"]) == 2
    assert sorted(one.losses()) == list(range(1, STEPS + 1))


COMPILES = """
import importlib, inspect, sys
from stoker.runners.worker import worker

def parts():
    return [name for name in sys.modules if name.startswith("torch._dynamo.")]

assert worker.main() == 0 and parts() == []
import torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
def step(model):
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
step(model)
inspect.getmodule(step), hasattr(torch._dynamo, "__warningregistry__")  # what looks at all modules
from torch import distributed
distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
step(torch.nn.parallel.DistributedDataParallel(model))
distributed.destroy_process_group()
assert parts() == []
disabled = torch.compiler.disable(torch.nn.Linear(2, 2))
assert isinstance(disabled, torch.nn.Module) and len(list(disabled.parameters())) == 2
import torch._dynamo.config as config
assert config is torch._dynamo.config is sys.modules["torch._dynamo.config"] and config.__spec__.origin.endswith("config.py")
assert "optimize" in dir(importlib.import_module("torch._dynamo")) and torch._dynamo.utils.counters == {}
step(torch.compile(model, backend="eager"))
assert torch._dynamo.utils.counters["frames"]["ok"] > 0
torch.compile(step, backend="eager")(model)
assert all(torch.isfinite(weight).all() for weight in model.parameters())
"""


UNTOUCHED = """
from stoker.runners.worker import worker
assert worker.main() == 0
import torch
assert torch.distributed.fsdp and type(torch._dynamo) is type(torch)
"""


@pytest.mark.slow  # a process that imports torch, and what compiles
@pytest.mark.parametrize(("spec", "code"), [({"recipe": "digits-cnn"}, COMPILES), ({"entrypoint": "user:task"}, UNTOUCHED)])
def test_nothing_that_compiles_is_imported_before_somebody_compiles(tmp_path, spec, code):
    """An optimizer would import it in its first step, which takes a second. In a user's own code it does."""
    one = Job(tmp_path / "job")
    one.spec = {"name": "job", "stop": {"iterations": STEPS}, **spec}
    run_dir = one.path / "run-1"
    run_dir.mkdir()
    assignment = {"lease": 1, "job": 1, "attempt": 1, "spec": one.spec, "gpus": ["n/cpu0"], "world_size": 1}
    (run_dir / "assignment.json").write_text(json.dumps(assignment))
    env = {**os.environ, "STOKER_RUN_DIR": str(run_dir), "STOKER_CHECKPOINT_DIR": str(one.path / "checkpoints")}
    done = subprocess.run([sys.executable, "-c", code], cwd=one.path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert one.state["step"] == STEPS


# ---- the stopping rule ----


def test_a_target_ends_the_run(job):
    one = job(stop={"iterations": STEPS, "metric": "noise", "target": 0.0, "mode": "max"}).start()
    assert one.end() == 0
    assert one.state["step"] == 5
    assert "finished at step 5: noise reached 0.0" in one.log
    assert one.start().end() == 0  # a lease more, as after a lost acknowledgement: nothing is done again
    assert one.state["step"] == 5
    assert [record.step for record in one.records] == [5]


def test_a_target_that_is_not_reached_ends_at_the_iterations(job):
    one = job(stop={"iterations": 6, "metric": "loss", "target": -1.0, "mode": "min"}).start()
    assert one.end() == 0
    assert "finished at step 6: loss did not reach -1.0" in one.log


# ---- what is wrong gets one line ----


def test_a_wrong_entrypoint_is_one_line_and_exit_code_2(job):
    one = job(entrypoint="user:tsk").start()
    assert one.end() == 2
    assert one.log.count("\n") == 1
    assert one.log.startswith("stoker: entrypoint: user (")
    assert "has no function 'tsk' (did you mean 'task'?)" in one.log


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "mine.py").write_text(USER)
    (tmp_path / "lacking.py").write_text("import no_such_thing")
    (tmp_path / "crooked.py").write_text("def task(:\n  pass")
    yield tmp_path
    for name in ("mine", "lacking", "crooked"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("entrypoint", "params", "message"),
    [
        ("mine", {}, "entrypoint: 'mine' is not of the form module:function"),
        ("absent:task", {}, "entrypoint: there is no module 'absent' in "),
        ("lacking:task", {}, "entrypoint: lacking needs the module 'no_such_thing', which is not installed"),
        ("crooked:task", {}, r"entrypoint: .*crooked.py, line 1: invalid syntax"),
        ("mine:Task", {"modle": 1}, "params: mine:Task cannot be called with .'modle'.: "),
        ("mine:nothing", {}, "entrypoint: mine:nothing must return a stoker.runners.training.Task, not dict"),
        ("mine:PAUSE", {}, "entrypoint: mine .* has no function 'PAUSE'"),
    ],
)
def test_wrong_entrypoints(here, entrypoint, params, message):
    with pytest.raises(UsageError, match=message):
        worker.build(JobSpec(name="j", entrypoint=entrypoint, params=params))


@pytest.mark.parametrize(
    ("given", "stop", "message"),
    [
        ({"batch_size": 50}, Stop(iterations=1), "batch_size: 50 must be between 1 .* and 40"),
        ({"batch_size": 0}, Stop(iterations=1), "batch_size: 0 must be between"),
        ({}, Stop(), "stop.iterations: the job does not say how many steps"),
        ({}, Stop(iterations=5, metric="nois", target=2.0), r"stop.metric: this task reports no 'nois' \(did you mean 'noise'\?\)"),
        ({"loss": lambda model, batch: model(batch[0])}, Stop(iterations=1), "must return a tensor of one element"),
        ({"loss": lambda model, batch: 1.0}, Stop(iterations=1), "must return a tensor of one element"),
        ({"train": []}, Stop(iterations=1), "training data is empty"),
        ({"model": torch.nn.Dropout()}, Stop(iterations=1), "no parameter that requires gradients"),
    ],
)
def test_tasks_that_cannot_be_trained(here, tmp_path, given, stop, message):
    from stoker.runners.worker.ranks import Ranks

    task = worker.build(JobSpec(name="j", entrypoint="mine:task"))
    for name, value in given.items():
        setattr(task, name, value)
    with pytest.raises(UsageError, match=message):
        training.Trainer(task, stop, tmp_path / "checkpoints", Ranks(0, 1, torch.device("cpu"))).run()


def test_a_checkpoint_of_another_model_is_refused(job):
    one = job()
    assert one.start().end() == 0
    (one.path / "user.py").write_text(USER.replace("Linear(8, 1)", "Linear(8, 1, bias=False)"))
    one.spec["stop"]["iterations"] = 20
    assert one.start().end() == 2
    assert "is of another model (it differs in 3.bias); submit a new job" in one.log


def test_a_checkpoint_of_another_batch_size_is_refused(job):
    one = job()
    assert one.start().end() == 0
    one.spec["params"] = {"batch_size": 8}
    assert one.start().end() == 2
    assert "was made with batch_size 4, the task has 8; submit it as a new job" in one.log


def test_out_of_memory_is_recognisable(job):
    one = job(entrypoint="user:exhausted").start()
    assert one.end() == OOM_EXIT
    assert one.log.splitlines()[-1].startswith(OOM_MARKER)


def test_the_user_s_own_exception_keeps_its_traceback(job):
    one = job(entrypoint="user:broken").start()
    assert one.end() == 1
    assert "Traceback" in one.log
    assert "RuntimeError: the user's own trouble" in one.log


def test_a_full_disk_is_one_error_and_the_old_checkpoint_remains(job, uninterrupted):
    one = job().start(PAUSE="step:5").when("in-step-0").signal()
    assert one.end() == PREEMPTED_EXIT
    assert one.start(largest_file=6000).end() == 1
    assert one.log.splitlines()[-1].startswith("stoker: cannot save the checkpoint of step 8")
    assert one.log.splitlines()[-1].endswith("File too large; free some space there; the checkpoint of step 5 remains")
    assert one.start().end() == 0
    assert_as_uninterrupted(one, uninterrupted)


# ---- the order of samples ----


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_an_epoch_has_each_sample_once_whatever_the_ranks(ranks):
    order = batches.Order(samples=50, batch_size=8, seed=3)
    alone = [order.batch(step) for step in range(12)]
    shared = [sorted(index for rank in range(ranks) for index in order.batch(step, rank, ranks)) for step in range(12)]
    assert shared == [sorted(batch) for batch in alone]
    for epoch in (alone[:6], alone[6:]):
        seen = [index for batch in epoch for index in batch]
        assert len(set(seen)) == len(seen) == 48
    assert alone[:6] != alone[6:]


def test_the_order_depends_on_the_step_alone():
    onward = batches.Order(50, 8, seed=3)
    expected = [onward.batch(step) for step in range(20)]
    assert [batches.Order(50, 8, seed=3).batch(step) for step in reversed(range(20))] == expected[::-1]
    assert [batches.Order(50, 8, seed=4).batch(step) for step in range(20)] != expected


def test_an_error_in_the_data_set_is_the_task_s_own():
    class Bad:
        def __len__(self):
            return 3

        def __getitem__(self, index):
            raise ValueError(f"sample {index} is unreadable")

    with pytest.raises(ValueError, match="is unreadable"):
        order = batches.Order(3, 3, seed=0)
        feeds.PlainFeed(feeds.SampleSource(Bad(), None, list, 0, order), order, 0, 1, step=0).fetch()


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        (None, "must return a mapping of names to numbers, not NoneType"),
        ({1: 0.5}, "a metric named 1; a name is a string"),
        ({"accuracy": torch.zeros(2)}, "returns accuracy = tensor"),
        ({"accuracy": "high"}, "returns accuracy = 'high', which is not one number"),
        ({"accuracy": None}, "returns accuracy = None"),
    ],
)
def test_what_evaluate_returns_is_refused_with_its_name(returned, words):
    with pytest.raises(UsageError, match=words):
        training._metrics(returned)
