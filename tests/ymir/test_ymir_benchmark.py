"""The benchmark of Ymir on tables in small: everybody's figures, the control, and what it says without the author's files."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from titan_folder import job, titan_folder

BENCHMARK = Path(__file__).resolve().parents[2] / "benchmarks" / "ymir.py"


@pytest.fixture
def benchmark() -> Any:
    spec = importlib.util.spec_from_file_location("benchmark_ymir", BENCHMARK)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_it_compares_everybody_with_and_without_the_best_rates(
    benchmark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tasks = ("rte", "wnli", "mrpc", "wnli", "wnli", "rte")
    titan_folder(tmp_path / "titan", [job(f"{n}", task, at=400.0 * n, gpus=4) for n, task in enumerate(tasks)])
    monkeypatch.setattr(sys, "argv", ["ymir.py", "--traces", str(tmp_path), "--workloads", "FM-tiny", "--nodes", "1x4", "--json"])
    benchmark.main()
    tables = json.loads(capsys.readouterr().out)["tables"]
    (events,) = tables["mean completion time (s), at events"]
    (control,) = tables["mean completion time (s), control: the best learning rate of each task"]
    assert events["jobs"] == 6 and set(events) == {"workload", "jobs", *benchmark.RIVALS, *benchmark.OURS, "profiled"}
    # wnli needs 2 epochs of 8 from the weights of rte, and 4 at its own best rate.
    assert events["ended"] < events["no merge"] and control["no merge"] < events["no merge"]
    (ratio,) = tables["times longer than Ymir, at events"]
    best = min(events[name] for name in benchmark.RIVALS) / min(events["ended"], events["both"])
    assert ratio["strongest"] == pytest.approx(best, rel=1e-3)
    rounds = tables["mean completion time (s), in rounds"][0]
    assert rounds["srtf"] > events["srtf"]


def test_without_the_authors_files_it_says_which_are_missing(benchmark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for given in ("", str(tmp_path)):
        monkeypatch.setattr(sys, "argv", ["ymir.py", "--traces", given])
        with pytest.raises(SystemExit, match=r"--traces: .* has no titan/traces/"):
            benchmark.main()


@pytest.mark.nightly
def test_the_figures_that_were_worked_out_beforehand(benchmark: Any) -> None:
    """RoBERTa-base at density 1, by a simulation of its own: no merge 515 s, from jobs that have ended 283 s."""
    if not os.environ.get("STOKER_TRACES"):
        pytest.skip("STOKER_TRACES does not name the directory of the traces")
    case = benchmark.Case(Path(os.environ["STOKER_TRACES"]), "FM-1-roberta-base", "V100", None, benchmark.Cluster.parse("8x4"))
    work = case.workload()
    none, ended = (case.run(work, "ymir", rounds=False, **benchmark.OURS[name])[0] for name in ("no merge", "ended"))
    assert none == pytest.approx(515, rel=0.1) and ended == pytest.approx(283, rel=0.1)
