"""GPUs of this host by NVML, or CPU slots. A GPU is named by its UUID everywhere; its index is for display."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec

from ...engine.errors import UsageError
from ...engine.protocol import MOST_GPUS, GpuInfo
from ..lease import processes

log = logging.getLogger("stoker.runner")

_GIB = 1 << 30
_BASELINE = _GIB  #: most memory that the driver alone takes of an idle GPU
_NEAR = 256 << 20  #: bytes above the baseline at which a GPU still counts as free


class GpuReading(NamedTuple):
    """Current readings of a GPU; None: it cannot tell."""

    utilisation: float | None = None  #: 0 to 1
    memory_used: int | None = None
    power: float | None = None
    power_limit: float | None = None
    temperature: float | None = None


class Devices(Protocol):
    """The devices that a runner offers."""

    gpus: dict[str, GpuInfo]  #: by id, as they were found

    def read(self, gpu: str) -> GpuReading | None:
        """Telemetry; None: the device has none of its own."""

    def check(self, gpu: str) -> GpuInfo:
        """Whether a job may start on it now. To be called while no worker of ours is on it."""

    def free(self, gpu: str) -> int | None:
        """Free memory in bytes; None: unknown, or without meaning."""


class CpuSlots:
    """Slots of a host without GPUs: everything runs for real, on the CPU."""

    def __init__(self, node: str, count: int, memory: int | None = None):
        """``memory``: declared bytes of each slot; they are not enforced."""
        if count < 1:
            raise UsageError(f"--slots {count}: a runner needs at least one slot")
        if count > MOST_GPUS:
            raise UsageError(f"--slots {count}: at most {MOST_GPUS} fit into one runner")
        if memory is not None and memory < 1:
            raise UsageError(f"--slot-memory {memory}: a slot has at least one byte of memory; leave it out where it is not known")
        name = _cpu_name()
        slots = [GpuInfo(id=f"{node}/cpu{i}", index=i, kind="cpu", name=name, memory=memory or 0) for i in range(count)]
        self.gpus = {slot.id: slot for slot in slots}

    def read(self, gpu: str) -> GpuReading | None:
        return None

    def check(self, gpu: str) -> GpuInfo:
        return self.gpus[gpu]

    def free(self, gpu: str) -> int | None:
        return None


class WantedGpus(NamedTuple):
    """GPUs to offer, by the names that people use."""

    source: str  #: the option or variable that names them
    names: tuple[str, ...]  #: NVML indexes, UUIDs, or the first characters of UUIDs
    cuda_order: bool = False  #: numbers are CUDA's (fastest first), not NVML's (by bus)

    @classmethod
    def option(cls, text: str) -> WantedGpus:
        return cls("--gpus", tuple(name for part in text.split(",") if (name := part.strip())))

    @classmethod
    def environment(cls, environment: Mapping[str, str]) -> WantedGpus | None:
        """CUDA_VISIBLE_DEVICES as CUDA reads it: an empty value names no GPU, and -1 ends the list. None: it is not set."""
        text = environment.get("CUDA_VISIBLE_DEVICES")
        if text is None:
            return None
        names = cls.option(text).names
        if "-1" in names:
            names = names[: names.index("-1")]
        return cls("CUDA_VISIBLE_DEVICES", names, cuda_order=environment.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID")

    def naming(self, uuid: str, index: int) -> set[str]:
        """The names that mean this GPU."""
        return {name for name in self.names if name == str(index) or (name.startswith("GPU-") and uuid.startswith(name))}


class NvmlGpus:
    """NVIDIA GPUs. ``nvml`` is the module pynvml, already initialised, or a fake of it."""

    def __init__(self, nvml: Any, wanted: WantedGpus | None = None):
        self._nvml = nvml
        self._handles: dict[str, Any] = {}
        self._minor: dict[str, int | None] = {}
        self._baseline: dict[str, int] = {}
        self.gpus: dict[str, GpuInfo] = {}
        models: set[str] = set()
        for index in range(nvml.nvmlDeviceGetCount()):
            try:
                models.add(self._add(index, wanted))
            except nvml.NVMLError as error:
                log.error("GPU %d is left out: %s", index, self._words(error))
        if wanted is not None:
            self._check(wanted, models)

    def _check(self, wanted: WantedGpus, models: set[str]) -> None:
        """UsageError unless each name means one GPU."""
        if wanted.cuda_order and len(models) > 1 and any(name.isdecimal() for name in wanted.names):
            raise UsageError(
                f"{wanted.source}: numbers do not tell which GPUs of different models are meant;"
                " give UUIDs ('nvidia-smi -L' lists them), or set CUDA_DEVICE_ORDER=PCI_BUS_ID"
            )
        named = [name for gpu in self.gpus.values() for name in wanted.naming(gpu.id, gpu.index)]
        if missing := [name for name in wanted.names if name not in named]:
            raise UsageError(f"{wanted.source}: no GPU {', '.join(missing)} here to offer; there are {self._names()}")
        if several := [name for name in wanted.names if named.count(name) > 1]:
            raise UsageError(f"{wanted.source}: {several[0]} is the beginning of several UUIDs; give more of it")

    def _add(self, index: int, wanted: WantedGpus | None) -> str:
        """Offer a GPU if it is wanted; returns its model."""
        handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
        uuid, name = _text(self._nvml.nvmlDeviceGetUUID(handle)), _text(self._nvml.nvmlDeviceGetName(handle))
        if wanted is not None and not wanted.naming(uuid, index):
            return name
        if (self._ask("nvmlDeviceGetMigMode", handle) or (0,))[0]:
            log.error("GPU %d is left out: MIG is on, and its instances cannot be offered; 'nvidia-smi -i %d -mig 0' ends it", index, index)
            return name
        memory = self._nvml.nvmlDeviceGetMemoryInfo(handle)
        self._handles[uuid] = handle
        self._minor[uuid] = self._ask("nvmlDeviceGetMinorNumber", handle)
        # Memory in use at the start may be leftovers: it does not count as baseline.
        self._baseline[uuid] = min(memory.used, _BASELINE)
        self.gpus[uuid] = GpuInfo(id=uuid, index=index, kind="cuda", name=name, memory=memory.total)
        return name

    def _names(self) -> str:
        return ", ".join(f"{g.index} ({g.id})" for g in self.gpus.values()) or "none"

    def _ask(self, function: str, *arguments: Any) -> Any:
        """The answer of an NVML function; None: this GPU or driver does not support it."""
        try:
            return getattr(self._nvml, function)(*arguments)
        except (self._nvml.NVMLError_NotSupported, self._nvml.NVMLError_FunctionNotFound, self._nvml.NVMLError_NoPermission):
            return None

    def read(self, gpu: str) -> GpuReading | None:
        handle = self._handles[gpu]
        try:
            rates = self._ask("nvmlDeviceGetUtilizationRates", handle)
            memory = self._ask("nvmlDeviceGetMemoryInfo", handle)
            power = self._ask("nvmlDeviceGetPowerUsage", handle)
            limit = self._ask("nvmlDeviceGetEnforcedPowerLimit", handle)
            temperature = self._ask("nvmlDeviceGetTemperature", handle, self._nvml.NVML_TEMPERATURE_GPU)
        except self._nvml.NVMLError:
            return None  # the GPU is lost: the next check says so
        return GpuReading(
            utilisation=None if rates is None else rates.gpu / 100,
            memory_used=None if memory is None else memory.used,
            power=None if power is None else power / 1000,
            power_limit=None if limit is None else limit / 1000,
            temperature=None if temperature is None else float(temperature),
        )

    def check(self, gpu: str) -> GpuInfo:
        """``ok`` if its memory is near the baseline, else ``dirty`` with its holders, or ``missing``."""
        known, handle = self.gpus[gpu], self._handles[gpu]
        try:
            used = self._nvml.nvmlDeviceGetMemoryInfo(handle).used
            if used <= self._baseline[gpu] + _NEAR:
                self._baseline[gpu] = min(self._baseline[gpu], used)
                return msgspec.structs.replace(known, health="ok", note=None)
            holders = self._holders(gpu)
        except self._nvml.NVMLError as error:
            return msgspec.structs.replace(known, health="missing", note=self._words(error))
        held = f"{used / _GIB:.1f} GiB of its memory are in use"
        who = f", held by {holders}" if holders else ", though no process is seen to hold it: it may be in another container"
        return msgspec.structs.replace(known, health="dirty", note=held + who)

    def _holders(self, gpu: str) -> str:
        """Processes that NVML names, and those with the device file open; neither list is complete."""
        pids = {int(process.pid) for process in self._ask("nvmlDeviceGetComputeRunningProcesses", self._handles[gpu]) or ()}
        if (minor := self._minor[gpu]) is not None:
            pids |= {pid for pid, files in processes.device_holders().items() if f"/dev/nvidia{minor}" in files}
        return ", ".join(f"pid {pid} ({processes.command(pid)})" for pid in sorted(pids - {os.getpid()}))

    def free(self, gpu: str) -> int | None:
        try:
            memory = self._nvml.nvmlDeviceGetMemoryInfo(self._handles[gpu])
        except self._nvml.NVMLError:
            return None
        return int(memory.total - memory.used)

    def _words(self, error: Exception) -> str:
        if isinstance(error, self._nvml.NVMLError_GpuIsLost):
            return "the GPU has fallen off the bus: see dmesg for Xid errors; it takes a reset or a reboot"
        return f"NVML: {error}"


def find(node: str, slots: int | None = None, only: str | None = None, nvml: Any = None, slot_memory: int | None = None) -> Devices:
    """The devices of this host: ``slots`` CPU slots if given, else its GPUs, else a CPU slot a core.

    ``only``: indexes or UUIDs of the GPUs to offer; by default those that CUDA_VISIBLE_DEVICES leaves.
    ``slot_memory``: bytes that each CPU slot is declared to have; UsageError where GPUs are offered.
    """
    if slots is not None:
        return CpuSlots(node, slots, slot_memory)
    wanted = WantedGpus.environment(os.environ) if only is None else WantedGpus.option(only)
    if wanted is not None and not wanted.names:
        return CpuSlots(node, cores(), slot_memory)
    nvml = nvml or _initialised()
    gpus = NvmlGpus(nvml, wanted) if nvml is not None else None
    if gpus is not None and gpus.gpus:
        if slot_memory is not None:
            raise UsageError("--slot-memory: this runner offers GPUs, whose memory is known; leave it out, or offer CPU slots with --slots")
        return gpus
    if wanted is not None:
        raise UsageError(
            f"{wanted.source} {','.join(wanted.names)}: NVML finds no GPU here; see 'stoker doctor', or offer CPU slots with --slots"
        )
    return CpuSlots(node, cores(), slot_memory)


def _initialised() -> Any:
    """The module pynvml with NVML initialised, None where there is no driver."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except (pynvml.NVMLError_LibraryNotFound, pynvml.NVMLError_DriverNotLoaded):
        return None
    except pynvml.NVMLError as error:
        # The driver does not work, typically after an upgrade without a reboot: CPU slots would hide that.
        raise UsageError(f"NVML: {error}; mend the driver (a reboot after its upgrade?), or offer CPU slots with --slots") from None
    return pynvml


def cores(cpus: Path = Path("/sys/devices/system/cpu")) -> int:
    """Physical cores that this process may use; hyperthreads of one core count once."""
    found = set()
    for cpu in os.sched_getaffinity(0):
        try:
            found.add((cpus / f"cpu{cpu}" / "topology" / "thread_siblings_list").read_text().strip())
        except OSError:
            found.add(str(cpu))
    return max(1, len(found))


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return "CPU"
    fields: Mapping[str, str] = dict(line.split("\t: ", 1) for line in lines if "\t: " in line)
    return "CPU slot, " + fields.get("model name", "unknown CPU").strip()


def _text(name: str | bytes) -> str:
    return name.decode() if isinstance(name, bytes) else name
