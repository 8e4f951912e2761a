"""PromptTuner live: tunings with deadlines beside trainings, on GPUs that are warm for their LLM."""

import json
import time

import pytest
from e2e import Jobs, command
from waiting import until


@pytest.mark.slow
def test_tunings_with_deadlines_beside_trainings_on_two_slots(home, start_daemon, start_runner):
    """One training gives its slot to the pool of the LLM; the tunings share it, one after the other, and the second starts warm."""
    rows = [json.dumps({"text": f"note {number} {'zz' if number % 2 else 'aa'}", "label": number % 2}) for number in range(60)]
    (home.path / "mails.jsonl").write_text("\n".join(rows))
    (home.path / "config.toml").write_text("[guards]\nmin_run_time = 0.0\n")
    daemon = start_daemon()
    start_runner("here", 2, "--warm", "auto")
    jobs = Jobs(daemon.client())
    said = command(home, "policy", "set", "prompttuner", "window=5")
    assert said.code == 0, said.err
    trainings = [jobs.submit(f"training-{n}", "sleep", "10000") for n in range(2)]
    until(lambda: [jobs.state(training) for training in trainings] == ["running"] * 2)
    tuning = {
        "kind": "prompt", "recipe": "prompt-tune", "backbone": "tiny", "stop": {"iterations": 4}, "estimate": 20.0,
        "params": {"data": str(home.path / "mails.jsonl"), "init": "vocabulary", "eval_every": 0},
    }  # fmt: skip
    by = {"kind": "strict", "tiers": [{"deadline": time.time() + 900, "reward": 100.0}]}
    tunings = [jobs.submit(f"tuning-{n}", demand=by, **tuning) for n in range(3)]
    assert [jobs.ended(job)["state"] for job in tunings] == ["completed"] * 3

    leases = jobs.sql(
        f"SELECT job_id, warm, gpu_id FROM leases JOIN lease_gpus ON lease_id = id WHERE job_id IN {tuple(tunings)} ORDER BY id"
    )
    assert [job for job, _, _ in leases] == tunings and len({gpu for _, _, gpu in leases}) == 1, "one after the other, on one slot"
    assert all(warm for _, warm, _ in leases)
    preempted = dict(jobs.sql("SELECT id, preemptions FROM jobs"))
    assert sorted(preempted[job] for job in trainings) == [0, 1]
    until(lambda: [jobs.state(training) for training in trainings] == ["running"] * 2)  # when the window has passed
    until(lambda: jobs.sql("SELECT count(*) FROM gpus WHERE warm IS NOT NULL") == [(0,)])
