"""One frame of `stoker top` from a fixed snapshot, at several sizes."""

from __future__ import annotations

import io
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console, Group
from stoker.engine.cli.looking.top_view import frame, shares

NOW = 1_800_000_000.0
CAPPED = "its array may run 2 tasks at once"


def gpu(idx: int, **changes: Any) -> dict[str, Any]:
    return {
        "id": f"GPU-{idx}", "idx": idx, "node": "gpu1", "kind": "cuda", "state": "free", "note": None, "job_id": None, "job": None,
        "utilisation": 0.02, "memory_used": 4 * 1024**2, "memory": 80 * 1024**3, "power": 61.0, "temperature": 31.0, **changes,
    }  # fmt: skip


def running(job: int, **changes: Any) -> dict[str, Any]:
    return {
        "id": job, "name": f"job-{job}", "state": "running", "owner": "ann", "gpus": 1, "gpus_min": 1, "gpus_max": 1, "progress": 50.0,
        "step": 500, "loss": 0.1234, "ran": 754.0, "eta_at": NOW + 700, "deadline_risk": None,
        "nodes": "gpu1", "silent_nodes": None, "reported_at": NOW - 1, **changes,
    }  # fmt: skip


def waiting(job: int, position: int | None, **changes: Any) -> dict[str, Any]:
    return {
        "id": job, "name": f"job-{job}", "owner": "bob", "position": position, "priority": 0, "gpus_min": 2, "gpus_max": 2, "waited": 61.0,
        "est_start": NOW + 180, "reason": "needs 2 GPUs on one node; too few are free", "array_id": None,
        "deadline_risk": None, **changes,
    }  # fmt: skip


def snapshot() -> dict[str, Any]:
    return {
        "now": NOW,
        "gpus": [
            gpu(0, state="busy", job_id=3, job="bert", utilisation=0.97, memory_used=41 * 1024**3, power=612.0, temperature=71.0),
            gpu(1),
            gpu(2, state="dirty", note="held by pid 4711"),
        ],
        "running": [
            running(3, name="bert", progress=62.5, deadline_risk="at risk"),
            running(4, name="ünïcode-名前", progress=None, step=None),
        ],
        "queue": [
            waiting(9, 1, name="urgent", deadline_risk="missed"),
            *(waiting(20 + i, None, name=f"sweep[{i}]", array_id=20, reason=CAPPED, est_start=None) for i in range(5)),
        ],
        "counts": {"running": 2, "pending": 6, "completed": 40},
    }  # fmt: skip


def drawn(picture: dict[str, Any], width: int, height: int, trouble: str | None = None) -> list[str]:
    """The frame as a terminal of that size gets it."""
    lines = frame(picture, width, height, trouble)
    assert len(lines) == height
    assert all(cell_len(line.plain) <= width for line in lines)
    screen = Console(record=True, width=width, height=height, file=io.StringIO(), color_system=None)
    screen.print(Group(*lines))
    shown = screen.export_text().splitlines()
    assert len(shown) == height, "a line was wrapped"
    return shown


def test_what_is_warm_has_a_part_of_its_own_and_stands_at_its_gpus() -> None:
    server = {"node": "gpu1", "recipe": "prompt-tune", "backbone": "smollm2-135m", "state": "ready", "until": None, "memory": 800 << 20,
              "jobs": 1, "note": None}  # fmt: skip
    others = [
        {**server, "recipe": None, "backbone": None, "until": NOW + 300},
        {**server, "recipe": "dlrm", "backbone": None, "state": "failed", "note": "1 threads were started"},
    ]
    gpus = [gpu(0, warm="smollm2-135m", warm_state="ready"), gpu(1, warm="llama", warm_state="loading"), gpu(2, warm=None, warm_state=None)]
    lines = drawn({**snapshot(), "gpus": gpus, "warm": [server, *others]}, 160, 40)
    assert any("Warm: 2 of 3 ready" in line for line in lines)
    assert any("smollm2-135m" in line and "is kept" in line and "800" in line for line in lines)
    assert any("(entrypoints)" in line and "ends in 5m unless used" in line for line in lines)
    assert any("failed" in line and "1 threads were started" in line for line in lines)
    assert any("llama (loading)" in line for line in lines)
    assert not any("Warm:" in line for line in drawn(snapshot(), 160, 40))


@pytest.mark.parametrize(("used", "said"), [(None, "free"), (0.02, "free"), (1.0, "free, 100% by others")])
def test_a_gpu_that_nobody_has_is_free_whoever_else_computes_on_it(used: float | None, said: str) -> None:
    lines = [line.rstrip() for line in drawn({**snapshot(), "gpus": [gpu(0, utilisation=used)]}, 160, 40)]
    assert "GPUs: 0 of 1 busy" in lines[1]
    (line,) = [line for line in lines if line.startswith("gpu1/gpu0")]
    assert line.endswith(f"  {said}") and "█" not in line and line.split()[1] == "–"


