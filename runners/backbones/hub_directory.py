"""Backbones of users: a directory as transformers writes it, or a name in Hugging Face's local cache.

A directory is judged by its files alone, in milliseconds, so that a job that cannot be trained is refused when it is submitted. Neither
transformers nor torch is imported here.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import json
import os
import re
import signal
import struct
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ...engine.errors import UsageError, nearest
from . import packaged

ENV_DOWNLOAD = "STOKER_BACKBONES_DOWNLOAD"  #: set by a runner whose daemon says ``[backbones] download = true``
INSTALL = "install it with: pip install '.[llm]' in Stoker's source tree"

_INDEX, _SINGLE = "model.safetensors.index.json", "model.safetensors"
_FILES = ("*.json", "*.safetensors", "tokenizer.model")  #: the files of a model to fetch
TIMM = "timm_wrapper"  #: transformers' type of a timm model
_UNFINISHED = ".stoker-unfinished"  #: in a model's folder of the cache while it is fetched
_PR_SET_PDEATHSIG = 1
_LONGEST_HEADER = 100 << 20  #: bytes; safetensors allows no more
_SAMPLES, _SAMPLE = 64, 1 << 12  #: number of samples of a file's weights, and bytes of each
_TABLES = ("auto_mappings.py", "configuration_auto.py")  #: of transformers: types of models
_NOT_THE_MODEL = ("_name_or_path", "transformers_version")  #: keys of a config that may differ for the same model


def is_named(backbone: str) -> bool:
    """Whether it is a path or a name of this kind, rather than one of a recipe's own."""
    return "/" in backbone or backbone.startswith((".", "~")) or _cached(backbone) is not None


def short_name(backbone: str) -> str:
    """Its name in banks and for people: the last part of its path or name."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", backbone.rstrip("/").rpartition("/")[2]).strip("-._") or "model"


def is_here(backbone: str) -> bool:
    """Whether its files must be on this host. A name that the cache lacks may be in the runner's cache, or is fetched there."""
    return backbone.startswith("/") or _cached(backbone) is not None


def find(backbone: str) -> HubDirectory:
    """The directory of a path or a name. UsageError: it is not there; StokerError: the package that carries it cannot be fetched."""
    if backbone in packaged.NAMES:
        return HubDirectory(backbone, packaged.directory(backbone))
    if backbone.startswith(("/", ".", "~")):
        path = Path(backbone).expanduser().absolute()
        if not os.path.isdir(path):  # noqa: PTH112 - which says no of a name that no file can have, as the next ones do
            wrong = "is a file, not a directory" if os.path.exists(path) else "does not exist"  # noqa: PTH110
            near = nearest(path.name, os.listdir(path.parent)) if os.path.isdir(path.parent) else ""  # noqa: PTH112, PTH208
            raise UsageError(f"backbone: {path} {wrong}{near}; give a directory with config.json, *.safetensors and tokenizer.json")
        return HubDirectory(backbone, path)
    if (found := _cached(backbone) or _fetched(backbone)) is not None:
        return HubDirectory(backbone, found)
    lacking = f"is neither a directory nor a model in Hugging Face's cache, {_cache()}"
    there = "was fetched in part only" if (_folder(backbone) / _UNFINISHED).exists() else lacking
    raise UsageError(f"backbone: {backbone} {there}; nothing is fetched unless config.toml has [backbones] with download = true")


def _cache() -> Path:
    """Where huggingface_hub keeps models."""
    if given := os.environ.get("HF_HUB_CACHE"):
        return Path(given).expanduser()
    home = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    return Path(home).expanduser() / "hub"


def _folder(name: str) -> Path:
    return _cache() / f"models--{name.replace('/', '--')}"


def _cached(name: str) -> Path | None:
    """Directory of a model in the cache, in its branch `main` as of the last fetch."""
    if not name or name.count("/") > 1 or name != name.strip("/") or ".." in name:
        return None
    folder = _folder(name)
    try:
        if (folder / _UNFINISHED).exists():
            return None
        found = folder / "snapshots" / (folder / "refs" / "main").read_text().strip()
    except (OSError, ValueError):
        return None
    return found if found.is_dir() else None


def _fetched(name: str) -> Path | None:
    """Fetch it, if that is allowed. It runs in a process of its own, as the library leaves threads, which a fork server must not have, and
    as it fetches nothing once it was imported offline, as `hub_model` does."""
    if os.environ.get(ENV_DOWNLOAD) != "1" or name.count("/") != 1:
        return None
    if importlib.util.find_spec("huggingface_hub") is None:
        raise UsageError(f"backbone: {name} is to be fetched, which needs the package huggingface_hub; {INSTALL}")
    env = {key: value for key, value in os.environ.items() if key != "HF_HUB_OFFLINE"} | {"HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    done = subprocess.run([sys.executable, "-m", __name__, name], env=env, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise UsageError(f"backbone: {name} cannot be fetched: {done.stdout.strip() or f'its process ended with {done.returncode}'}")
    return _cached(name)


def _fetch(name: str) -> None:
    from huggingface_hub import snapshot_download

    folder = _folder(name)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _UNFINISHED).touch()  # a killed process leaves a part of the model, which must not be taken for the whole
    _require_sums(Path(snapshot_download(name, allow_patterns=list(_FILES), cache_dir=_cache())))
    (folder / _UNFINISHED).unlink(missing_ok=True)


