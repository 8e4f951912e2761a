"""What job files, options and arrays become; and that no text whatever raises anything but one clear error."""

from __future__ import annotations

import shlex
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from spec_as_yaml import dump
from stoker.engine.errors import UsageError
from stoker.engine.spec import cron
from stoker.engine.spec.build import Context
from stoker.engine.spec.check import NAME_FORM, problems, require, require_all
from stoker.engine.spec.click_options import OPTIONS, from_options, overrides, spec_options
from stoker.engine.spec.expand import fired, submissions
from stoker.engine.spec.model import Demand, Dependency, JobSpec, PipelineOptions, Retries, Reuse, Stop, Switch, Tier, Tuner
from stoker.engine.spec.reading.job_fields import NAMES as FIELDS
from stoker.engine.spec.reading.load import load_file, load_text
from stoker.engine.spec.reading.secrets import MASK, looks_secret, mask_argv, redact
from stoker.engine.spec.same import differences

NOW = 1_900_000_000.0
HERE = Context(now=NOW, cwd=Path("/work"), files=False)


def load(text: str, over: dict[str, Any] | None = None) -> list[JobSpec]:
    return load_text(text, "f.yaml", HERE, None if over is None else overrides(over))


def one(text: str, over: dict[str, Any] | None = None) -> JobSpec:
    (spec,) = load(text, over)
    return spec


EVERYTHING = """
name: bert-trec
command: [python, train.py, --lr, 0.10]
params: {lr: 1e-3, layers: [1, 2], verbose: yes, seed: 007}
kind: finetune
pool: fast
user: ann
priority: -5
gpus: {min: 2, max: 4}
gpu_memory: 8GiB
soft:
  - {deadline: 2h, reward: 80}
  - {deadline: 1h, reward: 100}
stop: {metric: accuracy, target: 0.9, max_iterations: 500}
env: {OMP_NUM_THREADS: 1, VERSION: 1.10, FLAG: true, TOKENIZERS_PARALLELISM: false}
env_file: .env
workdir: project
retries: {limit: 3, backoff: 1m, factor: 3, max_backoff: 1h30m, never_on: [2, -11]}
timeout: 2d
grace: 90s
hang_after: 10m
estimate: 1h
idempotency_key: "run 1"
labels: {team: nlp}
after: [prepare, 17, {job: clean, mode: any}]
hold: on
"""

LOADING = """
recipe: jpeg-cnn
reuse:
  repeat: 4
  shuffle_buffer: {batches: 2.5}
  memory: 512MiB
  augment: once
  switch: {plateau: {watch: accuracy, mode: max, min_epochs: 2, patience: 5, min_delta: 0.01, fraction: 0.2}}
  schedule: cosine
  peak: 0.05
pipeline: {tune: rate+dqn, processes: yes, workers: {decode: 4, batch: 2}, memory: 2GiB, interval: 500ms}
"""

EXPECTED = JobSpec(
    name="bert-trec", command=("python", "train.py", "--lr", "0.10"),
    params={"lr": 0.001, "layers": [1, 2], "verbose": "yes", "seed": 7}, kind="finetune", pool="fast", user="ann", priority=-5,
    gpus_min=2, gpus_max=4, gpu_memory=8 << 30, demand=Demand("soft", (Tier(NOW + 3600, 100.0), Tier(NOW + 7200, 80.0))),
    stop=Stop(500, "accuracy", 0.9), env={"OMP_NUM_THREADS": "1", "VERSION": "1.10", "FLAG": "true", "TOKENIZERS_PARALLELISM": "false"},
    env_file="/work/project/.env", workdir="/work/project", retries=Retries(3, 60.0, 3.0, 5400.0, (2, -11)), timeout=172_800.0,
    grace=90.0, hang_after=600.0, estimate=3600.0, idempotency_key="run 1", labels={"team": "nlp"},
    after=(Dependency("prepare"), Dependency("17"), Dependency("clean", "any")), hold=True,
)  # fmt: skip


def test_every_field_is_read() -> None:
    assert one(EVERYTHING) == EXPECTED


