"""Blocks that follow from their type: read with the line of each error, by --set too, written back, checked, stored; and backbones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from spec_as_yaml import dump, written_block
from stoker.engine.cli.command import App
from stoker.engine.errors import UsageError
from stoker.engine.jobs.submission import job_row
from stoker.engine.spec.build import Context
from stoker.engine.spec.check import require
from stoker.engine.spec.click_options import overrides
from stoker.engine.spec.model import Duration, JobSpec, Memory, Share, Size
from stoker.engine.spec.reading import blocks, tree
from stoker.engine.spec.reading.load import load_text

HERE = Context(now=1_900_000_000.0, cwd=Path("/work"), files=False)


def load(text: str, *given: str, **options: Any) -> JobSpec:
    over = overrides({"set": given, **options})
    (spec,) = load_text(f"command: echo\n{text}", "f.yaml", HERE, over)
    return spec


@pytest.mark.parametrize(
    ("text", "given", "share"),
    [
        ("", (), None),
        ("share:", (), None),
        ("share: {}", (), Share()),
        ("share: {gpu: packed, memory: 2GiB}", (), Share(gpu="packed", memory=2 << 30)),
        ("", ("share.gpu=packed", "share.memory=500MB"), Share(gpu="packed", memory=500_000_000)),
        ("share: {gpu: packed, memory: 1}", ("share.memory=2",), Share(gpu="packed", memory=2)),
        ("share: {gpu: packed, memory: 1073741824}\ngpu_memory: 1GiB", (), Share(gpu="packed", memory=1 << 30)),
    ],
)
def test_a_block_is_read_written_and_stored(text: str, given: tuple[str, ...], share: Share | None) -> None:
    spec = load(text, *given)
    assert spec.share == share
    assert load_text(dump([spec]), "g.yaml", HERE) == [spec]
    assert msgspec.json.decode(msgspec.json.encode(spec), type=JobSpec) == spec
    assert job_row(spec, 0.0)["share"] == (share.gpu if share else None)


def test_replay_stands_in_place_of_a_size() -> None:
    over = overrides({"set": ("share.gpu=switched", "share.memory=replay")})
    (spec,) = load_text("recipe: toy\nstop: {iterations: 1}\nshare: {memory: 1}", "f.yaml", HERE, over)
    assert spec.share == Share(gpu="switched", memory="replay") and spec.share.bytes is None
    assert load_text(dump([spec]), "g.yaml", HERE) == [spec]


def test_a_jobs_block_is_laid_over_the_defaults() -> None:
    text = "defaults: {share: {gpu: packed, memory: 1}}\njobs: [{command: a, name: a, share: {memory: 2}}, {command: b, name: b}]"
    assert [spec.share for spec in load_text(text, "f.yaml", HERE)] == [Share(gpu="packed", memory=2), Share(gpu="packed", memory=1)]


@pytest.mark.parametrize(
    ("text", "given", "problems"),
    [
        ("share: packed", (), ["f.yaml:2: share: must be a mapping of gpu, memory, input, not 'packed'"]),
        (
            "share:\n  gpu: paked\n  memory: 2XB\n  priority: 3\n  memry: 3",
            (),
            [
                "f.yaml:3: share.gpu: must be one of exclusive, packed, switched, not 'paked' (did you mean 'packed'?)",
                "f.yaml:4: share.memory: must be a size such as 8GiB, 500MiB or a number of bytes, or replay, not '2XB'",
                "f.yaml:5: share.priority: is no longer a field: the job's own priority counts; write 'priority' beside 'share'",
                "f.yaml:6: share.memry: unknown field (did you mean 'memory'?)",
            ],
        ),
        ("gpus: 2\nshare:\n  gpu: switched", (),
         ["f.yaml:4: share.gpu: switched takes one GPU, as a gang would wait for the turns of several at once; write gpus: 1"]),
        ("share:\n  gpu: packed\n  memory: 0", (), ["f.yaml:4: share.memory: must be a whole number >= 1, not 0"]),
        ("share: {memory: 2GiB}", (),
         ["f.yaml:2: share.memory: is for a job that shares its GPUs; write gpu: packed beside it, or remove it"]),
        (
            "gpu_memory: 4GiB\nshare:\n  gpu: packed\n  memory: 2GiB",
            (),
            ["f.yaml:5: share.memory: is less than gpu_memory, 4294967296 bytes, which the job needs; raise one or lower the other"],
        ),
        ("", ("share.gpu=joined",), ["--set share.gpu: must be one of exclusive, packed, switched, not 'joined'"]),
        ("", ("share.priority=1",),
         ["--set share.priority: is no longer a field: the job's own priority counts; write 'priority' beside 'share'"]),
        ("", ("share.memory=2XB",), ["--set share.memory: must be a size such as 8GiB, 500MiB or a number of bytes, or replay, not '2XB'"]),
        ("", ("share.nix=1",), ["--set share.nix: unknown field; known: gpu, memory, input"]),
        ("", ("share.gpu.x=1",), ["--set share.gpu.x: must be text, not a mapping"]),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_block_is_a_line_that_names_the_field(text: str, given: tuple[str, ...], problems: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        load(text, *given)
    assert [str(each) for each in getattr(caught.value, "errors", [caught.value])] == problems


@pytest.mark.parametrize("given", ["stop.iterations=3", "share=packed", "share.=1", "gpus=2"])
def test_set_is_for_blocks_alone(given: str) -> None:
    with pytest.raises(UsageError, match=r"^--set [\w.]+: must be share\.FIELD=VALUE; the blocks are share, "):
        load("", given)


def test_share_is_an_option_of_submit() -> None:
    (spec,) = load_text("command: a", "f.yaml", HERE, overrides({"share": "packed", "set": ("share.memory=2GiB",)}))
    assert spec.share == Share(gpu="packed", memory=2 << 30)
    assert job_row(spec, 0.0)["gpu_memory"] == 2 << 30, "what it takes of a GPU counts, where it is more than it needs"
    with pytest.raises(UsageError, match=r"^--share: must be one of exclusive, packed, switched, not 'pakced'"):
        load_text("command: a", "f.yaml", HERE, overrides({"share": "pakced"}))


def test_set_is_an_option_of_submit() -> None:
    from stoker.engine.cli.jobs.submit import submit

    answer = CliRunner().invoke(submit, ["--set", "share.gpu", "--", "echo"], obj=App())
    assert isinstance(answer.exception, UsageError) and str(answer.exception) == "--set: must be BLOCK.FIELD=VALUE, not 'share.gpu'"


def test_a_posted_block_is_checked_as_well() -> None:
    with pytest.raises(UsageError, match=r"^a: share\.gpu: switched takes one GPU"):
        require(JobSpec(name="a", command=("x",), gpus_min=2, gpus_max=2, share=Share(gpu="switched")))


class Inner(msgspec.Struct, frozen=True, kw_only=True):
    limit: Size
    wait: Duration = 30.0


class Outer(msgspec.Struct, frozen=True, kw_only=True):
    inner: Inner | None = None
    on: bool = False
    parts: dict[str, tuple[int, ...]] = {}
    rate: float = 1.0


def read(text: str) -> Outer:
    (node,) = tree.parse(text, "f.yaml")
    outer = blocks.struct(Outer, node, "outer")
    assert isinstance(outer, Outer)
    return outer


def test_blocks_may_be_nested_and_hold_every_sort_of_value() -> None:
    outer = read("inner: {limit: 1KiB, wait: 1m}\non: yes\nparts: {a: [1, 2]}\nrate: 2")
    assert outer == Outer(inner=Inner(limit=1024, wait=60.0), on=True, parts={"a": (1, 2)}, rate=2.0)
    assert written_block(outer) == {"inner": {"limit": "1KiB", "wait": "1m"}, "on": True, "parts": {"a": [1, 2]}, "rate": 2.0}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("inner: {wait: 3}", "f.yaml:1: outer.inner: limit is missing"),
        ("on: no\ninner:\n  limit: 1\n  wait: soon", "f.yaml:4: outer.inner.wait: must be"),
        ("rate: [1]", "f.yaml:1: outer.rate: must be a number, not a list"),
        ("parts: 3", "f.yaml:1: outer.parts: must be a mapping, not 3"),
    ],
)
def test_nested_problems_are_found_at_their_lines(text: str, problem: str) -> None:
    with pytest.raises(UsageError) as caught:
        read(text)
    assert str(caught.value).startswith(problem)


# ---- backbones ----


@pytest.mark.parametrize(
    ("text", "model", "backbone"),
    [
        ("recipe: r\nbackbone: bert", "r/bert", "bert"),
        ("recipe: r\nparams: {model: bert}", "r/bert", "bert"),
        ("recipe: r\nparams: {backbone: bert}\nbackbone: bert", "r/bert", "bert"),
        ("recipe: r\nparams: {model: {a: 1}}", "r/{'a': 1}", None),
        ("entrypoint: m:f\nparams: {model: x}", "m:f", None),
        ("command: x\nparams: {backbone: y}\nbackbone: z", "command/x@", "z"),
    ],
)
def test_a_backbone_is_a_field_or_a_recipes_parameter(text: str, model: str, backbone: str | None) -> None:
    (spec,) = load_text(text, "f.yaml", HERE)
    row = job_row(spec, 0.0)
    assert row["model"].startswith(model) and row["backbone"] == backbone
    assert load_text(dump([spec]), "g.yaml", HERE) == [spec]


@pytest.mark.parametrize("name", ["model", "backbone"])
def test_two_backbones_are_refused(name: str) -> None:
    with pytest.raises(UsageError) as caught:
        load_text(f"recipe: r\nparams: {{{name}: bert}}\nbackbone: gpt2", "f.yaml", HERE)
    assert str(caught.value) == f"f.yaml:3: backbone: 'gpt2' is another than params.{name}, 'bert'; keep one of them"


@pytest.mark.parametrize(
    ("stored", "model", "signature"),
    [  # as version 072fee3 stored them
        ('{"name":"a","recipe":"text-classifier","params":{"dataset":"trec","lr":0.1},"workdir":"/d"}',
         "text-classifier", 5944682570460866970),
        ('{"name":"b","recipe":"r","params":{"model":"bert","layers":2},"gpus_min":2,"gpus_max":2,"workdir":"/d"}', "r/bert",
         3017820383192408923),
        ('{"name":"c","recipe":"r","params":{"backbone":"gpt2"},"workdir":"/d","pipeline":{"tune":"rate"}}', "r/gpt2", 7086873834178268170),
        ('{"name":"d","entrypoint":"m:f","params":{"model":"x"},"workdir":"/d"}', "m:f", 6321191585110098974),
        ('{"name":"e","command":["python","t.py"],"params":{"backbone":"x"},"workdir":"/d"}', "command/e@29a6f10f", None),
    ],
)  # fmt: skip
def test_stored_specs_keep_their_model_and_signature(stored: str, model: str, signature: int | None) -> None:
    spec = msgspec.json.decode(stored, type=JobSpec)
    assert (spec.model, spec.signature) == (model, signature)
    assert msgspec.structs.replace(spec, share=Share(gpu="packed")).signature == signature  # speeds are those of a job alone


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("memory: {cap: 0}", "f.yaml:3: memory.cap: must be a whole number >= 1, not 0"),
        ("memory: {cap: nan}", "f.yaml:3: memory.cap: must be a size such as 8GiB, 500MiB or a number of bytes, not 'nan'"),
        ("memory: {accumulate: 0}", "f.yaml:3: memory.accumulate: must be a whole number >= 1, not 0"),
        ("memory: {accumulate: some}", "f.yaml:3: memory.accumulate: must be a whole number or auto, not 'some'"),
        ("memory: {accumulate: 2.5}", "f.yaml:3: memory.accumulate: must be a whole number or auto, not 2.5"),
        ("memory: {swap: on}", "f.yaml:3: memory.swap: must be one of auto, off, force, not 'on'"),
        ("memory: {accumulate: auto}", "f.yaml:3: memory.accumulate: auto needs a cap, to find the fewest batches that hide the loading "
                                       "of parts; add one, or write a number"),
        ("memory: {cap: 1GiB, swap: off}", "f.yaml:3: memory.cap: is a limit for swapping; remove it, or swap: off"),
        ("memory: {swap: force}", "f.yaml:3: memory.swap: force needs a cap, such as cap: 600MiB"),
        ("memory: {cap: 2GiB}\ngpu_memory: 1GiB", "f.yaml:3: memory.cap: is more than gpu_memory, 1073741824 bytes; lower it, or remove "
                                                  "gpu_memory: the cap then counts as that"),
        ("memory: {cap: 2GiB}\ngpus: {min: 1, max: 2}", "f.yaml:3: memory.cap: a model is swapped on one GPU; write gpus: 1"),
        ("memory: {cap: 2GiB}\nreuse: 3", "f.yaml:3: memory: does not work together with reuse; remove one of them"),
        ("memory: {cap: 2GiB}\nshare: {gpu: packed, memory: 1GiB}", "f.yaml:3: memory.cap: is more than share.memory, 1073741824 bytes; "
                                                                    "lower it, or raise share.memory"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_memory_is_a_line(text: str, problem: str) -> None:
    with pytest.raises(UsageError) as caught:
        load_text(f"name: a\nrecipe: toy\n{text}", "f.yaml", HERE)
    assert str(caught.value) == problem


def test_a_cap_is_what_a_job_counts_for_and_a_command_has_none() -> None:
    (spec,) = load_text("recipe: toy\nmemory: {cap: 2GiB, accumulate: 4}", "f.yaml", HERE)
    assert spec.memory == Memory(cap=2 << 30, accumulate=4)
    assert job_row(spec, 0.0)["gpu_memory"] == 2 << 30
    assert msgspec.structs.replace(spec, memory=None).signature != spec.signature
    with pytest.raises(UsageError, match="memory: is for a job with a recipe or an entrypoint"):
        load_text("command: a\nmemory: {accumulate: 2}", "f.yaml", HERE)