def _require_sums(found: Path) -> None:
    """Check files against the digests in their names in the cache (Git's, and those of large files): the library compares only sizes."""
    for path in sorted(found.rglob("*")):
        blob = path.resolve()
        said = blob.name
        if not path.is_file() or len(said) not in (40, 64) or set(said) - set("0123456789abcdef"):
            continue
        start = f"blob {blob.stat().st_size}\0".encode()
        digest = hashlib.sha256() if len(said) == 64 else hashlib.sha1(start, usedforsecurity=False)
        with blob.open("rb") as content:
            while part := content.read(1 << 20):
                digest.update(part)
        if digest.hexdigest() != said:
            path.unlink()
            blob.unlink(missing_ok=True)
            raise UsageError(f"{path.name} came with another checksum than {said}; it was removed")


@dataclass(frozen=True)
class HubDirectory:
    """A model's files. Its methods raise UsageError, one line that begins with ``backbone:``, if they cannot be used."""

    name: str  #: as the job has it
    path: Path

    @property
    def read(self) -> list[Path]:
        """The directories that identify it: another version in the cache is another model of the same name."""
        refs = self.path.parents[1] / "refs"
        return [self.path, *([refs] if refs.is_dir() and self.path.parent.name == "snapshots" else [])]

    def error(self, problem: str) -> UsageError:
        return UsageError(f"backbone: {self.path} {problem}")

    @cached_property
    def config(self) -> Mapping[str, Any]:
        found = self._json("config.json", "a directory as save_pretrained of transformers writes it has one")
        if "model_type" not in found and isinstance(found.get("architecture"), str) and isinstance(found.get("pretrained_cfg"), dict):
            found["model_type"] = TIMM  # its own files have no type; this is transformers' word
        if not isinstance(found.get("model_type"), str):
            raise self.error("has a config.json without model_type, the kind of the model")
        return found

    def check(self, *, texts: bool) -> None:
        """Check that it can be loaded, as far as files show; ``texts``: and that it has a tokenizer of its own vocabulary."""
        config = self.config
        if code := config.get("auto_map"):
            what = next(iter(code.values())) if isinstance(code, dict) and code else "auto_map"
            raise self.error(f"needs code of its own ({what}), which would have to be trusted: Stoker runs none that comes with a model")
        if isinstance(how := config.get("quantization_config"), dict):
            raise self.error(
                f"is quantised ({how.get('quant_method')}); recipes train weights of 16 or 32 bits: bring the model before that"
            )
        if config["model_type"] not in (known := _known_types()) and known:
            kind = config["model_type"]
            raise self.error(f"is a model of type {kind!r}, which the installed transformers does not know{nearest(kind, known)}")
        if not _installed("transformers"):
            raise UsageError(f"backbone: {self.name} is loaded by the package transformers, which this Python lacks; {INSTALL}")
        if config["model_type"] == TIMM and not _installed("timm"):
            raise self.error("is a model of timm, which this Python lacks; install timm, and the torchvision that is made for its torch")
        self.headers  # noqa: B018 - reads them
        if texts:
            self._check_tokenizer()

    @cached_property
    def headers(self) -> Mapping[str, Mapping[str, Any]]:
        """The tensors of each file of weights; UsageError if a file is not whole."""
        return {file: self._header(self.path / file) for file in self._shards()}

    @property
    def numbers(self) -> int:
        """The number of its weights."""
        return sum(_count(tensor["shape"]) for header in self.headers.values() for tensor in header.values())

    @cached_property
    def revision(self) -> str:
        """Digest of its content: its config, its weights' headers, and a sample of the weights, since two trainings of one model differ in
        those only. Its path and its authors' name for it do not count."""
        digest = hashlib.sha256()
        config = {name: value for name, value in self.config.items() if name not in _NOT_THE_MODEL}
        digest.update(json.dumps(config, sort_keys=True).encode())
        for file, header in sorted(self.headers.items()):
            digest.update(json.dumps([file, header], sort_keys=True).encode())
            size = (self.path / file).stat().st_size
            with (self.path / file).open("rb") as content:
                for number in range(_SAMPLES):
                    content.seek(max(0, size - _SAMPLE) * number // (_SAMPLES - 1))
                    digest.update(content.read(_SAMPLE))
        return digest.hexdigest()[:12]

    @cached_property
    def tokens(self) -> str:
        """Digest of its tokenizer."""
        return hashlib.sha256((self.path / "tokenizer.json").read_bytes()).hexdigest()[:12]

    def _json(self, name: str, advice: str) -> dict[str, Any]:
        try:
            found = json.loads((self.path / name).read_bytes())
        except FileNotFoundError:
            raise self.error(f"has no {name}; {advice}") from None
        except OSError as error:
            raise self.error(f"has a {name} that cannot be read: {error.strerror or error}") from None
        except (ValueError, RecursionError):
            raise self.error(f"has a {name} that is not JSON") from None
        if not isinstance(found, dict):
            raise self.error(f"has a {name} that is not a mapping")
        return found

    def _shards(self) -> list[str]:
        if (self.path / _SINGLE).exists():
            return [_SINGLE]
        if (self.path / _INDEX).exists():
            index = self._json(_INDEX, "")
            places = index.get("weight_map")
            if not places or not isinstance(places, dict) or not all(isinstance(file, str) and "/" not in file for file in places.values()):
                raise self.error(f"has a {_INDEX} without a weight_map of names and files")
            if not isinstance(index.get("metadata"), dict):
                raise self.error(f"has a {_INDEX} without metadata, which transformers asks for; fetch it again, or add an empty one")
            shards = sorted(set(places.values()))
            if lacking := [shard for shard in shards if not (self.path / shard).is_file()]:
                raise self.error(f"lacks {len(lacking)} of the {len(shards)} files of its weights, {lacking[0]} first; fetch it again")
            return shards
        if other := next((file.name for kind in ("*.bin", "*.pt", "*.pth", "*.h5", "*.gguf") for file in self.path.glob(kind)), None):
            raise self.error(f"has its weights in {other}, and no *.safetensors; load and save it with transformers 5, which writes those")
        raise self.error("has no weights: neither model.safetensors nor model.safetensors.index.json")

    def _header(self, file: Path) -> Mapping[str, Any]:
        try:
            size = file.stat().st_size
            with file.open("rb") as content:
                (length,) = struct.unpack("<Q", content.read(8))
                if length > min(size, _LONGEST_HEADER):
                    raise self.error(f"has a {file.name} that is cut short or is not safetensors; fetch it again")
                header = json.loads(content.read(length))
            header.pop("__metadata__", None)
            end = 8 + length + max((tensor["data_offsets"][1] for tensor in header.values()), default=0)
            for tensor in header.values():
                _count(tensor["shape"])
        except OSError as error:
            raise self.error(f"has a {file.name} that cannot be read: {error.strerror or error}") from None
        except (struct.error, ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
            raise self.error(f"has a {file.name} that is cut short or is not safetensors; fetch it again") from None
        if end != size:
            raise self.error(f"has a {file.name} of {size} bytes, but by its header it has {end}; fetch it again")
        found: Mapping[str, Any] = header
        return found

    def _check_tokenizer(self) -> None:
        if not (self.path / "tokenizer.json").exists():
            old = next((name for name in ("tokenizer.model", "vocab.txt", "vocab.json") if (self.path / name).exists()), None)
            how = f"; it has {old}, from which AutoTokenizer.from_pretrained and save_pretrained of transformers make one" if old else ""
            raise self.error(f"has no tokenizer.json, so texts cannot be read{how}")
        found = self._json("tokenizer.json", "")
        model = found.get("model")
        words = (model.get("vocab") if isinstance(model, dict) else None) or {}
        extra = found.get("added_tokens") or []
        try:
            numbers = list(words.values()) if isinstance(words, dict) else list(range(len(words)))
            highest = max([*numbers, *(each["id"] for each in extra)], default=-1)
        except (TypeError, KeyError):
            raise self.error("has a tokenizer.json that the library tokenizers cannot read") from None
        size = self.vocabulary
        if size is not None and highest >= size:
            raise self.error(f"and its tokenizer do not fit: that has tokens up to number {highest}, the model {size} in all")

    @property
    def vocabulary(self) -> int | None:
        """Tokens that the model knows, by its config."""
        inner = self.config.get("text_config")
        found = self.config.get("vocab_size", inner.get("vocab_size") if isinstance(inner, dict) else None)
        return found if isinstance(found, int) else None


def _count(shape: Any) -> int:
    count = 1
    for width in shape:
        count *= int(width)
    return count


def _installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except (ImportError, ValueError):
        return False


def _known_types() -> frozenset[str]:
    """Types of models that the installed transformers can build, by the names of its folders and tables; empty: it is not installed.

    transformers is not imported, which would take a second. Types may be among them that cannot be built: then the job's process says so.
    """
    try:
        spec = importlib.util.find_spec("transformers")
    except (ImportError, ValueError):
        spec = None
    if spec is None or not spec.submodule_search_locations:
        return frozenset()
    models = Path(spec.submodule_search_locations[0]) / "models"
    try:
        tables = "".join((models / "auto" / name).read_text(errors="replace") for name in _TABLES if (models / "auto" / name).exists())
        folders = [entry.name for entry in models.iterdir()]
    except OSError:
        return frozenset()
    quoted = tables.split('"')[1::2]
    return frozenset(word for word in quoted if word.replace("-", "").replace("_", "").isalnum() and word.islower()) | frozenset(folders)


if __name__ == "__main__":
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # it is of no use then
    try:
        _fetch(sys.argv[1])
    except Exception as error:  # of any of the libraries below it
        sys.stdout.write(" ".join(str(error).split())[:300])
        sys.exit(1)
