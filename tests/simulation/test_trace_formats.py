"""Reading traces: every format from rows of its kind, what is dropped and repaired, what is refused, and files that are broken."""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
import os
import random
import re
import tarfile
import zipfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from stoker.engine.traces.formats import from_stoker as own
from stoker.engine.traces.formats.known_formats import FAMILIES, IMPORTED
from stoker.engine.traces.formats.rows import Tally
from stoker.engine.traces.models import measured
from stoker.engine.traces.read import default_name, read
from stoker.engine.traces.trace import Trace, TraceJob, to_workload
from stoker.engine.traces.trace_check import check_jobs, check_name

PHILLY = json.dumps(
    [
        {
            "status": "Pass",
            "vc": "v1",
            "jobid": "b",
            "user": "u1",
            "submitted_time": "2017-10-09 07:00:00",
            "attempts": [
                {
                    "start_time": "2017-10-09 07:02:00",
                    "end_time": "2017-10-09 07:03:00",
                    "detail": [{"ip": "m1", "gpus": ["g0", "g1"]}, {"ip": "m2", "gpus": ["g0"]}],
                },
                {"start_time": "2017-10-09 07:05:00", "end_time": "2017-10-09 07:06:30", "detail": []},
            ],
        },
        {
            "status": "Failed",
            "vc": "v2",
            "jobid": "a",
            "user": "u2",
            "submitted_time": "2017-10-09 06:59:00",
            "attempts": [{"start_time": "2017-10-09 07:00:00", "end_time": "2017-10-09 07:00:10", "detail": [{"ip": "m", "gpus": ["g"]}]}],
        },
        {"status": "Killed", "vc": "v1", "jobid": "c", "user": "u1", "submitted_time": "2017-10-09 06:00:00", "attempts": []},
    ]
)
HELIOS = """job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue
7,ua,vcA,8,64,1,COMPLETED,2020-04-02 00:00:30,2020-04-02 00:01:00,2020-04-02 00:11:00,600,30
8,ub,vcB,2,4,1,FAILED,2020-04-02 00:00:00,2020-04-02 00:00:00,2020-04-02 00:01:00,60,0
9,ub,vcB,1,4,1,CANCELLED,2020-04-02 00:02:00,None,None,None,0
10,ub,vcB,0,4,1,COMPLETED,2020-04-02 00:02:00,2020-04-02 00:02:00,2020-04-02 00:02:10,10,0
11,ub,vcB,1,4,1,COMPLETED,2020-04-02 00:02:00,2020-04-02 00:02:00,2020-04-02 00:01:10,10,0
"""
LUCID = """job_id,user,vc,jobname,gpu_num,cpu_num,state,submit_time,duration,dataset,model,batchsize,amp,speed,gpu_util,gmem_util,gmem
1,ua,vcA,n1,4,8,COMPLETED,2020-09-01 00:00:10,100,CIFAR-10,ResNet18,64,0,1.1,40,20,3000
2,ub,vcA,n2,1,8,FAILED,2020-09-01 00:00:00,50,CIFAR-10,VGG11,32,1,1.2,50,10,2000
"""
PAI_TASKS = """j1,worker,2.0,Terminated,100.0,200.0,600.0,29.3,50.0,T4
j1,ps,1.0,Terminated,90.0,210.0,600.0,29.3,,
j2,worker,1.0,Failed,,,600.0,29.3,100.0,V100
j3,worker,3.0,Terminated,500.0,560.0,600.0,29.3,25.0,MISC
"""
PAI_JOBS = "j1,i1,u1,Terminated,80.0,210.0\nj3,i3,u3,Failed,480.0,560.0\n"
PAI_SIM = """job_id,user,num_cpu,num_gpu,num_inst,submit_time,duration,gpu_type
0,ua,4,0.5,1,10,100,T4
1,ub,8,2,1,5,200,V100
2,ub,8,,1,6,200,CPU
"""
GAVEL = "ResNet-18 (batch size 16)\tpython3 main.py\tdir\t--num_steps\t1\t1000\t2\t1\t-1.000000\t0\nOther\tx\ty\tz\t0\t10\t1\t1\t1.5\t60\n"
THROUGHPUTS = """worker_type,model,scale_factor,coloc_model,coloc_scale_factor,steps_per_s,coloc_steps_per_s
v100,ResNet-18 (batch size 16),2,,0,10.0,
v100,ResNet-18 (batch size 16),2,Other,1,1.0,1.0
v100,Other,1,,0,0.5,
k80,Other,1,,0,0.1,
"""
SHOCKWAVE = "LM (batch size 10)\tpython3 main.py\tdir\t--steps\t1\t500\t4\tgns\t1\t-1.000000\t900\t30\n"
TIRESIAS = "job_id,num_gpu,submit_time,iterations,model_name,duration,interval\n0,4,0,600,vgg16,160,30\n1,8,30,100,vgg11,140,20\n"
MURI = """job_id,num_gpu,submit_time,iterations,model_name,batch_size,duration,interval,iteration_time,r,priority
0,8,0,10,bert,4,5095000,91000,437,1,0
1,2,1534500,20,a2c,16,281000,28000,214,8,1
"""
CHRONUS = """job_id,user,num_gpu,submit_time,iterations,model_name,duration,interval,expect_time_list,expect_value_list,best_effort,job_type
0,vc_a,1,10,500,vgg16,100,1,150,10,0,strict
1,vc_b,2,5,300,alexnet,50,1,60-72-86,10-6-2,0,soft
2,vc_b,4,20,300,alexnet,30,1,20,10,1,best
3,vc_b,0,20,300,alexnet,30,1,20,10,1,best
"""
ITP = "job_id,submission_time,duration,num_gpu,cluster\nx,100,600,8,c1\ny,50,700,1,c1\n"
ITP_MODELS = """job_id,submission_time,num_iteration,model_name,deadline,batch_size,num_gpu,duration
x,100,45,resnet50,400,256,8,600
y,50,11,gpt2,40,128,1,700
"""
ELASTICFLOW = """job_id,submit_time,iteration,model_name,ddl,batch_size,num_gpu,duration,best_effort
0,0,7246,resnet50,5896,256,1,3930,0
1,4686,19793,gpt2,11932,256,2,4830,1
"""
POLLUX = "name,time,application,num_replicas,batch_size\nbert-0,110,bert,6,320\nncf-1,20,ncf,1,32768\n"
TITAN = "name,submission_time,application,num_gpus,target_batch_size,target_metric\nvit-0,45,vit,2,128,0.9\n"
SIDE = "job_id,job_key,submit,duration,num_gpu,vc\n0,k1,0,79,1,v\n1,k2,600,82,4,v\n"
PHILLY_CSV = """timestamp,duration,num_gpus,gpu_time,cluster
2017-10-09 07:01:55,66.0,1,66.0,aa

2017-10-09 07:00:00,2951.0,16,47216.0,bb
"""
JOINED = "rfold_id,timestamp,t,num_gpus,duration,vc\n5,2017-08-14 23:27:00,0.0,1,360.0,\n6,2017-08-14 23:28:00,60.0,2,36.0,vv\n"
RFOLD = "#job id,arrival time (sec),topology,shape,size,duration (sec)\n0,0.0,CLOS,1,1,36.0\n1,5.0,CLOS,2,2,0.0\n"
GAVEL_CSV = "vc,job_type,total_steps,arrival_s,scale_factor\nv,Other,50,3.0,1\n"
DURATIONS = "model,num_gpus,duration\nbert,6,1000\nncf,1,500\nvit,2,60\n"


