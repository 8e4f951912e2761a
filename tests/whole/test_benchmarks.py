"""Each benchmark runs, in a tiny configuration, and prints its table. How fast anything is, is not tested here."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from waiting import patient

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

MAILS, PROMPTS = (Path(__file__).parent / name for name in ("few_mails.jsonl", "few_prompts.jsonl"))

TINY = {
    "store_writes": ["--clients", "2", "--seconds", "0.2", "--rounds", "1"],
    "adhoc_sql": ["--clients", "2", "--seconds", "0.3", "--rounds", "1", "--history", "50"],
    "submissions": ["--clients", "2", "--seconds", "0.2"],
    "assignment": ["--runners", "2", "--rounds", "1"],
    "policy_tick": ["--policy", "fifo", "--pending", "10", "--ticks", "2"],
    "page": ["--queued", "5", "--pages", "0", "2", "--seconds", "1", "--rounds", "1"],
    "many_runners": ["--runners", "2", "--queued", "10", "--seconds", "1", "--lasts", "1"],
    "idle": ["--runners", "2", "--seconds", "0.5", "--history", "50"],
    "hostile": ["--clients", "4", "--jobs", "40", "--seconds", "2", "--half-open", "20", "--held", "17"],
    "first_step": ["--rounds", "1"],
    "warm": ["--rounds", "1", "--jobs", "toy"],
    "packing": ["--jobs", "waits", "--seconds", "3"],
    "shared_input": ["--jobs", "2", "--steps", "3"],
    "replicas": ["--steps", "12", "--members", "3", "--events", "1"],
    "replica_losses": ["--steps", "12", "--members", "2", "--events", "1", "--dropout", "0"],
    "replicas_pipelines": ["--models", "GPT-3-Small", "--links", "0", "400"],
    "switching": ["--quick", "--number", "10", "--modes", "turn"],
    "switching_simulated": ["--seconds", "1", "--mixes", "server"],
    "overhead": ["--pairs", "2", "--seconds", "0.1"],
    "fidelity": ["--policy", "fifo", "--jobs", "3", "--gap", "0.5", "--steps", "5", "10"],
    "ymir_live": ["--tasks", "movies", "amazon", "--seeds=1", "--steps=6", "--limit=16", "--eval-limit=4", "--layers=last"],
    "ymir_simulated": ["--tasks", "movies", "amazon", "--jobs=2", "--gap=0", "--steps=4", "--limit=16", "--eval-limit=4"],
    "accuracy": ["--jobs", "50", "--long", "20000", "--traces", ""],
    "autosched": [
        "--windows",
        "1",
        "--trials",
        "2",
        "--nodes",
        "1x8",
        "--load",
        "0.5",
        "--ways",
        "default",
        "autosched",
        "oracle",
        "--jobs",
        "1",
    ],
    "admission": ["--policy", "fifo", "--jobs", "5", "--rounds", "1"],
    "intune": ["--jobs", "remote", "--ways", "uniform", "rate", "torch:0", "--rounds", "1", "--seconds", "1", "--records", "2048"],
    "iterations": ["--traces", "", "--recipes", "toy", "--steps", "60", "--maximum", "1"],
    "perfect": ["--quick", "--jobs", "1"],
    "reuse_augment": ["--augmentations", "remote", "--ways", "reuse alone", "all in stages, threads", "--warm", "2", "--steps", "2"],
    "selector": ["--seeds=1", "--sizes", "20x16", "--alike", "20x16", "--small", "10x8", "--plain=1", "--ablate=10x8"],
    "intune_simulated": ["--quick", "--workloads", "criteo", "--controllers", "autotune", "rate", "--interval", "3", "--random", "2"],
    "unisched": ["--quick", "--figure", "5.10d", "front", "--mix", "mix1", "--days", "0.1", "--traces", ""],
    "prompts": ["--llm=tiny", "--tasks", str(MAILS), "--prompts=2", "--bank=6", "--steps=3", f"--from={PROMPTS}"],
    "lookups": ["--llm=tiny", "--task", str(MAILS), "--bank=6", "--clusters", "2", "3", f"--from={PROMPTS}"],
    "swap": [
        "--layers=2",
        "--width=32",
        "--vocabulary=50",
        "--length=8",
        "--parts=3",
        "--micro-batches",
        "1",
        "2",
        "--ratios=1",
        "--tflops=0.0001",
        "--models",
        "GPT-3-Small",
    ],
    "swap_models": ["--models", "torch LSTM", "--micro-batches", "1", "--steps", "2"],
    "simulator": ["--jobs", "50", "--nodes", "2x8", "--large", "60", "--naive", "40"],
}

#: Their plots with --out, of those whose plots no other test asks for.
DRAWN = {"unisched": ["figure-5.10d.png", "figure-front.png"]}


def run(name: str, *arguments: str) -> str:
    command = [sys.executable, str(BENCHMARKS / f"{name}.py"), *TINY[name], *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=patient(580), check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1", "STOKER_DEBUG": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


#: Those that take longest even so, most of it for real trainings or whole simulations. What they measure has tests of its own by day.
NIGHTLY = (
    "accuracy", "adhoc_sql", "assignment", "autosched", "fidelity", "first_step", "hostile", "idle", "intune",
    "intune_simulated", "iterations", "lookups", "many_runners", "overhead", "packing", "page", "perfect", "prompts", "replica_losses",
    "replicas", "replicas_pipelines", "reuse_augment", "selector", "shared_input", "store_writes", "submissions", "swap",
    "swap_models", "switching", "switching_simulated", "unisched", "warm", "ymir_live", "ymir_simulated",
)  # fmt: skip


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.nightly) if name in NIGHTLY else name for name in TINY])
def test_it_measures_and_prints(name: str, tmp_path: Path) -> None:
    out = ("--out", str(tmp_path)) if name in DRAWN else ()
    answer = json.loads(run(name, "--json", *out))
    assert answer["machine"]["cores"] >= 1
    for title, rows in answer["tables"].items():
        assert rows, title
        for row in rows:
            numbers = [value for value in row.values() if isinstance(value, int | float)]
            assert numbers, f"{title}: {row}"
            assert all(map(math.isfinite, numbers)), f"{title}: {row}"
    assert sorted(path.name for path in tmp_path.iterdir()) == DRAWN.get(name, [])
    assert all(path.stat().st_size > 5000 for path in tmp_path.iterdir())


@pytest.fixture
def signals() -> Iterator[None]:
    """A benchmark that is told to end says so, and its handler is not to stay here."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
    sys.excepthook = sys.__excepthook__


