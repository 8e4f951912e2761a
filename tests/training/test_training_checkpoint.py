"""Checkpoints: whatever is killed or damaged, and whenever, what was made durable is found again."""

import random
import runpy
import signal
import time

import numpy as np
import preloaded
import pytest
import torch
from stoker.runners.train import rng
from stoker.runners.train.checkpoint import CheckpointError, Checkpoints

pytestmark = [pytest.mark.xdist_group("training"), pytest.mark.usefixtures("warm_server")]


def state_of(step):
    return {"step": step, "weights": torch.full((1000,), float(step))}


@pytest.fixture
def checkpoints(tmp_path):
    return Checkpoints(tmp_path / "checkpoints")


@pytest.fixture
def child(tmp_path):
    """Runs code in a process of its own, with the given names defined, and answers the process."""
    started = []

    def start(code, **names):
        path = tmp_path / f"child-{len(started)}.py"
        path.write_text("import torch\nfrom stoker.runners.train.checkpoint import Checkpoints\n" + code)
        process = preloaded.processes.Process(target=runpy.run_path, args=(str(path), names))
        process.start()
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.join()


def test_the_newest_is_loaded_and_the_last_two_are_kept(checkpoints):
    assert checkpoints.load() is None
    for step in (3, 7, 10):
        checkpoints.save(step, state_of(step))
    assert checkpoints.steps() == [7, 10]
    assert torch.equal(checkpoints.load()["weights"], torch.full((1000,), 10.0))


def test_keeping_only_one_is_refused(tmp_path):
    with pytest.raises(ValueError, match="keep at least 2"):
        Checkpoints(tmp_path, keep=1)


def _truncate(folder):
    content = (folder / "state.pt").read_bytes()
    (folder / "state.pt").write_bytes(content[: len(content) // 2])


def _flip(folder):
    content = bytearray((folder / "state.pt").read_bytes())
    content[-500] ^= 0xFF
    (folder / "state.pt").write_bytes(content)


DAMAGE = {
    "truncated": _truncate,
    "a flipped byte": _flip,
    "no state": lambda folder: (folder / "state.pt").unlink(),
    "no manifest": lambda folder: (folder / "manifest.json").unlink(),
    "an empty manifest": lambda folder: (folder / "manifest.json").write_text(""),
    "a manifest of something else": lambda folder: (folder / "manifest.json").write_text('{"step": 2}'),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_one_is_passed_over_and_told(checkpoints, damage, caplog):
    for step in (1, 2):
        checkpoints.save(step, state_of(step))
    DAMAGE[damage](checkpoints.path / "step-0000000002")
    assert checkpoints.load()["step"] == 1
    assert "checkpoint of step 2 is damaged" in caplog.text
    checkpoints.save(2, state_of(2))  # the step is reached again, and its damaged checkpoint replaced
    assert checkpoints.load()["step"] == 2
    assert checkpoints.steps() == [1, 2]


def test_when_all_are_damaged_it_starts_anew(checkpoints):
    checkpoints.save(1, state_of(1))
    _flip(checkpoints.path / "step-0000000001")
    assert checkpoints.load() is None


def test_a_pickle_that_would_run_code_is_not_loaded(checkpoints, tmp_path):
    """Its checksum is right: only weights_only stands between it and the process."""
    import hashlib
    import json
    import os

    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "owned"),)

    checkpoints.save(1, state_of(1))
    folder = checkpoints.save(2, state_of(2))
    torch.save({"step": 2, "weights": Evil()}, folder / "state.pt")
    content = (folder / "state.pt").read_bytes()
    entry = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}
    (folder / "manifest.json").write_text(json.dumps({"step": 2, "files": {"state.pt": entry}}))
    assert checkpoints.load()["step"] == 1
    assert not (tmp_path / "owned").exists()


def test_what_could_not_be_loaded_again_is_not_saved(checkpoints):
    checkpoints.save(1, state_of(1))
    with pytest.raises(CheckpointError, match=r"its state holds .*Random; keep to tensors"):
        checkpoints.save(2, {"generator": random.Random(1)})
    assert [path.name for path in checkpoints.path.iterdir()] == ["step-0000000001"]


