"""Puts off the import of `torch._dynamo` until something is compiled: each optimizer's first step imports it (1.1 s of a core) to opt out.

A module in its place answers that call by itself. Any other use of it, such as torch.compile, loads the real one first.
Only for recipes: a user's code may use modules that come with the real one (torch.distributed.fsdp) without importing them.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

NAME = "torch._dynamo"
#: Calls of a gang as it meets and wraps its model: they clear caches that are still empty, and read a setting that is at its default.
PARTS: Mapping[str, Mapping[str, Callable[[], Any]]] = {
    "trace_rules": {"clear_lru_cache": lambda: None},
    "utils": {"get_optimize_ddp_mode": lambda: "ddp_optimizer"},
}

_once = threading.Lock()


def put_off() -> None:
    """Import it when it is used. No change where it is imported already."""
    import torch

    if NAME not in sys.modules and (spec := importlib.util.find_spec(NAME)) is not None:
        sys.modules[NAME] = torch._dynamo = _Later(spec)
        sys.meta_path.insert(0, _Parts())


def load() -> ModuleType:
    """The real one, from here on for every import."""
    with _once:  # a second thread would remove the real one, half imported
        if isinstance(sys.modules.get(NAME), _Later):
            del sys.modules[NAME]
            sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _Parts)]
    return importlib.import_module(NAME)


class _Later(ModuleType):
    """Answers the calls of an optimizer; any other use loads the real one."""

    def __init__(self, spec: importlib.machinery.ModuleSpec) -> None:
        super().__init__(NAME)
        self.__spec__, self.__loader__, self.__file__ = spec, spec.loader, spec.origin
        self.__path__: list[str] = []  # its parts are found by `_Parts`

    def graph_break(self, *given: Any, **named: Any) -> None:
        """Nothing is compiled yet, so there is no graph."""
        if sys.modules.get(NAME) is not self:
            load().graph_break(*given, **named)

    def disable(self, *given: Any, **named: Any) -> Callable[..., Any]:
        """``fn``, which is passed on to the real one as soon as that is loaded.

        Only for torch's own decorator, which hides its argument: a module or a class stays one, and a function keeps its signature.
        """
        fn = given[0] if given else None
        if fn is None or named.get("wrapping", True) or sys.modules.get(NAME) is not self:
            disabled: Callable[..., Any] = load().disable(*given, **named)
            return disabled
        told: list[Callable[..., Any]] = []

        def called(*arguments: Any, **options: Any) -> Any:
            if not told and sys.modules.get(NAME) is not self:
                told.append(load().disable(*given, **named))
            return (told[0] if told else fn)(*arguments, **options)

        return called

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # code that walks all modules asks for these
            raise AttributeError(f"module {NAME!r} has no attribute {name!r}")
        if name in PARTS and sys.modules.get(NAME) is self:
            return _Part(name, PARTS[name])
        return getattr(load(), name)


class _Part:
    """Stands for a part of the real one, and answers some of its calls."""

    def __init__(self, name: str, answers: Mapping[str, Callable[[], Any]]) -> None:
        vars(self).update(answers, _name=name)

    def __getattr__(self, name: str) -> Any:
        return getattr(getattr(load(), self._name), name)


class _Parts:
    """Finds the parts of the real one, such as torch._dynamo.config."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> importlib.machinery.ModuleSpec | None:
        if not name.startswith(f"{NAME}."):
            return None
        load()
        if (loaded := sys.modules.get(name)) is None:
            return importlib.util.find_spec(name)
        return importlib.machinery.ModuleSpec(name, _Loaded(loaded))


class _Loaded(importlib.abc.Loader):
    """Stands for a module that came with the real one."""

    def __init__(self, module: ModuleType) -> None:
        self._module, self._spec = module, module.__spec__

    def create_module(self, _: importlib.machinery.ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec
