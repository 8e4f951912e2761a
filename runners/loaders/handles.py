"""Parts of a data set that threads cannot share, such as an open file or a cursor: all threads move its one position.

The search goes through attributes, containers and closures, to a bounded depth and size. Objects that can be shared are known by name
(a ZipFile and h5py have a lock, a database connection serves many threads or one). An unknown object of an extension module that
refuses to be pickled is taken to have such a state too.
"""

from __future__ import annotations

import builtins
import functools
import io
import itertools
import logging
import mmap
import multiprocessing.synchronize
import numbers
import sqlite3
import sys
import tarfile
import threading
import types
import weakref
import zipfile
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

_DEEP = 10  #: attributes of attributes
_MANY = 5000  #: objects
_EACH = 64  #: elements of a container

_LOCKS = (type(threading.Lock()), type(threading.RLock()), multiprocessing.synchronize.SemLock)
_PLAIN = (str, bytes, bytearray, memoryview, numbers.Number, range, type(None), type, types.ModuleType)
#: Each thread has its own, or it guards itself, or samples do not depend on it.
_SHARED = (threading.local, zipfile.ZipFile, logging.Logger, logging.Handler, weakref.ref, *_LOCKS)
#: Libraries that are not searched: their objects may be shared, or hold no file that other code moves.
_UNSEEN = frozenset(
    ("torch", "numpy", "pandas", "pyarrow", "h5py", "urllib3", "botocore", "requests", "aiohttp", "httpx", "httpcore", "grpc")
)
_OF_DATA_SETS = "torch.utils.data."  #: except its data sets, which wrap others
#: Modules whose objects may refuse to be pickled for other reasons.
_LIBRARIES = _UNSEEN | {"PIL", "torchvision", "fsspec", "transformers", "tokenizers"}
_OF_THE_INTERPRETER = frozenset(kind for kind in vars(types).values() if isinstance(kind, type))
_CALLED = ("__getitem__", "__getitems__", "__call__")


class Handle(NamedTuple):
    """An object whose state each use moves.

    Attributes:
        path: of attributes, such as ``dataset.transform.file``.
        what: its kind, in words.
        owner: the object whose attribute it is.
        bound: only the thread that made it may use it.
    """

    path: str
    what: str
    owner: Any
    bound: bool = False


class _Place(NamedTuple):
    value: Any
    path: str
    owner: Any
    depth: int


def handle(subject: Any, name: str) -> Handle | None:
    """The one nearest to ``subject``, which messages call ``name``; None: none found. Objects of ours are left out of the path."""
    waiting, seen = deque([_Place(subject, name, subject, 0)]), dict[int, Any]()
    while waiting and len(seen) < _MANY:
        place = waiting.popleft()
        value = place.value
        if id(value) in seen or isinstance(value, _PLAIN):
            continue
        seen[id(value)] = value  # kept, so that no other gets its id
        if (found := _stateful(value)) is not None:
            if not _guarded(place.owner):
                return Handle(place.path, found[0], place.owner, found[1])
        elif place.depth < _DEEP and not _left_alone(value):
            owner = place.owner if isinstance(value, Mapping | list | tuple | set | frozenset) else value
            waiting.extend(_Place(part, _joined(place, step), owner, place.depth + 1) for step, part in _parts(value))
    return None


def may_change(subject: Any) -> bool:
    """Whether it has attributes that may become such a handle later: many data sets open a file at the first sample."""
    if isinstance(subject, types.MethodType):
        subject = subject.__self__
    return not isinstance(subject, (*_PLAIN, types.FunctionType, types.BuiltinFunctionType)) and bool(getattr(subject, "__dict__", None))


def _joined(place: _Place, step: str) -> str:
    if _root(type(place.value)) == __package__.partition(".")[0] and step.startswith("."):
        return step.lstrip("._")
    return place.path + step


def _root(kind: type) -> str:
    return str(kind.__module__).partition(".")[0]


def _guarded(owner: Any) -> bool:
    """Whether a lock stands beside it: then its author has thought of threads."""
    return any(isinstance(value, _LOCKS) for value in _attributes(owner).values())


def _left_alone(value: Any) -> bool:
    kind = type(value)
    return isinstance(value, _SHARED) or (_root(kind) in _UNSEEN and not kind.__module__.startswith(_OF_DATA_SETS))