def test_both_blocks_of_loading_are_read() -> None:
    plateau = Switch(on="plateau", watch="accuracy", mode="max", min_epochs=2.0, patience=5, min_delta=0.01, fraction=0.2)
    reuse = Reuse(repeat=4, shuffle_batches=2.5, memory=512 << 20, augment="once", switch=plateau, schedule="cosine", peak=0.05)
    pipeline = PipelineOptions(tune="rate+dqn", processes=True, workers={"decode": 4, "batch": 2}, memory=2 << 30, interval=0.5)
    spec = one(LOADING)
    assert (spec.reuse, spec.pipeline) == (reuse, pipeline)
    assert msgspec.json.decode(msgspec.json.encode(spec), type=JobSpec) == spec


@pytest.mark.parametrize(
    ("text", "reuse", "pipeline"),
    [
        ("reuse: 3", Reuse(repeat=3), None),
        ("reuse: {}", Reuse(), None),
        ("reuse: {shuffle_buffer: 2048}", Reuse(shuffle_buffer=2048), None),
        ("reuse: {switch: plateau, peak: search}", Reuse(peak="search"), None),
        ("reuse: {switch: {plateau: {}}}", Reuse(), None),
        ("reuse: {switch: {epochs: 20}}", Reuse(switch=Switch(on="epochs", epochs=20.0)), None),
        ("reuse: {switch: {fraction: 0.3}}", Reuse(switch=Switch(on="fraction", fraction=0.3)), None),
        ("pipeline: uniform", None, PipelineOptions(tune="uniform")),
        ("pipeline: {}", None, PipelineOptions()),
        ("reuse:\npipeline: ~", None, None),
    ],
)
def test_forms_of_loading(text: str, reuse: Reuse | None, pipeline: PipelineOptions | None) -> None:
    spec = one(f"recipe: jpeg-cnn\n{text}")
    assert (spec.reuse, spec.pipeline) == (reuse, pipeline)


def test_a_posted_block_of_a_command_is_refused() -> None:
    with pytest.raises(UsageError, match=r"^a: reuse: is for a recipe or an entrypoint; a script uses stoker\.loaders"):
        require(JobSpec(name="a", command=("x",), reuse=Reuse()))


def test_the_tuners_of_a_spec_are_those_of_the_registry() -> None:
    from stoker.runners.loaders.tuning import known_controllers as registry

    assert set(get_args(Tuner)) == set(registry.NAMES)


def test_a_job_of_before_that_names_a_baseline_goes_on_with_the_default() -> None:
    stored = msgspec.json.decode(b'{"name": "a", "recipe": "toy", "pipeline": {"tune": "plumber-adaptive"}}', type=JobSpec)
    assert stored.pipeline is not None and stored.pipeline.controller == "rate"
    assert [(one.field, one.problem.split()[0]) for one in problems(stored)] == [("pipeline.tune", "plumber-adaptive")]


def test_the_least_job() -> None:
    assert one("command: python train.py --lr 0.1 | tee log") == JobSpec(
        name="f", command=("/bin/sh", "-c", "python train.py --lr 0.1 | tee log"), workdir="/work"
    )


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("command: python -u src/train.py", "train"),
        ("command: [/opt/bin/fit, x]", "fit"),
        ("command: nvidia-smi", "nvidia-smi"),
        ("recipe: text-classifier", "text-classifier"),
        ("entrypoint: project.models:build", "models"),
        ("command: a && b", "f"),
    ],
)
def test_a_job_without_a_name_is_called_by_what_it_runs(text: str, name: str) -> None:
    assert one(text).name == name


