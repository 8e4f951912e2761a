"""A function as a job: the parts of it that are sent, and the errors for parts that cannot be. `called` runs it on the worker."""

from __future__ import annotations

import ast
import base64
import functools
import inspect
import json
import linecache
import symtable
import sys
import textwrap
import types
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..engine.errors import UsageError

MOST_CHARACTERS = 90_000  #: characters of a notebook's packed code: all arguments of a command may have 128 KiB


def sent(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], over: Mapping[str, Any], *, local: bool
) -> dict[str, Any]:
    """Fields of a job that calls ``function``, with its arguments as params. UsageError if the call would fail."""
    plain = _plain_function(function)
    array = (over.get("array") or {}).get("params", {})
    params = {**arguments(plain, args, kwargs, {*over.get("params", {}), *array}), **over.get("params", {})}
    command = [sys.executable if local else "python", "-P", "-m", "stoker.client.called", *_source(plain, over.get("workdir"))]
    return {"command": command, "params": params, "name": over.get("name") or plain.__name__.strip("_") or "function"}


def _plain_function(function: Callable[..., Any]) -> types.FunctionType:
    """The function; UsageError if a worker could not find it by its name."""
    name = getattr(function, "__name__", type(function).__name__)
    if isinstance(function, functools.partial):
        raise UsageError("function: a partial is not sent: give the function, and its arguments as args and kwargs")
    if inspect.ismethod(function):
        raise UsageError(f"function: {name} belongs to an object, which is not sent: write a function that makes it")
    if not isinstance(function, types.FunctionType):
        raise UsageError(f"function: {name} is a {type(function).__name__}, not a function that is written in Python with def")
    if function.__name__ == "<lambda>":
        raise UsageError(
            "function: a lambda has no name by which a worker would find it: write it with def, at the top of a file or a cell"
        )
    if "<locals>" in function.__qualname__:
        names = ", ".join(function.__code__.co_freevars)
        uses = f", and uses {names} of it" if names else ""
        raise UsageError(
            f"function: {name} is written within another function{uses}: write it at the top of a file, with arguments for that"
        )
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise UsageError(f"function: {name} is async: write one that calls asyncio.run({name}(…))")
    if inspect.isgeneratorfunction(function):  # a call would do nothing, and the job would complete
        raise UsageError(f"function: {name} is a generator, of which nothing runs until somebody asks: write one that goes through it")
    return function


def arguments(function: types.FunctionType, args: Sequence[Any], kwargs: Mapping[str, Any], besides: set[str]) -> dict[str, Any]:
    """Arguments by name; ``besides``: names that are given elsewhere. UsageError if they do not fit, or are no JSON."""
    signature, name = inspect.signature(function), function.__name__
    if any(parameter.kind is parameter.VAR_POSITIONAL for parameter in signature.parameters.values()):
        raise UsageError(f"function: {name} takes *args, which have no names to be params by: give it parameters with names")
    try:
        bound = signature.bind_partial(*args, **kwargs).arguments
    except TypeError as error:
        raise UsageError(f"args: {name}{signature}: {error}") from None
    various = next((p.name for p in signature.parameters.values() if p.kind is p.VAR_KEYWORD), None)
    found = {**{key: value for key, value in bound.items() if key != various}, **bound.get(various or "", {})}
    known = {p.name for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD}
    if various is None and (strange := sorted(besides - known)):
        raise UsageError(f"params: {name}{signature} has no parameter {strange[0]!r}")
    if twice := sorted(besides & found.keys()):
        raise UsageError(f"args: {twice[0]!r} is given in params or array as well; keep one of them")
    missing = [p.name for p in signature.parameters.values() if p.name in known - found.keys() - besides and p.default is p.empty]
    if missing:
        raise UsageError(f"args: {name}{signature} needs {', '.join(missing)}")
    for key, value in found.items():
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise UsageError(f"args: {key}: {error}: arguments are sent as JSON, so give numbers, texts, lists and mappings") from None
    return found


