"""Everything that can be wrong with a job file, each with the exact line that a person reads."""

# ruff: noqa: E501  (a table is read line by line)

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from stoker.engine.errors import NotFound, UsageError
from stoker.engine.spec.build import Context
from stoker.engine.spec.click_options import from_options, overrides
from stoker.engine.spec.reading.load import load_file, load_text
from stoker.engine.spec.reading.tree import MAX_BYTES
from stoker.runners.recipes import RECIPES

NOW = 1_900_000_000.0  # 2030-03-17T17:46:40Z


@pytest.fixture
def context(tmp_path: Path) -> Context:
    (tmp_path / "train.py").write_text("print()\n")
    (tmp_path / "data").mkdir()
    return Context(now=NOW, cwd=tmp_path, recipes=RECIPES)


def messages(text: str, context: Context) -> list[str]:
    with pytest.raises(UsageError) as caught:
        load_text(text, "f.yaml", context)
    return caught.value.lines


def message(text: str, context: Context) -> str:
    """The only one; fails when something else is said to be wrong beside it."""
    (line,) = messages(text, context)
    return line


RUN = "command: echo hi\n"

FIELDS = {
    "unknown field": (RUN + "iteratons: 5", "f.yaml:2: iteratons: unknown field; known: see docs/job-spec.md"),
    "near field": (RUN + "nmae: x", "f.yaml:2: nmae: unknown field (did you mean 'name'?)"),
    "near nested field": (RUN + "\nstop:\n  iteratons: 5", "f.yaml:4: stop.iteratons: unknown field (did you mean 'iterations'?)"),
    "far nested field": (RUN + "gpus: {least: 1}", "f.yaml:2: gpus.least: unknown field; known: min, max"),
    "twice": (RUN + "name: a\nname: b", "f.yaml:3: name: given twice; the first is at line 2"),
    "text for number": (RUN + "gpus: two", "f.yaml:2: gpus: must be a whole number, or {min: 1, max: 4}, not 'two'"),
    "list for number": (RUN + "priority: [1]", "f.yaml:2: priority: must be a whole number, not a list"),
    "bool for number": (RUN + "priority: true", "f.yaml:2: priority: must be a whole number, not true"),
    "float for number": (RUN + "gpus: 1.5", "f.yaml:2: gpus: must be a whole number, not 1.5"),
    "number for text": (RUN + "name: 12", "f.yaml:2: name: must be text; put it in quotes, not 12"),
    "mapping for text": (RUN + "pool: {a: b}", "f.yaml:2: pool: must be text, not a mapping"),
    "text for bool": (RUN + "hold: maybe", "f.yaml:2: hold: must be true or false, not 'maybe'"),
    "choice": (RUN + "kind: finetunes", "f.yaml:2: kind: must be one of train, finetune, prompt, infer, not 'finetunes' (did you mean 'finetune'?)"),
    "number as name": (RUN + "name: '12'", "f.yaml:2: name: must be up to 100 letters of A to Z, digits, '.', '_' and '-', a letter or digit first, and not digits alone (those are job numbers), not '12'"),
    "name of an option": (RUN + "name: -x", "f.yaml:2: name: must be up to 100 letters of A to Z, digits, '.', '_' and '-', a letter or digit first, and not digits alone (those are job numbers), not '-x'"),
    "name of a task": (RUN + "name: a[1]", "f.yaml:2: name: must be up to 100 letters of A to Z, digits, '.', '_' and '-', a letter or digit first, and not digits alone (those are job numbers), not 'a[1]'"),
    "no gpus": (RUN + "gpus: 0", "f.yaml:2: gpus: must be at least 1, not 0; on a host without GPUs it counts CPU slots"),
    "min above max": (RUN + "gpus: {min: 4, max: 2}", "f.yaml:2: gpus: min 4 is larger than max 2"),
    "no max": (RUN + "gpus: {min: 4}", "f.yaml:2: gpus: max is missing; write {min: 1, max: 4}, or one number for both"),
    "size": (RUN + "gpu_memory: 8 gigs", "f.yaml:2: gpu_memory: must be a size such as 8GiB, 500MiB or a number of bytes, not '8 gigs'"),
    "duration": (RUN + "timeout: soon", "f.yaml:2: timeout: must be a duration such as 30, 90s, 10m, 1h30m or 2d, not 'soon'"),
    "duration rising": (RUN + "timeout: 30m1h", "f.yaml:2: timeout: must be a duration such as 30, 90s, 10m, 1h30m or 2d, not '30m1h'"),
    "negative": (RUN + "timeout: -5", "f.yaml:2: timeout: must be between 0 and 100 years, not -5"),
    "zero timeout": (RUN + "timeout: 0s", "f.yaml:2: timeout: must be longer than 0 and shorter than 100 years"),
    "long grace": (RUN + "grace: 2d", "f.yaml:2: grace: must be at most 1d, not 2d: a preempted job holds its GPUs so long"),
    "timeout below estimate": (RUN + "timeout: 1h\nestimate: 2h", "f.yaml:2: timeout: 1h is shorter than the estimate, 2h: it would never end"),
    "infinite": (RUN + "estimate: .inf", "f.yaml:2: estimate: must be between 0 and 100 years, not inf"),
    "huge number": (RUN + "priority: " + "9" * 40, f"f.yaml:2: priority: must be between -1000000 and 1000000, not {'9' * 40}"),
    "retries": (RUN + "retries: {limit: 1, backof: 3}", "f.yaml:2: retries.backof: unknown field (did you mean 'backoff'?)"),
    "retries negative": (RUN + "retries: -1", "f.yaml:2: retries.limit: must be between 0 and 1000, not -1"),
    "retries shrinking": (RUN + "retries: {limit: 1, factor: 0.5}", "f.yaml:2: retries.factor: must be between 1 and 1000, not 0.5"),
    "retries bounds": (RUN + "retries:\n  limit: 1\n  max_backoff: 1s", "f.yaml:4: retries.max_backoff: must not be shorter than backoff (10s)"),
    "exit code": (RUN + "retries: {limit: 1, never_on: [0]}", "f.yaml:2: retries.never_on: 0 is no exit code of a failure; use 1 to 255, or minus the number of a signal"),
    "priority": (RUN + "priority: 1_000", "f.yaml:2: priority: must be a whole number, not '1_000'"),
    "label": (RUN + "labels: {team: [a]}", "f.yaml:2: labels.team: must be one value, not a list"),
    "key": (RUN + "idempotency_key: ''", "f.yaml:2: idempotency_key: must be 1 to 200 printable characters"),
}  # fmt: skip

