"""The schedules of `replicas_pipelines` in real processes: each in a network namespace of its own, over a link that `tc` throttles."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

PORT = 29_500
HERE = Path(__file__)


def _ip(*words: str, check: bool = True) -> None:
    subprocess.run(words, check=check, capture_output=True)


@contextlib.contextmanager
def hosts(count: int, link: float) -> Iterator[list[tuple[str, str]]]:
    """Name and address of each; ``link``: Mbit/s each way, 0: as fast as it goes."""
    prefix, subnet = f"b{os.getpid() % 100_000}", f"10.{177 + os.getpid() % 70}.{os.getpid() // 70 % 250}"
    bridge, found = f"{prefix}br", [(f"{prefix}h{n}", f"{subnet}.{n + 1}") for n in range(count)]
    try:
        _ip("ip", "link", "add", bridge, "type", "bridge")
        _ip("ip", "link", "set", bridge, "up")
        for number, (name, address) in enumerate(found):
            there, here = ("ip", "netns", "exec", name), f"{prefix}v{number}"
            _ip("ip", "netns", "add", name)
            _ip("ip", "link", "add", here, "type", "veth", "peer", "name", "eth0", "netns", name)
            _ip("ip", "link", "set", here, "master", bridge, "up")
            _ip(*there, "ip", "addr", "add", f"{address}/24", "dev", "eth0")
            _ip(*there, "ip", "link", "set", "eth0", "up")
            _ip(*there, "ip", "link", "set", "lo", "up")
            if link:
                rate = ("root", "tbf", "rate", f"{link:g}mbit", "burst", "128kb", "latency", "100ms")
                _ip(*there, "tc", "qdisc", "add", "dev", "eth0", *rate)
                _ip("tc", "qdisc", "add", "dev", here, *rate)
        yield found
    finally:
        for number, (name, _) in enumerate(found):
            _ip("ip", "netns", "del", name, check=False)
            _ip("ip", "link", "del", f"{prefix}v{number}", check=False)
        _ip("ip", "link", "del", bridge, check=False)


def run(link: float, count: int, **what: Any) -> list[Any]:
    """What the processes found, each in a host of its own."""
    with hosts(count, link) as there, contextlib.ExitStack() as started:
        processes = []
        for number, (name, address) in enumerate(there):
            told = json.dumps(what | {"number": number, "addresses": [one for _, one in there], "own": address})
            command = ["ip", "netns", "exec", name, sys.executable, str(HERE), told]
            env = os.environ | {"GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1"}
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
            started.callback(process.kill)
            processes.append(process)
        answers = [process.communicate(timeout=300) for process in processes]
        for process, (_, errors) in zip(processes, answers, strict=True):
            if process.returncode:
                raise SystemExit(f"over a link of {link:g} Mbit/s: {errors[-2000:]}")
        return [json.loads(out.splitlines()[-1]) for out, _ in answers]


# ---- one process ----


def stage(told: dict[str, Any]) -> float:
    """Seconds of the whole schedule, at the first stage, where it begins and ends."""
    number, addresses, size = told["number"], told["addresses"], told["size"]
    forward, backward = told["parts"][number]
    last = number == len(addresses) - 1
    server = socket.create_server((told["own"], PORT))
    after = None if last else _reached(addresses[number + 1])
    before = server.accept()[0] if number else None
    if after is not None:
        after.recv(1)  # all from there on are ready
    if before is not None:
        before.sendall(b"1")
    arrived: dict[str, SimpleQueue[None]] = {"F": SimpleQueue(), "B": SimpleQueue()}
    sent: dict[str, SimpleQueue[int]] = {"F": SimpleQueue(), "B": SimpleQueue()}
    payload = bytes(size)

    def receive(kind: str, connection: socket.socket) -> None:
        buffer = bytearray(size)
        while _filled(connection, memoryview(buffer)):
            arrived[kind].put(None)

    def send(kind: str, connection: socket.socket) -> None:
        while sent[kind].get():
            connection.sendall(payload)

    for kind, source, sink in (("F", before, after), ("B", after, before)):
        if source is not None:
            threading.Thread(target=receive, args=(kind, source), daemon=True).start()
        if sink is not None:
            threading.Thread(target=send, args=(kind, sink), daemon=True).start()
    begun = time.perf_counter()
    for kind, _ in told["orders"][number]:
        if (before if kind == "F" else after) is not None:
            arrived[kind].get()
        time.sleep(forward if kind == "F" else backward)
        if (after if kind == "F" else before) is not None:
            sent[kind].put(1)
    took = time.perf_counter() - begun
    time.sleep(0.5 if number else 0.0)  # until what it has sent last has arrived
    return took


def _reached(address: str) -> socket.socket:
    until = time.monotonic() + 60
    while True:
        try:
            return socket.create_connection((address, PORT), 5)
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)


def _filled(connection: socket.socket, left: memoryview) -> bool:
    while left:
        if not (got := connection.recv_into(left)):
            return False
        left = left[got:]
    return True


def summed(told: dict[str, Any]) -> float:
    """Seconds of a sum, the median of three, through what replicas sum with."""
    from datetime import timedelta

    import torch
    from torch import distributed
    from torch.distributed import AllreduceOptions, ReduceOp
    from torchft.process_group import ProcessGroupGloo

    number, addresses = told["number"], told["addresses"]
    store: Any = distributed.TCPStore(addresses[0], PORT, is_master=number == 0, wait_for_workers=False, timeout=timedelta(seconds=60))
    group = ProcessGroupGloo(timeout=timedelta(seconds=120))
    group.configure(f"{addresses[0]}:{PORT}/sum", str(number), number, len(addresses))
    options: Any = AllreduceOptions()
    options.reduceOp = ReduceOp.SUM
    tensor, took = torch.ones(told["size"] // 4), []
    for _ in range(4):
        group.barrier().wait()
        begun = time.perf_counter()
        group.allreduce([tensor], options).wait()
        took.append(time.perf_counter() - begun)
    time.sleep(1.0)  # the first one's store is what the others leave by
    del store
    return sorted(took[1:])[1]


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    print(json.dumps(stage(asked) if asked["do"] == "stage" else summed(asked)), flush=True)
    os._exit(0)
