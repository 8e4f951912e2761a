"""Checks of a runner's name and of its offered GPUs. A refusal is in words, which its agent prints before it leaves."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

from ..errors import Conflict, UsageError
from ..protocol import LONGEST_NAME, MOST_GPUS, NODE, NODE_FORM, GpuInfo, Hello
from ..spec.reading.tree import shown
from ..spec.reading.units import LARGEST_SIZE
from ..store.transaction import Transaction

MAX_INDEX = 65_535
#: A UUID, or NODE/cpuN. Old drivers write slashes into the UUIDs of slices: MIG-GPU-…/1/0.
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]*(/[A-Za-z0-9][A-Za-z0-9._:-]*)*", re.ASCII)
_TEXTS: Mapping[str, int] = {"host": 255, "boot_id": 255, "version": 100, "address": 255, "home": 4096}  #: with the most characters


def require(hello: Hello) -> None:
    """Raise UsageError for the first mistake in an offer by itself."""
    if not NODE.fullmatch(hello.node):
        raise UsageError(f"node: {shown(hello.node)} is no name for a runner: {NODE_FORM}; choose another --node")
    if not NODE.fullmatch(hello.pool):
        raise UsageError(f"pool: {shown(hello.pool)} is no name for a pool: {NODE_FORM}; choose another --pool")
    for field, most in _TEXTS.items():
        text = getattr(hello, field)
        if len(text) > most or not text.isprintable():
            raise UsageError(f"{field}: {shown(text)} is not up to {most} printable characters")
    if len(hello.gpus) > MOST_GPUS:
        raise UsageError(f"gpus: runner {hello.node} offers {len(hello.gpus)} GPUs or slots; at most {MOST_GPUS} fit into one runner")
    for gpu in hello.gpus:
        _require_gpu(gpu, hello.node)
    gpu_id, count = Counter(gpu.id for gpu in hello.gpus).most_common(1)[0] if hello.gpus else ("", 0)
    if count > 1:
        raise UsageError(f"gpus: {gpu_id} is offered {count} times; each GPU has an id of its own")


def _require_gpu(gpu: GpuInfo, node: str) -> None:
    if len(gpu.id) > LONGEST_NAME or not _ID.fullmatch(gpu.id):
        raise UsageError(f"gpus.id: {shown(gpu.id)} is no id of a GPU: a UUID such as GPU-8a6f…, or NODE/cpuN for a slot")
    if gpu.kind == "cpu" and not gpu.id.startswith(f"{node}/"):
        raise UsageError(f"gpus.id: {shown(gpu.id)} is no slot of runner {node}: its slots are called {node}/cpu0, {node}/cpu1 and so on")
    if not 0 <= gpu.index <= MAX_INDEX:
        raise UsageError(f"gpus.index: {gpu.index} of {gpu.id} is not between 0 and {MAX_INDEX}")
    if not 0 <= gpu.memory <= LARGEST_SIZE:
        raise UsageError(f"gpus.memory: {gpu.memory} bytes of {gpu.id} are not between 0 and 1 PiB")
    if len(gpu.name) > LONGEST_NAME or not gpu.name.isprintable():
        raise UsageError(f"gpus.name: {shown(gpu.name)} of {gpu.id} is not up to {LONGEST_NAME} printable characters")


def require_free(tx: Transaction, hello: Hello) -> None:
    """Raise Conflict if another runner has one of the GPUs: two would start jobs on it.

    A GPU may move with a renamed host, or from one host to another, once the runner that had it has stopped, was declared dead,
    or no longer finds it and has no living job on it.
    """
    for gpu, node, state, host, missing, held in tx.execute("gpu_owners", [gpu.id for gpu in hello.gpus], hello.node):
        if state not in ("stopped", "gone") and (held or not missing):
            raise Conflict(
                f"gpus: GPU {gpu} belongs to runner {node} on {host}, which is {state}: 'stoker runner stop {node}' first, or "
                f"'stoker runner forget {node}' if that one is no more; --gpus offers other GPUs"
            )
