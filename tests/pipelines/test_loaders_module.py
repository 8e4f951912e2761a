"""`stoker.loaders`: the names that scripts use, cheap to import, and the example scripts that use them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import stoker.loaders
from waiting import patient

ROOT = Path(__file__).resolve().parents[2]


def run(*command: str, cwd: Path | None = None) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("STOKER_")} | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        check=False,
        timeout=patient(240),
        cwd=cwd,
        env=environment | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_every_name_is_there_and_nothing_else() -> None:
    assert sorted(stoker.loaders.__all__) == stoker.loaders.__all__
    for name in stoker.loaders.__all__:
        assert getattr(stoker.loaders, name).__name__ == name
        assert name in dir(stoker.loaders)
    assert stoker.loaders._HOME.keys() == set(stoker.loaders.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'autotune'"):
        _ = stoker.loaders.autotune


def test_type_checkers_see_the_same_names() -> None:
    guarded = re.search(r"^if TYPE_CHECKING:\n((?:    .*\n)+)", (ROOT / "loaders.py").read_text(), re.MULTILINE)
    assert guarded is not None
    lines = re.findall(r"from \.runners\.loaders\.([\w.]+) import (.+)", guarded[1])
    assert {name: module for module, names in lines for name in names.split(", ")} == stoker.loaders._HOME


def test_importing_it_imports_nothing_heavy() -> None:
    said = run("-c", "import sys, stoker.loaders; print([name for name in ('torch', 'numpy', 'duckdb', 'psutil') if name in sys.modules])")
    assert said == "[]\n"


LEAVES = """
import torch
from stoker.loaders import Batch, Map, Pipeline, Source, autotuned

def work(index):
    return torch.stack([torch.zeros(1000) + one for one in range(50)])

batches = iter(autotuned(Pipeline([Source(range(1_000_000)), Map(work, workers=4), Batch(8)])))
print(*(len(next(batches)) for _ in range(5)))
"""


@pytest.mark.slow
def test_a_script_may_end_in_the_middle_of_a_pass() -> None:
    """Threads that are in torch's code when the interpreter goes down abort the process."""
    assert run("-c", LEAVES) == "8 8 8 8 8\n"


@pytest.mark.slow
@pytest.mark.nightly  # by day another script: above; what the tuner says: test_autotuned.py
def test_the_autotuned_script_trains_and_says_what_the_tuner_found(tmp_path: Path) -> None:
    said = run(str(ROOT / "examples" / "autotuned_script.py"), "--samples=600", "--epochs=2", cwd=tmp_path)
    assert re.search(r"^epoch 2: loss \d+\.\d+, [\d,]+ samples/s$", said, re.MULTILINE), said
    assert re.search(r"^the tuner: .*read \d+", said, re.MULTILINE), said


@pytest.mark.slow
@pytest.mark.nightly  # by day the same wrapper, in the process of the tests: test_reuse_wrapper.py
def test_the_reuse_script_trains_in_two_stages(tmp_path: Path) -> None:
    said = run(str(ROOT / "examples" / "reuse_script.py"), "--samples=256", "--passes=4", cwd=tmp_path)
    assert re.search(r"^step \d+ of 32, \d+ samples decoded: from here on without reuse, as ", said, re.MULTILINE), said
    saved = re.search(r"^32 steps of 32 samples, (\d+) decoded, (\d+) saved; loss \d+\.\d+$", said, re.MULTILINE)
    assert saved, said
    assert int(saved[1]) + int(saved[2]) == 1024
    assert int(saved[2]) > 256
