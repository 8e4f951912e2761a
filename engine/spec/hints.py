"""Hints on possible mistakes at a submission, which is still accepted. They run none of the job's code."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from ..errors import nearest
from .model import JobSpec
from .reading.params import variable
from .reading.tree import shown

_WORD = re.compile(r"(?<!\$)\{([A-Za-z_]\w*)\}")
_ELSEWHERE = "on the runner's host it may be there"


def unfilled(spec: JobSpec, grid: Collection[str]) -> Iterator[tuple[str, str]]:
    """Placeholders such as ``{lrr}`` that stay unfilled, while a parameter has a similar name."""
    texts = [("command", word) for word in spec.command or ()] + [(f"env.{name}", value) for name, value in spec.env.items()]
    for field, word in dict.fromkeys((field, found) for field, text in texts for found in _WORD.findall(text)):
        if word in grid:
            continue
        if word in spec.params:
            yield field, f"{{{word}}} stays as it is: only an array's parameters are filled in; this one is in ${variable(word)}"
        elif near := nearest(word, [*grid, *spec.params]):
            yield field, f"{{{word}}} stays as it is: no parameter has that name{near}"


def missing_modules(spec: JobSpec, needs: Sequence[str], environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Modules that a recipe (which ``needs`` these) or an entrypoint would not find if it started here."""
    if absent := [name for name in needs if missing(name, ()) is not None]:
        yield (
            "recipe",
            f"needs {' and '.join(absent)}, which this Python lacks: pip install '.[recipes]' in Stoker's source tree; {_ELSEWHERE}",
        )
    if spec.entrypoint is None or spec.env_file is not None:  # the file may set the modules' path
        return
    path = spec.env.get("PYTHONPATH", environment.get("PYTHONPATH", ""))
    folders = [spec.workdir, *(str(Path(spec.workdir, folder)) for folder in path.split(os.pathsep) if folder)]
    name = missing(spec.entrypoint.partition(":")[0], folders)
    if name is not None:
        near = nearest(name, _modules(spec.workdir)) if "." not in name else ""
        yield "entrypoint", f"there is no module {shown(name)} in {spec.workdir} or among the packages of this Python{near}; {_ELSEWHERE}"


def missing(module: str, folders: Sequence[str]) -> str | None:
    """The part of a dotted name that is neither in these folders nor installed here; None: all is there, or it is not known."""
    top, *rest = module.split(".")
    try:
        found = PathFinder.find_spec(top, list(folders)) or importlib.util.find_spec(top)
        name = top
        for part in rest:
            if found is None or _finds_its_own(found):
                break
            name = f"{name}.{part}"
            # By its last part: the whole name would import its parents.
            found = PathFinder.find_spec(part, list(found.submodule_search_locations or ()))
    except (ImportError, ValueError, OSError):
        return None
    return name if found is None else None


def _finds_its_own(package: ModuleSpec) -> bool:
    """Whether its code may set the place of its modules."""
    return bool(package.has_location and package.origin) and "__path__" in Path(str(package.origin)).read_text(errors="replace")


def _modules(folder: str) -> list[str]:
    try:
        return [entry.stem for entry in Path(folder).iterdir() if entry.suffix == ".py" or (entry / "__init__.py").exists()]
    except OSError:
        return []