def benchmark(name: str) -> Any:
    """The module; a test's may have its name."""
    spec = importlib.util.spec_from_file_location(f"benchmark_{name}", BENCHMARKS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # where dataclasses look for it
    spec.loader.exec_module(module)
    return module


@pytest.mark.usefixtures("signals")
@pytest.mark.parametrize("name", NIGHTLY)
def test_one_that_runs_by_night_is_whole_by_day(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """All that it imports is there, and it knows the options of its tiny run."""
    with pytest.raises(SystemExit) as ended:
        benchmark(name).main([*TINY[name], "--help"])
    assert ended.value.code == 0, capsys.readouterr().err
    assert "--json" in capsys.readouterr().out


def test_the_crash_test_finds_all_that_it_imports() -> None:
    """It is started as a program, without pytest's paths."""
    asked = subprocess.run([sys.executable, BENCHMARKS / "chaos.py", "--help"], capture_output=True, text=True, check=False)
    assert asked.returncode == 0 and "--rounds" in asked.stdout, asked.stderr


@pytest.mark.parametrize(
    ("line", "code", "says"),
    [
        (["accuracy", "--traces", "/nowhere"], 2, "argument --traces: /nowhere: there is no such directory"),
        (["simulator", "--nodes", "2y8"], 1, "simulator.py: error: nodes: '2y8' is not NODESxGPUS"),
    ],
)
def test_a_wrong_option_gets_one_line(line: list[str], code: int, says: str) -> None:
    name, *options = line
    command = [sys.executable, str(BENCHMARKS / f"{name}.py"), *options]
    env = {name: value for name, value in os.environ.items() if name != "STOKER_DEBUG"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    assert done.returncode == code and says in done.stderr and "Traceback" not in done.stderr, done.stderr


def test_tables_are_for_people() -> None:
    lines = run("policy_tick").splitlines()
    assert lines[0].startswith("when ")
    assert "One tick of a policy" in lines
    header = next(line for line in lines if "p99 ms" in line)
    assert lines[lines.index(header) + 1].split()[:2] == ["fifo", "10"]


def test_a_run_that_is_not_whole_shows_what_it_has() -> None:
    """Without the oracle nothing is set in relation to it, and no part of a search was measured."""
    lines = run("autosched", "--ways", "default", "--parts", "0").splitlines()
    assert [line for line in lines if line and not line.startswith(" ")][1:] == ["runs"]
    assert lines[-1].split()[:2] == ["0", "default"]


def test_every_benchmark_is_run_here_and_told_of() -> None:
    """chaos.py is the crash test's, and has its own."""
    programs = {path.stem for path in BENCHMARKS.glob("*.py") if "def main(given" in path.read_text()}
    assert programs == TINY.keys()
    page = (BENCHMARKS.parent / "docs" / "benchmarks.md").read_text()
    assert all(f"benchmarks/{name}.py" in page for name in programs)
