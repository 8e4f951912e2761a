"""Titan's workloads beside the tables of their author: elastic jobs, their durations by curve, and what of the tables a trace keeps."""

from __future__ import annotations

import io
import math
from pathlib import Path

import numpy as np
import pytest
from stoker.engine.cli.main import run
from stoker.engine.errors import UsageError
from stoker.engine.sim.workload import Workload, as_asked
from stoker.engine.traces.formats import from_stoker
from stoker.engine.traces.read import read
from stoker.engine.traces.trace import Trace, to_workload
from titan_folder import job, titan_folder

JOBS = [job("a", "wnli"), job("b", "rte", at=5, gpus=8), job("c", "mrpc", at=9, gpus=4, batch=2)]


def workload(tmp_path: Path, jobs: list[tuple[object, ...]] = JOBS) -> tuple[Trace, Workload]:
    trace = read(titan_folder(tmp_path, jobs))
    return trace, to_workload(trace)


def test_jobs_run_on_any_number_of_gpus_for_as_long_as_their_curve_says(tmp_path: Path) -> None:
    trace, work = workload(tmp_path)
    # 8 epochs of 159 samples at 8 a second; 6 of 623; 4 of 917 at a batch of 2 (two passes fill no GPU).
    assert work.duration.tolist() == pytest.approx([8 * 159 / 8, 6 * 623 / 8, 4 * 917 / 2])
    assert (work.gpus_min.tolist(), work.gpus_max.tolist()) == ([1, 1, 1], [8, 8, 2])
    assert work.asked is not None and work.asked.tolist() == [1, 8, 2]  # no more than there is a sample for
    assert [work.models[row] for row in work.model] == ["tiny@wnli", "tiny@rte", "tiny@mrpc"]
    assert work.backbone is not None and set(work.backbone) == {"tiny"}
    assert trace.recipe is not None and trace.recipe["fine_tuning"]["switch"] == {"tiny": 30.0}
    wnli = work.profiles[work.profile[0]].throughput
    assert wnli is not None
    # Six GPUs have one sample each of eight, as in the author's code.
    assert [wnli.rate(n) / wnli.rate(1) for n in (2, 4, 6, 8)] == pytest.approx([0.8, 8 / 1.5 / 8, 6 / 1.75 / 8, 0.5], rel=1e-4)


def test_a_policy_of_gangs_gives_what_jobs_ask_for(tmp_path: Path) -> None:
    rigid = as_asked(workload(tmp_path)[1])
    assert (rigid.gpus_min.tolist(), rigid.gpus_max.tolist()) == ([1, 8, 2], [1, 8, 2])
    assert rigid.duration[1] == pytest.approx(6 * 623 / 4)  # eight GPUs train 8 samples in 2 s
    assert as_asked(rigid) is rigid


def test_transfers_are_those_of_the_curves(tmp_path: Path) -> None:
    trace, work = workload(tmp_path)
    assert work.transfers is not None
    first = len(work.profiles) - 3
    begin = work.transfers.begin[first:, first:]
    wnli, rte, mrpc = 0, 1, 2
    assert (begin[rte, wnli], begin[mrpc, wnli], begin[wnli, rte]) == (2 / 8, 6 / 8, 9 / 6)
    assert math.isnan(begin[mrpc, rte])
    assert np.diag(begin).tolist() == [0.0, 0.0, 0.0]  # a job of the same data leaves nothing to learn
    joint = work.transfers.joint
    assert set(joint) == {(first + wnli, first + rte), (first + rte, first + wnli)}
    # One epoch of both is 782 samples at a batch of 16, beside 8 of 159 at a batch of 8.
    both = joint[first + wnli, first + rte]
    assert both.work == pytest.approx(782 / (8 * 159))
    assert both.speed(1, spread=False) == pytest.approx(16 / 8 / both.work)
    assert trace.recipe is not None and [kind["fewest_epochs"] for kind in trace.recipe["fine_tuning"]["kinds"]] == [4, 6, 2]


def test_kinds_of_one_task_are_told_apart_and_who_never_gets_there_is_capped(tmp_path: Path) -> None:
    trace, work = workload(tmp_path, [job("a", "wnli"), job("b", "wnli", rate="1e-4"), job("c", "wnli", target="0.99")])
    assert [one.model for one in trace.jobs] == ["tiny@wnli", "tiny@wnli#2", "tiny@wnli#3"]
    assert work.duration.tolist() == pytest.approx([8 * 159 / 8, 4 * 159 / 8, 10 * 159 / 8])


def test_a_trace_keeps_what_it_needs_of_the_tables(tmp_path: Path) -> None:
    trace, work = workload(tmp_path)
    text = io.StringIO(newline="")
    from_stoker.write(trace, text)
    alone = tmp_path / "elsewhere" / "kept.csv"
    alone.parent.mkdir()
    alone.write_text(text.getvalue())
    again = to_workload(read(alone))
    assert again.transfers is not None and work.transfers is not None
    np.testing.assert_array_equal(again.transfers.begin, work.transfers.begin)
    assert again.duration.tolist() == work.duration.tolist() and again.asked is not None


def test_durations_that_are_given_win_and_without_tables_they_are_asked_for(tmp_path: Path) -> None:
    file = titan_folder(tmp_path / "with", JOBS)
    given = tmp_path / "durations.csv"
    given.write_text("key,duration\na,10\nb,20\nc,30\n")
    rigid = read(file, durations=given)
    assert [(one.duration, one.gpus_min, one.gpus_max) for one in rigid.jobs] == [(10, 1, 0), (20, 8, 0), (30, 4, 0)]
    alone = tmp_path / "alone.csv"
    alone.write_bytes(file.read_bytes())
    with pytest.raises(ValueError, match=r"--durations TABLE.*; or lay transfer_curves.csv.gz and fminfo/"):
        read(alone)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda folder: (folder / "fminfo/V100/tiny_placements.csv").unlink(), "tiny_placements.csv: is not there"),
        (lambda folder: (folder / "fminfo/V100/tiny_placements.csv").write_text("placement,local_bsz\n1,2\n"), "has no column 'step_time'"),
        (lambda folder: (folder / "transfer_curves.csv").write_text("metric,epoch\naccuracy,x\n"), "line 2 cannot be read"),
        (
            lambda folder: (folder / "fminfo/V100").rename(folder / "fminfo/A100"),
            "--gpu-type: there are no step times of 'v100'; it has a100",
        ),
    ],
    ids=["lacking", "column", "number", "gpu"],
)
def test_broken_tables_are_named(tmp_path: Path, spoil: object, words: str) -> None:
    file = titan_folder(tmp_path, JOBS)
    spoil(tmp_path)  # type: ignore[operator]
    with pytest.raises(ValueError, match=words):
        read(file)


def test_rows_that_cannot_be_jobs_are_dropped_with_the_reason(tmp_path: Path) -> None:
    odd = [job("a", "wnli"), job("b", "nothing"), job("c", "rte", batch=0), job("d", "rte", rate="x"), job("e", "rte", target="")]
    trace = read(titan_folder(tmp_path, odd))
    assert [one.key for one in trace.jobs] == ["a"]
    assert trace.dropped == {
        "no learning curve for its task": 1, "no target_batch_size": 1, "target_lr is not a number": 1, "no target_metric": 1,
    }  # fmt: skip


def test_the_command_says_who_gives_jobs_what_they_ask_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = titan_folder(tmp_path, JOBS)
    assert run(["simulate", str(file), "-n", "2x4", "-p", "ymir", "-p", "srtf", "--no-store", "-j", "1"]) == 0
    out = capsys.readouterr().out
    assert run(["simulate", str(file), "-n", "2x4", "-p", "ymir", "--no-store", "--no-profiles"]) != 0
    assert "--no-profiles: FM-tiny tells its jobs' work by how fast they train" in capsys.readouterr().err
    assert "\nsrtf: each job has the GPUs that it asks for\nymir: each job has any number of GPUs that it can use\n" in out


@pytest.mark.parametrize(
    "spoil",
    [
        lambda tables: tables.update(kinds=[{}]),
        lambda tables: tables["kinds"][0].update(samples=0, epochs=0),
        lambda tables: tables.update(speeds=[["tiny", 8, [1, 2], [1.0], [1.0]]]),
        lambda tables: tables["temporal"].append([0, 99, 3]),
        lambda tables: tables.update(spatial="x"),
    ],
    ids=["kind", "zero", "speeds", "pair", "text"],
)
def test_a_recipe_that_somebody_has_spoilt_is_told(tmp_path: Path, spoil: object) -> None:
    trace = read(titan_folder(tmp_path, JOBS))
    assert trace.recipe is not None
    spoil(trace.recipe["fine_tuning"])  # type: ignore[operator]
    with pytest.raises(UsageError, match="recipe: what the trace tells of fine-tuning jobs cannot be read"):
        to_workload(trace)