def test_times_without_an_offset_are_local(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        local = one("command: x\ndeadline: 2031-06-01T18:00").deadline
    finally:
        monkeypatch.undo()
        time.tzset()
    assert local == datetime(2031, 6, 1, 9, tzinfo=UTC).timestamp()
    assert one("command: x\ndeadline: 2031-06-01 18:00+02:00").deadline == datetime(2031, 6, 1, 16, tzinfo=UTC).timestamp()


def test_a_time_of_day_is_understood_in_files_and_options() -> None:
    local = datetime.fromtimestamp(NOW, UTC).astimezone()
    later, earlier = (f"{local + timedelta(hours=hours):%H:%M}" for hours in (2, -2))
    tomorrow = [
        tier.deadline for tier in one(f"command: x\nsoft: [{{deadline: {later}}}, {{deadline: {earlier}, reward: 50}}]").demand.tiers
    ]
    assert [round((deadline - NOW) / 3600) for deadline in tomorrow] == [2, 22]
    (strict,) = from_options({"deadline": later}, ["x"], HERE)
    (soft,) = from_options({"soft": (f"{later}=80",)}, ["x"], HERE)
    assert (strict.demand.kind, strict.deadline) == ("strict", tomorrow[0])
    assert soft.demand == Demand("soft", (Tier(tomorrow[0], 80.0),))


@pytest.mark.parametrize("now", [NOW + 0.0004, NOW + 0.0006])
def test_no_time_is_no_deadline_however_the_clock_is_rounded(now: float) -> None:
    with pytest.raises(UsageError, match="--deadline: '0' leaves no time"):
        from_options({"deadline": "0"}, ["x"], Context(now=now, cwd=Path("/work"), files=False))


def test_a_deadline_is_strict() -> None:
    assert one("command: x\ndeadline: 1h30m").demand == Demand("strict", (Tier(NOW + 5400.0),))


def test_defaults_are_merged_and_a_jobs_choice_drops_the_defaults() -> None:
    first, second, third = load(
        """
defaults:
  recipe: toy
  deadline: 2h
  env: {A: 1, B: 2}
  stop: {iterations: 5}
jobs:
  - name: a
    env: {B: 3}
  - name: b
    command: x
    soft: [{deadline: 1h}]
    stop:
---
name: c
command: x
"""
    )
    assert (first.recipe, first.env, first.deadline, first.stop.iterations) == ("toy", {"A": "1", "B": "3"}, NOW + 7200, 5)
    assert (second.recipe, second.command, second.demand.kind, second.stop) == (None, ("/bin/sh", "-c", "x"), "soft", Stop())
    assert third == JobSpec(name="c", command=("/bin/sh", "-c", "x"), workdir="/work")


def test_options_win_over_the_file() -> None:
    spec = one(EVERYTHING, {"gpus": "3", "deadline": "2h", "env": ("FLAG=no",), "label": ("x=1",), "iterations": "7"})
    assert (spec.gpus_min, spec.gpus_max, spec.demand.kind, spec.stop) == (3, 3, "strict", Stop(7))
    assert spec.env == {**EXPECTED.env, "FLAG": "no"}
    assert spec.labels == {"team": "nlp", "x": "1"}


# Arrays


ARRAY = """
name: sweep
command: [python, train.py, "--lr={lr}", "{seed}", "${seed} {other}"]
env: {RUN: "run-{lr}"}
params: {epochs: 3}
idempotency_key: k
array: {params: {lr: [0.1, 1e-3], seed: [1, 2]}, max_running: 2}
---
name: after
command: x
after: {job: sweep, mode: any}
"""


def test_an_array_is_the_grid_with_the_last_parameter_fastest() -> None:
    *tasks, last = load(ARRAY)
    assert [spec.name for spec in tasks] == ["sweep[0]", "sweep[1]", "sweep[2]", "sweep[3]"]
    assert [(spec.params["lr"], spec.params["seed"], spec.params["epochs"]) for spec in tasks] == [
        (0.1, 1, 3), (0.1, 2, 3), (0.001, 1, 3), (0.001, 2, 3)]  # fmt: skip
    assert tasks[3].command == ("python", "train.py", "--lr=0.001", "2", "${seed} {other}")
    assert tasks[3].env == {"RUN": "run-0.001"}
    assert [(spec.array_index, spec.array_size, spec.array_cap, spec.idempotency_key) for spec in tasks[:2]] == [
        (0, 4, 2, "k[0]"), (1, 4, 2, "k[1]")]  # fmt: skip
    assert last.after == tuple(Dependency(spec.name, "any") for spec in tasks)


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20))
@settings(max_examples=25)
def test_a_value_stays_one_word_of_a_shell_command(value: str) -> None:
    text = yaml.safe_dump({"command": "printf %s {word}", "array": {"params": {"word": [value]}}}, allow_unicode=False)
    (spec,) = load_text(text, "f.yaml", Context(now=NOW, cwd=Path("/work"), files=False))
    assert spec.command is not None
    # A text that YAML 1.1 writes bare and 1.2 reads as a number comes back as the same characters.
    assert shlex.split(spec.command[2])[2:] in ([value], [str(spec.params["word"])])
    assert subprocess.run(spec.command, stdout=subprocess.PIPE, check=True).stdout.decode() == shlex.split(spec.command[2])[2]


def test_jobs_of_a_file_go_together_and_recurring_ones_alone() -> None:
    specs = load("jobs:\n - {name: a, command: x}\n - {name: n, command: x, cron: 0 0 * * *}\n - {name: b, command: x, after: a}")
    assert [[spec.name for spec in group] for group in submissions(specs)] == [["a", "b"], ["n"]]


# Recurring jobs


def test_a_firing_moves_the_deadline() -> None:
    spec = one("command: x\ncron: 0 2 * * *\ndeadline: 3h")
    job = fired(spec, submitted_at=NOW, at=NOW + 86_400)
    assert (job.cron, job.deadline) == (None, NOW + 86_400 + 10_800)


@pytest.mark.parametrize(
    ("weekday", "days"),
    [
        ("0", {6}),
        ("7", {6}),
        ("1-5", {0, 1, 2, 3, 4}),
        ("*/2", {6, 1, 3, 5}),
        ("5-7", {4, 5, 6}),
        ("mon-wed", {0, 1, 2}),
        ("1,sat", {0, 5}),
    ],
)
def test_weekdays_mean_what_they_mean_in_a_crontab(weekday: str, days: set[int]) -> None:
    from apscheduler.triggers.cron import CronTrigger

    trigger = CronTrigger.from_crontab(cron.normalise(f"0 0 * * {weekday}"), timezone=UTC)
    at, seen = datetime(2030, 1, 1, tzinfo=UTC), set()
    for _ in range(14):
        fires = trigger.get_next_fire_time(None, at)
        seen.add(fires.weekday())
        at = fires + timedelta(minutes=1)
    assert seen == days


# Options


def test_options_say_what_a_file_says() -> None:
    values = {
        "name": "bert-trec", "param": ("lr=1e-3", "layers=[1, 2]", "verbose=yes", "seed=007"), "kind": "finetune", "pool": "fast",
        "user": "ann", "priority": "-5", "gpus": "2-4", "gpu_memory": "8GiB", "soft": ("2h=80", "1h=100"), "metric": "accuracy",
        "target": "0.9", "max_iterations": "500", "env_file": ".env", "workdir": "project", "retries": "3", "backoff": "1m",
        "env": ("OMP_NUM_THREADS=1", "VERSION=1.10", "FLAG=true", "TOKENIZERS_PARALLELISM=false"), "timeout": "2d", "grace": "90s",
        "hang_after": "10m", "estimate": "1h", "idempotency_key": "run 1", "label": ("team=nlp",),
        "after": ("prepare", "17", "clean:any"), "hold": True,
    }  # fmt: skip
    (spec,) = from_options(values, ["python", "train.py", "--lr", "0.10"], HERE)
    assert spec == msgspec.structs.replace(EXPECTED, retries=Retries(3, 60.0))


def test_loading_by_options() -> None:
    (short,) = from_options({"recipe": "toy", "reuse": "4", "tune": "dqn"}, [], HERE)
    assert (short.reuse, short.pipeline) == (Reuse(repeat=4), PipelineOptions(tune="dqn"))
    (long,) = from_options({"recipe": "toy", "reuse": "{repeat: 2, switch: {epochs: 3}}"}, [], HERE)
    assert long.reuse == Reuse(repeat=2, switch=Switch(on="epochs", epochs=3.0))
    with pytest.raises(UsageError, match=r"^--tune: must be one of rate, .*, not 'rat' \(did you mean 'rate'"):
        from_options({"recipe": "toy", "tune": "rat"}, [], HERE)
    with pytest.raises(UsageError, match=r"^--reuse repat: unknown field \(did you mean 'repeat'"):
        from_options({"recipe": "toy", "reuse": "{repat: 3}"}, [], HERE)
    with pytest.raises(UsageError, match=r"^--reuse switch epoch: unknown field"):
        from_options({"recipe": "toy", "reuse": "{switch: {epoch: 3}}"}, [], HERE)
    with pytest.raises(UsageError, match=r"^--reuse: must be between 1 "):
        from_options({"recipe": "toy", "reuse": "0"}, [], HERE)


