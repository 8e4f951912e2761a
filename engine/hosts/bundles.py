"""Directories on their way from one host to another, through the daemon: a tar named by its digest, sent and fetched in pieces.

The packing host writes nothing: it reads the files twice, for the digest and for sending. A tar of the same files is the same to the
byte, so an interrupted transfer continues at its last byte.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, cast

PIECE = 4 << 20  #: bytes

Add = Callable[[tarfile.TarFile], None]  #: puts everything into a tar, each time the same


class Damaged(Exception):
    """The received bytes differ from the sent ones."""


class _Hashed:
    """A file that keeps only its digest."""

    def __init__(self) -> None:
        self.sha256, self.size = hashlib.sha256(), 0

    def write(self, content: bytes) -> int:
        self.sha256.update(content)
        self.size += len(content)
        return len(content)


class _Pieces:
    """A file that is passed on piece by piece, from ``begin`` on."""

    def __init__(self, begin: int, send: Callable[[int, bytes], None]) -> None:
        self._skip, self._at, self._send = begin, begin, send
        self._kept = bytearray()

    def write(self, content: bytes) -> int:
        skipped = min(self._skip, len(content))
        self._skip -= skipped
        self._kept += memoryview(content)[skipped:]
        while len(self._kept) >= PIECE:
            self.flush(PIECE)
        return len(content)

    def flush(self, size: int | None = None) -> None:
        piece = bytes(self._kept[:size])
        if piece:
            self._send(self._at, piece)
            self._at += len(piece)
            del self._kept[: len(piece)]


def _pack(add: Add, target: _Hashed | _Pieces) -> None:
    with tarfile.open(fileobj=cast(IO[bytes], target), mode="w|", format=tarfile.PAX_FORMAT) as tar:
        add(tar)


def digest_of(add: Add) -> tuple[str, int]:
    """Digest and bytes of a tar."""
    hashed = _Hashed()
    _pack(add, hashed)
    return hashed.sha256.hexdigest(), hashed.size


def send(add: Add, begin: int, piece: Callable[[int, bytes], None]) -> None:
    """Send a tar from byte ``begin`` on."""
    pieces = _Pieces(begin, piece)
    _pack(add, pieces)
    pieces.flush()


def tree(directory: Path, *, hidden: bool = False) -> Add:
    """All files below a directory; without hidden ones unless ``hidden``, as hidden checkpoints are half made."""

    def add(tar: tarfile.TarFile) -> None:
        for path in sorted(directory.iterdir()):
            if hidden or not path.name.startswith("."):
                _add(tar, path, path.name)

    return add


def _add(tar: tarfile.TarFile, path: Path, name: str) -> None:
    if path.is_dir() and not path.is_symlink():
        tar.add(path, name, recursive=False, filter=anonymous)
        for inner in sorted(path.iterdir()):
            _add(tar, inner, f"{name}/{inner.name}")
    elif path.is_symlink() or path.is_file():  # a pipe or socket is no checkpoint
        tar.add(path, name, recursive=False, filter=anonymous)


def anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """Without the file's owner, as users have other numbers elsewhere. Directories and links are as old as their copy."""
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    entry.mtime = entry.mtime if entry.isfile() else 0
    return entry


def fetch(piece: Callable[[int], bytes], digest: str, part: Path) -> None:
    """Fetch a tar, or its missing rest, into the file ``part``. Raises Damaged if the digest differs, and then keeps no part of it."""
    sha256 = hashlib.sha256()
    part.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with part.open("ab+") as file:
        file.seek(0)
        while content := file.read(1 << 20):
            sha256.update(content)
        while content := piece(file.tell()):
            file.write(content)
            file.flush()
            sha256.update(content)
        os.fsync(file.fileno())
    if sha256.hexdigest() != digest:
        part.unlink()
        raise Damaged


def unpack(part: Path, target: Path) -> None:
    """Replace a directory by the content of a tar, whole or not at all. Links may lead out of it, but are not written through."""
    made = target.with_name(f".{target.name}.{os.getpid()}.made")
    old = target.with_name(f".{target.name}.{os.getpid()}.old")
    shutil.rmtree(made, ignore_errors=True)
    try:
        made.mkdir(parents=True, mode=0o700)
        with tarfile.open(part, "r:") as tar:  # uncompressed: a compressed one may be far larger than its stated size
            tar.extractall(made, filter=_inside)
        for path in made.rglob("*"):
            if path.is_file() and not path.is_symlink():
                _flush(path)
        if target.exists():
            target.rename(old)
        made.rename(target)
    except (tarfile.TarError, EOFError) as error:
        raise Damaged(str(error)) from None
    finally:
        shutil.rmtree(made, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def _inside(entry: tarfile.TarInfo, where: str) -> tarfile.TarInfo:
    """An entry that is written only within a directory, as a tar from elsewhere may be malicious."""
    entry = tarfile.tar_filter(entry, where)
    if not (entry.isfile() or entry.isdir() or entry.issym() or entry.islnk()):
        raise tarfile.SpecialFileError(entry)
    if entry.islnk() and not Path(where, entry.linkname).resolve().is_relative_to(Path(where).resolve()):  # writing to it would go there
        raise tarfile.LinkOutsideDestinationError(entry, entry.linkname)
    return entry


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def needs(size: int, where: Path) -> str:
    """The words if a disk lacks room for a tar of ``size`` bytes and its content; "": it has room."""
    while not where.exists():
        where = where.parent
    free = shutil.disk_usage(where).free
    return f"it needs {2 * size / 2**20:.1f} MiB and {free / 2**20:.1f} MiB are free" if free < 2 * size else ""


def read_piece(path: Path, offset: int) -> bytes:
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(PIECE)


def digest_of_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(cast(Any, file), "sha256").hexdigest()
