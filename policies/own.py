"""Users' policies: ``package.module:Class`` from the import path, loaded from source, and anew when asked.

The module is loaded together with the modules that it imports meanwhile from the same folder of the import path (of the same
package, if packages are installed there). A failed load leaves every module as it was.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import importlib.util
import os
import re
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .contract import Policy

_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)
_DIGITS = 12  #: of a digest, as people compare them
_OURS = __name__.partition(".")[0]
_BYTECODE = sys.pycache_prefix


@dataclasses.dataclass(frozen=True, slots=True)
class Loaded:
    """A loaded policy."""

    policy: type[Policy]
    code: str = ""  #: digest of its source; "" for ours, whose version is Stoker's
    modules: tuple[str, ...] = ()  #: of the source


@contextlib.contextmanager
def prints_aside() -> Iterator[None]:
    """What a policy prints goes to stderr: it must not spoil what a program reads."""
    with contextlib.redirect_stdout(sys.stderr):
        yield


@prints_aside()
def load(name: str) -> Loaded:
    """A policy from its present source; ValueError says why there is none."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"policy: {name!r} is not package.module:Class")
    module, _, attribute = name.partition(":")
    importlib.invalidate_caches()
    place = _Place.of(module)
    before = place.loaded() if place else {}
    _forget(before)
    sys.pycache_prefix = os.devnull  # bytecode may be of another edit of the same second and size
    try:
        policy = _policy(name, _import(module), attribute)
    except BaseException:
        if place:
            _forget(place.loaded())
            _restore(before)
        raise
    finally:
        sys.pycache_prefix = _BYTECODE
    sources = sorted((one, Path(str(module.__file__))) for one, module in (place.loaded() if place else {}).items())
    text = "".join(f"{one} {hashlib.sha256(path.read_bytes()).hexdigest()}\n" for one, path in sources)
    return Loaded(policy, hashlib.sha256(text.encode()).hexdigest()[:_DIGITS] if text else "", tuple(one for one, _ in sources))


def words(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


def _import(module: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        ours = (error.name or "").partition(".")[0] == _OURS  # it builds on a part of another version
        hint = "see docs/writing-a-policy.md" if ours else "put it on PYTHONPATH, for a pool on the daemon's"
        raise ValueError(f"policy: cannot import {module!r} ({error}); {hint}") from error
    except (Exception, SystemExit) as error:  # it may be any code
        raise ValueError(f"policy: {module!r} fails when it is imported: {words(error)}") from error


def _policy(name: str, module: ModuleType, attribute: str) -> type[Policy]:
    try:
        policy = getattr(module, attribute)
    except AttributeError:
        raise ValueError(f"policy: module {module.__name__!r} has no {attribute!r}") from None
    missing = [member for member in ("Config", "name", "plan") if not hasattr(policy, member)]
    if not missing and not dataclasses.is_dataclass(policy.Config):
        missing = ["a dataclass as Config"]
    if missing:
        raise ValueError(f"policy: {name} is no policy: it lacks {', '.join(missing)}; see docs/writing-a-policy.md")
    return policy  # type: ignore[no-any-return]


@dataclasses.dataclass(frozen=True, slots=True)
class _Place:
    """The place of a policy and its modules."""

    folder: Path  #: of the import path
    top: str  #: its package; "": all of the folder
    others: frozenset[str]  #: modules loaded before it, which are not its own

    @classmethod
    def of(cls, module: str) -> _Place | None:
        """None: it cannot be found, is not written in Python, or is a part of Stoker."""
        top = module.partition(".")[0]
        spec = None if top == _OURS else _find(top)
        folder = _folder(spec) if spec else None
        if folder is None:
            return None
        top = top if any(folder.glob("*.dist-info")) else ""  # installed packages lie there
        return _known.setdefault((folder, top), cls(folder, top, frozenset(sys.modules)))

    def loaded(self) -> dict[str, ModuleType]:
        """Its loaded modules, also those that a policy imports only while it plans."""
        found = {name: module for name, module in list(sys.modules.items()) if name not in self.others and self._has(name)}
        specs = {name: getattr(module, "__spec__", None) for name, module in found.items()}
        return {
            name: found[name]
            for name, spec in specs.items()
            if spec and type(spec.loader) is SourceFileLoader and _folder(spec) == self.folder
        }

    def _has(self, name: str) -> bool:
        top = name.partition(".")[0]
        return self.top in ("", top) and top != _OURS  # a tree of Stoker may stand beside it


_known: dict[tuple[Path, str], _Place] = {}


def _forget(modules: dict[str, ModuleType]) -> None:
    """Make the next import load them anew; holders of the old modules keep these."""
    for name in modules:
        sys.modules.pop(name)
        package, _, last = name.rpartition(".")
        if package in sys.modules:
            vars(sys.modules[package]).pop(last, None)


def _restore(modules: dict[str, ModuleType]) -> None:
    sys.modules.update(modules)
    for name, module in modules.items():
        package, _, last = name.rpartition(".")
        if package in sys.modules:
            setattr(sys.modules[package], last, module)


def _find(top: str) -> ModuleSpec | None:
    try:
        return importlib.util.find_spec(top)
    except ValueError:  # a module made by hand
        return None


def _folder(spec: ModuleSpec) -> Path | None:
    """The folder of the import path of a module, at any depth in a package; None: it has no file."""
    package = spec.submodule_search_locations
    if package is not None and spec.origin is None:  # a namespace: no file of its own
        file = Path(next(iter(package), ""))
    elif spec.origin is not None and spec.has_location:
        file = Path(spec.origin).parent if package is not None else Path(spec.origin)
    else:
        return None
    return file.absolute().parents[spec.name.count(".")]