def test_an_array_by_options() -> None:
    tasks = from_options({"array": ("lr=0.1,1e-3", 'opt=sgd,"a,b"'), "max_running": "2"}, ["run {lr} {opt}"], HERE)
    assert [spec.params for spec in tasks] == [
        {"lr": 0.1, "opt": "sgd"}, {"lr": 0.1, "opt": "a,b"}, {"lr": 0.001, "opt": "sgd"}, {"lr": 0.001, "opt": "a,b"}]  # fmt: skip
    assert tasks[1].command == ("/bin/sh", "-c", "run 0.1 a,b")
    assert tasks[0].array_cap == 2


def test_click_takes_every_option() -> None:
    import click
    from click.testing import CliRunner

    seen: dict[str, Any] = {}

    @click.command()
    @spec_options
    @click.argument("command", nargs=-1)
    def submit(command: tuple[str, ...], **values: Any) -> None:
        seen.update(values, specs=from_options(values, command, HERE))

    result = CliRunner().invoke(submit, ["-n", "a", "-g", "2", "-p", "lr=0.1", "--soft", "2h=3", "--hold", "--", "x", "--y"])
    assert result.exit_code == 0, result.output
    assert seen["specs"] == [
        JobSpec(name="a", gpus_min=2, gpus_max=2, params={"lr": 0.1}, demand=Demand("soft", (Tier(NOW + 7200, 3.0),)), hold=True,
                command=("x", "--y"), workdir="/work")]  # fmt: skip
    assert {option.parameter for option in OPTIONS} == seen.keys() - {"specs"}


# Secrets


@pytest.mark.parametrize(
    "name", ["HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "PGPASSWORD", "apiKey", "DB_PASSWORD", "APIKEY", "KEY"]
)
def test_names_of_secrets(name: str) -> None:
    assert looks_secret(name)


@pytest.mark.parametrize(
    "name", ["TOKENIZERS_PARALLELISM", "MAX_TOKENS", "KEYBOARD", "MONKEY_BARS", "SSH_KEY_FILE", "AWS_ACCESS_KEY_ID", "SECRET_PATH", "PATH"]
)
def test_names_of_what_is_no_secret(name: str) -> None:
    assert not looks_secret(name)


def test_show_redacts_what_came_past_the_check() -> None:
    spec = JobSpec(
        name="a",
        command=("x", "--api-key=abc", "HF_TOKEN=abc", "--lr=0.1", "http://me:abc@host/"),
        env_file="/run/secrets.env",
        env={"HF_TOKEN": "abc", "A": "1", "URL": "http://me:abc@host/"},
        params={"password": "abc", "deep": [{"token_secret": "abc"}], "key": "text"},
    )
    shown = redact(spec)
    assert b"abc" not in msgspec.json.encode(shown)
    assert shown.env == {"HF_TOKEN": MASK, "A": "1", "URL": f"http://{MASK}@host/"}
    assert (shown.env_file, shown.params["key"], shown.command[3]) == ("/run/secrets.env", "text", "--lr=0.1")  # type: ignore[index]
    assert mask_argv(["submit", "--env=HF_TOKEN=abc", "HF_TOKEN=abc"]) == ["submit", f"--env=HF_TOKEN={MASK}", f"HF_TOKEN={MASK}"]


def test_a_value_behind_its_option_is_masked() -> None:
    assert mask_argv(["x", "--api-key", "abc", "--lr", "0.1", "--token", "--quiet"]) == [
        "x",
        "--api-key",
        MASK,
        "--lr",
        "0.1",
        "--token",
        "--quiet",
    ]


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (("x", "--api-key", "abc"), "--api-key"),
        (("x", "--api-key=abc"), "--api-key"),
        (("x", "--hf-token", "hf_0123456789abcdefgh"), "--hf-token"),
        (("env", "DB_PASSWORD=abc", "x"), "DB_PASSWORD"),
        (("docker", "run", "-e", "DB_PASSWORD=abc", "x"), "DB_PASSWORD"),
    ],
)
def test_secrets_in_commands_are_refused(command: tuple[str, ...], name: str) -> None:
    with pytest.raises(UsageError, match=f"^a: command: the value of {name} looks like a secret, .* env_file$"):
        require(JobSpec(name="a", command=command))


@pytest.mark.parametrize(
    "command",
    [
        ("x", "--api-key", "$KEY"),
        ("x", "--eos-token", "</s>"),
        ("x", "--image-key=image"),
        ("x", "--api-key-file", "/run/key"),
        ("x", "--password"),
    ],
)
def test_what_is_no_secret_in_a_command(command: tuple[str, ...]) -> None:
    require(JobSpec(name="a", command=command))


