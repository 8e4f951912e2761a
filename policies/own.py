"""Policies of one's own: ``package.module:Class`` from the import path, loaded from source, and anew when asked.

What belongs together is loaded together: the module, and what it imports as it is loaded from the same folder of the import path
(of the same package, where packages are installed). A load that fails leaves every module as it was.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import re
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .contract import Policy

_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)
_DIGITS = 12  #: of a digest, as people compare them


@dataclasses.dataclass(frozen=True, slots=True)
class Loaded:
    """A policy as it was loaded."""

    policy: type[Policy]
    code: str = ""  #: digest of its source, "" of ours, whose version is Stoker's
    modules: tuple[str, ...] = ()  #: what the source consists of


def load(name: str) -> Loaded:
    """A policy from its source as it stands now; ValueError says why there is none."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"policy: {name!r} is not package.module:Class")
    module, _, attribute = name.partition(":")
    finder = _Finder.of(module)
    before = finder.forget() if finder else {}
    try:
        policy = _policy(name, _import(module), attribute)
    except BaseException:
        if finder:
            finder.forget()
            finder.restore(before)
        raise
    sources = finder.loaded() if finder else {}
    text = "".join(f"{one} {loader.digest}\n" for one, loader in sorted(sources.items()))
    return Loaded(policy, hashlib.sha256(text.encode()).hexdigest()[:_DIGITS] if text else "", tuple(sorted(sources)))


def words(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


def _import(module: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ValueError(f"policy: cannot import {module!r} ({error}); put it on PYTHONPATH, for a pool on the daemon's") from error
    except (Exception, SystemExit) as error:  # it is anybody's code
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


class _Source(SourceFileLoader):
    """Loads a module from its source alone: bytecode may be of another edit of the same second."""

    def __init__(self, name: str, path: str, folder: Path) -> None:
        super().__init__(name, path)
        self.folder = folder
        self.digest = ""  #: of what was loaded

    def get_code(self, fullname: str) -> CodeType:
        data = self.get_data(self.path)
        self.digest = hashlib.sha256(data).hexdigest()
        code: CodeType = self.source_to_code(data, self.path)
        return code


class _Finder(MetaPathFinder):
    """Finds the modules that belong to a policy, wherever Python's own finders see them, and has them loaded by `_Source`.

    It stays in place, so that what a policy imports only while it plans can be loaded anew as well.
    """

    def __init__(self, folder: Path, top: str) -> None:
        self._folder = folder
        self._top = top  #: the package it is for, "": all of the folder

    @classmethod
    def of(cls, module: str) -> _Finder | None:
        """None: it cannot be found, is not written in Python, or is a part of Stoker."""
        top = module.partition(".")[0]
        if top == __name__.partition(".")[0]:
            return None
        importlib.invalidate_caches()
        spec = _find(top, None, None)
        folder = _folder(spec) if spec else None
        if folder is None:
            return None
        made = cls(folder, top if any(folder.glob("*.dist-info")) else "")  # people's packages are installed there
        for finder in sys.meta_path:
            if isinstance(finder, _Finder) and (finder._folder, finder._top) == (made._folder, made._top):
                return finder
        sys.meta_path.insert(0, made)
        return made

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if not self._has(fullname):
            return None
        spec = _find(fullname, path, target)
        if spec is None or type(spec.loader) is not SourceFileLoader or _folder(spec) != self._folder:
            return None
        spec.loader = _Source(fullname, spec.loader.path, self._folder)
        return spec

    def _has(self, name: str) -> bool:
        return self._top in ("", name.partition(".")[0])

    def loaded(self) -> dict[str, _Source]:
        """What was loaded of it."""
        specs = {name: getattr(module, "__spec__", None) for name, module in list(sys.modules.items()) if self._has(name)}
        loaders = {name: getattr(spec, "loader", None) for name, spec in specs.items()}
        return {name: loader for name, loader in loaders.items() if isinstance(loader, _Source) and loader.folder == self._folder}

    def forget(self) -> dict[str, ModuleType]:
        """Have it loaded anew by the next import; who holds the old modules keeps them."""
        gone = {name: sys.modules.pop(name) for name in self.loaded()}
        for name in gone:
            package, _, module = name.rpartition(".")
            if package in sys.modules:
                vars(sys.modules[package]).pop(module, None)
        return gone

    @staticmethod
    def restore(modules: dict[str, ModuleType]) -> None:
        sys.modules.update(modules)
        for name, module in modules.items():
            package, _, last = name.rpartition(".")
            if package in sys.modules:
                setattr(sys.modules[package], last, module)


def _find(name: str, path: Sequence[str] | None, target: ModuleType | None) -> ModuleSpec | None:
    finders = (finder for finder in sys.meta_path if not isinstance(finder, _Finder))
    return next((spec for finder in finders if (spec := finder.find_spec(name, path, target)) is not None), None)


def _folder(spec: ModuleSpec) -> Path | None:
    """The folder of the import path in which a module stands, however deep in a package; None: it has no file."""
    package = spec.submodule_search_locations
    if package is not None and spec.origin is None:  # a namespace: no file of its own
        file = Path(next(iter(package), ""))
    elif spec.origin is not None and spec.has_location:
        file = Path(spec.origin).parent if package is not None else Path(spec.origin)
    else:
        return None
    return file.absolute().parents[spec.name.count(".")]
