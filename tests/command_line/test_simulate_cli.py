"""Simulations from the command line: options, studies in several processes, what fails, Ctrl-C, the report, storing, replay."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import html
import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import msgspec
import numpy as np
import pytest
from e2e import DaemonProcess, Jobs, RunnerProcess
from stoker import __version__
from stoker.engine.api.studies import run_uploads
from stoker.engine.api.studies.run_uploads import RunUploads
from stoker.engine.cli.main import run
from stoker.engine.cli.numbers import Finite, FiniteRange
from stoker.engine.cli.simulation import sim_report, sim_store, sim_words, simulating
from stoker.engine.cli.simulation.sim_options import DURATION, SETTINGS, make_options
from stoker.engine.cli.simulation.simulating import make_study
from stoker.engine.client import Client
from stoker.engine.errors import Conflict, LimitExceeded, NotFound, UsageError
from stoker.engine.home import Home
from stoker.engine.report import sim_page
from stoker.engine.sim import run_options as model
from stoker.engine.sim import study
from stoker.engine.sim.cluster import Cluster
from stoker.engine.sim.results import record
from stoker.engine.sim.results.history import AS_IT_WAS, History
from stoker.engine.sim.results.result import Usage
from stoker.engine.sim.run_options import NO_LIMITS, Options
from stoker.engine.sim.workload import Workload, make_workload
from stoker.engine.store.store import Store
from stoker.engine.studies.stored_simulations import NewRun, add_run
from stoker.policies.nearest import meant
from waiting import patient, until

#: On two GPUs, first in, first out: a ends at 100, b (both GPUs) at 150, c behind it at 160.
TRACE = "job_id,job_key,submit,duration,num_gpu,vc\n0,a,0,100,1,v\n1,b,10,50,2,v\n2,c,20,10,1,v\n"
LARGE = "3,d,30,10,16,v\n4,e,40,10,32,v\n"

#: Policies of somebody else's: one raises, one dies with its process, one never answers but says that it was asked.
FOREIGN = """
import dataclasses, os, pathlib, signal, time
from stoker.policies.fifo import Fifo

class Raises(Fifo):
    name = "raises"
    def plan(self, view):
        print("this is no JSON")
        raise RuntimeError("no idea")

class Dies(Fifo):
    name = "dies"
    def plan(self, view):
        os.kill(os.getpid(), signal.SIGKILL)

class Interrupts(Fifo):
    name = "interrupts"
    def plan(self, view):
        raise KeyboardInterrupt("mine")

class Hangs(Fifo):
    name = "hangs"
    def plan(self, view):
        pathlib.Path(os.environ["ASKED"]).touch()
        while True:  # a signal that comes between the last look for one and a sleep is seen after that sleep
            time.sleep(0.05)
"""


@pytest.fixture
def trace(tmp_path: Path) -> str:
    path = tmp_path / "three.csv"
    path.write_text(TRACE)
    return str(path)


@pytest.fixture
def foreign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The policies above, importable here and in processes that start here."""
    (tmp_path / "foreign_policies.py").write_text(FOREIGN)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


Told = tuple[int, str, str]


@pytest.fixture
def stoker(capsys: pytest.CaptureFixture[str], home: Home) -> Callable[..., Told]:
    """A command in this process, with a home where no daemon runs."""

    def call(*arguments: str) -> Told:
        capsys.readouterr()
        code = run(["--home", str(home.path), *arguments])
        out, err = capsys.readouterr()
        return code, out, err

    return call


# -- options -------------------------------------------------------------------------------------------------------------


def test_every_field_of_the_model_has_an_option() -> None:
    parts = {"costs": model.Costs, "limits": model.PreemptionLimits, "errors": model.Errors}
    wanted = {(part, field.name) for part, kind in parts.items() for field in dataclasses.fields(kind)}
    wanted |= {("", field.name) for field in dataclasses.fields(Options) if field.name not in (*parts, "seed")}
    assert {(setting.part, setting.field) for setting in SETTINGS} == wanted
    assert len({setting.flag for setting in SETTINGS}) == len(SETTINGS)
    assert all(setting.help.endswith(".") for setting in SETTINGS)


def given(**values: Any) -> dict[str, Any]:
    return {setting.parameter: None for setting in SETTINGS} | values


def test_options_without_any_cost_nothing() -> None:
    made = make_options("none", given())
    assert made == Options() and made.limits is NO_LIMITS


def test_a_preset_can_be_changed_in_part() -> None:
    made = make_options("thesis", given(resume=60.0, min_run_time=30.0, estimate_error=0.2, until=1e6))
    assert (made.costs.suspend, made.costs.resume) == (4.0, 60.0)
    assert made.costs.resume_per_gpu * 14 == pytest.approx(5)  # 002 ch. 5.3.2.3: 16 GPUs cost at most 5 s more than 2
    assert (made.limits.min_run_time, made.errors.duration, made.until) == (30.0, 0.2, 1e6)


def test_an_interval_of_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="--interval: must be longer than 0"):
        make_options("none", given(interval=0.0))


@pytest.mark.parametrize(
    "flag", ["--estimate-error", "--estimate-bias", "--estimate-noise", "--failures-per-gpu-hour", "--spread-slowdown"]
)
def test_a_number_that_would_overflow_is_refused(stoker: Callable[..., Told], trace: str, flag: str) -> None:
    code, out, err = stoker("simulate", trace, "-p", "fifo", "-n", "1x2", "--no-store", flag, "1e308")
    assert (code, out, err.count("\n")) == (2, "", 1) and flag in err and "1e+308 is not in the range" in err


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "arguments", [["--estimate-error", "10"], ["--estimate-bias", "-10"], ["--estimate-bias", "10"], ["--estimate-noise", "10"]]
)
def test_the_most_that_is_allowed_does_not_overflow(stoker: Callable[..., Told], trace: str, arguments: list[str]) -> None:
    assert stoker("simulate", trace, "-p", "srtf", "-n", "1x2", "-j", "1", "--no-store", *arguments)[0] == 0


FLOATS = [setting.flag for setting in SETTINGS if isinstance(setting.type, Finite | FiniteRange)]


@pytest.mark.parametrize("flag", FLOATS)
@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_a_number_is_finite(trace: str, flag: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["simulate", trace, "-p", "fifo", "-n", "1x2", "--no-store", flag, value]) == 2
    error = capsys.readouterr().err
    assert flag in error and value in error and error.count("\n") == 1


def test_every_number_of_the_table_is_checked() -> None:
    assert len(FLOATS) == 8
    assert all(
        isinstance(setting.type, Finite | FiniteRange | click.IntRange | click.Choice) or setting.type is DURATION for setting in SETTINGS
    )


# -- which policies ------------------------------------------------------------------------------------------------------


