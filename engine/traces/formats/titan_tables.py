"""The tables that Titan's author publishes beside its workloads: training speeds and learning curves of models, alone and by transfer.

They are in the folder of the workload, or in its parent: ``transfer_curves.csv.gz`` (or ``.csv``), and ``fminfo/`` with a folder for each
kind of GPU.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import math
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from ....policies.ymir.step_times import StepTimes

CURVES, SPEEDS = ("transfer_curves.csv.gz", "transfer_curves.csv"), "fminfo"
MOST_EPOCHS = 10.0  #: epochs of a job that never reaches its target, the length of all the author's curves
GPUS_PER_NODE = 4  #: GPUs of each of the author's nodes
MOST_GPUS = 64  #: largest number of GPUs in the tables
_ROUNDING = 1e-5

#: Samples of the training sets (002 Table 3.3; of WNLI to QQP only the author's parts).
SAMPLES = {
    "wnli": 159, "rte": 623, "mrpc": 917, "stsb": 1438, "sst2": 16838, "qnli": 26186, "qqp": 90962, "mnli": 98176, "snli": 137344,
    "Bingsu#Cat_and_Dog": 8000, "frgfm#imagenette": 9469, "cifar100": 50000, "fashion_mnist": 60000, "mnist": 60000, "food101": 75750,
    "imagenet-split-0": 25000, "imagenet-split-1": 75000, "imagenet-split-2": 100000,
}  # fmt: skip

_Curve = list[tuple[float, float]]  #: (epoch, metric)


class TaskKind(NamedTuple):
    """A kind of similar jobs: one data set, trained in one way up to one target."""

    backbone: str
    task: str
    batch: int
    learning_rate: float
    accumulation: str
    target: float

    @property
    def application(self) -> str:
        return f"{self.backbone}@{self.task}"


@dataclass
class _Curves:
    alone: dict[tuple[str, str], dict[tuple[float, str], _Curve]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(list)))
    temporal: dict[tuple[str, str, str], _Curve] = field(default_factory=lambda: defaultdict(list))
    spatial: dict[tuple[str, str, str], dict[str, _Curve]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(list)))


class FineTuning:
    """The tables, and the kinds of jobs looked up in them, which the trace keeps (`recipe`)."""

    def __init__(self, folder: Path, gpu_type: str) -> None:
        self.folder = folder
        self.curves_file = next(folder / name for name in CURVES if (folder / name).is_file())
        kinds = {path.name.lower(): path for path in sorted((folder / SPEEDS).iterdir()) if path.is_dir()}
        if gpu_type.lower() not in kinds:
            raise ValueError(f"{folder / SPEEDS}: --gpu-type: there are no step times of {gpu_type!r}; it has {', '.join(sorted(kinds))}")
        self.gpus = kinds[gpu_type.lower()]
        self._curves: _Curves | None = None
        self._speeds: dict[str, tuple[StepTimes, StepTimes, float]] = {}
        self._kinds: dict[TaskKind, str] = {}

    @property
    def curves(self) -> _Curves:
        if self._curves is None:
            self._curves = _read_curves(self.curves_file)
        return self._curves

    def name_of(self, kind: TaskKind) -> str:
        """The model name of a kind: its application, numbered if several kinds have the same."""
        if kind not in self._kinds:
            same = sum(other.application == kind.application for other in self._kinds)
            self._kinds[kind] = kind.application if not same else f"{kind.application}#{same + 1}"
        return self._kinds[kind]

    def speeds(self, backbone: str) -> tuple[StepTimes, StepTimes, float]:
        """Step times on as few nodes as possible and over several, and the seconds of a context switch."""
        if backbone not in self._speeds:
            self._speeds[backbone] = _read_speeds(self.gpus, backbone)
        return self._speeds[backbone]

    def epochs(self, kind: TaskKind) -> float | None:
        """Epochs until a kind reaches its target, trained like its jobs; None: never."""
        for (rate, accumulation), curve in self._alone(kind).items():
            if math.isclose(rate, kind.learning_rate, rel_tol=1e-5) and accumulation == kind.accumulation:
                return first_epoch(curve, kind.target)
        return None

    def fewest_epochs(self, kind: TaskKind) -> float | None:
        """Epochs with the best learning rate and accumulation that the author has tried."""
        reached = [epoch for curve in self._alone(kind).values() if (epoch := first_epoch(curve, kind.target)) is not None]
        return min(reached, default=None)

    def _alone(self, kind: TaskKind) -> dict[tuple[float, str], _Curve]:
        found = self.curves.alone.get((kind.backbone, kind.task))
        if found is None or kind.task not in SAMPLES:
            raise KeyError(f"{self.curves_file.name} has no curve for {kind.application}")
        return found

    def most_gpus(self, kind: TaskKind) -> int:
        return min(self.speeds(kind.backbone)[0].most_gpus(kind.batch), MOST_GPUS)

    def seconds(self, kind: TaskKind) -> float:
        """On one GPU."""
        return (self.epochs(kind) or MOST_EPOCHS) * SAMPLES[kind.task] / self.speeds(kind.backbone)[0].rate(1, kind.batch)

    def recipe(self) -> dict[str, Any]:
        """The data on which the trace depends beside its file, and the parts of the tables that a simulation needs."""
        kinds = list(self._kinds)
        batches = {(one.backbone, one.batch) for one in kinds}
        batches |= {(one.backbone, one.batch + two.batch) for one in kinds for two in kinds if one.backbone == two.backbone}
        digest = hashlib.sha256(self.curves_file.read_bytes()).hexdigest()
        return {
            "curves": {"file": self.curves_file.name, "sha256": digest, "gpu_type": self.gpus.name},
            "fine_tuning": {
                "kinds": [self._told(kind) for kind in kinds],
                "speeds": [[backbone, batch, *self._rates(backbone, batch)] for backbone, batch in sorted(batches)],
                "switch": {backbone: self.speeds(backbone)[2] for backbone in sorted({kind.backbone for kind in kinds})},
                "temporal": [[a, b, epochs] for a, b, epochs in self._temporal(kinds)],
                "spatial": [[a, b, first, second] for a, b, first, second in self._spatial(kinds)],
            },
        }

    def _told(self, kind: TaskKind) -> dict[str, Any]:
        return {
            "model": self._kinds[kind],
            "backbone": kind.backbone,
            "batch": kind.batch,
            "samples": SAMPLES[kind.task],
            "epochs": self.epochs(kind) or MOST_EPOCHS,
            "fewest_epochs": self.fewest_epochs(kind) or MOST_EPOCHS,
        }

    def _rates(self, backbone: str, batch: int) -> tuple[list[int], list[float], list[float]]:
        """Numbers of GPUs, and samples a second on as few nodes as possible and over several."""
        near, far, _ = self.speeds(backbone)
        gpus = [n for n in range(1, min(near.most_gpus(batch), MOST_GPUS) + 1) if n <= 4 * GPUS_PER_NODE or n % GPUS_PER_NODE == 0]
        return gpus, [round(near.rate(n, batch), 4) for n in gpus], [round(far.rate(n, batch), 4) for n in gpus]

    def _temporal(self, kinds: list[TaskKind]) -> Iterator[tuple[int, int, float]]:
        for a, source in enumerate(kinds):
            for b, kind in enumerate(kinds):
                curve = self.curves.temporal.get((kind.backbone, f"{source.task},{kind.task}", kind.task))
                if source.backbone == kind.backbone and curve and (epochs := first_epoch(curve, kind.target)) is not None:
                    yield a, b, epochs

    def _spatial(self, kinds: list[TaskKind]) -> Iterator[tuple[int, int, float, float]]:
        for a, one in enumerate(kinds):
            for b in range(a + 1, len(kinds)):
                two = kinds[b]
                names = f"{one.task},{two.task}", f"{two.task},{one.task}"
                curves = next((found for name in names if (found := self.curves.spatial.get((one.backbone, name, "")))), None)
                if one.backbone != two.backbone or curves is None:
                    continue
                first, second = first_epoch(curves.get(one.task, []), one.target), first_epoch(curves.get(two.task, []), two.target)
                if first is not None and second is not None:
                    yield a, b, first, second


def find_tables(file: Path) -> Path | None:
    """The folder of the author's tables for a workload: its own folder or the parent; None: they are in neither."""
    for folder in (file.absolute().parent, file.absolute().parent.parent):
        if (folder / SPEEDS).is_dir() and any((folder / name).is_file() for name in CURVES):
            return folder
    return None