TRAIN = "entrypoint: m:f\n"
SWITCH_FORMS = "plateau, {epochs: 20}, {fraction: 0.25} or {plateau: {watch: accuracy, patience: 3}}"

LOADING = {
    "no use": (TRAIN + "reuse: 0", "f.yaml:2: reuse.repeat: must be between 1 (no sample is used again) and 1000, not 0"),
    "no use in a mapping": (TRAIN + "reuse:\n  repeat: 0", "f.yaml:3: reuse.repeat: must be between 1 (no sample is used again) and 1000, not 0"),
    "reuse yes": (TRAIN + "reuse: yes", "f.yaml:2: reuse: must be a number of uses, or a mapping such as {repeat: 3, switch: plateau}, not 'yes'"),
    "half a use": (TRAIN + "reuse: 1.5", "f.yaml:2: reuse: must be a number of uses, or a mapping such as {repeat: 3, switch: plateau}, not 1.5"),
    "near": (TRAIN + "reuse: {repeats: 3}", "f.yaml:2: reuse.repeats: unknown field (did you mean 'repeat'?)"),
    "of a command": (RUN + "reuse: 3", "f.yaml:2: reuse: is for a recipe or an entrypoint; a script uses stoker.loaders (docs/loaders.md)"),
    "pipeline of a command": (RUN + "pipeline: rate", "f.yaml:2: pipeline: is for a recipe or an entrypoint; a script uses stoker.loaders (docs/loaders.md)"),
    "empty buffer": (TRAIN + "reuse: {shuffle_buffer: 0}", "f.yaml:2: reuse.shuffle_buffer: must be between 1 and 1000000000 samples, not 0"),
    "buffer below a batch": (TRAIN + "reuse:\n  shuffle_buffer:\n    batches: 0.5", "f.yaml:4: reuse.shuffle_buffer.batches: must be at least 1, so that a batch fits into the buffer, not 0.5"),
    "buffer of nothing": (TRAIN + "reuse: {shuffle_buffer: {}}", "f.yaml:2: reuse.shuffle_buffer: empty; write {batches: 3}, or a number of samples"),
    "buffer in bytes": (TRAIN + "reuse: {shuffle_buffer: 1GiB}", "f.yaml:2: reuse.shuffle_buffer: must be a number of samples, or {batches: 3}, not '1GiB'"),
    "no memory": (TRAIN + "reuse: {memory: 0}", "f.yaml:2: reuse.memory: must be between 1 byte and 1 PiB"),
    "augment": (TRAIN + "reuse: {augment: each use}", "f.yaml:2: reuse.augment: must be one of each-use, once, not 'each use' (did you mean 'each-use'?)"),
    "switch": (TRAIN + "reuse: {switch: never}", f"f.yaml:2: reuse.switch: must be {SWITCH_FORMS}, not 'never'"),
    "two switches": (TRAIN + "reuse: {switch: {epochs: 3, fraction: 0.5}}", f"f.yaml:2: reuse.switch: must be one of {SWITCH_FORMS}"),
    "fraction": (TRAIN + "reuse:\n  switch: {fraction: 25}", "f.yaml:3: reuse.switch.fraction: must be between 0 and 1, both excluded, not 25"),
    "least fraction": (TRAIN + "reuse: {switch: {plateau: {fraction: 1}}}", "f.yaml:2: reuse.switch.plateau.fraction: must be between 0 and 1, both excluded, not 1"),
    "epochs": (TRAIN + "reuse: {switch: {epochs: 0}}", "f.yaml:2: reuse.switch.epochs: must be above 0 and at most 1e+09, not 0"),
    "patience": (TRAIN + "reuse: {switch: {plateau: {patience: 0}}}", "f.yaml:2: reuse.switch.plateau.patience: must be between 1 and 1000, not 0"),
    "delta": (TRAIN + "reuse: {switch: {plateau: {min_delta: .nan}}}", "f.yaml:2: reuse.switch.plateau.min_delta: must be 0 or more and below 1, not nan"),
    "peak": (TRAIN + "reuse: {peak: high}", "f.yaml:2: reuse.peak: must be a learning rate, or one of rule, search, not 'high'"),
    "negative peak": (TRAIN + "reuse: {peak: -0.1}", "f.yaml:2: reuse.peak: must be a learning rate above 0 and at most 1e+06, rule or search, not -0.1"),
    "tuner": (TRAIN + "pipeline: rates", "f.yaml:2: pipeline: must be one of rate, fixed, unoptimised, uniform, dqn, rate+dqn, not 'rates' (did you mean 'rate'?)"),
    "retired tuner": (TRAIN + "pipeline: {tune: plumber}", "f.yaml:2: pipeline.tune: plumber is a baseline of the benchmarks and no longer open to jobs; write rate, which is faster"),
    "pipeline on": (TRAIN + "pipeline: true", "f.yaml:2: pipeline: must be a tuner, such as rate, or a mapping such as {tune: rate, workers: {decode: 4}}, not true"),
    "stage": (TRAIN + "pipeline: {workers: {udf: 4}}", "f.yaml:2: pipeline.workers.udf: unknown field; known: decode, augment, batch"),
    "workers": (TRAIN + "pipeline:\n  workers:\n    decode: 0", "f.yaml:4: pipeline.workers.decode: must be between 1 and 1024, not 0"),
    "interval": (TRAIN + "pipeline: {interval: 1ms}", "f.yaml:2: pipeline.interval: must be at least 50ms, so that there is something to measure, not 1ms"),
    "pipeline memory": (TRAIN + "pipeline: {memory: 2.5}", "f.yaml:2: pipeline.memory: must be a size such as 8GiB, 500MiB or a number of bytes, not 2.5"),
}  # fmt: skip