def test_settings_reach_the_policies_that_have_the_key() -> None:
    chosen = study.choose(["fifo", "srtf", "srtf,hysteresis=1"], ["hysteresis=3", "srtf.unknown=60", "backfill=true"])
    assert [choice.label for choice in chosen] == ["fifo", "srtf", "srtf,hysteresis=1"]
    assert chosen[0].config["backfill"] is True
    assert [(choice.config["hysteresis"], choice.config["unknown"]) for choice in chosen[1:]] == [(3.0, 60.0), (1.0, 60.0)]
    assert "hysteresis" not in chosen[0].config


@pytest.mark.parametrize(
    ("policies", "settings", "says"),
    [
        (["fifi"], [], "did you mean 'fifo'"),
        (["fifo"], ["backfil=true"], "backfil: no policy of this study has such a key; did you mean 'backfill'"),
        (["fifo"], ["srtf.unknown=5"], "'srtf' is no policy of this study; there are: fifo"),
        (["srtf"], ["srtf.unknwon=5"], "srtf: unknwon: unknown configuration key; did you mean 'unknown'"),
        (["srtf,hysteresis=0"], [], "srtf: hysteresis: 0.0 is outside its range 1.0 to 100.0"),
        (["srtf,hysteresis"], [], "'hysteresis' is not KEY=VALUE"),
        (["fifo,srtf"], [], "'srtf' is not KEY=VALUE or POLICY.KEY=VALUE; for another policy repeat the option: -p srtf"),
        (["fifo", "fifo"], [], "fifo is given twice"),
        (["srtf", "srtf,hysteresis=2"], [], "srtf and srtf,hysteresis=2 are the same; tell them apart"),
        (["fifo", "stoker.policies.fifo:Fifo"], [], "fifo and stoker.policies.fifo:Fifo are the same"),
        (["srtf", "srtf,hysteresis=3"], ["hysteresis=3"], "srtf and srtf,hysteresis=3 are the same"),
        (["FIFO"], [], "did you mean 'fifo'"),
        (["uni"], [], "did you mean 'unisched'"),
        (["srtf,hyst=2"], [], "hyst: unknown configuration key; did you mean 'hysteresis'"),
        (["srtf"], ["hyst=2"], "hyst: no policy of this study has such a key; did you mean 'hysteresis'"),
        (["srtf,hysteresis=1,hysteresis=2"], [], "hysteresis is set more than once: 1, 2"),
        (["srtf"], ["srtf.hysteresis=1", "srtf.hysteresis=2"], "srtf.hysteresis is set more than once: 1, 2"),
        (["srtf,fifo.backfill=true"], [], "'fifo' stands before a key of srtf; write srtf,KEY=VALUE"),
        (["nowhere_at_all:X"], [], "put it on PYTHONPATH, for a pool on the daemon's"),
    ],
)
def test_a_slip_in_policies_or_settings_is_named(policies: list[str], settings: list[str], says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        study.choose(policies, settings)


@pytest.mark.parametrize(("word", "wanted"), [("SRTF", "srtf"), ("hyst", "hysteresis"), ("steres", "hysteresis"), ("no", None), ("", None)])
def test_a_name_is_guessed_from_its_beginning_or_a_good_part_of_it(word: str, wanted: str | None) -> None:
    assert meant(word, ["unknown", "hysteresis", "srtf"]) == wanted


# -- one command ---------------------------------------------------------------------------------------------------------


def test_figures_of_a_small_trace(stoker: Callable[..., Told], trace: str) -> None:
    code, out, err = stoker("simulate", trace, "-p", "fifo", "-p", "fifo,backfill=true", "-n", "1x2", "-j", "1", "--no-store", "--json")
    assert (code, err) == (0, "")
    told = json.loads(out)
    assert (told["simulated"], told["nodes"], told["trace"]) == (True, "1x2", "three")
    assert told["runs"][0]["options"]["errors"]["corrected"] is None, "JSON has no number for never"
    assert (told["runs"][0]["trace_id"], told["runs"][0]["trace_sha256"]) == (None, hashlib.sha256(TRACE.encode()).hexdigest())
    blocked, filled = told["policies"]
    assert blocked["jct_avg"] == pytest.approx((100 + 140 + 140) / 3)
    assert filled["jct_avg"] == pytest.approx((100 + 140 + 10) / 3)
    assert blocked["utilisation"] == pytest.approx((100 + 2 * 50 + 10) / (2 * 160))
    assert (blocked["r_slo"], blocked["seeds"], blocked["spread"]) == (None, 1, {})
    assert [run["config"] for run in told["runs"]] == [{"backfill": False}, {"backfill": True}]


def test_the_table_says_that_it_is_simulated(stoker: Callable[..., Told], trace: str) -> None:
    code, out, _ = stoker("simulate", trace, "-p", "fifo", "-n", "1x2", "--no-store")
    assert code == 0
    title, jobs, header, row = out.strip().splitlines()
    assert title == "Simulated: three on 1x2 (2 GPUs)" and jobs == "3 jobs"
    assert header.split()[:5] == ["POLICY", "JCT", "MEDIAN", "P99", "WAIT"] and "R_SLO" not in header
    assert row.startswith("fifo") and "2m 07s" in row


def test_seeds_are_averaged_with_their_spread(stoker: Callable[..., Told], trace: str) -> None:
    line = ["simulate", trace, "-p", "srtf,hysteresis=1", "-n", "1x2", "--estimate-error", "2", "--seeds", "4", "-j", "1", "--no-store"]
    told = json.loads(stoker(*line, "--json")[1])
    (row,), runs = told["policies"], told["runs"]
    each = [run["jct_avg"] for run in runs]
    assert [run["seed"] for run in runs] == [0, 1, 2, 3] and len(set(each)) > 1, "noise of this size changes some order"
    assert row["jct_avg"] == pytest.approx(np.mean(each)) and row["spread"]["jct_avg"] == pytest.approx(np.std(each, ddof=1))
    assert "±" in stoker(*line)[1]


@pytest.mark.parametrize(
    ("options", "runs"),
    [
        ([], 1),
        (["--estimate-bias", "0.5", "--resume", "3s"], 1),  # nothing is drawn
        (["--estimate-error", "0.5"], 3),
        (["--estimate-noise", "0.5"], 3),
        (["--unknown-share", "0.5"], 3),
        (["--failures-per-gpu-hour", "0.5"], 3),
    ],
)
def test_seeds_of_what_is_not_random_run_once_and_that_is_said(
    stoker: Callable[..., Told], trace: str, options: list[str], runs: int
) -> None:
    told = stoker("simulate", trace, "-p", "fifo", "-n", "1x2", "--seeds", "3", "-j", "1", "--no-store", "--json", *options)
    assert [run["seed"] for run in json.loads(told[1])["runs"]] == list(range(runs))
    assert ("--seeds 3: nothing is random here, so each policy runs once; --estimate-error" in told[2]) is (runs == 1)


def test_large_jobs_are_counted_or_refused(stoker: Callable[..., Told], tmp_path: Path) -> None:
    path = tmp_path / "large.csv"
    path.write_text(TRACE + LARGE)
    line = ["simulate", str(path), "-p", "fifo", "-n", "1x8", "-j", "1", "--no-store"]
    code, out, _ = stoker(*line)
    assert code == 0 and "3 jobs; 2 larger than the cluster are left out" in out
    code, out, err = stoker(*line, "--strict")
    assert (code, out) == (2, "")
    assert "needs 16 GPUs, 1x8 has 8, and 1 more are too large; without --strict they are left out" in err


def test_rows_of_a_file_that_are_no_jobs_are_told(stoker: Callable[..., Told], tmp_path: Path) -> None:
    rows = "0,a,0,60,1,v\n1,b,0,-60,1,v\n2,c,0,60,0,v\n3,a,9,60,1,v\n"
    (tmp_path / "odd.csv").write_text("job_id,job_key,submit,duration,num_gpu,vc\n" + rows)
    code, out, told = stoker("simulate", str(tmp_path / "odd.csv"), "-n", "1x2", "-p", "fifo", "--no-store")
    assert code == 0 and "\n1 job\n" in out
    assert told == "stoker: left out of odd: 1 negative duration, 1 CPU job (0 GPUs), 1 duplicate id\n"
    made = str(tmp_path / "made.csv")
    assert stoker("trace", "synth", str(tmp_path / "odd.csv"), "--name", "m", "--to", made)[0] == 0
    assert "left out" not in stoker("simulate", made, "-n", "1x2", "-p", "fifo", "--no-store")[2]


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["-p", "fifo", "-n", "8"], 2, "--nodes: '8' is not NODESxGPUS"),
        (["-p", "tiresia", "-n", "1x2"], 3, "no policy is named 'tiresia'"),
        (["-p", "fifo", "-n", "1x2", "--suspend", "soon"], 2, "must be a duration such as"),
        (["-p", "fifo", "-n", "1x2", "--unknown-share", "2"], 2, "--unknown-share"),
        (["-n", "1x2"], 2, "--policy"),
    ],
)
def test_bad_options_get_one_line(stoker: Callable[..., Told], trace: str, arguments: list[str], code: int, says: str) -> None:
    got, out, err = stoker("simulate", trace, *arguments, "--no-store")
    assert (got, out, err.count("\n")) == (code, "", 1) and says in err


