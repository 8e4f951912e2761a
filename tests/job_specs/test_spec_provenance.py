"""What is kept of a submission: commit, changes, and a copy of the tree. On real git checkouts."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path

import msgspec
import pytest
from stoker.engine.errors import Conflict, LimitExceeded, NotFound, StokerError
from stoker.engine.spec import provenance
from stoker.engine.spec.provenance import capture, snapshot

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


def git(tree: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "init.defaultBranch=main")
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    done = subprocess.run(["git", "-C", str(tree), *identity, *arguments], check=True, capture_output=True, text=True, env=environment)
    return done.stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A commit with two files, one of them changed since; an untracked and an ignored file."""
    tree = tmp_path / "project"
    (tree / "src").mkdir(parents=True)
    (tree / "src" / "train.py").write_text("lr = 0.1\n")
    (tree / "gone.py").write_text("x\n")
    (tree / ".gitignore").write_text("data/\n*.env\n")
    git(tree, "init", "-q")
    git(tree, "add", ".")
    git(tree, "commit", "-qm", "first")
    (tree / "src" / "train.py").write_text("lr = 0.2\n")
    (tree / "new.py").write_text("y\n")
    (tree / "secrets.env").write_text("TOKEN=abc\n")
    (tree / "data").mkdir()
    (tree / "data" / "big.bin").write_bytes(b"\0" * 1000)
    return tree


def contents(tree: Path) -> set[str]:
    return {str(path.relative_to(tree)) for path in tree.rglob("*") if path.is_symlink() or not path.is_dir()}


def test_commit_changes_and_command_line(checkout: Path) -> None:
    kept = capture(["stoker", "submit", "--env", "HF_TOKEN=abc"], checkout, client="test")
    assert kept.git_commit == git(checkout, "rev-parse", "HEAD")
    assert kept.git_diff is not None
    assert "-lr = 0.1\n+lr = 0.2\n" in kept.git_diff
    assert kept.git_diff.startswith("# untracked: new.py\n")
    assert "secrets.env" not in kept.git_diff
    assert (kept.argv[-1], kept.cwd, kept.client) == ("HF_TOKEN=********", str(checkout), "test")


def test_the_stored_diff_brings_the_commit_to_what_ran(checkout: Path, tmp_path: Path) -> None:
    kept = capture([], checkout)
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", str(checkout), str(clone))
    (tmp_path / "patch").write_text(kept.git_diff or "")
    git(clone, "apply", str(tmp_path / "patch"))
    assert (clone / "src" / "train.py").read_text() == "lr = 0.2\n"


def test_a_clean_checkout_has_no_diff(checkout: Path) -> None:
    git(checkout, "add", ".")
    git(checkout, "commit", "-qm", "second")
    assert capture([], checkout).git_diff is None


def test_a_large_diff_is_cut(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provenance, "MAX_DIFF", 4096)
    (checkout / "src" / "train.py").write_text("é" * 10_000)
    kept = capture([], checkout).git_diff
    assert kept is not None
    assert kept.endswith("# cut: the diff is larger than 4KiB\n")
    assert len(kept.encode()) < 5000


def test_names_that_are_not_utf8_can_be_stored(checkout: Path) -> None:
    (checkout / os.fsdecode(b"\xff\n.py")).write_text("")
    kept = capture([os.fsdecode(b"\xff")], checkout)
    assert msgspec.json.decode(msgspec.json.encode(kept), type=type(kept)) == kept
    assert "# untracked: � .py\n" in (kept.git_diff or "")


def test_outside_of_git_only_the_command_line() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # tmp_path lies in the checkout of the suite
        kept = capture(["x"], Path(folder))
    assert (kept.git_commit, kept.git_diff, kept.argv) == (None, None, ["x"])


def test_a_checkouts_configuration_runs_nothing(checkout: Path) -> None:
    mark = checkout.parent / "ran"
    for name in ("core.fsmonitor", "diff.external", "core.pager"):
        git(checkout, "config", name, f"touch {mark}")
    capture([], checkout)
    snapshot(checkout, checkout.parent / "copy")
    assert not mark.exists()