DEMANDS = {
    "past": (RUN + "deadline: 2030-01-01T10:00Z", "f.yaml:2: deadline: '2030-01-01T10:00Z' is in the past; give a later time, or a duration such as 2h from now on"),
    "no time": (RUN + "deadline: tomorrow", "f.yaml:2: deadline: must be a duration such as 2h, or a time such as 18:30 (local, the next one), 2030-01-31T18:00 (local) or 2030-01-31T18:00Z, not 'tomorrow'"),
    "no time of day": (RUN + "deadline: 2031-01-01", "f.yaml:2: deadline: must be a duration such as 2h, or a time such as 18:30 (local, the next one), 2030-01-31T18:00 (local) or 2030-01-31T18:00Z, not '2031-01-01'"),
    "no such day": (RUN + "deadline: 2031-02-30T10:00", "f.yaml:2: deadline: must be a duration such as 2h, or a time such as 18:30 (local, the next one), 2030-01-31T18:00 (local) or 2030-01-31T18:00Z, not '2031-02-30T10:00'"),
    "two": (RUN + "deadline: 2h\nsoft: [{deadline: 2h}]", "f.yaml:3: soft: given beside deadline; a job has one of demand: best-effort, deadline and soft"),
    "demand": (RUN + "demand: strict", "f.yaml:2: demand: must be best-effort, not 'strict'; for a deadline write deadline: or soft: in its place"),
    "soft": (RUN + "soft: 2h", "f.yaml:2: soft: must be a list of steps such as [{deadline: 2h, reward: 80}], not '2h'"),
    "soft empty": (RUN + "soft: []", "f.yaml:2: soft: empty; give at least one step such as {deadline: 2h, reward: 80}"),
    "soft step": (RUN + "soft:\n  - {deadline: 2h}\n  - {reward: 3}", "f.yaml:4: soft[1]: deadline is missing; write {deadline: 2h, reward: 80}"),
    "soft rising": (RUN + "soft: [{deadline: 1h, reward: 1}, {deadline: 2h, reward: 5}]", "f.yaml:2: soft: a later step must not be worth more than an earlier one (5 after 1)"),
    "soft equal": (RUN + "soft: [{deadline: 1h}, {deadline: 60m}]", "f.yaml:2: soft: two steps with the same deadline; the deadlines must rise from step to step"),
    "soft worthless": (RUN + "soft: [{deadline: 1h, reward: 0}]", "f.yaml:2: soft: a reward must be larger than 0 and at most 100, not 0"),
    "soft beyond": (RUN + "soft: [{deadline: 1h, reward: 101}]", "f.yaml:2: soft: a reward must be larger than 0 and at most 100, not 101"),
    "soft huge": (RUN + "soft: [{deadline: 1h, reward: 1e300}]", "f.yaml:2: soft: a reward must be larger than 0 and at most 100, not 1e+300"),
    "soft no number": (RUN + "soft: [{deadline: 1h, reward: .nan}]", "f.yaml:2: soft: a reward must be larger than 0 and at most 100, not nan"),
    "at once": (RUN + "deadline: 0", "f.yaml:2: deadline: '0' leaves no time; give a later time, or a duration such as 2h from now on"),
    "before now": (RUN + "deadline: -5", "f.yaml:2: deadline: must be between 0 and 100 years, not -5"),
    "no such hour": (RUN + "deadline: 24:00", "f.yaml:2: deadline: must be a duration such as 2h, or a time such as 18:30 (local, the next one), 2030-01-31T18:00 (local) or 2030-01-31T18:00Z, not '24:00'"),
    "stop empty": (RUN + "stop: {}", "f.yaml:2: stop: empty; write {iterations: 500} or {metric: accuracy, target: 0.9, max_iterations: 500}"),
    "stop number": (RUN + "stop: 500", "f.yaml:2: stop: must be a mapping such as {iterations: 500}, not 500"),
    "stop none": (RUN + "stop: {iterations: 0}", "f.yaml:2: stop.iterations: must be at least 1, not 0"),
    "stop without target": (RUN + "stop: {metric: accuracy, max_iterations: 5}", "f.yaml:2: stop: a metric needs a target, such as target: 0.9"),
    "stop without end": (RUN + "stop: {metric: accuracy, target: 1}", "f.yaml:2: stop: a metric needs max_iterations, so that the job ends even if the target is never met"),
    "stop without metric": (RUN + "stop: {iterations: 5, target: 1}", "f.yaml:2: stop: target and mode need a metric, such as metric: accuracy"),
    "stop both": (RUN + "stop: {iterations: 5, metric: a}", "f.yaml:2: stop: iterations is for a stop by count; with a metric, write max_iterations"),
    "stop max alone": (RUN + "stop: {max_iterations: 5}", "f.yaml:2: stop: max_iterations needs a metric and its target; write iterations for a stop by count"),
}  # fmt: skip

