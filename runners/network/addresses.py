"""The address by which other hosts reach this one, the network interface that has it, and free ports there."""

from __future__ import annotations

import ipaddress
import socket
import urllib.parse
from typing import TYPE_CHECKING

from ...engine.errors import UsageError

if TYPE_CHECKING:
    from ...engine.protocol import Assignment

LOOPBACK = "127.0.0.1"
_ANYWHERE = "192.0.2.1"  #: of RFC 5737, used by no host: nothing is sent, the kernel only names the route


def interfaces() -> list[tuple[str, str]]:
    """Name and address of every interface of this host that is up, IPv4 first."""
    import psutil  # here, as the command line only looks at a URL

    flags = {name: about.flags.split(",") for name, about in psutil.net_if_stats().items()}  # its `isup` wants a carrier too
    found = [
        (name, one.address.partition("%")[0])
        for name, addresses in psutil.net_if_addrs().items()
        if "up" in flags.get(name.partition(":")[0], ())  # eth0:1 is another address of eth0
        for one in addresses
        if one.family in (socket.AF_INET, socket.AF_INET6)
    ]
    return sorted(found, key=lambda pair: ":" in pair[1])


def is_loopback(address: str) -> bool:
    """Whether only this very host reaches it. A name counts by its addresses; one that does not resolve is no loopback."""
    return any(ipaddress.ip_address(one).is_loopback for one in _resolved(address))


def _resolved(address: str) -> list[str]:
    try:
        return [str(ipaddress.ip_address(address))]
    except ValueError:
        pass
    try:
        found = socket.getaddrinfo(address, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return [str(ipaddress.ip_address(str(entry[4][0]).partition("%")[0])) for entry in found]


def interface_of(address: str) -> str | None:
    """Name of this host's interface that has an address; None: there is none."""
    wanted = _resolved(address)
    return next((name for name, own in interfaces() if own in wanted), None)


def address_towards(url: str | None) -> str:
    """This host's address on the route to the daemon at ``url``; 127.0.0.1 if that is on this host, as over its socket."""
    if not url:
        return LOOPBACK
    where = urllib.parse.urlsplit(url)
    return _on_route(where.hostname or "localhost", where.port or 80) or LOOPBACK


def address_of_daemon(tcp: str | None) -> str:
    """The address by which other hosts reach the daemon of this host that listens on ``tcp``; 127.0.0.1: they cannot."""
    if not tcp:
        return LOOPBACK
    host = tcp.rpartition(":")[0].strip("[]")
    if host not in ("", "0.0.0.0", "::", "*"):
        return host
    outward = next((own for _, own in interfaces() if not ipaddress.ip_address(own).is_loopback), None)
    return _on_route(_ANYWHERE, 9) or outward or LOOPBACK


def _on_route(host: str, port: int) -> str | None:
    """The source address of a packet to ``host``; None: there is no route, or no such name."""
    try:
        (family, kind, _, _, target), *_ = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
        with socket.socket(family, kind) as probe:
            probe.connect(target)  # of a datagram socket: nothing is sent
            return str(probe.getsockname()[0])
    except (OSError, UnicodeError):
        return None


def require_own(address: str) -> str:
    """The address, or UsageError if this host does not have it: ranks of a gang could not bind it."""
    resolved = _resolved(address)
    if not resolved:
        raise UsageError(f"--address: {address[:100]!a} is neither an address nor a name that this host can resolve")
    own = {one for _, one in interfaces()}
    if own.isdisjoint(resolved):
        raise UsageError(f"--address: this host has no interface with the address {address}; it has {', '.join(sorted(own))}")
    return address


def free_port(first: int | None = None) -> int:
    """A free port of this host: ``first`` if that is free."""
    for port in (first, 0) if first else (0,):
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise OSError("this host has no free port")


def with_free_port(assignment: Assignment) -> Assignment:
    """For the first node of a gang over several, and for a replica: the assignment with a free port, the proposed one if possible."""
    if (assignment.nodes == 1 and assignment.replicas is None) or assignment.node_rank:
        return assignment
    import msgspec  # here, as the command line only asks for an address

    address, _, port = assignment.rendezvous.rpartition(":")
    return msgspec.structs.replace(assignment, rendezvous=f"{address}:{free_port(int(port))}")