def first_epoch(curve: _Curve, target: float) -> float | None:
    """The first epoch at whose end a curve is at its target; None: it never is."""
    return min((epoch for epoch, value in curve if value >= target - _ROUNDING), default=None)


def _table(path: Path, read: Callable[[dict[str, str]], None]) -> None:
    """Read each row of a table; ValueError names an unreadable line."""
    opened = gzip.open if path.suffix == ".gz" else open
    line = 1
    try:
        with opened(path, "rt", encoding="utf-8", newline="") as file:
            for line, row in enumerate(csv.DictReader(file), 2):  # noqa: B007 - named in the error
                read(row)
    except KeyError as error:
        raise ValueError(f"{path}: has no column {error.args[0]!r}") from None
    except (ValueError, TypeError, EOFError, zlib.error, csv.Error, gzip.BadGzipFile) as error:
        raise ValueError(f"{path}: line {line} cannot be read: {error}") from None


def _read_curves(path: Path) -> _Curves:
    curves = _Curves()

    def read(row: dict[str, str]) -> None:
        if row["metric"] == "loss":
            return
        point = float(row["epoch"]), float(row["value"])
        backbone, task = row["backbone"], row["task"]
        if row["mode"] == "alone":
            curves.alone[backbone, task][float(row["learning_rate"]), row["gradient_steps"]].append(point)
        elif row["mode"] == "temporal":
            curves.temporal[backbone, row["tasks"], task].append(point)
        elif row["mode"] == "spatial":
            curves.spatial[backbone, row["tasks"], ""][task].append(point)

    _table(path, read)
    return curves


