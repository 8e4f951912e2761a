"""A tuning that is forked from a process that has served many others is the same as one in a fresh process, to the bit."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from e2e import DaemonProcess, Jobs, RunnerProcess, until
from stoker.engine.client import Client
from stoker.engine.home import Home


@pytest.mark.nightly  # forked trainings of other kinds by day: test_warm_starts.py
@pytest.mark.timeout(3000)
def test_the_last_of_many_forked_tunings_equals_one_in_a_fresh_process(home: Home, start_daemon: Callable[..., DaemonProcess]) -> None:
    rows = [json.dumps({"text": f"note {number} {'zz' if number % 2 else 'aa'}", "label": number % 2}) for number in range(60)]
    (home.path / "mails.jsonl").write_text("\n".join(rows))
    start_daemon()
    runner = RunnerProcess(home, "here", 1, "--warm", "auto")
    runner.start()
    client = Client(home, url="", token="")
    jobs = Jobs(client)

    def tuned(name: str, seed: int, **more: object) -> tuple[bytes, bool]:
        """The tuned prompt, and whether its job was forked. Others have other seeds, so that each draws other numbers."""
        params = {"data": str(home.path / "mails.jsonl"), "init": "vocabulary", "eval_every": 2, "seed": seed}
        job = jobs.submit(name, kind="prompt", recipe="prompt-tune", backbone="tiny", params=params, stop={"iterations": 4}, **more)
        assert jobs.ended(job)["state"] == "completed"
        ((warm,),) = jobs.sql(f"SELECT warm FROM leases WHERE job_id = {job}")
        return Path(home.path, "jobs", str(job), "checkpoints", "prompt", "adapter_model.safetensors").read_bytes(), warm

    try:
        fresh, warm = tuned("fresh", 0, warm="off")
        assert not warm
        tuned("first", 1)
        until(lambda: tuned("next", 2)[1])
        for number in range(99):
            other, warm = tuned(f"other-{number}", 3 + number)
            assert warm and other != fresh
        assert tuned("last", 0) == (fresh, True)
    finally:
        client.close()
        runner.end()