def write(folder: Path, text: str, name: str = "t.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def brief(trace: Trace) -> list[tuple[str, float, float, int]]:
    return [(job.key, job.submitted, job.duration, job.gpus_min) for job in trace.jobs]


@pytest.mark.parametrize(
    ("text", "format", "jobs", "starts_at"),
    [
        (PHILLY, "philly", [("a", 0.0, 10.0, 1), ("b", 60.0, 150.0, 3)], 1507532340.0),
        (PHILLY_CSV, "philly-csv", [("1", 0.0, 2951.0, 16), ("0", 115.0, 66.0, 1)], 1507532400.0),
        (JOINED, "philly-joined", [("5", 0.0, 360.0, 1), ("6", 60.0, 36.0, 2)], 1502753220.0),
        (RFOLD, "rfold", [("0", 0.0, 36.0, 1)], None),
        (HELIOS, "helios", [("8", 0.0, 60.0, 2), ("7", 30.0, 600.0, 8)], 1585785600.0),
        (LUCID, "lucid", [("2", 0.0, 50.0, 1), ("1", 10.0, 100.0, 4)], 1598918400.0),
        (PAI_TASKS, "pai", [("j1", 90.0, 120.0, 1), ("j3", 500.0, 60.0, 1)], None),
        (",".join(FAMILIES["pai"].columns) + "\n" + PAI_TASKS, "pai", [("j1", 90.0, 120.0, 1), ("j3", 500.0, 60.0, 1)], None),
        (PAI_SIM, "pai-sim", [("1", 5.0, 200.0, 2), ("0", 10.0, 100.0, 1)], None),
        (SHOCKWAVE, "shockwave", [("0", 30.0, 900.0, 4)], None),
        (TIRESIAS, "tiresias", [("0", 0.0, 160.0, 4), ("1", 30.0, 140.0, 8)], None),
        (MURI, "muri", [("0", 0.0, 5095.0, 8), ("1", 1534.5, 281.0, 2)], None),
        (CHRONUS, "chronus", [("1", 300.0, 3000.0, 2), ("0", 600.0, 6000.0, 1), ("2", 1200.0, 1800.0, 4)], None),
        (ITP, "itp", [("y", 50.0, 700.0, 1), ("x", 100.0, 600.0, 8)], None),
        (ITP_MODELS, "itp", [("y", 50.0, 700.0, 1), ("x", 100.0, 600.0, 8)], None),
        (ELASTICFLOW, "elasticflow", [("0", 0.0, 3930.0, 1), ("1", 4686.0, 4830.0, 2)], None),
        (SIDE, "side-by-side", [("k1", 0.0, 79.0, 1), ("k2", 600.0, 82.0, 4)], None),
    ],
    ids=lambda value: value if isinstance(value, str) and len(value) < 15 else None,
)
@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gz"])
def test_a_format_is_known_by_itself(
    tmp_path: Path, text: str, format: str, jobs: list[tuple[str, float, float, int]], starts_at: float | None, packed: bool
) -> None:
    path = tmp_path / "my trace.csv.gz"
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())  # the ending of the name decides nothing
    trace = read(path)
    assert (trace.format, brief(trace), trace.starts_at, trace.name) == (format, jobs, starts_at, "my-trace")
    assert read(path, format).jobs == trace.jobs
    assert len(to_workload(trace)) == len(jobs)


def test_every_format_has_a_case() -> None:
    tested = {case[1] for case in test_a_format_is_known_by_itself.pytestmark[1].args[1]}
    assert set(FAMILIES) - tested == {"gavel", "gavel-csv", "pollux", "titan", "pai-jobs", "stoker"}


def test_what_else_the_formats_tell(tmp_path: Path) -> None:
    first, second = read(write(tmp_path, PHILLY)).jobs
    assert (first.user_name, first.pool, first.status) == ("u2", "v2", "Failed")
    assert second.raw is not None and json.loads(second.raw["attempts"])[1]["end_time"] == "2017-10-09 07:06:30"
    lucid = read(write(tmp_path, LUCID)).jobs[1]
    assert (lucid.user_name, lucid.pool, lucid.status, lucid.model, lucid.batch_size) == ("ua", "vcA", "COMPLETED", "ResNet18", 64)
    assert lucid.raw is not None and lucid.raw["gmem"] == "3000"
    strict, best = read(write(tmp_path, ELASTICFLOW)).jobs
    assert (strict.demand, strict.deadlines, strict.rewards, strict.iterations) == ("strict", (5896.0,), (100.0,), 7246.0)
    assert (best.demand, best.deadlines) == ("best-effort", ())
    muri = read(write(tmp_path, MURI)).jobs[1]
    assert (muri.priority, muri.model, muri.batch_size) == (1, "a2c", 16)


def test_lucid_tells_how_its_models_share_a_gpu(tmp_path: Path) -> None:
    row = "{},u,v,n,1,8,COMPLETED,0,50,CIFAR-10,{},64,0,1.1,{},20,{}\n"
    rows = [("a", "VGG", 40, 6144), ("b", "VGG", 60, 6144), ("c", "Odd", "x", 1), ("d", "Full", 101, 1), ("e", "", 10, 10)]
    jobs = read(write(tmp_path, LUCID.splitlines()[0] + "\n" + "".join(row.format(*one) for one in rows))).jobs
    assert [(one.name, one.utilisation, one.memory, one.throughput) for one in measured(jobs)] == [("VGG", 0.5, 0.25, None)]
    assert measured(read(write(tmp_path, TIRESIAS)).jobs) == ()


def test_a_table_of_helios_with_the_columns_of_lucid_is_lucids(tmp_path: Path) -> None:
    own_columns = [
        f"{line},{more}" for line, more in zip(HELIOS.splitlines(), ["jobname,model,batchsize", *["j,ResNet18,64"] * 9], strict=False)
    ]
    trace = read(write(tmp_path, "\n".join(own_columns)))
    assert (trace.format, trace.jobs[0].model, trace.jobs[0].batch_size) == ("lucid", "ResNet18", 64)
    assert read(write(tmp_path, "\n".join(own_columns)), "helios").format == "helios"


def test_chronus_has_steps_and_minutes(tmp_path: Path) -> None:
    trace = read(write(tmp_path, CHRONUS))
    soft, strict, best = trace.jobs
    assert (soft.demand, soft.deadlines, soft.rewards) == ("soft", (3600.0, 4320.0, 5160.0), (100.0, 60.0, 20.0))
    assert (strict.demand, strict.deadlines, strict.rewards) == ("strict", (9000.0,), (100.0,))
    assert (best.demand, best.deadlines, best.pool) == ("best-effort", (), "vc_b")
    assert trace.dropped == {"CPU job (0 GPUs)": 1}