# A spec that comes over the wire is held to the same rules


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"gpus_min": 3}, "a: gpus: min 3 is larger than max 1"),
        ({"recipe": "toy"}, "a: command: given beside recipe; a job has exactly one of recipe, command and entrypoint"),
        ({"workdir": "x"}, "a: workdir: must be an absolute path, not 'x'"),
        ({"command": ("x", "a\0b")}, "a: command: holds a NUL character, which no program accepts"),
        ({"demand": Demand("strict")}, "a: deadline: a strict job has one deadline; use soft for several"),
        ({"demand": Demand("best-effort", (Tier(1.0),))}, "a: demand: a best-effort job has no deadline; use deadline (strict) or soft"),
        ({"array_index": 2, "array_size": 2, "name": "a[2]"}, "a[2]: array: task 2 of 2 tasks: tasks count from 0"),
        ({"cron": "x"}, "a: cron: must be five fields 'minute hour day month weekday', such as '30 2 * * mon-fri', not 'x'"),
        (
            {"name": "a\nb"},
            f"a b: name: must be {NAME_FORM}, not 'a\\nb'",
        ),
    ],
)
def test_a_posted_spec_is_held_to_the_same_rules(change: dict[str, Any], problem: str) -> None:
    good = JobSpec(name="a", command=("x",))
    require(good)
    with pytest.raises(UsageError) as caught:
        require(msgspec.structs.replace(good, **change))
    assert str(caught.value) == problem


@pytest.mark.parametrize(
    ("second", "problem"),
    [
        (JobSpec(name="a", command=("x",)), "jobs: 2 are called 'a'; names of one submission must differ"),
        (JobSpec(name="b", command=("x",), cron="0 0 * * *"), "jobs: a recurring job is submitted alone"),
        (JobSpec(name="b", command=("x",), after=(Dependency("a"),)),
         "after: a → b → a is a cycle, so none of them could start; remove one 'after'"),
        (JobSpec(name="b", recipe="text-classifier", begin="job:a"),
         "begin: a → b → a is a cycle, so none of them could start; remove one 'begin'"),
        (JobSpec(name="b", gpus_min=0, command=("x",)), "b: gpus: must be at least 1, not 0; on a host without GPUs it counts CPU slots"),
        (JobSpec(name="b", command=("x",), after=tuple(Dependency(str(i)) for i in range(100_001))),
         "jobs: at most 10000 jobs with 100000 dependencies fit into one submission; split it"),
    ],
)  # fmt: skip
def test_posted_jobs_are_held_to_the_same_rules(second: JobSpec, problem: str) -> None:
    first = JobSpec(name="a", command=("x",), after=(Dependency("b"),))
    require_all([first, JobSpec(name="b", command=("x",))])
    with pytest.raises(UsageError) as caught:
        require_all([first, second])
    assert str(caught.value) == problem


def test_a_long_chain_is_no_cycle() -> None:
    require_all([JobSpec(name=f"j{i}", command=("x",), after=(Dependency(f"j{i + 1}"),)) for i in range(9_000)])


# Round trip and fuzz

NAMES = st.from_regex(r"[A-Za-z][A-Za-z0-9._-]{0,20}", fullmatch=True)
TRAPS = [
    "\x85",
    "\u2028",
    "\ufeff",
    "1e-3",
    "yes",
    "~",
    "<<",
    "=",
    "007",
    "0o7",
    "1_000",
    "12:30",
    "2030-01-01",
    "a\n b\n",
    " a",
    "# a",
    "a: b",
]
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=30) | st.sampled_from(TRAPS)
SECONDS = st.integers(1, 10**9).map(lambda ms: ms / 1000)
VARIABLES = st.from_regex(r"[A-Z][A-Z0-9_]{0,10}", fullmatch=True).filter(lambda name: not looks_secret(name) and "STOKER" not in name)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)


