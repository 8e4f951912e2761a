"""UniSched beside its baselines in the simulator, in minutes: the evaluation of 002 ch. 5.5.2 on one small cluster.

The jobs are made up, so that this runs anywhere; with STOKER_TRACES they are Philly's too. Only the limits in seconds of 3Sigma's and
UniSched's programs could make two runs differ, and hardly any cycle of a cluster this small comes near them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from waiting import patient

BENCHMARK = Path(__file__).resolve().parents[2] / "benchmarks" / "unisched.py"
THESIS = {"3Sigma", "GENIE", "Hydra", "Optimus", "Themis"}  #: the baselines of 002 ch. 5.4.4
BASELINES = THESIS | {"Chronus", "EDF", "SRTF"}
#: They come nearest to UniSched's deadlines, and best-effort jobs pay for it.
DEADLINES_FIRST = ("Chronus", "EDF")
CROWDED = ("--figure", "5.6a", "--mix", "mix1", "--density", "1.5")
R_SLO, LATENCY = "R_slo %", "best-effort JCT h"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def run(*arguments: str, traces: str = "") -> dict[str, Any]:
    """The tables of a quick run."""
    command = [sys.executable, str(BENCHMARK), "--quick", "--json", "--jobs", "1", "--traces", traces, *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=patient(880), check=False, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr[-3000:]
    tables: dict[str, Any] = json.loads(done.stdout)["tables"]
    return tables


def by_scheduler(tables: dict[str, Any], workload: str) -> dict[str, dict[str, Any]]:
    (rows,) = (rows for title, rows in tables.items() if title.startswith("Figure 5.6a"))
    return {row["of"]: row for row in rows if row["workload"] == workload}


def check_mixed(rows: dict[str, dict[str, Any]], baselines: set[str]) -> None:
    own = rows.pop("UniSched")
    assert set(rows) == BASELINES
    beaten = {name: rows[name][R_SLO] for name in baselines if rows[name][R_SLO] < own[R_SLO]}
    assert not beaten, f"these violate fewer deadlines than UniSched ({own[R_SLO]:.3g} %): {beaten}"
    faster = {name: rows[name][LATENCY] for name in DEADLINES_FIRST if rows[name][LATENCY] < own[LATENCY]}
    assert not faster, f"best-effort jobs end earlier than with UniSched ({own[LATENCY]:.3g} h): {faster}"


@pytest.mark.nightly  # a claim of the evaluation
def test_no_baseline_beats_it_on_a_mixed_workload() -> None:
    tables = run(*CROWDED)
    check_mixed(by_scheduler(tables, "M_MIX1"), BASELINES)
    assert all(row["thesis"] for row in tables["Beside the thesis"])


@pytest.mark.nightly
@pytest.mark.skipif("STOKER_TRACES" not in os.environ, reason="STOKER_TRACES names no directory with real traces")
def test_no_baseline_beats_it_on_philly() -> None:
    """Chronus does on this small and crowded a cluster: see docs/unisched_evaluation.md."""
    tables = run(*CROWDED, traces=os.environ["STOKER_TRACES"])
    check_mixed(by_scheduler(tables, "P_MIX1"), THESIS)


def test_a_figure_that_there_is_not_is_said_so() -> None:
    command = [sys.executable, str(BENCHMARK), "--figure", "6.1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=patient(120), check=False)
    assert done.returncode == 1
    assert "there is no figure '6.1'" in done.stderr