WORK = {
    "nothing": ("name: a", "f.yaml:1: command: nothing to run; give one of recipe, command and entrypoint"),
    "two": ("name: a\ncommand: x\nrecipe: toy", "f.yaml:2: command: given beside recipe; a job has exactly one of recipe, command and entrypoint"),
    "empty": ("name: a\ncommand: ''", "f.yaml:2: command: empty; give a program and its arguments"),
    "empty list": ("name: a\ncommand: []", "f.yaml:2: command: empty; give a program and its arguments"),
    "recipe": ("recipe: toys", "f.yaml:1: recipe: no recipe 'toys' (did you mean 'toy'?)"),
    "recipe's parameter": ("recipe: toy\nparams:\n  widht: 3", "f.yaml:3: params.widht: recipe toy has no such parameter (did you mean 'width'?)"),
    "recipe's value": ("recipe: toy\narray:\n  params:\n    width: [3, wide]", "f.yaml:4: array.params.width: 'wide' is not a whole number"),
    "entrypoint": ("entrypoint: train.py", "f.yaml:1: entrypoint: must be module:function, such as mypackage.train:build, not 'train.py'"),
    "argument": ("command: [python, {a: 1}]", "f.yaml:1: command[1]: must be one value, not a mapping"),
    "empty argument": ("command:\n  - echo\n  -", "f.yaml:3: command[1]: must be one value; write \"\" for an empty text, not empty"),
    "env": (RUN + "env: {A-B: 1}", "f.yaml:2: env: 'A-B' is not a variable's name; use letters, digits and '_'"),
    "env ours": (RUN + "env: {CUDA_VISIBLE_DEVICES: 0}", "f.yaml:2: env.CUDA_VISIBLE_DEVICES: is set by Stoker when the job starts; remove it"),
    "env ours too": (RUN + "env: {STOKER_THREADS: 2, STOKER_HOME: /x}", "f.yaml:2: env.STOKER_HOME: is set by Stoker when the job starts; remove it"),
    "env list": (RUN + "env: [A=1]", "f.yaml:2: env: must be a mapping of names to values, not a list"),
    "secret": (RUN + "env:\n  HF_TOKEN: hf_abc", "f.yaml:3: env.HF_TOKEN: looks like a secret, and specs are stored: put it into a file and name that in env_file"),
    "secret url": (RUN + "env: {DB: 'postgres://me:pw@host/x'}", "f.yaml:2: env.DB: looks like a secret, and specs are stored: put it into a file and name that in env_file"),
    "secret parameter": (RUN + "params: {wandb_api_key: abc}", "f.yaml:2: params.wandb_api_key: looks like a secret, and specs are stored: put it into a file and name that in env_file"),
    "parameter": (RUN + "params: {lr: .nan}", "f.yaml:2: params.lr: must be a finite number"),
    "parameters": (RUN + "params:\n  lr: 1\n  LR: 2", "f.yaml:4: params.LR: becomes the variable STOKER_PARAM_LR, and so does params.lr; rename one"),
    "big parameter": (RUN + "params: {n: 9223372036854775808}", "f.yaml:2: params.n: must fit into 64 bits; put it in quotes to pass it as text"),
    "script": ("command: python tarin.py", "f.yaml:1: command: no file 'tarin.py' in {cwd} (did you mean 'train.py'?); correct the path, or set workdir"),
    "script of list": ("command:\n - python3.11\n - -u\n - x/y.py", "f.yaml:1: command: no file 'x/y.py' in {cwd}; correct the path, or set workdir"),
    "program": ("command: [./train.sh, now]", "f.yaml:1: command: no file './train.sh' in {cwd} (did you mean 'train.py'?); correct the path, or set workdir"),
    "not executable": ("command: [./train.py]", "f.yaml:1: command: './train.py' is not executable; run 'chmod +x ./train.py', or start it by its interpreter"),
    "directory": ("command: [./data]", "f.yaml:1: command: './data' is a directory, not a program"),
    "workdir": (RUN + "workdir: dta", "f.yaml:2: workdir: '{cwd}/dta' is not a directory (did you mean 'data'?); create it, or correct the path"),
    "workdir of script": ("command: python train.py\nworkdir: data", "f.yaml:1: command: no file 'train.py' in {cwd}/data; correct the path, or set workdir"),
    "env_file": (RUN + "env_file: secrets.env", "f.yaml:2: env_file: '{cwd}/secrets.env' does not exist"),
}  # fmt: skip