def test_a_deadline_before_the_submission_is_left_out(tmp_path: Path) -> None:
    trace = read(write(tmp_path, ITP_MODELS))
    assert [job.demand for job in trace.jobs] == ["best-effort", "strict"]
    assert trace.jobs[1].deadlines == (300.0,)
    assert trace.repaired["deadline not after the submission, left out"] == 1


def test_pai_without_a_state_in_its_first_row_must_be_named(tmp_path: Path) -> None:
    path = write(tmp_path, PAI_TASKS.replace("Terminated", "", 1))
    with pytest.raises(ValueError, match="unknown format"):
        read(path)
    assert [job.status for job in read(path, "pai").jobs] == ["Terminated", "Terminated"]


def test_what_stands_in_a_column_again_and_again_is_one_string(tmp_path: Path) -> None:
    """A million rows of PAI are 1 GB of strings otherwise."""
    rows = "".join(f"j{row},worker,1.0,Terminated,{row}.5,{row + 60}.5,600.0,29.3,100.0,V100\n" for row in range(1000))
    raws = [job.raw or {} for job in read(write(tmp_path, rows), "pai").jobs]
    assert [raw["job_name"] for raw in raws] == [f"j{row}" for row in range(1000)]
    for column in ("task_name", "inst_num", "status", "gpu_type"):
        assert len({id(raw[column]) for raw in raws}) == 1


def test_progress_is_told_in_bytes(tmp_path: Path) -> None:
    path = write(tmp_path, HEADER + "".join(ROW.format(i, 1, i, 5) for i in range(5000)))
    told: list[tuple[int, int]] = []
    read(path, progress=lambda done, total: told.append((done, total)))
    size = path.stat().st_size
    assert [total for _, total in told] == [size, size]
    assert 0 < told[0][0] < told[1][0] <= size


def test_pai_joins_its_tables(tmp_path: Path) -> None:
    tasks, jobs = write(tmp_path, PAI_TASKS), write(tmp_path, PAI_JOBS, "jobs.csv")
    trace = read(tasks, join=jobs)
    assert brief(trace) == [("j1", 80.0, 120.0, 1), ("j3", 480.0, 60.0, 1)]
    assert [(job.user_name, job.status) for job in trace.jobs] == [("u1", "Terminated"), ("u3", "Failed")]
    assert trace.dropped == {"never started": 1}
    assert trace.repaired == {"fraction of a GPU rounded up": 1}
    alone = read(tasks)
    assert alone.repaired["submission taken from the start of its first task"] == 2
    with pytest.raises(ValueError, match="pai_job_table tells no GPUs: import pai_task_table, with --join"):
        read(jobs)
    with pytest.raises(ValueError, match="is not pai_job_table"):
        read(tasks, join=tasks)


def test_pai_keeps_the_columns_of_all_tasks_of_a_job(tmp_path: Path) -> None:
    raw = read(write(tmp_path, PAI_TASKS)).jobs[0].raw or {}
    assert (raw["task_name"], raw["inst_num"], raw["plan_gpu"], raw["gpu_type"]) == ("worker", "2.0", "50.0", "T4")
    assert (raw["task_name.2"], raw["inst_num.2"], raw["plan_gpu.2"], raw["end_time.2"]) == ("ps", "1.0", "", "210.0")
    assert len(raw) == 20


@pytest.mark.parametrize(
    ("task", "reason"),
    [
        ("j5,worker,,Terminated,900.0,1000.0,600.0,29.3,100.0,", "no inst_num"),
        ("j5,worker,two,Terminated,900.0,1000.0,600.0,29.3,100.0,", "inst_num is not a number"),
        ("j5,worker,1.0,Terminated,900.0,1000.0,600.0,29.3,all,", "plan_gpu is not a number"),
        ("j5,worker,-1.0,Terminated,900.0,1000.0,600.0,29.3,-100.0,", "GPUs out of range"),
        ("j5,worker,,Terminated,900.0,1000.0,600.0,29.3,,", "CPU job (0 GPUs)"),
    ],
)
def test_pai_gpus_that_are_not_told_are_not_none(tmp_path: Path, task: str, reason: str) -> None:
    trace = read(write(tmp_path, PAI_TASKS + task + "\n"))
    assert (len(trace.jobs), trace.dropped) == (2, {"never started": 1, reason: 1})
    kept = read(write(tmp_path, PAI_TASKS + task + "\n"), cpu_jobs=True).jobs
    assert [job.key for job in kept] == ["j1", "j3"] + ["j5"] * (reason == "CPU job (0 GPUs)")


def test_rows_of_the_job_table_are_counted_too(tmp_path: Path) -> None:
    tasks, jobs = (
        write(tmp_path, PAI_TASKS),
        write(tmp_path, PAI_JOBS + 'j1,i9,u9,Failed,1,2\nj4,i4,"u4,Failed,1,2\n,i,u,Failed,1,2\n', "jobs.csv"),
    )
    tally = Tally("")
    trace = read(tasks, join=jobs, tally=tally)
    assert [job.user_name for job in trace.jobs] == ["u1", "u3"]
    where = ", in the table of --join"
    assert trace.dropped == {"duplicate id" + where: 1, "wrong number of fields" + where: 1, "no id" + where: 1, "never started": 1}
    assert tally.first["duplicate id" + where] == "line 3: job 'j1': is there already"
    with pytest.raises(ValueError, match=r"jobs\.csv:3: job 'j1': is there already"):
        read(tasks, join=jobs, strict=True)


# -- facts of what was published, in rows of our own -----------------------------------------------------------------------

HELIOS_HEADER = "job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue\n"
HELIOS_ROW = "{},uab,vcd,2,8,1,{},2020-06-09 10:00:00,2020-06-09 10:00:30,2020-06-09 10:01:30,60,30\n"


def test_helios_states_are_those_of_its_readme_and_who_has_not_ended_is_no_job(tmp_path: Path) -> None:
    ended = ["COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL"]  # HeliosData README, note 2
    rows = [HELIOS_ROW.format(key, state) for key, state in enumerate([*ended, "RUNNING", "SUSPENDED", "PENDING"])]
    trace = read(write(tmp_path, HELIOS_HEADER + "".join(rows)))
    assert [job.status for job in trace.jobs] == ended
    assert {(job.duration, job.gpus_min, job.pool, job.user_name) for job in trace.jobs} == {(60.0, 2, "vcd", "uab")}
    assert trace.dropped == {"no end": 3}


def test_pai_takes_0_for_no_time_as_its_notebook_does(tmp_path: Path) -> None:
    """cluster-trace-gpu-v2020/analysis/utils.py: the times of rows that start at 0 are NaN."""
    rows = ["a,worker,1.0,Waiting,0.0,0.0,600.0,29.0,100.0,T4", "b,worker,1.0,Running,500.0,0.0,600.0,29.0,100.0,T4"]
    rows += ["c,ps,1.0,Failed,0.0,0.0,600.0,29.0,,", "c,worker,2.0,Terminated,700.0,760.0,600.0,29.0,100.0,T4"]
    jobs = write(tmp_path, "c,i,u,Terminated,0.0,760.0\n", "jobs.csv")
    trace = read(write(tmp_path, "\n".join(rows)), join=jobs)
    assert brief(trace) == [("c", 700.0, 60.0, 2)]
    assert trace.dropped == {"never started": 1, "no end": 1}
    assert trace.repaired == {"submission taken from the start of its first task": 1}


