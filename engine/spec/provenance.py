"""The code of a submission: its state at that moment, and a copy of it if asked for, so that exactly this code runs."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from ..errors import Conflict, LimitExceeded, NotFound, StokerError
from .model import Provenance
from .reading.secrets import mask_argv
from .reading.tree import one_line
from .reading.units import format_size

MAX_DIFF = 1 << 20
MAX_UNTRACKED = 100  #: names of untracked files noted with the diff
SNAPSHOT_BYTES = 512 << 20
SENT_BYTES = 64 << 20  #: sent to other hosts at most
SNAPSHOT_FILES = 50_000
GIT_SECONDS = 20.0
# A checkout may be another user's: its configuration must not run programs, and reading it must not write its index.
_GIT = ("git", "-c", "core.fsmonitor=false", "-c", "core.quotePath=false", "--no-optional-locks", "--no-pager")
_DIFF = ("diff", "HEAD", "--no-color", "--no-ext-diff", "--no-textconv")
_NOT_COPIED = frozenset({".git", "__pycache__"})


def capture(argv: Sequence[str], cwd: Path, client: str = "", snapshot: str | None = None) -> Provenance:
    """Commit, uncommitted changes and command line; outside a git checkout only the command line."""
    commit = _git(cwd, "rev-parse", "HEAD")
    return Provenance(
        argv=[_storable(argument) for argument in mask_argv(argv)],
        cwd=_storable(str(cwd)),
        git_commit=commit.decode(errors="replace").strip() if commit else None,
        git_diff=_diff(cwd) if commit else None,
        snapshot=snapshot,
        client=client,
    )


def _diff(cwd: Path) -> str | None:
    """Names of untracked files (which `git apply` skips) and the diff of tracked ones, cut at MAX_DIFF; None when there is neither."""
    output = _git(cwd, *_DIFF, limit=MAX_DIFF + 1) or b""
    changes = output[:MAX_DIFF].decode(errors="replace").replace("\0", "�")
    if len(output) > MAX_DIFF:
        changes += f"\n# cut: the diff is larger than {format_size(MAX_DIFF)}\n"
    untracked = _names(_git(cwd, "ls-files", "-z", "--others", "--exclude-standard", limit=MAX_DIFF))
    notes = [f"# untracked: {one_line(os.fsdecode(name))}\n" for name in untracked[:MAX_UNTRACKED]]
    if len(untracked) > MAX_UNTRACKED:
        notes.append(f"# and {len(untracked) - MAX_UNTRACKED} more untracked files\n")
    return _storable("".join(notes) + changes) or None


def _storable(text: str) -> str:
    """Text for the database, which must be UTF-8; names of files need not be."""
    return text.encode(errors="replace").decode()


def _git(cwd: Path, *arguments: str, limit: int | None = None) -> bytes | None:
    """Output of git, at most ``limit`` bytes of it; None when git is missing, slow, or has nothing to do with ``cwd``."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        with subprocess.Popen(
            [*_GIT, "-C", str(cwd), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
        ) as process:
            return _bounded(process, limit)
    except OSError:
        return None


def _bounded(process: subprocess.Popen[bytes], limit: int | None) -> bytes | None:
    assert process.stdout is not None
    guard = threading.Timer(GIT_SECONDS, process.kill)
    guard.start()
    try:
        output = process.stdout.read(-1 if limit is None else limit)
        if limit is not None and len(output) == limit:
            process.kill()
            return output
        return output if process.wait() == 0 else None
    finally:
        guard.cancel()


def _names(output: bytes | None) -> list[bytes]:
    return [name for name in (output or b"").split(b"\0") if name]


@dataclass(frozen=True, slots=True)
class Snapshot:
    path: Path
    files: int
    bytes: int