def test_a_snapshot_is_what_git_would_take(checkout: Path, tmp_path: Path) -> None:
    (checkout / "gone.py").unlink()
    (checkout / "src" / "run.sh").write_text("#!/bin/sh\n")
    (checkout / "src" / "run.sh").chmod(0o755)
    taken = snapshot(checkout, tmp_path / "home" / "copy")
    assert contents(taken.path) == {".gitignore", "new.py", "src/run.sh", "src/train.py"}
    assert (taken.path / "src" / "train.py").read_text() == "lr = 0.2\n"
    assert os.access(taken.path / "src" / "run.sh", os.X_OK)
    assert (taken.files, taken.bytes) == (5, sum((taken.path / name).stat().st_size for name in contents(taken.path)))


def test_a_snapshot_of_a_part_and_of_an_ignored_part(checkout: Path, tmp_path: Path) -> None:
    assert contents(snapshot(checkout / "src", tmp_path / "part").path) == {"train.py"}
    assert contents(snapshot(checkout / "data", tmp_path / "ignored").path) == {"big.bin"}


def test_a_snapshot_takes_nested_checkouts(checkout: Path, tmp_path: Path) -> None:
    inner = checkout / "inner"
    inner.mkdir()
    git(inner, "init", "-q")
    (inner / "a.py").write_text("")
    (inner / ".gitignore").write_text("b.py\n")
    (inner / "b.py").write_text("")
    assert {"inner/a.py", "inner/.gitignore"} == {name for name in contents(snapshot(checkout, tmp_path / "copy").path) if "inner" in name}


def test_links_stay_links_and_nothing_outside_is_copied(checkout: Path, tmp_path: Path) -> None:
    (tmp_path / "outside.txt").write_text("outside")
    (checkout / "relative").symlink_to("src/train.py")
    (checkout / "absolute").symlink_to(checkout / "src" / "train.py")
    (checkout / "leaving").symlink_to("../outside.txt")
    (checkout / "loop").symlink_to("loop")
    (checkout / "dangling").symlink_to("/nowhere")
    copy = snapshot(checkout, tmp_path / "deep" / "er" / "copy").path
    assert (copy / "relative").readlink() == Path("src/train.py")
    assert (copy / "absolute").readlink() == Path("src/train.py")
    assert (copy / "leaving").readlink() == tmp_path / "outside.txt"
    assert (copy / "leaving").read_text() == "outside"
    assert (copy / "loop").is_symlink()
    assert (copy / "dangling").readlink() == Path("/nowhere")


def test_a_snapshot_without_git_takes_all_but_caches_and_special_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = tmp_path / "tree"
    (tree / "__pycache__").mkdir(parents=True)
    (tree / "__pycache__" / "a.pyc").write_text("")
    (tree / "a.py").write_text("a")
    (tree / "link").symlink_to(tree)
    os.mkfifo(tree / "pipe")
    bound = socket.socket(socket.AF_UNIX)
    monkeypatch.chdir(tree)
    bound.bind("socket")  # from here: a whole path may be too long for one
    copy = snapshot(tree, tree / "copies" / "first").path
    bound.close()
    assert contents(copy) == {"a.py", "link"}


def test_too_large_names_the_largest(checkout: Path, tmp_path: Path) -> None:
    (checkout / "weights.bin").write_bytes(b"\0" * (3 << 20))
    with pytest.raises(LimitExceeded) as caught:
        snapshot(checkout, tmp_path / "copy", max_bytes=1 << 20)
    assert str(caught.value) == (
        f"--snapshot: {checkout} holds 3.0 MiB, the limit is 1.0 MiB; largest: weights.bin (3.0 MiB); "
        "list data in .gitignore, or submit without --snapshot"
    )
    with pytest.raises(LimitExceeded, match="holds more than 2 files; list data"):
        snapshot(checkout, tmp_path / "copy", max_files=2)
    assert not (tmp_path / "copy").exists()


def test_a_snapshot_is_whole_or_not_there(checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device", "x")

    monkeypatch.setattr(shutil, "copyfileobj", full)
    with pytest.raises(StokerError, match=r"^--snapshot: x: No space left on device; nothing was submitted$"):
        snapshot(checkout, tmp_path / "home" / "copy")
    assert list((tmp_path / "home").iterdir()) == []


def test_where_a_snapshot_cannot_go_or_come_from(checkout: Path, tmp_path: Path) -> None:
    with pytest.raises(Conflict, match="exists already"):
        snapshot(checkout, tmp_path)
    with pytest.raises(NotFound, match="is not a directory"):
        snapshot(checkout / "none", tmp_path / "copy")