def _attributes(value: Any) -> dict[str, Any]:
    try:
        found = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    return dict(found) if isinstance(found, dict) else {}


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """The objects that it holds, and the text of each for the path."""
    if isinstance(value, Mapping):
        yield from ((f"[{key!r}]", element) for key, element in _some(value.items() if isinstance(value, dict) else ()))
    elif isinstance(value, list | tuple | set | frozenset | deque):
        yield from ((f"[{place}]", element) for place, element in enumerate(_some(value)))
    elif isinstance(value, functools.partial):
        yield from (("", value.func), (".args", value.args), (".keywords", value.keywords))
    elif isinstance(value, types.MethodType):
        yield "", value.__self__
    elif isinstance(value, types.FunctionType):
        yield from _held(value)
    for name, attribute in _attributes(value).items():
        yield f".{name}", attribute
    for kind in type(value).__mro__:
        for name in _slots(kind):
            try:
                yield f".{name}", object.__getattribute__(value, name)
            except AttributeError:  # not set
                continue
        for name in _CALLED if _root(kind) not in _UNSEEN | {"builtins"} else ():
            if isinstance(function := vars(kind).get(name), types.FunctionType):
                yield f".{name}", function


def _held(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """Objects of its closure and its defaults, and the globals that it names."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        try:
            yield f".{name}", cell.cell_contents
        except ValueError:  # not set yet
            continue
    yield from ((".defaults", value) for value in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()))
    for name in function.__code__.co_names:
        value = function.__globals__.get(name)
        if value is not None and not isinstance(value, _PLAIN) and _stateful(value) is not None:
            yield f".{name}", value


def _slots(kind: type) -> tuple[str, ...]:
    slots = vars(kind).get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots) if isinstance(slots, tuple | list) else ()


def _some(elements: Any) -> list[Any]:
    """The first elements, even if others change the container meanwhile."""
    while True:
        try:
            return list(itertools.islice(elements, _EACH))
        except RuntimeError:  # it was changed
            continue


def _stateful(value: Any) -> tuple[str, bool] | None:
    """Its kind, in words, and whether it belongs to one thread; None: threads may share it, or its parts tell more."""
    try:
        return _known(value) or _unknown(value)
    except Exception:  # a user's property failed: no verdict
        return None


def _known(value: Any) -> tuple[str, bool] | None:
    if isinstance(value, io.IOBase):
        return _file(value)
    if isinstance(value, tarfile.TarFile):
        return None if getattr(value, "closed", False) else (f"an open archive ({value.name!s})", False)
    if isinstance(value, mmap.mmap):  # slices of it move nothing
        return None if value.closed or not value.tell() else ("a memory map that is read as a file is", False)
    if isinstance(value, sqlite3.Cursor):
        return "a cursor of a database", False
    if isinstance(value, sqlite3.Connection):
        return ("a database connection that belongs to one thread", True) if _bound(value) else None
    if isinstance(value, types.GeneratorType):
        return "a generator", False
    return None


def _file(file: io.IOBase) -> tuple[str, bool] | None:
    if file.closed or not file.readable() or file in (sys.stdin, sys.stdout, sys.stderr):
        return None
    name = getattr(file, "name", None)
    return (f"an open file ({name})" if isinstance(name, str) else "an open file"), False


def _bound(connection: sqlite3.Connection) -> bool:
    """Whether only its thread may use it. A closed one is not used at all."""
    refused = list[bool]()

    def use() -> None:
        try:
            connection.cursor().close()
        except sqlite3.ProgrammingError as error:
            refused.append("thread" in str(error))

    other = threading.Thread(target=use, name="stoker-look", daemon=True)
    other.start()
    other.join()
    return any(refused)


def _unknown(value: Any) -> tuple[str, bool] | None:
    """An object of an extension module that refuses to be pickled."""
    kind = type(value)
    root = _root(kind)
    if root == "builtins" and (kind in _OF_THE_INTERPRETER or getattr(builtins, kind.__name__, None) is kind):
        return None
    if (root in sys.stdlib_module_names and root != "_csv") or root in _LIBRARIES or _of_lmdb(value) or _custom(kind):
        return None
    try:
        value.__reduce_ex__(4)
    except TypeError:
        return f"a {kind.__qualname__}, which cannot be pickled", False
    return None


def _of_lmdb(value: Any) -> bool:
    """Threads may share environments and their transactions for reading, but not cursors."""
    lmdb = sys.modules.get("lmdb")
    return lmdb is not None and isinstance(value, (lmdb.Environment, lmdb.Transaction))


def _custom(kind: type) -> bool:
    """Whether it defines its own pickling, which may be costly to try; Cython's, which only refuses, does not count."""
    reduces = getattr(kind, "__reduce__", None)
    if getattr(reduces, "__name__", "") == "__reduce_cython__":
        return False
    return any(getattr(kind, name, None) is not getattr(object, name, None) for name in ("__reduce_ex__", "__reduce__", "__getstate__"))
