"""Models that synthesised jobs train: how large their jobs are, and how fast they train (002 Eqn 5.2).

The parameters are published measurements, taken as 002 ch. 5.3.2.1 takes its own: the step on one GPU, and the time of
communication that a second GPU adds on the same node and on another one.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...policies.profiles import Profile, Throughput

MOST_GPUS = 64  #: of a profile


@dataclass(frozen=True, slots=True)
class Speed:
    """Seconds of an iteration: ``fixed + per_sample * samples on a GPU + (GPUs - 1) * intra``, or ``* inter`` over several nodes."""

    fixed: float
    per_sample: float
    intra: float
    inter: float


@dataclass(frozen=True, slots=True)
class Model:
    name: str
    scale: str  #: small, medium or large: the GPU-time of its jobs
    share: float  #: of the jobs of its scale, against the shares of the scale's other models
    batch_size: int
    whole: bool  #: the batch size is that of the whole job, however many GPUs it has; else of each GPU
    speed: Speed | None = None  #: None: nobody has published it

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
        """Work a second by number of GPUs, in iterations of one GPU; None when unknown."""
        counts = range(1, MOST_GPUS + 1)
        # With a batch size of each GPU, an iteration on n GPUs does the work of n.
        work = {gpus: 1.0 if self.whole else float(gpus) for gpus in counts}
        near = [work[gpus] / took for gpus in counts if (took := self.iteration(gpus, spread=False)) is not None]
        far = [work[gpus] / took for gpus in counts if (took := self.iteration(gpus, spread=True)) is not None]
        return Profile(self.name, Throughput(list(counts), near, far)) if near else None


# Step and synchronisation times on T4 GPUs that Pollux (Qiao et al., OSDI 2021) publishes with its simulator, at one batch size a GPU
# each. Scales and shares are of its Table 1, where ImageNet is larger still.
_DLT = (
    Model("resnet18-cifar10", "small", 0.36, 129, False, Speed(0.1039, 0.0, 0.001452, 0.0252)),
    Model("neumf-movielens", "small", 0.36, 32768, False, Speed(0.02132, 0.0, 0.003549, 0.01341)),
    Model("deepspeech2-cmuarctic", "medium", 0.10, 20, False, Speed(0.6812, 0.0, 0.05064, 0.1441)),
    Model("bert-squad", "medium", 0.10, 12, False, Speed(0.9215, 0.0, 0.05512, 0.7327)),
    Model("yolov3-voc-detection", "large", 0.06, 8, False, Speed(0.3261, 0.0, 0.01851, 0.4887)),
    Model("resnet50-imagenet", "large", 0.02, 200, False, Speed(0.9235, 0.0, 0.005889, 0.06149)),
)

# Fitted to the V100 step times that Titan (Gao et al., SoCC 2022) publishes: within 0.5 % up to 256 (ViT) and 52 (RoBERTa) samples on a
# GPU. Above that the line goes on, as it does when gradients are accumulated.
_VIT = Speed(0.01754, 0.003223, 0.01448, 0.0302)
_ROBERTA = Speed(0.02056, 0.01055, 0.0005131, 0.01013)

#: Data set, batch size, scale and fraction of jobs (%), of 002 Table 3.3. Its fractions make a fifth of the jobs small where the text says
#: 0.3, so they weigh only the tasks of one scale against each other.
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


def _tasks(backbone: str, tasks: tuple[tuple[str, int, str, int], ...], speed: Speed | None) -> tuple[Model, ...]:
    """Fine-tuning tasks of one backbone; 002 ch. 3.5.1 keeps their batch sizes on any number of GPUs."""
    return tuple(Model(f"{backbone}/{name}", scale, share / 100, batch, True, speed) for name, batch, scale, share in tasks)


CATALOGUES: dict[str, tuple[Model, ...]] = {
    "dlt": _DLT,
    "vit-base": _tasks("vit-base", _VIT_TASKS, _VIT),
    "roberta-base": _tasks("roberta-base", _ROBERTA_TASKS, _ROBERTA),
    "vicuna-7b": _tasks("vicuna-7b", _VICUNA_TASKS, None),
}


def profiles() -> tuple[Profile, ...]:
    """Of every model whose speed is known: what `to_workload` takes."""
    known = (model.profile() for catalogue in CATALOGUES.values() for model in catalogue)
    return tuple(profile for profile in known if profile is not None)
