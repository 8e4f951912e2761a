"""By which address other hosts reach this one, which network interface has it, and which ports are free there."""

from __future__ import annotations

import ctypes
import ipaddress
import socket
import struct
import urllib.parse
from typing import TYPE_CHECKING

from ...engine.errors import UsageError

if TYPE_CHECKING:
    from ...engine.protocol import Assignment

LOOPBACK = "127.0.0.1"
_ANYWHERE = "192.0.2.1"  #: of RFC 5737, nobody's: nothing is sent there, the kernel only says by which route it would go


class _Ifaddrs(ctypes.Structure):
    """struct ifaddrs of getifaddrs(3), as far as it is read."""


_Ifaddrs._fields_ = [
    ("next", ctypes.POINTER(_Ifaddrs)),
    ("name", ctypes.c_char_p),
    ("flags", ctypes.c_uint),
    ("address", ctypes.c_void_p),
]


def interfaces() -> list[tuple[str, str]]:
    """Name and address of every interface of this host that is up, IPv4 first."""
    libc, first = ctypes.CDLL(None, use_errno=True), ctypes.POINTER(_Ifaddrs)()
    if libc.getifaddrs(ctypes.byref(first)) != 0:
        return []
    found, at = [], first
    while at:
        one = at.contents
        if one.flags & 1 and (address := _address(one.address)) is not None:  # IFF_UP
            found.append((one.name.decode(errors="replace"), address))
        at = one.next
    libc.freeifaddrs(first)
    return sorted(found, key=lambda pair: ":" in pair[1])


def _address(where: int | None) -> str | None:
    """Of a struct sockaddr; None: of another family than IP."""
    if not where:
        return None
    (family,) = struct.unpack("=H", ctypes.string_at(where, 2))
    if family == socket.AF_INET:
        return socket.inet_ntop(family, ctypes.string_at(where + 4, 4))
    if family == socket.AF_INET6:
        return socket.inet_ntop(family, ctypes.string_at(where + 8, 16))
    return None


def is_loopback(address: str) -> bool:
    """Whether only this very host reaches it. A name counts by what it resolves to; one that does not resolve is none."""
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
    """Name of the interface that has an address, None: none of this host has it."""
    wanted = _resolved(address)
    return next((name for name, own in interfaces() if own in wanted), None)


def address_towards(url: str | None) -> str:
    """This host's address on the route to the daemon at ``url``; 127.0.0.1 where that is here, as over its socket."""
    if not url:
        return LOOPBACK
    where = urllib.parse.urlsplit(url)
    return _on_route(where.hostname or "localhost", where.port or 80) or LOOPBACK


def address_of_daemon(tcp: str | None) -> str:
    """The address by which other hosts reach the daemon of this host that listens on ``tcp``; 127.0.0.1: nobody else does."""
    if not tcp:
        return LOOPBACK
    host = tcp.rpartition(":")[0].strip("[]")
    if host not in ("", "0.0.0.0", "::", "*"):
        return host
    outward = next((own for _, own in interfaces() if not ipaddress.ip_address(own).is_loopback), None)
    return _on_route(_ANYWHERE, 9) or outward or LOOPBACK


def _on_route(host: str, port: int) -> str | None:
    """The own address of a packet to ``host``; None: there is no route, or no such name."""
    try:
        (family, kind, _, _, target), *_ = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
        with socket.socket(family, kind) as probe:
            probe.connect(target)  # of a datagram socket: nothing is sent
            return str(probe.getsockname()[0])
    except (OSError, UnicodeError):
        return None


def require_own(address: str) -> str:
    """The address, or UsageError where this host does not have it: ranks of a gang could not bind it."""
    resolved = _resolved(address)
    if not resolved:
        raise UsageError(f"--address: {address[:100]!a} is neither an address nor a name that this host can resolve")
    own = {one for _, one in interfaces()}
    if own.isdisjoint(resolved):
        raise UsageError(f"--address: this host has no interface with the address {address}; it has {', '.join(sorted(own))}")
    return address


def free_port(first: int | None = None) -> int:
    """A port that nobody on this host listens on: ``first`` if that is one."""
    for port in (first, 0) if first else (0,):
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise OSError("this host has no free port")


def with_free_port(assignment: Assignment) -> Assignment:
    """On the first node of a gang over several, and of a replica: with a port that is free here, the one proposed if possible."""
    if (assignment.nodes == 1 and assignment.replicas is None) or assignment.node_rank:
        return assignment
    import msgspec  # not where only an address is asked for, as the command line does

    address, _, port = assignment.rendezvous.rpartition(":")
    return msgspec.structs.replace(assignment, rendezvous=f"{address}:{free_port(int(port))}")