def test_a_long_study_says_in_a_pipe_how_far_it_is(stoker: Callable[..., Told], trace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "runs are done" not in stoker("simulate", trace, "-p", "fifo", "-n", "1x2", "--no-store")[2]
    monkeypatch.setattr(simulating, "PROGRESS_SECONDS", 0.02)
    _, out, err = stoker("simulate", trace, "-p", "fifo", "-p", "srtf", "-n", "1x2", "--no-store", "--jobs", "2", "--json")
    assert "stoker: 0 of 2 runs are done, 0% of all\n" in err and len(json.loads(out)["runs"]) == 2


def test_until_says_who_has_not_ended(stoker: Callable[..., Told], trace: str) -> None:
    _, out, _ = stoker("simulate", trace, "-p", "fifo", "-n", "1x2", "--until", "110s", "--no-store")
    assert "fifo: 1 job finished, 0 rejected, 2 not ended" in out


def test_use_until_the_cut_is_of_the_time_until_the_cut(stoker: Callable[..., Told], trace: str) -> None:
    """a holds one of two GPUs for 100 s, b both from then on."""
    (row,) = json.loads(stoker("simulate", trace, "-p", "fifo", "-n", "1x2", "--until", "110s", "--no-store", "--json")[1])["policies"]
    assert row["utilisation"] == pytest.approx((100 + 2 * 10) / (2 * 110)) and row["makespan"] is None


def test_what_is_known_of_models_is_an_option_like_others(stoker: Callable[..., Told], trace: str) -> None:
    line = ["simulate", trace, "-p", "fifo", "-n", "1x2", "--no-store", "--json"]
    told = [json.loads(stoker(*line, *more)[1])["runs"][0]["options"] for more in ([], ["--no-profiles"])]
    assert [options.pop("profiles") for options in told] == [True, False] and told[0] == told[1]


def test_studies_that_begin_within_a_second_have_names_of_their_own(stoker: Callable[..., Told], trace: str) -> None:
    line = ["simulate", trace, "-p", "fifo", "-n", "1x2", "-j", "1", "--no-store", "--json"]
    assert len({json.loads(stoker(*line)[1])["study"] for _ in range(3)}) == 3


def test_jobs_that_come_after_the_cut_are_no_part_of_the_run(stoker: Callable[..., Told], tmp_path: Path) -> None:
    """a ends in time, b runs on with its deadline ahead, c comes a day later."""
    jobs = [("a", 0, 100, "[150]"), ("b", 10, 5000, "[9000]"), ("c", 100_000, 10, "[50]")]
    rows = "".join(f"{key},{at},{length},1,soft,{ends},[100]\n".replace("[", "").replace("]", "") for key, at, length, ends in jobs)
    (tmp_path / "cut.csv").write_text("key,submitted,duration,gpus_min,demand,deadlines,rewards\n" + rows)
    line = ["simulate", str(tmp_path / "cut.csv"), "-p", "fifo", "-n", "1x2", "--until", "1000s", "--no-store"]
    code, out, _ = stoker(*line)
    assert code == 0 and "2 jobs; 1 submitted at --until or later are left out\n" in out
    assert "1 job finished, 0 rejected, 1 not ended, 1 of these before their last deadline: neither kept nor violated" in out
    told = json.loads(stoker(*line, "--json")[1])
    (row,), (run_row,) = told["policies"], told["runs"]
    assert (row["jobs"], row["slo_violations"], row["r_slo"], row["undecided"], row["not_submitted"]) == (2, 0, 0, 1, 1)
    assert (run_row["jobs"], run_row["undecided"], run_row["not_submitted"]) == (2, 1, 1)


def test_jobs_of_a_run_that_is_cut_off() -> None:
    """Those that came later have no row; of a deadline behind the cut nothing is known."""
    workload = make_workload("cut", [0, 10, 2000], [100, 5000, 10], [1, 1, 1], tiers=[[(150, 100)], [(9000, 100)], [(3000, 100)]])
    asked = study.Study(workload, Cluster.parse("1x2"), Options(until=1000.0), study.runs_of(study.choose(["fifo"], []), [0]))
    (outcome,) = study.run_study(asked, 1, lambda *_: None)
    columns = record.job_columns(asked, outcome)
    assert columns["job"] == [0, 1] and columns["reward"][0] == 100 and np.isnan(columns["reward"][1])
    failed = dataclasses.replace(outcome, result=None, error="no idea")
    assert [record.run_row(asked, one)["jobs"] for one in (outcome, failed)] == [2, 2]


def test_how_many_jobs_there_are_is_known_before_any_run() -> None:
    workload = make_workload("cut", [0, 10, 2000], [100, 50, 10], [1, 16, 1])
    asked = study.Study(workload, Cluster.parse("1x2"), Options(until=1000.0), study.runs_of(study.choose(["fifo"], []), [0]))
    assert [*sim_words.remarks(asked, [], [])] == [
        "1 job; 1 larger than the cluster are left out; 1 submitted at --until or later are left out"
    ]


def test_means_over_seeds_are_called_means_and_rounded() -> None:
    asked = study.Study(small(), Cluster.parse("1x2"), Options(), [])
    row = {"label": "elasticflow", "seeds": 3, "jobs": 195.0, "finished": 265 / 3, "rejected": 320 / 3, "undecided": 0.0}
    assert [*sim_words.remarks(asked, [row], [])][1:] == ["elasticflow: on average 88.3 jobs finished, 106.7 rejected, 0 not ended"]
    row |= {"seeds": 30, "finished": 194 + 29 / 30, "rejected": 0.0, "undecided": 1 / 30}
    (said,) = [*sim_words.remarks(asked, [row], [])][1:]
    assert said.startswith("elasticflow: on average 195 jobs finished, 0 rejected, 0.03 not ended, 0.03 of these before")


def test_a_figure_that_a_seed_does_not_have_has_no_mean() -> None:
    asked = study.Study(small(), Cluster.parse("1x2"), Options(), study.runs_of(study.choose(["fifo"], []), range(2)))
    runs = [record.recorded(asked, outcome) for outcome in study.run_study(asked, 1, lambda *_: None)]
    assert record.averages(runs)[0].mean["makespan"] == 160
    runs[1] = dataclasses.replace(runs[1], row={**runs[1].row, "makespan": None})
    (average,) = record.averages(runs)
    assert (average.mean["makespan"], average.spread["makespan"], average.mean["jct_avg"]) == (None, None, pytest.approx(380 / 3))


@pytest.mark.parametrize(("width", "hidden"), [("80", ["PREEMPTED", "LOST GPU-H", "DECISION", "OF RUN"]), ("200", [])])
def test_columns_that_a_terminal_has_no_room_for_are_named(
    stoker: Callable[..., Told], trace: str, monkeypatch: pytest.MonkeyPatch, width: str, hidden: list[str]
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", width)
    code, out, err = stoker("simulate", trace, "-p", "fifo", "-n", "1x2", "-j", "1", "--no-store")
    assert code == 0 and err == (f"stoker: no room for {', '.join(hidden)}: widen the terminal, or take --json\n" if hidden else "")
    assert not [header for header in hidden if header in out]


def test_the_help_says_where_policies_come_from(stoker: Callable[..., Told]) -> None:
    said = " ".join(stoker("simulate", "--help")[1].split())
    assert "stoker policy list" in said and "stoker policy show" in said and "package.module:Class" in said


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["-n", "1x2"], "no job of large fits 1x2: the smallest needs 16 GPUs"),
        (["-n", "1x16", "--until", "20s"], "--until: nothing has come by then: the first job of large is submitted 30s after its start"),
        (["-n", "1x16", "--until", "30s"], "--until: nothing has come by then"),
    ],
)
def test_a_simulation_of_no_jobs_is_refused(stoker: Callable[..., Told], tmp_path: Path, arguments: list[str], says: str) -> None:
    (tmp_path / "large.csv").write_text(TRACE.splitlines()[0] + "\n" + LARGE)
    code, out, err = stoker("simulate", str(tmp_path / "large.csv"), "-p", "fifo", *arguments, "--no-store")
    assert (code, out, err.count("\n")) == (2, "", 1) and says in err