def test_who_shares_a_gpu_stands_beside_both_jobs_and_at_the_gpu() -> None:
    pair = [running(3, name="bert", shared_with="4 vgg"), running(4, name="vgg", shared_with="3 bert")]
    picture = {**snapshot(), "running": pair, "gpus": [gpu(0, state="busy", job_id=3, job="bert", shared_with="4 vgg")]}
    lines = [line.rstrip() for line in drawn(picture, 200, 50)]
    assert sum(line.endswith("3 bert, 4 vgg") for line in lines) == 1
    assert [line.split("gpu1; ")[1] for line in lines if "gpu1; " in line] == ["beside 4 vgg", "beside 3 bert"]


@pytest.mark.parametrize(("width", "height"), [(80, 24), (200, 50)])
def test_everything_is_there(width: int, height: int) -> None:
    lines = drawn(snapshot(), width, height)
    text = "\n".join(lines)
    assert "2 running  6 pending  40 completed" in lines[0]
    assert "GPUs: 1 of 3 busy" in text and "Running: 2" in text and "Queue: 6" in text
    busy = next(line for line in lines if "gpu1/gpu0" in line)
    assert "███████▊  97%" in busy and "3 bert" in busy and "41.0 GiB/80.0 GiB" in busy
    assert "held by pid 4711" in next(line for line in lines if "gpu1/gpu2" in line)
    bert = next(line for line in lines if line.startswith(" 3  bert"))
    assert "█████     62%" in bert and "in 11m" in bert and "at risk" in bert
    assert "ünïcode-名前" in text
    urgent = next(line for line in lines if "urgent" in line)
    assert "needs 2 GPUs on one node" in urgent and "missed" in urgent
    assert "sweep[5 tasks]" in text and "its array may run 2 tasks at once" in text
    assert lines[-1].startswith("q quit")


def test_a_wide_screen_shows_more() -> None:
    narrow, wide = "\n".join(drawn(snapshot(), 80, 24)), "\n".join(drawn(snapshot(), 200, 50))
    for word in ("LOSS", "0.123", "USER", "WAITED", "TEMP", "71°C"):
        assert word in wide
    assert "USER" not in narrow


def test_many_gpus_jobs_and_waiting_share_the_screen() -> None:
    picture = snapshot() | {
        "gpus": [gpu(i) for i in range(16)],
        "running": [running(i) for i in range(30)],
        "queue": [waiting(100 + i, i + 1) for i in range(200)],
    }
    lines = drawn(picture, 80, 24)
    assert sum("gpu1/gpu" in line for line in lines) >= 4
    assert sum(line.strip().startswith(tuple("0123456789")) and "job-" in line for line in lines) >= 8
    assert [line.strip() for line in lines if "more" in line] == ["… 11 more", "… 26 more", "… 196 more"]


def test_an_empty_system_says_what_to_do() -> None:
    lines = drawn({"now": NOW, "gpus": [], "running": [], "queue": [], "counts": {}}, 80, 24)
    text = "\n".join(lines)
    assert "no runner yet: stoker runner start" in text and "nothing runs" in text and "nothing waits" in text and "no jobs yet" in text


def test_cpu_slots_are_called_so() -> None:
    picture = snapshot() | {"gpus": [gpu(0, kind="cpu", memory=0, power=None, temperature=None, memory_used=None, utilisation=None)]}
    text = "\n".join(drawn(picture, 80, 24))
    assert "CPU slots: 0 of 1 busy" in text and "gpu1/cpu0" in text and "POWER" not in text


def test_a_lost_daemon_is_said() -> None:
    assert "does not answer" in drawn(snapshot(), 80, 24, "the daemon does not answer; this is what it last said")[0]


@given(st.integers(20, 220), st.integers(3, 60), st.integers(0, 20), st.integers(0, 40), st.integers(0, 60))
def test_any_size_fits(width: int, height: int, gpus: int, jobs: int, queue: int) -> None:
    picture = snapshot() | {
        "gpus": [gpu(i) for i in range(gpus)],
        "running": [running(i) for i in range(jobs)],
        "queue": [waiting(100 + i, i + 1) for i in range(queue)],
    }
    drawn(picture, width, height)


@given(st.lists(st.integers(2, 100), min_size=3, max_size=3), st.integers(0, 120))
def test_lines_are_shared_fairly(wanted: list[int], room: int) -> None:
    least = [min(lines, 4) for lines in wanted]
    given_ = shares(wanted, least, room)
    assert sum(given_) == min(room, sum(wanted))
    assert all(0 <= lines <= most for lines, most in zip(given_, wanted, strict=True))