#: Dies by kill -9 at the N-th of the calls by which a checkpoint is written.
KILLED = """
import os, signal
from stoker.runners.train import checkpoint
calls = 0
def dying(function):
    def call(*arguments, **options):
        global calls
        calls += 1
        if calls == AT:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments, **options)
    return call
for owner, names in ((os, "fsync rename"), (torch, "save load"), (checkpoint.shutil, "rmtree"), (checkpoint.json, "dump")):
    for name in names.split():
        setattr(owner, name, dying(getattr(owner, name)))
Checkpoints(DIRECTORY).save(3, {"step": 3, "weights": torch.full((1000,), 3.0)})
"""


def test_kill_9_at_each_call_of_a_save(checkpoints, child):
    for step in (1, 2):
        checkpoints.save(step, state_of(step))
    killed_at = 0
    while True:
        process = child(KILLED, AT=killed_at + 1, DIRECTORY=checkpoints.path)
        process.join()
        found = checkpoints.load()
        assert torch.equal(found["weights"], torch.full((1000,), float(found["step"])))
        if process.exitcode == 0:
            break
        assert process.exitcode == -signal.SIGKILL
        assert found["step"] in (2, 3)
        killed_at += 1
    assert killed_at >= 8  # save, fsync of two files and two directories, the check, the manifest, the rename
    assert found["step"] == 3
    assert sorted(path.name for path in checkpoints.path.iterdir()) == ["step-0000000002", "step-0000000003"]


SAVING = """
import itertools, os
acknowledged = os.open(ACKNOWLEDGED, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
store = Checkpoints(DIRECTORY)
before = store.load()
for step in itertools.count(before["step"] + 1 if before else 1):
    store.save(step, {"step": step, "weights": torch.full((500_000,), float(step))})
    os.write(acknowledged, b"%d\\n" % step)
"""


def test_kill_9_at_any_moment(checkpoints, child, tmp_path):
    acknowledged = tmp_path / "acknowledged"
    moments = random.Random(5)
    seen = 0
    for _ in range(6):
        process = child(SAVING, DIRECTORY=checkpoints.path, ACKNOWLEDGED=str(acknowledged))
        while not acknowledged.exists() or acknowledged.stat().st_size <= seen:
            assert process.is_alive()
            time.sleep(0.001)
        time.sleep(moments.random() * 0.03)
        process.kill()
        process.join()
        seen = acknowledged.stat().st_size
        last = int(acknowledged.read_text().split()[-1])
        found = checkpoints.load()
        assert found["step"] in (last, last + 1)
        assert torch.equal(found["weights"], torch.full((500_000,), float(found["step"])))


FULL = """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (LARGEST, resource.RLIM_INFINITY))
try:
    Checkpoints(DIRECTORY).save(2, {"step": 2, "weights": torch.full((100_000,), 2.0)})
except Exception as error:
    open(SAID, "w").write(f"{type(error).__name__}: {error}")
"""


@pytest.mark.parametrize("largest", [1000, 399_000, 401_000])
def test_a_disk_that_fills_is_one_error_and_the_old_one_remains(checkpoints, child, tmp_path, largest):
    """A limit on the size of files stands in for the disk: the write fails in the same place."""
    checkpoints.save(1, state_of(1))
    process = child(FULL, DIRECTORY=checkpoints.path, LARGEST=largest, SAID=str(tmp_path / "said"))
    process.join()
    said = (tmp_path / "said").read_text()
    assert said.startswith("CheckpointError: cannot save the checkpoint of step 2 in ")
    assert said.endswith(": File too large; free some space there; the checkpoint of step 1 remains")
    assert checkpoints.load()["step"] == 1
    assert [path.name for path in checkpoints.path.iterdir()] == ["step-0000000001"]


def test_a_directory_that_cannot_be_written_is_one_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=r"cannot save the checkpoint of step 1 .* there is no earlier checkpoint"):
        Checkpoints(tmp_path / "file").save(1, state_of(1))


def draw():
    return torch.rand(2).tolist(), np.random.rand(2).tolist(), random.random(), random.gauss(0, 1), float(np.random.randn())


def test_generators_go_on_where_they_were(checkpoints):
    with rng.preserved():
        rng.seed_all(4)
        draw()  # leaves half a pair of Gaussian numbers in NumPy's and Python's generators
        checkpoints.save(1, {"generators": rng.get_state()})
        expected = draw()
        rng.seed_all(5)
        assert draw() != expected
        rng.set_state(checkpoints.load()["generators"])
        assert draw() == expected


def test_what_a_block_draws_can_be_kept_apart():
    with rng.preserved():
        rng.seed_all(4)
        first = draw()
        rng.seed_all(4)
        with rng.preserved():
            draw()
        assert draw() == first
