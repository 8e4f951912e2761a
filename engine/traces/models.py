"""Models of synthesised jobs: the sizes of their jobs, their speed (002 Eqn 5.2), and how they share GPUs and scale.

The parameters are published measurements, used as in 002 ch. 5.3.2.1: the step on one GPU, and the communication time
that a second GPU adds on the same node and on another one.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

from ...policies.estimate.goodput import Goodput, StepTime
from ...policies.estimate.throughput import Profile, Throughput

if TYPE_CHECKING:
    from .trace import TraceJob

MOST_GPUS = 64  #: largest number of GPUs in a profile


@dataclass(frozen=True, slots=True)
class IterationTime:
    """Seconds of an iteration: ``fixed + per_sample * samples per GPU + (GPUs - 1) * intra``, or ``* inter`` over several nodes."""

    fixed: float
    per_sample: float
    intra: float
    inter: float


@dataclass(frozen=True, slots=True)
class TraceModel:
    name: str
    scale: str  #: small, medium or large: the GPU-time of its jobs
    share: float  #: of the jobs of its scale, relative to the scale's other models
    batch_size: int
    whole: bool  #: the batch size is that of the whole job on any number of GPUs; else that of each GPU
    speed: IterationTime | None = None  #: None: not published
    utilisation: float = math.nan  #: share of a GPU's compute that it uses alone; this and the next two: NaN if not published
    memory: float = math.nan  #: share of a GPU's memory
    skew: float = math.nan  #: largest tensor as a share of the model
    goodput: Goodput | None = None  #: None: its batch size stays

    def iteration(self, gpus: int, *, spread: bool) -> float | None:
        """Seconds of an iteration on GPUs of one node, or spread over several; None when unknown."""
        if self.speed is None:
            return None
        samples = self.batch_size / gpus if self.whole else self.batch_size
        communication = self.speed.inter if spread else self.speed.intra
        return self.speed.fixed + self.speed.per_sample * samples + (gpus - 1) * communication

    def batch_on(self, gpus: int) -> int:
        """Global batch size."""
        return self.batch_size if self.whole else self.batch_size * gpus

    def profile(self) -> Profile | None:
        """Work a second by number of GPUs, on one node and over several, in iterations of one GPU; None if unknown."""
        counts = range(1, MOST_GPUS + 1)
        # With a batch size for each GPU, an iteration on n GPUs does n times the work.
        work = {gpus: 1.0 if self.whole else float(gpus) for gpus in counts}
        near = [work[gpus] / took for gpus in counts if (took := self.iteration(gpus, spread=False)) is not None]
        far = [work[gpus] / took for gpus in counts if (took := self.iteration(gpus, spread=True)) is not None]
        if not near:
            return None
        return Profile(self.name, Throughput(list(counts), near, far), self.goodput, self.utilisation, self.memory, self.skew)


def _goodput(step: tuple[float, ...], batch: tuple[int, int], most_of_gpu: int, noise: tuple[float, ...]) -> Goodput:
    """``step``: the parameters of StepTime; ``batch``: the initial and the largest; ``noise``: phi at equal steps of progress."""
    scale = tuple((at / (len(noise) - 1), phi) for at, phi in enumerate(noise))
    return Goodput(StepTime(*step), *batch, (1, most_of_gpu), scale)


# Step and synchronisation times on T4 GPUs that Pollux (Qiao et al., OSDI 2021) publishes with its simulator, at one batch size a GPU
# each. Scales and shares are of its Table 1, where ImageNet is larger still. Goodput is fitted (`benchmarks/step_time_fit.py`) to the
# same measurements at all batch sizes, within 11 to 14 %; phi = M0 * grad_var / grad_sqr is that of its runs at the initial batch size.
# Utilisation and memory are those that Lucid (Hu et al., ASPLOS 2023) publishes for the model alone on a GPU of 24 GB, at the nearest
# batch size. The largest tensors are a 3x3 convolution of 512 by 512 channels (ResNets), the embedding of the words (BERT), and
# a 3x3 convolution of 512 by 1024 channels (YOLOv3).
_DLT = (
    TraceModel(
        "resnet18-cifar10", "small", 0.36, 129, False, IterationTime(0.1039, 0.0, 0.001452, 0.0252), 0.963, 0.127, 0.21,
        _goodput((0.01683, 7.109e-4, 0.03056, 0.005278, 0.1247, 0.002648, 2.235), (128, 4096), 1024, (250, 2500, 4840, 12200, 27400)),
    ),
    TraceModel(
        "neumf-movielens", "small", 0.36, 32768, False, IterationTime(0.02132, 0.0, 0.003549, 0.01341), 0.105, 0.084, math.nan,
        _goodput((0.006944, 6.534e-7, 0.003136, 0.001164, 0.01459, 5.417e-4, 1.0), (256, 32768), 32768, (1.86e4, 4e6, 7.2e6, 3.3e7, 4.9e7)),
    ),
    TraceModel(
        "deepspeech2-cmuarctic", "medium", 0.10, 20, False, IterationTime(0.6812, 0.0, 0.05064, 0.1441),
        goodput=_goodput((0.3104, 0.02388, 0.006398, 0.09848, 0.5039, 0.009865, 1.45), (20, 640), 80, (29, 2200, 25100, 163000, 163000)),
    ),
    TraceModel(
        "bert-squad", "medium", 0.10, 12, False, IterationTime(0.9215, 0.0, 0.05512, 0.7327), 0.997, 0.831, 0.21,
        _goodput((0.1718, 0.05867, 0.2673, 0.0441, 1.409, 0.009403, 2.022), (12, 384), 12, (423, 423, 423, 774, 1120)),
    ),
    TraceModel(
        "yolov3-voc-detection", "large", 0.06, 8, False, IterationTime(0.3261, 0.0, 0.01851, 0.4887), skew=0.076,
        goodput=_goodput((0.1872, 0.02538, 0.06246, 0.08111, 0.7477, 0.01072, 1.105), (8, 512), 16, (166, 369, 501, 979, 5160)),
    ),
    TraceModel(
        "resnet50-imagenet", "large", 0.02, 200, False, IterationTime(0.9235, 0.0, 0.005889, 0.06149), 1.0, 0.549, 0.092,
        _goodput((0.0636, 0.004497, 0.06494, 0.01772, 0.3075, 0.006655, 2.675), (200, 12800), 200, (4420, 5970, 11400, 14300, 14400)),
    ),
)  # fmt: skip

# Fitted to the V100 step times that Titan (Gao et al., SoCC 2022) publishes: within 0.5 % up to 256 (ViT) and 52 (RoBERTa) samples on a
# GPU. Above that the line is extended, as for accumulated gradients.
_VIT = IterationTime(0.01754, 0.003223, 0.01448, 0.0302)
_ROBERTA = IterationTime(0.02056, 0.01055, 0.0005131, 0.01013)
_VIT_SKEW, _ROBERTA_SKEW = 0.027, 0.31  #: of one matrix of an MLP (768 by 3072), and of the embedding of the words (50265 by 768)

#: Data set, batch size, scale and fraction of jobs (%), of 002 Table 3.3. Its fractions make a fifth of the jobs small where the text says
#: 0.3, so they are used only as weights among the tasks of one scale.
_VIT_TASKS = (
    ("cat-dog", 768, "small", 10), ("imagenette", 64, "small", 10),
    ("cifar100", 768, "medium", 14), ("fashion-mnist", 768, "medium", 14), ("mnist", 64, "medium", 14),
    ("imagenet25", 256, "medium", 14), ("imagenet75", 512, "medium", 14),
    ("food101", 64, "large", 5), ("imagenet100", 64, "large", 5),
)  # fmt: skip
_ROBERTA_TASKS = (
    ("wnli", 16, "small", 5), ("rte", 16, "small", 5), ("mrpc", 16, "small", 5), ("stsb", 16, "small", 5),
    ("sst2", 128, "medium", 23), ("qnli", 192, "medium", 23), ("qqp", 192, "medium", 23),
    ("mnli", 192, "large", 5), ("snli", 64, "large", 5),
)  # fmt: skip
_VICUNA_TASKS = (
    ("samsum", 96, "small", 7), ("cmv", 24, "small", 7), ("wp", 32, "small", 7),
    ("da", 24, "medium", 23), ("wikip", 32, "medium", 23), ("coqaqg", 24, "medium", 23),
    ("pc", 64, "large", 4), ("quora", 64, "large", 3), ("roc", 96, "large", 3),
)  # fmt: skip


def _tasks(
    backbone: str, tasks: tuple[tuple[str, int, str, int], ...], speed: IterationTime | None, skew: float = math.nan
) -> tuple[TraceModel, ...]:
    """Fine-tuning tasks of one backbone; as in 002 ch. 3.5.1 their batch sizes are the same on any number of GPUs."""
    return tuple(TraceModel(f"{backbone}/{name}", scale, share / 100, batch, True, speed, skew=skew) for name, batch, scale, share in tasks)


CATALOGUES: dict[str, tuple[TraceModel, ...]] = {
    "dlt": _DLT,
    "vit-base": _tasks("vit-base", _VIT_TASKS, _VIT, _VIT_SKEW),
    "roberta-base": _tasks("roberta-base", _ROBERTA_TASKS, _ROBERTA, _ROBERTA_SKEW),
    "vicuna-7b": _tasks("vicuna-7b", _VICUNA_TASKS, None),
}


LUCID_GPU = 24 * 1024.0  #: MiB of the GPUs on which Lucid measured its jobs


def measured(jobs: Sequence[TraceJob]) -> tuple[Profile, ...]:
    """Profiles of how models share a GPU, from the trace itself: Lucid's table has `gpu_util` (per cent) and `gmem` (MiB) of each job."""
    told: dict[str, list[tuple[float, float]]] = {}
    for job in jobs:
        if job.model is None or job.raw is None or not {"gpu_util", "gmem"} <= job.raw.keys():
            continue
        with contextlib.suppress(ValueError):
            use = float(job.raw["gpu_util"]) / 100, float(job.raw["gmem"]) / LUCID_GPU
            if all(0 <= share <= 1 for share in use):
                told.setdefault(job.model, []).append(use)
    return tuple(
        Profile(name, utilisation=fmean(one for one, _ in uses), memory=fmean(two for _, two in uses)) for name, uses in told.items()
    )


def profiles() -> tuple[Profile, ...]:
    """Profiles of all models with a known speed, for `to_workload`."""
    known = (model.profile() for catalogue in CATALOGUES.values() for model in catalogue)
    return tuple(profile for profile in known if profile is not None)