SHARES = st.floats(0.01, 0.99)
SWITCHES = st.one_of(
    st.builds(
        Switch,
        watch=st.none() | NAMES,
        mode=st.sampled_from([None, "max", "min"]),
        min_epochs=st.floats(0, 100),
        patience=st.integers(1, 9),
        min_delta=SHARES,
        fraction=SHARES,
    ),
    st.builds(Switch, on=st.just("epochs"), epochs=st.floats(0.5, 500)),
    st.builds(Switch, on=st.just("fraction"), fraction=SHARES),
)
REUSES = (
    st.builds(
        Reuse,
        repeat=st.integers(1, 9),
        memory=st.integers(1, 2**40),
        augment=st.sampled_from(["each-use", "once"]),
        switch=SWITCHES,
        schedule=st.sampled_from(["onecycle", "cosine"]),
        peak=st.sampled_from(["rule", "search"]) | st.floats(1e-6, 10),
    )
    | st.builds(Reuse, shuffle_buffer=st.integers(1, 10**6))
    | st.builds(Reuse, shuffle_batches=st.floats(1, 100))
)
PIPELINES = st.builds(
    PipelineOptions,
    tune=st.sampled_from(get_args(Tuner)),
    processes=st.booleans(),
    workers=st.dictionaries(st.sampled_from(["decode", "augment", "batch"]), st.integers(1, 64)),
    memory=st.none() | st.integers(1, 2**40),
    interval=SECONDS.filter(lambda seconds: seconds >= 0.05),
)


@st.composite
def specs(draw: st.DrawFn) -> JobSpec:
    low = draw(st.integers(1, 8))
    times = sorted(draw(st.sets(st.integers(1, 10**8), min_size=1, max_size=3)))
    tiers = tuple(Tier(NOW + ms / 1000, 10.0 - index) for index, ms in enumerate(times))
    demand = draw(st.sampled_from([Demand(), Demand("strict", (Tier(tiers[0].deadline),)), Demand("soft", tiers)]))
    work = draw(
        st.sampled_from([{"recipe": "toy"}, {"entrypoint": "a.b:c"}, {"command": ("/bin/sh", "-c", "a | b")}])
        | st.lists(TEXTS, max_size=3).map(lambda words: {"command": ("prog", *words)})
    )
    target = draw(st.floats(allow_nan=False, allow_infinity=False))
    loading = {} if "command" in work else {"reuse": draw(st.none() | REUSES), "pipeline": draw(st.none() | PIPELINES)}
    return JobSpec(
        name=draw(NAMES),
        gpus_min=low,
        gpus_max=low + draw(st.integers(0, 4)),
        demand=demand,
        **work,
        **loading,
        kind=draw(st.sampled_from(["train", "finetune"])),
        priority=draw(st.integers(-9, 9)),
        gpu_memory=draw(st.integers(0, 2**40)),
        stop=draw(st.sampled_from([Stop(), Stop(5), Stop(5, "acc", target, "min")])),
        params=draw(st.dictionaries(NAMES.filter(lambda name: not looks_secret(name)), VALUES, max_size=3)),
        env=draw(st.dictionaries(VARIABLES, TEXTS, max_size=3)),
        workdir="/work",
        env_file=draw(st.sampled_from([None, "/a/.env"])),
        retries=draw(st.sampled_from([Retries(), Retries(3), Retries(2, 0.5, 1.5, 60.0, (1, -9))])),
        timeout=draw(st.none() | SECONDS),
        grace=draw(SECONDS.filter(lambda seconds: seconds <= 86_400)),
        hang_after=draw(st.none() | SECONDS),
        idempotency_key=draw(st.none() | NAMES),
        labels=draw(st.dictionaries(NAMES, TEXTS, max_size=2)),
        after=tuple(Dependency(job, draw(st.sampled_from(["ok", "any"]))) for job in draw(st.sets(NAMES, max_size=2))),
        hold=draw(st.booleans()),
    )