SEVERAL = {
    "no file": ("", "f.yaml:1: no job in the file; see docs/job-spec.md for an example"),
    "comment": ("# nothing\n---\n", "f.yaml:1: no job in the file; see docs/job-spec.md for an example"),
    "text": ("train", "f.yaml:1: must be a mapping of fields, such as name: and command:, not 'train'"),
    "list": ("- name: a", "f.yaml:1: a list; put the jobs under 'jobs:'"),
    "jobs": ("jobs: 3", "f.yaml:1: jobs: must be a list of jobs, not 3"),
    "job": ("jobs: [3]", "f.yaml:1: jobs[0]: must be a mapping of fields, not 3"),
    "beside": ("jobs: []\nname: a", "f.yaml:2: name: unknown field; known: jobs, defaults"),
    "defaults alone": ("defaults: {gpus: 1}", "f.yaml:1: defaults: there are no 'jobs:' beside it"),
    "defaults": ("defaults:\n  gpu: 1\njobs: [{command: x}]", "f.yaml:2: defaults.gpu: unknown field (did you mean 'gpus'?)"),
    "field of job": ("jobs:\n - command: x\n   gpu: 1", "f.yaml:3: jobs[0].gpu: unknown field (did you mean 'gpus'?)"),
    "default value": ("defaults:\n  gpus: 0\njobs:\n - command: x", "f.yaml:2: gpus: must be at least 1, not 0; on a host without GPUs it counts CPU slots"),
    "same name": ("name: a\ncommand: x\n---\nname: a\ncommand: x", "f.yaml:4: name: 'a' is also the name of the job at line 1; names must differ"),
    "same key": ("jobs:\n - {name: a, command: x, idempotency_key: k}\n - {name: b, command: x, idempotency_key: k}", "f.yaml:3: idempotency_key: 'k' is also the key of a; the second would never run"),
    "cycle": ("jobs:\n - {name: a, command: x, after: c}\n - {name: b, command: x, after: a}\n - {name: c, command: x, after: [b]}", "f.yaml:3: after: a → c → b → a is a cycle, so none of them could start; remove one 'after'"),
    "itself": ("name: a\ncommand: x\nafter: a", "f.yaml:3: after: a job cannot wait for itself"),
    "named twice": (RUN + "after: [a, b, a]", "f.yaml:2: after: 'a' is named twice"),
    "after": (RUN + "after: [true]", "f.yaml:2: after: must be the name or number of a job, or {job: NAME, mode: any}, not true"),
    "after mode": (RUN + "after: {job: a, mode: all}", "f.yaml:2: after.mode: must be one of ok, any, not 'all'"),
    "after no job": (RUN + "after: {mode: any}", "f.yaml:2: after: job is missing; write {job: NAME, mode: any}"),
    "after recurring": ("jobs:\n - {name: a, command: x, cron: 0 0 * * *}\n - {name: b, command: x, after: a}", "f.yaml:3: after: 'a' is a recurring job, which never ends; wait for one of its runs by number"),
    "array": (RUN + "array: {lr: [1]}", "f.yaml:2: array.lr: unknown field; known: params, max_running"),
    "array none": (RUN + "array: {max_running: 2}", "f.yaml:2: array: params is missing; write params: {lr: [0.1, 0.01]}"),
    "grid": (RUN + "array: {params: {}}", "f.yaml:2: array.params: empty, so the array would have no task; write params: {lr: [0.1, 0.01]}"),
    "grid scalar": (RUN + "array: {params: {lr: 0.1}}", "f.yaml:2: array.params.lr: must be a list of values, not 0.1"),
    "grid empty": (RUN + "array:\n  params:\n    lr: []", "f.yaml:4: array.params.lr: empty, so the array would have no task; give at least one value, or remove it"),
    "grid twice": (RUN + "params: {lr: 1}\narray: {params: {lr: [1]}}", "f.yaml:3: array.params.lr: is given in params as well; keep one of them"),
    "grid large": (RUN + f"array: {{params: {{a: {list(range(101))}, b: {list(range(100))}}}}}", "f.yaml:2: array.params: 10100 combinations; at most 10000 tasks fit into one array"),
    "cap": (RUN + "array: {params: {lr: [1]}, max_running: 0}", "f.yaml:2: array.max_running: must be between 1 and 1000000, not 0"),
    "array script": ("command: [python, '{script}']\narray: {params: {script: [train.py, test.py]}}", "f.yaml:1: command: no file 'test.py' in {cwd}; correct the path, or set workdir"),
    "arrays": ("jobs:\n - {name: a, command: x, array: {params: {i: [" + "1," * 400 + "]}}}\n - {name: b, command: x, after: a, array: {params: {i: [" + "1," * 400 + "]}}}", "f.yaml:3: after: more than 100000 dependencies between single jobs; put a small job between the arrays"),
    "cron": (RUN + "cron: '@daily'", "f.yaml:2: cron: must be five fields 'minute hour day month weekday', such as '30 2 * * mon-fri', not '@daily'"),
    "cron weekday": (RUN + "cron: 0 0 * * 8", "f.yaml:2: cron: weekday '8' is not within 0 to 7 (0 and 7 are Sunday), low to high"),
    "cron never": (RUN + "cron: 0 0 31 2 *", "f.yaml:2: cron: '0 0 31 2 *' never fires: there is no such day"),
    "cron array": (RUN + "cron: 0 0 * * *\narray: {params: {a: [1]}}", "f.yaml:2: cron: an array cannot recur; let a recurring job submit it"),
    "cron key": (RUN + "cron: 0 0 * * *\nidempotency_key: a", "f.yaml:3: idempotency_key: a recurring job is submitted again and again, and the key would refuse all except the first; remove it"),
    "cron time of day": (RUN + "cron: 0 0 * * *\ndeadline: 18:30", "f.yaml:3: deadline: a recurring job needs a duration, such as 2h from each start on"),
    "cron deadline": (RUN + "cron: 0 0 * * *\ndeadline: 2031-01-01T10:00Z", "f.yaml:3: deadline: a recurring job needs a duration, such as 2h from each start on"),
}  # fmt: skip