def snapshot(tree: Path, destination: Path, max_bytes: int = SNAPSHOT_BYTES, max_files: int = SNAPSHOT_FILES) -> Snapshot:
    """Copy a tree to ``destination``, whole or not at all.

    In a git checkout these are git's files (tracked and untracked, not ignored), else all. Links stay links: one that leaves
    the tree keeps its target, so data directories keep working, and nothing behind it is copied.
    """
    root = Path(os.path.realpath(tree))
    if not root.is_dir():
        raise NotFound(one_line(f"--snapshot: {tree} is not a directory"))
    if destination.exists():
        raise Conflict(one_line(f"--snapshot: {destination} exists already"))
    inside = Path(os.path.realpath(destination.parent)) / destination.name
    listed = {path for path in islice(_files(root), max_files + 1) if not (root / path).is_relative_to(inside)}
    files = sorted(listed)
    total = _measure(root, files, max_bytes, max_files)
    temporary = destination.with_name(f".{destination.name}.{os.getpid()}.tmp")
    try:
        temporary.mkdir(parents=True, mode=0o700)
        for path in files:
            _copy(root, path, temporary)
        os.replace(temporary, destination)
    except OSError as error:
        raise StokerError(one_line(f"--snapshot: {error.filename or tree}: {error.strerror}; nothing was submitted")) from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)  # gone already after success
    return Snapshot(destination, len(files), total)


def _files(root: Path) -> Iterator[Path]:
    """Files and links below ``root``, relative to it; those of submodules and nested checkouts by their own rules."""
    listed = _git(root, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    if listed is None and _git(root, "rev-parse", "--is-inside-work-tree"):
        raise StokerError(one_line(f"--snapshot: git did not list the files of {root} in {GIT_SECONDS:.0f} s; try 'git status' there"))
    if not listed:  # no checkout, or a directory that the checkout around it ignores
        yield from _walk(root)
        return
    for name in _names(listed):
        path = Path(os.fsdecode(name))
        whole = root / path
        if whole.is_symlink() or not whole.is_dir():
            yield path
        else:
            yield from (path / inner for inner in (_files(whole) if (whole / ".git").exists() else _walk(whole)))


def _walk(root: Path) -> Iterator[Path]:
    for directory, names, files in os.walk(root):
        here = Path(directory).relative_to(root)
        names[:] = [name for name in names if name not in _NOT_COPIED]
        yield from (here / name for name in files)
        yield from (here / name for name in names if (root / here / name).is_symlink())


def _measure(root: Path, files: Sequence[Path], max_bytes: int, max_files: int) -> int:
    """Bytes to copy; LimitExceeded, with the largest file, if that is too much."""
    sizes = {path: _size(root / path) for path in files}
    total = sum(sizes.values())
    remedy = "list data in .gitignore, or submit without --snapshot"
    if len(files) > max_files:
        raise LimitExceeded(one_line(f"--snapshot: {root} holds more than {max_files} files; {remedy}"))
    if total > max_bytes:
        largest = max(sizes, key=lambda path: sizes[path])
        held, limit, part = (f"{size / 2**20:.1f} MiB" for size in (total, max_bytes, sizes[largest]))
        raise LimitExceeded(one_line(f"--snapshot: {root} holds {held}, the limit is {limit}; largest: {largest} ({part}); {remedy}"))
    return total


def _size(path: Path) -> int:
    try:
        status = path.lstat()
    except FileNotFoundError:  # tracked, and deleted in the working tree
        return 0
    return status.st_size if stat.S_ISREG(status.st_mode) else 0


def _copy(root: Path, path: Path, temporary: Path) -> None:
    source, target = root / path, temporary / path
    if source.is_symlink():
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(_link(root, path))
        return
    if not source.is_file():  # deleted in the working tree, or a pipe or socket
        return
    # The link or pipe that may just have taken the file's place is neither followed nor waited for.
    with open(os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as opened:
        status = os.fstat(opened.fileno())
        target.parent.mkdir(parents=True, exist_ok=True)
        with open(target, "wb") as copy:
            shutil.copyfileobj(opened, copy)
        target.chmod(stat.S_IMODE(status.st_mode) | stat.S_IRUSR | stat.S_IWUSR)
        os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))


def _link(root: Path, path: Path) -> str:
    """Target of a link in the copy: within the tree the same place of the copy; outside of it the original place."""
    written = (root / path).readlink()
    target = Path(os.path.normpath((root / path).parent / written))
    if not target.is_relative_to(root):
        return str(target)
    return os.path.relpath(target, (root / path).parent) if written.is_absolute() else str(written)
