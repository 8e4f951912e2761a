"""The place of this runner: its directory for checkpoints, with a name in a file, by which runners see whether they share it."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
from pathlib import Path

from ...engine.errors import Conflict
from ...engine.protocol import Assignment, PlaceTold, SharedPlace
from ..lease.rundir import RunDir, checkpoints_of

log = logging.getLogger("stoker.runner")

PROBE_FILE = "place"  #: file with the name
SERVES_FILE = "serves"  #: file that names the daemon that the runners of this home serve


def own_place(home: Path) -> str:
    """The home, whose checkpoints all its runners read, on any host; the first one gives it a name."""
    probe = home / PROBE_FILE
    for _ in range(2):
        with contextlib.suppress(FileNotFoundError):
            if name := probe.read_text().strip():
                return name
        made = home / f".{PROBE_FILE}.{os.getpid()}"
        made.write_text(f"{secrets.token_hex(8)}\n")
        with contextlib.suppress(FileExistsError):
            os.link(made, probe)  # two runners may begin together
        made.unlink()
    return probe.read_text().strip()


def served(home: Path) -> str | None:
    """The daemon whose jobs are in this home, which is not its own. Another daemon would take them for leftovers, and end them."""
    if not os.environ.get("STOKER_URL") or next((home / "jobs").glob("*"), None) is None:
        return None
    with contextlib.suppress(OSError, ValueError):
        return (home / SERVES_FILE).read_text().strip() or None
    return None


def serve(home: Path, daemon: str | None) -> None:
    """From now on its jobs are in this home. A full disk does not stop the runner: its next start writes the file."""
    kept = home / SERVES_FILE
    with contextlib.suppress(OSError, ValueError):
        if daemon is None or kept.read_text().strip() == daemon:
            return
    try:
        (made := home / f".{SERVES_FILE}.{os.getpid()}").write_text(f"{daemon}\n")
        made.replace(kept)
    except OSError as error:
        log.warning("%s cannot be written (%s): sent to another daemon, a runner would end the jobs of this one", kept, error.strerror)


def shared_place(shared: SharedPlace) -> PlaceTold:
    """The shared directory of the daemon's configuration; Conflict if it is not that of the other runners.

    The first runner leaves a probe file there; a runner that does not find it has another directory of the same name.
    """
    folder = Path(shared.path) / f"stoker-{shared.name}"
    try:
        if not Path(shared.path).is_dir():
            raise Conflict(
                f"runners.checkpoints: there is no directory {shared.path} on this host; mount it, or take it out of config.toml"
            )
        if not shared.known:
            folder.mkdir(exist_ok=True)
            (folder / PROBE_FILE).write_text(shared.name)
        found = (folder / PROBE_FILE).read_text().strip()
        (writable := folder / f".{os.getpid()}.{secrets.token_hex(4)}").touch()
        writable.unlink()
    except FileNotFoundError:
        found = ""
    except OSError as error:
        raise Conflict(f"runners.checkpoints: {shared.path} cannot be used on this host: {error.strerror} ({error.filename})") from None
    if found != shared.name:
        raise Conflict(
            f"runners.checkpoints: {shared.path} on this host is not the directory that the other runners share: the probe file "
            f"{folder / PROBE_FILE} is not there; mount it, or take it out of config.toml"
        )
    return PlaceTold(name=shared.name, path=str(folder))


def place_of_checkpoints(run: RunDir, assignment: Assignment) -> str | None:
    """The name of the place of a lease's checkpoints; None: its home has none, as no agent of this version ran there."""
    probe = checkpoints_of(run, assignment).parents[1] / PROBE_FILE if assignment.checkpoints else run.home / PROBE_FILE
    try:
        return probe.read_text().strip() or None
    except OSError:
        return None