def test_pai_sim_counts_gpus_for_each_instance(tmp_path: Path) -> None:
    """Its scheduler.py starts a job when num_inst * num_gpu GPUs are idle; the header is the one of the published 100K jobs."""
    rows = ["0,3,10,6.0,1.0,T4,100,ab", "1,8,20,6.0,0.25,MISC,100,ab", "2,,30,6.0,2.0,P100,100,ab", "3,5,40,6.0,0.1,MISC,100,ab"]
    trace = read(write(tmp_path, "job_id,num_inst,submit_time,num_cpu,num_gpu,gpu_type,duration,user\n" + "\n".join(rows)))
    assert [job.gpus_min for job in trace.jobs] == [3, 2, 2, 1]
    assert trace.repaired == {"fraction of a GPU rounded up": 1}  # 5 * 0.1; 8 * 0.25 are 2 whole ones


@pytest.mark.parametrize("kind", ["tar", "tar.gz", "zip"])
def test_archives_as_they_are_downloaded_are_to_be_unpacked(tmp_path: Path, kind: str) -> None:
    """pai_task_table.tar.gz, Helios' data.zip, Philly's trace-data.tar.gz: a tar's first line begins with the header of the archive."""
    inside, path = write(tmp_path, PAI_TASKS, "pai_task_table.csv"), tmp_path / f"archive.{kind}"
    if kind == "zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.write(inside, inside.name)
    else:
        with tarfile.open(path, "w:gz" if kind == "tar.gz" else "w") as tar:
            tar.add(inside, inside.name)
    with pytest.raises(ValueError, match="is an archive: unpack it, and give the file in it that lists the jobs"):
        read(path)


@pytest.mark.parametrize("as_json", [False, True], ids=["csv", "json"])
def test_gavel_needs_throughputs(tmp_path: Path, as_json: bool) -> None:
    path = write(tmp_path, GAVEL, "g.trace")
    table = write(tmp_path, THROUGHPUTS, "rates.csv")
    if as_json:
        rates = {"v100": {"('ResNet-18 (batch size 16)', 2)": {"null": 10.0, "('Other', 1)": [1.0, 1.0]}, "('Other', 1)": {"null": 0.5}}}
        table = write(tmp_path, json.dumps(rates | {"k80": {"('Other', 1)": {"null": 0.1}}}), "rates.json")
    trace = read(path, throughputs=table)
    assert brief(trace) == [("0", 0.0, 100.0, 2), ("1", 60.0, 20.0, 1)]
    assert [(job.demand, job.deadlines) for job in trace.jobs] == [("best-effort", ()), ("strict", (30.0,))]
    slow = read(path, throughputs=table, gpu_type="k80")
    assert brief(slow) == [("1", 60.0, 100.0, 1)]
    assert trace.recipe is not None and slow.recipe is not None
    assert (trace.recipe["throughputs"]["gpu_type"], slow.recipe["throughputs"]["gpu_type"]) == ("v100", "k80")
    assert trace.recipe["throughputs"]["file"] == table.name
    assert slow.dropped == {"no throughput for its job type and GPUs": 1}
    assert brief(read(write(tmp_path, GAVEL_CSV), throughputs=table)) == [("0", 3.0, 100.0, 1)]
    with pytest.raises(ValueError, match="steps and no durations: import it with 'stoker trace import FILE --throughputs TABLE'"):
        read(path)
    with pytest.raises(ValueError, match="no 'a100' in this table of throughputs; it has k80, v100"):
        read(path, throughputs=table, gpu_type="a100")


def test_workloads_without_durations_need_a_table(tmp_path: Path) -> None:
    table = write(tmp_path, DURATIONS, "d.csv")
    assert brief(read(write(tmp_path, POLLUX), durations=table)) == [("ncf-1", 20.0, 500.0, 1), ("bert-0", 110.0, 1000.0, 6)]
    (job,) = read(write(tmp_path, TITAN), durations=table).jobs
    assert (job.duration, job.stop, job.model) == (60.0, "performance", "vit")
    by_key = write(tmp_path, "key,duration\nbert-0,7\n", "k.csv")
    trace = read(write(tmp_path, POLLUX), durations=by_key)
    assert (brief(trace), trace.dropped) == ([("bert-0", 110.0, 7.0, 6)], {"no duration in the table": 1})
    with pytest.raises(ValueError, match="no durations: import it with 'stoker trace import FILE --durations TABLE'"):
        read(write(tmp_path, POLLUX))
    with pytest.raises(
        ValueError, match=r"no job is left of it: 2 no duration in the table \(first: line 2: k.csv has none for key 'bert-0'"
    ):
        read(write(tmp_path, POLLUX), durations=write(tmp_path, "key,duration\nbert-9,7\n", "k.csv"))
    with pytest.raises(ValueError, match="needs the columns duration and key or model; it has a, b"):
        read(write(tmp_path, POLLUX), durations=write(tmp_path, "a,b\n1,2\n", "bad.csv"))
    with pytest.raises(ValueError, match=r"bad\.csv:2: duration: 'x' is not a number"):
        read(write(tmp_path, POLLUX), durations=write(tmp_path, "key,duration\nbert-0,x\n", "bad.csv"))
    with pytest.raises(ValueError, match="--durations: means nothing to format tiresias"):
        read(write(tmp_path, TIRESIAS), durations=table)
    with pytest.raises(ValueError, match=r"--durations: .*nowhere\.csv: there is no such file"):
        read(write(tmp_path, POLLUX), durations=tmp_path / "nowhere.csv")


# -- what is dropped and repaired -----------------------------------------------------------------------------------------

ROW = "{},{},{},600,vgg16,{},1\n"
HEADER = "job_id,num_gpu,submit_time,iterations,model_name,duration,interval\n"


