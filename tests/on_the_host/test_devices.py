"""GPUs by a fake NVML with its failures, telemetry, and what a job is started with."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from stoker.engine.errors import UsageError
from stoker.engine.protocol import Assignment, Assignments
from stoker.runners.host import agent as agents
from stoker.runners.host import gpus as devices
from stoker.runners.host.gpus import CpuSlots, GpuReading, NvmlGpus, WantedGpus
from stoker.runners.host.health import Health
from stoker.runners.host.launch import CannotStart, prepare, read_env_file
from stoker.runners.host.runs import Run, RunPhase
from stoker.runners.host.telemetry import Telemetry, WatchedLease, is_quiet
from stoker.runners.lease import processes
from stoker.runners.lease.rundir import RunDir
from stoker.runners.lease.supervisor import register, write_exit
from waiting import patient, until

GIB = 1 << 30


class NVMLError(Exception):
    pass


class Lost(NVMLError):
    pass


class NotSupported(NVMLError):
    pass


class FakeNvml:
    """The part of pynvml that is used, with as many GPUs as wanted, each to be changed or broken by a test."""

    NVMLError, NVMLError_GpuIsLost, NVMLError_NotSupported = NVMLError, Lost, NotSupported
    NVMLError_FunctionNotFound = NVMLError_NoPermission = type("Unused", (NVMLError,), {})
    NVML_TEMPERATURE_GPU = 0

    def __init__(self, count: int = 2):
        self.gpus = [
            SimpleNamespace(
                uuid=f"GPU-{i:04x}",
                used=GIB // 2,
                utilisation=0,
                power=60_000,
                pids=[],
                lost=False,
                minor=i + 40,
                name=b"Fake GPU",
                mig=None,
            )
            for i in range(count)
        ]

    @staticmethod
    def _seen(gpu: Any) -> Any:
        if gpu.lost:
            raise Lost("GPU is lost")
        return gpu

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any:
        return self._seen(self.gpus[index])

    def nvmlDeviceGetUUID(self, gpu: Any) -> str:
        return str(gpu.uuid)

    def nvmlDeviceGetName(self, gpu: Any) -> bytes:
        return bytes(gpu.name)

    def nvmlDeviceGetMigMode(self, gpu: Any) -> list[int]:
        if gpu.mig is None:
            raise NotSupported("Not Supported")
        return [gpu.mig, gpu.mig]

    def nvmlDeviceGetMinorNumber(self, gpu: Any) -> int:
        return int(gpu.minor)

    def nvmlDeviceGetMemoryInfo(self, gpu: Any) -> Any:
        return SimpleNamespace(total=24 * GIB, used=self._seen(gpu).used)

    def nvmlDeviceGetUtilizationRates(self, gpu: Any) -> Any:
        return SimpleNamespace(gpu=self._seen(gpu).utilisation)

    def nvmlDeviceGetPowerUsage(self, gpu: Any) -> int:
        return int(self._seen(gpu).power)

    def nvmlDeviceGetEnforcedPowerLimit(self, gpu: Any) -> int:
        return 700_000

    def nvmlDeviceGetTemperature(self, gpu: Any, sensor: int) -> int:
        raise NotSupported("Not Supported")

    def nvmlDeviceGetComputeRunningProcesses(self, gpu: Any) -> list[Any]:
        return [SimpleNamespace(pid=pid, usedGpuMemory=None) for pid in self._seen(gpu).pids]


@pytest.fixture
def nvml() -> FakeNvml:
    return FakeNvml()


# -- GPUs ----------------------------------------------------------------------------------------------------------------


def test_gpus_are_found(nvml: FakeNvml) -> None:
    found = NvmlGpus(nvml)
    assert [(g.id, g.index, g.kind, g.name, g.memory) for g in found.gpus.values()] == [
        ("GPU-0000", 0, "cuda", "Fake GPU", 24 * GIB),
        ("GPU-0001", 1, "cuda", "Fake GPU", 24 * GIB),
    ]


def test_the_binding_has_every_name_that_is_used() -> None:
    """The fake and the real module agree on names; a release that drops one fails here, not on a GPU host."""
    import pynvml

    used = [name for name in dir(FakeNvml) if name.startswith(("nvml", "NVML"))]
    assert [name for name in used if not hasattr(pynvml, name)] == []


def test_only_some_gpus(nvml: FakeNvml) -> None:
    for given in ("1", "GPU-0001", " 1 ,", "GPU-0001,1"):
        assert list(devices.find("n1", only=given, nvml=nvml).gpus) == ["GPU-0001"], given
    with pytest.raises(UsageError, match="--gpus: no GPU 5 here to offer; there are 1"):
        devices.find("n1", only="1,5", nvml=nvml)
    with pytest.raises(UsageError, match="--gpus: GPU-000 is the beginning of several UUIDs"):
        devices.find("n1", only="GPU-000", nvml=nvml)


@pytest.mark.parametrize(
    ("variable", "offered"),
    [
        (None, ["GPU-0000", "GPU-0001"]),
        ("0", ["GPU-0000"]),
        (" 1 , 0", ["GPU-0000", "GPU-0001"]),
        ("0,-1,1", ["GPU-0000"]),
        ("GPU-0001", ["GPU-0001"]),
    ],
)
def test_only_gpus_that_cuda_would_see(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch, variable: str | None, offered: list[str]) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if variable is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)
    assert list(devices.find("n1", nvml=nvml).gpus) == offered


@pytest.mark.parametrize("variable", ["", " ", "-1", "-1,0"])
def test_no_gpus_for_cuda_are_none_for_us(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)
    assert {gpu.kind for gpu in devices.find("n1", nvml=nvml).gpus.values()} == {"cpu"}
    assert list(devices.find("n1", only="0", nvml=nvml).gpus) == ["GPU-0000"], "an option outweighs it"


def test_beginnings_of_uuids(nvml: FakeNvml) -> None:
    nvml.gpus[1].uuid = "GPU-8932f937-d72c"
    assert list(NvmlGpus(nvml, WantedGpus.option("GPU-8932")).gpus) == ["GPU-8932f937-d72c"]


def test_numbers_of_cuda_are_not_those_of_nvml(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA counts the fastest first, NVML by bus: between different models a number would mean the wrong one."""
    nvml.gpus[1].name = b"Faster GPU"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    with pytest.raises(UsageError, match=r"^CUDA_VISIBLE_DEVICES: numbers do not tell .* CUDA_DEVICE_ORDER=PCI_BUS_ID$"):
        devices.find("n1", nvml=nvml)
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    assert list(devices.find("n1", nvml=nvml).gpus) == ["GPU-0000"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-0001")
    monkeypatch.delenv("CUDA_DEVICE_ORDER")
    assert list(devices.find("n1", nvml=nvml).gpus) == ["GPU-0001"]


def test_gpus_in_mig_mode_are_left_out(nvml: FakeNvml, caplog: pytest.LogCaptureFixture) -> None:
    nvml.gpus[0].mig, nvml.gpus[1].mig = 1, 0
    assert list(NvmlGpus(nvml).gpus) == ["GPU-0001"]
    assert "GPU 0 is left out: MIG is on" in caplog.text


def test_a_lost_gpu_is_left_out_at_the_start(nvml: FakeNvml, caplog: pytest.LogCaptureFixture) -> None:
    nvml.gpus[0].lost = True
    assert list(NvmlGpus(nvml).gpus) == ["GPU-0001"]
    assert "GPU 0 is left out: the GPU has fallen off the bus" in caplog.text


def test_a_gpu_that_is_lost_later(nvml: FakeNvml) -> None:
    found = NvmlGpus(nvml)
    nvml.gpus[1].lost = True
    now = found.check("GPU-0001")
    assert (now.health, found.read("GPU-0001"), found.free("GPU-0001")) == ("missing", None, None)
    assert "reboot" in (now.note or "")
    assert found.check("GPU-0000").health == "ok"


def test_readings(nvml: FakeNvml) -> None:
    nvml.gpus[0].utilisation = 87
    assert NvmlGpus(nvml).read("GPU-0000") == GpuReading(0.87, GIB // 2, 60.0, 700.0, None)


def has_its_name(pid: int) -> None:
    """A process bears our name until it has become a sleep, and `Popen` returns before that."""
    until(lambda: processes.command(pid) == "sleep", pause=0.001)


def test_memory_that_is_held_makes_a_gpu_dirty(nvml: FakeNvml) -> None:
    """Named: who holds it, a living process and one that NVML alone still knows of."""
    found = NvmlGpus(nvml)
    with subprocess.Popen(["sleep", "60"]) as child:
        has_its_name(child.pid)
        nvml.gpus[0].used, nvml.gpus[0].pids = 9 * GIB, [child.pid, 2**22 + 1]
        now = found.check("GPU-0000")
        child.kill()
    assert now.health == "dirty"
    assert now.note == f"9.0 GiB of its memory are in use, held by pid {child.pid} (sleep), pid {2**22 + 1} (gone)"
    nvml.gpus[0].used = GIB // 2 + 1000
    assert found.check("GPU-0000").health == "ok"


def test_leftovers_at_the_start_are_no_baseline(nvml: FakeNvml) -> None:
    nvml.gpus[0].used = 5 * GIB
    found = NvmlGpus(nvml)
    assert found.check("GPU-0000").note == (
        "5.0 GiB of its memory are in use, though no process is seen to hold it: it may be in another container"
    )


def test_without_a_driver_there_are_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    import pynvml

    def fail(error: type[Exception]) -> Any:
        def init() -> None:
            raise error()

        return init

    monkeypatch.setattr(pynvml, "nvmlInit", fail(pynvml.NVMLError_LibraryNotFound))
    assert {gpu.kind for gpu in devices.find("n1").gpus.values()} == {"cpu"}
    with pytest.raises(UsageError, match="--gpus 0: NVML finds no GPU here"):
        devices.find("n1", only="0")
    monkeypatch.setattr(pynvml, "nvmlInit", fail(pynvml.NVMLError_LibRmVersionMismatch))
    with pytest.raises(UsageError, match="mend the driver"):
        devices.find("n1")
    assert len(devices.find("n1", slots=3).gpus) == 3, "asked for: NVML is not even tried"


def test_slots(nvml: FakeNvml) -> None:
    assert list(devices.find("n1", slots=2, nvml=nvml).gpus) == ["n1/cpu0", "n1/cpu1"]
    with pytest.raises(UsageError, match="--slots 0"):
        devices.find("n1", slots=0)
    assert {gpu.memory for gpu in devices.find("n1", slots=2, nvml=nvml).gpus.values()} == {0}, "not known"
    assert {gpu.memory for gpu in devices.find("n1", slots=2, nvml=nvml, slot_memory=5).gpus.values()} == {5}
    with pytest.raises(UsageError, match="--slot-memory: this runner offers GPUs"):
        devices.find("n1", nvml=nvml, slot_memory=5)
    with pytest.raises(UsageError, match="--slot-memory 0"):
        devices.find("n1", slots=2, slot_memory=0)


def test_hyperthreads_count_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for cpu, siblings in enumerate(("0,2", "1,3", "0,2", "1,3")):
        (tmp_path / f"cpu{cpu}" / "topology").mkdir(parents=True)
        (tmp_path / f"cpu{cpu}" / "topology" / "thread_siblings_list").write_text(siblings + "\n")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    assert devices.cores(tmp_path) == 2
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {2})
    assert devices.cores(tmp_path) == 1
    assert devices.cores(tmp_path / "nothing") == 1


def test_quarantine_lasts_as_long_as_the_process(nvml: FakeNvml) -> None:
    health = Health(NvmlGpus(nvml))
    with subprocess.Popen(["sleep", "60"]) as child:
        stuck = processes.stat(child.pid)
        assert stuck is not None
        health.quarantine(["GPU-0000", "GPU-unknown"], [stuck.process])
        changed = health.note("GPU-0000")
        assert changed is not None
        assert (changed.health, f"pid {child.pid}" in (changed.note or "")) == ("quarantined", True)
        assert health.note("GPU-0000") is None, "told once"
        assert health.look("GPU-0001").health == "ok"
        health.quarantine(["GPU-0000"], [])  # another job that was on it has left nothing
        assert health.look("GPU-0000").health == "quarantined"
        child.kill()
    back = health.note("GPU-0000")
    assert back is not None
    assert back.health == "ok"


# -- an agent on GPUs ----------------------------------------------------------------------------------------------------


def assignment(home: Path, lease: int = 1, gpus: tuple[str, ...] = ("GPU-0000",), **more: Any) -> Assignment:
    spec = {"name": "job", "command": ("sh", "-c", "echo $CUDA_VISIBLE_DEVICES"), **more.pop("spec", {})}
    rest = {"world_size": len(gpus), **more}
    return Assignment(lease=lease, job=lease, attempt=1, spec=spec, gpus=list(gpus), **rest)


@pytest.fixture
def agent(tmp_path: Path, nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> agents.Agent:
    monkeypatch.setattr(agents, "_SETTLE", 0.0)
    return agents.Agent(agents.Options(home=tmp_path, node="n1"), client=lambda: pytest.fail("no daemon here"), devices=NvmlGpus(nvml))


def want(agent: agents.Agent, *leases: Assignment) -> None:
    agent._want(Assignments(version=1, leases=list(leases)))
    agent.reconcile()


def test_workers_see_their_gpus_by_uuid(agent: agents.Agent, tmp_path: Path) -> None:
    want(agent, assignment(tmp_path, gpus=("GPU-0001", "GPU-0000")))
    run = agent.runs[1]

    def ended() -> bool:
        run.look()
        return run.phase is RunPhase.ENDED

    until(ended)
    assert run.dir.log.read_text() == "GPU-0001,GPU-0000\n"
    run.close()


@pytest.mark.parametrize(
    ("used", "needed", "outcome", "words"),
    [
        (9, 0, "lost", "GPU 0 is dirty: 9.0 GiB of its memory are in use"),
        (9, 20, "lost", "GPU 0 is dirty"),
        (0.5, 23.9, "lost", "GPU 0 has 23.5 GiB free and the job needs 23.9 GiB (gpu_memory)"),
        (0.5, 30, "start-failed", "gpu_memory: 30.0 GiB is more than GPU 0 (Fake GPU) has, 24.0 GiB; lower it, or give a recipe"),
    ],
)
def test_forecast_against_free_memory(
    agent: agents.Agent, nvml: FakeNvml, tmp_path: Path, used: float, needed: float, outcome: str, words: str
) -> None:
    """Nothing is started that would run out of memory later; what is the node's fault costs the job no attempt."""
    nvml.gpus[0].used = int(used * GIB)
    want(agent, assignment(tmp_path, gpu_memory=int(needed * GIB), spec={"gpu_memory": int(needed * GIB)}))
    ended = agent.runs[1].exit or {}
    assert ended["outcome"] == outcome
    assert words in ended["message"]
    assert agent.runs[1].identity is None


def test_a_cap_above_what_the_gpu_has_is_told_as_one(agent: agents.Agent, tmp_path: Path) -> None:
    want(agent, assignment(tmp_path, gpu_memory=30 * GIB, spec={"memory": {"cap": 30 * GIB}}))
    ended = agent.runs[1].exit or {}
    assert ended["outcome"] == "start-failed"
    assert ended["message"].endswith("memory.cap: 30.0 GiB is more than GPU 0 (Fake GPU) has, 24.0 GiB; lower it")


@pytest.mark.parametrize(("beside", "needed", "fits"), [(10, 14, True), (10, 15, False), (0, 23, True)])
def test_what_others_on_the_gpu_are_to_need_is_taken_though_they_do_not_use_it_yet(
    agent: agents.Agent, tmp_path: Path, beside: int, needed: int, fits: bool
) -> None:
    want(agent, assignment(tmp_path, share="packed", gpu_memory=beside * GIB))
    want(agent, agent.runs[1].assignment, assignment(tmp_path, lease=2, share="packed", gpu_memory=needed * GIB))
    started, ended = [run.phase is RunPhase.STARTING for run in agent.runs.values()], agent.runs[2].exit or {}
    for run in agent.runs.values():
        until(lambda run=run: run.look() or run.phase is RunPhase.ENDED)
        run.close()
    assert started == [True, fits]
    if not fits:
        assert ended["outcome"] == "lost"
        assert "GPU 0 is full: its other jobs need 10.0 GiB of 24.0 GiB and the job 15.0 GiB" in ended["message"]


def test_what_could_not_be_killed_is_remembered(agent: agents.Agent, tmp_path: Path) -> None:
    """By the next agent too, although the lease itself is closed."""
    with subprocess.Popen(["sleep", "60"]) as child:
        stuck = processes.stat(child.pid)
        assert stuck is not None
        run = Run.take_up(RunDir(tmp_path, 1, 1), assignment(tmp_path), "n1")
        write_exit(run.dir.path, outcome="unkillable", message="", survivors=[stuck.process])
        run.acked.closed = True
        run.acked.save()
        agent._load()
        assert agent.runs == {}
        assert {gpu.id: gpu.health for gpu in agent._hello().gpus} == {"GPU-0000": "quarantined", "GPU-0001": "ok"}
        child.kill()


def test_a_gpu_in_use_by_an_adopted_worker_is_not_dirty(agent: agents.Agent, nvml: FakeNvml, tmp_path: Path) -> None:
    nvml.gpus[0].used = nvml.gpus[1].used = 9 * GIB
    run = Run.take_up(RunDir(tmp_path, 1, 1), assignment(tmp_path), "n1")
    register(run.dir.path, processes.myself())
    agent._load()
    assert agent.runs[1].phase is RunPhase.LIVE
    assert {gpu.id: gpu.health for gpu in agent._hello().gpus} == {"GPU-0000": "ok", "GPU-0001": "dirty"}
    agent.runs[1].close()


# -- telemetry -----------------------------------------------------------------------------------------------------------


def test_samples_of_slots_are_the_cpu_of_the_tree() -> None:
    telemetry = Telemetry(CpuSlots("n1", 2))
    burn = "import subprocess, sys, time\nsubprocess.Popen([sys.executable, '-S', '-c', 'while True: pass'])\ntime.sleep(60)"
    with subprocess.Popen([sys.executable, "-S", "-c", burn]) as child:
        worker = WatchedLease(7, ("n1/cpu0",), child.pid)
        samples, quiet = telemetry.sample([worker], 1.0, 1.0)
        assert (samples[0].utilisation, quiet) == (None, set())
        tree = until(lambda: (tree := processes.descendants(child.pid, processes.table())) and tree[0].cpu >= 0.1 and tree)
        samples, quiet = telemetry.sample([worker], 2.0, 2.0)  # its clock is ours: one second
        for found in tree:
            processes.send(found.process, 9)
        child.kill()
    assert len(samples) == 1, "an unused slot has nothing to say"
    assert 0.1 <= (samples[0].utilisation or 0) <= 1
    assert (samples[0].memory_used or 0) > 1 << 20
    assert quiet == set()


def test_samples_of_gpus(nvml: FakeNvml) -> None:
    nvml.gpus[0].utilisation = 50
    telemetry = Telemetry(NvmlGpus(nvml))
    samples, _ = telemetry.sample([WatchedLease(7, ("GPU-0000",), os.getpid())], 1.0, 1.0)
    assert [(s.gpu, s.lease, s.utilisation) for s in samples] == [("GPU-0000", 7, 0.5), ("GPU-0001", None, 0.0)]


def test_a_job_that_hangs_on_a_gpu_that_another_one_keeps_busy_is_quiet(nvml: FakeNvml) -> None:
    nvml.gpus[0].utilisation = 90
    telemetry = Telemetry(NvmlGpus(nvml))
    with subprocess.Popen(["sleep", "60"]) as child:
        both = [WatchedLease(lease, ("GPU-0000",), child.pid) for lease in (7, 8)]
        quiet = [telemetry.sample(both, 1.0, clock)[1] for clock in (1.0, 2.0)]
        child.kill()
    assert quiet == [set(), {7, 8}]


@pytest.mark.parametrize(
    ("readings", "cores", "quiet"),
    [
        ([], 0.0, True),
        ([], 0.5, False),
        ([GpuReading(0.0, power=70, power_limit=700)], 0.01, True),
        ([GpuReading(0.0, power=70, power_limit=700)], 0.9, False),  # prepares data
        ([GpuReading(1.0, power=600, power_limit=700)], 1.0, False),
        ([GpuReading(1.0, power=110, power_limit=700)], 1.0, True),  # a collective that spins
        ([GpuReading(1.0, power=110, power_limit=700), GpuReading(1.0, power=500, power_limit=700)], 1.0, False),
        ([GpuReading(1.0)], 1.0, False),  # busy, power unknown
    ],
)
def test_quiet(readings: list[GpuReading], cores: float, quiet: bool) -> None:
    assert is_quiet(readings, cores) is quiet


# -- what is started -----------------------------------------------------------------------------------------------------


def launched(home: Path, inherited: dict[str, str] | None = None, cuda: tuple[str, ...] = (), **more: Any) -> Any:
    given = assignment(home, **more)
    run = RunDir(home, given.job, given.lease, given.node_rank)
    run.path.mkdir(parents=True, exist_ok=True)
    return prepare(run, given, cuda, {"PATH": os.environ["PATH"], **(inherited or {})})


STRAY = dict.fromkeys(
    ("STOKER_PARAM_OTHER", "TORCHELASTIC_RUN_ID", "SLURM_PROCID", "RAY_ADDRESS", "PMI_RANK", "STOKER_PILOT", "STOKER_KEPT"), "1"
)


def test_environment_of_a_command(tmp_path: Path) -> None:
    (tmp_path / "secrets.env").write_text("TOKEN=t0p\nexport B='two words'\n# no\n\nBOTH=file\n")
    spec = {"workdir": str(tmp_path), "env_file": "secrets.env", "env": {"BOTH": "spec", "OMP_NUM_THREADS": "4"}}
    spec["params"] = {"lr": 0.1, "model-name": "tiny", "flags": [1]}
    launch = launched(tmp_path, spec=spec, resume=2, inherited={"STOKER_TOKEN": "secret", "RANK": "3", "LANG": "C"} | STRAY)
    env = launch["env"]
    assert launch["cwd"] == str(tmp_path)
    expected = {"TOKEN": "t0p", "B": "two words", "BOTH": "spec", "LANG": "C", "OMP_NUM_THREADS": "4", "MKL_NUM_THREADS": "1"}
    expected |= {"STOKER_PARAM_LR": "0.1", "STOKER_PARAM_MODEL_NAME": "tiny", "STOKER_PARAM_FLAGS": "[1]"}
    expected |= {"CUDA_VISIBLE_DEVICES": "", "STOKER_RESUME_COUNT": "2", "STOKER_JOB_ID": "1", "STOKER_LEASE_ID": "1"}
    expected |= {"STOKER_TAG": f"{tmp_path}:1", "PYTHONUNBUFFERED": "1", "STOKER_JOB_NAME": "job"}
    assert {name: env[name] for name in expected} == expected
    assert not {"STOKER_TOKEN", "RANK", "WORLD_SIZE", "MASTER_ADDR", *STRAY} & set(env)
    assert "t0p" not in "".join(path.read_text() for path in (tmp_path / "jobs").rglob("*") if path.is_file())


def test_what_stoker_sets_in_place_of_an_env_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "env").write_text("CUDA_VISIBLE_DEVICES=0,1\nSTOKER_TAG=x\nA=1\n")
    notes = launched(tmp_path, spec={"workdir": str(tmp_path), "env_file": "env", "env": {"A": "2"}})["notes"]
    assert [note.split()[1] for note in notes] == ["CUDA_VISIBLE_DEVICES", "STOKER_TAG"]


def test_users_cannot_pass_for_another_lease(tmp_path: Path) -> None:
    env = launched(tmp_path, spec={"env": {"STOKER_TAG": "x", "STOKER_RUN_DIR": "/", "CUDA_VISIBLE_DEVICES": "0,1"}})["env"]
    assert (env["STOKER_TAG"], env["STOKER_RUN_DIR"]) == (f"{tmp_path}:1", str(RunDir(tmp_path, 1, 1).path))
    assert env["CUDA_VISIBLE_DEVICES"] == ""


def test_snapshot_is_where_it_runs(tmp_path: Path) -> None:
    assert launched(tmp_path, snapshot=str(tmp_path), spec={"workdir": "/no/such/place"})["cwd"] == str(tmp_path)


@pytest.mark.parametrize(
    ("more", "argv"),
    [
        ({}, "-P -m stoker.runners.worker.worker"),
        (
            {"gpus": ("a", "b")},
            "-P -m stoker.runners.worker.gang --standalone --local-addr 127.0.0.1 --nproc-per-node 2"
            " --no-python PYTHON -P -m stoker.runners.worker.worker",
        ),
        (
            {"gpus": ("a", "b"), "world_size": 4, "nodes": 2, "node_rank": 1, "rendezvous": "10.0.0.5:2345"},
            "-P -m stoker.runners.worker.gang --nnodes 2 --node-rank 1 --master-addr 10.0.0.5 --master-port 2345 --nproc-per-node 2"
            " --no-python PYTHON -P -m stoker.runners.worker.worker",
        ),
    ],
)
def test_recipes_run_in_workers(tmp_path: Path, more: dict[str, Any], argv: str) -> None:
    assert launched(tmp_path, spec={"command": None, "recipe": "digits"}, **more)["argv"] == [
        sys.executable,
        *argv.replace("PYTHON", sys.executable).split(),
    ]


@pytest.mark.parametrize(
    "gpus",
    # By day a gang's command is seen to have -P, above.
    [("n1/cpu0",), pytest.param(("n1/cpu0", "n1/cpu1"), marks=[pytest.mark.slow, pytest.mark.nightly])],
    ids=["alone", "gang"],
)
def test_modules_beside_the_users_code_do_not_stand_in_for_pythons_own(tmp_path: Path, gpus: tuple[str, ...]) -> None:
    """Alone and in a gang; the entrypoint's own module is still found there, as its complaint shows."""
    (tmp_path / "random.py").write_text("raise SystemExit('the wrong random')\n")
    (tmp_path / "mine.py").write_text("print('mine is imported')\ndef build(): return 7\n")
    given = assignment(tmp_path, gpus=gpus, spec={"command": None, "entrypoint": "mine:build", "workdir": str(tmp_path)})
    run = Run.take_up(RunDir(tmp_path, 1, 1), given, "n1")
    launch = prepare(run.dir, given, ())
    done = subprocess.run(
        launch["argv"], env=launch["env"], cwd=launch["cwd"], capture_output=True, text=True, check=False, timeout=patient(90)
    )
    assert "the wrong random" not in done.stdout + done.stderr
    assert "mine is imported" in done.stdout
    assert "mine:build must return a stoker.runners.training.Task, not int" in done.stderr


def test_a_gangs_command_starts_its_own_ranks(tmp_path: Path) -> None:
    launch = launched(tmp_path, gpus=("a", "b"))
    assert launch["argv"][0] == "sh"
    assert (launch["env"]["MASTER_ADDR"], launch["env"]["STOKER_GPUS"], launch["env"]["STOKER_NODES"]) == ("127.0.0.1", "2", "1")
    assert 0 < int(launch["env"]["MASTER_PORT"]) < 65536
    several = launched(tmp_path, gpus=("a",), world_size=2, nodes=2, node_rank=1, rendezvous="h:99")["env"]
    assert (several["MASTER_ADDR"], several["MASTER_PORT"], several["STOKER_NODE_RANK"]) == ("h", "99", "1")


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("A=1\nno equals", 2), ("2B=1", 1), ("A=1\n\nB='s3cr3t", 3), ("A B=1", 1), ("A='s3cr3t'x", 1), ('A="s3cr3t \\" x"', 1),
        ("A='s3cr3t'#", 1), ("A=s3\rcr3t", 1), ("A=s3cr3t\0", 1), ("export", 1),
    ],
)  # fmt: skip
def test_bad_env_files_name_the_line_and_no_value(tmp_path: Path, content: str, line: int) -> None:
    path = tmp_path / "env"
    path.write_text(content)
    with pytest.raises(CannotStart, match=rf"line {line}: ") as error:
        read_env_file(path)
    assert "s3cr3t" not in str(error.value)


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ('A="x" # note "y"', "x"), ("A=v # c", "v"), ("A=v#c", "v#c"), ("A=# c", ""), ("A='# no comment'", "# no comment"), ("A=", ""),
        ('export\tA = "it\'s"  ', "it's"), ("A='say \"x\"'\t# \"", 'say "x"'), ('A={"a": [1, 2]}', '{"a": [1, 2]}'), ("A=a=b", "a=b"),
        ("A=\\n$HOME", "\\n$HOME"), ("A=x\r", "x"), ("A='x'\r", "x"), ("\ufeffA=x", "x"), ("A=a\x85b\u2028c", "a\x85b\u2028c"),
        ("A=x\nA=y", "y"),
        ("A=it's", "it's"), ("A=exported export B", "exported export B"),
    ],
)  # fmt: skip
def test_one_rule_for_lines_of_env_files(tmp_path: Path, line: str, value: str) -> None:
    path = tmp_path / "env"
    path.write_bytes((line + "\n").encode())
    assert read_env_file(path) == {"A": value}


def test_programs_that_cannot_run(tmp_path: Path) -> None:
    (tmp_path / "script").write_text("#!/bin/sh\n")
    with pytest.raises(CannotStart, match="is not executable; make it so with chmod"):
        launched(tmp_path, spec={"workdir": str(tmp_path), "command": ("./script",)})