def _read_speeds(folder: Path, backbone: str) -> tuple[StepTimes, StepTimes, float]:
    near, far, switch = StepTimes(), StepTimes(), [0.0]

    def placed(row: dict[str, str]) -> None:
        nodes = sorted(map(int, row["placement"]))
        gpus = sum(nodes)
        times = round(float(row["local_bsz"])), float(row["step_time"]), float(row["sync_time"])
        fewest = len(nodes) == -(-gpus // GPUS_PER_NODE) and nodes[1:] == [GPUS_PER_NODE] * (len(nodes) - 1)
        if fewest:
            near.update(gpus, *times)
        if (gpus == 1 or len(nodes) == 2) if gpus <= GPUS_PER_NODE else fewest:
            far.update(gpus, *times)

    def scaled(row: dict[str, str]) -> None:
        gpus = int(row["num_replicas"])
        if gpus > 4 * GPUS_PER_NODE and gpus == GPUS_PER_NODE * int(row["num_nodes"]):  # fewer GPUs were measured in each placement
            for table in (near, far):
                table.update(gpus, round(float(row["local_bsz"])), float(row["step_time"]), float(row["sync_time"]))

    def switched(row: dict[str, str]) -> None:
        switch[0] = max(switch[0], float(row["time_cost"]))

    for name, read in (("placements", placed), ("scalability", scaled), ("context_switch", switched)):
        path = folder / f"{backbone}_{name}.csv"
        if not path.is_file():
            raise ValueError(f"{path}: is not there, so nothing is known of how fast {backbone} trains")
        _table(path, read)
    return near, far, switch[0]