YAML = {
    "tag": ("name: !!python/object:os.system x", "f.yaml:1: tags such as 'tag:yaml.org,2002:python/object:os.system' are not supported; remove it, or quote the value to make it text"),
    "merge": (RUN + "labels: &a {b: c}\nenv:\n  <<: *a", "f.yaml:4: <<: merge keys are not supported; put common fields under 'defaults:' beside 'jobs:'"),
    "alias": ("name: *a", "f.yaml:1: alias *a names no value that is complete before it"),
    "alias of itself": ("params: &a [*a]", "f.yaml:1: alias *a names no value that is complete before it"),
    "key": ("[a]: 1", "f.yaml:1: a field's name must be plain text"),
    "deep": ("params:\n " + "[" * 100_000, "f.yaml:2: nested more than 32 deep"),
    "NUL": ("name: a\nuser: \0", "f.yaml:2: not valid YAML: a control character; save the file as plain UTF-8 text"),
    "control": ("name: a\nuser: \x01", "f.yaml:2: not valid YAML: a control character; save the file as plain UTF-8 text"),
    "surrogate": ("name: \ud800", "f.yaml:1: not valid YAML: a control character; save the file as plain UTF-8 text"),
    "escaped NUL": (RUN + 'params: {a: "\\0"}', "f.yaml:2: a NUL or a lone surrogate in a text; remove the escape"),
    "large": ("#" * (MAX_BYTES + 1), "f.yaml: larger than 1 MiB; a job file is small, is this the right file?"),
    "field with newline": ('"na\\nme": x\ncommand: y', "f.yaml:1: na me: unknown field (did you mean 'name'?)"),
}  # fmt: skip