@given(specs(), specs(), st.floats(0, 1e6))
@settings(max_examples=80)
def test_a_spec_that_comes_again_is_the_same_and_another_differs_in_what_it_differs(one: JobSpec, other: JobSpec, later: float) -> None:
    stored = msgspec.json.decode(msgspec.json.encode(one), type=JobSpec)
    tiers = tuple(msgspec.structs.replace(tier, deadline=tier.deadline + later) for tier in one.demand.tiers)
    again = msgspec.structs.replace(one, demand=Demand(one.demand.kind, tiers), user="ann")
    assert differences(stored, stored, later) == differences(stored, again, later) == []
    fields = {name for name in one.__struct_fields__ if getattr(one, name) != getattr(other, name)} - {
        "demand",
        "idempotency_key",
        "gpus_min",
        "gpus_max",
    }
    told = set(differences(one, other, later))
    assert fields <= told and told - fields <= {"gpus", "demand", "deadline", "soft"}
    assert ("gpus" in told) == ((one.gpus_min, one.gpus_max) != (other.gpus_min, other.gpus_max))
    assert one.demand.kind == other.demand.kind or told & {"demand", "deadline", "soft"}
    if tiers:
        moved = msgspec.structs.replace(again, demand=Demand(one.demand.kind, tuple(Tier(t.deadline + 90, t.reward) for t in tiers)))
        assert differences(stored, moved, later) == [{"strict": "deadline", "soft": "soft"}[one.demand.kind]]


@given(specs())
@settings(max_examples=80)
def test_a_spec_written_as_yaml_is_read_as_the_same_spec(spec: JobSpec) -> None:
    try:
        require(spec)
    except UsageError:  # a text with a password in a URL, two parameters with one variable, a job after itself
        return
    assert load_text(dump([spec]), "f.yaml", HERE) == [spec]


def test_a_task_is_written_as_a_job_of_its_own() -> None:
    task = load(ARRAY)[3]
    (alone,) = load(dump([task]))
    assert alone.name == "sweep-3"
    assert alone == msgspec.structs.replace(
        task, name="sweep-3", array_index=None, array_size=None, array_cap=None, family=None, idempotency_key="k[3]"
    )


def parses(text: str) -> None:
    try:
        for spec in load_text(text, "f.yaml", HERE):
            require(spec)
            msgspec.json.decode(msgspec.json.encode(spec), type=JobSpec)
    except UsageError as error:
        assert "\n" not in str(error)
        assert str(error).startswith("f.yaml")


@given(st.text(max_size=200))
@settings(max_examples=80)
def test_no_text_raises_anything_but_one_line(text: str) -> None:
    parses(text)


FRAGMENTS = st.sampled_from(
    [
        *FIELDS,
        *"[]{}:,&*!|>%@`?-#'\"",
        "\n",
        "\n  ",
        ": ",
        "- ",
        "jobs",
        "defaults",
        "<<",
        "&a",
        "*a",
        "---",
        "!!int",
        "2h",
        "1e999",
        "-1",
        ".nan",
        "0x",
        "9" * 30,
        "true",
        "~",
        "\t",
        "\\x",
        "2030-01-01T00:00",
        "metric",
        "params",
        "lr",
    ]
)


@given(st.lists(FRAGMENTS, max_size=30).map("".join))
@settings(max_examples=100)
def test_no_broken_yaml_raises_anything_but_one_line(text: str) -> None:
    parses(text)


@given(
    st.dictionaries(
        st.sampled_from(sorted(FIELDS)),
        VALUES | st.dictionaries(st.sampled_from(["params", "min", "max", "metric", "deadline", "job"]), VALUES),
    )
)
@settings(max_examples=100)
def test_no_wrong_value_raises_anything_but_one_line(fields: dict[str, Any]) -> None:
    parses(yaml.safe_dump(fields))


@given(st.dictionaries(st.sampled_from([option.parameter for option in OPTIONS if not option.flag]), st.text(max_size=12)))
@settings(max_examples=80)
def test_no_option_raises_anything_but_one_line(values: dict[str, str]) -> None:
    many = {option.parameter for option in OPTIONS if option.many or option.keyed}
    try:
        from_options({name: (value,) if name in many else value for name, value in values.items()}, ["x"], HERE)
    except UsageError as error:
        assert "\n" not in str(error)


@given(st.binary(max_size=100))
@settings(max_examples=50)
def test_no_file_raises_anything_but_one_line(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "f.yaml"
    path.write_bytes(data)
    try:
        load_file(path, HERE)
    except UsageError as error:
        assert "\n" not in str(error)


@pytest.mark.parametrize(
    "text", ["0 2 * * mon-fri/2", "0 2 * jan-mar/2 *", "0 2 lastly * *", "0 2 * * mon,,tue", "0 2 * * mon!", "0 2 * * mondays"]
)
def test_a_field_of_a_cron_expression_is_understood_whole_or_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not understood; five fields"):
        cron.normalise(text)
