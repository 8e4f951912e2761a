"""The cgroups (v1 or v2) whose limits hold for this process: its own and those above. Standard library only."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

MOUNT = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")


def folders(controller: str, mount: Path = MOUNT, own: Path = OWN) -> Iterator[Path]:
    """Folders of the groups of this process that may limit what ``controller`` counts, and of those above: each may have a limit.

    Inside a container a group may have the host's name, which is not mounted there: then the mount itself is the group.
    ``own``: lines as in /proc/self/cgroup; if it cannot be read, there are no groups.
    """
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, name = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        root = mount
        if controllers:  # v1: one hierarchy for some controllers, mounted by their names
            root = mount / controllers if (mount / controllers).is_dir() else mount / controller
        group = PurePosixPath(name.lstrip("/"))
        if ".." in group.parts:
            group = PurePosixPath()
        for part in (group, *group.parents):
            yield root / part
