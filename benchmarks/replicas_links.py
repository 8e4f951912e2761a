"""The schedules of `replicas_pipelines` in real processes: each in a network namespace of its own, over a link that `tc` throttles."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any

PORT = 29_500
HERE = Path(__file__)


class Host:
    """A network namespace of its own. It goes with the process that holds it, which ends with whoever has made it."""

    def __init__(self, address: str = "") -> None:
        self.address = address
        self.holder = subprocess.Popen(["setpriv", "--pdeathsig", "KILL", "unshare", "--net", "sleep", "infinity"], stderr=subprocess.PIPE)
        self.namespace = Path(f"/proc/{self.holder.pid}/ns/net")
        while self._shared():
            if self.holder.poll() is not None:
                assert self.holder.stderr is not None
                raise OSError(f"network namespaces are not permitted here: {self.holder.stderr.read().decode().strip()}")
            time.sleep(0.01)

    def _shared(self) -> bool:
        try:
            return self.namespace.readlink() == Path("/proc/self/ns/net").readlink()
        except OSError:  # it has just ended
            return True

    def argv(self, *words: str) -> list[str]:
        return ["nsenter", f"--net={self.namespace}", *words]

    def do(self, *words: str) -> None:
        done = subprocess.run(self.argv(*words), capture_output=True, text=True, check=False)
        if done.returncode:
            raise OSError(f"{' '.join(words)}: {done.stderr.strip()}")

    def new_socket(self) -> socket.socket:
        """One of this host's, for who is on another."""

        def made() -> socket.socket:
            enter(self.namespace)
            return socket.socket()

        with ThreadPoolExecutor(1) as thread:
            return thread.submit(made).result()

    def lose(self, other: Host) -> None:
        """What it sends to the other one is lost without a word; what that sends arrives."""
        self.do("ip", "neigh", "replace", other.address, "lladdr", "02:00:00:00:00:01", "dev", "eth0", "nud", "permanent")

    def find(self, other: Host) -> None:
        self.do("ip", "neigh", "del", other.address, "dev", "eth0")

    def close(self) -> None:
        with self.holder as holder:
            holder.kill()


def enter(namespace: Path) -> None:
    """This thread, and those that it starts, are in that network from now on."""
    with namespace.open() as file:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(file.fileno(), 0):
            raise OSError(ctypes.get_errno(), f"cannot enter {namespace}")


def ends_with(parent: int) -> None:
    """Be killed as soon as the parent process ends, however that ends."""
    death = 1  # PR_SET_PDEATHSIG
    if ctypes.CDLL(None, use_errno=True).prctl(death, signal.SIGKILL) or os.getppid() != parent:
        os._exit(1)


@contextlib.contextmanager
def hosts(count: int, link: float = 0.0) -> Iterator[list[Host]]:
    """So many, behind a switch that nobody else sees. ``link``: Mbit/s each way, 0: as fast as it goes. OSError: not permitted."""
    with contextlib.ExitStack() as held:

        def host(address: str = "") -> Host:
            made = Host(address)
            held.callback(made.close)
            return made

        switch = host()
        switch.do("ip", "link", "add", "switch", "type", "bridge")
        switch.do("ip", "link", "set", "switch", "up")
        found = [host(f"10.77.0.{number + 1}") for number in range(count)]
        for number, one in enumerate(found):
            port = f"port{number}"
            switch.do("ip", "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", str(one.holder.pid))
            switch.do("ip", "link", "set", port, "master", "switch", "up")
            one.do("ip", "addr", "add", f"{one.address}/24", "dev", "eth0")
            one.do("ip", "link", "set", "eth0", "up")
            one.do("ip", "link", "set", "lo", "up")
            if link:
                rate = ("root", "tbf", "rate", f"{link:g}mbit", "burst", "128kb", "latency", "100ms")
                one.do("tc", "qdisc", "add", "dev", "eth0", *rate)
                switch.do("tc", "qdisc", "add", "dev", port, *rate)
        yield found


def run(link: float, count: int, **what: Any) -> list[Any]:
    """What the processes found, each in a host of its own."""
    with hosts(count, link) as there, contextlib.ExitStack() as started:
        processes = []
        for number, host in enumerate(there):
            told = json.dumps(what | {"number": number, "addresses": [one.address for one in there], "own": host.address})
            command = host.argv("setpriv", "--pdeathsig", "KILL", sys.executable, str(HERE), told)
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
