"""Warm starts with a real daemon: what people are told of them, and who can turn them off."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from e2e import DaemonProcess, Jobs, RunnerProcess, command, servers_of, until
from stoker.engine.client import Client
from stoker.engine.home import Home
from stoker.runners.lease import processes
from stoker.runners.warm import fork_server

FIRST = "no process had loaded recipe toy yet"


def start_of(client: Client, job: int) -> tuple[bool | None, str | None]:
    (lease,) = client.get(f"/v1/jobs/{job}")["leases"]
    return lease["warm"], lease["cold_because"]


@pytest.mark.slow
def test_people_are_told_how_a_job_started(home: Home, start_daemon: Callable[..., DaemonProcess]) -> None:
    start_daemon()
    runner = RunnerProcess(home, "here", 1, "--warm", "auto")
    runner.start()
    client = Client(home, url="", token="")
    jobs = Jobs(client)
    try:
        first = jobs.submit("first", recipe="toy", stop={"iterations": 2})
        jobs.ended(first)
        assert start_of(client, first) == (False, FIRST)
        assert f"completed; started cold: {FIRST}" in command(home, "explain", str(first)).out

        until(lambda: any(processes.command(server) == fork_server.READY_NAME for server in servers_of(runner.pid)))
        job = jobs.submit("again", recipe="toy", stop={"iterations": 2})
        jobs.ended(job)
        assert start_of(client, job) == (True, None)
        assert "completed; started warm" in command(home, "explain", str(job)).out
        shown = command(home, "show", str(job)).out
        assert " warm " in shown[shown.index("LEASE") :]

        assert jobs.sql("SELECT count(*) FROM leases WHERE warm")[0][0] >= 1
        assert servers_of(runner.pid)
        assert command(home, "down", "--workers").code == 0
        until(lambda: not servers_of(runner.pid))
    finally:
        client.close()
        runner.end()


@pytest.mark.slow
@pytest.mark.nightly  # all other tests turn them off by the option
def test_config_toml_turns_warm_starts_off(home: Home, start_daemon: Callable[..., DaemonProcess]) -> None:
    home.config.write_text('[warm]\nmode = "off"\n')
    start_daemon()
    runner = RunnerProcess(home, "here", 1)
    runner.command = [word for word in runner.command if word not in ("--warm", "off", "auto")]
    runner.start()
    client = Client(home, url="", token="")
    try:
        jobs = Jobs(client)
        job = jobs.submit("first", recipe="toy", stop={"iterations": 2})
        jobs.ended(job)
        assert start_of(client, job) == (False, "warm starts are off on this runner")
    finally:
        client.close()
        runner.end()
