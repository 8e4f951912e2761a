"""The formats by name, and the recognition of a file's format."""

from __future__ import annotations

import difflib

from . import from_elasticflow as elasticflow
from . import from_gavel as gavel
from . import from_helios as helios
from . import from_neutral as neutral
from . import from_pai as pai
from . import from_philly as philly
from . import from_pollux as pollux
from . import from_stoker as stoker
from . import from_tiresias as tiresias
from .family import Family
from .rows import Splitter, TraceSource, header

_MODULES = (philly, helios, pai, pollux, gavel, tiresias, elasticflow, neutral, stoker)
FAMILIES: dict[str, Family] = {family.name: family for module in _MODULES for family in module.FAMILIES}
_SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars"}
IMPORTED = tuple(name for name, family in FAMILIES.items() if family.has_jobs)  #: formats from which a trace can be read


def choose(source: TraceSource, name: str | None) -> Family:
    """The format with this name, else that of the file's first line; ValueError lists the known formats or the missing columns."""
    if name is not None and name not in FAMILIES:
        near = difflib.get_close_matches(name, IMPORTED, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise ValueError(f"--format: there is no format {name!r}{hint}; formats: {', '.join(IMPORTED)}")
    head = source.head()
    if not head:
        raise ValueError(f"{source.path}: is empty")
    if (family := _without_header(head)) is not None:
        return family if name in (None, family.name) else _given(source, _columns(head), str(name))
    there = _columns(head)
    if not _fitting(there):
        _refuse_separator(source, head, there)
    return _given(source, there, name) if name is not None else _by_header(source, there)


def _without_header(head: str) -> Family | None:
    """The format of a file without a header; None: unknown."""
    if head.startswith(stoker.MARK):
        return FAMILIES["stoker"]
    if head.lstrip()[:1] in ("[", "{"):
        return FAMILIES["philly"]
    tabs = head.rstrip("\r\n").split("\t")
    for name in ("gavel", "shockwave"):
        if len(tabs) == len(FAMILIES[name].columns) and not _fitting(header(tabs)):  # else it is a table of another format with tabs
            return FAMILIES[name]
    fields = head.rstrip("\r\n").split(",")
    for name in ("pai", "pai-jobs"):
        if pai.looks_like(fields, FAMILIES[name].columns):
            return FAMILIES[name]
    return None


def _columns(head: str) -> list[str]:
    return header(Splitter().split(head) or [])


def _given(source: TraceSource, there: list[str], name: str) -> Family:
    """The requested format, if the file can have it."""
    family = FAMILIES[name]
    if family in pai.HEADLESS and len(there) == len(family.columns):
        return family
    lacking = [column for column in family.columns if column not in there]
    if lacking:
        raise ValueError(f"{source.path}: format {name} needs the columns {', '.join(lacking)}, which are not there; it has {_some(there)}")
    return family


def _by_header(source: TraceSource, there: list[str]) -> Family:
    """The format all of whose columns the header has; of several the one with its own columns too, else the one with most columns."""
    fitting = _fitting(there)
    if fitting:
        return max(fitting, key=lambda family: (bool(family.own) and set(family.own) <= set(there), len(family.columns)))
    near = max((FAMILIES[name] for name in IMPORTED), key=lambda family: _likeness(family, there))
    lacking = [column for column in near.columns if column not in there]
    hint = f"; the nearest is {near.name}, which also needs {', '.join(lacking)}" if len(lacking) < len(near.columns) else ""
    first = f"its first line is {_some(there)}" if there else "its first line is not CSV"
    raise ValueError(f"{source.path}: unknown format, {first}{hint}; formats: {', '.join(IMPORTED)}")


def _fitting(there: list[str]) -> list[Family]:
    return [family for family in FAMILIES.values() if set(family.columns) <= set(there)]


def _refuse_separator(source: TraceSource, head: str, there: list[str]) -> None:
    """Raise ValueError for a wrong separator: fields are separated by commas, or by tabs in Gavel's and Shockwave's files."""
    for mark, name in _SEPARATORS.items():
        if len(Splitter(mark).split(head) or []) > max(len(there), 1):
            raise ValueError(f"{source.path}: its first line has {name} between the fields: write the table with commas in place of them")


def _likeness(family: Family, there: list[str]) -> tuple[float, int]:
    """Share and number of the format's columns that the header has."""
    common = len(set(family.columns) & set(there))
    return common / len(family.columns), common


def _some(columns: list[str]) -> str:
    """Any column names in one line that can be shown."""
    text = ", ".join("".join(c if c.isprintable() else "?" for c in column)[:30] for column in columns[:15])
    return f"{text[:200]}{', …' if len(columns) > 15 or len(text) > 200 else ''}"
