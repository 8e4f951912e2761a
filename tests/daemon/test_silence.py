"""What people are told of a job while one of its hosts is silent: when that was, and as of when all else is."""

from __future__ import annotations

import os
import re
import signal

import pytest
from e2e import Jobs, command, until
from stoker.engine.home import Home

TELLS = "import stoker, time; stoker.report(step=7, total=10); time.sleep(600)"


@pytest.mark.xdist_group("clock")
@pytest.mark.slow
def test_a_silent_host_shows_on_its_jobs_and_a_gang_on_both_its_hosts(start_daemon, start_runner, home: Home) -> None:
    home.config.write_text("[runners]\nsilent_after = 6\n")
    client = start_daemon().client()
    start_runner("a", 1)
    silent = start_runner("b", 1)
    jobs = Jobs(client)
    gang = jobs.python("gang", TELLS, gpus_min=2, gpus_max=2)
    until(lambda: client.get(f"/v1/jobs/{gang}")["progress"])
    heard = {name: command(home, *words).out for name, words in LISTINGS.items()}
    assert "on a, b" in heard["ps"] and "on a, b" in heard["show"] and "on a, b, attempt 1" in heard["explain"] and "a, b" in heard["top"]
    assert "silent" not in "".join(heard.values())
    os.kill(silent.pid, signal.SIGSTOP)
    try:
        until(lambda: {row["id"]: row["state"] for row in client.get("/v1/runners")["runners"]}["b"] == "suspect")
        for name, words in LISTINGS.items():
            said = command(home, *words).out
            assert re.search(r"b silent for \d+s, progress as of \d+s ago", said), (name, said)
        (row,) = client.get(f"/v1/jobs/{gang}")["silent"]
        assert (row["node"], row["reported_at"]) == ("b", client.get(f"/v1/jobs/{gang}")["progress"]["updated_at"])
    finally:
        os.kill(silent.pid, signal.SIGCONT)
    until(lambda: not client.get(f"/v1/jobs/{gang}")["silent"])
    jobs.act("cancel", gang)
    jobs.ended(gang)


LISTINGS = {"ps": ("ps",), "show": ("show", "gang"), "explain": ("explain", "gang"), "top": ("top", "--once")}