@pytest.mark.parametrize(
    ("row", "reason", "detail"),
    [
        (ROW.format(1, 1, 0, 5), "duplicate id", "job '1': is there already"),
        (ROW.format(2, 0, 0, 5), "CPU job (0 GPUs)", "num_gpu: is 0, a CPU job"),
        (ROW.format(2, -1, 0, 5), "GPUs out of range", "num_gpu: -1 is not between 0 and 1000000"),
        (ROW.format(2, "1e9", 0, 5), "GPUs out of range", "num_gpu: 1e+09 is not between 0 and 1000000"),
        (ROW.format(2, 1, 0, 0), "zero duration", "job '2': duration is 0s"),
        (ROW.format(2, 1, 0, -5), "negative duration", "job '2': duration is -5s"),
        (ROW.format(2, 1, 0, "1e10"), "duration beyond 30 years", "job '2': duration is 115740d 17h"),
        (ROW.format(2, 1, -1, 5), "submission out of range", "job '2': submitted at -1 s"),
        (ROW.format(2, 1, "1e12", 5), "submission out of range", "job '2': submitted at 1,000,000,000,000 s"),
        (ROW.format(2, 1, 0, "NaN"), "no duration", "duration: is empty"),
        (ROW.format(2, 1, 0, "inf"), "duration is not a number", "duration: 'inf' is not a number"),
        (ROW.format(2, 1, 0, "9" * 400), "duration is not a number", f"duration: '{'9' * 37}...' is not a number"),
        (ROW.format(2, 1, 0, "1_0"), "duration is not a number", "duration: '1_0' is not a number"),
        (ROW.format(2, 1, "soon", 5), "submit_time is not a number", "submit_time: 'soon' is not a number"),
        (ROW.format("", 1, 0, 5), "no id", "job_id: is empty"),
        ("2,1,0\n", "wrong number of fields", "the row has 3 fields, not 7"),
        ('2,1,0,600,"vgg\n', "wrong number of fields", "the row is not CSV: a quote is not closed, or text follows it"),
        ('2,1,0,600,"vgg"16,5,1\n', "wrong number of fields", "the row is not CSV: a quote is not closed, or text follows it"),
    ],
)
def test_a_row_that_is_no_job_is_dropped_by_reason(tmp_path: Path, row: str, reason: str, detail: str) -> None:
    path = write(tmp_path, HEADER + ROW.format(1, 1, 0, 5) + row)
    tally = Tally("")
    trace = read(path, tally=tally)
    assert (len(trace.jobs), trace.dropped, trace.repaired) == (1, {reason: 1}, {})
    assert tally.first[reason] == f"line 3: {detail}"
    with pytest.raises(ValueError) as error:
        read(path, strict=True)
    assert str(error.value) == f"{path}:3: {detail}"


def test_cpu_jobs_can_be_kept(tmp_path: Path) -> None:
    trace = read(write(tmp_path, HEADER + ROW.format(1, 0, 0, 5)), cpu_jobs=True)
    assert (brief(trace), trace.repaired) == ([("1", 0.0, 5.0, 1)], {"CPU job taken for one GPU": 1})


def test_what_a_job_can_do_without_is_left_out(tmp_path: Path) -> None:
    trace = read(write(tmp_path, HEADER + "1,1.5,0,many,vgg16,5,1\n2,1,0,-3,vgg16,5,1\n3,1,0,,vgg16,5,1\n"))
    assert [job.iterations for job in trace.jobs] == [None, None, None]
    assert trace.jobs[0].gpus_min == 2
    assert trace.repaired == {
        "fraction of a GPU rounded up": 1,
        "iterations is not a number, left out": 1,
        "iterations is out of range, left out": 1,
    }


def test_ids_that_differ_in_bytes_that_are_not_utf_8_stay_two(tmp_path: Path) -> None:
    path = tmp_path / "latin-1.csv"
    rows = [ROW.format(key, 1, at, 5) for at, key in enumerate(("h\xe9ro", "h\xe8ro", "hero"))]
    path.write_bytes("".join([HEADER, *rows]).encode("latin-1") + ROW.format("h\xe9ro", 1, 9, 5).encode())
    tally = Tally("")
    trace = read(path, tally=tally)
    assert [job.key for job in trace.jobs] == ["h\\xe9ro", "h\\xe8ro", "hero", "h\xe9ro"]
    assert (trace.dropped, trace.repaired) == ({}, {"bytes that are not UTF-8, written as \\xNN": 2})
    assert tally.first.popitem()[1].startswith("line 2: the row is ")


def test_repairs_of_dropped_rows_do_not_count(tmp_path: Path) -> None:
    trace = read(write(tmp_path, HEADER + ROW.format(1, 1, 0, 5) + "2,1.5,0,many,vgg16,-5,1\n"))
    assert (trace.dropped, trace.repaired) == ({"negative duration": 1}, {})


def test_time_going_backwards_is_sorted_and_ties_keep_their_order(tmp_path: Path) -> None:
    rows = [ROW.format(key, 1, at, 5) for key, at in (("a", 50), ("b", 10), ("c", 50), ("d", 20))]
    trace = read(write(tmp_path, HEADER + "".join(rows)))
    assert [job.key for job in trace.jobs] == ["b", "d", "a", "c"]
    assert trace.repaired == {"out of order, sorted": 2}


def test_dates_and_numbers_do_not_mix(tmp_path: Path) -> None:
    text = PHILLY_CSV + "1507532500,5,1,5,cc\n2017-10-09T07:10:00+02:00,5,1,5,cc\n"
    trace = read(write(tmp_path, text))
    assert trace.dropped == {"timestamp is not a date": 1}
    assert trace.starts_at == 1507532400.0 - 6600  # the zone is heeded: 05:10 UTC


def test_a_date_that_no_cluster_trace_can_have_does_not_become_second_0(tmp_path: Path) -> None:
    rows = [f"{date} 07:10:00,5,1,5,cc\n" for date in ("0001-01-01", "1999-12-31", "2101-01-01", "9999-12-31")]
    tally = Tally("")
    trace = read(write(tmp_path, PHILLY_CSV + "".join(rows) + "9999-12-31T23:59:59-12:00,5,1,5,cc\n"), tally=tally)
    assert (len(trace.jobs), trace.starts_at) == (2, 1507532400.0)
    assert trace.dropped == {"submission before 2000 or after 2100": 5}
    assert tally.first["submission before 2000 or after 2100"] == "line 5: job '2': submitted in the year 1"


def test_what_no_column_can_hold_costs_its_row_and_not_the_file(tmp_path: Path) -> None:
    trace = read(write(tmp_path, MURI + "2,1,0,1,a2c,16,281000,1,1,8,1e12\n"))
    assert [job.priority for job in trace.jobs] == [0, 0, 1]
    assert trace.repaired["priority is out of range, left out"] == 1


# -- quotes ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("own_format", [False, True], ids=["tiresias", "stoker"])
@pytest.mark.parametrize(("opens", "closes", "dropped"), [(5, 900, 2), (5, None, 1), (5, 6, 2), (1000, None, 1)])
def test_a_stray_quote_costs_its_own_line(tmp_path: Path, own_format: bool, opens: int, closes: int | None, dropped: int) -> None:
    """Whatever is read as one field up to the next quote is rows, hundreds of them."""
    head, row, mark = (OWN_HEADER, OWN_ROW, "u") if own_format else (HEADER, ROW.format("{}", 1, 0, 5), "vgg")
    lines = [row.format(number) for number in range(1, 1001)]
    lines[opens - 1] = lines[opens - 1].replace(f",{mark}", f',"{mark}')
    if closes is not None:
        lines[closes - 1] = lines[closes - 1].replace(f",{mark}", f',"{mark}')
    path = write(tmp_path, head + "".join(lines))
    tally = Tally("")
    trace = read(path, tally=tally)
    assert (len(trace.jobs), trace.dropped) == (1000 - dropped, {"wrong number of fields": dropped})
    first = opens + head.count("\n")
    assert tally.first["wrong number of fields"].startswith(f"line {first}: the row is not CSV")
    with pytest.raises(ValueError, match=f":{first}: the row is not CSV"):
        read(path, strict=True)


