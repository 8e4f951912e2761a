"""The ranks of a gang: join, agree, leave. With one process each call returns its argument."""

from __future__ import annotations

import datetime
import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

#: The others wait for rank 0 while it evaluates and saves; the launcher, not this timeout, notices a dead rank.
_TIMEOUT = datetime.timedelta(hours=2)


def any_rank(flag: bool) -> bool:
    """Whether any rank says so. All ranks call it together; it is also a barrier."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return flag
    return bool(_all_reduce(int(flag), distributed.ReduceOp.MAX))


def _all_reduce(value: float, operation: Any) -> float:
    import torch
    from torch import distributed

    device = "cuda" if distributed.get_backend() == "nccl" else "cpu"
    tensor = torch.tensor([value], dtype=torch.float64, device=device)
    distributed.all_reduce(tensor, op=operation)
    return float(tensor.item())


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process among the ``size`` processes of the job."""

    rank: int
    size: int
    device: torch.device

    @classmethod
    def join(cls, device: torch.device) -> Ranks:
        """Meet the others, by RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT of torch's launcher."""
        rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
        if size > 1:
            from torch import distributed

            if os.environ.get("LOCAL_WORLD_SIZE") == str(size):
                # One host: otherwise gloo would resolve the host's name, which often fails in containers.
                os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
            backend = "nccl" if device.type == "cuda" else "gloo"
            distributed.init_process_group(backend, timeout=_TIMEOUT)
        return cls(rank, size, device)

    @property
    def first(self) -> bool:
        return self.rank == 0

    def sum(self, value: float) -> float:
        if self.size == 1:
            return value
        from torch import distributed

        return _all_reduce(value, distributed.ReduceOp.SUM)

    def gather(self, value: Any) -> list[Any]:
        """The values of all ranks, on every rank."""
        if self.size == 1:
            return [value]
        from torch import distributed

        values: list[Any] = [None] * self.size
        distributed.all_gather_object(values, value)
        return values

    def leave(self) -> None:
        if self.size > 1:
            from torch import distributed

            distributed.destroy_process_group()