def test_a_simulation_of_an_empty_workload_is_refused() -> None:
    options = {"policies": ["fifo"], "settings": [], "strict": False, "seed": 0, "seeds": 1, "costs": "none", **given()}
    with pytest.raises(UsageError, match="nothing has no jobs"):
        make_study(make_workload("nothing", [], [], []), Cluster.parse("1x2"), options, study.WorkloadSource())


def test_without_a_daemon_figures_are_shown_and_one_line_says_that_they_are_not_kept(stoker: Callable[..., Told], trace: str) -> None:
    code, out, err = stoker("simulate", trace, "-p", "fifo", "-p", "srtf", "-n", "1x2", "-j", "1")
    assert code == 0 and "srtf" in out and "stored:" not in out
    assert err.count("\n") == 1 and "the figures are not stored: no daemon answers" in err and "stoker up --detach" in err


# -- what fails ends nothing else ----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("foreign")
@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_policy_that_interrupts_itself_has_failed_like_any_other(stoker: Callable[..., Told], trace: str, processes: str) -> None:
    line = ["simulate", trace, "-p", "foreign_policies:Interrupts", "-p", "fifo", "-n", "1x2", "-j", processes, "--no-store", "--json"]
    code, out, err = stoker(*line)
    assert code == 1 and err == "stoker: error: foreign_policies:Interrupts, seed 0: the policy failed: KeyboardInterrupt: mine\n"
    assert [row["label"] for row in json.loads(out)["policies"]] == ["fifo"]


@pytest.mark.usefixtures("foreign")
@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_policy_that_raises_ends_no_other_run(stoker: Callable[..., Told], trace: str, processes: str) -> None:
    line = ["simulate", trace, "-p", "foreign_policies:Raises", "-p", "fifo", "-n", "1x2", "-j", processes, "--no-store", "--json"]
    code, out, err = stoker(*line)
    assert code == 1 and "foreign_policies:Raises, seed 0:" in err and "RuntimeError: no idea" in err and "at 0 s" in err
    told = json.loads(out)
    assert [row["label"] for row in told["policies"]] == ["fifo"]
    assert [run["status"] for run in told["runs"]] == ["failed", "completed"]
    assert "no idea" in told["runs"][0]["error"] and told["runs"][0]["jct_avg"] is None


@pytest.mark.usefixtures("foreign")
def test_a_process_that_dies_ends_no_other_run(stoker: Callable[..., Told], trace: str) -> None:
    line = ["simulate", trace, "-p", "foreign_policies:Dies", "-p", "fifo", "-n", "1x2", "-j", "2", "--seeds", "2", "--no-store", "--json"]
    code, out, err = stoker(*line)
    assert code == 1 and err.count("its process was killed by SIGKILL") == 2
    told = json.loads(out)
    assert [(row["label"], row["seeds"]) for row in told["policies"]] == [("fifo", 2)]


def small() -> Workload:
    return make_workload("three", [0, 10, 20], [100, 50, 10], [1, 2, 1])


def test_processes_give_what_one_process_gives_whatever_the_order() -> None:
    asked = study.Study(small(), Cluster.parse("1x2"), Options(), study.runs_of(study.choose(["fifo", "srtf"], []), range(2)))
    rows = [
        sorted((o.run.number, o.result.fates.ended.tolist()) for o in study.run_study(asked, processes, lambda *_: None) if o.result)
        for processes in (1, 2)
    ]
    assert len(rows[0]) == 4 and rows[0] == rows[1]