def test_a_stray_quote_that_seems_to_close_a_name_swallows_nothing(tmp_path: Path) -> None:
    lines = [OWN_ROW.format(number) for number in range(1, 11)]
    lines[2], lines[6] = lines[2].replace(",u,", ',"u,'), lines[6].replace(",u,", ',u",')
    trace = read(write(tmp_path, OWN_HEADER + "".join(lines)))
    assert (len(trace.jobs), trace.dropped) == (9, {"wrong number of fields": 1})
    assert trace.jobs[5].user_name == 'u"'


@pytest.mark.parametrize("line", ['"job_id,num_gpu', 'job_id",num_gpu', '"job_id"x,num_gpu'])
def test_a_header_with_a_stray_quote_is_no_format(tmp_path: Path, line: str) -> None:
    with pytest.raises(ValueError, match="unknown format"):
        read(write(tmp_path, TIRESIAS.replace("job_id,num_gpu", line)))
    with pytest.raises(ValueError, match="format tiresias needs the columns"):
        read(write(tmp_path, TIRESIAS.replace("job_id,num_gpu", line)), "tiresias")


def test_a_column_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, HEADER.replace("interval", "interval,Duration") + "1,1,0,600,vgg16,5,1,6\n")
    with pytest.raises(ValueError, match="the column 'duration' is there twice: take one out, or give it another name"):
        read(path)
    lines = [line + ",," for line in TIRESIAS.splitlines()]
    assert read(write(tmp_path, "\n".join(lines))).jobs[0].duration == 160.0


# -- what is refused ------------------------------------------------------------------------------------------------------


def test_an_unknown_format_names_the_nearest_and_the_known(tmp_path: Path) -> None:
    path = write(tmp_path, HELIOS.replace("queue", "waited").replace("gpu_num", "gpus"))
    with pytest.raises(ValueError) as error:
        read(path)
    said = str(error.value)
    assert said.startswith(f"{path}: unknown format, its first line is job_id, user, vc, gpus,")
    assert "the nearest is helios, which also needs gpu_num, queue; formats: philly, " in said
    assert "\n" not in said and all(name in said for name in IMPORTED) and "pai-jobs" not in said


def test_the_nearest_format_is_the_one_that_lacks_the_smallest_share(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="the nearest is itp, which also needs submission_time, duration, num_gpu; "):
        read(write(tmp_path, "job_id,priority\n1,2\n"))
    with pytest.raises(ValueError, match=r"its first line is not CSV; formats: philly, "):
        read(write(tmp_path, '"job_id,priority\n1,2\n'))


def test_a_format_that_was_asked_for_must_be_there(tmp_path: Path) -> None:
    path = write(tmp_path, TIRESIAS)
    with pytest.raises(ValueError, match=r"format helios needs the columns user, vc, gpu_num, .*, which are not there; it has job_id, "):
        read(path, "helios")
    with pytest.raises(ValueError, match=r"there is no format 'helos' \(did you mean 'helios'\?\)"):
        read(path, "helos")
    with pytest.raises(ValueError, match="format tiresias needs"):
        read(write(tmp_path, GAVEL), "tiresias")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"\n\n", "is empty"),
        (HEADER.encode(), "no job is left of it: it has no rows"),
        ((HEADER + ROW.format(1, 0, 0, 5)).encode(), r"no job is left of it: 1 CPU job \(0 GPUs\)"),
        (gzip.compress(TIRESIAS.encode() * 50, mtime=0)[:60], "the gzip data is cut off; copy the file again"),
        (b"\x1f\x8b\x08\x00" + bytes(range(40)), "the gzip data is damaged"),
        (gzip.compress(TIRESIAS.encode(), mtime=0)[:-6] + b"123456", "the gzip data is (damaged|cut off)"),
        (b"\x00" * 3_000_000, ":1: the line is longer than 1 MiB: this is no table"),
        (gzip.compress(b"a" * 5_000_000, mtime=0), ":1: the line is longer than 1 MiB"),
        (b"[1, 2", "is not the JSON array of cluster_job_log"),
        (b'[{"jobid": ' + b"[" * 5000, "is not the JSON array of cluster_job_log"),
        (b'{"a": 1}', "is not the JSON array of cluster_job_log"),
        (b"[1, 2]", "no job is left of it: 2 entry is not as published"),
        (b'[{"jobid": "\xff"}]', "not UTF-8|is not JSON|is not the JSON"),
        (b"\xff\xfb\x00binary", "unknown format"),
        (TIRESIAS.encode("utf-16"), "is UTF-16 text: write it in UTF-8, such as with 'iconv -f UTF-16 -t UTF-8'"),
        (gzip.compress(TIRESIAS.encode("utf-16-be"), mtime=0), "is UTF-16BE text: write it in UTF-8"),
        (HELIOS.replace(",", ";").encode(), "its first line has semicolons between the fields: write the table with commas"),
        (TIRESIAS.replace(",", "\t").encode(), "its first line has tabs between the fields"),
        (HEADER.replace(",", "\t").replace("\n", "\ta\tb\tc\n").encode(), "its first line has tabs between the fields"),  # 10, as Gavel's
        (own.MARK.encode() + b"{}\nkey,submitted\na,0\n", "has no column duration, gpus_min"),
        (own.MARK.encode() + b"{\n", ":1: what follows '# stoker trace' is not as 'stoker trace export' writes it"),
    ],
)
def test_broken_files_get_one_clear_line(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "x.csv"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message) as error:
        read(path)
    assert str(path) in str(error.value) and "\n" not in str(error.value)


def test_a_folder_and_nothing_are_no_files(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is not a file"):
        read(tmp_path)
    with pytest.raises(ValueError, match="there is no such file"):
        read(tmp_path / "nothing")


def test_names(tmp_path: Path) -> None:
    assert default_name(Path("a/Philly 2017.csv.gz")) == "Philly-2017"
    assert default_name(Path("..csv")) == "trace"
    assert read(write(tmp_path, TIRESIAS), name="mine").name == "mine"
    for bad in ("", "a b", "-x", "x.csv", "a/b", "x" * 101, "é"):
        with pytest.raises(ValueError, match="name: "):
            check_name(bad)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"submitted": -1.0}, "submitted: must be"),
        ({"duration": math.nan}, "duration: must be"),
        ({"gpus_min": 0}, "gpus_min"),
        ({"gpus_max": 1}, "gpus_max"),
        ({"priority": 2**40}, "priority"),
        ({"batch_size": 2**63}, "batch_size"),
        ({"iterations": -1.0}, "iterations"),
        ({"demand": "urgent"}, "demand: 'urgent' is not one of"),
        ({"stop": "never"}, "stop"),
        ({"deadlines": (5.0,)}, "differ in number"),
        ({"demand": "strict"}, "a strict job has 0"),
        ({"demand": "soft", "deadlines": (9.0, 5.0), "rewards": (1.0, 1.0)}, "earliest first"),
        ({"demand": "soft", "deadlines": (5.0,), "rewards": (101.0,)}, "rewards: must be 0 to 100"),
    ],
)
def test_what_a_trace_must_be(change: dict[str, object], message: str) -> None:
    good = {"key": "a", "submitted": 1.0, "duration": 1.0, "gpus_min": 2}
    assert check_jobs([TraceJob(**good)]) == 1.0  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=f"job 'a': .*{message}"):
        check_jobs([TraceJob(**{**good, **change})])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="is before the job ahead of it"):
        check_jobs([TraceJob(**good)], after=2.0)  # type: ignore[arg-type]


