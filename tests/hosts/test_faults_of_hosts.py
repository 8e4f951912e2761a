"""What goes wrong between hosts: links cut in one direction, clocks that differ, a second daemon."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e import Jobs, until
from pretended import Host, network
from test_moves import COUNTS, step

pytestmark = [pytest.mark.xdist_group("hosts"), pytest.mark.nightly, pytest.mark.timeout(300)]

#: writes a line when it begins and one when it ends, and works for some seconds in between
WORKS = """
import sys, time
with open(sys.argv[1], "a") as file:
    print("begins", time.time(), file=file, flush=True)
    time.sleep(float(sys.argv[2]))
    print("ends", time.time(), file=file)
"""


def lines(path: Path) -> list[tuple[str, float]]:
    return [(line.split()[0], float(line.split()[1])) for line in path.read_text().splitlines()] if path.exists() else []


@contextlib.contextmanager
def deaf(host: Host, to: Host) -> Iterator[None]:
    """Nothing that a host sends to another one arrives there, and nobody is told: it goes to an address of the link that no one has."""
    neighbour = ["ip", "-n", host.namespace, "neigh"]
    run = host.network.run
    run(*neighbour, "replace", to.address, "lladdr", "02:00:00:00:00:fe", "dev", "eth0", "nud", "permanent")
    try:
        yield
    finally:
        run(*neighbour, "del", to.address, "dev", "eth0")


@pytest.mark.parametrize("cut", ["to the daemon", "from the daemon"])
@pytest.mark.parametrize("job", ["ends meanwhile", "ends later"])
def test_a_link_that_is_cut_in_one_direction(tmp_path: Path, cut: str, job: str) -> None:
    with network(tmp_path, 2) as net:
        first, second = net.hosts
        jobs = Jobs(net.up("--no-runner", config="[runners]\nsilent_after = 3\n"))
        second.runner()
        did, seconds = tmp_path / "did", 4.0 if job == "ends meanwhile" else 16.0
        number = jobs.python("works", WORKS.replace("sys.argv[1]", repr(str(did))).replace("sys.argv[2]", repr(seconds)))
        until(lambda: lines(did))
        until(lambda: jobs.state(number) == "running")
        with deaf(second, first) if cut == "to the daemon" else deaf(first, second):
            until(lambda: net.state("h2") == "suspect", 60)
            time.sleep(6)
            # What the runner says may still arrive, and is said again, as it is not answered.
            assert jobs.state(number) == "running" or cut == "from the daemon"
        assert jobs.ended(number)["state"] == "completed"
        until(lambda: net.state("h2") == "up", 60)
        assert [word for word, _ in lines(did)] == ["begins", "ends"]
        (lease,) = jobs.client.get(f"/v1/jobs/{number}")["leases"]
        ran = lease["ended_at"] - lease["started_at"]
        assert seconds - 1 < ran < seconds + 4, "it is billed for the time that it ran"


#: loaded before all other libraries it sets the time of day, and no other clock, of a process
OTHER_CLOCK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
int clock_gettime(clockid_t which, struct timespec *now) {
    int (*real)(clockid_t, struct timespec *) = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int answer = real(which, now);
    if (which == CLOCK_REALTIME || which == CLOCK_REALTIME_COARSE) now->tv_sec += atol(getenv("CLOCK_AHEAD"));
    return answer;
}
time_t time(time_t *seconds) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (seconds) *seconds = now.tv_sec;
    return now.tv_sec;
}
int gettimeofday(struct timeval *seconds, void *zone) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    seconds->tv_sec = now.tv_sec;
    seconds->tv_usec = now.tv_nsec / 1000;
    return 0;
}
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler, which makes another clock")
@pytest.mark.parametrize("ahead", [3600, -3600])
def test_a_clock_that_differs_by_an_hour(tmp_path: Path, ahead: int) -> None:
    """Over TLS, whose certificate was made a moment ago."""
    (source := tmp_path / "clock.c").write_text(OTHER_CLOCK)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", tmp_path / "clock.so", source, "-ldl"], check=True)
    with network(tmp_path, 2) as net:
        _, second = net.hosts
        client = net.up("--no-runner", "--tls")
        jobs = Jobs(client)
        net.environment |= {"LD_PRELOAD": str(tmp_path / "clock.so"), "CLOCK_AHEAD": str(ahead)}
        began = time.time()
        second.runner()
        did = tmp_path / "did"
        number = jobs.python("works", WORKS.replace("sys.argv[1]", repr(str(did))).replace("sys.argv[2]", "3.0"))
        row = jobs.ended(number)
        assert row["state"] == "completed" and abs(lines(did)[0][1] - began - ahead) < 60
        (lease,) = client.get(f"/v1/jobs/{number}")["leases"]
        assert began < lease["started_at"] < lease["ended_at"] < time.time() and 2 < lease["ended_at"] - lease["started_at"] < 6
        job = jobs.python("counts", COUNTS, grace=3.0)
        until(lambda: step(jobs, job) > 5)
        client.post("/v1/runners/h2/drain", {"now": True})
        until(lambda: jobs.state(job) == "pending")
        saved = step(jobs, job)
        client.post("/v1/runners/h2/resume", {})
        until(lambda: client.get(f"/v1/jobs/{job}/logs")["text"].startswith(f"begins at {saved}\n"), 60)
        jobs.act("cancel", job)
        jobs.ended(job)


def test_two_daemons_share_a_disk_and_neither_takes_what_is_the_other_ones(tmp_path: Path) -> None:
    (shared := tmp_path / "shared").mkdir()
    with network(tmp_path, 2) as one, contextlib.ExitStack() as at_end:
        first, second = one.hosts
        client = one.up("--slots", "1", config=f'[runners]\ncheckpoints = "{shared}"\n')
        (second.home / "config.toml").write_text(f'[runners]\ncheckpoints = "{shared}"\n')
        other = second.start("up", "--slots", "1")
        until(lambda: second.stoker("status").returncode == 0, 60, says=second.said, alive=(other,), pause=0.5)
        at_end.callback(second.stoker, "down")
        jobs = Jobs(client)
        job = jobs.python("counts", COUNTS)
        assert second.stoker("submit", "--name", "counts", "--", sys.executable, "-c", COUNTS.replace("400", "7")).returncode == 0
        assert second.stoker("wait", "counts").returncode == 0
        assert jobs.ended(job)["state"] == "completed"
        kept = sorted(int(path.read_text()) for path in shared.glob(f"stoker-*/{job}/checkpoints/n"))
        assert kept == [7, 400]  # both are job 1
        again = first.network.run("nsenter", "-t", str(second.pid), "-m", "-u", "-n", "-p", sys.executable, "-m", "stoker",
                                  "--home", str(first.home), "up", "--no-runner", check=False)  # fmt: skip
        assert again.returncode != 0  # of one home there is one daemon, from whichever host
        assert client.get("/v1/status")["pid"]