@pytest.mark.usefixtures("foreign")
def test_closing_a_study_ends_its_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASKED", str(tmp_path / "asked"))
    choices, others = study.choose(["fifo", "foreign_policies:Hangs"], []), set(multiprocessing.active_children())
    coming = study.run_study(study.Study(small(), Cluster.parse("1x2"), Options(), study.runs_of(choices, [0])), 2, lambda *_: None)
    assert next(coming).run.choice.label == "fifo"
    coming.close()
    assert set(multiprocessing.active_children()) <= others


@pytest.mark.usefixtures("foreign")
@pytest.mark.parametrize(
    ("arguments", "done", "of"),
    [
        (["-p", "fifo", "-p", "foreign_policies:Hangs", "-j", "1"], ["fifo"], 2),
        (["-p", "foreign_policies:Hangs", "--seeds", "3", "-j", "2"], [], 3),
    ],
    ids=["one process", "processes"],
)
@pytest.mark.parametrize(("number", "code", "word"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")])
@pytest.mark.sampled(2)
def test_a_signal_leaves_what_is_finished(
    trace: str, home: Home, tmp_path: Path, arguments: list[str], done: list[str], of: int, number: int, code: int, word: str
) -> None:
    """A terminal sends it to all processes of the command at once; `timeout` sends it to the command, and then to all."""
    asked = tmp_path / "asked"
    command = [sys.executable, "-m", "stoker", "--home", str(home.path), "simulate", trace, "-n", "1x2", "--no-store", "--json"]
    environment = {**os.environ, "ASKED": str(asked)}
    process = subprocess.Popen(
        [*command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True
    )
    try:
        until(asked.exists, alive=(process,))
        if number == signal.SIGTERM:
            process.send_signal(number)
            time.sleep(0.05)
        os.killpg(process.pid, number)
        out, err = process.communicate(timeout=patient(60))
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert err == f"stoker: error: {word}: {len(done)} of {of} runs are done\n"
    assert process.returncode == code
    if done:
        assert [row["label"] for row in json.loads(out)["policies"]] == done


# -- the report ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of reports whose words are looked at: figures take most of their time."""
    monkeypatch.setattr(sim_page, "FIGURES", {})


def test_the_report_is_one_page_with_its_figures(stoker: Callable[..., Told], trace: str, tmp_path: Path) -> None:
    out = tmp_path / "report"
    code, said, _ = stoker("simulate", trace, "-p", "fifo", "-p", "srtf", "-n", "1x2", "-j", "1", "--no-store", "--out", str(out))
    assert code == 0 and f"report: {out / 'index.html'}" in said
    images = {"bars.png", "jct.png", "wait.png", "utilisation.png", "queue.png", "gantt.png"}
    assert {path.name for path in out.iterdir()} == {"index.html", *images}
    page = (out / "index.html").read_text()
    assert "<h1>Simulated: three</h1>" in page and "Simulated, not measured" in page and "2m 07s" in page
    for image in images:
        assert base64.b64encode((out / image).read_bytes()).decode() in page
    assert 'src="http' not in page and "href=" not in page


@pytest.mark.usefixtures("no_figures")
def test_the_report_says_what_was_simulated(stoker: Callable[..., Told], tmp_path: Path) -> None:
    """In the words of the terminal, where this says it too."""
    out = tmp_path / "report"
    (tmp_path / "odd.csv").write_text(TRACE + LARGE + "5,e,9,0,1,v\n")
    modelled = ["--costs", "thesis", "--until", "110s", "--max-preemptions", "3", "--unknown-share", "0.25", "--seed", "4", "--seeds", "2"]
    line = [
        "simulate",
        str(tmp_path / "odd.csv"),
        "-p",
        "srtf",
        "-c",
        "hysteresis=3",
        "-n",
        "1x2",
        "-j",
        "1",
        "--no-profiles",
        "--study",
        "<mine>",
    ]
    code, said, err = stoker(*line, *modelled, "--no-store", "--out", str(out))
    page = (out / "index.html").read_text()
    assert code == 0 and f"<p>Study &lt;mine&gt;, by Stoker {__version__}, made 20" in page
    digest = hashlib.sha256((tmp_path / "odd.csv").read_bytes()).hexdigest()
    assert f"<p>Trace odd, SHA-256 {digest[:12]}…; nodes 1x2.</p>" in page
    options = "--until 110s, --suspend 4s, --resume 18s, --resume-per-gpu 0.357143s, --max-preemptions 3, --unknown-share 0.25"
    assert f"<p>Options: {options}; speeds of known models are not used.</p>" in page and "<p>Seeds 4 to 5.</p>" in page
    assert "<p>Configuration of srtf: hysteresis=3; all other keys have their defaults.</p>" in page
    remarks = said.strip().splitlines()[1:3]
    assert remarks[0].endswith("are left out") and remarks[1].startswith("srtf: on average")
    left_out = err.strip().removeprefix("stoker: ")
    assert left_out.startswith("left out of odd: ")
    for words in (*remarks, left_out):
        assert f"<p>{words}</p>" in page


@pytest.mark.usefixtures("foreign", "no_figures")
def test_the_report_says_what_failed(stoker: Callable[..., Told], trace: str, tmp_path: Path) -> None:
    line = ["simulate", trace, "-p", "foreign_policies:Raises", "-p", "fifo", "-n", "1x2", "-j", "1", "--no-store"]
    code, _, err = stoker(*line, "--out", str(tmp_path / "report"))
    printed, words = err.strip().split("\nstoker: error: ")  # what a policy prints is no part of what is told
    assert code == 1 and printed == "this is no JSON" and words.startswith("foreign_policies:Raises, seed 0: ")
    assert f'<p class="bad">{html.escape(words)}</p>' in (tmp_path / "report" / "index.html").read_text()


@pytest.mark.parametrize("line", [["simulate"], ["tune", "--dry-run", "--trials", "2", "--trace"]], ids=["simulate", "tune"])
def test_what_a_policy_prints_spoils_no_json(line: list[str], trace: str, tmp_path: Path, home: Home) -> None:
    """Neither when it is imported, nor when it is made, nor when it plans, in this process or in another."""
    says = "print('no JSON')"
    (tmp_path / "talks.py").write_text(
        f"from stoker.policies.srtf import Srtf\n{says}\nclass Talks(Srtf):\n    def __init__(self, config):\n        {says}\n"
        f"        super().__init__(config)\n    def plan(self, view):\n        {says}\n        return super().plan(view)\n"
    )
    more = [trace, "-n", "1x2", "-p", "talks:Talks", "--json", *(["--no-store"] if line == ["simulate"] else [])]
    argv = [sys.executable, "-m", "stoker", "--home", str(home.path), *line, *more]
    done = subprocess.run(argv, env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and json.loads(done.stdout)["simulated"] and done.stderr.count("no JSON\n") >= 3, done.stderr


def test_curves_of_runs_that_were_cut_off_reach_to_the_cut() -> None:
    asked = study.Study(small(), Cluster.parse("1x2"), Options(until=110.0), study.runs_of(study.choose(["fifo"], []), [0]))
    runs = [record.recorded(asked, outcome) for outcome in study.run_study(asked, 1, lambda *_: None)]
    drawn = sim_report.comparison(asked, runs, record.averages(runs))
    assert (drawn.begin, drawn.end) == (0, 110)


def test_a_report_of_nothing_that_finished_says_so(stoker: Callable[..., Told], trace: str, tmp_path: Path) -> None:
    (tmp_path / "jct.png").write_bytes(b"of an earlier study")
    line = ["simulate", trace, "-p", "fifo", "-n", "1x2", "--until", "1s", "--no-store", "--out", str(tmp_path)]
    assert stoker(*line)[0] == 0
    assert not (tmp_path / "jct.png").exists() and (tmp_path / "gantt.png").exists()
    assert "<p>No job finished.</p>" in (tmp_path / "index.html").read_text()


def test_a_report_without_a_name_is_not_written_to_the_current_folder(
    stoker: Callable[..., Told], trace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    code, out, err = stoker("simulate", trace, "-p", "fifo", "-n", "1x2", "--no-store", "--out", "")
    assert (code, out, err.count("\n")) == (2, "", 1) and "--out" in err and "it is empty; name a folder" in err
    assert not list((tmp_path / "here").iterdir())


@pytest.mark.usefixtures("no_figures")
def test_a_report_that_cannot_be_written_is_said_in_one_line(stoker: Callable[..., Told], trace: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    line = ["simulate", trace, "-p", "fifo", "-n", "1x2", "--no-store", "--out"]
    code, out, err = stoker(*line, str(tmp_path / "file" / "report"))
    assert code == 2 and "--out: cannot write" in err and err.count("\n") == 1
    assert out == "", "said before anything is simulated"
    (tmp_path / "index.html").mkdir()
    code, out, err = stoker(*line, str(tmp_path))
    assert code == 2 and "--out: cannot write" in err and err.count("\n") == 1
    assert "2m 07s" in out, "the figures are not lost"


# -- what is kept --------------------------------------------------------------------------------------------------------


def test_use_over_time_is_thinned_to_true_states() -> None:
    rng = np.random.default_rng(1)
    ts, busy = np.sort(rng.uniform(0, 1e6, 50_000)), rng.integers(0, 9, 50_000)
    kept = record.usage_columns(Usage(ts, busy, busy, busy))
    assert 1000 < len(kept["ts"]) <= record.MOST_MOMENTS
    state = dict(zip(np.round(ts, record.DIGITS).tolist(), busy.tolist(), strict=True))
    assert all(state[moment] == value for moment, value in zip(kept["ts"], kept["busy"], strict=True))
    assert (kept["ts"][0], kept["ts"][-1]) == (pytest.approx(ts[0]), pytest.approx(ts[-1]))


def test_integrals_over_thinned_use_hold_where_it_is_unevenly_spread() -> None:
    """A month of which all but the first three days are calm: by time alone there would be some 900 rows, and 1 % of the queue off."""
    rng = np.random.default_rng(1)
    ts = np.sort(np.concatenate((rng.uniform(0, 2e5, 49_000), rng.uniform(0, 2.6e6, 1000))))
    busy = np.clip(np.cumsum(rng.integers(-1, 2, 50_000)), 0, 64)
    use = Usage(ts, busy, busy // 2, np.maximum(np.cumsum(rng.integers(-3, 4, 50_000)), 0))
    rows = record.thinned(use, record.MOST_MOMENTS)
    assert len(np.unique(rows)) == len(rows) and 1900 < len(rows) <= record.MOST_MOMENTS
    for values in (use.busy, use.running, use.waiting):
        whole, kept = (float((np.diff(use.ts[some]) * values[some][:-1]).sum()) for some in (np.arange(50_000), rows))
        assert kept == pytest.approx(whole, rel=2e-4)
    assert np.diff(use.ts[rows]).max() < 2.6e6 / 100, "nor are there holes"


def test_use_of_few_moments_is_kept_whole() -> None:
    few = np.arange(record.MOST_MOMENTS)
    assert record.thinned(Usage(few * 1.0, few, few, few), record.MOST_MOMENTS).tolist() == few.tolist()


def a_run(study_name: str = "one") -> NewRun:
    runs = study.runs_of(study.choose(["fifo"], []), [0])
    asked = study.Study(small(), Cluster.parse("1x2"), Options(), runs, study.WorkloadSource("abc", 7))
    (outcome,) = study.run_study(asked, 1, lambda *_: None)
    assert outcome.result is not None
    row = {"study": study_name, "version": "0", **record.run_row(asked, outcome)}
    jobs = {name: np.array(values) for name, values in record.job_columns(asked, outcome).items()}
    usage = {name: np.array(values) for name, values in record.usage_columns(outcome.result.usage).items()}
    return NewRun(row, jobs, usage, "ann")


def test_a_run_is_stored_whole(store: Store) -> None:
    number = store.write(add_run, a_run())
    with store.read() as con:
        assert con.execute("SELECT id, study, policy, ran_by, finished, jct_avg FROM sim_runs").fetchall() == [
            (number, "one", "fifo", "ann", 3, pytest.approx(380 / 3))
        ]
        assert con.execute(
            "SELECT job, started, ended, reward, rejected, gpus, jct - ended + submitted FROM sim_jobs WHERE run_id = $1 ORDER BY job",
            [number],
        ).fetchall() == [
            (0, 0.0, 100.0, None, False, 1, 0.0),
            (1, 100.0, 150.0, None, False, 2, 0.0),
            (2, 150.0, 160.0, None, False, 1, 0.0),
        ]
        assert con.execute("SELECT avg(jct) FROM sim_jobs").fetchone() == (pytest.approx(380 / 3),)
        assert con.execute("SELECT trace_id, trace_sha256, not_submitted, undecided FROM sim_runs").fetchall() == [(7, "abc", 0, 0)]
        assert con.execute("SELECT max(busy), min(ts), max(ts) FROM sim_usage").fetchall() == [(2, 0.0, 160.0)]


def test_a_run_that_cannot_be_stored_leaves_nothing(store: Store) -> None:
    good = a_run("good")
    bad = NewRun({**good.row, "jobs": None}, good.jobs, good.usage, "ann")
    with pytest.raises(Exception, match="NOT NULL"):
        store.write(add_run, bad)
    torn = NewRun(good.row, {**good.jobs, "run_time": np.full(3, np.nan)}, good.usage, "ann")
    with pytest.raises(Exception, match="NOT NULL"):
        store.write(add_run, torn)
    with store.read() as con:
        assert con.execute("SELECT (SELECT count(*) FROM sim_runs) + (SELECT count(*) FROM sim_jobs)").fetchall() == [(0,)]
    assert store.write(add_run, good) > 0, "the store is as usable as before"


def test_slices_of_a_run_are_put_together_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = a_run()
    parts = [{name: column[rows] for name, column in whole.jobs.items()} for rows in (slice(0, 2), slice(2, 3))]
    uploads = RunUploads()
    token = uploads.begin(NewRun(whole.row, parts[0], whole.usage, "ann"))
    with pytest.raises(NotFound, match="there is no upload"):
        uploads.add(token, "bob", 2, parts[1])
    with pytest.raises(Conflict, match="row 2 is next, not 3"):
        uploads.add(token, "ann", 3, parts[1])
    uploads.add(token, "ann", 2, parts[1])
    made = uploads.end(token, "ann")
    assert made.jobs.keys() == whole.jobs.keys()
    for name, column in made.jobs.items():
        np.testing.assert_array_equal(column, whole.jobs[name])
    with pytest.raises(NotFound, match="there is no upload"):
        uploads.end(token, "ann")
    monkeypatch.setattr(run_uploads, "MAX_UPLOADS", 1)
    uploads.begin(whole)
    with pytest.raises(LimitExceeded, match="already"):
        uploads.begin(whole)


# -- with a daemon -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.usefixtures("no_figures")
def test_runs_are_kept_and_history_is_replayed(
    start_daemon: Callable[..., DaemonProcess],
    start_runner: Callable[..., RunnerProcess],
    stoker: Callable[..., Told],
    trace: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = start_daemon().client()
    monkeypatch.setattr(sim_store, "SLICE", 2)
    code, out, err = stoker("simulate", trace, "-p", "fifo", "-n", "1x2", "--study", "mine", "--json")
    assert (code, err) == (0, "")
    (kept,) = client.get("/v1/simulations", study="mine")["runs"]
    assert (kept["id"], kept["jct_avg"]) == (json.loads(out)["runs"][0]["id"], pytest.approx(380 / 3))
    ended = Jobs(client).sql("SELECT ended FROM sim_jobs j JOIN sim_runs r ON r.id = j.run_id WHERE study = 'mine' ORDER BY job")
    assert [row[0] for row in ended] == [100, 150, 160]
    _, out, err = stoker("simulate", trace, "-p", "fifo", "-n", "1x2", "--study", "mine")
    assert "FROM sim_runs WHERE study = 'mine'" in out and err == "stoker: there is a study 'mine' already: these runs are added to it\n"
    assert len(client.get("/v1/simulations", study="mine")["runs"]) == 2
    assert stoker("trace", "import", trace)[0] == 0
    assert stoker("simulate", "three", "-p", "fifo", "-n", "1x2", "--study", "imported", "--no-profiles")[0] == 0
    (imported,) = client.get("/v1/simulations", study="imported")["runs"]
    (number,) = [row["id"] for row in client.get("/v1/traces")["traces"]]
    assert (kept["trace"], kept["trace_id"]) == ("three", None) and (imported["trace"], imported["trace_id"]) == ("three", number)
    assert (kept["options"]["profiles"], imported["options"]["profiles"]) == (True, False)
    assert kept["trace_sha256"] == imported["trace_sha256"] == hashlib.sha256(TRACE.encode()).hexdigest()

    _refused(client)
    code, _, err = stoker("replay", "-p", "fifo", "--pool", "defautl")
    assert code == 3 and "there is no pool 'defautl' (did you mean 'default'?); there are: default" in err
    code, _, err = stoker("replay", "-p", "fifo", "--since", "2222-01-31T18:00")
    assert code == 2 and "--since: 2222-01-31T18:00 lies in the future" in err
    code, _, err = stoker("replay", "-p", "fifo", "--until", "1h")
    assert code == 2 and "no such option" in err
    code, _, err = stoker("replay", "-p", "fifo")
    assert code == 4 and "no job of pool 'default' was ready after --since 7d" in err

    start_runner()
    jobs = Jobs(client)
    for job in [jobs.submit(f"sleep-{place}", "sleep", "0.3") for place in range(3)]:
        jobs.ended(job)
    code, out, err = stoker("replay", "-p", "fifo", "-p", "srtf", "-j", "1", "--json")
    assert (code, err) == (0, "")
    told = json.loads(out)
    was, fifo, _ = told["policies"]
    assert (was["label"], was["finished"], was["jobs"], told["nodes"]) == (AS_IT_WAS, 3, 3, "1x2")
    waited = jobs.sql("SELECT avg(jct) FROM jct WHERE outcome = 'completed'")
    assert was["jct_avg"] == pytest.approx(waited[0][0], abs=0.5)
    # How long a job ran is counted from when its runner said so, which on a busy machine may be late.
    assert 0 < fifo["jct_avg"] <= was["jct_avg"], "the simulated pool starts at once"
    code, out, err = stoker("replay", "-p", "fifo", "--no-store", "--nodes", "1x8", "--out", str(tmp_path / "report"))
    assert (code, err) == (0, "") and "'as it was' was measured" in out and (tmp_path / "report" / "index.html").exists()
    rows = json.loads(stoker("replay", "-p", "fifo", "--no-store", "--nodes", "1x8", "--json")[1])["policies"]
    assert rows[0]["utilisation"] == pytest.approx(was["utilisation"]), "what was is of the pool that there was"


def _refused(client: Client) -> None:
    """What is not as it should be stores nothing."""
    columns = {"job": [0, 1], "started": [0.0]}
    run_row = {**a_run().row, "study": "bad"}
    with pytest.raises(UsageError, match="jobs: its columns differ in length"):
        client.post_raw("/v1/simulations", msgspec.json.encode({"run": run_row, "jobs": columns}))
    with pytest.raises(UsageError, match="status"):
        client.post_raw("/v1/simulations", msgspec.json.encode({"run": {**run_row, "status": "good"}}))
    with pytest.raises(UsageError, match="preemptions"):
        client.post_raw("/v1/simulations", msgspec.json.encode({"run": run_row, "jobs": {"preemptions": [2**40]}}))
    upload = msgspec.json.decode(client.post_raw("/v1/simulations?more=1", msgspec.json.encode({"run": run_row})))["upload"]
    assert upload and client.get("/v1/simulations", study="bad")["runs"] == []


# -- history -------------------------------------------------------------------------------------------------------------

DAY = 1_750_000_000.0


def past(number: int, ready: float, started: float, ended: float, **more: Any) -> dict[str, Any]:
    """A row of the daemon's history; times are seconds after DAY."""
    return {
        "id": number, "name": f"job-{number}", "owner": "ann", "model": "net", "priority": 0, "demand": "best-effort", "gpus_min": 1,
        "gpus_max": 1, "gpu_memory": 0.0, "submitted": DAY + ready, "started": DAY + started, "ended": DAY + ended,
        "run_time": ended - started, "attained": ended - started, "preemptions": 0, "estimate": None,
        "deadlines": None, "rewards": None, **more,
    }  # fmt: skip


NOBODY = {"not_ended": 0, "never_ran": 0, "held_before": 0, "servers": 0}  #: was left out


def stay(job: int, begins: float, ends: float, gpus: int = 1, gpu: int = 0) -> dict[str, Any]:
    return {"job_id": job, "begins": DAY + begins, "ends": DAY + ends, "gpu_count": gpus, "gpus": list(range(gpu, gpu + gpus))}


def test_history_becomes_a_workload_and_what_happened() -> None:
    """Two GPUs. 7 starts at 2 after 2 s of start-up and ends at 12; 9 needs both, is preempted once, and misses its first step."""
    second = past(
        9, 5, 14, 40, gpus_min=2, gpus_max=2, run_time=20.0, attained=40.0, preemptions=1, demand="soft",
        deadlines=[DAY + 30, DAY + 50], rewards=[140.0, 25.0],
    )  # fmt: skip
    history = History.of(
        {
            "pool": "default",
            "jobs": [past(7, 0, 2, 12), second],
            "stays": [stay(7, 0, 12), stay(9, 12, 24, 2), stay(9, 28, 40, 2)],
            "nodes": [2],
            "left_out": {"not_ended": 1, "never_ran": 0, "held_before": 0, "servers": 0},
        }
    )
    workload = history.workload()
    assert workload.submitted.tolist() == [0, 5] and workload.duration.tolist() == [10, 20] and workload.gpus_min.tolist() == [1, 2]
    assert workload.tier_deadline.tolist() == [30, 50] and workload.tier_reward.tolist() == [100, 25]

    asked = study.Study(workload, history.cluster(), Options(), [])
    row = record.run_row(asked, history.outcome(history.cluster()))
    assert (row["policy"], row["jobs"], row["finished"]) == (AS_IT_WAS, 2, 2)
    assert row["jct_avg"] == pytest.approx((12 + 35) / 2)
    assert row["wait_avg"] == pytest.approx((0 + 11) / 2)  # 9 held GPUs for 24 of its 35 s
    assert row["lost_gpu_time"] == pytest.approx(2 + 8)
    assert (row["slo_violations"], row["r_slo"], row["preemptions"]) == (0, 0.75, 1)
    assert row["utilisation"] == pytest.approx((12 + 2 * 24) / (2 * 40))
    usage = history.outcome(history.cluster()).result.usage
    assert list(zip(usage.ts.tolist(), usage.busy.tolist(), usage.waiting.tolist(), strict=True)) == [
        (0, 1, 0), (5, 1, 1), (12, 2, 0), (24, 0, 1), (28, 2, 0), (40, 0, 0),
    ]  # fmt: skip


def test_the_history_of_jobs_that_shared_a_gpu() -> None:
    """One GPU: 7 has it from 0 to 20, 8 beside it from 10 to 30. Twice as slow together, each did 10 s of work alone and 5 beside."""
    shared = {"run_time": 20.0, "attained": 15.0, "work": 15.0}
    stays = [{**stay(7, 0, 20), "gpu_seconds": 15.0}, {**stay(8, 10, 30), "gpu_seconds": 15.0}]
    jobs = [past(7, 0, 0, 20, model="a", share="packed", **shared), past(8, 0, 10, 30, model="b", share="", **shared)]
    models = [{"model": "a", "utilisation": 0.9, "memory": 0.0}, {"model": "b", "utilisation": None, "memory": None}]
    pairs = [{"model": "a", "beside": "b", "slowdown": 2.0}, {"model": "gone", "beside": "a", "slowdown": 9.0}]
    history = History.of(
        {"pool": "default", "jobs": jobs, "stays": stays, "nodes": [1], "left_out": NOBODY, "models": models, "slowdowns": pairs}
    )
    use = history.outcome(history.cluster()).result.usage
    assert list(zip(use.ts.tolist(), use.busy.tolist(), use.running.tolist(), strict=True)) == [
        (0, 1, 1), (10, 1, 2), (20, 1, 1), (30, 0, 0),
    ]  # fmt: skip
    fates = history.outcome(history.cluster()).result.fates
    assert fates.gpu_time.tolist() == [15.0, 15.0] and fates.lost.tolist() == [0.0, 0.0]
    workload = history.workload()
    assert workload.duration.tolist() == [15.0, 15.0] and workload.profile.tolist() == [0, 1]
    assert workload.share is not None and workload.share.tolist() == ["packed", ""]
    assert workload.profiles[0].utilisation == 0.9 and np.isnan(workload.profiles[1].utilisation)
    np.testing.assert_array_equal(workload.slowdowns, [[np.nan, 2.0], [np.nan, np.nan]])


def test_what_was_is_of_the_jobs_that_fit_the_simulated_cluster() -> None:
    """8 needs two GPUs: on a cluster of one it counts on neither side, nor do its leases."""
    large = past(8, 1, 2, 30, gpus_min=2, gpus_max=2, preemptions=3, demand="soft", deadlines=[DAY + 10], rewards=[1.0])
    stays = [stay(7, 0, 12), stay(8, 2, 30, 2), stay(9, 30, 40)]
    jobs = [past(7, 0, 2, 12), large, past(9, 5, 30, 40)]
    history = History.of({"pool": "default", "jobs": jobs, "stays": stays, "nodes": [3], "left_out": NOBODY})
    one = Cluster.parse("1x1")
    asked = study.Study(history.workload(), one, Options(), study.runs_of(study.choose(["fifo"], []), [0]), history.source())
    (simulated,) = study.run_study(asked, 1, lambda *_: None)
    was, fifo = (record.run_row(asked, outcome) for outcome in (history.outcome(one), simulated))
    for count in ("jobs", "finished", "dropped"):
        assert was[count] == fifo[count]
    assert (was["jobs"], was["dropped"], was["preemptions"], was["slo_violations"]) == (2, 1, 0, None)
    assert was["jct_avg"] == pytest.approx((12 + 35) / 2) and was["lost_gpu_time"] == pytest.approx(2)
    use = history.outcome(one).result.usage
    assert list(zip(use.ts.tolist(), use.busy.tolist(), use.waiting.tolist(), strict=True)) == [
        (0, 1, 0),
        (5, 1, 1),
        (12, 0, 1),
        (30, 1, 0),
        (40, 0, 0),
    ]
    other = History.of({"pool": "default", "jobs": jobs[:2], "stays": [], "nodes": [3], "left_out": NOBODY})
    assert history.source() == History.of({**dataclasses.asdict(history), "left_out": NOBODY}).source()
    assert history.source() != other.source()