# -- our own format -------------------------------------------------------------------------------------------------------

words = st.none() | st.text(st.characters(codec="utf-8", exclude_characters="\x00"), min_size=1, max_size=12)
seconds = st.floats(0, 1e8, allow_subnormal=False)


@st.composite
def jobs_of_a_trace(draw: st.DrawFn) -> list[TraceJob]:
    keys = draw(
        st.lists(
            st.text(st.characters(codec="utf-8", exclude_characters="\x00"), min_size=1, max_size=8), min_size=1, max_size=6, unique=True
        )
    )
    jobs = []
    for key in keys:
        demand = draw(st.sampled_from(["best-effort", "soft", "strict"]))
        deadlines = () if demand == "best-effort" else tuple(sorted(draw(st.lists(seconds, min_size=1, max_size=3))))
        gpus = draw(st.integers(1, 512))
        jobs.append(
            TraceJob(
                key=key,
                submitted=draw(seconds),
                duration=draw(st.floats(1e-3, 1e8)),
                gpus_min=gpus,
                gpus_max=draw(st.sampled_from([0, gpus, gpus + 8])),
                user_name=draw(words),
                pool=draw(words),
                model=draw(words),
                batch_size=draw(st.none() | st.integers(0, 2**62)),
                iterations=draw(st.none() | st.floats(0, 1e14)),
                status=draw(words),
                priority=draw(st.integers(-(2**31), 2**31 - 1).filter(lambda value: abs(value) < 2**31)),
                estimate=draw(st.none() | seconds),
                demand=demand,
                deadlines=deadlines,
                rewards=tuple(draw(st.floats(0, 100)) for _ in deadlines),
                stop=draw(st.sampled_from([None, "iterations", "performance"])),
                scale=draw(st.sampled_from([None, "small", "medium", "large"])),
                raw=draw(st.none() | st.dictionaries(st.text(max_size=5), st.text(max_size=9), max_size=3)),
            )
        )
    return sorted(jobs, key=lambda job: job.submitted)


@settings(max_examples=30)
@given(jobs=jobs_of_a_trace(), starts_at=st.none() | st.floats(0, 2e9))
def test_what_is_exported_is_read_back_without_loss(
    tmp_path_factory: pytest.TempPathFactory, jobs: list[TraceJob], starts_at: float | None
) -> None:
    given = Trace(
        name="n",
        format="helios",
        source="s",
        sha256="0",
        jobs=jobs,
        starts_at=starts_at,
        dropped={"x": 2},
        repaired={"y": 1},
        recipe={"seed": 3},
    )
    text = io.StringIO(newline="")
    own.write(given, text)
    path = tmp_path_factory.mktemp("own") / "t.csv"
    path.write_text(text.getvalue(), encoding="utf-8", newline="")
    found = read(path)
    assert found.jobs == given.jobs
    assert (found.name, found.starts_at, found.recipe) == ("n", starts_at, {"seed": 3})
    assert (found.dropped, found.repaired) == ({"x": 2}, {"y": 1})
    again = io.StringIO(newline="")
    own.write(found, again)
    assert again.getvalue() == text.getvalue()


def test_our_format_can_be_written_by_hand(tmp_path: Path) -> None:
    text = own.MARK + "{}\nduration,key,gpus_min,submitted,demand,deadlines,rewards\n5,a,2,1.5,strict,9.0,100\n5,b,2,1.5,soft,9.0 12,100\n"
    trace = read(write(tmp_path, text))
    assert [(job.key, job.demand, job.deadlines) for job in trace.jobs] == [("a", "strict", (9.0,))]
    assert trace.dropped == {"deadlines and rewards differ in number": 1}
    plain = read(write(tmp_path, "key,submitted,duration,gpus_min\na,0,5,1\n"))
    assert (plain.format, brief(plain)) == ("stoker", [("a", 0.0, 5.0, 1)])


OWN_HEADER = own.MARK + '{"name": "n"}\n' + ",".join(own.COLUMNS) + "\n"
OWN_ROW = '{},1.0,5.0,2,4,u,p,m,64,10.0,ok,1,6.0,strict,9.0,100.0,iterations,small,"{{""x"": ""y""}}"\n'


@pytest.mark.parametrize(
    ("column", "value", "reason"),
    [
        ("gpus_max", "1", "gpus_max: must be at least gpus_min, or 0"),
        ("deadlines", "5.0 4.0", "deadlines and rewards differ in number"),
        ("rewards", "1000", "rewards: must be 0 to 100"),
        ("deadlines", "-1", "deadlines: must be numbers of seconds from the submission, at most 1e+11, earliest first"),
        ("deadlines", "nan", "deadlines: must be numbers of seconds from the submission, at most 1e+11, earliest first"),
        ("demand", "", "deadlines: a best-effort job has 1"),
        ("demand", "urgent", "unknown demand"),
        ("key", "", "no id"),
        ("gpus_max", "many", "gpus_max is not a whole number"),
    ],
)
def test_a_wrong_row_of_our_format_is_dropped_and_not_the_file(tmp_path: Path, column: str, value: str, reason: str) -> None:
    fields = next(csv.reader([OWN_ROW.format("b")]))
    fields[own.COLUMNS.index(column)] = value
    path = write(tmp_path, OWN_HEADER + OWN_ROW.format("a") + ",".join(fields[:-1]) + ",\n" + OWN_ROW.format("c"))
    trace = read(path)
    assert ([job.key for job in trace.jobs], trace.dropped) == (["a", "c"], {reason: 1})
    with pytest.raises(ValueError, match=rf"t\.csv:4: .*{column if value else ''}"):
        read(path, strict=True)


@pytest.mark.parametrize(
    ("column", "value", "reason"),
    [
        ("batch_size", "x", "batch_size is not a whole number, left out"),
        ("batch_size", "-1", "batch_size is out of range, left out"),
        ("batch_size", str(2**63), "batch_size is out of range, left out"),
        ("priority", "high", "priority is not a whole number, left out"),
        ("priority", "1.5", "priority is not a whole number, left out"),
        ("priority", str(2**31), "priority is out of range, left out"),
    ],
)
def test_what_a_job_of_our_format_can_do_without_is_left_out(tmp_path: Path, column: str, value: str, reason: str) -> None:
    fields = next(csv.reader([OWN_ROW.format("b")]))
    fields[own.COLUMNS.index(column)] = value
    trace = read(write(tmp_path, OWN_HEADER + ",".join(fields[:-1]) + ",\n"))
    assert (trace.dropped, trace.repaired, len(trace.jobs)) == ({}, {reason: 1}, 1)
    assert getattr(trace.jobs[0], column) == (0 if column == "priority" else None)


# -- fuzz -----------------------------------------------------------------------------------------------------------------