@pytest.mark.parametrize(
    "case", [pytest.param(case, id=name) for table in (FIELDS, LOADING, DEMANDS, WORK, SEVERAL, YAML) for name, case in table.items()]
)
def test_one_line_names_line_field_and_remedy(case: tuple[str, str], context: Context) -> None:
    text, expected = case
    assert message(text, context) == expected.replace("{cwd}", str(context.cwd))


@pytest.mark.parametrize(
    ("text", "also"),
    [
        ("{}", ["nothing to run; give one of recipe, command and entrypoint"]),
        ("command: []", ["empty; give a program and its arguments"]),
        ("command: é", []),
    ],
)
def test_where_no_name_can_be_made_the_rest_is_said_too(text: str, also: list[str], context: Context) -> None:
    with pytest.raises(UsageError) as caught:
        load_text(text, "<stdin>", context)
    *others, name = caught.value.lines
    assert name.startswith("<stdin>:1: name: missing; give the job a name: up to 100 letters of A to Z")
    assert others == [f"<stdin>:1: command: {problem}" for problem in also]


@pytest.mark.parametrize("text", ["a: [1", "a: b: c", "\t- a", "a: 'b", "%YAML 9.9\n---\na: 1", 'a: "\\ud800"'])
def test_malformed_yaml_is_one_line_with_its_number(text: str, context: Context) -> None:
    said = message(text, context)
    assert said.startswith("f.yaml:")
    assert "not valid YAML: " in said or "lone surrogate" in said
    assert "\n" not in said


@pytest.mark.parametrize("field", ["deadline: 2026-03-29 02:30", "soft: [{deadline: 2026-03-29 02:30, reward: 80}]"])
def test_a_local_time_that_is_none_is_refused_in_deadlines_and_steps(field: str, context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as zone:
        zone.setenv("TZ", "Europe/Berlin")
        time.tzset()
        said = message(RUN + field, context)
    time.tzset()
    assert "f.yaml:2: " in said and "2026-03-29 02:30 does not exist: clocks are put forward then" in said


def test_aliases_count_as_what_they_stand_for(context: Context) -> None:
    bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(f"a{i + 1}: &a{i + 1} [{', '.join([f'*a{i}'] * 10)}]\n" for i in range(9))
    assert "more than 200000 values" in message("params:\n" + "".join(f"  {line}\n" for line in bomb.splitlines()), context)


def test_files_that_cannot_be_read(tmp_path: Path, context: Context) -> None:
    (tmp_path / "latin.yaml").write_bytes(b"name: a\nuser: \xe9t\xe9\n")
    (tmp_path / "large.yaml").write_bytes(b"#" * (MAX_BYTES + 1))
    with pytest.raises(NotFound) as missing:
        load_file(tmp_path / "latn.yaml", context)
    assert str(missing.value) == f"{tmp_path}/latn.yaml: no such file (did you mean 'latin.yaml'?)"
    for path, problem in ((tmp_path / "latin.yaml", ":2: not UTF-8 text; save the file as UTF-8"),
                          (tmp_path / "large.yaml", ": larger than 1 MiB; a job file is small, is this the right file?"),
                          (tmp_path, ": cannot be read: Is a directory"),
                          ("/dev/zero", ": larger than 1 MiB; a job file is small, is this the right file?")):  # fmt: skip
        with pytest.raises(UsageError) as caught:
            load_file(path, context)
        assert str(caught.value) == f"{path}{problem}"


def test_unreadable_file(tmp_path: Path, context: Context) -> None:
    path = tmp_path / "locked.yaml"
    path.write_text(RUN)
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("this user reads everything")
    with pytest.raises(UsageError, match="cannot be read: Permission denied"):
        load_file(path, context)


OPTION_ERRORS = {
    "gpus": ({"gpus": "0"}, "--gpus: must be at least 1, not 0; on a host without GPUs it counts CPU slots"),
    "range": ({"gpus": "4-2"}, "--gpus: min 4 is larger than max 2"),
    "word": ({"gpus": "two"}, "--gpus: must be a whole number, or {min: 1, max: 4}, not 'two'"),
    "deadline": ({"deadline": "yesterday"}, "--deadline: must be a duration such as 2h, or a time such as 18:30 (local, the next one), 2030-01-31T18:00 (local) or 2030-01-31T18:00Z, not 'yesterday'"),
    "soft": ({"soft": ("2h",)}, "--soft: must be DEADLINE=REWARD, such as 2h=80, not '2h'"),
    "iterations": ({"iterations": "0"}, "--iterations: must be at least 1, not 0"),
    "target": ({"target": "0.9"}, "--target: target and mode need a metric, such as metric: accuracy"),
    "mode": ({"mode": "up"}, "--mode: must be one of max, min, not 'up'"),
    "secret": ({"env": ("HF_TOKEN=x",)}, "--env HF_TOKEN: looks like a secret, and specs are stored: put it into a file and name that in env_file"),
    "env": ({"env": ("A",)}, "--env: must be NAME=VALUE, not 'A'"),
    "param": ({"param": ("lr=[1",)}, "--param lr: '[1' is not a value; put a text with commas or brackets in quotes"),
    "array": ({"array": ("lr=",)}, "--array lr: empty, so the array would have no task; give at least one value, or remove it"),
    "array twice": ({"array": ("lr=1", "lr=2")}, "--array: 'lr' is given 2 times; give it once"),
    "param twice": ({"param": ("lr=1", "lr=1")}, "--param: 'lr' is given 2 times; give it once"),
    "after": ({"after": ("a:all",)}, "--after: must be one of ok, any, not 'all'"),
    "two": ({"recipe": "toy"}, "command: given beside recipe; a job has exactly one of recipe, command and entrypoint"),
    "both demands": ({"best_effort": True, "deadline": "2h"}, "--deadline: given beside demand; a job has one of demand: best-effort, deadline and soft"),
    "retries": ({"retries": "some"}, "--retries: must be a whole number, not 'some'"),
    "env_file": ({"env_file": "no"}, "--env-file: '{cwd}/no' does not exist"),
}  # fmt: skip


@pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in OPTION_ERRORS.items()])
def test_an_error_of_an_option_names_the_option(case: tuple[dict[str, object], str], context: Context) -> None:
    values, expected = case
    with pytest.raises(UsageError) as caught:
        from_options(values, ["echo", "hi"], context)
    assert str(caught.value) == expected.replace("{cwd}", str(context.cwd))