def _source(function: types.FunctionType, workdir: Any) -> list[str]:
    """Arguments of `called` that say where the function is."""
    file = function.__code__.co_filename
    if function.__module__ != "__main__":
        module = sys.modules.get(function.__module__)
        if getattr(module, function.__qualname__.partition(".")[0], None) is None:
            raise UsageError(f"function: {function.__module__} has no {function.__qualname__} for a worker to import")
        root = Path(file).resolve().parents[function.__module__.count(".") + (Path(file).name == "__init__.py")]
        return ["--module", function.__module__, str(root), function.__qualname__]
    if Path(file).is_file() and "ipykernel" not in file:
        # A file below the job's directory gets its relative path, which is valid in a copy of the directory too.
        there, base = Path(file).resolve(), Path(workdir or ".").resolve()
        name = there.relative_to(base).as_posix() if there.is_relative_to(base) else str(there)
        return ["--file", name, function.__qualname__]
    text = cells(function)
    packed = base64.b85encode(zlib.compress(text.encode(), 9)).decode().translate(_BRACES)
    if len(packed) > MOST_CHARACTERS:
        raise UsageError(f"function: the code of {function.__name__} is too long to be sent from a notebook: write it into a file")
    return ["--source", packed, function.__qualname__]


#: braces in the arguments of a command would stand for parameters
_BRACES = str.maketrans("{}", ",.")


def unpacked(packed: str) -> str:
    """The text that `_source` has packed."""
    return zlib.decompress(base64.b85decode(packed.translate(str.maketrans(",.", "{}")))).decode()


def cells(function: types.FunctionType) -> str:
    """A file with a notebook's function, and all that it uses from other cells: functions, classes, imports, and JSON values."""
    head: dict[str, str] = {}
    bodies: dict[str, str] = {}
    _collect(function, function.__globals__, head, bodies)
    return "\n".join([*sorted(head.values()), "", *bodies.values()]) + "\n"


def _collect(one: Any, namespace: Mapping[str, Any], head: dict[str, str], bodies: dict[str, str]) -> None:
    """Add the source of ``one``, after the sources that it uses."""
    text = _text(one)
    bodies[one.__name__] = ""  # against endless recursion: it may use itself
    for name in _names(text):
        if name in bodies or name in head or name not in namespace or name == one.__name__:
            continue
        value = namespace[name]
        if isinstance(value, types.ModuleType):
            head[name] = f"import {value.__name__} as {name}" if value.__name__ != name else f"import {name}"
        elif isinstance(value, types.FunctionType | type) and value.__module__ == "__main__" and "<locals>" not in value.__qualname__:
            _collect(value, namespace, head, bodies)
        elif (found := _module_of(value)) is not None:
            head[name] = f"from {found} import {value.__name__} as {name}"
        elif _is_plain(value):
            head[name] = f"{name} = {value!r}"
        else:
            kind = "an open file" if hasattr(value, "fileno") else f"a {type(value).__name__}"
            raise UsageError(
                f"function: {one.__name__} uses {name}, {kind} of this notebook, which is not sent: make it inside, or give an argument"
            )
    bodies.pop(one.__name__)
    bodies[one.__name__] = text


def _module_of(value: Any) -> str | None:
    """The module from which a function or class can be imported by its name."""
    module, name = getattr(value, "__module__", None), getattr(value, "__name__", None)
    known = isinstance(module, str) and isinstance(name, str) and getattr(sys.modules.get(module), name, None) is value
    return module if known else None


def _text(one: Any) -> str:
    try:
        if isinstance(one, type):
            return _class_text(one)
        return textwrap.dedent(inspect.getsource(one))
    except (OSError, TypeError):
        raise UsageError(
            f"function: the source of {one.__name__} is not known, as it was written at a prompt: write it into a file, or a notebook"
        ) from None


def _class_text(kind: type) -> str:
    """The source of a cell's class, found by one of its methods, as Python does not record where a class was written."""
    for value in vars(kind).values():
        if isinstance(value, types.FunctionType):
            lines = linecache.getlines(value.__code__.co_filename)
            text = "".join(lines)
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.ClassDef) and node.name == kind.__name__:
                    return ast.get_source_segment(text, node) or ""
    return textwrap.dedent(inspect.getsource(kind))


def _names(text: str) -> Iterator[str]:
    """The names that the code reads from around it, each once; its parameters and variables are its own, whatever the notebook calls so."""
    outer: set[str] = set()
    tables = [symtable.symtable(text, "cell", "exec")]
    for table in tables:
        tables += table.get_children()
        inside = table.get_type() == "function"  # a class reads a name that it has not set yet from around it: `lr = lr`
        outer |= {one.get_name() for one in table.get_symbols() if one.is_referenced() and (one.is_global() or not inside)}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Name) and node.id in outer:
            outer.remove(node.id)
            yield node.id


def _is_plain(value: Any) -> bool:
    if value is None or isinstance(value, bool | int | float | str):
        return True
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return isinstance(value, dict) and all(isinstance(key, str) and _is_plain(item) for key, item in value.items())