SAMPLES = [
    PHILLY,
    PHILLY_CSV,
    JOINED,
    RFOLD,
    HELIOS,
    LUCID,
    PAI_TASKS,
    PAI_SIM,
    SHOCKWAVE,
    TIRESIAS,
    MURI,
    CHRONUS,
    ITP_MODELS,
    ELASTICFLOW,
    SIDE,
]
OWN = OWN_HEADER + OWN_ROW.format("a")
NASTY = [
    "",
    "NaN",
    "-1",
    "0",
    "1e308",
    "-1e308",
    "9" * 30,
    "inf",
    "x",
    '"',
    "2017-99-99",
    "9999-12-31 23:59:59",
    "0001-01-01",
    "None",
    "\x00",
    "é",
    "1-2",
    "--",
]


def tried(path: Path) -> Trace | None:
    """The trace, or None where it is refused in one line; anything but a ValueError fails the test."""
    try:
        trace = read(path)
    except ValueError as error:
        assert "\n" not in str(error), error
        return None
    check_jobs(trace.jobs)
    assert len({job.key for job in trace.jobs}) == len(trace.jobs)
    to_workload(trace)
    return trace


fuzzing = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


@fuzzing
@given(content=st.binary(max_size=400))
def test_random_bytes(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "f"
    path.write_bytes(content)
    tried(path)


@fuzzing
@given(
    sample=st.sampled_from([*SAMPLES, OWN]),
    at=st.lists(st.tuples(st.integers(0, 5000), st.sampled_from(NASTY)), min_size=1, max_size=6),
    tear=st.booleans(),
)
def test_fields_of_every_format_replaced(tmp_path: Path, sample: str, at: list[tuple[int, str]], tear: bool) -> None:
    lines = sample.splitlines(keepends=True)
    for where, value in at:
        row = where % len(lines)
        mark = "\t" if "\t" in lines[row] else ","
        fields = lines[row].rstrip("\n").split(mark)
        fields[where % len(fields)] = value
        lines[row] = mark.join(fields) + "\n"
    text = "".join(lines)
    path = tmp_path / "f"
    path.write_bytes(text.encode()[: at[0][0] % (len(text) + 1)] if tear else text.encode())
    tried(path)


@fuzzing
@given(
    sample=st.sampled_from([sample for sample in SAMPLES if sample not in (PHILLY, PAI_TASKS)] + [OWN]),
    edits=st.lists(
        st.tuples(st.floats(0, 1, exclude_max=True), st.booleans(), st.sampled_from(['"', ",", "\t", "\n", "\r", "'", None])), max_size=2
    ),
)
def test_every_line_is_a_job_or_counted(tmp_path: Path, sample: str, edits: list[tuple[float, bool, str | None]]) -> None:
    """A character too much or too few: no row goes missing without a count."""
    lines = sample.splitlines(keepends=True)
    head = 2 if sample == OWN else 0 if sample == SHOCKWAVE else 1
    text = "".join(lines[head:]) * 5
    for share, before_a_field, mark in edits:
        at = int(share * len(text))
        if before_a_field:  # a quote elsewhere is no more than a character
            at = max(text.rfind(separator, 0, at) for separator in (",", "\t", "\n")) + 1
        text = text[:at] + (mark or "") + text[at + (mark is None) :]
    path = tmp_path / "f"
    path.write_text("".join(lines[:head]) + text, newline="")
    try:
        trace = read(path)
    except ValueError as error:
        assert "no job is left of it" in str(error) or head == 0, error
        return
    there = sum(bool(line.strip("\r\n")) for line in re.split("\r\n|\r|\n", text))
    within = sum(mark in ("\n", "\r") for _, _, mark in edits) if sample == OWN else 0  # there a quoted field may go on in the next line
    assert there - within <= len(trace.jobs) + sum(trace.dropped.values()) <= there


@fuzzing
@given(sample=st.sampled_from(SAMPLES), cut=st.integers(0, 200), flip=st.integers(0, 200), bit=st.integers(0, 7))
def test_torn_and_flipped_gzip_data(tmp_path: Path, sample: str, cut: int, flip: int, bit: int) -> None:
    packed = bytearray(gzip.compress(sample.encode(), mtime=0))
    packed[flip % len(packed)] ^= 1 << bit
    path = tmp_path / "f"
    path.write_bytes(bytes(packed[: len(packed) - cut % len(packed)]))
    tried(path)


@pytest.mark.parametrize("sample", [s for s in SAMPLES if s not in (PHILLY, PAI_TASKS, SHOCKWAVE)], ids=lambda s: s[:20])
def test_columns_may_stand_in_any_order(tmp_path: Path, sample: str) -> None:
    rows = [line.split(",") for line in sample.splitlines() if line]
    order = random.Random(1).sample(range(len(rows[0])), len(rows[0]))
    shuffled = "".join(",".join(row[i] for i in order) + "\n" for row in rows)
    expected, found = read(write(tmp_path, sample, "a.csv")), read(write(tmp_path, shuffled, "b.csv"))
    assert found.jobs == expected.jobs
    assert (found.format, found.dropped) == (expected.format, expected.dropped)


# -- real files -----------------------------------------------------------------------------------------------------------

TRACES = os.environ.get("STOKER_TRACES")
real = pytest.mark.skipif(not TRACES, reason="STOKER_TRACES names no directory of real traces")


@real
@pytest.mark.parametrize(
    ("file", "format", "jobs", "dropped"),
    [
        ("philly/philly_pollux_2w_20170922_20171005.csv", "philly-csv", 13_085, {}),
        ("philly/philly_rfold_111548.csv.gz", "rfold", 111_539, {"zero duration": 10}),
        ("chronus/trace_job_Philly_MIX1.csv.gz", "chronus", 30_756, {"CPU job (0 GPUs)": 184}),
        ("muri/muri_philly_trace2.csv.gz", "muri", 5_755, {}),
        ("itp/itp_raw_69351.csv.gz", "itp", 69_351, {}),
        ("elasticflow/philly_103959.csv", "elasticflow", 876, {}),
        ("tiresias/60_job.csv", "tiresias", 60, {}),
        ("side_by_side/itp06.csv", "side-by-side", 2_396, {}),
        ("alibaba/lingjun2023_rfold_crux.csv.gz", "rfold", 2_257, {"zero duration": 241}),
    ],
)
def test_real_files(file: str, format: str, jobs: int, dropped: dict[str, int]) -> None:
    trace = read(Path(str(TRACES)) / file)
    assert (trace.format, len(trace.jobs), trace.dropped) == (format, jobs, dropped)


@real
def test_philly_as_its_readme_has_it() -> None:
    trace = read(Path(str(TRACES)) / "philly/philly_pollux_82247.csv.gz")
    assert (len(trace.jobs), trace.dropped, trace.starts_at) == (82_247, {}, 1504521041.0)  # 2017-09-04 10:30:41
    assert sum(job.gpus_min == 1 for job in trace.jobs) == 76_627
    assert sum(job.pool == "6214e9" for job in trace.jobs) == 41_226
    assert max(job.duration for job in trace.jobs) == 4_628_226


@real
def test_gavel_with_its_throughputs() -> None:
    folder = Path(str(TRACES)) / "gavel"
    trace = read(folder / "small_test.trace", throughputs=folder / "gavel_simulation_throughputs.csv.gz")
    assert (len(trace.jobs), trace.dropped) == (20, {})
