"""The reference names every field and option, and its examples and those of examples/ are accepted."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from stoker.engine.spec.build import Context
from stoker.engine.spec.click_options import OPTIONS
from stoker.engine.spec.reading import blocks, job_fields, loading
from stoker.engine.spec.reading.job_fields import NAMES
from stoker.engine.spec.reading.load import load_file, load_text
from stoker.runners.recipes import RECIPES

ROOT = Path(__file__).parents[2]
REFERENCE = (ROOT / "docs" / "job-spec.md").read_text()
BLOCKS = re.findall(r"^```yaml\n(.*?)^```$", REFERENCE, re.DOTALL | re.MULTILINE)
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))


#: the fields within fields, but those of blocks
NESTED = {
    "gpus": ("min", "max"), "soft": ("deadline", "reward"), "stop": job_fields._STOP, "retries": job_fields._RETRIES,
    "after": ("job", "mode"),
    "array": ("params", "max_running"), "reuse": loading.REUSE, "reuse.shuffle_buffer": loading.BUFFER, "reuse.switch": loading.SWITCH,
    "reuse.switch.plateau": loading.PLATEAU, "pipeline": loading.PIPELINE, "pipeline.workers": loading.WORKERS,
}  # fmt: skip


def of_struct(path: str, kind: type[msgspec.Struct]) -> Iterator[str]:
    for field in msgspec.structs.fields(kind):
        yield f"{path}.{field.name}"
        for arm in filter(blocks._is_struct, blocks._kinds(field.type)):
            yield from of_struct(f"{path}.{field.name}", arm)


def context() -> Context:
    return Context(now=time.time(), cwd=ROOT, recipes=RECIPES)


def test_every_field_is_documented_and_no_other() -> None:
    documented = re.findall(r"^\| `([\w.]+)` \|", REFERENCE, re.MULTILINE)
    within = [f"{field}.{part}" for field, parts in NESTED.items() for part in parts]
    of_blocks = [path for name, kind in blocks.BLOCKS.items() for path in of_struct(name, kind)]
    assert sorted(documented) == sorted([*NAMES, *within, *of_blocks])


def test_every_option_is_documented() -> None:
    assert {option.name for option in OPTIONS} <= set(re.findall(r"`(--[a-z-]+)", REFERENCE))


@pytest.mark.parametrize("text", BLOCKS)
def test_examples_of_the_reference_are_accepted(text: str) -> None:
    assert load_text(text, "block.yaml", context())


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_examples_are_accepted(path: Path) -> None:
    assert load_file(path, context())


def test_the_examples_show_what_they_claim() -> None:
    found = {path.stem: load_file(path, context()) for path in EXAMPLES}
    assert {"recipe", "command", "array", "deadline", "chain", "nightly", "reuse", "pipeline"} <= found.keys()
    assert found["reuse"][0].reuse is not None and found["reuse"][0].reuse.switch.on == "fraction"
    assert found["pipeline"][0].pipeline is not None and found["pipeline"][0].pipeline.tune == "rate"
    assert [spec.demand.kind for spec in found["deadline"]] == ["strict", "soft"]
    assert len(found["array"]) == 6
    assert [dependency.job for dependency in found["chain"][2].after] == ["clean", "split"]
    assert found["nightly"][0].cron == "30 2 * * mon,tue,wed,thu,fri"