def test_nothing_to_run_by_options(context: Context) -> None:
    with pytest.raises(UsageError) as caught:
        from_options({"name": "a"}, [], context)
    assert str(caught.value) == "command: nothing to run; give one of recipe, command and entrypoint"


def test_an_option_over_a_file_is_blamed_in_the_files_place(context: Context) -> None:
    with pytest.raises(UsageError) as caught:
        load_text(RUN + "gpus: 2", "f.yaml", context, overrides({"gpus": "x"}))
    assert str(caught.value).startswith("--gpus: must be a whole number")


MUCH = """\
defaults:
  grace: soon
  gpu: 1
jobs:
- name: a
  comand: x
  gpus: {min: two, mx: 4}
  timeout: 1h
  estimate: 2h
  labels: {a: [1], b: 1, c: {}}
- 3
- name: b
  name: c
  command: python train.py
  priority: high
  soft: [{deadline: 1h, reward: many}, {reward: 5}]
- name: d
  recipe: toy
  params: {lrr: 1, samples: 0, width: 3}
- name: d
  command: python trian.py
  workdir: nowhere
  stop: {metric: accuracy, target: 1, max_iteration: 5}
"""


def test_all_that_is_wrong_with_a_file_is_said_at_once(context: Context) -> None:
    """Only the first was, so that a file with ten mistakes was submitted eleven times. What follows from another mistake is not said."""
    said = [line.removeprefix("f.yaml:") for line in messages(MUCH, context)]
    assert [" ".join(line.split(": ")[:2]) for line in said] == [
        "2 grace", "3 defaults.gpu", "6 jobs[0].comand", "7 gpus.mx", "7 gpus.min", "8 timeout", "10 labels.a", "10 labels.c", "11 jobs[1]",
        "13 name", "15 priority", "16 soft[0].reward", "16 soft[1]", "19 params.lrr", "19 params.samples", "22 workdir",
        "23 stop.max_iteration",
    ]  # fmt: skip


def test_what_is_wrong_with_many_jobs_is_said_of_the_first(context: Context) -> None:
    jobs = "\n".join(f"- {{name: job{number}, command: x, gpus: 0}}" for number in range(50))
    said = messages(f"jobs:\n{jobs}", context)
    assert len(said) == 21 and said[0].startswith("f.yaml:2: gpus: ") and said[-1] == "and 30 more"
